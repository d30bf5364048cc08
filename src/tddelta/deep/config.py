"""The settings of PPO: one frozen dataclass, presets per environment, preset files, and the check of settings."""

import dataclasses
import functools
import json
import math
import os
import tomllib
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import equinox as eqx
import jax
import numpy as np

from tddelta._plain import (
    Pairs,
    as_real,
    as_whole,
    blamed,
    closest,
    frozen,
    imported,
    is_number,
    number,
    plain,
    reference,
    tidy,
    unquoted,
    whole,
    whole_text,
)
from tddelta.deep import environments as known_environments
from tddelta.deep.agents import AGENTS, Agent, resolve
from tddelta.deep.host import AnyEnvironment, HostEnvironment
from tddelta.deep.networks import ACTIVATIONS, ActorCritic, Channels, is_image, with_heads
from tddelta.errors import ConfigError, ContractionWarning, setting
from tddelta.runs.files import replace, upgraded, upgraded_name
from tddelta.runs.reader import a_path
from tddelta.timescales import FORMER, LAM, Rule, TimeScales, names_discounts, plain_scales

Scale = Literal["none", "horizon", "running"]
"""Unit of the critic's outputs: see `Config.component_scale`."""

RewardClipping = Literal["none", "sign"]
"""Rewards as the learner sees them: see `Config.reward_clipping`."""

TimeLimit = Literal["truncate", "terminate"]
"""Meaning of an environment's time limit for the learner: see `Config.time_limit`."""

ADDED = ("shards", "component_trunks", "reward_clipping", "reward_noise", "image_channels", "grow", "anchor")
"""Settings that older records do not know: recorded where they are not the default, so that older runs can go on."""

PART = 32
"""Images whose gradient is computed at a time on a CPU."""

NETWORKS: Mapping[str, tuple[int, ...]] = {"mlp": (64, 64), "minatar-conv": (128,), "nature-conv": (512,)}
"""Networks with a name, and the default sizes of their dense layers."""

NETWORK_SETTINGS = ("hidden_sizes", "filters", "activation", "shared_trunk", "component_trunks", "image_channels")
"""Settings of those networks; a network of somebody's own has its own."""

_RANGES: Mapping[str, Callable[[float], bool]] = {
    "above 0 and finite": lambda value: 0 < value < math.inf,
    "at least 0 and finite": lambda value: 0 <= value < math.inf,
    "in [0, 1]": lambda value: 0 <= value <= 1,
}
_POSITIVE, _NOT_NEGATIVE, _SHARE = _RANGES


def option(default: Any, text: str, *, traced: bool = False, within: str = "") -> Any:
    """A field with its help.

    Args:
        default: Its default.
        text: Its help.
        traced: Whether it may be a JAX array, so that many values share one compilation.
        within: The range of a number, one of `_RANGES`.
    """
    return dataclasses.field(default=default, metadata={"help": text, "static": not traced, "within": within})


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of one training run but its seed.

    Build it with `preset`, which knows the environment and checks the settings; `init` checks them too.
    The settings marked as continuous in their help are leaves of a pytree: they may be traced, so that
    `jax.vmap` over them (and over seeds) needs one compilation.

    Where the ladder grows, everything below is that of its first stage; `grown` and `at` give the later ones.
    """

    environment: Any = option(
        "Breakout-MinAtar", "Environment: gymnax id, Atari game, gym:ID, package.module:factory, or an object."
    )
    environment_kwargs: tuple[tuple[str, Any], ...] = option((), "Keyword arguments of the environment.")
    agent: Agent = option(AGENTS["ppo-delta"], "Agent: a name, package.module:agent, or an Agent.")
    steps: int = option(2_000_000, "Environment steps in all, rounded up to whole updates.")
    environments: int = option(64, "Environments that run in parallel.")
    shards: int = option(
        1, "Equal groups of the environments, with averaged gradients; they are spread over all devices there are."
    )
    rollout_length: int = option(128, "Steps per environment between two updates.")
    epochs: int = option(4, "Passes over each rollout.")
    minibatches: int = option(8, "Minibatches per pass.")
    gamma: float = option(0.99, "Discount the policy is optimised for, the last of the ladder.", within=_SHARE)
    lam: float = option(
        LAM, "λ of the critic's traces, in [0, 1]; the agent's rule makes a decay per component of it.", within=_SHARE
    )
    actor_lam: float | None = option(
        None,
        "λ of the actor's advantage (continuous); default: lam. Its decay is actor_lam·gamma.",
        traced=True,
        within=_SHARE,
    )
    rule: Rule | None = option(None, "Trace rule; default: the agent's own.")
    scales: Any = option(
        None,
        "Time scales: discounts, horizons in steps, or a ladder: halving, doubling or single, with settings as in "
        "halving components=4; default: halving ladder of gamma.",
    )
    grow: tuple[tuple[int, float], ...] = option(
        (),
        "Scales to add while training, each as STEP:HORIZON: from that environment step on the ladder ends with that "
        "horizon in steps, whose discount the policy is then optimised for.",
    )
    component_scale: Scale = option(
        "none",
        "Unit of the critic's outputs: none; horizon (W_z / (h_z − h_{z−1})); running (deviation of the targets).",
    )
    component_weights: tuple[float, ...] | None = option(
        None, "Weight of each component in the value loss, shortest horizon first, those of grow too; default: 1 each."
    )
    learning_rate: float = option(2.5e-4, "Adam's step size (continuous).", traced=True, within=_POSITIVE)
    anneal_learning_rate: bool = option(True, "Let the learning rate fall linearly to 0 over the run.")
    adam_epsilon: float = option(1e-5, "Adam's ε.", within=_POSITIVE)
    max_gradient_norm: float = option(
        0.5, "Largest global norm of the gradient (continuous).", traced=True, within=_POSITIVE
    )
    clip: float = option(0.2, "Clip range of the probability ratio (continuous).", traced=True, within=_POSITIVE)
    entropy_coefficient: float = option(
        0.01, "Weight of the entropy bonus (continuous).", traced=True, within=_NOT_NEGATIVE
    )
    value_coefficient: float = option(
        1.0, "Weight of the value loss ½ Σ_z (error)² (continuous).", traced=True, within=_NOT_NEGATIVE
    )
    anchor: int = option(
        0, "First rollouts in which a constant is fitted to every V_z before its targets are made; 0 for none."
    )
    normalize_advantages: bool = option(True, "Standardise advantages once per rollout.")
    normalize_observations: bool = option(False, "Standardise observations by running mean and deviation.")
    normalize_rewards: bool = option(False, "Divide rewards by the running deviation of the discounted return.")
    reward_discount: float | None = option(
        None,
        "Discount of the return that normalize_rewards uses; default: gamma. Scales never change it.",
        within=_SHARE,
    )
    reward_clipping: RewardClipping = option(
        "none", "What the learner sees of a reward: none (itself) or sign (−1, 0, 1). Scores are not clipped."
    )
    reward_noise: float = option(
        0.0,
        "Standard deviation of the normal noise that the learner sees on every reward. Scores have none.",
        within=_NOT_NEGATIVE,
    )
    network: Any = option("mlp", "Network: mlp, minatar-conv, nature-conv, package.module:function, or a function.")
    hidden_sizes: tuple[int, ...] = option(
        None, "Sizes of the dense layers; default: 64 64, with minatar-conv 128, with nature-conv 512."
    )
    image_channels: Channels = option(
        "auto", "Axis of an image's channels for nature-conv: first, last, or auto (the smaller one)."
    )
    filters: int = option(16, "3×3 filters of minatar-conv.")
    activation: str = option("tanh", f"Activation: {', '.join(ACTIVATIONS)}.")
    shared_trunk: bool = option(False, "One trunk for policy and critic instead of one each.")
    component_trunks: bool = option(False, "One trunk for every output of the critic instead of one for all of them.")
    time_limit: TimeLimit = option(
        "truncate", "What the environment's time limit is: truncate (bootstrap from the last state) or terminate."
    )

    def __post_init__(self) -> None:
        # One kind of number per setting: 1, 1.0 and np.float64(1) share their programs and their record.
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _settled(field, getattr(self, field.name)))
        agent: Any = self.agent
        if isinstance(agent, str):
            object.__setattr__(self, "agent", resolve(agent))
        sizes: Any = self.hidden_sizes
        if sizes is None:
            named = self.network if isinstance(self.network, str) and self.network in NETWORKS else "mlp"
            object.__setattr__(self, "hidden_sizes", NETWORKS[named])

    @property
    def batch(self) -> int:
        """Environment steps per update."""
        return self.environments * self.rollout_length

    @property
    def updates(self) -> int:
        """Number of updates: `steps` rounded up."""
        return -(-self.steps // self.batch)

    @property
    def end(self) -> int:
        """Update before which the ladder grows, the first at or after its step; `updates` if it does not any more."""
        return -(-self.grow[0][0] // self.batch) if self.grow else self.updates

    @property
    def grown(self) -> "Config":
        """The settings with the first scale of `grow` on the ladder; needs one."""
        (_, horizon), *rest = self.grow
        gammas = (*self.ladder.gammas, 1 - 1 / horizon)
        named = self.scales if isinstance(self.scales, Mapping) else {}
        rule = named.get("rule", self.rule)
        return dataclasses.replace(self, scales=gammas, gamma=gammas[-1], rule=rule, grow=tuple(rest))

    def past_stages(self, updates: int) -> list["Config"]:
        """Settings of the ladders that have grown after so many updates, those of the first ladder first."""
        found, stage = [], self
        while stage.grow and stage.end <= updates:
            found.append(stage)
            stage = stage.grown
        return found

    def at(self, updates: int) -> "Config":
        """The settings after so many updates, with which the next one is made."""
        stages = self.past_stages(updates)
        return stages[-1].grown if stages else self

    @property
    def _one_scale(self) -> bool:
        return self.agent.heads == "one" or self.agent.basis == "sum"

    @property
    def ladder(self) -> TimeScales:
        """All scales, with the agent's (or the configured) trace rule; without traces if it learns γ_Z alone."""
        lam = None if self._one_scale else self.lam
        return _made(self.scales, gamma=self.gamma, lam=lam, rule=self.rule or self.agent.rule)

    @property
    def critic_scales(self) -> TimeScales:
        """The scales that the critic learns: the ladder, or γ_Z alone."""
        if self._one_scale:
            return TimeScales.single(self.ladder.gammas[-1], lam=self.lam, rule=self.rule or self.agent.rule)
        return self.ladder

    @property
    def return_discount(self) -> float:
        """Discount of the return whose deviation normalises rewards."""
        return self.ladder.gammas[-1] if self.reward_discount is None else self.reward_discount

    @property
    def heads(self) -> int:
        """Number of outputs of the critic."""
        return 1 if self.agent.heads == "one" else len(self.ladder)

    @property
    def part_of_minibatch(self) -> int | None:
        """Rows of a minibatch whose gradient is computed at a time; None for all at once.

        The patches of the convolutions of one minibatch leave the caches of a CPU many times over.
        """
        if self.network != "nature-conv" or jax.default_backend() != "cpu":
            return None
        count = self.batch // self.minibatches
        return max(part for part in range(1, min(count, PART) + 1) if count % part == 0)

    def environment_object(self) -> known_environments.Environment | HostEnvironment:
        """The environment itself."""
        return known_environments.resolve(self.environment, dict(self.environment_kwargs))

    def made_network(self, key: Any, heads: int | None = None) -> Any:
        """The network itself, with so many heads, by default those of the critic."""
        environment = self.environment_object()
        spaces = environment.observation_space, environment.action_space
        return self.network_factory()(key, *spaces, self.heads if heads is None else heads)

    def network_factory(self) -> Callable[..., Any]:
        """f(key, observation_space, action_space, heads) that makes the network."""
        if callable(self.network):
            return self.network  # type: ignore[no-any-return]
        if ":" in self.network:
            return imported(self.network, "network")  # type: ignore[no-any-return]
        return functools.partial(
            ActorCritic,
            sizes=self.hidden_sizes,
            filters=self.filters if self.network == "minatar-conv" else None,
            image_channels=self.image_channels if self.network == "nature-conv" else None,
            activation=self.activation,
            shared=self.shared_trunk,
            component_trunks=self.component_trunks,
            # An output counts up to thousands of rewards then: its random start must stay small.
            critic_gain=1.0 if self.component_scale == "none" else 0.01,
        )

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON; functions and objects by module and name."""
        plain: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "environment" and not isinstance(value, str):
                made = self.environment_object()
                own = made.factory if isinstance(made, HostEnvironment) else type(made.instance)
                value = made.name if own is None else reference(own)
            elif field.name == "environment_kwargs" or isinstance(value, Mapping):
                value = dict(value)
            elif isinstance(value, Agent):
                value = value.name
            elif isinstance(value, tuple):
                value = [list(one) if isinstance(one, tuple) else one for one in value]
            elif value is not None and not field.metadata["static"]:
                value = float(value)
            elif not isinstance(value, (str, int, float, type(None))):
                value = reference(value)
            plain[field.name] = value
        # What follows other settings is recorded as the number it is, so that a change of them shows.
        plain["actor_lam"] = float(self.lam if self.actor_lam is None else self.actor_lam)
        # What follows the ladder as it grows is no number.
        plain["reward_discount"] = self.reward_discount if self.grow else self.return_discount
        for name in ADDED:
            if getattr(self, name) == _DEFAULTS[name]:
                del plain[name]
        return plain


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config)}


def grown_parameters(config: Config, parameters: Any) -> Any:
    """Parameters of the network for `config.grown`: a new W of 0, or a new V that is a copy of the last one."""
    made = eqx.filter_eval_shape(config.made_network, jax.random.key(0), config.heads + 1)
    wider = eqx.filter(made, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    return with_heads(parameters, wider, _factors(config), copied=config.agent.basis == "values")


def _factors(config: Config) -> np.ndarray:
    """Factors of the outputs that keep every V where `component_scale` horizon changes their units, (heads,)."""
    grown = config.grown
    factors = np.ones(grown.heads)
    if config.component_scale == "horizon":
        last = slice(-1, None) if len(grown.critic_scales) > 1 else slice(None)
        factors[last] = config.critic_scales.horizons[-1] / grown.critic_scales.horizons[-1]
    return factors


@functools.cache
def kinds() -> dict[str, Any]:
    """The type of every setting, by name."""
    return typing.get_type_hints(Config)


def _settled(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """A setting as Python has it; what is traced, or of another kind than the setting, stays as it is."""
    if field.name == "environment_kwargs":
        value = frozen(plain(value))
        value = sorted(value.items()) if isinstance(value, Mapping) else value
        return Pairs(value) if isinstance(value, list | tuple) else value
    if field.name == "scales":
        return plain_scales(value)
    if field.name == "grow":
        return _growths(value)
    if not field.metadata["static"]:
        return value if isinstance(value, jax.Array) or np.ndim(value) else as_real(value)
    kind = kinds()[field.name]
    if kind is Any:
        return tidy(value)
    among = {kind, *typing.get_args(kind)}
    read = as_whole if among & {int, tuple[int, ...]} else as_real if among & {float, tuple[float, ...]} else plain
    value = tidy(plain(value))
    return tuple(map(read, value)) if isinstance(value, list | tuple | range) else read(value)


def _growths(given: Any) -> tuple[tuple[int, float], ...]:
    """Pairs of a step and a horizon from pairs, or from texts such as "100_000:200"."""
    given = plain(() if given is None else given)
    words = given.split() if isinstance(given, str) else given
    found = []
    for word in words if isinstance(words, list | tuple) else [words]:
        pair = tidy(word).split(":") if isinstance(word, str) else word
        try:
            step, horizon = pair
            if isinstance(word, str):
                step, horizon = whole_text(step), float(horizon)
            found.append((whole("grow", step), number("grow", horizon)))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{setting('grow')} must be pairs STEP:HORIZON of a whole number of at least 1 and a number; got "
                f"{word!r}: pass, say, {setting('grow', ('100_000:200', '300_000:1000'))}"
            ) from error
    return tuple(found)


# A run asks for its ladder many times; what there is to warn about is said once.
_made = functools.lru_cache(maxsize=64)(TimeScales.of)


# ---------------------------------------------------------------- presets

_MINATAR: Mapping[str, Any] = {"learning_rate": 1e-3, "activation": "relu"}
_CLASSIC: Mapping[str, Any] = {"learning_rate": 1e-3, "environments": 16, "steps": 500_000}
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
"""Settings other than the defaults of `Config`, by environment; or by kind, for every Atari game ("Atari") and for
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
    """Tell whether a network is somebody's own, a function or "package.module:function"."""
    return ":" in network if isinstance(network, str) else callable(network)


# ---------------------------------------------------------------- checks

_MOST = 2**31 - 1  # what the indices of compiled programs can count
_BATCH = f"{setting('environments')} × {setting('rollout_length')}"


def check(config: Config) -> None:
    """Refuse settings that cannot work, before anything is compiled.

    Raises:
        ConfigError: With the setting, its value and what to do.
    """
    for field in dataclasses.fields(config):
        _check_setting(field, getattr(config, field.name))
    _check_sizes(config)
    _check_growth(config)
    _check_together(config)
    # Whether the ladder and the network can be made shows when they are; shapes suffice.
    last = config.at(config.updates).ladder.gammas[-1]
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
    for stage in (*config.past_stages(config.updates), config.at(config.updates)):
        _check_network(stage, environment)
        if stage.grow and own_network(stage.network):
            _check_heads(stage, environment)


def _check_setting(field: "dataclasses.Field[Any]", value: Any) -> None:
    """One setting by itself: its type, as numbers of the wrong kind fail far away otherwise, and its range."""
    name, kind, within = field.name, kinds()[field.name], field.metadata["within"]
    if kind is int:
        whole(name, value, 0 if field.default == 0 else 1, most=2**63 - 1 if name == "steps" else _MOST)
    elif not _fits(value, kind):
        raise ConfigError(f"{setting(name)} must be {_described(kind)}; got {value!r}{unquoted(value)}")
    elif within and isinstance(value, int | float) and not _RANGES[within](value):
        raise ConfigError(f"{setting(name)} must be {within}; got {value!r}")


def _fits(value: Any, kind: Any) -> bool:
    origin, choices = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, one) for one in choices)
    if origin is Literal:
        return value in choices
    if origin is tuple and choices[-1] is Ellipsis:
        return isinstance(value, tuple) and all(_fits(one, choices[0]) for one in value)
    if kind is float:
        return is_number(value) or getattr(value, "shape", None) == ()
    if kind is int:
        return type(value) is int
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def _described(kind: Any) -> str:
    origin, choices = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_described(one) for one in choices if one is not type(None))
    if origin is Literal:
        return f"one of {', '.join(choices)}"
    if origin is tuple:
        several = {float: "several numbers, as in (3.125, 100)", int: "several whole numbers, as in (64, 64)"}
        return several.get(choices[0], "pairs of names and values")
    return {float: "a number", bool: "True or False", str: "a name"}.get(kind, str(kind))


def _check_sizes(config: Config) -> None:
    """Check that sizes divide one another where they have to, and that none is too large."""
    if not config.hidden_sizes or min(config.hidden_sizes) < 1:
        raise ConfigError(
            f"{setting('hidden_sizes')} must be whole numbers of at least 1; got {config.hidden_sizes!r}: name one "
            f"for each layer, as in {setting('hidden_sizes', (64, 64))}"
        )
    whole("hidden_sizes", max(config.hidden_sizes), most=_MOST)
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
    batch, several = config.batch // config.shards, config.shards > 1
    if batch % config.minibatches:
        per_shard = f"{setting('environments')} / {setting('shards')} × {setting('rollout_length')}"
        raise ConfigError(
            f"{setting('minibatches')} must divide {per_shard if several else _BATCH} = {batch}; got "
            f"{config.minibatches}: use {_divisor(batch, config.minibatches)}{', or fewer shards' * several}"
        )


def _check_growth(config: Config) -> None:
    if not config.grow:
        return
    scales = config.scales if isinstance(config.scales, Mapping) else {}
    if own := {"trace_decays", "actor_trace_decay", "n_step", "n_steps"} & {*scales}:
        raise ConfigError(
            f"{setting('grow')} is for {setting('scales')} whose traces follow from lam and a rule; got "
            f"{min(own)}={scales[min(own)]!r} in them: drop it, or {setting('grow')}"
        )
    before, last, end = 0, config.ladder.horizons[-1], (config.updates - 1) * config.batch
    for step, horizon in config.grow:
        text = f"{step}:{horizon:g}"
        if step <= before:
            raise ConfigError(
                f"{setting('grow')} must be in the order of its steps, each once; got {text} after step {before}: "
                "sort them"
            )
        if step > end:
            raise ConfigError(
                f"the steps of {setting('grow')} must be at most {end:,}, where the last update begins; got {text}: "
                "pass an earlier step, or more steps"
            )
        if not last * (1 + 1e-9) < horizon or 1 - 1 / horizon == 1:
            raise ConfigError(
                f"the horizons of {setting('grow')} must be finite, and each longer than the last one on the ladder; "
                f"got {text} after {last:g}: pass a number of steps between that and infinity"
            )
        before, last = step, horizon


def _check_together(config: Config) -> None:
    """Names that are unknown, and settings that contradict each other."""
    if config.activation not in ACTIVATIONS:
        raise ConfigError(f"unknown activation {config.activation!r}: {closest(config.activation, tuple(ACTIVATIONS))}")
    if isinstance(config.network, str) and config.network not in NETWORKS and ":" not in config.network:
        raise ConfigError(f"unknown network {config.network!r}: use {', '.join(NETWORKS)} or package.module:function")
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
    weights, last = config.component_weights, config.at(config.updates)
    if weights is not None and (len(weights) != len(last.critic_scales) or min(weights) < 0):
        raise ConfigError(
            f"{setting('component_weights')} must be {len(last.critic_scales)} numbers ≥ 0, one per scale of "
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


def _check_network(config: Config, environment: AnyEnvironment) -> None:
    """Make the network in shapes, and refuse one that cannot work or does not fit into memory."""
    given = config.network
    name = f"network {given if isinstance(given, str) else reference(given)!r}"
    advice = ": it must be a function f(key, observation_space, action_space, heads) that returns an equinox module"
    with blamed(f"{name} cannot be made,", advice=advice):
        made = eqx.filter_eval_shape(config.made_network, jax.random.key(0))
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
    if config.anchor and not hasattr(made, "shifted"):
        raise ConfigError(
            f"{setting('anchor')} shifts the output biases of the critic, and those of {name} are unknown; got "
            f"{config.anchor}: give it the method shifted of tddelta.deep.networks.ActorCritic, or drop the setting"
        )
    # One rollout, and the parameters with Adam's two moments.
    step = math.prod(environment.observation_shape) * np.dtype(environment.storage).itemsize + 4 * (config.heads + 4)
    parameters = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made) if hasattr(leaf, "dtype"))
    needed, there = config.batch * step + 3 * parameters, _memory()
    if needed > there:
        raise ConfigError(
            f"a rollout of {config.batch:,} steps ({_BATCH}) and the network need at least "
            f"{needed / 2**30:,.1f} GiB, and there are {there / 2**30:,.1f} GiB: pass fewer environments, or smaller "
            f"{setting('hidden_sizes')}"
        )


def _check_heads(config: Config, environment: AnyEnvironment) -> None:
    """Refuse a network of the user's that changes with the ladder, or gets a head that cannot learn."""
    factors = _factors(config)
    seen = np.random.default_rng(0).normal(size=(2, *environment.observation_shape)).astype(np.float32)
    found, learns = np.zeros(()), False
    with jax.ensure_compile_time_eval():  # also where the check is part of a program
        key = jax.random.key(0)
        before, static = eqx.partition(config.made_network(key), eqx.is_array)
        heads = np.stack([eqx.combine(before, static)(one)[1] for one in seen])
        with suppress(TypeError, ValueError, IndexError):  # from arrays that do not fit
            after = grown_parameters(config, before)
            _, static = eqx.partition(config.made_network(key, len(factors)), eqx.is_array)

            def value(parameters: Any, observation: Any, head: Any) -> Any:
                return eqx.combine(parameters, static)(observation)[1][head]

            found = np.stack([value(after, one, slice(None)) for one in seen])
            changes = [jax.grad(value)(after, one, -1) for one in seen]
            learns = any(np.any(one != two) for one, two in zip(*map(jax.tree.leaves, changes), strict=True))
    mode: Any = "edge" if config.agent.basis == "values" else "constant"
    name = reference(config.network) if callable(config.network) else config.network
    expected = np.pad(heads, [(0, 0), (0, len(factors) - config.heads)], mode) * factors
    if not learns or not np.allclose(found, expected, rtol=1e-3, atol=1e-5):
        raise ConfigError(
            f"{setting('grow')} needs a network whose heads are linear outputs, each an entry of its arrays along one "
            f"axis, or a networks.Components; got network {name!r}, in which one head more changes the others or "
            "cannot learn: drop one"
        )


def _memory() -> float:
    """Bytes of the devices that train; infinity where nobody tells."""
    limits = sum((device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices())
    told = hasattr(os, "sysconf") and {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(os.sysconf_names)
    return float(limits or (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if told else math.inf))


# ---------------------------------------------------------------- preset files

FORMAT = 3
"""The version of the file's layout: before 3 agents had other names. A reader refuses a newer one."""

_PARTS = ("format", "environment", "agent", "settings", "tuning")
_APART = ("environment", "environment_kwargs", "agent")  # named by the file itself, or by who uses it


@dataclasses.dataclass(frozen=True)
class PresetFile:
    """Settings for one agent in one environment, and the file that they are from."""

    path: Path
    environment: str
    agent: str
    settings: Mapping[str, Any]

    @property
    def whose(self) -> str:
        """Agent and environment in words."""
        return f"{self.agent} on {self.environment}"

    def is_for(self, environment: Any, agent: str | Agent, environment_kwargs: Any = ()) -> bool:
        """Tell whether the settings were made for this agent in this environment."""
        if resolve(agent).name != self.agent:
            return False
        if isinstance(environment, str):
            short = known_environments.SHORT_NAMES
            return short.get(environment, environment) == short.get(self.environment, self.environment)
        return known_environments.resolve(environment, dict(environment_kwargs)).name == self.environment


def read_preset(path: str | os.PathLike[str]) -> PresetFile:
    """Read a preset file: TOML with `format`, `environment`, `agent` and a table `settings`.

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
    agent = upgraded_name(agent) if version < 3 else agent
    settings, known = upgraded(settings), tuple(name for name in _DEFAULTS if name not in _APART)
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(f"{path}: unknown setting {name!r}: {closest(name, known)}")
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
    """The settings of each pair of an environment and an agent: those of its file, if there is one, under the given.

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
    """Write a preset file, or replace it; `tuning` says how the settings were found, for people to read."""
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
