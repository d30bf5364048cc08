"""TensorBoard files in `RUN/tensorboard/`: `tensorboard --logdir` of any folder above draws all runs below it."""

import json
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tddelta.runs.tracking import Logged, Row, scalars

FLUSH_SECONDS = 10.0
"""What is drawn is at most this much older than the run."""

_EVALUATION = "evaluation/"
_SPEED = "time/steps_per_second"


class TensorBoard:
    """Writes the event files of one run.

    The numbers of an update are one event, so that a crash leaves all of them or none. A resumed run adds a file, and
    cuts back those before it to where it goes on. Nothing runs in the background.

    Args:
        path: The run directory.
        config: Content of `config.json`; shown as a text, "config".
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.folder = path / "tensorboard"
        self.folder.mkdir(exist_ok=True)
        self._config = config
        self._events: Any = None
        self._resumed = False
        self._flushed = time.monotonic()

    def start(self, steps: int) -> Logged:
        """Cut every file back to its last event at or before `steps`."""
        last = Logged()
        for file in event_files(self.folder):
            end = 0
            for event, after in read_events(file):
                if event.step > steps:
                    break
                end = after
                self._resumed |= event.HasField("summary")
                tags = {value.tag for value in event.summary.value}
                if any(tag.startswith(_EVALUATION) for tag in tags):
                    last = last._replace(evaluations=max(last.evaluations, event.step))
                elif any(tag.startswith("train/") for tag in tags):
                    last = last._replace(metrics=max(last.metrics, event.step))
            if end < file.stat().st_size:
                os.truncate(file, end)
        return last

    def metrics(self, rows: Sequence[Row]) -> None:
        """Write one event per update."""
        for row in rows:
            self._write(scalars(row, "train"), row["steps"])

    def evaluation(self, row: Row) -> None:
        """Write one event for an evaluation."""
        self._write(scalars(row, _EVALUATION[:-1]), row["steps"])

    def speed(self, steps: int, steps_per_second: float) -> None:
        """Write the speed, and now and then everything to the disk."""
        self._write({_SPEED: steps_per_second}, steps)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._events.flush()
            self._flushed = time.monotonic()

    def close(self, state: str) -> None:
        """Write everything to the disk."""
        if self._events is not None:
            self._events.close()

    def _write(self, numbers: Mapping[str, float], steps: int) -> None:
        summary = _protocol("summary").Summary
        self._add(summary(value=[summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]), steps)

    def _add(self, summary: Any, steps: int) -> None:
        if self._events is None:
            # a file is never opened twice: within a second of a break the name would be the same without a number
            suffix = f".{1 + max(map(_number, event_files(self.folder)), default=-1)}"
            writer = import_module("tensorboardX.event_file_writer").EventsWriter
            self._events = writer(str(self.folder / "events"), suffix)
            if not self._resumed:
                self._add(import_module("tensorboardX.summary").text("config", _table(self._config)), 0)
        event = _protocol("event").Event(summary=summary, step=int(steps), wall_time=time.time())
        self._events.write_event(event)


def event_files(folder: Path) -> list[Path]:
    """The event files of a folder, in the order in which they were begun."""
    return sorted(folder.glob("events.out.tfevents.*"), key=lambda file: (_number(file), file.name))


def _number(file: Path) -> int:
    """The number at the end of an event file's name; −1 for one that somebody else put there."""
    return int(file.suffix[1:]) if file.suffix[1:].isdecimal() else -1


def read_events(file: Path) -> Iterator[tuple[Any, int]]:
    """Read the whole events of a file: length (8 bytes), its checksum (4), event, its checksum (4).

    Yields:
        The event, a protocol buffer, and where in the file it ends. What a crash cut short or a disk damaged ends the
        file.
    """
    message, checksum = _protocol("event").Event, import_module("tensorboardX.record_writer").masked_crc32c
    content = file.read_bytes()
    start = 0
    while start + 12 <= len(content):
        length, expected = struct.unpack_from("<QI", content, start)
        end = start + 12 + length + 4
        if checksum(content[start : start + 8]) != expected or end > len(content):
            return
        event = content[start + 12 : end - 4]
        if checksum(event) != struct.unpack_from("<I", content, end - 4)[0]:
            return
        yield message.FromString(event), end
        start = end


def _protocol(name: str) -> Any:
    return import_module(f"tensorboardX.proto.{name}_pb2")


def _table(config: Mapping[str, Any]) -> str:
    """The configuration as a Markdown table, which TensorBoard draws."""
    rows = {name: value for name, value in config.items() if name != "settings"} | dict(config.get("settings", {}))
    lines = [f"| {name} | {json.dumps(value, ensure_ascii=False)} |" for name, value in rows.items()]
    return "\n".join(["| setting | value |", "|---|---|", *lines])
