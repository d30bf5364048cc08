"""Search for settings: trials that can be pruned and resumed, then the best one against the preset on other seeds."""

import errno
import itertools
import json
import math
import os
import signal
import sqlite3
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tddelta._plain import plain, whole
from tddelta._streams import lasting_streams
from tddelta.errors import CheckpointError, ConfigError, ContractionWarning, DataError, MissingExtra, setting
from tddelta.experiments.display import recent_return
from tddelta.experiments.plan import RunPlan, differences, folder_of, plan_runs
from tddelta.experiments.running import available_cores, run_plans
from tddelta.runs import Run, Runs, Track
from tddelta.runs.files import LAST_EPISODES, append_rows, lock, read_rows, storing, upgraded, upgraded_name
from tddelta.timescales import Rule, plain_scales

if TYPE_CHECKING:
    import optuna
    from optuna.trial import TrialState

    from tddelta.deep.config import Config
    from tddelta.deep.training import Progress


Pruner = Literal["median", "halving", "none"]
"""Rule by which trials are given up early: see `tune`."""

STORAGE = "tune.db"
"""Name of the file that remembers the trials: SQLite, of numbers and JSON."""

FORMAT = 2
"""The version of what the file remembers of the question: format 1 named none, and agents had other names."""

_NUMBERS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}
"""The system's error numbers for what prevents SQLite from writing."""


@dataclass(frozen=True)
class Question:
    """Subject of a search, by the arguments of `tune`: remembered, so that it is resumed as it was begun."""

    environment: str
    agent: str
    settings: Mapping[str, Any]
    search: tuple[str, ...]
    pruner: str
    seed: int
    search_seeds: tuple[int, ...]
    evaluation_seeds: tuple[int, ...]


@contextmanager
def open_study(out: Path, question: Question, *, resume: bool) -> "Iterator[optuna.Study]":
    """Open the storage of a search, and keep other processes from it.

    Raises:
        ConfigError: There is one, and it is not to be resumed or about something else; or another process has it open;
            or the folder cannot be made.
        CheckpointError: The storage is damaged or of another version.
        StorageError: The storage cannot be written, now or while it is open.
    """
    import optuna
    import sqlalchemy

    file = out / STORAGE
    if file.exists() and not resume:
        raise ConfigError(
            f"{file} exists already: pass {setting('resume', True)} to go on with that search, or choose another "
            f"folder with {setting('out', '')}"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written to ({error.strerror}): choose another folder with {setting('out', '')}"
        ) from error
    event = {"event": "start", "time": datetime.now(UTC).isoformat(timespec="seconds")}
    append_rows(out / "timing.jsonl", [event])
    with ExitStack() as stack:
        if (held := lock(out)) is not None:
            stack.enter_context(held)
        stack.callback(optuna.logging.set_verbosity, optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would tell of every study on the standard error
        with _as_sentences(file, RuntimeError, ValueError, KeyError, TypeError):
            url = sqlalchemy.engine.URL.create("sqlite", database=str(file))
            storage = optuna.storages.RDBStorage(url.render_as_string(hide_password=False))
            stack.callback(storage.engine.dispose)
            stack.callback(storage.remove_session)
            options: dict[str, Any] = {"direction": "maximize", "pruner": _pruner(question.pruner)}
            study = optuna.create_study(study_name="tune", storage=storage, load_if_exists=True, **options)
            begun = study.user_attrs.get("question")
            begun = None if begun is None else _upgraded_question(begun)
        asked = {"format": FORMAT, **json.loads(json.dumps(asdict(question)))}
        if begun is not None and begun["format"] != FORMAT:
            raise CheckpointError(
                f"{file} has format {begun['format']}, and this tddelta reads up to {FORMAT}: install a newer one"
            )
        if begun is not None and begun != asked:
            raise ConfigError(
                f"{file} is a search for something else, {'; '.join(differences(begun, asked))}: choose another folder "
                f"with {setting('out', '')}"
            )
        with _as_sentences(file):
            if begun is None:
                study.set_user_attr("question", asked)
            yield study


def _upgraded_question(begun: Mapping[str, Any]) -> dict[str, Any]:
    """The remembered question of a search, as this version would have written it."""
    if "format" in begun:
        return dict(begun)
    settings = upgraded(begun["settings"])
    settings["agent"] = upgraded_name(settings["agent"])
    return {**begun, "format": FORMAT, "agent": upgraded_name(begun["agent"]), "settings": settings}


@contextmanager
def _as_sentences(file: Path, *others: type[Exception]) -> Iterator[None]:
    """Say in a sentence what SQLite and Optuna find wrong with a storage, also by errors of other kinds."""
    import optuna
    import sqlalchemy

    kinds: tuple[type[Exception], ...] = sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError
    try:
        yield
    except kinds + others as error:
        database = getattr(error, "orig", getattr(error.__cause__, "orig", None))
        number = _NUMBERS.get(getattr(database, "sqlite_errorcode", 0) & 0xFF)
        if number is None:
            raise CheckpointError(f"{file} is damaged, or of another version of Optuna ({error})") from error
        with storing(file):
            raise OSError(number, str(database)) from error


def _pruner(name: str) -> "optuna.pruners.BasePruner":
    import optuna

    if name == "median":
        # four trials to compare with, and two tenths of the steps before anybody is judged
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=3)
    if name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return optuna.pruners.NopPruner()


SEARCHABLE = ("learning_rate", "lam", "rule", "components", "shortest_horizon", "component_weights")
"""Settings that can be searched."""

_LADDER = ("components", "shortest_horizon")
_RATES = 10.0  # the learning rate varies by this factor up and down from the preset's
_LAMS = (0.6, 0.99)
_COMPONENTS = (2, 8)
_WEIGHTS = (0.25, 4.0)
_SHORTEST = 1.5  # steps


@dataclass(frozen=True)
class Space:
    """Names of the settings that vary, those that every trial has, and the preset with these: where a search starts."""

    names: tuple[str, ...]
    fixed: Mapping[str, Any]
    config: "Config"

    @property
    def longest(self) -> float:
        """The longest finite horizon, in steps."""
        return next(horizon for horizon in reversed(self.config.ladder.horizons) if horizon != float("inf"))

    @property
    def tops(self) -> int:
        """Components that are on the ladder whatever its length: that of γ = 1 has no horizon to divide."""
        return 2 if self.config.ladder.gammas[-1] == 1 else 1

    def bounds(self) -> dict[str, tuple[float, float]]:
        """The bounds of every number that is searched, by name."""
        rate = float(self.config.learning_rate)
        every = {
            "learning_rate": (rate / _RATES, rate * _RATES),
            "lam": _LAMS,
            "components": (max(_COMPONENTS[0], self.tops + 1), max(_COMPONENTS[1], len(self.config.ladder))),
            "shortest_horizon": (_SHORTEST, self.longest / 2),
        }
        return {name: every[name] for name in self.names if name in every}

    def start(self) -> dict[str, Any] | None:
        """The preset as a point of the search; None where it lies outside the bounds."""
        ladder = self.config.ladder
        values: dict[str, Any] = {
            "learning_rate": float(self.config.learning_rate),
            "lam": self.config.lam,
            "rule": self.config.rule or self.config.agent.rule,
            "components": len(ladder),
            "shortest_horizon": ladder.horizons[0],
        }
        point = {name: values[name] for name in self.names if name in values}
        if any(not low <= point[name] <= high for name, (low, high) in self.bounds().items()):
            return None
        if "component_weights" in self.names:
            weights = self.config.component_weights or (1.0,) * (len(ladder) + len(self.config.grow))
            if any(not _WEIGHTS[0] <= weight <= _WEIGHTS[1] for weight in weights):
                return None
            point |= {f"weight_{z}": weight for z, weight in enumerate(weights)}
        return point

    def suggest(self, trial: "optuna.trial.BaseTrial") -> dict[str, Any]:
        """Let the sampler choose, and return the settings of the trial without the fixed ones.

        Number of components n and shortest horizon h_0 make a ladder of n − 1 equal ratios (H/h_0)^{1/(n − 1)}.
        """
        bounds, chosen = self.bounds(), dict[str, Any]()
        for name in [name for name in ("learning_rate", "lam") if name in bounds]:
            chosen[name] = _rounded(trial.suggest_float(name, *bounds[name], log=name == "learning_rate"))
        if "rule" in self.names:
            chosen["rule"] = trial.suggest_categorical("rule", get_args(Rule))
        count = len(self.config.ladder)
        if set(_LADDER) & set(self.names):
            shortest = self.config.ladder.horizons[0]
            if "components" in bounds:
                low, high = bounds["components"]
                count = trial.suggest_int("components", int(low), int(high))
            if "shortest_horizon" in bounds:
                shortest = trial.suggest_float("shortest_horizon", *bounds["shortest_horizon"], log=True)
            ratio = (self.longest / shortest) ** (1 / (count - self.tops))
            others = {name: value for name, value in (self.config.scales or {}).items() if name not in _LADDER}
            chosen["scales"] = {"ladder": "halving", **others, "components": count, "factor": float(f"{ratio:.7g}")}
        if "component_weights" in self.names:
            weights = [
                trial.suggest_float(f"weight_{z}", *_WEIGHTS, log=True) for z in range(count + len(self.config.grow))
            ]
            chosen["component_weights"] = [_rounded(weight) for weight in weights]
        return chosen


def make_space(config: "Config", fixed: Mapping[str, Any], search: Sequence[str] | None) -> Space:
    """Decide what is searched, given the preset with the fixed settings; None is all that mean something to the agent.

    Raises:
        ConfigError: A name is unknown, fixed as well, or means nothing to the agent; or nothing is left.
    """
    agent = config.agent
    if agent.heads == "one":  # a single scale has no ladder, and every rule is the same for it
        able: tuple[str, ...] = ("learning_rate", "lam")
    elif agent.basis == "sum":  # one value: the ladder only says how many outputs it is the sum of
        able = ("learning_rate", "lam", "components")
    else:
        able = SEARCHABLE
    scales = config.scales if isinstance(config.scales, Mapping) else {}
    settled = (set(fixed) | set(scales)) & set(SEARCHABLE)
    if config.scales is not None and (scales.get("ladder") != "halving" or "factor" in scales):
        settled |= set(_LADDER)  # of which nothing is left to search
    start = Space((), fixed, config)
    if len(config.ladder) <= start.tops or start.longest <= 2 * _SHORTEST:  # too short to divide
        able = tuple(name for name in able if name not in _LADDER)
    if search is not None:
        for name in search:
            if name not in SEARCHABLE:
                raise ConfigError(f"{name!r} cannot be searched: choose among {', '.join(SEARCHABLE)}")
            if name not in able:
                raise ConfigError(f"{name} means nothing to {agent.name}: search {', '.join(able)}")
            if name in settled:
                raise ConfigError(f"{name} is to be searched and is fixed by another setting, too: drop one of them")
    names = tuple(name for name in able if name not in settled and (search is None or name in search))
    if not names:
        raise ConfigError(f"nothing is left to search for {agent.name}: fix fewer settings than {sorted(settled)}")
    if "component_weights" in settled and set(_LADDER) & set(names):
        # weights belong to components: their number cannot change any more
        names = tuple(name for name in names if name != "components")
    return Space(names, dict(fixed), config)


def _rounded(value: float) -> float:
    """Four digits: no search tells more apart, and a person can read them."""
    return float(f"{value:.4g}")


RUNGS = 10
"""A trial is judged at every tenth of its steps."""


def final_score(run: Run) -> float:
    """Mean return of the last training episodes of a run; NaN if none ended."""
    found = recent_return(run.episodes)
    return math.nan if found is None else found


def score_at(path: Path, steps: float) -> float:
    """Mean return in the last updates up to some steps in which `LAST_EPISODES` episodes ended; NaN if none ended."""
    rows = [row for row in read_rows(path / "metrics.jsonl") if row["steps"] <= steps]
    count, total = 0, 0.0
    for before, row in reversed([*itertools.pairwise([{"episodes": 0}, *rows])]):
        ended = row["episodes"] - before["episodes"]
        if ended:
            count, total = count + ended, total + ended * row["return_mean"]
        if count >= LAST_EPISODES:
            break
    return total / count if count else math.nan


class Judge:
    """Decides whether a trial is given up, by what its runs of equal steps had reached at every tenth of them."""

    def __init__(self, trial: "optuna.Trial", plans: Sequence[RunPlan]) -> None:
        self._trial, self._plans = trial, plans
        self._total = plans[0].steps
        self._steps = {plan.path: 0 for plan in plans}
        self._rung, self._given_up = 0, False

    def come_to(self, plan: RunPlan, steps: int) -> bool:
        """Hear that a run has come to some steps, and say whether the trial is given up."""
        self._steps[plan.path] = steps
        return self.reach(RUNGS * min(self._steps.values()) // self._total)

    def reach(self, rung: int) -> bool:
        """Judge the trial at every tenth up to this one that has not been judged yet; the last is its score."""
        while self._rung < min(rung, RUNGS - 1) and not self._given_up:
            self._rung += 1
            steps = self._total * self._rung / RUNGS
            value = float(np.mean([score_at(plan.path, steps) for plan in self._plans]))
            if math.isfinite(value):  # else nothing has ended yet
                self._trial.report(value, self._rung)
                self._given_up = bool(self._trial.should_prune())
        return self._given_up


@dataclass(frozen=True)
class Tuned:
    """Result of a search.

    Attributes:
        out: The folder: `tune.db`, `trials/`, `evaluation/`, `preset.toml`.
        file: The preset file, `OUT/preset.toml`.
        settings: What was chosen, without the settings that were fixed; empty where no trial beat the preset.
        trials: Trials in all.
        pruned: Trials that were given up early.
        failed: Trials that met a number that is not finite.
        score: Score of the best trial on the search seeds: too good, since it was picked for it.
        chosen: Runs of the chosen setting on the evaluation seeds.
        preset: Runs of the preset on the evaluation seeds.
        difference: Mean score of the chosen setting minus that of the preset, on the evaluation seeds.
        interval: 95 % interval of the difference by Welch's t; None where seeds do not vary or there is one only.
    """

    out: Path
    file: Path
    settings: Mapping[str, Any]
    trials: int
    pruned: int
    failed: int
    score: float
    chosen: Runs
    preset: Runs
    difference: float
    interval: tuple[float, float] | None


class Stopped(KeyboardInterrupt):
    """A signal came, and what was in progress has been saved.

    Attributes:
        number: The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def tune(
    environment: Any,
    agent: Any = "ppo-delta",
    *,
    trials: int = 30,
    steps: int | None = None,
    search: Sequence[str] | None = None,
    search_seeds: int = 2,
    evaluation_seeds: int = 5,
    seed: int = 0,
    pruner: Pruner = "median",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    track: Track = (),
    progress: bool | None = None,
    command: Sequence[str] | None = None,
    **settings: Any,
) -> Tuned:
    """Search for settings of one agent in one environment, then compare the best with the preset on other seeds.

    A trial trains the search seeds with one setting; its score is the mean over seeds of the mean return of the last
    100 training episodes. The first trial is the preset. The others are proposed by Optuna's TPE sampler, and the same
    seed proposes the same, also where the search was interrupted and resumed: trials are judged by environment steps,
    never by the clock.

    Args:
        environment: Name of the environment, `"package.module:factory"`, or an environment object.
        agent: Name of the agent, `"package.module:agent"`, or an `Agent`.
        trials: Number of trials in all, ≥ 1; pruned and failed ones count.
        steps: Environment steps of every run; None takes the preset's.
        search: Settings to search, of `SEARCHABLE`; None is all that mean something to the agent and are not
            among `settings`.
        search_seeds: Seeds per trial, ≥ 1. They train at the same time.
        evaluation_seeds: Seeds of the comparison, ≥ 1. Search and evaluation seeds are spawned from `seed` and differ.
        seed: A whole number ≥ 0 that all of this follows from.
        pruner: "median" gives a trial up that is below the median of the earlier ones at the same tenth of its steps;
            "halving" keeps the better third at steps 1/10, 3/10 and 9/10 (successive halving); "none" never does.
        out: Folder of the search; None is a new one, `runs/YYYYMMDD-HHMMSS`.
        resume: Go on with the search in `out`; otherwise an existing one is an error. More `trials` than before add
            some.
        track: Trackers that follow every run.
        progress: Whether to show progress; None shows it on a terminal.
        command: The command line, for `timing.jsonl`, of a caller that handles signals itself: it gets `Stopped`.
        **settings: Fields of `ppo.Config` that every trial and the preset have; they are not searched.

    Returns:
        The result; `out/preset.toml` holds the chosen setting for `--preset` and `ppo.preset(file=...)`.

    Raises:
        ConfigError: A name or setting is wrong; the folder holds another search, or is in use.
        DataError: No trial came to its end.
        MissingExtra: Optuna is not installed.
        KeyboardInterrupt: Ctrl-C, after the runs were saved.
    """
    from tddelta.deep import ppo

    trials = whole("trials", trials)
    search_seeds = whole("search_seeds", search_seeds, most=100_000)
    evaluation_seeds = whole("evaluation_seeds", evaluation_seeds, most=100_000)
    seed = whole("seed", seed, 0)
    settings = plain(settings)
    if "scales" in settings:
        settings["scales"] = plain_scales(settings["scales"])
    if pruner not in get_args(Pruner):
        raise ConfigError(f"{setting('pruner')} must be one of {', '.join(get_args(Pruner))}; got {pruner!r}")
    if steps is not None:
        settings = {**settings, "steps": steps}
    config = ppo.preset(environment, agent, **settings)
    space = make_space(config, {**settings, "steps": config.steps}, search)
    spawned = spawn_seeds(seed, search_seeds, evaluation_seeds)
    recorded = json.loads(json.dumps(config.to_dict()))
    named = config.environment_object().name, config.agent.name
    question = Question(*named, recorded, space.names, pruner, seed, *spawned)
    if find_spec("optuna") is None:
        raise MissingExtra('a search needs optuna: pip install "tddelta[tune]"')
    folder = folder_of(out)
    shown = sys.stderr.isatty() if progress is None else progress
    try:
        with lasting_streams(), open_study(folder, question, resume=resume) as study:
            whom = environment, agent
            searching = _Search(study, space, question, whom, folder, track, tuple(command or ()), shown)
            searching.go_on(trials)
            return searching.conclude()
    except Stopped as stopped:
        if command is None:
            signal.raise_signal(stopped.number)  # the runs are saved: now it does what it always does
        raise


def spawn_seeds(seed: int, search: int, evaluation: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Spawn so many search seeds, even numbers below 2³², and so many evaluation seeds, odd ones.

    The first n of each do not depend on how many there are.
    """
    found = []
    sources = np.random.SeedSequence(seed).spawn(2)
    for bit, count in enumerate((search, evaluation)):
        drawn = np.random.default_rng(sources[bit])
        seeds: dict[int, None] = {}  # in order, each once
        while len(seeds) < count:
            seeds[int(drawn.integers(2**31)) * 2 + bit] = None
        found.append(tuple(seeds))
    return found[0], found[1]


@dataclass
class _Search:
    """One search in progress."""

    study: "optuna.Study"
    space: Space
    question: Question
    whom: tuple[Any, Any]
    out: Path
    track: Track
    command: Sequence[str]
    shown: bool

    def go_on(self, trials: int) -> None:
        """Work on trials until there are enough; one that was interrupted comes first."""
        import optuna

        states = optuna.trial.TrialState
        for trial in self.study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            # its process is gone, since this one holds the lock: the same setting again finds its run directories
            superseded = self.study.user_attrs.get("superseded", [])
            if trial.number not in superseded:
                self.study.set_user_attr("superseded", [*superseded, trial.number])
                self.study.enqueue_trial(trial.params, user_attrs={"preset": trial.user_attrs.get("preset", False)})
            self.study.tell(trial.number, state=states.FAIL)
        start = self.space.start()
        if not self.study.get_trials(deepcopy=False) and start is not None:
            self.study.enqueue_trial(start, user_attrs={"preset": True})
        while (count := len(self._over())) < trials:
            # A sampler of its own per trial: what it draws depends on the trials before it, not on when it was made.
            drawn = np.random.SeedSequence(self.question.seed, spawn_key=(2, count)).generate_state(1)
            self.study.sampler = optuna.samplers.TPESampler(seed=int(drawn[0]))
            self._work_on(self.study.ask())

    def _over(self) -> "list[optuna.trial.FrozenTrial]":
        """Trials that are over, without those that were begun again."""
        import optuna

        states = optuna.trial.TrialState
        superseded = self.study.user_attrs.get("superseded", [])
        over = self.study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED, states.FAIL))
        return [trial for trial in over if trial.number not in superseded]

    def _work_on(self, trial: "optuna.Trial") -> None:
        from optuna.trial import TrialState

        chosen = self._chosen(trial)
        plans = self._plan("trials", self.question.search_seeds, chosen)
        trial.set_user_attr("settings", chosen)
        trial.set_user_attr("runs", [plan.path.relative_to(self.out).as_posix() for plan in plans])
        judge = Judge(trial, plans)
        errors = self._train(plans, judge)
        for error in errors:
            if not isinstance(error, DataError):
                raise error  # no fault of the setting: the trial is begun again when the search is resumed
        if errors:
            trial.set_user_attr("message", str(errors[0]))
            self._end(trial, TrialState.FAIL, f"failed: {errors[0]}")
        elif judge.reach(RUNGS):
            self._end(trial, TrialState.PRUNED, "given up")
        else:
            scores = [final_score(Run(plan.path)) for plan in plans]
            if any(map(math.isnan, scores)):
                raise DataError(
                    f"no training episode of {plans[0].environment} ended within {plans[0].config.steps:,} steps: "
                    f"pass more of them with {setting('steps', '')}"
                )
            trial.set_user_attr("scores", scores)
            value = float(np.mean(scores))
            self._end(trial, TrialState.COMPLETE, f"score {value:.5g}", value)

    def _chosen(self, trial: "optuna.trial.BaseTrial") -> dict[str, Any]:
        """The settings of a trial; none for the preset itself, which would have the same numbers by other settings."""
        chosen = self.space.suggest(trial)
        return {} if trial.user_attrs.get("preset") else chosen

    def _end(self, trial: "optuna.Trial", state: "TrialState", note: str, value: float | None = None) -> None:
        self.study.tell(trial, value, state=state)
        if self.shown:
            texts = [f"{name} {json.dumps(setting)}" for name, setting in trial.user_attrs["settings"].items()]
            print(f"trial {trial.number}, {', '.join(texts) or 'preset'}: {note}", flush=True)

    def _plan(self, part: str, seeds: Sequence[int], chosen: Mapping[str, Any]) -> list[RunPlan]:
        with warnings.catch_warnings():
            # a search tries rules that do not contract on purpose
            warnings.simplefilter("ignore", ContractionWarning)
            return plan_runs(*self.whom, seeds=seeds, out=self.out / part, **{**self.space.fixed, **chosen})

    def _train(self, plans: Sequence[RunPlan], judge: Judge | None = None) -> list[Exception]:
        """Train what is not finished, and return what failed; a trial that is given up stops its runs."""
        stop = threading.Event()

        def report(plan: RunPlan, progress: "Progress") -> None:
            if judge is not None and progress.phase != "compiling" and judge.come_to(plan, progress.steps):
                stop.set()

        outcomes = run_plans(
            plans,
            resume=True,
            track=self.track,
            command=self.command,
            stop=stop,
            # a trial is judged where its slowest seed is: all at a time, also on few cores
            workers=None if judge is None else max(available_cores(), len(plans)),
            live=self.shown and sys.stderr.isatty(),
            report=report,
        )
        if outcomes.signal is not None:
            raise Stopped(outcomes.signal)
        return [error for _, error in outcomes.failed]

    def conclude(self) -> Tuned:
        """Compare the best trial with the preset on the evaluation seeds, and write the preset file."""
        import optuna

        from tddelta.deep.config import write_preset
        from tddelta.report.statistics import Welch, welch_test  # seconds, which nobody else here needs

        over = self._over()
        states = [trial.state.name for trial in over]
        if "COMPLETE" not in states:
            messages = sorted({trial.user_attrs.get("message", "given up") for trial in over})
            raise DataError(
                f"none of {len(over)} trials came to its end ({'; '.join(messages)}): add some, or search less"
            )
        best = self.study.best_trial
        # from its numbers, not from what the storage says of settings: a stranger's may name code
        chosen = self._chosen(optuna.trial.FixedTrial(best.params)) if not best.user_attrs.get("preset") else {}
        plans = self._plan("evaluation", self.question.evaluation_seeds, {})
        others = self._plan("evaluation", self.question.evaluation_seeds, chosen)
        for error in self._train(list({plan.path: plan for plan in (*plans, *others)}.values())):
            raise error
        preset, tuned = (Runs([Run(plan.path) for plan in some]) for some in (plans, others))
        scores, preset_scores = ([final_score(run) for run in runs] for runs in (tuned, preset))
        welch = welch_test(scores, preset_scores) if chosen else Welch(0.0)
        settings, left_out = _for_file({**self.space.fixed, **chosen})
        found: dict[str, Any] = {
            "trials": len(over),
            "best_trial": best.number,
            "search_seeds": self.question.search_seeds,
            "search_score": best.value,
            "evaluation_seeds": self.question.evaluation_seeds,
            "scores": scores,
            "preset_scores": preset_scores,
            "difference": welch.difference,
        }
        found |= {} if welch.interval is None else {"interval": welch.interval}
        found |= {"left_out": left_out} if left_out else {}
        file = self.out / "preset.toml"
        write_preset(file, self.question.environment, self.question.agent, settings, **found)
        return Tuned(self.out, file, chosen, len(over), states.count("PRUNED"), states.count("FAIL"),
                     float(best.value or 0.0), tuned, preset, welch.difference, welch.interval)  # fmt: skip


def _for_file(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings that a preset file can hold, and the names of the others: objects, and names of code."""
    held: dict[str, Any] = {}
    for name, value in settings.items():
        several = value.values() if isinstance(value, Mapping) else value
        entries = several if isinstance(value, list | tuple | Mapping) else [value]
        fits = all(isinstance(entry, str | bool | int | float) for entry in entries)
        if name != "environment_kwargs" and fits and not any(isinstance(e, str) and ":" in e for e in entries):
            held[name] = value
    return held, [name for name in settings if name not in held]
