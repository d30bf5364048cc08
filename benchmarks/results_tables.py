"""The tables of `docs/results.md`, from the run directories of `benchmarks/results.py`.

python benchmarks/results_tables.py [runs/results]    # writes docs/tables/*.md
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from results import COMPONENT_SCALES, GAMMAS, RULES

import tddelta as tdd
from tddelta.report.run_set import RunSet
from tddelta.report.statistics import asymptotic_score, summarise
from tddelta.report.words import p_text, signed, summary_text

TABLES = Path(__file__).parent.parent / "docs" / "tables"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def minatar(folder: Path) -> None:
    """Scores, differences and critics on the four games."""
    runs = RunSet(tdd.load_runs(folder))
    environments, agents = runs.environments, runs.agents
    for measure in ("asymptotic", "average"):
        rows = []
        for agent in agents:
            cells = [runs.groups.get((environment, agent)) for environment in environments]
            rows.append([f"`{agent}`", *(summary_text(cell.summary(measure)) if cell else "–" for cell in cells)])
        write(f"minatar-{measure}", markdown(["agent", *environments], rows))
    compared = [
        [
            one.environment,
            f"`{one.agent}` − `{one.baseline}`",
            signed(one.welch.difference),
            p_text(one.welch.p_value),
            p_text(one.corrected),
        ]
        for one in runs.comparisons()
    ]
    write("minatar-differences", markdown(["game", "difference of", "mean", "p (Welch)", "p (Holm)"], compared))
    rows = []
    for agent in agents:
        cells = []
        for environment in environments:
            group = runs.groups.get((environment, agent))
            found = [quality.explained_variance[-1] for quality in group.critic] if group else []
            cells.append(summary_text(summarise(found)) if found else "–")
        rows.append([f"`{agent}`", *cells])
    write("minatar-critic", markdown(["agent", *environments], rows))


def cartpole(folder: Path) -> None:
    """Final returns on CartPole-v1, and the worst seed."""
    runs = RunSet(tdd.load_runs(folder))
    rows = []
    for agent in runs.agents:
        group = runs.groups.get(("CartPole-v1", agent))
        if group:
            worst = min(seed.score("asymptotic") for seed in group.seeds)
            rows.append([f"`{agent}`", summary_text(group.summary("asymptotic")), f"{worst:.1f}"])
    write("cartpole", markdown(["agent", "return of the last 100 episodes", "worst seed"], rows))


def horizons(folder: Path) -> None:
    """Final returns for every discount, trace rule and unit of the critic."""
    for environment in ("DiscountingChain", "DelayedReward"):
        rows = [["`ppo`", "", *(cell(folder / f"gamma-{gamma}" / "one-critic", environment) for gamma in GAMMAS)]]
        for rule, scale in product(RULES, COMPONENT_SCALES):
            cells = [cell(folder / f"gamma-{gamma}" / f"{rule}-{scale}", environment) for gamma in GAMMAS]
            rows.append([f"`{rule}`", f"`{scale}`", *cells])
        head = ["trace rule", "component scale", *(f"γ = {gamma}" for gamma in GAMMAS)]
        write(f"horizons-{environment}", markdown(head, rows))


def cell(folder: Path, environment: str) -> str:
    """Mean ± standard error of the final returns of the seeds that finished, and how many failed."""
    runs = [run for run in tdd.load_runs(folder) if run.environment == environment]
    finished = [asymptotic_score(run.episodes["returns"]) for run in runs if run.status["state"] == "finished"]
    failed = sum(run.status["state"] == "failed" for run in runs)
    text = summary_text(summarise(np.asarray(finished))) if finished else "–"
    return f"{text} ({failed} of {len(runs)} not finite)" if failed else text


def write(name: str, text: str) -> None:
    """Writes one table."""
    TABLES.mkdir(parents=True, exist_ok=True)
    (TABLES / f"{name}.md").write_text(text)
    print(f"{TABLES.name}/{name}.md\n{text}")


if __name__ == "__main__":
    given = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/results")
    if (given / "minatar").exists():
        minatar(given / "minatar")
    if (given / "cartpole").exists():
        cartpole(given / "cartpole")
    if (given / "horizons").exists():
        horizons(given / "horizons")
