"""The compiled loops of control in a table: the action is chosen from the sum of the components, Q_Z.

One call is one seed. `outcomes` and `bounds` draw a next state: outcomes[s, a, i] is the first i for which a uniform
number is below bounds[s, a, i], the last one has no bound.
"""

from typing import no_type_check

import numpy as np

from tddelta.tabular.compiled import compiled
from tddelta.tabular.loops import component_errors

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
