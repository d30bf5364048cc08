"""The compiled loops of TD(0), TD(λ) and λ-returns, for tables and linear features.

A state has a few features: `columns[s]` are their numbers and `strengths[s]` their values; in a table these are the
state itself and 1. Runs are numbered step size by step size, `run = a · N + n`; each writes to its own entries only.

What a run carries from step to step is in arrays with a row per run, `slot = (run - first) % rows`: a run that is
interrupted goes on from there. A loop that does all steps at once needs a single row, which it clears for every run.

Where the step size changes from visit to visit it belongs to the visit, and so enters the trace with it:
θ += δ e with e ← c e + α φ. With constant α that is θ += α δ e with e ← c e + φ.

The compiled loops of control in a table: the action is chosen from the sum of the components, Q_Z.

One call is one seed. `outcomes` and `bounds` draw a next state: outcomes[s, a, i] is the first i for which a uniform
number is below bounds[s, a, i], the last one has no bound.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar, cast, no_type_check

import numpy as np

from tddelta import _plain
from tddelta.errors import MissingExtra
from tddelta.runs.files import available_cores

try:
    from numba import njit
except ImportError as error:
    raise MissingExtra('the tabular loops need numba: pip install "tddelta[tabular]"') from error

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """Compile a loop over arrays; the result is kept on disk where that is possible; other threads run meanwhile."""
    loop: Any = njit(nogil=True)(function)
    with suppress(RuntimeError):  # no folder for it can be written
        loop.enable_caching()
    return cast(_F, loop)


def thread_count(threads: int | None) -> int:
    """Number of threads to use: the one given, or as many as there are cores; ConfigError unless it is at least 1."""
    if threads is None:
        return available_cores()
    return _plain.whole("threads", threads)


def over_blocks(block: Callable[[int, int], Any], runs: int, threads: int | None) -> None:
    """Call `block(first, last)` for ranges that together are 0 … runs − 1, on several threads.

    Args:
        block: Computes the runs first ≤ i < last, which depend on no other.
        runs: Number of runs.
        threads: Threads; None means one per core.

    Raises:
        ConfigError: `threads` is not a whole number of at least 1.
    """
    workers = thread_count(threads)
    if workers == 1 or runs == 1:
        block(0, runs)
        return
    cuts = [runs * i // min(runs, 4 * workers) for i in range(min(runs, 4 * workers) + 1)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(block, cuts[:-1], cuts[1:]))


TD0 = 0
"""One-step TD."""
TRACES = 1
"""Online TD(λ) with accumulating traces."""
TRUE_ONLINE = 2
"""True online TD(λ)."""


@compiled
@no_type_check
def components(table, columns, strengths, out):
    """W(s) = Σ_f φ_f θ_f of one state, from its features."""
    out[:] = 0.0
    for m in range(len(columns)):
        for z in range(len(out)):
            out[z] += strengths[m] * table[columns[m], z]


@compiled
@no_type_check
def component_errors(reward, own, following, terminated, gammas, out):
    """TD errors δ^z of all components; see `tddelta.td_errors`. Nothing that follows a terminal step is read."""
    below = 0.0  # V_{z−1}(s')
    for z in range(len(gammas)):
        out[z] = -own[z]
        if not terminated:
            shorter = gammas[z - 1] if z > 0 else 0.0
            out[z] += (gammas[z] - shorter) * below + gammas[z] * following[z]
            below += following[z]
    out[0] += reward


@compiled
@no_type_check
def step_towards(table, columns, strengths, goal, alpha, own):
    """θ_f += α_z (G^z − W_z(s)) φ_f; `own` is room for W(s)."""
    components(table, columns, strengths, own)
    for m in range(len(columns)):
        for z in range(len(goal)):
            table[columns[m], z] += alpha[z] * (goal[z] - own[z]) * strengths[m]


@compiled
@no_type_check
def value_errors(table, columns, strengths, exact, counted):
    """Root mean square and mean absolute error of V_Z over the states that count."""
    squares, sizes, number = 0.0, 0.0, 0
    for s in range(len(exact)):
        if counted[s]:
            value = 0.0
            for m in range(columns.shape[1]):
                for z in range(table.shape[1]):
                    value += strengths[s, m] * table[columns[s, m], z]
            squares += (value - exact[s]) ** 2
            sizes += abs(value - exact[s])
            number += 1
    return np.sqrt(squares / number), sizes / number


@compiled
@no_type_check
def record(t, table, columns, strengths, exact, counted, checkpoints, averaged, book, rms, absolute):
    """Note the errors after step t.

    `book`: the next checkpoint, whether the table changed since the last call, both errors now, and their sums so far.
    """
    point = int(book[0])
    due = point < len(checkpoints) and t + 1 == checkpoints[point]
    if not due and not averaged:
        return
    if book[1] > 0.0:
        book[2], book[3] = value_errors(table, columns, strengths, exact, counted)
        book[1] = 0.0
    book[4] += book[2]
    book[5] += book[3]
    if due:
        rms[point] = book[4] / (t + 1) if averaged else book[2]
        absolute[point] = book[5] / (t + 1) if averaged else book[3]
        book[0] += 1.0


@compiled
@no_type_check
def online(
    first, last, states, rewards, next_states, terminated, truncated, columns, strengths, gammas, decays, step_sizes,
    decaying, method, exact, counted, checkpoints, averaged, visits, weights, rms, absolute, begin, end, traces,
    before, books, counts, begun,
):  # fmt: skip
    """Update after every step: TD(0), TD(λ) with accumulating traces, or true online TD(λ), W_z by W_z."""
    streams = states.shape[0]
    scales = len(gammas)
    own, following, delta, alpha = np.empty(scales), np.empty(scales), np.empty(scales), np.empty(scales)
    previous, overlap, table_shape = np.empty(scales), np.empty(scales), weights.shape[2:]
    for run in range(first, last):
        a, n, slot = run // streams, run % streams, (run - first) % len(books)
        # copies: the compiler knows that nothing else changes them
        table, count, trace = weights[a, n], visits[n].copy(), np.zeros(table_shape)
        book = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        previous[:] = 0.0
        if begin > 0:
            count[:], trace[:], book[:], previous[:] = counts[slot], traces[slot], books[slot], before[slot]
        for t in range(begin, end):
            s = states[n, t]
            active, strength = columns[s], strengths[s]
            count[s] += 1
            for z in range(scales):
                alpha[z] = step_sizes[a, z] / count[s] if decaying[a, z] else step_sizes[a, z]
            components(table, active, strength, own)
            if terminated[n, t]:
                following[:] = 0.0
            else:
                components(table, columns[next_states[n, t]], strengths[next_states[n, t]], following)
            component_errors(rewards[n, t], own, following, terminated[n, t], gammas, delta)
            if method == TD0:
                for m in range(len(active)):
                    for z in range(scales):
                        table[active[m], z] += alpha[z] * delta[z] * strength[m]
            else:
                overlap[:] = 0.0
                if method == TRUE_ONLINE:
                    components(trace, active, strength, overlap)
                for f in range(len(trace)):
                    for z in range(scales):
                        trace[f, z] *= decays[z]
                for m in range(len(active)):
                    for z in range(scales):
                        trace[active[m], z] += alpha[z] * (1.0 - decays[z] * overlap[z]) * strength[m]
                if method == TRUE_ONLINE:
                    for m in range(len(active)):
                        for z in range(scales):
                            table[active[m], z] -= alpha[z] * (own[z] - previous[z]) * strength[m]
                    for z in range(scales):
                        delta[z] += own[z] - previous[z]
                        previous[z] = following[z]
                for f in range(len(trace)):
                    for z in range(scales):
                        table[f, z] += delta[z] * trace[f, z]
            if terminated[n, t] or truncated[n, t]:
                trace[:] = 0.0
                previous[:] = 0.0
            book[1] = 1.0
            record(t, table, columns, strengths, exact, counted, checkpoints, averaged, book, rms[a, n], absolute[a, n])
        counts[slot], traces[slot], books[slot], before[slot] = count, trace, book, previous


@compiled
@no_type_check
def lambda_returns(states, rewards, next_states, terminated, columns, strengths, gammas, decays, coupled, table, goal):
    """λ-returns of steps in a row, none but the last an episode's end, into `goal`.

    `coupled` is the difference form: the difference of the λ-returns of V_z and V_{z−1}, each with its own decay.
    """
    scales = len(gammas)
    own, following, delta, carry = np.empty(scales), np.empty(scales), np.empty(scales), np.zeros(scales)
    for t in range(len(states) - 1, -1, -1):
        components(table, columns[states[t]], strengths[states[t]], own)
        if terminated[t]:
            following[:] = 0.0
        else:
            components(table, columns[next_states[t]], strengths[next_states[t]], following)
        component_errors(rewards[t], own, following, terminated[t], gammas, delta)
        total, below = 0.0, 0.0  # in the difference form: TD error of V_z, and the λ-advantage of V_{z−1}
        for z in range(scales):
            if coupled:
                total += delta[z]
                carry[z] = total + decays[z] * carry[z]
                goal[t, z] = own[z] + carry[z] - below
                below = carry[z]
            else:
                carry[z] = delta[z] + decays[z] * carry[z]
                goal[t, z] = own[z] + carry[z]


@compiled
@no_type_check
def offline(
    first, last, states, rewards, next_states, terminated, truncated, columns, strengths, gammas, decays, step_sizes,
    decaying, coupled, chunk, exact, counted, checkpoints, averaged, visits, weights, rms, absolute, begin, end, traces,
    before, books, counts, begun,
):  # fmt: skip
    """Update at every episode's end, and after `chunk` steps: step by step towards λ-returns from the table before."""
    streams, length = states.shape
    scales = len(gammas)
    goal, alpha, own = np.empty((min(chunk, length), scales)), np.empty(scales), np.empty(scales)
    for run in range(first, last):
        a, n, slot = run // streams, run % streams, (run - first) % len(books)
        table, count, book = weights[a, n], counts[slot], books[slot]
        if begin == 0:
            count[:] = visits[n]
            book[:] = 0.0
            book[1] = 1.0
            begun[slot] = 0
        for t in range(begin, end):
            closed = terminated[n, t] or truncated[n, t] or t + 1 - begun[slot] == chunk or t + 1 == length
            if closed:
                start = begun[slot]
                part = slice(start, t + 1)
                lambda_returns(states[n, part], rewards[n, part], next_states[n, part], terminated[n, part], columns,
                               strengths, gammas, decays, coupled, table, goal)  # fmt: skip
                for i in range(start, t + 1):
                    s = states[n, i]
                    count[s] += 1
                    for z in range(scales):
                        alpha[z] = step_sizes[a, z] / count[s] if decaying[a, z] else step_sizes[a, z]
                    step_towards(table, columns[s], strengths[s], goal[i - start], alpha, own)
                begun[slot] = t + 1
                book[1] = 1.0
            record(t, table, columns, strengths, exact, counted, checkpoints, averaged, book, rms[a, n], absolute[a, n])


SARSA, EXPECTED, GREEDY = 0, 1, 2
"""What follows a step in its target: the next action, the mean over the policy, or the best action."""


@compiled
@no_type_check
def drawn(outcomes, bounds, uniform):
    """One outcome of a discrete distribution for a uniform number in [0, 1)."""
    place = 0
    while place < len(bounds) and uniform >= bounds[place]:
        place += 1
    return outcomes[place]


@compiled
@no_type_check
def greedy(table):
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
def chosen(table, epsilon, generator):
    """An action for one state: any with probability ε, else the greedy one. Uses two random numbers."""
    explore, which = generator.random(), generator.random()
    return int(which * len(table)) if explore < epsilon else greedy(table)


@compiled
@no_type_check
def follow_up(table, action, epsilon, kind, out):
    """Components that a step into a state leads to."""
    place = action if kind == SARSA else greedy(table)
    for z in range(len(out)):
        out[z] = table[place, z]
        if kind == EXPECTED:
            out[z] *= 1.0 - epsilon
            for b in range(len(table)):
                out[z] += table[b, z] * epsilon / len(table)


@compiled
@no_type_check
def one_step(
    generator, process, limit, gammas, decays, alphas, decaying, epsilons, kind, cut, table, visits, returns, lengths
):
    """SARSA, Expected SARSA, Q-learning, and where `decays` are above 0 Sarsa(λ) and, with `cut`, Watkins's Q(λ).

    `table` (S, A, Z) and `visits` (S, A) change; ε goes from the first to the last of `epsilons` in a line. Returns
    the number of episodes, whose `returns` and `lengths` are noted.
    """
    first, first_bounds, outcomes, bounds, reward, terminal = process
    states, actions, scales = table.shape
    length = len(returns)
    trace, traced = np.zeros(table.shape), max(decays) > 0
    # The pairs that have a trace: the others are not computed with.
    pairs, listed, number = np.empty(states * actions, np.int64), np.zeros(states * actions, np.bool_), 0
    following, delta, alpha = np.zeros(scales), np.empty(scales), np.empty(scales)
    episodes, total, age = 0, 0.0, 0
    s = drawn(first, first_bounds, generator.random())
    a = chosen(table[s], epsilons[0], generator)
    for t in range(length):
        epsilon = epsilons[0] + (epsilons[1] - epsilons[0]) * t / max(1, length - 1)
        x = drawn(outcomes[s, a], bounds[s, a], generator.random())
        r = reward[s, a, x]
        age += 1
        total += r
        terminated = terminal[x]
        ended = terminated or age == limit
        b = chosen(table[x], epsilon, generator)
        strays = cut and b != greedy(table[x])
        if not terminated:
            follow_up(table[x], b, epsilon, kind, following)
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
                for z in range(scales):
                    trace[u, v, z] *= decays[z]
                    if pairs[i] == pair:
                        trace[u, v, z] += alpha[z]
                    table[u, v, z] += delta[z] * trace[u, v, z]
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
            s = drawn(first, first_bounds, generator.random())
            a = chosen(table[s], epsilon, generator)
    return episodes


@compiled
@no_type_check
def n_step(
    generator, process, limit, gammas, n_steps, powers, alphas, decaying, epsilons, table, visits, returns, lengths
):
    """n-step SARSA with a window of `n_steps[z]` for component z; see `one_step`. `powers[z, i]` is γ_z^i."""
    first, first_bounds, outcomes, bounds, reward, terminal = process
    scales, longest = len(gammas), max(n_steps)
    length, size = len(returns), longest + 1
    # The last steps of the episode, step i at i modulo the size; behind them the pair that follows.
    seen, taken, gained = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size)
    goal = np.empty(scales)
    episodes, total, age, moved = 0, 0.0, 0, 0  # of the steps of this episode, `moved` have had their update
    s = drawn(first, first_bounds, generator.random())
    a = chosen(table[s], epsilons[0], generator)
    for t in range(length):
        epsilon = epsilons[0] + (epsilons[1] - epsilons[0]) * t / max(1, length - 1)
        x = drawn(outcomes[s, a], bounds[s, a], generator.random())
        r = reward[s, a, x]
        seen[age % size], taken[age % size], gained[age % size] = s, a, r
        age += 1
        total += r
        terminated = terminal[x]
        ended = terminated or age == limit
        b = chosen(table[x], epsilon, generator)
        seen[age % size], taken[age % size] = x, b
        while moved < (age if ended else age - longest + 1):
            for z in range(scales):
                steps = min(n_steps[z], age - moved)
                goal[z] = 0.0
                for i in range(steps):
                    shorter = powers[z - 1, i] if z > 0 else 0.0
                    goal[z] += (powers[z, i] - shorter) * gained[(moved + i) % size]
                if moved + steps < age or not terminated:
                    place = (moved + steps) % size
                    follower = table[seen[place], taken[place]]
                    below = 0.0
                    for shorter_scale in range(z):
                        below += follower[shorter_scale]
                    shorter = powers[z - 1, steps] if z > 0 else 0.0
                    goal[z] += (powers[z, steps] - shorter) * below + powers[z, steps] * follower[z]
            u, v = seen[moved % size], taken[moved % size]
            visits[u, v] += 1
            for z in range(scales):
                table[u, v, z] += (alphas[z] / visits[u, v] if decaying[z] else alphas[z]) * (goal[z] - table[u, v, z])
            moved += 1
        s, a = x, b
        if ended:
            returns[episodes], lengths[episodes] = total, age
            episodes, total, age, moved = episodes + 1, 0.0, 0, 0
            s = drawn(first, first_bounds, generator.random())
            a = chosen(table[s], epsilon, generator)
    return episodes
