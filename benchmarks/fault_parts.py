"""Numbers that are not finite, and sweeps whose processes are killed: two parts of `faults.py`."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from tddelta.runs import Run, checkpoints, read_parameters

Add = Callable[[str, str], None]
"""Counts a fault and what came of it."""

Command = Callable[..., tuple[int, str]]
"""The exit code and what was said, of a command line."""

BROKEN = """
import jax
import jax.numpy as jnp
from gymnax.environments.classic_control.cartpole import CartPole
class Broken(CartPole):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
    def step(self, key, state, action, params=None):
        broken = state.time == 120  # an agent that has learned nothing does not come so far
        observation, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        if self.kind == "observation":
            observation = jnp.where(broken, jnp.nan, observation)
            info = {**info, "final_observation": observation}
        else:  # the square of 1e30 is no number of 32 bits, so that the loss is not finite
            reward = jnp.where(broken, jnp.nan if self.kind == "reward" else 1e30, reward)
        return observation, state, reward, terminated, truncated, info
reward, observation, loss = (lambda: Broken("reward")), (lambda: Broken("observation")), (lambda: Broken("loss"))
"""


def numbers(folder: Path, command: Command, add: Add) -> None:
    """Let a reward, an observation and the loss become not finite in the middle of a run."""
    (folder / "broken.py").write_text(BROKEN)
    for kind in ("reward", "observation", "loss"):
        out = f"not-finite-{kind}"
        code, said = command(f"broken:{kind}", "--out", out)
        run = Run(next((folder / out).rglob("seed-0")))
        text = (run.path / "fault.json").read_text()
        fault = json.loads(text, parse_constant=_refuse)
        parameters, newest = read_parameters(run.path), checkpoints.latest(run.path)
        with safe_open(run.path / "parameters.safetensors", framework="numpy") as file:
            steps = int(file.metadata()["steps"])
        good = {
            "named": fault["fault"] == kind and kind in said and "fault.json has the numbers" in said,
            "in the middle": fault["update"] > 1 and len(run.metrics["update"]) == fault["update"] - 1,
            "parameters": steps == fault["steps_before"] and all(map(_finite, parameters.values())),
            "checkpoint": newest is not None and all(map(_finite, newest.arrays.values())),
        }
        wrong = [name for name, is_good in good.items() if not is_good]
        again, _ = command(f"broken:{kind}", "--out", out, "--resume")
        same = again == code and (run.path / "fault.json").read_text() == text
        kept = f"WRONG: {wrong}" if wrong else "parameters of the update before and the newest checkpoint are finite"
        add(
            "a number that is not finite (reward, observation, loss)",
            f"exit code {code}, {run.status['state']}, `fault.json` names it; {kept}; going on meets "
            f"{'the same again' if same else 'SOMETHING ELSE'}",
        )


def _finite(array: Any) -> bool:
    return array.dtype.kind not in "f" or bool(np.isfinite(array).all())


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no strict JSON")


STUDY = """
environments = "CartPole-v1"
agents = "ppo-delta"
seeds = 2
steps = 400_000
checkpoint_every = 0
[settings]
environments = 8
rollout_length = 32
minibatches = 2
epochs = 2
hidden_sizes = [16]
"""


def sweeps(
    folder: Path, environment: dict[str, str], contents: Callable[[Path], dict[str, bytes]], add: Add, draw: Any
) -> None:
    """Kill a worker of a sweep, and the sweep itself, with -9."""

    def start(name: str) -> "subprocess.Popen[str]":
        (folder / f"{name}.toml").write_text(STUDY)
        program = [str(Path(sys.executable).with_name("tddelta")), "sweep", f"{name}.toml", "--workers", "1"]
        return subprocess.Popen(
            program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
        )

    def compared(name: str) -> str:
        same = all(contents(path) == straight[path.name] for path in (folder / name).rglob("seed-?"))
        resumed = sum(row["event"] == "resume" for path in (folder / name).rglob("seed-?") for row in Run(path).timing)
        return f"{resumed} run went on from its checkpoint, {'same bytes' if same else 'OTHER BYTES'}"

    start("sweep-straight").communicate()
    straight = {path.name: contents(path) for path in (folder / "sweep-straight").rglob("seed-?")}
    for turn in range(2):
        name = f"sweep-worker-{turn}"
        process = start(name)
        worker = _worker(process, folder / name, draw)
        os.kill(worker, signal.SIGKILL)
        said = process.communicate()[1]
        how = "says signal 9 and tries again" if "signal 9 (SIGKILL)" in said else "SAYS NOTHING"
        add("`kill -9` of a worker of a sweep", f"the sweep {how}, exit code {process.returncode}; {compared(name)}")
    for turn in range(2):
        name = f"sweep-itself-{turn}"
        process = start(name)
        worker = _worker(process, folder / name, draw)
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 30
        while _alive(worker) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = "its worker STAYS" if _alive(worker) else "its worker ends, too"
        again = start(name)
        again.communicate()
        add("`kill -9` of the sweep itself", f"{left}; the next sweep: exit code {again.returncode}, {compared(name)}")


def _worker(process: "subprocess.Popen[str]", out: Path, draw: random.Random) -> int:
    """The worker of a sweep, some time after the first checkpoint of its run."""
    deadline = time.monotonic() + 120
    while not list(out.glob("*/*/seed-?/checkpoints/0*")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no checkpoint in {out}")
        time.sleep(0.02)
    time.sleep(draw.uniform(0, 0.5))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    # beside it Python's own keeper of semaphores
    return next(int(one) for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes())


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
