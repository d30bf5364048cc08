"""Working through a plan: several runs at a time, none of which can stop the others.

The one loop over the runs of a plan: start them, hear how they end, try again, stop in good order.

Who trains them is an `Executor`: threads of this process for `train` and `compare`, processes, a Ray cluster or a
machine of a Slurm cluster for `sweep`.

Several machines on one folder: each takes the runs that nobody else has, and waits for the others at the end.

What tells them apart are the locks of the run directories, which end with the process that holds them. So a run whose
machine was lost is taken over from its newest checkpoint.
"""

import dataclasses
import itertools
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tddelta._streams import hang_ups
from tddelta.errors import CheckpointError, ConfigError, DataError, TDDeltaError
from tddelta.experiments.plan import RunPlan, differences
from tddelta.runs import (
    CHECKPOINT_SECONDS,
    TRACKERS,
    Run,
    RunWriter,
    Track,
    TrackerFactory,
    check_trackers,
    is_being_written,
    one_run,
)
from tddelta.runs.files import available_cores as available_cores
from tddelta.runs.files import origin

if TYPE_CHECKING:
    from tddelta.deep.ppo import Config
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


_NAMED = ("eval_every", "checkpoint_every")

_FOLLOWING = ("actor_lam", "reward_discount")
"""Settings that follow others where they are None; `config.json` records the number that they come to."""


def unset(config: "Config") -> list[str]:
    """Settings that `config.json` records as a number although they have none of their own."""
    return [name for name in _FOLLOWING if getattr(config, name) is None]


def recorded_plan(path: str | os.PathLike[str]) -> tuple[RunPlan, dict[str, Any]]:
    """Plan to go on with the run that a directory records.

    Args:
        path: A run directory, or a folder with exactly one.

    Returns:
        The run, and with what it was last trained that is no setting: `eval_every`, `checkpoint_every` and `track`,
        where they are known.

    Raises:
        ConfigError: There is not one run; or its environment, network or agent is somebody's own; or this version
            would train it with other settings.
        CheckpointError: `config.json` is damaged.
    """
    run = one_run(path, "name one of them, or repeat the command that started them with its out= and resume=True")
    options = _options(run)
    try:
        config = _config(run, options.pop("unset", []))
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{run.path / 'config.json'} is no complete config of a run ({error!r})") from error
    from tddelta.deep import training

    content = json.loads(json.dumps(training.run_config(config, run.seed), allow_nan=False))
    if other := differences(run.config, content):
        raise ConfigError(
            f"{run.path} would be trained with other settings by this version, {'; '.join(other)}: go on with the "
            "version that timing.jsonl names, or start it anew"
        )
    plan = RunPlan(run.environment, run.agent, run.seed, run.path, config, content)
    return plan, options


def _config(run: Run, without: list[str]) -> Any:
    from tddelta.deep.agents import AGENTS
    from tddelta.deep.policy import config_of

    repeat = "repeat the command that started it, with its out= and resume=True"
    agent = AGENTS.get(str(run.config["agent"]["name"]))
    if agent is None or agent.to_dict() != run.config["agent"]:
        raise ConfigError(f"the agent {run.config['agent']['name']!r} of {run.path} is not part of tddelta: {repeat}")
    try:
        config = config_of(run.config)
    except ConfigError as error:
        if "is not part of tddelta" not in str(error):
            raise
        raise ConfigError(f"{str(error).rpartition(': pass')[0]}: {repeat}") from error
    # given as a number it would enter the program at another place, and round otherwise
    changes: dict[str, Any] = {"agent": agent, **dict.fromkeys(without)}
    return dataclasses.replace(config, **changes)


def _options(run: Run) -> dict[str, Any]:
    """The options that the last start or resumption was called with."""
    for event in reversed(run.timing):
        options = event.get("options")
        if event.get("event") in ("start", "resume") and isinstance(options, Mapping):
            found = {name: options[name] for name in _NAMED if isinstance(options.get(name), int | float)}
            trackers = options.get("track")
            without = options.get("unset")
            return found | {
                "track": tuple(name for name in TRACKERS if isinstance(trackers, list) and name in trackers),
                "unset": [name for name in _FOLLOWING if isinstance(without, list) and name in without],
            }
    return {}


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

    from tddelta.deep.policy import checked_pauses

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
