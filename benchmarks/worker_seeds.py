"""Trains four seeds when told to, one by one or as many at a time as there are cores; run by `training_speed.py`.

Like `tddelta compare`: one compiled program, called from one thread per core.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from worker import Settings, serve
from worker_tddelta import make as make_one

SEEDS = 4
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make(settings: Settings) -> tuple[Any, Any, int]:
    """A block trains every seed by one block."""
    together = ThreadPoolExecutor(min(CORES, SEEDS))
    one_by_one = ThreadPoolExecutor(1)
    seeds = [make_one(Settings(**{**vars(settings), "seed": seed})) for seed in range(SEEDS)]
    block, _, steps = seeds[0]

    def train(states: list[Any], *, together_now: bool = True) -> list[Any]:
        return list((together if together_now else one_by_one).map(block, states))

    return train, [state for _, state, _ in seeds], SEEDS * steps


if __name__ == "__main__":
    serve(make, wait=jax.block_until_ready)
