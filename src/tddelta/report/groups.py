"""The seeds of an agent on an environment, as far as a report needs them, and their scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tddelta.errors import DataError, TDDeltaError
from tddelta.report import statistics
from tddelta.report.statistics import CriticQuality, FloatArray, Summary
from tddelta.runs import Run, is_being_written
from tddelta.timescales import TimeScales

Measure = Literal["asymptotic", "average", "hold_out"]
"""What a run is scored by: the return of its last 100 training episodes, of all, or of hold-out episodes."""

SHOWN_SEED = 1153780
"""The seed whose recorded episode is shown where it is among the seeds: the paper shows that one."""


@dataclass(frozen=True)
class Seed:
    """One run, as far as a report needs it.

    Attributes:
        run: The run directory.
        environment: Name of the environment.
        agent: Name under which the report shows the agent.
        number: The seed.
        state: "finished", "interrupted", "failed", "running", or "cut off": its process ended without a word.
        message: Why it failed, or "".
        steps: Environment steps done.
        end_steps: Environment steps at the end of each training episode, shape (N,).
        returns: Returns of the training episodes, shape (N,).
        speed: Training steps per second, or None.
        vectorized: Whether it was trained together with other seeds, as one program.
    """

    run: Run
    environment: str
    agent: str
    number: int
    state: str
    message: str
    steps: int
    end_steps: FloatArray
    returns: FloatArray
    speed: float | None
    vectorized: bool

    @classmethod
    def read(cls, run: Run, agent: str) -> "Seed":
        """Read a run that the report shows under the name `agent`.

        Raises:
            DataError: The episodes do not belong together.
        """
        status, episodes, timing = run.status, run.episodes, run.timing
        state = str(status["state"])
        seed = cls(
            run=run,
            environment=run.environment,
            agent=agent,
            number=run.seed,
            state="cut off" if state == "running" and is_being_written(run.path) is False else state,
            message=str(status.get("message") or ""),
            steps=int(status["steps"]),
            end_steps=np.asarray(episodes["steps"], np.float64),
            returns=np.asarray(episodes["returns"], np.float64),
            speed=_speed(timing),
            vectorized=any(event.get("event") == "vectorized" for event in timing),
        )
        if len(seed.end_steps) != len(seed.returns):
            raise DataError(f"{run.path / 'episodes.npz'} has arrays of different lengths")
        return seed

    @cached_property
    def asymptotic(self) -> float:
        """Mean return of the last 100 training episodes."""
        return statistics.asymptotic_score(self.returns)

    @cached_property
    def average(self) -> float:
        """Mean return of all training episodes."""
        return statistics.average_score(self.returns)

    @cached_property
    def hold_out(self) -> float:
        """Mean return of the last hold-out evaluation with sampled actions; NaN where there is none."""
        rows = [row for row in self.run.evaluations if (row.get("starts"), row.get("mode")) == ("no-ops", "sampled")]
        return float(rows[-1]["return_mean"]) if rows and rows[-1].get("return_mean") is not None else math.nan

    @cached_property
    def reward_density(self) -> Mapping[str, float] | None:
        """Rewards other than 0 per 100 steps, "trained" and "random"; None where nobody counted them."""
        found = self.run.reward_density
        return None if found is None else {name: float(found[name]) for name in ("trained", "random")}

    @property
    def title(self) -> str:
        """Environment, agent and seed, for a sentence."""
        return f"{self.environment}, {self.agent}, seed {self.number}"

    @property
    def finished(self) -> bool:
        """Whether all training steps were done."""
        return self.state == "finished"


@dataclass(frozen=True)
class Group:
    """The seeds of one agent on one environment."""

    environment: str
    agent: str
    seeds: tuple[Seed, ...]
    problems: list[str] = field(default_factory=list, compare=False)
    """Where a file that cannot be read is reported."""

    @property
    def complete(self) -> bool:
        """Whether any seed finished: else the scores are those of unfinished runs, and nothing is tested."""
        return any(seed.finished for seed in self.seeds)

    @property
    def scored(self) -> tuple[Seed, ...]:
        """The seeds that count for the scores: those that finished, or all where none did."""
        return tuple(seed for seed in self.seeds if seed.finished) or self.seeds

    @property
    def planned_steps(self) -> int:
        """Training steps that were asked for."""
        return int(self.seeds[0].run.config.get("steps", 0))

    def scores(self, measure: Measure) -> FloatArray:
        """Score of each seed that counts, shape (n,); of those that have hold-out episodes for that measure."""
        values = np.array([getattr(seed, measure) for seed in self.scored], np.float64)
        return values[np.isfinite(values)] if measure == "hold_out" else values

    def summary(self, measure: Measure) -> Summary:
        """Mean ± standard error of the score over seeds."""
        return statistics.summarise(self.scores(measure))

    @property
    def scales(self) -> TimeScales:
        """The time scales that the critic is trained on."""
        return self.seeds[0].run.scales

    def evaluated(self, mode: str) -> list[float]:
        """Mean return of the last evaluation in a mode, "sampled" or "greedy", of each seed that has one."""
        found = []
        for seed in self.scored:
            rows = [row for row in seed.run.evaluations if row.get("mode") == mode and "starts" not in row]
            if rows and rows[-1].get("return_mean") is not None:
                found.append(float(rows[-1]["return_mean"]))
        return found

    @cached_property
    def critic(self) -> list[CriticQuality]:
        """Quality of the critic on held-out states, one per seed that has them."""
        found = []
        for seed in self.scored:
            try:
                arrays = seed.run.critic
                if arrays is None:
                    continue
                quality = statistics.critic_quality(arrays["predicted"], arrays["realised"])
                if len(quality.rmse) != len(self.scales):
                    raise DataError(f"critic.npz has {len(quality.rmse)} scales instead of {len(self.scales)}")
                found.append(quality)
            except (TDDeltaError, KeyError) as error:
                self.problems.append(f"Held-out states of {seed.title} were left out: {error}")
        return found

    @cached_property
    def recorded(self) -> tuple[Seed, Mapping[str, Any]] | None:
        """The first seed that recorded an episode, with the recording."""
        for seed in sorted(self.scored, key=lambda seed: seed.number != SHOWN_SEED):
            try:
                arrays = seed.run.rollout
                if arrays is not None and len(arrays["rewards"]) > 1:
                    if arrays["deltas"].shape != (len(arrays["rewards"]), len(self.scales)):
                        raise DataError(f"deltas in rollout.npz have shape {arrays['deltas'].shape}")
                    return seed, arrays
            except (TDDeltaError, KeyError) as error:
                self.problems.append(f"The recorded episode of {seed.title} was left out: {error}")
        return None


def _speed(timing: Sequence[Mapping[str, Any]]) -> float | None:
    """Training steps per second: of the whole run, or of the blocks so far; their `steps` count from the start."""
    for event in reversed(timing):
        if event.get("event") == "end" and event.get("steps_per_second"):
            return float(event["steps_per_second"])
    blocks = [event for event in timing if event.get("event") == "block"]
    seconds = sum(float(block["seconds"]) for block in blocks)
    steps = sum(float(block["steps_per_second"]) * float(block["seconds"]) for block in blocks)
    return steps / seconds if seconds > 0 else None
