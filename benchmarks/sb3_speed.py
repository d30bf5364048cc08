"""Wall time of `DeltaPPO` with six components against SB3's PPO, 8 environments, in alternation in one process.

    python benchmarks/sb3_speed.py [--rounds N] [--tasks cartpole small a2c pictures atari]

Of each round the two times stand side by side; the ratio is that of the medians. Under 1.10 is the goal.
"""

import argparse
import statistics
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from tddelta.adapters.sb3 import DeltaA2C, DeltaPPO

CARTPOLE = {"n_steps": 128, "batch_size": 256, "n_epochs": 4}


def cartpole(kind: Any) -> tuple[Any, int]:
    """CartPole with an MLP: the environment and the networks cost little, so that the rest shows."""
    return kind("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), seed=0, device="cpu", **CARTPOLE), 8 * 128


def small(kind: Any) -> tuple[Any, int]:
    """CartPole with the minibatches and epochs of SB3's defaults."""
    settings = {**CARTPOLE, "batch_size": 64, "n_epochs": 10}
    return kind("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), seed=0, device="cpu", **settings), 8 * 128


def a2c(kind: Any) -> tuple[Any, int]:
    """CartPole with A2C."""
    kind = DeltaA2C if kind is DeltaPPO else A2C
    return kind("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), seed=0, device="cpu"), 8 * 5 * 20


class Pictures(gymnasium.Env[Any, Any]):
    """Four frames of 84 × 84 as in Atari, at no cost: what is left is the networks, and the rest of the algorithm."""

    observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = spaces.Discrete(6)

    def __init__(self) -> None:
        self.picture = np.random.default_rng(0).integers(0, 255, (4, 84, 84), np.uint8)
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self.time = 0
        return self.picture, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        self.time += 1
        return self.picture, float(action == 0), self.time >= 200, False, {}


ATARI = {"n_steps": 64, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4, "clip_range": 0.1}


def pictures(kind: Any) -> tuple[Any, int]:
    """The CNN and the settings for Atari, without the emulator."""
    return kind("CnnPolicy", make_vec_env(Pictures, n_envs=8, seed=0), seed=0, device="cpu", **ATARI), 8 * 64


def atari(kind: Any) -> tuple[Any, int]:
    """Pong from pixels, with the settings of the RL Zoo; needs opencv-python and ale-py."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("ALE/Pong-v5", n_envs=8, seed=0, env_kwargs={"frameskip": 1}), 4)
    return kind("CnnPolicy", env, seed=0, device="cpu", **ATARI), 8 * 64


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tasks", nargs="+", default=["cartpole", "small", "a2c", "pictures"])
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    for name in chosen.tasks:
        make = {"cartpole": cartpole, "small": small, "a2c": a2c, "pictures": pictures, "atari": atari}[name]
        models = {"SB3": make(PPO), "components": make(DeltaPPO)}
        for model, steps in models.values():
            model.learn(steps)  # the first rollout loads and compiles what later ones find
        times: dict[str, list[float]] = {label: [] for label in models}
        for _ in range(chosen.rounds):
            for label, (model, steps) in models.items():
                # Processor time of this process too: on a machine that others use it says more than the clock.
                began = time.perf_counter(), time.process_time()
                model.learn(steps, reset_num_timesteps=False)
                times[label].append(time.perf_counter() - began[0])
                times.setdefault(f"{label} cpu", []).append(time.process_time() - began[1])
        medians = {label: statistics.median(values) for label, values in times.items()}
        ratios = np.array(times["components"]) / np.array(times["SB3"])
        cpu = medians["components cpu"] / medians["SB3 cpu"]
        print(
            f"{name}: SB3 {medians['SB3']:.3f} s, with {len(models['components'][0].scales)} components "
            f"{medians['components']:.3f} s: ratio {medians['components'] / medians['SB3']:.3f} "
            f"(rounds {ratios.min():.3f} to {ratios.max():.3f}; processor time {cpu:.3f})"
        )


if __name__ == "__main__":
    main()
