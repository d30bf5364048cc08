"""Training runs on disk for the tests, the first of them shared."""

import contextlib
import functools
import tempfile
from pathlib import Path

from deep_environments import tiny
from tddelta.deep import training
from tddelta.runs import Run, RunWriter

# 40 updates of 24 steps: several blocks, whose lengths depend on the machine's speed.
UPDATES, BATCH = 40, 24
EVAL_EVERY = 300


def cartpole(**settings):
    return tiny("CartPole-v1", steps=UPDATES * BATCH - 5, environment_kwargs={"max_steps_in_episode": 30}, **settings)


def trained(path, seed=0, config=None, *, resume=False, **options):
    """The directory of a new run, or of one that goes on in this process."""
    config, begun = config or cartpole(), {"command": ["again" if resume else "test"]}
    with RunWriter(path, training.run_config(config, seed), begun, resume=resume) as writer:
        training.train_run(config, seed, writer, **options)
    return Run(path)


def go_on(path, config, **options):
    return trained(path, config=config, resume=True, **options)


def trained_together(folder, config, seeds, *, resume=False, **options):
    """Runs of several seeds at once, in folders named by the seeds."""
    with contextlib.ExitStack() as opened:
        writers = [
            opened.enter_context(
                RunWriter(folder / str(seed), training.run_config(config, seed), {"command": ["test"]}, resume=resume)
            )
            for seed in seeds
        ]
        training.train_runs(config, seeds, writers, **options)


def bytes_of(run):
    """Every file but the record of times, by name."""
    return {
        path.relative_to(run.path).as_posix(): path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file() and path.name != "timing.jsonl"
    }


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="tddelta-test-")


@functools.cache
def finished():
    """A finished run of seed 0; its `news` are what progress told."""
    news = []
    run = trained(Path(_folder().name) / "run", progress=news.append)
    run.news = news
    return run
