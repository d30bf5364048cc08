"""Making one environment of Gymnasium, without JAX: worker processes import this and no more."""

import functools
import inspect
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tddelta._naming import described
from tddelta._streams import hang_ups


def made(spec: Any, options: Mapping[str, Any], frames: int | None) -> Any:
    """An environment of Gymnasium.

    Args:
        spec: What `gymnasium.spec` returned.
        options: Keyword arguments of `gymnasium.make`.
        frames: Observations that make one, or None for no stack.
    """
    import gymnasium

    environment = gymnasium.make(spec, **options)
    if flattens(environment):
        environment = gymnasium.wrappers.FlattenObservation(environment)
    return environment if frames is None else gymnasium.wrappers.FrameStackObservation(environment, frames)


def several(spec: Any, options: Mapping[str, Any], count: int) -> Any:
    """So many environments of one that is registered as a vector environment only; see `made`."""
    import gymnasium

    return gymnasium.make_vec(spec, num_envs=count, vectorization_mode="vector_entry_point", **options)


def flattens(environment: Any) -> bool:
    """Whether observations are something else than an array, and can be made one vector."""
    space = environment.observation_space
    return type(space).__name__ != "Box" and bool(space.is_np_flattenable)


class AnswerError(Exception):
    """An answer of an environment that is not what Gymnasium's interface says; the message says which."""


def guard(environment: Any) -> None:
    """Let `reset` and `step` of an environment tell wrong answers, and give observations that nobody writes to again.

    Below wrappers of Gymnasium's, which take every answer for right, so does what they wrap.

    Args:
        environment: An environment of Gymnasium.

    Raises:
        AnswerError: If its `reset` does not take a seed. Afterwards they raise it.
    """
    inner = environment
    while type(inner).__module__.startswith("gymnasium.wrappers."):
        inner = inner.env
    for one in (inner,) if inner is environment else (inner, environment):
        _guard(one)


def _guard(environment: Any) -> None:
    reset, step, space = environment.reset, environment.step, environment.observation_space
    try:
        inspect.signature(reset).bind(seed=0, options=None)
    except TypeError as error:
        raise AnswerError(
            f"reset must take the arguments seed and options ({error}): def reset(self, *, seed=None, options=None)"
        ) from error

    @functools.wraps(reset)  # Gymnasium's checker looks at the arguments
    def guarded_reset(**given: Any) -> tuple[Any, dict[str, Any]]:
        found = reset(**given)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            raise AnswerError(
                f"reset must return 2 values, (observation, info); got {_described(found)}: return observation, {{}}"
            )
        return observed(space, found[0], "reset"), found[1]

    def guarded_step(action: Any) -> tuple[Any, ...]:
        found = step(action)
        if not (isinstance(found, tuple) and len(found) == 5):
            number = len(found) if isinstance(found, tuple) else _described(found)
            old = number == 4 and isinstance(found[3], dict)
            raise AnswerError(
                f"step must return 5 values, (observation, reward, terminated, truncated, info); got {number}: "
                + ("it is written for the old Gym API, whose done is terminated or truncated" if old else "add them")
            )
        seen, reward, terminated, truncated, info = found
        if not isinstance(info, dict):
            raise AnswerError(f"step must return a dictionary as info; got {_described(info)}: return {{}}")
        if not isinstance(reward, float | int):
            reward = _number("reward", reward, "biuf", "float(reward)")
        if not isinstance(terminated, bool | np.bool_):
            terminated = bool(_number("terminated", terminated, "biu", "bool(terminated)"))
        if not isinstance(truncated, bool | np.bool_):
            truncated = bool(_number("truncated", truncated, "biu", "bool(truncated)"))
        return observed(space, seen, "step"), reward, terminated, truncated, info

    environment.reset, environment.step = guarded_reset, guarded_step


def observed(space: Any, seen: Any, what: str) -> Any:
    """An observation as a new array; of a space that is no Box as it is.

    Args:
        space: That it should be of. Numbers beyond its bounds are taken, but where they do not fit into its type.
        seen: The observation.
        what: Name of the method that returned it.

    Raises:
        AnswerError: If its shape or its kind of numbers is not that of the space.
    """
    if type(space).__name__ != "Box":
        return seen
    if seen is None or isinstance(seen, dict | str | bytes):
        raise AnswerError(f"{what} must return observations of {space}; got {_described(seen)}")
    array = np.array(seen)
    if array.shape != space.shape:
        raise AnswerError(f"{what} must return observations of shape {space.shape}; got shape {array.shape}")
    if array.dtype != space.dtype and not np.can_cast(array.dtype, space.dtype, "same_kind"):
        kept = array.dtype.kind in "biu" and space.dtype.kind in "biu"
        if not kept or np.any(array.astype(space.dtype) != array):
            raise AnswerError(
                f"{what} must return observations of {space.dtype}; got {array.dtype} that does not fit into it: "
                "correct the dtype of the observation space, or of the observation"
            )
        array = array.astype(space.dtype)
    return array


def _number(name: str, value: Any, kinds: str, advice: str) -> Any:
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in kinds:
        raise AnswerError(f"step must return one number as {name}; got {_described(value)}: return {advice}")
    return array.item()


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None and not np.isscalar(value):
        return f"an array of shape {tuple(shape)}"
    return f"{len(value)} values" if isinstance(value, tuple) else f"{value!r:.60} ({type(value).__name__})"


class RemoteError(Exception):
    """What an environment raised in a worker process, as `described` there.

    Exceptions of other kinds need not survive the way from one process to another.
    """


def in_process(owner: int, make: Callable[[], Any]) -> Any:
    """An environment in a worker process, which leaves it to the process that owns it when to end, and names errors.

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
    environment.step, environment.reset = _named(environment.step), _named(environment.reset)
    return environment


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*given: Any, **named: Any) -> Any:
        try:
            *rest, _ = function(*given, **named)
            return *rest, {}  # nobody reads the information, which need not survive the way either
        except Exception as error:
            raise RemoteError(described(error)) from error

    return called
