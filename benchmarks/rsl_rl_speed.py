"""Wall time of `DeltaPPO` with six components against rsl_rl's PPO, in alternation in one process.

    python benchmarks/rsl_rl_speed.py [--rounds N] [--tasks robot small recurrent] [--device cuda:0]

Per iteration of the runner: rollout, returns and update, in environments that cost nothing, so that the rest shows. Of
each round the two times stand side by side; the ratio is that of the medians. Under 1.10 is the goal.
"""

import argparse
import contextlib
import io
import statistics
import time
from typing import Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from tddelta.adapters.rsl_rl import DeltaPPO

# Observations, actions, minibatches, epochs and steps as Isaac Lab has them for walking on flat ground.
OBSERVATIONS, ACTIONS, STEPS = 48, 12, 24
TASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "robot": (1024, {"class_name": "MLPModel", "hidden_dims": [128, 128, 128]}),
    "small": (256, {"class_name": "MLPModel", "hidden_dims": [32, 32]}),
    "recurrent": (256, {"class_name": "RNNModel", "hidden_dims": [64], "rnn_type": "lstm", "rnn_hidden_dim": 64}),
}


class Noise(VecEnv):
    """Random observations and rewards, with an end in a hundred steps and a time-out in as many."""

    num_actions, max_episode_length, cfg = ACTIONS, 1_000, None

    def __init__(self, number: int, device: str) -> None:
        self.num_envs, self.device = number, device
        self.episode_length_buf = torch.zeros(number, dtype=torch.long, device=device)
        self.pool = torch.randn(64, number, OBSERVATIONS, device=device)
        self.time = 0

    def get_observations(self) -> TensorDict:
        """The observations of now."""
        return TensorDict({"policy": self.pool[self.time % 64]}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> Any:
        """Take one step."""
        self.time += 1
        noise = self.pool[self.time % 64]
        return self.get_observations(), noise[:, 0], noise[:, 1] > 2.05, {"time_outs": noise[:, 1] > 2.33}


def make(kind: Any, number: int, network: dict[str, Any], device: str) -> OnPolicyRunner:
    """A runner in such environments."""
    given = {
        "num_steps_per_env": STEPS,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": network,
        "algorithm": {"class_name": kind, "num_learning_epochs": 5, "num_mini_batches": 4},
    }
    torch.manual_seed(0)
    return OnPolicyRunner(Noise(number, device), given, device=device)


def seconds(runner: OnPolicyRunner, iterations: int) -> tuple[float, float]:
    """Wall time and processor time of so many iterations; the latter says more on a machine that others use."""
    began = time.perf_counter(), time.process_time()
    runner.learn(iterations)
    if runner.device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    for name in chosen.tasks:
        with contextlib.redirect_stdout(io.StringIO()):  # the networks are printed
            runners = [make(kind, *TASKS[name], chosen.device) for kind in (PPO, DeltaPPO)]
        for runner in runners:
            seconds(runner, 1)  # the first one loads what later ones find
        times = np.array([[seconds(runner, chosen.iterations) for runner in runners] for _ in range(chosen.rounds)])
        theirs, ours = (statistics.median(times[:, side, 0]) / chosen.iterations for side in (0, 1))
        ratios, cpu = times[:, 1, 0] / times[:, 0, 0], np.median(times[:, 1, 1]) / np.median(times[:, 0, 1])
        print(
            f"{name}: rsl_rl {theirs:.3f} s per iteration, with {len(runners[1].alg.scales)} components {ours:.3f} s: "
            f"ratio {ours / theirs:.3f} (rounds {ratios.min():.3f} to {ratios.max():.3f}; processor time {cpu:.3f})"
        )


if __name__ == "__main__":
    main()
