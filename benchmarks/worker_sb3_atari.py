"""Trains the PPO of Stable-Baselines3 on an Atari game when told to; run with the Python of `.venv-sb3`."""

import ale_py
import gymnasium
import torch
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack
from worker import Settings, serve
from worker_sb3 import trained


class Convolutions(BaseFeaturesExtractor):
    """The paper's network: its third layer has 32 filters where Stable-Baselines3's own has 64."""

    def __init__(self, observation_space: gymnasium.Space) -> None:
        super().__init__(observation_space, 512)
        relu = torch.nn.ReLU()
        layers = (torch.nn.Conv2d(4, 32, 8, 4), torch.nn.Conv2d(32, 64, 4, 2), torch.nn.Conv2d(64, 32, 3, 1))
        steps = [step for layer in layers for step in (layer, relu)]
        self.layers = torch.nn.Sequential(*steps, torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 32, 512), relu)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Features of a batch."""
        return self.layers(observations)


def make(settings: Settings) -> tuple[object, object, int]:
    """Build the agent; return a function that trains it for one rollout, a state, and the steps of a rollout."""
    gymnasium.register_envs(ale_py)
    games = make_atari_env(f"{settings.environment}NoFrameskip-v4", n_envs=settings.environments, seed=settings.seed)
    return trained(
        settings,
        "CnnPolicy",
        VecFrameStack(games, 4),
        clip_range=0.1,
        vf_coef=settings.value_coefficient / 2,
        policy_kwargs={"features_extractor_class": Convolutions},
    )


if __name__ == "__main__":
    serve(make)
