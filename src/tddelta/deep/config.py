"""The settings of PPO: one frozen dataclass, and presets per environment as data."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import numpy as np

from tddelta.deep import environments as known_environments
from tddelta.deep.agents import AGENTS, Agent, Rule, closest, imported, reference, resolve
from tddelta.deep.networks import ACTIVATIONS, ActorCritic
from tddelta.errors import ConfigError, own_checks
from tddelta.timescales import TimeScales

Scale = Literal["none", "horizon", "running"]
TimeLimit = Literal["truncate", "terminate"]


def option(default: Any, text: str, *, traced: bool = False) -> Any:
    """A field with its help; a traced one may be a JAX array, so that many values share one compilation."""
    return dataclasses.field(default=default, metadata={"help": text, "static": not traced})


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of one training run but its seed. Build it with `preset`, which knows the environment.

    The settings marked as continuous in their help are leaves of a pytree: they may be traced, so that
    `jax.vmap` over them (and over seeds) needs one compilation.
    """

    environment: Any = option("Breakout-MinAtar", "Environment: gymnax id, package.module:factory, or an object.")
    environment_kwargs: tuple[tuple[str, Any], ...] = option((), "Keyword arguments of the environment.")
    agent: Agent = option(AGENTS["ppo-delta"], "Agent: a name, package.module:agent, or an Agent.")
    steps: int = option(2_000_000, "Environment steps in all, rounded up to whole updates.")
    environments: int = option(64, "Environments that run in parallel.")
    rollout_length: int = option(128, "Steps per environment between two updates.")
    epochs: int = option(4, "Passes over each rollout.")
    minibatches: int = option(8, "Minibatches per pass.")
    gamma: float = option(0.99, "Discount the policy is optimised for, the last of the ladder.")
    lam: float = option(
        0.95, "λ of the critic's traces, in [0, 1]; the agent's rule makes a decay per component of it."
    )
    actor_lam: float | None = option(
        None, "λ of the actor's advantage (continuous); default: lam. Its decay is actor_lam·gamma.", traced=True
    )
    rule: Rule | None = option(None, "Trace rule; default: the agent's own.")
    horizons: tuple[float, ...] | None = option(
        None, "Horizons of the ladder in steps, shortest first, the last 1/(1−gamma); default: halving ladder."
    )
    components: int | None = option(None, "Number of components of the halving ladder; default: as many as fit.")
    shortest_horizon: float | None = option(None, "Shortest horizon of the halving ladder, in steps.")
    longest_horizon: float | None = option(None, "Longest finite horizon in steps; needed if gamma is 1.")
    ladder_factor: float = option(2.0, "Ratio of neighbouring horizons of the ladder.")
    component_scale: Scale = option(
        "none",
        "Unit of the critic's outputs: none; horizon (W_z / (h_z − h_{z−1})); running (deviation of the targets).",
    )
    component_weights: tuple[float, ...] | None = option(
        None, "Weight of each component in the value loss, shortest horizon first; default: 1 each."
    )
    learning_rate: float = option(2.5e-4, "Adam's step size (continuous).", traced=True)
    anneal_learning_rate: bool = option(True, "Let the learning rate fall linearly to 0 over the run.")
    adam_epsilon: float = option(1e-5, "Adam's ε.")
    max_gradient_norm: float = option(0.5, "Largest global norm of the gradient (continuous).", traced=True)
    clip: float = option(0.2, "Clip range of the probability ratio (continuous).", traced=True)
    entropy_coefficient: float = option(0.01, "Weight of the entropy bonus (continuous).", traced=True)
    value_coefficient: float = option(1.0, "Weight of the value loss ½ Σ_z (error)² (continuous).", traced=True)
    normalize_advantages: bool = option(True, "Standardise advantages once per rollout.")
    normalize_observations: bool = option(False, "Standardise observations by running mean and deviation.")
    normalize_rewards: bool = option(False, "Divide rewards by the running deviation of the discounted return.")
    reward_discount: float | None = option(
        None, "Discount of the return that normalize_rewards uses; default: gamma. Scales never change it."
    )
    network: Any = option("mlp", "Network: mlp, minatar-conv, package.module:function, or a function.")
    hidden_sizes: tuple[int, ...] = option((64, 64), "Sizes of the dense layers; minatar-conv has one of 128.")
    filters: int = option(16, "3×3 filters of minatar-conv.")
    activation: str = option("tanh", f"Activation: {', '.join(ACTIVATIONS)}.")
    shared_trunk: bool = option(False, "One trunk for policy and critic instead of one each.")
    time_limit: TimeLimit = option(
        "truncate", "What the environment's time limit is: truncate (bootstrap from the last state) or terminate."
    )

    def __post_init__(self) -> None:
        # One kind of number per setting: 1, 1.0 and np.float64(1) share their programs and their record.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            value = value.item() if isinstance(value, np.generic) else value
            if isinstance(value, int) and not field.metadata["static"]:
                value = float(value)
            object.__setattr__(self, field.name, value)

    @property
    def batch(self) -> int:
        """Environment steps per update."""
        return self.environments * self.rollout_length

    @property
    def updates(self) -> int:
        """Number of updates: `steps` rounded up."""
        return -(-self.steps // self.batch)

    @property
    def ladder(self) -> TimeScales:
        """The whole ladder with the agent's (or the configured) trace rule."""
        rule: Any = self.rule or self.agent.rule
        if self.horizons is not None:
            return TimeScales.from_horizons(self.horizons, lam=self.lam, rule=rule)
        return TimeScales.halving(
            self.gamma,
            lam=self.lam,
            rule=rule,
            components=self.components,
            shortest_horizon=self.shortest_horizon,
            longest_horizon=self.longest_horizon,
            factor=self.ladder_factor,
        )

    @property
    def scales(self) -> TimeScales:
        """The scales that the critic learns: the ladder, or γ_Z alone."""
        if self.agent.heads == "one" or self.agent.basis == "sum":
            rule: Any = self.rule or self.agent.rule
            return TimeScales.single(self.ladder.gammas[-1], lam=self.lam, rule=rule)
        return self.ladder

    @property
    def heads(self) -> int:
        """Number of outputs of the critic."""
        return 1 if self.agent.heads == "one" else len(self.ladder)

    def environment_object(self) -> known_environments.Environment:
        """The environment itself."""
        return known_environments.resolve(self.environment, dict(self.environment_kwargs))

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
            activation=self.activation,
            shared=self.shared_trunk,
            # An output counts up to thousands of rewards then: its random start must stay small.
            critic_gain=1.0 if self.component_scale == "none" else 0.01,
        )

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON; functions and objects by module and name."""
        plain: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "environment" and not isinstance(value, str):
                value = reference(type(self.environment_object().instance))
            elif field.name == "environment_kwargs":
                value = dict(value)
            elif isinstance(value, Agent):
                value = value.name
            elif isinstance(value, tuple):
                value = list(value)
            elif value is not None and not field.metadata["static"]:
                value = float(value)
            elif callable(value):
                value = reference(value)
            elif not isinstance(value, (str, int, float, bool, type(None))):
                value = reference(type(value))
            plain[field.name] = value
        return plain


# `check` says more about a wrong setting than a run-time type checker would; and settings may be traced.
own_checks(Config.__init__)

MINATAR: Mapping[str, Any] = {"learning_rate": 1e-3, "activation": "relu"}
CLASSIC: Mapping[str, Any] = {
    "learning_rate": 1e-3,
    "environments": 16,
    "steps": 500_000,
    "max_gradient_norm": 0.5,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "Asterix-MinAtar": MINATAR,
    "Breakout-MinAtar": MINATAR,
    # A game of Freeway always lasts 2,500 steps: the limit is the end of the game.
    "Freeway-MinAtar": {**MINATAR, "time_limit": "terminate"},
    "Seaquest-MinAtar": MINATAR,
    "SpaceInvaders-MinAtar": MINATAR,
    "CartPole-v1": CLASSIC,
    "Acrobot-v1": CLASSIC,
    "MountainCar-v0": CLASSIC,
    "Pendulum-v1": {
        **CLASSIC,
        "epochs": 10,
        "entropy_coefficient": 0.0,
        "normalize_observations": True,
        "normalize_rewards": True,
        "gamma": 0.95,
    },
    "Catch-bsuite": {**CLASSIC, "steps": 200_000},
    # An episode is 2,000 steps, and one decision.
    "tddelta.deep.probes:LongDelay": {"learning_rate": 1e-3, "rollout_length": 256},
    # The observation holds the time, and nothing comes after step 100.
    "DiscountingChain-bsuite": {**CLASSIC, "steps": 300_000, "time_limit": "terminate"},
}
"""What differs from the defaults of `Config`, by environment."""


def preset(environment: Any, agent: str | Agent = "ppo-delta", **overrides: Any) -> Config:
    """The settings for an environment: defaults, its preset, then what the caller names.

    Args:
        environment: See `environments.resolve`.
        agent: Name, "package.module:agent" or Agent.
        **overrides: Any field of `Config`.

    Raises:
        ConfigError: If a name is unknown or a value cannot work; the sentence says what to do.
    """
    names = tuple(field.name for field in dataclasses.fields(Config))
    for name in overrides:
        if name not in names:
            raise ConfigError(f"unknown setting {name!r}: {closest(name, names)}")
    key = known_environments.SHORT_NAMES.get(environment, environment) if isinstance(environment, str) else None
    settings: dict[str, Any] = {**PRESETS.get(key, {}), **overrides} if key else dict(overrides)
    options = settings.pop("environment_kwargs", ())
    if isinstance(options, Mapping):
        options = tuple(sorted(options.items()))
    if settings.get("network") == "minatar-conv":
        settings.setdefault("hidden_sizes", (128,))
    for name in ("horizons", "component_weights", "hidden_sizes"):
        if isinstance(settings.get(name), list):
            settings[name] = tuple(settings[name])
    horizons = settings.get("horizons")
    if horizons and "gamma" not in overrides and horizons[-1] >= 1 and math.isfinite(horizons[-1]):
        settings["gamma"] = 1 - 1 / horizons[-1]
    if not isinstance(environment, str):
        # What a program is compiled for needs a hash, and parameters that are arrays have none.
        environment = known_environments.resolve(environment, dict(options))
    config = Config(environment=environment, environment_kwargs=tuple(options), agent=resolve(agent), **settings)
    check(config)
    return config


def check(config: Config) -> None:
    """Refuses settings that cannot work, before anything is compiled.

    Raises:
        ConfigError: With the setting, its value and what to do.
    """
    for name in ("steps", "environments", "rollout_length", "epochs", "minibatches", "filters"):
        value = getattr(config, name)
        if not (isinstance(value, int) and value >= 1):
            raise ConfigError(f"{name} must be a whole number of at least 1; got {value!r}")
    if config.batch % config.minibatches:
        raise ConfigError(
            f"minibatches must divide environments × rollout_length = {config.batch}; got {config.minibatches}: "
            f"use {math.gcd(config.batch, config.minibatches)}"
        )
    for name in ("learning_rate", "max_gradient_norm", "clip", "adam_epsilon"):
        _check_number(name, getattr(config, name), above=True)
    for name in ("entropy_coefficient", "value_coefficient"):
        _check_number(name, getattr(config, name), above=False)
    for name, upper in (("gamma", 1.0), ("lam", 1.0), ("actor_lam", 1.0), ("reward_discount", 1.0)):
        value = getattr(config, name)
        if isinstance(value, (int, float)) and not 0 <= value <= upper:
            raise ConfigError(f"{name} must be in [0, {upper:g}]; got {value!r}")
    for name, choices in (("component_scale", get_args(Scale)), ("time_limit", get_args(TimeLimit))):
        if getattr(config, name) not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}; got {getattr(config, name)!r}")
    if config.rule is not None and config.rule not in get_args(Rule):
        raise ConfigError(f"rule must be one of {', '.join(get_args(Rule))}; got {config.rule!r}")
    if config.activation not in ACTIVATIONS:
        raise ConfigError(f"unknown activation {config.activation!r}: {closest(config.activation, tuple(ACTIVATIONS))}")
    if isinstance(config.network, str) and config.network not in ("mlp", "minatar-conv") and ":" not in config.network:
        raise ConfigError(f"unknown network {config.network!r}: use mlp, minatar-conv or package.module:function")
    if any(size < 1 for size in config.hidden_sizes):
        raise ConfigError(f"hidden_sizes must be whole numbers of at least 1; got {config.hidden_sizes!r}")
    if config.horizons is not None:
        if config.components is not None or config.shortest_horizon is not None:
            raise ConfigError("horizons name the whole ladder: drop components and shortest_horizon")
        last = config.ladder.gammas[-1]
        if abs(last - config.gamma) > 1e-9:
            raise ConfigError(
                f"gamma must belong to the longest horizon, {config.horizons[-1]:g} steps; got {config.gamma}: "
                f"drop gamma or set it to {last:.10g}"
            )
    weights = config.component_weights
    if weights is not None and (len(weights) != len(config.scales) or min(weights) < 0):
        raise ConfigError(
            f"component_weights must be {len(config.scales)} numbers ≥ 0, one per scale of {config.agent.name}; "
            f"got {weights!r}"
        )
    if config.component_scale == "horizon" and config.scales.gammas[-1] == 1:
        raise ConfigError("component_scale horizon needs finite horizons; got gamma 1: use running")
    # Whether the ladder and the network can be made shows when they are; shapes suffice.
    len(config.ladder)
    environment = config.environment_object()
    spaces = environment.observation_space, environment.action_space
    eqx.filter_eval_shape(config.network_factory(), jax.random.key(0), *spaces, config.heads)


def _check_number(name: str, value: Any, *, above: bool) -> None:
    if isinstance(value, (int, float)) and not (math.isfinite(value) and (value > 0 or (value == 0 and not above))):
        raise ConfigError(f"{name} must be {'above' if above else 'at least'} 0 and finite; got {value!r}")
