"""Checks of what `evaluate` and `control` are asked to do.

Arguments annotated `Any` come from the user.
"""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import numpy as np

from tddelta import _plain
from tddelta.errors import ConfigError, DataError, ShapeError
from tddelta.tabular import _checks
from tddelta.tabular.arrays import BoolArray, FloatArray, IntArray
from tddelta.tabular.sampling import Trajectory


def step_sizes(value: Any, scales: int) -> tuple[FloatArray, BoolArray]:
    """Step sizes (A, Z), and which of them are "1/n": these are 1, to be divided by the visits."""
    value = _plain.plain(value)
    settings = [value] if _single(value) else list(value)
    if not settings:
        raise ConfigError("step_sizes must name at least one; got none: pass, say, step_sizes=[0.1]")
    rates = np.array([_row(setting, scales) for setting in settings])
    decaying = np.isnan(rates)
    return np.where(decaying, 1.0, rates), decaying


def _row(setting: Any, scales: int) -> list[float]:
    """One setting, a number for every scale; not a number where it is "1/n"."""
    try:
        row = [_rate(entry) for entry in ((setting,) * scales if _single(setting) else setting)]
    except (TypeError, ValueError, OverflowError):
        row = []
    if len(row) != scales:
        raise ConfigError(
            f"a step size must be a number above 0 or '1/n', or one of these for each of the {scales} scales; "
            f"got {setting!r:.80}: pass, say, 0.1, or a tuple of {scales}"
        )
    return row


def _rate(value: Any) -> float:
    if value == "1/n":
        return math.nan
    number = _plain.number("step_sizes", value)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def _single(value: Any) -> bool:
    """Whether something is one entry, as a text and a number."""
    return isinstance(value, (str, bytes)) or not isinstance(value, Iterable)


def known_method(value: Any, methods: tuple[str, ...], also: str = "") -> str:
    """The name of a method, unless it is none of these."""
    if not isinstance(value, str) or value not in methods:
        close = get_close_matches(str(value), methods, n=1, cutoff=0)[0]
        raise ConfigError(f"method must be {also}one of {', '.join(methods)}; got {value!r}: did you mean {close!r}?")
    return value


def checkpoints(value: Any, length: int) -> tuple[IntArray, bool]:
    """After which steps errors are noted, and whether they are averages up to there."""
    if isinstance(value, str):
        if value == "final":
            return np.array([length]), False
        if value == "curve":
            return np.arange(1, length + 1), False
        points: tuple[Any, ...] = ()
    else:
        points = tuple(_plain.whole("record", point) for point in _plain.entries("record", value))
    if not points or points[-1] > length or any(a >= b for a, b in pairwise(points)):
        raise ConfigError(
            f"record must be 'final', 'curve' or increasing numbers of steps up to {length}; got {value!r}: "
            "no average reaches beyond the data"
        )
    return np.array(points, np.int64), True


def features(value: Any, states: int) -> tuple[IntArray, FloatArray, int]:
    """Features of every state as numbers (S, M) and values (S, M), and how many there are; None is a table."""
    if value is None:
        return np.arange(states)[:, None], np.ones((states, 1)), states
    matrix = _checks.array_of("features", value)
    if matrix.dtype.kind not in "biuf" or matrix.ndim != 2 or len(matrix) != states or not matrix.shape[1]:
        raise ShapeError(
            f"features must have shape (S, F) with one row for each of the {states} states; got "
            f"{matrix.dtype} of shape {matrix.shape}: features[s] are the features of state s"
        )
    matrix = matrix.astype(np.float64)
    if not np.isfinite(matrix).all():
        state, feature = (int(index) for index in np.argwhere(~np.isfinite(matrix))[0])
        raise DataError(f"features must be finite; got {matrix[state, feature]} at [{state}, {feature}]: replace it")
    # Few features are active in a state where they come from tiles or groups, and only these are computed with.
    active = matrix != 0
    most = max(1, int(active.sum(axis=1).max()))
    columns = np.ascontiguousarray(np.argsort(~active, axis=1, kind="stable")[:, :most])
    return columns, np.ascontiguousarray(np.take_along_axis(matrix, columns, axis=1)), matrix.shape[1]


def weights(value: Any, shape: tuple[int, int, int, int], what: str) -> FloatArray:
    """Components, or weights of the features, to begin with: a new array (A, N, F, Z)."""
    if value is None:
        return np.zeros(shape)
    array = _checks.array_of("initial_deltas", value)
    try:
        if array.dtype.kind not in "iuf" or array.shape[-2:] != shape[-2:]:
            raise ValueError
        return np.array(np.broadcast_to(array, shape), np.float64, order="C")
    except ValueError:
        raise ShapeError(
            f"initial_deltas must have shape ({what}, scales) = {shape[-2:]}, or (step sizes, seeds, {what}, scales) = "
            f"{shape}; got {array.dtype} of shape {array.shape}: use add_scale where the ladder has grown"
        ) from None


def visits(value: Any, seeds: int, states: int) -> IntArray:
    """Visits to go on from: a new array (N, S)."""
    if value is None:
        return np.zeros((seeds, states), np.int64)
    if value.shape[-1] != states:
        raise ShapeError(
            f"initial_deltas must be of the same process, with {states} states; got a result with {value.shape[-1]}: "
            "pass its deltas or weights, as an array, to begin with them elsewhere"
        )
    return np.array(np.broadcast_to(value, (seeds, states)), order="C")


def trajectory(value: Any, terminal: BoolArray) -> Trajectory:
    """Steps of shape (N, T) that fit the process: one unbroken stream per row."""
    try:
        fields = [_checks.array_of(f"{name} of the trajectory", getattr(value, name)) for name in Trajectory._fields]
    except AttributeError:
        raise ConfigError(
            f"trajectory must be a Trajectory; got {type(value).__name__}: use what sample returns"
        ) from None
    if any(field.ndim not in (1, 2) or field.shape != fields[0].shape or not field.size for field in fields):
        raise ShapeError(
            f"the arrays of a trajectory must all have shape (T,) or (N, T); got {[field.shape for field in fields]}: "
            "one entry per step"
        )
    states, actions, rewards, next_states, terminated, truncated = (np.atleast_2d(field) for field in fields)
    if states.dtype.kind not in "iu" or next_states.dtype.kind not in "iu":
        raise ShapeError(f"states must be whole numbers; got {states.dtype} and {next_states.dtype}: number the states")
    if terminated.dtype != bool or truncated.dtype != bool or rewards.dtype.kind not in "biuf":
        raise ShapeError(
            f"terminated and truncated must be boolean and rewards real; got {terminated.dtype}, {truncated.dtype} and "
            f"{rewards.dtype}: cast them, say what they mean"
        )
    # After a termination nothing is read: whatever stands there is replaced by a state that exists.
    next_states = np.where(terminated, 0, next_states)
    for name, array in (("states", states), ("next_states", next_states)):
        wrong = (array < 0) | (array >= len(terminal))
        if wrong.any():
            seed, step = (int(index) for index in np.argwhere(wrong)[0])
            raise DataError(
                f"{name} must be between 0 and {len(terminal) - 1}; got {array[seed, step]} at step {step} of stream "
                f"{seed}: the process has {len(terminal)} states"
            )
    broken = (next_states[:, :-1] != states[:, 1:]) & ~(terminated | truncated)[:, :-1]
    if broken.any():
        seed, step = (int(index) for index in np.argwhere(broken)[0])
        raise DataError(
            f"a step must begin where the one before ended; got state {states[seed, step + 1]} after next state "
            f"{next_states[seed, step]} at step {step} of stream {seed}: mark the end of the episode"
        )
    inside = terminal[states] | (terminal[next_states] & ~terminated)
    if inside.any():
        seed, step = (int(index) for index in np.argwhere(inside)[0])
        raise DataError(
            f"an episode must end in a terminal state; got a step that goes on in one at step {step} of stream {seed}: "
            "set terminated there"
        )
    return Trajectory(
        np.ascontiguousarray(states, np.int64),
        np.ascontiguousarray(actions),
        np.ascontiguousarray(rewards, np.float64),
        np.ascontiguousarray(next_states, np.int64),
        np.ascontiguousarray(terminated),
        np.ascontiguousarray(truncated),
    )


def unused(method: str, given: dict[str, Any], why: str) -> None:
    """ConfigError if an argument is given that the method does not look at."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ConfigError(f"{names[0]} has no meaning for method {method!r}; got {given[names[0]]!r:.80}: {why}")


def needed(scales: Iterable[Any] | None, argument: str, example: str, method: str) -> tuple[Any, ...]:
    """A field of the scales that a method cannot do without."""
    if scales is None:
        raise ConfigError(f"method {method!r} needs scales with {argument}; these have none: make them with {example}")
    return tuple(scales)
