"""`sweep`: work through a study. `tune`: search for settings. `critics`: compare critics of a frozen policy."""

import dataclasses
import json
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tyro.conf import Positional, arg

from tddelta._plain import imported
from tddelta.cli.reading import option, print_notes, print_report, print_table
from tddelta.cli.training import (
    Tracker,
    explain,
    folder_and_repetition,
    folder_and_resumption,
    settings_of,
    shown,
    stopped,
)
from tddelta.errors import ConfigError, printable
from tddelta.runs import Runs, readable_runs

if TYPE_CHECKING:
    from tddelta.experiments.sweeping import Planned
    from tddelta.experiments.tuning import Tuned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune:
    """Search for settings, then compare the best with the preset on seeds that the search has not seen.

    A trial trains some seeds with one setting. The first is the preset, Optuna proposes the others, and a trial that
    falls behind is given up early. A setting that is named as an option is fixed; the others are searched: learning
    rate, λ, trace rule, number of components, shortest horizon, weight of each component.

    OUT/preset.toml holds what was found: train and compare take it as --preset, a study of sweep under presets.
    OUT/tune.db holds the trials, so that --resume goes on with the search; OUT/report.html draws the comparison.

    Example: tddelta tune CartPole-v1 --trials 30 --steps 100_000 --gamma 0.999 --out runs/tuned
    """

    environment: Annotated[Positional[str], arg(metavar="ENV")]
    """gymnax id such as Breakout-MinAtar or CartPole-v1, or package.module:factory."""
    agent: str = "ppo-delta"
    """ppo, ppo+, ppo-multi, ppo-delta, ppo-delta-bootstrap, ppo-delta-matched, or package.module:agent."""
    trials: int = 30
    """Trials in all; those that are given up count."""
    steps: Annotated[int | None, option("INT", "default: the environment's preset")] = None
    """Environment steps of every run, rounded up to whole updates."""
    search: Annotated[tuple[str, ...] | None, option("SETTING [SETTING ...]", "default: all that can be")] = None
    """Settings to search: learning_rate, lam, rule, components, shortest_horizon, component_weights."""
    search_seeds: int = 2
    """Seeds of a trial; they train at the same time."""
    evaluation_seeds: int = 5
    """Seeds of the comparison at the end; none of them is a search seed."""
    seed: int = 0
    """Seed from which all those seeds and the proposals come."""
    pruner: Literal["median", "halving", "none"] = "median"
    """Give up a trial below the median of earlier ones, all but the better third (successive halving), or none."""
    out: Annotated[Path | None, option("DIR", "default: runs/YYYYMMDD-HHMMSS")] = None
    """Folder of the search."""
    resume: bool = False
    """Go on with the search in --out; more --trials than before add some."""
    track: Annotated[tuple[Tracker, ...], option("tensorboard|wandb [...]")] = ()
    """Let TensorBoard or Weights & Biases follow every run."""
    env_kwargs: Annotated[tuple[str, ...], option("KEY=VALUE [...]|JSON")] = ()
    """Keyword arguments of the environment, as key=value or one JSON object."""
    json: bool = False
    """Print the result as one JSON object on the standard output, and nothing else."""

    def run(self, command: Sequence[str]) -> int:
        """Search, compare, report."""
        from tddelta.experiments.tuning import Stopped, tune

        out, again = folder_and_resumption(self, command)
        try:
            tuned = tune(
                self.environment, self.agent, trials=self.trials, steps=self.steps, search=self.search,
                search_seeds=self.search_seeds, evaluation_seeds=self.evaluation_seeds, seed=self.seed,
                pruner=self.pruner, out=out, resume=self.resume, track=self.track,
                progress=not self.json, command=command, **settings_of(self),
            )  # fmt: skip
        except Stopped as error:
            return stopped(error.number, "what was in progress is saved", again)
        runs = readable_runs(out / "evaluation", loaded=[*tuned.chosen, *tuned.preset])
        # without its table, which is too wide where agents differ in all that was searched
        print_report(runs, out, baselines(tuned, runs), table=False)
        print(json.dumps(summarize(tuned), allow_nan=False) if self.json else "\n".join(describe(tuned)))
        print(f"preset: {tuned.file}", file=sys.stderr if self.json else sys.stdout)
        return 0


def baselines(tuned: "Tuned", runs: Runs) -> list[str] | None:
    """Name of the preset in a report of the runs, where there is something to compare with it."""
    from tddelta.report.run_set import agent_names

    if not tuned.settings:
        return None
    return [next(name for run, name in zip(runs, agent_names(runs), strict=True) if run is tuned.preset[0])]


def summarize(tuned: "Tuned") -> dict[str, Any]:
    """Return the result as a strict JSON object."""
    numbers = {name: getattr(tuned, name) for name in ("trials", "pruned", "failed", "difference", "interval")}
    return {"preset": str(tuned.file), "settings": dict(tuned.settings), "search_score": tuned.score, **numbers}


def describe(tuned: "Tuned") -> list[str]:
    """Return the result in sentences."""
    lines = [f"{tuned.trials} trials, {tuned.pruned} given up early, {tuned.failed} failed"]
    if not tuned.settings:
        return [*lines, "no trial was better than the preset: keep it"]
    lines.append("best: " + ", ".join(f"{name} {json.dumps(value)}" for name, value in tuned.settings.items()))
    text = f"on {len(tuned.chosen)} other seeds {tuned.difference:+.4g} against the preset"
    if tuned.interval is None:
        return [*lines, f"{text}, without an interval: that needs seeds whose scores differ"]
    low, high = tuned.interval
    verdict = "better" if low > 0 else "worse: keep the preset" if high < 0 else "no clear difference"
    return [*lines, f"{text}, 95 % interval by Welch's t {low:+.4g} to {high:+.4g}: {verdict}"]


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
    workers: Annotated[int | None, option("INT", "default: one per core, one on a GPU")] = None
    """Processes that train at a time."""
    ray: Annotated[str | None, option("auto|ADDRESS", "default: this machine alone")] = None
    """Ray cluster to train on; auto is the one that this machine belongs to."""
    ray_fetch: bool = False
    """Let results come back over the network; otherwise the machines share the study's folder."""
    slurm: bool = False
    """Print a job array for sbatch, one job per unfinished run, and train nothing."""
    only: Annotated[int | None, option("INDEX", "default: all")] = None
    """Train one run in this process: its place in the study, from 0."""
    add_seeds: Annotated[int, arg(metavar="INT")] = 0
    """Seeds that every part of the study gets more, now and for good."""
    checkpoint_every: Annotated[float | None, option("SECONDS", "default: the study's")] = None
    """Seconds between checkpoints."""
    track: Annotated[tuple[str, ...], option("tensorboard|wandb", "default: the study's")] = ()
    """Trackers that follow every run."""
    preset: Annotated[tuple[Path, ...], option("FILE [...]", "default: the study's")] = ()
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
            _plan_on_cpu()
        from tddelta.experiments.sweeping import plan, work, work_on_one

        planned = plan(self.study, self.add_seeds, **self._changes())
        if self.slurm:
            self._print_script(planned)
            return 0
        if self.only is not None:
            outcomes = work_on_one(planned, self.only, command=command, **shown(json=self.json))
        else:
            where: dict[str, Any] = {"workers": self.workers, "ray": self.ray, "ray_fetch": self.ray_fetch}
            outcomes = work(planned, command=command, **where, **shown(json=self.json))
        explain(outcomes, self)
        done, number = outcomes.finished, outcomes.signal
        count = len(planned.plans) if self.only is None else 1
        out = sys.stderr if self.json or number is not None else sys.stdout
        print(f"{done} of {count} runs are finished: {planned.study.out}", file=out)
        if done < count:
            print(f"to go on: {shlex.join(_without_seeds(command))}", file=sys.stderr)
        return 128 + number if number is not None else 0 if done == count else 1

    def _print_script(self, planned: "Planned") -> None:
        from tddelta.experiments.display import Board
        from tddelta.experiments.sweeping import LARGEST_ARRAY, remember, slurm_script

        text = slurm_script(planned.study, Board(planned.plans).look(), self._options())
        remember(planned)
        (planned.study.out / "slurm").mkdir(exist_ok=True)
        print(text, end="")
        if (arrays := text.count("#SBATCH --array")) > 1:
            print(
                f"tddelta: {arrays} arrays of at most {LARGEST_ARRAY:,} jobs, since clusters take no larger "
                "indices (MaxArraySize): pipe this script into bash in place of sbatch, and it submits them all",
                file=sys.stderr,
            )

    def _changes(self) -> dict[str, Any]:
        """Fields of the study in whose place an option stands."""
        given = {"checkpoint_every": self.checkpoint_every, "track": self.track, "presets": self.preset}
        return {name: value for name, value in given.items() if value not in (None, ())}

    def _options(self) -> list[str]:
        """The same on the command line of another process."""
        every = () if self.checkpoint_every is None else (str(self.checkpoint_every),)
        presets = [str(path.absolute()) for path in self.preset]
        given = {"--checkpoint-every": every, "--track": self.track, "--preset": presets}
        return [word for name, words in given.items() if words for word in (name, *words)]

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
        from rich.console import Console
        from rich.live import Live

        from tddelta.experiments.display import Board, summary, sweep_table, table
        from tddelta.experiments.sweeping import known

        board, console = Board(known(self.study)), Console()
        states = board.look()
        if self.watch:
            with Live(console=console, auto_refresh=False) as live:
                while True:  # until no run is in progress or to come
                    live.update(sweep_table(states, width=console.width, height=console.height - 1), refresh=True)
                    if not any(state.state in ("running", "waiting") for state in states):
                        return 0
                    time.sleep(1.0)
                    states = board.look()
        if self.json:
            for state in states:
                print(json.dumps(state.to_dict(), allow_nan=False))
            return 0
        console.print(table(states, width=console.width))
        print(summary(states))
        for state in states:
            if state.message is not None:
                print(printable(f"{state.entry.name}: {state.message}"))
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Critics:
    """Compare critics of one frozen policy: does a split help your value function?

    Critics of every form learn from the same streams of the policy, which stays as it is; their V is compared with the
    returns that follow held-out states. λ and learning rate of each form are chosen on seeds that are not reported.

    It ends with a table and OUT/report.html. What is finished is kept in --out: the same command goes on there.

    Example: tddelta critics runs/SpaceInvaders-MinAtar/ppo/seed-0 --forms ppo ppo-delta-bootstrap --reward-noise 1

    Example: tddelta critics my_policies:act --environment gym:LunarLander-v3 --gamma 0.999
    """

    apart: ClassVar = (
        *("lam", "learning_rate", "entropy_coefficient", "normalize_advantages", "shared_trunk"),
        *("anneal_learning_rate", "actor_lam", "shards", "grow", "component_weights"),
    )

    policy: Annotated[Positional[str], arg(metavar="RUN|MODULE:ACT")]
    """A run directory, or a function of yours act(observations) -> actions of a batch, or a model with predict."""
    environment: Annotated[str | None, option("ENV")] = None
    """The environment of a function or a model; of a run, only where it is one of your own."""
    env_kwargs: Annotated[tuple[str, ...], option("KEY=VALUE [...]|JSON")] = ()
    """Keyword arguments of that environment, as key=value or one JSON object."""
    forms: Annotated[tuple[str, ...], arg(metavar="AGENT [AGENT ...]")] = (
        *("ppo", "ppo-multi", "ppo-delta", "ppo-delta-bootstrap"),
    )
    """Agents whose critics are compared, the baseline first; AGENT@λ is one with that λ alone, as in ppo@1."""
    lam: tuple[float, ...] = (0.8, 0.9, 0.95, 1.0)
    """λ of the traces, several to choose from."""
    learning_rate: Annotated[tuple[float, ...], option("FLOAT [FLOAT ...]", "default: the run's or the preset's")] = ()
    """Adam's step size, several to choose from."""
    budgets: tuple[int, ...] = (25_000, 50_000, 100_000, 200_000)
    """Environment steps after which critics are measured."""
    seeds: int = 10
    """Number of reported seeds: 0, 1, …, N−1."""
    seed_list: Annotated[tuple[int, ...] | None, option("INT [INT ...]")] = None
    """The reported seeds themselves, in place of --seeds."""
    tuning_seeds: tuple[int, ...] = (100, 101, 102, 103, 104)
    """Seeds on which λ and learning rate are chosen."""
    measure: Literal["centred", "error"] = "centred"
    """Error for the choice and the tests: the variance of V̂ − V over held-out states, or the mean of its square."""
    states: int = 512
    """Held-out states."""
    continuations: int = 32
    """Continuations of each in a device environment."""
    truth_seed: int = 0
    """Seed of held-out states and continuations."""
    out: Annotated[Path | None, option("DIR", "default: runs/YYYYMMDD-HHMMSS")] = None
    """Folder of the study."""
    json: bool = False
    """Print one JSON object per form and budget on the standard output, and nothing else."""

    def run(self, command: Sequence[str]) -> int:
        """Train the critics, print, write the page."""
        from tddelta.experiments.critics import critics
        from tddelta.runs.files import plain

        out, again = folder_and_repetition(self.out, command)
        same = ("environment", "forms", "lam", "budgets", "tuning_seeds", "measure", "states", "continuations")
        try:
            study = critics(
                self._policy(),
                learning_rate=self.learning_rate or None,
                seeds=self.seeds if self.seed_list is None else list(self.seed_list),
                truth_seed=self.truth_seed,
                out=out,
                say=lambda text: print(text, file=sys.stderr, flush=True),
                command=command,
                **{name: getattr(self, name) for name in same},
                **settings_of(self),
            )
        except KeyboardInterrupt:
            return stopped(signal.SIGINT, f"what is finished is in {out}", again)
        page = study.write()
        if self.json:
            for record in study.error_table.records:
                print(json.dumps(plain(record), allow_nan=False))
        else:
            rows = study.summary()
            print_table(list(rows[0]), [list(row.values()) for row in rows])
            print_notes([*study.error_table.notes, *study.difference_table.notes])
        print(f"report: {page}", file=sys.stderr if self.json else sys.stdout)
        return 0

    def _policy(self) -> Any:
        if ":" not in self.policy or Path(self.policy).exists():
            return Path(self.policy)
        found = imported(self.policy, "policy")
        if isinstance(found, str | Path):
            raise ConfigError(f"{self.policy} is {found!r}, no policy: name a function act or a model with predict")
        return found


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
