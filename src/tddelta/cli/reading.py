"""Commands that only read: `scales`, `evaluate`, `inspect`, `report`."""

import dataclasses
import itertools
import json
import math
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from tddelta._plain import counted
from tddelta._streams import written
from tddelta.errors import ConfigError, TDDeltaError, printable
from tddelta.runs import Run, Runs, append_evaluation, find_runs, one_run, readable_runs, write_reward_density
from tddelta.runs.reader import Mode
from tddelta.timescales import LAM, RULES, Rule, TimeScales, names_discounts, number_text, plain_scales

if TYPE_CHECKING:
    from tddelta.inspector import Recording

NUMBERS_OR_LADDER = "NUMBER [NUMBER ...]|LADDER [KEY=VALUE ...]"
"""Placeholder of the values of options that take time scales."""


def option(metavar: str, remark: str = "") -> Any:
    """An option's placeholder and the remark in parentheses that follows its help."""
    return arg(metavar=metavar, help_behavior_hint=f"({remark})" if remark else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ladder:
    """Options that name time scales."""

    gamma: Annotated[float | None, option("FLOAT", "default: 0.99")] = None
    """Largest discount γ_Z; the other scales have horizons half as long, and so on, unless --scales says otherwise."""
    lam: Annotated[float | None, option("FLOAT", "default: 0.95")] = None
    """λ in [0, 1] of the traces."""
    rule: Annotated[Rule | None, option("|".join(RULES), "default: capped")] = None
    """Rule that makes the decay c_z = λ_z γ_z of each scale from λ."""
    scales: Annotated[tuple[str, ...] | None, option(NUMBERS_OR_LADDER, "default: halving")] = None
    """The time scales: horizons, discounts, or a ladder and its settings, as in halving components=4."""

    @property
    def within(self) -> Mapping[str, Any]:
        """The settings of a ladder that the words of --scales name."""
        scales = plain_scales(self.scales)
        return scales if isinstance(scales, Mapping) else {}

    def made(self, *, traces: bool = True, **further: Any) -> TimeScales:
        """The scales that the options name: of discount 0.99, λ 0.95 and capped traces where none of them says it.

        Raises:
            ConfigError: The words name no time scales, or what one of the other options says, too.
        """
        options = {"gamma": self.gamma, "lam": self.lam, "rule": self.rule, **further}
        given = {name: value for name, value in options.items() if value is not None}
        for name in [name for name in given if name in self.within]:
            raise ConfigError(
                f"--{name.replace('_', '-')} is in --scales, too; got {given[name]} and there {self.within[name]}: "
                "drop one of them"
            )
        scales = plain_scales(self.scales)
        defaults: dict[str, Any] = {"lam": LAM, "rule": "capped"} if traces else {}
        if "gamma" not in self.within and not names_discounts(scales):
            defaults["gamma"] = 0.99
        return TimeScales.of(scales, **defaults | given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scales(Ladder):
    """Print a ladder of time scales: horizons, discounts, traces, contraction.

    The default is the ladder of the deep agents: from the horizon 1/(1 − gamma) down, each horizon half of the next.
    --scales names another: horizons, as in --scales 10 100, discounts, as in --scales 0.9 0.99, or a ladder and its
    settings, as in --scales halving components=4 or --scales doubling, which is the one for tables.
    """

    n_step: Annotated[int | None, option("INT", "default: none")] = None
    """Longest n-step window; adds a column."""
    json: bool = False
    """Print the scales as one JSON object."""

    def run(self, command: Sequence[str]) -> int:
        """Print the table."""
        scales = self.made(n_step=self.n_step)
        if self.json:
            print(json.dumps(scales.to_dict(), allow_nan=False))
            return 0
        heads = ["component", "horizon", "γ", "λ", "c = λγ", "factor", "error gain"]
        rows = []
        known = (scales.gammas, scales.labels, scales.horizons, scales.trace_decays or ())
        columns = zip(*known, scales.contraction_factors, scales.error_gains, strict=True)
        for z, (gamma, label, horizon, decay, factor, gain) in enumerate(columns):
            lam = number_text(decay / gamma) if gamma else "any"
            texts = [f"W_{z}", number_text(horizon), label, lam, *map(number_text, (decay, factor, gain))]
            rows.append(texts + ([str(scales.n_steps[z])] if scales.n_steps else []))
        print_table(heads + (["n"] if scales.n_steps else []), rows)
        if all(factor < 1 for factor in scales.contraction_factors):
            print("\nEvery component contracts: full steps towards its λ-return shrink its error by the factor.")
        if all(map(math.isfinite, scales.error_gains)):
            print(
                "\nIf a component keeps an error ε, V is off by ε times its error gain; in the difference form every "
                "component has the gain of the last."
            )
        return 0


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play episodes with the final policies of runs, apart from training.

    Prints mean returns, and appends every evaluation to the evaluations.jsonl of its run.
    """

    runs: Annotated[Positional[tuple[Path, ...]], option("RUN [RUN ...]", "required")]
    """Run directories, folders above some, or files within one."""
    episodes: Annotated[int | None, option("INT", "default: 128; 30 with no-op starts")] = None
    """Episodes, shared out evenly over environments that run in parallel, so that long ones count as often as short."""
    mode: Annotated[
        Literal["sampled", "greedy", "both"] | None,
        option("sampled|greedy|both", "default: both; sampled with no-op starts"),
    ] = None
    """Draw actions from the policy, take its most likely ones, or one evaluation of each."""
    greedy: bool = False
    """The same as --mode greedy."""
    no_op_starts: bool = False
    """Atari: let the i-th episode begin with i more no-ops, i = 0 to 29, as in the paper's hold-out episodes."""
    reward_density: bool = False
    """Count rewards, over 10,000 steps of the policy and of random actions, in place of playing episodes."""
    seed: int = 0
    """Seed of the evaluation; training used none of its random numbers."""
    environment: Annotated[str | None, option("MODULE:NAME")] = None
    """The runs' environment, where it is one of your own: a run directory never decides what code is run."""
    network: Annotated[str | None, option("MODULE:NAME")] = None
    """The runs' network, where it is one of your own."""
    json: bool = False
    """Print one JSON object per evaluation on the standard output, and nothing else."""

    def run(self, command: Sequence[str]) -> int:
        """Evaluate every run."""
        if not self.runs:
            raise ConfigError("evaluate needs a run: name a run directory or a folder above some")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"--seed must be a whole number from 0 to 4294967295; got {self.seed}")
        self._check()
        paths = find_runs(*self.runs)
        code = 0
        for path in paths:
            try:
                self._evaluate(Run(path))
            except TDDeltaError as error:
                if len(paths) == 1:
                    raise
                print(printable(f"tddelta: {path}: {error.written(options_of(self))}"), file=sys.stderr, flush=True)
                code = 1  # the others can be evaluated
        return code

    def _check(self) -> None:
        """ConfigError for options that contradict each other."""
        if self.greedy and self.mode not in (None, "greedy"):
            raise ConfigError(f"--greedy is --mode greedy; got --mode {self.mode}: drop one")
        playing = (self.greedy, self.mode, self.no_op_starts or None, self.episodes)
        if self.reward_density and any(given for given in playing):
            raise ConfigError("--reward-density plays no episodes: drop --episodes, --mode, --greedy, --no-op-starts")

    def _evaluate(self, run: Run) -> None:
        from tddelta.deep import evaluation, policy

        loaded = policy.load(run, environment=self.environment, network=self.network)
        settings: dict[str, Any] = {"seed": self.seed}
        if self.reward_density:
            found = evaluation.reward_density(loaded, seed=self.seed)
            write_reward_density(run.path, found)
            text = f"rewards per 100 steps: {found['trained']:.4g}; with random actions {found['random']:.4g}"
            self._say(run, found, text)
            return
        chosen = "greedy" if self.greedy else self.mode or ("sampled" if self.no_op_starts else "both")
        settings["episodes"] = self.episodes if self.episodes is not None else 30 if self.no_op_starts else 128
        modes: tuple[Mode, ...] = ("sampled", "greedy") if chosen == "both" else (chosen,)
        for mode in modes:
            if self.no_op_starts:
                scores = evaluation.hold_out(loaded, mode=mode, **settings)
            else:
                scores = evaluation.evaluate(loaded.config, loaded.learned, mode=mode, **settings)
            row = {"steps": run.status["steps"], **scores}
            append_evaluation(run.path, row)
            self._say(run, row, _evaluation(row))

    def _say(self, run: Run, found: dict[str, Any], text: str) -> None:
        if self.json:
            named = {"environment": run.environment, "agent": run.agent, "training_seed": run.seed}
            print(json.dumps({"path": str(run.path), **named, **found}, allow_nan=False), flush=True)
        else:
            print(printable(f"{run.environment}, {run.agent}, seed {run.seed}: {text}"), flush=True)


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Play one game with a trained agent and show what its critic believes, at every horizon, along it.

    Writes inspect.html, one file that needs no network, and inspect.npz, the recording it is made from.

    Example: tddelta inspect runs/breakout --state 100

    Example: tddelta inspect runs/breakout --compare runs/other --video

    Example: tddelta inspect recording.npz
    """

    source: Annotated[Positional[Path], arg(metavar="RUN")]
    """A run directory, a folder with one run in it, a checkpoint's folder, or a recording (.npz). Of a run of
    Stable-Baselines3, its recorded episode is shown."""
    state: Annotated[int | None, option("INT")] = None
    """Print what is believed at this step, and open the page there."""
    compare: Annotated[Path | None, option("RUN")] = None
    """Another run or checkpoint, whose critic is asked about the same game."""
    seed: Annotated[int | None, option("INT", "default: 0")] = None
    """Seed of the game."""
    mode: Annotated[Literal["sampled", "greedy"] | None, option("sampled|greedy", "default: sampled")] = None
    """sampled follows the policy, greedy its most probable action."""
    steps: Annotated[int | None, option("INT", "default: 2000")] = None
    """Longest recording."""
    out: Annotated[Path | None, option("PATH")] = None
    """File ending in .html, or folder of inspect.html (default: the run directory, or beside the recording)."""
    video: bool = False
    """Write an .mp4 beside the page, too; needs pip install "tddelta[video]"."""
    environment: Annotated[str | None, option("PACKAGE.MODULE:FACTORY")] = None
    """The run's environment, where it is one of your own."""
    network: Annotated[str | None, option("PACKAGE.MODULE:FUNCTION")] = None
    """The run's network, where it is one of your own."""

    def run(self, command: Sequence[str]) -> int:
        """Record, print, write."""
        from tddelta.inspector import Recording, inspect
        from tddelta.inspector.page import table

        stored = self.source.suffix == ".npz"
        if stored:
            self._check_stored()
            recording, folder = Recording.read(self.source), self.source.parent
        else:
            recording, folder = self._record()
        target = folder if self.out is None else self.out
        page = target if target.suffix == ".html" else target / "inspect.html"
        moments = [] if self.state is None else table(recording, self.state)
        video = page.with_suffix(".mp4") if self.video else None
        inspect(recording, page, step=self.state or 0, video=video, provenance=f"{shlex.join(command)}.")
        if not stored:
            recording.save(page.with_suffix(".npz"))
        for heads, rows, sentence in moments:
            print_table(heads, rows)
            print(f"{sentence}\n")
        print(f"page: {page}")
        if not stored:
            print(f"recording: {page.with_suffix('.npz')}")
        if video is not None:
            print(f"video: {video}")
        return 0

    def _check_stored(self, what: str = "a run; got the recording") -> None:
        """ConfigError for options that need an agent."""
        for name in ("compare", "seed", "mode", "steps", "environment", "network"):
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name} goes with {what} {self.source}: drop it")

    def _record(self) -> "tuple[Recording, Path]":
        if not (self.source / "checkpoint.json").exists():
            run = one_run(self.source)
            library = run.config["agent"].get("library")
            if library is not None:  # whose networks are not rebuilt here
                from tddelta.inspector import Recording

                self._check_stored(f"a run of tddelta; got one of {library},")
                return Recording.of_run(run), run.path
        from tddelta.inspector.record import agent_at, opinion, record

        own: dict[str, Any] = {"environment": self.environment, "network": self.network}
        policy, name = agent_at(self.source, **own)
        settings: dict[str, Any] = {"seed": self.seed, "mode": self.mode, "steps": self.steps}
        recording = record(policy, name=name, **{key: value for key, value in settings.items() if value is not None})
        if self.compare is not None:
            other, other_name = agent_at(self.compare, **own)
            ours, theirs = (each.config.environment_object().name for each in (policy, other))
            if ours != theirs:
                raise ConfigError(f"--compare needs a run on {ours}; got one on {theirs}: name another run")
            if other_name == name:
                other_name = str(self.compare)
            recording = recording.beside(opinion(other, recording, other_name))
        return recording, one_run(self.source).path


@dataclasses.dataclass(frozen=True)
class Redraw:
    """Draw the report of runs again: one HTML file that needs no network.

    Figures (PNG, PDF) and tables (CSV, LaTeX) go beside it. It needs the run directories and nothing else; the same
    runs give the same bytes.
    """

    runs: Annotated[Positional[tuple[Path, ...]], option("DIR [DIR ...]", "required")]
    """Run directories or folders above some."""
    out: Annotated[Path | None, option("PATH")] = None
    """File ending in .html, or folder of report.html (default: the folder that all runs share)."""
    baselines: Annotated[tuple[str, ...] | None, option("AGENT [AGENT ...]")] = None
    """Agents that the others are compared with (default: ppo, ppo+ and ppo-multi, where present)."""

    def run(self, command: Sequence[str]) -> int:
        """Write the report."""
        if not self.runs:
            raise ConfigError("report needs runs: name a run directory or a folder above some")
        from tddelta.report.page import shared_folder

        runs = readable_runs(*self.runs)
        print_report(runs, shared_folder(self.runs) if self.out is None else self.out, self.baselines)
        return 0


def print_report(runs: Runs, out: Path, baselines: Sequence[str] | None = None, *, table: bool = True) -> None:
    """Write the report, then print its summary table and where it is."""
    from tddelta.paper.published import sections
    from tddelta.report import Report

    report = Report(runs, baselines=baselines, sections=sections)
    page = report.write(out)
    rows = report.summary() if table else []
    if rows:
        print()
        print_table(list(rows[0]), [list(row.values()) for row in rows], left=2)
        print_notes(report.notes)
    for problem in report.problems:
        print(printable(f"tddelta: {problem}"), file=sys.stderr)
    print(f"report: {page}", file=sys.stdout if table else sys.stderr)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table in columns, the first `left` of them flush left, and the rest flush right."""
    shown = [[written(printable(text)) for text in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    shown.insert(1, ["─" * width for width in widths])
    columns = list(range(left, len(widths)))
    while True:
        part = [*range(left), *columns[: _fitting(widths, columns, left)]]
        for row in shown:
            cells = [row[i].ljust(widths[i]) if i < left else row[i].rjust(widths[i]) for i in part]
            print("  ".join(cells).rstrip())
        columns = columns[len(part) - left :]
        if not columns:
            return
        print()


def print_notes(notes: Iterable[str]) -> None:
    """Print notes to a table below it, as one paragraph that fits a terminal."""
    print(f"\n{textwrap.fill(' '.join(notes), min(100, shutil.get_terminal_size((100, 0)).columns))}")


def _fitting(widths: Sequence[int], columns: Sequence[int], left: int) -> int:
    """Number of these columns that fit beside the first `left` ones on a terminal, at least one; elsewhere all."""
    room = shutil.get_terminal_size((sys.maxsize, 0)).columns
    beside = itertools.accumulate((2 + widths[i] for i in columns), initial=sum(widths[:left]) + 2 * (left - 1))
    return max(1, sum(end <= room for end in beside) - 1)


def options_of(command: Any) -> Callable[[str, str, str], str]:
    """Return what writes the settings in a message as options of a command, for `TDDeltaError.written`."""
    flags = dict(_options(command))

    def write(name: str, python: str, words: str) -> str:
        name = {"environment_kwargs": "env_kwargs", "seeds": "seed_list" if " " in words else name}.get(name, name)
        if name not in flags:
            return python
        if flags[name] and words in ("True", "False"):
            name, words = f"no_{name}" if words == "False" else name, ""
        return f"--{name.replace('_', '-')} {words}".rstrip()

    return write


def _options(command: Any) -> Iterator[tuple[str, bool]]:
    """Fields of a command and of the settings within it, and whether each is a flag without a value."""
    for field in dataclasses.fields(command):
        within = getattr(command, field.name)
        if dataclasses.is_dataclass(within):
            yield from _options(within)
        else:
            yield field.name, isinstance(field.default, bool)


def _evaluation(row: dict[str, Any]) -> str:
    starts = " after no-ops" if row.get("starts") == "no-ops" else ""
    text = f"{row['mode']}, {counted(row['episodes'], 'episode')}{starts}"
    if row["return_mean"] is not None:
        text += f": mean return {row['return_mean']:.4g}"
        if row["return_standard_deviation"] is not None:
            text += f" (standard deviation {row['return_standard_deviation']:.3g})"
        text += f", mean length {row['length_mean']:.4g}"
    return text + (f"; {row['unfinished']} did not end" if row["unfinished"] else "")
