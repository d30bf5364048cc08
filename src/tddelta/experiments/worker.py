"""A process that trains runs for somebody else, who sends it jobs and hears how they end.

A job is what a run is planned from: names, numbers and text, as JSON. The process that plans and the one that trains
need no other common ground, so that the second may be on another machine.

`python -m tddelta.experiments.worker` reads `{"job": …}` and `{"stop": true}` from its standard input, a line each, and
writes `{"ready": …}` once and `{"outcomes": […]}` after each job. When the standard input ends, because whoever sent
the jobs is gone, it saves the run in progress and leaves.
"""

import functools
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tddelta import errors
from tddelta._streams import hang_ups, lasting_streams
from tddelta.errors import ConfigError, TDDeltaError
from tddelta.experiments.plan import RunPlan, plan_runs
from tddelta.experiments.running import Outcome, describe_origin, train_group
from tddelta.runs import config_hash, is_being_written

PATIENCE = 30.0
"""Seconds to wait for the lock of a run directory: a process that was lost on another machine may still be ending."""


class WorkerError(RuntimeError):
    """A run failed in another process; the message is that of the error there, its traceback is a note."""


def make_job(group: Sequence[RunPlan], options: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Describe runs that differ in their seeds alone, so that another process can train them.

    Args:
        group: The runs.
        options: Keyword arguments of training.
        command: The command line, for `timing.jsonl`.

    Raises:
        ConfigError: A run was planned from objects, which have no name to find them by.
    """
    first = group[0]
    try:
        recipe = None if first.recipe is None else json.loads(json.dumps(first.recipe, allow_nan=False))
    except (TypeError, ValueError):
        recipe = None
    if recipe is None:
        raise ConfigError(
            f"{first.name} has settings, an environment or an agent that are objects, and other processes can only be "
            'told names: name them, as in "package.module:name", or train with compare'
        )
    return {
        "recipe": recipe,
        "seeds": [plan.seed for plan in group],
        "out": str(first.path.absolute().parents[2]),
        "digest": config_hash(first.content),
        "options": dict(options),
        "command": list(command),
    }


@lasting_streams()
def do_job(job: Mapping[str, Any], stop: threading.Event, out: Path | None = None) -> list[dict[str, Any]]:
    """Train the runs of a job.

    Args:
        job: What `make_job` returned.
        stop: When set, the runs save what they have and end.
        out: Folder of the run directories in place of the job's.

    Returns:
        How each run ended, for `read_outcome`.
    """
    try:
        plans = _plan(job["recipe"], job["seeds"], Path(job["out"]) if out is None else out)
        if config_hash(plans[0].content) != job["digest"]:
            raise ConfigError(
                f"{plans[0].name} has other settings in this process than where it was planned: install the same "
                "versions of tddelta, gymnax and your own modules on every machine"
            )
        for plan in plans:
            _wait_until_free(plan.path, stop)
    except Exception as error:  # such as a module of the user's that this machine does not have
        return [_record(seed, "failed", error) for seed in job["seeds"]]
    provenance = _origin(tuple(job["command"]))
    outcomes = train_group(plans, provenance, lambda plan, progress: None, stop, **job["options"])
    return [_record(outcome.plan.seed, outcome.state, outcome.error) for outcome in outcomes]


def _plan(recipe: Mapping[str, Any], seeds: list[int], out: Path) -> list[RunPlan]:
    settings = {name: value for name, value in recipe.items() if name not in ("environment", "agent")}
    tuples: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return plan_runs(recipe["environment"], recipe["agent"], seeds=seeds, out=out, **tuples)


_origin = functools.cache(describe_origin)


def _wait_until_free(path: Path, stop: threading.Event) -> None:
    deadline = time.monotonic() + PATIENCE
    while is_being_written(path) and time.monotonic() < deadline and not stop.wait(0.2):
        pass


def _record(seed: int, state: str, error: Exception | None) -> dict[str, Any]:
    record: dict[str, Any] = {"seed": seed, "state": state}
    if error is not None:
        kind = type(error).__name__
        record |= {"kind": kind, "message": str(error)}
        if not isinstance(error, TDDeltaError):
            record["traceback"] = "".join(traceback.format_exception(error))
    return record


def read_outcome(plan: RunPlan, record: Mapping[str, Any]) -> Outcome:
    """Return how a run ended from what `do_job` said of it: our own kinds of errors are of their kind again."""
    if "message" not in record:
        return Outcome(plan, str(record["state"]))
    kind, message = str(record["kind"]), str(record["message"])
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, TDDeltaError):
        return Outcome(plan, str(record["state"]), known(message))
    error = WorkerError(f"{kind}: {message}")
    if record.get("traceback"):
        error.add_note(f"In the process that trained it:\n{record['traceback']}")
    return Outcome(plan, str(record["state"]), error)


def main() -> None:
    """Do jobs until the standard input ends, or SIGTERM or SIGHUP comes."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what somebody's environment prints is no answer to a job
    sys.path.append(os.getcwd())  # for package.module:name in the folder where the user is
    stop, jobs = threading.Event(), queue.SimpleQueue[dict[str, Any] | None]()

    def leave(*_: object) -> None:
        stop.set()
        jobs.put(None)

    def listen() -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if message.get("stop"):
                stop.set()
            else:
                jobs.put(message["job"])
        leave()

    for number in (signal.SIGTERM, *hang_ups()):
        signal.signal(number, leave)
    threading.Thread(target=listen, name="listen", daemon=True).start()
    try:
        _serve(jobs, stop, lambda answer: print(json.dumps(answer), file=channel, flush=True))
    except BrokenPipeError:  # nobody is there to hear how it ended; the run directory knows
        os._exit(1)


def _serve(
    jobs: "queue.SimpleQueue[dict[str, Any] | None]", stop: threading.Event, say: Callable[[dict[str, Any]], None]
) -> None:
    import jax

    say({"ready": jax.default_backend()})
    while (job := jobs.get()) is not None:
        say({"outcomes": do_job(job, stop)})


if __name__ == "__main__":
    main()
