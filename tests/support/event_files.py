"""TensorBoard's event files, read as TensorBoard reads them."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c


def read_events(file: Path) -> Iterator[Any]:
    """The whole events of a file: length (8 bytes), its checksum (4), event, its checksum (4); damage ends the file."""
    content, start = file.read_bytes(), 0
    while start + 12 <= len(content):
        length, checksum = struct.unpack_from("<QI", content, start)
        end = start + 12 + length
        if end + 4 > len(content) or checksum != masked_crc32c(content[start : start + 8]):
            return
        if struct.unpack_from("<I", content, end)[0] != masked_crc32c(content[start + 12 : end]):
            return
        yield Event.FromString(content[start + 12 : end])
        start = end + 4


def curves(folder: Path) -> dict[tuple[str, int], Any]:
    """Every (tag, step) and its value, in the order in which they were written; the start of a session purges."""
    points: dict[tuple[str, int], Any] = {}
    for file in sorted(folder.glob("events.*")):
        for event in read_events(file):
            if event.session_log.status == SessionLog.START:
                points = {place: value for place, value in points.items() if place[1] < event.step}
            for value in event.summary.value:
                assert (value.tag, event.step) not in points, "a (tag, step) came twice"
                points[value.tag, event.step] = value
    return points
