"""Several machines on one folder: each takes the runs that nobody else has, and waits for the others at the end.

What tells them apart are the locks of the run directories, which end with the process that holds them. So a run whose
machine was lost is taken over from its newest checkpoint.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tddelta.errors import ConfigError, TDDeltaError
from tddelta.experiments.loop import Advance, Executor, Outcome
from tddelta.experiments.plan import RunPlan
from tddelta.runs import Run, is_being_written

LOOK_SECONDS = 5.0
"""How often somebody with nothing else to do sees whether others are done: file systems over a network are slow."""


class Shared:
    """An executor that leaves to others what they have begun, and tells what they have finished.

    Args:
        executor: Who trains what is left.
        seconds: Time between two looks at what the others have.
    """

    def __init__(self, executor: Executor, *, seconds: float = LOOK_SECONDS) -> None:
        self._executor, self._seconds = executor, seconds
        self._lost: list[RunPlan] = []  # runs that the loop thinks are in progress here, and that others were faster at
        self._found: list[Outcome] = []
        self._here: set[Path] = set()
        self._room, self._next_look = True, 0.0
        self._stopped = self._waits = False

    def __enter__(self) -> "Shared":
        self._executor.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.__exit__(kind, error, trace)

    def take(self, waiting: Sequence[RunPlan]) -> list[RunPlan]:
        """Start some of the waiting runs that nobody has; take notice of those that others have finished."""
        if not self._room or time.monotonic() < self._next_look:
            return []
        free: list[RunPlan] = []
        found: list[RunPlan] = []
        for plan in (*self._lost, *waiting):
            if is_being_written(plan.path):
                continue
            if _is_finished(plan):
                self._found.append(Outcome(plan, "finished", skipped=True))
                found.append(plan)
            else:
                free.append(plan)
        begun = list(self._executor.take(free)) if free else []
        self._here |= {plan.path for plan in begun}
        self._room, self._next_look = len(begun) == len(free), time.monotonic() + self._seconds
        count = len(self._lost) + len(waiting)
        if count and not self._here and not found and not self._waits:
            self._waits = True
            print(f"{count} runs are in progress elsewhere: waiting for them", file=sys.stderr, flush=True)
        before = {plan.path for plan in self._lost}
        over = {plan.path for plan in (*begun, *found)}
        self._lost = [plan for plan in self._lost if plan.path not in over]
        return [plan for plan in (*found, *begun) if plan.path not in before]

    def news(self, seconds: float | None) -> list[Outcome | Advance]:
        """Wait for news of the runs here; what is known of others comes at once."""
        found: list[Outcome | Advance] = [*self._found]
        self._found = []
        for item in self._executor.news(0.0 if found else seconds):
            if isinstance(item, Outcome):
                self._here.discard(item.plan.path)
                self._room, self._next_look = True, 0.0
            if isinstance(item, Outcome) and _was_taken(item):
                self._lost.append(item.plan)
            else:
                found.append(item)
        if self._stopped:  # nobody asks for these again
            found += [Outcome(plan, "interrupted") for plan in self._lost]
            self._lost = []
        return found

    def wake(self) -> None:
        """End the waiting of `news`."""
        self._executor.wake()

    def stop(self) -> None:
        """Let every run in progress here save what it has and end."""
        self._stopped = True
        self._executor.stop()


def _is_finished(plan: RunPlan) -> bool:
    try:
        return bool(Run(plan.path).status["state"] == "finished")
    except (TDDeltaError, KeyError):  # not there yet, or not whole: who opens it says so
        return False


def _was_taken(outcome: Outcome) -> bool:
    """Whether a run failed because another machine had taken it a moment before."""
    if outcome.state != "failed" or not isinstance(outcome.error, ConfigError):
        return False
    return bool(is_being_written(outcome.plan.path)) or _is_finished(outcome.plan)
