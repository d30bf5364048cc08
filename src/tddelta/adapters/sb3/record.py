"""What a training of SB3 has produced so far, apart from its model: what is written even where it breaks off."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from tddelta.errors import StorageError
from tddelta.runs import RunWriter
from tddelta.runs.checkpoints import Pauses

EPISODES_SECONDS = 10.0
"""`episodes.npz` is written again at most this often."""

STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends a training because somebody wants it, not because something is wrong."""


class Record:
    """What one training has produced so far, and the directory it goes to.

    Args:
        writer: The run directory.
        steps: Environment steps of the model before.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        learned_steps: Environment steps at the last update.
        numbers: The last of every metric.
        open: Whether training goes on.
    """

    def __init__(self, writer: RunWriter, steps: int) -> None:
        self.writer = writer
        self.steps = self.learned_steps = steps
        self.updates, self.row_steps = 0, 0
        self.numbers: dict[str, float] = {}
        self._episodes: dict[str, list[float]] = {"steps": [], "returns": [], "lengths": []}
        self._rows = 0
        self._pauses = Pauses(EPISODES_SECONDS, at_once=True)
        # A forked process has a copy of this, and nothing to say.
        self.open, self._process = False, os.getpid()

    def begin(self, total: int) -> None:
        """Training begins, or goes on, up to so many environment steps."""
        self.open, self._total, self._first = True, total, self.steps
        self._began = self._row_time = time.perf_counter()
        self._apart, self._before = 0.0, _last_exception()

    def counts(self) -> dict[str, Any]:
        """Steps, updates and episodes so far."""
        return {"steps": self.steps, "updates": self.updates, "episodes": len(self._episodes["steps"])}

    def episode(self, returned: float, length: int) -> None:
        """An episode of the training is over."""
        for name, value in (("steps", self.steps), ("returns", returned), ("lengths", length)):
            self._episodes[name].append(value)

    def save_episodes(self, *, now: bool = False) -> None:
        """Write the episodes, unless that was done a short while ago."""
        if now or self._pauses.over:
            with self._pauses.ended():
                self.writer.episodes(**self._episodes)

    def row(self) -> None:
        """Write a line of metrics."""
        recent = slice(self._rows, None)
        returns, lengths = self._episodes["returns"][recent], self._episodes["lengths"][recent]
        row = {
            "update": self.updates,
            "steps": self.learned_steps,
            "episodes": len(self._episodes["steps"]),
            "return_mean": float(np.mean(returns)) if returns else None,
            "length_mean": float(np.mean(lengths)) if lengths else None,
        }
        self.writer.metrics([{**row, **self.numbers}])
        clock = time.perf_counter()
        seconds, done = clock - self._row_time, self.learned_steps - max(self.row_steps, self._first)
        speed = {"steps_per_second": done / max(seconds, 1e-9)}
        self.writer.timing({"event": "block", "steps": self.learned_steps, "seconds": seconds, **speed})
        self.writer.status("running", **self.counts())
        self._rows, self.row_steps, self._row_time = len(self._episodes["steps"]), self.learned_steps, clock

    def evaluation(self, row: Mapping[str, Any], seconds: float) -> None:
        """Append an evaluation, which took so long."""
        self.writer.evaluation({"steps": self.steps, **row})
        self._apart += seconds
        self._row_time += seconds

    def end_of_training(self) -> None:
        """Say how long it took; what still comes is no training."""
        seconds, done = time.perf_counter() - self._began, self.steps - self._first
        speed = done / max(seconds - self._apart, 1e-9)
        self.writer.timing({"event": "end", "seconds": seconds, "steps": done, "steps_per_second": speed})

    def close(self, state: str, message: str | None = None) -> None:
        """Say how it ended, and let others write."""
        self.open = False
        try:
            self.writer.status(state, message=message, **self.counts())
        finally:
            self.writer.close()

    def fail(self, error: BaseException) -> None:
        """Training broke off: "interrupted" if somebody stopped it, else "failed". Without effect once it is closed."""
        stopped = isinstance(error, STOPS)
        message = self._stopped() if stopped else f"{type(error).__name__}: {error}"
        self._break_off("interrupted" if stopped else "failed", message)

    def leave(self) -> None:
        """The callback is gone and training is not over: nobody said why, but the interpreter may know."""
        error = _last_exception()
        if error is not None and error is not self._before and _in_learn(error):
            self.fail(error)
        else:
            self._break_off("interrupted", f"{self._stopped()}: `learn` did not come to its end")

    def _break_off(self, state: str, message: str) -> None:
        if not self.open or os.getpid() != self._process:
            return
        with suppress(StorageError):  # on a full disk there is nothing else to say, and a greater error is on its way
            self.save_episodes(now=True)
            self.end_of_training()
        with suppress(StorageError):
            self.close(state, message)

    def _stopped(self) -> str:
        return f"stopped after {self.steps} of {self._total} steps"


def _last_exception() -> BaseException | None:
    """The exception that the interpreter met last and nobody caught."""
    found: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return found


def _in_learn(error: BaseException) -> bool:
    """Whether an exception came out of SB3's `learn`."""
    place = error.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        if code.co_name == "learn" and "stable_baselines3" in code.co_filename:
            return True
        place = place.tb_next
    return False
