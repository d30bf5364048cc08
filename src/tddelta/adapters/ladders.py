"""The time scales that a user of another library names: in Python, in a YAML file, or in a search."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tddelta.errors import ConfigError, own_checks
from tddelta.timescales import TimeScales

LADDERS = ("halving", "doubling", "single")
"""Names of ladders that follow from the largest discount alone."""

_ADVICE = (
    f"pass None, one of {', '.join(LADDERS)}, a list of discounts, a dict such as "
    "{'ladder': 'halving', 'components': 4} or {'gammas': [0.9, 0.99]}, or a TimeScales"
)


@own_checks
def resolve(scales: Any, *, gamma: float, lam: float | None) -> TimeScales:
    """Time scales from what a user gave, all of it plain data but for a `TimeScales`.

    Args:
        scales: One of

            - None: the halving ladder of `gamma`;
            - a name: "halving", "doubling" or "single";
            - a list of discounts;
            - a dict: what `TimeScales.to_dict` returns, or `ladder`, one of the names, beside keywords of that
              constructor, such as `{"ladder": "halving", "components": 4, "rule": "matched"}`;
            - a `TimeScales`.
        gamma: The discount of the algorithm, which the largest scale must have.
        lam: λ of the algorithm, for scales that name no trace decays; None where nothing is traced.

    Returns:
        The scales, with trace decays unless `lam` is None.

    Raises:
        ConfigError: `scales` is of another kind, a setting is out of range, or its largest discount is not `gamma`.

    Example:
        >>> resolve([0.5, 0.9], gamma=0.9, lam=0.8)
        TimeScales(gammas=(0.5, 0.9), trace_decays=(0.5, 0.7200000000000001))
        >>> len(resolve({"ladder": "halving", "components": 3}, gamma=0.99, lam=None))
        3
    """
    made = _made(scales, gamma, lam)
    if not math.isclose(made.gammas[-1], gamma, rel_tol=1e-9, abs_tol=0.0):
        raise ConfigError(
            f"gamma must be the largest discount of scales, {made.gammas[-1]}, since the policy is optimised for it; "
            f"got gamma={gamma}: pass gamma={made.gammas[-1]}, or other scales"
        )
    return made


class Ladder:
    """What a user named, made into time scales anew whenever the discount or λ of the algorithm has changed.

    Args:
        given: As of `resolve`.

    Attributes:
        given: The same as a dict of numbers and names, for a save file.

    Raises:
        ConfigError: `given` is of another kind, or its numbers are out of range.
    """

    def __init__(self, given: Any) -> None:
        self.given = _specification(given)
        self._made: tuple[Any, TimeScales] | None = None

    def at(self, gamma: float, lam: float | None) -> TimeScales:
        """The time scales for a discount and λ, as many as the first time.

        Raises:
            ConfigError: As of `resolve`, or the ladder of this discount has another number of components.
        """
        if self._made is None or self._made[0] != (gamma, lam):
            scales = resolve(self.given, gamma=gamma, lam=lam)
            if self._made is not None and len(scales) != len(self._made[1]):
                known = len(self._made[1])
                raise ConfigError(
                    f"gamma must keep the {known} components that the critic was made with; got {gamma}, whose ladder "
                    f"has {len(scales)}: fix their number, as in scales={{'ladder': 'halving', 'components': {known}}}"
                )
            self._made = (gamma, lam), scales
        return self._made[1]


def _specification(given: Any) -> dict[str, Any]:
    if given is None or isinstance(given, str):
        return {"ladder": "halving" if given is None else given}
    if isinstance(given, Mapping) and "ladder" in given:
        return dict(given)
    return _made(given, 1.0, None).to_dict()


def _made(scales: Any, gamma: float, lam: float | None) -> TimeScales:
    if scales is None or isinstance(scales, str):
        return _ladder("halving" if scales is None else scales, {}, gamma, lam)
    if isinstance(scales, Mapping) and "ladder" in scales:
        return _ladder(scales["ladder"], {key: scales[key] for key in scales if key != "ladder"}, gamma, lam)
    if isinstance(scales, Mapping):
        scales = TimeScales.from_dict(dict(scales))
    if isinstance(scales, TimeScales):
        if lam is None or scales.trace_decays is not None:
            return scales
        return TimeScales.from_gammas(scales.gammas, lam=lam)
    if isinstance(scales, Iterable):
        return TimeScales.from_gammas(scales, lam=lam)
    raise ConfigError(f"scales must name time scales; got {scales!r}: {_ADVICE}")


def _ladder(name: Any, settings: dict[str, Any], gamma: float, lam: float | None) -> TimeScales:
    if name not in LADDERS:
        raise ConfigError(f"scales names no ladder that is known; got {name!r}: {_ADVICE}")
    if "gamma" in settings:
        raise ConfigError(f"scales must leave gamma to the algorithm; got {settings!r}: drop it there")
    if gamma == 1 and name != "single" and settings.get("longest_horizon") is None:
        raise ConfigError(
            f"the ladder {name!r} up to gamma=1 needs its longest finite horizon; got none: pass "
            f"scales={{'ladder': {name!r}, 'longest_horizon': 1000}}, say, or another gamma"
        )
    try:
        made: TimeScales = getattr(TimeScales, name)(gamma, **{"lam": lam, **settings})
    except TypeError as error:
        raise ConfigError(f"the ladder {name!r} cannot be made of {settings!r} ({error}): {_ADVICE}") from error
    return made
