"""The one loop over the runs of a plan: start them, hear how they end, try again, stop in good order.

Who trains them is an `Executor`: threads of this process for `train` and `compare`, processes, a Ray cluster or a
machine of a Slurm cluster for `sweep`.
"""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tddelta._streams import hang_ups
from tddelta.errors import TDDeltaError
from tddelta.experiments.plan import RunPlan

if TYPE_CHECKING:
    from tddelta.deep.training import Progress


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        plan: The run.
        state: "finished", "interrupted" or "failed".
        error: What made it fail.
        skipped: Whether it had been finished before, by the call that is resumed.
    """

    plan: RunPlan
    state: str
    error: Exception | None = None
    skipped: bool = False


@runtime_checkable
class Watcher(Protocol):
    """What is told about the runs; every call comes from the thread that works through the plan."""

    def begin(self, plan: RunPlan) -> None:
        """A run starts."""

    def progress(self, plan: RunPlan, progress: "Progress") -> None:
        """A run has come further."""

    def end(self, outcome: Outcome) -> None:
        """A run is over."""

    def stopping(self) -> None:
        """Ctrl-C, SIGTERM or SIGHUP came: the runs save what they have."""

    def tick(self) -> None:
        """Some time has passed."""


@dataclass(frozen=True)
class Advance:
    """A run has come further.

    Attributes:
        plan: The run.
        progress: How far it is.
    """

    plan: RunPlan
    progress: "Progress"


@runtime_checkable
class Executor(Protocol):
    """Trains runs somewhere. It is entered before the first run and left after the last one."""

    def __enter__(self) -> "Executor":
        """Get ready."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing running behind; after an exception, without waiting for the runs."""

    def take(self, waiting: Sequence[RunPlan]) -> Sequence[RunPlan]:
        """Start some of the waiting runs, as many as there is room for now, and return them."""

    def news(self, seconds: float | None) -> Sequence[Outcome | Advance]:
        """Wait until there is something to tell, `wake` is called, or some seconds have passed; None is any time."""

    def wake(self) -> None:
        """End the waiting of `news`; called from a signal's handler."""

    def stop(self) -> None:
        """Let every run in progress save what it has and end."""


def work_through(
    plans: Sequence[RunPlan],
    executor: Executor,
    watcher: Watcher,
    *,
    retries: int = 0,
    again: Callable[[Outcome], None] | None = None,
    stop: threading.Event | None = None,
    every: float | None = 0.2,
) -> tuple[list[Outcome], int | None]:
    """Train every run of a plan; none can stop the others.

    Ctrl-C, SIGTERM and SIGHUP (where this is the main thread) make every run save what it has and leave the rest
    unstarted; a second one is handled as if this function were not there.

    Args:
        plans: The runs, in order.
        executor: Who trains them.
        watcher: What is told about the runs.
        retries: How often a run is tried again, after all others have had their turn. An error that would come again,
            such as a wrong setting or a not-a-number, is no reason to.
        again: Called with how a run ended that will be tried again.
        stop: Set by the watcher to have all runs stopped without a signal.
        every: Seconds between two ticks of the watcher; None for none.

    Returns:
        One outcome per run that was started, in order of the plan, and the signal that stopped them, if one did.
    """
    waiting, running = list(plans), set[Path]()
    tries: Counter[Path] = Counter()
    outcomes: dict[Path, Outcome] = {}
    stopped = False
    with executor, stopping(executor.wake) as received:
        while running or (waiting and not stopped):
            if not stopped and (received or (stop is not None and stop.is_set())):
                stopped = True
                if received:
                    watcher.stopping()
                executor.stop()
            for plan in () if stopped else executor.take(waiting):
                running.add(plan.path)
                tries[plan.path] += 1
                watcher.begin(plan)
            if not running and stopped:
                break
            waiting = [plan for plan in waiting if plan.path not in running]
            for item in executor.news(every):
                if isinstance(item, Advance):
                    watcher.progress(item.plan, item.progress)
                    continue
                path = item.plan.path
                running.discard(path)
                if not stopped and not received and tries[path] <= retries and _may_change(item):
                    waiting.append(item.plan)
                    if again is not None:
                        again(item)
                else:
                    outcomes[path] = item
                    watcher.end(item)
            watcher.tick()
    return [outcomes[plan.path] for plan in plans if plan.path in outcomes], next(iter(received), None)


def _may_change(outcome: Outcome) -> bool:
    """Whether another try can end otherwise: our own errors say what the user has to change first."""
    if outcome.state == "interrupted":
        return True  # nobody asked for that here: somebody ended the process that trained it
    mistake = isinstance(outcome.error, TDDeltaError) and not isinstance(outcome.error, OSError)
    return outcome.state == "failed" and not mistake


@contextmanager
def stopping(wake: Callable[[], None]) -> Iterator[list[int]]:
    """Yield a list that the number of the first Ctrl-C, SIGTERM or SIGHUP is put in, and call `wake` then."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()  # a second one does what it always does
        for one in closed:  # of which shell and system each send one
            signal.signal(one, signal.SIG_IGN)
        wake()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    closed = hang_ups()
    # a handler that was not installed from Python reads as None, and could not be restored
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, *closed)}
    previous = {number: handler for number, handler in found.items() if handler is not None}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        restore()
