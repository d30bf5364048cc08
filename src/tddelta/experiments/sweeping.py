"""Sweeps: work through a study, say how far it is, make a job array for Slurm of it."""

import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tddelta._plain import whole
from tddelta._streams import lasting_streams
from tddelta.errors import CheckpointError, ConfigError, setting
from tddelta.experiments.display import Board, Display, Entry, RunState, shown
from tddelta.experiments.plan import Outcome, Outcomes, RunPlan, Study, divide, plan_study, read_study
from tddelta.experiments.running import Trainer, Work, run_plans, work_through
from tddelta.experiments.workers import Processes, RayCluster
from tddelta.runs import FORMAT, Runs, check_trackers, files
from tddelta.runs.files import lock_file

MEMORY = "study.json"
"""File in the folder of a study's runs that says which runs it has, and how many seeds were added."""


@dataclass(frozen=True)
class Planned:
    """A study, the number of seeds that each part got beside its own, and the runs."""

    study: Study
    added: int
    plans: Sequence[RunPlan]

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of training."""
        given = {"checkpoint_every": self.study.checkpoint_every, "track": self.study.track}
        return {"eval_every": self.study.eval_every, **{k: value for k, value in given.items() if value is not None}}


def plan(path: Path, add_seeds: int = 0, **changes: Any) -> Planned:
    """Read and plan a study, with the seeds added before and `add_seeds` more; `changes` are fields of `Study`."""
    add_seeds = whole("add_seeds", add_seeds, 0, most=100_000, advice="seeds can only be added")
    study = replace(read_study(path), **changes)
    check_trackers(study.track or ())
    added = _remembered(study).get("added_seeds", 0) + add_seeds
    return Planned(study, added, plan_study(study, added))


def known(path: Path) -> Sequence[RunPlan | Entry]:
    """The runs of a study: from its memory while the file is the same, which is quicker than planning them."""
    study = read_study(path)
    memory = _remembered(study)
    if memory.get("sha256") != study.digest:
        return plan(path).plans
    return [_entry(study, row) for row in memory["runs"]]


def remember(planned: Planned) -> None:
    """Write the memory of a study."""
    study = planned.study
    names = ("environment", "agent", "seed", "path", "steps")
    runs = [{name: getattr(one, name) for name in names} for one in planned.plans]
    for run in runs:
        run["path"] = run["path"].relative_to(study.out).as_posix()
    memory = {"format": FORMAT, "study": study.path.name, "sha256": study.digest, "added_seeds": planned.added}
    study.out.mkdir(parents=True, exist_ok=True)
    files.replace(study.out / MEMORY, files.to_json({**memory, "runs": runs}))


def _remembered(study: Study) -> Mapping[str, Any]:
    place = study.out / MEMORY
    if not place.exists():
        return {}
    advice = f"remove it, and name the seeds in {study.path.name}"
    memory = files.read_json(place, advice)
    version, added = memory.get("format"), memory.get("added_seeds")
    counted = isinstance(added, int) and added >= 0
    if not (isinstance(version, int) and counted and isinstance(memory.get("runs"), list)):
        raise CheckpointError(f"{place} is no memory of a study: {advice}")
    if version > FORMAT:
        raise CheckpointError(
            f"{place} has format {version}, and this tddelta reads up to {FORMAT}: install a newer one"
        )
    return memory


def _entry(study: Study, row: Any) -> Entry:
    """A run as the memory has it, which may be a stranger's."""
    try:
        path = PurePosixPath(row["path"])
        if len(path.parts) == 3 and not path.is_absolute() and ".." not in path.parts:
            names = str(row["environment"]), str(row["agent"])
            return Entry(*names, int(row["seed"]), study.out / path, int(row["steps"]))
    except (KeyError, TypeError, ValueError):
        pass
    raise CheckpointError(f"{study.out / MEMORY} names {row!r}, which is no run of a study: remove that file")


def _claim(out: Path, *, shared: bool = False) -> IO[bytes]:
    """Keep a second sweep out of a folder until what is returned is closed; those that train one run each share it."""
    with files.storing(out):
        out.mkdir(parents=True, exist_ok=True)
    return lock_file(out / ".sweep.lock", "watch it with --status --watch", shared=shared)


def _trainer(
    planned: Planned, workers: int | None, ray: str | None, ray_fetch: bool, command: Sequence[str]
) -> Trainer:
    """Trainer of the runs: processes of this machine, or a Ray cluster."""
    study = planned.study
    shared: dict[str, Any] = {"options": planned.options, "command": command}
    if ray is None:
        if ray_fetch:
            raise ConfigError(
                f"{setting('ray_fetch')} is for a Ray cluster; got no address: name it with {setting('ray', '')}"
            )
        return Processes(workers, **shared)
    if workers is not None:
        raise ConfigError(
            f"{setting('workers')} is for processes of this machine; got {workers} and a Ray cluster: drop one"
        )
    return RayCluster(ray, fetch=ray_fetch, cpus=study.cpus, gpus=study.gpus, retries=study.retries, **shared)


def work(
    planned: Planned,
    *,
    workers: int | None = None,
    ray: str | None = None,
    ray_fetch: bool = False,
    command: Sequence[str] = (),
    say: Callable[[Outcome], str] | None = None,
    **shown: Any,
) -> Outcomes:
    """Train every run of a study that is not finished, as in `sweep`; `say` and `shown` are those of `Display`.

    Raises:
        ConfigError: Another sweep works on the study, or a run directory is not what the study says.
    """
    trainer = _trainer(planned, workers, ray, ray_fetch, command)
    with _claim(planned.study.out):
        if (now := _remembered(planned.study).get("added_seeds", 0)) > planned.added:
            raise ConfigError(f"another sweep added seeds meanwhile, {now} in place of {planned.added}: start it again")
        todo, finished = divide(planned.plans, resume=True)
        remember(planned)
        board = Board(planned.plans, locks=False)
        # What is read of thousands of runs would stay in memory: of those that end now a copy reads it.
        line = None if say is None else lambda outcome: say(outcome if outcome.skipped else replace(outcome))
        with Display(todo, finished, board=board, say=line, **shown) as display:
            return work_through(Work(todo, display, finished, planned.study.retries), trainer)


def work_on_one(planned: Planned, index: int, *, command: Sequence[str] = (), **shown: Any) -> Outcomes:
    """Train the run at one place of a study, from 0, in this process, as a job of a cluster does; see `work`."""
    if not 0 <= index < len(planned.plans):
        raise ConfigError(f"the study has the runs 0 to {len(planned.plans) - 1}; got {index}: name one of them")
    with _claim(planned.study.out, shared=True):
        return run_plans([planned.plans[index]], resume=True, command=command, **planned.options, **shown)


@lasting_streams()
def sweep(
    study: str | os.PathLike[str],
    *,
    workers: int | None = None,
    ray: str | None = None,
    ray_fetch: bool = False,
    add_seeds: int = 0,
    progress: bool | None = None,
) -> Runs:
    """Train every run of a study that is not finished.

    Args:
        study: The TOML file; docs/sweeps.md explains its keys.
        workers: Processes at a time; None is one per core, and one where there is a GPU.
        ray: Address of a Ray cluster to train on, or "auto" for the one that this machine belongs to.
        ray_fetch: Whether what the machines of the cluster write comes back over the network; otherwise they write
            into the folder of the study, which they share.
        add_seeds: How many seeds every part of the study gets more, now and for good.
        progress: Whether to show progress; None shows it on a terminal.

    Returns:
        All runs that have begun, in order of environment, agent and seed. A warning names those that failed.

    Raises:
        ConfigError: The study has a mistake, or another sweep works on it. Nothing has been started then.
        KeyboardInterrupt: Ctrl-C, after the runs in progress were saved.
    """
    planned = plan(Path(study), add_seeds)
    outcomes = work(planned, workers=workers, ray=ray, ray_fetch=ray_fetch, **shown(progress))
    outcomes.raise_signal()
    outcomes.warn(len(planned.plans), stacklevel=3)
    return outcomes.loaded


LARGEST_ARRAY = 1000
"""Jobs of one array. Clusters take indices up to 1000 unless they say otherwise (MaxArraySize 1001)."""

_ARRAY = """\
#!/bin/bash
{opening}{directives}
#SBATCH --array=0-{last}
set -eu
cd {folder}
runs=({runs})
# in the place of the shell, so that the signal reaches it
exec {command} "${{runs[$SLURM_ARRAY_TASK_ID]}}"
"""


def slurm_script(study: Study, states: Sequence[RunState], further: Sequence[str] = ()) -> str:
    """Return the script that `sbatch` takes; for more runs than one array has jobs, one for `bash` that calls `sbatch`.

    A job looks its run up in the list of open runs and calls `tddelta sweep STUDY FURTHER… --only RUN`. Two minutes
    before its time is over Slurm sends it SIGTERM, and it saves its run; the next script goes on from there.

    Raises:
        ConfigError: All runs are finished.
    """
    left = [index for index, state in enumerate(states) if state.state != "finished"]
    if not left:
        raise ConfigError(f"all {len(states)} runs of {study.path} are finished: add seeds with --add-seeds")
    if not all(character.isprintable() for character in str(study.path.absolute())):
        raise ConfigError(f"the name of a study must be printable; got {str(study.path)!r}: rename it or its folder")
    options = {
        "job-name": study.path.stem,
        "output": f"{study.out.absolute()}/slurm/%A_%a.out",
        "cpus-per-task": str(math.ceil(study.cpus)),
        **({"gpus-per-task": str(math.ceil(study.gpus)), "ntasks": "1"} if study.gpus else {}),
        "signal": "B:TERM@120",  # in so many seconds a run can be saved
        "requeue": "",
        **study.slurm,
    }
    directives = [f"#SBATCH --{name}{'=' + _quoted(value) if value else ''}" for name, value in options.items()]
    several = len(left) > LARGEST_ARRAY
    beside = Path(sys.executable).with_name("tddelta")  # which the machines of a cluster share
    program = str(beside) if beside.exists() else "tddelta"
    opening = (
        f"# {len(left)} of {len(states)} runs; to start them: tddelta sweep {study.path.name} --slurm | "
        f"{'bash' if several else 'sbatch'}\n"
    )
    arrays = [
        _ARRAY.format(
            opening="" if several else opening,
            directives="\n".join(directives),
            last=len(runs) - 1,
            folder=shlex.quote(str(study.path.absolute().parent)),
            runs=_ranges(runs),
            command=shlex.join([program, "sweep", study.path.name, *further, "--only"]),
        )
        for runs in (left[begin : begin + LARGEST_ARRAY] for begin in range(0, len(left), LARGEST_ARRAY))
    ]
    if not several:
        return arrays[0]
    return f"#!/bin/bash\n{opening}set -eu\n" + "".join(f"sbatch <<'END'\n{array}END\n" for array in arrays)


def _quoted(value: str) -> str:
    """A value of a directive: `sbatch` reads double quotes, and no shell reads it."""
    return value if value.isascii() and not set(value) & set(" \"'\\") else '"' + value.replace('"', "'") + '"'


def _ranges(numbers: Sequence[int]) -> str:
    """Write increasing numbers as bash reads them, as in "{0..3} 7"."""
    parts: list[list[int]] = []
    for index in numbers:
        if parts and index == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], index]
        else:
            parts.append([index])
    return " ".join(f"{{{part[0]}..{part[1]}}}" if len(part) == 2 else str(part[0]) for part in parts)
