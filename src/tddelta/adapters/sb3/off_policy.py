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
from tddelta.adapters.sb3.model import DeltaModel, asked, log_components, whole
from tddelta.errors import ConfigError
from tddelta.targets import td_errors

_Loss = Callable[..., th.Tensor]


class DeltaOffPolicy(DeltaModel, OffPolicyAlgorithm):
    """The base of `DeltaDQN` and `DeltaSAC`.

    SB3's replay buffers keep rewards as they are, and tell terminated from truncated: nothing has to be undone.
    """

    _learned: ClassVar[tuple[str, type[Any], str, tuple[str, ...]]]
    """The attribute with the critic, its class, its method that losses are made of, and those that follow from it."""

    def _settle(self) -> None:
        super()._settle()
        self._check_steps(self.n_steps, *(self.scales.n_steps or ()))

    def _setup_model(self) -> None:
        super()._setup_model()
        self._check_buffer()
        critic, kind, learned, others = self._learned
        network = type(getattr(self, critic))
        if not issubclass(network, kind) or (
            getattr(network, learned) is getattr(kind, learned)
            and any(getattr(network, other) is not getattr(kind, other) for other in others)
        ):
            raise ConfigError(
                f"{network.__name__} must derive from {kind.__name__} and override {learned}(), from which it learns, "
                f"instead of {' or '.join(f'{other}()' for other in others)}"
            )

    def _train(self, gradient_steps: int, batch_size: int, *optimizers: th.optim.Optimizer) -> None:
        """SB3's `train`, which cannot be kept: it takes the maximum or minimum of one value where ours has several."""
        policy: Any = self.policy
        policy.set_training_mode(True)
        self._update_learning_rate(list(optimizers))
        seen: dict[str, list[float]] = {}
        components = targets = th.zeros(1, len(self.scales))
        for step in range(gradient_steps):
            components, targets, found = self._update(step, self._sample(batch_size))
            for name, value in found.items():
                seen.setdefault(name, []).append(value)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in seen.items():
            self.logger.record(f"train/{name}", np.mean(values))
        # Of the last minibatch.
        with th.no_grad():
            errors = (components - targets).square().mean(0).tolist()
            means = components.mean(0).tolist()
        arrays = (whole(part.detach()).cpu().numpy() for part in (components, targets))
        log_components(self.logger, self.scales, errors, means, *arrays)

    def _update(self, step: int, samples: Any) -> tuple[th.Tensor, th.Tensor, dict[str, float]]:
        """Take one gradient step; components of a minibatch and their targets, (B, Z), and what to log by name."""
        raise NotImplementedError

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
    _learned = "q_net", q_policies.DeltaQNetwork, "components", ("forward",)

    @classmethod
    def from_dqn(cls, model: DQN, scales: Any = None) -> "DeltaDQN":
        """Go on from a trained DQN, whose replay buffer is shared, as `DeltaPPO.from_ppo` does from a PPO.

        Raises:
            ConfigError: As of `DeltaPPO.from_ppo`, or the DQN learns from several steps.
        """
        return cls._from_plain(model, scales=scales)

    def to_dqn(self) -> DQN:
        """The same policy and Q as a plain DQN, whose replay buffer is shared, as `DeltaPPO.to_ppo` makes a PPO."""
        return self._to_plain(DQN)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Update the network, as in SB3."""
        self._train(gradient_steps, batch_size, self.policy.optimizer)

    def _update(self, step: int, samples: Any) -> tuple[th.Tensor, th.Tensor, dict[str, float]]:
        policy, online, target = (self.policy, self.q_net, self.q_net_target)  # type: Any, Any, Any
        with th.no_grad():
            following = target.components(samples.next_observations)
            greedy = q_policies.total(following).squeeze(-1).argmax(1)
            targets = self._targets(samples, _chosen(following, greedy))
        components = _chosen(online.components(samples.observations), samples.actions.long().squeeze(-1))
        loss = self._loss(functional.smooth_l1_loss, components, targets)
        policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = th.nn.utils.clip_grad_norm_(policy.parameters(), self.max_grad_norm)
        policy.optimizer.step()
        return components, targets, {"loss": loss.item(), "gradient_norm": norm.item()}

    def predict_components(self, observation: Any) -> np.ndarray:
        """Components of the action values of observations.

        Args:
            observation: One observation or several, as `predict` takes them.

        Returns:
            Q^z(s, a), (A, Z) or (B, A, Z), smallest discount first.
        """
        online: Any = self.q_net
        return asked(self, observation, lambda tensors, _: online.components(tensors))


def _chosen(components: th.Tensor, places: th.Tensor) -> th.Tensor:
    """Of components of several actions or critics, (B, A, Z), those at one place each, (B, Z)."""
    return th.gather(components, 1, places[:, None, None].expand(-1, 1, components.shape[-1])).squeeze(1)


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
    _learned = "critic", q_policies.DeltaContinuousCritic, "each", ("forward", "components")

    @classmethod
    def from_sac(cls, model: SAC, scales: Any = None) -> "DeltaSAC":
        """Go on from a trained SAC, as `DeltaDQN.from_dqn` does from a DQN, with its entropy coefficient."""
        return cls._from_plain(model, scales=scales)

    def to_sac(self) -> SAC:
        """The same policy and Q as a plain SAC, as `DeltaDQN.to_dqn` makes a DQN, with the entropy coefficient."""
        return self._to_plain(SAC)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Update actor, critics and temperature, as in SB3."""
        own = () if self.ent_coef_optimizer is None else (self.ent_coef_optimizer,)
        self._train(gradient_steps, batch_size, self.actor.optimizer, self.critic.optimizer, *own)

    def _update(self, step: int, samples: Any) -> tuple[th.Tensor, th.Tensor, dict[str, float]]:
        actor, critic, target = (self.actor, self.critic, self.critic_target)  # type: Any, Any, Any
        if self.use_sde:
            actor.reset_noise()
        actions, log_prob = actor.action_log_prob(samples.observations)
        log_prob = log_prob.reshape(-1, 1)
        temperature, found = self._temperature(log_prob)

        with th.no_grad():
            next_actions, next_log_prob = actor.action_log_prob(samples.next_observations)
            following = whole(_smaller(target.components(samples.next_observations, next_actions)))
            following[:, 0] -= temperature * next_log_prob
            targets = self._targets(samples, following)
        every = critic.each(samples.observations, samples.actions)
        critic_loss: Any = 0.5 * sum(self._loss(functional.mse_loss, one, targets) for one in every)
        critic.optimizer.zero_grad()
        critic_loss.backward()
        # Of the critics, which SAC does not clip.
        gradients = [parameter.grad for parameter in critic.parameters() if parameter.grad is not None]
        norm = th.nn.utils.get_total_norm(gradients)
        critic.optimizer.step()

        smaller = th.cat(critic(samples.observations, actions), dim=1).min(dim=1, keepdim=True).values
        actor_loss: Any = (temperature * log_prob - smaller).mean()
        actor.optimizer.zero_grad()
        actor_loss.backward()
        actor.optimizer.step()

        if step % self.target_update_interval == 0:
            polyak_update(critic.parameters(), target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        found |= {"actor_loss": actor_loss.item(), "critic_loss": critic_loss.item(), "gradient_norm": norm.item()}
        return every[0], targets, found

    def _temperature(self, log_prob: th.Tensor) -> tuple[th.Tensor, dict[str, float]]:
        """The entropy coefficient α, after which it takes its own step, and what to log of it."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, {"ent_coef": self.ent_coef_tensor.item()}
        temperature = th.exp(self.log_ent_coef.detach())
        loss: Any = -(self.log_ent_coef * (log_prob + float(self.target_entropy)).detach()).mean()
        self.ent_coef_optimizer.zero_grad()
        loss.backward()
        self.ent_coef_optimizer.step()
        return temperature, {"ent_coef": temperature.item(), "ent_coef_loss": loss.item()}

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
        policy, critic = (self.policy, self.critic)  # type: Any, Any

        def ask(tensors: Any, several: bool) -> th.Tensor:
            if action is None:
                return _smaller(critic.components(tensors, self.actor(tensors, deterministic=True)))
            count = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
            actions = np.asarray(action, np.float32)
            wanted = (*([count] if several else []), *(self.action_space.shape or ()))
            if actions.shape != wanted:
                raise ConfigError(
                    f"action must hold one action per observation, shape {wanted}; got shape {actions.shape}"
                )
            scaled = policy.scale_action(actions).reshape(count, -1)
            return _smaller(critic.components(tensors, th.as_tensor(scaled, device=self.device)))

        return asked(self, observation, ask)


def _smaller(components: th.Tensor) -> th.Tensor:
    """Of the critics' components, (B, critics, Z), those of the critic with the smallest sum, (B, Z)."""
    return _chosen(components, q_policies.total(components).squeeze(-1).argmin(1))
