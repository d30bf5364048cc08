"""Array arguments at the door: which framework, which shape, which dtype.

Whatever passes here needs no broadcasting and no conversion later, except that rewards and durations are cast to the
dtype of the components, and components of half precision to single precision.
"""

from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, is_jax_array, is_numpy_array, is_torch_array

from tddelta.errors import ConfigError, DataError, ShapeError
from tddelta.timescales import TimeScales

Array = Any
"""A NumPy array, a JAX array (also a traced one) or a PyTorch tensor."""

ArrayT = TypeVar("ArrayT")
"""An array of the same kind in the arguments and the result."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_REAL = ("bool", "integral", "real floating")


def framework(array: Any) -> str | None:
    """Name of the framework of an array, or None for anything else. Imports no framework."""
    if is_numpy_array(array):
        return "NumPy"
    if is_jax_array(array):
        return "JAX"
    if is_torch_array(array):
        return "PyTorch"
    return None


def component_namespace(name: str, array: Array) -> ModuleType:
    """Array-API namespace of a floating-point array with a scale axis; ShapeError if it is none."""
    if framework(array) is None:
        raise ShapeError(
            f"{name} must be a NumPy array, a JAX array or a PyTorch tensor; got {type(array).__name__}: "
            "convert it, for instance with np.asarray"
        )
    xp: ModuleType = array_namespace(array)
    if not is_kind(array, "real floating", xp):
        raise ShapeError(f"{name} must be floating point; got dtype {array.dtype}: cast it to float32 or float64")
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ShapeError(
            f"{name} needs a last axis with one entry per scale; got shape {tuple(array.shape)}: "
            "for one scale use array[..., None]"
        )
    return xp


def check_scales(scales: Any) -> None:
    """ConfigError unless these are time scales."""
    if not isinstance(scales, TimeScales):
        raise ConfigError(
            f"scales must be a TimeScales; got {scales!r}: make one, say TimeScales.halving(0.99, lam=0.95)"
        )


def check_form(form: Any) -> None:
    """Refuse what is no form of the λ-return."""
    if form not in ("bootstrap", "difference"):
        raise ConfigError(f"form must be 'bootstrap' or 'difference'; got {form!r}: pass one of the two")


def check_components(scales: Any, deltas: Array) -> ModuleType:
    """Namespace of components that belong to these scales."""
    check_scales(scales)
    xp, shape = component_namespace("deltas", deltas), tuple(deltas.shape)
    if shape[-1] != len(scales):
        advice = "move the scale axis last" if len(scales) in shape else "pass the scales that the components belong to"
        raise ShapeError(
            f"the last axis of deltas must have one entry for each of the {len(scales)} scales; got shape {shape}: "
            + advice
        )
    return xp


def check_steps(deltas: Array, **arrays: Array) -> ModuleType:
    """Namespace of arrays that describe the same steps as `deltas`, named as in `tddelta.targets`; None is skipped."""
    xp = component_namespace("deltas", deltas)
    if deltas.ndim < 2 or deltas.shape[0] == 0:
        raise ShapeError(
            f"deltas must have axes (time, *batch, scale) and at least one step; got shape {tuple(deltas.shape)}: "
            "for one scale use deltas[..., None], for one step deltas[None]"
        )
    for name, array in arrays.items():
        if array is not None:
            _check_beside(name, array, deltas, xp)
    durations: Any = arrays.get("durations")
    if is_numpy_array(durations) and (place := first_place(~((durations > 0) & (durations < np.inf)))):
        raise DataError(
            f"durations must be above 0 and finite; got {durations[place]} at step {place[0]}: "
            "give every step the time that it takes"
        )
    return xp


def _check_beside(name: str, array: Array, deltas: Array, xp: ModuleType) -> None:
    """One array against the components."""
    own, theirs = framework(array), framework(deltas)
    if own != theirs:
        raise ShapeError(
            f"{name} must be of the same framework as deltas, {theirs}; got {own or type(array).__name__}: "
            "convert one of them, nothing is converted silently"
        )
    steps = tuple(deltas.shape[:-1])
    if name.endswith("deltas"):
        wanted = tuple(deltas.shape[1:]) if name == "last_deltas" else tuple(deltas.shape)
        axes = "(*batch, scale)" if name == "last_deltas" else "(time, *batch, scale)"
        kinds: Any = "real floating"
    else:
        wanted, axes = steps, "(time, *batch)"
        kinds = "bool" if name in ("terminated", "truncated") else _REAL
    got = tuple(array.shape)
    if got != wanted:
        if sorted(got) == sorted(wanted):
            advice = "the axes are in another order, move them"
        elif len(got) > len(wanted) and got[: len(wanted)] == wanted:
            advice = "drop the axes at the end"
        elif len(got) == len(wanted) and got[1:] == wanted[1:]:
            advice = "every step of the data needs one entry, also the last"
        else:
            advice = "pass one entry per step and stream, nothing is broadcast"
        raise ShapeError(
            f"{name} must have axes {axes} and, beside deltas of shape {tuple(deltas.shape)}, the shape {wanted}; "
            f"got {got}: {advice}"
        )
    if not is_kind(array, kinds, xp):
        asked = "boolean" if kinds == "bool" else "floating point" if kinds == "real floating" else "real"
        raise ShapeError(f"{name} must be {asked}; got dtype {array.dtype}: cast it, say what it means")
    if name.endswith("deltas") and array.dtype != deltas.dtype:
        raise ShapeError(
            f"{name} must have the dtype of deltas, {deltas.dtype}; got {array.dtype}: cast one of them, "
            "the result has the dtype of deltas"
        )


def check_never_cut(terminated: Array, truncated: Array, xp: Any) -> None:
    """ConfigError if some episode was cut, or if nobody can know."""
    if is_jax_array(terminated):
        from jax.core import Tracer

        if isinstance(terminated, Tracer) or isinstance(truncated, Tracer):
            raise ConfigError(
                "final_deltas is needed under jit, where the flags have no values yet; got None: pass the critic at "
                "the final observations, or, if nothing is ever truncated, an array of zeros like deltas"
            )
    cut = truncated & ~terminated
    if not bool(xp.any(cut)):
        return
    step, *entry = (int(index[0]) for index in xp.nonzero(cut))
    where = f"step {step}" + (f", batch entry {tuple(entry)}" if entry else "")
    raise ConfigError(
        f"final_deltas is needed where an episode is cut, the first time at {where}; got None: pass the critic at the "
        "final observation there, since the observation after a reset belongs to the next episode"
    )


def is_kind(array: Array, kinds: Any, xp: ModuleType) -> bool:
    """Tell whether an array has a dtype of these kinds; knows those of `ml_dtypes`, too, unlike NumPy."""
    return kinds != "bool" if "float" in str(array.dtype) else bool(xp.isdtype(array.dtype, kinds))


def single(dtype: Any, xp: ModuleType) -> Any:
    """A floating-point dtype, or float32 in place of a smaller one, in which a discount of 0.999 can be 1."""
    return dtype if dtype.itemsize >= 4 else xp.float32


def widened(array: Array) -> Array:
    """The same array, as float32 if its dtype is smaller."""
    xp = array_namespace(array)
    return xp.astype(array, single(array.dtype, xp), copy=False)


def constant(values: Any, like: Array, xp: ModuleType) -> Array:
    """Numbers of double precision, cast once, on the device of another array and of its dtype, or float32 for half."""
    place = {"device": like.device} if is_torch_array(like) else {}
    return xp.asarray(values, dtype=single(like.dtype, xp), **place)


def opaque(array: Array) -> Array:
    """The same array, which XLA may neither fold into other operations nor compute twice."""
    if not is_jax_array(array):
        return array
    from jax import lax

    barrier: Any = lax.optimization_barrier  # has no annotations
    return barrier(array)


# ---------------------------------------------------------------- NumPy arrays of a user's


def array_of(name: str, value: Any, kind: Any = None) -> npt.NDArray[Any]:
    """Any array, of the type that it has, unless it is to be converted to one."""
    try:
        return np.asarray(value, kind)
    except (TypeError, ValueError, OverflowError):
        raise ShapeError(f"{name} must be an array of numbers; got {value!r:.80}: pass lists of equal length") from None


def numbers(
    name: str, value: Any, shape: tuple[int | None, ...] | None = None, axes: str = "", advice: str = ""
) -> FloatArray:
    """A new float64 array of finite numbers; of this shape, described by `axes`, where None is any length."""
    array = np.array(array_of(name, value, np.float64))
    place = first_place(~np.isfinite(array))
    if place is not None:
        raise DataError(f"{name} must be finite; got {array[place]} at {list(place)}: replace it")
    wanted = array.shape if shape is None else shape
    if len(wanted) != array.ndim or any(one not in (None, got) for one, got in zip(wanted, array.shape, strict=True)):
        raise ShapeError(f"{name} must have shape {axes}; got {array.shape}: {advice}")
    return array


def first_place(wrong: Any) -> tuple[int, ...] | None:
    """Index of the first entry that is wrong; None if none is."""
    places = np.argwhere(wrong)
    return tuple(map(int, places[0])) if len(places) else None
