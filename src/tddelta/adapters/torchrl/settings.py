"""Settings at the door: the time scales, the critic and the time axis that a user passes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tddelta import _ladders, _plain
from tddelta.adapters.ladders import Ladder, resolve
from tddelta.errors import ConfigError
from tddelta.timescales import TimeScales

DEFAULT_LMBDA = 0.95
"""λ of TorchRL's losses."""


def ladder(scales: Any, gamma: Any) -> tuple[Ladder, float]:
    """The ladder that a user named, and its largest discount.

    Args:
        scales: As of `tddelta.adapters.ladders.resolve`.
        gamma: The largest discount; None where `scales` names it.

    Raises:
        ConfigError: `scales` is of another kind or out of range, or `gamma` is missing.
    """
    plain = scales is None or isinstance(scales, str | Mapping | TimeScales)
    if not plain and isinstance(scales, Iterable):
        scales = list(_plain.entries("scales", scales))
    if gamma is None:
        gamma = _largest(scales)
    return Ladder(scales), _ladders.unit_number("gamma", gamma)


def _largest(scales: Any) -> Any:
    """The largest discount that the scales name."""
    named = scales.get("gammas") if isinstance(scales, Mapping) else scales
    if isinstance(named, TimeScales):
        return named.gammas[-1]
    if isinstance(named, Sequence) and not isinstance(named, str) and named:
        return named[-1]
    if not (named is None or isinstance(named, str | Sequence)):
        resolve(scales, gamma=0.0, lam=None)  # raises: of a kind for which no gamma helps
    raise ConfigError(f"gamma is needed where scales names no discounts; got scales={scales!r}: pass, say, gamma=0.99")


def check_critic(name: str, critic: Any) -> None:
    """ConfigError unless this reads and writes entries of a tensordict.

    Args:
        name: Name of the argument, for the message.
        critic: The critic.
    """
    keyed = all(hasattr(critic, attribute) for attribute in ("in_keys", "out_keys"))
    if isinstance(critic, type) or not callable(critic) or not keyed:
        raise ConfigError(
            f"{name} must be a module with in_keys and out_keys; got {critic!r}: "
            'wrap it in ValueOperator(module, in_keys=["observation"])'
        )


def check_time_dim(time_dim: Any) -> None:
    """ConfigError unless this names an axis, or is None."""
    if time_dim is not None and (isinstance(time_dim, bool) or not hasattr(time_dim, "__index__")):
        raise ConfigError(
            f"time_dim must be the number of a batch axis, or None; got {time_dim!r}: pass, say, -1 for the last one"
        )
