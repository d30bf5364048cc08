"""A Ray cluster that trains runs: one task per run, on whatever machines join and stay.

Ray Core alone, without dashboard, usage statistics and libraries. Its own messages are pickled, so a cluster is as
trustworthy as everybody who can reach it; what comes back from it here is JSON and bytes.
"""

import functools
import json
import logging
import math
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from tddelta.errors import ConfigError, DataError, MissingExtra, TDDeltaError
from tddelta.experiments.plan import RunPlan
from tddelta.experiments.running import Outcome
from tddelta.experiments.worker import do_job, make_job, read_outcome
from tddelta.runs import set_aside

_NAME = re.compile(r"[\w+-][\w.+-]*")  # of a file or folder in a run directory
_WAIT = 1.0  # seconds; Ray waits on after a signal, so that it has to be asked whether one came


def do_task(job: str, folder: str, fetch: bool, environment: Mapping[str, str]) -> tuple[str, dict[str, bytes]]:
    """Train one run on a machine of the cluster.

    Args:
        job: The job, as JSON.
        folder: Where the user's own modules are, if this machine has it.
        fetch: Whether to write into a folder of this machine and return what is there.
        environment: Environment variables that are set unless this machine has its own.

    Returns:
        How the run ended, as JSON; and if `fetch` is set the files of the run directory, by their relative names.
    """
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    if folder not in sys.path and os.path.isdir(folder):
        sys.path.append(folder)
    stop, done, described, found = threading.Event(), threading.Event(), json.loads(job), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="tddelta-") as place:

        def work() -> None:
            try:
                found.extend(do_job(described, stop, Path(place) if fetch else None))
            finally:
                done.set()

        # in a thread of its own: Ray cancels a task by a KeyboardInterrupt in the main one. It comes when a waiting
        # ends, and may not come in the joining of a thread, which then is taken for one that is over.
        threading.Thread(target=work, name="run").start()
        while True:
            try:
                if done.wait(0.5):
                    break
            except KeyboardInterrupt:
                stop.set()
        files = _packed(Path(place)) if fetch else {}
    return json.dumps(found), files


def _packed(place: Path) -> dict[str, bytes]:
    """The files of the one run directory below a folder."""
    configs = [path for path in place.glob("*/*/*") if path.is_dir() and ".unfinished" not in path.name]
    if not configs:
        return {}
    paths = [path for path in configs[0].rglob("*") if path.is_file() and not path.is_symlink()]
    names = {path: path.relative_to(configs[0]) for path in paths}
    # hidden are those that a full disk left unfinished
    whole = {path: name for path, name in names.items() if not any(part.startswith(".") for part in name.parts)}
    return {name.as_posix(): path.read_bytes() for path, name in whole.items()}


def unpack(files: Mapping[str, bytes], path: Path) -> None:
    """Make a run directory of files that another machine sent.

    Args:
        files: Contents by relative names.
        path: The run directory. An unfinished one in its place is renamed first.

    Raises:
        DataError: A name leads out of the directory, or is none that a run has. Nothing is written then.
    """
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or name != "/".join(parts) or not all(_NAME.fullmatch(part) for part in parts):
            raise DataError(f"the cluster sent a file named {name!r}, which no run has: nothing of {path} was written")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        for name, content in files.items():
            place = temporary / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        temporary.chmod(0o777 & ~_umask())
        set_aside(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _knock(address: str) -> None:
    """OSError where nobody is at an address: Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def _visible(path: Path) -> bool:
    if path.parent.is_dir():
        os.listdir(path.parent)  # a network file system looks again
    return (path / "config.json").exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class RayCluster:
    """An executor that trains runs as tasks of a Ray cluster.

    All waiting runs are submitted at once: Ray starts as many as the cluster has room for, also on machines that join
    later, and starts those of a machine that is lost again on others.

    Args:
        address: Address of the cluster, or "auto".
        fetch: Whether the files of a run come back as a result; else the machines write into the study's folder.
        cpus: Processor cores that a run asks for.
        gpus: GPUs that a run asks for.
        retries: How often Ray starts a run again whose machine or process was lost.
        options: Keyword arguments of training.
        command: The command line, for `timing.jsonl`.

    Raises:
        MissingExtra: Ray is not installed.
    """

    def __init__(
        self,
        address: str,
        *,
        fetch: bool = False,
        cpus: float = 1.0,
        gpus: float = 0.0,
        retries: int = 2,
        options: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
    ) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise MissingExtra('a Ray cluster needs ray: pip install "tddelta[ray]"') from error
        self._ray, self._address, self._fetch = ray, address, fetch
        self._resources = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": retries}
        self._environment = {"PJRT_NPROC": str(max(1, math.ceil(cpus)))}
        if not gpus:
            self._environment["JAX_PLATFORMS"] = "cpu"  # Ray may let a task see GPUs that it did not ask for
        elif gpus < 1:
            self._environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * gpus:.3f}"
        self._options, self._command = {"eval_every": None, **(options or {})}, command
        self._tasks: dict[Any, RunPlan] = {}
        self._connected = False

    def __enter__(self) -> "RayCluster":
        if self._ray.is_initialized():
            return self  # the caller's own connection
        try:
            _knock(self._address)
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"there is no Ray cluster at {self._address!r} ({reason}): start one with ray start --head, or name "
                "the address of another with ray=ADDRESS"
            ) from error
        self._connected = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        if self._connected:
            self._ray.shutdown()

    @functools.cached_property
    def _remote(self) -> Any:
        return self._ray.remote(do_task).options(**self._resources)

    def take(self, waiting: Sequence[RunPlan]) -> list[RunPlan]:
        """Submit every run; Ray knows what there is room for."""
        for plan in waiting:
            job = json.dumps(make_job([plan], self._options, self._command))
            self._tasks[self._remote.remote(job, os.getcwd(), self._fetch, self._environment)] = plan
        return list(waiting)

    def news(self, seconds: float | None) -> list[Outcome]:
        """Wait until a task is over."""
        wait = _WAIT if seconds is None else min(seconds, _WAIT)
        if not self._tasks:
            time.sleep(wait)
            return []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=wait)
        return [self._ended(task, self._tasks.pop(task)) for task in ready]

    def _ended(self, task: Any, plan: RunPlan) -> Outcome:
        errors = self._ray.exceptions
        try:
            described, files = self._ray.get(task)
            record = json.loads(described)[0]
            if self._fetch and files:
                unpack(files, plan.path)
            elif record["state"] == "finished" and not _visible(plan.path):
                raise ConfigError(
                    f"{plan.path} was written on a machine of the cluster and is not here: give all of them the "
                    "study's folder under the same name, or let the files come back with ray_fetch=True"
                )
            return read_outcome(plan, record)
        except errors.TaskCancelledError:
            return Outcome(plan, "interrupted")
        except errors.RayTaskError as error:  # such as a machine without tddelta
            text = str(error).strip().splitlines()[-1]
            return Outcome(plan, "failed", TDDeltaError(f"the task failed on the cluster: {text}"))
        except errors.RayError as error:  # Ray has tried as often as it may
            text = str(error).strip().partition("\n")[0]
            return Outcome(plan, "failed", TDDeltaError(f"the cluster lost the run again and again: {text}"))
        except (DataError, ConfigError, OSError) as error:
            return Outcome(plan, "failed", error)

    def wake(self) -> None:
        """Nothing to do: `news` never waits for long."""

    def stop(self) -> None:
        """Cancel every task; one that is running saves its run first."""
        for task in self._tasks:
            self._ray.cancel(task)
