"""Critics with one output per time scale, and the settings of the loss that trains them."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import set_skip_existing
from torchrl.modules import ValueOperator

from tddelta._arrays import check_scales
from tddelta.adapters.torchrl.reading import entry
from tddelta.errors import ConfigError, own_checks
from tddelta.timescales import TimeScales


@own_checks
def loss_settings(scales: TimeScales, coefficient: float = 1.0) -> dict[str, Any]:
    """Settings of a TorchRL loss, with which it takes coefficient · ½ Σ_z (W_z − G^z)², averaged over the batch.

    TorchRL averages over batch and components, and its squared error has no ½: hence half their number. Its own
    default, "smooth_l1", has gradients of at most 1, too little for the components of long horizons.

    Args:
        scales: The time scales.
        coefficient: Weight of the critic's loss beside the policy's, ≥ 0.

    Returns:
        `critic_coeff` and `loss_critic_type`, keywords of `ClipPPOLoss`, `KLPENPPOLoss`, `PPOLoss` and `A2CLoss`.
        `ReinforceLoss` has no coefficient: multiply its "loss_value" by this one.

    Raises:
        ConfigError: `scales` is no `TimeScales`, or the coefficient is negative.

    Example:
        >>> loss_settings(TimeScales.halving(0.99))
        {'critic_coeff': 3.0, 'loss_critic_type': 'l2'}
    """
    check_scales(scales)
    if not coefficient >= 0:
        raise ConfigError(f"coefficient must be at least 0; got {coefficient}: 1 is the sum of half the squared errors")
    return {"critic_coeff": coefficient * len(scales) / 2, "loss_critic_type": "l2"}


@own_checks
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


def predict_components(critic: Any, tensordict: TensorDictBase, key: Any = "state_value") -> torch.Tensor:
    """W(s), what each time scale adds to the value, (*batch, Z); no gradients, and the data stays as it is.

    Args:
        critic: The critic, a tensordict module.
        tensordict: Observations, under the keys that the critic reads.
        key: Where the critic writes.

    Returns:
        W, (*batch, Z).

    Raises:
        DataError: The critic writes nothing there.
    """
    with torch.no_grad(), set_skip_existing(False):
        return entry(critic(tensordict.select(*critic.in_keys)), key)


def predict_values(critic: Any, tensordict: TensorDictBase, key: Any = "state_value") -> torch.Tensor:
    """V(s) = Σ_z W_z(s), (*batch, 1), the value at the largest discount; arguments as of `predict_components`."""
    return predict_components(critic, tensordict, key).sum(-1, keepdim=True)
