"""Policies as distributions over actions: categorical for discrete spaces, diagonal Gaussian for boxes."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from tddelta.deep.tasks import Task

Policy = Any
"""A policy's parameters as a network returns them: logits (…, A), or mean and log standard deviation (…, D) each."""


def noise(environment: Task, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Noise from which `sample` makes actions, drawn for many steps at once: Gumbel or standard normal."""
    if environment.discrete:
        gumbel: jax.Array = jax.random.gumbel(key, (*shape, environment.action_space.n))
        return gumbel
    normal: jax.Array = jax.random.normal(key, (*shape, *environment.action_space.shape))
    return normal


def sample(environment: Task, policy: Policy, drawn: jax.Array) -> jax.Array:
    """An action distributed as the policy says, from the noise drawn for it."""
    if environment.discrete:
        return jnp.argmax(policy + drawn, axis=-1)
    mean, log_deviation = policy
    action: jax.Array = mean + jnp.exp(log_deviation) * drawn
    return action


def mode(environment: Task, policy: Policy) -> jax.Array:
    """The most probable action."""
    best: jax.Array = jnp.argmax(policy, axis=-1) if environment.discrete else policy[0]
    return best


def log_probability(environment: Task, policy: Policy, action: jax.Array) -> jax.Array:
    """Log probability, or log density summed over the dimensions of a box; shape of the batch."""
    if environment.discrete:
        logs = jax.nn.log_softmax(policy)
        # A selection by comparison: gradients of a gather are scatters, slow on every device.
        chosen = action[..., None] == jnp.arange(logs.shape[-1])
        return jnp.sum(jnp.where(chosen, logs, 0.0), axis=-1)
    mean, log_deviation = policy
    standard = (action - mean) * jnp.exp(-log_deviation)
    return jnp.sum(-0.5 * standard**2 - log_deviation - 0.5 * math.log(2 * math.pi), axis=_dimensions(environment))


def entropy(environment: Task, policy: Policy) -> jax.Array:
    """Entropy in nats; shape of the batch."""
    if environment.discrete:
        logs = jax.nn.log_softmax(policy)
        return -jnp.sum(jnp.exp(logs) * logs, axis=-1)
    mean, log_deviation = policy
    entropies = jnp.broadcast_to(log_deviation, mean.shape) + 0.5 * math.log(2 * math.pi * math.e)
    return jnp.sum(entropies, axis=_dimensions(environment))


def _dimensions(environment: Task) -> tuple[int, ...]:
    """The axes of one action: none of a single number, two of a table."""
    return tuple(range(-len(environment.action_space.shape), 0))


def to_environment(environment: Task, action: jax.Array) -> jax.Array:
    """The action as the environment takes it: clipped to its box, here and nowhere else.

    The learner keeps the action that was sampled, whose density it knows.
    """
    if environment.discrete:
        action = action.astype(getattr(environment.action_space, "dtype", jnp.int32))
        return action + environment.first_action if environment.first_action else action
    return jnp.clip(action, environment.action_space.low, environment.action_space.high)
