"""Run directories with made-up updates, for tests of checkpoints and faults."""

import numpy as np

from tddelta.runs import RunWriter

CONFIG = {"format": 1, "environment": "e", "agent": {"name": "a"}, "seed": 0, "settings": {}, "scales": {}}


def arrays(number):
    return {"table": np.full((3, 4), number, np.float32), "key": np.array([1, number], np.uint32)}


def begin(path, rows):
    """A run directory with so many updates, of 10 steps and one episode each, and a checkpoint of the last."""
    writer = RunWriter(path, CONFIG, {"command": ["test"]})
    train(writer, 0, rows)
    return writer


def train(writer, first, last):
    writer.metrics([{"update": n + 1, "steps": 10 * (n + 1)} for n in range(first, last)])
    steps = 10 * np.arange(1, last + 1)
    writer.episodes(steps, steps / 10, steps)
    writer.checkpoint(arrays(last), steps=10 * last, updates=last, episodes=last)
