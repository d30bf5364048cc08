"""A display that writes down what it is told, a program in a process of its own, and what it shows on a terminal."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tddelta.experiments.display import Display

PLACES = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
"""Path by which a process finds what is beside this file, and all that this process finds."""


class Told(Display):
    """Writes down what it is told, and by which thread; `do` is called with each."""

    def __init__(self, plans=(), *arguments, do=lambda *what: None, **options):
        super().__init__(plans, *arguments, **options)
        self.told, self.threads, self._do = [], set(), do

    def _tell(self, *what):
        self.told.append(what)
        self.threads.add(threading.current_thread())
        self._do(*what)

    def begin(self, plan):
        super().begin(plan)
        self._tell("begin", plan.seed)

    def progress(self, plan, progress):
        super().progress(plan, progress)
        self._tell("progress", plan.seed)

    def retry(self, outcome):
        super().retry(outcome)
        self._tell("again", outcome.plan.seed, outcome.state)

    def end(self, outcome):
        super().end(outcome)
        self._tell("end", outcome.plan.seed, outcome.state, *(["skipped"] if outcome.skipped else []))

    def stopping(self):
        super().stopping()
        self._tell("stopping")

    def ended(self):
        return [what[1:] for what in self.told if what[0] == "end"]


def start(*command, **options):
    """Start Python with arguments, such as "-c" and a program."""
    streams = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, *command], **{**streams, "text": True, "env": os.environ | PLACES, **options}
    )


def spawned(process):
    """The numbers of the processes that a process has spawned to train in."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(one) for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def on_a_terminal(*command, columns=120):
    """Run Python with arguments on a terminal of its own; what it shows."""
    master, slave = os.openpty()
    environment = os.environ | PLACES | {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
    process = start(*command, stdin=slave, stdout=slave, stderr=slave, text=False, env=environment)
    os.close(slave)
    shown = b""
    with suppress(OSError):  # the other end is closed
        while True:
            shown += os.read(master, 65_536)
    os.close(master)
    assert process.wait(timeout=60) == 0
    return shown.decode()
