"""What the agents of a set of runs are called, and the settings in which they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from tddelta.runs import Run, config_hash

BASELINES = ("ppo", "ppo+", "ppo-multi", "PPO", "A2C", "DQN", "SAC")
"""Agents that the others are compared with by default, where they are present; capitals: Stable-Baselines3."""

_ORDER = (*BASELINES, "ppo-delta-difference", "ppo-delta-matched", "ppo-delta")


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was set for a run, as one flat mapping: "learning_rate", "agent.targets", "environment_kwargs.x".

    The seed, the names of environment and agent, and what follows from other settings (the ladder) are left out.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if key in ("format", "seed", "environment", "scales"):
            continue
        if not isinstance(value, Mapping):
            flat[key] = value
    for key in ("agent", "environment_kwargs", "environment_parameters"):
        value = config.get(key)
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": item for name, item in value.items() if (key, name) != ("agent", "name")})
    named = {key.split(".")[0] for key in flat} | {"seed", "environment", "agent", "environment_kwargs"}
    flat.update({key: value for key, value in config.get("settings", {}).items() if key not in named})
    return flat


def agent_names(runs: Sequence[Run]) -> list[str]:
    """Name each run's agent for a reader.

    An agent that was run with one set of settings per environment goes by its own name. Otherwise the settings in
    which its variants differ are added, as in "ppo (learning_rate=0.001)": a hash would say nothing, and would differ
    between environments.
    """
    variants: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    hashes = [config_hash(run.config) for run in runs]
    plain = [str(run.config["agent"]["name"]) for run in runs]
    for run, name, digest in zip(runs, plain, hashes, strict=True):
        variants.setdefault((run.environment, name), {})[digest] = flat_settings(run.config)
    differing: dict[str, dict[str, None]] = {}
    for (_, name), settings in variants.items():
        keys = dict.fromkeys(key for one in settings.values() for key in one)
        found = [key for key in keys if len({repr(one.get(key)) for one in settings.values()}) > 1]
        differing.setdefault(name, {}).update(dict.fromkeys(found))
    names = []
    for run, name, digest in zip(runs, plain, hashes, strict=True):
        rivals = variants[run.environment, name]
        full = _variant(name, rivals[digest], differing[name])
        if [_variant(name, one, differing[name]) for one in rivals.values()].count(full) > 1:
            full = f"{name} ({digest})"
        names.append(full)
    return names


def _variant(name: str, settings: Mapping[str, Any], keys: Mapping[str, None]) -> str:
    chosen = ", ".join(f"{key}={settings.get(key)}" for key in keys)
    return f"{name} ({chosen})" if chosen else name


def base_name(agent: str) -> str:
    """The agent's own name, without the settings of its variant."""
    return agent.split(" (", 1)[0]


def rank(agent: str) -> tuple[int, str]:
    """Sort key: the baselines first, then this library's agents, then others by name."""
    base = base_name(agent)
    return (_ORDER.index(base) if base in _ORDER else len(_ORDER), agent)
