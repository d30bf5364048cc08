"""Recorder and writer: what a training puts into its run directory, whatever library trains."""

import functools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tddelta.decomposition import compose
from tddelta.errors import ConfigError, DataError, StorageError, setting
from tddelta.runs import checkpoints, files
from tddelta.runs.checkpoints import SHARE, Checkpoint, Pauses
from tddelta.runs.files import NO_EPISODES, Arrays
from tddelta.runs.reader import Mode
from tddelta.runs.trackers import TrackerFactory, Tracking
from tddelta.timescales import TimeScales

EPISODES_SECONDS = 10.0
"""`episodes.npz` is written again at most this often."""

RECORDED = 2_000
"""Longest recorded episode, in steps."""

STREAM_LENGTH, HELD_OUT_STATES = 2_048, 4_096
"""Held-out data: steps in every environment, and states kept of them."""

UNKNOWN_WEIGHT = 0.01
"""A return is known once what is missing weighs less than this."""

STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that mean the user stopped training."""


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
        self.path, self._tracking = Path(path), Tracking((), Path(path), config)
        self.restored: Checkpoint | None = None
        self.episodes_before: Arrays | None = None
        self._lock: IO[bytes] | None = None
        self._status: dict[str, Any] = {"state": "running", "steps": 0, "updates": 0, "episodes": 0, "message": None}
        if not (resume and os.path.lexists(self.path) and self._continue(config, provenance)):
            self._begin(config, provenance)

    def _begin(self, config: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Make the directory under another name, and rename it once it is whole and locked."""
        content, place = files.to_json(config), self.path
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
            files.replace(self.path / "config.json", content)
            self._lock = files.lock(self.path) if files.HAS_LOCKS else None
            self.path.rename(place)
        except BaseException as error:
            shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(error, OSError) and place.exists():
                raise exists from None
            raise
        self.path = place

    def _continue(self, config: Mapping[str, Any], provenance: Mapping[str, Any]) -> bool:
        """Go on where the newest checkpoint is; without one, make room for a new directory and return False."""
        checkpoints.refuse_links(self.path)
        held = files.lock(self.path)
        try:
            self._check_unfinished(config)
            # one of something else is an error; the run is not set aside for it
            checkpoints.evaluations_until(self.path, 0)
            fits = functools.partial(checkpoints.before, self.path)
            restored = checkpoints.latest(self.path, fits) if held else None
            if restored is None:
                files.set_aside(self.path)  # under the lock: nobody else goes on with it meanwhile
                return False
            self.episodes_before = checkpoints.cut_back(self.path, restored)
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
        there = files.read_json(self.path / "config.json")
        if files.upgraded_config(there) != files.upgraded_config(json.loads(files.to_json(config))):
            raise ConfigError(
                f"{self.path} was started with other settings: choose another folder with {setting('out', '')}"
            )
        if files.read_status(self.path / "status.json")["state"] == "finished":
            raise ConfigError(f"{self.path} is finished: there is nothing to go on with")

    def track(self, track: Sequence[str | TrackerFactory], *, steps: int | None = None) -> None:
        """Let trackers (see `check_trackers`) follow the run from here on; what is written already they are told now.

        `steps` are the environment steps at which the run goes on; None is the last line of `metrics.jsonl`.
        """
        if steps is None:
            rows = reversed(files.read_rows(self.path / "metrics.jsonl"))
            steps = next((int(files.number_in(row, "steps") or 0) for row in rows), 0)
        self._tracking = Tracking(track, self.path, files.read_json(self.path / "config.json"), steps)

    def checkpoint(self, arrays: Arrays, *, steps: int, updates: int, episodes: int) -> None:
        """Save the state that the run continues from, after so much; keep the last two checkpoints.

        `metrics` and `episodes` must have been called with everything up to here.

        Raises:
            StorageError: It cannot be written; the one before it is still there.
        """
        rows = self.path / "metrics.jsonl"
        with files.storing(rows):
            for path in (rows, self.path / "evaluations.jsonl", self.path):
                files.sync(path)
            size = rows.stat().st_size
        # later ones, of parameters from before a break, are no part of what the checkpoint needs
        evaluations = len(checkpoints.evaluations_until(self.path, steps))
        counts = {"steps": steps, "updates": updates, "episodes": episodes}
        checkpoints.save(self.path, updates, arrays, {**counts, "metrics_bytes": size, "evaluations": evaluations})

    def fault(self, content: Mapping[str, Any]) -> None:
        """Replace `fault.json`: numbers of the update that made the run fail."""
        files.replace(self.path / "fault.json", files.to_json(content))

    def metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one line per update to `metrics.jsonl`; NaN becomes null."""
        rows = list(rows)
        files.append_rows(self.path / "metrics.jsonl", rows)
        self._tracking.metrics(rows)

    def timing(self, row: Mapping[str, Any]) -> None:
        """Append one event to `timing.jsonl`."""
        files.append_rows(self.path / "timing.jsonl", [row])
        self._tracking.timing(row)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Append one evaluation to `evaluations.jsonl`."""
        append_evaluation(self.path, row)
        self._tracking.evaluation(row)

    @property
    def state(self) -> str:
        """The state that `status.json` has."""
        return str(self._status["state"])

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
        if state not in files.STATES:
            raise ConfigError(f"state must be one of {', '.join(files.STATES)}; got {state!r}")
        counts = {"steps": steps, "updates": updates, "episodes": episodes}
        self._status |= {"state": state} | {name: int(count) for name, count in counts.items() if count is not None}
        self._status["message"] = message
        files.replace(self.path / "status.json", files.to_json(self._status), durable=state != "running")
        if state == "finished":  # not before its status says so: until then it may have to go on
            with files.storing(self.path):
                files.sync(self.path)
            checkpoints.discard(self.path)

    def episodes(self, steps: npt.ArrayLike, returns: npt.ArrayLike, lengths: npt.ArrayLike) -> None:
        """Replace `episodes.npz` by these training episodes, in order of steps."""
        given = {"steps": steps, "returns": returns, "lengths": lengths}
        self._save("episodes", **{name: np.asarray(given[name], none.dtype) for name, none in NO_EPISODES.items()})

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
        files.replace(self.path / f"{name}.npz", lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]

    def parameters(self, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> None:
        """Replace `parameters.safetensors`; the metadata gets the format and a digest beside what is given."""
        from safetensors.numpy import save

        content = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
        size = 8 + int.from_bytes(content[:8], "little")
        # safetensors writes metadata in random order, so two equal runs would differ: write the header here
        header = {"__metadata__": {"format": str(files.FORMAT), **metadata}, **json.loads(content[8:size])}
        header["__metadata__"]["sha256"] = files.parameter_digest(header, content[size:])
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        whole = len(text).to_bytes(8, "little") + text + content[size:]
        files.replace(self.path / "parameters.safetensors", whole)

    def close(self) -> None:
        """Release the lock, and end what follows the run."""
        self._tracking.close(self.state)
        if self._lock is not None:
            self._lock.close()

    def reopen(self) -> None:
        """Take the lock again after `close`, to write more; ConfigError where somebody else writes there meanwhile."""
        if files.HAS_LOCKS and (self._lock is None or self._lock.closed):
            self._lock = files.lock(self.path)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def append_evaluation(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Append one evaluation to the `evaluations.jsonl` of an existing run directory."""
    files.append_rows(Path(path) / "evaluations.jsonl", [row])


def write_reward_density(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Replace the `reward_density.json` of an existing run directory."""
    files.replace(Path(path) / "reward_density.json", files.to_json(content))


def _event(name: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {"event": name, "time": datetime.now(UTC).isoformat(timespec="seconds"), **provenance}


def library_config(
    library: str, algorithm: Any, named: tuple[str, str, int], scales: TimeScales, **more: Any
) -> dict[str, Any]:
    """Content of `config.json` of a run that another library trains: equal for equal runs.

    Args:
        library: Name of the library.
        algorithm: What trains.
        named: Environment, agent and seed, as in the run's path.
        scales: The discounts that the critic has values for, with their traces.
        **more: `settings`, and where they are known `steps`, `environment_kwargs` and `environment_parameters`.
    """
    environment, agent, seed = named
    content = {
        "format": files.CONFIG_FORMAT,
        "environment": environment,
        "environment_kwargs": {},
        "environment_parameters": {},
        "agent": {"name": agent, "library": library, "algorithm": type(algorithm).__name__},
        "seed": seed,
        "steps": None,
        "settings": {},
        "scales": scales.to_dict(),
        **more,
    }
    return {name: entry for name, entry in content.items() if entry is not None}


class Recorder:
    """Record of one training: its counters `steps`, `updates` and `episodes`, and the run directory they go to.

    Args:
        writer: The run directory; where it goes on from a checkpoint, so does the record.
        steps: Environment steps before, where it does not.
        share: Of the time, that writing episodes and parameters may take.

    Attributes:
        row_steps: Environment steps at the last row of metrics that `block` wrote.
    """

    def __init__(self, writer: RunWriter, *, steps: int = 0, share: float = SHARE) -> None:
        self.writer, self.steps, self.updates, self.episodes = writer, steps, 0, 0
        self._columns: dict[str, list[npt.NDArray[Any]]] = {name: [np.zeros(0)] for name in NO_EPISODES}
        self._new: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []  # returns and lengths since the last row
        self._pauses = Pauses(EPISODES_SECONDS, at_once=True, share=share)
        if writer.restored is not None and writer.episodes_before is not None:
            self.steps, self.updates = writer.restored.count("steps"), writer.restored.count("updates")
            self.add_episodes(**writer.episodes_before)
            self._new = []
        self.row_steps, self._process = 0, os.getpid()
        self.begin(self.steps)

    def begin(self, steps: int, total: int | None = None, seconds: float = 0.0) -> None:
        """Begin, or go on: at so many environment steps, up to a total where it is known, so many seconds ago."""
        self._ended = False
        self.steps, self._first, self._total, self._apart = steps, steps, total, 0.0
        self._began = self._row_time = time.perf_counter() - seconds

    @property
    def open(self) -> bool:
        """True while training goes on; a forked process has a copy of this, and nothing to say."""
        return self.writer.state == "running" and os.getpid() == self._process

    @property
    def saving_seconds(self) -> float:
        """Seconds spent on writing episodes and parameters."""
        return self._pauses.spent

    def counts(self) -> dict[str, Any]:
        """Steps, updates and episodes so far, as `RunWriter.status` takes them."""
        return {"steps": self.steps, "updates": self.updates, "episodes": self.episodes}

    def add_episodes(self, steps: npt.ArrayLike, returns: npt.ArrayLike, lengths: npt.ArrayLike) -> None:
        """Add episodes that ended, in order of steps, (N,) each."""
        ended, scores, sizes = np.asarray(steps), np.asarray(returns), np.asarray(lengths)
        for name, column in (("steps", ended), ("returns", scores), ("lengths", sizes)):
            self._columns[name].append(column)
        self._new.append((scores, sizes))
        self.episodes += len(ended)

    def row(self, numbers: Mapping[str, Any], steps: int | None = None) -> dict[str, Any]:
        """A row of `metrics.jsonl`: the counters, means of the episodes since the last row, and these numbers.

        Args:
            numbers: Metrics by name.
            steps: Environment steps at the update; None is all so far.
        """
        scores, sizes = (np.concatenate(column) for column in zip(*self._new, strict=True)) if self._new else ((), ())
        self._new = []
        return {
            "update": self.updates,
            "steps": self.steps if steps is None else steps,
            "episodes": self.episodes,
            "return_mean": np.mean(scores, dtype=float) if len(scores) else None,
            "length_mean": np.mean(sizes, dtype=float) if len(sizes) else None,
            **numbers,
        }

    def block(self, numbers: Mapping[str, Any], steps: int | None = None, seconds: float | None = None) -> None:
        """Write a row of metrics, and how fast training was since the last one.

        Args:
            numbers: As in `row`.
            steps: Likewise.
            seconds: Seconds that it took; None is all since the last row.
        """
        row = self.row(numbers, steps)
        self.writer.metrics([row])
        clock, done = time.perf_counter(), row["steps"] - max(self.row_steps, self._first)
        seconds = clock - self._row_time if seconds is None else seconds
        speed = {"seconds": seconds, "steps_per_second": done / max(seconds, 1e-9)}
        self.writer.timing({"event": "block", "steps": row["steps"], **speed})
        self.writer.status("running", **self.counts())
        self.row_steps, self._row_time = row["steps"], clock

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Context whose seconds count as no training, such as an evaluation."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._apart += seconds
        self._row_time += seconds

    def end(self) -> None:
        """Write how long training took, once; what still comes is no training."""
        if self._ended:
            return
        self._ended = True
        seconds, done = time.perf_counter() - self._began, self.steps - self._first
        speed = done / max(seconds - self._apart, 1e-9)
        self.writer.timing({"event": "end", "seconds": seconds, "steps": done, "steps_per_second": speed})

    def close(self, state: str, message: str | None = None) -> None:
        """Write how the run ended, and let others write."""
        try:
            self.writer.status(state, message=message, **self.counts())
        finally:
            self.writer.close()

    def broke_off(self, error: BaseException | None, why: str = "") -> None:
        """Close a run that is open: "failed", or "interrupted" by the user, or by `why` where there is no error."""
        if not self.open:
            return
        of = "" if self._total is None else f"of {self._total} "
        state, message = "interrupted", f"stopped after {self.steps} {of}steps"
        if error is None:
            message += f": {why}"
        elif not isinstance(error, STOPS):
            state, message = "failed", f"{type(error).__name__}: {error}"
        try:
            with suppress(StorageError):  # of a full disk there is nothing else to say: a greater error is on its way
                self.save_episodes(now=True)
                self.end()
        finally:
            with suppress(StorageError):
                self.close(state, message)

    def save_episodes(self, *, now: bool = False) -> None:
        """Write the episodes, unless that was done a short while ago."""
        if now or self._pauses.over:
            with self._pauses.ended():
                self._write_episodes()

    def _write_episodes(self) -> None:
        self._columns = {name: [np.concatenate(column)] for name, column in self._columns.items()}
        self.writer.episodes(**{name: column for name, (column,) in self._columns.items()})

    def checkpoint(self, arrays: Arrays) -> None:
        """Save what the run continues from; whoever calls it counts the seconds."""
        self._write_episodes()
        self.writer.checkpoint(arrays, **self.counts())

    def save_parameters(self, tensors: Arrays, environment: str) -> None:
        """Write what was learned, and the episodes."""
        with self._pauses.ended():
            self._write_episodes()
            self.writer.parameters(tensors, {"environment": environment, "steps": str(self.steps)})

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Append an evaluation at the steps so far, such as a `summary`."""
        self.writer.evaluation({"steps": self.steps, **row})

    def held_out(self, critic: Arrays, rollout: Arrays) -> None:
        """Write what a `critic_check` found, and a recorded episode."""
        self.writer.arrays("critic", **critic)
        self.writer.arrays("rollout", **rollout)


def summary(
    scores: npt.NDArray[Any], sizes: npt.NDArray[Any], *, mode: Mode, seed: int, unfinished: int
) -> dict[str, Any]:
    """A row for `evaluations.jsonl`, without `steps`.

    Args:
        scores: Undiscounted returns of the episodes, (N,).
        sizes: Their lengths in steps, (N,).
        mode: Kind of actions.
        seed: Of the evaluation.
        unfinished: Number of episodes that were given up.
    """
    return {
        "mode": mode,
        "seed": seed,
        "episodes": len(scores),
        "unfinished": unfinished,
        "return_mean": float(scores.mean()) if len(scores) else None,
        "return_standard_deviation": float(scores.std(ddof=1)) if len(scores) > 1 else None,
        "length_mean": float(sizes.mean()) if len(sizes) else None,
        "returns": scores.tolist(),
        "lengths": sizes.tolist(),
    }


def critic_check(
    rewards: npt.ArrayLike,
    deltas: npt.ArrayLike,
    gammas: npt.ArrayLike,
    *,
    terminated: npt.ArrayLike,
    truncated: npt.ArrayLike,
) -> Arrays:
    """Predicted and realised discounted returns of held-out states, for `critic.npz`.

    Args:
        rewards: As the critic learned from them, (T, B).
        deltas: W of the states, (T, B, Z).
        gammas: Its discounts, (Z,).
        terminated: As in `realised_returns`, (T, B).
        truncated: Likewise.

    Returns:
        predicted (N, Z), realised (N, Z), gammas (Z,); N is at most 4,096 states evenly spread over the data.
    """
    discounts = np.asarray(gammas)
    followed = realised_returns(rewards, discounts, terminated=terminated, truncated=truncated)
    both = compose(np.asarray(deltas)), followed
    predicted, realised = (np.asarray(part, np.float32).reshape(-1, len(discounts)) for part in both)
    chosen = np.linspace(0, len(predicted) - 1, min(len(predicted), HELD_OUT_STATES)).astype(int)
    return {"predicted": predicted[chosen], "realised": realised[chosen], "gammas": discounts}


def realised_returns(
    rewards: npt.ArrayLike, gammas: npt.ArrayLike, *, terminated: npt.ArrayLike, truncated: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Discounted return that followed each state, Σ_k γ_z^k r_{t+k} to the end of its episode.

    It is known if the episode terminated in the data, or if what lies beyond the cut weighs less than a hundredth.

    Args:
        rewards: r_t of one stream or several, (T, …).
        gammas: The discounts, (Z,), in [0, 1].
        terminated: Whether step t ended an episode, (T, …).
        truncated: Whether an episode was cut after step t, (T, …).

    Returns:
        (T, …, Z); NaN where it is not known.
    """
    received = np.asarray(rewards, np.float64)[..., None]
    ended, cut = (np.asarray(flags, bool)[..., None] for flags in (terminated, truncated))
    discounts = np.asarray(gammas, np.float64)
    found = np.zeros((*received.shape[:-1], len(discounts)))
    following, missing = np.zeros(found.shape[1:]), np.ones(found.shape[1:])
    for t in reversed(range(len(found))):
        following = received[t] + discounts * np.where(ended[t] | cut[t], 0.0, following)
        # Weight of what is not known: 1 past a cut, 0 past a terminal state.
        missing = discounts * np.where(ended[t], 0.0, np.where(cut[t], 1.0, missing))
        found[t] = np.where(missing > UNKNOWN_WEIGHT, np.nan, following)
    return found
