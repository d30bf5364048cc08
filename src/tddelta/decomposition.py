"""From components to values and back, V_z = Σ_{i≤z} W_i, and how much of the targets values explain."""

from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace
from jaxtyping import Float

from tddelta._arrays import ArrayT, component_namespace, widened


def compose(deltas: Float[ArrayT, "*batch Z"]) -> Float[ArrayT, "*batch Z"]:
    """Values of all scales from the components: V_z = Σ_{i≤z} W_i.

    Args:
        deltas: Components W_0 … W_Z on the last axis, smallest discount first, any axes before it.

    Returns:
        Values V_{γ_0} … V_{γ_Z}, of the shape, dtype and framework of `deltas`; with one scale, `deltas` itself.

    Raises:
        ShapeError: `deltas` is not a floating-point array with a last axis.

    Example:
        >>> import numpy as np
        >>> compose(np.array([1.0, 1.0, 2.0, 4.0, 8.0]))
        array([ 1.,  2.,  4.,  8., 16.])

    Reference:
        Romoff et al. 2019, section 4: V_{γ_z} as a sum of components.
    """
    xp = component_namespace("deltas", deltas)
    array: Any = deltas
    if array.shape[-1] == 1:
        return deltas
    wide = widened(array)
    values: ArrayT = xp.astype(xp.cumulative_sum(wide, axis=-1, dtype=wide.dtype), array.dtype, copy=False)
    return values


def decompose(values: Float[ArrayT, "*batch Z"]) -> Float[ArrayT, "*batch Z"]:
    """Components from the values of all scales: W_0 = V_0 and W_z = V_z − V_{z−1}; the inverse of `compose`.

    Args:
        values: Values V_{γ_0} … V_{γ_Z} on the last axis, smallest discount first, any axes before it.

    Returns:
        Components W_0 … W_Z, of the shape, dtype and framework of `values`; with one scale, `values` itself.

    Raises:
        ShapeError: `values` is not a floating-point array with a last axis.

    Example:
        >>> import numpy as np
        >>> decompose(np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
        array([1., 1., 2., 4., 8.])

    Reference:
        Romoff et al. 2019, section 4: W_z = V_{γ_z} − V_{γ_{z−1}}.
    """
    xp = component_namespace("values", values)
    array: Any = values
    if array.shape[-1] == 1:
        return values
    deltas: ArrayT = xp.concat([array[..., :1], array[..., 1:] - array[..., :-1]], axis=-1)
    return deltas


def _mean(array: Any) -> Any:
    return array_namespace(array).mean(array, axis=0)


def _spread(array: Any, mean: Callable[[Any], Any]) -> Any:
    centred = array - mean(array)
    return mean((centred - mean(centred)) ** 2)  # centred twice: the mean of many equal numbers is rounded


def variance(values: Any, mean: Callable[[Any], Any] = _mean) -> Any:
    """Population variance over the first axis; 0 where values differ by rounding alone.

    Args:
        values: (N, …), of any framework.
        mean: The mean over the first axis, for arrays that are parts of a whole.

    Returns:
        (…); 0 where the standard deviation is below 1e-5 of the root mean square in single precision, 1e-12 in double.
    """
    noise = 1e-12 if values.dtype.itemsize > 4 else 1e-5
    found = _spread(values, mean)
    return array_namespace(values).where(found <= noise**2 * mean(values**2), 0.0, found)


def explained_variance(values: Any, targets: Any, mean: Callable[[Any], Any] = _mean) -> Any:
    """1 − Var(targets − values) / Var(targets).

    Args:
        values: (N, …), of any framework.
        targets: Likewise.
        mean: As of `variance`.

    Returns:
        (…); NaN where the targets do not vary, see `variance`.

    Example:
        >>> import numpy as np
        >>> explained_variance(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 5.0])).item()
        0.75
    """
    xp, whole = array_namespace(targets), variance(targets, mean)
    return xp.where(whole > 0, 1 - _spread(targets - values, mean) / xp.where(whole > 0, whole, 1.0), xp.nan)
