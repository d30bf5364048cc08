"""Train one agent, or compare several: the two calls of the Python interface."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from tddelta._plain import plain
from tddelta.errors import ConfigError
from tddelta.experiments.display import Listener, shown
from tddelta.experiments.plan import plan_runs
from tddelta.experiments.running import recorded_plan, run_plans
from tddelta.runs import Run, Runs, Track


def train(
    environment: Any = None,
    agent: Any = "ppo-delta",
    *,
    steps: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool | str | os.PathLike[str] = False,
    eval_every: int | None = None,
    checkpoint_every: float | None = None,
    track: Track = (),
    presets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    progress: "bool | Listener | None" = None,
    **settings: Any,
) -> Run:
    """Train one agent in one environment with one seed.

    Args:
        environment: Name of the environment, `"package.module:factory"`, or an environment object.
        agent: Name of the agent, `"package.module:agent"`, or an `Agent`.
        steps: Environment steps; None takes the preset's.
        seed: The seed, a whole number ≥ 0.
        out: Folder of the run directory `OUT/ENV/AGENT/seed-N`; None is a new one, `runs/YYYYMMDD-HHMMSS`.
        resume: Return a run that is finished already, and go on with an unfinished one; otherwise an existing run
            directory is an error. A run directory, in place of the environment and of all settings, goes on with
            what is recorded there; nothing that it names is executed.
        eval_every: Environment steps between evaluations during training; None for none.
        checkpoint_every: Seconds between two checkpoints at least; None is 300.
        track: Trackers that follow the run: "tensorboard", "wandb", or functions that make one.
        presets: Preset files, as `tddelta tune` writes them; `settings` win over them.
        progress: Whether to show progress; None shows it on a terminal. A function is called with the `RunPlan` and
            the state of training every second or so.
        **settings: Fields of `ppo.Config` to change, such as `learning_rate=3e-4`.

    Returns:
        The finished run, read from its directory.

    Raises:
        ConfigError: A name or setting is wrong, or the run directory exists already.
        DataError: Not-a-number in a reward, an observation or a loss.
        CheckpointError: The checkpoint to go on from is of a newer format, or does not fit the environment.
        StorageError: The run directory cannot be written. What was saved before is intact.
        KeyboardInterrupt: Ctrl-C, after the run was saved.
    """
    given: dict[str, Any] = {"eval_every": eval_every, "checkpoint_every": checkpoint_every, "track": track or None}
    options = {name: value for name, value in given.items() if value is not None}
    if not isinstance(resume, bool):
        chosen = {"agent": None if agent == "ppo-delta" else agent, "seed": seed or None, "presets": presets or None}
        plan, recorded = recorded_plan(resume, environment=environment, steps=steps, out=out, **chosen, **settings)
        plans, resume, options = [plan], True, recorded | options
    elif environment is None:
        raise ConfigError("train needs an environment; got None: name it first, as in train('CartPole-v1')")
    elif isinstance(plain(seed), Iterable):
        raise ConfigError(f"seed must be a whole number >= 0; got {seed!r}: compare(seeds=...) takes several")
    else:
        plans = plan_runs(environment, agent, seeds=[seed], steps=steps, out=out, presets=presets, **settings)
    outcomes = run_plans(plans, resume=resume, **options, **shown(progress))
    outcomes.raise_signal()
    for _, error in outcomes.failed:
        raise error
    return outcomes.runs[0].run or Run(plans[0].path)  # which says what is wrong with its files


def compare(
    environments: Any,
    /,  # so that the setting `environments`, the number of parallel ones, can be among **settings
    agents: Any,
    *,
    seeds: int | Iterable[int] = 3,
    steps: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    eval_every: int | None = None,
    checkpoint_every: float | None = None,
    track: Track = (),
    presets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    progress: "bool | Listener | None" = None,
    **settings: Any,
) -> Runs:
    """Train every agent in every environment with every seed, as many runs at a time as there are cores.

    Args:
        environments: One environment or several: names, `"package.module:factory"`, or environment objects.
        agents: One agent or several: names, `"package.module:agent"`, or `Agent` objects.
        seeds: A number N ≥ 1 for the seeds 0 … N−1, or the seeds themselves.
        steps: Environment steps per run; None takes the preset's.
        out: Folder of the run directories `OUT/ENV/AGENT/seed-N`; None is a new one, `runs/YYYYMMDD-HHMMSS`.
        resume: Keep the finished runs in `out`, go on with the unfinished ones and start those that are missing;
            otherwise an existing run directory is an error.
        eval_every: Environment steps between evaluations during training; None for none.
        checkpoint_every: Seconds between two checkpoints of a run at least; None is 300.
        track: Trackers that follow every run: "tensorboard", "wandb", or functions that make one.
        presets: Preset files, as `tddelta tune` writes them; `settings` win over them.
        progress: Whether to show progress; None shows it on a terminal. A function is called with the `RunPlan` and
            the state of training of some run every second or so.
        **settings: Fields of `ppo.Config` to change in every run, such as `learning_rate=3e-4`.

    Returns:
        All runs, in order of environment, agent and seed. Those that failed are among them, and a warning names them;
        if all failed, the first error is raised.

    Raises:
        ConfigError: A name or setting is wrong, or a run directory exists already. Nothing has been started then.
        KeyboardInterrupt: Ctrl-C, after the runs in progress were saved.
    """
    plans = plan_runs(environments, agents, seeds=seeds, steps=steps, out=out, presets=presets, **settings)
    options: dict[str, Any] = {"eval_every": eval_every, "checkpoint_every": checkpoint_every, "track": track}
    outcomes = run_plans(plans, resume=resume, **options, **shown(progress))
    outcomes.raise_signal()
    if len(outcomes.failed) == len(plans):
        raise outcomes.failed[0][1]
    outcomes.warn(len(plans), stacklevel=2)
    found = {outcome.plan.path: outcome.run for outcome in outcomes.runs}  # those that were finished before come first
    return Runs([run for plan in plans if (run := found.get(plan.path)) is not None])
