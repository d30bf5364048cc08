"""Recorder: what every library that trains puts into a run directory, computed in one place."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta.decomposition import compose
from tddelta.runs.checkpoints import SHARE, Pauses
from tddelta.runs.files import Arrays
from tddelta.runs.reader import Mode
from tddelta.runs.writer import RunWriter

EPISODES_SECONDS = 10.0
"""`episodes.npz` is written again at most this often."""

RECORDED = 2_000
"""Longest recorded episode, in steps."""

STREAM_LENGTH, HELD_OUT_STATES = 2_048, 4_096
"""Held-out data: steps in every environment, and states kept of them."""

UNKNOWN_WEIGHT = 0.01
"""A return is known once what is missing weighs less than this."""


class Recorder:
    """Record of one training: its counters and episodes, and the run directory they go to.

    Args:
        writer: The run directory; where it goes on from a checkpoint, so does the record.
        steps: Environment steps before, where it does not.
        share: Of the time, that writing episodes and parameters may take.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        episodes: Training episodes so far.
    """

    def __init__(self, writer: RunWriter, *, steps: int = 0, share: float = SHARE) -> None:
        self.writer, self.steps, self.updates, self.episodes = writer, steps, 0, 0
        self._columns: dict[str, list[npt.NDArray[Any]]] = {
            name: [np.zeros(0)] for name in ("steps", "returns", "lengths")
        }
        self._new: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []  # returns and lengths since the last row
        self._pauses = Pauses(EPISODES_SECONDS, at_once=True, share=share)
        if writer.restored is not None and writer.episodes_before is not None:
            self.steps, self.updates = writer.restored.count("steps"), writer.restored.count("updates")
            self.add_episodes(**writer.episodes_before)
            self._new = []

    @property
    def saving_seconds(self) -> float:
        """Seconds spent on writing episodes and parameters."""
        return self._pauses.spent

    def counts(self) -> dict[str, Any]:
        """Steps, updates and episodes so far, as `RunWriter.status` takes them."""
        return {"steps": self.steps, "updates": self.updates, "episodes": self.episodes}

    def add_episodes(self, steps: npt.ArrayLike, returns: npt.ArrayLike, lengths: npt.ArrayLike) -> None:
        """Add episodes that ended, in order of steps, (N,) each."""
        ended, scores, sizes = np.asarray(steps), np.asarray(returns), np.asarray(lengths)
        for name, column in (("steps", ended), ("returns", scores), ("lengths", sizes)):
            self._columns[name].append(column)
        self._new.append((scores, sizes))
        self.episodes += len(ended)

    def row(self, numbers: Mapping[str, Any], steps: int | None = None) -> dict[str, Any]:
        """A row of `metrics.jsonl`: the counters, means of the episodes since the last row, and these numbers.

        Args:
            numbers: Metrics by name.
            steps: Environment steps at the update; None is all so far.
        """
        scores, sizes = (np.concatenate(column) for column in zip(*self._new, strict=True)) if self._new else ((), ())
        self._new = []
        return {
            "update": self.updates,
            "steps": self.steps if steps is None else steps,
            "episodes": self.episodes,
            "return_mean": np.mean(scores, dtype=float) if len(scores) else None,
            "length_mean": np.mean(sizes, dtype=float) if len(sizes) else None,
            **numbers,
        }

    def save_episodes(self, *, now: bool = False) -> None:
        """Write the episodes, unless that was done a short while ago."""
        if now or self._pauses.over:
            with self._pauses.ended():
                self._write_episodes()

    def _write_episodes(self) -> None:
        self._columns = {name: [np.concatenate(column)] for name, column in self._columns.items()}
        self.writer.episodes(**{name: column for name, (column,) in self._columns.items()})

    def checkpoint(self, arrays: Arrays) -> None:
        """Save what the run continues from; whoever calls it counts the seconds."""
        self._write_episodes()
        self.writer.checkpoint(arrays, **self.counts())

    def save_parameters(self, tensors: Arrays, environment: str) -> None:
        """Write what was learned, and the episodes."""
        with self._pauses.ended():
            self._write_episodes()
            self.writer.parameters(tensors, {"environment": environment, "steps": str(self.steps)})

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Append an evaluation at the steps so far, such as a `summary`."""
        self.writer.evaluation({"steps": self.steps, **row})

    def held_out(self, critic: Arrays, rollout: Arrays) -> None:
        """Write what a `critic_check` found, and a recorded episode."""
        self.writer.arrays("critic", **critic)
        self.writer.arrays("rollout", **rollout)


def summary(
    scores: npt.NDArray[Any], sizes: npt.NDArray[Any], *, mode: Mode, seed: int, unfinished: int
) -> dict[str, Any]:
    """A row for `evaluations.jsonl`, without `steps`.

    Args:
        scores: Undiscounted returns of the episodes, (N,).
        sizes: Their lengths in steps, (N,).
        mode: How actions were chosen.
        seed: Of the evaluation.
        unfinished: Episodes that were given up.
    """
    return {
        "mode": mode,
        "seed": seed,
        "episodes": len(scores),
        "unfinished": unfinished,
        "return_mean": float(scores.mean()) if len(scores) else None,
        "return_standard_deviation": float(scores.std(ddof=1)) if len(scores) > 1 else None,
        "length_mean": float(sizes.mean()) if len(sizes) else None,
        "returns": scores.tolist(),
        "lengths": sizes.tolist(),
    }


def critic_check(
    rewards: npt.ArrayLike,
    deltas: npt.ArrayLike,
    gammas: npt.ArrayLike,
    *,
    terminated: npt.ArrayLike,
    truncated: npt.ArrayLike,
) -> Arrays:
    """Predicted and realised discounted returns of held-out states, for `critic.npz`.

    Args:
        rewards: As the critic learned from them, (T, B).
        deltas: W of the states, (T, B, Z).
        gammas: Its discounts, (Z,).
        terminated: Whether step t ended an episode, (T, B).
        truncated: Whether an episode was cut after step t, (T, B).

    Returns:
        predicted (N, Z), realised (N, Z) as `realised_returns` tells them, gammas (Z,); N is at most 4,096 states
        evenly spread over the data.
    """
    discounts = np.asarray(gammas)
    flags = {"terminated": terminated, "truncated": truncated}
    both = compose(np.asarray(deltas)), realised_returns(rewards, discounts, **flags)
    predicted, realised = (np.asarray(part, np.float32).reshape(-1, len(discounts)) for part in both)
    chosen = np.linspace(0, len(predicted) - 1, min(len(predicted), HELD_OUT_STATES)).astype(int)
    return {"predicted": predicted[chosen], "realised": realised[chosen], "gammas": discounts}


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
