"""`reproduce`: experiments of the paper, each with one folder for all that comes of it."""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

from tyro.conf import Positional, arg

from tddelta._streams import hang_ups
from tddelta.cli.reading import option, print_report, print_table
from tddelta.cli.training import explain, folder_and_repetition, shown, stopped
from tddelta.errors import ConfigError
from tddelta.runs import readable_runs
from tddelta.runs.files import ELSEWHERE, storing

if TYPE_CHECKING:
    from tddelta.experiments.plan import RunPlan


Experiment = Literal["ring", "theory", "atari", "atari-variants"]
"""Experiments by name."""

_OF_ATARI = ("games", "agents", "seeds", "seed_list", "steps", "checkpoint_every", "listed")


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Reproduce an experiment of the paper: its tables and figures; for Atari its runs and a report.

    ring and theory: one folder with tables (CSV) and figures (PNG, for theory also PDF), written once.

    ring: n-step TD against n-step TD(Δ) on the ring, every discount, window and step size of the published grid.

    theory: Theorems 1 to 4 beside measurements, and the counterexample to the published bounds.

    atari: games × agents × seeds, with the published numbers beside what is there so far. In an existing DIR, finished
    runs are skipped, interrupted ones go on, missing ones start; several machines may share it.

    atari-variants: the same for the released, the published and the correct algorithm, on Zaxxon and Qbert.

    Example: tddelta reproduce ring --quick

    Example: tddelta reproduce atari --games Qbert --agents ppo ppo-delta-bootstrap --seeds 2 --steps 2_000_000
    """

    experiment: Annotated[Positional[Experiment], arg(metavar="EXPERIMENT")]
    """ring, theory, atari or atari-variants."""
    out: Annotated[Path | None, option("DIR", "default: runs/YYYYMMDD-HHMMSS")] = None
    """Folder to write; for ring and theory it must not exist yet."""
    quick: bool = False
    """ring, theory: a smaller experiment, in seconds: fewer processes, seeds and settings."""
    redraw: Annotated[Path | None, option("DIR", "default: run the experiment")] = None
    """ring: folder of a finished experiment whose figures and tables are made again from its averages."""
    games: Annotated[tuple[str, ...], option("GAME [GAME ...]", "default: the paper's")] = ()
    """atari: games."""
    agents: Annotated[tuple[str, ...], option("AGENT [AGENT ...]", "default: the paper's")] = ()
    """atari: agents of compare; -published or -released may follow ppo-delta-bootstrap and ppo-delta-matched."""
    seeds: Annotated[int | None, option("INT", "default: 10")] = None
    """atari: how many of the paper's ten seeds."""
    seed_list: Annotated[tuple[int, ...] | None, option("INT [INT ...]")] = None
    """atari: the seeds themselves, in place of --seeds."""
    steps: Annotated[int | None, option("INT", "default: 10000000")] = None
    """atari: agent steps of each run, four frames each."""
    checkpoint_every: Annotated[float | None, option("SECONDS", "default: 300")] = None
    """atari: save a checkpoint of every run after so many seconds."""
    listed: Annotated[bool, arg(name="list")] = False
    """atari: show the plan, how far it is and how long it takes on this machine, and train nothing."""

    def run(self, command: Sequence[str]) -> int:
        """Run the experiment and write the folder."""
        from tddelta.experiments.plan import folder_of
        from tddelta.experiments.running import handled

        self._check()
        if self.experiment not in _EXPERIMENTS:
            return reproduce_atari(self, command)
        with handled((signal.SIGTERM, *hang_ups()), _leave):  # nothing half-made is left
            if self.redraw is not None:
                out = self.redraw
                print("\n".join(_draw_ring(out)))
            else:
                out = folder_of(self.out)
                if out.exists() or out.is_symlink():
                    raise ConfigError(
                        f"{out} exists already, and nothing is overwritten: name another folder with --out"
                    )
                _EXPERIMENTS[self.experiment](out, self.quick)
        print(f"{self.experiment}: {out}")
        return 0

    def _check(self) -> None:
        """ConfigError for options of another experiment, which would do nothing."""
        if self.redraw is not None and (self.experiment != "ring" or self.out is not None or self.quick):
            raise ConfigError("--redraw goes with ring alone: write tddelta reproduce ring --redraw DIR")
        if self.experiment not in _EXPERIMENTS:
            if self.quick:
                raise ConfigError("--quick is for ring and theory: for less of atari name --games, --seeds or --steps")
            if self.seeds is not None and self.seed_list is not None:
                raise ConfigError("--seeds and --seed-list both name the seeds: drop one")
            return
        for name in _OF_ATARI:
            if getattr(self, name) != getattr(type(self), name):
                option = "list" if name == "listed" else name.replace("_", "-")
                raise ConfigError(f"--{option} is for atari and atari-variants; got it for {self.experiment}: drop it")


def _theory(out: Path, quick: bool) -> None:
    from tddelta import __version__
    from tddelta._matplotlib import own_style
    from tddelta.paper import theory as theory
    from tddelta.report.figures import to_bytes
    from tddelta.runs.files import to_json

    def fill(folder: Path) -> None:
        results = theory.measure(quick=quick, say=_tell)
        (folder / "tables").mkdir()
        for table in theory.tables(results):
            (folder / "tables" / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
        (folder / "figures").mkdir()
        with own_style():
            drawings = list(theory.drawings(results))
            for drawing in drawings:
                (folder / "figures" / f"{drawing.name}.png").write_bytes(to_bytes(drawing.figure))
                (folder / "figures" / f"{drawing.name}.pdf").write_bytes(to_bytes(drawing.figure, "pdf"))
        lines.extend(theory.statements(results))
        settings = {"experiment": "theory", "quick": quick, "version": __version__}
        (folder / "settings.json").write_bytes(to_json(settings))
        captions = [f"- `figures/{drawing.name}.png`: {drawing.caption}" for drawing in drawings]
        text = ["# Theory", "", *(f"- {line}" for line in lines), "", "## Figures", "", *captions]
        (folder / "theory.md").write_text("\n".join(text) + "\n", encoding="utf-8")

    lines: list[str] = []
    write_folder(out, fill)
    print("\n".join(lines))


def _ring(out: Path, quick: bool) -> None:
    from tddelta.paper.ring import QUICK, peak_memory, run_ring

    began, live = time.perf_counter(), sys.stderr.isatty()

    def fill(folder: Path) -> None:
        run_ring(QUICK if quick else None, folder, live=live, say=(lambda _: None) if live else _tell)

    write_folder(out, fill)  # what was computed has its place before anything is drawn
    timing = json.loads((out / "timing.json").read_text(encoding="utf-8"))
    _tell(
        f"{timing['component_updates']:,} component updates in {timing['seconds']:.1f} s "
        f"on {timing['threads']} threads; drawing"
    )
    try:
        lines = _draw_ring(out)
    except BaseException:
        _tell(f"averages are kept: tddelta reproduce ring --redraw {shlex.quote(str(out))}")
        raise
    print("\n".join(lines))
    memory = peak_memory()
    _tell(f"{time.perf_counter() - began:.1f} s" + (f", {memory / 2**30:.2f} GiB at most" if memory else ""))


def _draw_ring(folder: Path) -> list[str]:
    from rich.console import Console

    from tddelta.paper.ring import write_ring

    with Console(stderr=True).status("drawing") as status:
        return write_ring(folder, done=lambda name: status.update(f"drew {name}"))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


_EXPERIMENTS: dict[str, Callable[[Path, bool], None]] = {"ring": _ring, "theory": _theory}
"""Functions that fill the folder of an experiment."""


def _leave(number: int, _: object) -> NoReturn:
    """End the program as an exception does, by the exit code of a signal."""
    raise SystemExit(128 + number)


def write_folder(out: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under a temporary name beside `out`, then rename it: `out` is whole or does not exist."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
        temporary.mkdir()
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error}): name another folder with --out") from error
    try:
        with storing(out, ELSEWHERE):
            fill(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    try:
        temporary.rename(out)
    except OSError as error:  # somebody else was there first
        raise ConfigError(f"{out} cannot be made ({error.strerror}): what was to go there is in {temporary}") from error


def reproduce_atari(options: "Reproduce", command: Sequence[str]) -> int:
    """Run `reproduce atari` or `reproduce atari-variants`."""
    from tddelta.experiments.plan import divide
    from tddelta.experiments.running import run_plans
    from tddelta.paper import atari as atari

    variants = options.experiment == "atari-variants"
    out, again = folder_and_repetition(options.out, command)
    plans = atari.plan_atari(
        options.games or (atari.VARIANT_GAMES if variants else None),
        options.agents or (atari.VARIANT_AGENTS if variants else atari.AGENTS),
        seeds=options.seed_list or (len(atari.SEEDS) if options.seeds is None else options.seeds),
        steps=atari.STEPS if options.steps is None else options.steps,
        out=out,
    )
    if options.listed:
        divide(plans, resume=True, shared=True)  # which refuses runs of another plan
        _show(plans)
        return 0
    outcomes = run_plans(
        plans, resume=True, shared=True, checkpoint_every=options.checkpoint_every, command=command, **shown()
    )
    explain(outcomes, options)
    if outcomes.signal is not None:
        text = f"{outcomes.finished} of {len(plans)} runs are finished; so far: tddelta report {out}"
        return stopped(outcomes.signal, text, again)
    unmeasured = atari.measure(plans, _tell)
    for plan, error in unmeasured:
        _tell(f"tddelta: {plan.name} could not be measured: {error}")
    if len(outcomes.failed) < len(plans):
        correct = tuple(dict.fromkeys(plan.agent for plan in plans if plan.agent in atari.AGENTS))
        print_report(readable_runs(out), out.absolute(), correct if variants and correct else None)
    return 1 if outcomes.failed or unmeasured else 0


def _show(plans: "Sequence[RunPlan]") -> None:
    """Print the plan: how many runs are how far, and how long the rest takes."""
    from tddelta.experiments.display import duration, summary
    from tddelta.paper import atari as atari

    states = atari.look(plans)
    estimate = atari.estimate(plans) if any(state.state != "finished" for state in states) else None
    rows = []
    for environment, agent in dict.fromkeys((state.entry.environment, state.entry.agent) for state in states):
        here = [s for s in states if (s.entry.environment, s.entry.agent) == (environment, agent)]
        finished = sum(state.state == "finished" for state in here)
        begun = sum(state.state not in ("finished", "waiting") for state in here)
        left = "" if estimate is None else duration(estimate.seconds(here))
        rows.append([environment, agent, str(len(here)), f"{here[0].entry.steps:,}", str(finished), str(begun), left])
    print_table(["Game", "Agent", "Runs", "Steps each", "Finished", "Begun", "Time left here"], rows, left=2)
    print(f"\n{summary(states)}")
    if estimate is not None:
        speed = f"{estimate.steps_per_second:,.0f} steps per second, {estimate.source}"
        print(f"time left on this machine alone: {duration(estimate.seconds(states))} ({speed})")
