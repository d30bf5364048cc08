"""What a user sees of a sweep while it runs: one table of all its runs, and a line for each one that ends."""

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tddelta.errors import printable
from tddelta.experiments.board import STATES, Board, RunState, summary
from tddelta.experiments.display import duration, number, redrawn
from tddelta.experiments.loop import Outcome
from tddelta.experiments.plan import RunPlan

if TYPE_CHECKING:
    from tddelta.deep.training import Progress

_SECONDS = 1.0  # between two looks at the run directories


class SweepDisplay:
    """Shows all runs of a study on a terminal, and says a line for each one that ends.

    Args:
        board: The runs.
        finished: Runs that are finished already.
        live: Whether to draw a table on the standard error.
        say: Makes the line for a run that ended; None says nothing.
    """

    def __init__(
        self,
        board: Board,
        finished: Sequence[RunPlan] = (),
        *,
        live: bool,
        say: Callable[[Outcome], str] | None = None,
    ) -> None:
        self._board, self._finished, self._drawn, self._say = board, finished, live, say
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._looked, self._stopping = 0.0, False

    @property
    def seconds(self) -> float | None:
        """How long the table may stay as it is; without one there is nothing to wake up for."""
        return _SECONDS if self._drawn else None

    def __enter__(self) -> "SweepDisplay":
        if self._say is not None:
            for plan in self._finished:
                print(self._say(Outcome(plan, "finished", skipped=True)), flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def begin(self, plan: RunPlan) -> None:
        """The table finds out by itself."""

    def progress(self, plan: RunPlan, progress: "Progress") -> None:
        """The table finds out by itself."""

    def end(self, outcome: Outcome) -> None:
        """Say how a run ended, unless it was called off before it began."""
        if self._say is not None and (outcome.error is not None or outcome.plan.path.exists()):
            self._clear()  # the table makes way, and comes back below the line
            print(self._say(outcome), flush=True)

    def again(self, outcome: Outcome) -> None:
        """Say that a run will be tried again."""
        if self._say is not None:
            self._clear()
            why = outcome.state if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
            print(printable(f"{outcome.plan.name}: tried again later: {why}"), file=sys.stderr, flush=True)

    def stopping(self) -> None:
        """Say that the runs are being stopped."""
        self._stopping, self._looked = True, 0.0
        if not self._drawn:
            print("stopping: every run saves what it has", file=sys.stderr, flush=True)

    def tick(self) -> None:
        """Draw the table again, if that is some time ago."""
        if not self._drawn or time.monotonic() - self._looked < 0.9 * _SECONDS:
            return
        self._looked = time.monotonic()
        hint = "Ctrl-C saves the runs in progress and stops"
        if self._stopping:
            hint = "stopping: every run saves what it has; Ctrl-C again stops at once"
        size = self._console.size
        shown = sweep_table(self._board.look(), width=size.width, height=size.height - 2)
        self._live = redrawn(self._live, self._console, Group(shown, Text(hint, style="dim")))

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live, self._looked = None, 0.0


def sweep_table(states: Sequence[RunState], *, width: int, height: int) -> RenderableType:
    """Draw the table and the sums below it; see `table`."""
    return Group(table(states, width=width, height=height), Text(summary(states), style="bold"))


def table(states: Sequence[RunState], *, width: int, height: int | None = None) -> RenderableType:
    """Draw the states of runs: those in progress first, then what needs attention, then the rest.

    Args:
        states: The runs.
        width: Columns of the terminal.
        height: Lines that there is room for; None is any number.
    """
    rows = sorted(states, key=lambda state: STATES.index(state.state) if state.state in STATES else -1)
    room = len(rows) if height is None else max(1, height - 3)
    room -= room < len(rows)  # a line says how many more there are
    wide = width >= 100
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("environment", "agent"):
        drawn.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in ("seed", "state", "steps", *(("steps/s",) if wide else ()), "return", "left"):
        drawn.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for row in rows[:room]:
        share = f"{row.steps / row.entry.steps:.0%}" if row.entry.steps else ""
        speed = [number(row.steps_per_second, ",.0f")] if wide else []
        left = "" if row.seconds_left is None else duration(row.seconds_left)
        # as texts: brackets in a name are no markup
        environment, agent = (Text(printable(name)) for name in (row.entry.environment, row.entry.agent))
        names = environment, agent, str(row.entry.seed), Text(row.state)
        steps = f"{row.steps:,} {share:>4}" if wide else share
        drawn.add_row(*names, steps, *speed, number(row.return_mean, ".4g"), left)
    more = [Text(f"… and {len(rows) - room:,} more")] if room < len(rows) else []
    return Group(drawn, *more)
