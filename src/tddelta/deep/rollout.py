"""Acting: what an agent has learned, its distributions over actions, and rollouts in device and host environments."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tddelta._arrays import widened
from tddelta.decomposition import decompose
from tddelta.deep import shards
from tddelta.deep.config import Config, grown_parameters
from tddelta.deep.environments import Environment
from tddelta.deep.host import AnyEnvironment, HostEnvironment, Moved, Vector, spawned_seeds
from tddelta.deep.networks import ActorCritic, padded
from tddelta.errors import ConfigError, setting


def counted(array: jax.Array, weights: jax.Array | None) -> jax.Array:
    """Steps (T, …) times their weights, whose mean is 1; 0 where a step does not count, whatever it holds."""
    if weights is None:
        return array
    weights = weights.reshape(*weights.shape, *[1] * (array.ndim - weights.ndim))
    return jnp.where(weights > 0, array, 0) * weights


class Moments(NamedTuple):
    """Running mean and variance of a stream: number of samples, their mean, sum of squared distances from it."""

    samples: jax.Array
    mean: jax.Array
    squares: jax.Array

    @property
    def deviation(self) -> jax.Array:
        """Population standard deviation; 1 before there are two samples or where all are equal."""
        variance = self.squares / jnp.maximum(self.samples, 1)
        # Equal samples have a deviation of rounding errors.
        usable = (self.samples > 1) & (variance > (1e-5 * self.mean) ** 2)
        return jnp.where(usable, jnp.sqrt(jnp.where(usable, variance, 1.0)), 1.0)

    def updated(
        self, more: jax.Array, axes: tuple[int, ...], over: shards.Axis = (), weights: jax.Array | None = None
    ) -> "Moments":
        """With more samples, along these axes and those of all shards (Chan's parallel formula)."""
        count = math.prod(more.shape[axis] for axis in axes) * shards.count(over)
        mean = shards.mean(jnp.mean(counted(more, weights), axes), over)
        squares = shards.total(jnp.sum(counted((more - jnp.expand_dims(mean, axes)) ** 2, weights), axes), over)
        total = self.samples + count
        difference = mean - self.mean
        return Moments(
            total,
            self.mean + difference * count / total,
            self.squares + squares + difference**2 * self.samples * count / total,
        )


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Moments of an empty stream of samples of this shape."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def inputs(observations: jax.Array, moments: Moments | None) -> jax.Array:
    """Observations as the network sees them: float32, standardised and clipped to ±10 if there are moments."""
    real = observations.astype(jnp.float32)
    if moments is None:
        return real
    # A floor on the deviation: a feature that has not moved yet must not explode when it first does.
    return jnp.clip((real - moments.mean) / jnp.maximum(moments.deviation, 1e-4), -10, 10)


# ---------------------------------------------------------------- the agent


class Learned(NamedTuple):
    """A trained agent: the network's arrays, and moments or None.

    Attributes:
        observation_moments: If observations are standardised.
        reward_moments: Of the running discounted returns, if rewards are normalised.
        target_moments: Of the targets, (Z,), if component_scale is "running".
    """

    parameters: Any
    observation_moments: Moments | None
    reward_moments: Moments | None
    target_moments: Moments | None


def initial(config: Config, key: jax.Array) -> Learned:
    """An agent that has learned nothing yet."""
    environment = config.environment_object()
    return Learned(
        parameters=eqx.filter(config.made_network(key), eqx.is_array),
        observation_moments=no_moments(environment.observation_shape) if config.normalize_observations else None,
        reward_moments=no_moments(()) if config.normalize_rewards else None,
        target_moments=no_moments((len(config.critic_scales),)) if config.component_scale == "running" else None,
    )


def grown(config: Config, learned: Learned) -> Learned:
    """Everything learned, for `config.grown`: the same policy, V and every W, and 0 for the new W.

    A single output for the whole ladder is taken for V at the new discount from then on.
    """
    moments, count = learned.target_moments, len(config.critic_scales)
    if moments is not None and len(config.grown.critic_scales) > count:
        # Each component counts its own samples from here on. A new V is as large as the last one.
        mode = "edge" if config.agent.basis == "values" else "constant"
        moments = jax.tree.map(lambda one: padded(jnp.broadcast_to(one, count), (count + 1,), mode), moments)
    return learned._replace(parameters=grown_parameters(config, learned.parameters), target_moments=moments)


def network(config: Config, parameters: Any) -> Any:
    """The network with these parameters: takes one observation as it sees it, returns (policy, heads)."""
    skeleton = eqx.filter_eval_shape(config.made_network, jax.random.key(0))
    _, static = eqx.partition(skeleton, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    return eqx.combine(parameters, static)


def evaluator(config: Config, learned: Learned) -> Callable[[jax.Array], Any]:
    """f(B observations as the environment gives them) → (policy's parameters, critic's heads (B, heads))."""
    acting, moments = network(config, learned.parameters), learned.observation_moments
    evaluate: Callable[[jax.Array], Any] = jax.vmap(lambda observation: acting(inputs(observation, moments)))
    return evaluate


class Basis(NamedTuple):
    """Meaning of the critic's outputs: "deltas" are W_z, "values" V_{γ_z}, and "sum" has parts of V_{γ_Z} alone."""

    name: str

    def learned(self, outputs: jax.Array) -> jax.Array:
        """Learned quantities, (…, Z), from the network's outputs (…, heads): a sum has one scale.

        In single precision at least, also where a network of the user's computes in half.
        """
        outputs = widened(outputs)
        return jnp.sum(outputs, axis=-1, keepdims=True) if self.name == "sum" else outputs

    def deltas(self, learned: jax.Array) -> jax.Array:
        """W, (…, Z)."""
        return decompose(learned) if self.name == "values" else learned

    def total(self, learned: jax.Array) -> jax.Array:
        """V_Z, (…)."""
        return learned[..., -1] if self.name == "values" else jnp.sum(learned, -1)

    def outputs(self, values: jax.Array, heads: int) -> jax.Array:
        """Constant outputs, (heads,), whose values V_z are these, (Z,); those of a sum are equal."""
        if self.name == "sum":
            return jnp.broadcast_to(values / heads, (heads,))
        return decompose(values) if self.name == "deltas" else values

    def spans(self, horizons: tuple[float, ...]) -> jax.Array:
        """Share of the horizon that each output stands for, in steps, (Z,)."""
        if self.name == "values":
            return jnp.asarray(horizons)
        return jnp.asarray([long - short for long, short in zip(horizons, (0.0, *horizons[:-1]), strict=True)])


def component_unit(config: Config, target_moments: Moments | None) -> jax.Array | None:
    """Size of one unit of each output in units of reward, (Z,), or None for 1: see `component_scale`."""
    if config.component_scale == "horizon":
        return Basis(config.agent.basis).spans(config.critic_scales.horizons)
    return None if target_moments is None else target_moments.deviation


def in_reward_units(config: Config, learned: Learned, outputs: jax.Array) -> jax.Array:
    """Learned quantities in units of the (normalised) reward, (…, Z), from the network's outputs."""
    unit = component_unit(config, learned.target_moments)
    values = Basis(config.agent.basis).learned(outputs)
    return values if unit is None else values * unit


def components(config: Config, learned: Learned, outputs: jax.Array) -> jax.Array:
    """W_z in units of reward, (…, Z), from the network's outputs."""
    deltas = Basis(config.agent.basis).deltas(in_reward_units(config, learned, outputs))
    return deltas if learned.reward_moments is None else deltas * learned.reward_moments.deviation


# ---------------------------------------------------------------- distributions over actions

Policy = Any
"""A policy's parameters as a network returns them: logits (…, A), or mean and log standard deviation (…, D) each."""


def noise(environment: AnyEnvironment, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Noise from which `sample` makes actions, drawn for many steps at once: Gumbel or standard normal."""
    if environment.discrete:
        return jax.random.gumbel(key, (*shape, environment.action_space.n))
    return jax.random.normal(key, (*shape, *environment.action_space.shape))


def sample(environment: AnyEnvironment, policy: Policy, drawn: jax.Array) -> jax.Array:
    """An action distributed as the policy says, from the noise drawn for it."""
    if environment.discrete:
        return jnp.argmax(policy + drawn, axis=-1)
    mean, log_deviation = policy
    return jnp.asarray(mean + jnp.exp(log_deviation) * drawn)


def mode(environment: AnyEnvironment, policy: Policy) -> jax.Array:
    """The most probable action."""
    return jnp.argmax(policy, axis=-1) if environment.discrete else jnp.asarray(policy[0])


def log_probability(environment: AnyEnvironment, policy: Policy, action: jax.Array) -> jax.Array:
    """Log probability, or log density summed over the dimensions of a box; shape of the batch."""
    if environment.discrete:
        logs = jax.nn.log_softmax(policy)
        # A selection by comparison: gradients of a gather are scatters, slow on every device.
        chosen = action[..., None] == jnp.arange(logs.shape[-1])
        return jnp.sum(jnp.where(chosen, logs, 0.0), axis=-1)
    mean, log_deviation = policy
    standard = (action - mean) * jnp.exp(-log_deviation)
    return jnp.sum(-0.5 * standard**2 - log_deviation - 0.5 * math.log(2 * math.pi), axis=_dimensions(environment))


def entropy(environment: AnyEnvironment, policy: Policy) -> jax.Array:
    """Entropy in nats; shape of the batch."""
    if environment.discrete:
        logs = jax.nn.log_softmax(policy)
        return -jnp.sum(jnp.exp(logs) * logs, axis=-1)
    mean, log_deviation = policy
    entropies = jnp.broadcast_to(log_deviation, mean.shape) + 0.5 * math.log(2 * math.pi * math.e)
    return jnp.sum(entropies, axis=_dimensions(environment))


def _dimensions(environment: AnyEnvironment) -> tuple[int, ...]:
    """The axes of one action: none of a single number, two of a table."""
    return tuple(range(-len(environment.action_space.shape), 0))


def to_environment(environment: AnyEnvironment, action: jax.Array) -> jax.Array:
    """The action as the environment takes it: clipped to its box, here and nowhere else.

    The learner keeps the action that was sampled, whose density it knows.
    """
    if environment.discrete:
        action = action.astype(getattr(environment.action_space, "dtype", jnp.int32))
        return action + environment.first_action if environment.first_action else action
    return jnp.clip(action, environment.action_space.low, environment.action_space.high)


# ---------------------------------------------------------------- rollouts


class Playing(NamedTuple):
    """States of the environments, (B, …) each, their observations, and returns and lengths of running episodes.

    `reward_return` is the discounted return that normalises rewards; 0 at every episode's start.
    """

    environment: Any
    observation: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    reward_return: jax.Array


class Rollout(NamedTuple):
    """T steps of B environments, (T, B) each where nothing else is said; row t belongs to the transition out of s_t.

    Attributes:
        observations: (T, B, *observation), in the environment's storage type.
        actions: As sampled, before any clipping, (T, B, …).
        log_probabilities: Of those actions under the acting policy.
        heads: The critic's outputs at s_t, (T, B, heads).
        final_heads: The critic's outputs at the true successor where step t truncated an episode, elsewhere
            without meaning, (T, B, heads).
        final_finite: Whether the true successor of step t is finite, where it truncated an episode.
        last_heads: The critic's outputs after the last step, (B, heads).
        rewards: As the environment gave them.
        reward_noise: Added to them, clipped or not, for the learner; None for none.
        reward_returns: Running discounted returns that normalise rewards.
        terminated: Boolean.
        truncated: Boolean, False where terminated.
        finished_returns: Undiscounted return of the episode that ended at step t.
        finished_lengths: Its length in steps; 0 where none ended.
        weights: Of the steps in all means, themselves of mean 1: 0 where a host environment only reset itself.
            None where all count the same.
    """

    observations: jax.Array
    actions: jax.Array
    log_probabilities: jax.Array
    heads: jax.Array
    final_heads: jax.Array
    final_finite: jax.Array
    last_heads: jax.Array
    rewards: jax.Array
    reward_returns: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    finished_returns: jax.Array
    finished_lengths: jax.Array
    weights: jax.Array | None = None
    reward_noise: jax.Array | None = None


def start(environment: Environment, key: jax.Array, count: int) -> Playing:
    """The state of `count` environments after their first reset."""
    observation, state = jax.vmap(environment.reset)(jax.random.split(key, count))
    zeros = jnp.zeros(count)
    return Playing(state, observation, zeros, jnp.zeros(count, jnp.int32), zeros)


def learned_rewards(config: Config, rewards: Any, noise: Any = None) -> Any:
    """Rewards as the learner sees them before any normalisation: their sign, where the settings say so, and noise."""
    if config.reward_clipping == "sign":
        rewards = np.sign(rewards) if isinstance(rewards, np.ndarray) else jnp.sign(rewards)
    return rewards if noise is None else rewards + noise


_REWARD_NOISE = 0x5EED  # what its stream folds into the key of a rollout


class Transition(NamedTuple):
    """One step of B environments: fields of `Rollout`, (B,) each, and true successors `final`, (B, *observation)."""

    rewards: jax.Array
    reward_returns: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final: jax.Array
    finished_returns: jax.Array
    finished_lengths: jax.Array


def advance(
    config: Config,
    environment: Environment,
    playing: Playing,
    action: jax.Array,
    keys: jax.Array,
    reward_noise: jax.Array | None = None,
) -> tuple[Playing, Transition]:
    """One step of every environment, with the bookkeeping of episodes."""
    observation, state, rewards, terminated, truncated, final = jax.vmap(environment.step)(
        keys, playing.environment, to_environment(environment, action)
    )
    if config.time_limit == "terminate":
        terminated = terminated | truncated
    truncated = truncated & ~terminated
    ended = terminated | truncated
    returns, lengths = playing.episode_return + rewards, playing.episode_length + 1
    seen = learned_rewards(config, rewards, reward_noise)
    reward_returns = seen + config.return_discount * playing.reward_return
    following = Playing(
        state,
        observation,
        jnp.where(ended, 0.0, returns),
        jnp.where(ended, 0, lengths),
        jnp.where(ended, 0.0, reward_returns),
    )
    finished = (jnp.where(ended, returns, 0.0), jnp.where(ended, lengths, 0))
    return following, Transition(rewards, reward_returns, terminated, truncated, final, *finished)


def collect(
    config: Config, learned: Learned, playing: Playing, key: jax.Array, axis: shards.Axis = ()
) -> tuple[Playing, Rollout]:
    """Play `config.rollout_length` steps in device environments, with random numbers of a key; see `ppo.update`."""
    environment: Any = config.environment_object()
    evaluate = evaluator(config, learned)
    shape = (config.rollout_length, config.environments)
    noise_key, step_key = jax.random.split(key)
    head_shape = (config.environments, config.heads)
    # A critic with a trunk of its own waits until the rollout is there: one large product instead of many small ones
    # (the compiler drops it from the loop). Together with the policy it shares the trunk's work.
    together = config.shared_trunk or not isinstance(learned.parameters, ActorCritic)
    # All random numbers at once: one large draw is several times cheaper than one small draw per step.
    drawn = noise(environment, noise_key, shape)
    step_keys = jax.random.split(step_key, shape)
    reward_noise = None
    if config.reward_noise:  # a stream of its own: the others are the same without it
        reward_noise = config.reward_noise * jax.random.normal(jax.random.fold_in(key, _REWARD_NOISE), shape)

    def step(playing: Playing, random: tuple[jax.Array, jax.Array, Any]) -> tuple[Playing, Rollout]:
        drawn, keys, reward_noise = random
        policy, heads = evaluate(playing.observation)
        heads = heads if together else jnp.zeros(())
        action = sample(environment, policy, drawn)
        following, moved = advance(config, environment, playing, action, keys, reward_noise)
        # The critic sees final observations only in the few steps in which an episode is cut.
        final_heads = jax.lax.cond(
            shards.somewhere_here(moved.truncated, axis),
            lambda: evaluate(moved.final)[1],
            lambda: jnp.zeros(head_shape),
        )
        return following, Rollout(
            observations=playing.observation.astype(environment.storage),
            actions=action,
            log_probabilities=log_probability(environment, policy, action),
            heads=heads,
            final_heads=final_heads,
            final_finite=~moved.truncated | finite(moved.final.astype(environment.storage)),
            last_heads=jnp.zeros(()),
            reward_noise=reward_noise,
            **{name: value for name, value in moved._asdict().items() if name != "final"},
        )

    playing, rollout = jax.lax.scan(step, playing, (drawn, step_keys, reward_noise))
    heads = rollout.heads if together else jax.vmap(evaluate)(rollout.observations)[1]
    return playing, rollout._replace(heads=heads, last_heads=evaluate(playing.observation)[1])


FAULTS = ("none", "reward", "observation", "loss")
"""Kinds of numbers that were not finite in an update: see `ppo.Metrics.fault`."""


def first_fault(
    rollout: Rollout, last: jax.Array, reports: tuple[jax.Array, ...], axis: shards.Axis = ()
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the first reward or observation that is not finite: its number in `FAULTS`, its step and environment.

    Where all are finite, it is that of a loss if a report of the minibatches is not, else 0.
    """
    length, environments = rollout.rewards.shape
    last = last[None].astype(rollout.observations.dtype)
    # An observation belongs to the step that led to it; the very first, before step 0, is counted with it.
    seen = jax.vmap(finite)(jnp.concatenate([rollout.observations, last]))
    good = jnp.stack([jnp.isfinite(rollout.rewards), (seen[1:] & rollout.final_finite).at[0].min(seen[0])])
    first = jnp.argmin(good.reshape(2, -1), axis=1)
    bad = ~jnp.all(good, axis=(1, 2))
    place = jnp.where(bad, first, length * environments)
    if axis:
        # The same place in the environments of all shards.
        step, environment = jnp.divmod(place, environments)
        mine = jax.lax.axis_index(axis) * environments + environment
        environments = environments * shards.count(axis)
        place = shards.least(jnp.where(bad, step * environments + mine, length * environments), axis)
        bad = place < length * environments
    kind = jnp.argmin(place)
    step, environment = jnp.divmod(place[kind], environments)
    fault = jnp.where(jnp.any(bad), 1 + kind, 0)
    reported = jnp.all(jnp.stack([jnp.all(jnp.isfinite(report)) for report in reports]))
    return jnp.where((fault == 0) & ~reported, FAULTS.index("loss"), fault), step, environment


def finite(observations: jax.Array) -> jax.Array:
    """Tell which of B observations are finite, (B,)."""
    if not jnp.issubdtype(observations.dtype, jnp.floating):  # whole numbers always are
        return jnp.ones(observations.shape[:1], bool)
    return jnp.all(jnp.isfinite(observations), axis=tuple(range(1, observations.ndim)))


# ---------------------------------------------------------------- host environments


class Acted(NamedTuple):
    """Arrays that acting leaves on the device for the learner; see `Rollout`."""

    observations: jax.Array
    actions: jax.Array
    log_probabilities: jax.Array
    heads: jax.Array


class HostPrograms(NamedTuple):
    """Compiled programs that act in host environments.

    Attributes:
        noise: key of the state → (key, noise of all actions (parts, T, B / parts, …), key of the shuffling).
        act: (learned, acted, noise, row, observations) → (acted, actions for the environment).
        value: (learned, observations (B / parts, …)) → heads (B / parts, …).
        empty: () → `Acted` of one part for a rollout, (T, B / parts, …).
    """

    noise: Any
    act: Any
    value: Any
    empty: Any


def parts_of(environment: HostEnvironment, count: int) -> int:
    """Two halves that act in turn where acting does not need the processors that step; one otherwise."""
    alternate = environment.overlaps and jax.default_backend() != "cpu"
    return 2 if alternate and count % 2 == 0 and count >= 16 else 1


def host_programs(config: Config, learned: Learned, parts: int) -> HostPrograms:
    """Compile the programs that act in host environments; of what is learned only shapes are needed."""
    environment = config.environment_object()
    length, count = config.rollout_length, config.environments // parts

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, rollout_key, shuffle_key = jax.random.split(key, 3)
        drawn = noise(environment, rollout_key, (length, parts, count))
        return key, jnp.moveaxis(drawn, 1, 0), shuffle_key

    def step(learned: Learned, drawn: jax.Array, observations: jax.Array) -> Acted:
        policy, heads = evaluator(config, learned)(observations)
        action = sample(environment, policy, drawn)
        return Acted(observations, action, log_probability(environment, policy, action), heads)

    def act(
        learned: Learned, acted: Acted, drawn: jax.Array, row: jax.Array, observations: jax.Array
    ) -> tuple[Acted, jax.Array]:
        new = step(learned, drawn[row], observations)
        moves = to_environment(environment, new.actions)
        return jax.tree.map(lambda rows, one: rows.at[row].set(one), acted, new), moves

    def value(learned: Learned, observations: jax.Array) -> jax.Array:
        heads: jax.Array = evaluator(config, learned)(observations)[1]
        return heads

    key = jax.random.key(0)
    seen = jax.ShapeDtypeStruct((count, *environment.observation_shape), environment.storage)
    drawn = jax.eval_shape(lambda key: draw(key)[1][0], key)
    one = jax.eval_shape(lambda learned, drawn, seen: step(learned, drawn[0], seen), learned, drawn, seen)

    def empty() -> Acted:
        made: Acted = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), one)
        return made

    rows, row = jax.eval_shape(empty), jax.ShapeDtypeStruct((), jnp.int32)
    return HostPrograms(
        noise=jax.jit(draw).lower(key).compile(),
        act=jax.jit(act, donate_argnums=1).lower(learned, rows, drawn, row, seen).compile(),
        value=jax.jit(value).lower(learned, seen).compile(),
        empty=jax.jit(empty).lower().compile(),
    )


def host_rollout(config: Config, acted: Any, *, waits: bool) -> Rollout:
    """An empty rollout of host environments: arrays of NumPy, and shapes of what acting leaves on the device."""
    steps, dtype = (config.rollout_length, config.environments), acted.heads.dtype
    left: Any = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*steps, *leaf.shape[2:]), leaf.dtype), acted)

    def zeros(kind: Any, *shape: int) -> Any:
        return np.zeros(shape or steps, kind)

    return Rollout(
        **left._asdict(),
        final_heads=zeros(dtype, *steps, config.heads),
        final_finite=np.ones(steps, bool),  # type: ignore[arg-type]
        last_heads=zeros(dtype, config.environments, config.heads),
        rewards=zeros(np.float32),
        reward_returns=zeros(np.float32),
        terminated=zeros(bool),
        truncated=zeros(bool),
        finished_returns=zeros(np.float32),
        finished_lengths=zeros(np.int32),
        weights=zeros(np.float32) if waits else None,
        reward_noise=zeros(np.float32) if config.reward_noise else None,
    )


class HostPlaying:
    """The environments of one run on the host; to be closed in the end.

    Args:
        config: Settings.
        seed: Of the run.
        part: 0 for a new run; else updates done before the environments are made anew.

    Attributes:
        seeds: Those of the environments.
        width: Environments of each vector.
        vectors: One, or two halves that step in turn.
        waits: Whether the environments reset themselves in a step of its own.
        reward_returns: Discounted returns that normalise rewards, (B,).
        noise: Random numbers of the noise on rewards.
        close: Close the environments.
    """

    def __init__(self, config: Config, seed: int, part: int = 0) -> None:
        environment: Any = config.environment_object()
        self.seeds = spawned_seeds(seed, "train", config.environments, part)
        self.width = config.environments // parts_of(environment, config.environments)
        self.reward_returns = np.zeros(config.environments)
        self.noise = np.random.default_rng(spawned_seeds(seed, "reward noise", 1, part))
        with ExitStack() as opened:
            self.vectors = [
                opened.enter_context(Vector(environment, self.seeds[first : first + self.width]))
                for first in range(0, config.environments, self.width)
            ]
            self.waits = self.vectors[0].waits
            if self.waits and config.rollout_length == 1:
                raise ConfigError(
                    f"{setting('rollout_length')} must be at least 2 for {environment.name}, whose environments take "
                    "a step to reset themselves; got 1: a rollout of resets teaches nothing"
                )
            for vector in self.vectors:
                vector.reset()
            self.close = opened.pop_all().close


def collect_host(
    config: Config, programs: HostPrograms, learned: Learned, playing: HostPlaying, drawn: jax.Array
) -> tuple[np.ndarray, Rollout]:
    """Play `config.rollout_length` steps in host environments, as `collect` does in those of the device.

    Every observation goes to the device once, as it is stored, and only the actions come back. On a GPU the
    environments are two halves; while one half steps, the other half's actions are computed.

    Args:
        config: Settings.
        programs: See `host_programs`.
        learned: The agent.
        playing: The environments, which move on.
        drawn: Noise of the actions, from `programs.noise`.

    Returns:
        Observations after the last step, (B, *observation), and the rollout.
    """
    acted: list[Acted] = [programs.empty() for _ in playing.vectors]
    rollout: Any = host_rollout(config, acted[0], waits=playing.waits)
    finals: dict[tuple[int, int], np.ndarray] = {}
    for row in range(config.rollout_length + 1):
        for part, vector in enumerate(playing.vectors):
            if row:
                moved = vector.finish()
                _note(config, rollout, playing, row - 1, part, moved)
                finals |= {(row - 1, part * playing.width + one): seen for one, seen in moved.finals.items()}
            if row < config.rollout_length:
                now = np.int32(row), vector.observations
                acted[part], chosen = programs.act(learned, acted[part], drawn[part], *now)
                vector.begin(np.asarray(chosen))

    def values(observations: Any) -> list[np.ndarray]:
        # The program takes the observations of one part at a time.
        found: list[np.ndarray] = []
        for first in range(0, len(observations), playing.width):
            some = [*observations[first : first + playing.width]]
            filled = some + [some[0]] * (playing.width - len(some))
            found.extend(np.asarray(programs.value(learned, np.stack(filled)))[: len(some)])
        return found

    if config.time_limit == "truncate":
        for place, heads in zip(finals, values([*finals.values()]), strict=True):
            rollout.final_heads[place], rollout.final_finite[place] = heads, np.all(np.isfinite(finals[place]))
    if rollout.weights is not None:
        rollout.weights[:] /= rollout.weights.mean()
    last = np.concatenate([vector.observations for vector in playing.vectors])
    together = acted[0] if len(acted) == 1 else jax.tree.map(lambda *each: jnp.concatenate(each, 1), *acted)
    found: Rollout = rollout._replace(**together._asdict(), last_heads=jnp.asarray(np.stack(values(last))))
    return last, found


def _note(config: Config, rollout: Rollout, playing: HostPlaying, row: int, part: int, moved: Moved) -> None:
    """Write a step of one part of the environments into a row of the rollout."""
    here = slice(part * playing.width, (part + 1) * playing.width)
    terminated, truncated = moved.terminated, moved.truncated
    if config.time_limit == "terminate":
        terminated, truncated = terminated | truncated, np.zeros_like(truncated)
    reward_returns = playing.reward_returns[here]
    reward_returns *= config.return_discount
    noise = config.reward_noise * playing.noise.normal(size=playing.width) if config.reward_noise else None
    reward_returns += np.asarray(learned_rewards(config, moved.rewards, noise), np.float64)
    columns = {
        "rewards": moved.rewards,
        "reward_returns": reward_returns,
        "terminated": terminated,
        "truncated": truncated,
        "finished_returns": moved.finished_returns,
        "finished_lengths": moved.finished_lengths,
        "weights": moved.played,
        "reward_noise": noise,
    }
    for name, column in columns.items():
        if (rows := getattr(rollout, name)) is not None:
            rows[row, here] = column
    reward_returns[terminated | truncated | ~moved.played] = 0.0
