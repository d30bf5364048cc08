"""Time of an update of `DeltaPPO` with six components against RLlib's PPO, in alternation in one process.

    .venv-rllib/bin/python benchmarks/rllib_speed.py [--rounds N] [--models small default lstm]

Both learn from the same episodes of CartPole, with one thread. The ratio is that of the medians; under 1.10 is
the goal. Processor seconds are told beside wall seconds, since they do not count what else the machine does.

    .venv-rllib/bin/python benchmarks/rllib_speed.py --cluster [--rounds N]

trains for N iterations with numbers of env runners and of learners instead, and prints environment steps per second.
"""

import argparse
import statistics
import time
from copy import deepcopy
from functools import partial
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig

from tddelta.adapters.rllib import DeltaPPOConfig

MODELS: dict[str, dict[str, Any]] = {
    "small": {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True},
    "default": {},
    "lstm": {"fcnet_hiddens": [64], "use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 20},
}
PAIR = {"PPO": PPOConfig, "DeltaPPO": DeltaPPOConfig}


def config(kind: Any, model: str = "default") -> Any:
    made = kind().environment("CartPole-v1").env_runners(num_env_runners=0, num_envs_per_env_runner=8)
    made.training(
        gamma=0.99, lambda_=0.95, lr=3e-4, train_batch_size_per_learner=2_000, minibatch_size=128, num_epochs=4
    )
    return made.rl_module(model_config=MODELS[model]).debugging(seed=0, log_level="ERROR")


class Updates:
    """Updates of a learner from the same episodes."""

    def __init__(self, kind: Any, model: str) -> None:
        self.algorithm = config(kind, model).build_algo()
        self.learner = self.algorithm.learner_group._learner
        self.episodes: Any = None

    def __call__(self) -> tuple[float, float]:
        """Wall and processor seconds of one."""
        own, settings = deepcopy(self.episodes), self.algorithm.config
        began = time.perf_counter(), time.process_time()
        self.learner.update(
            episodes=own,
            timesteps={"num_env_steps_sampled_lifetime": 0},
            num_epochs=settings.num_epochs,
            minibatch_size=settings.minibatch_size,
            shuffle_batch_per_epoch=True,
        )
        return time.perf_counter() - began[0], time.process_time() - began[1]


def compare(model: str, rounds: int) -> None:
    sides = {name: Updates(kind, model) for name, kind in PAIR.items()}
    for side in sides.values():
        side.episodes = sides["PPO"].algorithm.env_runner.sample(num_timesteps=2_000) if side is sides["PPO"] else None
    sides["DeltaPPO"].episodes = sides["PPO"].episodes
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for side in sides.values():
        side()  # the first one allocates
    for turn in range(rounds):
        for name in sorted(sides, reverse=bool(turn % 2)):
            seconds[name].append(sides[name]())
    medians = {
        name: [statistics.median(column) for column in zip(*times, strict=True)] for name, times in seconds.items()
    }
    wall, processor = (ours / theirs for ours, theirs in zip(medians["DeltaPPO"], medians["PPO"], strict=True))
    numbers = ", ".join(f"{name} {wall_:.3f} s ({cpu:.3f} s)" for name, (wall_, cpu) in medians.items())
    print(f"{model}: {numbers}, ratio {wall:.3f} ({processor:.3f} of processor time)", flush=True)
    for side in sides.values():
        side.algorithm.stop()


def timed(seconds: list[float], function: Any, **options: Any) -> Any:
    """Call a function, and note how long it took."""
    began = time.perf_counter()
    try:
        return function(**options)
    finally:
        seconds.append(time.perf_counter() - began)


def cluster(iterations: int) -> None:
    """Steps per second, for numbers of env runners and of learners, which share the 2,000 steps of an iteration."""
    for runners, learners in ((0, 0), (1, 0), (2, 0), (2, 1), (2, 2)):
        made = config(DeltaPPOConfig).env_runners(num_env_runners=runners).learners(num_learners=learners)
        algorithm = made.training(train_batch_size_per_learner=2_000 // max(1, learners)).build_algo()
        algorithm.train()
        learning: list[float] = []
        # RLlib's own timers are moving averages that hardly leave the first iteration.
        algorithm.learner_group.update = partial(timed, learning, algorithm.learner_group.update)
        began, first = time.perf_counter(), algorithm.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"))
        for _ in range(iterations):
            result = algorithm.train()
        seconds = time.perf_counter() - began
        steps, learned = result["num_env_steps_sampled_lifetime"] - first, sum(learning)
        print(
            f"{runners} runners, {learners} learners: {steps / seconds:.0f} steps/s; an iteration: "
            f"{(seconds - learned) / iterations:.2f} s collecting, {learned / iterations:.2f} s learning",
            flush=True,
        )
        algorithm.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--cluster", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(num_cpus=8, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    if options.cluster:
        cluster(options.rounds)
    else:
        for model in options.models:
            compare(model, options.rounds)


if __name__ == "__main__":
    main()
