"""Between an algorithm of SB3 and ours, with the same policy and the same values."""

import math
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from tddelta.adapters.sb3.buffers import DeltaDictRolloutBuffer, DeltaRolloutBuffer
from tddelta.adapters.sb3.model import DeltaModel
from tddelta.errors import ConfigError
from tddelta.timescales import TimeScales

_Model = TypeVar("_Model")

_BUFFERS = (None, RolloutBuffer, DictRolloutBuffer, DeltaRolloutBuffer, DeltaDictRolloutBuffer)

# What belongs to one of the two kinds, or is made anew; all other attributes are settings and counters.
_OWN = ("policy", "rollout_buffer", "rollout_buffer_class", "_ladder", "_scales", "component_weights", "form")


def from_plain(kind: type[_Model], model: Any, **own: Any) -> _Model:
    """One of our models with policy and V of one of SB3's, and settings of its own."""
    made: Any = kind  # one of our algorithms
    counterparts = {plain: ours for ours, plain in made.plain_policies.items()}
    made = _copy(kind, model, _counterpart(model, counterparts), own)
    shares = th.tensor(component_shares(made.scales), dtype=th.float32, device=made.device)
    _load(made, model, lambda head: (shares.reshape(-1, *[1] * head.ndim) * head).flatten(0, 1))
    result: _Model = made
    return result


def to_plain(kind: type[_Model], model: Any) -> _Model:
    """One of SB3's models with policy and V of one of ours."""
    made = _copy(kind, model, _counterpart(model, model.plain_policies), {})
    _load(made, model, lambda head: head.reshape(len(model.scales), -1, *head.shape[1:]).sum(0))
    result: _Model = made
    return result


def given(model: Any, kind: type[_Model]) -> _Model:
    """A model that is to be converted, if it is of its class."""
    if isinstance(model, DeltaModel):
        raise ConfigError(
            f"model must be a plain {kind.__name__}; got a {type(model).__name__}, which has components already: to "
            f"change its scales, convert it by to_{kind.__name__.lower()}() first"
        )
    if not isinstance(model, kind):
        raise ConfigError(
            f"model must be of the class {kind.__name__}; got {model!r:.80}: a file is read by {kind.__name__}.load(…)"
        )
    return model


def component_shares(scales: TimeScales) -> list[float]:
    """What part of V each component has where rewards are constant: (h_z − h_{z−1}) / h_Z; their sum is 1.

    Example:
        >>> component_shares(TimeScales.from_horizons([25, 50, 100]))
        [0.25, 0.25, 0.5]
    """
    horizons = scales.horizons
    if math.isinf(horizons[-1]):
        return [0.0] * (len(horizons) - 1) + [1.0]
    below = (0.0, *horizons[:-1])
    return [(high - low) / horizons[-1] for high, low in zip(horizons, below, strict=True)]


def _counterpart(model: Any, classes: Mapping[type[Any], type[Any]]) -> type[Any]:
    if model.policy_class not in classes:
        raise ConfigError(
            f"only the policies {', '.join(known.__name__ for known in classes)} can be converted; got "
            f"{model.policy_class.__name__}: for a class of your own copy the state_dict, where only the last "
            "layer of the critic differs"
        )
    return classes[model.policy_class]


def _copy(kind: Any, model: Any, policy_class: type[Any], own: dict[str, Any]) -> Any:
    """A model of the kind with the settings, counters and environment of another."""
    buffer = getattr(model, "rollout_buffer_class", None)
    if buffer not in _BUFFERS:
        raise ConfigError(
            f"a rollout buffer of your own is not converted; got {buffer.__name__}: set model.rollout_buffer_class = "
            f"None and model.rollout_buffer_kwargs = {{}} to leave it out, and pass {kind.__name__}.load(…, "
            "rollout_buffer_class=…) one of the other kind"
        )
    made = kind(policy_class, None, device=model.device, _init_setup_model=False)
    kept = {name: value for name, value in model.__dict__.items() if name not in _OWN}
    for name in ("ep_info_buffer", "ep_success_buffer"):  # the one thing that both would change
        kept[name] = copy(kept[name])
    made.__dict__.update({**kept, "policy_class": policy_class, **own})
    # The random numbers of whoever trains meanwhile stay as they were: no seed is set, and none is drawn.
    seed, made.seed = made.seed, None
    try:
        with th.random.fork_rng(devices=[]):
            made._setup_model()
    finally:
        made.seed = seed
    return made


def _load(made: Any, model: Any, change: Callable[[th.Tensor], th.Tensor]) -> None:
    """Take over the networks, with the last layers of the critic changed, and SAC's entropy coefficient."""
    state, heads = model.policy.state_dict(), _heads(model.policy)
    changed = {name: change(value) if name.startswith(heads) else value for name, value in state.items()}
    made.policy.load_state_dict(changed)
    for name in ("log_ent_coef", "ent_coef_tensor"):
        if getattr(model, name, None) is not None:
            getattr(made, name).data.copy_(getattr(model, name).data)


def _heads(policy: Any) -> tuple[str, ...]:
    """What the names of the parameters in the critic's last layers begin with."""
    if hasattr(policy, "value_net"):
        return ("value_net.",)
    names = ["q_net.q_net", "q_net_target.q_net"]
    if hasattr(policy, "critic"):
        names = [
            f"{critic}.qf{twin}" for critic in ("critic", "critic_target") for twin in range(policy.critic.n_critics)
        ]
    return tuple(f"{name}.{len(policy.get_submodule(name)) - 1}." for name in names)
