"""A made-up game with a critic that is nearly right."""

from typing import Any

import numpy as np

from tddelta.timescales import TimeScales

SCALES = TimeScales.halving(0.99)


def game(steps: int = 60, *, frames: tuple[int, int] | None = None) -> dict[str, Any]:
    """Arrays of a recording: rewards now and then, a life lost twice, the end at the end."""
    rng = np.random.default_rng(steps)
    rewards = (rng.random(steps) < 0.08).astype(np.float32)
    values = np.zeros((steps + 1, len(SCALES)))
    for t in reversed(range(steps)):
        values[t] = rewards[t] + np.array(SCALES.gammas) * values[t + 1]
    deltas = np.diff(values[:-1], axis=1, prepend=0) + rng.normal(size=(steps, len(SCALES))) * 0.03
    planes = np.zeros((steps, 10, 10, 4), np.uint8)
    time = np.arange(steps)
    planes[time, 9, time % 10, 0] = planes[time, (3 * time) % 9, (2 * time) % 10, 1] = 1
    planes[:, 1:4, :, 3] = 1
    ends = time == steps - 1
    arrays: dict[str, Any] = {
        "rewards": rewards,
        "deltas": deltas.astype(np.float32),
        "gammas": np.array(SCALES.gammas),
        "terminated": ends,
        "truncated": np.zeros(steps, bool),
        "observations": planes,
        "lives": np.maximum(3 - 3 * time // steps, 1),
        "name": np.array("ppo-delta, seed 0"),
        "environment": np.array("Breakout-MinAtar"),
    }
    if frames is not None:
        arrays["frames"] = rng.integers(0, 256, (7, 3), np.uint8)[rng.integers(0, 7, (steps, *frames))]
    return arrays
