"""Going on with a run from its directory alone: what `config.json` records, without executing anything it names."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tddelta.errors import CheckpointError, ConfigError
from tddelta.experiments.plan import RunPlan, differences
from tddelta.runs import TRACKERS, Run, one_run

if TYPE_CHECKING:
    from tddelta.deep.ppo import Config

_NAMED = ("eval_every", "checkpoint_every")

_FOLLOWING = ("actor_lam", "reward_discount")
"""Settings that follow others where they are None; `config.json` records the number that they come to."""


def unset(config: "Config") -> list[str]:
    """Settings that `config.json` records as a number although they have none of their own."""
    return [name for name in _FOLLOWING if getattr(config, name) is None]


def recorded_plan(path: str | os.PathLike[str]) -> tuple[RunPlan, dict[str, Any]]:
    """Plan to go on with the run that a directory records.

    Args:
        path: A run directory, or a folder with exactly one.

    Returns:
        The run, and with what it was last trained that is no setting: `eval_every`, `checkpoint_every` and `track`,
        where they are known.

    Raises:
        ConfigError: There is not one run; or its environment, network or agent is somebody's own; or this version
            would train it with other settings.
        CheckpointError: `config.json` is damaged.
    """
    run = one_run(path, "name one of them, or repeat the command that started them with its out= and resume=True")
    options = _options(run)
    try:
        config = _config(run, options.pop("unset", []))
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{run.path / 'config.json'} is no complete config of a run ({error!r})") from error
    from tddelta.deep import training

    content = json.loads(json.dumps(training.run_config(config, run.seed), allow_nan=False))
    if other := differences(run.config, content):
        raise ConfigError(
            f"{run.path} would be trained with other settings by this version, {'; '.join(other)}: go on with the "
            "version that timing.jsonl names, or start it anew"
        )
    plan = RunPlan(run.environment, run.agent, run.seed, run.path, config, content)
    return plan, options


def _config(run: Run, without: list[str]) -> Any:
    from tddelta.deep.agents import AGENTS
    from tddelta.deep.policy import config_of

    repeat = "repeat the command that started it, with its out= and resume=True"
    agent = AGENTS.get(str(run.config["agent"]["name"]))
    if agent is None or agent.to_dict() != run.config["agent"]:
        raise ConfigError(f"the agent {run.config['agent']['name']!r} of {run.path} is not part of tddelta: {repeat}")
    try:
        config = config_of(run.config)
    except ConfigError as error:
        if "is not part of tddelta" not in str(error):
            raise
        raise ConfigError(f"{str(error).rpartition(': pass')[0]}: {repeat}") from error
    # given as a number it would enter the program at another place, and round otherwise
    changes: dict[str, Any] = {"agent": agent, **dict.fromkeys(without)}
    return dataclasses.replace(config, **changes)


def _options(run: Run) -> dict[str, Any]:
    """The options that the last start or resumption was called with."""
    for event in reversed(run.timing):
        options = event.get("options")
        if event.get("event") in ("start", "resume") and isinstance(options, Mapping):
            found = {name: options[name] for name in _NAMED if isinstance(options.get(name), int | float)}
            trackers = options.get("track")
            without = options.get("unset")
            return found | {
                "track": tuple(name for name in TRACKERS if isinstance(trackers, list) and name in trackers),
                "unset": [name for name in _FOLLOWING if isinstance(without, list) and name in without],
            }
    return {}
