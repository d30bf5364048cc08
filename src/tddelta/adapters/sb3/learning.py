"""What happens to the components inside SB3's own `train`, which knows of one value only."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import explained_variance
from torch import nn

from tddelta.errors import ConfigError
from tddelta.timescales import TimeScales


class Learning:
    """One call of `train`: weighs the components' errors, and watches losses and gradients.

    Args:
        scales: The time scales.
        weights: Weight of every component in the value loss, (Z,), ≥ 0; None weighs all by 1.
    """

    def __init__(self, scales: TimeScales, weights: th.Tensor | None) -> None:
        self.scales = scales
        self.awaits_gradients = False
        # The error is what is squared, so its two sides carry the root of the weight.
        self._roots = None if weights is None else weights.sqrt()
        self._targets: th.Tensor | None = None
        self._losses: list[th.Tensor] = []
        self._norms: list[th.Tensor] = []

    def samples(self, targets: th.Tensor, old: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Targets and old components of a minibatch, (B, Z), as the loss takes them, (B·Z,)."""
        self._targets = targets
        return self._weighed(targets).flatten(), self._weighed(old).flatten()

    def minibatch(self, components: th.Tensor) -> th.Tensor:
        """The components of that minibatch, (B, Z), as the loss takes them."""
        if self._targets is not None:
            errors = components.detach() - self._targets
            self._losses.append(errors.square().mean(0))
            self._targets, self.awaits_gradients = None, True
        return self._weighed(components)

    def gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Take the norm of the gradients, before they are clipped."""
        self.awaits_gradients = False
        found = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._norms.append(th.nn.utils.get_total_norm(found))

    def log(self, logger: Any, components: np.ndarray, returns: np.ndarray) -> None:
        """Record what was seen, and how the components (N, Z) of the rollout fit their returns (N, Z).

        Raises:
            ConfigError: There are weights, and one side of the errors was not weighed.
        """
        if self._roots is not None and (self._targets is not None or not self._losses):
            raise ConfigError(
                "component_weights weigh what evaluate_actions of DeltaActorCriticPolicy and get of DeltaRolloutBuffer "
                "hand out, and one of the two was replaced: call super() there, or leave component_weights out"
            )
        if self._norms:
            logger.record("train/gradient_norm", float(th.stack(self._norms).mean()))
        losses = th.stack(self._losses).mean(0).tolist() if self._losses else []
        log_components(logger, self.scales, "value_loss", losses)
        both = zip(components.T, returns.T, strict=True)
        log_components(logger, self.scales, "explained_variance", [float(explained_variance(*pair)) for pair in both])
        log_components(logger, self.scales, "value_mean", components.mean(0).tolist())

    def _weighed(self, components: th.Tensor) -> th.Tensor:
        return components if self._roots is None else components * self._roots


def whole(components: th.Tensor) -> th.Tensor:
    """Components in single precision at least: sums in half precision are no sums."""
    return components.to(th.promote_types(components.dtype, th.float32))


def log_components(logger: Any, scales: TimeScales, name: str, values: Sequence[float]) -> None:
    """Record one number per component, by discount.

    Not on the console: SB3's table would grow by three lines per component.
    """
    for label, value in zip(scales.labels, values, strict=False):
        logger.record(f"{name}/gamma={label}", value, exclude="stdout")
