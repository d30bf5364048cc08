"""Phased learning: from every state the same number of trajectories, and a new table from them all."""

from typing import NamedTuple, no_type_check

import numpy as np
import numpy.typing as npt

from tddelta.errors import ConfigError
from tddelta.tabular.arrays import FloatArray, IntArray
from tddelta.tabular.compiled import compiled
from tddelta.tabular.mdp import FiniteMDP
from tddelta.tabular.sampling import Choice

_MOST = 200_000_000  # steps in memory at a time, each of 16 bytes


class Paths(NamedTuple):
    """Trajectories from every state, n each, of at most K steps.

    Attributes:
        rewards: Rewards of the steps, shape (S, n, K).
        next_states: True successors, shape (S, n, K).
        lengths: Number of steps until the episode ended, at most K, shape (S, n); what comes later does not count.
        terminated: Whether it ended within K steps, shape (S, n).
    """

    rewards: FloatArray
    next_states: IntArray
    lengths: IntArray
    terminated: npt.NDArray[np.bool_]


def sample_paths(mdp: FiniteMDP, trajectories: int, length: int, generator: np.random.Generator) -> Paths:
    """Follow the policy from every state.

    Args:
        mdp: The process and its policy.
        trajectories: Trajectories n from each state.
        length: Steps K of each.
        generator: Source of random numbers.

    Returns:
        The trajectories. Those from terminal states have no meaning.
    """
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


@compiled
@no_type_check
def mean_targets(rewards, next_states, lengths, terminated, gammas, n_steps, powers, table):
    """Mean over the trajectories of the n-step targets G^z of every state, all bootstrapped from the same table.

    `powers[z, i]` is γ_z^i, for i up to the longest window.
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
                    target += (powers[z, t] - (powers[z - 1, t] if z > 0 else 0.0)) * rewards[s, i, t]
                if not (terminated[s, i] and steps == lengths[s, i]):
                    x = next_states[s, i, steps - 1]
                    below = 0.0
                    for shorter in range(z):
                        below += table[x, shorter]
                    target += (powers[z, steps] - (powers[z - 1, steps] if z > 0 else 0.0)) * below
                    target += powers[z, steps] * table[x, z]
                means[s, z] += target
    return means / trajectories


@np.errstate(over="ignore", invalid="ignore")  # what diverges does so as in the compiled loops
def learn_in_phases(
    mdp: FiniteMDP,
    gammas: tuple[float, ...],
    n_steps: tuple[int, ...],
    step_sizes: FloatArray,
    decaying: npt.NDArray[np.bool_],
    *,
    trajectories: int,
    phases: int,
    seed: int,
    tables: FloatArray,
    visits: int,
    exact_last: FloatArray,
) -> FloatArray:
    """Phased n-step TD(Δ) for one seed: W_z ← W_z + α_z (mean of G^z − W_z) in all states at once, phase by phase.

    Args:
        mdp: The process and its policy.
        gammas: Discounts γ_z.
        n_steps: Window k_z of every component.
        step_sizes: α, shape (A, Z); 1 replaces the table, as in the paper.
        decaying: Where α is divided by the number of the phase, shape (A, Z).
        trajectories: Trajectories n from every state in every phase, the same for all step sizes and components.
        phases: Number of phases P.
        seed: Seed of the trajectories.
        tables: Components before the first phase, shape (A, S, Z); changed in place.
        visits: Number of phases that went before.
        exact_last: Exact V_Z, shape (S,).

    Returns:
        Root mean square and mean absolute error of V_Z after every phase, shape (2, A, P).

    Raises:
        ConfigError: The trajectories of a phase are too long to be held in memory.
    """
    held = mdp.states * trajectories * max(n_steps)
    if held > _MOST:
        raise ConfigError(
            f"a phase must hold at most {_MOST:,} steps; got {mdp.states} states x {trajectories} trajectories x "
            f"{max(n_steps)} steps of the longest window: pass scales with shorter n_steps, or fewer trajectories"
        )
    generator = np.random.default_rng(seed)
    discounts, windows = np.asarray(gammas), np.asarray(n_steps)
    powers = discounts[:, None] ** np.arange(max(n_steps) + 1)
    inner = ~mdp.terminal
    errors = np.empty((2, len(tables), phases))
    for phase in range(phases):
        paths = sample_paths(mdp, trajectories, max(n_steps), generator)
        for a, table in enumerate(tables):
            alpha = np.where(decaying[a], step_sizes[a] / (visits + phase + 1), step_sizes[a])
            means = mean_targets(*paths, discounts, windows, powers, table)
            table[inner] += alpha * (means - table)[inner]
            error = (table.sum(axis=-1) - exact_last)[inner]
            errors[:, a, phase] = np.sqrt((error**2).mean()), np.abs(error).mean()
    return errors
