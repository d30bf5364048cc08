"""Small environments for the tests of the Stable-Baselines3 adapter, all cut short by a time limit."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.env_util import make_vec_env

LIMIT = 9


class Scripted(gym.Env[Any, Any]):
    """Answers with what a function of the steps so far and the action says: observation, reward and end."""

    def __init__(self, observations: Any, actions: Any, answer: Callable[[int, Any], tuple[Any, float, bool]]) -> None:
        self.observation_space, self.action_space, self.answer = deepcopy(observations), deepcopy(actions), answer
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.answer(0, None)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        observation, reward, over = self.answer(self.time, action)
        return observation, reward, over, False, {}


class Anything(gym.Env[Any, Any]):
    """Shows and takes samples of any space."""

    def __init__(self, observations: Any, actions: Any) -> None:
        self.observation_space, self.action_space = deepcopy(observations), deepcopy(actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(self.np_random.random()), False, False, {"is_success": True}


class Walk(gym.Env[Any, Any]):
    """A walk on a line that ends at ±3, and pays for being right."""

    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.position = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(-1, 2))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position += 1 if action == 1 else -1
        return self.observe(), float(self.position > 0) + 0.5, abs(self.position) >= 3, False, {}

    def observe(self) -> Any:
        raise NotImplementedError


class Dictionary(Walk):
    """With observations of two parts."""

    observation_space = spaces.Dict({"place": spaces.Box(-3, 3, (1,)), "sign": spaces.Discrete(3)})

    def observe(self) -> Any:
        return {"place": np.array([self.position], np.float32), "sign": int(np.sign(self.position)) + 1}


class Image(Walk):
    """With pictures as observations."""

    observation_space = spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def observe(self) -> Any:
        picture = np.zeros((1, 36, 36), np.uint8)
        picture[0, :, 5 * (self.position + 3)] = 255
        return picture


TASKS: dict[str, tuple[Any, str]] = {
    "cartpole": (lambda: TimeLimit(gym.make("CartPole-v1").unwrapped, LIMIT), "MlpPolicy"),
    "pendulum": (lambda: TimeLimit(gym.make("Pendulum-v1").unwrapped, LIMIT), "MlpPolicy"),
    "dictionary": (lambda: TimeLimit(Dictionary(), LIMIT), "MultiInputPolicy"),
    "image": (lambda: TimeLimit(Image(), LIMIT), "CnnPolicy"),
}
"""Functions that make an environment, and the policy for it."""


class Steered(gym.ActionWrapper[Any, Any, Any]):
    """A walk with a continuous action, of which the sign counts."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = spaces.Box(-1, 1, (1,))

    def action(self, action: Any) -> int:
        return int(action[0] > 0)


def steered(task: str, count: int = 2) -> Any:
    """Several copies of one of the tasks, with a continuous action."""
    make = TASKS[task][0]
    return vectorised(task, count) if task == "pendulum" else make_vec_env(lambda: Steered(make()), count, seed=0)


def vectorised(task: str, count: int = 2) -> Any:
    """Several copies of a task."""
    return make_vec_env(TASKS[task][0], n_envs=count, seed=0)


def equal(first: Any, second: Any) -> bool:
    """Tell whether two models have learned the same, to the last bit."""
    ours, theirs = first.policy.state_dict(), second.policy.state_dict()
    return ours.keys() == theirs.keys() and all(th.equal(ours[name], theirs[name]) for name in ours)
