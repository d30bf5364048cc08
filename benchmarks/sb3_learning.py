"""What DeltaPPO and DeltaSAC learn beside PPO and SAC, with settings of the RL Zoo (rl_zoo3 2.9.2).

    python benchmarks/sb3_learning.py OUT [--tasks cartpole lunarlander mountaincar mountaincar-sac] [--seeds 3]
    tddelta report OUT/lunarlander

Each run leaves a run directory in OUT/TASK and prints how its last policy does in 20 episodes. Runs that exist are
skipped, so that it can be interrupted. LunarLander needs Box2D.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from tddelta.adapters.sb3 import DeltaPPO, DeltaSAC, RunDirectory
from tddelta.runs import run_path

Settings = tuple[dict[str, Any], int, int]

# Settings, environments, steps.
TASKS: dict[str, tuple[str, Any, Any, Callable[[], Settings]]] = {
    "cartpole": (
        "CartPole-v1",
        PPO,
        DeltaPPO,
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
        PPO,
        DeltaPPO,
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
        PPO,
        DeltaPPO,
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
        SAC,
        DeltaSAC,
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


def train(kind: Any, task: str, seed: int, out: Path) -> None:
    """One run."""
    name, *_, settings_of = TASKS[task]
    settings, count, steps = settings_of()
    if run_path(out, name, kind.__name__, seed).exists():
        return
    env = environment(name, task, count, settings["gamma"], seed)
    model = kind("MlpPolicy", env, seed=seed, device="cpu", **settings)
    model.learn(steps, callback=RunDirectory(out))
    evaluation = make_vec_env(name, seed=1_000 + seed)
    if isinstance(env, VecNormalize):
        evaluation = VecNormalize(evaluation, training=False, norm_reward=False)
        evaluation.obs_rms = env.obs_rms
    returns, _ = evaluate_policy(model, evaluation, n_eval_episodes=20, return_episode_rewards=True)
    training = [episode["r"] for episode in model.ep_info_buffer]
    print(
        f"{task}, {kind.__name__}, seed {seed}: {np.mean(returns):.1f} (standard deviation {np.std(returns):.1f}) "
        f"in 20 episodes; last {len(training)} training episodes {np.mean(training):.1f}",
        flush=True,
    )


def main() -> None:
    """Train all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for task in chosen.tasks:
        for seed in range(chosen.seeds):
            for kind in TASKS[task][1:3]:
                train(kind, task, seed, chosen.out / task)


if __name__ == "__main__":
    main()
