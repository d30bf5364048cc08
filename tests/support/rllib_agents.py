"""RLlib agents and environments of the tests: small, in one process unless told otherwise."""

from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from tddelta.adapters.rllib import DeltaPPOConfig


class Countdown(gym.Env):
    """Reward 1 a step; odd episodes end after `length` steps in a terminal state, even ones are truncated there."""

    def __init__(self, settings: Any = None) -> None:
        self.length = int((settings or {}).get("length", 5))
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.episode, self.step_number = 0, 0

    def _observed(self) -> np.ndarray:
        return np.array([self.step_number, self.episode % 2], np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.episode, self.step_number = self.episode + 1, 0
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self.step_number += 1
        over, odd = self.step_number == self.length, self.episode % 2 == 1
        return self._observed(), 1.0 + 0.5 * int(action), over and odd, over and not odd, {}


class Two(MultiAgentEnv):
    """Two agents with a countdown each; that of the second is shorter."""

    def __init__(self, settings: Any = None) -> None:
        super().__init__()
        self.inner = {"fast": Countdown({"length": 3}), "slow": Countdown({"length": 7})}
        self.possible_agents = list(self.inner)
        self.observation_spaces = {name: one.observation_space for name, one in self.inner.items()}
        self.action_spaces = {name: one.action_space for name, one in self.inner.items()}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return {name: one.reset()[0] for name, one in self.inner.items()}, {}

    def step(self, actions: Any) -> Any:
        found = {name: self.inner[name].step(action) for name, action in actions.items()}
        observations, rewards, terminated, truncated = (
            {name: one[part] for name, one in found.items()} for part in range(4)
        )
        over = [name for name in found if terminated[name] or truncated[name]]
        self.agents = [name for name in self.agents if name not in over]
        terminated["__all__"] = not self.agents
        truncated["__all__"] = False
        return observations, rewards, terminated, truncated, {}


def config(kind: Any = DeltaPPOConfig, environment: Any = "CartPole-v1", **model: Any) -> Any:
    """A small PPO, without other processes."""
    made = kind().environment(environment).env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    made = made.training(gamma=0.99, lambda_=0.95, lr=3e-3, train_batch_size_per_learner=128, minibatch_size=32)
    made = made.training(num_epochs=2).rl_module(model_config={"fcnet_hiddens": [16], **model})
    return made.debugging(seed=0, log_level="ERROR")


def plain(environment: Any = "CartPole-v1", **model: Any) -> Any:
    return config(PPOConfig, environment, **model)


def learner_of(algorithm: Any) -> Any:
    return algorithm.learner_group._learner


def weights(algorithm: Any, module_id: str = "default_policy") -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in algorithm.learner_group.get_weights()[module_id].items()}
