"""How the compiled loops run: compilation, threads, checkpoints between seeds; and the arithmetic that they share."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast, no_type_check

import numpy as np

from tddelta import _plain
from tddelta.errors import CheckpointError, ConfigError, MissingExtra
from tddelta.runs import checkpoints
from tddelta.runs.checkpoints import Checkpoint, Pauses
from tddelta.runs.files import Arrays, available_cores, lock_file, storing
from tddelta.tabular.mdp import FiniteMDP

try:
    from numba import njit
except ImportError as error:
    raise MissingExtra('the tabular loops need numba: pip install "tddelta[tabular]"') from error

ALGORITHM = 2
"""Version of what is learned and of the arrays it is saved in. None goes on with another one's checkpoints."""

GROUP_SECONDS = 0.5
"""Seeds are learned in groups that take about this long, so that a checkpoint comes in time."""

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """Compile a loop over arrays; the result is kept on disk where that is possible; other threads run meanwhile."""
    loop: Any = njit(nogil=True)(function)
    with suppress(RuntimeError):  # no folder for it can be written
        loop.enable_caching()
    return cast(_F, loop)


# ---------------------------------------------------------------- arithmetic that several loops share


@compiled
@no_type_check
def component_errors(reward, own, following, terminated, gammas, out):
    """TD errors δ^z of all components; see `tddelta.td_errors`. Nothing that follows a terminal step is read."""
    below = 0.0  # V_{z−1}(s')
    for z in range(len(gammas)):
        out[z] = -own[z]
        if not terminated:
            shorter = gammas[z - 1] if z > 0 else 0.0
            out[z] += (gammas[z] - shorter) * below + gammas[z] * following[z]
            below += following[z]
    out[0] += reward


@compiled
@no_type_check
def weight(powers, z, n):
    """γ_z^n − γ_{z−1}^n, what n steps weigh in component z: `powers[z, n]` is γ_z^n."""
    return powers[z, n] - powers[z - 1, n] if z > 0 else powers[z, n]


# ---------------------------------------------------------------- threads


def thread_count(threads: int | None) -> int:
    """Number of threads to use: the one given, or as many as there are cores; ConfigError unless it is at least 1."""
    return available_cores() if threads is None else _plain.whole("threads", threads)


def over_blocks(block: Callable[[int, int], Any], runs: int, threads: int | None, first: int = 0) -> None:
    """Call `block(begin, end)` for ranges that together are `first` … first + runs − 1, on several threads.

    Args:
        block: Computes the runs begin ≤ i < end, which depend on no other.
        runs: Number of runs.
        threads: Threads; None means one per core. ConfigError unless at least 1.
        first: Number of the first run.
    """
    workers = thread_count(threads)
    parts = 1 if workers == 1 else min(runs, 4 * workers)
    cuts = [first + runs * i // parts for i in range(parts + 1)]
    if parts == 1:
        block(*cuts)
        return
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(block, cuts[:-1], cuts[1:]))


# ---------------------------------------------------------------- checkpoints


def seed_by_seed(
    learn: Callable[[int, int], None],
    count: int,
    threads: int | None,
    checkpoint: str | os.PathLike[str] | None,
    every: float,
    *,
    arguments: Mapping[str, Any],
    state: Callable[[int], Arrays],
    restore: Callable[[int, Arrays], None],
) -> None:
    """Learn for several seeds, a group at a time, saving after a group; go on from the newest checkpoint.

    Every seed does the same arithmetic in any group, so that the bytes are those of `learn(0, count)`.

    Args:
        learn: Learns for the seeds first ≤ n < last, which depend on no other.
        count: Number of seeds.
        threads: Threads, or None: the first group has a seed for each.
        checkpoint: Folder of the checkpoints, which is made if need be; None learns all seeds at once.
        every: Seconds between two checkpoints.
        arguments: All that the bytes depend on, by name; large arrays in tuples.
        state: The arrays to save once so many seeds are done.
        restore: Takes the number of seeds that are done, and their arrays.

    Raises:
        ConfigError: The checkpoints are of other arguments, or another process writes them.
        CheckpointError: The newest checkpoint is of a newer format, or lacks arrays.
        StorageError: A checkpoint cannot be written.
    """
    if checkpoint is None:
        learn(0, count)
        return
    place = Path(checkpoint)
    pauses, described, done, saves, size = Pauses(every), _described(arguments), 0, 0, thread_count(threads)
    with storing(place):
        place.mkdir(parents=True, exist_ok=True)
    with lock_file(place / "lock", "choose another folder with checkpoint="):
        found = checkpoints.latest(place)
        if found is not None:
            _check_arguments(place, found, described)
            done, saves = found.count("seeds_done"), found.count("saves")
            with _whole(found):
                if done > count:
                    raise ValueError(f"{done} seeds are done")
                restore(done, found.arrays)
        while done < count:
            first, began = done, time.perf_counter()
            done = min(count, first + size)
            learn(first, done)
            if time.perf_counter() - began < GROUP_SECONDS:
                size *= 2
            if done == count or pauses.over:
                with pauses.ended():
                    saves += 1
                    record = {"saves": saves, "seeds_done": done, "arguments": described}
                    checkpoints.save(place, saves, state(done), record)


@contextmanager
def _whole(found: Checkpoint) -> Iterator[None]:
    """Turn what NumPy says of arrays that are missing or of another shape into a CheckpointError."""
    try:
        yield
    except (LookupError, ValueError, TypeError) as error:
        what = f"the array {error} is missing" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"{found.path} does not hold what its arguments need ({what}): remove it, or pass another folder "
            "with checkpoint="
        ) from error


def _check_arguments(place: Path, found: Checkpoint, arguments: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other arguments; drop damaged ones that are newer."""
    stored = found.record.get("arguments")
    stored = stored if isinstance(stored, Mapping) else {}
    other = [name for name in {**stored, **arguments} if stored.get(name) != arguments.get(name)]
    if "algorithm" in other:
        raise ConfigError(
            f"{place} holds the checkpoint of another version of tddelta: pass another folder with checkpoint="
        )
    if other:
        # the components to begin with have a row per step size and seed: name them where nothing else explains it
        other = [name for name in other if name != "initial_deltas"] or other
        said = "; ".join(_difference(name, stored.get(name), arguments.get(name)) for name in other)
        raise ConfigError(
            f"{place} holds the checkpoint of a call with other arguments: {said}: pass the same, or another folder "
            "with checkpoint="
        )
    checkpoints.discard(place, newer_than=found.count("saves"))


def _difference(name: str, stored: Any, given: Any) -> str:
    if name in ("mdp", "features", "initial_deltas", "trajectory"):
        return f"another {name}"
    return f"{name} {json.dumps(stored):.80} there and {json.dumps(given):.80} now"


def _described(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as strict JSON, `ALGORITHM` among them; processes and tuples of arrays by their checksums."""

    def checked(value: Any) -> Any:
        if isinstance(value, FiniteMDP):
            value = (value.transition, value.reward, value.terminal, value.policy, value.start)
        arrays = isinstance(value, tuple) and any(isinstance(item, np.ndarray) for item in value)
        return _checksum(value) if arrays else value

    plain = {name: checked(value) for name, value in arguments.items()}
    found: dict[str, Any] = json.loads(json.dumps({"algorithm": ALGORITHM, **plain}))
    return found


def _checksum(arrays: tuple[Any, ...]) -> str:
    whole = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        whole.update(f"{array.dtype}{array.shape}".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()[:16]
