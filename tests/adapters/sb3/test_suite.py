"""Stable-Baselines3's own tests of an algorithm, in our words: one scale is the plain algorithm, to the bit.

Every change that `load`, a callback, a subclass or `set_parameters` can make is made to both, and by most of them a
ladder is changed as well. `sb3_suite.toml` says which test of theirs is found in which test of ours.
"""

import inspect
import io
import tomllib
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize
from torch import nn

from sb3_environments import TASKS, Anything, equal, vectorised
from sb3_suite import (
    ARGUMENTS,
    OURS,
    SET,
    STEPS,
    Noisy,
    algorithms,
    arguments,
    assert_counts,
    assert_same,
    continuous,
    derived,
    environments,
    given,
    halfway,
    hindsight,
    learned,
    make,
    named,
    off_policy,
    on_policy,
    reloaded,
)

TESTS = Path(__file__).parent


def of_our_suite(name: str) -> bool:
    module, _, function = name.partition("::")
    return f"\ndef {function}(" in (TESTS / f"{module}.py").read_text(encoding="utf-8")


def test_every_test_of_sb3_is_ported_or_left_and_ours_exist() -> None:
    listed = tomllib.loads((TESTS.parents[1] / "data" / "sb3_suite.toml").read_text(encoding="utf-8"))
    whole = [module for modules in listed.pop("left").values() for module in modules]
    assert len({*listed, *whole}) == len(listed) + len(whole) == 30
    for module, functions in listed.items():
        ported = {name for place, names in functions.items() if "::" in place for name in names}
        left = [name for place, names in functions.items() if "::" not in place for name in names]
        assert len({*left, *ported}) == len(left) + len(ported) > 0, module
        missing = [place for place in functions if "::" in place and not of_our_suite(place)]
        assert not missing, f"tests of {module} are ported as {missing}, which are not there"


@pytest.mark.parametrize("task", [*TASKS, "frames"])
@algorithms
def test_with_one_scale_every_algorithm_is_that_of_sb3(plain: Any, task: str) -> None:
    def scenario(make: Any) -> Any:
        if task == "frames":
            return learned(make("image", env=VecFrameStack(environments(plain, "image"), 2)))
        return learned(make(task))

    if plain is not DQN or task != "pendulum":
        assert_same(plain, scenario)


SETTINGS: dict[Any, dict[str, dict[str, Any]]] = {
    PPO: {
        "short batch": {"normalize_advantage": False, "ent_coef": 0.01, "batch_size": 24},
        "one step": {"n_steps": 1, "batch_size": 1, "normalize_advantage": False},
        "odd batch": {"batch_size": 31},
    },
    DQN: {"episodes": {"train_freq": (2, "episode"), "count": 1}, "one": {"count": 1}},
    SAC: {
        "fixed entropy": {"ent_coef": 0.1},
        "episodes": {"train_freq": (1, "episode"), "count": 1},
        "learned": {"ent_coef": "auto_0.01", "action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.2))},
        "drifting": {"action_noise": OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.2))},
        "by state": {"use_sde": True, "sde_sample_freq": 2, "use_sde_at_warmup": True, "gradient_steps": -1},
    },
}


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size:UserWarning")
@named(SETTINGS)
def test_every_way_of_training_is_that_of_sb3(plain: Any, name: str) -> None:
    settings = dict(SETTINGS[plain][name])
    task, count = None if plain is DQN else "pendulum", settings.pop("count", 2)
    assert_same(plain, lambda make: learned(make(task, env=environments(plain, task, count), **settings)))


@algorithms
def test_every_argument_has_another_value(plain: Any) -> None:
    fixed = {"self", "policy", "env", "device", "tensorboard_log", "_init_setup_model"}
    assert ARGUMENTS[plain].keys() == inspect.signature(plain.__init__).parameters.keys() - fixed


@pytest.mark.slow
@pytest.mark.parametrize("how", ["constructor", "load", "callback"])
@arguments
def test_every_argument_does_what_it_does_in_sb3(plain: Any, name: str, how: str) -> None:
    def scenario(make: Any) -> Any:
        env = continuous(plain, name)
        if how == "constructor":
            return learned(make(env=env, policy="MlpPolicy", **given(make.args[0], plain, name)))
        model = make(env=env, policy="MlpPolicy")
        values = given(type(model), plain, name)
        if how == "callback":
            return learned(model, callback=halfway(lambda model: setattr(model, name, values[name])))
        again = reloaded(learned(model), continuous(plain, name), **values)
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario, refused=None)


POLICIES: dict[str, dict[str, Any]] = {
    "no layers": {"net_arch": []},
    "two layers": {"net_arch": [8, 4], "activation_fn": nn.ReLU},
    "optimiser": {"optimizer_class": th.optim.AdamW, "optimizer_kwargs": {"weight_decay": 0.1}},
    "noisy": {"features_extractor_class": Noisy, "net_arch": [8]},
}
_ACTOR_CRITIC = {
    "own layers": {"net_arch": {"vf": [16], "pi": [8, 4]}},
    "values only": {"net_arch": {"vf": [16]}},
    "plain start": {"ortho_init": False, "share_features_extractor": False},
    "steady": {"log_std_init": -2.0, "squash_output": False},
}
ONLY: dict[Any, dict[str, dict[str, Any]]] = {
    PPO: _ACTOR_CRITIC,
    A2C: _ACTOR_CRITIC,
    DQN: {},
    SAC: {
        "own layers": {"net_arch": {"qf": [8], "pi": [8, 4]}},
        "one critic": {"n_critics": 1},
        "three critics": {"n_critics": 3, "share_features_extractor": True},
        "steady": {"log_std_init": -2.0, "use_expln": True},
    },
}


@named({kind: POLICIES | several for kind, several in ONLY.items()})
def test_every_setting_of_the_policy_does_what_it_does_in_sb3(plain: Any, name: str) -> None:
    settings = (POLICIES | ONLY[plain])[name]

    def scenario(make: Any) -> Any:
        model = learned(make(policy_kwargs=settings))
        again = reloaded(model, environments(plain), policy_kwargs=settings)
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


@pytest.mark.parametrize("task", ["dictionary", "image"])
@algorithms
def test_dictionaries_and_images_are_learned_from_and_loaded_as_in_sb3(plain: Any, task: str) -> None:
    small = {"features_extractor_kwargs": {"cnn_output_dim" if task == "dictionary" else "features_dim": 8}}

    def scenario(make: Any) -> Any:
        model = make(task, policy_kwargs=small, gamma=0.9).learn(32)
        return reloaded(model, environments(plain, task), gamma=0.8).learn(16, reset_num_timesteps=False)

    assert_same(plain, scenario)


@named(SET)
def test_what_a_callback_sets_counts_as_in_sb3(plain: Any, name: str) -> None:
    assert_counts(plain, lambda make, steps: make().learn(steps, callback=halfway(SET[plain][name])))


ROLLOUT = {PPO: 32, A2C: 16}
"""Steps of one rollout, in two environments."""

# Old values count where changes are clipped.
CLIPPED: dict[Any, dict[str, Any]] = {PPO: {"clip_range_vf": 0.1}, A2C: {}}


class Writes(BaseCallback):
    """Changes an array of the buffer, at every step or at the end of every rollout."""

    def __init__(self, name: str, at: str) -> None:
        super().__init__()
        self.name, self.at = name, at

    def _on_step(self) -> bool:
        if self.at == "step":
            self.write(self.model.rollout_buffer if hasattr(self.model, "rollout_buffer") else self.model.replay_buffer)
        return True

    def _on_rollout_end(self) -> None:
        if self.at == "end":
            self.write(self.model.rollout_buffer)

    def write(self, buffer: Any) -> None:
        array = getattr(buffer, self.name)
        if self.name in ("dones", "timeouts", "episode_starts") or array.dtype != np.float32:
            array[::3] = 1
        else:
            array *= 0.5
            array[0] += 0.25


@pytest.mark.parametrize("at", ["step", "end"])
@pytest.mark.parametrize(
    "name", ["observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns"]
)
@on_policy
def test_what_a_callback_writes_to_a_rollout_buffer_counts_as_in_sb3(plain: Any, name: str, at: str) -> None:
    def scenario(make: Any, steps: int) -> Any:
        return make().learn(steps, callback=Writes(name, at))

    assert_counts(plain, scenario, ROLLOUT[plain], **CLIPPED[plain])


@pytest.mark.parametrize("name", ["observations", "next_observations", "actions", "rewards", "dones", "timeouts"])
@off_policy
def test_what_a_callback_writes_to_a_replay_buffer_counts_as_in_sb3(plain: Any, name: str) -> None:
    assert_counts(plain, lambda make, steps: make().learn(steps, callback=Writes(name, "step")))


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

    return change


@pytest.mark.parametrize("name", ["rewards", "dones", "infos", "new_obs", "values", "log_probs"])
@algorithms
def test_what_a_callback_changes_in_a_step_counts_as_in_sb3(plain: Any, name: str) -> None:
    if plain in (PPO, A2C) or name not in ("values", "log_probs"):  # those are answers of the policy
        assert_same(plain, lambda make: learned(make(), callback=_locals(name)))


class Rewarded:
    """Adds a reward of its own, as curiosity does."""

    def add(self, obs: Any, action: Any, reward: Any, *others: Any) -> None:
        super().add(obs, action, 10 * reward + 1, *others)


class Started:
    """Takes every step for the first of an episode."""

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, *others: Any) -> None:
        super().add(obs, action, reward, np.ones_like(episode_start), *others)


class Valued:
    """Takes half of every value."""

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, value: Any, log_prob: Any) -> None:
        super().add(obs, action, reward, episode_start, 0.5 * value, log_prob)


class Before:
    """Normalises rewards before returns are computed."""

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        self.rewards = (self.rewards - self.rewards.mean()) / 2
        super().compute_returns_and_advantage(last_values, dones)


class After:
    """Clips advantages and returns after they are computed."""

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        super().compute_returns_and_advantage(last_values, dones)
        self.advantages = self.advantages.clip(-1, 1)
        self.returns = 0.5 * self.returns


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
    def scenario(make: Any, steps: int) -> Any:
        return make(rollout_buffer_class=mixin).learn(steps)

    if mixin in (Rewarded, Before, After):
        assert_counts(plain, scenario, ROLLOUT[plain], **CLIPPED[plain])
    else:
        assert_same(plain, lambda make: scenario(partial(make, **CLIPPED[plain]), STEPS))


class Relabelled(ReplayBuffer):
    """Adds a reward of its own when a step is kept, and another one when it is taken."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, *others: Any) -> None:
        super().add(obs, next_obs, action, reward + 1, *others)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        samples = super().sample(batch_size, env)
        return samples._replace(rewards=2 * samples.rewards, dones=th.zeros_like(samples.dones))


@off_policy
def test_a_replay_buffer_of_a_user_counts_as_in_sb3(plain: Any) -> None:
    assert_counts(plain, lambda make, steps: make(replay_buffer_class=Relabelled).learn(steps))


class Trains:
    """Learns twice, with less and less of everything."""

    def train(self, *args: Any, **kwargs: Any) -> None:
        super().train(*args, **kwargs)
        self.gamma = self.gamma * 0.9
        self.max_grad_norm = 0.1
        super().train(*args, **kwargs)


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


@pytest.mark.parametrize("mixin", [Trains, Steps, Regresses], ids=lambda kind: kind.__name__)
@algorithms
def test_an_algorithm_of_a_user_does_what_it_does_in_sb3(plain: Any, mixin: Any) -> None:
    if plain in (PPO, A2C) or mixin is not Regresses:
        assert_same(plain, lambda make: learned(partial(make.func, derived(*make.args, mixin), **make.keywords)()))


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


@pytest.mark.parametrize("mixin", [Saturated, Pessimist, Headed], ids=lambda kind: kind.__name__)
@algorithms
def test_a_policy_of_a_user_is_that_of_sb3(plain: Any, mixin: Any) -> None:
    if plain in (PPO, A2C) or mixin is Saturated:
        assert_same(plain, lambda make: learned(make(policy=mixin)))


@algorithms
def test_parameters_are_given_and_taken_as_in_sb3(plain: Any) -> None:
    def scenario(make: Any) -> Any:
        model = learned(make())
        kept = model.get_parameters()
        with pytest.raises(ValueError, match="nothing"):
            model.set_parameters({**kept, "nothing": {}}, exact_match=False)
        name = next(iter(kept))
        with pytest.raises(ValueError, match="expected"):
            model.set_parameters({key: value for key, value in kept.items() if key != name})
        policy = dict(list(kept["policy"].items())[:-1])
        with pytest.raises(RuntimeError, match="Missing key"):
            model.set_parameters({**kept, "policy": policy})
        other = make(seed=5)
        other.set_parameters(kept)
        assert equal(model, other)
        halved = {key: 0.5 * value for key, value in policy.items()}
        model.set_parameters({"policy": halved}, exact_match=False)
        assert all(th.equal(model.policy.state_dict()[key], value) for key, value in halved.items())
        return learned(model, reset_num_timesteps=False)

    assert_same(plain, scenario)
    scenario(partial(make, OURS[plain]))


@algorithms
def test_settings_may_be_left_out_of_a_file_and_put_in_its_place(plain: Any) -> None:
    def scenario(make: Any) -> Any:
        model, file = learned(make()), io.BytesIO()
        model.save(file, exclude=["verbose", "gamma"], include=["verbose"])
        file.seek(0)
        custom = {"learning_rate": 1e-2, "gamma": 0.9, "lr_schedule": lambda _: 1e-2, "dummy": 1}
        again = type(model).load(file, env=environments(plain), device="cpu", custom_objects=custom)
        assert not hasattr(again, "dummy") and again.learning_rate == 1e-2
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


@algorithms
def test_environments_are_changed_as_in_sb3(plain: Any) -> None:
    def scenario(make: Any) -> Any:
        model = learned(make())
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
        assert_same(plain, lambda make: learned(reloaded(make(), environments(plain, count=3))))
    assert_same(plain, scenario)


@algorithms
def test_normalised_environments_with_changing_rewards_are_those_of_sb3(plain: Any) -> None:
    def scenario(make: Any) -> Any:
        model = learned(make(env=VecNormalize(environments(plain))))
        model.set_env(VecNormalize(environments(plain), training=False, norm_reward=False))
        return learned(model, reset_num_timesteps=False)

    assert_same(plain, scenario)


@off_policy
def test_a_replay_buffer_is_kept_and_taken_up_as_in_sb3(plain: Any, tmp_path: Path) -> None:
    def scenario(make: Any) -> Any:
        model = learned(make())
        model.save_replay_buffer(tmp_path / "buffer")
        again = reloaded(model, environments(plain))
        again.load_replay_buffer(tmp_path / "buffer")
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


@pytest.mark.parametrize(("strategy", "image"), [("final", False), ("episode", False), ("future", True)])
@off_policy
def test_hindsight_is_that_of_sb3_with_every_strategy(plain: Any, strategy: str, image: bool) -> None:
    small = {"net_arch": [8], "features_extractor_kwargs": {"cnn_output_dim": 8}}
    settings = {"replay_buffer_kwargs": {"n_sampled_goal": 2, "goal_selection_strategy": strategy}}

    def scenario(make: Any) -> Any:
        model = hindsight(make, plain, image=image, policy_kwargs=small, **settings).learn(STEPS)
        file = io.BytesIO()
        model.save_replay_buffer(file)
        again = reloaded(model, model.get_env(), gamma=0.9)
        file.seek(0)
        again.load_replay_buffer(file, truncate_last_traj=False)
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


@pytest.mark.slow
@pytest.mark.parametrize(("plain", "task"), [(PPO, "dictionary"), (SAC, "cartpole")])
def test_environments_may_be_processes(plain: Any, task: str) -> None:
    def scenario(make: Any) -> Any:
        env = environments(plain, task)
        makers = [partial(deepcopy, one) for one in env.unwrapped.envs]
        processes = SubprocVecEnv(makers)
        processes.seed(0)
        try:
            policy = "MultiInputPolicy" if task == "dictionary" else "MlpPolicy"
            return learned(make(env=processes, policy=policy))
        finally:
            processes.close()

    assert_same(plain, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["channels last", "channels first"])
@algorithms
def test_pictures_are_those_of_sb3_however_they_are_given(plain: Any, first: bool, normalised: bool) -> None:
    small = {"features_extractor_kwargs": {"features_dim": 8}, "normalize_images": not normalised}

    def scenario(make: Any) -> Any:
        size: dict[str, Any] = {"screen_height": 36, "screen_width": 36, "n_channels": 1, "channel_first": first}
        shown = DummyVecEnv([lambda: FakeImageEnv(**size, discrete=plain is not SAC)])
        shown.seed(0)
        shown.action_space.seed(0)
        for one in shown.envs:
            one.observation_space.seed(0)
        env = VecNormalize(shown) if normalised and first else shown
        model = make(env=env, policy="CnnPolicy", policy_kwargs=small).learn(32)
        again = reloaded(model, env, policy_kwargs=small)
        observations = env.reset()
        wanted, _ = model.predict(observations, deterministic=True)
        np.testing.assert_array_equal(again.predict(observations, deterministic=True)[0], wanted)
        return again

    assert_same(plain, scenario)


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
    refused = name in ("nested", "rows of choices") or (plain in (DQN, SAC) and " of choices" in name)
    choices = spaces.Discrete(3) if plain is DQN and "choices" not in name else None
    policy = "MultiInputPolicy" if isinstance(SPACES[name][0], spaces.Dict) else "MlpPolicy"

    def scenario(make: Any) -> Any:
        model = learned(make(env=anything(name, choices), policy=policy))
        action, _ = model.predict(model.env.reset())
        assert action.dtype == model.action_space.dtype or not isinstance(model.action_space, spaces.Box)
        assert model.action_space.contains(action[0])
        return model

    assert_same(plain, scenario, refused=refused or (plain is SAC and name == "choices"))


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
        "flat dictionary": {"task": "dictionary", "policy": "MlpPolicy"},
        "picture of a dictionary": {"task": "dictionary", "policy": "CnnPolicy"},
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
    assert_same(plain, lambda make: learned(make(**REFUSED[plain][name])), refused=True)


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
