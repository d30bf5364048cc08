"""Checks of arguments: arrays, what a `FiniteMDP` is made of, and settings of learners.

Every function returns its argument in the final form. Arguments annotated `Any` come from the user.
"""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta.errors import ConfigError, DataError, ShapeError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_ROUNDING = 1e-6  # float32 probabilities sum to one up to this


def array_of(name: str, value: Any, kind: Any = None) -> npt.NDArray[Any]:
    """Any array, of the type that it has, unless it is to be converted to one."""
    try:
        return np.asarray(value, kind)
    except (TypeError, ValueError, OverflowError):
        raise ShapeError(f"{name} must be an array of numbers; got {value!r:.80}: pass lists of equal length") from None


def numbers(name: str, value: Any) -> FloatArray:
    """A new float64 array of finite numbers."""
    array = np.array(array_of(name, value, np.float64))
    place = first_place(~np.isfinite(array))
    if place is not None:
        raise DataError(f"{name} must be finite; got {array[place]} at {list(place)}: replace it")
    return array


def first_place(wrong: Any) -> tuple[int, ...] | None:
    """Index of the first entry that is wrong; None if none is."""
    places = np.argwhere(wrong)
    return tuple(map(int, places[0])) if len(places) else None


def number(name: str, value: Any) -> float:
    """One finite number."""
    value = _plain.plain(value)
    if not (_plain.is_number(value) and -math.inf < value < math.inf):
        raise ConfigError(f"{name} must be one finite number; got {value!r:.80}: pass a Python float")
    return float(value)


def seeds(value: Any) -> tuple[int, ...]:
    """Seeds: whole numbers ≥ 0, or a number N for 0 … N − 1."""
    value = _plain.plain(value)
    try:
        if isinstance(value, Iterable):
            listed = tuple(_plain.whole("seeds", seed, least=0) for seed in value)
        else:
            listed = tuple(range(_plain.whole("seeds", value, most=10**7)))
    except ConfigError:
        listed = ()
    if not listed:
        raise ConfigError(
            f"seeds must be whole numbers >= 0, at least one; got {value!r}: pass a list of them, "
            "or a number N >= 1 for the seeds 0 to N-1"
        )
    return listed


def transition(value: Any) -> tuple[FloatArray, bool]:
    """Transition probabilities as (S, A, S), and whether they were given as (S, S)."""
    array = numbers("transition", value)
    if array.ndim not in (2, 3) or array.shape[0] != array.shape[-1] or not array.size:
        raise ShapeError(
            f"transition must have shape (S, A, S), or (S, S) for one action; got {array.shape}: "
            "transition[s, a, t] is the probability that action a leads from s to t"
        )
    return (array[:, None, :], True) if array.ndim == 2 else (array, False)


def terminal(value: Any, states: int) -> BoolArray:
    """Which states are terminal, (S,)."""
    if value is None:
        return np.zeros(states, bool)
    array = np.array(array_of("terminal", value))
    if array.dtype != bool or array.shape != (states,):
        raise ShapeError(
            f"terminal must hold one boolean per state, shape ({states},); got {array.dtype} of shape {array.shape}: "
            f"write it as np.isin(np.arange({states}), [states that end an episode])"
        )
    if array.all():
        raise ConfigError("terminal marks every state; an episode needs one to start in: leave one out")
    return array


def stochastic(name: str, array: FloatArray, skipped: BoolArray) -> FloatArray:
    """Probabilities over the last axis; rows of skipped states are not looked at."""
    checked = ~skipped.reshape(-1, *[1] * (array.ndim - 1))
    place = first_place((array < 0) & checked)
    if place is not None:
        raise DataError(f"{name} must not be negative; got {array[place]:.6g} at {list(place)}: it is a probability")
    sums = array.sum(axis=-1, keepdims=True)
    place = first_place((np.abs(sums - 1) > _ROUNDING) & checked)
    if place is not None:
        advice = " or mark the state as terminal" if name == "transition" and not sums[place] else ""
        raise DataError(
            f"rows of {name} must sum to one; got {sums[place]:.9g} at {list(place[:-1])}: "
            f"divide the row by its sum{advice}"
        )
    divided: FloatArray = np.divide(array, sums, out=array.copy(), where=checked)
    return divided


def reward(value: Any, shape: tuple[int, ...], single: bool) -> FloatArray:
    """Rewards as (S, A, S)."""
    array = numbers("reward", value)
    if array.ndim == 2 and single:
        array = array[:, None, :]
    # Two axes could be (S, A) or (A, S): where S = A nobody would notice.
    fits = array.ndim in (0, 3) or array.shape == shape[-1:]
    fits = fits and all(given in (1, wanted) for given, wanted in zip(array.shape[::-1], shape[::-1], strict=False))
    if not fits:
        raise ShapeError(
            f"reward must broadcast to (S, A, S) = {shape} with three axes; got {np.shape(value)}: "
            "pass reward[:, :, None] for a reward per state and action, reward[:, None, None] per state left, "
            "a vector per state entered, or one number"
        )
    return np.array(np.broadcast_to(array, shape), order="C")  # one layout, so that loops are compiled once


def policy(value: Any, ends: BoolArray, actions: int) -> FloatArray:
    """Action probabilities as (S, A); terminal states get the uniform ones."""
    states = len(ends)
    uniform = np.full((states, actions), 1 / actions)
    if value is None:
        return uniform
    given = array_of("policy", value)
    if given.shape == (states,) and np.issubdtype(given.dtype, np.integer):
        wrong = np.flatnonzero((given < 0) | (given >= actions))
        if len(wrong):
            raise ConfigError(
                f"policy must name actions from 0 to {actions - 1}; got {given[wrong[0]]} in state {wrong[0]}: "
                "pass one action per state, or probabilities of shape (S, A)"
            )
        array = np.eye(actions)[given]
    else:
        array = numbers("policy", value)
    if array.shape != (states, actions):
        raise ShapeError(
            f"policy must have shape (S, A) = {(states, actions)}, or ({states},) with one whole number per state; "
            f"got {array.shape}: pass the probability of every action in every state"
        )
    return np.where(ends[:, None], uniform, stochastic("policy", array, ends))


def start(value: Any, ends: BoolArray) -> FloatArray:
    """Probabilities of the first state, (S,)."""
    states = len(ends)
    array = array_of("start", value)
    if array.shape == () and np.issubdtype(array.dtype, np.integer):
        if not 0 <= array < states:
            raise ConfigError(f"start must be a state from 0 to {states - 1}; got {array}: states count from 0")
        array = np.eye(states)[array]
    else:
        array = numbers("start", value)
        if array.shape != (states,):
            raise ShapeError(
                f"start must be a whole number or have shape (S,) = ({states},); got {value!r:.80}: "
                "pass a state, or the probability of every state"
            )
        array = stochastic("start", array[None], np.zeros(1, bool))[0]
    if array[ends].any():
        ended = int(np.flatnonzero(ends & (array > 0))[0])
        raise ConfigError(f"an episode cannot start in a terminal state; got start in state {ended}: name another")
    checked: FloatArray = array
    return checked


def names(value: Any, states: int) -> tuple[str, ...]:
    """One name per state."""
    if value is None:
        return tuple(map(str, range(states)))
    listed = () if isinstance(value, (str, bytes)) or not isinstance(value, Iterable) else tuple(map(str, value))
    if len(listed) != states or len(set(listed)) != states:
        raise ConfigError(
            f"names must be {states} different texts, one per state; got {value!r:.80}: pass a list that names every "
            "state once"
        )
    return listed


def discounts(value: Iterable[float]) -> tuple[float, ...]:
    """A ladder of discounts."""
    gammas = timescales.unit_numbers("gammas", value)
    if not gammas or any(low >= high for low, high in pairwise(gammas)):
        raise ConfigError(
            f"gammas must be strictly increasing in [0, 1]; got {gammas}: sort them, and name one at least"
        )
    return gammas


# ---------------------------------------------------------------- settings of learners


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
    """One setting, a number for every scale; NaN where it is "1/n"."""
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
    """Whether a setting is one entry, for all scales: a number or a text."""
    return isinstance(value, (str, bytes)) or not isinstance(value, Iterable)


def method(value: Any, methods: tuple[str, ...], also: str = "") -> str:
    """Name of a method that exists."""
    if not isinstance(value, str) or value not in methods:
        close = get_close_matches(str(value), methods, n=1, cutoff=0)[0]
        raise ConfigError(f"method must be {also}one of {', '.join(methods)}; got {value!r}: did you mean {close!r}?")
    return value


def recorded(value: Any, length: int) -> tuple[IntArray, bool]:
    """Steps after which errors are noted, and whether they are averages up to there."""
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
    matrix = array_of("features", value)
    if matrix.dtype.kind not in "biuf" or matrix.ndim != 2 or len(matrix) != states or not matrix.shape[1]:
        raise ShapeError(
            f"features must have shape (S, F) with one row for each of the {states} states; got "
            f"{matrix.dtype} of shape {matrix.shape}: features[s] are the features of state s"
        )
    matrix = numbers("features", matrix)
    # Few features are active in a state where they come from tiles or groups, and only these are computed with.
    active = matrix != 0
    most = max(1, int(active.sum(axis=1).max()))
    columns = np.ascontiguousarray(np.argsort(~active, axis=1, kind="stable")[:, :most])
    return columns, np.ascontiguousarray(np.take_along_axis(matrix, columns, axis=1)), matrix.shape[1]


def weights(value: Any, shape: tuple[int, int, int, int], what: str) -> FloatArray:
    """Components, or weights of the features, to begin with: a new array (A, N, F, Z)."""
    if value is None:
        return np.zeros(shape)
    array = array_of("initial_deltas", value)
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


def needed(scales: Iterable[Any] | None, argument: str, example: str, method: str) -> tuple[Any, ...]:
    """A field of the scales that a method cannot do without."""
    if scales is None:
        raise ConfigError(f"method {method!r} needs scales with {argument}; these have none: make them with {example}")
    return tuple(scales)
