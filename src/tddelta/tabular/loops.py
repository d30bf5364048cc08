"""The compiled loops of TD(0), TD(λ) and λ-returns, for tables and linear features.

A state has a few features: `columns[s]` are their numbers and `strengths[s]` their values; in a table these are the
state itself and 1. Runs are numbered step size by step size, `run = a · N + n`; each writes to its own entries only.

What a run carries from step to step is in arrays with a row per run, `slot = (run - first) % rows`: a run that is
interrupted goes on from there. A loop that does all steps at once needs a single row, which it clears for every run.

Where the step size changes from visit to visit it belongs to the visit, and so enters the trace with it:
θ += δ e with e ← c e + α φ. With constant α that is θ += α δ e with e ← c e + φ.
"""

from typing import no_type_check

import numpy as np

from tddelta.tabular.compiled import compiled

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
