"""All runs of a study at a glance, read from their directories: cheap enough to look every second."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tddelta.errors import CheckpointError
from tddelta.experiments.display import recent_return
from tddelta.experiments.plan import RunPlan
from tddelta.runs import Run, is_being_written
from tddelta.runs.files import number_in, read_status

STATES = ("running", "failed", "cut off", "interrupted", "waiting", "finished")
"""States of a run, in the order of a table; a run that was cut off says that it is running, but nobody writes it."""

_SLOWEST = 1e-6  # steps per second from which on a time that is left can be told
_TAIL = 16_384  # bytes at the end of a file that hold its last lines


@dataclass(frozen=True)
class Entry:
    """One run of a study.

    Attributes:
        environment: Name of the environment.
        agent: Label of the agent.
        seed: The seed.
        path: The run directory.
        steps: Environment steps of the whole run.
    """

    environment: str
    agent: str
    seed: int
    path: Path
    steps: int

    @property
    def name(self) -> str:
        """The run in words."""
        return f"{self.environment}, {self.agent}, seed {self.seed}"


@dataclass(frozen=True)
class RunState:
    """How far a run is.

    Attributes:
        entry: The run.
        state: One of `STATES`.
        steps: Environment steps done.
        steps_per_second: Of the last block of updates; of the whole run when it is over.
        seconds_left: Of training, at that speed; None unless it is running.
        return_mean: Of the last 100 training episodes, as `display.recent_return` has it.
        message: What made it fail, or how it came that it is not finished.
    """

    entry: Entry
    state: str
    steps: int = 0
    steps_per_second: float | None = None
    seconds_left: float | None = None
    return_mean: float | None = None
    message: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON."""
        entry = self.entry
        names = {"environment": entry.environment, "agent": entry.agent, "seed": entry.seed}
        numbers = {name: getattr(self, name) for name in ("steps_per_second", "seconds_left", "return_mean", "message")}
        return {
            **names,
            "path": str(entry.path),
            "state": self.state,
            "steps": self.steps,
            "total_steps": entry.steps,
            **numbers,
        }


def entries(plans: Sequence[RunPlan]) -> list[Entry]:
    """The runs of a plan."""
    return [Entry(plan.environment, plan.agent, plan.seed, plan.path, plan.steps) for plan in plans]


@dataclass
class Board:
    """The states of runs. What has not changed since the last look is not read again.

    Attributes:
        entries: The runs.
        locks: Whether to find out who is alive by the locks; one whose own workers write the runs need not.
    """

    entries: Sequence[Entry]
    locks: bool = True
    _known: dict[Path, tuple[int, RunState]] = field(default_factory=dict)

    def look(self) -> list[RunState]:
        """The states now, in the order of the entries."""
        return [self._look(entry) for entry in self.entries]

    def _look(self, entry: Entry) -> RunState:
        try:
            changed = os.stat(entry.path / "status.json").st_mtime_ns
        except OSError:
            self._known.pop(entry.path, None)
            return RunState(entry, "waiting")
        before, state = self._known.get(entry.path, (None, None))
        if state is None or before != changed:
            state = _read(entry)
            self._known[entry.path] = changed, state
        if state.state == "running" and self.locks and is_being_written(entry.path) is False:
            text = "its process ended without a word: tddelta sweep goes on with it"
            return replace(state, state="cut off", seconds_left=None, message=text)
        return state


def _read(entry: Entry) -> RunState:
    try:
        status = read_status(entry.path / "status.json")
    except CheckpointError as error:
        return RunState(entry, "failed", message=str(error))
    state, steps = status["state"], status["steps"]
    speed = _last(entry.path / "timing.jsonl", "steps_per_second")
    left = (entry.steps - steps) / speed if state == "running" and speed is not None and speed > _SLOWEST else None
    recent = _last(entry.path / "timing.jsonl", "return_mean")
    if state == "finished":  # then all of them are stored
        try:
            run = Run(entry.path)
        except CheckpointError as error:  # the sweep would train it again
            return RunState(entry, "failed", steps, speed, left, recent, str(error))
        try:
            recent = recent_return(run.episodes)
        except (CheckpointError, KeyError) as error:
            return RunState(entry, state, steps, speed, left, recent, str(error))
    return RunState(entry, state, steps, speed, left, recent, status["message"])


def _last(path: Path, key: str) -> float | None:
    """The last number under a key near the end of a `.jsonl` file."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # the first or the last one is cut short
            continue
        if isinstance(row, dict) and (found := number_in(row, key)) is not None:
            return float(found)
    return None


def summary(states: Sequence[RunState]) -> str:
    """One line: how many runs are in which state, and how far all of them are together."""
    count = Counter(state.state for state in states)
    parts = [f"{count['finished']} of {len(states)} runs finished"]
    parts += [f"{count[name]} {name}" for name in STATES if name != "finished" and count[name]]
    done = sum(min(state.steps, state.entry.steps) for state in states)
    return f"{', '.join(parts)}; {done:,} of {sum(state.entry.steps for state in states):,} steps"
