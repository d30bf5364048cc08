"""Where a run comes from: what `timing.jsonl` says of command, versions and machine."""

import itertools
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def origin(command: Sequence[str], packages: Iterable[str], device: str) -> dict[str, Any]:
    """Return command, versions and machine, for the "start" and "resume" lines of `timing.jsonl`.

    Args:
        command: The command line; empty for that of this Python process.
        packages: Names of distributions; those that are not installed are left out.
        device: What computes, as in "cpu: cpu".
    """
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # used from its source tree, or not needed here
            continue
    machine = {
        "processor": _processor(),
        "cores": available_cores(),
        "device": device,
        "system": platform.platform(),
    }
    return {"command": list(command) or ["python", *sys.argv], "versions": versions, "machine": machine}


def available_cores() -> int:
    """Number of processor cores that this process may use, also where a container limits them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # another system, or no limit: "max"
        return cores


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # platform.processor() is empty on most Linux systems
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(itertools.chain(names, [platform.machine()]))
    except OSError:
        return platform.processor() or platform.machine()
