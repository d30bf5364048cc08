"""Trackers: a run's progress as TensorBoard files or in Weights & Biases.

The run directory stays the record. A tracker is told what has been written there, and after a break its curves go on
where the run goes on, with no step left out.
"""

import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tddelta._plain import closest
from tddelta.errors import ConfigError, MissingExtra, TrackingWarning
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
    """Follower of a run; every method is called by the thread that trains.

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


def check_trackers(track: Track) -> tuple[str | TrackerFactory, ...]:
    """Refuse trackers that are unknown or cannot work here, before a run starts; return each of them once.

    Raises:
        ConfigError: A name is unknown, or Weights & Biases has no account to log to.
        MissingExtra: The package of a tracker is not installed.
    """
    chosen = tuple(dict.fromkeys([track] if isinstance(track, str) or callable(track) else track))
    for one in chosen:
        if callable(one):
            continue
        if one not in TRACKERS:
            raise ConfigError(f"unknown tracker {one!r}: {closest(str(one), tuple(TRACKERS))}")
        if find_spec(_PACKAGES[one]) is None:
            raise MissingExtra(f'tracking with {one} needs {_PACKAGES[one]}: pip install "tddelta[track]"')
    if "wandb" in chosen:
        check_account()
    return chosen


def scalars(row: Row, group: str) -> dict[str, float]:
    """The finite numbers of a row by the names that trackers show them under.

    Args:
        row: A row. Its `steps` are the x axis, not a curve.
        group: Prefix of a name without a "/", as in "train/return_mean"; values of a component keep their name.
    """
    names = [name for name in row if name not in ("steps", "seed") and number_in(row, name) is not None]
    return {name if "/" in name else f"{group}/{name}": float(row[name]) for name in names}


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
        self, track: Sequence[str | TrackerFactory], path: Path, config: Mapping[str, Any], steps: int = 0
    ) -> None:
        self._path = path
        self._followers: list[_Follower] = []
        for one in track:
            name, make = (getattr(one, "__name__", str(one)), one) if callable(one) else (one, TRACKERS[one])
            try:
                tracker = make(path, config)
                if not isinstance(tracker, Tracker):  # a function of somebody's own made it
                    raise TypeError(f"{type(tracker).__name__} lacks methods of a Tracker")
                self._followers.append(_Follower(name, tracker, tracker.start(steps)))
            except Exception as error:
                self._warn(name, error)
        if steps and self._followers:
            self._repeat(steps)

    def _repeat(self, steps: int) -> None:
        """Tell what the run directory holds up to `steps`, in order; each tracker is told only what it lacks."""
        told: dict[str, Callable[[Row], None]] = {
            "metrics.jsonl": lambda row: self.metrics([row]),
            "timing.jsonl": self.timing,
            "evaluations.jsonl": self.evaluation,
        }
        known = [(_steps(row), tell, row) for name, tell in told.items() for row in _of_the_run(self._path / name)]
        for at, tell, row in sorted(known, key=lambda one: one[0]):
            if 0 <= at <= steps:
                tell(row)

    def metrics(self, rows: Sequence[Row]) -> None:
        """Tell of updates."""
        self._tell("metrics", rows, lambda tracker, new: tracker.metrics(new))

    def evaluation(self, row: Row) -> None:
        """Tell of an evaluation."""
        self._tell("evaluations", [row], lambda tracker, _: tracker.evaluation(row))

    def _tell(self, kind: str, rows: Sequence[Row], tell: Callable[[Tracker, Sequence[Row]], None]) -> None:
        """Tell every tracker the rows that it lacks, if any."""

        def follow(follower: _Follower) -> None:
            new = [row for row in rows if row["steps"] > getattr(follower.logged, kind)]
            if new:
                tell(follower.tracker, new)
                follower.logged = follower.logged._replace(**{kind: new[-1]["steps"]})

        self._each(follow)

    def timing(self, row: Row) -> None:
        """Tell of an event of `timing.jsonl`: blocks of updates say how fast they were."""
        steps, speed = _steps(row), number_in(row, "steps_per_second")
        if row.get("event") == "block" and speed is not None:
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
                self._warn(follower.name, error)

    def _warn(self, name: str, error: Exception) -> None:
        text = (
            f"{self._path} is no longer tracked by {name} ({type(error).__name__}: {error}): the run goes on, and its "
            "directory has everything; what is missing follows when the run is resumed"
        )
        warnings.warn(text, TrackingWarning, stacklevel=2)


def _steps(row: Row) -> int:
    """Environment steps of a row; -1 where it names none."""
    steps = number_in(row, "steps")
    return -1 if steps is None else int(steps)


def _of_the_run(file: Path) -> list[Row]:
    """Rows of a file without those that were trained again after a break."""
    kept: list[Row] = []
    for row in read_rows(file):
        if row.get("event") == "resume" and _steps(row) >= 0:
            kept = [one for one in kept if _steps(one) <= _steps(row)]
        kept.append(row)
    return kept


FLUSH_SECONDS = 10.0
"""Longest time by which what is drawn is older than the run."""


class TensorBoard:
    """Writes the event files of one run.

    The numbers of an update are one event, so that a crash leaves all of them or none. A resumed run adds a file, which
    makes TensorBoard purge the earlier ones and begins with all that the run directory holds.

    Args:
        path: The run directory.
        config: Content of `config.json`; shown as a text, "config".
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        folder = path / "tensorboard"
        folder.mkdir(exist_ok=True)
        earlier = len(list(folder.glob("events.out.tfevents.*")))
        # Not SummaryWriter: where its thread meets a full disk, training would wait for it for ever.
        writer = import_module("tensorboardX.event_file_writer").EventsWriter
        # numbered, since within a second of a break the name would be the same
        self._events = writer(str(folder / "events"), f".{earlier}")
        self._flushed = time.monotonic()
        if earlier:  # as purge_step=0 of SummaryWriter
            session = import_module("tensorboardX.proto.event_pb2").SessionLog
            self._add(0, session_log=session(status=session.START))
        self._add(0, summary=import_module("tensorboardX.summary").text("config", _table(config)))

    def start(self, steps: int) -> Logged:
        """Ask for everything: what earlier files hold is purged."""
        return Logged()

    def metrics(self, rows: Sequence[Row]) -> None:
        """Write one event per update."""
        for row in rows:
            self._write(scalars(row, "train"), row["steps"])

    def evaluation(self, row: Row) -> None:
        """Write one event for an evaluation."""
        self._write(scalars(row, "evaluation"), row["steps"])

    def speed(self, steps: int, steps_per_second: float) -> None:
        """Write the speed, and now and then everything to the disk."""
        self._write({"time/steps_per_second": steps_per_second}, steps)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._events.flush()
            self._flushed = time.monotonic()

    def close(self, state: str) -> None:
        """Write everything to the disk."""
        self._events.close()

    def _write(self, numbers: Mapping[str, float], steps: int) -> None:
        self._add(steps, summary={"value": [{"tag": tag, "simple_value": value} for tag, value in numbers.items()]})

    def _add(self, steps: int, **content: Any) -> None:
        event = import_module("tensorboardX.proto.event_pb2").Event
        self._events.write_event(event(step=int(steps), wall_time=time.time(), **content))


def _table(config: Mapping[str, Any]) -> str:
    """The configuration as a Markdown table, which TensorBoard draws."""
    rows = dict(config.get("settings", {})) | {name: value for name, value in config.items() if name != "settings"}
    lines = [f"| {name} | {json.dumps(value, ensure_ascii=False)} |" for name, value in rows.items()]
    return "\n".join(["| setting | value |", "|---|---|", *lines])


SETTLED_SECONDS = 15.0
"""Age at which rows of W&B are on the disk: its own process writes them about every five seconds."""

PROJECT = "tddelta"
"""The project, unless WANDB_PROJECT names another."""


def check_account() -> None:
    """Refuse W&B where it would ask for an account and nobody can answer.

    Raises:
        ConfigError: W&B is to log online, no API key is known, and there is no terminal to ask for one.
    """
    import wandb

    if wandb.setup().settings.mode != "online":
        return
    try:
        reason = None if wandb.login() else "no API key"
    except wandb.Error as error:
        reason = str(error)
    if reason is not None:
        raise ConfigError(
            f"Weights & Biases has no account to log to ({reason}): run `wandb login`, or set WANDB_MODE=offline to "
            "log into the run directory and `wandb sync` it later"
        )


class WeightsAndBiases:
    """Logs one run. Steps of W&B are environment steps.

    Where the server cannot be reached the run is logged offline. What W&B's own variables say (`WANDB_MODE`,
    `WANDB_PROJECT`, `WANDB_ENTITY`, …) holds.

    Args:
        path: The run directory. `wandb/id.json` in it holds the id, made when the run is first tracked, and the last
            steps that W&B is sure to have: a kill or a power cut may cost it those of the last seconds.
        config: Content of `config.json`; the configuration of the W&B run.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self._file = path.absolute() / "wandb" / "id.json"
        self._file.parent.mkdir(exist_ok=True)
        new = {"id": uuid.uuid4().hex[:12]}
        memory = {**dict.fromkeys(Logged._fields, -1), **(read_json(self._file) if self._file.exists() else new)}
        self._id, self._logged = memory["id"], Logged(*(int(memory[name]) for name in Logged._fields))
        self._closed, self._since = self._logged, time.monotonic()
        self._remember(self._logged)
        common: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "dir": str(path.absolute()),
            "config": dict(config),
            "id": self._id,
            "resume": "allow",
            "name": f"{config.get('environment')}, {config.get('agent', {}).get('name')}, seed {config.get('seed')}",
            "group": f"{config.get('environment')}/{path.absolute().parent.name}",
            # the processes of a sweep and the threads of a comparison have a W&B run each, and none takes the terminal
            "reinit": "create_new",
            "settings": wandb.Settings(console="off", silent=True, save_code=False),
        }
        try:
            self._run = wandb.init(**common)
        except wandb.Error as error:
            if wandb.setup().settings.mode != "online":
                raise
            warnings.warn(
                f"{path}: W&B cannot be reached ({error}): logging offline; send it later with "
                f"`wandb sync {self._file.parent}/offline-run-*`",
                TrackingWarning,
                stacklevel=2,
            )
            self._run = wandb.init(mode="offline", **common)
        self._run.define_metric("evaluation/*", step_metric="evaluation/steps")

    def _remember(self, logged: Logged) -> None:
        replace(self._file, to_json({"id": self._id, **logged._asdict()}), durable=False)

    def start(self, steps: int) -> Logged:
        """Ask for what W&B lacks. Nothing is taken back: training repeats later steps to the byte."""
        there = int(self._run.starting_step) - 1
        if there >= 0:  # an online run whose server says what it has
            self._logged = Logged(there, min(self._logged.evaluations, there))
        self._closed = self._logged
        return self._logged

    def metrics(self, rows: Sequence[Row]) -> None:
        """Log one row per update. The last stays open, for an evaluation, until the next one is logged."""
        closed, now = self._logged, time.monotonic()
        for row in rows:
            self._run.log(scalars(row, "train"), step=int(row["steps"]))
        self._logged = self._logged._replace(metrics=rows[-1]["steps"])
        if now - self._since >= SETTLED_SECONDS:
            self._remember(self._closed)
            self._closed, self._since = closed, now

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
        self._remember(self._logged)


TRACKERS: Mapping[str, TrackerFactory] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""The trackers with a name."""

_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
