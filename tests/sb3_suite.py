"""The four algorithms beside those of Stable-Baselines3, and what it means that two of them learned the same."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.utils import set_random_seed

from sb3_environments import TASKS, steered, vectorised
from tddelta.adapters.sb3 import DeltaA2C, DeltaDQN, DeltaPPO, DeltaSAC

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
    ours = {"scales": SCALES} if issubclass(kind, tuple(OURS.values())) else {}
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
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
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
    # What the original asserts, ours may say in a sentence.
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
