"""Trackers: who else hears of a run's progress, as TensorBoard files or in Weights & Biases.

Trackers: who else hears of a run's progress, as TensorBoard files or in Weights & Biases.

The run directory stays the record. A tracker is told what has been written there, and after a break its curves go on
where the run goes on: every step once, none left out.
"""

import json
import math
import os
import struct
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tddelta.errors import ConfigError, MissingExtra, TrackingWarning, own_checks
from tddelta.runs.files import number_in, read_json, read_rows, replace, to_json

Row = Mapping[str, Any]
"""A line of `metrics.jsonl` or `evaluations.jsonl`."""


class Logged(NamedTuple):
    """The last environment steps that a tracker has; −1 where it has nothing.

    Attributes:
        metrics: Of updates.
        evaluations: Of evaluations.
    """

    metrics: int = -1
    evaluations: int = -1


@runtime_checkable
class Tracker(Protocol):
    """What follows a run; every method is called by the thread that trains.

    Rows are those of the run directory. Steps never fall, and no row comes twice.
    """

    def start(self, steps: int) -> Logged:
        """The run begins, or goes on after a break, at `steps`.

        Returns:
            What is there already and need not come again. What is later than `steps` either counts as there, too,
            or is taken back.
        """

    def metrics(self, rows: Sequence[Row]) -> None:
        """Updates were done."""

    def evaluation(self, row: Row) -> None:
        """The policy was evaluated."""

    def speed(self, steps: int, steps_per_second: float) -> None:
        """Some updates up to `steps` were done this fast."""

    def close(self, state: str) -> None:
        """The run ends as "finished", "interrupted" or "failed"."""


TrackerFactory = Callable[[Path, Mapping[str, Any]], Tracker]
"""f(run directory, content of config.json) → tracker."""

Track = str | TrackerFactory | Iterable[str | TrackerFactory]
"""Names of trackers, "tensorboard" or "wandb", or functions that make one."""


def _tensorboard(path: Path, config: Mapping[str, Any]) -> Tracker:

    return TensorBoard(path, config)


def _wandb(path: Path, config: Mapping[str, Any]) -> Tracker:

    return WeightsAndBiases(path, config)


TRACKERS: Mapping[str, TrackerFactory] = {"tensorboard": _tensorboard, "wandb": _wandb}
"""The trackers with a name."""

_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


@own_checks
def check_trackers(track: Track) -> tuple[str | TrackerFactory, ...]:
    """Refuse trackers that are unknown or cannot work here, before a run starts.

    Args:
        track: Names, or functions that make a tracker.

    Returns:
        Each of them once.

    Raises:
        ConfigError: A name is unknown, or Weights & Biases has no account to log to.
        MissingExtra: The package of a tracker is not installed.
    """
    chosen = tuple(dict.fromkeys([track] if isinstance(track, str) or callable(track) else track))
    for one in chosen:
        if callable(one):
            continue
        if one not in TRACKERS:
            close = get_close_matches(str(one), TRACKERS, n=1)
            advice = f"did you mean {close[0]}?" if close else f"use {' or '.join(TRACKERS)}"
            raise ConfigError(f"unknown tracker {one!r}: {advice}")
        if find_spec(_PACKAGES[one]) is None:
            raise MissingExtra(f'tracking with {one} needs {_PACKAGES[one]}: pip install "tddelta[track]"')
    if "wandb" in chosen:
        check_account()
    return chosen


def scalars(row: Row, group: str) -> dict[str, float]:
    """The finite numbers of a row by the names that trackers show them under.

    Args:
        row: A row. Its `steps` are the x axis, not a curve.
        group: What a name without a "/" is put under, as in "train/return_mean".

    Returns:
        Numbers by name. Values of a component keep their name, as in "value_loss/gamma=0.960".
    """
    return {
        name if "/" in name else f"{group}/{name}": float(value)
        for name, value in row.items()
        if name not in ("steps", "seed")
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


@dataclass
class _Follower:
    name: str
    tracker: Tracker
    logged: Logged


class Tracking:
    """The trackers of one run. One that fails is dropped with a warning: no run is lost for a curve.

    Args:
        track: Names, or functions that make a tracker; see `check_trackers`.
        path: The run directory.
        config: Content of `config.json`.
        steps: Environment steps at which the run goes on; 0 for a new one. The trackers get what the run directory
            holds up to there and they lack.
    """

    def __init__(
        self,
        track: Sequence[str | TrackerFactory],
        path: Path,
        config: Mapping[str, Any],
        steps: int = 0,
    ) -> None:
        self._followers: list[_Follower] = []
        for one in track:
            name, make = (getattr(one, "__name__", str(one)), one) if callable(one) else (one, TRACKERS[one])
            try:
                tracker = make(path, config)
                if not isinstance(tracker, Tracker):  # a function of somebody's own made it
                    raise TypeError(f"{type(tracker).__name__} lacks methods of a Tracker")
                logged = tracker.start(steps)
            except Exception as error:
                _warn(name, path, error)
                continue
            self._followers.append(_Follower(name, tracker, logged))
        self._path = path
        if steps and self._followers:
            self._repeat(steps)

    def _repeat(self, steps: int) -> None:
        """Tell what the run directory holds up to `steps`, in order; `metrics` and `evaluation` leave out the known."""
        rows = [(row, False) for row in read_rows(self._path / "metrics.jsonl")]
        rows += [(row, True) for row in read_rows(self._path / "evaluations.jsonl")]
        rows = [pair for pair in rows if number_in(pair[0], "steps") is not None]
        for row, evaluates in sorted(rows, key=lambda pair: pair[0]["steps"]):  # updates first: the order is stable
            if row["steps"] > steps:
                break
            if evaluates:
                self.evaluation(row)
            else:
                self.metrics([row])

    def metrics(self, rows: Sequence[Row]) -> None:
        """Tell of updates."""

        def tell(follower: _Follower) -> None:
            new = [row for row in rows if row["steps"] > follower.logged.metrics]
            if new:
                follower.tracker.metrics(new)
                follower.logged = follower.logged._replace(metrics=new[-1]["steps"])

        self._each(tell)

    def evaluation(self, row: Row) -> None:
        """Tell of an evaluation."""

        def tell(follower: _Follower) -> None:
            if row["steps"] > follower.logged.evaluations:
                follower.tracker.evaluation(row)
                follower.logged = follower.logged._replace(evaluations=row["steps"])

        self._each(tell)

    def timing(self, row: Row) -> None:
        """Tell of an event of `timing.jsonl`: blocks of updates say how fast they were."""
        if row.get("event") != "block":
            return
        steps, speed = row["steps"], row["steps_per_second"]
        # steps that a tracker has already have their speed, too
        self._each(lambda one: one.tracker.speed(steps, speed) if steps >= one.logged.metrics else None)

    def close(self, state: str) -> None:
        """Tell that the run ends."""
        self._each(lambda follower: follower.tracker.close(state))
        self._followers = []

    def _each(self, tell: Callable[[_Follower], object]) -> None:
        for follower in tuple(self._followers):
            try:
                tell(follower)
            except Exception as error:
                self._followers.remove(follower)
                _warn(follower.name, self._path, error)


def _warn(name: str, path: Path, error: Exception) -> None:
    warnings.warn(
        f"{path} is no longer tracked by {name} ({type(error).__name__}: {error}): the run goes on, and its directory "
        "has everything; what is missing follows when the run is resumed",
        TrackingWarning,
        stacklevel=2,
    )


FLUSH_SECONDS = 10.0
"""What is drawn is at most this much older than the run."""

_EVALUATION = "evaluation/"
_SPEED = "time/steps_per_second"


class TensorBoard:
    """Writes the event files of one run.

    The numbers of an update are one event, so that a crash leaves all of them or none. A resumed run adds a file, and
    cuts back those before it to where it goes on. Nothing runs in the background.

    Args:
        path: The run directory.
        config: Content of `config.json`; shown as a text, "config".
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.folder = path / "tensorboard"
        self.folder.mkdir(exist_ok=True)
        self._config = config
        self._events: Any = None
        self._resumed = False
        self._flushed = time.monotonic()

    def start(self, steps: int) -> Logged:
        """Cut every file back to its last event at or before `steps`."""
        last = Logged()
        for file in event_files(self.folder):
            end = 0
            for event, after in read_events(file):
                if event.step > steps:
                    break
                end = after
                self._resumed |= event.HasField("summary")
                tags = {value.tag for value in event.summary.value}
                if any(tag.startswith(_EVALUATION) for tag in tags):
                    last = last._replace(evaluations=max(last.evaluations, event.step))
                elif any(tag.startswith("train/") for tag in tags):
                    last = last._replace(metrics=max(last.metrics, event.step))
            if end < file.stat().st_size:
                os.truncate(file, end)
        return last

    def metrics(self, rows: Sequence[Row]) -> None:
        """Write one event per update."""
        for row in rows:
            self._write(scalars(row, "train"), row["steps"])

    def evaluation(self, row: Row) -> None:
        """Write one event for an evaluation."""
        self._write(scalars(row, _EVALUATION[:-1]), row["steps"])

    def speed(self, steps: int, steps_per_second: float) -> None:
        """Write the speed, and now and then everything to the disk."""
        self._write({_SPEED: steps_per_second}, steps)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._events.flush()
            self._flushed = time.monotonic()

    def close(self, state: str) -> None:
        """Write everything to the disk."""
        if self._events is not None:
            self._events.close()

    def _write(self, numbers: Mapping[str, float], steps: int) -> None:
        summary = _protocol("summary").Summary
        self._add(summary(value=[summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]), steps)

    def _add(self, summary: Any, steps: int) -> None:
        if self._events is None:
            # a file is never opened twice: within a second of a break the name would be the same without a number
            suffix = f".{1 + max(map(_number, event_files(self.folder)), default=-1)}"
            writer = import_module("tensorboardX.event_file_writer").EventsWriter
            self._events = writer(str(self.folder / "events"), suffix)
            if not self._resumed:
                self._add(import_module("tensorboardX.summary").text("config", _table(self._config)), 0)
        event = _protocol("event").Event(summary=summary, step=int(steps), wall_time=time.time())
        self._events.write_event(event)


def event_files(folder: Path) -> list[Path]:
    """The event files of a folder, in the order in which they were begun."""
    return sorted(folder.glob("events.out.tfevents.*"), key=lambda file: (_number(file), file.name))


def _number(file: Path) -> int:
    """The number at the end of an event file's name; −1 for one that somebody else put there."""
    return int(file.suffix[1:]) if file.suffix[1:].isdecimal() else -1


def read_events(file: Path) -> Iterator[tuple[Any, int]]:
    """Read the whole events of a file: length (8 bytes), its checksum (4), event, its checksum (4).

    Yields:
        The event, a protocol buffer, and where in the file it ends. What a crash cut short or a disk damaged ends the
        file.
    """
    message, checksum = _protocol("event").Event, import_module("tensorboardX.record_writer").masked_crc32c
    content = file.read_bytes()
    start = 0
    while start + 12 <= len(content):
        length, expected = struct.unpack_from("<QI", content, start)
        end = start + 12 + length + 4
        if checksum(content[start : start + 8]) != expected or end > len(content):
            return
        event = content[start + 12 : end - 4]
        if checksum(event) != struct.unpack_from("<I", content, end - 4)[0]:
            return
        yield message.FromString(event), end
        start = end


def _protocol(name: str) -> Any:
    return import_module(f"tensorboardX.proto.{name}_pb2")


def _table(config: Mapping[str, Any]) -> str:
    """The configuration as a Markdown table, which TensorBoard draws."""
    rows = dict(config.get("settings", {})) | {name: value for name, value in config.items() if name != "settings"}
    lines = [f"| {name} | {json.dumps(value, ensure_ascii=False)} |" for name, value in rows.items()]
    return "\n".join(["| setting | value |", "|---|---|", *lines])


PROJECT = "tddelta"
"""The project, unless WANDB_PROJECT names another."""

_BLOCK, _HEADER = 32768, 7  # of W&B's log of a run, which has the format of LevelDB's
_QUIET, _PATIENCE = 2.0, 15.0  # seconds without a change of a log until it counts as complete, and how long to wait


def check_account() -> None:
    """Refuse W&B where it would ask for an account and nobody can answer.

    Raises:
        ConfigError: W&B is to log online, no API key is known, and there is no terminal to ask for one.
    """
    import wandb

    if wandb.setup().settings.mode != "online":
        return
    try:
        known = wandb.login()
    except wandb.Error as error:
        raise ConfigError(_no_account(error)) from error
    if not known:
        raise ConfigError(_no_account("no API key"))


def _no_account(reason: object) -> str:
    return (
        f"Weights & Biases has no account to log to ({reason}): run `wandb login`, or set WANDB_MODE=offline to log "
        "into the run directory and `wandb sync` it later"
    )


class WeightsAndBiases:
    """Logs one run. Steps of W&B are environment steps.

    Where the server cannot be reached the run is logged offline. What W&B's own variables say (`WANDB_MODE`,
    `WANDB_PROJECT`, `WANDB_ENTITY`, …) holds.

    Args:
        path: The run directory.
        config: Content of `config.json`; the configuration of the W&B run.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self.folder = path.absolute() / "wandb"
        self.folder.mkdir(exist_ok=True)
        _settle(self.folder)
        agent = config.get("agent", {}).get("name")
        named = {
            "id": self._memory()["id"],
            "name": f"{config.get('environment')}, {agent}, seed {config.get('seed')}",
            "group": f"{config.get('environment')}/{path.absolute().parent.name}",
        }
        # the processes of a sweep and the threads of a comparison have a W&B run each, and none takes the terminal
        settings = wandb.Settings(console="off", silent=True, save_code=False)
        common: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "dir": str(path.absolute()),
            "config": dict(config),
            "reinit": "create_new",
            "settings": settings,
            **named,
        }
        online = wandb.setup().settings.mode == "online"
        try:
            self._run = wandb.init(resume="allow" if online else None, **common)
        except wandb.Error as error:
            if not online:
                raise
            warnings.warn(
                f"{path}: W&B cannot be reached ({error}): logging offline; send it later with "
                f"`wandb sync {self.folder}/offline-run-*`",
                TrackingWarning,
                stacklevel=2,
            )
            self._run = wandb.init(mode="offline", **common)
        self._logged = Logged()
        self._run.define_metric("evaluation/*", step_metric="evaluation/steps")

    def _memory(self) -> dict[str, Any]:
        """The id, made when the run is first tracked, and the last steps logged by a process that ended in order."""
        file = self.folder / "id.json"
        if not file.exists():
            self._remember({"id": uuid.uuid4().hex[:12], "metrics": -1, "evaluations": -1})
        return read_json(file)

    def _remember(self, memory: Mapping[str, Any]) -> None:
        replace(self.folder / "id.json", to_json(memory))

    def start(self, steps: int) -> Logged:
        """What W&B has cannot be taken back: training repeats these steps to the byte, so they need not come again."""
        memory = self._memory()
        last = Logged(*(int(memory.get(name, -1)) for name in Logged._fields))
        last = last._replace(metrics=max(last.metrics, int(self._run.starting_step) - 1))
        for step, values in logged_rows(self.folder):
            if any(name.startswith("train/") for name in values):
                last = last._replace(metrics=max(last.metrics, step))
            if "evaluation/steps" in values:
                last = last._replace(evaluations=max(last.evaluations, int(values["evaluation/steps"])))
        self._logged = last
        return last

    def metrics(self, rows: Sequence[Row]) -> None:
        """Log one row per update."""
        for row in rows:
            self._run.log(scalars(row, "train"), step=int(row["steps"]))
            self._logged = self._logged._replace(metrics=row["steps"])

    def evaluation(self, row: Row) -> None:
        """Log an evaluation in the row of its update, or in the next one where that row is closed."""
        values = scalars(row, "evaluation") | {"evaluation/steps": row["steps"]}
        self._run.log(values, step=max(int(row["steps"]), self._run.step))
        self._logged = self._logged._replace(evaluations=row["steps"])

    def speed(self, steps: int, steps_per_second: float) -> None:
        """Log the speed in the row of the last update."""
        if steps >= self._run.step:
            self._run.log({"time/steps_per_second": steps_per_second}, step=int(steps))

    def close(self, state: str) -> None:
        """End the W&B run; one that is not finished can be resumed under its id."""
        self._run.finish(exit_code=0 if state == "finished" else 1)
        # W&B's own process may still be writing its log
        self._remember({**self._memory(), **self._logged._asdict()})


def _settle(folder: Path) -> None:
    """Wait while W&B's process of a run that was killed a moment ago is still writing down what it has."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        changed = max((file.stat().st_mtime for file in folder.glob("*run-*/run-*.wandb")), default=0.0)
        if time.time() - changed > _QUIET:
            break
        time.sleep(0.1)


def logged_rows(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What W&B has written of a run: the rows of its history in the files `run-*.wandb` below a folder.

    Yields:
        The step and the values by name, in order within a file.
    """
    message = import_module("wandb.proto.wandb_internal_pb2").Record
    for file in sorted(folder.glob("*run-*/run-*.wandb")):
        for content in _records(file):
            record = message.FromString(content)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                yield int(record.history.step.num), values


def _records(file: Path) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of 32 KiB, pieces of records with checksum (4), length (2) and kind (1)."""
    content = file.read_bytes()
    at, whole = _HEADER, b""
    while at + 7 <= len(content):
        room = _BLOCK - at % _BLOCK
        if room < 7:  # too little for a piece
            at += room
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        end = at + 7 + length
        if not 1 <= kind <= 4 or end > len(content):  # a crash cut it short
            return
        whole = (whole if kind > 2 else b"") + content[at + 7 : end]  # 1 whole, 2 first, 3 middle, 4 last
        if kind in (1, 4):
            yield whole
        at = end
