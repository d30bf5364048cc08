"""A hopping mass with rsl_rl's runner and a critic of several time scales. Needs `pip install "tddelta[rsl-rl]"`.

Three lines differ from the same program with rsl_rl's PPO: they are marked, and they are what a script of Isaac Lab or
mjlab changes. The environment here stands for the simulator: 1,024 robots in one tensor, without a GPU.

python examples/rsl_rl_hopper.py --iterations 60
"""

import argparse

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from tddelta.adapters.rsl_rl import learn  # new

TRAINING = {
    "seed": 0,
    "num_steps_per_env": 24,
    "save_interval": 50,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": {
        "class_name": "MLPModel",
        "hidden_dims": [64, 64],
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0},
    },
    "critic": {"class_name": "MLPModel", "hidden_dims": [64, 64]},
    "algorithm": {
        "class_name": "tddelta.adapters.rsl_rl:DeltaPPO",  # was "PPO"; the critic gets an output per time scale
        "gamma": 0.99,
        "lam": 0.95,
        "num_learning_epochs": 5,
        "num_mini_batches": 4,
        "entropy_coef": 0.0,
    },
}


class Hopper(VecEnv):
    """A mass on a springy leg, which pushes while it stands; rewarded at every step for being near height 1.3."""

    num_actions, max_episode_length, device, cfg = 1, 500, "cpu", None

    def __init__(self, number: int) -> None:
        self.num_envs = number
        self.episode_length_buf = torch.zeros(number, dtype=torch.long)
        self.state = self._starts()

    def _starts(self) -> torch.Tensor:
        return torch.tensor([1.2, 0.0]) + 0.05 * torch.randn(self.num_envs, 2)

    def get_observations(self) -> TensorDict:
        """Height and speed of every robot."""
        return TensorDict({"policy": self.state.clone()}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Take one step of 20 ms; who fell or is late begins anew at once, as in a simulator."""
        push = actions[:, 0].clamp(-1, 1)
        height, speed = self.state.unbind(1)
        leg = torch.where(height < 1, 100 * (1 - height) - 1.5 * speed + 15 * (1 + push), 0.0)
        self.state = self.state + 0.02 * torch.stack([speed, leg - 9.8], dim=1)
        rewards = torch.exp(-4 * (self.state[:, 0] - 1.3).square()) - 0.01 * push.square()
        self.episode_length_buf += 1
        fallen = (self.state[:, 0] < 0.5) | (self.state[:, 0] > 2)
        late = self.episode_length_buf >= self.max_episode_length
        # The observation before the reset, so that components are bootstrapped from the right state.
        extras = {"time_outs": late & ~fallen, "final_obs": self.get_observations()}
        ended = fallen | late
        self.state = torch.where(ended[:, None], self._starts(), self.state)
        self.episode_length_buf[ended] = 0
        return self.get_observations(), rewards, ended, extras


def main(iterations: int, robots: int, seed: int) -> None:
    """Train, keep a run directory, and print what each time scale adds to the value at the start."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    environment = Hopper(robots)
    runner = OnPolicyRunner(environment, TRAINING, log_dir="logs")
    run = learn(runner, iterations, out="runs", environment="Hopper", seed=seed)  # was runner.learn(iterations)

    print(f"{run}: `tddelta inspect {run}` shows a game, `tddelta report runs` the curves")
    start = TensorDict({"policy": torch.tensor([[1.2, 0.0]])}, batch_size=[1])
    parts = runner.alg.predict_components(start)[0]
    for label, part in zip(runner.alg.scales.labels, parts, strict=True):
        print(f"W at γ = {label}: {part:6.2f}")
    print(f"V = ΣW: {parts.sum():.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10, help="updates; 60 learn to hop")
    parser.add_argument("--robots", type=int, default=1_024)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
