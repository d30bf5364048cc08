"""Job arrays for Slurm: one job per run that is not finished."""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tddelta.errors import ConfigError
from tddelta.experiments.display import RunState
from tddelta.experiments.plan import Study

_NOTICE = 120
"""Seconds before the end of a job's time in which it can save its run."""


LARGEST_ARRAY = 1000
"""Jobs of one array. Clusters take indices up to 1000 unless they say otherwise (MaxArraySize 1001)."""


def script(study: Study, states: Sequence[RunState], further: Sequence[str] = ()) -> str:
    """Return the script that `sbatch` takes; for more runs than one array has jobs, one for `bash` that calls `sbatch`.

    A job looks its run up in the list of open runs and runs `tddelta sweep STUDY --only RUN`: it skips a run that is
    finished meanwhile and goes on with one that was interrupted. Two minutes before its time is over Slurm sends it
    SIGTERM, and it saves its run; the next script goes on from there.

    Args:
        study: The study.
        states: How far its runs are, in the order of the study.
        further: Options of `tddelta sweep` that every job is to have.

    Raises:
        ConfigError: All runs are finished.
    """
    left = [index for index, state in enumerate(states) if state.state != "finished"]
    if not left:
        raise ConfigError(f"all {len(states)} runs of {study.path} are finished: add seeds with --add-seeds")
    folder = study.path.absolute().parent
    if not all(character.isprintable() for character in str(study.path.absolute())):
        raise ConfigError(f"the name of a study must be printable; got {str(study.path)!r}: rename it or its folder")
    logs = study.out.absolute() / "slurm"
    options = {
        "job-name": study.path.stem,
        "output": f"{logs}/%A_%a.out",
        "cpus-per-task": str(math.ceil(study.cpus)),
        **({"gpus-per-task": str(math.ceil(study.gpus)), "ntasks": "1"} if study.gpus else {}),
        "signal": f"B:TERM@{_NOTICE}",
        "requeue": "",
        **study.slurm,
    }
    directives = [f"#SBATCH --{name}{'=' + _quoted(value) if value else ''}" for name, value in options.items()]
    command = [*_program(), "sweep", study.path.name, *further, "--only"]
    opening = f"# {len(left)} of {len(states)} runs; to start them: tddelta sweep {study.path.name} --slurm |"

    def array(runs: Sequence[int]) -> list[str]:
        return [
            "#!/bin/bash",
            *directives,
            f"#SBATCH --array=0-{len(runs) - 1}",
            "set -eu",
            f"cd {shlex.quote(str(folder))}",
            f"runs=({_ranges(runs)})",
            # in the place of the shell, so that the signal reaches it
            f'exec {shlex.join(command)} "${{runs[$SLURM_ARRAY_TASK_ID]}}"',
        ]

    chunks = [left[begin : begin + LARGEST_ARRAY] for begin in range(0, len(left), LARGEST_ARRAY)]
    if len(chunks) == 1:
        first, *others = array(left)
        lines = [first, f"{opening} sbatch", *others]
    else:
        lines = ["#!/bin/bash", f"{opening} bash", "set -eu"]
        for chunk in chunks:
            lines += ["sbatch <<'END'", *array(chunk), "END"]
    return "\n".join(lines) + "\n"


def _program() -> list[str]:
    """The command of this installation, which the machines of a cluster share."""
    beside = Path(sys.executable).with_name("tddelta")
    return [str(beside)] if beside.exists() else ["tddelta"]


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
