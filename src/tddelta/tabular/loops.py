"""Common parts of the learners: compilation, arithmetic, checks of settings, threads, checkpoints between seeds."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast, no_type_check

import numpy as np

from tddelta import _plain
from tddelta._arrays import BoolArray, FloatArray, IntArray, array_of
from tddelta.errors import CheckpointError, ConfigError, MissingExtra, ShapeError
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


# ---------------------------------------------------------------- settings


def check_step_sizes(value: Any, scales: int) -> tuple[FloatArray, BoolArray]:
    """Step sizes (A, Z), and which of them are "1/n": these are 1, to be divided by the visits."""
    value = _plain.plain(value)
    settings = [value] if _single(value) else list(value)
    if not settings:
        raise ConfigError("step_sizes must name at least one; got none: pass, say, step_sizes=[0.1]")
    rates = np.array([_rates(setting, scales) for setting in settings])
    decaying = np.isnan(rates)
    return np.where(decaying, 1.0, rates), decaying


def _rates(setting: Any, scales: int) -> list[float]:
    """One setting, a number for every scale; NaN where it is "1/n"."""
    row = [_plain.as_real(rate) for rate in ([setting] * scales if _single(setting) else setting)]
    fits = all(rate == "1/n" or (_plain.is_number(rate) and 0 < rate < math.inf) for rate in row)
    if len(row) != scales or not fits:
        raise ConfigError(
            f"a step size must be a number above 0 or '1/n', or one of these for each of the {scales} scales; "
            f"got {setting!r:.80}: pass, say, 0.1, or a tuple of {scales}"
        )
    return [math.nan if rate == "1/n" else rate for rate in row]


def _single(value: Any) -> bool:
    """Tell whether a setting is one entry, for all scales: a number or a text."""
    return isinstance(value, (str, bytes)) or not isinstance(value, Iterable)


def check_record(value: Any, length: int) -> tuple[IntArray, bool]:
    """Steps after which errors are noted, and whether they are averages up to there."""
    whole = {"final": [length], "curve": range(1, length + 1)}
    if isinstance(value, str) and value in whole:
        return np.array(whole[value]), False
    points = () if isinstance(value, str) else _plain.entries("record", value)
    points = tuple(_plain.whole("record", point) for point in points)
    if not points or points[-1] > length or any(a >= b for a, b in pairwise(points)):
        raise ConfigError(
            f"record must be 'final', 'curve' or increasing numbers of steps up to {length}; got {value!r}: "
            "no average reaches beyond the data"
        )
    return np.array(points, np.int64), True


def check_initial(value: Any, shape: tuple[int, ...], runs: str, own: str) -> FloatArray:
    """Components, or weights of features, to begin with, in a new array of this shape, with axes (runs, own)."""
    if value is None:
        return np.zeros(shape)
    array, alone = array_of("initial_deltas", value), shape[runs.count(",") + 1 :]
    if array.dtype.kind in "iuf" and array.shape[-len(alone) :] == alone:
        with suppress(ValueError):  # of another number of runs
            return np.array(np.broadcast_to(array, shape), np.float64, order="C")
    raise ShapeError(
        f"initial_deltas must have shape ({own}) = {alone}, or ({runs}, {own}) = {shape}; got {array.dtype} of shape "
        f"{array.shape}: use add_scale where the ladder has grown"
    )


# ---------------------------------------------------------------- threads


def thread_count(threads: int | None) -> int:
    """Number of threads to use: the one given, or as many as there are cores; ConfigError unless it is at least 1."""
    return available_cores() if threads is None else _plain.whole("threads", threads)


def over_blocks(block: Callable[[int, int], Any], runs: int, threads: int | None, first: int = 0) -> None:
    """Call `block(begin, end)`, for runs begin ≤ i < end, for all from `first` to first + runs − 1, on threads.

    No run depends on another. None means a thread per core; ConfigError unless there is at least 1.
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
        arguments: All that the bytes depend on, by name; large arrays in tuples. A ConfigError if those saved differ.
        state: The arrays to save once so many seeds are done.
        restore: Takes the number of seeds that are done, and their arrays.
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
            try:
                if done > count:
                    raise ValueError(f"{done} seeds are done")
                restore(done, found.arrays)
            except (LookupError, ValueError, TypeError) as error:  # arrays are missing, or of another shape
                what = f"the array {error} is missing" if isinstance(error, KeyError) else str(error)
                raise CheckpointError(
                    f"{found.path} does not hold what its arguments need ({what}): remove it, or pass another folder "
                    "with checkpoint="
                ) from error
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
        if not (isinstance(value, tuple) and any(isinstance(item, np.ndarray) for item in value)):
            return value
        whole = hashlib.sha256()
        for array in map(np.ascontiguousarray, value):
            whole.update(f"{array.dtype}{array.shape}".encode())
            whole.update(array.tobytes())
        return whole.hexdigest()[:16]

    plain = {name: checked(value) for name, value in arguments.items()}
    found: dict[str, Any] = json.loads(json.dumps({"algorithm": ALGORITHM, **plain}))
    return found
