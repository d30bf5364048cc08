"""Settings per environment as data, and the check of settings before anything is compiled."""

import dataclasses
import json
import math
import os
import tomllib
import types
import typing
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import equinox as eqx
import jax
import numpy as np

from tddelta._plain import blamed, closest, is_number, plain, reference, tidy, unquoted, whole
from tddelta.deep import environments as known_environments
from tddelta.deep.agents import Agent, resolve
from tddelta.deep.config import Config, RewardClipping, Scale, TimeLimit, kinds
from tddelta.deep.networks import ACTIVATIONS, Channels, is_image
from tddelta.deep.tasks import HostEnvironment, Task
from tddelta.errors import ConfigError, ContractionWarning, setting
from tddelta.runs.files import replace, upgraded
from tddelta.runs.reader import a_path
from tddelta.timescales import FORMER, Rule, TimeScales, names_discounts, plain_scales

FORMAT = 2
"""The version of the file's layout. A reader refuses a newer one."""

_PARTS = ("format", "environment", "agent", "settings", "tuning")
_APART = ("environment", "environment_kwargs", "agent")  # named by the file itself, or by who uses it
_NAMES = tuple(field.name for field in dataclasses.fields(Config) if field.name not in _APART)


@dataclasses.dataclass(frozen=True)
class PresetFile:
    """Settings for one agent in one environment.

    Attributes:
        path: The file.
        environment: Name of the environment.
        agent: Name of the agent.
        settings: Fields of `Config` and their values.
    """

    path: Path
    environment: str
    agent: str
    settings: Mapping[str, Any]

    @property
    def whose(self) -> str:
        """Agent and environment in words."""
        return f"{self.agent} on {self.environment}"

    def is_for(self, environment: Any, agent: str | Agent, environment_kwargs: Any = ()) -> bool:
        """Whether the settings were made for this agent in this environment."""
        if resolve(agent).name != self.agent:
            return False
        if isinstance(environment, str):
            short = known_environments.SHORT_NAMES
            return short.get(environment, environment) == short.get(self.environment, self.environment)
        return known_environments.resolve(environment, dict(environment_kwargs)).name == self.environment


def read_preset(path: str | os.PathLike[str]) -> PresetFile:
    """Read a preset file.

    Args:
        path: A TOML file with `format`, `environment`, `agent` and a table `settings`.

    Raises:
        ConfigError: The file is missing, is no preset file, is of a newer format, names an unknown setting, or names
            code to run.
    """
    path = a_path(path, "a preset file", "a file that tune wrote")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read as a preset file ({reason}): name one that tune wrote") from error
    for name in found:
        if name not in _PARTS:
            raise ConfigError(f"{path}: unknown key {name!r}: {closest(name, _PARTS)}")
    version = found.get("format")
    if type(version) is not int or version < 1:
        raise ConfigError(f"{path} must say format = {FORMAT}; got {version!r}: is it a preset file?")
    if version > FORMAT:
        raise ConfigError(f"{path} has format {version}, and this tddelta reads up to {FORMAT}: install a newer one")
    environment, agent, settings = found.get("environment"), found.get("agent"), found.get("settings")
    if not (isinstance(environment, str) and isinstance(agent, str) and isinstance(settings, dict)):
        raise ConfigError(f"{path} must name an environment, an agent and a table [settings]: is it a preset file?")
    settings = upgraded(settings)
    for name, value in settings.items():
        if name not in _NAMES:
            raise ConfigError(f"{path}: unknown setting {name!r}: {closest(name, _NAMES)}")
        if isinstance(value, str) and ":" in value:
            raise ConfigError(
                f"{path}: {name} = {value!r} names code, and a preset file holds values only: drop it there, and "
                f"pass it yourself, with {name}="
            )
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return PresetFile(path, environment, agent, plain)


def with_preset_files(
    files: Sequence[PresetFile], whom: Sequence[tuple[Any, str | Agent]], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Put the settings of files under those that were given.

    Args:
        files: Preset files.
        whom: Pairs of an environment and an agent.
        settings: Settings of all pairs, which win over a file's.

    Returns:
        The settings of each pair: with those of the file that was made for it, if there is one.

    Raises:
        ConfigError: A file is for none of the pairs, or two are for the same.
    """
    merged = [dict(settings) for _ in whom]
    taken: dict[int, PresetFile] = {}
    for file in files:
        kwargs = settings.get("environment_kwargs", ())
        mine = [place for place, (environment, agent) in enumerate(whom) if file.is_for(environment, agent, kwargs)]
        if not mine:
            raise ConfigError(f"{file.path} holds settings for {file.whose}, which is not trained here: leave it out")
        for place in mine:
            if place in taken:
                raise ConfigError(f"{taken[place].path} and {file.path} are both for {file.whose}: pass one of them")
            taken[place] = file
            merged[place] = {**file.settings, **settings}
    return merged


def write_preset(path: Path, environment: str, agent: str, settings: Mapping[str, Any], **tuning: Any) -> None:
    """Write a preset file.

    Args:
        path: The file; one that is there is replaced.
        environment: Name of the environment.
        agent: Name of the agent.
        settings: Fields of `Config` and their values: numbers, names, lists of them.
        **tuning: How they were found, for people to read.
    """
    lines = [f"format = {FORMAT}", f"environment = {_toml(environment)}", f"agent = {_toml(agent)}"]
    for title, table in (("settings", settings), ("tuning", tuning)):
        if table or title == "settings":
            lines += ["", f"[{title}]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
    replace(path, ("\n".join(lines) + "\n").encode())


def _toml(value: Any) -> str:
    """A value as TOML writes it: strings, numbers and lists are as in JSON."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {_toml(entry)}' for name, entry in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


NETWORKS = ("mlp", "minatar-conv", "nature-conv")
"""Networks with a name."""

NETWORK_SETTINGS = ("hidden_sizes", "filters", "activation", "shared_trunk", "component_trunks", "image_channels")
"""Settings of those networks; a network of somebody's own has its own."""

_MOST = 2**31 - 1  # what the indices of compiled programs can count
_BATCH = f"{setting('environments')} × {setting('rollout_length')}"
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config)}
_WORDS: Mapping[str, Any] = {
    "component_scale": Scale,
    "time_limit": TimeLimit,
    "reward_clipping": RewardClipping,
    "image_channels": Channels,
    "rule": Rule,
}
"""Settings that are one of a few words."""

_MINATAR: Mapping[str, Any] = {"learning_rate": 1e-3, "activation": "relu"}
_CLASSIC: Mapping[str, Any] = {
    "learning_rate": 1e-3,
    "environments": 16,
    "steps": 500_000,
}
# Romoff et al. 2019.
_IMAGES: Mapping[str, Any] = {
    "network": "nature-conv",
    "activation": "relu",
    "shared_trunk": True,
    "environments": 8,
    "minibatches": 4,
    "clip": 0.1,
    "anneal_learning_rate": False,
    "steps": 10_000_000,
}
_CONTINUOUS: Mapping[str, Any] = {
    "environments": 16,
    "rollout_length": 256,
    "epochs": 10,
    "minibatches": 32,
    "learning_rate": 3e-4,
    "entropy_coefficient": 0.0,
    "normalize_observations": True,
    "normalize_rewards": True,
    "steps": 1_000_000,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "Atari": {**_IMAGES, "reward_clipping": "sign"},
    "gym, images": _IMAGES,
    # Too small for the convolutions of `_IMAGES`: what a pixel may be is unknown, so it is standardised.
    "gym, small images": {**_CLASSIC, "steps": 1_000_000, "normalize_observations": True},
    "gym, continuous actions": _CONTINUOUS,
    "gym": {**_CLASSIC, "steps": 1_000_000},
    "Asterix-MinAtar": _MINATAR,
    "Breakout-MinAtar": _MINATAR,
    # A game of Freeway always lasts 2,500 steps: the limit is the end of the game.
    "Freeway-MinAtar": {**_MINATAR, "time_limit": "terminate"},
    "Seaquest-MinAtar": _MINATAR,
    "SpaceInvaders-MinAtar": _MINATAR,
    "CartPole-v1": _CLASSIC,
    "Acrobot-v1": _CLASSIC,
    "MountainCar-v0": _CLASSIC,
    "Pendulum-v1": {
        **_CLASSIC,
        "epochs": 10,
        "entropy_coefficient": 0.0,
        "normalize_observations": True,
        "normalize_rewards": True,
        "gamma": 0.95,
    },
    "Catch-bsuite": {**_CLASSIC, "steps": 200_000},
    # An episode is 2,000 steps, and one decision.
    "tddelta.deep.probes:LongDelay": {"learning_rate": 1e-3, "rollout_length": 256},
    # The observation holds the time, and nothing comes after step 100.
    "DiscountingChain-bsuite": {**_CLASSIC, "steps": 300_000, "time_limit": "terminate"},
}
"""What differs from the defaults of `Config`, by environment; or by kind, for every Atari game ("Atari") and for
Gymnasium's environments ("gym")."""


def preset(
    environment: Any,
    agent: str | Agent = "ppo-delta",
    *,
    file: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Config:
    """The settings for an environment: defaults, its preset, those of a file, then what the caller names.

    Args:
        environment: See `environments.resolve`.
        agent: Name, "package.module:agent" or Agent.
        file: A preset file for this agent in this environment, as `tddelta tune` writes it.
        **overrides: Any field of `Config`.

    Raises:
        ConfigError: If a name is unknown or a value cannot work; the sentence says what to do.
    """
    if file is not None:
        overrides = with_preset_files([read_preset(file)], [(environment, agent)], overrides)[0]
    config = unchecked(environment, agent, **overrides)
    check(config)
    return config


def unchecked(environment: Any, agent: str | Agent, **overrides: Any) -> Config:
    """`preset` without the check of what the settings mean together, and its warnings."""
    names = tuple(kinds())
    for name in overrides:
        if name in FORMER:
            raise ConfigError(
                f"{setting(name)} is part of scales now; got {overrides[name]!r}: pass "
                f"{setting('scales', FORMER[name])}, say"
            )
        if name not in names:
            raise ConfigError(f"unknown setting {name!r}: {closest(name, names)}")
    environment = tidy(environment)
    overrides = {name: plain(value) for name, value in overrides.items()}
    options = known_environments.keywords(environment, overrides.pop("environment_kwargs", ()))
    settings: dict[str, Any] = {**_preset_of(environment, options, overrides), **overrides}
    settings["scales"] = plain_scales(settings.get("scales"))
    if names_discounts(settings["scales"]) and "gamma" not in overrides:
        settings["gamma"] = TimeScales.of(settings["scales"]).gammas[-1]
    if not isinstance(environment, str):
        # What a program is compiled for needs a hash, and parameters that are arrays have none.
        environment = known_environments.resolve(environment, options)
    for name in NETWORK_SETTINGS:
        if name in overrides and own_network(settings.get("network", "mlp")):
            raise ConfigError(
                f"{setting(name)} is for the networks {', '.join(NETWORKS)}; got {overrides[name]!r} for a network of "
                "your own: build it into that"
            )
    return Config(
        environment=environment, environment_kwargs=tuple(sorted(options.items())), agent=resolve(agent), **settings
    )


def _preset_of(environment: Any, options: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The preset of an environment, without what a network of one's own has no use for."""
    made = known_environments.resolve(environment, options)
    if not isinstance(made, HostEnvironment):
        key = known_environments.SHORT_NAMES.get(environment, environment) if isinstance(environment, str) else None
        return dict(PRESETS.get(key, {})) if key else {}
    kind = "gym" if made.discrete else "gym, continuous actions"
    if made.rom is not None:
        kind = "Atari"
    elif len(made.observation_shape) == 3 and made.storage == np.uint8:
        asked = overrides.get("image_channels", "auto") != "auto" or overrides.get("network") == "nature-conv"
        kind = "gym, images" if asked or is_image(made.observation_space) else "gym, small images"
    found = dict(PRESETS[kind])
    if overrides.get("network", "nature-conv") != "nature-conv" and "network" in found:
        # These belong to that network.
        found = {name: value for name, value in found.items() if name not in ("network", *NETWORK_SETTINGS)}
    return found


def own_network(network: Any) -> bool:
    """Whether a network is somebody's own, a function or "package.module:function"."""
    return ":" in network if isinstance(network, str) else callable(network)


def check(config: Config) -> None:
    """Refuse settings that cannot work, before anything is compiled.

    Raises:
        ConfigError: With the setting, its value and what to do.
    """
    _check_kinds(config)
    _check_sizes(config)
    _check_values(config)
    _check_together(config)
    # Whether the ladder and the network can be made shows when they are; shapes suffice.
    last = config.ladder.gammas[-1]
    environment = config.environment_object()
    if isinstance(environment, HostEnvironment) and config.shards > 1:
        raise ConfigError(
            f"shards are for device environments, and {environment.name} runs on the host; got {config.shards}: "
            "drop them"
        )
    if last == 1 and config.time_limit == "truncate" and (environment.time_limit or math.inf) > 1_000_000:
        warnings.warn(
            f"gamma 1 has a finite value only if episodes end, and {environment.name} names no time limit: "
            "use gamma below 1 unless they do",
            ContractionWarning,
            stacklevel=3,
        )
    _check_network(config, environment)


def _check_sizes(config: Config) -> None:
    """Whole numbers, and what has to divide what."""
    for name in ("steps", "environments", "rollout_length", "epochs", "minibatches", "filters", "shards"):
        whole(name, getattr(config, name), most=2**63 - 1 if name == "steps" else _MOST)
    for size in config.hidden_sizes if min(config.hidden_sizes, default=0) > 0 else ():
        whole("hidden_sizes", size, most=_MOST)
    if config.batch > _MOST or config.updates > _MOST:
        counted = _BATCH if config.batch > _MOST else f"{setting('steps')} / ({_BATCH})"
        raise ConfigError(
            f"{counted} must be at most {_MOST:,}; got {max(config.batch, config.updates):,}: "
            f"pass fewer {'of them' if config.batch > _MOST else 'steps'}"
        )
    if config.environments % config.shards:
        raise ConfigError(
            f"{setting('shards')} must divide {setting('environments')} = {config.environments}; got {config.shards}: "
            f"use {_divisor(config.environments, config.shards)}"
        )
    batch = config.batch // config.shards
    if batch % config.minibatches and config.shards > 1:
        raise ConfigError(
            f"{setting('minibatches')} must divide {setting('environments')} / {setting('shards')} × "
            f"{setting('rollout_length')} = {batch}; got {config.minibatches}: use "
            f"{_divisor(batch, config.minibatches)}, or fewer shards"
        )
    if config.batch % config.minibatches:
        raise ConfigError(
            f"{setting('minibatches')} must divide {_BATCH} = {config.batch}; got {config.minibatches}: "
            f"use {_divisor(config.batch, config.minibatches)}"
        )


def _check_values(config: Config) -> None:
    """Each setting by itself: its range, or its name among those that are known."""
    for name in ("learning_rate", "max_gradient_norm", "clip", "adam_epsilon"):
        _check_number(name, getattr(config, name), above=True)
    for name in ("entropy_coefficient", "value_coefficient"):
        _check_number(name, getattr(config, name), above=False)
    for name in ("gamma", "lam", "actor_lam", "reward_discount"):
        value = getattr(config, name)
        if isinstance(value, (int, float)) and not 0 <= value <= 1:
            raise ConfigError(f"{setting(name)} must be in [0, 1]; got {value!r}")
    for name, kind in _WORDS.items():
        value, choices = getattr(config, name), get_args(kind)
        if value not in choices and not (name == "rule" and value is None):
            raise ConfigError(f"{setting(name)} must be one of {', '.join(choices)}; got {value!r}")
    if config.activation not in ACTIVATIONS:
        raise ConfigError(f"unknown activation {config.activation!r}: {closest(config.activation, tuple(ACTIVATIONS))}")
    if isinstance(config.network, str) and config.network not in NETWORKS and ":" not in config.network:
        raise ConfigError(f"unknown network {config.network!r}: use {', '.join(NETWORKS)} or package.module:function")
    if not config.hidden_sizes or min(config.hidden_sizes) < 1:
        raise ConfigError(
            f"{setting('hidden_sizes')} must be whole numbers of at least 1; got {config.hidden_sizes!r}: name one "
            f"for each layer, as in {setting('hidden_sizes', (64, 64))}"
        )


def _check_together(config: Config) -> None:
    """Settings that contradict each other."""
    scales = config.scales if isinstance(config.scales, Mapping) else {}
    if "lam" in scales:
        lam = scales["lam"]
        raise ConfigError(
            f"{setting('lam')} must be given beside {setting('scales')}, not in it; got {lam!r}: drop it there and "
            f"pass {setting('lam', lam)}"
        )
    if config.rule is not None and {"rule", "trace_decays"} & {*scales}:
        raise ConfigError(
            f"{setting('rule')} is for {setting('scales')} without traces of their own; got {config.rule!r}: drop one"
        )
    if config.reward_discount is not None and not config.normalize_rewards:
        raise ConfigError(
            f"{setting('reward_discount')} is the discount of {setting('normalize_rewards')}, which is off; got "
            f"{config.reward_discount!r}: turn {setting('normalize_rewards')} on or drop it"
        )
    if config.component_trunks and config.shared_trunk:
        raise ConfigError(
            f"{setting('component_trunks')} gives every output of the critic a trunk of its own; got "
            f"{setting('shared_trunk')} too: drop one"
        )
    for name, owner in (("filters", "minatar-conv"), ("image_channels", "nature-conv")):
        value = getattr(config, name)
        if value != _DEFAULTS[name] and config.network in NETWORKS and config.network != owner:
            raise ConfigError(
                f"{setting(name)} are those of {owner}; got {value} for network {config.network}: drop one"
            )
    weights = config.component_weights
    if weights is not None and (len(weights) != len(config.critic_scales) or min(weights) < 0):
        raise ConfigError(
            f"{setting('component_weights')} must be {len(config.critic_scales)} numbers ≥ 0, one per scale of "
            f"{config.agent.name}; got {weights!r}"
        )
    if config.component_scale == "horizon" and config.critic_scales.gammas[-1] == 1:
        raise ConfigError(f"{setting('component_scale')} horizon needs finite horizons; got gamma 1: use running")
    if config.network == "nature-conv" and config.normalize_observations:
        raise ConfigError(
            f"nature-conv sees every pixel as a share of the brightest; got {setting('normalize_observations')} too: "
            "drop one"
        )


def _divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is closest to the wanted one."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return min((*small, *(number // one for one in small)), key=lambda one: abs(one - wanted))


def _check_memory(config: Config, environment: Task, made: Any) -> None:
    """Refuse what cannot fit: one rollout, and the parameters with Adam's two moments."""
    step = math.prod(environment.observation_shape) * np.dtype(environment.storage).itemsize + 4 * (config.heads + 4)
    parameters = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made) if hasattr(leaf, "dtype"))
    needed, there = config.batch * step + 3 * parameters, _memory()
    if needed > there:
        raise ConfigError(
            f"a rollout of {config.batch:,} steps ({_BATCH}) and the network need at least "
            f"{needed / 2**30:,.1f} GiB, and there are {there / 2**30:,.1f} GiB: pass fewer environments, or smaller "
            f"{setting('hidden_sizes')}"
        )


def _memory() -> float:
    """Bytes of the devices that train; infinity where nobody tells."""
    limits = sum((device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices())
    told = hasattr(os, "sysconf") and {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(os.sysconf_names)
    return float(limits or (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if told else math.inf))


def _check_network(config: Config, environment: Task) -> None:
    spaces = environment.observation_space, environment.action_space
    given = config.network
    name = f"network {given if isinstance(given, str) else reference(given)!r}"
    advice = ": it must be a function f(key, observation_space, action_space, heads) that returns an equinox module"
    with blamed(f"{name} cannot be made,", advice=advice):
        made = eqx.filter_eval_shape(config.network_factory(), jax.random.key(0), *spaces, config.heads)
    if not callable(made):
        raise ConfigError(
            f"{name} must return a module that takes one observation and returns (policy, heads); "
            f"got {type(made).__name__}"
        )
    if own_network(config.network):  # as it will be called
        observations = jax.ShapeDtypeStruct((2, *environment.observation_shape), np.float32)
        with blamed(f"{name} cannot take an observation of shape {environment.observation_shape},"):
            found: Any = eqx.filter_eval_shape(lambda network, batch: jax.vmap(network)(batch), made, observations)
        pair = isinstance(found, tuple | list) and len(found) == 2
        if not pair or getattr(found[1], "shape", None) != (2, config.heads):
            raise ConfigError(
                f"{name} must return (policy, heads) for one observation, heads of shape ({config.heads},); "
                f"got shapes {jax.tree.map(lambda one: one.shape[1:], found)}"
            )
    _check_memory(config, environment, made)


def _check_kinds(config: Config) -> None:
    """Every value has the type that the field says; numbers of the wrong kind fail far away otherwise."""
    for name, kind in kinds().items():
        value = getattr(config, name)
        if not _fits(value, kind):
            raise ConfigError(f"{setting(name)} must be {_described(kind)}; got {value!r}{unquoted(value)}")


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return any(_fits(value, one) for one in get_args(kind))
    if typing.get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
        return isinstance(value, tuple) and all(_fits(one, get_args(kind)[0]) for one in value)
    if kind is float:
        return is_number(value) or getattr(value, "shape", None) == ()
    if kind is int:
        return type(value) is int
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def _described(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(_described(one) for one in get_args(kind) if one is not type(None))
    if typing.get_origin(kind) is tuple:
        return {float: "several numbers, as in (3.125, 100)", int: "several whole numbers, as in (64, 64)"}.get(
            get_args(kind)[0], "pairs of names and values"
        )
    named = {int: "a whole number of at least 1", float: "a number", bool: "True or False", str: "a name"}
    return named.get(kind, str(kind))


def _check_number(name: str, value: Any, *, above: bool) -> None:
    if isinstance(value, (int, float)) and not (math.isfinite(value) and (value > 0 or (value == 0 and not above))):
        raise ConfigError(f"{setting(name)} must be {'above' if above else 'at least'} 0 and finite; got {value!r}")
