"""Checkpoints: all that a computation continues from, each there completely or not at all.

```
RUN/checkpoints/0000001200/   the number says how far it had come: updates of a training run
  state.safetensors           arrays
  checkpoint.json             counters, and the size and the checksum of the arrays
```

A checkpoint is written under a hidden name, synced to the disk and then renamed. The last two are kept: one that was
damaged later on is passed over for the one before. Nothing here is ever unpickled or executed.
"""

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tddelta import __version__
from tddelta.errors import CheckpointError, CheckpointWarning, ConfigError, DataError, setting
from tddelta.runs import files
from tddelta.runs.files import NO_EPISODES, Arrays

FORMAT = 1
"""The version of a checkpoint's layout. A reader refuses a newer one."""

KEPT = 2
"""Checkpoints that are kept: the newest, and one in case it is damaged."""

CHECKPOINT_SECONDS = 300.0
"""Default seconds between two checkpoints of a run; longer where saving takes long."""

SHARE = 0.01
"""Saving takes at most about this share of the time: the pauses between two saves grow with what they cost."""

_FOLDER, _STATE, _RECORD = "checkpoints", "state.safetensors", "checkpoint.json"


class _NewerFormatError(CheckpointError):
    """A whole checkpoint that only a newer version can read: no reason to fall back to an older one."""


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint that was read and found whole.

    Attributes:
        path: Its folder.
        record: Content of `checkpoint.json`.
        arrays: The arrays by name.
    """

    path: Path
    record: Mapping[str, Any]
    arrays: Arrays = field(repr=False)

    def count(self, name: str) -> int:
        """A counter of the record, such as "updates"; CheckpointError where it has none."""
        value = self.record.get(name)
        if not files.is_count(value):
            raise CheckpointError(f"{self.path / _RECORD} must count {name}; got {value!r}: it is of something else")
        return value


class Pauses:
    """Schedule of something that takes time, such as saving. `spent` counts the seconds that it took so far.

    Args:
        seconds: Pause between two, at least 0 (ConfigError otherwise); longer where one takes more than `share` of it,
            and none if 0.
        at_once: Let the first be due without a pause.
        share: Of the time, in (0, 1]. What takes turns in saving one run shares `SHARE`.
    """

    def __init__(self, seconds: float, *, at_once: bool = False, share: float = SHARE) -> None:
        if not 0 <= seconds < np.inf:
            raise ConfigError(
                f"{setting('checkpoint_every')} must be a number of seconds >= 0; got {seconds}: 300 is five minutes"
            )
        self._seconds, self._share, self._cost, self.spent = seconds, share, 0.0, 0.0
        self._last = -np.inf if at_once else time.perf_counter()

    @property
    def over(self) -> bool:
        """True if it is due."""
        pause = max(self._seconds, self._cost / self._share) if self._seconds else 0.0
        return time.perf_counter() - self._last >= pause

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Measure what it takes this time; the next pause begins after it."""
        began = time.perf_counter()
        yield
        self._last = time.perf_counter()
        self._cost = self._last - began
        self.spent += self._cost


def save(run: Path, number: int, arrays: Arrays, record: Mapping[str, Any]) -> None:
    """Write a checkpoint, then drop all but the last two.

    Args:
        run: Folder that the checkpoints belong to, such as a run directory.
        number: Progress of the computation; the newest checkpoint has the largest.
        arrays: The state.
        record: Anything else that is needed, as strict JSON.

    Raises:
        StorageError: It cannot be written. The checkpoints before it stay as they were.
        DataError: An array does not hold numbers.
    """
    from safetensors.numpy import save as to_safetensors

    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise DataError(f"a checkpoint holds numbers only; got {array.dtype} in {name!r}: convert it")
    content = to_safetensors({name: np.asarray(array, order="C") for name, array in arrays.items()})
    described = {"format": FORMAT, "tddelta": __version__, "complete": True, **record}
    described |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    described["checksum"] = _checksum(described)
    folder = run / _FOLDER
    place, temporary = folder / f"{number:010}", folder / f".{number:010}.tmp"
    with files.storing(place):
        if not folder.is_dir():
            folder.mkdir()
            files.sync(run)
        _remove(temporary)
        try:
            temporary.mkdir()
            (temporary / _STATE).write_bytes(content)
            (temporary / _RECORD).write_bytes(files.to_json(described))
            for written in (temporary / _STATE, temporary / _RECORD, temporary):
                files.sync(written)
            _remove(place)  # one of the same moment: its state is the same
            temporary.rename(place)
            files.sync(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for old in _all(run)[:-KEPT]:
            _remove(old)


def latest(run: str | os.PathLike[str], fits: Callable[[Checkpoint], object] | None = None) -> Checkpoint | None:
    """Read the newest whole checkpoint, or None where there is none; a CheckpointWarning names each damaged one.

    Args:
        run: As in `save`.
        fits: Raises CheckpointError where a checkpoint does not go with the rest of the folder.

    Raises:
        CheckpointError: The newest whole one is of a newer format.
    """
    for path in reversed(_all(Path(run))):
        try:
            found = read(path)
            if fits is not None:
                fits(found)
            return found
        except _NewerFormatError:
            raise
        except CheckpointError as error:
            text = f"{error}; this checkpoint is passed over for the one before it, or for a new start"
            warnings.warn(text, CheckpointWarning, stacklevel=2)
    return None


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint, given its folder; CheckpointError where it is missing, damaged, or of a newer format."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path, state = Path(path), Path(path, _STATE)
    record, content = _read_record(path / _RECORD), _content(state)
    if len(content) != record.get("bytes"):
        raise CheckpointError(f"{state} is damaged: it has {len(content)} bytes in place of {record.get('bytes')}")
    if hashlib.sha256(content).hexdigest() != record.get("sha256"):
        raise CheckpointError(f"{state} is damaged: its checksum is not the one in {_RECORD}")
    try:
        return Checkpoint(path, record, load(content))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{state} holds no arrays in the form of safetensors ({error})") from error


def discard(run: Path, *, newer_than: int = -1) -> None:
    """Delete the checkpoints with larger numbers, by default all, and what is left of unfinished ones."""
    folder = run / _FOLDER
    if not folder.is_dir():
        return
    with files.storing(folder):
        for path in list(folder.iterdir()):
            if path.name.startswith(".") or (path.name.isdecimal() and int(path.name) > newer_than):
                _remove(path)
        if newer_than < 0:
            shutil.rmtree(folder)


def _all(run: Path) -> list[Path]:
    folder = run / _FOLDER
    return sorted(path for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


def _remove(path: Path) -> None:
    """Delete a folder; under a hidden name, so that half of it is never taken for a damaged checkpoint."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        hidden = path if path.name.startswith(".") else path.with_name(f".{path.name}.old")
        if hidden != path:
            shutil.rmtree(hidden, ignore_errors=True)
            path.rename(hidden)
        shutil.rmtree(hidden)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from error


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = files.json_object(_content(path))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged, {error}") from error
    if record.get("checksum") != _checksum(record):
        raise CheckpointError(f"{path} is damaged: its checksum is wrong")
    version = record.get("format")
    if not isinstance(version, int) or record.get("complete") is not True:
        raise CheckpointError(f"{path} is not of a whole checkpoint of tddelta; got format {version!r}")
    if version > FORMAT:
        raise _NewerFormatError(
            f"{path} has format {version}, and this tddelta reads checkpoints up to format {FORMAT}: install "
            f"tddelta >= {record.get('tddelta', 'the one that wrote it')} (pip install --upgrade tddelta)"
        )
    return record


def _checksum(record: Mapping[str, Any]) -> str:
    """Checksum of everything else in the record; the same in every format, so that damage is told from a newer one."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------- of a training run


_OF_THE_END = ("fault.json", "rollout.npz", "critic.npz")  # files of a run that is over


def refuse_links(path: Path) -> None:
    """Refuse (ConfigError) symbolic links in a run directory: what they lead to would be cut back or written to.

    Those that W&B makes among its own files do not count.
    """
    for folder, folders, names in os.walk(path):
        for place in (Path(folder, name) for name in (*folders, *names)):
            if place.is_symlink():
                raise ConfigError(
                    f"{place} is a symbolic link, and going on would write to what it leads to: put the file itself in "
                    "its place, or remove the link"
                )
        if Path(folder) == path and "wandb" in folders:
            folders.remove("wandb")


def before(path: Path, checkpoint: Checkpoint) -> tuple[list[bytes], Arrays]:
    """Lines of the evaluations, and training episodes, of a run directory up to a checkpoint.

    Raises:
        CheckpointError: These, or rows of the metrics, are missing or damaged.
    """
    counts = {name: checkpoint.count(name) for name in ("updates", "steps", "episodes", "metrics_bytes", "evaluations")}
    rows, file = path / "metrics.jsonl", path / "episodes.npz"
    lines = rows.read_bytes()[: counts["metrics_bytes"]].splitlines() if rows.exists() else []
    if len(lines) != counts["updates"] or (lines and files.number_in(_row(lines[-1]), "update") != counts["updates"]):
        raise CheckpointError(f"{rows} lacks rows of the {counts['updates']} updates before {checkpoint.path}")
    evaluations = evaluations_until(path, counts["steps"])
    if len(evaluations) < counts["evaluations"]:
        raise CheckpointError(f"{path / 'evaluations.jsonl'} lacks some of the evaluations before {checkpoint.path}")
    count = counts["episodes"]
    arrays = {**NO_EPISODES, **((files.read_arrays(file) or {}) if count else {})}
    episodes = {name: arrays[name] for name in NO_EPISODES}
    if any(one.ndim != 1 or one.dtype.kind not in "iuf" or len(one) < count for one in episodes.values()):
        raise CheckpointError(f"{file} lacks some of the {count} episodes before the checkpoint")
    return evaluations, {name: one[:count] for name, one in episodes.items()}


def cut_back(path: Path, checkpoint: Checkpoint) -> Arrays:
    """Remove from a run directory what was written after a checkpoint; return the training episodes before it.

    Evaluations of the very step of the checkpoint stay: they may come from `tddelta evaluate`.
    """
    evaluations, episodes = before(path, checkpoint)
    rows, file, kept = path / "metrics.jsonl", path / "evaluations.jsonl", b"".join(evaluations)
    with files.storing(rows):
        os.truncate(rows, checkpoint.count("metrics_bytes"))
        files.sync(rows)
        if not kept:
            file.unlink(missing_ok=True)
        elif kept != file.read_bytes():
            files.replace(file, kept)
        for leftover in (*(path / name for name in _OF_THE_END), *path.glob(".*.tmp")):
            leftover.unlink(missing_ok=True)
    discard(path, newer_than=checkpoint.count("updates"))
    return episodes


def evaluations_until(path: Path, steps: int) -> list[bytes]:
    """Lines of the evaluations up to a number of environment steps; CheckpointError where the steps are no number."""
    file, kept = path / "evaluations.jsonl", []
    for line in file.read_bytes().splitlines(keepends=True) if file.exists() else ():
        row = _row(line) if line.endswith(b"\n") else {}
        found = files.number_in(row, "steps")
        if found is None and "steps" in row:
            raise CheckpointError(f"{file}: steps must be a number; got {row['steps']!r:.80}: delete that line")
        if found is not None and found <= steps:
            kept.append(line)
    return kept


def _row(line: bytes) -> dict[str, Any]:
    with suppress(ValueError):  # damaged
        return files.json_object(line)
    return {}
