"""A worker that only pretends: it answers jobs as `tddelta.experiments.worker` does, in no time and without JAX.

Seed 13 meets a not-a-number, seed 14 a bug, seed 15 waits until it is told to stop, seed 16 does not hear of it.
Seed 20 dies of a signal the first time, seed 21 every time; seed 22 is interrupted once by somebody else.
Seeds 30 to 39 take a tenth of a second.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

stop = threading.Event()


def answer(job):
    seed = job["seeds"][0]
    folder = Path(job["out"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "jobs").open("a") as file:
        file.write(f"{seed} {os.getpid()}\n")
    tries = (folder / "jobs").read_text().split("\n")
    first = sum(line.startswith(f"{seed} ") for line in tries) == 1
    print("a word of seed", seed, file=sys.stderr, flush=True)
    if seed == 13:
        return {"state": "failed", "kind": "DataError", "message": "reward is not a number"}
    if seed == 14:
        return {"state": "failed", "kind": "KeyError", "message": "a bug", "traceback": "Traceback: here\n"}
    if seed == 15:
        return {"state": "interrupted" if stop.wait(60) else "finished"}
    if seed == 16:
        time.sleep(60)
    if 30 <= seed < 40:
        time.sleep(0.1)
    if seed == 21 or (seed == 20 and first):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"state": "interrupted" if seed == 22 and first else "finished"}


def listen(lines):
    for line in lines:
        message = json.loads(line)
        if message.get("stop"):
            stop.set()
        else:
            threading.Thread(target=work, args=(message["job"],), daemon=True).start()
    os._exit(0)


def work(job):
    say({"outcomes": [{"seed": seed, **answer({**job, "seeds": [seed]})} for seed in job["seeds"]]})


def say(message):
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    say({"ready": sys.argv[1] if len(sys.argv) > 1 else "cpu"})
    listen(sys.stdin)
