"""Injects faults into real runs and says what happened, for docs/reliability.md.

`python benchmarks/faults.py [KILLS] [PART ...]`, where the parts are runs, writers, signals, damages, folders, numbers
and sweeps; without any, all of them. Every run that was broken goes on until it is finished, and is then
compared with a run without a break, byte for byte.
"""

import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_parts import numbers, sweeps

from tddelta.errors import CheckpointError, CheckpointWarning
from tddelta.runs import Run, checkpoints

KILLS = 24
"""Kills of a training run with -9, in all phases together."""

STEPS, EVAL_EVERY = 160_000, 20_000
SETTINGS = [
    "--environments",
    "8",
    "--rollout-length",
    "32",
    "--minibatches",
    "2",
    "--epochs",
    "2",
    "--hidden-sizes",
    "16",
]
OPTIONS = ["--agent", "ppo-delta", "--steps", str(STEPS), "--eval-every", str(EVAL_EVERY)]
OPTIONS += ["--checkpoint-every", "0", *SETTINGS]
TRAIN = ["train", "CartPole-v1", *OPTIONS]

# The command line; every change of phase is a line on the standard error.
PROGRAM = """
import sys
from tddelta.cli import main
from tddelta.deep import training
training.BLOCK_SECONDS = 0.1
from tddelta.runs import checkpoints
def told(call, name):
    def telling(*arguments, **options):
        print("phase", name, file=sys.stderr, flush=True)
        result = call(*arguments, **options)
        print("phase over", file=sys.stderr, flush=True)
        return result
    return telling
training._Training._updates_left = told(training._Training._updates_left, "training")
training._Training._evaluate = told(training._Training._evaluate, "evaluating")
training._Training._finish = told(training._Training._finish, "recording")
training._Training._save = told(training._Training._save, "saving")
sys.exit(main(sys.argv[1:]))
"""


class Table:
    """Faults that were injected, how often, and what came of them."""

    def __init__(self) -> None:
        self._rows: dict[str, Counter[str]] = {}

    def add(self, fault: str, outcome: str) -> None:
        """Count one fault."""
        self._rows.setdefault(fault, Counter())[outcome] += 1

    def __str__(self) -> str:
        lines = ["| fault | times | what happened |", "|---|---|---|"]
        for fault, outcomes in self._rows.items():
            said = "; ".join(
                f"{outcome} ({count})" if len(outcomes) > 1 else outcome for outcome, count in outcomes.items()
            )
            lines.append(f"| {fault} | {outcomes.total()} | {said} |")
        return "\n".join(lines)


class Workshop:
    """A folder in which runs are started, broken and compared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

    @functools.cached_property
    def straight(self) -> dict[str, bytes]:
        """The files of a run without a break."""
        self.run("--out", "straight")
        return contents(self.path("straight"))

    def path(self, out: str) -> Path:
        """The run directory in a folder."""
        return next((self.folder / out).rglob("seed-0"))

    @contextmanager
    def started(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """A process of the command line; killed at the end where it still runs."""
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code and what was said, of a whole command."""
        return self.train("CartPole-v1", *arguments)

    def train(self, environment: str, *arguments: str) -> tuple[int, str]:
        """The same in an environment."""
        with self.started("train", environment, *OPTIONS, *arguments) as process:
            said = process.communicate()[1]
            return process.returncode, said

    def finished(self, out: str) -> str:
        """Go on until the run is finished, and compare it with the one without a break."""
        code, said = self.run("--out", out, "--resume")
        if code:
            return f"could not go on: {said}"
        rows = Run(self.path(out)).metrics["steps"].tolist()
        if rows != sorted(set(rows)):
            return "steps are not strictly increasing"
        return "same bytes" if contents(self.path(out)) == self.straight else "OTHER BYTES"


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a run directory but the record of times."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != "timing.jsonl")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def until(process: "subprocess.Popen[str]", phase: str, count: int) -> bool:
    """Wait until a phase has begun for the count-th time; False where the process ended before."""
    assert process.stderr is not None
    for line in process.stderr:
        count -= line == f"phase {phase}\n"
        if count <= 0:
            return True
    return False


def kill_runs(shop: Workshop, table: Table, kills: int, draw: random.Random) -> None:
    """Kill a run with -9 again and again, in every phase, at a random moment of it; go on after each."""
    # how long a phase takes here: saving is over in a few milliseconds
    longest = {"training": 0.3, "saving": 0.01, "evaluating": 0.3, "recording": 0.5}
    turns = itertools.cycle(["training", "saving", "evaluating", "saving", "training", "recording"])
    number, broken = 0, Counter[str]()
    for _ in range(4 * kills):
        if broken.total() >= kills:
            break
        out, phase = f"killed-{number}", next(turns)
        with shop.started(*TRAIN, "--out", out, "--resume") as process:
            # a recording comes at the end only
            if not until(process, phase, 1 if phase in ("evaluating", "recording") else draw.randint(1, 12)):
                number += 1  # it finished first
                continue
            time.sleep(draw.uniform(0, longest[phase]))
            process.send_signal(signal.SIGKILL)
        broken[phase] += 1
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", CheckpointWarning)
            whole = checkpoints.latest(shop.path(out))
        if told:
            outcome = "the newest checkpoint was NOT whole"
        elif whole is None:
            outcome = "before the first checkpoint: set aside and started again"
        else:
            outcome = "the newest checkpoint was whole"
        table.add(f"`kill -9` in {phase}", outcome)
    for out in sorted(path.name for path in shop.folder.glob("killed-*")):
        text = f"finished after the kills: {shop.finished(out)} as a run without a break"
        table.add("a killed run, gone on with", text)


WRITER = """
import sys
import numpy as np
from tddelta.runs import RunWriter
config = {"format": 1, "environment": "e", "agent": {"name": "a"}, "seed": 0, "settings": {}, "scales": {}}
writer = RunWriter(sys.argv[1], config, {}, resume=True)
done = 0 if writer.restored is None else writer.restored.count("updates")
print(done, flush=True)
while True:
    done += 1
    writer.metrics([{"update": done, "steps": 10 * done}])
    writer.episodes(np.arange(done) * 10, np.ones(done), np.ones(done))
    writer.checkpoint({"a": np.full(50_000, done, np.float32)}, steps=10 * done, updates=done, episodes=done)
"""


def kill_writers(shop: Workshop, table: Table, kills: int, draw: random.Random) -> None:
    """Kill a process that does nothing but save."""
    path, last = shop.folder / "writer" / "seed-0", 0
    for _ in range(kills):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            done = int(process.stdout.readline())
            time.sleep(draw.uniform(0, 0.25))
            process.kill()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", CheckpointWarning)
            found = checkpoints.latest(path)
        rows = Run(path).metrics["update"].tolist()
        good = (
            done >= last
            and found is not None
            and not told
            and rows[: found.count("updates")] == list(range(1, found.count("updates") + 1))
        )
        last = found.count("updates") if found else 0
        table.add(
            "`kill -9` of a process that only saves",
            "newest checkpoint whole, every row before it there once" if good else "LOST",
        )


def signals(shop: Workshop, table: Table) -> None:
    """Ctrl-C and SIGTERM."""
    for sent, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
        for turn in range(2):
            out = f"{name}-{turn}"
            with shop.started(*TRAIN, "--out", out) as process:
                until(process, "training", 3 + 5 * turn)
                process.send_signal(sent)
                said = process.communicate()[1]
            again = "names the command to go on" if "to go on: tddelta train" in said else "NO ADVICE"
            state = Run(shop.path(out)).status["state"]
            table.add(name, f"exit code {process.returncode}, {state}, {again}; gone on with: {shop.finished(out)}")


def damages(shop: Workshop, table: Table, draw: random.Random) -> None:
    """Cut, flip, delete and replace files of checkpoints."""
    with shop.started(*TRAIN, "--out", "damaged") as process:
        until(process, "saving", 4)
        until(process, "saving", 1)
        process.kill()
    run = shop.path("damaged")
    newest = checkpoints.latest(run)
    assert newest is not None
    canary = shop.folder / "canary"
    pickle = f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()
    changes: dict[str, Callable[[bytes], bytes]] = {
        "cut short": lambda content: content[: draw.randrange(len(content) - 1)],
        "one bit flipped": lambda content: flipped(content, draw),
        "replaced by a malicious pickle": lambda content: pickle,
    }
    for (fault, change), name in itertools.product(changes.items(), ("state.safetensors", "checkpoint.json")):
        content = (newest.path / name).read_bytes()
        for _ in range(1 if "pickle" in fault else 50):
            (newest.path / name).write_bytes(change(content))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                found = checkpoints.latest(run)
            older = found is not None and found.path < newest.path and len(told) == 1 and name in str(told[0].message)
            said = "passed over with a warning that names the file" if older else "NOT NOTICED"
            table.add(
                f"checkpoint {fault}",
                said + (", nothing executed" if "pickle" in fault and not canary.exists() else ""),
            )
        (newest.path / name).write_bytes(content)
    record = json.loads((newest.path / "checkpoint.json").read_text()) | {"format": 9, "tddelta": "9.0"}
    record["checksum"] = checkpoints._checksum(record)
    (newest.path / "checkpoint.json").write_text(json.dumps(record))
    try:
        checkpoints.latest(run)
        table.add("checkpoint of a newer format", "NOT NOTICED")
    except CheckpointError as error:
        table.add("checkpoint of a newer format", str(error).rpartition(": ")[2])
    shutil.rmtree(newest.path)
    table.add("newest checkpoint deleted", f"gone on from the one before: {shop.finished('damaged')}")


def flipped(content: bytes, draw: random.Random) -> bytes:
    """One bit of it changed."""
    place = draw.randrange(len(content) - 1)  # the last byte of checkpoint.json is a line break
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def folders(shop: Workshop, table: Table) -> None:
    """Folders that are full, read-only, gone, taken, or somewhere else."""

    def sentence(said: str) -> str:
        found = re.search(r"cannot be (?:written|made) \([^)]*\)|is being written by another process", said)
        return "no sentence" if found is None else f"“… {found[0].replace(f'{shop.folder}/', '')}”"

    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
    with shop.started(*TRAIN, "--out", "full") as process:
        until(process, "saving", 2)
        process.kill()
    done = subprocess.run(
        [sys.executable, "-c", limit + PROGRAM, *TRAIN, "--out", "full", "--resume"],
        capture_output=True, text=True, cwd=shop.folder, env=shop.environment,
    )  # fmt: skip
    table.add(
        "no more room for a file",
        f"exit code {done.returncode}, {sentence(done.stderr)}; {shop.finished('full')} after room was made",
    )

    with shop.started(*TRAIN, "--out", "gone") as process:
        until(process, "training", 4)
        shutil.move(shop.path("gone"), shop.folder / "moved")
        said = process.communicate()[1]
    shutil.move(shop.folder / "moved", next((shop.folder / "gone" / "CartPole-v1").iterdir()) / "seed-0")
    table.add(
        "folder vanishes while training",
        f"exit code {process.returncode}, {sentence(said)}; {shop.finished('gone')} after it came back",
    )

    with shop.started(*TRAIN, "--out", "taken") as process:
        until(process, "training", 1)
        process.send_signal(signal.SIGSTOP)  # a pause, so that it is not finished before the other one looks
        code, said = shop.run("--out", "taken", "--resume")
        process.send_signal(signal.SIGCONT)
        process.communicate()
    same = "same bytes" if contents(shop.path("taken")) == shop.straight else "OTHER BYTES"
    table.add("second process on a run directory", f"exit code {code}, {sentence(said)}; the first went on: {same}")

    with shop.started(*TRAIN, "--out", "here") as process:
        until(process, "training", 6)
        process.kill()
    shutil.copytree(shop.folder / "here", shop.folder / "there")
    shutil.rmtree(shop.folder / "here")
    table.add("run directory copied elsewhere", f"gone on with: {shop.finished('there')}")

    if os.geteuid() == 0:  # permissions do not bind an administrator: become somebody else once all is imported
        imported = "import os, safetensors.numpy, jax, tddelta.experiments, tddelta.deep.training"
        other = f"{imported}\njax.devices()\nos.setuid(65534)\nsys.exit"
        with shop.started(*TRAIN, "--out", "locked") as process:
            until(process, "saving", 2)
            process.kill()
        path = shop.path("locked")
        for file in (shop.folder, *shop.folder.rglob("*")):
            file.chmod(0o555 if file.is_dir() else 0o444)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.replace("sys.exit", other), *TRAIN, "--out", "locked", "--resume"],
            capture_output=True, text=True, cwd=shop.folder, env=shop.environment,
        )  # fmt: skip
        kept = "whole" if checkpoints.latest(path) else "LOST"
        table.add(
            "read-only folder",
            f"exit code {done.returncode}, {sentence(done.stderr)}; the checkpoint is {kept}",
        )


def main() -> None:
    """Inject everything, and print the table."""
    given = sys.argv[1:]
    kills = int(given.pop(0)) if given and given[0].isdecimal() else KILLS
    draw, table, began = random.Random(0), Table(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tddelta-faults-") as folder:
        os.chmod(folder, 0o755)
        shop = Workshop(Path(folder))
        parts: dict[str, Callable[[], None]] = {
            "runs": functools.partial(kill_runs, shop, table, kills, draw),
            "writers": functools.partial(kill_writers, shop, table, 40, draw),
            "signals": functools.partial(signals, shop, table),
            "damages": functools.partial(damages, shop, table, draw),
            "folders": functools.partial(folders, shop, table),
            "numbers": functools.partial(numbers, shop.folder, shop.train, table.add),
            "sweeps": functools.partial(sweeps, shop.folder, shop.environment, contents, table.add, draw),
        }
        for name in given or parts:
            parts[name]()
            print(f"{time.monotonic() - began:.0f} s\n{table}\n", file=sys.stderr, flush=True)
    print(table)


if __name__ == "__main__":
    main()
