"""What Stable-Baselines3's own tests ask of an algorithm, in our words: one scale is the plain algorithm, to the bit.

Every change that `load`, a callback, a subclass or `set_parameters` can make is made to both. `sb3_suite.toml` says
which test of theirs is found in which test of ours. `make sb3-suite` runs these and `test_suite_long.py`.
"""

import io
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb3_environments import TASKS, vectorised
from sb3_suite import (
    OURS,
    SET,
    STEPS,
    After,
    Before,
    Relabelled,
    Rewarded,
    Trains,
    Writes,
    algorithms,
    assert_same,
    derived,
    discounts,
    environments,
    halfway,
    learned,
    make,
    named,
    off_policy,
    on_policy,
    one_scale,
    reloaded,
    replaced,
    rollout_buffer,
)

TESTS = Path(__file__).parent


def of_our_suite(name: str) -> bool:
    module, _, function = name.partition("::")
    return f"\ndef {function}(" in (TESTS / f"{module}.py").read_text(encoding="utf-8")


def test_every_test_of_sb3_is_listed_once_and_those_ported_exist() -> None:
    listed = tomllib.loads((TESTS / "sb3_suite.toml").read_text(encoding="utf-8"))
    whole = [module for modules in listed.pop("left").values() for module in modules]
    assert len({*listed, *whole}) == len(listed) + len(whole) == 30
    for module, functions in listed.items():
        left = [name for names in functions.get("left", {}).values() for name in names]
        ported = functions.get("ported", {})
        assert len({*left, *ported}) == len(left) + len(ported) > 0, module
        for name, ours in ported.items():
            missing = [one for one in ours if not of_our_suite(one)]
            assert ours and not missing, f"{module}::{name} is ported as {missing}, which is not there"


@pytest.mark.parametrize("task", TASKS)
@algorithms
def test_with_one_scale_every_algorithm_is_that_of_sb3(plain: Any, task: str) -> None:
    if plain is not DQN or task != "pendulum":
        assert_same(plain, lambda kind: learned(make(kind, task, **one_scale(kind))))


SETTINGS: dict[Any, dict[str, dict[str, Any]]] = {
    PPO: {
        "clipped values": {"clip_range_vf": 0.1},
        "divergence": {"target_kl": 1e-5},
        "two extractors": {"policy_kwargs": {"share_features_extractor": False, "ortho_init": False}},
        "short batch": {"normalize_advantage": False, "ent_coef": 0.01, "batch_size": 24},
    },
    SAC: {
        "fixed entropy": {"ent_coef": 0.1},
        "three critics": {"policy_kwargs": {"share_features_extractor": True, "n_critics": 3}},
    },
}


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size of 24:UserWarning")
@named(SETTINGS)
def test_with_one_scale_settings_do_what_they_do_in_sb3(plain: Any, name: str) -> None:
    assert_same(plain, lambda kind: learned(make(kind, "pendulum", **SETTINGS[plain][name], **one_scale(kind))))


@discounts
def test_a_discount_may_be_replaced_when_a_model_is_loaded(plain: Any, name: str) -> None:
    assert_same(plain, replaced(plain, name))


@named(SET)
def test_what_a_callback_sets_counts_as_in_sb3(plain: Any, name: str) -> None:
    assert_same(plain, lambda kind: learned(make(kind, **one_scale(kind)), callback=halfway(SET[plain][name], 36)))


@pytest.mark.parametrize("at", ["step", "end"])
@pytest.mark.parametrize(
    "name", ["observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns"]
)
@on_policy
def test_what_a_callback_writes_to_a_rollout_buffer_counts_as_in_sb3(plain: Any, name: str, at: str) -> None:
    # Old values count where changes are clipped.
    more = {"clip_range_vf": 0.1} if plain is PPO else {}
    assert_same(plain, lambda kind: learned(make(kind, **more, **one_scale(kind)), callback=Writes(name, at)))


@pytest.mark.parametrize("name", ["observations", "next_observations", "actions", "rewards", "dones", "timeouts"])
@off_policy
def test_what_a_callback_writes_to_a_replay_buffer_counts_as_in_sb3(plain: Any, name: str) -> None:
    assert_same(plain, lambda kind: learned(make(kind, **one_scale(kind)), callback=Writes(name, "step")))


def _locals(name: str) -> Any:
    def change(found: dict[str, Any], _: Any) -> bool:
        value = found[name]
        if name == "infos":
            for info in value:
                info["TimeLimit.truncated"] = False
        elif name == "dones":
            value[0] = True
        else:
            value *= 2 if name != "new_obs" else 1.5
        return True

    return ConvertCallback(change)


@pytest.mark.parametrize("name", ["rewards", "dones", "infos", "new_obs"])
@algorithms
def test_what_a_callback_changes_in_a_step_counts_as_in_sb3(plain: Any, name: str) -> None:
    assert_same(plain, lambda kind: learned(make(kind, **one_scale(kind)), callback=_locals(name)))


@pytest.mark.parametrize("name", ["values", "log_probs"])
@on_policy
def test_what_a_callback_changes_in_the_policys_answer_counts_as_in_sb3(plain: Any, name: str) -> None:
    assert_same(plain, lambda kind: learned(make(kind, **one_scale(kind)), callback=_locals(name)))


class Started:
    """Takes every step for the first of an episode."""

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, *others: Any) -> None:
        super().add(obs, action, reward, np.ones_like(episode_start), *others)


class Valued:
    """Takes half of every value."""

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, value: Any, log_prob: Any) -> None:
        super().add(obs, action, reward, episode_start, 0.5 * value, log_prob)


class Expected:
    """Takes half of every value before returns are computed."""

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        self.values = 0.5 * self.values
        super().compute_returns_and_advantage(last_values, dones)


class Last:
    """Believes that nothing comes after the rollout."""

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        super().compute_returns_and_advantage(0 * last_values, np.zeros_like(dones))


class Sampled:
    """Hands out other samples."""

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        samples = super()._get_samples(*args, **kwargs)
        return samples._replace(returns=0.5 * samples.returns, advantages=samples.advantages + 1)


class Ordered:
    """Hands out every step in its order, once."""

    def get(self, batch_size: int | None = None) -> Any:
        for samples in super().get(None):
            yield samples._replace(returns=samples.returns.clamp(-1, 1))


@pytest.mark.parametrize(
    "mixin",
    [Rewarded, Started, Valued, Expected, Before, After, Last, Sampled, Ordered],
    ids=lambda kind: kind.__name__,
)
@on_policy
def test_a_rollout_buffer_of_a_user_counts_as_in_sb3(plain: Any, mixin: Any) -> None:
    def scenario(kind: Any) -> Any:
        more = {"clip_range_vf": 0.1} if plain is PPO else {}
        return learned(make(kind, rollout_buffer_class=rollout_buffer(kind, mixin), **more, **one_scale(kind)))

    assert_same(plain, scenario)


@off_policy
def test_a_replay_buffer_of_a_user_counts_as_in_sb3(plain: Any) -> None:
    assert_same(plain, lambda kind: learned(make(kind, replay_buffer_class=Relabelled, **one_scale(kind))))


class Steps:
    """Sees every step of the environments."""

    def _update_info_buffer(self, infos: Any, dones: Any = None) -> None:
        for info in infos:
            info.pop("TimeLimit.truncated", None)
        super()._update_info_buffer(infos, dones)

    def _update_learning_rate(self, optimizers: Any) -> None:
        super()._update_learning_rate(optimizers)
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5


class Regresses:
    """Learns values alone, in a loop of its own."""

    def train(self) -> None:
        self.policy.set_training_mode(True)
        for samples in self.rollout_buffer.get(8):
            values, _, _ = self.policy.evaluate_actions(samples.observations, samples.actions.long().flatten())
            loss = nn.functional.mse_loss(samples.returns, values.flatten())
            self.policy.optimizer.zero_grad()
            loss.backward()
            self.policy.optimizer.step()


@pytest.mark.parametrize("mixin", [Trains, Steps], ids=lambda kind: kind.__name__)
@algorithms
def test_an_algorithm_of_a_user_does_what_it_does_in_sb3(plain: Any, mixin: Any) -> None:
    assert_same(plain, lambda kind: learned(make(derived(kind, mixin), **one_scale(kind))))


@on_policy
def test_a_loop_of_a_user_gets_the_returns_of_sb3(plain: Any) -> None:
    assert_same(plain, lambda kind: learned(make(derived(kind, Regresses), **one_scale(kind))))


class Saturated:
    """A policy whose features are cut off."""

    def extract_features(self, obs: Any, features_extractor: Any = None) -> Any:
        found = super().extract_features(obs, features_extractor)
        return tuple(map(th.tanh, found)) if isinstance(found, tuple) else th.tanh(found)


class Pessimist:
    """A policy that expects less than its critic says."""

    def forward(self, obs: Any, deterministic: bool = False) -> Any:
        actions, values, log_prob = super().forward(obs, deterministic)
        return actions, values - 1, log_prob

    def evaluate_actions(self, obs: Any, actions: Any) -> Any:
        values, log_prob, entropy = super().evaluate_actions(obs, actions)
        return values - 1, log_prob, entropy

    def predict_values(self, obs: Any) -> Any:
        return super().predict_values(obs) - 1


class Headed:
    """A policy with a critic of two layers."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.value_net = nn.Sequential(nn.Linear(self.mlp_extractor.latent_dim_vf, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


def policy_of_a_user(kind: Any, mixin: Any) -> Any:
    return derived(kind.policy_aliases["MlpPolicy"], mixin)


@algorithms
def test_features_of_a_user_are_those_of_sb3(plain: Any) -> None:
    assert_same(plain, lambda kind: learned(make(kind, policy=policy_of_a_user(kind, Saturated), **one_scale(kind))))


@pytest.mark.parametrize("mixin", [Pessimist, Headed], ids=lambda kind: kind.__name__)
@on_policy
def test_a_policy_of_a_user_is_that_of_sb3(plain: Any, mixin: Any) -> None:
    assert_same(plain, lambda kind: learned(make(kind, policy=policy_of_a_user(kind, mixin), **one_scale(kind))))


@algorithms
def test_parameters_are_given_and_taken_as_in_sb3(plain: Any) -> None:
    def scenario(kind: Any) -> Any:
        model = learned(make(kind, **one_scale(kind)))
        kept = model.get_parameters()
        with pytest.raises(ValueError, match="nothing"):
            model.set_parameters({**kept, "nothing": {}}, exact_match=False)
        name = next(iter(kept))
        with pytest.raises(ValueError, match="expected"):
            model.set_parameters({key: value for key, value in kept.items() if key != name})
        policy = dict(list(kept["policy"].items())[:-1])
        with pytest.raises(RuntimeError, match="Missing key"):
            model.set_parameters({**kept, "policy": policy})
        model.set_parameters({"policy": {key: 0.5 * value for key, value in policy.items()}}, exact_match=False)
        return learned(model, reset_num_timesteps=False)

    assert_same(plain, scenario)


@algorithms
def test_settings_may_be_left_out_of_a_file_and_put_in_its_place(plain: Any) -> None:
    def scenario(kind: Any) -> Any:
        model, file = learned(make(kind, **one_scale(kind))), io.BytesIO()
        model.save(file, exclude=["verbose", "gamma"], include=["verbose"])
        file.seek(0)
        custom = {"learning_rate": 1e-2, "gamma": 0.9, "lr_schedule": lambda _: 1e-2, "dummy": 1}
        again = kind.load(file, env=environments(plain), device="cpu", custom_objects=custom)
        assert not hasattr(again, "dummy") and again.learning_rate == 1e-2
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


@algorithms
def test_environments_are_changed_as_in_sb3(plain: Any) -> None:
    def scenario(kind: Any) -> Any:
        model = learned(make(kind, **one_scale(kind)))
        model.set_env(environments(plain))
        assert model._last_obs is None
        with pytest.raises(AssertionError):
            model.set_env(environments(plain, count=3))
        learned(model)
        model.set_env(model.get_env(), force_reset=False)
        learned(model, reset_num_timesteps=False)
        again = reloaded(model, environments(plain, count=3), seed=None)
        return learned(again, reset_num_timesteps=False)

    if plain in (DQN, SAC):
        # A replay buffer is of so many environments.
        assert_same(plain, lambda kind: learned(reloaded(make(kind, **one_scale(kind)), environments(plain, count=3))))
    assert_same(plain, scenario)


@algorithms
def test_normalised_environments_with_changing_rewards_are_those_of_sb3(plain: Any) -> None:
    def scenario(kind: Any) -> Any:
        model = learned(make(kind, env=VecNormalize(environments(plain)), **one_scale(kind)))
        model.set_env(VecNormalize(environments(plain), training=False, norm_reward=False))
        return learned(model, reset_num_timesteps=False)

    assert_same(plain, scenario)


@off_policy
def test_a_replay_buffer_is_kept_and_taken_up_as_in_sb3(plain: Any, tmp_path: Path) -> None:
    def scenario(kind: Any) -> Any:
        model = learned(make(kind, **one_scale(kind)))
        model.save_replay_buffer(tmp_path / "buffer")
        again = reloaded(model, environments(plain))
        again.load_replay_buffer(tmp_path / "buffer")
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


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


UNIT, WIDE = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,), np.float64)
SPACES = {
    "wide": (WIDE, WIDE),
    "numbers": (spaces.Discrete(3), UNIT),
    "several numbers": (spaces.MultiDiscrete([4, 3]), UNIT),
    "bits": (spaces.MultiBinary(4), UNIT),
    "rows of bits": (spaces.MultiBinary((3, 2)), UNIT),
    "rows of actions": (UNIT, spaces.Box(-1, 1, (2, 2))),
    "wide parts": (spaces.Dict({"a": UNIT, "b": WIDE}), WIDE),
    "choices": (UNIT, spaces.Discrete(3)),
    "rows of choices": (UNIT, spaces.MultiBinary((2, 3))),
    "pairs of choices": (UNIT, spaces.MultiDiscrete([2, 3])),
    "bits of choices": (UNIT, spaces.MultiBinary(3)),
    "nested": (spaces.Dict({"a": spaces.Dict({"b": UNIT})}), UNIT),
}


def anything(name: str, actions: Any = None, count: int = 1) -> Any:
    observations, taken = SPACES[name]
    return make_vec_env(lambda: TimeLimit(Anything(observations, actions or taken), 10), count, seed=0)


@pytest.mark.parametrize("name", SPACES)
@algorithms
def test_spaces_are_taken_or_refused_as_in_sb3(plain: Any, name: str) -> None:
    choices = spaces.Discrete(3) if plain is DQN and "of" not in name else None
    policy = "MultiInputPolicy" if isinstance(SPACES[name][0], spaces.Dict) else "MlpPolicy"

    def scenario(kind: Any) -> Any:
        model = learned(make(kind, env=anything(name, choices), policy=policy, **one_scale(kind)))
        action, _ = model.predict(model.env.reset())
        assert action.dtype == model.action_space.dtype or plain is DQN
        assert model.action_space.contains(action[0])
        return model

    assert_same(plain, scenario)


REFUSED: dict[Any, dict[str, dict[str, Any]]] = {
    PPO: {
        "noise": {"use_sde": True},
        "squashed": {"policy_kwargs": {"squash_output": True}},
        "range": {"clip_range_vf": -0.2},
        "steps": {"n_steps": 1, "env": vectorised("cartpole", 1)},
        "buffer": {"rollout_buffer_kwargs": {"wrong": 1}},
        "twice": {"rollout_buffer_kwargs": {"gamma": 1}},
        "policy": {"policy": "CnnPolicy"},
        "name": {"policy": "MlpolicyP"},
    },
    A2C: {"noise": {"use_sde": True}, "twice": {"rollout_buffer_kwargs": {"gamma": 1}}},
    DQN: {"unit": {"train_freq": (1, "close")}, "episodes": {"train_freq": (1, "episode")}},
    SAC: {
        "text": {"train_freq": "4"},
        "unit": {"train_freq": ("1", "episode")},
        "nonsense": {"train_freq": "non_sense"},
    },
}


@named(REFUSED)
def test_what_sb3_refuses_is_refused(plain: Any, name: str) -> None:
    with pytest.raises((AssertionError, ValueError, TypeError)):
        learned(make(plain, **REFUSED[plain][name]))
    assert_same(plain, lambda kind: learned(make(kind, **REFUSED[plain][name], **one_scale(kind))))


def test_a_dictionary_needs_its_policy() -> None:
    for policy in ("MlpPolicy", "CnnPolicy"):
        assert_same(PPO, lambda kind, policy=policy: make(kind, "dictionary", policy=policy, **one_scale(kind)))


@pytest.mark.parametrize("window", [1, 42])
@algorithms
def test_episodes_and_successes_are_counted_over_a_window(plain: Any, window: int) -> None:
    env = anything("wide", spaces.Discrete(3) if plain is DQN else None)
    model = learned(make(OURS[plain], env=env, policy="MlpPolicy", stats_window_size=window))
    assert model.ep_info_buffer.maxlen == model.ep_success_buffer.maxlen == window
    assert list(model.ep_success_buffer) == [True] * min(window, STEPS // 10)
    assert {info["l"] for info in model.ep_info_buffer} == {10}


def test_speed_is_said_by_a_clock_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 42)
    for kind in OURS.values():
        assert learned(make(kind)).num_timesteps >= STEPS
