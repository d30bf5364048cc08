"""Parts of DeltaPPO that matter on LunarLander: variants of the critic, on seeds that are not reported elsewhere.

    python benchmarks/sb3_lunarlander.py [--variants ppo delta ...] [--seeds 10] [--steps 500000]

Settings are those of `sb3_learning.py`. Every 50,000 steps or more a line with the mean return of the training episodes
since the line before, the explained variance of SB3's returns (`returns`), and that of the discounted returns that came
in episodes which terminated (`came`), both by V in the last rollout; at the end the mean of the last 100 episodes.
Needs Box2D. Four minutes per run.
"""

import argparse
from collections import deque
from typing import Any

import numpy as np
import torch
from sb3_learning import TASKS
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from tddelta.adapters.sb3 import DeltaPPO
from tddelta.runs.recorder import realised_returns

EVERY = 50_000


class Sum(nn.Module):
    """A linear layer with several outputs, and their sum."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The sum, (B, 1)."""
        total: torch.Tensor = self.linear(features).sum(-1, keepdim=True)
        return total


class SumPolicy(ActorCriticPolicy):
    """V is the sum of nine outputs, as many as DeltaPPO has here, without a meaning of their own."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.value_net: Any = Sum(self.mlp_extractor.latent_dim_vf, 9)
        self.init_weights(self.value_net.linear, gain=1)
        optimizer: Any = self.optimizer_class
        self.optimizer = optimizer(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


THREE = {"ladder": "halving", "components": 3}

# Class, policy, further settings, whether rewards are normalised.
VARIANTS: dict[str, tuple[Any, Any, dict[str, Any], bool]] = {
    "ppo": (PPO, "MlpPolicy", {}, False),
    "ppo-sum": (PPO, SumPolicy, {}, False),
    "ppo-normalised": (PPO, "MlpPolicy", {}, True),
    "delta": (DeltaPPO, "MlpPolicy", {}, False),
    "delta-constant": (DeltaPPO, "MlpPolicy", {"scales": {"ladder": "halving", "rule": "constant"}}, False),
    "delta-matched": (DeltaPPO, "MlpPolicy", {"scales": {"ladder": "halving", "rule": "matched"}}, False),
    "delta-three": (DeltaPPO, "MlpPolicy", {"scales": THREE}, False),
    "delta-normalised": (DeltaPPO, "MlpPolicy", {}, True),
    "bootstrap": (DeltaPPO, "MlpPolicy", {"form": "bootstrap"}, False),
    "bootstrap-normalised": (DeltaPPO, "MlpPolicy", {"form": "bootstrap"}, True),
}


class Watch(BaseCallback):
    """Prints how training goes, and how well V knows what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.since: list[float] = []
        self.last: deque[float] = deque(maxlen=100)
        self.truncated: list[np.ndarray] = []
        self.printed = 0

    def _on_rollout_start(self) -> None:
        self.truncated = []

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        self.truncated.append(np.array([info.get("TimeLimit.truncated", False) for info in infos]))
        returns = [info["episode"]["r"] for info in infos if "episode" in info]
        self.since += returns
        self.last.extend(returns)
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps < self.printed + EVERY:
            return
        model: Any = self.model
        buffer = model.rollout_buffer
        truncated = np.array(self.truncated)
        ended = np.concatenate([buffer.episode_starts[1:], self.locals["dones"][None]]).astype(bool) & ~truncated
        # Not known for truncated episodes, to whose last reward SB3 adds γV.
        came = realised_returns(buffer.rewards, [model.gamma], terminated=ended, truncated=truncated)[..., 0]
        known = np.isfinite(came)
        own = explained_variance(buffer.values.ravel(), buffer.returns.ravel())
        real = explained_variance(buffer.values[known], came[known])
        scores = f"return {np.mean(self.since):7.1f}, explained variance of returns {own:.2f}, of what came {real:.2f}"
        print(f"  {self.num_timesteps:7,d}: {scores}", flush=True)
        self.since, self.printed = [], self.num_timesteps


def main(variants: list[str], seeds: list[int], steps: int) -> None:
    """Train every variant with every seed."""
    torch.set_num_threads(1)
    name, *_, settings_of = TASKS["lunarlander"]
    settings, count, _ = settings_of()
    for variant in variants:
        kind, policy, further, normalised = VARIANTS[variant]
        for seed in seeds:
            print(f"{variant}, seed {seed}", flush=True)
            env: Any = make_vec_env(name, n_envs=count, seed=seed)
            if normalised:
                env = VecNormalize(env, norm_obs=False, gamma=settings["gamma"])
            watch = Watch()
            kind(policy, env, seed=seed, device="cpu", **settings, **further).learn(steps, callback=watch)
            print(f"  last {len(watch.last)} episodes: {np.mean(watch.last):.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[10])
    parser.add_argument("--steps", type=int, default=500_000)
    main(**vars(parser.parse_args()))
