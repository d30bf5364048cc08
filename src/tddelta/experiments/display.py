"""Display of an experiment: a table of its runs while they go on, and a line for each one that has ended."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tddelta.errors import CheckpointError, printable
from tddelta.experiments.plan import Outcome, RunPlan
from tddelta.runs import Run, is_being_written
from tddelta.runs.files import LAST_EPISODES, Arrays, number_in, read_status

if TYPE_CHECKING:
    from tddelta.deep.training import Progress

Listener = Callable[[RunPlan, "Progress"], None]
"""Function called with the state of a run every second or so."""


def shown(progress: "bool | Listener | None") -> dict[str, Any]:
    """Arguments of `Display` for what a caller asks for: True, False, a function, or None for True on a terminal."""
    terminal = sys.stderr.isatty()
    wanted = terminal if progress is None else progress is True
    report = progress if callable(progress) else None
    return {"live": wanted and terminal, "say": describe if wanted else None, "report": report}


# ---------------------------------------------------------------- lines of runs that have ended


def summarize(outcome: Outcome) -> dict[str, Any]:
    """Return one finished run as a strict JSON object: names, state, steps, speed, recent return."""
    plan = outcome.plan
    summary: dict[str, Any] = {
        **{name: getattr(plan, name) for name in ("environment", "agent", "seed")},
        "state": outcome.state,
        "skipped": outcome.skipped,
        "path": str(plan.path),
        "message": None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}",
    }
    if (run := outcome.run) is not None:
        try:
            status = run.status
        except CheckpointError:  # which made it fail
            return summary
        end: dict[str, Any] = next((row for row in reversed(run.timing) if row.get("event") == "end"), {})
        summary |= {
            "steps": status["steps"],
            "episodes": status["episodes"],
            "new_steps": number_in(end, "steps"),
            **{name: number_in(end, name) for name in ("seconds", "steps_per_second")},
            "return_mean": recent_return(run.episodes),
        }
    return summary


def to_json(outcome: Outcome) -> str:
    """Return one finished run as a line of JSON."""
    return json.dumps(summarize(outcome), allow_nan=False)


def recent_return(episodes: Arrays) -> float | None:
    """Mean return of the last training episodes of a run, of its `episodes`; None if none ended."""
    returns = episodes["returns"][-LAST_EPISODES:]
    return float(returns.mean()) if returns.size else None


def describe(outcome: Outcome) -> str:
    """Return one finished run as a line of text."""
    row = summarize(outcome)
    text = f"{outcome.plan.name}: {'finished before' if outcome.skipped else outcome.state}"
    if outcome.error is not None:
        return printable(f"{text}: {row['message']}")
    if row.get("steps") is not None:
        text += f", {row['steps']:,} steps"
    if row.get("seconds") is not None and not outcome.skipped:
        resumed = f", {row['new_steps']:,} of them" if row["new_steps"] not in (None, row["steps"]) else ""
        text += f"{resumed} in {duration(row['seconds'])}"
    if row.get("steps_per_second") is not None and not outcome.skipped:
        text += f" ({row['steps_per_second']:,.0f} steps/s)"
    if row.get("return_mean") is not None:
        text += f", return {row['return_mean']:.4g}"
    return text


def duration(seconds: float) -> str:
    """Return a time span as "48 s", "3:05 min", "2:03:05 h" or "10 d 9 h"."""
    whole = round(seconds)
    if whole >= 48 * 3600:
        return f"{whole // 86400:,} d {whole % 86400 // 3600} h"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02} h"


# ---------------------------------------------------------------- how far runs are


STATES = ("running", "failed", "cut off", "interrupted", "waiting", "finished")
"""States of a run, in the order of a table; a run that was cut off says that it is running, but nobody writes it."""

_SLOWEST = 1e-6  # steps per second from which on a time that is left can be told
_TAIL = 16_384  # bytes at the end of a file that hold its last lines


@dataclass(frozen=True)
class Entry:
    """One run of a study that has not been planned.

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
    """State of a run, and its progress.

    Attributes:
        entry: The run.
        state: One of `STATES`, or what it is busy with.
        steps: Environment steps done.
        steps_per_second: Of the last block of updates; of the whole run when it is over.
        seconds_left: Of training, at that speed; None unless it is running.
        return_mean: `recent_return`.
        message: What made it fail, or how it came that it is not finished.
    """

    entry: RunPlan | Entry
    state: str
    steps: int = 0
    steps_per_second: float | None = None
    seconds_left: float | None = None
    return_mean: float | None = None
    message: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON."""
        numbers = ("steps_per_second", "seconds_left", "return_mean", "message")
        return {
            **{name: getattr(self.entry, name) for name in ("environment", "agent", "seed")},
            "path": str(self.entry.path),
            "state": self.state,
            "steps": self.steps,
            "total_steps": self.entry.steps,
            **{name: getattr(self, name) for name in numbers},
        }


@dataclass
class Board:
    """The states of runs by their files. What has not changed since the last look is not read again.

    Attributes:
        entries: The runs.
        locks: Whether to find out who is alive by the locks; one whose own workers write the runs need not.
    """

    entries: Sequence[RunPlan | Entry]
    locks: bool = True
    _known: dict[Path, tuple[int, RunState]] = field(default_factory=dict)

    def look(self) -> list[RunState]:
        """The states now, in the order of the entries."""
        return [self._look(entry) for entry in self.entries]

    def _look(self, entry: RunPlan | Entry) -> RunState:
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


def _read(entry: RunPlan | Entry) -> RunState:
    try:
        status = read_status(entry.path / "status.json")
    except CheckpointError as error:
        return RunState(entry, "failed", message=str(error))
    state, steps, message = status["state"], status["steps"], status["message"]
    speed, recent = _last(entry.path / "timing.jsonl", "steps_per_second", "return_mean")
    left = (entry.steps - steps) / speed if state == "running" and speed is not None and speed > _SLOWEST else None
    if state == "finished":  # then all of them are stored
        try:
            run = Run(entry.path)
        except CheckpointError as error:  # the sweep would train it again
            return RunState(entry, "failed", steps, speed, left, recent, str(error))
        try:
            recent = recent_return(run.episodes)
        except (CheckpointError, KeyError) as error:
            message = str(error)
    return RunState(entry, state, steps, speed, left, recent, message)


def _last(path: Path, *keys: str) -> list[float | None]:
    """The last number under each key near the end of a `.jsonl` file."""
    found: dict[str, float] = {}
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # the first or the last one is cut short
            continue
        numbers = {key: number_in(row, key) for key in keys} if isinstance(row, dict) else {}
        found |= {key: float(number) for key, number in numbers.items() if number is not None}
    return [found.get(key) for key in keys]


def summary(states: Sequence[RunState]) -> str:
    """One line: how many runs are in which state, and how far all of them are together."""
    count = Counter(state.state for state in states)
    parts = [f"{count['finished']} of {len(states)} runs finished"]
    parts += [f"{count[name]} {name}" for name in STATES if name != "finished" and count[name]]
    done = sum(min(state.steps, state.entry.steps) for state in states)
    return f"{', '.join(parts)}; {done:,} of {sum(state.entry.steps for state in states):,} steps"


# ---------------------------------------------------------------- on a terminal


def table(states: Sequence[RunState], *, width: int, height: int | None = None) -> RenderableType:
    """Draw the states of runs: those in progress first, then what needs attention, then the rest."""
    rows = sorted(states, key=lambda state: STATES.index(state.state) if state.state in STATES else -1)
    room = len(rows) if height is None else max(1, height - 3)
    room -= room < len(rows)  # a line says how many more there are
    wide, narrow = width >= 110, width < 80
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("environment", "agent"):  # numbers are always whole, names are cut short where there is no room
        drawn.add_column(name, overflow="ellipsis")
    for name in ("seed", "state", *([""] if wide else []), "steps", *([] if narrow else ["steps/s"]), "return", "left"):
        drawn.add_column(name, justify="left" if name in ("state", "") else "right", no_wrap=True)
    for row in rows[:room]:
        entry, total = row.entry, row.entry.steps
        share = f"{row.steps / total:.0%}" if total else ""
        # as texts: brackets in a name are no markup
        cells: list[RenderableType] = [Text(printable(name)) for name in (entry.environment, entry.agent)]
        cells += [str(entry.seed), Text(row.state), *([ProgressBar(total, row.steps, width=10)] if wide else [])]
        cells.append(share if narrow else f"{row.steps:,} of {total:,}" if wide else f"{row.steps:,} {share:>4}")
        cells += [] if narrow else [_number(row.steps_per_second, ",.0f")]
        cells += [_number(row.return_mean, ".4g"), "" if row.seconds_left is None else duration(row.seconds_left)]
        drawn.add_row(*cells)
    more = [Text(f"… and {len(rows) - room:,} more")] if room < len(rows) else []
    return Group(*([drawn] if rows else []), *more)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def sweep_table(states: Sequence[RunState], *, width: int, height: int) -> RenderableType:
    """Draw the table and the sums below it; see `table`."""
    return Group(table(states, width=width, height=height), Text(summary(states), style="bold"))


class Display:
    """Shows runs on a terminal while they are trained, and says a line for each one that ends.

    Args:
        todo: The runs to come.
        finished: Outcomes of the runs that were finished before.
        live: Whether to draw a table on the standard error: of the runs in progress, or of the board.
        say: Makes the line for a run that ended; None says nothing.
        report: Called with every state of progress.
        board: All runs of a study, whose states are read from their files.
    """

    def __init__(
        self,
        todo: Sequence[RunPlan],
        finished: Sequence[Outcome] = (),
        *,
        live: bool = False,
        say: Callable[[Outcome], str] | None = None,
        report: Listener | None = None,
        board: Board | None = None,
    ) -> None:
        self._finished, self._say, self._report, self._board = finished, say, report, board
        self._running: dict[Path, RunState] = {}
        self._count, self._ended = len(todo), 0
        self._total_steps = self._steps_to_come = sum(plan.steps for plan in todo)
        self._ended_steps, self._steps_before = 0, 0
        self._began, self._stopping = time.monotonic(), False
        self._drawn, self._console = live, Console(stderr=True)
        self._live: Live | None = None

    def __enter__(self) -> "Display":
        for outcome in self._finished:
            self._print_outcome(outcome)
        self._draw()
        return self

    def __exit__(self, *raised: object) -> None:
        self._clear()

    def begin(self, plan: RunPlan) -> None:
        """Show a run as starting."""
        self._running[plan.path] = RunState(plan, "starting")

    def progress(self, plan: RunPlan, progress: "Progress") -> None:
        """Show how far a run has come."""
        if self._running[plan.path].state == "starting":
            self._steps_before += progress.steps  # of a run that goes on: they say nothing about the speed of now
        left = progress.seconds_left if progress.phase == "training" else None
        self._running[plan.path] = RunState(
            plan, progress.phase, progress.steps, progress.steps_per_second, left, progress.recent_return
        )
        if self._report is not None:
            self._report(plan, progress)

    def remove(self, plan: RunPlan) -> int:
        """Take a run out of the table, and return the steps that it came to."""
        state = self._running.pop(plan.path, None)
        return 0 if state is None else state.steps

    def retry(self, outcome: Outcome) -> None:
        """Say that a run will be tried again."""
        self.remove(outcome.plan)
        if self._say is not None:
            why = outcome.state if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
            self._print(printable(f"{outcome.plan.name}: tried again later: {why}"), error=True)

    def end(self, outcome: Outcome) -> None:
        """Take a run out of the table and say how it ended, unless it was called off before it began."""
        self._ended += 1
        self._ended_steps += self.remove(outcome.plan)
        self._steps_to_come -= outcome.plan.steps
        if outcome.error is not None or outcome.plan.path.exists():
            self._print_outcome(outcome)

    def stopping(self) -> None:
        """Say that the runs are being stopped."""
        self._stopping = True
        if not self._drawn:
            print("stopping: every run saves what it has", file=sys.stderr, flush=True)

    def _print_outcome(self, outcome: Outcome) -> None:
        if self._say is not None:
            self._print(self._say(outcome))

    def _print(self, text: str, *, error: bool = False) -> None:
        """Print a line; the table makes way, and comes back below it."""
        live = self._clear()
        print(text, file=sys.stderr if error else sys.stdout, flush=True)
        if live:
            self._draw()

    def _draw(self) -> None:
        if self._drawn:
            # redirection would send what belongs on the standard output to the standard error
            self._live = Live(
                get_renderable=self._picture, console=self._console, transient=True, redirect_stdout=False,
                refresh_per_second=5 if self._board is None else 1,  # a board reads files
            )  # fmt: skip
            self._live.start()

    def _clear(self) -> bool:
        """Remove the table, and return whether there was one."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        return live is not None

    def _picture(self) -> RenderableType:
        """The table of now; called by the thread that draws."""
        size = self._console.size
        if self._board is not None:
            shown = sweep_table(self._board.look(), width=size.width, height=size.height - 2)
        else:
            shown = Group(table([*self._running.values()], width=size.width), Text(self._overall(), style="bold"))
        hint = "Ctrl-C saves the runs in progress and stops"
        if self._stopping:
            hint = "stopping: every run saves what it has; Ctrl-C again stops at once"
        return Group(shown, Text(hint, style="dim"))

    def _overall(self) -> str:
        running = sum(state.steps for state in [*self._running.values()])
        done, seconds = self._ended_steps + running, time.monotonic() - self._began
        text = f"{self._ended} of {self._count} runs done, {done:,} of {self._total_steps:,} steps"
        new = done - self._steps_before
        if new > 0 and seconds > 0:
            left = (self._steps_to_come - running) * seconds / new
            text += f", {new / seconds:,.0f} steps/s, {duration(left)} left"
        return text
