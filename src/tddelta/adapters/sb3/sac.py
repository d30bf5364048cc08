"""SAC of Stable-Baselines3 with TD(Δ) action values."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.utils import polyak_update
from torch.nn import functional

from tddelta.adapters.sb3 import q_policies
from tddelta.adapters.sb3.conversion import from_plain, given, to_plain
from tddelta.adapters.sb3.learning import whole
from tddelta.adapters.sb3.model import as_numpy
from tddelta.adapters.sb3.off_policy import DeltaOffPolicy
from tddelta.errors import ConfigError, own_checks


class DeltaSAC(DeltaOffPolicy, SAC):
    """SAC with components of the action value: `stable_baselines3.SAC`, with the arguments of `DeltaModel` besides.

    Each of the twin critics has all components. At the successor the twin with the smaller sum is taken, the same for
    all components, and −α log π goes into its component 0 only: then every prefix is the soft value of its discount.
    The critics' loss is ½ Σ_z mean((Q^z − G^z)²), summed over the twins; the actor sees the sums.

    With one scale, parameters are those of `SAC`, bit by bit.

    Raises:
        ConfigError: `n_steps` is above 1, the replay buffer hands out other than single transitions, or as
            `DeltaModel` says.

    Example:
        >>> model = DeltaSAC("MlpPolicy", "Pendulum-v1", buffer_size=100, scales=[0.9, 0.99], device="cpu")
        >>> model.predict_components(np.zeros(3, np.float32), np.zeros(1, np.float32)).shape
        (2,)
    """

    plain_policies: ClassVar[dict[type[Any], type[Any]]] = q_policies.SAC_PLAIN
    policy_aliases: ClassVar[dict[str, type[Any]]] = dict(
        zip(("MlpPolicy", "CnnPolicy", "MultiInputPolicy"), q_policies.SAC_PLAIN, strict=True)
    )

    _learned = q_policies.DeltaContinuousCritic, "each", ("forward", "components")

    def _critic(self) -> Any:
        return self.critic

    @classmethod
    @own_checks
    def from_sac(cls, model: SAC, scales: Any = None) -> "DeltaSAC":
        """Go on from a trained SAC, as `DeltaDQN.from_dqn` does from a DQN, with its entropy coefficient."""
        return from_plain(cls, given(model, SAC), scales=scales)

    def to_sac(self) -> SAC:
        """The same policy and Q as a plain SAC, as `DeltaDQN.to_dqn` makes a DQN, with the entropy coefficient."""
        return to_plain(SAC, self)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Update actor, critics and temperature.

        SB3's `train`, in its order; it cannot be kept, since it takes the minimum over one value per critic.
        """
        policy, actor, critic, target = (self.policy, self.actor, self.critic, self.critic_target)  # type: Any, Any, Any, Any
        policy.set_training_mode(True)
        optimizers = [actor.optimizer, critic.optimizer]
        if self.ent_coef_optimizer is not None:
            optimizers.append(self.ent_coef_optimizer)
        self._update_learning_rate(optimizers)
        names = ("ent_coef", "ent_coef_loss", "actor_loss", "critic_loss", "gradient_norm")
        seen: dict[str, list[float]] = {name: [] for name in names}
        components = targets = th.zeros(1, len(self.scales))
        for step in range(gradient_steps):
            samples = self._sample(batch_size)
            if self.use_sde:
                actor.reset_noise()
            actions, log_prob = actor.action_log_prob(samples.observations)
            log_prob = log_prob.reshape(-1, 1)
            temperature = self._temperature(log_prob, seen)

            with th.no_grad():
                next_actions, next_log_prob = actor.action_log_prob(samples.next_observations)
                following = whole(_smaller(target.components(samples.next_observations, next_actions)))
                following[:, 0] -= temperature * next_log_prob
                targets = self._targets(samples, following)
            every = critic.each(samples.observations, samples.actions)
            losses = [self._loss(functional.mse_loss, one, targets) for one in every]
            critic_loss: Any = 0.5 * sum(losses)
            seen["critic_loss"].append(critic_loss.item())
            critic.optimizer.zero_grad()
            critic_loss.backward()
            # Of the critics, which SAC does not clip.
            gradients = [parameter.grad for parameter in critic.parameters() if parameter.grad is not None]
            seen["gradient_norm"].append(th.nn.utils.get_total_norm(gradients).item())
            critic.optimizer.step()
            components = every[0]

            smaller = th.cat(critic(samples.observations, actions), dim=1).min(dim=1, keepdim=True).values
            actor_loss: Any = (temperature * log_prob - smaller).mean()
            seen["actor_loss"].append(actor_loss.item())
            actor.optimizer.zero_grad()
            actor_loss.backward()
            actor.optimizer.step()

            if step % self.target_update_interval == 0:
                polyak_update(critic.parameters(), target.parameters(), self.tau)
                polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in seen.items():
            if values:
                self.logger.record(f"train/{name}", np.mean(values))
        self._log_components(components, targets)

    def _temperature(self, log_prob: th.Tensor, seen: dict[str, list[float]]) -> th.Tensor:
        """The entropy coefficient α, after which it takes its own step."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            seen["ent_coef"].append(self.ent_coef_tensor.item())
            return self.ent_coef_tensor
        temperature = th.exp(self.log_ent_coef.detach())
        loss: Any = -(self.log_ent_coef * (log_prob + float(self.target_entropy)).detach()).mean()
        seen["ent_coef"].append(temperature.item())
        seen["ent_coef_loss"].append(loss.item())
        self.ent_coef_optimizer.zero_grad()
        loss.backward()
        self.ent_coef_optimizer.step()
        return temperature

    def predict_components(self, observation: Any, action: Any = None) -> np.ndarray:
        """Components of the action value, of the critic whose sum is the smaller one.

        Args:
            observation: One observation or several, as `predict` takes them.
            action: The action of each, in units of the environment; None is the policy's own, without noise.

        Returns:
            Q^z(s, a), (Z,) or (B, Z), smallest discount first.

        Raises:
            ConfigError: There is not one action per observation.
        """
        tensors, several = self._observation(observation)
        policy, critic = (self.policy, self.critic)  # type: Any, Any
        with th.no_grad():
            if action is None:
                scaled = self.actor(tensors, deterministic=True)
            else:
                actions = np.asarray(action, np.float32)
                wanted = (*([_size(tensors)] if several else []), *(self.action_space.shape or ()))
                if actions.shape != wanted:
                    raise ConfigError(
                        f"action must hold one action per observation, shape {wanted}; got shape {actions.shape}"
                    )
                flat = policy.scale_action(actions).reshape(_size(tensors), -1)
                scaled = th.as_tensor(flat, device=self.device)
            return as_numpy(_smaller(critic.components(tensors, scaled)), several=several)


def _smaller(components: th.Tensor) -> th.Tensor:
    """Of the critics' components, (B, critics, Z), those of the critic with the smallest sum, (B, Z)."""
    critic = q_policies.total(components).squeeze(-1).argmin(1)
    return th.gather(components, 1, critic[:, None, None].expand(-1, 1, components.shape[-1])).squeeze(1)


def _size(tensors: Any) -> int:
    return len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
