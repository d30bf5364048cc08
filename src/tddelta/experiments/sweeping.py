"""Working through a study: skip what is finished, go on with what was interrupted, try again what failed."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tddelta._plain import whole
from tddelta._streams import lasting_streams
from tddelta.errors import CheckpointError, ConfigError, own_checks, printable
from tddelta.experiments.display import (
    STATES,
    Board,
    Display,
    Entry,
    RunState,
    describe,
    duration,
    entries,
    number,
    redrawn,
    summary,
)
from tddelta.experiments.plan import RunPlan, Study, begun, divide, plan_study, read_study
from tddelta.experiments.processes import Processes
from tddelta.experiments.running import Executor, Outcome, execute, work_through
from tddelta.runs import FORMAT, Runs, check_trackers, files
from tddelta.runs.files import lock_file

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


MEMORY = "study.json"
"""File in the folder of a study's runs that says which runs it has, and how many seeds were added."""


@dataclass(frozen=True)
class Planned:
    """A study and its runs.

    Attributes:
        study: What its file says.
        added: Seeds that each part got beside its own.
        plans: The runs.
    """

    study: Study
    added: int
    plans: Sequence[RunPlan]

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of training."""
        given = {"checkpoint_every": self.study.checkpoint_every, "track": self.study.track}
        return {"eval_every": self.study.eval_every, **{k: value for k, value in given.items() if value is not None}}


def plan(path: Path, add_seeds: int = 0, **changes: Any) -> Planned:
    """Read and plan a study, with the seeds that were added before and those that come now.

    Args:
        path: The TOML file.
        add_seeds: How many seeds each part gets more.
        **changes: Fields of `Study` in place of what the file says.

    Raises:
        ConfigError: The study has a mistake, or `add_seeds` is below 0.
        MissingExtra: A tracker's package is not installed.
    """
    add_seeds = whole("add_seeds", add_seeds, 0, most=100_000, advice="seeds can only be added")
    study = replace(read_study(path), **changes)
    check_trackers(study.track or ())
    added = _remembered(study).get("added_seeds", 0) + add_seeds
    return Planned(study, added, plan_study(study, added))


def status(path: Path) -> list[RunState]:
    """How far every run of a study is, without training anything.

    Args:
        path: The TOML file.

    Raises:
        ConfigError: The study has a mistake.
    """
    return Board(known(path)).look()


def known(path: Path) -> list[Entry]:
    """The runs of a study: from its memory while the file is the same, which is quicker than planning them."""
    study = read_study(path)
    memory = _remembered(study)
    if memory.get("sha256") != study.digest:
        return entries(plan(path).plans)
    return [_entry(study, row) for row in memory["runs"]]


def remember(planned: Planned) -> None:
    """Write the memory of a study."""
    study = planned.study
    runs = [{**vars(entry), "path": entry.path.relative_to(study.out).as_posix()} for entry in entries(planned.plans)]
    memory = {
        "format": FORMAT,
        "study": study.path.name,
        "sha256": study.digest,
        "added_seeds": planned.added,
        "runs": runs,
    }
    study.out.mkdir(parents=True, exist_ok=True)
    files.replace(study.out / MEMORY, files.to_json(memory))


def _remembered(study: Study) -> Mapping[str, Any]:
    place = study.out / MEMORY
    if not place.exists():
        return {}
    memory = files.read_json(place)
    version, added = memory.get("format"), memory.get("added_seeds")
    counted = isinstance(added, int) and added >= 0
    if not isinstance(version, int) or not counted or not isinstance(memory.get("runs"), list):
        raise CheckpointError(f"{place} is no memory of a study: remove it, and name the seeds in {study.path.name}")
    if version > FORMAT:
        raise CheckpointError(
            f"{place} has format {version}, and this tddelta reads up to {FORMAT}: install a newer one"
        )
    return memory


def _entry(study: Study, row: Any) -> Entry:
    """A run as the memory has it, which may be a stranger's."""
    try:
        path = PurePosixPath(row["path"])
        if len(path.parts) == 3 and not path.is_absolute() and ".." not in path.parts:
            names = str(row["environment"]), str(row["agent"])
            return Entry(*names, int(row["seed"]), study.out / path, int(row["steps"]))
    except (KeyError, TypeError, ValueError):
        pass
    raise CheckpointError(f"{study.out / MEMORY} names {row!r}, which is no run of a study: remove that file")


def _claim(out: Path, *, shared: bool = False) -> IO[bytes]:
    """Keep a second sweep out of a folder until what is returned is closed; those that train one run each share it.

    Raises:
        ConfigError: Another sweep works there.
        StorageError: The folder cannot be written to.
    """
    with files.storing(out):
        out.mkdir(parents=True, exist_ok=True)
    return lock_file(out / ".sweep.lock", "watch it with --status --watch", shared=shared)


def executor(
    planned: Planned,
    *,
    workers: int | None = None,
    ray: str | None = None,
    ray_fetch: bool = False,
    command: Sequence[str] = (),
) -> Executor:
    """Return who trains the runs: processes of this machine, or a Ray cluster; see `sweep`.

    Raises:
        ConfigError: The arguments contradict each other.
        MissingExtra: Ray is not installed.
    """
    if ray is None:
        if ray_fetch:
            raise ConfigError("ray_fetch is for a Ray cluster; got no address: name it with ray=")
        return Processes(workers, options=planned.options, command=command)
    if workers is not None:
        raise ConfigError(f"workers is for processes of this machine; got {workers} and a Ray cluster: drop one")
    from tddelta.experiments.ray_cluster import RayCluster

    study = planned.study
    return RayCluster(
        ray,
        fetch=ray_fetch,
        cpus=study.cpus,
        gpus=study.gpus,
        retries=study.retries,
        options=planned.options,
        command=command,
    )


def work(
    planned: Planned, executor: Executor, *, live: bool = False, say: Callable[[Outcome], str] | None = None
) -> tuple[list[Outcome], int | None]:
    """Train every run of a study that is not finished.

    Args:
        planned: The study.
        executor: Who trains them.
        live: Whether to draw a table of all runs on the standard error.
        say: Makes the line for a run that ended; None says nothing.

    Returns:
        How every run ended, those finished before first, and the signal that stopped them, if one did.

    Raises:
        ConfigError: Another sweep works on the study, or a run directory is not what the study says.
    """
    with _claim(planned.study.out):
        if (now := _remembered(planned.study).get("added_seeds", 0)) > planned.added:
            raise ConfigError(f"another sweep added seeds meanwhile, {now} in place of {planned.added}: start it again")
        todo, finished = divide(planned.plans, resume=True)
        remember(planned)
        with SweepDisplay(Board(entries(planned.plans), locks=False), finished, live=live, say=say) as display:
            outcomes, number = work_through(
                todo,
                executor,
                display,
                retries=planned.study.retries,
                again=display.again,
                every=display.seconds,
            )
    return [*(Outcome(plan, "finished", skipped=True) for plan in finished), *outcomes], number


def work_on_one(
    planned: Planned, index: int, *, say: Callable[[Outcome], str] | None = None, command: Sequence[str] = ()
) -> tuple[list[Outcome], int | None]:
    """Train one run of a study in this process, as a job of a cluster does; see `work`.

    Args:
        planned: The study.
        index: Place of the run in the study, from 0.
        say: Makes the line for the run when it has ended; None says nothing.
        command: The command line, for `timing.jsonl`.
    """
    if not 0 <= index < len(planned.plans):
        raise ConfigError(f"the study has the runs 0 to {len(planned.plans) - 1}; got {index}: name one of them")
    with _claim(planned.study.out, shared=True):
        todo, finished = divide([planned.plans[index]], resume=True)
        with Display(todo, finished, live=False, say=say) as display:
            outcomes, number = execute(todo, display, command=command, **planned.options)
    return [*(Outcome(plan, "finished", skipped=True) for plan in finished), *outcomes], number


@own_checks
@lasting_streams()
def sweep(
    study: str | os.PathLike[str],
    *,
    workers: int | None = None,
    ray: str | None = None,
    ray_fetch: bool = False,
    add_seeds: int = 0,
    progress: bool | None = None,
) -> Runs:
    """Train every run of a study that is not finished.

    Args:
        study: The TOML file; docs/sweeps.md explains its keys.
        workers: Processes at a time; None is one per core, and one where there is a GPU.
        ray: Address of a Ray cluster to train on, or "auto" for the one that this machine belongs to.
        ray_fetch: Whether what the machines of the cluster write comes back over the network; otherwise they write
            into the folder of the study, which they share.
        add_seeds: How many seeds every part of the study gets more, now and for good.
        progress: Whether to show progress; None shows it on a terminal.

    Returns:
        All runs that have begun, in order of environment, agent and seed. A warning names those that failed.

    Raises:
        ConfigError: The study has a mistake, or another sweep works on it. Nothing has been started then.
        KeyboardInterrupt: Ctrl-C, after the runs in progress were saved.
    """
    planned = plan(Path(study), add_seeds)
    terminal = sys.stderr.isatty()
    shown = terminal if progress is None else progress
    trainer = executor(planned, workers=workers, ray=ray, ray_fetch=ray_fetch)
    outcomes, number = work(planned, trainer, live=shown and terminal, say=describe if shown else None)
    if number is not None:
        signal.raise_signal(number)  # the runs are saved: now it does what it always does
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        texts = "; ".join(f"{one.plan.name}: {type(one.error).__name__}: {one.error}" for one in failed)
        warnings.warn(f"{len(failed)} of {len(planned.plans)} runs failed: {texts}", RuntimeWarning, stacklevel=3)
    return begun(planned.plans)
