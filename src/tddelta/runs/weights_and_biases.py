"""Weights & Biases: one W&B run per run directory, whose id and files lie in `RUN/wandb/`."""

import json
import os
import struct
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tddelta.errors import ConfigError, TrackingWarning
from tddelta.runs.files import read_json, replace, to_json
from tddelta.runs.tracking import Logged, Row, scalars

PROJECT = "tddelta"
"""The project, unless WANDB_PROJECT names another."""

_BLOCK, _HEADER = 32768, 7  # of W&B's log of a run, which has the format of LevelDB's
_QUIET, _PATIENCE = 2.0, 15.0  # seconds without a change of a log until it counts as complete, and how long to wait


def check_account() -> None:
    """Refuse W&B where it would ask for an account and nobody can answer.

    Raises:
        ConfigError: W&B is to log online, no API key is known, and there is no terminal to ask for one.
    """
    import wandb

    if wandb.setup().settings.mode != "online":
        return
    try:
        known = wandb.login()
    except wandb.Error as error:
        raise ConfigError(_no_account(error)) from error
    if not known:
        raise ConfigError(_no_account("no API key"))


def _no_account(reason: object) -> str:
    return (
        f"Weights & Biases has no account to log to ({reason}): run `wandb login`, or set WANDB_MODE=offline to log "
        "into the run directory and `wandb sync` it later"
    )


class WeightsAndBiases:
    """Logs one run. Steps of W&B are environment steps.

    Where the server cannot be reached the run is logged offline. What W&B's own variables say (`WANDB_MODE`,
    `WANDB_PROJECT`, `WANDB_ENTITY`, …) holds.

    Args:
        path: The run directory.
        config: Content of `config.json`; the configuration of the W&B run.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self.folder = path.absolute() / "wandb"
        self.folder.mkdir(exist_ok=True)
        _settle(self.folder)
        agent = config.get("agent", {}).get("name")
        named = {
            "id": self._memory()["id"],
            "name": f"{config.get('environment')}, {agent}, seed {config.get('seed')}",
            "group": f"{config.get('environment')}/{path.absolute().parent.name}",
        }
        # the processes of a sweep and the threads of a comparison have a W&B run each, and none takes the terminal
        settings = wandb.Settings(console="off", silent=True, save_code=False)
        common: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "dir": str(path.absolute()),
            "config": dict(config),
            "reinit": "create_new",
            "settings": settings,
            **named,
        }
        online = wandb.setup().settings.mode == "online"
        try:
            self._run = wandb.init(resume="allow" if online else None, **common)
        except wandb.Error as error:
            if not online:
                raise
            warnings.warn(
                f"{path}: W&B cannot be reached ({error}): logging offline; send it later with "
                f"`wandb sync {self.folder}/offline-run-*`",
                TrackingWarning,
                stacklevel=2,
            )
            self._run = wandb.init(mode="offline", **common)
        self._logged = Logged()
        self._run.define_metric("evaluation/*", step_metric="evaluation/steps")

    def _memory(self) -> dict[str, Any]:
        """The id, made when the run is first tracked, and the last steps logged by a process that ended in order."""
        file = self.folder / "id.json"
        if not file.exists():
            self._remember({"id": uuid.uuid4().hex[:12], "metrics": -1, "evaluations": -1})
        return read_json(file)

    def _remember(self, memory: Mapping[str, Any]) -> None:
        replace(self.folder / "id.json", to_json(memory))

    def start(self, steps: int) -> Logged:
        """What W&B has cannot be taken back: training repeats these steps to the byte, so they need not come again."""
        memory = self._memory()
        last = Logged(*(int(memory.get(name, -1)) for name in Logged._fields))
        last = last._replace(metrics=max(last.metrics, int(self._run.starting_step) - 1))
        for step, values in logged_rows(self.folder):
            if any(name.startswith("train/") for name in values):
                last = last._replace(metrics=max(last.metrics, step))
            if "evaluation/steps" in values:
                last = last._replace(evaluations=max(last.evaluations, int(values["evaluation/steps"])))
        self._logged = last
        return last

    def metrics(self, rows: Sequence[Row]) -> None:
        """Log one row per update."""
        for row in rows:
            self._run.log(scalars(row, "train"), step=int(row["steps"]))
            self._logged = self._logged._replace(metrics=row["steps"])

    def evaluation(self, row: Row) -> None:
        """Log an evaluation in the row of its update, or in the next one where that row is closed."""
        values = scalars(row, "evaluation") | {"evaluation/steps": row["steps"]}
        self._run.log(values, step=max(int(row["steps"]), self._run.step))
        self._logged = self._logged._replace(evaluations=row["steps"])

    def speed(self, steps: int, steps_per_second: float) -> None:
        """Log the speed in the row of the last update."""
        if steps >= self._run.step:
            self._run.log({"time/steps_per_second": steps_per_second}, step=int(steps))

    def close(self, state: str) -> None:
        """End the W&B run; one that is not finished can be resumed under its id."""
        self._run.finish(exit_code=0 if state == "finished" else 1)
        # W&B's own process may still be writing its log
        self._remember({**self._memory(), **self._logged._asdict()})


def _settle(folder: Path) -> None:
    """Wait while W&B's process of a run that was killed a moment ago is still writing down what it has."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        changed = max((file.stat().st_mtime for file in folder.glob("*run-*/run-*.wandb")), default=0.0)
        if time.time() - changed > _QUIET:
            break
        time.sleep(0.1)


def logged_rows(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What W&B has written of a run: the rows of its history in the files `run-*.wandb` below a folder.

    Yields:
        The step and the values by name, in order within a file.
    """
    message = import_module("wandb.proto.wandb_internal_pb2").Record
    for file in sorted(folder.glob("*run-*/run-*.wandb")):
        for content in _records(file):
            record = message.FromString(content)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                yield int(record.history.step.num), values


def _records(file: Path) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of 32 KiB, pieces of records with checksum (4), length (2) and kind (1)."""
    content = file.read_bytes()
    at, whole = _HEADER, b""
    while at + 7 <= len(content):
        room = _BLOCK - at % _BLOCK
        if room < 7:  # too little for a piece
            at += room
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        end = at + 7 + length
        if not 1 <= kind <= 4 or end > len(content):  # a crash cut it short
            return
        whole = (whole if kind > 2 else b"") + content[at + 7 : end]  # 1 whole, 2 first, 3 middle, 4 last
        if kind in (1, 4):
            yield whole
        at = end
