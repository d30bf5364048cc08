"""One evaluation as a row of `evaluations.jsonl`."""

from typing import Any, Literal

import numpy as np

Mode = Literal["sampled", "greedy"]
"""Whether actions are drawn from the policy or are its most probable ones."""


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
