"""Working through a plan: several runs at a time, none of which can stop the others."""

import itertools
import os
import platform
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tddelta.errors import ConfigError, DataError
from tddelta.experiments.plan import RunPlan, set_aside
from tddelta.runs import Run, RunWriter

if TYPE_CHECKING:
    from tddelta.deep.training import Progress

_PACKAGES = ("tddelta", "numpy", "jax", "jaxlib", "equinox", "optax", "gymnax")


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
    """What is told about the runs; every call comes from the thread that called `execute`."""

    def begin(self, plan: RunPlan) -> None:
        """A run starts."""

    def progress(self, plan: RunPlan, progress: "Progress") -> None:
        """A run has come further."""

    def end(self, outcome: Outcome) -> None:
        """A run is over."""

    def stopping(self) -> None:
        """Ctrl-C or SIGTERM came: the runs save what they have."""

    def tick(self) -> None:
        """Some time has passed."""


def execute(
    plans: Sequence[RunPlan],
    watcher: Watcher,
    *,
    eval_every: int | None = None,
    command: Sequence[str] = (),
    workers: int | None = None,
) -> tuple[list[Outcome], int | None]:
    """Train every run of a plan, as many at a time as there are cores.

    The runs share this process, so that a program is compiled once, and their bytes do not depend on the company. On a
    GPU the seeds of an agent are one vectorised program instead, and `timing.jsonl` says so.
    Ctrl-C and SIGTERM (where this is the main thread) make every run save what it has and leave the rest unstarted;
    a second one is handled as if this function were not there.

    Args:
        plans: The runs, in order. An unfinished run directory in the place of one is renamed first.
        watcher: What is told about the runs.
        eval_every: Environment steps between evaluations; None for no evaluations.
        command: The command line, for `timing.jsonl`.
        workers: Threads, each with a run of its own; None is one per core, and one on a GPU.

    Returns:
        One outcome per run that was started, in order of the plan, and the signal that stopped them, if one did.

    Raises:
        ConfigError: `eval_every` is below 1.
    """
    import jax

    if eval_every is not None and eval_every < 1:
        raise ConfigError(f"eval_every must be at least 1 step; got {eval_every}: leave it out for no evaluations")
    stop = threading.Event()
    events: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
    vectorized, lock = jax.default_backend() != "cpu", threading.Lock()
    groups = _groups(plans, vectorized=vectorized)
    waiting = iter(groups)
    provenance = describe_origin(command)
    outcomes: dict[Path, Outcome] = {}

    def report(plan: RunPlan, progress: "Progress") -> None:
        events.put((watcher.progress, (plan, progress)))

    def work() -> None:
        while not stop.is_set():
            with lock:
                group = next(waiting, None)
            if group is None:
                return
            for plan in group:
                events.put((watcher.begin, (plan,)))
            for outcome in _train(group, provenance, report, stop, eval_every):
                outcomes[outcome.plan.path] = outcome
                events.put((watcher.end, (outcome,)))

    count = min(workers or (1 if vectorized else available_cores()), len(groups))
    threads = [threading.Thread(target=work, name=f"run-{number}", daemon=True) for number in range(count)]
    with _stopping(stop, lambda: events.put((watcher.stopping, ()))) as received:
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) or not events.empty():
                try:
                    call, arguments = events.get(timeout=0.2)
                except queue.Empty:
                    watcher.tick()
                else:
                    call(*arguments)
        except BaseException:
            stop.set()
            raise
    return [outcomes[plan.path] for plan in plans if plan.path in outcomes], next(iter(received), None)


def _groups(plans: Sequence[RunPlan], *, vectorized: bool) -> list[list[RunPlan]]:
    """What one thread trains at once: a run, or all seeds of an agent as one program."""
    if not vectorized:
        return [[plan] for plan in plans]
    return [list(seeds) for _, seeds in itertools.groupby(plans, lambda plan: plan.path.parent)]


def _train(
    group: Sequence[RunPlan],
    provenance: Mapping[str, Any],
    report: Callable[[RunPlan, "Progress"], None],
    stop: threading.Event,
    eval_every: int | None,
) -> list[Outcome]:
    from tddelta.deep import training

    raised: Exception | None = None
    with ExitStack() as stack:
        writers: list[RunWriter] = []
        try:
            for plan in group:
                set_aside(plan.path)
                writers.append(stack.enter_context(RunWriter(plan.path, plan.content, provenance)))
            training.train_runs(
                group[0].config,
                [plan.seed for plan in group],
                writers,
                progress=lambda index, progress: report(group[index], progress),
                stop=stop,
                eval_every=eval_every,
            )
        except Exception as error:
            raised = error
        return [_outcome(plan, writer, raised) for plan, writer in itertools.zip_longest(group, writers)]


def _outcome(plan: RunPlan, writer: RunWriter | None, raised: Exception | None) -> Outcome:
    """How a run ended, after writing so if what was raised prevented that."""
    try:
        if writer is None:  # the directory could not be made
            return Outcome(plan, "failed", raised)
        status = Run(plan.path).status
        if status["state"] == "running":
            message = "training returned early" if raised is None else f"{type(raised).__name__}: {raised}"
            writer.status("failed", message=message)
            return Outcome(plan, "failed", raised or RuntimeError(message))
        if status["state"] == "failed":
            # seeds of one program fail each for a reason of its own
            own = isinstance(raised, DataError) and status["message"]
            return Outcome(plan, "failed", DataError(status["message"]) if own else raised)
        return Outcome(plan, status["state"])
    except Exception as error:  # such as a full disk
        return Outcome(plan, "failed", raised or error)


@contextmanager
def _stopping(stop: threading.Event, tell: Callable[[], None]) -> Iterator[list[int]]:
    """Let the first Ctrl-C or SIGTERM set `stop`, and yield the list that the signal's number is put in."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop.set()
        tell()
        restore()  # a second one does what it always does

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    # a handler that was not installed from Python reads as None, and could not be restored
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {number: handler for number, handler in found.items() if handler is not None}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        restore()


def available_cores() -> int:
    """Number of processor cores that this process may use, also where a container limits them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # another system, or no limit: "max"
        return cores


def describe_origin(command: Sequence[str]) -> dict[str, Any]:
    """Return what `timing.jsonl` says of a run's origin: command, versions, machine."""
    import jax

    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # used from its source tree, or not needed here
            continue
    device = jax.devices()[0]
    machine = {
        "processor": _processor(),
        "cores": available_cores(),
        "device": f"{device.platform}: {device.device_kind}",
        "system": platform.platform(),
    }
    return {"command": list(command) or ["python", *sys.argv], "versions": versions, "machine": machine}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # platform.processor() is empty on most Linux systems
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(itertools.chain(names, [platform.machine()]))
    except OSError:
        return platform.processor() or platform.machine()
