"""n-step TD(Δ) in a table: Algorithm 1 of the paper, in plain lines here and compiled in `run`.

For discounts γ_z, windows of k_z steps and a table W(s, z), on one stream of steps:

    >>> def algorithm_1(steps, gammas, n_steps, alphas, W):
    ...     states, _, rewards, next_states, terminated, truncated = steps
    ...     tau = 0  # the step whose state moves next
    ...     for t in range(len(states)):
    ...         ended = terminated[t] or truncated[t]
    ...         while tau <= (t if ended else t + 1 - max(n_steps)):
    ...             targets = np.zeros(len(gammas))
    ...             for z, (gamma, k) in enumerate(zip(gammas, n_steps)):
    ...                 n = min(k, t + 1 - tau)  # shorter at an episode's end
    ...                 weights = gamma ** np.arange(n + 1)
    ...                 if z > 0:
    ...                     weights -= gammas[z - 1] ** np.arange(n + 1)
    ...                 targets[z] = weights[:n] @ rewards[tau : tau + n]
    ...                 if not terminated[tau + n - 1]:
    ...                     x = next_states[tau + n - 1]
    ...                     targets[z] += weights[n] * W[x, :z].sum() + gamma**n * W[x, z]
    ...             W[states[tau]] += alphas * (targets - W[states[tau]])
    ...             tau += 1

`run` learns the same, here from episodes of a random process, some of which a time limit cuts:

    >>> from tddelta.tabular import FiniteMDP, sample
    >>> steps = sample(FiniteMDP.random(5, 1, 2, seed=0, ends=1), 500, time_limit=8)
    >>> gammas, n_steps, alphas, W = [0.0, 0.5, 0.9], [1, 2, 6], np.full(3, 0.1), np.zeros((5, 3))
    >>> algorithm_1([array[0] for array in steps], gammas, n_steps, alphas, W)
    >>> learned = run(steps, gammas, n_steps, alphas[None], np.zeros(5)).deltas[0, 0]
    >>> bool(W.any()), bool(np.allclose(W, learned, rtol=0, atol=1e-12))
    (True, True)

What a step costs does not depend on the lengths of the windows, and grows linearly with the number of scales.
Blocks of (seed × step sizes) are independent and do their arithmetic in a fixed order, so that the results are the
same bytes for any number of threads, and for a seed or step size alone or among others.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, no_type_check

import numpy as np
import numpy.typing as npt

from tddelta import _plain
from tddelta._arrays import FloatArray
from tddelta.errors import ConfigError, ShapeError
from tddelta.tabular.loops import check_record, compiled, over_blocks, weight
from tddelta.tabular.sampling import Trajectory

LANES = 32
"""Step sizes that share one pass over a trajectory: their tables lie side by side, for vector instructions."""

Record = Literal["final", "curve"] | tuple[int, ...]
"""Errors to keep."""


class NStepResult(NamedTuple):
    """Result of `run`, for A step sizes and N seeds.

    Attributes:
        deltas: Final components, shape (A, N, S, Z).
        rms_error: Root mean square error of V_Z over the states that count, shape (A, N, C): C = 1 for "final", T for
            "curve", else one average per checkpoint.
        abs_error: The same with the mean absolute error.
    """

    deltas: FloatArray
    rms_error: FloatArray
    abs_error: FloatArray


def run(
    trajectory: Trajectory,
    gammas: Sequence[float],
    n_steps: Sequence[int],
    step_sizes: npt.ArrayLike,
    exact_last: npt.ArrayLike,
    *,
    counted: npt.ArrayLike | None = None,
    decaying: npt.ArrayLike | None = None,
    initial: npt.ArrayLike | None = None,
    record: Record = "final",
    threads: int | None = None,
    done: Callable[[int], None] | None = None,
) -> NStepResult:
    """Learn a table by Algorithm 1 for several step sizes and seeds; one discount makes it ordinary n-step TD.

    Args:
        trajectory: Steps, shape (N, T), one row per seed; the actions do not matter. Its end is no end of an episode.
        gammas: Discounts γ_z, smallest first, Z of them, in [0, 1].
        n_steps: Steps k_z ≥ 1 of each component's window; one longer than T fills at an episode's end only.
        step_sizes: Step sizes α, shape (A, Z).
        exact_last: Exact values of V_Z, shape (S,): errors are differences from them.
        counted: States that count in the errors, shape (S,), boolean; None counts all.
        decaying: Rows of `step_sizes` where α is divided by the number of the state's updates, this one included,
            shape (A,), boolean; None for none.
        initial: Components before the first step, shape (S, Z) or (A, N, S, Z); None starts from zeros.
        record: "final" gives the error of the final table, "curve" the error after every step (entry t after
            step t + 1), and whole numbers (100, 500) give averages of the curve up to these steps.
        threads: Threads to use; None uses one per core. It does not change the results.
        done: Called with the number of seeds in every finished block.

    Raises:
        ConfigError: A checkpoint lies outside 1…T, or the number of threads is below 1.
        ShapeError: An array has the wrong shape, or a state does not exist.

    Reference:
        Romoff et al., "Separating value functions across time-scales", ICML 2019: Algorithm 1.
    """
    # one memory layout, so that the loop is compiled once
    states, successors = (np.asarray(array, np.int64, "C") for array in (trajectory.states, trajectory.next_states))
    rewards = np.asarray(trajectory.rewards, np.float64, "C")
    terminated, truncated = (np.asarray(array, np.bool_) for array in (trajectory.terminated, trajectory.truncated))
    discounts = np.asarray(gammas, np.float64, "C")
    alphas, exact = np.asarray(step_sizes, np.float64, "C"), np.asarray(exact_last, np.float64, "C")
    if states.ndim != 2:
        raise ShapeError(
            f"the trajectory must have shape (N, T); got {states.shape}: one row per seed, as states[None]"
        )
    seeds, length = states.shape
    scales, table = len(discounts), len(exact)
    if alphas.ndim != 2 or alphas.shape[1] != scales:
        raise ShapeError(f"step_sizes must have shape (A, {scales}); got {alphas.shape}: one column per discount")
    try:
        lengths = [_plain.whole("n_steps", steps) for steps in n_steps]
    except ConfigError:  # a fraction
        lengths = []
    if len(lengths) != scales:
        raise ShapeError(f"n_steps must be {scales} whole numbers ≥ 1; got {tuple(n_steps)}: one per discount")
    for name, array in (("states", states), ("next_states", np.where(terminated, 0, successors))):
        if array.size and not 0 <= array.min() <= array.max() < table:
            raise ShapeError(
                f"{name} must lie in 0…{table - 1}; got {array.min()}…{array.max()}: exact_last has {table} states"
            )
    slows = _shaped("decaying", decaying, np.zeros(len(alphas), np.bool_))
    weights = _shaped("counted", counted, np.ones(table, np.bool_))
    checkpoints, averaged = check_record(record, length)
    deltas = np.zeros((len(alphas), seeds, table, scales))
    if initial is not None:
        start = np.asarray(initial, np.float64)
        if start.shape not in (deltas.shape[2:], deltas.shape):
            raise ShapeError(f"initial must have shape {deltas.shape[2:]} or {deltas.shape}; got {start.shape}")
        deltas[:] = start
    errors = np.empty((2, len(alphas), seeds, len(checkpoints)))
    # longer ones never fill either, and flush the same
    windows = np.array([min(steps, length + 1) for steps in lengths], np.int64)
    powers = discounts[:, None] ** np.arange(min(int(windows.max()), length) + 1)
    share = 1 / int(weights.sum()) if weights.any() else np.nan
    # row S of the table is always zero: what lies behind a terminal state
    targets = np.where(terminated, table, successors)
    watched = averaged or record == "curve"
    arrays = (states, rewards, targets, terminated | truncated, discounts, windows, powers, alphas,
              slows, exact, weights, share, checkpoints, averaged, watched, deltas, errors)  # fmt: skip

    def block(begin: int, end: int) -> None:
        _learn(begin, end, *arrays)
        if done is not None:
            done(end - begin)

    over_blocks(block, seeds, threads)
    return NStepResult(deltas, errors[0], errors[1])


def _shaped(name: str, value: Any, default: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of the shape and type of the default, which stands for None."""
    array = default if value is None else np.asarray(value, default.dtype, "C")
    if array.shape != default.shape:
        raise ShapeError(f"{name} must have shape {default.shape}; got {array.shape}")
    return array


@compiled
@no_type_check
def _window_sums(rewards, left, gamma, window, powers, ahead, out, sign):
    """out[t] += sign · Σ_{i<n} γ^i r_{t+i}, n = min(window, left[t]); t + window ≤ T where no end follows.

    Stretches of `window` steps: every sum is the rest of one stretch and the beginning of the next. That costs the
    same for every window, and unlike a running sum it never subtracts, so that nothing lingers.
    """
    length = len(rewards)
    for begin in range(0, length, window):
        end = min(begin + window, length)
        total = 0.0  # Σ_{begin ≤ i ≤ t} γ^(i − begin) r_i, up to t: the part in the next stretch
        for t in range(begin, end):
            total += powers[t - begin] * rewards[t]
            ahead[t] = total
        total = 0.0  # Σ_{t ≤ i < end} γ^(i − t) r_i, up to the episode's end
        for t in range(end - 1, begin - 1, -1):
            total = rewards[t] + (gamma * total if left[t] > 1 else 0.0)
            out[t] += sign * total
    for begin in range(0, length - window, window):
        for t in range(begin + 1, begin + window):
            last = t + min(window, left[t]) - 1
            if begin + window <= last < length:
                out[t] += sign * (powers[begin + window - t] * ahead[last])


@compiled
@no_type_check
def _learn(
    begin, end, states, rewards, successors, ends, gammas, windows, powers, alphas, decaying, exact, counted, share,
    checkpoints, averaged, watched, deltas, errors,
):  # fmt: skip
    """Learn for some seeds: `deltas` holds the components to begin with, in the end the final ones.

    It is in one piece because its parts share a dozen work arrays, which functions would have to pass to each other.
    """
    length, scales, table = states.shape[1], len(gammas), len(exact)
    longest = max(windows)
    leaves = 1
    while leaves < table:
        leaves *= 2
    left = np.empty(length, np.int64)  # steps to the episode's end, the step itself included
    sums, ahead = np.empty((length, scales)), np.empty(length)
    width = min(LANES, len(alphas))
    # W and V of every state; V has a zero column in front, and both have a zero row behind the last state
    W, V = np.zeros((table + 1, scales, width)), np.zeros((table + 1, scales + 1, width))
    goal, alpha, rate = np.empty((scales, width)), np.zeros((scales, width)), np.empty((scales, width))
    # sums over states as binary trees: the cost of a change grows with the logarithm of the number of states
    squares, sizes = np.zeros((2 * leaves, width)), np.zeros((2 * leaves, width))
    mean_rms, mean_abs, now_rms, now_abs = np.empty(width), np.empty(width), np.empty(width), np.empty(width)
    visits = np.empty(table, np.int64)
    for seed in range(begin, end):
        remaining = length + 1
        for t in range(length - 1, -1, -1):
            remaining = 1 if ends[seed, t] else min(remaining + 1, length + 1)
            left[t] = remaining
        for z in range(scales):
            for t in range(length):
                sums[t, z] = 0.0
            _window_sums(rewards[seed], left, gammas[z], windows[z], powers[z], ahead, sums[:, z], 1.0)
            if z > 0:
                _window_sums(rewards[seed], left, gammas[z - 1], windows[z], powers[z - 1], ahead, sums[:, z], -1.0)
        for lane in range(0, len(alphas), LANES):
            used = min(LANES, len(alphas) - lane)
            slow = False
            for a in range(used):
                slow = slow or decaying[lane + a]
                mean_rms[a], mean_abs[a] = 0.0, 0.0
                for z in range(scales):
                    alpha[z, a] = rate[z, a] = alphas[lane + a, z]
                for s in range(table):
                    visits[s] = 0
                    for z in range(scales):
                        W[s, z, a] = deltas[lane + a, seed, s, z]
                        V[s, z + 1, a] = V[s, z, a] + W[s, z, a]
                    error = V[s, scales, a] - exact[s] if counted[s] else 0.0
                    squares[leaves + s, a], sizes[leaves + s, a] = error * error, abs(error)
                for node in range(leaves - 1, 0, -1):
                    squares[node, a] = squares[2 * node, a] + squares[2 * node + 1, a]
                    sizes[node, a] = sizes[2 * node, a] + sizes[2 * node + 1, a]
                now_rms[a], now_abs[a] = np.sqrt(squares[1, a] * share), sizes[1, a] * share
            tau, point = 0, 0  # next state to move, next checkpoint
            for t in range(length):
                over = t + 1 if ends[seed, t] else t - longest + 2  # states before it move now
                changed = tau < over
                while tau < over:
                    s = states[seed, tau]
                    for z in range(scales):
                        n = min(windows[z], left[tau])
                        x = successors[seed, tau + n - 1]
                        own, extra = powers[z, n], weight(powers, z, n)  # V of z = −1 is 0
                        for a in range(used):
                            goal[z, a] = sums[tau, z] + (extra * V[x, z, a] + own * W[x, z, a])
                    if slow:
                        visits[s] += 1
                        for z in range(scales):
                            for a in range(used):
                                rate[z, a] = alpha[z, a] / visits[s] if decaying[lane + a] else alpha[z, a]
                    for z in range(scales):
                        for a in range(used):
                            W[s, z, a] += rate[z, a] * (goal[z, a] - W[s, z, a])
                            V[s, z + 1, a] = V[s, z, a] + W[s, z, a]
                    if watched and counted[s]:
                        node = leaves + s
                        for a in range(used):
                            error = V[s, scales, a] - exact[s]
                            squares[node, a], sizes[node, a] = error * error, abs(error)
                        node //= 2
                        while node > 0:
                            for a in range(used):
                                squares[node, a] = squares[2 * node, a] + squares[2 * node + 1, a]
                                sizes[node, a] = sizes[2 * node, a] + sizes[2 * node + 1, a]
                            node //= 2
                    tau += 1
                if watched:
                    if changed:
                        for a in range(used):
                            now_rms[a], now_abs[a] = np.sqrt(squares[1, a] * share), sizes[1, a] * share
                    if averaged:
                        for a in range(used):
                            mean_rms[a] += now_rms[a]
                            mean_abs[a] += now_abs[a]
                    if point < len(checkpoints) and t + 1 == checkpoints[point]:
                        for a in range(used):
                            rms, size = now_rms[a], now_abs[a]
                            if averaged:
                                rms, size = mean_rms[a] / (t + 1), mean_abs[a] / (t + 1)
                            errors[0, lane + a, seed, point], errors[1, lane + a, seed, point] = rms, size
                        point += 1
            for a in range(used):
                total, size = 0.0, 0.0
                for s in range(table):
                    for z in range(scales):
                        deltas[lane + a, seed, s, z] = W[s, z, a]
                    if counted[s]:
                        error = V[s, scales, a] - exact[s]
                        total += error * error
                        size += abs(error)
                if not watched:
                    errors[0, lane + a, seed, 0], errors[1, lane + a, seed, 0] = np.sqrt(total * share), size * share


@compiled
@no_type_check
def mean_targets(rewards, next_states, lengths, terminated, gammas, n_steps, powers, table):
    """Mean over the trajectories of the n-step targets G^z of every state, all bootstrapped from the same table.

    The trajectories are `sampling.Paths`; `powers[z, i]` is γ_z^i, for i up to the longest window.
    """
    states, trajectories = lengths.shape
    scales = len(gammas)
    means = np.zeros((states, scales))
    for s in range(states):
        for i in range(trajectories):
            for z in range(scales):
                steps = min(n_steps[z], lengths[s, i])
                target = 0.0
                for t in range(steps):
                    target += weight(powers, z, t) * rewards[s, i, t]
                if not (terminated[s, i] and steps == lengths[s, i]):
                    x = next_states[s, i, steps - 1]
                    below = 0.0
                    for shorter in range(z):
                        below += table[x, shorter]
                    target += weight(powers, z, steps) * below
                    target += powers[z, steps] * table[x, z]
                means[s, z] += target
    return means / trajectories
