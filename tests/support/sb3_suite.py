"""The four algorithms beside those of Stable-Baselines3: whether two learned the same, and what users change."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule, set_random_seed
from torch import nn

from sb3_environments import TASKS, steered, vectorised
from tddelta.adapters.sb3 import DeltaA2C, DeltaDQN, DeltaPPO, DeltaRolloutBuffer, DeltaSAC
from tddelta.errors import CheckpointError

SCALES = [0.5, 0.9, 0.99]
_REPLAY: dict[str, Any] = {"learning_starts": 16, "batch_size": 8, "buffer_size": 200, "train_freq": 4}
QUICK: dict[Any, dict[str, Any]] = {
    PPO: {"n_steps": 16, "batch_size": 16, "n_epochs": 2},
    A2C: {"n_steps": 8},
    DQN: {**_REPLAY, "target_update_interval": 10},
    SAC: {**_REPLAY, "gradient_steps": 2},
}
OURS: dict[Any, Any] = {PPO: DeltaPPO, A2C: DeltaA2C, DQN: DeltaDQN, SAC: DeltaSAC}
_NEW = {"train/gradient_norm"}  # what ours log besides
FLAT = {PPO: "cartpole", A2C: "cartpole", DQN: "cartpole", SAC: "pendulum"}

algorithms = pytest.mark.parametrize("plain", OURS, ids=lambda kind: kind.__name__)
on_policy = pytest.mark.parametrize("plain", [PPO, A2C], ids=lambda kind: kind.__name__)
off_policy = pytest.mark.parametrize("plain", [DQN, SAC], ids=lambda kind: kind.__name__)


def environments(plain: Any, task: str | None = None, count: int = 2) -> Any:
    task = task or FLAT[plain]
    return steered(task, count) if issubclass(plain, SAC) else vectorised(task, count)


def plain_of(kind: Any) -> Any:
    """The algorithm of SB3 that a class is derived from."""
    return next(one for one in OURS if issubclass(kind, one))


def make(kind: Any, task: str | None = None, env: Any = None, policy: Any = None, **settings: Any) -> Any:
    plain = plain_of(kind)
    policy = policy or TASKS[task or FLAT[plain]][1]
    given = environments(plain, task) if env is None else env
    ours: dict[str, Any] = {"scales": SCALES} if issubclass(kind, tuple(OURS.values())) else {}
    if plain in (DQN, SAC):  # of 256 and 256 by default, and a new dictionary, into which SB3 writes
        ours["policy_kwargs"] = {"net_arch": [16]}
    return kind(policy, given, **{"seed": 3, "device": "cpu", **QUICK[plain], **ours, **settings})


def one_scale(kind: Any) -> dict[str, Any]:
    """The argument that makes one of our algorithms the plain one."""
    return {"scales": "single"} if issubclass(kind, tuple(OURS.values())) else {}


def assert_same(plain: Any, scenario: Callable[[Any], Any]) -> None:
    """Check that what is done with SB3's algorithm ends as with ours of one scale, to the last bit.

    Args:
        plain: The class of SB3.
        scenario: Makes and trains a model of the class that it is given, with `one_scale`, or fails.
    """
    first, second = (_outcome(scenario, kind) for kind in (plain, OURS[plain]))
    for name, wanted in first.items():
        assert _same(second[name], wanted), f"{name}: {second[name]!r:.90} in place of {wanted!r:.90}"


def _outcome(scenario: Callable[[Any], Any], kind: Any) -> dict[str, Any]:
    set_random_seed(1)
    try:
        model = scenario(kind)
    except (AssertionError, AttributeError, CheckpointError, RuntimeError, TypeError, ValueError) as error:
        return {"model": None, "error": _kind_of(error)}
    logged = model.logger.name_to_value if hasattr(model, "_logger") else {}
    return {
        "error": None,
        **model.get_parameters(),
        "buffer": _arrays(getattr(model, "replay_buffer", None)),
        "steps": (model.num_timesteps, model._n_updates),
        "logged": {
            name: logged[name] for name in logged if name.startswith(("train/", "rollout/")) and name not in _NEW
        },
        "random": th.rand(2),
    }


def _kind_of(error: Exception) -> str:
    # What the original asserts, and what PyTorch says of shapes, ours may say in a sentence.
    if isinstance(error, CheckpointError):
        return RuntimeError.__name__
    return ValueError.__name__ if isinstance(error, AssertionError | ValueError) else type(error).__name__


def _arrays(buffer: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(buffer or object).items() if isinstance(value, np.ndarray)}


def _same(first: Any, second: Any) -> bool:
    if isinstance(second, th.Tensor):
        return th.equal(first, second)
    if isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in second)
    if isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)


STEPS = 48


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
discounts = named(
    {kind: [name for name in ("gamma", "gae_lambda") if name in several] for kind, several in ARGUMENTS.items()}
)


def given(kind: Any, plain: Any, name: str) -> dict[str, Any]:
    value = ARGUMENTS[plain][name]
    more = {"replay_buffer_kwargs": {"handle_timeout_termination": False}} if name == "optimize_memory_usage" else {}
    return {name: value(kind) if value is rollout_buffer else value, **more}


def learned(model: Any, **more: Any) -> Any:
    return model.learn(STEPS, **more)


def continuous(plain: Any, name: str) -> Any:
    """Environments in which the argument can be used: exploration by state needs continuous actions."""
    return environments(plain, "pendulum" if "sde" in name else None)


def reloaded(model: Any, env: Any, **more: Any) -> Any:
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    return type(model).load(file, env=env, device="cpu", **more)


def replaced(plain: Any, name: str) -> Callable[[Any], Any]:
    """Train, save, load with another value of an argument, and go on."""

    def scenario(kind: Any) -> Any:
        model = learned(make(kind, env=continuous(plain, name), policy="MlpPolicy", **one_scale(kind)))
        again = reloaded(model, continuous(plain, name), **given(kind, plain, name))
        return learned(again, reset_num_timesteps=False)

    return scenario


def halfway(change: Callable[[BaseCallback], Any], at: int = 20) -> BaseCallback:
    """A callback that changes the model once, during the second rollout or after the first updates."""

    class Once(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == at:
                change(self)
            return True

    return Once()


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


def settings(**values: Any) -> Callable[[BaseCallback], None]:
    """Set several attributes of the model at once."""

    def change(callback: BaseCallback) -> None:
        for name, value in values.items():
            put(name, value)(callback)

    return change


def decay(callback: BaseCallback) -> None:
    """Change a setting of the optimiser."""
    model: Any = callback.model
    (model.critic if isinstance(model, SAC) else model.policy).optimizer.param_groups[0].update(weight_decay=0.5)


def copied(online: str, target: str) -> Callable[[BaseCallback], None]:
    """Give a target network what the other one has learned."""

    def change(callback: BaseCallback) -> None:
        getattr(callback.model, target).load_state_dict(getattr(callback.model, online).state_dict())

    return change


_SET_ALWAYS = {
    "rates": put("lr_schedule", lambda _: 1e-2),
    "learning rate": put("learning_rate", 0.1),  # which does nothing, in SB3 as well
    "norm": put("max_grad_norm", 1e-3),
    "halve": halve,
    "parameters": put_back,
    "decay": decay,
}
_SET_ON = {
    "gamma": put("rollout_buffer.gamma", 0.9),
    "lambda": put("rollout_buffer.gae_lambda", 0.5),
    "both": both_discounts,
    "model's gamma": put("gamma", 0.9),
    "model's lambda": put("gae_lambda", 0.5),
    "coefficients": settings(ent_coef=0.1, vf_coef=0.1, normalize_advantage=False),
}
_SET_OFF = {
    "gamma": put("gamma", 0.5),
    "gamma of 1": put("gamma", 1.0),
    "updates": settings(batch_size=5, gradient_steps=3, tau=0.3, target_update_interval=4),
    "buffer": lambda callback: callback.model.replay_buffer.rewards.__imul__(10),
}
SET: dict[Any, dict[str, Callable[[BaseCallback], Any]]] = {
    PPO: {
        **_SET_ALWAYS,
        **_SET_ON,
        "schedule": put("clip_range", lambda _: 0.01),
        "values": put("clip_range_vf", lambda _: 0.01),
        "epochs": settings(n_epochs=1, batch_size=32, target_kl=1e-4),
    },
    A2C: {**_SET_ALWAYS, **_SET_ON},
    DQN: {
        **_SET_ALWAYS,
        **_SET_OFF,
        "rate": put("exploration_rate", 0.9),
        "schedule": put("exploration_schedule", lambda _: 0.7),
        "target": copied("q_net", "q_net_target"),
    },
    SAC: {
        **_SET_ALWAYS,
        **_SET_OFF,
        "entropy": put("target_entropy", -0.1),
        "temperature": put("ent_coef_tensor", th.tensor(0.9)),
        "coefficient": lambda callback: callback.model.log_ent_coef.data.fill_(-3.0),
        "no optimiser": settings(ent_coef_optimizer=None, ent_coef_tensor=th.tensor(0.9)),
        "target": copied("critic", "critic_target"),
    },
}
"""What a callback may change in the middle of a training."""


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


class Rewarded:
    """Adds a reward of its own, as curiosity does."""

    def add(self, obs: Any, action: Any, reward: Any, *others: Any) -> None:
        super().add(obs, action, 10 * reward + 1, *others)


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


class Relabelled(ReplayBuffer):
    """Adds a reward of its own when a step is kept, and another one when it is taken."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, *others: Any) -> None:
        super().add(obs, next_obs, action, reward + 1, *others)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        samples = super().sample(batch_size, env)
        return samples._replace(rewards=2 * samples.rewards, dones=th.zeros_like(samples.dones))


class Trains:
    """Learns twice, with less and less of everything."""

    def train(self, *args: Any, **kwargs: Any) -> None:
        super().train(*args, **kwargs)
        self.gamma = self.gamma * 0.9
        self.max_grad_norm = 0.1
        super().train(*args, **kwargs)


def derived(kind: Any, mixin: Any) -> Any:
    return type("Own", (mixin, kind), {})


class Noisy(FlattenExtractor):
    """Differs between training and playing."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.norm, self.dropout = nn.BatchNorm1d(self.features_dim), nn.Dropout(0.5)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.dropout(self.norm(super().forward(observations)))
