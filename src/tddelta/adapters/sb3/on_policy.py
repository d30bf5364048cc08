"""PPO and A2C of Stable-Baselines3 with TD(λ, Δ) critics. Their `train` and `collect_rollouts` stay as they are."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from tddelta._arrays import check_form
from tddelta.adapters import lent
from tddelta.adapters.sb3 import policies
from tddelta.adapters.sb3.answers import StepChecker
from tddelta.adapters.sb3.buffers import DeltaDictRolloutBuffer, DeltaRolloutBuffer, StepRecorder
from tddelta.adapters.sb3.model import DeltaModel, Learning, asked
from tddelta.errors import ConfigError
from tddelta.targets import Form
from tddelta.timescales import unit_number


class DeltaOnPolicy(DeltaModel, OnPolicyAlgorithm):
    """The base of `DeltaPPO` and `DeltaA2C`.

    Args:
        policy: As of `DeltaModel`, like `env`, `*args` and `**kwargs`.
        form: Of the critic's λ-return, see `tddelta.lambda_targets`. With "difference" the targets add up to SB3's
            own return whatever the trace decays; "bootstrap" is the paper's form, in which errors of short components
            grow along the ladder, see `TimeScales.error_gains`.

    Raises:
        ConfigError: As of `DeltaModel`, or `form` is unknown.
    """

    policy_aliases: ClassVar[dict[str, type[Any]]] = {
        "MlpPolicy": policies.DeltaActorCriticPolicy,
        "CnnPolicy": policies.DeltaActorCriticCnnPolicy,
        "MultiInputPolicy": policies.DeltaMultiInputActorCriticPolicy,
    }
    own_callbacks = (StepChecker, StepRecorder)

    def __init__(self, policy: Any, env: Any, *args: Any, form: Form = "difference", **kwargs: Any) -> None:
        self.form = form
        super().__init__(policy, env, *args, **kwargs)

    def _lam(self) -> float:
        return self.gae_lambda

    def _settle(self) -> None:
        check_form(self.form)
        unit_number("gae_lambda", self.gae_lambda)
        super()._settle()

    def _setup_model(self) -> None:
        dictionary = isinstance(self.observation_space, spaces.Dict)
        wanted = DeltaDictRolloutBuffer if dictionary else DeltaRolloutBuffer
        if self.rollout_buffer_class is None:
            self.rollout_buffer_class = wanted
        elif not issubclass(self.rollout_buffer_class, wanted):
            raise ConfigError(
                f"rollout_buffer_class must keep components; got {self.rollout_buffer_class!r}: "
                f"derive it from {wanted.__name__}"
            )
        self._settle()
        given = {**self.rollout_buffer_kwargs, "scales": self._scales, "form": self.form}
        with lent(self, rollout_buffer_kwargs=given):
            super()._setup_model()

    def _maybe_recommend_cpu(self, mlp_class_name: str = policies.DeltaActorCriticPolicy.__name__) -> None:
        super()._maybe_recommend_cpu(mlp_class_name)

    def train(self) -> None:
        """Update the networks by SB3's own `train`.

        Its value loss is the mean over minibatch and components. The sum over components is asked for, which
        components times `vf_coef` gives.
        """
        buffer: Any = self.rollout_buffer
        policy: Any = self.policy
        learning, count = Learning(self.scales, self.weights), len(self.scales)
        with lent(policy, learning=learning), lent(buffer, learning=learning), lent(self, vf_coef=self.vf_coef * count):
            super().train()
        if count > 1:
            self.logger.record("train/value_loss", count * self.logger.name_to_value["train/value_loss"])
        flat = (array.reshape(-1, count) for array in (buffer.components, buffer.component_returns))
        learning.log(self.logger, *flat)

    def predict_components(self, observation: Any) -> np.ndarray:
        """Components of the value of observations: V_{γ_z} is the sum of those up to z.

        Args:
            observation: One observation or several, as `predict` takes them.

        Returns:
            W, (Z,) or (B, Z), smallest discount first.
        """
        policy: Any = self.policy
        return asked(self, observation, lambda tensors, _: policy.predict_components(tensors))


class DeltaPPO(DeltaOnPolicy, PPO):
    """PPO with a TD(λ, Δ) critic: `stable_baselines3.PPO` with the arguments of `DeltaOnPolicy` besides.

    The policy learns from the ordinary advantages of V = Σ W with `gamma` and `gae_lambda`. The value loss is
    `vf_coef` · Σ_z mean((W_z − G^z)²); SB3's has no ½, and this has none. `clip_range_vf` clips the change of every
    component by itself, in units of the reward (times the root of its weight, where there are `component_weights`).

    With one scale, parameters are those of `PPO`, bit by bit.

    Example:
        >>> model = DeltaPPO("MlpPolicy", "CartPole-v1", gamma=0.99, device="cpu")
        >>> model.scales.labels
        ('0.680', '0.840', '0.920', '0.960', '0.980', '0.990')

    Reference:
        Romoff et al. 2019, section "TD(λ, Δ) with GAE".
    """

    plain: ClassVar[type[Any]] = PPO

    @classmethod
    def from_ppo(cls, model: PPO, scales: Any = None, *, form: Form = "difference") -> "DeltaPPO":
        """Go on from a trained PPO: the same policy and the same V, split over the components.

        Component z starts as the share (h_z − h_{z−1}) / h_Z of V, h_z = 1/(1 − γ_z): its share where rewards are
        constant. The optimiser starts afresh.

        Args:
            model: The PPO; it is not changed. The new model shares its environment and settings.
            scales: The time scales, as in the constructor.
            form: Of the critic's λ-return, as in the constructor.

        Raises:
            ConfigError: `model` is no PPO, scales or form do not fit, or the policy is of a class of your own.
        """
        return cls._from_plain(model, scales=scales, form=form)

    def to_ppo(self) -> PPO:
        """The same policy and values as a plain PPO, whose save file needs no tddelta.

        The components become one output, their sum. The optimiser starts afresh; environment and settings are shared.

        Raises:
            ConfigError: The policy is of a class of your own.
        """
        return self._to_plain(PPO)


class DeltaA2C(DeltaOnPolicy, A2C):
    """A2C with a TD(λ, Δ) critic: `stable_baselines3.A2C` with the arguments of `DeltaOnPolicy` besides.

    See `DeltaPPO` for losses. With one scale, parameters are those of `A2C`, bit by bit.
    """

    plain: ClassVar[type[Any]] = A2C

    @classmethod
    def from_a2c(cls, model: A2C, scales: Any = None, *, form: Form = "difference") -> "DeltaA2C":
        """Go on from a trained A2C, as `DeltaPPO.from_ppo` does from a PPO."""
        return cls._from_plain(model, scales=scales, form=form)

    def to_a2c(self) -> A2C:
        """The same policy and values as a plain A2C, as `DeltaPPO.to_ppo` makes a PPO."""
        return self._to_plain(A2C)
