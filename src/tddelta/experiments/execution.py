"""Working through a plan: several runs at a time, none of which can stop the others."""

import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tddelta.errors import DataError
from tddelta.experiments.loop import Advance, Outcome, Watcher, work_through
from tddelta.experiments.plan import RunPlan
from tddelta.experiments.resuming import unset
from tddelta.experiments.sharing import Shared
from tddelta.runs import CHECKPOINT_SECONDS, Run, RunWriter, Track, TrackerFactory, check_trackers
from tddelta.runs.origin import available_cores as available_cores
from tddelta.runs.origin import origin

if TYPE_CHECKING:
    from tddelta.deep.training import Progress

_PACKAGES = ("tddelta", "numpy", "jax", "jaxlib", "equinox", "optax", "gymnax", "gymnasium", "ale-py")


def execute(
    plans: Sequence[RunPlan],
    watcher: Watcher,
    *,
    eval_every: int | None = None,
    checkpoint_every: float | None = None,
    track: Track = (),
    stop: threading.Event | None = None,
    command: Sequence[str] = (),
    workers: int | None = None,
    shared: bool = False,
) -> tuple[list[Outcome], int | None]:
    """Train every run of a plan, as many at a time as there are cores.

    The runs share this process, so that a program is compiled once, and their bytes do not depend on the company. On a
    GPU the seeds of an agent are one vectorised program instead, and `timing.jsonl` says so.
    Ctrl-C and SIGTERM (where this is the main thread) make every run save what it has and leave the rest unstarted;
    a second one is handled as if this function were not there.

    Args:
        plans: The runs, in order. An unfinished run directory in the place of one goes on from its newest checkpoint;
            without one it is renamed first.
        watcher: What is told about the runs.
        eval_every: Environment steps between evaluations; None for no evaluations.
        checkpoint_every: Seconds between the checkpoints of a run at least; more where one takes over 1/200 of
            that. 0 makes one after every block of updates, which take about a second; None is 300.
        track: Trackers that follow every run: "tensorboard", "wandb", or functions that make one.
        stop: Set by the watcher to let every run save what it has and end.
        command: The command line, for `timing.jsonl`.
        workers: Threads, each with a run of its own; None is one per core, and one on a GPU.
        shared: Whether other machines work through the same folder: each takes what nobody has.

    Returns:
        One outcome per run that was started, in order of the plan, and the signal that stopped them, if one did.

    Raises:
        ConfigError: `eval_every` is below 1, `checkpoint_every` below 0, or a tracker is unknown or cannot work here.
        MissingExtra: A tracker's package is not installed.
    """
    import jax

    from tddelta.deep.checkpointing import checked_pauses

    pause = CHECKPOINT_SECONDS if checkpoint_every is None else checkpoint_every
    eval_every, pause = checked_pauses(eval_every, pause)
    trackers = check_trackers(track)
    provenance, stop = describe_origin(command), stop or threading.Event()
    vectorized = jax.default_backend() != "cpu"

    def train(group: Sequence[RunPlan], report: Callable[[RunPlan, "Progress"], None]) -> list[Outcome]:
        return train_group(group, provenance, report, stop, eval_every, trackers, pause)

    count = workers or (1 if vectorized else available_cores())
    threads = Threads(train, stop, count, vectorized=vectorized)
    return work_through(plans, Shared(threads) if shared else threads, watcher, stop=stop)


class Threads:
    """An executor that trains runs in threads of this process, so that they share their programs.

    Args:
        train: Trains one group of runs, as `report` hears.
        stop: Set when the runs are to save what they have and end.
        count: Threads at a time.
        vectorized: Whether a thread takes all seeds of an agent that stand together in the plan, not one run.
    """

    def __init__(
        self,
        train: Callable[[Sequence[RunPlan], Callable[[RunPlan, "Progress"], None]], list[Outcome]],
        stop: threading.Event,
        count: int,
        *,
        vectorized: bool,
    ) -> None:
        self._train, self._stop, self._vectorized = train, stop, vectorized
        self._room = threading.Semaphore(count)
        self._events: queue.SimpleQueue[Advance | list[Outcome] | None] = queue.SimpleQueue()

    def __enter__(self) -> "Threads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def take(self, waiting: Sequence[RunPlan]) -> list[RunPlan]:
        """Start a thread for every group that there is room for."""
        taken = []
        for group in _groups(waiting, vectorized=self._vectorized):
            if not self._room.acquire(blocking=False):
                break
            name = f"run-{group[0].seed}"  # who does not wait for the threads at the end knows them by "run-"
            threading.Thread(target=self._work, args=(group,), name=name, daemon=True).start()
            taken += group
        return taken

    def _work(self, group: Sequence[RunPlan]) -> None:
        try:
            outcomes = self._train(group, lambda plan, progress: self._events.put(Advance(plan, progress)))
        except BaseException as error:  # such as a panic of a library: nobody else would hear of it
            lost = RuntimeError(f"{type(error).__name__}: {error}")
            outcomes = [Outcome(plan, "failed", lost) for plan in group]
        self._events.put(outcomes)

    def news(self, seconds: float | None) -> list[Outcome | Advance]:
        """Wait for the first event, and return it with all others that are there."""
        found: list[Outcome | Advance] = []
        with suppress(queue.Empty):
            event = self._events.get(timeout=seconds)
            while True:
                if isinstance(event, Advance):
                    found.append(event)
                elif event is not None:  # the runs of a thread, which is over
                    self._room.release()
                    found += event
                event = self._events.get_nowait()
        return found

    def wake(self) -> None:
        """Put nothing into the queue."""
        self._events.put(None)

    def stop(self) -> None:
        """Tell every thread."""
        self._stop.set()


def _groups(plans: Sequence[RunPlan], *, vectorized: bool) -> list[list[RunPlan]]:
    """What one thread trains at once: a run, or all seeds of an agent as one program."""
    if not vectorized:
        return [[plan] for plan in plans]
    return [list(seeds) for _, seeds in itertools.groupby(plans, lambda plan: plan.path.parent)]


def train_group(
    group: Sequence[RunPlan],
    provenance: Mapping[str, Any],
    report: Callable[[RunPlan, "Progress"], None],
    stop: threading.Event,
    eval_every: int | None,
    track: Sequence[str | TrackerFactory] = (),
    checkpoint_every: float = CHECKPOINT_SECONDS,
) -> list[Outcome]:
    """Train runs that differ in their seeds alone, as one vectorised program if they are several.

    An unfinished run directory goes on from its newest checkpoint; without one it is renamed first.

    Args:
        group: The runs.
        provenance: Command, versions and machine.
        report: Called with the state of a run every second or so.
        stop: When set, the runs save what they have and end.
        eval_every: Environment steps between evaluations; None for none.
        track: Trackers that follow every run.
        checkpoint_every: Seconds between checkpoints; 0 makes one after every block of updates.

    Returns:
        How each ended, in order; nothing is raised.
    """
    from tddelta.deep import training

    names = [one for one in track if isinstance(one, str)]
    options = {"eval_every": eval_every, "checkpoint_every": checkpoint_every, "track": names}
    options["unset"] = unset(group[0].config)
    opened: dict[Path, RunWriter] = {}
    raised: dict[Path, Exception] = {}
    with ExitStack() as stack:
        for plan in group:
            try:
                writer = RunWriter(plan.path, plan.content, {**provenance, "options": options}, resume=True)
                opened[plan.path] = stack.enter_context(writer)
                writer.track(track)
            except Exception as error:
                raised[plan.path] = error
        ready = [plan for plan in group if plan.path not in raised]
        for together in _equally_far(ready, opened):

            def tell(index: int, progress: "Progress", plans: Sequence[RunPlan] = together) -> None:
                report(plans[index], progress)

            try:
                training.train_runs(
                    together[0].config,
                    [plan.seed for plan in together],
                    [opened[plan.path] for plan in together],
                    progress=tell,
                    stop=stop,
                    eval_every=eval_every,
                    checkpoint_every=checkpoint_every,
                )
            except Exception as error:
                raised |= {plan.path: error for plan in together}
        return [_outcome(plan, opened.get(plan.path), raised.get(plan.path)) for plan in group]


def _equally_far(plans: Sequence[RunPlan], writers: Mapping[Path, RunWriter]) -> list[list[RunPlan]]:
    """Runs that can be one program, which has one number of updates for them all."""

    def updates(plan: RunPlan) -> int:
        restored = writers[plan.path].restored
        return -1 if restored is None else restored.count("updates")

    return [list(found) for _, found in itertools.groupby(sorted(plans, key=updates), key=updates)]


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
            if isinstance(raised, DataError) and status["message"]:
                numbers = plan.path / "fault.json"
                where = f" ({numbers} has the numbers of that update)" if numbers.exists() else ""
                raised = DataError(f"{status['message']}{where}")
            return Outcome(plan, "failed", raised)
        return Outcome(plan, status["state"])
    except Exception as error:  # such as a full disk
        return Outcome(plan, "failed", raised or error)


def describe_origin(command: Sequence[str]) -> dict[str, Any]:
    """Return what `timing.jsonl` says of a run's origin: command, versions, machine."""
    import jax

    device, count = jax.local_devices()[0], jax.local_device_count()
    named = f"{device.platform}: {device.device_kind}" + (f" × {count}" if count > 1 else "")
    return origin(command, _PACKAGES, named)
