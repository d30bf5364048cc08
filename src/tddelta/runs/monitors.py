"""Logs of the `Monitor` of Stable-Baselines3, read as runs: episodes, and nothing else."""

import csv
import heapq
import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tddelta.errors import CheckpointError
from tddelta.runs.files import FORMAT, Arrays

MONITOR = "monitor.csv"
"""How the names of these files end; several in a folder are environments of one run."""

_NUMBERED = re.compile(r"(?P<name>.*?)[-_]?(?P<number>\d+)")


def monitor_files(folder: Path) -> list[Path]:
    """The monitor logs in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(MONITOR)) if folder.is_dir() else []


def read_monitors(files: Iterable[Path]) -> tuple[str | None, Arrays]:
    """Read the logs of one run.

    Args:
        files: One per environment. A last line that was cut short is ignored.

    Returns:
        Name of the environment, if a log names it, and the episodes as `Run.episodes`: `steps` are the lengths added
        up, in the order in which episodes ended: that of the lines in a file, by the clock among several files.

    Raises:
        CheckpointError: A file is no such log, or damaged.
    """
    name, logs = None, []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
            head, _, table = text.partition("\n")
            header = json.loads(head.removeprefix("#"))
            # Without a line break at its end the last line is still being written.
            lines = table[: table.rfind("\n") + 1].splitlines()
            started = float(header.get("t_start", 0.0))
            logs.append(_in_order(started, csv.DictReader(lines)))
            name = name or header.get("env_id")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is not a monitor log of Stable-Baselines3, or damaged ({error}): leave it out"
            ) from error
    rows = list(heapq.merge(*logs, key=lambda row: row[0]))
    _, returns, lengths = zip(*rows, strict=True) if rows else ((), (), ())
    counted = np.asarray(lengths, np.int64)
    return name, {"steps": counted.cumsum(), "returns": np.asarray(returns, np.float64), "lengths": counted}


def _in_order(started: float, lines: Iterable[dict[str, str]]) -> list[tuple[float, float, int]]:
    """Time, return and length of every episode, with times that never fall.

    A second process that goes on with a file starts its clock anew: its times count from the last one before.
    """
    rows, before = [], 0.0
    for row in lines:
        time = float(row["t"])
        if time < before:
            started += before
        before = time
        rows.append((started + time, float(row["r"]), int(row["l"])))
    return rows


class MonitorLog:
    """What a folder of monitor logs says of a run: its name from the log, agent and number from the folder's name.

    `ppo/CartPole-v1_2` (as the RL Zoo lays runs out) and `ppo/seed-2` are number 2 of `ppo`; a folder that ends in no
    number, or stands alone, is the agent itself, number 0.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _read(self) -> tuple[str | None, Arrays]:
        return read_monitors(monitor_files(self.path))

    @property
    def episodes(self) -> Arrays:
        """The episodes."""
        return self._read[1]

    @cached_property
    def config(self) -> dict[str, Any]:
        """What is known of the run, as in a `config.json`."""
        environment = self._read[0] or "environment"
        folder = self.path.absolute()
        found = _NUMBERED.fullmatch(folder.name)
        numbered = found is not None and found["name"] in (environment, "seed", "run", "")
        return {
            "format": FORMAT,
            "environment": environment,
            "agent": {"name": folder.parent.name if numbered else folder.name},
            "seed": int(found["number"]) if found is not None and numbered else 0,
            "steps": self.steps,
            "settings": {},
            "scales": {"gammas": [1.0]},
            "scales_known": False,
        }

    @property
    def steps(self) -> int:
        """Environment steps of the episodes that ended."""
        return int(self.episodes["lengths"].sum())

    @property
    def status(self) -> dict[str, Any]:
        """As in a `status.json`; a log does not say whether anything was still to come."""
        counts = {"steps": self.steps, "updates": 0, "episodes": len(self.episodes["steps"])}
        return {"state": "finished", **counts, "message": "episodes from a monitor log"}
