"""Parts of what is learned from: environments in shards that learn together, and minibatches computed piece by piece.

A shard is a mapped axis, of `jax.vmap` on one device or of `jax.shard_map` over several. Every shard plays its own
environments and knows the same agent. Functions that take an `axis` compute over all shards; without one, `()`, there
is nothing to map over, and they compute what they say on this array alone.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from tddelta.deep.config import Config

_Tree = TypeVar("_Tree")

Axis = tuple[str, ...]
"""Names of the mapped axes whose shards learn together, outermost first; () for none."""

SHARDS = "shards"
"""Name of the axis over the shards that share a device."""


def part(config: Config, count: int) -> Config:
    """The settings of one of `count` equal parts, a divisor of the shards; it makes as many updates as the whole."""
    environments = config.environments // count
    batch = environments * config.rollout_length
    return dataclasses.replace(
        config,
        environments=environments,
        shards=config.shards // count,
        steps=config.updates * batch,
        grow=tuple((-(-step // config.batch) * batch, horizon) for step, horizon in config.grow),
    )


def own(key: jax.Array, axis: Axis) -> jax.Array:
    """A key for this shard alone, from one that all know."""
    return jax.random.fold_in(key, jax.lax.axis_index(axis)) if axis else key


def count(axis: Axis) -> int:
    """Number of shards; 1 without an axis."""
    shards: int = jax.lax.axis_size(axis) if axis else 1
    return shards


def _over(reduce: Callable[..., Any], tree: _Tree, axis: Axis) -> _Tree:
    """Reduce every entry of every array of a tree over shards."""
    return reduce(tree, axis) if axis else tree


mean = functools.partial(_over, jax.lax.pmean)
"""The mean over shards of every entry of a tree of arrays."""
total = functools.partial(_over, jax.lax.psum)
"""The sum over shards of every entry of a tree of arrays."""
least = functools.partial(_over, jax.lax.pmin)
"""The minimum over shards of every entry of a tree of arrays."""
largest = functools.partial(_over, jax.lax.pmax)
"""The maximum over shards of every entry of a tree of arrays."""


def mean_of_rows(array: jax.Array, axis: Axis) -> jax.Array:
    """The mean over the first axis and over shards of equal size."""
    return mean(jnp.mean(array, 0), axis)


def somewhere_here(flags: jax.Array, axis: Axis) -> jax.Array:
    """Tell whether any flag is set in any shard of this device.

    One answer for all of them keeps a `jax.lax.cond` a choice; with one answer each, both branches would be computed.
    """
    here = jnp.any(flags)
    return jax.lax.pmax(here.astype(jnp.int32), SHARDS) > 0 if SHARDS in axis else here


def together(update: Callable[..., Any], metrics: Any, config: Config, state: Any, axis: Axis) -> tuple[Any, Any]:
    """Apply `ppo.update`, whose reports are of the class `metrics`, to all shards of these settings on this device."""
    count = config.shards
    one = part(config, count)
    # Only environments and episodes are a shard's own: the axes where they stand, in the state and in the metrics.
    places = type(state)(**{**dict.fromkeys(state._fields), "playing": 0})
    episodes = metrics(**{**dict.fromkeys(metrics._fields), "finished_returns": 1, "finished_lengths": 1})
    updated: Callable[..., Any] = jax.vmap(
        lambda part: update(one, part, (*axis, SHARDS)), (places,), (places, episodes), axis_name=SHARDS
    )
    split = jax.tree.map(lambda leaf: leaf.reshape(count, one.environments, *leaf.shape[1:]), state.playing)
    following, found = updated(state._replace(playing=split))
    playing = jax.tree.map(lambda leaf: leaf.reshape(config.environments, *leaf.shape[2:]), following.playing)
    returns, lengths = (
        leaf.reshape(config.rollout_length, config.environments)
        for leaf in (found.finished_returns, found.finished_lengths)
    )
    return following._replace(playing=playing), found._replace(finished_returns=returns, finished_lengths=lengths)


def gradient(loss: Callable[..., Any], parameters: Any, rows: Any, count: int, piece: int | None) -> tuple[Any, Any]:
    """Gradient and report of a minibatch of so many rows, piece by piece where that is faster.

    Means of equal pieces are the mean of the whole: `loss` is f(parameters, rows) → (mean, means to report).
    """
    differentiated = jax.grad(loss, has_aux=True)
    if piece is None or piece >= count:
        return differentiated(parameters, rows)  # type: ignore[no-any-return]
    pieces = jax.tree.map(lambda array: array.reshape(count // piece, piece, *array.shape[1:]), rows)

    def more(total: Any, rows: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, differentiated(parameters, rows)), None

    shapes = jax.eval_shape(differentiated, parameters, jax.tree.map(lambda array: array[0], pieces))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(more, nothing, pieces)
    return jax.tree.map(lambda leaf: leaf * (piece / count), total)  # type: ignore[no-any-return]
