"""The plan of an experiment: one `RunPlan` per run, checked completely before anything starts."""

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tddelta._plain import plain, tidy, whole
from tddelta.errors import CheckpointError, ConfigError, own_checks
from tddelta.runs import Run, Runs, config_hash, is_being_written, run_path
from tddelta.runs.reading import a_path

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


@own_checks
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
    from tddelta.deep import ppo, preset_files, training
    from tddelta.deep.presets import unchecked

    if steps is not None:
        settings = {"steps": steps, **settings}
    settings = plain(settings)
    numbers = whole_seeds(seeds)
    folder = folder_of(out)
    plans: dict[Path, RunPlan] = {}
    pairs = [*itertools.product(_several("environments", environments), _several("agents", agents))]
    files = presets if isinstance(presets, list | tuple) else [presets]
    each = preset_files.with_preset_files([*map(preset_files.read_preset, files)], pairs, settings)
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


def divide(plans: Sequence[RunPlan], *, resume: bool, shared: bool = False) -> tuple[list[RunPlan], list[RunPlan]]:
    """Divide a plan into the runs to start and those that are finished already.

    Args:
        plans: The plan.
        resume: Whether existing run directories are allowed.
        shared: Whether others may be writing some of them at this moment; they are counted as runs to start.

    Returns:
        The runs to start or to go on with, and the finished ones. One whose files are damaged is to start: that fails
        and says why, and the others go on.

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
            f"{existing[0].path}{others} exists already, and a run is never overwritten: pass resume=True "
            "to keep what is finished and go on with the rest, or choose another folder with out="
        )
    finished = []
    for plan in existing:
        if not shared and is_being_written(plan.path):
            raise ConfigError(
                f"{plan.path} is being written by another process: wait for it, or choose another folder with out="
            )
        if not (plan.path / "config.json").exists():
            continue  # cut off before it began
        try:
            run = Run(plan.path)
            state = run.status["state"]
        except CheckpointError:
            continue
        if other := differences(run.config, plan.content):
            raise ConfigError(
                f"{plan.path} was started with other settings, {'; '.join(other)}: "
                "use the settings from there, or choose another folder with out="
            )
        if state == "finished":
            finished.append(plan)
    over = {plan.path for plan in finished}
    return [plan for plan in plans if plan.path not in over], finished


def begun(plans: Iterable[RunPlan]) -> Runs:
    """The runs of a plan that have begun and can be read."""
    runs = []
    for plan in plans:
        with suppress(CheckpointError):  # that run failed, and its error says so
            if (plan.path / "config.json").exists():
                runs.append(Run(plan.path))
    return Runs(runs)


def _check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written to; nothing is made yet."""
    try:
        above = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        reason = f"{above} is not a folder" if not above.is_dir() else f"{above} cannot be written to"
        fine = above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    except OSError as error:  # such as a name that is too long
        fine, reason = False, str(error.strerror)
    if not fine:
        raise ConfigError(f"{path} cannot be made ({reason}): choose another folder with out=")


def folder_of(out: Any) -> Path:
    """The folder that is named, or a new one for None; ConfigError for what is no path."""
    return default_out() if out is None else a_path(out, "out", "a folder")


def default_out() -> Path:
    """A folder that does not exist yet: `runs/YYYYMMDD-HHMMSS`, with a number behind it if need be."""
    folder = first = Path("runs", datetime.now().strftime("%Y%m%d-%H%M%S"))
    number = 2
    while folder.exists():
        folder = first.with_name(f"{first.name}-{number}")
        number += 1
    return folder


def _several(name: str, given: Any) -> list[Any]:
    given = plain(given) if isinstance(given, np.ndarray) else given
    several = list(given) if isinstance(given, list | tuple) and not _is_pair(given) else [given]
    if not several:
        raise ConfigError(f"{name} must name at least one; got {given!r}")
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
        raise ConfigError(f"seeds must be at least one whole number; got {given!r}: {advice}")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds must differ, since equal seeds give equal runs; got {seeds}: {advice}")
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
