"""A dueling network of your own for DeltaDQN: Q^z = V^z + A^z − mean A^z. Needs `pip install "tddelta[sb3]"`.

python examples/sb3_dueling.py
"""

from typing import Any

import torch
from stable_baselines3 import DQN
from torch import nn

from tddelta.adapters.sb3 import DeltaDQN, DeltaDQNPolicy, DeltaQNetwork


class DuelingNetwork(DeltaQNetwork):
    """A value and advantages of every component, on the layers that `net_arch` names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actions = int(self.action_space.n)
        last = self.q_net[-1]  # takes the place of Q's own layer
        self.q_net[-1] = nn.Identity()
        self.value = nn.Linear(last.in_features, self.n_components)
        self.advantage = nn.Linear(last.in_features, self.n_components * self.actions)

    def components(self, obs: Any) -> torch.Tensor:
        """Q^z(s, a), (batch, actions, components): what is learned. `forward` sums it for acting."""
        hidden = self.q_net(self.extract_features(obs, self.features_extractor))
        advantage = self.advantage(hidden).unflatten(1, (self.actions, self.n_components))
        q: torch.Tensor = self.value(hidden).unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
        return q


class DuelingPolicy(DeltaDQNPolicy):
    """Makes that network, twice: the online one and the target."""

    def make_q_net(self) -> DeltaQNetwork:
        """Make one network."""
        settings = self._update_features_extractor(self.net_args, features_extractor=None)
        return DuelingNetwork(**settings, n_components=self.n_components).to(self.device)


def main(steps: int = 2_000) -> None:
    """Train a moment, and look inside."""
    torch.set_num_threads(1)
    settings: dict[str, Any] = {"learning_rate": 1e-3, "buffer_size": 10_000, "seed": 0, "device": "cpu"}
    model: DQN = DeltaDQN(DuelingPolicy, "CartPole-v1", gamma=0.99, **settings).learn(steps)
    environment = model.get_env()
    assert environment is not None and isinstance(model, DeltaDQN)
    parts = model.predict_components(environment.reset())[0]
    print("Q^z of the two actions, by discount:")
    for label, part in zip(model.scales.labels, parts.T, strict=True):
        print(f"  γ = {label}: {part[0]:6.2f} {part[1]:6.2f}")
    print(f"  Q = ΣQ^z:  {parts[0].sum():6.2f} {parts[1].sum():6.2f}")


if __name__ == "__main__":
    main()
