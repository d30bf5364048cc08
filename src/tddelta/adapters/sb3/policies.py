"""Actor-critic policies of Stable-Baselines3 whose critic has one output per time scale."""

from collections.abc import Iterator
from typing import Any

import torch as th
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy, MultiInputActorCriticPolicy
from torch import nn

from tddelta.adapters.sb3.model import Learning, OfComponents, whole


class DeltaActorCriticPolicy(OfComponents, ActorCriticPolicy):
    """`ActorCriticPolicy` with a critic of n components; with one, the same network bit by bit.

    A policy class of your own works with `DeltaPPO` when it derives from this class instead of SB3's. `forward` and
    `evaluate_actions` hand out W, (B, Z), in place of values (B, 1); `predict_values` stays V = Σ W. The algorithm
    passes `n_components`, the number of time scales; all other arguments are SB3's.
    """

    def __init__(self, *args: Any, n_components: int = 1, **kwargs: Any) -> None:
        self.n_components = n_components
        self.learning: Learning | None = None
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        if self.n_components == 1:
            return
        # On a random stream of its own: the policy, and its first rollout, are those of SB3 with this seed.
        with th.random.fork_rng(devices=[]):
            self.value_net = nn.Linear(self.mlp_extractor.latent_dim_vf, self.n_components)
            if self.ortho_init:
                self.init_weights(self.value_net, gain=1)
        optimizer: Any = self.optimizer_class
        self.optimizer = optimizer(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def predict_components(self, obs: Any) -> th.Tensor:
        """W(s) of observations as tensors, (B, Z)."""
        components = super().predict_values(obs)
        return components if self.n_components == 1 else whole(components)

    def predict_values(self, obs: Any) -> th.Tensor:
        """V(s) = Σ W(s), (B, 1)."""
        return self.predict_components(obs).sum(-1, keepdim=True)

    def evaluate_actions(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """W, (B, Z), log-probabilities and entropies, each (B,), of observations and actions."""
        components, log_prob, entropy = super().evaluate_actions(obs, actions)
        if self.learning is not None:
            components = self.learning.minibatch(components)
        return components, log_prob, entropy

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters, as in PyTorch.

        SB3 asks for them once per minibatch, between the backward pass and the clipping of gradients, and drops the
        norm that the clipping computes: here it is seen.
        """
        found = super().parameters(recurse)
        if self.learning is not None and self.learning.awaits_gradients:
            several = list(found)
            self.learning.gradients(several)
            return iter(several)
        return found


class DeltaActorCriticCnnPolicy(DeltaActorCriticPolicy, ActorCriticCnnPolicy):
    """`CnnPolicy` with a critic of n components."""


class DeltaMultiInputActorCriticPolicy(DeltaActorCriticPolicy, MultiInputActorCriticPolicy):
    """`MultiInputPolicy`, for dictionary observations, with a critic of n components."""
