"""Jobs that only pretend: they end in no time and without JAX, in the processes of `tddelta.experiments.workers`.

Seed 13 meets a not-a-number, seed 14 a bug, seed 15 waits until it is told to stop, seed 16 does not hear of it.
Seed 20 dies of a signal the first time, seed 21 every time; seed 22 is interrupted once by somebody else.
Seeds 30 to 39 wait until two processes have begun, and a moment.
"""

import os
import signal
import sys
import time
from pathlib import Path

from tddelta.errors import DataError
from tddelta.experiments import workers


def cpu():
    return "cpu"


def gpu():
    return "gpu"


def signalling():
    os.kill(os.getppid(), signal.SIGINT)
    return "cpu"


def hanging():
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(120)


def dead():
    print("no JAX here", file=sys.stderr, flush=True)
    os._exit(1)


def train(job):
    return [_train_one(seed, Path(job["out"])) for seed in job["seeds"]]


def _train_one(seed, folder):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "jobs").open("a") as file:
        file.write(f"{seed} {os.getpid()} {os.environ['OMP_NUM_THREADS']}\n")
    tries = (folder / "jobs").read_text().split("\n")
    first = sum(line.startswith(f"{seed} ") for line in tries) == 1
    print("a word of seed", seed, flush=True)
    if seed == 13:
        return "failed", DataError("reward is not a number")
    if seed == 14:
        return "failed", workers._sendable(KeyError("a bug"))
    if seed == 15:
        return "interrupted" if workers._stop.wait(60) else "finished", None
    if seed == 16:
        time.sleep(60)
        time.sleep(60)
    while 30 <= seed < 40 and len({line.split()[1] for line in (folder / "jobs").read_text().splitlines()}) < 2:
        time.sleep(0.02)
    time.sleep(0.2 if 30 <= seed < 40 else 0)
    if seed == 21 or (seed == 20 and first):
        os.kill(os.getpid(), signal.SIGKILL)
    return "interrupted" if seed == 22 and first else "finished", None
