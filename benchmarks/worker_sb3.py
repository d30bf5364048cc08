"""Trains the PPO of Stable-Baselines3 when told to; run by `cartpole_sb3.py` with the Python of `.venv-sb3`."""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from worker import Settings, serve


def make(settings: Settings) -> tuple[object, object, int]:
    """Build the agent; return a function that trains it for one rollout, a state, and the steps of a rollout."""
    steps = settings.environments * settings.rollout_length
    model = PPO(
        "MlpPolicy",
        make_vec_env(settings.environment, n_envs=settings.environments, seed=settings.seed),
        n_steps=settings.rollout_length,
        batch_size=steps // settings.minibatches,
        n_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_gradient_norm,
        vf_coef=settings.value_coefficient,
        ent_coef=0.01,
        policy_kwargs={
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[settings.activation],
        },
        seed=settings.seed,
        device="cpu",
    )

    def block(state: None) -> None:
        model.learn(total_timesteps=steps, reset_num_timesteps=False)

    return block, None, steps


if __name__ == "__main__":
    serve(make)
