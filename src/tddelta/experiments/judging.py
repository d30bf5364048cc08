"""Scores of trials, on the way and at the end, and how sure a difference of scores is."""

import itertools
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tddelta.experiments.display import LAST_EPISODES, recent_return
from tddelta.experiments.loop import Outcome, Watcher
from tddelta.experiments.plan import RunPlan
from tddelta.runs import Run
from tddelta.runs.files import read_rows

if TYPE_CHECKING:
    import optuna

    from tddelta.deep.training import Progress

RUNGS = 10
"""A trial is judged at every tenth of its steps."""

_LEVEL = 0.95


def final_score(run: Run) -> float:
    """Mean return of the last training episodes of a run; NaN if none ended."""
    found = recent_return(run.episodes)
    return math.nan if found is None else found


def score_at(path: Path, steps: float) -> float:
    """Mean return of the last training episodes up to some environment steps.

    Args:
        path: The run directory.
        steps: Environment steps; whatever came later does not count.

    Returns:
        The mean over the last updates in which at least `LAST_EPISODES` episodes ended, or all; NaN if none ended.
    """
    rows = [row for row in read_rows(path / "metrics.jsonl") if row["steps"] <= steps]
    count, total = 0, 0.0
    for before, row in reversed([*itertools.pairwise([{"episodes": 0}, *rows])]):
        ended = row["episodes"] - before["episodes"]
        if ended:
            count, total = count + ended, total + ended * row["return_mean"]
        if count >= LAST_EPISODES:
            break
    return total / count if count else math.nan


class Judge:
    """Decides whether a trial is given up, by what its runs had reached at every tenth of their steps.

    Args:
        trial: The trial.
        plans: Its runs, of equal steps.
    """

    def __init__(self, trial: "optuna.Trial", plans: Sequence[RunPlan]) -> None:
        self._trial, self._plans = trial, plans
        self._total = plans[0].steps
        self._steps = {plan.path: 0 for plan in plans}
        self._rung, self._given_up = 0, False

    def come_to(self, plan: RunPlan, steps: int) -> bool:
        """Hear that a run has come to some steps, and say whether the trial is given up."""
        self._steps[plan.path] = steps
        return self.reach(RUNGS * min(self._steps.values()) // self._total)

    def reach(self, rung: int) -> bool:
        """Judge the trial at every tenth up to this one that has not been judged yet; the last is its score."""
        while self._rung < min(rung, RUNGS - 1) and not self._given_up:
            self._rung += 1
            steps = self._total * self._rung / RUNGS
            value = float(np.mean([score_at(plan.path, steps) for plan in self._plans]))
            if math.isfinite(value):  # else nothing has ended yet
                self._trial.report(value, self._rung)
                self._given_up = bool(self._trial.should_prune())
        return self._given_up


class JudgingWatcher:
    """Tells another watcher everything, and stops all runs once their trial is given up.

    Args:
        watcher: The other one.
        judge: Of the trial.
        stop: Set to stop the runs.
    """

    def __init__(self, watcher: Watcher, judge: Judge, stop: threading.Event) -> None:
        self._watcher, self._judge, self._stop = watcher, judge, stop

    def begin(self, plan: RunPlan) -> None:
        """A run starts."""
        self._watcher.begin(plan)

    def progress(self, plan: RunPlan, progress: "Progress") -> None:
        """A run has come further."""
        self._watcher.progress(plan, progress)
        if progress.phase != "compiling" and self._judge.come_to(plan, progress.steps):
            self._stop.set()

    def end(self, outcome: Outcome) -> None:
        """A run is over."""
        self._watcher.end(outcome)

    def stopping(self) -> None:
        """Ctrl-C or SIGTERM came."""
        self._watcher.stopping()

    def tick(self) -> None:
        """Some time has passed."""
        self._watcher.tick()


def compare_scores(first: Sequence[float], second: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Difference of two means over seeds, and its 95 % interval by Welch's t.

    With variances v of the means, d ± t_{.975, ν} √(v₁ + v₂), ν = (v₁ + v₂)² / (v₁²/(n₁ − 1) + v₂²/(n₂ − 1)).

    Args:
        first: One score per seed.
        second: One score per seed of the other.

    Returns:
        The mean of the first minus that of the second, and the interval; None where there is one seed only, or where
        no seed differs from another.
    """
    from scipy import stats  # a second, which nobody else here needs

    difference = float(np.mean(first) - np.mean(second))
    if min(len(first), len(second)) < 2:
        return difference, None
    parts = [float(np.var(scores, ddof=1)) / len(scores) for scores in (first, second)]
    if not sum(parts) > 0:
        return difference, None
    counts = len(first), len(second)
    freedom = sum(parts) ** 2 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    half = float(stats.t.ppf((1 + _LEVEL) / 2, freedom)) * math.sqrt(sum(parts))
    return difference, (difference - half, difference + half)
