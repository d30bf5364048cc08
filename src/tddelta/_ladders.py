"""What the constructors of `TimeScales` compute with: ladders, trace rules, window lengths.

Arguments annotated `Any` come from the user and are checked here.
"""

import math
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Literal, get_args

from tddelta import _plain
from tddelta.errors import ConfigError

Rule = Literal["capped", "matched", "constant", "proportional"]
"""How λ becomes the trace decays of all scales."""

RULES: tuple[str, ...] = get_args(Rule)

SHARE = 0.5
"""κ of the rule "proportional": the share of its own horizon that a component's trace spans."""

# Horizons computed from discounts are off by rounding: 1/(1 - 0.9) is 10.000000000000002.
_TOLERANCE = 1e-9


def halving(gamma: Any, components: Any, shortest_horizon: Any, factor: Any, longest_horizon: Any) -> tuple[float, ...]:
    """Discounts of the halving ladder; see `TimeScales.halving`."""
    top = _top(gamma, longest_horizon)
    factor = _factor(factor)
    if components is not None and shortest_horizon is not None:
        raise ConfigError(
            f"components={components!r} and shortest_horizon={shortest_horizon!r} both say where the ladder ends: "
            "pass one of them"
        )
    shortest = 1.0 if components is not None else 2.0
    if shortest_horizon is not None:
        shortest = horizon("shortest_horizon", shortest_horizon)
    lower = list(_halved(1 - top[0], factor, shortest))
    if components is not None:
        wanted, most = _plain.whole("components", components), len(top) + len(lower)
        if not len(top) <= wanted <= most:
            raise ConfigError(
                f"components must be between {len(top)} and {most}, since horizons start at {1 / (1 - top[0]):.6g} "
                f"and shrink by {factor:g} to no less than one step; got {wanted}: pass another number or factor"
            )
        lower = lower[: wanted - len(top)]
    return (*reversed(lower), *top)


def doubling(gamma: Any, shortest_horizon: Any, factor: Any, longest_horizon: Any) -> tuple[float, ...]:
    """Discounts of the doubling ladder; see `TimeScales.doubling`."""
    top = _top(gamma, longest_horizon)
    factor, shortest = _factor(factor), horizon("shortest_horizon", shortest_horizon)
    if shortest * (1 - top[0]) > 1 + _TOLERANCE:
        raise ConfigError(
            f"shortest_horizon must be at most the longest, {1 / (1 - top[0]):.6g} steps; got {shortest:g}: "
            "pass a shorter one, or a larger gamma"
        )
    lower: list[float] = []
    distance = 1 / shortest
    while distance * (1 - _TOLERANCE) > 1 - top[0]:
        lower.append(1 - distance)
        distance = 1 / (shortest * factor ** len(lower))
    return (*lower, *top)


def check_rule(rule: Any) -> None:
    """ConfigError for an unknown trace rule."""
    if rule not in RULES:
        close = get_close_matches(str(rule), RULES, n=1, cutoff=0)[0]
        raise ConfigError(f"rule must be one of {', '.join(RULES)}; got {rule!r}: did you mean {close!r}?")


def _top(gamma: Any, longest_horizon: Any) -> tuple[float, ...]:
    """The largest discount, below it the largest finite one where γ = 1."""
    gamma = unit_number("gamma", gamma)
    if gamma == 1:
        if longest_horizon is None:
            raise ConfigError("a ladder up to gamma=1 needs its longest finite horizon: pass longest_horizon=1000, say")
        longest = horizon("longest_horizon", longest_horizon)
        if longest == math.inf:
            raise ConfigError("longest_horizon must be finite; got inf: pass a number of steps such as 1000")
        return (1 - 1 / longest, 1.0)
    if longest_horizon is not None:
        raise ConfigError(f"longest_horizon={longest_horizon!r} is only for gamma=1; got gamma={gamma}: leave it out")
    return (gamma,)


def _halved(distance: float, factor: float, shortest: float) -> Iterator[float]:
    """Discounts below 1 − distance, each horizon the factor shorter, while none falls below the shortest."""
    # The distance 1 − γ is exact for γ ≥ ½, where a horizon would be rounded.
    while (distance := distance * factor) * shortest <= 1 + _TOLERANCE:
        yield max(0.0, 1 - distance)


def decay(gamma: float, lam: float, largest: float, rule: str) -> float:
    """c_z of one component under a trace rule; `largest` is c = λ γ_Z."""
    if rule == "capped":
        return min(largest, gamma)
    if rule == "matched":
        return largest
    if rule == "constant":
        return lam * gamma
    return max(0.0, 1 - (1 - gamma) / SHARE)


def equal_windows(gammas: tuple[float, ...], n_step: int) -> tuple[int, ...]:
    """k_z = min(⌈h_z⌉, k), and k itself for the last component."""
    shorter = (
        n_step if gamma == 1 else min(math.ceil((1 - _TOLERANCE) / (1 - gamma)), n_step) for gamma in gammas[:-1]
    )
    return (*shorter, n_step)


def unit_number(name: str, value: Any) -> float:
    """A number in [0, 1]."""
    number = _plain.number(name, value)
    if not 0 <= number <= 1:
        raise ConfigError(f"{name} must be in [0, 1]; got {number}: {_ADVICE.get(name, 'pass a number in that range')}")
    return number


_ADVICE = {
    "trace_decays": "they are the products λ_z γ_z, so lower λ_z for that component",
    "lam": "only the product λ_z γ_z may not exceed 1, and rule='matched' already raises λ_z for the small discounts",
}


def unit_numbers(name: str, values: Any) -> tuple[float, ...]:
    """A sequence of numbers in [0, 1]."""
    return tuple(unit_number(name, value) for value in _plain.entries(name, values))


def horizon(name: str, value: Any) -> float:
    """A horizon in steps, at least 1."""
    number = _plain.number(name, value)
    if not number >= 1:
        raise ConfigError(f"{name} must be at least 1 step; got {number}: the discount 0 has horizon 1")
    return number


def _factor(value: Any) -> float:
    number = _plain.number("factor", value)
    if not 1 < number < math.inf:
        raise ConfigError(f"factor must be a finite number above 1; got {number}: 2 halves each horizon")
    if number < 1.001:  # thousands of components
        raise ConfigError(f"factor must be at least 1.001; got {number}: 2 halves each horizon")
    return number


def check_length(name: str, values: tuple[Any, ...], gammas: tuple[float, ...]) -> None:
    """ConfigError unless there is one value per discount."""
    if len(values) != len(gammas):
        raise ConfigError(
            f"{name} needs one entry per discount; got {len(values)} for {len(gammas)} discounts: "
            f"pass {len(gammas)} of them"
        )
