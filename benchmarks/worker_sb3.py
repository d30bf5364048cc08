"""Trains the PPO of Stable-Baselines3 when told to; run by `cartpole_sb3.py` with the Python of `.venv-sb3`."""

from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from worker import Settings, serve


def make(settings: Settings) -> tuple[object, object, int]:
    """Build the agent; return a function that trains it for one rollout, a state, and the steps of a rollout."""
    games = make_vec_env(settings.environment, n_envs=settings.environments, seed=settings.seed)
    layers = {
        "net_arch": {"pi": [64, 64], "vf": [64, 64]},
        "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[settings.activation],
    }
    return trained(settings, "MlpPolicy", games, vf_coef=settings.value_coefficient, policy_kwargs=layers)


def trained(settings: Settings, policy: str, games: Any, **options: Any) -> tuple[object, object, int]:
    """Build an agent for some games; return what `make` returns."""
    steps = settings.environments * settings.rollout_length
    model = PPO(
        policy,
        games,
        n_steps=settings.rollout_length,
        batch_size=steps // settings.minibatches,
        n_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_gradient_norm,
        ent_coef=0.01,
        seed=settings.seed,
        device="cpu",
        **options,
    )

    def block(state: None) -> None:
        model.learn(total_timesteps=steps, reset_num_timesteps=False)

    return block, None, steps


if __name__ == "__main__":
    serve(make)
