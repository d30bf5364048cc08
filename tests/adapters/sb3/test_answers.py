"""Environments that answer wrongly, in Stable-Baselines3: one sentence, and nothing else changes."""

import copy
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

from sb3_suite import OURS, assert_same, kinds, make
from tddelta import DataError
from tddelta.adapters.sb3 import DeltaDQN, DeltaPPO, RunDirectory
from tddelta.adapters.sb3.answers import watch


class Plant(gym.Env[Any, Any]):
    """Counts to 5, and is cut."""

    observation_space: Any = spaces.Box(-9, 9, (3,))
    action_space: Any = spaces.Discrete(2)
    clock = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.clock = 0
        return self.first(np.zeros(3, np.float32))

    def first(self, seen: Any) -> Any:
        return seen, {}

    def step(self, action: Any) -> Any:
        self.clock += 1
        return self.answer(np.full(3, self.clock, np.float32), 1.0, False, self.clock == 5, {})

    def answer(self, *values: Any) -> Any:
        return values


def kind(**methods: Any) -> Any:
    return type("Odd", (Plant,), methods)


def answering(place: int, value: Any) -> Any:
    """A plant whose step gives this at a place; a function is given the observation."""

    def answer(self: Any, *values: Any) -> Any:
        wrong = value(self, values[0]) if callable(value) else value
        return *values[:place], wrong, *values[place + 1 :]

    return kind(answer=answer)


def learned(kind: Any, env: Any, **more: Any) -> Any:
    return make(kind, env=env, policy="MlpPolicy", **more).learn(32)


WRONG = [
    (kind(answer=lambda _, *v: (*v[:2], v[2] or v[3], v[4])), "step must return 5 values, .*; got 4 values: .* Gym"),
    (kind(first=lambda _, seen: seen), r"reset must return 2 values, .*; got an array of shape \(3,\)"),
    (
        kind(first=lambda _, seen: seen[:2], observation_space=spaces.Box(-9, 9, (2,))),
        r"reset must return 2 values, .*; got an array of shape \(2,\)",
    ),
    (kind(reset=lambda _: (np.zeros(3), {})), "reset must take the arguments seed and options .*'seed'"),
    (kind(first=lambda _, seen: (seen[:1], {})), r"reset must return observations of shape \(3,\); got shape \(1,\)"),
    (answering(0, lambda _, seen: seen[:1]), r"step must return observations of shape \(3,\); got shape \(1,\)"),
    (answering(0, lambda _, seen: seen * np.nan), "observation not finite in environment 0, after 1 steps in all"),
    (
        answering(0, lambda self, seen: seen / (5 - self.clock)),
        "observation not finite in environment 0, after 5 steps in all",
    ),
    (kind(first=lambda _, seen: (seen * np.inf, {})), "observation not finite in environment 0, before the first step"),
    (answering(1, None), r"step must return one number as reward; got None \(NoneType\): return float\(reward\)"),
    (answering(1, np.ones(2)), r"step must return one number as reward; got an array of shape \(2,\)"),
    (answering(1, np.nan), "reward not finite in environment 0, after 1 steps in all: check the environment"),
    (answering(4, []), r"step must return a dictionary as info; got \[\] \(list\): return {}"),
]


@pytest.mark.filterwarnings("ignore:(divide|invalid)")
@kinds(PPO, DQN)
@pytest.mark.parametrize(("made", "sentence"), WRONG)
def test_a_wrong_answer_is_a_sentence(made: Any, sentence: str, plain: Any) -> None:
    for env in (made(), DummyVecEnv([lambda: gym.wrappers.TimeLimit(Monitor(made()), 9)])):
        with pytest.raises(DataError, match=f"Odd: {sentence}"):
            learned(OURS[plain], env)


@kinds(PPO, DQN)
@pytest.mark.parametrize(
    "made",
    [
        Plant,
        kind(first=lambda _, seen: (seen, None)),
        kind(reset=lambda self, seed=None: Plant.reset(self, seed=seed)),
        answering(0, lambda _, seen: seen[None]),
        answering(2, np.zeros(1, bool)),
    ],
)
def test_what_sb3_trains_right_with_is_trained_to_the_bit(made: Any, plain: Any) -> None:
    assert_same(plain, lambda make: make(env=made(), policy="MlpPolicy").learn(32))


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_parts_of_observations_are_named(value: float) -> None:
    space = spaces.Dict({"name": spaces.Box(-9, 9, (1,)), "first": spaces.Discrete(2)})
    seen = {"name": np.float32([value]), "first": 1}
    env = kind(observation_space=space, answer=lambda _, __, *v: (seen, *v), first=lambda *_: (seen, {}))()
    model = make(DeltaPPO, env=env, policy="MultiInputPolicy")
    words = "Odd: name not finite in environment 0, before the first step"
    with nullcontext() if value == 0 else pytest.raises(DataError, match=words):
        model.learn(16)


class Filled(FlattenExtractor):
    """Knows what a number that is missing means."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations.nan_to_num())


def test_observations_that_are_no_number_are_for_a_network_that_knows_them() -> None:
    policy = {"net_arch": [8], "features_extractor_class": Filled}
    made = answering(0, lambda _, seen: np.float32([np.nan, *seen[1:]]))
    assert_same(PPO, lambda make: make(env=made(), policy="MlpPolicy", policy_kwargs=policy).learn(32))


class Odd(VecEnvWrapper):
    """A vector of somebody's own, which leaves out final observations, or gives rewards of another shape."""

    def __init__(self, venv: Any, *, shape: tuple[int, ...] | None = None) -> None:
        super().__init__(venv)
        self.shape = shape

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        seen, rewards, dones, infos = self.venv.step_wait()
        if self.shape is not None:
            return seen, rewards.reshape(self.shape), dones, infos
        for info in infos:
            info.pop("terminal_observation", None)
        return seen, rewards, dones, infos


def test_vectors_of_the_wrong_form_are_sentences() -> None:
    with pytest.raises(DataError, match=r"Plant: environment 0 was truncated, and .* no terminal_observation"):
        learned(DeltaPPO, Odd(DummyVecEnv([Plant, Plant])))
    with pytest.raises(DataError, match=r"Plant: step must return rewards of shape \(2,\); got shape \(2, 1\)"):
        learned(DeltaPPO, Odd(DummyVecEnv([Plant, Plant]), shape=(2, 1)))
    assert learned(DeltaDQN, Odd(DummyVecEnv([Plant]), shape=(1, 1))).num_timesteps == 32


def test_an_environment_is_left_as_it_was() -> None:
    env = Plant()
    own = env.reset
    vars(env)["reset"] = own  # somebody's own
    vector = DummyVecEnv([lambda: Monitor(env)])
    for _ in range(2):
        watch(vector)
    again = pickle.loads(pickle.dumps(env)), copy.deepcopy(env)
    for other in again:
        other.reset(seed=0)
        other.step(0)
        assert other.clock == 1 and env.clock == 0 and "step" not in vars(other)
    vector.reset()
    vector.step(np.zeros(1, int))
    assert vars(env)["reset"] is own and "step" not in vars(env) and vector.env_is_wrapped(Monitor) == [True]


def test_one_array_that_is_written_into_again_is_warned_of() -> None:
    array = np.zeros(3, np.float32)
    reusing = kind(
        first=lambda _, seen: (np.copyto(array, seen), (array, {}))[1],
        answer=lambda _, seen, *v: (np.copyto(array, seen), (array, *v))[1],
    )
    with pytest.warns(UserWarning, match="Odd: step writes into the observation that it returned before, .* a copy"):
        learned(DeltaPPO, reusing())
    learned(DeltaPPO, gym.wrappers.TransformObservation(reusing(), np.copy, Plant.observation_space))


def test_a_run_directory_tells_it_of_the_algorithms_of_sb3_too(tmp_path: Path) -> None:
    model = make(PPO, env=answering(1, None)(), policy="MlpPolicy")
    with pytest.raises(DataError, match="one number as reward; got None"), RunDirectory(tmp_path) as record:
        model.learn(32, callback=record)
    with pytest.raises(DataError, match="one number as reward; got None"):
        learned(DeltaPPO, Plant()).learn(32, callback=RunDirectory(tmp_path, eval_env=answering(1, None)()))
