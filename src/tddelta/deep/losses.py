"""The losses of PPO, each a mean over a minibatch, with shapes checked: nothing is broadcast."""

import jax
import jax.numpy as jnp

from tddelta.deep import shards
from tddelta.errors import ShapeError


def _same_shape(**arrays: jax.Array) -> None:
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ShapeError(f"shapes must be equal; got {listed}: a broadcast here would average over the batch")


def clipped_surrogate(
    log_probabilities: jax.Array, old_log_probabilities: jax.Array, advantages: jax.Array, clip: jax.Array | float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """PPO's clipped surrogate −mean min(ρA, clip(ρ, 1 ± ε)A), ρ = π(a|s)/π_old(a|s).

    Args:
        log_probabilities: log π(a|s), (N,).
        old_log_probabilities: log π_old(a|s), (N,).
        advantages: A, (N,).
        clip: ε > 0.

    Returns:
        The loss, the approximate KL divergence mean(ρ − 1 − log ρ) ≥ 0, and the share of clipped ratios.

    Raises:
        ShapeError: If the shapes differ.

    Reference:
        Schulman et al., Proximal policy optimization algorithms, 2017, equation 7.
    """
    _same_shape(log_probabilities=log_probabilities, old_log_probabilities=old_log_probabilities, advantages=advantages)
    log_ratio = log_probabilities - old_log_probabilities
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
    return loss, jnp.mean(ratio - 1 - log_ratio), jnp.mean(jnp.abs(ratio - 1) > clip)


def squared_error(
    heads: jax.Array, targets: jax.Array, weights: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """½ Σ_z mean (W_z − G^z)²: summed over components, averaged over the batch.

    Args:
        heads: (N, Z).
        targets: (N, Z), constants.
        weights: (Z,), default 1 each.

    Returns:
        The loss, and the unweighted part of each component (Z,).

    Raises:
        ShapeError: If the shapes differ.
    """
    _same_shape(heads=heads, targets=targets)
    components = 0.5 * jnp.mean((heads - targets) ** 2, axis=0)
    weighted = components if weights is None else components * weights
    return jnp.sum(weighted), components


def standardized(advantages: jax.Array, axis: shards.Axis = ()) -> jax.Array:
    """Mean 0 and population standard deviation 1, over all shards; all zeros for one sample or equal samples."""
    centred = advantages - shards.mean(jnp.mean(advantages), axis)
    deviation = jnp.sqrt(shards.mean(jnp.mean(centred**2), axis))
    highest, lowest = shards.largest(jnp.max(advantages), axis), shards.least(jnp.min(advantages), axis)
    size = shards.largest(jnp.max(jnp.abs(advantages)), axis)
    # Equal samples have a deviation of rounding errors.
    varied = (highest > lowest) & (deviation > 1e-6 * size)
    return jnp.where(varied, centred / jnp.where(varied, deviation, 1.0), 0.0)


def explained_variance(values: jax.Array, targets: jax.Array, axis: shards.Axis = ()) -> jax.Array:
    """1 − Var(targets − values) / Var(targets) over the first axis and shards; NaN where the targets do not vary."""
    spread = shards.variance(targets, axis)
    highest, lowest = shards.largest(jnp.max(targets, axis=0), axis), shards.least(jnp.min(targets, axis=0), axis)
    varied = (highest > lowest) & (spread > 0)
    return jnp.where(varied, 1 - shards.variance(targets - values, axis) / jnp.where(varied, spread, 1.0), jnp.nan)
