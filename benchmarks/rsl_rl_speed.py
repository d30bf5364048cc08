"""Time of an update of `DeltaPPO` with six components against rsl_rl's PPO, side by side in one process.

    python benchmarks/rsl_rl_speed.py [--rounds N] [--tasks robot small recurrent] [--device cuda:0]

An update is `compute_returns` and `update`, which the goal of at most 1.10 is for; the whole iteration of the runner
has the rollout as well, in environments that cost nothing. Both are timed in every round, in alternating order; a ratio
is that of the medians. On a machine that others use processor time says more than wall time.
"""

import argparse
import contextlib
import io
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from tddelta.adapters import lent
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


def clocks(device: str) -> np.ndarray:
    """Wall time and processor time, once the device is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return np.array([time.perf_counter(), time.process_time()])


def seconds(runner: OnPolicyRunner, iterations: int) -> np.ndarray:
    """Wall time and processor time (columns) of the updates and of the whole (rows), per iteration."""
    spent = np.zeros((2, 2))

    def timed(call: Any, row: int, *given: Any) -> Any:
        began = clocks(runner.device)
        found = call(*given)
        spent[row] += clocks(runner.device) - began
        return found

    alg: Any = runner.alg
    parts = {name: partial(timed, getattr(alg, name), 0) for name in ("compute_returns", "update")}
    with lent(alg, **parts):
        timed(runner.learn, 1, iterations)
    return spent / iterations


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
        times = np.zeros((chosen.rounds, 2, 2, 2))
        for turn in range(chosen.rounds):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                times[turn, side] = seconds(runners[side], chosen.iterations)
        (theirs, ours), rounds = np.median(times, 0), times[:, 1] / times[:, 0]
        print(f"{name}: {len(runners[1].alg.scales)} components against rsl_rl's one value, {chosen.rounds} rounds")
        for row, part in enumerate(("update", "iteration")):
            for column, clock in enumerate(("wall", "processor")):
                ratios, both = rounds[:, row, column], (ours[row, column], theirs[row, column])
                print(
                    f"  {part}, {clock} time: {both[0]:.4f} s against {both[1]:.4f} s, ratio {both[0] / both[1]:.3f} "
                    f"(rounds {ratios.min():.3f} to {ratios.max():.3f})"
                )


if __name__ == "__main__":
    main()
