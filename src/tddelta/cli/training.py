"""Commands that train: `train` and `compare`."""

import dataclasses
import json
import shlex
import sys
import traceback
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from tddelta._plain import tidy
from tddelta.cli.reading import NUMBERS_OR_LADDER, option, options_of, print_report
from tddelta.errors import ConfigError, StorageError, TDDeltaError, printable
from tddelta.runs import readable_runs

if TYPE_CHECKING:
    from tddelta.experiments.plan import Outcomes, RunPlan

_HELP = {
    "network": "Network: mlp, minatar-conv, nature-conv, or package.module:function."
}  # where text can say less than Python
_WORDS = {"scales": NUMBERS_OR_LADDER, "grow": "STEP:HORIZON [...]"}  # settings that are made of the words given
Tracker = Literal["tensorboard", "wandb"]
"""Names of trackers that can follow a run."""

_NAMED_APART = ("environment", "environment_kwargs", "agent", "steps")  # fields of Config with options of their own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Options of both commands, after their own."""

    steps: Annotated[int | None, option("INT", "default: the environment's preset")] = None
    """Environment steps of each run, rounded up to whole updates."""
    out: Annotated[Path | None, option("DIR", "default: runs/YYYYMMDD-HHMMSS")] = None
    """Folder of the run directories, and of the report of several runs."""
    resume: bool = False
    """Skip finished runs in --out, go on with unfinished ones from their checkpoints, start missing ones; a run without
    a checkpoint is set aside."""
    eval_every: Annotated[int | None, option("STEPS", "default: never")] = None
    """Evaluate every policy every so many steps; the training stays the same to the byte."""
    checkpoint_every: Annotated[float | None, option("SECONDS", "default: 300")] = None
    """Save a checkpoint of every run after so many seconds, or later where that takes over a hundredth of the time."""
    preset: Annotated[tuple[Path, ...], option("FILE [...]")] = ()
    """Preset files that tune wrote; each sets what no option here sets, for the agent and environment it names."""
    track: Annotated[tuple[Tracker, ...], option("tensorboard|wandb [...]")] = ()
    """Let TensorBoard or Weights & Biases follow every run."""
    env_kwargs: Annotated[tuple[str, ...], option("KEY=VALUE [...]|JSON")] = ()
    """Keyword arguments of the environments, as key=value or one JSON object."""
    json: bool = False
    """Print one JSON object per finished run on the standard output, and nothing else."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRun:
    """The run that `train` trains."""

    environment: Annotated[Positional[str], arg(metavar="ENV|RUN")]
    """gymnax id such as Breakout-MinAtar or CartPole-v1, Atari game such as Qbert, gym:ID or gym:package.module:ID for
    Gymnasium, or package.module:factory. With --resume and without --out the
    run directory to go on in; its settings are those recorded there."""
    agent: str = "ppo-delta"
    """ppo, ppo+, ppo-multi, ppo-delta, ppo-delta-bootstrap, ppo-delta-matched, or package.module:agent."""
    seed: int = 0
    """Seed; the same seed gives the same bytes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Training, OneRun):  # dataclasses take the fields of the last base first
    """Train one agent in one environment with one seed.

    Writes the run directory OUT/ENV/AGENT/seed-N; `tddelta evaluate` plays the policy in it, `tddelta report` draws it.
    Where settings are changed, AGENT gets a hash of them, as in ppo-delta-1a2b3c4d.

    Every few minutes it saves a checkpoint. Ctrl-C and SIGTERM save one, too, and stop; a compilation in progress ends
    first. A second Ctrl-C stops at once. Whatever ended the run: tddelta train --resume RUN goes on from the newest
    checkpoint, and ends with the same bytes as without the break; Atari and Gymnasium go on with fresh environments,
    which the run's record says.

    Example: tddelta train CartPole-v1 --agent ppo --seed 3 --learning-rate 3e-4 --hidden-sizes 128 128
    """

    def run(self, command: Sequence[str]) -> int:
        """Train, or go on with a run."""
        if self.resume and self.out is None:
            return _go_on(self, command)
        return _run(self, [self.environment], [self.agent], [self.seed], command)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralRuns:
    """The runs that `compare` trains."""

    environments: Annotated[Positional[tuple[str, ...]], option("ENV [ENV ...]", "required")]
    """gymnax ids such as Breakout-MinAtar or CartPole-v1, Atari games such as Qbert, gym:ID or gym:package.module:ID
    for Gymnasium, or package.module:factory."""
    agents: Annotated[tuple[str, ...], arg(metavar="AGENT [AGENT ...]")] = ("ppo", "ppo-delta")
    """ppo, ppo+, ppo-multi, ppo-delta, ppo-delta-bootstrap, ppo-delta-matched, or package.module:agent."""
    seeds: int = 3
    """Number of seeds: 0, 1, …, N−1."""
    seed_list: Annotated[tuple[int, ...] | None, option("INT [INT ...]")] = None
    """The seeds themselves, in place of --seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(Training, SeveralRuns):
    """Train agents × environments × seeds, and report the differences.

    As many runs at a time as there are cores. Each writes a run directory OUT/ENV/AGENT/seed-N; at the end come a table
    of scores with confidence intervals, and OUT/report.html, of all runs in OUT. Where settings are changed, AGENT gets
    a hash of them, as in ppo-delta-1a2b3c4d.

    Ctrl-C saves the runs in progress and stops; compilations in progress end first. A second Ctrl-C stops at once.

    Example: tddelta compare Breakout-MinAtar --agents ppo ppo-delta --seeds 5 --steps 1_000_000 --gamma 0.999
    """

    def run(self, command: Sequence[str]) -> int:
        """Train all, then report."""
        if not self.environments:
            raise ConfigError(
                "compare needs an environment: name it first, as in tddelta compare Breakout-MinAtar --agents ppo"
            )
        seeds = self.seeds if self.seed_list is None else list(self.seed_list)
        return _run(self, list(self.environments), list(self.agents), seeds, command)


def _run(
    options: Train | Compare, environments: list[str], agents: list[str], seeds: int | list[int], command: Sequence[str]
) -> int:
    from tddelta.experiments.plan import plan_runs

    out, again = folder_and_resumption(options, command)
    plans = plan_runs(
        environments, agents, seeds=seeds, steps=options.steps, out=out, presets=options.preset, **settings_of(options)
    )
    return _work_through(options, plans, out, command, again)


def folder_and_resumption(options: Any, command: Sequence[str]) -> tuple[Path, list[str]]:
    """Folder of a command with `--out` and `--resume`, and the command that goes on there.

    Raises:
        ConfigError: There is nothing to go on in.
    """
    if options.resume and options.out is None:
        raise ConfigError("--resume needs --out: name the folder to go on in, as in --out runs/20260101-120000")
    out, again = folder_and_repetition(options.out, command)
    return out, again if options.resume else [*again, "--resume"]


def folder_and_repetition(given: Path | None, command: Sequence[str]) -> tuple[Path, list[str]]:
    """Folder of a command with `--out`, and the command that writes there again."""
    from tddelta.experiments.plan import folder_of

    out = folder_of(given)
    return out, [*command, *([] if given else ["--out", str(out)])]


def settings_of(options: Any) -> dict[str, Any]:
    """Settings of `ppo.Config` that the options of a command change."""
    changed = dataclasses.asdict(options).get("settings", {})
    settings = {name: value for name, value in changed.items() if value is not None}
    return settings | ({"environment_kwargs": keywords(options.env_kwargs)} if options.env_kwargs else {})


def _go_on(options: Train, command: Sequence[str]) -> int:
    """Go on with the run in a directory, as it is recorded there."""
    from tddelta.experiments.running import recorded_plan

    path = Path(options.environment)
    if not path.exists():
        raise ConfigError(
            "--resume needs --out, or a run directory in place of ENV: name the folder to go on in, as in tddelta "
            f"train --resume runs/20260101-120000; got {options.environment!r}, which does not exist"
        )
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    named = {name: getattr(options, name) for name in ("agent", "seed", "steps", "preset")}
    named = {name: value for name, value in named.items() if value != defaults[name]}
    plan, recorded = recorded_plan(path, **named, **settings_of(options))
    recorded = {name: value for name, value in recorded.items() if getattr(options, name) in (None, ())}
    return _work_through(dataclasses.replace(options, **recorded), [plan], plan.path, command, command)


def _work_through(
    options: Train | Compare, plans: "list[RunPlan]", out: Path, command: Sequence[str], again: Sequence[str]
) -> int:
    """Train what is not finished yet, and say how it went; `again` is the command that goes on."""
    from tddelta.experiments.running import run_plans

    outcomes = run_plans(
        plans,
        resume=options.resume,
        eval_every=options.eval_every,
        checkpoint_every=options.checkpoint_every,
        track=options.track,
        command=command,
        **shown(json=options.json),
    )
    explain(outcomes, options)
    if outcomes.signal is not None:
        hint = f"the run directories in {out} can be read"
        return stopped(outcomes.signal, f"{outcomes.finished} of {len(plans)} runs are finished; {hint}", again)
    if any(isinstance(error, StorageError) for _, error in outcomes.failed):
        print(f"to go on: {shlex.join(again)}", file=sys.stderr)
    if isinstance(options, Compare):
        if len(outcomes.failed) < len(plans):
            print_report(readable_runs(out, loaded=outcomes.loaded), out.absolute(), table=not options.json)
    elif not outcomes.failed:
        print(f"run: {plans[0].path}", file=sys.stderr if options.json else sys.stdout)
    return 1 if outcomes.failed else 0


def shown(*, json: bool = False) -> dict[str, Any]:
    """Arguments of `Display` for a command: a table on a terminal, and a line for each run that ends."""
    from tddelta.experiments.display import describe, to_json

    return {"live": sys.stderr.isatty(), "say": to_json if json else describe}


def stopped(number: int, text: str, again: Sequence[str]) -> int:
    """Say what was done when a signal came, and how to go on; return the exit code."""
    print(f"stopped: {text}\nto go on: {shlex.join(again)}", file=sys.stderr)
    return 128 + number


def explain(outcomes: "Outcomes", options: Any) -> None:
    """Say what made runs fail: in a sentence, or once with its traceback where nobody expected it."""
    unexpected: dict[tuple[type, str], list[tuple[RunPlan, Exception]]] = {}
    for plan, error in outcomes.failed:
        if isinstance(error, TDDeltaError):
            print(printable(f"tddelta: {plan.name} failed: {error.written(options_of(options))}"), file=sys.stderr)
        else:
            unexpected.setdefault((type(error), str(error)), []).append((plan, error))
    for alike in unexpected.values():
        print(f"tddelta: {'; '.join(plan.name for plan, _ in alike)} failed:", file=sys.stderr)
        print(printable("".join(traceback.format_exception(alike[0][1]))), end="", file=sys.stderr)


def keywords(given: Sequence[str]) -> dict[str, Any]:
    """Read `--env-kwargs`: key=value with JSON values or plain text, or one JSON object."""
    form = "--env-kwargs must be KEY=VALUE ... or one JSON object"
    if len(given) == 1 and given[0].lstrip().startswith("{"):
        try:
            return dict(json.loads(given[0]))
        except ValueError as error:
            raise ConfigError(f"{form}; got {given[0]!r}, which is not JSON: {error}") from error
    read: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = tidy(key)
        if not key or not equals:
            raise ConfigError(f"{form}; got {text!r}: write it as {key or 'KEY'}=VALUE")
        try:
            read[key] = json.loads(value)
        except ValueError:  # plain text
            read[key] = value
    return read


def with_settings(command: type[Any]) -> Any:
    """Return the command with one option for every field of `ppo.Config` that text can name.

    An option that is left out leaves the setting to the environment's preset, so all defaults are None. The command has
    its own options for those that its `apart` names.
    """
    from tddelta.deep.ppo import PRESETS, Config

    differing = {name for preset in PRESETS.values() for name in preset}
    hints = typing.get_type_hints(Config)
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(Config):
        if field.name in _NAMED_APART or field.name in getattr(command, "apart", ()):
            continue
        kind, metavar = tuple[str, ...], _WORDS.get(field.name)
        if metavar is None:
            kind, metavar = _kind_and_metavar(hints[field.name])
        text = " ".join(map(str, field.default)) or None if isinstance(field.default, tuple) else field.default
        remark = f"default: {text}" + (", or the environment's preset" if field.name in differing else "")
        words = arg(help=_HELP.get(field.name, field.metadata["help"]))
        shown = option(metavar, "" if text is None else remark)
        fields.append((field.name, Annotated[kind | None, words, shown], None))
    settings = dataclasses.make_dataclass("settings", fields, frozen=True)
    settings.__doc__ = "All settings of the agents; one that is left out has its preset."
    factory = dataclasses.field(default_factory=settings)
    own = [("settings", settings, factory)]
    whole = dataclasses.make_dataclass(command.__name__, own, bases=(command,), frozen=True, kw_only=True)
    whole.__doc__ = command.__doc__
    return whole


def _kind_and_metavar(hint: Any) -> tuple[Any, str]:
    """The type of a setting on the command line and its placeholder; what can be an object there is named by text."""
    kinds = [hint]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    kind = kinds[0] if len(kinds) == 1 and kinds[0] is not Any else str
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return kind, "|".join(map(str, parts))
    if typing.get_origin(kind) is tuple:
        return kind, "{0} [{0} ...]".format(parts[0].__name__.upper())
    return kind, "True|False" if kind is bool else str(kind.__name__.upper())
