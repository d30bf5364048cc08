"""Ladders that grow while learning: a longer scale is added, or one is taken out."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta import _ladders, _plain
from tddelta._arrays import check_scales
from tddelta.errors import ConfigError, ShapeError, own_checks
from tddelta.tabular import _checks
from tddelta.tabular.arrays import FloatArray
from tddelta.timescales import TimeScales


@own_checks
def add_scale(
    scales: TimeScales,
    deltas: npt.ArrayLike,
    gamma: float,
    *,
    trace_decay: float | None = None,
    n_step: int | None = None,
) -> tuple[TimeScales, FloatArray]:
    """Add a longer scale to what was learned: its component starts at W = 0.

    At that moment the value at the new discount is the one at the longest discount so far, exactly, and the other
    components stay what they are: the learner goes on from its best answer, and has one at any time.

    Args:
        scales: The ladder so far.
        deltas: Components, shape (…, Z), for instance `result.deltas`, or the weights of features.
        gamma: New discount in [0, 1], above all others.
        trace_decay: Its trace decay c = λγ in [0, 1]; needed if the scales have trace decays, and only then.
        n_step: Steps of its window; needed if the scales have `n_steps`, and only then.

    Returns:
        The longer ladder, and the components, shape (…, Z + 1), for `evaluate(…, initial_deltas=…)`.

    Raises:
        ConfigError: The discount is not above the others, or what the scales need of it is missing.
        ShapeError: The last axis of `deltas` does not have one entry per scale.

    Example:
        >>> scales, deltas = add_scale(TimeScales.from_gammas([0.5, 0.9]), np.ones((3, 2)), 0.99)
        >>> scales.gammas, deltas[0]
        ((0.5, 0.9, 0.99), array([1., 1., 0.]))

    Reference:
        Romoff et al., "Separating value functions across time-scales", ICML 2019, section 7.
    """
    components = _components(scales, deltas)
    gamma = _ladders.unit_number("gamma", gamma)
    if gamma <= scales.gammas[-1]:
        raise ConfigError(
            f"gamma must be above the longest discount so far, {scales.gammas[-1]}; got {gamma}: a ladder grows upwards"
        )
    longer = TimeScales(
        (*scales.gammas, gamma),
        _extended("trace_decay", scales.trace_decays, trace_decay),
        _extended("n_step", scales.n_steps, n_step),
        scales.actor_trace_decay,
    )
    return longer, np.concatenate([components, np.zeros_like(components[..., :1])], axis=-1)


@own_checks
def remove_scale(scales: TimeScales, deltas: npt.ArrayLike, index: int) -> tuple[TimeScales, FloatArray]:
    """Take a scale out of what was learned: its component goes to the next longer one, W_{z+1} ← W_{z+1} + W_z.

    The values at all other discounts stay the same; without the longest scale the next shorter one is the longest.

    Args:
        scales: The ladder so far, two scales at least.
        deltas: Components, shape (…, Z).
        index: Which scale z, from 0 for the shortest; −1 is the longest.

    Returns:
        The shorter ladder, and the components, shape (…, Z − 1).

    Raises:
        ConfigError: There is no such scale, or no other.
        ShapeError: The last axis of `deltas` does not have one entry per scale.

    Example:
        >>> scales, deltas = remove_scale(TimeScales.from_gammas([0.5, 0.9, 0.99]), np.array([1.0, 2.0, 4.0]), 1)
        >>> scales.gammas, deltas
        ((0.5, 0.99), array([1., 6.]))
    """
    components = _components(scales, deltas)
    z = _plain.as_whole(index)
    fits = isinstance(z, int) and not isinstance(z, bool) and -len(scales) <= z < len(scales)
    if len(scales) == 1 or not fits:
        raise ConfigError(
            f"index must be a whole number that names one of {len(scales)} scales and leaves another; got {index!r}: "
            f"they are {scales.gammas}"
        )
    z %= len(scales)
    if z + 1 < len(scales):
        components[..., z + 1] += components[..., z]

    def without(field: Any) -> Any:
        return None if field is None else field[:z] + field[z + 1 :]

    shorter = TimeScales(
        without(scales.gammas), without(scales.trace_decays), without(scales.n_steps), scales.actor_trace_decay
    )
    return shorter, np.delete(components, z, axis=-1)


def _components(scales: TimeScales, deltas: Any) -> FloatArray:
    """A new array of components that belong to the scales."""
    check_scales(scales)
    array = np.array(_checks.array_of("deltas", deltas))
    if array.dtype.kind != "f" or array.shape[-1:] != (len(scales),):
        raise ShapeError(
            f"deltas must be floating point with one entry for each of the {len(scales)} scales on the last axis; got "
            f"{array.dtype} of shape {array.shape}: pass the components that were learned at these scales"
        )
    return array


def _extended(name: str, before: tuple[Any, ...] | None, value: Any) -> tuple[Any, ...] | None:
    if (before is None) != (value is None):
        have = "have none" if before is None else f"have {before}"
        advice = "leave it out" if before is None else "pass the one of the new scale"
        raise ConfigError(
            f"{name} must be given if the other scales have one; got {value!r} where they {have}: {advice}"
        )
    return None if before is None else (*before, value)
