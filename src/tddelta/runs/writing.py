"""Writing run directories."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta.errors import ConfigError, DataError
from tddelta.runs.files import FORMAT, append_rows, read_json, read_rows, replace, to_json
from tddelta.runs.tracking import TrackerFactory, Tracking

try:  # POSIX only: elsewhere a run in progress is not told from one that was cut off
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

_HAS_LOCKS = fcntl is not None
_STATES = ("running", "finished", "interrupted", "failed")


class RunWriter:
    """Writes one run directory, and keeps it locked against a second writer until it is closed.

    Args:
        path: The run directory. It must not exist; its parents are made.
        config: What goes into `config.json`: strict JSON, without times.
        provenance: What the "start" line of `timing.jsonl` holds: `command`, `versions`, `machine`.

    Raises:
        ConfigError: `path` exists already.
    """

    def __init__(self, path: str | os.PathLike[str], config: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._tracking = Tracking((), self.path, config)
        content = to_json(config)
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(
                f"{self.path} exists already, and a run is never overwritten: pass --resume (resume=True) to keep "
                "what is finished and start the rest, or choose another --out (out=)"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be made ({error}): choose another --out (out=)") from error
        start = {"event": "start", "time": datetime.now(UTC).isoformat(timespec="seconds")}
        self.timing({**start, **provenance})
        self._lock = (self.path / "timing.jsonl").open("rb")
        if _HAS_LOCKS:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / "metrics.jsonl").touch()
        self._status: dict[str, Any] = {"state": "running", "steps": 0, "updates": 0, "episodes": 0, "message": None}
        self.status("running")
        # last: what has a config.json is a whole run directory
        replace(self.path / "config.json", lambda file: file.write(content))

    def track(self, track: Sequence[str | TrackerFactory], *, steps: int | None = None) -> None:
        """Let trackers follow the run from here on; what is written already they are told now.

        Args:
            track: Their names, or functions that make one; see `check_trackers`.
            steps: Environment steps at which the run goes on; None is the last line of `metrics.jsonl`.
        """
        if steps is None:
            steps = next((row["steps"] for row in reversed(read_rows(self.path / "metrics.jsonl"))), 0)
        self._tracking = Tracking(track, self.path, read_json(self.path / "config.json"), steps)

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
        """Replace `status.json`; a count that is left out stays as it was."""
        if state not in _STATES:
            raise ConfigError(f"state must be one of {', '.join(_STATES)}; got {state!r}")
        counts = {"steps": steps, "updates": updates, "episodes": episodes}
        self._status |= {"state": state} | {name: int(count) for name, count in counts.items() if count is not None}
        self._status["message"] = message
        content = to_json(self._status)
        replace(self.path / "status.json", lambda file: file.write(content), durable=state != "running")

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
        """Replace `parameters.safetensors`; the metadata gets the format beside what is given."""
        from safetensors.numpy import save

        content = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
        size = 8 + int.from_bytes(content[:8], "little")
        # safetensors writes metadata in random order, so two equal runs would differ: write the header here
        header = {"__metadata__": {"format": str(FORMAT), **metadata}, **json.loads(content[8:size])}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        whole = len(text).to_bytes(8, "little") + text + content[size:]
        replace(self.path / "parameters.safetensors", lambda file: file.write(whole))

    def close(self) -> None:
        """Release the lock, and end what follows the run."""
        self._tracking.close(self._status["state"])
        self._lock.close()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def append_evaluation(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Append one evaluation to the `evaluations.jsonl` of an existing run directory."""
    append_rows(Path(path) / "evaluations.jsonl", [row])


def is_being_written(path: str | os.PathLike[str]) -> bool | None:
    """Tell whether a writer has this run directory open; None where the system has no file locks to tell it by."""
    try:
        with (Path(path) / "timing.jsonl").open("rb") as file:
            if _HAS_LOCKS:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False if _HAS_LOCKS else None
