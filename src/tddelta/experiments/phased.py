"""Phased learning of whole tables, for many seeds: what Theorems 3 and 4 speak of."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tddelta.decomposition import compose
from tddelta.errors import ConfigError
from tddelta.tabular.arrays import FloatArray, IntArray
from tddelta.tabular.mdp import FiniteMDP
from tddelta.timescales import TimeScales


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
        ConfigError: A ladder has no windows.
    """
    windows = [_windows(scales) for scales in ladders]
    tables = []
    for place, scales in enumerate(ladders):
        first = np.zeros((mdp.states, len(scales))) if initial is None else np.asarray(initial[place], np.float64)
        tables.append(np.broadcast_to(first, (phases + 1, mdp.states, len(scales))).copy())
    per_seed = []
    for seed in seeds:
        rewards, places = _means(mdp, windows, samples, phases, np.random.default_rng(seed))
        per_seed.append([_learn(*each) for each in zip(ladders, windows, rewards, places, tables, strict=True)])
    return [np.stack(results) for results in zip(*per_seed, strict=True)]


def _windows(scales: TimeScales) -> IntArray:
    if scales.n_steps is None:
        raise ConfigError("phased learning needs n-step windows; these scales have none: pass n_step=, as in n_step=16")
    return np.array(scales.n_steps)


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
    scales: TimeScales, windows: IntArray, rewards: FloatArray, places: FloatArray, start: FloatArray
) -> FloatArray:
    """Run all phases; `start` holds the first table, shape (P + 1, S, Z)."""
    tables = start.copy()
    gammas = np.array(scales.gammas)
    below = np.concatenate([[0.0], gammas[:-1]])
    longer = np.arange(len(gammas)) > 0  # component 0 has no shorter one, and its weight is 0 also to the power 0
    offsets = np.arange(len(rewards))[:, None]
    weights = np.where(offsets < windows, gammas**offsets - np.where(longer, below**offsets, 0.0), 0.0)
    earned = np.einsum("kz,kps->psz", weights, rewards)
    power = gammas**windows
    difference = power - np.where(longer, below**windows, 0.0)
    for phase in range(len(tables) - 1):
        table = tables[phase]
        shorter = compose(table) - table  # V_{z−1}
        tables[phase + 1] = earned[phase] + np.einsum(
            "zsx,xz->sz", places[:, phase], difference * shorter + power * table
        )
    return tables
