"""Trajectories of a finite MDP under its policy."""

from bisect import bisect
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from tddelta import _plain
from tddelta._arrays import BoolArray, FloatArray, IntArray, array_of, first_place
from tddelta.errors import ConfigError, DataError, ShapeError
from tddelta.tabular.mdp import FiniteMDP, check_mdp

_BLOCK = 4_000_000  # random numbers in memory at a time, over seeds
_FEW = 6  # seeds for which plain Python is faster than arrays with an entry per seed
_KINDS = np.int64, np.int64, np.float64, np.int64, np.bool_, np.bool_  # of the fields of a trajectory
_PART = 4096  # steps of such a seed in memory at a time, as Python numbers


class Trajectory(NamedTuple):
    """Steps of one stream, shape (T,), or of one stream per seed, shape (N, T).

    Attributes:
        states: States s_t.
        actions: Actions a_t.
        rewards: Rewards of the steps out of s_t.
        next_states: True successors s'_t: at an episode's end not the state in which the next one starts.
        terminated: Whether s'_t is terminal.
        truncated: Whether a time limit cuts the episode after step t, without a terminal state.
    """

    states: IntArray
    actions: IntArray
    rewards: FloatArray
    next_states: IntArray
    terminated: BoolArray
    truncated: BoolArray


def sample(mdp: FiniteMDP, steps: int, seeds: int | Iterable[int] = 1, *, time_limit: int | None = None) -> Trajectory:
    """Follow the policy for a number of steps, once per seed; after an episode's end the next step starts anew.

    A seed gives the same bytes alone and among others, and fewer steps give the beginning of more.

    Args:
        mdp: The process and its policy.
        steps: Steps T ≥ 1 of each stream.
        seeds: Seeds, each a whole number ≥ 0, or a number N for the seeds 0 to N − 1.
        time_limit: Steps after which an episode is truncated; None means never.

    Returns:
        Arrays of shape (N, T).

    Raises:
        ConfigError: `mdp` is no process, a number is out of range, or there are no seeds.

    Example:
        >>> from tddelta.tabular import FiniteMDP
        >>> sample(FiniteMDP.chain(2), 5, seeds=[7]).states
        array([[0, 1, 0, 1, 0]])
    """
    check_mdp(mdp)
    steps = _plain.whole("steps", steps)
    limit = None if time_limit is None else _plain.whole("time_limit", time_limit)
    numbers = check_seeds(seeds)
    shape = (len(numbers), steps)
    out = Trajectory._make(np.zeros(shape, kind) for kind in _KINDS)
    choices = Choice(mdp.start), Choice(mdp.policy), Choice(mdp.transition)
    size = max(1, _BLOCK // (3 * steps))
    for first in range(0, len(numbers), size):
        block = slice(first, first + size)
        # one for the first state, then three per step, needed or not: fewer steps are the beginning of more
        draws = np.stack([np.random.default_rng(seed).random(1 + 3 * steps) for seed in numbers[block]], axis=1)
        if draws.shape[1] > _FEW:
            _follow(mdp, choices, draws, limit, out, block)
        else:
            for row, uniforms in enumerate(draws.T, first):
                _walk(mdp, choices, uniforms, limit, out, row)
    return out


def check_seeds(value: Any) -> tuple[int, ...]:
    """Seeds: whole numbers ≥ 0, or a number N for 0 … N − 1."""
    listed: tuple[int, ...] = ()
    value = _plain.plain(value)
    with suppress(ConfigError):
        if isinstance(value, Iterable):
            listed = tuple(_plain.whole("seeds", seed, least=0) for seed in value)
        else:
            listed = tuple(range(_plain.whole("seeds", value, most=10**7)))
    if not listed:
        raise ConfigError(
            f"seeds must be whole numbers >= 0, at least one; got {value!r}: pass a list of them, "
            "or a number N >= 1 for the seeds 0 to N-1"
        )
    return listed


def check_trajectory(value: Any, terminal: BoolArray) -> Trajectory:
    """Trajectory of shape (N, T) that fits a process: one unbroken stream per row."""
    try:
        fields = [array_of(f"{name} of the trajectory", getattr(value, name)) for name in Trajectory._fields]
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
    _check_steps(states, next_states, terminated, truncated, terminal)
    arrays = states, actions, rewards, next_states, terminated, truncated
    kinds = np.int64, None, np.float64, np.int64, None, None
    return Trajectory._make(np.ascontiguousarray(array, kind) for array, kind in zip(arrays, kinds, strict=True))


def _check_steps(states: Any, next_states: Any, terminated: BoolArray, truncated: BoolArray, ends: BoolArray) -> None:
    """DataError for states that do not exist, and for steps that do not follow from those before."""
    for name, array in (("states", states), ("next_states", next_states)):
        place = first_place((array < 0) | (array >= len(ends)))
        if place is not None:
            raise DataError(
                f"{name} must be between 0 and {len(ends) - 1}; got {array[place]} at step {place[1]} of stream "
                f"{place[0]}: the process has {len(ends)} states"
            )
    place = first_place((next_states[:, :-1] != states[:, 1:]) & ~(terminated | truncated)[:, :-1])
    if place is not None:
        seed, step = place
        raise DataError(
            f"a step must begin where the one before ended; got state {states[seed, step + 1]} after next state "
            f"{next_states[seed, step]} at step {step} of stream {seed}: mark the end of the episode"
        )
    place = first_place(ends[states] | (ends[next_states] & ~terminated))
    if place is not None:
        raise DataError(
            f"an episode must end in a terminal state; got a step that goes on in one at step {place[1]} of stream "
            f"{place[0]}: set terminated there"
        )


class Paths(NamedTuple):
    """Trajectories from every state, n each, of at most K steps."""

    rewards: FloatArray  # (S, n, K)
    next_states: IntArray  # true successors, (S, n, K)
    lengths: IntArray  # steps until the episode ended, at most K, (S, n); what comes later does not count
    terminated: BoolArray  # whether it ended within K steps, (S, n)


def sample_paths(mdp: FiniteMDP, trajectories: int, length: int, generator: np.random.Generator) -> Paths:
    """Follow the policy from every state, n times for K steps; trajectories from terminal states have no meaning."""
    act, move = Choice(mdp.policy), Choice(mdp.transition)
    shape = (mdp.states, trajectories)
    rewards, successors = np.zeros((*shape, length)), np.zeros((*shape, length), np.int64)
    lengths, terminated = np.full(shape, length), np.zeros(shape, np.bool_)
    state = np.broadcast_to(np.arange(mdp.states)[:, None], shape)
    for t in range(length):
        which, where = generator.random((2, *shape))
        action = act(which, state)
        after = move(where, state, action)
        rewards[..., t], successors[..., t] = mdp.reward[state, action, after], after
        ends = mdp.terminal[after] & ~terminated
        lengths[ends] = t + 1
        terminated |= ends
        state = after
    return Paths(rewards, successors, lengths, terminated)


def packed(array: FloatArray) -> tuple[IntArray, FloatArray]:
    """Places along the last axis of the entries that are not 0, in their order, filled up with others; and the entries.

    Few are in most rows, such as successors of a state or features from tiles, and only these are computed with.
    """
    active = array != 0
    places = np.argsort(~active, axis=-1, kind="stable")[..., : max(1, int(active.sum(axis=-1).max()))]
    return np.ascontiguousarray(places), np.ascontiguousarray(np.take_along_axis(array, places, axis=-1))


class Choice:
    """Draws from many discrete distributions, over the last axis, by inverting their cumulative sums.

    What has probability 0 is skipped.
    """

    def __init__(self, probabilities: FloatArray) -> None:
        self.outcomes, kept = packed(probabilities)
        sums = np.cumsum(kept, axis=-1)
        # the last possible outcome takes what rounding leaves of 1
        self.bounds = np.where(kept[..., 1:] > 0, sums[..., :-1], np.inf)

    def __call__(self, draws: FloatArray, *index: IntArray) -> IntArray:
        """Outcomes for uniform numbers in [0, 1), one distribution each, named by its index."""
        place = (draws[..., None] >= self.bounds[index]).sum(axis=-1)
        return np.asarray(self.outcomes[(*index, place)])

    def one(self, draw: float, *index: int) -> int:
        """The same for a single number."""
        return int(self.outcomes[(*index, bisect(self.bounds[index], draw))])


def _follow(mdp: FiniteMDP, choices: Any, draws: FloatArray, limit: int | None, out: Trajectory, block: slice) -> None:
    """Fill rows of the arrays (N, T), as many as the uniform numbers (1 + 3T, rows) have columns."""
    start, act, move = choices
    state = start(draws[0])
    length = np.zeros(draws.shape[1], np.int64)
    for t, (which, where, anew) in enumerate(draws[1:].reshape(-1, 3, draws.shape[1])):
        action = act(which, state)
        after = move(where, state, action)
        terminated = mdp.terminal[after]
        length += 1
        out.states[block, t], out.actions[block, t], out.next_states[block, t] = state, action, after
        out.rewards[block, t] = mdp.reward[state, action, after]
        out.terminated[block, t] = end = terminated
        if limit is not None:
            out.truncated[block, t] = (length >= limit) & ~terminated
            end = (length >= limit) | terminated
        if end.any():
            state = np.where(end, start(anew), after)
            length[end] = 0
        else:
            state = after


def _walk(mdp: FiniteMDP, choices: Any, draws: FloatArray, limit: int | None, out: Trajectory, row: int) -> None:
    """The same for one row, from its numbers (1 + 3T,)."""
    start, act, move = choices
    terminal = mdp.terminal.tolist()
    state, length = start.one(draws[0]), 0
    for begin in range(1, len(draws), 3 * _PART):
        steps = []
        for which, where, anew in draws[begin : begin + 3 * _PART].reshape(-1, 3).tolist():
            action = act.one(which, state)
            after = move.one(where, state, action)
            length += 1
            cut = length == limit and not terminal[after]
            steps.append((state, action, after, cut))
            state = after
            if cut or terminal[after]:
                state, length = start.one(anew), 0
        part = row, slice(begin // 3, begin // 3 + len(steps))
        states, actions, successors, out.truncated[part] = np.array(steps).T
        out.states[part], out.actions[part], out.next_states[part] = states, actions, successors
        out.rewards[part], out.terminated[part] = mdp.reward[states, actions, successors], mdp.terminal[successors]
