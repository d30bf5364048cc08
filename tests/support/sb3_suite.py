"""The four algorithms beside those of Stable-Baselines3: whether two learned the same, and what users change."""

import io
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule, set_random_seed
from torch import nn

from sb3_environments import TASKS, steered, vectorised
from tddelta.adapters.sb3 import DeltaA2C, DeltaDQN, DeltaPPO, DeltaRolloutBuffer, DeltaSAC
from tddelta.errors import CheckpointError, ConfigError

STEPS = 48
SCALES = [0.5, 0.9, 0.99]
_REPLAY: dict[str, Any] = {"learning_starts": 16, "batch_size": 8, "buffer_size": 200, "train_freq": 4}
QUICK: dict[Any, dict[str, Any]] = {
    PPO: {"n_steps": 16, "batch_size": 16, "n_epochs": 2},
    A2C: {"n_steps": 8},
    DQN: {**_REPLAY, "target_update_interval": 10},
    SAC: {**_REPLAY, "gradient_steps": 2},
    TD3: _REPLAY,
}
OURS: dict[Any, Any] = {PPO: DeltaPPO, A2C: DeltaA2C, DQN: DeltaDQN, SAC: DeltaSAC}
_NEW = {"train/gradient_norm"}  # what ours log besides
FLAT = {PPO: "cartpole", A2C: "cartpole", DQN: "cartpole", SAC: "pendulum", TD3: "pendulum"}


def kinds(*several: Any, name: str = "plain") -> Any:
    """A parameter that is a class."""
    return pytest.mark.parametrize(name, several, ids=lambda kind: kind.__name__)


algorithms, on_policy, off_policy = kinds(*OURS), kinds(PPO, A2C), kinds(DQN, SAC)


def environments(plain: Any, task: str | None = None, count: int = 2) -> Any:
    task = task or FLAT[plain]
    return steered(task, count) if issubclass(plain, SAC) else vectorised(task, count)


def derived(kind: Any, mixin: Any) -> Any:
    return type("Own", (mixin, kind), {})


def own_buffer(kind: Any, mixin: Any) -> Any:
    """A buffer class of a user, for an algorithm of SB3 or for one of ours."""
    return derived(DeltaRolloutBuffer if issubclass(kind, tuple(OURS.values())) else RolloutBuffer, mixin)


def make(
    kind: Any, task: str | None = None, env: Any = None, policy: Any = None, scales: Any = SCALES, **settings: Any
) -> Any:
    """A small model of SB3, or of ours with scales; policies and rollout buffers may be classes to mix in."""
    plain = next(one for one in QUICK if issubclass(kind, one))
    policy = policy or TASKS[task or FLAT[plain]][1]
    if isinstance(policy, type) and not issubclass(policy, BasePolicy):
        policy = derived(kind.policy_aliases["MlpPolicy"], policy)
    buffer = settings.get("rollout_buffer_class")
    if buffer is not None and not issubclass(buffer, RolloutBuffer):
        settings["rollout_buffer_class"] = own_buffer(kind, buffer)
    ours: dict[str, Any] = {"scales": scales} if issubclass(kind, tuple(OURS.values())) else {}
    if "buffer_size" in QUICK[plain]:  # of 256 and 256 by default, and a new dictionary, into which SB3 writes
        ours["policy_kwargs"] = {"net_arch": [16]}
    given = environments(plain, task) if env is None else env
    return kind(policy, given, **{"seed": 3, "device": "cpu", **QUICK[plain], **ours, **settings})


def assert_same(plain: Any, scenario: Callable[[Any], Any], *, refused: bool | None = False) -> None:
    """Check that what is done with SB3's algorithm ends as with ours of one scale, to the last bit.

    Args:
        plain: The class of SB3.
        scenario: Trains a model that it makes with the function that it is given, `make` of the class.
        refused: Whether both fail; None where they may.
    """
    first, second = (_outcome(scenario, kind) for kind in (plain, OURS[plain]))
    assert refused is None or refused == (first["error"] is not None), first["error"]
    for name, wanted in first.items():
        assert _same(second[name], wanted), f"{name}: {second[name]!r:.90} in place of {wanted!r:.90}"


def _outcome(scenario: Callable[[Any], Any], kind: Any) -> dict[str, Any]:
    set_random_seed(1)
    try:
        model = scenario(partial(make, kind, scales="single"))
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


def assert_counts(plain: Any, scenario: Callable[..., Any], steps: int = STEPS, **settings: Any) -> None:
    """Check that a change counts as in SB3: to the last bit with one scale; a ladder feels or refuses it.

    Args:
        plain: The class of SB3.
        scenario: As of `assert_same`, with so many steps.
        steps: In which a ladder learns.
        **settings: Of all models.
    """
    assert_same(plain, lambda make: scenario(partial(make, **settings), STEPS))
    try:
        found = _felt(OURS[plain], scenario, steps, settings)
    except ConfigError:
        return
    assert _felt(plain, scenario, steps, settings) <= found


def _felt(kind: Any, scenario: Callable[..., Any], steps: int, settings: dict[str, Any]) -> set[str]:
    """The networks that learn something else by a change, where gradients of the critic leave the actor alone."""
    given = settings if issubclass(kind, SAC) else {"max_grad_norm": 1e9, **settings}
    state = scenario(partial(make, kind, **given), steps).policy.state_dict()
    other = _unchanged(kind, steps, tuple(given.items()))
    parts = {"critic": ("value_net", "q_net", "critic"), "actor": ("action_net", "actor")}
    return {
        part
        for part, names in parts.items()
        if any(not th.equal(state[key], other[key]) for key in state if any(name in key for name in names))
    }


@cache
def _unchanged(kind: Any, steps: int, settings: tuple[Any, ...]) -> Any:
    return make(kind, **dict(settings)).learn(steps).policy.state_dict()


class Counted:
    """Mixed into a buffer: keeps what it does."""


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
    "rollout_buffer_class": Counted,
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
    return {name: own_buffer(kind, value) if value is Counted else value, **more}


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


class Patient(BaseCallback):
    """Lets every step pass."""

    def _on_step(self) -> bool:
        return True


def halfway(change: Callable[[Any], Any]) -> Callable[..., bool]:
    """A callback that changes the model once, during the second rollout or after the first updates."""

    def once(found: dict[str, Any], _: Any) -> bool:
        if found["self"].num_timesteps == 36:
            change(found["self"])
        return True

    return once


def put(**values: Any) -> Callable[[Any], None]:
    """Set attributes of the model; `rollout_buffer` is a dictionary of those of the buffer."""

    def change(model: Any) -> None:
        for name, value in values.items():
            if name == "rollout_buffer":
                put(**value)(model.rollout_buffer)
            else:
                setattr(model, name, value)

    return change


def halve(model: Any) -> None:
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter.mul_(0.5)


def put_back(model: Any) -> None:
    """Take the parameters that a model of other experience has."""
    halved = {key: value * 0.5 for key, value in model.get_parameters()["policy"].items()}
    model.set_parameters({"policy": halved}, exact_match=False)


def decay(model: Any) -> None:
    """Change a setting of the optimiser."""
    (model.critic if isinstance(model, SAC) else model.policy).optimizer.param_groups[0].update(weight_decay=0.5)


_DISCOUNTS = {"gamma": 0.9, "gae_lambda": 0.5}
_SET_ALWAYS = {
    "rates": put(lr_schedule=lambda _: 1e-2),
    "learning rate": put(learning_rate=0.1),  # which does nothing, in SB3 as well
    "norm": put(max_grad_norm=1e-3),
    "halve": halve,
    "parameters": put_back,
    "decay": decay,
}
_SET_ON = {
    "gamma": put(rollout_buffer={"gamma": 0.9}),
    "lambda": put(rollout_buffer={"gae_lambda": 0.5}),
    "both": put(**_DISCOUNTS, rollout_buffer=_DISCOUNTS),
    "model's gamma": put(gamma=0.9),
    "model's lambda": put(gae_lambda=0.5),
    "coefficients": put(ent_coef=0.1, vf_coef=0.1, normalize_advantage=False),
}
_SET_OFF = {
    "gamma": put(gamma=0.5),
    "gamma of 1": put(gamma=1.0),
    "updates": put(batch_size=5, gradient_steps=3, tau=0.3, target_update_interval=4),
    "buffer": lambda model: model.replay_buffer.rewards.__imul__(10),
}
SET: dict[Any, dict[str, Callable[[Any], Any]]] = {
    PPO: {
        **_SET_ALWAYS,
        **_SET_ON,
        "schedule": put(clip_range=lambda _: 0.01),
        "values": put(clip_range_vf=lambda _: 0.01),
        "epochs": put(n_epochs=1, batch_size=32, target_kl=1e-4),
    },
    A2C: {**_SET_ALWAYS, **_SET_ON},
    DQN: {
        **_SET_ALWAYS,
        **_SET_OFF,
        "rate": put(exploration_rate=0.9),
        "schedule": put(exploration_schedule=lambda _: 0.7),
        "target": lambda model: model.q_net_target.load_state_dict(model.q_net.state_dict()),
    },
    SAC: {
        **_SET_ALWAYS,
        **_SET_OFF,
        "entropy": put(target_entropy=-0.1),
        "temperature": put(ent_coef_tensor=th.tensor(0.9)),
        "coefficient": lambda model: model.log_ent_coef.data.fill_(-3.0),
        "no optimiser": put(ent_coef_optimizer=None, ent_coef_tensor=th.tensor(0.9)),
        "target": lambda model: model.critic_target.load_state_dict(model.critic.state_dict()),
    },
}
"""Changes that a callback may make in the middle of a training."""


def hindsight(make: Any, plain: Any, bits: int = 4, image: bool = False, **settings: Any) -> Any:
    """A model that learns to flip bits from goals that it was not given."""

    def flipping() -> Any:
        return BitFlippingEnv(bits, continuous=issubclass(plain, SAC), image_obs_space=image)

    given = {"replay_buffer_class": HerReplayBuffer, "buffer_size": 2000, **settings}
    return make(env=make_vec_env(flipping, 2, seed=0), policy="MultiInputPolicy", **given)


class Noisy(FlattenExtractor):
    """Differs between training and playing."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.norm, self.dropout = nn.BatchNorm1d(self.features_dim), nn.Dropout(0.5)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.dropout(self.norm(super().forward(observations)))
