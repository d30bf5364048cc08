"""Checks of what a `FiniteMDP` is made of; every function returns the array in its final form.

Arguments annotated `Any` come from the user.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta.errors import ConfigError, DataError, ShapeError

FloatArray = npt.NDArray[np.float64]
"""Values, rewards, probabilities."""

IntArray = npt.NDArray[np.int64]
"""States, actions, counts."""

BoolArray = npt.NDArray[np.bool_]
"""Flags."""


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
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        place = tuple(int(index) for index in wrong[0])
        raise DataError(f"{name} must be finite; got {array[place]} at {_place(place)}: replace it")
    return array


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
        counted = not isinstance(value, Iterable)
        listed = tuple(range(_seed(value, 10**7))) if counted else tuple(_seed(seed) for seed in value)
    except ConfigError:
        listed = ()
    if not listed:
        raise ConfigError(
            f"seeds must be whole numbers >= 0, at least one; got {value!r}: pass a list of them, "
            "or a number N >= 1 for the seeds 0 to N-1"
        )
    return listed


def _seed(value: Any, most: int | None = None) -> int:
    return _plain.whole("seeds", value, least=0, most=most)


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
    negative = np.argwhere((array < 0) & ~_rows(skipped, array.ndim))
    if len(negative):
        place = tuple(int(index) for index in negative[0])
        raise DataError(f"{name} must not be negative; got {array[place]:.6g} at {_place(place)}: it is a probability")
    sums = array.sum(axis=-1, keepdims=True)
    wrong = np.argwhere((np.abs(sums - 1) > _ROUNDING) & ~_rows(skipped, array.ndim))
    if len(wrong):
        place = tuple(int(index) for index in wrong[0])
        advice = " or mark the state as terminal" if name == "transition" and not sums[place] else ""
        raise DataError(
            f"rows of {name} must sum to one; got {sums[place]:.9g} at {_place(place[:-1])}: "
            f"divide the row by its sum{advice}"
        )
    divided: FloatArray = np.divide(array, sums, out=array.copy(), where=~_rows(skipped, array.ndim))
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


def _rows(marked: BoolArray, axes: int) -> BoolArray:
    return marked.reshape(-1, *[1] * (axes - 1))


def _place(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"
