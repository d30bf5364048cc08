"""Finding and reading run directories."""

import csv
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from tddelta.errors import CheckpointError, CheckpointWarning, ConfigError
from tddelta.runs import files
from tddelta.runs.files import CONFIG_FORMAT, FORMER_NAMES, NO_EPISODES, Arrays
from tddelta.timescales import TimeScales

Mode = Literal["sampled", "greedy"]
"""Choice of actions: drawn from the policy, or its most probable ones."""

_COUNTERS = ("update", "steps", "episodes")  # the columns of metrics.jsonl that are whole numbers


def run_path(out: str | os.PathLike[str], environment: str, agent_label: str, seed: int) -> Path:
    """Return `OUT/ENV/AGENT/seed-N`, with "-" for every character that is unsafe in a file name.

    Raises:
        ConfigError: The system's encoding of file names lacks a character.
    """
    environment, agent_label = (re.sub(r"^\.|[^\w.+-]", "-", name) for name in (environment, agent_label))
    path = Path(out) / environment / agent_label / f"seed-{seed}"
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{path} cannot be the name of a file here, where names are {sys.getfilesystemencoding()}: set PYTHONUTF8=1"
        ) from error
    return path


def config_hash(config: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits that tell one configuration from another, whatever the seed."""
    settings = {key: value for key, value in config.items() if key != "seed"} | {"format": 1}
    settings["settings"] = files.downgraded(files.plain(config.get("settings", {})))
    text = json.dumps(files.plain(settings), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def find_runs(*paths: str | os.PathLike[str]) -> list[Path]:
    """Find run directories: the folders that hold a `config.json` of ours, or monitor logs of Stable-Baselines3.

    Args:
        *paths: Run directories, folders above them, or files within them.
            Below a folder, hidden folders and those of unfinished runs (`seed-N.unfinished-K`) are left out.

    Returns:
        Every run once, in order of the paths given and by name below each.

    Raises:
        ConfigError: A path does not exist, or there is no run at or below it.
    """
    found: dict[Path, Path] = {}
    for given in paths:
        runs = _runs_at(a_path(given))
        if not runs:
            raise ConfigError(
                f"no run at or below {given}: name a folder that holds a config.json of tddelta, or one above it"
            )
        for path in runs:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def a_path(given: Any, what: str = "a run", where: str = "a run directory") -> Path:
    """Return a path; ConfigError for what is none."""
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"{what} is named by its path; got {given!r:.80}: pass the path of {where}")
    return Path(given)


def _runs_at(given: Path) -> list[Path]:
    if not given.exists():
        raise ConfigError(f"{given} does not exist: name a run directory or a folder above some")
    runs, logs = [], []
    for folder, folders, names in os.walk(given):
        ours = "config.json" in names and _is_ours(Path(folder, "config.json"))
        if ours is not False:
            runs.append(Path(folder))
        if ours:
            folders.clear()
        elif any(name.endswith(MONITOR) for name in names):
            logs.append(Path(folder))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and ".unfinished" not in name)
    # The logs of the environments of a run of ours are that run once more.
    runs += [log for log in logs if not any(run.is_relative_to(log) for run in runs)]
    if not runs:  # a file of a run directory, or a folder in one; or a config.json of something else, to be reported
        places = [given, *list(given.absolute().parents)[:2]]
        runs = [place for place in places if (place / "config.json").is_file()][:1]
    return runs


def _is_ours(path: Path) -> bool | None:
    """Tell whether a config.json is of a run; None if it is damaged: that is for its reader to report."""
    try:
        return {"format", "environment", "agent"} <= set(files.read_json(path))
    except CheckpointError:
        return None


MONITOR = "monitor.csv"
"""End of the names of monitor logs of Stable-Baselines3; several in a folder are environments of one run."""

_NUMBERED = re.compile(r"(?P<name>.*?)[-_]?(?P<number>\d+)")


def _monitor_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(MONITOR)) if folder.is_dir() else []


def _read_monitors(folder: Path) -> tuple[dict[str, Any], dict[str, Any], Arrays]:
    """Configuration, status and episodes of a folder of monitor logs; a last line that was cut short is ignored.

    `ppo/CartPole-v1_2` (as the RL Zoo lays runs out) and `ppo/seed-2` are number 2 of `ppo`; a folder that ends in no
    number, or stands alone, is the agent itself, number 0. A log does not say whether anything was still to come.
    """
    name, logs = None, [np.zeros((0, 3))]
    for path in _monitor_files(folder):
        try:
            head, _, table = path.read_text(encoding="utf-8").partition("\n")
            header = json.loads(head.removeprefix("#"))
            # Without a line break at its end the last line is still being written.
            lines = csv.DictReader(table[: table.rfind("\n") + 1].splitlines())
            log = np.array([(float(row["t"]), float(row["r"]), int(row["l"])) for row in lines]).reshape(-1, 3)
            # A second process that goes on with a file starts its clock anew: its times count from the last before.
            last = np.concatenate(([0.0], log[:, 0]))[: len(log)]
            restarts = np.where(log[:, 0] < last, last, 0.0).cumsum()
            log[:, 0] += float(header.get("t_start", 0.0)) + restarts
            logs.append(log)
            name = name or header.get("env_id")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is not a monitor log of Stable-Baselines3, or damaged ({error}): leave it out"
            ) from error
    ended = np.concatenate(logs)
    ended = ended[ended[:, 0].argsort(kind="stable")]  # by the clock; lines of a file stay in order
    lengths = ended[:, 2].astype(np.int64)
    episodes: Arrays = {"steps": lengths.cumsum(), "returns": ended[:, 1].copy(), "lengths": lengths}
    environment, place = name or "environment", folder.absolute()
    found = _NUMBERED.fullmatch(place.name)
    numbered = found if found is not None and found["name"] in (environment, "seed", "run", "") else None
    config = {
        "format": CONFIG_FORMAT,
        "environment": environment,
        "agent": {"name": place.name if numbered is None else place.parent.name},
        "seed": 0 if numbered is None else int(numbered["number"]),
        "steps": int(lengths.sum()),
        "settings": {},
        "scales": {"gammas": [1.0]},
        "scales_known": False,
    }
    counts = {"steps": config["steps"], "updates": 0, "episodes": len(lengths)}
    return config, {"state": "finished", **counts, "message": "episodes from a monitor log"}, episodes


class Run:
    """Read-only view of one run directory; every file is read when it is first asked for.

    A folder of monitor logs of Stable-Baselines3 reads as a run that has episodes only.

    Args:
        path: The run directory.

    Raises:
        CheckpointError: `config.json` is missing, damaged, not ours, or of a newer format. Reading another file
            that is damaged raises it too, naming the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = a_path(path)
        config = self.path / "config.json"
        if _monitor_files(self.path) and (not config.exists() or _is_ours(config) is False):
            self.config, self.status, self.episodes = _read_monitors(self.path)
            return
        self.config = files.upgraded_config(files.read_json(config))
        files.check_format(config, self.config.get("format"), CONFIG_FORMAT)
        missing = [key for key in ("environment", "agent", "seed", "settings", "scales") if key not in self.config]
        if missing:
            raise CheckpointError(f"{config} lacks {', '.join(missing)}: it is no complete config of a run")
        named = all(isinstance(self.config[key], Mapping) for key in ("agent", "settings", "scales"))
        if not named or "name" not in self.config["agent"] or not isinstance(self.config["seed"], int):
            raise CheckpointError(f"{config} has entries of another kind than a run's: it is no config of a run")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def environment(self) -> str:
        """The environment's name."""
        return str(self.config["environment"])

    @property
    def agent(self) -> str:
        """The agent's label: its name, with a hash when settings were changed, as in `ppo-delta-1a2b3c4d`."""
        name, label = str(self.config["agent"]["name"]), self.path.absolute().parent.name
        plain = [run_path("", "", each, 0).parent.name for each in (name, FORMER_NAMES.get(name, name))]
        found = re.fullmatch(f"(?:{'|'.join(map(re.escape, plain))})(-[0-9a-f]{{8}})", label)
        return name if found is None else plain[0] + found[1]

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.config["seed"])

    @cached_property
    def scales(self) -> TimeScales:
        """The time scales that the critic is trained on."""
        return TimeScales.from_dict(self.config["scales"])

    @cached_property
    def status(self) -> dict[str, Any]:
        """`state` (running, finished, interrupted or failed), `steps`, `updates`, `episodes`, `message`."""
        return files.read_status(self.path / "status.json")

    @cached_property
    def metrics(self) -> Arrays:
        """One array per metric, one element per update; NaN where a metric has no value."""
        rows = files.read_rows(self.path / "metrics.jsonl")
        names = dict.fromkeys(name for row in rows for name in row) or _COUNTERS
        whole = {name: np.array([row[name] for row in rows], np.int64) for name in names if name in _COUNTERS}
        # NumPy makes NaN of None
        return {name: whole.get(name, np.array([row.get(name) for row in rows], np.float64)) for name in names}

    @cached_property
    def timing(self) -> list[dict[str, Any]]:
        """Wall-clock times, versions, machine and command: the events of `timing.jsonl`."""
        return files.read_rows(self.path / "timing.jsonl")

    @cached_property
    def episodes(self) -> Arrays:
        """`steps` (environment steps at the end of each training episode), `returns`, `lengths`, in order of steps."""
        return files.read_arrays(self.path / "episodes.npz") or dict(NO_EPISODES)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations so far, one mapping each."""
        return files.read_rows(self.path / "evaluations.jsonl")

    @property
    def reward_density(self) -> dict[str, Any] | None:
        """Rewards other than 0 per 100 steps, `trained` and `random`, with `steps` and `seed`; or None."""
        path = self.path / "reward_density.json"
        return files.read_json(path, "count them again") if path.exists() else None

    @cached_property
    def rollout(self) -> Arrays | None:
        """One recorded episode of the final policy, or None."""
        return files.read_arrays(self.path / "rollout.npz")

    @cached_property
    def critic(self) -> Arrays | None:
        """`predicted` and `realised` values (N, Z) of held-out states at `gammas` (Z,), or None."""
        return files.read_arrays(self.path / "critic.npz")


class Runs(Sequence[Run]):
    """Runs in order of environment, agent and seed.

    Args:
        runs: The runs, in any order.
        left_out: A sentence for every run that was found and could not be read; also an attribute.

    Raises:
        ConfigError: Two runs have the same environment, agent and seed: together they would count as two seeds.
    """

    def __init__(self, runs: Iterable[Run], left_out: Iterable[str] = ()) -> None:
        self.left_out = tuple(left_out)
        self._runs = sorted(runs, key=lambda run: (run.environment, run.agent, run.seed))
        for first, second in zip(self._runs, self._runs[1:], strict=False):
            if (first.environment, first.agent, first.seed) == (second.environment, second.agent, second.seed):
                raise ConfigError(
                    f"{first.path} and {second.path} are both {first.environment}, {first.agent}, seed {first.seed}, "
                    "and would count as two seeds: name one of the two folders only"
                )

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "Run | Runs":
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"Runs({self._runs!r})"

    @property
    def episodes(self) -> Arrays:
        """Every training episode in one table: `environment`, `agent`, `seed`, `steps`, `returns`, `lengths`."""
        return self._tidy([run.episodes for run in self._runs], ("steps", "returns", "lengths"))

    def metrics(self, name: str) -> Arrays:
        """Return one metric of every run that logged it in one table.

        Args:
            name: The metric, such as "return_mean" or "value_loss/gamma=0.960".

        Returns:
            The columns `environment`, `agent`, `seed`, `update`, `steps` and the metric under its own name.

        Raises:
            ConfigError: No run logged such a metric.
        """
        tables = [run.metrics for run in self._runs]
        known = sorted({metric for table in tables for metric in table})
        if name not in known:
            raise ConfigError(f"no run logged the metric {name!r}: choose from {', '.join(known) or 'nothing'}")
        logged = [table if name in table else {key: column[:0] for key, column in table.items()} for table in tables]
        return self._tidy(logged, dict.fromkeys(("update", "steps", name)))

    def _tidy(self, tables: Sequence[Arrays], columns: Iterable[str]) -> Arrays:
        lengths = [len(table["steps"]) if "steps" in table else 0 for table in tables]
        kinds: dict[str, Any] = {"environment": np.str_, "agent": np.str_, "seed": np.int64}
        whose = {name: np.array([getattr(run, name) for run in self._runs], kind) for name, kind in kinds.items()}
        full = [table for table, length in zip(tables, lengths, strict=True) if length]
        return {
            **{name: np.repeat(column, lengths) for name, column in whose.items()},
            **{name: np.concatenate([table[name] for table in full] or [np.zeros(0)]) for name in columns},
        }


def load_runs(*paths: str | os.PathLike[str]) -> Runs:
    """Load every run at or below the given paths, in order of environment, agent and seed.

    Their files are read when they are first asked for.

    Args:
        *paths: As in `find_runs`. A run whose `config.json` cannot be read is left out: a CheckpointWarning names it.

    Raises:
        ConfigError: There is no run at or below a path, or two have the same environment, agent and seed.
        CheckpointError: The `config.json` of every run is damaged or of a newer format.
    """
    runs = readable_runs(*paths)
    for sentence in runs.left_out:
        warnings.warn(sentence, CheckpointWarning, stacklevel=2)
    return runs


def readable_runs(*paths: str | os.PathLike[str], loaded: Iterable[Run] = ()) -> Runs:
    """Load runs like `load_runs`, without a warning: `left_out` of the result says what the caller should tell.

    Those that are `loaded` already are not loaded again.
    """
    return Runs(*_readable(*paths, loaded=loaded))


def one_run(path: str | os.PathLike[str], advice: str = "name one of them") -> Run:
    """Load the one run at or below a path, like `load_runs`; a ConfigError that ends in `advice` if there are more."""
    runs, left_out = _readable(path)
    if len(runs) > 1:
        raise ConfigError(f"{path} has {len(runs)} runs, {runs[0].path} among them: {advice}")
    for sentence in left_out:
        warnings.warn(sentence, CheckpointWarning, stacklevel=3)
    return runs[0]


def _readable(*paths: str | os.PathLike[str], loaded: Iterable[Run] = ()) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a sentence for each of the others."""
    known = {run.path.resolve(): run for run in loaded}
    runs, errors = [], []
    for path in find_runs(*paths):
        try:
            runs.append(known.get(path.resolve()) or Run(path))
        except CheckpointError as error:
            errors.append(error)
    if not runs:
        raise errors[0]
    return runs, [f"{error}; this run was left out" for error in errors]
