"""What one run has produced so far, and what of it goes into its run directory."""

from collections import deque
from typing import Any

import jax
import numpy as np

from tddelta.deep import evaluation, ppo
from tddelta.deep.config import Config
from tddelta.deep.policy import tensors
from tddelta.deep.tasks import HostEnvironment
from tddelta.runs import Arrays, RunWriter
from tddelta.runs.checkpoints import SHARE, Pauses

EPISODES_SECONDS = 10.0
"""`episodes.npz` is written again at most this often."""

EPISODES, HOST_EPISODES = 128, 32
"""Episodes of an evaluation during training; a game of Atari takes seconds."""

RECENT_EPISODES = 100
"""Episodes in the mean return that progress shows."""

_SCALARS = (
    "policy_loss",
    "value_loss",
    "explained_variance",
    "value_mean",
    "entropy",
    "approximate_kl",
    "clip_fraction",
    "gradient_norm",
    "learning_rate",
)


def run_key(seed: int, purpose: str) -> jax.Array:
    """A key for one purpose of a run: training, held-out data or evaluations never share random numbers."""
    purposes = ("train", "held-out", "evaluate")
    key: jax.Array = jax.random.split(jax.random.key(seed), len(purposes))[purposes.index(purpose)]
    return key


class Record:
    """What one run has produced so far, and the directory it goes to.

    Args:
        config: Settings.
        seed: The seed.
        writer: The run directory; where it goes on from a checkpoint, so does the record.
        share: Of the time, that writing its episodes may take; checkpoints have the other half.
    """

    def __init__(self, config: Config, seed: int, writer: RunWriter, share: float = SHARE / 2) -> None:
        self.config, self.seed, self.writer = config, seed, writer
        self.updates = 0
        self.returns: list[np.ndarray] = []
        self.lengths: list[np.ndarray] = []
        self.ends: list[np.ndarray] = []
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.episodes = 0
        self.fault: str | None = None
        self._pauses = Pauses(EPISODES_SECONDS, at_once=True, share=share)
        before = writer.episodes_before
        if writer.restored is not None and before is not None:
            self.updates = writer.restored.count("updates")
            self.ends, self.returns, self.lengths = [before["steps"]], [before["returns"]], [before["lengths"]]
            self.recent.extend(before["returns"][-RECENT_EPISODES:].tolist())
            self.episodes = len(before["steps"])

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self.updates * self.config.batch

    @property
    def saving_seconds(self) -> float:
        """Seconds spent on writing what was learned and the episodes, but for checkpoints."""
        return self._pauses.spent

    def counts(self) -> dict[str, Any]:
        """Steps, updates and episodes so far."""
        return {"steps": self.steps, "updates": self.updates, "episodes": self.episodes}

    def add(self, metrics: ppo.Metrics, done: int, learned: ppo.Learned) -> None:
        """Take over the updates of a block, and what was learned then."""
        rows = [self._row(jax.tree.map(lambda leaf, i=i: leaf[i], metrics), learned) for i in range(done)]
        # The update that met a fault is not part of the run: its numbers would not be strict JSON.
        self.writer.metrics([row for row in rows if row is not None])
        self.writer.status("running", **self.counts())
        if self.fault is not None:
            # Now: vectorised with others, it goes on from here.
            self.save(learned)

    def _row(self, one: ppo.Metrics, learned: ppo.Learned) -> dict[str, Any] | None:
        if one.fault:
            self.fault = self._explain(one)
            self.writer.fault(self._statistics(one, learned))
            return None
        all_lengths, all_returns = np.asarray(one.finished_lengths), np.asarray(one.finished_returns)
        finished = all_lengths > 0
        time, _ = np.nonzero(finished)
        returns, lengths = all_returns[finished], all_lengths[finished]
        self.ends.append(self.steps + (time + 1) * self.config.environments)
        self.returns.append(returns)
        self.lengths.append(lengths)
        self.recent.extend(returns.tolist())
        self.episodes += len(returns)
        self.updates += 1
        return {
            "update": self.updates,
            "steps": self.steps,
            "episodes": self.episodes,
            "return_mean": returns.mean(dtype=float) if len(returns) else None,
            "length_mean": lengths.mean(dtype=float) if len(lengths) else None,
            **self._numbers(one),
        }

    def _numbers(self, one: ppo.Metrics) -> dict[str, float]:
        """The scalars of an update, and those of every component."""
        numbers = {name: float(getattr(one, name)) for name in _SCALARS}
        per_component = (
            ("value_loss", one.component_losses),
            ("explained_variance", one.component_explained_variance),
            ("value_mean", one.component_means),
        )
        for name, values in per_component:
            for label, value in zip(self.config.scales.labels, values, strict=True):
                numbers[f"{name}/gamma={label}"] = float(value)
        return numbers

    def _explain(self, one: ppo.Metrics) -> str:
        what = ppo.FAULTS[int(one.fault)]
        name = self.config.environment_object().name
        if what == "loss":
            return (
                f"the loss is not finite in update {self.updates + 1} of {self.config.agent.name} on {name}, "
                f"after {self.steps} steps: lower the learning rate, or check the scale of the rewards"
            )
        return (
            f"{name}: {what} not finite in environment {int(one.fault_environment)}, "
            f"step {int(one.fault_step)}, after {self.steps} steps in all: check the environment"
        )

    def _statistics(self, one: ppo.Metrics, learned: ppo.Learned) -> dict[str, Any]:
        """What is known of an update that met a fault, as strict JSON: what is not finite becomes a text."""
        what = ppo.FAULTS[int(one.fault)]
        place = None if what == "loss" else int(one.fault_environment)
        norms = {name: float(np.linalg.norm(array)) for name, array in tensors(learned).items()}
        return {
            "fault": what,
            "update": self.updates + 1,
            "steps_before": self.steps,
            "environment": place,
            "environment_step": None if place is None else int(one.fault_step),
            "metrics": {name: _as_json(value) for name, value in self._numbers(one).items()},
            "norms_before": {name: _as_json(value) for name, value in norms.items()},
        }

    @property
    def recent_return(self) -> float | None:
        """Mean return of the last episodes; None if none has ended."""
        return float(np.mean(self.recent)) if self.recent else None

    def save_episodes(self) -> None:
        """Write the episodes, unless that was done a short while ago."""
        if self._pauses.over:
            with self._pauses.ended():
                self._write_episodes()

    def _write_episodes(self) -> None:
        if self.ends:
            parts = (self.ends, self.returns, self.lengths)
            self.ends, self.returns, self.lengths = ([np.concatenate(part)] for part in parts)
            self.writer.episodes(self.ends[0], self.returns[0], self.lengths[0])

    def checkpoint(self, arrays: Arrays) -> None:
        """Save what the run continues from; whoever calls it counts the seconds."""
        self._write_episodes()
        self.writer.checkpoint(arrays, **self.counts())

    def save(self, learned: ppo.Learned) -> None:
        """Write what was learned, and the episodes."""
        with self._pauses.ended():
            self._write_episodes()
            self.writer.parameters(
                tensors(learned), {"environment": self.config.environment_object().name, "steps": str(self.steps)}
            )

    def fail(self, error: BaseException) -> None:
        """Say that the run failed, unless it has said so."""
        if self.fault is None:
            self.fault = f"{type(error).__name__}: {error}"
            self.writer.status("failed", message=self.fault, **self.counts())

    def evaluate(self, learned: ppo.Learned) -> None:
        """Play the policy for a while."""
        # The same seed each time: the points of a curve differ by the agent, not by the episodes' luck.
        seed = int(jax.random.randint(run_key(self.seed, "evaluate"), (), 0, 2**31 - 1))
        host = isinstance(self.config.environment_object(), HostEnvironment)
        row = evaluation.evaluate(self.config, learned, seed=seed, episodes=HOST_EPISODES if host else EPISODES)
        self.writer.evaluation({"steps": self.steps, **row})

    def hold_out(self, learned: ppo.Learned) -> None:
        """Record an episode, and compare the critic with what comes."""
        critic, rollout = evaluation.play_held_out(self.config, learned, run_key(self.seed, "held-out"))
        self.writer.arrays("critic", **critic)
        self.writer.arrays("rollout", **rollout)


def _as_json(value: float) -> float | str:
    return value if np.isfinite(value) else "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
