"""What playing says of a policy, as a row of `evaluations.jsonl`, and of its critic, for `critic.npz`."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Mode = Literal["sampled", "greedy"]
"""Whether actions are drawn from the policy or are its most probable ones."""

UNKNOWN_WEIGHT = 0.01
"""A return is known once what is missing weighs less than this."""


def summary(scores: np.ndarray, sizes: np.ndarray, *, mode: Mode, seed: int, unfinished: int) -> dict[str, Any]:
    """A row for `evaluations.jsonl`, without `steps`.

    Args:
        scores: Undiscounted returns of the episodes, (N,).
        sizes: Their lengths in steps, (N,).
        mode: How actions were chosen.
        seed: Of the evaluation.
        unfinished: Episodes that were given up.
    """
    several = len(scores) > 1
    return {
        "mode": mode,
        "seed": seed,
        "episodes": len(scores),
        "unfinished": unfinished,
        "return_mean": float(scores.mean()) if len(scores) else None,
        "return_standard_deviation": float(scores.std(ddof=1)) if several else None,
        "length_mean": float(sizes.mean()) if len(sizes) else None,
        "returns": scores.tolist(),
        "lengths": sizes.tolist(),
    }


def realised_returns(
    rewards: npt.ArrayLike, gammas: npt.ArrayLike, *, terminated: npt.ArrayLike, truncated: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Discounted return that followed each state, Σ_k γ_z^k r_{t+k} to the end of its episode.

    It is known if the episode terminated in the data, or if what lies beyond the cut weighs less than a hundredth.

    Args:
        rewards: r_t of one stream or several, (T, …).
        gammas: The discounts, (Z,), in [0, 1].
        terminated: Whether step t ended an episode, (T, …).
        truncated: Whether an episode was cut after step t, (T, …).

    Returns:
        (T, …, Z); NaN where it is not known.
    """
    received = np.asarray(rewards, np.float64)[..., None]
    ended, cut = (np.asarray(flags, bool)[..., None] for flags in (terminated, truncated))
    discounts = np.asarray(gammas, np.float64)
    found = np.zeros((*received.shape[:-1], len(discounts)))
    following, missing = np.zeros(found.shape[1:]), np.ones(found.shape[1:])
    unknown = np.zeros_like(found)
    for t in reversed(range(len(found))):
        following = received[t] + discounts * np.where(ended[t] | cut[t], 0.0, following)
        # Weight of what is not known: 1 past a cut, 0 past a terminal state.
        missing = discounts * np.where(ended[t], 0.0, np.where(cut[t], 1.0, missing))
        found[t], unknown[t] = following, missing
    found[unknown > UNKNOWN_WEIGHT] = np.nan
    return found
