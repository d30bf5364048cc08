"""The settings of PPO: one frozen dataclass."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

from tddelta._plain import Pairs, as_real, as_whole, frozen, imported, plain, reference, tidy
from tddelta.deep import environments as known_environments
from tddelta.deep.agents import AGENTS, Agent, resolve
from tddelta.deep.host import HostEnvironment
from tddelta.deep.networks import ACTIVATIONS, ActorCritic, Channels
from tddelta.timescales import Rule, TimeScales, plain_scales

Scale = Literal["none", "horizon", "running"]
"""Unit of the critic's outputs: see `Config.component_scale`."""

ADDED = ("shards", "component_trunks", "reward_clipping", "image_channels")
"""Settings that older records do not know: recorded where they are not the default, so that older runs can go on."""

RewardClipping = Literal["none", "sign"]
"""What the learner sees of a reward: see `Config.reward_clipping`."""

TimeLimit = Literal["truncate", "terminate"]
"""What an environment's time limit is to the learner: see `Config.time_limit`."""

PART = 32
"""Images whose gradient is computed at a time on a CPU."""

_HIDDEN_SIZES = {"minatar-conv": (128,), "nature-conv": (512,)}


def option(default: Any, text: str, *, traced: bool = False) -> Any:
    """A field with its help; a traced one may be a JAX array, so that many values share one compilation."""
    return dataclasses.field(default=default, metadata={"help": text, "static": not traced})


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of one training run but its seed.

    Build it with `preset`, which knows the environment and checks the settings; `init` checks them too.
    The settings marked as continuous in their help are leaves of a pytree: they may be traced, so that
    `jax.vmap` over them (and over seeds) needs one compilation.
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
    gamma: float = option(0.99, "Discount the policy is optimised for, the last of the ladder.")
    lam: float = option(
        0.95, "λ of the critic's traces, in [0, 1]; the agent's rule makes a decay per component of it."
    )
    actor_lam: float | None = option(
        None, "λ of the actor's advantage (continuous); default: lam. Its decay is actor_lam·gamma.", traced=True
    )
    rule: Rule | None = option(None, "Trace rule; default: the agent's own.")
    scales: Any = option(
        None,
        "Time scales: discounts, horizons in steps, or a ladder: halving, doubling or single, with settings as in "
        "halving components=4; default: halving ladder of gamma.",
    )
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
    reward_clipping: RewardClipping = option(
        "none", "What the learner sees of a reward: none (itself) or sign (−1, 0, 1). Scores are not clipped."
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
            named = self.network if isinstance(self.network, str) else ""
            object.__setattr__(self, "hidden_sizes", _HIDDEN_SIZES.get(named, (64, 64)))

    @property
    def batch(self) -> int:
        """Environment steps per update."""
        return self.environments * self.rollout_length

    @property
    def updates(self) -> int:
        """Number of updates: `steps` rounded up."""
        return -(-self.steps // self.batch)

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
                value = list(value)
            elif value is not None and not field.metadata["static"]:
                value = float(value)
            elif callable(value):
                value = reference(value)
            elif not isinstance(value, (str, int, float, bool, type(None))):
                value = reference(type(value))
            plain[field.name] = value
        # What follows other settings is recorded as the number it is, so that a change of them shows.
        plain["actor_lam"] = float(self.lam if self.actor_lam is None else self.actor_lam)
        plain["reward_discount"] = self.return_discount
        for name in ADDED:
            if plain[name] == _DEFAULTS[name]:
                del plain[name]
        return plain


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config)}


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
    if not field.metadata["static"]:
        return value if isinstance(value, jax.Array) or np.ndim(value) else as_real(value)
    kind = kinds()[field.name]
    if kind is Any:
        return tidy(value)
    among = {kind, *typing.get_args(kind)}
    read = as_whole if among & {int, tuple[int, ...]} else as_real if among & {float, tuple[float, ...]} else plain
    value = tidy(plain(value))
    return tuple(map(read, value)) if isinstance(value, list | tuple | range) else read(value)


# A run asks for its ladder many times; what there is to warn about is said once.
_made = functools.lru_cache(maxsize=64)(TimeScales.of)
