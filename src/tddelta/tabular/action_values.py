"""Control in a table: learning to act on the sum of action-value components."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, no_type_check

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta._arrays import FloatArray, IntArray
from tddelta.decomposition import compose
from tddelta.errors import ConfigError
from tddelta.runs import CHECKPOINT_SECONDS, Arrays
from tddelta.tabular.loops import (
    check_initial,
    check_step_sizes,
    compiled,
    component_errors,
    over_blocks,
    seed_by_seed,
    weight,
)
from tddelta.tabular.mdp import FiniteMDP, check_mdp
from tddelta.tabular.sampling import Choice, check_seeds
from tddelta.timescales import TimeScales, needed

Method = Literal["sarsa", "expected_sarsa", "q_learning", "n_step_sarsa", "sarsa_lambda", "watkins"]
"""Methods by name: see `control`."""

METHODS: tuple[str, ...] = get_args(Method)
"""The same, as a tuple."""

# What follows a step in its target: the next action, the mean over the policy, the best action, or more steps.
_SARSA, _EXPECTED, _GREEDY, _WINDOWS = 0, 1, 2, 3
_KINDS = {
    "sarsa": _SARSA,
    "sarsa_lambda": _SARSA,
    "expected_sarsa": _EXPECTED,
    "q_learning": _GREEDY,
    "watkins": _GREEDY,
    "n_step_sarsa": _WINDOWS,
}


@dataclass(frozen=True, eq=False, repr=False)
class ControlResult:
    """Result of `control`, for N seeds.

    Attributes:
        scales: The time scales.
        deltas: Final components Q^z(s, a), shape (N, S, A, Z); 0 in terminal states.
        policy: Greedy actions argmax_a Q_Z(s, a), the lowest index among equals, shape (N, S).
        start_values: Exact value of this policy at γ_Z and the distribution of first states, shape (N,); not a number
            where γ_Z = 1 and the policy need not end.
        optimal_start_value: The same of the best policy.
        episode_returns: For every seed the sums of rewards of its finished episodes, in order.
        episode_lengths: Likewise their numbers of steps.
        seeds: Seeds, N of them.
    """

    scales: TimeScales
    deltas: FloatArray
    policy: IntArray
    start_values: FloatArray
    optimal_start_value: float
    episode_returns: tuple[FloatArray, ...]
    episode_lengths: tuple[IntArray, ...]
    seeds: tuple[int, ...]

    @property
    def action_values(self) -> FloatArray:
        """Q_z(s, a) = Σ_{i≤z} Q^i(s, a), shape (N, S, A, Z); the last entry decides."""
        with np.errstate(invalid="ignore"):  # where the components diverged
            return compose(self.deltas)

    def __repr__(self) -> str:
        seeds, states, actions, scales = self.deltas.shape
        return f"{type(self).__name__}({seeds} seeds, {states} states, {actions} actions, {scales} scales)"


def control(
    mdp: FiniteMDP,
    scales: Any,
    *,
    method: Method = "sarsa",
    step_size: Any = 0.1,
    epsilon: float | tuple[float, float] = 0.1,
    seeds: int | Iterable[int] = 1,
    steps: int = 10_000,
    time_limit: int | None = None,
    initial_deltas: npt.ArrayLike | None = None,
    threads: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
) -> ControlResult:
    """Learn action-value components Q^z and act ε-greedily on their sum Q_Z = Σ_z Q^z.

    Q^z(s_t, a_t) moves by α_z towards the target of component z, as in `evaluate`, where what follows a step is

    - "sarsa": Q^z(s', a') of the next action;
    - "expected_sarsa": Σ_b π(b|s') Q^z(s', b), the mean over the ε-greedy policy;
    - "q_learning": Q^z(s', a*) with a* = argmax_b Q_Z(s', b), the same action for all components: then each prefix
      of them becomes the value at its discount of the policy that is greedy in Q_Z. A maximum per component would be
      the value of another policy for each, and their sum that of none;
    - "n_step_sarsa": Q^z(x, a) at the end of a window of k_z = `scales.n_steps[z]` steps;
    - "sarsa_lambda": as "sarsa", with accumulating traces of decay c_z = `scales.trace_decays[z]`;
    - "watkins": as "q_learning", with traces that are all cut when the next action is not a*.

    The next action is chosen before the update. A truncated episode bootstraps from its true successor; no trace and
    no window goes across an end. The policy of `mdp` does not matter. With a step size that is too large components
    become inf or nan, as in `evaluate`, and the policy has no meaning.

    Args:
        mdp: The process.
        scales: The time scales, as of `TimeScales.of`; γ_Z is the discount that the policy is optimised for.
        method: One of the above.
        step_size: α above 0, or "1/n": 1 over the number of updates of the state and action; or one of these per scale.
        epsilon: Probability ε in [0, 1] of an action at random, or a pair: from the first to the last step it goes in
            a line from the one number to the other.
        seeds: Seeds, N of them, or a number N for the seeds 0 to N − 1.
        steps: Steps of each seed, over all episodes.
        time_limit: As in `evaluate`.
        initial_deltas: Components to begin with, shape (S, A, Z) or (N, S, A, Z). None means zeros.
        threads: As in `evaluate`.
        checkpoint: As in `evaluate`.
        checkpoint_every: As in `evaluate`.

    Returns:
        Components, the greedy policy, its exact value and that of the best one, and the episodes.

    Raises:
        ConfigError, ShapeError, CheckpointError, StorageError, MissingExtra: As `evaluate`; also a ConfigError if γ_Z
            is 1 and the optimal values do not converge.

    Example:
        >>> walk = FiniteMDP(
        ...     [[[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0, 1]], [[0, 0, 1], [0, 0, 1]]],
        ...     [0, 0, 1],
        ...     terminal=[False, False, True],
        ... )
        >>> learned = control(walk, TimeScales.from_gammas([0.5, 0.9]), method="q_learning", steps=2000)
        >>> learned.policy[0, :2].tolist(), float(learned.start_values[0])
        ([1, 1], 0.9)

    Reference:
        Sutton and Barto, "Reinforcement Learning", 2018, chapters 6, 7 and 12; Watkins, "Learning from delayed
        rewards", 1989. The components are those of Romoff et al. 2019.
    """
    scales = TimeScales.of(scales)
    check_mdp(mdp)
    _plain.one_of("method", method, METHODS)
    alphas, decaying = check_step_sizes([step_size], len(scales))
    numbers = check_seeds(seeds)
    length = _plain.whole("steps", steps)
    limit = -1 if time_limit is None else _plain.whole("time_limit", time_limit)
    epsilons = _epsilons(epsilon)
    optimal = float(mdp.start @ mdp.optimal_action_values(scales.gammas[-1]).max(axis=1))
    tables = check_initial(initial_deltas, (len(numbers), mdp.states, mdp.actions, len(scales)), "N", "S, A, Z")
    tables[:, mdp.terminal] = 0.0
    first, move = Choice(mdp.start), Choice(mdp.transition)
    process = first.outcomes, first.bounds, move.outcomes, move.bounds, mdp.reward, mdp.terminal
    task = process, _model(method, scales, length), limit, (alphas[0], decaying[0], epsilons)
    episodes: list[Any] = [None] * len(numbers)  # returns and lengths, for every seed

    def block(begin: int, end: int) -> None:
        for n in range(begin, end):
            episodes[n] = _learned(task, numbers[n], tables[n], length)

    def state(done: int) -> Arrays:
        returns, lengths = (np.concatenate([pair[i] for pair in episodes[:done]]) for i in (0, 1))
        counts = np.array([len(pair[0]) for pair in episodes[:done]])
        return {"deltas": tables, "returns": returns, "lengths": lengths, "episodes": counts}

    def restore(done: int, arrays: Arrays) -> None:
        if len(arrays["episodes"]) != done:
            raise ValueError(f"{len(arrays['episodes'])} seeds in place of {done}")
        tables[:] = arrays["deltas"]
        cuts = np.cumsum(arrays["episodes"])[:-1]
        parts = (np.split(np.array(arrays[name]), cuts) for name in ("returns", "lengths"))
        episodes[:done] = zip(*parts, strict=True)

    arguments = {
        "method": method,
        "scales": scales.to_dict(),
        "step_size": np.where(decaying, "1/n", alphas.astype(str)).tolist(),
        "epsilon": epsilons.tolist(),
        "seeds": numbers,
        "steps": length,
        "time_limit": time_limit,
        "mdp": mdp,
        "initial_deltas": (tables,),
    }
    seed_by_seed(
        lambda first, last: over_blocks(block, last - first, threads, first), len(numbers), threads,
        checkpoint, checkpoint_every, arguments=arguments, state=state, restore=restore,
    )  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):  # where they diverged
        policy = tables.sum(axis=-1).argmax(axis=-1)
    return ControlResult(
        scales=scales,
        deltas=tables,
        policy=policy,
        start_values=np.array([_start_value(mdp, actions, scales.gammas[-1]) for actions in policy]),
        optimal_start_value=optimal,
        episode_returns=tuple(returns for returns, _ in episodes),
        episode_lengths=tuple(lengths for _, lengths in episodes),
        seeds=numbers,
    )


def _learned(task: tuple[Any, ...], seed: int, table: FloatArray, steps: int) -> tuple[FloatArray, IntArray]:
    """Learn the components of one seed in place; returns and lengths of its episodes."""
    learn = _n_step if task[1][0] == _WINDOWS else _one_step
    returns, lengths = np.empty(steps), np.empty(steps, np.int64)
    visits = np.zeros(table.shape[:2], np.int64)
    count = learn(*task, np.random.default_rng(seed), table, visits, returns, lengths)
    return returns[:count].copy(), lengths[:count].copy()


def _model(method: str, scales: TimeScales, length: int) -> tuple[Any, ...]:
    """Discounts, trace decays and windows for the compiled loop."""
    gammas, decays, windows = np.array(scales.gammas), np.zeros(len(scales)), np.ones(1, np.int64)
    if method in ("sarsa_lambda", "watkins"):
        decays = np.array(needed(scales, "trace_decays", f"method {method!r}"))
    if method == "n_step_sarsa":
        given = needed(scales, "n_steps", f"method {method!r}")
        # longer ones never fill either, and flush the same
        windows = np.array([min(window, length + 1) for window in given])
    powers = gammas[:, None] ** np.arange(windows.max() + 1)
    return _KINDS[method], gammas, decays, method == "watkins", windows, powers


def _start_value(mdp: FiniteMDP, policy: IntArray, gamma: float) -> float:
    """Exact value of a policy at the distribution of first states; not a number if there is none."""
    try:
        values = mdp.with_policy(policy).exact_values([gamma])
    except ConfigError:
        return float("nan")
    return float(mdp.start @ values[:, 0])


def _epsilons(value: Any) -> FloatArray:
    """ε at the first and the last step."""
    pair = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2:
        raise ConfigError(f"epsilon must be a number, or a pair (first, last); got {value!r}: pass one of the two")
    return np.array([timescales.unit_number("epsilon", number) for number in pair])


# ---------------------------------------------------------------- compiled loops
#
# One call is one seed. `outcomes` and `bounds` draw a next state: outcomes[s, a, i] is the first i for which a uniform
# number is below bounds[s, a, i], the last one has no bound.


@compiled
@no_type_check
def _drawn(outcomes, bounds, uniform):
    """One outcome of a discrete distribution for a uniform number in [0, 1)."""
    place = 0
    while place < len(bounds) and uniform >= bounds[place]:
        place += 1
    return outcomes[place]


@compiled
@no_type_check
def _greedy(table):
    """The action of largest Q_Z = Σ_z Q^z in one state, the lowest index among equals."""
    best, highest = 0, 0.0
    for action in range(table.shape[0]):
        total = 0.0
        for z in range(table.shape[1]):
            total += table[action, z]
        if action == 0 or total > highest:
            best, highest = action, total
    return best


@compiled
@no_type_check
def _chosen(table, epsilon, generator):
    """An action for one state: any with probability ε, else the greedy one. Uses two random numbers."""
    explore, which = generator.random(), generator.random()
    return int(which * len(table)) if explore < epsilon else _greedy(table)


@compiled
@no_type_check
def _follow_up(table, action, epsilon, kind, out):
    """Components that a step into a state leads to."""
    place = action if kind == _SARSA else _greedy(table)
    for z in range(len(out)):
        out[z] = table[place, z]
        if kind == _EXPECTED:
            out[z] *= 1.0 - epsilon
            for b in range(len(table)):
                out[z] += table[b, z] * epsilon / len(table)


@compiled
@no_type_check
def _one_step(process, model, limit, rates, generator, table, visits, returns, lengths):
    """Learn components of action values for one seed from single steps, with traces where decays are above 0.

    `table` (S, A, Z) and `visits` (S, A) change; ε goes from the first to the last of `epsilons` in a line. Returns
    the number of episodes, whose `returns` and `lengths` are noted.
    """
    first, first_bounds, outcomes, bounds, reward, terminal = process
    kind, gammas, decays, cut, _, _ = model
    alphas, decaying, epsilons = rates
    states, actions, scales = table.shape
    length = len(returns)
    trace, traced = np.zeros(table.shape), max(decays) > 0
    # The pairs that have a trace: the others are not computed with.
    pairs, listed, number = np.empty(states * actions, np.int64), np.zeros(states * actions, np.bool_), 0
    following, delta, alpha = np.zeros(scales), np.empty(scales), np.empty(scales)
    episodes, total, age = 0, 0.0, 0
    s = _drawn(first, first_bounds, generator.random())
    a = _chosen(table[s], epsilons[0], generator)
    for t in range(length):
        epsilon = epsilons[0] + (epsilons[1] - epsilons[0]) * t / max(1, length - 1)
        x = _drawn(outcomes[s, a], bounds[s, a], generator.random())
        r = reward[s, a, x]
        age, total = age + 1, total + r
        terminated = terminal[x]
        ended = terminated or age == limit
        b = _chosen(table[x], epsilon, generator)
        strays = cut and b != _greedy(table[x])
        if not terminated:
            _follow_up(table[x], b, epsilon, kind, following)
        component_errors(r, table[s, a], following, terminated, gammas, delta)
        visits[s, a] += 1
        for z in range(scales):
            alpha[z] = alphas[z] / visits[s, a] if decaying[z] else alphas[z]
        if traced:
            pair = s * actions + a
            if not listed[pair]:
                listed[pair] = True
                pairs[number] = pair
                number += 1
            for i in range(number):
                u, v = pairs[i] // actions, pairs[i] % actions
                values, faded = table[u, v], trace[u, v]
                for z in range(scales):
                    faded[z] *= decays[z]
                if pairs[i] == pair:
                    for z in range(scales):
                        faded[z] += alpha[z]
                for z in range(scales):
                    values[z] += delta[z] * faded[z]
            if ended or strays:
                for i in range(number):
                    for z in range(scales):
                        trace[pairs[i] // actions, pairs[i] % actions, z] = 0.0
                    listed[pairs[i]] = False
                number = 0
        else:
            for z in range(scales):
                table[s, a, z] += alpha[z] * delta[z]
        s, a = x, b
        if ended:
            returns[episodes], lengths[episodes] = total, age
            episodes, total, age = episodes + 1, 0.0, 0
            s = _drawn(first, first_bounds, generator.random())
            a = _chosen(table[s], epsilon, generator)
    return episodes


# A loop of its own: together they are up to a fifth slower.
@compiled
@no_type_check
def _n_step(process, model, limit, rates, generator, table, visits, returns, lengths):
    """n-step SARSA with a window of `n_steps[z]` for component z; see `_one_step`."""
    first, first_bounds, outcomes, bounds, reward, terminal = process
    _, gammas, _, _, n_steps, powers = model  # powers[z, i] is γ_z^i
    alphas, decaying, epsilons = rates
    scales, longest = len(gammas), max(n_steps)
    length, size = len(returns), longest + 1
    # The last steps of the episode, step i at i modulo the size; behind them the pair that follows.
    seen, taken, gained = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size)
    goal = np.empty(scales)
    episodes, total, age, moved = 0, 0.0, 0, 0  # of the steps of this episode, `moved` have had their update
    s = _drawn(first, first_bounds, generator.random())
    a = _chosen(table[s], epsilons[0], generator)
    for t in range(length):
        epsilon = epsilons[0] + (epsilons[1] - epsilons[0]) * t / max(1, length - 1)
        x = _drawn(outcomes[s, a], bounds[s, a], generator.random())
        r = reward[s, a, x]
        seen[age % size], taken[age % size], gained[age % size] = s, a, r
        age, total = age + 1, total + r
        terminated = terminal[x]
        ended = terminated or age == limit
        b = _chosen(table[x], epsilon, generator)
        seen[age % size], taken[age % size] = x, b
        while moved < (age if ended else age - longest + 1):
            for z in range(scales):
                steps = min(n_steps[z], age - moved)
                goal[z] = 0.0
                for i in range(steps):
                    goal[z] += weight(powers, z, i) * gained[(moved + i) % size]
                if moved + steps < age or not terminated:
                    place = (moved + steps) % size
                    follower = table[seen[place], taken[place]]
                    below = 0.0
                    for shorter in range(z):
                        below += follower[shorter]
                    goal[z] += weight(powers, z, steps) * below + powers[z, steps] * follower[z]
            u, v = seen[moved % size], taken[moved % size]
            visits[u, v] += 1
            for z in range(scales):
                rate = alphas[z] / visits[u, v] if decaying[z] else alphas[z]
                table[u, v, z] += rate * (goal[z] - table[u, v, z])
            moved += 1
        s, a = x, b
        if ended:
            returns[episodes], lengths[episodes] = total, age
            episodes, total, age, moved = episodes + 1, 0.0, 0, 0
            s = _drawn(first, first_bounds, generator.random())
            a = _chosen(table[s], epsilon, generator)
    return episodes
