"""DQN of Stable-Baselines3 with TD(Δ) action values."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3 import DQN
from torch.nn import functional

from tddelta.adapters.sb3 import q_policies
from tddelta.adapters.sb3.conversion import from_plain, given, to_plain
from tddelta.adapters.sb3.model import as_numpy
from tddelta.adapters.sb3.off_policy import DeltaOffPolicy
from tddelta.errors import own_checks


class DeltaDQN(DeltaOffPolicy, DQN):
    """DQN with components of the action value: `stable_baselines3.DQN`, with the arguments of `DeltaModel` besides.

    Q = Σ_z Q^z acts, and chooses the one greedy action of the successor for which all components are bootstrapped; as
    in SB3, the target network both chooses and evaluates it. The loss is the sum over components of SB3's.

    With one scale, parameters are those of `DQN`, bit by bit.

    Raises:
        ConfigError: `n_steps` is above 1, the replay buffer hands out other than single transitions, or as
            `DeltaModel` says.

    Example:
        >>> model = DeltaDQN("MlpPolicy", "CartPole-v1", buffer_size=100, scales=[0.9, 0.99], device="cpu")
        >>> model.predict_components(np.zeros(4, np.float32)).shape
        (2, 2)
    """

    plain_policies: ClassVar[dict[type[Any], type[Any]]] = q_policies.DQN_PLAIN
    policy_aliases: ClassVar[dict[str, type[Any]]] = dict(
        zip(("MlpPolicy", "CnnPolicy", "MultiInputPolicy"), q_policies.DQN_PLAIN, strict=True)
    )

    _learned = q_policies.DeltaQNetwork, "components", ("forward",)

    def _critic(self) -> Any:
        return self.q_net

    @classmethod
    @own_checks
    def from_dqn(cls, model: DQN, scales: Any = None) -> "DeltaDQN":
        """Go on from a trained DQN: the same policy and the same Q, split over the components.

        Component z starts as the share (h_z − h_{z−1}) / h_Z of Q, as in `DeltaPPO.from_ppo`. The optimiser starts
        afresh.

        Args:
            model: The DQN; its networks are not changed. Environment, replay buffer and settings are shared.
            scales: The time scales, as in the constructor.

        Returns:
            The new model.

        Raises:
            ConfigError: `model` is no DQN, the scales do not fit, the DQN learns from several steps, or its policy is
                of a class of your own.
        """
        return from_plain(cls, given(model, DQN), scales=scales)

    def to_dqn(self) -> DQN:
        """The same policy and Q as a plain DQN, whose save file needs no tddelta.

        The components become one, their sum. The optimiser starts afresh.

        Returns:
            The new model; environment, replay buffer and settings are shared.

        Raises:
            ConfigError: The policy is of a class of your own.
        """
        return to_plain(DQN, self)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Update the network; SB3's `train`, which cannot be kept, since it takes the maximum of one value."""
        policy, online, target = (self.policy, self.q_net, self.q_net_target)  # type: Any, Any, Any
        policy.set_training_mode(True)
        self._update_learning_rate(policy.optimizer)
        losses, norms = [], []
        components = targets = th.zeros(1, len(self.scales))
        for _ in range(gradient_steps):
            samples = self._sample(batch_size)
            with th.no_grad():
                following = target.components(samples.next_observations)
                greedy = q_policies.total(following).squeeze(-1).argmax(1)
                targets = self._targets(samples, _chosen(following, greedy))
            components = _chosen(online.components(samples.observations), samples.actions.long().squeeze(-1))
            loss = self._loss(functional.smooth_l1_loss, components, targets)
            losses.append(loss.item())
            policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norms.append(float(th.nn.utils.clip_grad_norm_(policy.parameters(), self.max_grad_norm)))
            policy.optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/gradient_norm", np.mean(norms))
        self._log_components(components, targets)

    def predict_components(self, observation: Any) -> np.ndarray:
        """Components of the action values of observations.

        Args:
            observation: One observation or several, as `predict` takes them.

        Returns:
            Q^z(s, a), (A, Z) or (B, A, Z), smallest discount first.
        """
        tensors, several = self._observation(observation)
        online: Any = self.q_net
        with th.no_grad():
            return as_numpy(online.components(tensors), several=several)


def _chosen(components: th.Tensor, actions: th.Tensor) -> th.Tensor:
    """Q^z(s, a), (B, Z), of one action each."""
    return th.gather(components, 1, actions[:, None, None].expand(-1, 1, components.shape[-1])).squeeze(1)
