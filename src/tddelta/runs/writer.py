"""Writer of run directories."""

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tddelta.errors import ConfigError, DataError, setting
from tddelta.runs import checkpoints
from tddelta.runs.checkpoints import Checkpoint, cut_back, evaluations_until, refuse_links, usable
from tddelta.runs.files import (
    FORMAT,
    HAS_LOCKS,
    STATES,
    Arrays,
    append_rows,
    lock,
    number_in,
    parameter_digest,
    read_json,
    read_rows,
    read_status,
    replace,
    set_aside,
    storing,
    sync,
    to_json,
    upgraded_config,
)
from tddelta.runs.trackers import TrackerFactory, Tracking


class RunWriter:
    """Writes one run directory, and keeps it locked against a second writer until it is closed.

    Args:
        path: The run directory. Unless `resume` is set, it must not exist; its parents are made.
        config: Content of `config.json`: strict JSON, without times.
        provenance: Content of the "start" or "resume" line of `timing.jsonl`: `command`, `versions`, `machine`.
        resume: Go on from the newest checkpoint of an unfinished run directory: what was written after it is cut
            off. A directory without a usable checkpoint is renamed to `seed-N.unfinished-K`, and a new one begun.

    Attributes:
        path: The run directory.
        restored: The checkpoint to go on from; None for a new run.
        episodes_before: Training episodes up to there, as `Run.episodes`; None for a new run.

    Raises:
        ConfigError: `path` exists already; or, to resume, it has another config, is finished, is being written, or
            holds symbolic links.
        CheckpointError: The newest checkpoint is of a newer format, or `config.json`, `status.json` or
            `evaluations.jsonl` is damaged.
        StorageError: A file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        provenance: Mapping[str, Any],
        *,
        resume: bool = False,
    ) -> None:
        self.path = Path(path)
        self._tracking = Tracking((), self.path, config)
        self.restored: Checkpoint | None = None
        self._lock: IO[bytes] | None = None
        self.episodes_before: Arrays | None = None
        self._status: dict[str, Any] = {"state": "running", "steps": 0, "updates": 0, "episodes": 0, "message": None}
        if not (resume and os.path.lexists(self.path) and self._continue(config, provenance)):
            self._begin(config, provenance)

    def _begin(self, config: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Make the directory under another name, and rename it once it is whole and locked."""
        content, place = to_json(config), self.path
        exists = ConfigError(
            f"{place} exists already, and a run is never overwritten: choose another folder with "
            f"{setting('out', '')}, or another seed"
        )
        try:
            if os.path.lexists(place):
                raise FileExistsError
            self.path = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}.tmp")
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise exists from None
        except OSError as error:
            raise ConfigError(
                f"{place} cannot be made ({error}): choose another folder with {setting('out', '')}"
            ) from error
        try:
            self.timing(_event("start", provenance))
            (self.path / "metrics.jsonl").touch()
            self.status("running")
            replace(self.path / "config.json", content)
            self._lock = lock(self.path) if HAS_LOCKS else None
            self.path.rename(place)
        except BaseException as error:
            shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(error, OSError) and place.exists():
                raise exists from None
            raise
        self.path = place

    def _continue(self, config: Mapping[str, Any], provenance: Mapping[str, Any]) -> bool:
        """Go on where the newest checkpoint is; without one, make room for a new directory and return False."""
        refuse_links(self.path)
        held = lock(self.path)
        try:
            self._check_unfinished(config)
            evaluations_until(self.path, 0)  # one of something else is an error; the run is not set aside for it
            restored = checkpoints.latest(self.path, lambda found: usable(self.path, found)) if held else None
            if restored is None:
                set_aside(self.path)  # under the lock: nobody else goes on with it meanwhile
                return False
            self.episodes_before = cut_back(self.path, restored)
            self._lock, self.restored, held = held, restored, None
        finally:
            if held is not None:
                held.close()
        self.episodes(**self.episodes_before)
        steps, updates, episodes = (restored.count(name) for name in ("steps", "updates", "episodes"))
        self.status("running", steps=steps, updates=updates, episodes=episodes)
        self.timing({**_event("resume", provenance), "updates": updates, "steps": steps})
        return True

    def _check_unfinished(self, config: Mapping[str, Any]) -> None:
        if not (self.path / "config.json").exists():
            return  # cut off before it began
        if upgraded_config(read_json(self.path / "config.json")) != upgraded_config(json.loads(to_json(config))):
            raise ConfigError(
                f"{self.path} was started with other settings: choose another folder with {setting('out', '')}"
            )
        if read_status(self.path / "status.json")["state"] == "finished":
            raise ConfigError(f"{self.path} is finished: there is nothing to go on with")

    def track(self, track: Sequence[str | TrackerFactory], *, steps: int | None = None) -> None:
        """Let trackers follow the run from here on; what is written already they are told now.

        Args:
            track: Their names, or functions that make one; see `check_trackers`.
            steps: Environment steps at which the run goes on; None is the last line of `metrics.jsonl`.
        """
        if steps is None:
            rows = reversed(read_rows(self.path / "metrics.jsonl"))
            steps = next((int(number_in(row, "steps") or 0) for row in rows), 0)
        self._tracking = Tracking(track, self.path, read_json(self.path / "config.json"), steps)

    def checkpoint(self, arrays: Arrays, *, steps: int, updates: int, episodes: int) -> None:
        """Save what the run continues from, and with it what was written so far; keep the last two of them.

        `metrics` and `episodes` must have been called with everything up to here.

        Args:
            arrays: The state.
            steps: Environment steps so far.
            updates: Updates so far.
            episodes: Training episodes so far.

        Raises:
            StorageError: It cannot be written; the one before it is still there.
        """
        rows = self.path / "metrics.jsonl"
        with storing(rows):
            for path in (rows, self.path / "evaluations.jsonl", self.path):
                sync(path)
            size = rows.stat().st_size
        # later ones, of parameters from before a break, are no part of what the checkpoint needs
        _, evaluations = evaluations_until(self.path, steps)
        counts = {"steps": steps, "updates": updates, "episodes": episodes}
        record = {**counts, "metrics_bytes": size, "evaluations": evaluations}
        checkpoints.save(self.path, updates, arrays, record)

    def fault(self, content: Mapping[str, Any]) -> None:
        """Replace `fault.json`: what was found in the update that made the run fail."""
        replace(self.path / "fault.json", to_json(content))

    def metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one line per update to `metrics.jsonl`; NaN becomes null."""
        rows = list(rows)
        append_rows(self.path / "metrics.jsonl", rows)
        self._tracking.metrics(rows)

    def timing(self, row: Mapping[str, Any]) -> None:
        """Append one event to `timing.jsonl`."""
        append_rows(self.path / "timing.jsonl", [row])
        self._tracking.timing(row)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Append one evaluation to `evaluations.jsonl`."""
        append_evaluation(self.path, row)
        self._tracking.evaluation(row)

    def status(
        self,
        state: str,
        *,
        steps: int | None = None,
        updates: int | None = None,
        episodes: int | None = None,
        message: str | None = None,
    ) -> None:
        """Replace `status.json`; a count that is left out stays as it was. A finished run loses its checkpoints."""
        if state not in STATES:
            raise ConfigError(f"state must be one of {', '.join(STATES)}; got {state!r}")
        counts = {"steps": steps, "updates": updates, "episodes": episodes}
        self._status |= {"state": state} | {name: int(count) for name, count in counts.items() if count is not None}
        self._status["message"] = message
        replace(self.path / "status.json", to_json(self._status), durable=state != "running")
        if state == "finished":  # not before its status says so: until then it may have to go on
            with storing(self.path):
                sync(self.path)
            checkpoints.discard(self.path)

    def episodes(self, steps: npt.ArrayLike, returns: npt.ArrayLike, lengths: npt.ArrayLike) -> None:
        """Replace `episodes.npz` by these training episodes, in order of steps."""
        self._save("episodes", steps=np.asarray(steps, np.int64), returns=np.asarray(returns, np.float64),
                   lengths=np.asarray(lengths, np.int64))  # fmt: skip

    def arrays(self, name: str, **arrays: npt.ArrayLike) -> None:
        """Replace `name.npz`, where name is "rollout" or "critic"."""
        if name not in ("rollout", "critic"):
            raise ConfigError(f"name must be 'rollout' or 'critic'; got {name!r}")
        self._save(name, **{key: np.asarray(value) for key, value in arrays.items()})

    def _save(self, name: str, **arrays: npt.NDArray[Any]) -> None:
        for key, array in arrays.items():
            if array.dtype.hasobject:  # NumPy could only pickle it
                raise DataError(f"{name}.npz: {key} must be an array of numbers; got dtype {array.dtype}")
        # compressed: observations are mostly zeros, and zip entries made by NumPy carry no time
        replace(self.path / f"{name}.npz", lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]

    def parameters(self, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> None:
        """Replace `parameters.safetensors`; the metadata gets the format and a digest beside what is given."""
        from safetensors.numpy import save

        content = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
        size = 8 + int.from_bytes(content[:8], "little")
        # safetensors writes metadata in random order, so two equal runs would differ: write the header here
        header = {"__metadata__": {"format": str(FORMAT), **metadata}, **json.loads(content[8:size])}
        header["__metadata__"]["sha256"] = parameter_digest(header, content[size:])
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        whole = len(text).to_bytes(8, "little") + text + content[size:]
        replace(self.path / "parameters.safetensors", whole)

    def close(self) -> None:
        """Release the lock, and end what follows the run."""
        self._tracking.close(self._status["state"])
        if self._lock is not None:
            self._lock.close()

    def reopen(self) -> None:
        """Take the lock again after `close`, to write more.

        Raises:
            ConfigError: Somebody else writes there meanwhile.
        """
        if HAS_LOCKS and (self._lock is None or self._lock.closed):
            self._lock = lock(self.path)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def append_evaluation(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Append one evaluation to the `evaluations.jsonl` of an existing run directory."""
    append_rows(Path(path) / "evaluations.jsonl", [row])


def write_reward_density(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Replace the `reward_density.json` of an existing run directory."""
    replace(Path(path) / "reward_density.json", to_json(content))


def _event(name: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {"event": name, "time": datetime.now(UTC).isoformat(timespec="seconds"), **provenance}
