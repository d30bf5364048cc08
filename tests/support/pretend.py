"""Training that only pretends: it writes run directories in no time, so that what is around training can be tested.

Seed 13 meets a not-a-number, seeds 14 and 16 a bug, seed 15 does not hear that it should stop.
Every block of 1,000 steps takes a hundredth of a second.
"""

import sys
import time
import types
from contextlib import suppress

import tddelta.deep
from tddelta.deep.training import Progress, run_config
from tddelta.errors import DataError


def train_runs(config, seeds, writers, *, progress=None, stop=None, eval_every=None, checkpoint_every=300.0):
    errors = []
    for index, (seed, writer) in enumerate(zip(seeds, writers, strict=True)):
        told = None if progress is None else lambda news, index=index: progress(index, news)
        try:
            train_run(config, seed, writer, progress=told, stop=stop, eval_every=eval_every)
        except DataError as error:
            errors.append(error)
    for error in errors:
        raise error


def train_run(config, seed, writer, *, progress=None, stop=None, eval_every=None):
    steps, updates, began = 0, 0, time.monotonic()
    while steps < config.steps and not (stop is not None and stop.is_set()):
        if progress is not None:
            progress(Progress(steps, config.steps, 1000.0, (config.steps - steps) / 1000, 1.5, "training"))
        time.sleep(0.01)
        if seed == 13:
            writer.status("failed", steps=steps, updates=updates, message=f"step {steps}: reward is not a number")
            raise DataError(f"step {steps}: reward is not a number")
        if seed in (14, 16):
            raise RuntimeError("a bug")
        if seed == 15:
            time.sleep(60)
        steps, updates = steps + 1000, updates + 1
        writer.metrics([{"update": updates, "steps": steps, "episodes": updates, "return_mean": 1.0 + seed}])
        if eval_every and steps % eval_every == 0:
            writer.evaluation({"steps": steps, "mode": "sampled", "return_mean": 1.0})
    state = "finished" if steps >= config.steps else "interrupted"
    counts = range(1000, steps + 1, 1000)
    writer.episodes(list(counts), [1.0 + seed for _ in counts], [1000 for _ in counts])
    seconds = time.monotonic() - began
    writer.timing({"event": "end", "seconds": seconds, "steps_per_second": steps / max(seconds, 1e-9), "state": state})
    writer.status(state, steps=steps, updates=updates, episodes=updates)


def wait_for(condition, process=None, seconds=120):
    """Wait until something is so; a process that ends before fails the test with what it said."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError):  # such as a folder that is renamed while a condition looks into it
            if condition():
                return
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def install():
    """Put this in the place of `tddelta.deep.training`."""
    module = types.ModuleType("tddelta.deep.training")
    module.Progress, module.run_config, module.train_runs = Progress, run_config, train_runs
    sys.modules["tddelta.deep.training"] = module
    tddelta.deep.training = module
