"""The paper's Atari experiment: games × agents × seeds as independent runs, how long they take, and what is measured.

The runs are those of `compare`, with the presets of the games: `OUT/GAME/AGENT/seed-N`. What is finished is skipped,
what was interrupted goes on, what is missing is started; several machines may work through one folder.

What was run for the paper, where it differs from what is right: agents with target functions of their own.

Two things are known of the released code, from its description. At the last step of every rollout the targets of all
components above the first take V_{z−1} of the current state where that of the next state belongs; and a time limit is
treated as a termination. The paper's text has the first one right and does not tell time limits from terminations.

| agents | last step of a rollout | time limit |
|---|---|---|
| `ppo-delta-matched`, `ppo-delta-bootstrap` | next state | truncation |
| `…-published` | next state | termination |
| `…-released` | current state | termination |

Neighbours in this table differ in one thing, so that its effect can be told.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tddelta import targets
from tddelta._plain import as_whole
from tddelta.decomposition import compose
from tddelta.deep import agents
from tddelta.deep.agents import Agent
from tddelta.errors import ConfigError, TDDeltaError, setting
from tddelta.experiments.display import Board, RunState
from tddelta.experiments.plan import RunPlan, plan_runs
from tddelta.experiments.running import available_cores, describe_origin, run_plans
from tddelta.report.run_set import block_speed
from tddelta.runs import Run, append_evaluation, write_reward_density
from tddelta.runs.files import lock, read_rows
from tddelta.timescales import TimeScales

if TYPE_CHECKING:
    from tddelta.deep.training import Progress


def published_targets(
    rewards: Any, deltas: Any, next_deltas: Any, *, terminated: Any, truncated: Any, scales: TimeScales
) -> Any:
    """λ-returns in the paper's form with time limits as terminations; arguments as in `tddelta.lambda_targets`."""
    ends = _without_limits(terminated, truncated)
    return agents.bootstrap_targets(rewards, deltas, next_deltas, scales=scales, **ends)


def released_targets(rewards: Any, deltas: Any, next_deltas: Any, *, scales: TimeScales, **ends: Any) -> Any:
    """λ-returns of the components with the fault of the released code, and time limits as terminations.

    At the last step T−1 the TD errors of the components z ≥ 1 are

        δ^z = (1−d) [(γ_z − γ_{z−1}) V_{z−1}(s_{T−1}) + γ_z W_z(s')] − W_z(s_{T−1})

    with V_{z−1}(s_{T−1}) in place of V_{z−1}(s'). For the arguments see `tddelta.lambda_targets`.
    """
    last = mistaken(deltas[-1], next_deltas[-1], scales)
    next_deltas = jnp.concatenate([next_deltas[:-1], last[None]])
    return published_targets(rewards, deltas, next_deltas, scales=scales, **ends)


def mistaken(deltas: jax.Array, next_deltas: jax.Array, scales: TimeScales) -> jax.Array:
    """The W(s') with which the right TD errors become those of the released code: see `released_targets`.

    U_0 = W_0(s'), and U_z = W_z(s') + (1 − γ_{z−1}/γ_z) (V_{z−1}(s) − Σ_{i<z} U_i) for z ≥ 1, from W(s) and W(s'),
    all (*batch, Z).
    """
    values = compose(deltas)
    found = [next_deltas[..., 0]]
    for z in range(1, len(scales)):
        share = 1 - scales.gammas[z - 1] / scales.gammas[z]
        found.append(next_deltas[..., z] + share * (values[..., z - 1] - sum(found)))
    return jnp.stack(found, axis=-1)


def published_advantages(
    rewards: Any, deltas: Any, next_deltas: Any, *, terminated: Any, truncated: Any, **options: Any
) -> Any:
    """Generalised advantages with time limits as terminations; for the arguments see `tddelta.advantages`."""
    return targets.advantages(rewards, deltas, next_deltas, **_without_limits(terminated, truncated), **options)


def _without_limits(terminated: Any, truncated: Any) -> dict[str, Any]:
    """The flags where a time limit is a termination."""
    return {"terminated": terminated | truncated, "truncated": jnp.zeros_like(truncated)}


def _variant(name: str, end: str, function: Any) -> Agent:
    return agents.AGENTS[name].replace(name=f"{name}-{end}", targets=function, advantages=published_advantages)


MATCHED_PUBLISHED = _variant("ppo-delta-matched", "published", published_targets)
"""`ppo-delta-matched` as the paper's text has it."""
MATCHED_RELEASED = _variant("ppo-delta-matched", "released", released_targets)
"""`ppo-delta-matched` as the released code had it."""
CAPPED_PUBLISHED = _variant("ppo-delta-bootstrap", "published", published_targets)
"""`ppo-delta-bootstrap` as the paper's text has it."""
CAPPED_RELEASED = _variant("ppo-delta-bootstrap", "released", released_targets)
"""`ppo-delta-bootstrap` as the released code had it."""

VARIANTS: dict[str, str] = {
    MATCHED_PUBLISHED.name: f"{__name__}:MATCHED_PUBLISHED",
    MATCHED_RELEASED.name: f"{__name__}:MATCHED_RELEASED",
    CAPPED_PUBLISHED.name: f"{__name__}:CAPPED_PUBLISHED",
    CAPPED_RELEASED.name: f"{__name__}:CAPPED_RELEASED",
}
"""Import paths of these agents by name, as `--agents` takes them."""

AGENTS = ("ppo", "ppo+", "ppo-delta-matched", "ppo-delta-bootstrap")
"""The paper's agents: PPO, PPO+, PPO-TD(λ,Δ) and PPO-TD(λ̂,Δ)."""

GAMES = ("Alien", "Amidar", "BankHeist", "Frostbite", "Hero", "MsPacman", "Qbert", "WizardOfWor", "Zaxxon")
"""The paper's nine games."""

SEEDS = (125125, 513, 90135, 81212, 3523401, 15709, 17, 0, 8412, 1153780)
"""The paper's seeds, in its order."""

STEPS = 10_000_000
"""The paper's budget in agent steps, four frames each."""

VARIANT_GAMES = ("Zaxxon", "Qbert")
"""Games in which the published agents lose most, and in which they still gain after correction."""

VARIANT_AGENTS = ("ppo-delta-matched-released", "ppo-delta-matched-published", "ppo-delta-matched")
"""The released, the published and the correct algorithm; see `tddelta.paper.atari`."""

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
        agents: Names of agents, those of `VARIANTS` and `"package.module:agent"` among them.
        seeds: How many of the paper's seeds, in its order; or the seeds themselves.
        steps: Agent steps per run.
        out: Folder of the run directories; None is a new one.

    Raises:
        ConfigError: A name is unknown, there are not so many seeds, or a number is out of range.
        MissingExtra: The emulator is not installed.
    """
    seeds = as_whole(seeds)
    if isinstance(seeds, int):
        if not 1 <= seeds <= len(SEEDS):
            raise ConfigError(
                f"{setting('seeds')} must be a number from 1 to {len(SEEDS)}, of the paper's seeds; got {seeds}: name "
                f"others, as in {setting('seeds', [11, 12])}"
            )
        seeds = SEEDS[:seeds]
    named = [VARIANTS.get(agent, agent) for agent in agents]
    plans = plan_runs(list(GAMES if games is None else games), named, seeds=seeds, steps=steps, out=out)
    return plans if _on_gpu() else sorted(plans, key=lambda plan: list(seeds).index(plan.seed))


@dataclass(frozen=True)
class Estimate:
    """Training speed of this machine.

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
    """Progress of every run."""
    return Board(plans).look()


def estimate(plans: Sequence[RunPlan], *, seconds: float = 60.0) -> Estimate:
    """Training speed of this machine, from runs of the plan that were trained here, else from a short probe.

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
    return jax.default_backend() != "cpu"


def _together(plans: Sequence[RunPlan]) -> int:
    """Number of runs that `run_plans` trains at a time."""
    if _on_gpu():
        return sum(plan.path.parent == plans[0].path.parent for plan in plans)
    return min(available_cores(), len(plans))


def _recorded(plan: RunPlan, machine: dict[str, Any]) -> float | None:
    """Steps per second of a run when it was trained on this machine last."""
    rows = read_rows(plan.path / "timing.jsonl") if plan.path.exists() else []
    starts = [index for index, row in enumerate(rows) if row.get("event") in ("start", "resume")]
    here = bool(starts) and rows[starts[-1]].get("machine") == machine
    return block_speed(rows[starts[-1] :]) if here else None


def _probe(plans: Sequence[RunPlan], seconds: float) -> list[float]:
    """Speeds of some runs in the company of each other, when each has told it twice: the first may be of warming up."""
    stop, found = threading.Event(), dict[Path, list[float]]()
    until = time.monotonic() + seconds

    def report(plan: RunPlan, progress: "Progress") -> None:
        if progress.phase == "training" and progress.steps_per_second is not None:
            found.setdefault(plan.path, []).append(progress.steps_per_second)
        late = time.monotonic() > until
        if len(found) == len(plans) and all(late or len(speeds) > 1 for speeds in found.values()):
            stop.set()

    with tempfile.TemporaryDirectory(prefix="tddelta-probe-") as folder:
        elsewhere = [replace(plan, path=Path(folder) / str(index)) for index, plan in enumerate(plans)]
        outcomes = run_plans(elsewhere, stop=stop, report=report)
    if outcomes.signal is not None:
        raise KeyboardInterrupt
    for _, error in outcomes.failed:
        raise error
    return [speeds[-1] for speeds in found.values()]


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
    """Measures that a run lacks."""
    run = Run(path)
    played = any(row.get("starts") == "no-ops" and row.get("mode") == "sampled" for row in run.evaluations)
    return [*([] if played else ["hold-out"]), *([] if run.reward_density else ["density"])]


def _measure(plan: RunPlan) -> None:
    from tddelta.deep import evaluation, policy

    run, lacks = Run(plan.path), _lacks(plan.path)  # again: another machine may have been faster
    loaded = policy.load(run, environment=plan.config.environment, network=plan.config.network)
    if "hold-out" in lacks:
        row = evaluation.hold_out(loaded, episodes=HOLD_OUT_EPISODES)
        append_evaluation(run.path, {"steps": run.status["steps"], **row})
    if "density" in lacks:
        write_reward_density(run.path, evaluation.reward_density(loaded, steps=DENSITY_STEPS))
