"""From components to values and back: V_z = Σ_{i≤z} W_i."""

from types import ModuleType
from typing import Any, TypeVar

from array_api_compat import (
    array_namespace,
    is_jax_array,
    is_numpy_array,
    is_torch_array,
)
from jaxtyping import Float

from tddelta.errors import ShapeError, own_checks

Array = Any
"""A NumPy array, a JAX array or a PyTorch tensor."""

ArrayT = TypeVar("ArrayT")
"""The same kind of array for arguments and result."""


@own_checks
def compose(deltas: Float[ArrayT, "*batch Z"]) -> Float[ArrayT, "*batch Z"]:
    """Values of all scales from the components: V_z = Σ_{i≤z} W_i.

    Args:
        deltas: Components W_0 … W_Z on the last axis, any axes before it.

    Returns:
        Values V_{γ_0} … V_{γ_Z}, of the shape, dtype and framework of `deltas`; with one scale, `deltas` itself.

    Raises:
        ShapeError: `deltas` is not a floating-point array with at least one axis.

    Example:
        >>> import numpy as np
        >>> compose(np.array([1.0, 1.0, 2.0, 4.0, 8.0]))
        array([ 1.,  2.,  4.,  8., 16.])

    Reference:
        Romoff et al. 2019, equation 6.
    """
    xp = namespace("deltas", deltas)
    return running_sum(deltas, xp)


@own_checks
def decompose(values: Float[ArrayT, "*batch Z"]) -> Float[ArrayT, "*batch Z"]:
    """Components from the values of all scales: W_0 = V_0 and W_z = V_z − V_{z−1}; the inverse of `compose`.

    Args:
        values: Values V_{γ_0} … V_{γ_Z} on the last axis, smallest discount first, any axes before it.

    Returns:
        Components W_0 … W_Z, of the shape, dtype and framework of `values`; with one scale, `values` itself.

    Raises:
        ShapeError: `values` is not a floating-point array with at least one axis.

    Example:
        >>> import numpy as np
        >>> decompose(np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
        array([1., 1., 2., 4., 8.])

    Reference:
        Romoff et al. 2019, equation 5.
    """
    xp = namespace("values", values)
    array: Any = values
    if array.shape[-1] == 1:
        return values
    result: ArrayT = xp.concat([array[..., :1], array[..., 1:] - array[..., :-1]], axis=-1)
    return result


def namespace(name: str, array: Any) -> ModuleType:
    """The array-API namespace of one floating-point array with a scale axis; ShapeError if it is none."""
    if not (is_numpy_array(array) or is_jax_array(array) or is_torch_array(array)):
        raise ShapeError(
            f"{name} must be a NumPy array, a JAX array or a PyTorch tensor; got {type(array).__name__}: "
            "convert it, for instance with np.asarray"
        )
    xp: ModuleType = array_namespace(array)
    if not xp.isdtype(array.dtype, "real floating"):
        raise ShapeError(f"{name} must be floating point; got dtype {array.dtype}: convert it to float32 or float64")
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ShapeError(
            f"{name} needs a last axis with one entry per scale; got shape {tuple(array.shape)}: "
            "add it, for instance with array[..., None] for one scale"
        )
    return xp


def running_sum(array: Any, xp: ModuleType) -> Any:
    """Inclusive sums over the last axis; the array itself if there is only one entry."""
    if array.shape[-1] == 1:
        return array
    return xp.cumulative_sum(array, axis=-1)
