"""The paper's Atari experiment: games × agents × seeds as independent runs, how long they take, and what is measured.

The runs are those of `compare`, with the presets of the games: `OUT/GAME/AGENT/seed-N`. What is finished is skipped,
what was interrupted goes on, what is missing is started; several machines may work through one folder.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tddelta._plain import as_whole
from tddelta.errors import ConfigError, TDDeltaError
from tddelta.experiments.board import Board, RunState, entries
from tddelta.experiments.execution import available_cores, describe_origin, execute
from tddelta.experiments.loop import Outcome
from tddelta.experiments.plan import RunPlan, plan_runs
from tddelta.runs import Run, append_evaluation, write_reward_density
from tddelta.runs.files import read_rows
from tddelta.runs.locking import lock

if TYPE_CHECKING:
    from tddelta.deep.training import Progress

AGENTS = ("ppo", "ppo+", "ppo-delta-matched", "ppo-delta")
"""The paper's agents: PPO, PPO+, PPO-TD(λ,Δ) and PPO-TD(λ̂,Δ)."""

SEEDS = (125125, 513, 90135, 81212, 3523401, 15709, 17, 0, 8412, 1153780)
"""The paper's seeds, in its order."""

STEPS = 10_000_000
"""The paper's budget in agent steps, four frames each."""

VARIANT_GAMES = ("Zaxxon", "Qbert")
"""Where the published agents lose most, and where they still gain after correction."""

VARIANT_AGENTS = ("ppo-delta-matched-released", "ppo-delta-matched-published", "ppo-delta-matched")
"""The released, the published and the correct algorithm; see `tddelta.experiments.released`."""

HOLD_OUT_EPISODES = 30
"""Hold-out episodes; the i-th begins with i no-ops beyond the usual start, i = 0, 1, …."""

DENSITY_STEPS = 10_000
"""Steps over which rewards are counted."""


def plan_atari(
    games: Sequence[str] | None = None,
    agents: Sequence[str] = AGENTS,
    *,
    seeds: int | Sequence[int] = len(SEEDS),
    steps: int = STEPS,
    out: Path | None = None,
) -> list[RunPlan]:
    """Lay out the runs.

    On a CPU they go seed by seed, so that all agents have come equally far whenever one looks. On a GPU all seeds of an
    agent stand together: they are trained beside one another, so that it need not wait for one run's emulators.

    Args:
        games: Names of games; None is the nine of the paper.
        agents: Names of agents, those of `released.VARIANTS` and `"package.module:agent"` among them.
        seeds: How many of the paper's seeds, in its order; or the seeds themselves.
        steps: Agent steps per run.
        out: Folder of the run directories; None is a new one.

    Raises:
        ConfigError: A name is unknown, there are not so many seeds, or a number is out of range.
        MissingExtra: The emulator is not installed.
    """
    from tddelta.deep.atari import PAPER
    from tddelta.experiments.released import VARIANTS

    seeds = as_whole(seeds)
    if isinstance(seeds, int):
        if not 1 <= seeds <= len(SEEDS):
            raise ConfigError(
                f"seeds must be a number from 1 to {len(SEEDS)}, of the paper's seeds; got {seeds}: name other seeds "
                "in a list"
            )
        seeds = SEEDS[:seeds]
    named = [VARIANTS.get(agent, agent) for agent in agents]
    plans = plan_runs(list(PAPER if games is None else games), named, seeds=seeds, steps=steps, out=out)
    return plans if _on_gpu() else sorted(plans, key=lambda plan: list(seeds).index(plan.seed))


@dataclass(frozen=True)
class Estimate:
    """How fast this machine trains.

    Attributes:
        steps_per_second: Agent steps per second of all runs in progress together.
        together: Runs that are in progress at a time.
        source: Where the number comes from, for a reader.
    """

    steps_per_second: float
    together: int
    source: str

    def seconds(self, states: Sequence[RunState]) -> float:
        """Time that what is left of some runs takes here."""
        return sum(max(state.entry.steps - state.steps, 0) for state in states) / self.steps_per_second


def look(plans: Sequence[RunPlan]) -> list[RunState]:
    """How far every run is."""
    return Board(entries(plans)).look()


def estimate(plans: Sequence[RunPlan], *, seconds: float = 60.0) -> Estimate:
    """How fast this machine is: from runs of the plan that were trained here, else from a short probe.

    The probe trains some of the runs for a few updates, as many at a time as the plan would, in a folder that is
    removed afterwards.

    Args:
        plans: The plan.
        seconds: The probe ends after this time, once it has trained at all.
    """
    together = _together(plans)
    recorded = [speed for plan in plans if (speed := _recorded(plan, describe_origin(())["machine"])) is not None]
    if recorded:
        mean = sum(recorded) / len(recorded)
        return Estimate(mean * together, together, f"measured in {len(recorded)} runs of this folder, trained here")
    speeds = _probe(plans[:together], seconds)
    return Estimate(sum(speeds), together, f"measured just now with {together} at a time")


def _on_gpu() -> bool:
    import jax

    return jax.default_backend() != "cpu"


def _together(plans: Sequence[RunPlan]) -> int:
    """How many runs `execute` trains at a time."""
    if _on_gpu():
        return sum(plan.path.parent == plans[0].path.parent for plan in plans)
    return min(available_cores(), len(plans))


def _recorded(plan: RunPlan, machine: dict[str, Any]) -> float | None:
    """Steps per second of a run when it was trained on this machine last."""
    rows = read_rows(plan.path / "timing.jsonl") if plan.path.exists() else []
    starts = [index for index, row in enumerate(rows) if row.get("event") in ("start", "resume")]
    if not starts or rows[starts[-1]].get("machine") != machine:
        return None
    blocks = [row for row in rows[starts[-1] :] if row.get("event") == "block"]
    seconds = sum(float(row["seconds"]) for row in blocks)
    return sum(float(row["steps_per_second"]) * float(row["seconds"]) for row in blocks) / seconds if seconds else None


class _Speeds:
    """Watches a probe, and ends it when every run has told its speed twice: the first one may include warming up."""

    def __init__(self, count: int, seconds: float, stop: threading.Event) -> None:
        self.found: dict[Path, list[float]] = {}
        self._count, self._stop = count, stop
        self._until = time.monotonic() + seconds

    def begin(self, plan: RunPlan) -> None:
        """Nothing to do."""

    def progress(self, plan: RunPlan, progress: "Progress") -> None:
        """Take down a speed."""
        if progress.phase == "training" and progress.steps_per_second is not None:
            self.found.setdefault(plan.path, []).append(progress.steps_per_second)
        done = [speeds for speeds in self.found.values() if len(speeds) > 1]
        late = time.monotonic() > self._until and len(self.found) == self._count
        if len(done) == self._count or late:
            self._stop.set()

    def end(self, outcome: Outcome) -> None:
        """Nothing to do."""

    def stopping(self) -> None:
        """Nothing to do."""

    def tick(self) -> None:
        """Nothing to do."""


def _probe(plans: Sequence[RunPlan], seconds: float) -> list[float]:
    """Speeds of some runs in the company of each other."""
    stop = threading.Event()
    watcher = _Speeds(len(plans), seconds, stop)
    with tempfile.TemporaryDirectory(prefix="tddelta-probe-") as folder:
        elsewhere = [_at(plan, Path(folder) / str(index)) for index, plan in enumerate(plans)]
        outcomes, number = execute(elsewhere, watcher, stop=stop)
    if number is not None:
        raise KeyboardInterrupt
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [speeds[-1] for speeds in watcher.found.values()]


def _at(plan: RunPlan, path: Path) -> RunPlan:
    """The same run in another place."""
    return RunPlan(plan.environment, plan.agent, plan.seed, path, plan.config, plan.content, plan.recipe)


def measure(plans: Sequence[RunPlan], say: Callable[[str], None]) -> list[tuple[RunPlan, Exception]]:
    """Play hold-out episodes and count rewards with every finished run that lacks them; others may do so, too.

    Args:
        plans: The runs.
        say: Called with a line before each run that is measured.

    Returns:
        The runs that could not be measured, and why.
    """
    failed: list[tuple[RunPlan, Exception]] = []
    for plan in plans:
        try:
            if Run(plan.path).status["state"] != "finished" or not _lacks(plan.path):
                continue
            try:
                held = lock(plan.path)
            except ConfigError:  # another machine measures it
                continue
            with held or nullcontext():
                say(f"{plan.name}: hold-out episodes and rewards")
                _measure(plan)
        except (TDDeltaError, OSError) as error:
            failed.append((plan, error))
    return failed


def _lacks(path: Path) -> list[str]:
    """What was not measured with a run yet."""
    run = Run(path)
    played = any(row.get("starts") == "no-ops" and row.get("mode") == "sampled" for row in run.evaluations)
    return [*([] if played else ["hold-out"]), *([] if run.reward_density else ["density"])]


def _measure(plan: RunPlan) -> None:
    from tddelta.deep import measures, policy

    run, lacks = Run(plan.path), _lacks(plan.path)  # again: another machine may have been faster
    loaded = policy.load(run, environment=plan.config.environment, network=plan.config.network)
    if "hold-out" in lacks:
        row = measures.hold_out(loaded, episodes=HOLD_OUT_EPISODES)
        append_evaluation(run.path, {"steps": run.status["steps"], **row})
    if "density" in lacks:
        write_reward_density(run.path, measures.reward_density(loaded, steps=DENSITY_STEPS))
