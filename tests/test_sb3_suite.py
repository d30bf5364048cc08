"""What Stable-Baselines3's own tests ask of an algorithm, in our words: one scale is the plain algorithm, to the bit.

Every change that `load`, a callback, a subclass or `set_parameters` can make is made to both. `sb3_suite.toml` says
which test of theirs is found in which test of ours. `make sb3-suite` runs these and `test_sb3_suite_long.py`.
"""

import inspect
import io
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb3_suite import OURS, algorithms, assert_same, environments, make, off_policy, on_policy, one_scale
from tddelta.adapters.sb3 import DeltaRolloutBuffer

TESTS = Path(__file__).parent
STEPS = 48


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    th.set_num_threads(1)


def of_our_suite(name: str) -> bool:
    module, _, function = name.partition("::")
    return f"\ndef {function}(" in (TESTS / f"{module}.py").read_text(encoding="utf-8")


def test_every_test_of_sb3_is_listed_once_and_those_ported_exist() -> None:
    listed = tomllib.loads((TESTS / "sb3_suite.toml").read_text(encoding="utf-8"))
    assert len(listed) == 30
    for module, functions in listed.items():
        left = [name for names in functions.get("left", {}).values() for name in names]
        ported = functions.get("ported", {})
        assert len({*left, *ported}) == len(left) + len(ported) > 0, module
        for name, ours in ported.items():
            missing = [one for one in ours if not of_our_suite(one)]
            assert ours and not missing, f"{module}::{name} is ported as {missing}, which is not there"


class Counted(RolloutBuffer):
    """Mixed into a buffer: keeps what it does."""


def rollout_buffer(kind: Any, mixin: Any = Counted) -> Any:
    """A buffer class of a user, for an algorithm of SB3 or for one of ours."""
    base = DeltaRolloutBuffer if kind in OURS.values() else RolloutBuffer
    return type("Own", (mixin, base), {})


class Fresh(ReplayBuffer):
    """A replay buffer of a user."""


_BOTH: dict[str, Any] = {
    "learning_rate": LinearSchedule(1e-2, 1e-4, 0.5),
    "gamma": 0.9,
    "policy_kwargs": {"net_arch": [8]},
    "stats_window_size": 3,
    "seed": 7,
    "verbose": 0,
}
_ON: dict[str, Any] = {
    **_BOTH,
    "gae_lambda": 0.5,
    "ent_coef": 0.1,
    "vf_coef": 0.1,
    "max_grad_norm": 0.01,
    "use_sde": True,
    "sde_sample_freq": 2,
    "rollout_buffer_class": rollout_buffer,
    "rollout_buffer_kwargs": {},
}
_OFF: dict[str, Any] = {
    **_BOTH,
    "buffer_size": 60,
    "learning_starts": 30,
    "batch_size": 4,
    "tau": 0.5,
    "train_freq": (3, "step"),
    "gradient_steps": -1,
    "replay_buffer_class": Fresh,
    "replay_buffer_kwargs": {"handle_timeout_termination": False},
    "optimize_memory_usage": True,
    "n_steps": 1,
    "target_update_interval": 7,
}
ARGUMENTS: dict[Any, dict[str, Any]] = {
    PPO: {
        **_ON,
        "n_steps": 24,
        "batch_size": 8,
        "n_epochs": 3,
        "clip_range": 0.05,
        "clip_range_vf": 0.1,
        "normalize_advantage": False,
        "target_kl": 1e-5,
    },
    A2C: {**_ON, "n_steps": 12, "rms_prop_eps": 1e-2, "use_rms_prop": False, "normalize_advantage": True},
    DQN: {
        **_OFF,
        "exploration_fraction": 0.9,
        "exploration_initial_eps": 0.5,
        "exploration_final_eps": 0.3,
        "max_grad_norm": 0.01,
    },
    SAC: {
        **_OFF,
        "action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.1)),
        "ent_coef": "auto_0.5",
        "target_entropy": -3.0,
        "use_sde": True,
        "sde_sample_freq": 2,
        "use_sde_at_warmup": True,
    },
}
"""Another value for every argument of the constructors."""


def named(found: dict[Any, dict[str, Any]]) -> Any:
    pairs = [(kind, name) for kind, several in found.items() for name in several]
    return pytest.mark.parametrize(("plain", "name"), pairs, ids=lambda x: getattr(x, "__name__", x))


arguments = named(ARGUMENTS)


def given(kind: Any, plain: Any, name: str) -> dict[str, Any]:
    value = ARGUMENTS[plain][name]
    more = {"replay_buffer_kwargs": {"handle_timeout_termination": False}} if name == "optimize_memory_usage" else {}
    return {name: value(kind) if value is rollout_buffer else value, **more}


@algorithms
def test_every_argument_has_another_value(plain: Any) -> None:
    fixed = {"self", "policy", "env", "device", "tensorboard_log", "_init_setup_model"}
    assert ARGUMENTS[plain].keys() == inspect.signature(plain.__init__).parameters.keys() - fixed


def learned(model: Any, **more: Any) -> Any:
    return model.learn(STEPS, **more)


@arguments
def test_every_argument_of_the_constructor_does_what_it_does_in_sb3(plain: Any, name: str) -> None:
    def scenario(kind: Any) -> Any:
        env = continuous(plain, name)
        return learned(make(kind, env=env, policy="MlpPolicy", **one_scale(kind), **given(kind, plain, name)))

    assert_same(plain, scenario)


def continuous(plain: Any, name: str) -> Any:
    """Environments in which the argument can be used: exploration by state needs continuous actions."""
    return environments(plain, "pendulum" if "sde" in name else None)


def reloaded(model: Any, env: Any, **more: Any) -> Any:
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    return type(model).load(file, env=env, device="cpu", **more)


@arguments
def test_every_argument_may_be_replaced_when_a_model_is_loaded(plain: Any, name: str) -> None:
    def scenario(kind: Any) -> Any:
        model = learned(make(kind, env=continuous(plain, name), policy="MlpPolicy", **one_scale(kind)))
        again = reloaded(model, continuous(plain, name), **given(kind, plain, name))
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


def halfway(change: Callable[[BaseCallback], Any], at: int = 20) -> BaseCallback:
    """A callback that changes the model once, during the second rollout or after the first updates."""

    class Once(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == at:
                change(self)
            return True

    return Once()


@arguments
def test_every_attribute_may_be_set_by_a_callback(plain: Any, name: str) -> None:
    def scenario(kind: Any) -> Any:
        (value,) = [found for key, found in given(kind, plain, name).items() if key == name]
        model = make(kind, env=continuous(plain, name), policy="MlpPolicy", **one_scale(kind))
        return learned(model, callback=halfway(lambda callback: setattr(callback.model, name, value), 36))

    assert_same(plain, scenario)


def put(path: str, value: Any) -> Callable[[BaseCallback], None]:
    *places, name = path.split(".")

    def change(callback: BaseCallback) -> None:
        place: Any = callback.model
        for one in places:
            place = getattr(place, one)
        setattr(place, name, value)

    return change


def both_discounts(callback: BaseCallback) -> None:
    for path in ("gamma", "rollout_buffer.gamma"):
        put(path, 0.9)(callback)
    for path in ("gae_lambda", "rollout_buffer.gae_lambda"):
        put(path, 0.5)(callback)


def halve(callback: BaseCallback) -> None:
    with th.no_grad():
        for parameter in callback.model.policy.parameters():
            parameter.mul_(0.5)


def put_back(callback: BaseCallback) -> None:
    """Take the parameters that a model of other experience has."""
    model: Any = callback.model
    halved = {
        name: {key: value * 0.5 for key, value in part.items()}
        for name, part in model.get_parameters().items()
        if name == "policy"
    }
    model.set_parameters(halved, exact_match=False)


SET: dict[Any, dict[str, Callable[[BaseCallback], Any]]] = {
    PPO: {"schedule": put("clip_range", lambda _: 0.01), "values": put("clip_range_vf", lambda _: 0.01)},
    A2C: {},
    DQN: {
        "rate": put("exploration_rate", 0.9),
        "schedule": put("exploration_schedule", lambda _: 0.7),
        "target": lambda callback: callback.model.q_net_target.load_state_dict(callback.model.q_net.state_dict()),
    },
    SAC: {
        "entropy": put("target_entropy", -0.1),
        "coefficient": lambda callback: callback.model.log_ent_coef.data.fill_(-3.0),
        "target": lambda callback: callback.model.critic_target.load_state_dict(callback.model.critic.state_dict()),
    },
}
for _kind, _set in SET.items():
    _set |= {"rates": put("lr_schedule", lambda _: 1e-2), "halve": halve, "parameters": put_back}
    if _kind in (PPO, A2C):
        _set |= {
            "gamma": put("rollout_buffer.gamma", 0.9),
            "lambda": put("rollout_buffer.gae_lambda", 0.5),
            "both": both_discounts,
        }


@named(SET)
def test_what_a_callback_sets_counts_as_in_sb3(plain: Any, name: str) -> None:
    assert_same(plain, lambda kind: learned(make(kind, **one_scale(kind)), callback=halfway(SET[plain][name], 36)))


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
    assert_same(plain, lambda kind: learned(make(kind, **one_scale(kind)), callback=Writes(name, at)))


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
    "mixin", [Rewarded, Started, Valued, Before, After, Last, Sampled, Ordered], ids=lambda kind: kind.__name__
)
@on_policy
def test_a_rollout_buffer_of_a_user_counts_as_in_sb3(plain: Any, mixin: Any) -> None:
    def scenario(kind: Any) -> Any:
        return learned(make(kind, rollout_buffer_class=rollout_buffer(kind, mixin), **one_scale(kind)))

    assert_same(plain, scenario)


class Relabelled(ReplayBuffer):
    """Adds a reward of its own when a step is kept, and another one when it is taken."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, *others: Any) -> None:
        super().add(obs, next_obs, action, reward + 1, *others)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        samples = super().sample(batch_size, env)
        return samples._replace(rewards=2 * samples.rewards, dones=th.zeros_like(samples.dones))


@off_policy
def test_a_replay_buffer_of_a_user_counts_as_in_sb3(plain: Any) -> None:
    assert_same(plain, lambda kind: learned(make(kind, replay_buffer_class=Relabelled, **one_scale(kind))))


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


def derived(kind: Any, mixin: Any) -> Any:
    return type("Own", (mixin, kind), {})


@pytest.mark.parametrize("mixin", [Trains, Steps], ids=lambda kind: kind.__name__)
@algorithms
def test_an_algorithm_of_a_user_does_what_it_does_in_sb3(plain: Any, mixin: Any) -> None:
    assert_same(plain, lambda kind: learned(make(derived(kind, mixin), **one_scale(kind))))


@on_policy
def test_a_loop_of_a_user_gets_the_returns_of_sb3(plain: Any) -> None:
    assert_same(plain, lambda kind: learned(make(derived(kind, Regresses), **one_scale(kind))))


class Noisy(FlattenExtractor):
    """Differs between training and playing."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.norm, self.dropout = nn.BatchNorm1d(self.features_dim), nn.Dropout(0.5)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.dropout(self.norm(super().forward(observations)))


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

    def scenario(kind: Any) -> Any:
        model = learned(make(kind, policy_kwargs=settings, **one_scale(kind)))
        again = reloaded(model, environments(plain), policy_kwargs=settings)
        return learned(again, reset_num_timesteps=False)

    assert_same(plain, scenario)


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


@pytest.mark.parametrize("task", ["dictionary", "image"])
@algorithms
def test_dictionaries_and_images_are_learned_from_and_loaded_as_in_sb3(plain: Any, task: str) -> None:
    small = {"features_extractor_kwargs": {"cnn_output_dim" if task == "dictionary" else "features_dim": 8}}

    def scenario(kind: Any) -> Any:
        model = make(kind, task, policy_kwargs=small, gamma=0.9, **one_scale(kind)).learn(32)
        return reloaded(model, environments(plain, task), gamma=0.8).learn(16, reset_num_timesteps=False)

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
