"""The plan of an experiment: one `RunPlan` per run, checked completely before anything starts; studies in TOML files.

A study: a TOML file that names environments, agents, seeds and settings, and the runs that it stands for.

Text in the file is only ever a name or a value: nothing of it is evaluated.
"""

import hashlib
import itertools
import json
import os
import re
import signal
import tomllib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tddelta._plain import as_real, as_whole, closest, plain, tidy, whole
from tddelta.errors import CheckpointError, ConfigError, setting
from tddelta.runs import Run, Runs, config_hash, is_being_written, run_path
from tddelta.runs.reader import a_path
from tddelta.timescales import plain_scales

if TYPE_CHECKING:
    from tddelta.deep.ppo import Config


@dataclass(frozen=True)
class RunPlan:
    """One run: what to train and where to write it.

    Attributes:
        environment: Name of the environment.
        agent: Label of the agent: its name, with a hash of the configuration where that is not the preset's.
        seed: The seed.
        path: The run directory, `OUT/ENV/AGENT/seed-N`.
        config: All settings.
        content: What `config.json` will hold.
        recipe: The arguments of `plan_runs` that make it anywhere, `environment`, `agent` and settings, where
            environment and agent are names; else None.
    """

    environment: str
    agent: str
    seed: int
    path: Path
    config: "Config" = field(repr=False)
    content: Mapping[str, Any] = field(repr=False, hash=False)
    recipe: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)

    @property
    def name(self) -> str:
        """The run in words, as in "Catch-bsuite, ppo-delta, seed 0"."""
        return f"{self.environment}, {self.agent}, seed {self.seed}"

    @property
    def steps(self) -> int:
        """Environment steps of the whole run: whole updates."""
        return self.config.updates * self.config.batch


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        plan: The run.
        state: "finished", "interrupted" or "failed".
        error: What made it fail.
        skipped: Whether it had been finished before, or elsewhere.
    """

    plan: RunPlan
    state: str
    error: Exception | None = None
    skipped: bool = False

    @cached_property
    def run(self) -> Run | None:
        """The run, loaded once; None where it has not begun or its `config.json` is damaged."""
        with suppress(CheckpointError):  # which made it fail
            if (self.plan.path / "config.json").exists():
                return Run(self.plan.path)
        return None


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of the runs of a plan.

    Attributes:
        runs: Those that had been finished before, then one per run that was started, in order of the plan.
        signal: Number of the signal that stopped them; None if none did.
    """

    runs: Sequence[Outcome]
    signal: int | None = None

    @property
    def failed(self) -> list[tuple[RunPlan, Exception]]:
        """The runs that failed, and why."""
        return [(outcome.plan, outcome.error) for outcome in self.runs if outcome.error is not None]

    @property
    def loaded(self) -> Runs:
        """The runs that have begun and can be read."""
        return Runs([outcome.run for outcome in self.runs if outcome.run is not None])

    @property
    def finished(self) -> int:
        """Number of finished runs."""
        return sum(outcome.state == "finished" for outcome in self.runs)

    def raise_signal(self) -> None:
        """Do what the signal that stopped the runs always does: they are saved."""
        if self.signal is not None:
            signal.raise_signal(self.signal)

    def warn(self, count: int, stacklevel: int) -> None:
        """Warn of the runs that failed, of so many, at the place of a caller."""
        if self.failed:
            texts = "; ".join(f"{plan.name}: {type(error).__name__}: {error}" for plan, error in self.failed)
            text = f"{len(self.failed)} of {count} runs failed: {texts}"
            warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)


def plan_runs(
    environments: Any,
    /,
    agents: Any,
    *,
    seeds: int | Iterable[int] = 3,
    steps: int | None = None,
    out: str | os.PathLike[str] | None = None,
    presets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    **settings: Any,
) -> list[RunPlan]:
    """Lay out environments × agents × seeds, in this order, and check every name and setting.

    Args:
        environments: One environment or several: names, `"package.module:factory"`, or environment objects.
        agents: One agent or several: names, `"package.module:agent"`, or `Agent` objects.
        seeds: A number N ≥ 1 for the seeds 0 … N−1, or the seeds themselves.
        steps: Environment steps per run; None takes the preset's.
        out: Folder of the run directories; None is a new one, `runs/YYYYMMDD-HHMMSS`.
        presets: Preset files, as `tddelta tune` writes them; each for the agent and the environment that it names.
        **settings: Fields of `ppo.Config` to change in every run.

    Returns:
        One plan per run. Nothing has been written.

    Raises:
        ConfigError: A name or setting is unknown or out of range, or two runs would share a directory.
    """
    from tddelta.deep import ppo, training
    from tddelta.deep.config import read_preset, unchecked, with_preset_files

    if steps is not None:
        settings = {"steps": steps, **settings}
    settings = plain(settings)
    if "scales" in settings:
        settings["scales"] = plain_scales(settings["scales"])
    numbers = whole_seeds(seeds)
    folder = folder_of(out)
    plans: dict[Path, RunPlan] = {}
    pairs = [*itertools.product(_several("environments", environments), _several("agents", agents))]
    files = presets if isinstance(presets, list | tuple) else [presets]
    each = with_preset_files([*map(read_preset, files)], pairs, settings)
    for (environment, agent), own in zip(pairs, each, strict=True):
        config = ppo.preset(environment, agent, **own)
        usual = unchecked(environment, agent, steps=config.steps)
        named = isinstance(environment, str) and isinstance(agent, str)
        recipe = {"environment": environment, "agent": agent, **own} if named else None
        for seed in numbers:
            content = json.loads(json.dumps(training.run_config(config, seed), allow_nan=False))
            name, label = str(content["environment"]), str(content["agent"]["name"])
            if config != usual:
                label = f"{label}-{config_hash(content)}"
            path = run_path(folder, name, label, seed)
            if path in plans:
                raise ConfigError(
                    f"{plans[path].name} is planned twice: name every environment and agent once, "
                    "and give different agents different names"
                )
            plans[path] = RunPlan(name, label, seed, path, config, content, recipe)
    return list(plans.values())


def divide(plans: Sequence[RunPlan], *, resume: bool, shared: bool = False) -> tuple[list[RunPlan], list[Outcome]]:
    """Divide a plan into the runs to start or to go on with, and those that are finished.

    Existing run directories are allowed where `resume` is true. Where the folder is `shared`, others may be writing
    some at this moment, which count as runs to start; so does one whose files are damaged, which then fails alone.

    Raises:
        ConfigError: A run directory cannot be made; or there are run directories and `resume` is false; or one of
            them has other settings than the plan, or is being written at this moment.
    """
    for folder in dict.fromkeys(plan.path.parent for plan in plans):
        _check_folder(folder)
    existing = [plan for plan in plans if plan.path.exists()]
    if existing and not resume:
        others = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
        raise ConfigError(
            f"{existing[0].path}{others} exists already, and a run is never overwritten: pass "
            f"{setting('resume', True)} to keep what is finished and go on with the rest, or choose another folder "
            f"with {setting('out', '')}"
        )
    finished = []
    for plan in existing:
        if not shared and is_being_written(plan.path):
            raise ConfigError(
                f"{plan.path} is being written by another process: wait for it, or choose another folder with "
                f"{setting('out', '')}"
            )
        outcome = Outcome(plan, "finished", skipped=True)
        try:
            if outcome.run is None:
                continue  # cut off before it began, or damaged
            state = outcome.run.status["state"]
        except CheckpointError:
            continue
        if other := differences(outcome.run.config, plan.content):
            raise ConfigError(
                f"{plan.path} was started with other settings, {'; '.join(other)}: "
                f"use the settings from there, or choose another folder with {setting('out', '')}"
            )
        if state == "finished":
            finished.append(outcome)
    over = {outcome.plan.path for outcome in finished}
    return [plan for plan in plans if plan.path not in over], finished


def _check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written to; nothing is made yet."""
    try:
        above = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        reason = f"{above} is not a folder" if not above.is_dir() else f"{above} cannot be written to"
        fine = above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    except OSError as error:  # such as a name that is too long
        fine, reason = False, str(error.strerror)
    if not fine:
        raise ConfigError(f"{path} cannot be made ({reason}): choose another folder with {setting('out', '')}")


def folder_of(out: Any) -> Path:
    """The folder that is named, or a new one for None; ConfigError for what is no path."""
    return default_out() if out is None else a_path(out, "out", "a folder")


def default_out() -> Path:
    """A folder that does not exist yet: `runs/YYYYMMDD-HHMMSS`, with a number behind it if need be."""
    first = Path("runs", datetime.now().strftime("%Y%m%d-%H%M%S"))
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([first], others) if not folder.exists())


def _several(name: str, given: Any) -> list[Any]:
    given = plain(given) if isinstance(given, np.ndarray) else given
    several = list(given) if isinstance(given, list | tuple) and not _is_pair(given) else [given]
    if not several:
        raise ConfigError(f"{setting(name)} must name at least one; got {given!r}")
    return [tidy(one) for one in several]


def _is_pair(given: Any) -> bool:
    """Tell one environment as (environment, parameters), as gymnax makes it, from two environments."""
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and hasattr(given[0], "step")
        and not (isinstance(given[1], str) or hasattr(given[1], "step"))
    )


def whole_seeds(given: Any) -> list[int]:
    """The seeds that a number N ≥ 1 stands for, 0 … N−1, or those that are given.

    Raises:
        ConfigError: There is none, one is out of range, or two are equal.
    """
    advice = "pass a number N from 1 to 100000 for the seeds 0 to N-1, or different whole numbers from 0 to 4294967295"
    seeds = []
    given = plain(given)
    with suppress(ConfigError):  # something that is not a whole number
        counted = not isinstance(given, Iterable)
        seeds = [*range(whole("seeds", given, most=100_000))] if counted else [whole("seeds", one, 0) for one in given]
    # JAX makes a key of the last 32 bits, so that larger seeds would give the runs of smaller ones
    if not seeds or min(seeds) < 0 or max(seeds) >= 2**32:
        raise ConfigError(f"{setting('seeds')} must be at least one whole number; got {given!r}: {advice}")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"{setting('seeds')} must differ, since equal seeds give equal runs; got {seeds}: {advice}")
    return seeds


def differences(stored: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """Name every setting that differs, as in "settings.gamma 0.99 there and 0.9 now"."""

    def compare(stored: Any, planned: Any, name: str) -> Iterator[str]:
        if isinstance(stored, Mapping) and isinstance(planned, Mapping):
            for key in {**stored, **planned}:
                yield from compare(stored.get(key), planned.get(key), f"{name}.{key}".removeprefix("."))
        elif stored != planned:
            yield f"{name} {json.dumps(stored)} there and {json.dumps(planned)} now"

    found = list(compare(stored, planned, ""))
    # the time scales follow from the settings: name them only where nothing else explains the difference
    return [text for text in found if not text.startswith("scales.")] or found


_OF_A_PART = ("environments", "agents", "seeds", "steps", "settings", "environment_kwargs", "grid", "list")
"""Keys of the study and of each [[extend]], which inherits all but the last two."""
_OF_THE_STUDY = ("out", "eval_every", "checkpoint_every", "track", "presets", "retries", "extend", "resources", "slurm")
_NOT_OF_SLURM = ("array", "wrap", "chdir", "input", "output", "error")  # what a job does, and files outside


@dataclass(frozen=True)
class Part:
    """Environments × agents × seeds × variants: the settings of the part and one combination of its grid and list."""

    environments: tuple[str, ...]
    agents: tuple[str, ...]
    seeds: tuple[int, ...]
    variants: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Study:
    """Contents of a study's file, checked as far as that goes without planning its runs.

    Attributes:
        path: The file.
        out: Folder of the run directories, within the folder of the file.
        parts: The study itself, and what extends it.
        eval_every: Environment steps between evaluations during training; None for none.
        checkpoint_every: Seconds between checkpoints; None is the default of training.
        track: Trackers that follow every run.
        presets: Preset files in the folder of the file, each for the agent and the environment that it names.
        retries: How often a run is tried again when it fails for a reason that may pass.
        cpus: Processor cores that a run asks for, on Ray and Slurm.
        gpus: GPUs that a run asks for, on Ray and Slurm; may be a fraction on Ray.
        slurm: Further options of `sbatch`, such as `{"time": "12:00:00"}`.
        digest: SHA-256 of the file and of the preset files.
    """

    path: Path
    out: Path
    parts: tuple[Part, ...]
    eval_every: int | None = None
    checkpoint_every: float | None = None
    track: tuple[str, ...] | None = None
    presets: tuple[Path, ...] = ()
    retries: int = 2
    cpus: float = 1.0
    gpus: float = 0.0
    slurm: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""


def read_study(path: Path) -> Study:
    """Read a study's TOML file, whose keys docs/sweeps.md explains.

    Raises:
        ConfigError: There is no such file, it is no TOML, a key is unknown or of the wrong kind, or `out` leads out
            of the folder of the file.
    """
    try:
        content = path.read_bytes()
        table = tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: name the TOML file of a study") from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is no readable TOML ({error}): see docs/sweeps.md for what a study looks like"
        ) from error
    try:
        return _study(path, table, hashlib.sha256(content).hexdigest())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def plan_study(study: Study, added: int = 0) -> list[RunPlan]:
    """Plan every run of a study, each part with so many seeds more: the next whole numbers after its largest one.

    Returns:
        The runs, each once: first those of the file, in order of part, environment, agent, variant and seed, then
        those of the added seeds, the first of them first, so that more seeds change the place of no run.

    Raises:
        ConfigError: A name or setting is unknown or out of range, or two parts want one run with different settings.
    """
    from tddelta.deep.config import read_preset

    rows: list[list[RunPlan]] = [[] for _ in range(1 + added)]
    files = [read_preset(path) for path in study.presets]
    unused = {file.path: file for file in files}
    for part in study.parts:
        further = range(max(part.seeds) + 1, max(part.seeds) + 1 + added)
        turn = {seed: 1 + number for number, seed in enumerate(further)}
        for environment, agent, variant in itertools.product(part.environments, part.agents, part.variants):
            keywords = variant.get("environment_kwargs", {})
            own = [file.path for file in files if file.is_for(environment, agent, keywords)]
            unused = {path: file for path, file in unused.items() if path not in own}
            seeds = [*part.seeds, *further]
            try:
                plans = plan_runs(environment, agent, seeds=seeds, out=study.out, presets=own, **variant)
            except ConfigError as error:
                raise ConfigError(f"{study.path}: {error}") from error
            for plan in plans:
                rows[turn.get(plan.seed, 0)].append(plan)
    for path, file in unused.items():
        raise ConfigError(
            f"{study.path}: {path} holds settings for {file.whose}, which the study does not train: leave it out of "
            "presets"
        )
    found: dict[Path, RunPlan] = {}
    for plan in itertools.chain(*rows):
        first = found.setdefault(plan.path, plan)
        if first.content != plan.content:
            steps = first.config.steps, plan.config.steps
            what = f"{steps[0]:,} and {steps[1]:,} steps" if steps[0] != steps[1] else "different settings"
            raise ConfigError(
                f"{study.path}: {plan.name} is planned with {what}, and both would be {plan.path}: "
                "put one of them into a study of its own"
            )
    _check_inside(study, found.values())
    return list(found.values())


def _check_inside(study: Study, plans: Collection[RunPlan]) -> None:
    """Refuse run directories that symbolic links put elsewhere."""
    home = study.path.absolute().parent.resolve()
    for folder in {plan.path for plan in plans if plan.path.is_symlink()} | {plan.path.parent for plan in plans}:
        if not folder.resolve().is_relative_to(home):
            raise ConfigError(
                f"{study.path}: {folder} leads to {folder.resolve()}, out of the study's folder {home}: "
                "remove the symbolic link, or move the file of the study"
            )


def _study(path: Path, table: Mapping[str, Any], digest: str) -> Study:
    _check_keys(table, (*_OF_A_PART, *_OF_THE_STUDY), "")
    named = ["environments" in part for part in (table, *_tables(table, "extend"))]
    if not named[0] and not (named[1:] and all(named[1:])):
        raise ConfigError('environments is missing: name one or several, as in environments = ["CartPole-v1"]')
    parts = [] if "environments" not in table else [_part(table)]
    for number, extension in enumerate(_tables(table, "extend"), start=1):
        where = f"[[extend]] {number}: "
        _check_keys(extension, _OF_A_PART, where)
        inherited = {name: table[name] for name in _OF_A_PART[:-2] if name in table}
        tables = ("settings", "environment_kwargs")
        merged = {name: {**_table(table, name), **_table(extension, name)} for name in tables}
        try:
            parts.append(_part({**inherited, **extension, **merged}))
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None
    presets = tuple(_inside(path, "presets", name) for name in _names(table, "presets")) if "presets" in table else ()
    for preset in presets:
        if not preset.is_file():
            raise ConfigError(f"presets names {preset.name!r}, and {preset} is no file: name one that tune wrote")
        digest = hashlib.sha256(digest.encode() + preset.read_bytes()).hexdigest()
    resources = _table(table, "resources")
    _check_keys(resources, ("cpus", "gpus"), "[resources] ")
    numbers = {
        **{name: _number(table, name, int, positive=name == "eval_every") for name in ("eval_every", "retries")},
        "checkpoint_every": _number(table, "checkpoint_every", float),
        **{name: _number(resources, name, float, positive=name == "cpus") for name in ("cpus", "gpus")},
    }
    return Study(
        path,
        _inside(path, "out", table.get("out", path.stem)),
        tuple(parts),
        track=_names(table, "track") if "track" in table else None,
        presets=presets,
        slurm=_slurm(_table(table, "slurm")),
        digest=digest,
        **{name: number for name, number in numbers.items() if number is not None},
    )


def _part(table: Mapping[str, Any]) -> Part:
    settings = dict(_table(table, "settings"))
    _check_apart(settings, "[settings]", ("environment", "agent", "environment_kwargs"))
    shared = settings | ({"steps": table["steps"]} if "steps" in table else {})
    keywords = _table(table, "environment_kwargs")
    variants = []
    for grid, entry in itertools.product(_grid(_table(table, "grid")), _list(table)):
        merged = {**shared, **grid, **entry}
        if keywords or "environment_kwargs" in merged:
            of_grid, of_entry = (one.get("environment_kwargs", {}) for one in (grid, entry))
            merged["environment_kwargs"] = {**keywords, **of_grid, **of_entry}
        variants.append(merged)
    return Part(
        _names(table, "environments"),
        _names({"agents": ["ppo", "ppo-delta"], **table}, "agents"),
        tuple(whole_seeds(table.get("seeds", 3))),
        tuple(variants),
    )


def _grid(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the values."""
    for name, values in table.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"[grid] {name} must be a list of the values to try; got {values!r}: "
                "a setting that has one value belongs in [settings]"
            )
        if name == "environment_kwargs" and not all(isinstance(value, dict) for value in values):
            raise ConfigError(f"[grid] environment_kwargs must be a list of tables; got {values!r}")
    _check_apart(table, "[grid]")
    return [dict(zip(table, values, strict=True)) for values in itertools.product(*table.values())]


def _list(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of [[list]], or one that changes nothing."""
    entries = _tables(table, "list")
    for number, entry in enumerate(entries, start=1):
        _check_apart(entry, f"[[list]] {number}")
        _table(entry, "environment_kwargs")
    return [dict(entry) for entry in entries] or [{}]


def _check_apart(given: Mapping[str, Any], where: str, apart: Sequence[str] = ("environment", "agent")) -> None:
    """Refuse what has a key of its own."""
    for name in apart:
        if name in given:
            key = "[environment_kwargs]" if name == "environment_kwargs" else f"{name}s"
            raise ConfigError(f"{where} {name} is no setting: name it under {key} of the study or an [[extend]]")


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}unknown key {name!r}: {closest(name, tuple(known))}")


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a table, as in [{name}]; got {value!r}")
    return value


def _tables(table: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ConfigError(f"{name} must be one table or several, each as in [[{name}]]; got {value!r}")
    return value


def _names(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = table[name]
    names = [tidy(one) for one in (value if isinstance(value, list) else [value])]
    if not names or not all(isinstance(one, str) and one for one in names):
        raise ConfigError(f"{name} must be a name or a list of names; got {value!r}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{name} must differ; got {names}: name each once")
    return tuple(names)


def _number(table: Mapping[str, Any], name: str, kind: type, *, positive: bool = False) -> Any:
    """A number of at least 0, or above it; None where there is none."""
    value = table.get(name)
    if value is None:
        return None
    found: Any = as_whole(value) if kind is int else as_real(value)
    fits = type(found) is kind
    if not fits or not 0 <= found < 2**63 or (positive and found == 0):
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name} must be {what} {'above 0' if positive else 'of at least 0'}; got {value!r}")
    return found


def _inside(path: Path, key: str, given: Any) -> Path:
    """A path relative to the file of the study, refused where it leads out of its folder."""
    home = path.absolute().parent.resolve()
    if not isinstance(given, str) or not given or "\0" in given:
        raise ConfigError(f'{key} must be the name of a file or folder, as in {key} = "runs"; got {given!r}')
    if not (home / given).resolve().is_relative_to(home):
        raise ConfigError(
            f"{key} leads out of the study's folder: got {given!r}, which is {(home / given).resolve()}, not in "
            f"{home}; name one below the file of the study, or move the file"
        )
    return path.parent / given


def _slurm(table: Mapping[str, Any]) -> dict[str, str]:
    for name, value in table.items():
        if not re.fullmatch("[a-z][a-z-]*", name) or name in _NOT_OF_SLURM:
            raise ConfigError(f"[slurm] {name!r} is no option of sbatch that a study can set: write it as in time")
        if not isinstance(value, str | int) or not re.fullmatch(r"[^\x00-\x1f\x7f]+", str(value)):
            raise ConfigError(f"[slurm] {name} must be text on one line, or a whole number; got {value!r}")
    return {name: str(value) for name, value in table.items()}
