"""Learning with checkpoints: seed by seed and, where the method allows it, some steps at a time.

Every run does the same arithmetic in the same order, however the work is parted: the bytes are those of a call without
a break.
"""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tddelta.errors import CheckpointError, ConfigError
from tddelta.runs import checkpoints
from tddelta.runs.checkpoints import Checkpoint, Pauses
from tddelta.runs.files import Arrays, lock_file, storing
from tddelta.tabular._checks import FloatArray, IntArray
from tddelta.tabular.learners import Lesson, Memory, Task, loop_of, visits_after
from tddelta.tabular.loops import over_blocks, thread_count
from tddelta.tabular.mdp import FiniteMDP
from tddelta.tabular.sampling import Trajectory

Array = TypeVar("Array", FloatArray, IntArray)

ALGORITHM = 1
"""The version of what is learned and of the arrays it is saved in. None goes on with another one's checkpoints."""

PART_SECONDS = 0.5
"""What is learned in one go takes about this long, so that a checkpoint comes in time."""

MOST_STEPS = 4_000_000
"""Steps of all seeds that are learned from in one go; beyond a single seed."""

FIRST_STEPS = 20_000
"""Steps of a run in the first go, before it is known how long they take."""

FEWEST_STEPS = 100
"""Steps of a run in one go at least."""


def learn(task: Task, lesson: Lesson, place: Path, every: float) -> tuple[FloatArray, IntArray]:
    """Learn a task to its end, from where the newest checkpoint is.

    Args:
        task: Settings × seeds; its weights become those in the end.
        lesson: What is to be done.
        place: Folder of the checkpoints; it is made if need be.
        every: Seconds between two checkpoints.

    Returns:
        Errors, shape (2, A, N, C), and visits, shape (N, S).

    Raises:
        ConfigError: The checkpoints are of other arguments, or another process writes them.
        CheckpointError: The newest checkpoint is of a newer format.
        StorageError: A checkpoint cannot be written.
    """
    pauses, count = Pauses(every), len(task.seeds)
    with _held(place) as found:
        state = _State(task, lesson, place)
        if found is not None:
            state.restore(found)
        while state.done < count:
            state.advance()
            if state.done == count or pauses.over:
                with pauses.ended():
                    state.save()
    return state.errors, state.visits


@contextmanager
def _held(place: Path) -> Iterator[Checkpoint | None]:
    """Make a folder of checkpoints if need be, keep other processes from it, and read the newest one."""
    with storing(place):
        place.mkdir(parents=True, exist_ok=True)
    with lock_file(place / "lock", "choose another folder with checkpoint="):
        yield checkpoints.latest(place)


class _State:
    """How far learning has come: all seeds before `done`, and `step` steps of the next few."""

    def __init__(self, task: Task, lesson: Lesson, place: Path) -> None:
        self.task, self.lesson, self.place = task, lesson, place
        self.errors, self.visits = task.no_errors(), task.visits.copy()
        self.done, self.step, self.saves = 0, 0, 0
        self.size = thread_count(task.threads)  # seeds that are learned together
        self.steps = FIRST_STEPS
        self.part: Task | None = None
        self.memory: Memory | None = None
        self.stream: Trajectory | None = None
        self.part_errors: FloatArray | None = None
        self.arguments = _arguments(task, lesson)

    def advance(self) -> None:
        """Learn for about half a second."""
        began = time.perf_counter()
        if self.part is None:
            self._next_seeds()
        if self.lesson.loop:
            whole = self._some_steps()
            seconds = time.perf_counter() - began
            self.steps = max(FEWEST_STEPS, int(self.steps * min(2.0, PART_SECONDS / max(seconds, 1e-9))))
        else:
            whole = True
            assert self.part is not None
            self.part_errors, visits = self.lesson.learn(self.part, self.stream)
            self.visits[self.seeds] = visits
        if whole:
            self._take_over()
            if time.perf_counter() - began < PART_SECONDS and self.steps >= self.task.length:
                self.size *= 2  # such short runs go by many at a time

    @property
    def seeds(self) -> slice:
        """Those that are learned now."""
        return slice(self.done, min(self.done + self.size, len(self.task.seeds)))

    def _next_seeds(self) -> None:
        self.size = max(1, min(self.size, MOST_STEPS // self.task.length))
        self.part = self._task_of(self.seeds)
        if self.lesson.method != "phased":
            self.stream = self.lesson.stream(self.task, self.seeds)
        if self.lesson.loop:
            self.memory = Memory.of(self.part, len(self.part.step_sizes) * len(self.part.seeds))
            self.part_errors = self.part.no_errors()

    def _task_of(self, seeds: slice) -> Task:
        task = self.task
        return dataclasses.replace(
            task,
            seeds=task.seeds[seeds],
            weights=np.ascontiguousarray(task.weights[:, seeds]),
            visits=task.visits[seeds],
        )

    def _some_steps(self) -> bool:
        """Some steps of the loops that can be interrupted; returns whether these were the last."""
        part, stream, errors, memory = self.part, self.stream, self.part_errors, self.memory
        assert part is not None and stream is not None and errors is not None and memory is not None
        loop = loop_of(part, self.lesson.method, self.lesson.chunk)
        end = min(self.step + self.steps, part.length)

        def block(first: int, last: int) -> None:
            part.call(loop, stream, errors, first, last, (self.step, end), memory.rows(first, last))

        over_blocks(block, len(memory.begun), part.threads)
        self.step = end
        if end < part.length:
            return False
        self.visits[self.seeds] = visits_after(part, stream)
        return True

    def _take_over(self) -> None:
        assert self.part is not None and self.part_errors is not None
        self.task.weights[:, self.seeds] = self.part.weights
        self.errors[:, :, self.seeds] = self.part_errors
        self.done, self.step = self.seeds.stop, 0
        self.part = self.memory = self.stream = self.part_errors = None

    def save(self) -> None:
        """Write a checkpoint."""
        arrays: Arrays = {"weights": self.task.weights, "errors": self.errors, "visits": self.visits}
        if self.part is not None and self.memory is not None and self.part_errors is not None:
            arrays |= {f"memory.{name}": array for name, array in self.memory._asdict().items()}
            arrays |= {"part.weights": self.part.weights, "part.errors": self.part_errors}
        self.saves += 1
        record = {"seeds_done": self.done, "seeds_begun": self.size, "step": self.step, "arguments": self.arguments}
        checkpoints.save(self.place, self.saves, arrays, {"saves": self.saves, **record})

    def restore(self, found: Checkpoint) -> None:
        """Go on from a checkpoint; ConfigError if it is of other arguments."""
        _check_arguments(self.place, found, self.arguments)
        self.saves, self.done, self.step = (found.count(name) for name in ("saves", "seeds_done", "step"))
        with complete(found):
            loops = self.lesson.loop and self.step < self.task.length
            if self.done > len(self.task.seeds) or (self.step and not loops):
                raise ValueError(f"{self.done} seeds and {self.step} steps are done")
            self.task.weights[:] = found.arrays["weights"]
            self.errors = _like(self.errors, found.arrays["errors"])
            self.visits = _like(self.visits, found.arrays["visits"])
        if self.step:
            self.size = found.count("seeds_begun")
            self._next_seeds()
            assert self.part is not None and self.memory is not None and self.part_errors is not None
            with complete(found):
                self.part.weights[:] = found.arrays["part.weights"]
                self.part_errors = _like(self.part_errors, found.arrays["part.errors"])
                old = {name: found.arrays[f"memory.{name}"] for name in Memory._fields}
                new = {name: _like(array, old[name]) for name, array in self.memory._asdict().items()}
                self.memory = Memory(**new)


def seed_by_seed(
    block: Callable[[int, int], None],
    count: int,
    threads: int | None,
    place: Path,
    every: float,
    *,
    arguments: dict[str, Any],
    state: Callable[[int], Arrays],
    restore: Callable[[int, Arrays], None],
) -> None:
    """Learn for several seeds that depend on nothing else, and save which of them are done.

    Args:
        block: Learns for the seeds first ≤ n < last.
        count: Number of seeds.
        threads: Threads, or None.
        place: Folder of the checkpoints; it is made if need be.
        every: Seconds between two checkpoints.
        arguments: All that the bytes depend on, for `plain_arguments`.
        state: The arrays to save once so many seeds are done.
        restore: Takes the number of seeds that are done, and their arrays.

    Raises:
        ConfigError, CheckpointError, StorageError: As `learn`.
    """
    pauses, described, done, saves, size = Pauses(every), plain_arguments(arguments), 0, 0, thread_count(threads)
    with _held(place) as found:
        if found is not None:
            _check_arguments(place, found, described)
            done, saves = found.count("seeds_done"), found.count("saves")
            with complete(found):
                if done > count:
                    raise ValueError(f"{done} seeds are done")
                restore(done, found.arrays)
        while done < count:
            first, began = done, time.perf_counter()
            done = min(count, first + size)
            over_blocks(functools.partial(_shifted, block, first), done - first, threads)
            if time.perf_counter() - began < PART_SECONDS:
                size *= 2
            if done == count or pauses.over:
                with pauses.ended():
                    saves += 1
                    record = {"saves": saves, "seeds_done": done, "arguments": described}
                    checkpoints.save(place, saves, state(done), record)


@contextmanager
def complete(found: Checkpoint) -> Iterator[None]:
    """Turn what NumPy says of arrays that are missing or of another shape into a sentence.

    Raises:
        CheckpointError: In place of it.
    """
    try:
        yield
    except (LookupError, ValueError, TypeError) as error:
        what = f"the array {error} is missing" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"{found.path} does not hold what its arguments need ({what}): remove it, or pass another folder "
            "with checkpoint="
        ) from error


def _like(array: Array, stored: npt.NDArray[Any]) -> Array:
    """A copy of what was stored, since that cannot be written to; ValueError unless it is like the array."""
    if (stored.shape, stored.dtype) != (array.shape, array.dtype):
        raise ValueError(f"{stored.dtype}{stored.shape} in place of {array.dtype}{array.shape}")
    return np.array(stored)


def _shifted(block: Callable[[int, int], None], by: int, first: int, last: int) -> None:
    block(by + first, by + last)


def _check_arguments(place: Path, found: Checkpoint, arguments: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other arguments; drop damaged ones that are newer."""
    stored = found.record.get("arguments")
    stored = stored if isinstance(stored, Mapping) else {}
    names = dict.fromkeys([*stored, *arguments])
    other = [name for name in names if stored.get(name) != arguments.get(name)]
    if other:
        # the components to begin with have a row per step size and seed: name them where nothing else explains it
        other = [name for name in other if name != "initial_deltas"] or other
        said = "; ".join(_difference(name, stored.get(name), arguments.get(name)) for name in other)
        raise ConfigError(
            f"{place} holds the checkpoint of a call with other arguments: {said}: pass the same, or another folder "
            "with checkpoint="
        )
    checkpoints.discard(place, newer_than=found.count("saves"))


def _arguments(task: Task, lesson: Lesson) -> dict[str, Any]:
    """Everything that the bytes depend on, as strict JSON; large arrays by their checksums."""
    method, record = lesson.method, lesson.record
    arguments = {
        "method": _name(method) if callable(method) else method,
        "scales": task.scales.to_dict(),
        "step_sizes": np.where(task.decaying, "1/n", task.step_sizes.astype(str)).tolist(),
        "seeds": list(task.seeds) if lesson.given is None else None,
        "steps": task.length,
        "record": record if isinstance(record, str) else list(record),
        "time_limit": lesson.time_limit,
        "chunk": lesson.chunk,
        "trajectories": lesson.trajectories,
        "mdp": task.mdp,
        "features": (task.columns, task.strengths),
        "initial_deltas": (task.weights, task.visits),
        "trajectory": None if lesson.given is None else tuple(lesson.given),
    }
    return plain_arguments(arguments)


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as strict JSON, `ALGORITHM` among them; processes and tuples of arrays by their checksums."""

    def checked(value: Any) -> Any:
        if isinstance(value, FiniteMDP):
            value = (value.transition, value.reward, value.terminal, value.policy, value.start)
        arrays = isinstance(value, tuple) and any(isinstance(item, np.ndarray) for item in value)
        return _checksum(*value) if arrays else value

    plain = {name: checked(value) for name, value in arguments.items()}
    found: dict[str, Any] = json.loads(json.dumps({"algorithm": ALGORITHM, **plain}))
    return found


def _name(function: Any) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _checksum(*arrays: Any) -> str:
    whole = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        whole.update(f"{array.dtype}{array.shape}".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()[:16]


def _difference(name: str, stored: Any, given: Any) -> str:
    if name in ("mdp", "features", "initial_deltas", "trajectory"):
        return f"another {name}"
    return f"{name} {json.dumps(stored):.80} there and {json.dumps(given):.80} now"
