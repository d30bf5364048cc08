"""Bringing a run directory back to the moment of a checkpoint: no row after it, none missing before it."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from tddelta.errors import CheckpointError, ConfigError
from tddelta.runs import checkpoints
from tddelta.runs.checkpoints import Checkpoint
from tddelta.runs.files import Arrays, number_in, read_arrays, replace, storing, sync

_EPISODES = ("steps", "returns", "lengths")

_OF_THE_END = ("fault.json", "rollout.npz", "critic.npz")  # files of a run that is over


def lines_of(path: Path) -> list[bytes]:
    """Whole lines of a `.jsonl` file; none where there is no file."""
    if not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def refuse_links(path: Path) -> None:
    """Refuse symbolic links in a run directory to go on in: what they lead to would be cut back or written to.

    Raises:
        ConfigError: There is one. Those that W&B makes among its own files do not count.
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


def usable(path: Path, checkpoint: Checkpoint) -> None:
    """Check that the other files of a run directory reach as far as a checkpoint.

    Raises:
        CheckpointError: Rows or episodes from before the checkpoint are missing or damaged.
    """
    counts = {name: checkpoint.count(name) for name in ("updates", "steps", "episodes", "metrics_bytes", "evaluations")}
    rows = path / "metrics.jsonl"
    with rows.open("rb") if rows.exists() else open(os.devnull, "rb") as file:
        lines = file.read(counts["metrics_bytes"]).splitlines()
    if len(lines) != counts["updates"] or (lines and _row(lines[-1]).get("update") != counts["updates"]):
        raise CheckpointError(f"{rows} lacks rows of the {counts['updates']} updates before {checkpoint.path}")
    if evaluations_until(path, counts["steps"])[1] < counts["evaluations"]:
        raise CheckpointError(f"{path / 'evaluations.jsonl'} lacks some of the evaluations before {checkpoint.path}")
    _episodes(path, counts["episodes"])


def cut_back(path: Path, checkpoint: Checkpoint) -> Arrays:
    """Remove from a run directory what was written after a checkpoint.

    Evaluations of the very step of the checkpoint stay: they may come from `tddelta evaluate`.

    Returns:
        The training episodes up to the checkpoint.
    """
    episodes = _episodes(path, checkpoint.count("episodes"))
    rows = path / "metrics.jsonl"
    with storing(rows):
        os.truncate(rows, checkpoint.count("metrics_bytes"))
        sync(rows)
        kept, _ = evaluations_until(path, checkpoint.count("steps"))
        file = path / "evaluations.jsonl"
        if not kept:
            file.unlink(missing_ok=True)
        elif kept != file.read_bytes():
            replace(file, kept)
        for name in _OF_THE_END:
            (path / name).unlink(missing_ok=True)
        for unfinished in path.glob(".*.tmp"):
            unfinished.unlink()
    checkpoints.discard(path, newer_than=checkpoint.count("updates"))
    return episodes


def _episodes(path: Path, count: int) -> Arrays:
    file = path / "episodes.npz"
    arrays = read_arrays(file) if count else None
    if arrays is None:
        arrays = {"steps": np.zeros(0, np.int64), "returns": np.zeros(0), "lengths": np.zeros(0, np.int64)}
    found = [arrays[name] for name in _EPISODES if name in arrays]
    whole = [one for one in found if one.ndim == 1 and one.dtype.kind in "iuf" and len(one) >= count]
    if len(whole) < len(_EPISODES):
        raise CheckpointError(f"{file} lacks some of the {count} episodes before the checkpoint")
    return {name: arrays[name][:count] for name in _EPISODES}


def evaluations_until(path: Path, steps: int) -> tuple[bytes, int]:
    """Lines of the evaluations up to a number of environment steps, and how many they are.

    Raises:
        CheckpointError: The steps of one are no number.
    """
    file, kept = path / "evaluations.jsonl", []
    for line in lines_of(file):
        row = _row(line)
        found = number_in(row, "steps")
        if found is None and "steps" in row:
            raise CheckpointError(
                f"{file}: steps must be a number; got {row['steps']!r:.80}: delete that line, then go on"
            )
        if found is not None and found <= steps:
            kept.append(line)
    return b"".join(kept), len(kept)


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    return row if isinstance(row, dict) else {}
