"""Trajectories of a finite MDP under its policy."""

from bisect import bisect
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tddelta import _plain
from tddelta.errors import own_checks
from tddelta.tabular import _checks
from tddelta.tabular._checks import BoolArray, FloatArray, IntArray
from tddelta.tabular.mdp import FiniteMDP, check_mdp

_BLOCK = 4_000_000  # random numbers in memory at a time, over seeds
_FEW = 6  # seeds for which plain Python is faster than arrays with an entry per seed
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


@own_checks
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
    numbers = _checks.seeds(seeds)
    shape = (len(numbers), steps)
    out = Trajectory(
        np.empty(shape, np.int64),
        np.empty(shape, np.int64),
        np.empty(shape),
        np.empty(shape, np.int64),
        np.empty(shape, bool),
        np.zeros(shape, bool),
    )
    model = _Model(mdp)
    size = max(1, _BLOCK // (3 * steps))
    for first in range(0, len(numbers), size):
        block = slice(first, first + size)
        # one for the first state, then three per step, needed or not: fewer steps are the beginning of more
        draws = np.stack([np.random.default_rng(seed).random(1 + 3 * steps) for seed in numbers[block]], axis=1)
        if draws.shape[1] > _FEW:
            _follow(model, draws, limit, out, block)
        else:
            for row, uniforms in enumerate(draws.T, first):
                _walk(model, uniforms, limit, out, row)
    return out


class Choice:
    """Draws from many discrete distributions by inverting their cumulative sums, skipping what has probability 0.

    Args:
        probabilities: Distributions over the last axis.
    """

    def __init__(self, probabilities: FloatArray) -> None:
        possible = probabilities > 0
        width = int(possible.sum(axis=-1).max())
        # stable: the possible outcomes first, in their order
        self.outcomes = np.argsort(~possible, axis=-1, kind="stable")[..., :width]
        kept = np.take_along_axis(probabilities, self.outcomes, axis=-1)
        sums = np.cumsum(kept, axis=-1)
        # the last possible outcome takes what rounding leaves of 1
        self.bounds = np.where(kept[..., 1:] > 0, sums[..., :-1], np.inf)

    def __call__(self, draws: FloatArray, *index: IntArray) -> IntArray:
        """Outcomes for uniform numbers in [0, 1), one distribution each, named by its index."""
        place = (draws[..., None] >= self.bounds[index]).sum(axis=-1)
        chosen: IntArray = self.outcomes[(*index, place)]
        return chosen

    def one(self, draw: float, *index: int) -> int:
        """The same for a single number."""
        return int(self.outcomes[(*index, bisect(self.bounds[index], draw))])


class _Model:
    """What sampling needs of a process."""

    def __init__(self, mdp: FiniteMDP) -> None:
        self.start = Choice(mdp.start)
        self.act = Choice(mdp.policy)
        self.move = Choice(mdp.transition)
        self.reward = mdp.reward
        self.terminal = mdp.terminal


def _follow(model: _Model, draws: FloatArray, limit: int | None, out: Trajectory, block: slice) -> None:
    """Fill rows of the arrays (N, T), as many as the uniform numbers (1 + 3T, rows) have columns."""
    state = model.start(draws[0])
    length = np.zeros(draws.shape[1], np.int64)
    for t, (which, where, anew) in enumerate(draws[1:].reshape(-1, 3, draws.shape[1])):
        action = model.act(which, state)
        after = model.move(where, state, action)
        terminated = model.terminal[after]
        length += 1
        out.states[block, t], out.actions[block, t], out.next_states[block, t] = state, action, after
        out.rewards[block, t] = model.reward[state, action, after]
        out.terminated[block, t] = terminated
        end = terminated
        if limit is not None:
            out.truncated[block, t] = (length >= limit) & ~terminated
            end = terminated | out.truncated[block, t]
        if end.any():
            state = np.where(end, model.start(anew), after)
            length[end] = 0
        else:
            state = after


def _walk(model: _Model, draws: FloatArray, limit: int | None, out: Trajectory, row: int) -> None:
    """The same for one row, from its numbers (1 + 3T,)."""
    terminal = model.terminal.tolist()
    state, length = model.start.one(draws[0]), 0
    for begin in range(1, len(draws), 3 * _PART):
        steps = []
        for which, where, anew in draws[begin : begin + 3 * _PART].reshape(-1, 3).tolist():
            action = model.act.one(which, state)
            after = model.move.one(where, state, action)
            length += 1
            cut = length == limit and not terminal[after]
            steps.append((state, action, after, cut))
            state = after
            if cut or terminal[after]:
                state, length = model.start.one(anew), 0
        part = row, slice(begin // 3, begin // 3 + len(steps))
        states, actions, successors, out.truncated[part] = np.array(steps).T
        out.states[part], out.actions[part], out.next_states[part] = states, actions, successors
        out.rewards[part], out.terminated[part] = model.reward[states, actions, successors], model.terminal[successors]
