"""One moment of a game as a table: what the critic believes at every horizon."""

import numpy as np

from tddelta.errors import ConfigError
from tddelta.inspector.page import horizon_text
from tddelta.inspector.recordings import Recording


def table(recording: Recording, step: int) -> list[tuple[list[str], list[list[str]], str]]:
    """The beliefs of every critic at one step.

    Args:
        recording: The game.
        step: Which step.

    Returns:
        For each critic: the heads of the columns, the rows, and a sentence.

    Raises:
        ConfigError: The recording has no such step.
    """
    if not 0 <= step < len(recording):
        raise ConfigError(f"the recording has steps 0 … {len(recording) - 1}; got {step}: name one of them")
    found = []
    for critic in recording.critics:
        scales, deltas, values = critic.scales, critic.deltas[step], critic.values[step]
        came, total = recording.realised(critic)[step], float(np.abs(deltas).sum())
        rows = [
            [
                f"W_{z}",
                horizon_text(scales.horizons[z]),
                scales.labels[z],
                f"{deltas[z]:.4g}",
                f"{100 * abs(deltas[z]) / total:.0f} %" if total else "–",
                f"{values[z]:.4g}",
                f"{came[z]:.4g}" if np.isfinite(came[z]) else "–",
            ]
            for z in range(len(scales))
        ]
        most = int(np.abs(deltas).argmax())
        text = f"{critic.name}, step {step:,}: V over {horizon_text(scales.horizons[-1])} steps is {values[-1]:.4g}"
        if len(scales) > 1 and total:
            text += f"; its largest part is W_{most}, {100 * abs(deltas[most]) / total:.0f} % of all parts"
        heads = ["part", "horizon", "γ", "W", "share", "V", "came"]
        found.append((heads, rows, f"{text}."))
    return found
