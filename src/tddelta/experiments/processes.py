"""Processes of this machine that train runs: one that crashes takes no other run with it, and is replaced."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tddelta._plain import whole
from tddelta.errors import ConfigError
from tddelta.experiments.plan import RunPlan
from tddelta.experiments.running import Outcome, available_cores
from tddelta.experiments.worker import WorkerError, make_job, read_outcome

PROGRAM = (sys.executable, "-P", "-m", "tddelta.experiments.worker")
"""The command that starts a worker; -P, since no file of the user's may stand in for a module that it needs."""

_THREADS = ("PJRT_NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LAST_WORDS = 2000  # bytes of what a process wrote before it died
_FALSE_STARTS = 3  # processes that may die before they are ready, such as when memory is short for a moment
_MANNERS = 10.0  # seconds that a process has to leave by itself


@dataclass(eq=False)
class _Worker:
    """One process.

    Attributes:
        process: The process.
        words: The file that its standard error goes to.
        backend: "cpu", "gpu" or "tpu"; None until it is ready.
        runs: The runs of its job.
        program: What tells the program of the last ones from others.
        unread: The beginning of its next line.
    """

    process: subprocess.Popen[bytes]
    words: Path
    backend: str | None = None
    runs: Sequence[RunPlan] = ()
    program: Any = field(default=None, repr=False)
    unread: bytes = field(default=b"", repr=False)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line; to one that is dead, nothing: its end will be heard of."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()


def _program(plan: RunPlan) -> Any:
    """What runs have in common that share a compiled program: all settings but the continuous ones, and no seed."""
    import jax

    # not its hash, which says nothing of the settings; in a tuple, since alone it cannot be compared with None
    return (jax.tree.structure(plan.config),)


class Processes:
    """An executor that trains runs in spawned processes, each of which keeps its compiled programs between runs.

    On a GPU the seeds of an agent that wait together are one vectorised program.

    Args:
        count: Processes at a time; None is one per core, and one where there is a GPU.
        options: Keyword arguments of training.
        command: The command line, for `timing.jsonl`.
        program: The command that starts a worker; None is `PROGRAM`.

    Raises:
        ConfigError: `count` is below 1.
    """

    def __init__(
        self,
        count: int | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
        program: Sequence[str] | None = None,
    ) -> None:
        count = None if count is None else whole("workers", count, most=10_000, advice="leave it out for one per core")
        self._options = {"eval_every": None, **(options or {})}
        self._count, self._command, self._program = count, command, program or PROGRAM
        self._workers: list[_Worker] = []
        self._started, self._false_starts = 0, 0

    def __enter__(self) -> "Processes":
        self._folder = tempfile.TemporaryDirectory(prefix="tddelta-")
        self._selector = selectors.DefaultSelector()
        self._woken, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if kind is not None:
                worker.process.kill()
            assert worker.process.stdin is not None
            worker.process.stdin.close()  # a worker leaves when there is no more to come
        for worker in list(self._workers):
            self._bury(worker)
        self._folder.cleanup()
        self._selector.close()
        os.close(self._woken)
        os.close(self._bell)

    def take(self, waiting: Sequence[RunPlan]) -> list[RunPlan]:
        """Give every idle process a run, and start processes while there are fewer than there may be."""
        left, taken = list(waiting), list[RunPlan]()
        for worker in self._workers:
            if left and worker.backend is not None and not worker.runs:
                group = self._choose(worker, left)
                job = make_job(group, self._options, self._command)
                worker.runs, worker.program = group, _program(group[0])
                os.truncate(worker.words, 0)  # last words are those about the run that was lost
                worker.send({"job": job})
                taken += group
                left = [plan for plan in left if plan not in group]
        starting = sum(worker.backend is None for worker in self._workers)
        while len(self._workers) < self._limit() and starting < len(left):
            self._workers.append(self._spawn())
            starting += 1
        return taken

    def _limit(self) -> int:
        if self._count is not None:
            return self._count
        # the first one finds out whether there is a GPU, and whether others would fight for its memory
        backends = {worker.backend for worker in self._workers}
        return available_cores() if "cpu" in backends else 1

    def _choose(self, worker: _Worker, waiting: Sequence[RunPlan]) -> list[RunPlan]:
        """Prefer a program that the worker has compiled, and else one that no other has."""
        taken = {other.program for other in self._workers if other is not worker}
        programs = map(_program, waiting)
        ranks = [0 if program == worker.program else 2 if program in taken else 1 for program in programs]
        first = waiting[min(range(len(waiting)), key=ranks.__getitem__)]
        if worker.backend == "cpu":
            return [first]
        return [plan for plan in waiting if plan.path.parent == first.path.parent]

    def _spawn(self) -> _Worker:
        count = self._count or available_cores()
        environment = dict(os.environ)
        for name in _THREADS:  # the processes share the cores and do not fight for them
            environment.setdefault(name, str(max(1, available_cores() // count)))
        if self._count is not None and self._count > 1:
            environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / self._count:.3f}")  # of a GPU
        self._started += 1
        words = Path(self._folder.name, f"worker-{self._started}")
        # a group of its own: Ctrl-C on a terminal is for the process that knows what to do about it
        with words.open("ab") as file:
            process = subprocess.Popen(
                self._program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                process_group=0,
            )
        assert process.stdout is not None
        worker = _Worker(process, words)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        return worker

    def news(self, seconds: float | None) -> list[Outcome]:
        """Read what the processes say, and find out which of them are no more."""
        found: list[Outcome] = []
        for key, _ in self._selector.select(seconds):
            worker = key.data
            read = os.read(key.fd, 65_536)
            if worker is None:  # the bell
                continue
            if not read:
                found += self._lost(worker)
                continue
            *lines, worker.unread = (worker.unread + read).split(b"\n")
            for line in lines:
                message = json.loads(line)
                worker.backend = message.get("ready", worker.backend)
                if "outcomes" in message:
                    pairs = zip(worker.runs, message["outcomes"], strict=True)
                    found += [read_outcome(plan, record) for plan, record in pairs]
                    worker.runs = ()
        return found

    def _lost(self, worker: _Worker) -> list[Outcome]:
        ready, runs = worker.backend is not None, worker.runs
        words, code = self._bury(worker)
        how = _ending(code)
        text = f"the process that trained it ended with {how}"
        if words:
            text += f"; its last words: {words}"
        self._false_starts += not ready
        if self._false_starts > _FALSE_STARTS:  # the next one would do the same
            raise ConfigError(f"processes for training cannot start, {how}: {words or 'they say nothing'}")
        return [Outcome(plan, "failed", WorkerError(text)) for plan in runs]

    def _bury(self, worker: _Worker) -> tuple[str, int]:
        """Wait for the end of a process and let go of everything that belongs to it; what it said, and its code."""
        try:
            code = worker.process.wait(_MANNERS)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        assert worker.process.stdin is not None and worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        worker.process.stdout.close()
        with suppress(OSError):  # what could not be sent
            worker.process.stdin.close()
        words = worker.words.read_bytes()[-_LAST_WORDS:].decode(errors="replace").strip()
        worker.words.unlink()
        self._workers.remove(worker)
        return words, code

    def wake(self) -> None:
        """Ring the bell that `news` listens to."""
        with suppress(BlockingIOError):  # it has been ringing for long
            os.write(self._bell, b"!")

    def stop(self) -> None:
        """Tell every process that has a run."""
        for worker in self._workers:
            if worker.runs:
                worker.send({"stop": True})


def _ending(code: int) -> str:
    """How a process ended, from its exit code; below 0 it is that of a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"
