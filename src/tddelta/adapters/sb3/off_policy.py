"""What `DeltaDQN` and `DeltaSAC` share: one-step targets of action values from a replay buffer."""

from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import explained_variance

from tddelta.adapters.sb3.learning import log_components
from tddelta.adapters.sb3.model import DeltaModel
from tddelta.errors import ConfigError
from tddelta.targets import td_errors

_Loss = Callable[..., th.Tensor]


class DeltaOffPolicy(DeltaModel, OffPolicyAlgorithm):
    """What the two algorithms share.

    SB3's replay buffers keep rewards as they are, and tell terminated from truncated: nothing has to be undone.
    """

    def _settle(self) -> None:
        # SB3's n-step buffer sums rewards with one discount, which is wrong for every other component.
        if self.n_steps > 1:
            raise ConfigError(
                f"n_steps must be 1 with components; got {self.n_steps}: SB3 adds up the rewards of n steps with one "
                "discount, and every component has its own"
            )
        super()._settle()

    def _targets(self, samples: Any, successors: th.Tensor) -> th.Tensor:
        """One-step targets of all components, (B, Z), from those at the successors, (B, Z)."""
        # An error against a critic of zeros is the target, without rounding.
        return td_errors(
            samples.rewards.squeeze(-1),
            th.zeros_like(successors),
            successors,
            terminated=samples.dones.squeeze(-1) > 0,
            scales=self.scales,
        )

    def _loss(self, loss: _Loss, components: th.Tensor, targets: th.Tensor) -> th.Tensor:
        """Σ_z w_z mean(loss(components, targets)), for arrays (B, Z)."""
        weights = self.weights
        if weights is None:
            # With one component this is SB3's loss to the bit.
            return loss(components, targets) * len(self.scales)
        return (loss(components, targets, reduction="none").mean(0) * weights).sum()

    def _log_components(self, components: th.Tensor, targets: th.Tensor) -> None:
        """Record error, explained variance and mean of the components (B, Z) of the last minibatch."""
        with th.no_grad():
            errors = (components - targets).square().mean(0).tolist()
            means = components.mean(0).tolist()
        both = zip(components.detach().cpu().numpy().T, targets.cpu().numpy().T, strict=True)
        log_components(self.logger, self.scales, "value_loss", errors)
        explained = [float(explained_variance(*pair)) for pair in both]
        log_components(self.logger, self.scales, "explained_variance", explained)
        log_components(self.logger, self.scales, "value_mean", means)
