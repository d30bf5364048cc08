"""The state of training as named arrays, and back: what a checkpoint holds. Everything is in it, also random keys."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tddelta._plain import number, whole
from tddelta.errors import CheckpointError
from tddelta.runs import Arrays
from tddelta.runs.checkpoints import Pauses

_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


def checked_pauses(eval_every: Any, checkpoint_every: Any) -> tuple[int | None, float]:
    """Steps between evaluations and seconds between checkpoints, as plain numbers.

    Raises:
        ConfigError: One is out of range.
    """
    steps = None if eval_every is None else whole("eval_every", eval_every, advice="leave it out for no evaluations")
    seconds = number("checkpoint_every", checkpoint_every)
    Pauses(seconds)
    return steps, seconds


def to_arrays(state: Any) -> Arrays:
    """Every leaf of a state by its path, as in "learned.parameters.policy.layers.0.weight".

    Args:
        state: A pytree of JAX arrays, random keys among them.

    Returns:
        Arrays of numbers; what safetensors has no type for is kept as bytes, in one more axis.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {path_name(path): _plain(leaf) for path, leaf in leaves}


def from_arrays(arrays: Mapping[str, np.ndarray], shapes: Any, place: str) -> Any:
    """The state that `to_arrays` made arrays of.

    Args:
        arrays: The arrays.
        shapes: A state of the same kind, of `jax.ShapeDtypeStruct`.
        place: Where the arrays are from, for the error.

    Raises:
        CheckpointError: An array is missing or has another shape or type: settings, environment or one of the
            packages are not those that the checkpoint was made with.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    names = {path_name(path) for path, _ in leaves}
    if unknown := sorted(set(arrays) - names):
        raise _misfit(place, f"has {unknown[0]}, which this version's state has not")
    return jax.tree.unflatten(structure, [_restored(arrays, path_name(path), leaf, place) for path, leaf in leaves])


def path_name(path: Any) -> str:
    """The name of a leaf, as in "learned.parameters.policy.weight", from its path in a pytree."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return array if array.dtype.kind in "biuf" else np.ascontiguousarray(array[..., None]).view(np.uint8)


def _restored(arrays: Mapping[str, np.ndarray], name: str, leaf: Any, place: str) -> Any:
    if name not in arrays:
        raise _misfit(place, f"lacks {name}")
    array, plain = arrays[name], jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    dtype = np.dtype(plain.dtype)
    if dtype.kind not in "biuf" and array.dtype == np.uint8 and array.shape == (*plain.shape, dtype.itemsize):
        array = np.ascontiguousarray(array).view(dtype)[..., 0]
    if array.shape != plain.shape or array.dtype != dtype:
        raise _misfit(place, f"has {name} as {array.dtype}{array.shape}, where {dtype}{plain.shape} is needed")
    restored = jnp.array(array)  # a copy: the state is handed over to the next update
    if not _is_key(leaf):
        return restored
    generator = next(name for name in _GENERATORS if jax.random.key(0, impl=name).dtype == leaf.dtype)
    return jax.random.wrap_key_data(restored, impl=generator)


def _misfit(place: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{place} {what}: it was made with another environment, other settings or other versions (timing.jsonl names "
        "them); go on with those, or choose another folder with out= to start anew"
    )
