"""Learning with DeltaPPO and DeltaSAC beside PPO and SAC, with settings of the RL Zoo (rl_zoo3 2.9.2).

    python benchmarks/sb3_learning.py OUT [--tasks cartpole lunarlander mountaincar mountaincar-sac] [--seeds 3]
    python benchmarks/sb3_learning.py OUT --table
    tddelta report OUT/lunarlander

Each run leaves a run directory in OUT/TASK, with its settings, 20 episodes of its last policy with deterministic
actions as its evaluation. Runs that are finished are skipped, and unfinished ones set aside and done again, so that it
can be interrupted, and several processes may share OUT. At the end comes the table, which --table prints of what is
there. On LunarLander, which needs Box2D, DeltaPPO learns from the paper's form of the λ-return, too.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from tddelta.adapters.sb3 import DeltaPPO, DeltaSAC, RunDirectory
from tddelta.report.statistics import asymptotic_score, average_score, summarise, welch_test
from tddelta.runs import Run, is_being_written, run_path, set_aside

EPISODES = 20
"""Episodes of the last policy."""

SOLVED = {"cartpole": 475, "lunarlander": 200}
"""The mean return of 100 training episodes at which Gymnasium calls a task solved; others have fewer episodes."""

Settings = tuple[dict[str, Any], int, int]
Agents = dict[str, tuple[Any, dict[str, Any]]]
"""Class and further settings by name; the first is what the others are compared with."""

ON_POLICY: Agents = {"PPO": (PPO, {}), "DeltaPPO": (DeltaPPO, {})}

# Environment, agents, and: settings, environments, steps.
TASKS: dict[str, tuple[str, Agents, Callable[[], Settings]]] = {
    "cartpole": (
        "CartPole-v1",
        ON_POLICY,
        lambda: (
            {
                "n_steps": 32,
                "batch_size": 256,
                "gae_lambda": 0.8,
                "gamma": 0.98,
                "n_epochs": 20,
                "learning_rate": LinearSchedule(0.001, 0, 1),
                "clip_range": LinearSchedule(0.2, 0, 1),
            },
            8,
            100_000,
        ),
    ),
    "lunarlander": (
        "LunarLander-v3",
        {**ON_POLICY, "DeltaPPO-bootstrap": (DeltaPPO, {"form": "bootstrap"})},
        lambda: (
            {
                "n_steps": 1024,
                "batch_size": 64,
                "gae_lambda": 0.98,
                "gamma": 0.999,
                "n_epochs": 4,
                "ent_coef": 0.01,
            },
            16,
            500_000,
        ),
    ),
    "mountaincar": (
        "MountainCarContinuous-v0",
        ON_POLICY,
        lambda: (
            {
                "n_steps": 8,
                "batch_size": 256,
                "gae_lambda": 0.9,
                "gamma": 0.9999,
                "n_epochs": 10,
                "ent_coef": 0.00429,
                "learning_rate": 7.77e-05,
                "clip_range": 0.1,
                "max_grad_norm": 5,
                "vf_coef": 0.19,
                "use_sde": True,
                "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
            },
            1,
            20_000,
        ),
    ),
    "mountaincar-sac": (
        "MountainCarContinuous-v0",
        {"SAC": (SAC, {}), "DeltaSAC": (DeltaSAC, {})},
        lambda: (
            {
                "learning_rate": 3e-4,
                "buffer_size": 50_000,
                "batch_size": 512,
                "ent_coef": 0.1,
                "train_freq": 32,
                "gradient_steps": 32,
                "gamma": 0.9999,
                "tau": 0.01,
                "learning_starts": 0,
                "use_sde": True,
                "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64], "use_expln": True},
            },
            1,
            50_000,
        ),
    ),
}


def environment(name: str, task: str, count: int, gamma: float, seed: int) -> Any:
    """The environments, normalised where the Zoo normalises."""
    made = make_vec_env(name, n_envs=count, seed=seed)
    return VecNormalize(made, gamma=gamma) if task == "mountaincar" else made


def train(agent: str, task: str, seed: int, out: Path) -> None:
    """One run, unless it is there."""
    name, agents, settings_of = TASKS[task]
    kind, further = agents[agent]
    settings, count, steps = settings_of()
    path = run_path(out, name, agent, seed)
    if path.exists():
        if is_being_written(path) or is_done(path):
            return
        set_aside(path)
    env = environment(name, task, count, settings["gamma"], seed)
    model = kind("MlpPolicy", env, seed=seed, device="cpu", **settings, **further)
    apart = environment(name, task, 1, settings["gamma"], seed)
    model.learn(steps, callback=RunDirectory(out, agent=agent, eval_env=apart, eval_episodes=EPISODES))
    score = Run(path).evaluations[-1]["return_mean"]
    print(f"{task}, {agent}, seed {seed}: {score:.1f} in {EPISODES} episodes", flush=True)


def is_done(path: Path) -> bool:
    """Tell whether a run came to its end, evaluation and all."""
    run = Run(path)
    return run.status["state"] == "finished" and bool(run.evaluations)


def solved_at(run: Run, task: str) -> float:
    """The first step at which the mean of 100 training episodes is that of a solved task; NaN if none is."""
    returns = run.episodes["returns"]
    if task not in SOLVED or len(returns) < 100:
        return float("nan")
    means = np.convolve(returns, np.full(100, 0.01), "valid")
    reached = np.flatnonzero(means >= SOLVED[task])
    return float(run.episodes["steps"][reached[0] + 99]) if len(reached) else float("nan")


def table(out: Path, tasks: list[str]) -> str:
    """All finished runs: mean ± standard error over seeds, and Welch's tests against the first agent."""
    lines = [
        "| task | steps | γ | agent | components | seeds "
        "| last policy | last 100 episodes | all episodes | solved at |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    tests = ["| task | agents | measure | difference | p (Welch) |", "|---|---|---|---|---|"]
    for task in tasks:
        name, agents, _ = TASKS[task]
        scores: dict[str, list[list[float]]] = {}
        for agent in agents:
            folder = run_path(out / task, name, agent, 0).parent
            runs = [Run(path) for path in sorted(folder.glob("seed-*")) if path.suffix == "" and is_done(path)]
            if not runs:
                continue
            played = [float(run.evaluations[-1]["return_mean"]) for run in runs]
            last, everything = ([f(run.episodes["returns"]) for run in runs] for f in (asymptotic_score, average_score))
            scores[agent] = [played, last, everything]
            solved = [solved_at(run, task) for run in runs]
            config = runs[0].config
            cells = [task, f"{config['steps']:,}", f"{config['settings']['gamma']:g}", agent]
            cells += [str(len(runs[0].scales)), str(len(runs)), *(measured(values) for values in scores[agent])]
            there = np.isfinite(solved)
            reached = f"{np.mean(np.array(solved)[there]):,.0f} ({there.sum()} of {len(runs)})" if there.any() else "–"
            lines.append("| " + " | ".join([*cells, reached]) + " |")
        first = next(iter(agents))
        for agent in [agent for agent in scores if agent != first and first in scores]:
            for place, measure in enumerate(("last policy", "last 100 episodes", "all episodes")):
                ours, plain = scores[agent][place], scores[first][place]
                if not np.isfinite([*ours, *plain]).all():  # no episode ended in training
                    continue
                test = welch_test(ours, plain)
                p = test.note if test.p_value is None else f"{test.p_value:.2g}"
                tests.append(f"| {task} | {agent} − {first} | {measure} | {test.difference:+.1f} | {p} |")
    return "\n".join([*lines, "", *tests])


def measured(values: list[float]) -> str:
    """Mean ± standard error."""
    summary = summarise(values)
    if not np.isfinite(summary.mean):
        return "–"
    error = "" if summary.standard_error is None else f" ± {summary.standard_error:.1f}"
    return f"{summary.mean:.1f}{error}"


def main() -> None:
    """Train all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="train nothing")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for task in [] if chosen.table else chosen.tasks:
        for seed in range(chosen.seeds):
            for agent in TASKS[task][1]:
                train(agent, task, seed, chosen.out / task)
    print(table(chosen.out, chosen.tasks))


if __name__ == "__main__":
    main()
