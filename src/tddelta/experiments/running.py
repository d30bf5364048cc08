"""Working through a plan: several runs at a time, none of which can stop the others.

`Work` is the one loop over the runs of a plan: it says which may be started, hears how they end, tries again, stops in
good order. `run_plans` trains them in threads of this process, for `train` and `compare`; `work_through` lets a
`Trainer` do it, for `sweep`: processes or a Ray cluster.

Several machines on one folder: each takes the runs that nobody else has, and waits for the others at the end. What
tells them apart are the locks of the run directories, which end with the process that holds them. So a run whose
machine was lost is taken over from its newest checkpoint.
"""

import dataclasses
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
from tddelta.runs.files import origin, read_status

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
        Outcomes of the runs; none that fails stops the others.

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
    together = operator.attrgetter("path.parent" if vectorized else "path")
    most = workers or (1 if vectorized else available_cores())
    with Display(todo, finished, **shown) as display:
        work = Work(todo, display, finished, stop=stop, shared=shared)
        with work.listening():
            for waiting in work.rounds(stop.set):
                groups = [list(plans) for _, plans in itertools.groupby(waiting, together)]
                for group in groups[: most - work.in_progress]:
                    options = provenance, work.report, stop, eval_every, trackers, pause
                    # By "run-" the command line knows threads that nobody waits for.
                    work.follow(group, in_thread(f"run-{group[0].seed}", train_group, group, *options))
    return work.result()


def in_thread(name: str, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
    """Call a function in a thread of that name.

    Python waits for the threads of a ThreadPoolExecutor before it ends, also after a second Ctrl-C; not for this one.
    """
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return future


def outcomes_of(group: Sequence[RunPlan], future: "Future[list[Outcome]]") -> list[Outcome]:
    """Outcomes of the runs of a future that is done."""
    error = future.exception()
    if error is None:
        return future.result()
    lost = RuntimeError(f"{type(error).__name__}: {error}")  # such as a panic of a library
    return [Outcome(plan, "failed", lost) for plan in group]


class Trainer:
    """Trains runs somewhere else."""

    def open(self, wait: Callable[["Future[Any]"], bool]) -> None:
        """Get ready, before the first run; `wait` waits for a future, and says False where all is to stop instead."""

    def close(self, *, at_once: bool) -> None:
        """Leave nothing running behind; `at_once` without waiting for runs in progress."""

    def start(self, waiting: Sequence[RunPlan]) -> list[tuple[Sequence[RunPlan], "Future[Any]"]]:
        """Start some of the waiting runs, as many as there is room for: groups, each with its future."""
        raise NotImplementedError

    def ended(self, group: Sequence[RunPlan], future: "Future[Any]") -> list[Outcome]:
        """Return how the runs of a future that is done have ended: its result, unless a trainer says otherwise."""
        return outcomes_of(group, future)

    def stop(self) -> None:
        """Let every run in progress save what it has and end."""


def work_through(work: "Work", trainer: Trainer) -> Outcomes:
    """Train every run of a plan by a trainer."""
    with work.listening():
        try:
            trainer.open(work.wait)
            for waiting in work.rounds(trainer.stop):
                for group, future in trainer.start(waiting):
                    work.follow(group, future, trainer.ended)
        except BaseException:
            trainer.close(at_once=True)
            raise
        trainer.close(at_once=False)
    return work.result()


@dataclass
class Work:
    """The runs of a plan, in order; none can stop the others.

    A run is tried again up to `retries` times, after all others have had their turn; an error that would come again,
    such as a wrong setting or a not-a-number, is no reason to. `stop` is set while something is told to have all runs
    stopped without a signal. `shared` says that others may train some of them in the same folder. `finished` are
    counted as well. The thread that iterates over `rounds` does all of it, one event after the other.
    """

    plans: Sequence[RunPlan]
    display: Display
    finished: Sequence[Outcome] = ()
    retries: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    shared: bool = False
    in_progress: int = 0  # groups
    _signals: list[int] = field(default_factory=list)
    _events: "queue.SimpleQueue[Callable[[], None]]" = field(default_factory=queue.SimpleQueue)
    _outcomes: dict[Path, Outcome] = field(default_factory=dict)
    _tries: Counter[Path] = field(default_factory=Counter)
    _look_at: float = 0.0  # at what others have done, where the folder is shared
    _told_of_others: bool = False

    def __post_init__(self) -> None:
        self._waiting = [*self.plans]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Stop all runs at the first Ctrl-C, SIGTERM or SIGHUP, and where an exception ends the loop."""

        def handle(number: int, restore: Callable[[], None]) -> None:
            self._signals.append(number)
            restore()  # a second one does what it always does
            for one in closed:  # of which shell and system each send one
                signal.signal(one, signal.SIG_IGN)
            self._events.put(lambda: None)

        closed = hang_ups()
        with handled((signal.SIGINT, signal.SIGTERM, *closed), handle):
            try:
                yield
            except BaseException:
                self.stop.set()  # threads save what they have, and nobody waits for them
                raise

    def result(self) -> Outcomes:
        """Outcomes of the runs."""
        ended = [self._outcomes[plan.path] for plan in self.plans if plan.path in self._outcomes]
        return Outcomes([*self.finished, *ended], next(iter(self._signals), None))

    def _halted(self) -> bool:
        return bool(self._signals) or self.stop.is_set()

    def wait(self, future: "Future[Any]") -> bool:
        """Wait until a future is done, and say so; or until all is to stop."""
        future.add_done_callback(lambda _: self._events.put(lambda: None))
        while not (future.done() or self._halted()):
            self._events.get()()
        return future.done()

    def rounds(self, halt: Callable[[], None]) -> Iterator[Sequence[RunPlan]]:
        """Yield the waiting runs whenever some may be started, until all have ended.

        Where they are to stop, `halt` is called, and those that are in progress end.
        """
        halted = False
        while self.in_progress or (self._waiting and not halted):
            if self._halted() and not halted:
                halted = True
                if self._signals:
                    self.display.stopping()
                halt()
            if not halted and (free := self._look() if self.shared else self._waiting):
                others = len(self._waiting) - len(free)
                yield free
                if len(self._waiting) > others:
                    self._look_at = math.inf  # there is no room until one ends
            if self.in_progress or (self._waiting and not halted):
                looking = self.shared and self._waiting and self._look_at < math.inf
                with suppress(queue.Empty):
                    self._events.get(timeout=LOOK_SECONDS if looking else None)()
                    while True:  # all that is there before anything is started
                        self._events.get_nowait()()

    def follow(
        self,
        group: Sequence[RunPlan],
        future: "Future[Any]",
        ended: Callable[[Sequence[RunPlan], "Future[Any]"], list[Outcome]] = outcomes_of,
    ) -> None:
        """Take runs that have been started out of the queue, and hear of their end."""
        self._leave_queue(group)
        self.in_progress += 1
        for plan in group:
            self._tries[plan.path] += 1
            self.display.begin(plan)
        future.add_done_callback(lambda _: self._events.put(lambda: self._over(ended(group, future))))

    def report(self, plan: RunPlan, progress: "Progress") -> None:
        """Hear of the progress of a run, from any thread."""
        self._events.put(lambda: self.display.progress(plan, progress))

    def _look(self) -> list[RunPlan]:
        """Waiting runs that nobody else has; those that others have finished leave."""
        if time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + LOOK_SECONDS
        free: list[RunPlan] = []
        found: list[RunPlan] = []
        for plan in self._waiting:
            if not is_being_written(plan.path):
                (found if _is_finished(plan) else free).append(plan)
        if not (self.in_progress or free or found or self._told_of_others):
            self._told_of_others = True
            print(f"{len(self._waiting)} runs are in progress elsewhere: waiting for them", file=sys.stderr, flush=True)
        self._leave_queue(found)
        for plan in found:
            self._end(Outcome(plan, "finished", skipped=True))
        return free

    def _leave_queue(self, plans: Sequence[RunPlan]) -> None:
        paths = {plan.path for plan in plans}
        self._waiting = [plan for plan in self._waiting if plan.path not in paths]

    def _over(self, outcomes: Sequence[Outcome]) -> None:
        self.in_progress -= 1
        for outcome in outcomes:
            plan = outcome.plan
            taken = self.shared and _was_taken(outcome)
            if self._halted():
                self._end(Outcome(plan, "interrupted") if taken else outcome)
            elif taken:
                self.display.remove(plan)
                self._waiting.append(plan)
            elif self._tries[plan.path] <= self.retries and _may_change(outcome):
                self.display.retry(outcome)
                self._waiting.append(plan)
            else:
                self._end(outcome)
        self._look_at = 0.0  # there is room now

    def _end(self, outcome: Outcome) -> None:
        self._outcomes[outcome.plan.path] = outcome
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
        status = read_status(plan.path / "status.json")
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


def recorded_plan(path: str | os.PathLike[str], /, **given: Any) -> tuple[RunPlan, dict[str, Any]]:
    """Plan to go on with the one run that a directory records, at or below it.

    Args:
        path: The directory.
        **given: Settings that were named beside it, which there must be none of; None where one was not.

    Returns:
        The run, and with what it was last trained that is no setting: `eval_every`, `checkpoint_every` and `track`,
        where they are known.

    Raises:
        ConfigError: A setting was named; there is not one run; or its environment, network or agent is somebody's own;
            or this version would train it with other settings.
        CheckpointError: `config.json` is damaged.
    """
    repeated = f"{setting('out', '')} and {setting('resume', True)}"
    for name in [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"{setting('resume', os.fspath(path))} goes on with the settings recorded there; got {setting(name)}: "
            f"leave it out, or repeat what started the run with {repeated}"
        )
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
