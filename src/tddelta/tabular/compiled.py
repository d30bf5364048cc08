"""How the loops of the laboratory are compiled and spread over threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar, cast

from tddelta import _plain
from tddelta.errors import MissingExtra
from tddelta.runs.origin import available_cores

try:
    from numba import njit
except ImportError as error:
    raise MissingExtra('the tabular loops need numba: pip install "tddelta[tabular]"') from error

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """Compile a loop over arrays; the result is kept on disk where that is possible; other threads run meanwhile."""
    loop: Any = njit(nogil=True)(function)
    with suppress(RuntimeError):  # no folder for it can be written
        loop.enable_caching()
    return cast(_F, loop)


def thread_count(threads: int | None) -> int:
    """Number of threads to use: the one given, or as many as there are cores; ConfigError unless it is at least 1."""
    if threads is None:
        return available_cores()
    return _plain.whole("threads", threads)


def over_blocks(block: Callable[[int, int], Any], runs: int, threads: int | None) -> None:
    """Call `block(first, last)` for ranges that together are 0 … runs − 1, on several threads.

    Args:
        block: Computes the runs first ≤ i < last, which depend on no other.
        runs: Number of runs.
        threads: Threads; None means one per core.

    Raises:
        ConfigError: `threads` is not a whole number of at least 1.
    """
    workers = thread_count(threads)
    if workers == 1 or runs == 1:
        block(0, runs)
        return
    cuts = [runs * i // min(runs, 4 * workers) for i in range(min(runs, 4 * workers) + 1)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(block, cuts[:-1], cuts[1:]))
