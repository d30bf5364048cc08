"""The command that works through a study: `sweep`."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from tddelta.errors import ConfigError, printable

if TYPE_CHECKING:
    from tddelta.experiments.board import RunState
    from tddelta.experiments.loop import Outcome
    from tddelta.experiments.sweeping import Planned


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Train every run of a study: a TOML file of environments, agents, seeds and settings.

    Runs are OUT/ENV/AGENT/seed-N, as those of compare, with OUT in the folder of the file. What is finished is skipped,
    what was interrupted goes on, what failed is tried again; so the same command starts a study and goes on with it.

    Ctrl-C saves the runs in progress and stops. A second Ctrl-C stops at once.

    Example: tddelta sweep study.toml --workers 2
    """

    study: Annotated[Positional[Path], arg(metavar="STUDY")]
    """TOML file."""
    workers: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: one per core, one on a GPU)")] = (
        None
    )
    """Processes that train at a time."""
    ray: Annotated[str | None, arg(metavar="auto|ADDRESS", help_behavior_hint="(default: this machine alone)")] = None
    """Ray cluster to train on; auto is the one that this machine belongs to."""
    ray_fetch: bool = False
    """Let results come back over the network; otherwise the machines share the study's folder."""
    slurm: bool = False
    """Print a job array for sbatch, one job per unfinished run, and train nothing."""
    only: Annotated[int | None, arg(metavar="INDEX", help_behavior_hint="(default: all)")] = None
    """Train one run in this process: its place in the study, from 0."""
    add_seeds: Annotated[int, arg(metavar="INT")] = 0
    """Seeds that every part of the study gets more, now and for good."""
    checkpoint_every: Annotated[float | None, arg(metavar="SECONDS", help_behavior_hint="(default: the study's)")] = (
        None
    )
    """Seconds between checkpoints."""
    track: Annotated[
        tuple[str, ...], arg(metavar="tensorboard|wandb", help_behavior_hint="(default: the study's)")
    ] = ()
    """Trackers that follow every run."""
    preset: Annotated[tuple[Path, ...], arg(metavar="FILE [...]", help_behavior_hint="(default: the study's)")] = ()
    """Preset files that tune wrote, each for the agent and the environment that it names."""
    status: bool = False
    """Show how far every run is, and train nothing."""
    watch: bool = False
    """With --status: keep showing it until all runs are over or Ctrl-C."""
    json: bool = False
    """Print one JSON object per run on the standard output, and nothing else."""

    def run(self, command: Sequence[str]) -> int:
        """Work through the study, or say how far it is."""
        self._check()
        if self.status:
            return self._status()
        if self.only is None:
            if self.ray is None and not self.slurm:
                _check_platforms()
            _plan_on_cpu()
        from tddelta.experiments import slurm
        from tddelta.experiments.board import Board, entries
        from tddelta.experiments.display import describe, summarize
        from tddelta.experiments.sweeping import executor, plan, remember, work, work_on_one

        planned = plan(self.study, self.add_seeds, **self._changes())
        if self.slurm:
            text = slurm.script(planned.study, Board(entries(planned.plans)).look(), self._options())
            remember(planned)
            (planned.study.out / "slurm").mkdir(exist_ok=True)
            print(text, end="")
            if (arrays := text.count("#SBATCH --array")) > 1:
                print(
                    f"tddelta: {arrays} arrays of at most {slurm.LARGEST_ARRAY:,} jobs, since clusters take no larger "
                    "indices (MaxArraySize): pipe this script into bash in place of sbatch, and it submits them all",
                    file=sys.stderr,
                )
            return 0

        def say(outcome: "Outcome") -> str:
            return json.dumps(summarize(outcome), allow_nan=False) if self.json else describe(outcome)

        if self.only is not None:
            outcomes, number = work_on_one(planned, self.only, say=say, command=command)
        else:
            trainer = executor(planned, workers=self.workers, ray=self.ray, ray_fetch=self.ray_fetch, command=command)
            outcomes, number = work(planned, trainer, live=sys.stderr.isatty(), say=say)
        return self._end(planned, outcomes, number, command)

    def _end(
        self, planned: "Planned", outcomes: "Sequence[Outcome]", number: int | None, command: Sequence[str]
    ) -> int:
        from tddelta.cli.training import explain

        explain([outcome for outcome in outcomes if outcome.error is not None], self)
        out = sys.stderr if self.json or number is not None else sys.stdout
        done = sum(outcome.state == "finished" for outcome in outcomes)
        count = len(planned.plans) if self.only is None else 1
        print(f"{done} of {count} runs are finished: {planned.study.out}", file=out)
        if done < count:
            print(f"to go on: {shlex.join(_without_seeds(command))}", file=sys.stderr)
        return 128 + number if number is not None else 0 if done == count else 1

    def _changes(self) -> dict[str, Any]:
        """Fields of the study in whose place an option stands."""
        given = {"checkpoint_every": self.checkpoint_every, "track": self.track, "presets": self.preset}
        return {name: value for name, value in given.items() if value not in (None, ())}

    def _options(self) -> list[str]:
        """The same on the command line of another process."""
        every = [] if self.checkpoint_every is None else ["--checkpoint-every", str(self.checkpoint_every)]
        track = ["--track", *self.track] if self.track else []
        return [*every, *track, *(["--preset", *(str(path.absolute()) for path in self.preset)] if self.preset else [])]

    def _check(self) -> None:
        """ConfigError for options that contradict each other."""
        given = {"slurm": self.slurm, "only": self.only is not None, "status": self.status, "ray": self.ray is not None}
        chosen = [name for name, is_given in given.items() if is_given]
        if len(chosen) > 1:
            raise ConfigError(f"--{chosen[0]} and --{chosen[1]} exclude each other: drop one")
        if self.watch and not self.status:
            raise ConfigError("--watch goes with --status: write tddelta sweep STUDY --status --watch")
        if self.watch and self.json:
            raise ConfigError("--watch shows a table, which is no JSON: drop --json")
        if self.workers is not None and chosen:
            raise ConfigError(f"--workers has no meaning with --{chosen[0]}; got {self.workers}: drop it")
        if self.add_seeds and (self.status or self.only is not None):
            raise ConfigError(
                f"--add-seeds changes the study, and --{chosen[0]} must not; got {self.add_seeds}: drop one"
            )

    def _status(self) -> int:
        from tddelta.experiments.board import Board, summary
        from tddelta.experiments.sweeping import known

        board = Board(known(self.study))
        if self.watch:
            _watch(board.look)
        elif self.json:
            for state in board.look():
                print(json.dumps(state.to_dict(), allow_nan=False))
        else:
            from rich.console import Console

            from tddelta.experiments.sweep_display import table

            console = Console()
            states = board.look()
            console.print(table(states, width=console.width))
            print(summary(states))
            for state in states:
                if state.message is not None:
                    print(printable(f"{state.entry.name}: {state.message}"))
        return 0


def _watch(look: Callable[[], "list[RunState]"]) -> None:
    """Show the table until no run is in progress or to come."""
    from rich.console import Console
    from rich.live import Live

    from tddelta.experiments.sweep_display import sweep_table

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            states = look()
            live.update(sweep_table(states, width=console.width, height=console.height - 1), refresh=True)
            if not any(state.state in ("running", "waiting") for state in states):
                return
            time.sleep(1.0)


def _check_platforms() -> None:
    """Refuse a JAX_PLATFORMS that would end every process that trains: one process tries it."""
    if os.environ.get("JAX_PLATFORMS") in (None, "", "cpu"):
        return
    tried = subprocess.run([sys.executable, "-c", "import tddelta.deep"], stderr=subprocess.PIPE, text=True)
    if tried.returncode:
        raise ConfigError(tried.stderr.rpartition("ConfigError: ")[2].strip())


def _plan_on_cpu() -> None:
    """Leave the memory of a GPU to the processes that train, unless somebody has begun to use it here."""
    if "jax" not in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")


def _without_seeds(command: Sequence[str]) -> list[str]:
    """The command without --add-seeds N: what was added is remembered."""
    left: list[str] = []
    given = iter(command)
    for word in given:
        name = word.partition("=")[0].replace("_", "-")
        if name != "--add-seeds":
            left.append(word)
        elif "=" not in word:
            next(given, None)
    return left
