"""TD(Δ) inside other libraries: one package per library, each with an extra of its name.

Nothing here is imported by the rest of the package, so that it works without those libraries.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tddelta.errors import ConfigError
from tddelta.timescales import TimeScales, plain_scales


class Ladder:
    """Time scales that a user named, made anew whenever the discount or λ of an algorithm has changed.

    Args:
        given: As of `TimeScales.of`.

    Attributes:
        given: The same as plain data, for a save file.

    Raises:
        ConfigError: `given` is of another kind, or its numbers are out of range.
    """

    def __init__(self, given: Any) -> None:
        self.given = plain_scales(given) or "halving"  # None is no scales to the algorithms of SB3
        self._made: tuple[Any, TimeScales] | None = None

    def at(self, gamma: float, lam: float | None) -> TimeScales:
        """The time scales for a discount and λ, as many as the first time.

        Raises:
            ConfigError: As of `TimeScales.of`, or the ladder of this discount has another number of components.
        """
        if self._made is None or self._made[0] != (gamma, lam):
            scales = TimeScales.of(self.given, gamma=gamma, lam=lam)
            known = len(scales) if self._made is None else len(self._made[1])
            if len(scales) != known:
                raise ConfigError(
                    f"gamma must keep the {known} components that the critic was made with; got {gamma}, whose ladder "
                    f"has {len(scales)}: fix their number, as in scales={{'ladder': 'halving', 'components': {known}}}"
                )
            self._made = (gamma, lam), scales
        return self._made[1]


@contextmanager
def lent(owner: Any, **values: Any) -> Iterator[None]:
    """Give attributes of an object other values for a while."""
    kept = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(owner, name, value)
