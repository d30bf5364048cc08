"""Making one environment of Gymnasium, without JAX: worker processes import this and no more."""

import functools
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from tddelta._answers import guard
from tddelta._plain import described
from tddelta._streams import hang_ups


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


def several(spec: Any, options: Mapping[str, Any], count: int) -> Any:
    """Make an environment that is registered as a vector environment only; see `made`."""
    import gymnasium

    return gymnasium.make_vec(spec, num_envs=count, vectorization_mode="vector_entry_point", **options)


def flattens(environment: Any) -> bool:
    """Tell observations that are no array, and can be made one vector."""
    space = environment.observation_space
    return type(space).__name__ != "Box" and bool(space.is_np_flattenable)


class RemoteError(Exception):
    """Exception of an environment in a worker process, as text.

    Exceptions of other kinds need not survive the way from one process to another.
    """


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
    environment.step, environment.reset = (
        functools.partial(_named, one) for one in (environment.step, environment.reset)
    )
    return environment


def _named(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        *rest, _ = function(*given, **named)
        return *rest, {}  # nobody reads the information, which need not survive the way either
    except Exception as error:
        raise RemoteError(described(error)) from error
