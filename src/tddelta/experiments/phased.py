"""Phased learning for many seeds, with the tables of all phases: what Theorems 3 and 4 speak of.

`evaluate(method="phased")` follows every trajectory and keeps the last table. The theorems are about the components'
errors after each phase, of two learners on the same samples, for n in the hundreds and windows up to 256 steps, over
hundreds of seeds: half a day of single steps. Here the numbers of trajectories in every state are drawn instead.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tddelta.errors import ConfigError
from tddelta.tabular.arrays import FloatArray, IntArray
from tddelta.tabular.mdp import FiniteMDP
from tddelta.targets import n_step_targets
from tddelta.timescales import TimeScales

_MOST = 2**27  # numbers in memory for one seed: a GiB


def phased_tables(
    mdp: FiniteMDP,
    ladders: Sequence[TimeScales],
    *,
    samples: int,
    phases: int,
    seeds: Iterable[int],
    initial: Sequence[npt.ArrayLike] | None = None,
) -> list[FloatArray]:
    """Tables after every phase, for several ladders that learn from the same trajectories.

    In every phase n fresh trajectories start in every state; W_z becomes the mean of their k_z-step targets, with the
    values of the phase before. Only means over trajectories matter, so it is their number in every state that is drawn,
    step by step, from multinomial distributions: the cost does not depend on n.

    Args:
        mdp: The process and its policy.
        ladders: Discounts and windows of each learner.
        samples: Trajectories n ≥ 1 from every state.
        phases: Number of phases P.
        seeds: Seeds, N of them.
        initial: Components before the first phase, (S, Z) per ladder; None means zeros.

    Returns:
        Components W_z(s) per ladder, shape (N, P + 1, S, Z).

    Raises:
        ConfigError: A ladder has no windows, or windows so long that their steps do not fit into memory.
    """
    windows = [_windows(scales, phases * mdp.states**2) for scales in ladders]
    weights = [_weights(scales) for scales in ladders]
    tables = []
    for place, scales in enumerate(ladders):
        first = np.zeros((mdp.states, len(scales))) if initial is None else np.asarray(initial[place], np.float64)
        tables.append(np.broadcast_to(first, (phases + 1, mdp.states, len(scales))).copy())
    per_seed = []
    for seed in seeds:
        rewards, places = _means(mdp, windows, samples, phases, np.random.default_rng(seed))
        per_seed.append([_learn(*each) for each in zip(weights, rewards, places, tables, strict=True)])
    return [np.stack(results) for results in zip(*per_seed, strict=True)]


def _windows(scales: TimeScales, numbers: int) -> IntArray:
    """Windows k_z, for each step of which so many numbers are kept."""
    if scales.n_steps is None:
        raise ConfigError("phased learning needs n-step windows; these scales have none: pass n_step=, as in n_step=16")
    if max(scales.n_steps) * numbers > _MOST:
        raise ConfigError(
            f"windows must be at most {_MOST // numbers} steps long here, to fit into memory; got "
            f"{max(scales.n_steps)}: pass a shorter n_step, or fewer phases"
        )
    return np.array(scales.n_steps)


def _weights(scales: TimeScales) -> tuple[FloatArray, FloatArray]:
    """What n-step targets give to every reward, shape (K, Z), and to W_u at the window's end, shape (Z, Z).

    Targets are linear in both, so `n_step_targets` of unit vectors are their weights.
    """
    assert scales.n_steps is not None
    steps, count = max(scales.n_steps), len(scales)
    none, units = np.zeros((steps, steps, count)), np.eye(steps)
    never = np.zeros((steps, steps), bool)
    received = n_step_targets(units, none, none, terminated=never, truncated=never, scales=scales)[0]
    none, ends = np.zeros((steps, count, count)), np.broadcast_to(np.eye(count), (steps, count, count))
    still, never = np.zeros((steps, count)), np.zeros((steps, count), bool)
    return received, n_step_targets(still, none, ends, terminated=never, truncated=never, scales=scales)[0]


def _means(
    mdp: FiniteMDP, windows: Sequence[IntArray], samples: int, phases: int, generator: np.random.Generator
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Draw every phase: the mean reward of each step, and where each component's window ends.

    Returns:
        Per ladder the mean rewards, shape (K, P, S), and the shares of trajectories from s in x after k_z steps, shape
        (Z, P, S, S).
    """
    chances = (mdp.policy[:, :, None] * mdp.transition).reshape(mdp.states, -1)
    width = int((chances > 0).sum(axis=1).max())
    outcomes = np.argsort(chances == 0, axis=1, kind="stable")[:, :width]
    chances = np.take_along_axis(chances, outcomes, axis=1)
    gains = np.take_along_axis(mdp.reward.reshape(mdp.states, -1), outcomes, axis=1)
    arrivals = np.eye(mdp.states)[outcomes % mdp.states].reshape(-1, mdp.states)

    longest = int(max(window.max() for window in windows))
    rewards = np.empty((longest, phases, mdp.states))
    shares = np.empty((longest + 1, phases, mdp.states, mdp.states))
    counts = np.broadcast_to(samples * np.eye(mdp.states, dtype=np.int64), shares.shape[1:])
    shares[0] = counts / samples
    for step in range(longest):
        drawn = generator.multinomial(counts, chances)  # (P, S, S, outcomes)
        rewards[step] = (drawn * gains).sum(axis=(-2, -1)) / samples
        counts = np.rint(drawn.reshape(phases, mdp.states, -1) @ arrivals).astype(np.int64)
        shares[step + 1] = counts / samples
    return [rewards[: int(window.max())] for window in windows], [shares[window] for window in windows]


def _learn(
    weights: tuple[FloatArray, FloatArray], rewards: FloatArray, places: FloatArray, start: FloatArray
) -> FloatArray:
    """Run all phases; `start` holds the first table, shape (P + 1, S, Z)."""
    tables = start.copy()
    received, bootstrapped = weights
    earned = np.einsum("kz,kps->psz", received, rewards)
    for phase in range(len(tables) - 1):
        ends = tables[phase] @ bootstrapped  # what every component's target gets from an end in x
        tables[phase + 1] = earned[phase] + np.einsum("zsx,xz->sz", places[:, phase], ends)
    return tables
