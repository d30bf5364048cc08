"""Time scales: the discounts of the components, their trace decays and their n-step lengths.

A `TimeScales` says everything about a decomposition that is not learned. It is frozen and hashable, holds Python
numbers only, and can be a static argument of a compiled function.
"""

import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import count, pairwise
from types import FrameType
from typing import Any, Literal, get_args

from tddelta import _plain
from tddelta.errors import ConfigError, ContractionWarning, own_checks

Rule = Literal["capped", "matched", "constant", "proportional"]
"""How λ becomes the trace decays of all scales."""

RULES: tuple[str, ...] = get_args(Rule)
"""Names of the rules."""

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


# Frames that are not the caller's: our own, and those that jaxtyping's import hook puts around each function.
_NOT_THE_CALLER = ("tddelta", "jaxtyping")


@own_checks
@dataclass(frozen=True)
class TimeScales:
    """Discounts γ_0 < γ_1 < … < γ_Z, one per component W_z = V_{γ_z} − V_{γ_{z−1}}, with their traces and windows.

    Use a constructor (`halving`, `doubling`, `from_gammas`, `from_horizons`, `single`), or name all numbers.

    A `ContractionWarning` is given when full steps towards the λ-return of some component would make it grow: the
    operator of component z has the max-norm factor |γ_z − c_z| / (1 − c_z), which must be below 1. Components with
    γ_z = 1 are exempt, since there only the ends of episodes contract.

    Attributes:
        gammas: Discounts, strictly increasing, in [0, 1]. The policy is optimised for the last one.
        trace_decays: c_z = λ_z γ_z in [0, 1], one per discount; None if no λ was given. Never λ_z itself, so that
            γ_0 = 0 needs no division and λ_z may exceed 1.
        n_steps: Steps k_z ≥ 1 of each component's n-step return, in any order; None if no `n_step` was given.
        actor_trace_decay: Decay λ_Z γ_Z of the policy's advantage where it is not the last of `trace_decays`, as with
            the rule "proportional"; None means the last of `trace_decays`.

    Raises:
        ConfigError: Discounts are not strictly increasing in [0, 1], a decay is outside [0, 1], a length is not a
            whole number ≥ 1, or the numbers of entries differ.

    Example:
        >>> scales = TimeScales(gammas=(0.5, 0.9), trace_decays=(0.5, 0.72), n_steps=(1, 4))
        >>> scales.contraction_factors[0], len(scales)
        (0.0, 2)

    Reference:
        Romoff et al., "Separating value functions across time-scales", ICML 2019: sections 4 and 5, Theorem 2.
    """

    gammas: tuple[float, ...]
    trace_decays: tuple[float, ...] | None = None
    n_steps: tuple[int, ...] | None = None
    actor_trace_decay: float | None = None

    def __post_init__(self) -> None:
        self._settle()
        self._warn_unless_contracting()

    def _settle(self) -> None:
        """Check every field and store it as Python numbers."""
        gammas = unit_numbers("gammas", self.gammas)
        if not gammas:
            raise ConfigError("gammas must name at least one discount; got none: pass, say, gammas=(0.99,)")
        if any(low >= high for low, high in pairwise(gammas)):
            repeated = len(set(gammas)) < len(gammas)
            advice = "drop the repeated discount" if repeated else "sort them, smallest first"
            raise ConfigError(f"gammas must be strictly increasing in [0, 1]; got {gammas}: {advice}")
        object.__setattr__(self, "gammas", gammas)
        if self.trace_decays is not None:
            decays = unit_numbers("trace_decays", self.trace_decays)
            check_length("trace_decays", decays, gammas)
            object.__setattr__(self, "trace_decays", decays)
        if self.n_steps is not None:
            n_steps = tuple(_plain.whole("n_steps", value) for value in _plain.entries("n_steps", self.n_steps))
            check_length("n_steps", n_steps, gammas)
            object.__setattr__(self, "n_steps", n_steps)
        if self.actor_trace_decay is not None:
            object.__setattr__(self, "actor_trace_decay", unit_number("actor_trace_decay", self.actor_trace_decay))

    def _warn_unless_contracting(self) -> None:
        if self.trace_decays is None:
            return
        growing = [
            (label, decay, factor)
            for gamma, label, decay, factor in zip(
                self.gammas, self.labels, self.trace_decays, self.contraction_factors, strict=True
            )
            if factor >= 1 and gamma < 1
        ]
        if not growing:
            return
        message = (
            "full steps towards the targets make components grow: "
            + ", ".join(
                f"γ={label} has trace decay {decay:.4g} and factor {factor:.3g}" for label, decay, factor in growing
            )
            + "; contraction needs a factor below 1, so use rule='capped' (the default), a smaller lam, or small steps"
        )
        warnings.warn(message, ContractionWarning, stacklevel=_caller_level(inspect.currentframe()))

    @classmethod
    @own_checks
    def halving(
        cls,
        gamma: float,
        *,
        lam: float | None = None,
        rule: Rule = "capped",
        n_step: int | None = None,
        components: int | None = None,
        shortest_horizon: float | None = None,
        factor: float = 2.0,
        longest_horizon: float | None = None,
    ) -> "TimeScales":
        """Ladder for deep agents: from the horizon of `gamma` down, each horizon half of the next.

        Horizons h, h/2, h/4, … with h = 1/(1 − γ_Z), down to the last one that is at least `shortest_horizon`: the
        discount .99 gives 100, 50, 25, 12.5, 6.25 and 3.125 steps.

        Args:
            gamma: Largest discount γ_Z in [0, 1].
            lam: λ in [0, 1] of the traces; None leaves `trace_decays` None.
            rule: How λ becomes decays, with c = λ γ_Z: "capped" c_z = min(c, γ_z), "matched" c_z = c, "constant"
                c_z = λ γ_z, "proportional" c_z = max(0, 1 − 2/h_z), where λ γ_Z is left to the policy's advantage.
            n_step: Steps k ≥ 1 of the longest window: k_z = min(⌈h_z⌉, k) and k_Z = k. None leaves `n_steps` None.
            components: Number of components, in place of `shortest_horizon`.
            shortest_horizon: No component has a shorter horizon than this many steps ≥ 1; 2 if neither is given.
            factor: Ratio > 1 of neighbouring horizons.
            longest_horizon: Longest finite horizon in steps; needed, and allowed, only for `gamma` = 1.

        Returns:
            The scales, smallest discount first.

        Raises:
            ConfigError: A setting is out of range, or two contradict each other.

        Example:
            >>> [round(horizon, 3) for horizon in TimeScales.halving(0.99).horizons]
            [3.125, 6.25, 12.5, 25.0, 50.0, 100.0]
            >>> TimeScales.halving(0.99, components=2, factor=32).labels
            ('0.680', '0.990')
        """
        gammas = halving(gamma, components, shortest_horizon, factor, longest_horizon)
        return cls._build(gammas, lam, rule, n_step)

    @classmethod
    @own_checks
    def doubling(
        cls,
        gamma: float,
        *,
        lam: float | None = None,
        rule: Rule = "capped",
        n_step: int | None = None,
        shortest_horizon: float = 1.0,
        factor: float = 2.0,
        longest_horizon: float | None = None,
    ) -> "TimeScales":
        """Ladder for tables: horizons 1, 2, 4, … steps while shorter than that of `gamma`, then `gamma` itself.

        γ_0 = 0 and γ_{z+1} = (γ_z + 1)/2 while below γ_Z.

        Args:
            gamma: Largest discount γ_Z in [0, 1].
            lam: λ in [0, 1] of the traces; None leaves `trace_decays` None.
            rule: How λ becomes decays; see `halving`.
            n_step: Steps k ≥ 1 of the longest window: k_z = min(⌈h_z⌉, k) and k_Z = k. None leaves `n_steps` None.
            shortest_horizon: Horizon of the first component in steps ≥ 1.
            factor: Ratio > 1 of neighbouring horizons.
            longest_horizon: Longest finite horizon in steps; needed, and allowed, only for `gamma` = 1.

        Returns:
            The scales, smallest discount first.

        Raises:
            ConfigError: A setting is out of range.

        Example:
            >>> scales = TimeScales.doubling(0.9375, n_step=16)
            >>> scales.gammas, scales.n_steps
            ((0.0, 0.5, 0.75, 0.875, 0.9375), (1, 2, 4, 8, 16))
        """
        gammas = doubling(gamma, shortest_horizon, factor, longest_horizon)
        return cls._build(gammas, lam, rule, n_step)

    @classmethod
    @own_checks
    def from_gammas(
        cls,
        gammas: Iterable[float],
        *,
        lam: float | None = None,
        rule: Rule = "capped",
        n_step: int | None = None,
    ) -> "TimeScales":
        """Scales with the discounts named, smallest first; for the other arguments see `halving`.

        Args:
            gammas: Strictly increasing discounts in [0, 1].
            lam: λ in [0, 1] of the traces; None leaves `trace_decays` None.
            rule: How λ becomes decays.
            n_step: Steps k ≥ 1 of the longest window; None leaves `n_steps` None.

        Returns:
            The scales.

        Raises:
            ConfigError: The discounts are not strictly increasing in [0, 1], or another setting is out of range.

        Example:
            >>> TimeScales.from_gammas([0.5, 0.9], lam=0.8).trace_decays
            (0.5, 0.7200000000000001)
        """
        return cls._build(unit_numbers("gammas", gammas), lam, rule, n_step)

    @classmethod
    @own_checks
    def from_horizons(
        cls,
        horizons: Iterable[float],
        *,
        lam: float | None = None,
        rule: Rule = "capped",
        n_step: int | None = None,
    ) -> "TimeScales":
        """Scales with the horizons h_z = 1/(1 − γ_z) named, shortest first; for the other arguments see `halving`.

        Args:
            horizons: Strictly increasing horizons in steps ≥ 1; infinity gives γ = 1.
            lam: λ in [0, 1] of the traces; None leaves `trace_decays` None.
            rule: How λ becomes decays.
            n_step: Steps k ≥ 1 of the longest window; None leaves `n_steps` None.

        Returns:
            The scales.

        Raises:
            ConfigError: The horizons are not strictly increasing from 1 on, or another setting is out of range.

        Example:
            >>> TimeScales.from_horizons([3.125, 100]).labels
            ('0.680', '0.990')
        """
        steps = tuple(horizon("horizons", value) for value in _plain.entries("horizons", horizons))
        if not steps:
            raise ConfigError("horizons must name at least one; got none: pass, say, horizons=(100,)")
        if any(short >= long for short, long in pairwise(steps)):
            raise ConfigError(f"horizons must be strictly increasing; got {steps}: sort them and drop repeated ones")
        return cls._build(tuple(1 - 1 / value for value in steps), lam, rule, n_step)

    @classmethod
    @own_checks
    def single(
        cls, gamma: float, *, lam: float | None = None, rule: Rule = "capped", n_step: int | None = None
    ) -> "TimeScales":
        """One component, V_γ itself: every target becomes the ordinary one. For the arguments see `halving`.

        Args:
            gamma: The discount in [0, 1].
            lam: λ in [0, 1] of the trace; None leaves `trace_decays` None.
            rule: How λ becomes the decay.
            n_step: Steps k ≥ 1 of the window; None leaves `n_steps` None.

        Returns:
            The scales.

        Raises:
            ConfigError: A setting is out of range.

        Example:
            >>> TimeScales.single(0.99, lam=0.95, n_step=5)
            TimeScales(gammas=(0.99,), trace_decays=(0.9405,), n_steps=(5,))
        """
        return cls._build((unit_number("gamma", gamma),), lam, rule, n_step)

    @classmethod
    def _build(cls, gammas: tuple[float, ...], lam: Any, rule: Any, n_step: Any) -> "TimeScales":
        check_rule(rule)
        decays, actor = None, None
        if lam is not None:
            lam = unit_number("lam", lam)
            largest = lam * gammas[-1] if gammas else 0.0
            decays = tuple(decay(gamma, lam, largest, rule) for gamma in gammas)
            actor = largest if decays and decays[-1] != largest else None
        windows = None if n_step is None else equal_windows(gammas, _plain.whole("n_step", n_step))
        return cls(gammas, decays, windows, actor)

    def __len__(self) -> int:
        return len(self.gammas)

    def __repr__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"

    @property
    def horizons(self) -> tuple[float, ...]:
        """Effective horizons h_z = 1/(1 − γ_z) in steps; infinity for γ_z = 1."""
        return tuple(math.inf if gamma == 1 else 1 / (1 - gamma) for gamma in self.gammas)

    @property
    def contraction_factors(self) -> tuple[float, ...]:
        """Max-norm factor |γ_z − c_z| / (1 − c_z) of each component's λ-return operator; it contracts below 1.

        It is 0 for c_z = γ_z, also at 1, and infinite for c_z = 1 > γ_z. Raises ConfigError without trace decays.
        """
        if self.trace_decays is None:
            raise ConfigError(
                "contraction_factors needs trace decays; these scales have none: pass lam=, as in lam=0.95"
            )
        return tuple(
            0.0 if decay == gamma else math.inf if decay == 1 else abs(gamma - decay) / (1 - decay)
            for gamma, decay in zip(self.gammas, self.trace_decays, strict=True)
        )

    @property
    def error_gains(self) -> tuple[float, ...]:
        """By how much an error of the fit of W_z grows in V_{γ_Z}, with bootstrap-form λ-returns: h_Z (1−c_z).

        If every W_z ends up at its target plus a constant ε_z, V_{γ_Z} is off by Σ_z ε_z h_Z (1−c_z) where episodes go
        on for ever. In the difference form every component has the gain of the last, h_Z (1−c_Z), as a single critic
        has. It is 1 for c_z = γ_Z, and otherwise infinite if γ_Z = 1. Raises ConfigError without trace decays.
        """
        if self.trace_decays is None:
            raise ConfigError("error_gains needs trace decays; these scales have none: pass lam=, as in lam=0.95")
        longest = self.gammas[-1]
        return tuple(
            1.0 if decay == longest else math.inf if longest == 1 else (1 - decay) / (1 - longest)
            for decay in self.trace_decays
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The discounts as text: the fewest decimals ≥ 3 that tell them apart and let none but 1 read as 1.000."""
        for decimals in count(3):
            labels = tuple(f"{gamma:.{decimals}f}" for gamma in self.gammas)
            rounded_up = any(float(label) == 1 and gamma < 1 for label, gamma in zip(labels, self.gammas, strict=True))
            if len(set(labels)) == len(labels) and not rounded_up:
                return labels
        raise AssertionError("unreachable: every float has finitely many decimals")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain lists and numbers for JSON; `from_dict` restores an equal object."""
        plain: dict[str, Any] = {
            "gammas": list(self.gammas),
            "trace_decays": None if self.trace_decays is None else list(self.trace_decays),
            "n_steps": None if self.n_steps is None else list(self.n_steps),
        }
        if self.actor_trace_decay is not None:
            plain["actor_trace_decay"] = self.actor_trace_decay
        return plain

    @classmethod
    @own_checks
    def from_dict(cls, plain: Any) -> "TimeScales":
        """Restore what `to_dict` made. Gives no ContractionWarning: it was given when the scales were chosen.

        Args:
            plain: A mapping with "gammas" and, if there are any, "trace_decays", "n_steps", "actor_trace_decay".

        Returns:
            The scales.

        Raises:
            ConfigError: A key is missing or unknown, or a value is out of range.

        Example:
            >>> scales = TimeScales.halving(0.99, lam=0.95)
            >>> TimeScales.from_dict(scales.to_dict()) == scales
            True
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(plain, Mapping) or "gammas" not in plain or not set(plain) <= set(known):
            raise ConfigError(
                f"time scales need a mapping with gammas and no other keys than {', '.join(known)}; got {plain!r}: "
                "pass what to_dict returned"
            )
        scales = object.__new__(cls)
        for name in known:
            object.__setattr__(scales, name, plain.get(name))
        scales._settle()
        return scales


def _caller_level(frame: FrameType | None) -> int:
    """The `stacklevel`, for a warning given in this frame, of the first frame that is not the library's."""
    level = 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        level, frame = level + 1, frame.f_back
    return level
