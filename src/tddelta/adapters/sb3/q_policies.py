"""Action-value networks of Stable-Baselines3 with one set of outputs per time scale."""

from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.dqn.policies import CnnPolicy as DQNCnnPolicy
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from stable_baselines3.dqn.policies import MultiInputPolicy as DQNMultiInputPolicy
from stable_baselines3.sac.policies import CnnPolicy as SACCnnPolicy
from stable_baselines3.sac.policies import MultiInputPolicy as SACMultiInputPolicy
from stable_baselines3.sac.policies import SACPolicy
from torch import nn

from tddelta.adapters.sb3.model import OfComponents, whole
from tddelta.errors import ConfigError


def _widened(network: nn.Sequential, n_components: int) -> None:
    """Give the last layer n times its outputs; with one, leave it, and the random numbers, as they are."""
    last = network[-1]
    if n_components > 1 and isinstance(last, nn.Linear):
        with th.random.fork_rng(devices=[]):
            network[-1] = nn.Linear(last.in_features, last.out_features * n_components)


class _OfAlgorithm(OfComponents):
    """Mixed into a policy of SB3: its algorithm passes the number of components."""

    _algorithm: ClassVar[str]

    def __init__(self, *args: Any, n_components: int | None = None, **kwargs: Any) -> None:
        if n_components is None:
            kind = self._algorithm
            raise ConfigError(
                f"n_components must be passed to this policy, and a plain {kind} does not: use Delta{kind}; a file of "
                f"its own is read by Delta{kind}.load(…), and to_{kind.lower()}() makes a plain {kind}"
            )
        self.n_components = n_components
        super().__init__(*args, **kwargs)


class DeltaQNetwork(OfComponents, QNetwork):
    """`QNetwork` with n components of every action value; `forward` is their sum.

    A network of your own overrides `components`, which is learned, and is made by `make_q_net` of a `DeltaDQNPolicy`.
    The policy passes `n_components`, the number of time scales; all other arguments are SB3's.
    """

    def __init__(self, *args: Any, n_components: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_components = n_components
        _widened(self.q_net, n_components)

    def components(self, obs: Any) -> th.Tensor:
        """Q^z(s, a), (B, A, Z)."""
        flat: Any = super().forward(obs)
        components: th.Tensor = flat.unflatten(1, (self.n_components, int(self.action_space.n))).transpose(1, 2)
        return components

    def forward(self, obs: Any) -> th.Tensor:
        """Q(s, a) = Σ_z Q^z(s, a), (B, A)."""
        return total(self.components(obs)).squeeze(-1)


class DeltaDQNPolicy(_OfAlgorithm, DQNPolicy):
    """`DQNPolicy` with networks of the class `DeltaQNetwork`; the algorithm passes their `n_components`."""

    _algorithm = "DQN"

    def make_q_net(self) -> DeltaQNetwork:
        """Make one network."""
        settings = self._update_features_extractor(self.net_args, features_extractor=None)
        return DeltaQNetwork(**settings, n_components=self.n_components).to(self.device)


class DeltaDQNCnnPolicy(DeltaDQNPolicy, DQNCnnPolicy):
    """`CnnPolicy` of DQN with components."""


class DeltaDQNMultiInputPolicy(DeltaDQNPolicy, DQNMultiInputPolicy):
    """`MultiInputPolicy` of DQN with components."""


class DeltaContinuousCritic(ContinuousCritic):
    """`ContinuousCritic`, twin critics by default, each with n components; `forward` gives their sums.

    A critic of your own overrides `each`, which is learned, and is made by `make_critic` of a `DeltaSACPolicy`. The
    policy passes `n_components`, the number of time scales; all other arguments are SB3's.
    """

    def __init__(self, *args: Any, n_components: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_components = n_components
        for network in self.q_networks:
            if isinstance(network, nn.Sequential):
                _widened(network, n_components)

    def each(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        """Q^z(s, a), (B, Z), one by one for every critic.

        Not stacked: gradients of slices are added up in another order, and one scale would not be SB3's to the bit.
        """
        return super().forward(obs, actions)

    def components(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """Q^z(s, a) of every critic, (B, critics, Z)."""
        return th.stack(self.each(obs, actions), dim=1)

    def forward(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        """Q(s, a) = Σ_z Q^z(s, a) of every critic, (B, 1) each."""
        return tuple(total(one) for one in self.each(obs, actions))

    def q1_forward(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """Q(s, a) of the first critic, (B, 1)."""
        return total(self.each(obs, actions)[0])


def total(components: th.Tensor) -> th.Tensor:
    """Sums over components, (…, 1)."""
    return components if components.shape[-1] == 1 else whole(components).sum(-1, keepdim=True)


class DeltaSACPolicy(_OfAlgorithm, SACPolicy):
    """`SACPolicy` with a `DeltaContinuousCritic`; the algorithm passes its `n_components`."""

    _algorithm = "SAC"

    def make_critic(self, features_extractor: Any = None) -> DeltaContinuousCritic:
        """Make the critics, or their targets."""
        settings = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return DeltaContinuousCritic(**settings, n_components=self.n_components).to(self.device)


class DeltaSACCnnPolicy(DeltaSACPolicy, SACCnnPolicy):
    """`CnnPolicy` of SAC with components."""


class DeltaSACMultiInputPolicy(DeltaSACPolicy, SACMultiInputPolicy):
    """`MultiInputPolicy` of SAC with components."""
