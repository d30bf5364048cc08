"""Files of a run directory: strict JSON, JSON lines, archives of arrays, tensors; locks, and where a run comes from."""

import enum
import errno
import functools
import hashlib
import itertools
import json
import os
import platform
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Any, TypeGuard
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from tddelta._plain import is_number
from tddelta.errors import CheckpointError, ConfigError, StorageError, setting
from tddelta.timescales import plain_scales

FORMAT = 1
"""The version of the layout of parameters and other files of a run directory. A reader refuses a newer one."""

CONFIG_FORMAT = 3
"""The version of `config.json`: format 1 had five settings in place of `scales`, before 3 agents had other names."""

FORMER_NAMES = {"ppo-delta-bootstrap": "ppo-delta", "ppo-delta": "ppo-delta-difference"}
"""Names of agents, and what they were called before format 3."""


def upgraded_name(agent: str) -> str:
    """Today's name of an agent that a file from before format 3 names."""
    return {former: name for name, former in FORMER_NAMES.items()}.get(agent, agent)


Arrays = dict[str, npt.NDArray[Any]]
"""Arrays by name."""

NO_EPISODES: Arrays = {"steps": np.zeros(0, np.int64), "returns": np.zeros(0), "lengths": np.zeros(0, np.int64)}
"""Content of `episodes.npz` before any episode has ended."""

LAST_EPISODES = 100
"""The score of a run, and its recent return, is the mean return of this many last training episodes."""

STATES = ("running", "finished", "interrupted", "failed")
"""States of a run in `status.json`."""


def plain(value: Any, other: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return `value` as strict JSON knows it: Python numbers, lists, and None for NaN and infinities.

    `other` is called with what JSON has nothing for, and gives what stands for it, such as `name_of`.
    """
    if isinstance(value, Mapping):
        return {str(plain(key, other)): plain(item, other) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), other)
    if isinstance(value, list | tuple):
        return [plain(item, other) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else other(value)


def name_of(value: Any) -> str:
    """Name of a class or function, value of an enumeration's member, a path, and of anything else its class's name."""
    if isinstance(value, enum.Enum | os.PathLike):
        return str(value.value if isinstance(value, enum.Enum) else value)
    value = value.func if isinstance(value, functools.partial) else value
    return str(getattr(value, "__qualname__", type(value).__qualname__))


ELSEWHERE = "or name another place"
"""Advice for a file that belongs to no run."""


def replace(
    path: Path,
    content: bytes | Callable[[IO[bytes]], object],
    *,
    durable: bool = True,
    alone: bool = True,
    again: str = "then go on",
) -> None:
    """Write a whole file, its content or by a function, under a temporary name beside `path`, then rename it.

    Where others may write the file at the same time (not `alone`), that name is one of its own. `again` is as in
    `storing`.
    """
    temporary = path.with_name(f".{path.name}.tmp" if alone else f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with storing(path, again):
        try:
            with open(temporary, "wb", opener=_no_link) as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
                if durable:  # the contents must reach the disk before the name does
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def _no_link(path: str, flags: int) -> int:
    """Open a file, but not what a symbolic link leads to: a stranger's run directory may hold one to yours."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


@contextmanager
def storing(path: Path, again: str = "then go on") -> Iterator[None]:
    """Turn an OSError about a file or folder that cannot be written into a StorageError that says what to do.

    `again` ends its sentence: how to go on once the cause is gone.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check that its folder still exists and can be reached")
        raise StorageError(f"{path} cannot be written ({error.strerror or error}): {advice}, {again}") from error


_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space there"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make its folder writable"),
    errno.ELOOP: "remove the symbolic link in its place",
}


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk; without effect where there is none."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):  # a system that cannot sync folders
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any) -> bytes:
    """Return strict JSON on several lines; NaN is a ValueError."""
    return encoded(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def encoded(json_text: str) -> bytes:
    """Return JSON in UTF-8; what no UTF-8 has, from file names that are no text, is escaped as JSON does it."""
    return json_text.encode(errors="backslashreplace")


def read_json(path: Path, advice: str = "train this run again") -> dict[str, Any]:
    """Read a JSON object; CheckpointError names the file when there is none, and ends in `advice` if it is damaged."""
    try:
        return json_object(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: the run directory is incomplete, so train it again") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged, {error}: {advice}") from error


def json_object(content: bytes) -> dict[str, Any]:
    """The JSON object in a file or a line; a ValueError says what it holds instead."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but a {type(value).__name__}")
    return value


def read_status(path: Path) -> dict[str, Any]:
    """Read a `status.json`; CheckpointError where it is missing, damaged, or has an entry of another kind."""
    lost = not path.exists() and (path.parent / "checkpoints").is_dir()  # what is saved can go on all the same
    read = {"state": "interrupted"} if lost else read_json(path)
    status: dict[str, Any] = {"steps": 0, "updates": 0, "episodes": 0, "message": None, **read}
    kinds: dict[str, tuple[bool, str]] = {
        "state": (status.get("state") in STATES, f"one of {', '.join(STATES)}"),
        "message": (isinstance(status["message"], str | None), "a text or null"),
        **{name: (is_count(status[name]), "a whole number >= 0") for name in ("steps", "updates", "episodes")},
    }
    for name, (fits, kind) in kinds.items():
        if not fits:
            raise CheckpointError(
                f"{path}: {name} must be {kind}; got {status.get(name)!r:.80}: it is damaged or of something else, so "
                "train this run again"
            )
    return status


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether a value from a file is a whole number that counts something."""
    return type(value) is int and 0 <= value < 2**63


def number_in(row: Mapping[str, Any], name: str) -> int | float | None:
    """A finite number of a row; None where there is none, or something else."""
    value = row.get(name)
    return value if is_number(value) and -1e300 < value < 1e300 else None


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a `.jsonl` file, after removing what a crash left of its last line."""
    text = "".join(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    with storing(path), open(path, "ab+", opener=_no_link) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(encoded(text))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a `.jsonl` file up to its last whole line; one that does not exist has no rows."""
    rows: list[dict[str, Any]] = []
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return rows
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break  # a crash cut it short, or it is being written at this moment
        try:
            rows.append(json_object(line))
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged in line {number}, {error}: delete that line") from error
    return rows


# What NumPy raises of an archive that is cut short, damaged, of another kind, or a pickle.
_DAMAGE = (OSError, ValueError, EOFError, LookupError, AttributeError, TypeError, RuntimeError, BadZipFile, zlib.error)


def read_arrays(path: Path) -> Arrays | None:
    """Read an `.npz` archive without unpickling anything; None where there is no such file."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _DAMAGE as error:
        raise CheckpointError(f"{path} is no archive of plain arrays, or damaged ({error}): train it again") from error


def read_parameters(path: str | os.PathLike[str]) -> Arrays:
    """Read the tensors of a `parameters.safetensors`, by name, given the file or its run directory.

    Raises:
        CheckpointError: The file is missing, damaged, of another kind, or of a newer format.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = Path(path)
    path = path / "parameters.safetensors" if path.is_dir() else path
    if not path.exists():
        raise CheckpointError(f"{path} is missing: the run saved no parameters, so train it again")
    try:
        content = path.read_bytes()
        tensors = load(content)
        size = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:size])
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a safetensors file, or damaged ({error}): train it again") from error
    metadata = header.get("__metadata__", {})
    check_format(path, metadata.get("format"))
    # runs of before have no digest
    if metadata.get("sha256") not in (None, parameter_digest(header, content[size:])):
        raise CheckpointError(f"{path} is damaged: its checksum is not the one that it names, so train it again")
    return tensors


def parameter_digest(header: Mapping[str, Any], data: bytes) -> str:
    """Checksum of a safetensors file: of the bytes of its tensors, and of its header without the checksum."""
    metadata = {name: text for name, text in header["__metadata__"].items() if name != "sha256"}
    described = json.dumps({**header, "__metadata__": metadata}, sort_keys=True).encode()
    return hashlib.sha256(described + data).hexdigest()


def upgraded_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` as this version would have written it."""
    settings, agent = config.get("settings"), config.get("agent")
    if config.get("format") not in (1, 2) or not isinstance(settings, Mapping) or not isinstance(agent, Mapping):
        return dict(config)
    settings, agent = upgraded(settings), _upgraded_agent(agent)
    settings |= {"agent": agent["name"]} if "agent" in settings else {}
    return {**config, "format": CONFIG_FORMAT, "settings": settings, "agent": agent}


def _upgraded_agent(agent: Mapping[str, Any]) -> dict[str, Any]:
    """An agent under its name of today; the λ-returns that had no name then were those of the bootstrap form."""
    if "targets" not in agent:  # of another library
        return dict(agent)
    targets = {"tddelta.deep.agents:difference_targets": "tddelta.targets:lambda_targets"}
    if agent.get("basis") == "deltas" and agent.get("heads") == "ladder":
        targets["tddelta.targets:lambda_targets"] = "tddelta.deep.agents:bootstrap_targets"
    function = agent["targets"]
    return {**agent, "name": upgraded_name(agent.get("name", "")), "targets": targets.get(function, function)}


_FORMER = ("horizons", "components", "shortest_horizon", "longest_horizon", "ladder_factor")


def upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run, a preset file or a search, with `scales` in place of the five that format 1 had for it."""
    former = {name: settings[name] for name in _FORMER if settings.get(name) is not None}
    ladder = {"factor" if name == "ladder_factor" else name: value for name, value in former.items()}
    scales = former["horizons"] if "horizons" in former else plain_scales({"ladder": "halving", **ladder})
    if scales == [1]:  # one step: a number that is now a discount
        scales = [0.0]
    rest = {name: value for name, value in settings.items() if name not in _FORMER}
    return rest | {"scales": scales} if set(_FORMER) & set(settings) else rest


def downgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `upgraded`, where format 1 could say it: names of run directories are made of that."""
    if "scales" not in settings:
        return dict(settings)
    scales = settings["scales"]
    named = scales if isinstance(scales, Mapping) else {"ladder": "halving"}
    former = {"ladder_factor" if name == "factor" else name: named[name] for name in named if name != "ladder"}
    if isinstance(scales, list):
        former = {"horizons": [1.0] if scales == [0] else scales}
    elif isinstance(scales, str) or named.get("ladder") != "halving" or not set(former) <= set(_FORMER):
        return dict(settings)
    rest = {name: value for name, value in settings.items() if name != "scales"}
    return {**rest, **dict.fromkeys(_FORMER), "ladder_factor": 2.0, **former}


def check_format(path: Path, found: object, newest: int = FORMAT) -> None:
    """Raise CheckpointError unless `found`, the format named in a file of a run directory, is one we read."""
    try:
        version = int(str(found))
    except ValueError:
        raise CheckpointError(f"{path} was not written by tddelta: it names no format; got {found!r}") from None
    if version > newest:
        start = next(iter(read_rows(path.parent / "timing.jsonl")), {})
        versions = start.get("versions")
        writer = versions.get("tddelta") if isinstance(versions, Mapping) else None
        raise CheckpointError(
            f"{path} has format {version}, and this tddelta reads formats up to {newest}: "
            f"install {f'tddelta >= {writer}' if writer else 'a newer tddelta'} (pip install --upgrade tddelta)"
        )


try:  # POSIX only: elsewhere a run in progress is not told from one that was cut off
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
"""True where the system has locks on files."""

_PATIENCE = 1.0  # seconds; who asks whether a directory is locked holds the lock for a moment


def lock(path: Path) -> IO[bytes] | None:
    """Lock a run directory as `lock_file` does; None where it has no `timing.jsonl`."""
    place = path / "timing.jsonl"
    return lock_file(place, f"choose another folder with {setting('out', '')}") if place.is_file() else None


def lock_file(place: Path, advice: str, *, shared: bool = False) -> IO[bytes]:
    """Lock a folder by one of its files, which is made if need be, until what is returned is closed.

    Args:
        place: The file.
        advice: Alternative to waiting, for the sentence.
        shared: Let others that share it have the lock at the same time.

    Raises:
        ConfigError: Another writer has the lock.
        StorageError: The folder cannot be written to.
    """
    with storing(place):
        file = place.open("ab")  # network file systems lock only what is open for writing
    deadline = time.monotonic() + _PATIENCE
    try:
        while not (locked := _lock(file, shared=shared)) and time.monotonic() < deadline:
            time.sleep(0.02)
    except BaseException:
        file.close()
        raise
    with suppress(OSError):  # the folder's writer may have renamed it meanwhile
        if locked and os.path.samestat(os.fstat(file.fileno()), place.stat()):
            return file
    file.close()
    raise ConfigError(f"{place.parent} is being written by another process: wait for it, or {advice}")


def _lock(file: IO[bytes], *, shared: bool) -> bool:
    """Lock a file unless another process has; without effect on a system or a file system without locks."""
    try:
        if HAS_LOCKS:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def is_being_written(path: str | os.PathLike[str]) -> bool | None:
    """Tell whether a writer has this run directory open; None where the system has no file locks to tell it by."""
    try:
        with (Path(path) / "timing.jsonl").open("rb") as file:
            return not _lock(file, shared=True) if HAS_LOCKS else None
    except OSError:
        return False


def set_aside(path: Path) -> Path | None:
    """Rename an unfinished run directory to `seed-N.unfinished-K` beside it; None where there is none."""
    if not path.exists():
        return None
    names = (path.with_name(f"{path.name}.unfinished-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    with storing(path):
        path.rename(aside)
    return aside


def origin(command: Sequence[str], packages: Iterable[str], device: str) -> dict[str, Any]:
    """Return what the "start" and "resume" lines of `timing.jsonl` hold: command, versions and machine.

    Args:
        command: The command line; empty for that of this Python process.
        packages: Names of distributions; those that are not installed are left out.
        device: The processor that computes, as in "cpu: cpu".
    """
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # used from its source tree, or not needed here
            continue
    system = platform.platform()
    machine = {"processor": _processor(), "cores": available_cores(), "device": device, "system": system}
    return {"command": list(command) or ["python", *sys.argv], "versions": versions, "machine": machine}


def available_cores() -> int:
    """Number of processor cores that this process may use, also where a container limits them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # another system, or no limit: "max"
        return cores


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # platform.processor() is empty on most Linux systems
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(itertools.chain(names, [platform.machine()]))
    except OSError:
        return platform.processor() or platform.machine()
