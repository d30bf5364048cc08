"""The learning results of `docs/results.md`: hours of training that can be interrupted, here or on another machine.

A finished run leaves a row in `docs/data/STUDY.csv`, from which `results_tables.py` draws the tables and figures; runs
that have one are not trained again.

python benchmarks/results.py              # everything that is missing; run directories in runs/results
python benchmarks/results.py noise        # one of the studies
python benchmarks/results.py --quick      # a smoke test: a few thousand steps, one seed, into runs/results-quick
"""

import argparse
import csv
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import tddelta as tdd
from tddelta.deep import ppo
from tddelta.errors import ContractionWarning
from tddelta.report.statistics import asymptotic_score, average_score, critic_quality, curve_values
from tddelta.runs import Run

DATA = Path(__file__).parent.parent / "docs" / "data"
POINTS = 40
"""Points of a learning curve, equally spaced up to the last step."""
LAST = 100
"""The last training episodes, whose return, reward per step and lengths are recorded."""

MINATAR = ("SpaceInvaders-MinAtar", "Breakout-MinAtar", "Asterix-MinAtar", "Freeway-MinAtar")
SETTINGS = ("gamma", "lam", "actor_lam", "reward_noise")
"""Settings in which cases of a study differ; they tell its rows apart."""


@dataclass(frozen=True)
class Case:
    """Environments × agents × seeds with one choice of settings."""

    environments: tuple[str, ...]
    agents: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = tuple(range(10))
    steps: int = 2_000_000


FOUR = ("ppo", "ppo-multi", "ppo-delta", "ppo-delta-bootstrap")
STUDIES: Mapping[str, list[Case]] = {
    "minatar": [Case(MINATAR, tuple(tdd.AGENTS))],
    "noise": [
        Case(
            MINATAR[:1],
            ("ppo", "ppo-delta", "ppo-delta-bootstrap"),
            {"reward_noise": noise, "lam": lam, "actor_lam": 0.95},
        )
        for noise in (1.0, 3.0)
        for lam in (0.95, 1.0)
    ],
    "long": [Case((MINATAR[0], MINATAR[3]), FOUR, {"gamma": 0.999})],
    "delayed": [Case(("DelayedReward",), ("ppo", "ppo+", *FOUR[1:]), {"gamma": 0.9999}, seeds=tuple(range(10, 20)))],
    "cartpole": [Case(("CartPole-v1",), ("ppo", "ppo-delta", "ppo-delta-bootstrap"), steps=500_000)],
}


def row_of(run: Run, steps: int) -> dict[str, Any]:
    """Numbers of a finished run that the tables and figures need."""
    config, episodes, critic = run.config, run.episodes, run.critic
    limit = ppo.preset(config["environment"]).environment_object().time_limit
    last = slice(-LAST, None)
    grid = np.linspace(steps / POINTS, steps, POINTS)
    curve = curve_values(episodes["steps"], episodes["returns"], grid)
    quality = None if critic is None else critic_quality(critic["predicted"], critic["realised"])
    start = run.timing[0]
    numbers = {
        "return_last": asymptotic_score(episodes["returns"], LAST),
        "return_average": average_score(episodes["returns"]),
        "reward_per_step": episodes["returns"][last].sum() / episodes["lengths"][last].sum(),
        "length_last": episodes["lengths"][last].mean(),
        "at_limit": np.nan if limit is None else (episodes["lengths"][last] >= limit).mean(),
        "explained_variance": np.nan if quality is None else quality.explained_variance[-1],
        **{f"return@{int(step)}": value for step, value in zip(grid, curve, strict=True)},
    }
    return {
        **key_of(run.environment, config["agent"]["name"], run.seed, config["settings"]),
        "steps": run.status["steps"],
        "episodes": run.status["episodes"],
        "date": str(start["time"])[:10],
        "version": start["versions"]["tddelta"],
        "machine": "{cores} cores of {processor}".format_map(start["machine"]),
        **{name: f"{value:.6g}" for name, value in numbers.items()},
    }


def key_of(environment: str, agent: str, seed: int, settings: Mapping[str, Any]) -> dict[str, str]:
    """The columns that tell the rows of a study apart."""
    own = {name: f"{settings.get(name, 0.0):g}" for name in SETTINGS}  # a record leaves out noise of 0
    return {"environment": environment, "agent": agent, **own, "seed": str(seed)}


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows that are there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """All rows of a study, in order of their keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(rows, key=lambda row: [row[name] for name in KEYS[:-1]] + [int(row["seed"])]))
    os.replace(new, path)


KEYS = tuple(key_of("", "", 0, {}))


def groups(case: Case) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Environment and agent of every group of seeds, and the columns that tell its rows apart, but for the seed."""
    for environment, agent in product(case.environments, case.agents):
        with warnings.catch_warnings(action="ignore", category=ContractionWarning):  # training gives it
            config = ppo.preset(environment, agent, steps=case.steps, **case.settings)
        key = key_of(config.environment_object().name, agent, 0, config.to_dict())
        yield environment, agent, {name: key[name] for name in KEYS[:-1]}


def train(study: str, case: Case, folder: Path, data: Path) -> None:
    """Train the runs of a case that have no row yet, one agent after the other, and add their rows."""
    for environment, agent, key in groups(case):
        rows: list[dict[str, Any]] = [*read_rows(data)]
        there = [{column: row[column] for column in KEYS} for row in rows]
        missing = [seed for seed in case.seeds if {**key, "seed": str(seed)} not in there]
        print(f"{study}: {environment} {agent} {dict(case.settings)}: {len(missing)} runs", flush=True)
        if missing:
            runs = tdd.compare(
                environment, agent, seeds=missing, steps=case.steps, out=folder, resume=True, **case.settings
            )
            finished = [run for run in runs if run.status["state"] == "finished"]
            write_rows(data, rows + [row_of(run, case.steps) for run in finished])


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], help="which; all of them if none is named")
    parser.add_argument("--out", type=Path, default=None, help="folder of the run directories")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps")
    given = parser.parse_args()
    folder = given.out or Path("runs", "results-quick" if given.quick else "results")
    for study in given.studies or STUDIES:
        for case in STUDIES[study]:
            chosen = Case(case.environments, case.agents, case.settings, (0,), 20_000) if given.quick else case
            train(study, chosen, folder / study, (folder if given.quick else DATA) / f"{study}.csv")


if __name__ == "__main__":
    main()
