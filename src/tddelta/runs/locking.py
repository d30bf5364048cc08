"""Who may write a run directory: one process at a time, told by a lock that ends with the process, however it ends."""

import os
import time
from pathlib import Path
from typing import IO

from tddelta.errors import ConfigError
from tddelta.runs.files import storing

try:  # POSIX only: elsewhere a run in progress is not told from one that was cut off
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
"""Whether the system has locks on files."""

_PATIENCE = 1.0  # seconds; who only looks whether a directory is locked holds the lock for a moment


def lock(path: Path) -> IO[bytes] | None:
    """Lock a run directory until the file that is returned is closed.

    Returns:
        The file that holds the lock; None where the directory has no `timing.jsonl`.

    Raises:
        ConfigError: Another writer has the directory open.
        StorageError: The directory cannot be written to.
    """
    place = path / "timing.jsonl"
    return lock_file(place, "choose another folder with out=") if place.is_file() else None


def lock_file(place: Path, advice: str, *, shared: bool = False) -> IO[bytes]:
    """Lock a folder by one of its files, which is made if need be, until what is returned is closed.

    Args:
        place: The file.
        advice: What to do in place of waiting.
        shared: Whether others that share it may have the lock at the same time.

    Raises:
        ConfigError: It is locked.
        StorageError: The folder cannot be written to.
    """
    busy = ConfigError(f"{place.parent} is being written by another process: wait for it, or {advice}")
    with storing(place):
        file = place.open("ab")  # network file systems lock only what is open for writing
    try:
        if not _locked(file, shared=shared):
            raise busy
        try:
            same = os.path.samestat(os.fstat(file.fileno()), place.stat())
        except OSError:
            same = False
        if not same:  # its writer renamed it meanwhile
            raise busy
    except BaseException:
        file.close()
        raise
    return file


def _locked(file: IO[bytes], *, shared: bool) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while HAS_LOCKS:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        except OSError:  # a file system without locks
            break
    return True


def is_being_written(path: str | os.PathLike[str]) -> bool | None:
    """Tell whether a writer has this run directory open; None where the system has no file locks to tell it by."""
    try:
        with (Path(path) / "timing.jsonl").open("rb") as file:
            if HAS_LOCKS:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False if HAS_LOCKS else None


def set_aside(path: Path) -> Path | None:
    """Rename an unfinished run directory to `seed-N.unfinished-K` beside it; None where there is none."""
    if not path.exists():
        return None
    number = 1
    while (aside := path.with_name(f"{path.name}.unfinished-{number}")).exists():
        number += 1
    with storing(path):
        path.rename(aside)
    return aside
