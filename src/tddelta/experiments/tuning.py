"""Search for settings: trials that can be pruned and resumed, then the best one against the preset on other seeds."""

import json
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tddelta._plain import plain, whole
from tddelta._streams import lasting_streams
from tddelta.errors import ConfigError, ContractionWarning, DataError, MissingExtra, own_checks
from tddelta.experiments.display import Display
from tddelta.experiments.execution import available_cores, execute
from tddelta.experiments.judging import RUNGS, Judge, JudgingWatcher, compare_scores, final_score
from tddelta.experiments.loop import Outcome
from tddelta.experiments.plan import RunPlan, divide, folder_of, plan_runs
from tddelta.experiments.search import Space, make_space
from tddelta.experiments.trial_storage import Pruner, Question, open_study
from tddelta.runs import Run, Runs, Track

if TYPE_CHECKING:
    import optuna


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


@own_checks
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
        search: Settings to search, of `search.SEARCHABLE`; None is all that mean something to the agent and are not
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
        **settings: Fields of `ppo.Config` that every trial and the preset have; they are not searched.

    Returns:
        The result; `out/preset.toml` holds the chosen setting for `--preset` and `ppo.preset(file=...)`.

    Raises:
        ConfigError: A name or setting is wrong; the folder holds another search, or is in use.
        DataError: No trial came to its end.
        MissingExtra: Optuna is not installed.
        KeyboardInterrupt: Ctrl-C, after the runs were saved.
    """
    try:
        return run_search(
            environment, agent, trials=trials, steps=steps, search=search, search_seeds=search_seeds,
            evaluation_seeds=evaluation_seeds, seed=seed, pruner=pruner, out=out, resume=resume, track=track,
            progress=progress, **settings,
        )  # fmt: skip
    except Stopped as stopped:
        signal.raise_signal(stopped.number)  # the runs are saved: now it does what it always does
        raise


class Stopped(KeyboardInterrupt):
    """A signal came, and what was in progress has been saved.

    Attributes:
        number: The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@lasting_streams()
def run_search(
    environment: Any,
    agent: Any,
    *,
    trials: int,
    steps: int | None,
    search: Sequence[str] | None,
    search_seeds: int,
    evaluation_seeds: int,
    seed: int,
    pruner: str,
    out: str | os.PathLike[str] | None,
    resume: bool,
    track: Track,
    progress: bool | None,
    command: Sequence[str] = (),
    **settings: Any,
) -> Tuned:
    """`tune`, which explains the arguments, for a caller that handles signals; `command` goes into `timing.jsonl`.

    Raises:
        Stopped: Ctrl-C or SIGTERM, after the runs were saved.
    """
    from tddelta.deep import ppo

    trials = whole("trials", trials)
    search_seeds = whole("search_seeds", search_seeds, most=100_000)
    evaluation_seeds = whole("evaluation_seeds", evaluation_seeds, most=100_000)
    seed = whole("seed", seed, 0)
    settings = plain(settings)
    if pruner not in get_args(Pruner):
        raise ConfigError(f"pruner must be one of {', '.join(get_args(Pruner))}; got {pruner!r}")
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
    with open_study(folder, question, resume=resume) as study:
        searching = _Search(study, space, question, (environment, agent), folder, track, tuple(command), shown)
        searching.go_on(trials)
        return searching.conclude()


def spawn_seeds(seed: int, search: int, evaluation: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Spawn two sets of seeds without a common one; the first n of each do not depend on how many there are.

    Args:
        seed: Where they come from.
        search: Number of search seeds.
        evaluation: Number of evaluation seeds.

    Returns:
        The two sets: even numbers below 2³² for the search, odd ones for the evaluation.
    """
    found = []
    for bit, (source, count) in enumerate(
        zip(np.random.SeedSequence(seed).spawn(2), (search, evaluation), strict=True)
    ):
        drawn = np.random.default_rng(source)
        seeds: dict[int, None] = {}  # in order, each once
        while len(seeds) < count:
            seeds[int(drawn.integers(2**31)) * 2 + bit] = None
        found.append(tuple(seeds))
    return found[0], found[1]


class _Search:
    """One search in progress."""

    def __init__(
        self,
        study: "optuna.Study",
        space: Space,
        question: Question,
        whom: tuple[Any, Any],
        out: Path,
        track: Track,
        command: Sequence[str],
        shown: bool,
    ) -> None:
        self.study, self.space, self.question, self.out = study, space, question, out
        self._whom, self._track, self._command, self._shown = whom, track, command, shown

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
        errors = [outcome.error for outcome in self._train(plans, judge) if outcome.error is not None]
        for error in errors:
            if not isinstance(error, DataError):
                raise error  # no fault of the setting: the trial is begun again when the search is resumed
        if errors:
            trial.set_user_attr("message", str(errors[0]))
            self._end(trial, chosen, TrialState.FAIL, note=f"failed: {errors[0]}")
        elif judge.reach(RUNGS):
            self._end(trial, chosen, TrialState.PRUNED, note="given up")
        else:
            scores = [final_score(Run(plan.path)) for plan in plans]
            if any(map(math.isnan, scores)):
                raise DataError(
                    f"no training episode of {plans[0].environment} ended within {plans[0].config.steps:,} steps: "
                    "pass more of them with steps="
                )
            trial.set_user_attr("scores", scores)
            value = float(np.mean(scores))
            self._end(trial, chosen, TrialState.COMPLETE, value, f"score {value:.5g}")

    def _chosen(self, trial: "optuna.trial.BaseTrial") -> dict[str, Any]:
        """The settings of a trial; none for the preset itself, which would have the same numbers by other settings."""
        chosen = self.space.suggest(trial)
        return {} if trial.user_attrs.get("preset") else chosen

    def _end(
        self,
        trial: "optuna.Trial",
        chosen: Mapping[str, Any],
        state: "optuna.trial.TrialState",
        value: float | None = None,
        note: str = "",
    ) -> None:
        self.study.tell(trial, value, state=state)
        if self._shown:
            texts = [f"{name} {json.dumps(setting)}" for name, setting in chosen.items()]
            print(f"trial {trial.number}, {', '.join(texts) or 'preset'}: {note}", flush=True)

    def _plan(self, part: str, seeds: Sequence[int], chosen: Mapping[str, Any]) -> list[RunPlan]:
        with warnings.catch_warnings():
            # a search tries rules that do not contract on purpose
            warnings.simplefilter("ignore", ContractionWarning)
            return plan_runs(*self._whom, seeds=seeds, out=self.out / part, **self.space.settings(chosen))

    def _train(self, plans: Sequence[RunPlan], judge: Judge | None = None) -> list[Outcome]:
        """Train what is not finished; a trial that is given up stops its runs."""
        todo, finished = divide(plans, resume=True)
        stop = threading.Event()
        with Display(todo, finished, live=self._shown and sys.stderr.isatty()) as display:
            outcomes, number = execute(
                todo,
                display if judge is None else JudgingWatcher(display, judge, stop),
                track=self._track,
                stop=stop,
                command=self._command,
                # a trial is judged where its slowest seed is: all at a time, also on few cores
                workers=None if judge is None else max(available_cores(), len(plans)),
            )
        if number is not None:
            raise Stopped(number)
        return outcomes

    def conclude(self) -> Tuned:
        """Compare the best trial with the preset on the evaluation seeds, and write the preset file."""
        import optuna

        from tddelta.deep.preset_files import write_preset

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
        for outcome in self._train(list({plan.path: plan for plan in (*plans, *others)}.values())):
            if outcome.error is not None:
                raise outcome.error
        preset, tuned = (Runs([Run(plan.path) for plan in some]) for some in (plans, others))
        scores, preset_scores = ([final_score(run) for run in runs] for runs in (tuned, preset))
        difference, interval = compare_scores(scores, preset_scores) if chosen else (0.0, None)
        settings, left_out = _for_file(self.space.settings(chosen))
        found: dict[str, Any] = {
            "trials": len(over),
            "best_trial": best.number,
            "search_seeds": self.question.search_seeds,
            "search_score": best.value,
            "evaluation_seeds": self.question.evaluation_seeds,
            "scores": scores,
            "preset_scores": preset_scores,
            "difference": difference,
        }
        found |= {} if interval is None else {"interval": interval}
        found |= {"left_out": left_out} if left_out else {}
        file = self.out / "preset.toml"
        write_preset(file, self.question.environment, self.question.agent, settings, **found)
        return Tuned(self.out, file, chosen, len(over), states.count("PRUNED"), states.count("FAIL"),
                     float(best.value or 0.0), tuned, preset, difference, interval)  # fmt: skip


def _for_file(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings that a preset file can hold, and the names of the others: objects, and names of code."""
    held: dict[str, Any] = {}
    for name, value in settings.items():
        entries = list(value) if isinstance(value, list | tuple) else [value]
        fits = all(isinstance(entry, str | bool | int | float) for entry in entries)
        if name != "environment_kwargs" and fits and not any(isinstance(e, str) and ":" in e for e in entries):
            held[name] = value
    return held, [name for name in settings if name not in held]
