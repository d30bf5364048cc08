"""The whole training loop on Atari: steps per second by number of environments and of seeds beside one another.

python benchmarks/host_loop.py --environments 8 128 --seeds 1 4

Beside it stand the emulators alone, as the learner steps them, with as many threads. What the loop lacks to them is
acting, learning and moving data: on a GPU little, on a CPU most of it. The device is named in the output.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from typing import Any

import jax
import numpy as np
from alternate import machine

from tddelta.deep import environments, ppo
from tddelta.deep.host import Vector, spawned_seeds
from tddelta.deep.training import HostTraining


def emulators(game: str, count: int, seconds: float) -> float:
    """Steps per second of the emulators alone, with random actions."""
    environment = environments.resolve(game)
    choices = np.random.default_rng(0).integers(0, environment.action_space.n, (1000, count))
    with Vector(environment, spawned_seeds(0, "train", count)) as vector:
        vector.reset()
        done, began = 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < seconds:
            vector.begin(choices[done % 1000])
            vector.finish()
            done += 1
    return done * count / taken


class Run:
    """One seed: its environments and its state, after two updates that do not count."""

    def __init__(self, config: Any, seed: int) -> None:
        self.config, self.player = config, HostTraining(config, seed)
        self.state = self.player.programs.init(config, jax.random.key(seed))
        self.updates = 0
        for _ in range(2):
            self.update()

    def update(self) -> None:
        """A rollout, and what is learned from it."""
        self.state, _ = self.player.update(self.config, self.state)
        jax.block_until_ready(self.state)
        self.updates += 1

    def train(self, until: float) -> None:
        """Update until this time."""
        while time.perf_counter() < until:
            self.update()


def loop(game: str, agent: str, count: int, seeds: int, seconds: float, repeats: int) -> list[float]:
    """Steps per second of all seeds together, in threads as `train_runs` has them, once per repeat."""
    config = jax.tree.map(float, ppo.preset(game, agent, environments=count, steps=10**9))
    runs = [Run(config, seed) for seed in range(seeds)]
    rates = []
    for _ in range(repeats):
        before, began = sum(run.updates for run in runs), time.perf_counter()
        threads = [threading.Thread(target=run.train, args=(began + seconds,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        updates = sum(run.updates for run in runs) - before
        rates.append(updates * config.batch / (time.perf_counter() - began))
    for run in runs:
        run.player.close()
    return rates


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Qbert")
    parser.add_argument("--agent", default="ppo-delta")
    parser.add_argument("--environments", type=int, nargs="+", default=[8, 128])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=20.0, help="shortest time of one repeat")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    device = jax.devices()[0].device_kind
    rows = []
    for count in given.environments:
        alone = emulators(given.game, count, given.seconds)
        for seeds in given.seeds:
            rates = loop(given.game, given.agent, count, seeds, given.seconds, given.repeats)
            rows.append({"environments": count, "seeds": seeds, "rates": rates, "emulators_alone": alone})
            print(
                f"{given.game}, {given.agent}, {device}: {count} environments, {seeds} seeds: "
                f"{statistics.median(rates):,.0f} steps/s; emulators alone {alone:,.0f}",
                file=sys.stderr,
            )
    print(json.dumps({"title": "Atari, the whole loop", "device": device, "machine": machine(), "rows": rows}))


if __name__ == "__main__":
    main()
