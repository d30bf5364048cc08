"""Trackers: who else hears of a run's progress, as TensorBoard files or in Weights & Biases.

The run directory stays the record. A tracker is told what has been written there, and after a break its curves go on
where the run goes on: every step once, none left out.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tddelta.errors import ConfigError, MissingExtra, TrackingWarning, own_checks
from tddelta.runs.files import number_in, read_rows

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
    from tddelta.runs.tensorboard import TensorBoard

    return TensorBoard(path, config)


def _wandb(path: Path, config: Mapping[str, Any]) -> Tracker:
    from tddelta.runs.weights_and_biases import WeightsAndBiases

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
        from tddelta.runs.weights_and_biases import check_account

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
