"""Vectorised environments for rsl_rl on the CPU, with dense rewards and both kinds of ends, and configurations."""

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict


class Robots(VecEnv):
    """N robots at once, reset before anybody sees the last observation, as simulators do it.

    Args:
        number: N.
        limit: Steps of an episode, after which it is cut.
        seed: Of the starts.
        hands_out: Under which name of `extras` the observations before a reset are; None for nowhere.
    """

    num_actions, step_dt, cfg = 1, 0.02, {"robot": "of a test"}
    size: int

    def __init__(self, number: int = 1024, limit: int = 200, seed: int = 0, hands_out: str | None = None) -> None:
        self.num_envs, self.max_episode_length, self.device, self.hands_out = number, limit, "cpu", hands_out
        self.unwrapped = self
        self._random = torch.Generator().manual_seed(seed)
        self.episode_length_buf = torch.zeros(number, dtype=torch.long)
        self.state = self._starts()

    def _starts(self) -> torch.Tensor:
        return self.start + 0.05 * torch.randn(self.num_envs, self.size, generator=self._random)

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": self.state.clone(), "critic": self.state.clone()}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        assert actions.shape == (self.num_envs, 1)
        rewards, fallen = self._move(actions[:, 0].clamp(-1, 1))
        self.episode_length_buf += 1
        late = self.episode_length_buf >= self.max_episode_length
        extras: dict[str, Any] = {"time_outs": late & ~fallen, "log": {"/fallen": fallen.float().mean()}}
        if self.hands_out is not None:
            extras[self.hands_out] = self.get_observations()
        ended = fallen | late
        self.state = torch.where(ended[:, None], self._starts(), self.state)
        self.episode_length_buf[ended] = 0
        return self.get_observations(), rewards, ended, extras


class Pole(Robots):
    """A pole on a cart, pushed by a force: position, speed, angle, angular speed. Rewarded for standing upright."""

    size, start = 4, torch.zeros(4)

    def _move(self, force: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, speed, angle, turn = self.state.unbind(1)
        pull = (10 * force + 0.05 * turn.square() * angle.sin()) / 1.1
        bend = (9.8 * angle.sin() - angle.cos() * pull) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
        push = pull - 0.05 * bend * angle.cos() / 1.1
        rates = torch.stack([speed, push, turn, bend], dim=1)
        self.state = self.state + self.step_dt * rates
        rewards = self.state[:, 2].cos() - 0.1 * self.state[:, 0].square() - 0.01 * force.square()
        return rewards, (self.state[:, 2].abs() > 0.5) | (self.state[:, 0].abs() > 2.4)


class Hopper(Robots):
    """A mass on a springy leg that pushes while it stands: height and speed. Rewarded for being near height 1.3."""

    size, start = 2, torch.tensor([1.2, 0.0])

    def _move(self, push: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        height, speed = self.state.unbind(1)
        stands = height < 1
        leg = torch.where(stands, 100 * (1 - height) - 1.5 * speed + 15 * (1 + push), 0.0)
        self.state = self.state + self.step_dt * torch.stack([speed, leg - 9.8], dim=1)
        rewards = torch.exp(-4 * (self.state[:, 0] - 1.3).square()) - 0.01 * push.square()
        return rewards, (self.state[:, 0] < 0.5) | (self.state[:, 0] > 2)


def config(
    kind: str = "tddelta.adapters.rsl_rl:DeltaPPO", *, recurrent: str = "", normalised: bool = False, **algorithm: Any
) -> dict[str, Any]:
    """A configuration as Isaac Lab hands it to rsl_rl's runner; `recurrent` is "lstm", "gru" or nothing."""
    network: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "elu"}
    network["obs_normalization"] = normalised
    if recurrent:
        network |= {"class_name": "RNNModel", "rnn_type": recurrent, "rnn_hidden_dim": 16, "rnn_num_layers": 1}
    return {
        "seed": 3,
        "num_steps_per_env": 16,
        "save_interval": 50,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": dict(network),
        "algorithm": {"class_name": kind, "num_learning_epochs": 2, "num_mini_batches": 2, **algorithm},
    }
