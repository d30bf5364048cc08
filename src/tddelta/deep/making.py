"""Making one environment of Gymnasium, without JAX: worker processes import this and no more."""

from collections.abc import Mapping
from typing import Any


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


def flattens(environment: Any) -> bool:
    """Whether observations are something else than an array, and can be made one vector."""
    space = environment.observation_space
    return type(space).__name__ != "Box" and bool(space.is_np_flattenable)
