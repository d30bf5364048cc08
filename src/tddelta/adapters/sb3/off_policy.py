"""What `DeltaDQN` and `DeltaSAC` share: one-step targets of action values from a replay buffer."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import explained_variance

from tddelta.adapters.sb3.learning import log_components, whole
from tddelta.adapters.sb3.model import DeltaModel
from tddelta.errors import ConfigError
from tddelta.targets import td_errors

_Loss = Callable[..., th.Tensor]


class DeltaOffPolicy(DeltaModel, OffPolicyAlgorithm):
    """What the two algorithms share.

    SB3's replay buffers keep rewards as they are, and tell terminated from truncated: nothing has to be undone.
    """

    _learned: ClassVar[tuple[type[Any], str, tuple[str, ...]]]
    """The class of the critic, its method that losses are made of, and those that follow from it."""

    def _critic(self) -> Any:
        raise NotImplementedError

    def _settle(self) -> None:
        super()._settle()
        for steps in (self.n_steps, *(self.scales.n_steps or ())):
            _check_steps(steps)

    def _setup_model(self) -> None:
        super()._setup_model()
        self._check_buffer()
        kind, learned, others = self._learned
        network = type(self._critic())
        if not issubclass(network, kind) or (
            getattr(network, learned) is getattr(kind, learned)
            and any(getattr(network, other) is not getattr(kind, other) for other in others)
        ):
            raise ConfigError(
                f"{network.__name__} must derive from {kind.__name__} and override {learned}(), from which it learns, "
                f"instead of {' or '.join(f'{other}()' for other in others)}"
            )

    def _check_buffer(self) -> None:
        for name in ("n_steps", "n_step"):
            _check_steps(getattr(self.replay_buffer, name, None) or 1)

    def _sample(self, batch_size: int) -> Any:
        """Draw single transitions; a callback, or `load_replay_buffer`, may have replaced the buffer."""
        self._check_buffer()
        buffer: Any = self.replay_buffer
        samples = buffer.sample(batch_size, env=self._vec_normalize_env)
        discounts = getattr(samples, "discounts", None)
        # Powers of a discount near 1 differ in the last digits of float32 only.
        if discounts is not None and not th.allclose(discounts, th.full_like(discounts, self.gamma), rtol=2e-7, atol=0):
            raise ConfigError(
                f"the replay buffer must hand out single transitions, whose discounts are gamma={self.gamma}; got "
                f"{float(discounts.min()):g} to {float(discounts.max()):g} from {type(buffer).__name__}: every "
                "component has its own discount, so leave replay_buffer_class out, or give it n_steps=1 and this gamma"
            )
        if ((samples.dones != 0) & (samples.dones != 1)).any():
            raise ConfigError(
                f"the replay buffer must hand out dones of 0 or 1; got {float(samples.dones.min()):g} to "
                f"{float(samples.dones.max()):g} from {type(buffer).__name__}: a transition ends an episode or does not"
            )
        return samples

    def _targets(self, samples: Any, successors: th.Tensor) -> th.Tensor:
        """One-step targets of all components, (B, Z), from those at the successors, (B, Z)."""
        # In the precision of the rewards, whatever that of the networks; an error against zeros is the target.
        successors = successors.to(samples.rewards.dtype)
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
        both = zip(*(whole(part.detach()).cpu().numpy().T for part in (components, targets)), strict=True)
        log_components(self.logger, self.scales, "value_loss", errors)
        explained = [float(explained_variance(*pair)) for pair in both]
        log_components(self.logger, self.scales, "explained_variance", explained)
        log_components(self.logger, self.scales, "value_mean", means)


def _check_steps(n_steps: int) -> None:
    if n_steps > 1:
        raise ConfigError(
            f"n_steps must be 1 with components; got {n_steps}: SB3 adds up the rewards of n steps with one discount, "
            "and every component has its own"
        )
