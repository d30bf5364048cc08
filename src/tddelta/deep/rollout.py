"""Acting: environments and policy advance together in one scan, and every episode end keeps its meaning."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta.deep import actions, shards
from tddelta.deep.config import Config
from tddelta.deep.environments import Environment
from tddelta.deep.networks import ActorCritic


class Moments(NamedTuple):
    """Running mean and variance of a stream.

    Attributes:
        samples: How many so far.
        mean: Their mean.
        squares: Sum of squared distances from the mean.
    """

    samples: jax.Array
    mean: jax.Array
    squares: jax.Array

    @property
    def deviation(self) -> jax.Array:
        """Population standard deviation; 1 before there are two samples or where all are equal."""
        variance = self.squares / jnp.maximum(self.samples, 1)
        usable = (self.samples > 1) & (variance > 0)
        return jnp.where(usable, jnp.sqrt(jnp.where(usable, variance, 1.0)), 1.0)

    def updated(self, more: jax.Array, axes: tuple[int, ...], over: shards.Axis = ()) -> "Moments":
        """With more samples, along these axes and those of all shards (Chan's parallel formula)."""
        count = math.prod(more.shape[axis] for axis in axes) * shards.count(over)
        mean = shards.mean(jnp.mean(more, axes), over)
        squares = shards.total(jnp.sum((more - jnp.expand_dims(mean, axes)) ** 2, axes), over)
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


class Playing(NamedTuple):
    """Where the environments are: what the next step continues from.

    Attributes:
        environment: States of the environments, each leaf (B, …).
        observation: Observation each environment is in, (B, *observation).
        episode_return: Sum of rewards of the running episodes, (B,).
        episode_length: Steps of the running episodes, (B,).
        reward_return: Discounted return that normalises rewards, (B,); 0 at every episode's start.
    """

    environment: Any
    observation: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    reward_return: jax.Array


class Rollout(NamedTuple):
    """T steps of B environments; row t belongs to the transition out of s_t.

    Attributes:
        observations: (T, B, *observation), in the environment's storage type.
        actions: As sampled, before any clipping, (T, B, …).
        log_probabilities: Of those actions under the acting policy, (T, B).
        heads: The critic's outputs at s_t, (T, B, heads).
        final_heads: The critic's outputs at the true successor where step t truncated an episode, elsewhere
            without meaning, (T, B, heads).
        final_finite: Whether the true successor of step t is finite, where it truncated an episode, (T, B).
        last_heads: The critic's outputs after the last step, (B, heads).
        rewards: As the environment gave them, (T, B).
        reward_returns: Running discounted returns that normalise rewards, (T, B).
        terminated: (T, B), boolean.
        truncated: (T, B), boolean, False where terminated.
        finished_returns: Undiscounted return of the episode that ended at step t, (T, B).
        finished_lengths: Its length in steps; 0 where none ended, (T, B).
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


def start(environment: Environment, key: jax.Array, count: int) -> Playing:
    """`count` environments after their first reset."""
    observation, state = jax.vmap(environment.reset)(jax.random.split(key, count))
    zeros = jnp.zeros(count)
    return Playing(state, observation, zeros, jnp.zeros(count, jnp.int32), zeros)


def inputs(observations: jax.Array, moments: Moments | None) -> jax.Array:
    """Observations as the network sees them: float32, standardised and clipped to ±10 if there are moments."""
    real = observations.astype(jnp.float32)
    if moments is None:
        return real
    # A floor on the deviation: a feature that has not moved yet must not explode when it first does.
    return jnp.clip((real - moments.mean) / jnp.maximum(moments.deviation, 1e-4), -10, 10)


def learned_rewards(config: Config, rewards: Any) -> Any:
    """Rewards as the learner sees them before any normalisation: their sign, where the settings say so."""
    if config.reward_clipping == "none":
        return rewards
    return np.sign(rewards) if isinstance(rewards, np.ndarray) else jnp.sign(rewards)


class Transition(NamedTuple):
    """What B environments did in one step; see `Rollout` for the fields they share.

    Attributes:
        rewards: (B,).
        reward_returns: (B,).
        terminated: (B,).
        truncated: (B,).
        final: True successors, before any reset, (B, *observation).
        finished_returns: (B,).
        finished_lengths: (B,).
    """

    rewards: jax.Array
    reward_returns: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final: jax.Array
    finished_returns: jax.Array
    finished_lengths: jax.Array


def advance(
    config: Config, environment: Environment, playing: Playing, action: jax.Array, keys: jax.Array
) -> tuple[Playing, Transition]:
    """One step of every environment, with the bookkeeping of episodes."""
    observation, state, rewards, terminated, truncated, final = jax.vmap(environment.step)(
        keys, playing.environment, actions.to_environment(environment, action)
    )
    if config.time_limit == "terminate":
        terminated = terminated | truncated
    truncated = truncated & ~terminated
    ended = terminated | truncated
    returns, lengths = playing.episode_return + rewards, playing.episode_length + 1
    reward_returns = learned_rewards(config, rewards) + config.return_discount * playing.reward_return
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
    config: Config,
    environment: Environment,
    network: Any,
    moments: Moments | None,
    playing: Playing,
    key: jax.Array,
    axis: shards.Axis = (),
) -> tuple[Playing, Rollout]:
    """Plays `config.rollout_length` steps with the policy of a network.

    Args:
        config: Settings.
        environment: The environment.
        network: Takes one observation, returns (policy, heads).
        moments: Of the observations, or None to leave them as they are.
        playing: Where the environments are.
        key: For actions and environments.
        axis: See `ppo.update`.

    Returns:
        Where the environments are now, and the rollout.
    """
    evaluate: Callable[[jax.Array], Any] = jax.vmap(lambda observation: network(inputs(observation, moments)))
    shape = (config.rollout_length, config.environments)
    noise_key, step_key = jax.random.split(key)
    head_shape = (config.environments, config.heads)
    # A critic with a trunk of its own waits until the rollout is there: one large product instead of many small ones
    # (the compiler drops it from the loop). Together with the policy it shares the trunk's work.
    together = config.shared_trunk or not isinstance(network, ActorCritic)
    # All random numbers at once: one large draw is several times cheaper than one small draw per step.
    drawn = actions.noise(environment, noise_key, shape)
    step_keys = jax.random.split(step_key, shape)

    def step(playing: Playing, random: tuple[jax.Array, jax.Array]) -> tuple[Playing, Rollout]:
        drawn, keys = random
        policy, heads = evaluate(playing.observation)
        heads = heads if together else jnp.zeros(())
        action = actions.sample(environment, policy, drawn)
        following, moved = advance(config, environment, playing, action, keys)
        # The critic sees final observations only in the few steps in which an episode is cut.
        final_heads = jax.lax.cond(
            shards.somewhere_here(moved.truncated, axis),
            lambda: evaluate(moved.final)[1],
            lambda: jnp.zeros(head_shape),
        )
        return following, Rollout(
            observations=playing.observation.astype(environment.storage),
            actions=action,
            log_probabilities=actions.log_probability(environment, policy, action),
            heads=heads,
            final_heads=final_heads,
            final_finite=~moved.truncated | finite(moved.final.astype(environment.storage)),
            last_heads=jnp.zeros(()),
            rewards=moved.rewards,
            reward_returns=moved.reward_returns,
            terminated=moved.terminated,
            truncated=moved.truncated,
            finished_returns=moved.finished_returns,
            finished_lengths=moved.finished_lengths,
        )

    playing, rollout = jax.lax.scan(step, playing, (drawn, step_keys))
    heads = rollout.heads
    if not together:
        over_time: Callable[[jax.Array], Any] = jax.vmap(evaluate)
        _, heads = over_time(rollout.observations)
    return playing, rollout._replace(heads=heads, last_heads=evaluate(playing.observation)[1])


def finite(observations: jax.Array) -> jax.Array:
    """Whether each of B observations is finite, (B,)."""
    if not jnp.issubdtype(observations.dtype, jnp.floating):  # whole numbers always are
        return jnp.ones(observations.shape[:1], bool)
    return jnp.all(jnp.isfinite(observations), axis=tuple(range(1, observations.ndim)))


def shuffled(key: jax.Array, length: int, environments: int) -> jax.Array:
    """A random order of the steps of a rollout, (length·environments,), without sorting.

    Sorting random keys takes a CPU longer than turning rows and columns. A grid of T steps and B environments is
    shuffled instead by a Feistel network: columns of every row are turned by a random amount, then rows of
    every column, four times. Each round is a bijection, so the result is a permutation. Grids too narrow for it
    are sorted.
    """
    if min(length, environments) < 16:
        return jax.random.permutation(key, length * environments)
    rounds = 4
    # One draw for all rounds. Its remainder is uniform to within environments / 2³².
    drawn = jax.random.bits(key, (rounds, length + environments))
    row, column = jnp.divmod(jnp.arange(length * environments), environments)
    for turn in drawn:
        column = (column + (turn[:length] % environments).astype(jnp.int32)[row]) % environments
        row = (row + (turn[length:] % length).astype(jnp.int32)[column]) % length
    return row * environments + column


class Learned(NamedTuple):
    """What a trained agent is: all that acting and reading the critic need.

    Attributes:
        parameters: The network's arrays.
        observation_moments: If observations are standardised, else None.
        reward_moments: Of the running discounted returns, if rewards are normalised, else None.
        target_moments: Of the targets, (Z,), if component_scale is "running", else None.
    """

    parameters: Any
    observation_moments: Moments | None
    reward_moments: Moments | None
    target_moments: Moments | None


class State(NamedTuple):
    """Everything that training continues from.

    Attributes:
        learned: The agent.
        optimizer: State of Adam.
        playing: The environments.
        key: For the next update.
        updates: Updates done so far, ().
    """

    learned: Learned
    optimizer: Any
    playing: Playing
    key: jax.Array
    updates: jax.Array


class Metrics(NamedTuple):
    """What one update reports. Losses are means over its minibatches, in the units of the loss.

    Attributes:
        policy_loss: ().
        value_loss: ½ Σ_z weight_z (error_z)², ().
        component_losses: ½ (error_z)² of each head, (Z,).
        explained_variance: Of V_Z: old values against their targets, ().
        component_explained_variance: The same per head, (Z,).
        value_mean: Mean of V_Z over the rollout, ().
        component_means: Mean of each head, (Z,).
        entropy: Of the policy in nats, ().
        approximate_kl: mean(ρ − 1 − log ρ), ().
        clip_fraction: Share of probability ratios outside the clip range, ().
        gradient_norm: Global norm before clipping, ().
        learning_rate: ().
        finished_returns: (T, B); see `Rollout`.
        finished_lengths: (T, B); 0 where no episode ended.
        fault: Index into `FAULTS`; not 0 if a number was not finite. Then what is learned and the optimizer
            are those before the update.
        fault_step: Step of the environment, counted from the start of training, at which it happened, ().
        fault_environment: Which environment, ().
    """

    policy_loss: jax.Array
    value_loss: jax.Array
    component_losses: jax.Array
    explained_variance: jax.Array
    component_explained_variance: jax.Array
    value_mean: jax.Array
    component_means: jax.Array
    entropy: jax.Array
    approximate_kl: jax.Array
    clip_fraction: jax.Array
    gradient_norm: jax.Array
    learning_rate: jax.Array
    finished_returns: jax.Array
    finished_lengths: jax.Array
    fault: jax.Array
    fault_step: jax.Array
    fault_environment: jax.Array


class Batch(NamedTuple):
    """What the losses read, one row per environment step."""

    observations: jax.Array
    actions: jax.Array
    log_probabilities: jax.Array
    advantages: jax.Array
    targets: jax.Array
