"""Rules for what environments answer, one list with its sentences, for Gymnasium, gymnax and SB3.

One of Gymnasium is made here, too: its worker processes import this, and no JAX.
"""

import functools
import inspect
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tddelta import _plain
from tddelta._streams import hang_ups
from tddelta.errors import DataError


class AnswerError(Exception):
    """An answer of an environment that is not what its interface says; the message says which."""


def check_values(what: str, found: Any, names: str, advice: str) -> None:
    """AnswerError unless a method returned as many values as `names` lists, as "(observation, info)"."""
    wanted = names.count(",") + 1
    number = tuple(found) if isinstance(found, list) else found
    if not (isinstance(number, tuple) and len(number) == wanted):
        raise AnswerError(f"{what} must return {wanted} values, {names}; got {described(number)}: {advice}")


def check_arguments(reset: Callable[..., Any], **given: Any) -> None:
    """AnswerError unless a method `reset` takes these arguments."""
    try:
        inspect.signature(reset).bind(**given)
    except TypeError as error:
        raise AnswerError(
            f"reset must take the arguments seed and options ({error}): def reset(self, *, seed=None, options=None)"
        ) from error


def check_reset(found: Any) -> None:
    """AnswerError unless this is what `reset` of Gymnasium returns, as far as its observation is not concerned."""
    _check_answer("reset", found, "(observation, info)", "return observation, {}")


def check_step(found: Any) -> None:
    """AnswerError unless these are as many values as `step` of Gymnasium returns, with a dictionary as information."""
    old = isinstance(found, tuple | list) and len(found) == 4 and isinstance(found[3], dict)
    advice = "it is written for the old Gym API, whose done is terminated or truncated" if old else "add them"
    _check_answer("step", found, "(observation, reward, terminated, truncated, info)", advice)


def _check_answer(what: str, found: Any, names: str, advice: str) -> None:
    check_values(what, found, names, advice)
    if not isinstance(found[-1], dict):
        raise AnswerError(f"{what} must return a dictionary as info; got {described(found[-1])}: return {{}}")


def check_number(name: str, value: Any, kinds: str, advice: str) -> None:
    """AnswerError unless a value of `step` is one number of these kinds of NumPy, or what stands for one in a trace."""
    array = value if hasattr(value, "dtype") else np.asarray(value)
    if array.shape or array.dtype.kind not in kinds:
        wanted = "one number" if "f" in kinds else "True or False"
        raise AnswerError(f"step must return {wanted} as {name}; got {described(value)}: return {advice}")


def check_shape(what: str, wanted: tuple[int, ...], found: Any, noun: str = "observations") -> None:
    """AnswerError unless what the method returned has this shape."""
    got = getattr(found, "shape", None) if isinstance(found, dict) or hasattr(found, "shape") else np.shape(found)
    if got != wanted:
        shown = type(found).__name__ if got is None else f"shape {tuple(got)}"
        raise AnswerError(f"{what} must return {noun} of shape {wanted}; got {shown}")


def check_finite(name: str, when: str, first: int = 0, /, **arrays: np.ndarray) -> None:
    """DataError unless the arrays (B, …), named by what they are, of environments from number `first` on are finite."""
    for what, array in arrays.items():
        finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
        if not finite.all():
            raise DataError(
                f"{name}: {what} not finite in environment {first + finite.argmin()}, {when}: check the environment"
            )


def layers(environment: Any) -> tuple[Any, ...]:
    """An environment, and what is below its wrappers of Gymnasium and SB3, which take every answer for right."""
    inner, theirs = environment, ("gymnasium.wrappers.", "stable_baselines3.common.")
    while "env" in vars(inner) and type(inner).__module__.startswith(theirs):
        inner = inner.env
    return (inner,) if inner is environment else (inner, environment)


def guard(environment: Any) -> None:
    """Let `reset` and `step` of a Gymnasium environment raise AnswerError, and copy observations; also below wrappers.

    Raises AnswerError at once if `reset` does not take a seed.
    """
    for one in layers(environment):
        check_arguments(one.reset, seed=0, options=None)
        space = one.observation_space
        one.reset, one.step = _Guarded(one.reset, _of_reset, space), _Guarded(one.step, _of_step, space)


class _Guarded:
    """A method whose answers are checked. No closure: an environment may copy itself, and the copy has its own."""

    def __init__(self, method: Callable[..., Any], checked: Callable[[Any, Any], Any], space: Any) -> None:
        functools.update_wrapper(self, method)  # Gymnasium's checker looks at the arguments
        self._method, self._checked, self._space = method, checked, space

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._checked(self._space, self._method(*given, **named))


def _of_reset(space: Any, found: Any) -> tuple[Any, dict[str, Any]]:
    check_reset(found)
    return observed(space, found[0], "reset"), found[1]


def _of_step(space: Any, found: Any) -> tuple[Any, ...]:
    check_step(found)
    seen, reward, terminated, truncated, info = found
    if not isinstance(reward, float | int):
        reward = _number("reward", reward, "biuf", "float(reward)")
    if not isinstance(terminated, bool | np.bool_):
        terminated = bool(_number("terminated", terminated, "biu", "bool(terminated)"))
    if not isinstance(truncated, bool | np.bool_):
        truncated = bool(_number("truncated", truncated, "biu", "bool(truncated)"))
    return observed(space, seen, "step"), reward, terminated, truncated, info


def _number(name: str, value: Any, kinds: str, advice: str) -> Any:
    check_number(name, value, kinds, advice)
    return np.asarray(value).item()


def observed(space: Any, seen: Any, what: str) -> Any:
    """An observation as a new array; of a space that is no Box as it is.

    AnswerError if its shape or kind of numbers is not that of the space; numbers beyond the bounds are taken.
    """
    if type(space).__name__ != "Box":
        return seen
    if seen is None or isinstance(seen, dict | str | bytes):
        raise AnswerError(f"{what} must return observations of {space}; got {described(seen)}")
    array = np.array(seen)
    check_shape(what, space.shape, array)
    if array.dtype != space.dtype and not np.can_cast(array.dtype, space.dtype, "same_kind"):
        kept = array.dtype.kind in "biu" and space.dtype.kind in "biu"
        if not kept or np.any(array.astype(space.dtype) != array):
            raise AnswerError(
                f"{what} must return observations of {space.dtype}; got {array.dtype} that does not fit into it: "
                "correct the dtype of the observation space, or of the observation"
            )
        array = array.astype(space.dtype)
    return array


def described(value: Any) -> str:
    """A value for a message: of an array its shape, or its type if it is one number."""
    shape = getattr(value, "shape", None)
    if shape is not None and not np.isscalar(value):
        return f"an array of shape {tuple(shape)}" if tuple(shape) else str(getattr(value, "dtype", type(value)))
    return f"{len(value)} values" if isinstance(value, tuple) else f"{value!r:.60} ({type(value).__name__})"


def made(spec: Any, options: Mapping[str, Any], frames: int | None) -> Any:
    """Make an environment of Gymnasium.

    Args:
        spec: As returned by `gymnasium.spec`.
        options: Keyword arguments of `gymnasium.make`.
        frames: Observations that make one, or None for no stack.
    """
    import gymnasium

    environment = gymnasium.make(spec, **options)
    if flattens(environment):
        environment = gymnasium.wrappers.FlattenObservation(environment)
    return environment if frames is None else gymnasium.wrappers.FrameStackObservation(environment, frames)


def flattens(environment: Any) -> bool:
    """Tell observations that are no array, and can be made one vector."""
    space = environment.observation_space
    return type(space).__name__ != "Box" and bool(space.is_np_flattenable)


class RemoteError(Exception):
    """Exception of an environment in a worker process, as text: those of other kinds need not survive the way."""


def in_process(owner: int, make: Callable[[], Any]) -> Any:
    """Make an environment in a worker process, which ends only when its owner says so, and names errors.

    Args:
        owner: Number of that process. It makes one environment too, to look at it.
        make: Makes the environment.
    """
    environment = make()
    guard(environment)
    if os.getpid() != owner:
        # Ctrl-C and batch systems reach all processes: the owner saves a checkpoint first, and then closes this one.
        for number in (signal.SIGINT, *hang_ups()):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    for method in ("step", "reset"):
        setattr(environment, method, functools.partial(_named, getattr(environment, method)))
    return environment


def _named(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        *rest, _ = function(*given, **named)
        return *rest, {}  # nobody reads the information, which need not survive the way either
    except Exception as error:
        raise RemoteError(_plain.described(error)) from error
