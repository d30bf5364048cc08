"""Training in other processes: those of this machine, and tasks of a Ray cluster.

A job is what runs are planned from: names, numbers and text. The process that plans and the one that trains need no
other common ground, so that the second may be on another machine.

A process of this machine that crashes takes no other run with it, and is replaced. Of Ray only its core is used,
without dashboard and usage statistics. Its messages are pickled, so a cluster is as trustworthy as everybody who can
reach it.
"""

import functools
import importlib
import json
import logging
import math
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path, PurePosixPath
from typing import Any

from tddelta import errors
from tddelta._plain import whole
from tddelta._streams import hang_ups, lasting_streams
from tddelta.errors import ConfigError, DataError, MissingExtra, TDDeltaError, setting
from tddelta.experiments.plan import Outcome, RunPlan, plan_runs
from tddelta.experiments.running import Trainer, available_cores, describe_origin, train_group
from tddelta.runs import config_hash, is_being_written, set_aside

Ended = list[tuple[str, Exception | None]]
"""The end of each run of a job: its state, and what made it fail."""

PATIENCE = 30.0
"""Seconds to wait for the lock of a run directory: a process that was lost on another machine may still be ending."""


class WorkerError(RuntimeError):
    """A run failed in another process; the message is that of the error there, its traceback is a note."""


def make_job(group: Sequence[RunPlan], options: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Describe runs that differ in their seeds alone, so that another process can train them.

    Raises:
        ConfigError: A run was planned from objects, which have no name to find them by.
    """
    first = group[0]
    try:
        recipe = None if first.recipe is None else json.loads(json.dumps(first.recipe, allow_nan=False))
    except (TypeError, ValueError):
        recipe = None
    if recipe is None:
        raise ConfigError(
            f"{first.name} has settings, an environment or an agent that are objects, and other processes can only be "
            'told names: name them, as in "package.module:name", or train with compare'
        )
    return {
        "recipe": recipe,
        "seeds": [plan.seed for plan in group],
        "out": str(first.path.absolute().parents[2]),
        "digest": config_hash(first.content),
        "options": dict(options),
        "command": list(command),
    }


@lasting_streams()
def do_job(job: Mapping[str, Any], stop: threading.Event, out: Path | None = None) -> Ended:
    """Train the runs of a job, below `out` if it is given; nothing is raised."""
    try:
        recipe = dict(job["recipe"])
        place = Path(job["out"]) if out is None else out
        plans = plan_runs(recipe.pop("environment"), recipe.pop("agent"), seeds=job["seeds"], out=place, **recipe)
        if config_hash(plans[0].content) != job["digest"]:
            raise ConfigError(
                f"{plans[0].name} has other settings in this process than where it was planned: install the same "
                "versions of tddelta, gymnax and your own modules on every machine"
            )
        for plan in plans:
            _wait_until_free(plan.path, stop)
        provenance = _origin(tuple(job["command"]))
        outcomes = train_group(plans, provenance, lambda plan, progress: None, stop, **job["options"])
        return [(one.state, None if one.error is None else _sendable(one.error)) for one in outcomes]
    except BaseException as error:  # such as a module that this machine lacks, or an environment that calls sys.exit
        return [("failed", _sendable(error))] * len(job["seeds"])


_origin = functools.cache(describe_origin)


def _wait_until_free(path: Path, stop: threading.Event) -> None:
    deadline = time.monotonic() + PATIENCE
    while is_being_written(path) and time.monotonic() < deadline and not stop.wait(0.2):
        pass


def _sendable(error: BaseException) -> Exception:
    """An error that can be read where its class is not known: our own kinds stay of their kind."""
    kind = type(error)
    if isinstance(error, TDDeltaError) and getattr(errors, kind.__name__, None) is kind:
        return error.alone()
    sent = WorkerError(f"{kind.__name__}: {error}")
    sent.add_note(f"In the process that trained it:\n{''.join(traceback.format_exception(error))}")
    return sent


# ---------------------------------------------------------------- processes of this machine

_THREADS = ("PJRT_NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_OUTPUT_TAIL = 2000  # bytes of what a process wrote before it died
_EXIT_SECONDS = 10.0  # seconds that a process has to leave by itself

_stop, _busy = threading.Event(), threading.Lock()  # of the one job at a time in a process that trains


def _begin(words: str) -> None:
    """Initialise a process that trains: its output goes to a file, its parent decides when it ends."""
    with open(words, "ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.environ.pop("PYTHONSAFEPATH", None)
    for number in (signal.SIGINT, *hang_ups()):  # sent to all processes of a terminal
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, *hang_ups()))
    threading.Thread(target=_follow, name="follow", daemon=True).start()


def _follow() -> None:
    """Save the run and leave when the parent is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _stop.set()
    with _busy:
        os._exit(1)


def _train(job: Mapping[str, Any]) -> Ended:
    with _busy:
        try:
            return do_job(job, _stop)
        finally:
            _stop.clear()


def _backend() -> str:
    """Return "cpu", "gpu" or "tpu"; ConfigError for devices that are not there."""
    importlib.import_module("tddelta.deep")  # which checks JAX_PLATFORMS
    import jax

    return jax.default_backend()


@contextmanager
def _spawning(environment: Mapping[str, str]) -> Iterator[None]:
    """Give the processes that start meanwhile some environment variables, and keep from them what they must not see.

    Signals wait until `_begin`. The main module is not imported again, since a script without a guard would start
    a sweep of its own; and no file in the current folder can stand in for a module of Python's.
    """
    variables, main = dict(os.environ), sys.modules["__main__"]
    waiting = (signal.SIGINT, signal.SIGTERM, *hang_ups())
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
    try:
        os.environ.update({**environment, "PYTHONSAFEPATH": "1"})
        resource_tracker.ensure_running()  # which lets signals through when it starts that process
        signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
        sys.modules["__main__"] = types.ModuleType("__main__")
        yield
    finally:
        sys.modules["__main__"] = main
        for name in ("PYTHONSAFEPATH", *environment):
            os.environ.pop(name)
        os.environ.update(variables)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@dataclass(eq=False)
class _Worker:
    """A pool of one process, so that it is known whose end is whose."""

    pool: ProcessPoolExecutor
    process: BaseProcess
    words: Path  # that its output goes to
    job: "Future[Any] | None" = None
    program: Any = None  # that it compiled last


def _program(plan: RunPlan) -> Any:
    """Settings that decide on the compiled program: all but the continuous ones, and no seed."""
    import jax

    # not its hash, which says nothing of the settings; in a tuple, since alone it cannot be compared with None
    return (jax.tree.structure(plan.config),)


class Processes(Trainer):
    """Trains runs in spawned processes, each of which keeps its compiled programs between runs.

    There is one per core, and one where there is a GPU, unless a count is given. On a GPU the seeds of an agent that
    wait together are one vectorised program. `options` are keyword arguments of training, `command` is for
    `timing.jsonl`; `train` trains a job in a process, and `backend` returns what the process computes on.

    Raises:
        ConfigError: `count` is below 1, or this is a process of a `multiprocessing.Pool`.
    """

    def __init__(
        self,
        count: int | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
        train: Callable[[Mapping[str, Any]], Ended] = _train,
        backend: Callable[[], str] = _backend,
    ) -> None:
        count = None if count is None else whole("workers", count, most=10_000, advice="leave it out for one per core")
        if multiprocessing.current_process().daemon:
            raise ConfigError(
                "a sweep trains in processes of its own, and a daemonic process, such as one of a "
                "multiprocessing.Pool, may not start any: start the sweep outside of it, or train with train or compare"
            )
        self._options = {"eval_every": None, **(options or {})}
        self._count, self._command, self._train, self._ask = count, command, train, backend
        self._backend = ""
        self._workers: list[_Worker] = []
        self._started = 0
        self._folder = ExitStack()

    def open(self, wait: Callable[["Future[Any]"], bool]) -> None:
        """Ask one process what it computes on, which also shows whether one starts.

        Others would fight with it for the memory of a GPU. ConfigError where it ends without an answer.
        """
        self._place = Path(self._folder.enter_context(tempfile.TemporaryDirectory(prefix="tddelta-")))
        worker = self._spawn()
        answer = self._submit(worker, self._ask)
        if not wait(answer):
            return
        try:
            self._backend = answer.result()
        except BrokenProcessPool:
            how, words = self._reap(worker)
            raise ConfigError(f"processes for training cannot start, {how}: {words or 'they say nothing'}") from None
        worker.job = None

    def close(self, *, at_once: bool) -> None:
        """Let the processes leave."""
        for worker in self._workers:
            if at_once or worker.job is not None:  # this one is asked what nobody needs to know now
                worker.process.kill()
            worker.pool.shutdown(wait=False)
        for worker in list(self._workers):
            self._reap(worker)
        self._folder.close()

    def start(self, waiting: Sequence[RunPlan]) -> list[tuple[Sequence[RunPlan], "Future[Any]"]]:
        """Give every idle process a run, and start processes while there are fewer than there may be."""
        started: list[tuple[Sequence[RunPlan], Future[Any]]] = []
        left = list(waiting)
        while left and (worker := self._idle()) is not None:
            group = self._choose(worker, left)
            job = make_job(group, self._options, self._command)
            os.truncate(worker.words, 0)  # the tail of the output is that of the run that was lost
            worker.program = _program(group[0])
            started.append((group, self._submit(worker, self._train, job)))
            left = [plan for plan in left if plan not in group]
        return started

    def _submit(self, worker: _Worker, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        try:
            worker.job = worker.pool.submit(work, *arguments)
        except BrokenProcessPool as error:  # it died a moment ago
            worker.job = Future()
            worker.job.set_exception(error)
        return worker.job

    def _idle(self) -> _Worker | None:
        """Return a process without a job, which is new if there is none and may be one more; else None."""
        for worker in [worker for worker in self._workers if worker.job is None]:
            if worker.process.is_alive():
                return worker
            self._reap(worker)
        limit = self._count or (available_cores() if self._backend == "cpu" else 1)
        return self._spawn() if len(self._workers) < limit else None

    def _choose(self, worker: _Worker, waiting: Sequence[RunPlan]) -> list[RunPlan]:
        """Prefer a program that the worker has compiled, and else one that no other has."""
        taken = {other.program for other in self._workers if other is not worker}

        def rank(plan: RunPlan) -> int:
            program = _program(plan)
            return 0 if program == worker.program else 2 if program in taken else 1

        first = min(waiting, key=rank)
        if self._backend == "cpu":
            return [first]
        return [plan for plan in waiting if plan.path.parent == first.path.parent]

    def _spawn(self) -> _Worker:
        count = self._count or available_cores()
        # the processes share the cores and do not fight for them
        environment = dict.fromkeys(_THREADS, str(max(1, available_cores() // count)))
        if self._count is not None and self._count > 1:
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / self._count:.3f}"  # of a GPU
        self._started += 1
        words = self._place / f"worker-{self._started}"
        words.touch()
        with _spawning({name: value for name, value in environment.items() if name not in os.environ}):
            pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (str(words),))
            pool.submit(os.getpid)  # a process is started with the first job, and listed until its pool is closed
        (process,) = pool._processes.values()
        worker = _Worker(pool, process, words)
        self._workers.append(worker)
        return worker

    def ended(self, group: Sequence[RunPlan], future: "Future[Any]") -> list[Outcome]:
        """Return how the runs of a job have ended; a process that died is let go."""
        (worker,) = (one for one in self._workers if one.job is future)
        worker.job = None
        error = future.exception()
        if error is None:
            return [Outcome(plan, *one) for plan, one in zip(group, future.result(), strict=True)]
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, BrokenProcessPool):
            how, words = self._reap(worker)
            text = f"the process that trained it ended with {how}" + (f"; its last words: {words}" if words else "")
        return [Outcome(plan, "failed", WorkerError(text)) for plan in group]

    def _reap(self, worker: _Worker) -> tuple[str, str]:
        """Let go of a process when it has ended, if need be by force; how it ended, and its last words."""
        self._workers.remove(worker)
        worker.process.join(_EXIT_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
        worker.pool.shutdown()
        words = worker.words.read_bytes()[-_OUTPUT_TAIL:].decode(errors="replace").strip()
        worker.words.unlink()
        return _ending(worker.process.exitcode or 0), words

    def stop(self) -> None:
        """Tell every process that has a run."""
        for worker in self._workers:
            if worker.job is not None:
                worker.process.terminate()  # which lets it save the run


def _ending(code: int) -> str:
    """Describe the end of a process by its exit code; one below 0 is that of a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"


# ---------------------------------------------------------------- tasks of a Ray cluster

_NAME = re.compile(r"[\w+-][\w.+-]*")  # of a file or folder in a run directory


def do_task(
    job: Mapping[str, Any], folder: str, fetch: bool, environment: Mapping[str, str]
) -> tuple[Ended, dict[str, bytes]]:
    """Train one run on a machine of the cluster, where the user's modules may be in a folder of the same name.

    The files of the run directory are returned by their relative names if they are to be fetched. Environment variables
    are set unless the machine has its own.
    """
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    if folder not in sys.path and os.path.isdir(folder):
        sys.path.append(folder)
    stop, done, found = threading.Event(), threading.Event(), Ended()
    with tempfile.TemporaryDirectory(prefix="tddelta-") as place:

        def work() -> None:
            try:
                found.extend(do_job(job, stop, Path(place) if fetch else None))
            finally:
                done.set()

        # in a thread of its own: Ray cancels a task by a KeyboardInterrupt in the main one. It comes when a waiting
        # ends, and may not come in the joining of a thread, which then is taken for one that is over.
        threading.Thread(target=work, name="run").start()
        while True:
            try:
                if done.wait(0.5):
                    break
            except KeyboardInterrupt:
                stop.set()
        return found, _packed(Path(place)) if fetch else {}


def _packed(place: Path) -> dict[str, bytes]:
    """The files of the one run directory below a folder."""
    for run in [path for path in place.glob("*/*/*") if path.is_dir() and ".unfinished" not in path.name]:
        names = {path.relative_to(run): path for path in run.rglob("*") if path.is_file() and not path.is_symlink()}
        # hidden are those that a full disk left unfinished
        whole = [name for name in names if not any(part.startswith(".") for part in name.parts)]
        return {name.as_posix(): names[name].read_bytes() for name in whole}
    return {}


def unpack(files: Mapping[str, bytes], path: Path) -> None:
    """Make a run directory of files that another machine sent; an unfinished one in its place is renamed first.

    Raises:
        DataError: A name leads out of the directory, or is none that a run has. Nothing is written then.
    """
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or name != "/".join(parts) or not all(_NAME.fullmatch(part) for part in parts):
            raise DataError(f"the cluster sent a file named {name!r}, which no run has: nothing of {path} was written")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.mkdir(parents=True)
    try:
        for name, content in files.items():
            place = temporary / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        set_aside(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_reachable(address: str) -> None:
    """OSError where nobody is at an address: Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def _visible(path: Path) -> bool:
    if path.parent.is_dir():
        os.listdir(path.parent)  # a network file system looks again
    return (path / "config.json").exists()


class RayCluster(Trainer):
    """Trains runs as tasks of a Ray cluster, at an address or "auto", each on so many cores and GPUs.

    All waiting runs are submitted at once: Ray starts as many as the cluster has room for, also on machines that join
    later, and starts those of a machine that is lost again on others, up to `retries` times. The machines write into
    the study's folder, or the files of a run come back as its result, if they are to be fetched.

    Raises:
        MissingExtra: Ray is not installed.
    """

    def __init__(
        self,
        address: str,
        *,
        fetch: bool = False,
        cpus: float = 1.0,
        gpus: float = 0.0,
        retries: int = 2,
        options: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
    ) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise MissingExtra('a Ray cluster needs ray: pip install "tddelta[ray]"') from error
        self._ray, self._address, self._fetch = ray, address, fetch
        self._resources = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": retries}
        self._environment = {"PJRT_NPROC": str(max(1, math.ceil(cpus)))}
        if not gpus:
            self._environment["JAX_PLATFORMS"] = "cpu"  # Ray may let a task see GPUs that it did not ask for
        elif gpus < 1:
            self._environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * gpus:.3f}"
        self._options, self._command = {"eval_every": None, **(options or {})}, command
        self._tasks: dict[Future[Any], Any] = {}
        self._connected = False

    def open(self, wait: Callable[["Future[Any]"], bool]) -> None:
        """Connect, unless the caller has."""
        if self._ray.is_initialized():
            return
        try:
            _check_reachable(self._address)
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            # Ray does not take the token by itself where an address is named.
            asked = "RAY_AUTH_MODE" not in os.environ and Path("~/.ray/auth_token").expanduser().exists()
            raise ConfigError(
                f"there is no Ray cluster at {self._address!r} ({reason}): start one with ray start --head, or name "
                f"the address of another with {setting('ray', 'ADDRESS')}"
                + (", or set RAY_AUTH_MODE=token for one that asks for a token" if asked else "")
            ) from error
        self._connected = True

    def close(self, *, at_once: bool) -> None:
        """Disconnect, and leave no task behind."""
        for task in self._tasks.values():
            self._ray.cancel(task, force=True)
        if self._connected:
            self._ray.shutdown()

    def start(self, waiting: Sequence[RunPlan]) -> list[tuple[Sequence[RunPlan], "Future[Any]"]]:
        """Submit every run; Ray knows what there is room for."""
        remote = self._ray.remote(do_task).options(**self._resources)
        started: list[tuple[Sequence[RunPlan], Future[Any]]] = []
        for plan in waiting:
            job = make_job([plan], self._options, self._command)
            task = remote.remote(job, os.getcwd(), self._fetch, self._environment)
            future = task.future()
            self._tasks[future] = task
            started.append(([plan], future))
        return started

    def ended(self, group: Sequence[RunPlan], future: "Future[Any]") -> list[Outcome]:
        """Return how the run of a task has ended."""
        (plan,), errors = group, self._ray.exceptions
        del self._tasks[future]
        try:
            ((state, why),), files = future.result()
            if self._fetch and files:
                unpack(files, plan.path)
            elif state == "finished" and not _visible(plan.path):
                raise ConfigError(
                    f"{plan.path} was written on a machine of the cluster and is not here: give all of them the "
                    "study's folder under the same name, or let the files come back with "
                    f"{setting('ray_fetch', True)}"
                )
            return [Outcome(plan, state, why)]
        except errors.TaskCancelledError:
            return [Outcome(plan, "interrupted")]
        except errors.RayTaskError as error:  # such as a machine without tddelta
            text = str(error).strip().splitlines()[-1]
            return [Outcome(plan, "failed", TDDeltaError(f"the task failed on the cluster: {text}"))]
        except errors.RayError as error:  # Ray has tried as often as it may
            text = str(error).strip().partition("\n")[0]
            return [Outcome(plan, "failed", TDDeltaError(f"the cluster lost the run again and again: {text}"))]
        except (DataError, ConfigError, OSError) as error:
            return [Outcome(plan, "failed", error)]

    def stop(self) -> None:
        """Cancel every task; one that is running saves its run first."""
        for task in self._tasks.values():
            self._ray.cancel(task)
