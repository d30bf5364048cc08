"""Working through a plan: several runs at a time, none of which can stop the others.

`work_through` is the one loop over the runs of a plan: it starts them as futures, hears how they end, tries again,
stops in good order. A `Trainer` makes the futures: threads of this process for `train` and `compare`, processes or
a Ray cluster for `sweep`. `run_plans` does all of it with threads.

Several machines on one folder: each takes the runs that nobody else has, and waits for the others at the end. What
tells them apart are the locks of the run directories, which end with the process that holds them. So a run whose
machine was lost is taken over from its newest checkpoint.
"""

import dataclasses
import functools
import itertools
import json
import math
import operator
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tddelta._streams import hang_ups, lasting_streams
from tddelta.errors import CheckpointError, ConfigError, DataError, TDDeltaError, setting
from tddelta.experiments.display import Display, Listener
from tddelta.experiments.plan import Outcome, Outcomes, RunPlan, differences, divide
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

_PACKAGES = ("tddelta", "numpy", "jax", "jaxlib", "equinox", "optax", "gymnax", "gymnasium", "ale-py")

LOOK_SECONDS = 5.0
"""Seconds between two looks at what other machines have finished: file systems over a network are slow."""


@lasting_streams()
def run_plans(
    plans: Sequence[RunPlan],
    *,
    resume: bool = False,
    shared: bool = False,
    eval_every: int | None = None,
    checkpoint_every: float | None = None,
    track: Track = (),
    command: Sequence[str] = (),
    workers: int | None = None,
    stop: threading.Event | None = None,
    **shown: Any,
) -> Outcomes:
    """Train every run of a plan that is not finished, as many at a time as there are cores.

    The runs share this process, so that a program is compiled once, and their bytes do not depend on the company. On a
    GPU the seeds of an agent are one vectorised program instead, and `timing.jsonl` says so.
    Ctrl-C, SIGTERM and SIGHUP (where this is the main thread) make every run save what it has and leave the rest
    unstarted; a second one is handled as if this function were not there.

    Args:
        plans: The runs, in order.
        resume: Whether there may be run directories: finished runs are skipped, unfinished ones go on from their newest
            checkpoints or, without one, are renamed first.
        shared: Whether other machines work through the same folder: each takes what nobody has.
        eval_every: Environment steps between evaluations; None for no evaluations.
        checkpoint_every: Seconds between the checkpoints of a run at least; more where one takes over 1/200 of
            that. 0 makes one after every block of updates, which take about a second; None is 300.
        track: Trackers that follow every run: "tensorboard", "wandb", or functions that make one.
        command: The command line, for `timing.jsonl`.
        workers: Threads, each with a run of its own; None is one per core, and one on a GPU.
        stop: Set to let every run save what it has and end, as `report` may do.
        **shown: What is shown, and told: `live`, `say` and `report` of `Display`.

    Returns:
        How the runs ended; none that fails stops the others.

    Raises:
        ConfigError: There are run directories that cannot be gone on with; `eval_every` is below 1, `checkpoint_every`
            below 0, or a tracker is unknown or cannot work here. Nothing has been started then.
        MissingExtra: A tracker's package is not installed.
    """
    todo, finished = divide(plans, resume=resume, shared=shared)
    import jax

    from tddelta.deep.policy import checked_pauses

    pause = CHECKPOINT_SECONDS if checkpoint_every is None else checkpoint_every
    eval_every, pause = checked_pauses(eval_every, pause)
    trackers = check_trackers(track)
    provenance, stop = describe_origin(command), stop or threading.Event()
    vectorized = jax.default_backend() != "cpu"

    def train(group: Sequence[RunPlan], report: Listener) -> list[Outcome]:
        return train_group(group, provenance, report, stop, eval_every, trackers, pause)

    threads = Threads(train, stop, workers or (1 if vectorized else available_cores()), vectorized=vectorized)
    with Display(todo, finished, **shown) as display:
        return work_through(todo, threads, display, finished, stop=stop, shared=shared)


class Trainer:
    """Trains runs somewhere."""

    def open(self, wait: Callable[["Future[Any]"], bool]) -> None:
        """Get ready, before the first run; `wait` waits for a future, and says False where all is to stop instead."""

    def close(self, *, at_once: bool) -> None:
        """Leave nothing running behind; `at_once` without waiting for runs in progress."""

    def start(self, waiting: Sequence[RunPlan], report: Listener) -> list[tuple[Sequence[RunPlan], "Future[Any]"]]:
        """Start some of the waiting runs, as many as there is room for: groups, each with its future."""
        raise NotImplementedError

    def ended(self, group: Sequence[RunPlan], future: "Future[Any]") -> list[Outcome]:
        """Return how the runs of a future that is done have ended: its result, unless a trainer says otherwise."""
        outcomes: list[Outcome] = future.result()
        return outcomes

    def stop(self) -> None:
        """Let every run in progress save what it has and end."""


def work_through(
    plans: Sequence[RunPlan],
    trainer: Trainer,
    display: Display,
    finished: Sequence[RunPlan] = (),
    *,
    retries: int = 0,
    stop: threading.Event | None = None,
    shared: bool = False,
) -> Outcomes:
    """Train every run of a plan in order, by a trainer; none can stop the others. `finished` are counted as well.

    A run is tried again up to `retries` times, after all others have had their turn; an error that would come again,
    such as a wrong setting or a not-a-number, is no reason to. `stop` is set while something is told to have all runs
    stopped without a signal. `shared` says that others may train some of them in the same folder.
    """
    work = _Work(trainer, display, [*plans], retries, stop or threading.Event(), shared)
    with stopping(work.received, lambda: work.news.put(lambda: None)):
        try:
            trainer.open(work.wait)
            work.go()
        except BaseException:
            trainer.close(at_once=True)
            raise
        trainer.close(at_once=False)
    before = [Outcome(plan, "finished", skipped=True) for plan in finished]
    ended = [work.outcomes[plan.path] for plan in plans if plan.path in work.outcomes]
    return Outcomes([*before, *ended], next(iter(work.received), None))


@dataclass
class _Work:
    """The loop of `work_through`: all that concerns it is done by its thread, one piece of news after the other."""

    trainer: Trainer
    display: Display
    waiting: list[RunPlan]
    retries: int
    stop: threading.Event
    shared: bool
    received: list[int] = field(default_factory=list)  # signals
    news: "queue.SimpleQueue[Callable[[], None]]" = field(default_factory=queue.SimpleQueue)
    outcomes: dict[Path, Outcome] = field(default_factory=dict)
    _running: set[Path] = field(default_factory=set)
    _tries: Counter[Path] = field(default_factory=Counter)
    _look_at: float = 0.0  # at what others have done, where the folder is shared
    _told_of_others: bool = False

    def _halted(self) -> bool:
        return bool(self.received) or self.stop.is_set()

    def wait(self, future: "Future[Any]") -> bool:
        """Wait until a future is done, and say so; or until all is to stop."""
        future.add_done_callback(lambda _: self.news.put(lambda: None))
        while not (future.done() or self._halted()):
            self.news.get()()
        return future.done()

    def go(self) -> None:
        """Start runs and hear of them until all have ended, or all that are running where they are to stop."""
        told = False
        while self._running or (self.waiting and not told):
            if self._halted() and not told:
                told = True
                if self.received:
                    self.display.stopping()
                self.trainer.stop()
            if not told:
                self._start()
            if self._running or (self.waiting and not told):
                looking = self.shared and self.waiting and self._look_at < math.inf
                with suppress(queue.Empty):
                    self.news.get(timeout=LOOK_SECONDS if looking else None)()
                    while True:  # all that is there before anything is started
                        self.news.get_nowait()()

    def _start(self) -> None:
        free = self._look() if self.shared else self.waiting
        started = self.trainer.start(free, self._report) if free else ()
        if sum(len(group) for group, _ in started) < len(free):
            self._look_at = math.inf  # there is no room until one ends
        for group, future in started:
            self._leave_queue(group)
            for plan in group:
                self._running.add(plan.path)
                self._tries[plan.path] += 1
                self.display.begin(plan)
            future.add_done_callback(functools.partial(self._announce, group))

    def _look(self) -> list[RunPlan]:
        """Waiting runs that nobody else has; those that others have finished leave."""
        if time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + LOOK_SECONDS
        free: list[RunPlan] = []
        found: list[RunPlan] = []
        for plan in self.waiting:
            if not is_being_written(plan.path):
                (found if _is_finished(plan) else free).append(plan)
        if not (self._running or free or found or self._told_of_others):
            self._told_of_others = True
            print(f"{len(self.waiting)} runs are in progress elsewhere: waiting for them", file=sys.stderr, flush=True)
        self._leave_queue(found)
        for plan in found:
            self._end(Outcome(plan, "finished", skipped=True))
        return free

    def _leave_queue(self, plans: Sequence[RunPlan]) -> None:
        paths = {plan.path for plan in plans}
        self.waiting = [plan for plan in self.waiting if plan.path not in paths]

    def _report(self, plan: RunPlan, progress: "Progress") -> None:
        self.news.put(lambda: self.display.progress(plan, progress))

    def _announce(self, group: Sequence[RunPlan], future: "Future[Any]") -> None:
        self.news.put(lambda: self._over(group, future))

    def _over(self, group: Sequence[RunPlan], future: "Future[Any]") -> None:
        for outcome in self.trainer.ended(group, future):
            plan = outcome.plan
            self._running.discard(plan.path)
            taken = self.shared and _was_taken(outcome)
            if self._halted():
                self._end(Outcome(plan, "interrupted") if taken else outcome)
            elif taken:
                self.display.leave(plan)
                self.waiting.append(plan)
            elif self._tries[plan.path] <= self.retries and _may_change(outcome):
                self.display.again(outcome)
                self.waiting.append(plan)
            else:
                self._end(outcome)
        self._look_at = 0.0  # there is room now

    def _end(self, outcome: Outcome) -> None:
        self.outcomes[outcome.plan.path] = outcome
        self.display.end(outcome)


def _is_finished(plan: RunPlan) -> bool:
    try:
        return bool(Run(plan.path).status["state"] == "finished")
    except (TDDeltaError, KeyError):  # not there yet, or not whole: who opens it says so
        return False


def _was_taken(outcome: Outcome) -> bool:
    """Tell whether a run failed because another machine had taken it a moment before."""
    if outcome.state != "failed" or not isinstance(outcome.error, ConfigError):
        return False
    return bool(is_being_written(outcome.plan.path)) or _is_finished(outcome.plan)


def _may_change(outcome: Outcome) -> bool:
    """Tell whether another try can end otherwise: our own errors say what the user has to change first."""
    if outcome.state == "interrupted":
        return True  # nobody asked for that here: somebody ended the process that trained it
    mistake = isinstance(outcome.error, TDDeltaError) and not isinstance(outcome.error, OSError)
    return outcome.state == "failed" and not mistake


@contextmanager
def stopping(received: list[int], wake: Callable[[], None]) -> Iterator[None]:
    """Put the number of the first Ctrl-C, SIGTERM or SIGHUP into a list, and call `wake` then."""

    def handle(number: int, restore: Callable[[], None]) -> None:
        received.append(number)
        restore()  # a second one does what it always does
        for one in closed:  # of which shell and system each send one
            signal.signal(one, signal.SIG_IGN)
        wake()

    closed = hang_ups()
    with handled((signal.SIGINT, signal.SIGTERM, *closed), handle):
        yield


@contextmanager
def handled(numbers: Sequence[int], handle: Callable[[int, Callable[[], None]], object]) -> Iterator[None]:
    """Call a function with the number of each signal that comes to the main thread, and what restores the handlers."""

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    main = threading.current_thread() is threading.main_thread()
    # a handler that was not installed from Python reads as None, and could not be restored
    found = {number: signal.getsignal(number) for number in numbers if main}
    previous = {number: handler for number, handler in found.items() if handler is not None}
    for number in previous:
        signal.signal(number, lambda number, _: handle(number, restore))
    try:
        yield
    finally:
        restore()


@dataclass
class Threads(Trainer):
    """Trains runs in so many threads of this process, which share their programs, until `halt` is set.

    Where it is vectorized, a thread takes all seeds of an agent that stand together in the plan, not one run.
    """

    train: Callable[[Sequence[RunPlan], Listener], list[Outcome]]
    halt: threading.Event
    count: int
    vectorized: bool
    _running: "list[Future[list[Outcome]]]" = field(default_factory=list)

    def close(self, *, at_once: bool) -> None:
        """Let the threads end, which nobody waits for."""
        if at_once:
            self.halt.set()

    def start(self, waiting: Sequence[RunPlan], report: Listener) -> list[tuple[Sequence[RunPlan], "Future[Any]"]]:
        """Start a thread for every group that there is room for."""
        self._running = [future for future in self._running if not future.done()]
        started: list[tuple[Sequence[RunPlan], Future[Any]]] = []
        place = operator.attrgetter("path.parent" if self.vectorized else "path")
        groups = [list(plans) for _, plans in itertools.groupby(waiting, place)]
        for group in groups[: self.count - len(self._running)]:
            future: Future[list[Outcome]] = Future()
            # Python waits for the threads of a ThreadPoolExecutor before it ends, also after a second Ctrl-C.
            # Who does not wait for these ones knows them by "run-".
            name = f"run-{group[0].seed}"
            threading.Thread(target=self._work, args=(group, report, future), name=name, daemon=True).start()
            started.append((group, future))
            self._running.append(future)
        return started

    def _work(self, group: Sequence[RunPlan], report: Listener, future: "Future[list[Outcome]]") -> None:
        try:
            outcomes = self.train(group, report)
        except BaseException as error:  # such as a panic of a library: nobody else would hear of it
            lost = RuntimeError(f"{type(error).__name__}: {error}")
            outcomes = [Outcome(plan, "failed", lost) for plan in group]
        future.set_result(outcomes)

    def stop(self) -> None:
        """Tell every thread."""
        self.halt.set()


def train_group(
    group: Sequence[RunPlan],
    provenance: Mapping[str, Any],
    report: Listener,
    stop: threading.Event,
    eval_every: int | None,
    track: Sequence[str | TrackerFactory] = (),
    checkpoint_every: float = CHECKPOINT_SECONDS,
) -> list[Outcome]:
    """Train runs that differ in their seeds alone, as one vectorised program if they are several; nothing is raised.

    The arguments are those of `run_plans`, with command, versions and machine as `provenance`.
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
    """Outcome of a run, written down first if what was raised prevented that."""
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


_FOLLOWING = ("actor_lam", "reward_discount")
"""Settings that follow others where they are None; `config.json` records the number that they come to."""


def unset(config: "Config") -> list[str]:
    """Settings that `config.json` records as a number although they have none of their own."""
    return [name for name in _FOLLOWING if getattr(config, name) is None]


def recorded_plan(path: str | os.PathLike[str]) -> tuple[RunPlan, dict[str, Any]]:
    """Plan to go on with the one run that a directory records, at or below it.

    Returns:
        The run, and with what it was last trained that is no setting: `eval_every`, `checkpoint_every` and `track`,
        where they are known.

    Raises:
        ConfigError: There is not one run; or its environment, network or agent is somebody's own; or this version
            would train it with other settings.
        CheckpointError: `config.json` is damaged.
    """
    repeated = f"{setting('out', '')} and {setting('resume', True)}"
    run = one_run(path, f"name one of them, or repeat the command that started them with its {repeated}")
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

    repeat = f"repeat the command that started it, with its {setting('out', '')} and {setting('resume', True)}"
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
    unset: dict[str, Any] = dict.fromkeys(without)
    return dataclasses.replace(config, **unset)


def _options(run: Run) -> dict[str, Any]:
    """The options that the last start or resumption was called with."""
    for event in reversed(run.timing):
        options = event.get("options")
        if event.get("event") in ("start", "resume") and isinstance(options, Mapping):
            pauses = ("eval_every", "checkpoint_every")
            found = {name: options[name] for name in pauses if isinstance(options.get(name), int | float)}
            trackers, without = options.get("track"), options.get("unset")
            return found | {
                "track": tuple(name for name in TRACKERS if isinstance(trackers, list) and name in trackers),
                "unset": [name for name in _FOLLOWING if isinstance(without, list) and name in without],
            }
    return {}
