"""The settings of an algorithm of SB3 as plain data, equal for equal models."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

# Not settings, recorded elsewhere, or without influence on what is learned.
_LEFT_OUT = {
    *("self", "env", "seed", "policy", "device", "verbose", "tensorboard_log", "stats_window_size"),
    *("monitor_wrapper", "supported_action_spaces", "_init_setup_model", "scales", "args", "kwargs"),
    *("rollout_buffer_class", "replay_buffer_class"),
}


def settings_of(model: Any) -> dict[str, Any]:
    """The constructor's arguments as the model keeps them, and its policy class, for strict JSON."""
    names = dict.fromkeys(
        name
        for kind in reversed(type(model).__mro__)
        if "__init__" in vars(kind)
        for name in inspect.signature(vars(kind)["__init__"]).parameters
    )
    found = {name: plain(getattr(model, name)) for name in names if name not in _LEFT_OUT and hasattr(model, name)}
    return {"policy": model.policy_class.__name__, **found}


def plain(value: Any) -> Any:
    """Numbers, texts, lists and mappings as they are; schedules by what they do; everything else by its name."""
    if isinstance(value, FloatSchedule):
        return plain(value.value_schedule)
    if isinstance(value, ConstantSchedule):
        return float(value.val)
    if isinstance(value, LinearSchedule):
        return f"linear from {value.start} to {value.end} at {value.end_fraction}"
    if value is None or isinstance(value, str | bool | int | float | np.generic):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # such as TrainFreq(4, TrainFrequencyUnit.STEP)
        return [plain(item) for item in value]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, functools.partial):
        return plain(value.func)
    name = getattr(value, "__qualname__", None)  # a class or a function
    return name if name is not None else str(getattr(value, "value", type(value).__qualname__))
