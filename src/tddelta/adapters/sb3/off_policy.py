"""DQN and SAC of Stable-Baselines3 with TD(Δ) action values, and their one-step targets."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import polyak_update
from torch.nn import functional

from tddelta.adapters.sb3 import q_policies
from tddelta.adapters.sb3.model import DeltaModel, as_numpy, log_components, whole
from tddelta.errors import ConfigError
from tddelta.targets import td_errors

_Loss = Callable[..., th.Tensor]


class DeltaOffPolicy(DeltaModel, OffPolicyAlgorithm):
    """The base of `DeltaDQN` and `DeltaSAC`.

    SB3's replay buffers keep rewards as they are, and tell terminated from truncated: nothing has to be undone.
    """

    _learned: ClassVar[tuple[type[Any], str, tuple[str, ...]]]
    """The class of the critic, its method that losses are made of, and those that follow from it."""

    def _critic(self) -> Any:
        raise NotImplementedError

    def _settle(self) -> None:
        super()._settle()
        self._check_steps(self.n_steps, *(self.scales.n_steps or ()))

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
        self._check_steps(*(getattr(self.replay_buffer, name, None) or 1 for name in ("n_steps", "n_step")))

    def _check_steps(self, *several: int) -> None:
        if max(several) > 1:
            raise ConfigError(
                f"n_steps must be 1 with components; got {max(several)}: SB3 adds up the rewards of n steps with one "
                "discount, and every component has its own"
            )

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
        arrays = (whole(part.detach()).cpu().numpy() for part in (components, targets))
        log_components(self.logger, self.scales, errors, means, *arrays)


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

    plain: ClassVar[type[Any]] = DQN
    policy_aliases: ClassVar[dict[str, type[Any]]] = {
        "MlpPolicy": q_policies.DeltaDQNPolicy,
        "CnnPolicy": q_policies.DeltaDQNCnnPolicy,
        "MultiInputPolicy": q_policies.DeltaDQNMultiInputPolicy,
    }
    _learned = q_policies.DeltaQNetwork, "components", ("forward",)

    def _critic(self) -> Any:
        return self.q_net

    @classmethod
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
        return cls._from_plain(model, scales=scales)

    def to_dqn(self) -> DQN:
        """The same policy and Q as a plain DQN, whose save file needs no tddelta.

        The components become one, their sum. The optimiser starts afresh.

        Returns:
            The new model; environment, replay buffer and settings are shared.

        Raises:
            ConfigError: The policy is of a class of your own.
        """
        return self._to_plain(DQN)

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

    plain: ClassVar[type[Any]] = SAC
    policy_aliases: ClassVar[dict[str, type[Any]]] = {
        "MlpPolicy": q_policies.DeltaSACPolicy,
        "CnnPolicy": q_policies.DeltaSACCnnPolicy,
        "MultiInputPolicy": q_policies.DeltaSACMultiInputPolicy,
    }
    _learned = q_policies.DeltaContinuousCritic, "each", ("forward", "components")

    def _critic(self) -> Any:
        return self.critic

    @classmethod
    def from_sac(cls, model: SAC, scales: Any = None) -> "DeltaSAC":
        """Go on from a trained SAC, as `DeltaDQN.from_dqn` does from a DQN, with its entropy coefficient."""
        return cls._from_plain(model, scales=scales)

    def to_sac(self) -> SAC:
        """The same policy and Q as a plain SAC, as `DeltaDQN.to_dqn` makes a DQN, with the entropy coefficient."""
        return self._to_plain(SAC)

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
