"""Critics with one output per time scale, and the settings of the loss that trains them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from tensordict.nn import set_skip_existing
from torchrl.modules import ValueOperator

from tddelta._arrays import check_scales
from tddelta._plain import is_number, plain
from tddelta.adapters.torchrl.estimator import DEFAULT_LMBDA, check_critic, entry, ladder
from tddelta.errors import ConfigError, DataError
from tddelta.timescales import TimeScales


def loss_settings(scales: Any, coefficient: float = 1.0, *, gamma: float | None = None) -> dict[str, Any]:
    """Settings of a TorchRL loss, with which it takes coefficient · ½ Σ_z (W_z − G^z)², averaged over the batch.

    TorchRL averages over batch and components, and its squared error has no ½: hence half their number. Its own
    default, "smooth_l1", has gradients of at most 1, too little for the components of long horizons.

    Args:
        scales: The time scales, as of `DeltaGAE`.
        coefficient: Weight of the critic's loss beside the policy's, ≥ 0.
        gamma: γ_Z, in [0, 1]. Needed where `scales` names no discounts; else it must be the largest of them.

    Returns:
        `critic_coeff` and `loss_critic_type`, keywords of `ClipPPOLoss`, `KLPENPPOLoss`, `PPOLoss` and `A2CLoss`.
        `ReinforceLoss` has no coefficient: multiply its "loss_value" by this one.

    Raises:
        ConfigError: `scales` names no time scales, `gamma` is missing or not the largest discount, or the coefficient
            is no finite number ≥ 0.

    Example:
        >>> loss_settings(TimeScales.halving(0.99))
        {'critic_coeff': 3.0, 'loss_critic_type': 'l2'}
        >>> loss_settings("halving", gamma=0.99)
        {'critic_coeff': 3.0, 'loss_critic_type': 'l2'}
    """
    named, gamma = ladder(scales, gamma)
    number, half = plain(coefficient), len(named.at(gamma, DEFAULT_LMBDA)) / 2
    if not (is_number(number) and 0 <= number < math.inf):
        raise ConfigError(
            f"coefficient must be a finite number of at least 0; got {coefficient!r}: "
            "1 is the sum of half the squared errors"
        )
    return {"critic_coeff": float(number) * half, "loss_critic_type": "l2"}


def delta_critic(
    body: torch.nn.Module, features: int, scales: TimeScales, in_keys: Sequence[Any] = ("observation",)
) -> ValueOperator:
    """A critic of one linear output per time scale.

    Args:
        body: What turns the observations into features, (*batch, features).
        features: Number of features that the body puts out.
        scales: The time scales.
        in_keys: Keys of the observations.

    Returns:
        A `ValueOperator` that writes W, (*batch, Z), under "state_value".

    Raises:
        ConfigError: `scales` is no `TimeScales`.
    """
    check_scales(scales)
    return ValueOperator(torch.nn.Sequential(body, torch.nn.Linear(features, len(scales))), in_keys=list(in_keys))


def predict_components(
    critic: Any, tensordict: TensorDictBase | torch.Tensor, key: Any = "state_value"
) -> torch.Tensor:
    """W(s), what each time scale adds to the value, (*batch, Z); no gradients, and the data stays as it is.

    Args:
        critic: The critic, a tensordict module.
        tensordict: Observations, under the keys that the critic reads; for a critic that reads one key also the plain
            tensor, (*batch, features).
        key: Where the critic writes.

    Returns:
        W, (*batch, Z).

    Raises:
        ConfigError: The critic is no tensordict module.
        DataError: An observation is missing, the data is neither a tensordict nor such a tensor, or the critic writes
            nothing there.
    """
    check_critic("critic", critic)
    with torch.no_grad(), set_skip_existing(False):
        return entry(critic(_observations(tensordict, list(critic.in_keys))), key)


def _observations(data: Any, keys: list[Any]) -> Any:
    """The entries that the critic reads, and no others."""
    if isinstance(data, torch.Tensor):
        if len(keys) != 1 or data.ndim == 0:
            raise DataError(
                "a plain tensor must be (*batch, features), for a critic that reads one key; "
                f"got shape {tuple(data.shape)}, and the keys {keys}: pass a TensorDict with these keys"
            )
        return TensorDict({}, data.shape[:-1]).set(keys[0], data)
    if not is_tensor_collection(data) or isinstance(data, type):
        raise DataError(
            f"the observations must be a TensorDict or a tensor; got {type(data).__name__}: "
            f"pass a TensorDict with the keys {keys}, or a tensor (*batch, features) if there is one key"
        )
    for key in keys:
        entry(data, key, "add it, the critic reads it")
    return data.select(*keys)


def predict_values(critic: Any, tensordict: TensorDictBase | torch.Tensor, key: Any = "state_value") -> torch.Tensor:
    """V(s) = Σ_z W_z(s), (*batch, 1), the value at the largest discount; arguments as of `predict_components`."""
    return predict_components(critic, tensordict, key).sum(-1, keepdim=True)
