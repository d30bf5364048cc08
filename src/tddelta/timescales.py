"""Time scales: the discounts of the components, their trace decays and their n-step lengths.

A `TimeScales` says everything about a decomposition that is not learned. It is frozen and hashable, holds Python
numbers only, and can be a static argument of a compiled function. `TimeScales.of` makes one of whatever a user calls
`scales`.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import count, pairwise
from types import FrameType
from typing import Any, Literal, get_args

from tddelta import _plain
from tddelta.errors import ConfigError, ContractionWarning, setting

Rule = Literal["capped", "matched", "constant", "proportional"]
"""Rule that makes the trace decays of all scales from λ."""

RULES: tuple[str, ...] = get_args(Rule)
"""Names of the rules."""

SHARE = 0.5
"""κ of the rule "proportional": the share of its own horizon that a component's trace spans."""

LAM = 0.95
"""λ of agents, of the command line and of values from a log where nothing else is said."""

LADDERS = ("halving", "doubling", "single")
"""Names of the ladders that follow from the largest discount alone."""

FORMER: Mapping[str, Any] = {
    "horizons": (10, 100),
    "gammas": (0.9, 0.99),
    "components": "halving components=4",
    "shortest_horizon": "halving shortest_horizon=4",
    "longest_horizon": "halving longest_horizon=1000",
    "ladder_factor": "halving factor=3",
    "factor": "halving factor=3",
    "ladder": "doubling",
}
"""Settings and options of before that `scales` says now, and how."""

# Horizons computed from discounts are off by rounding: 1/(1 - 0.9) is 10.000000000000002.
_TOLERANCE = 1e-9

# Frames that are not the caller's: our own, those that jaxtyping's import hook puts around functions, and `replace`.
_NOT_THE_CALLER = ("tddelta", "jaxtyping", "dataclasses")


@dataclass(frozen=True)
class TimeScales:
    """Discounts γ_0 < γ_1 < … < γ_Z, one per component W_z = V_{γ_z} − V_{γ_{z−1}}, with their traces and windows.

    Use a constructor (`of`, `halving`, `doubling`, `from_gammas`, `from_horizons`, `single`), or name all numbers.
    Every constructor takes `lam`, λ in [0, 1] of the traces, with the `rule` by which it becomes decays, and `n_step`,
    the steps k ≥ 1 of the longest window, as `of` explains; without them `trace_decays` and `n_steps` are None. Each
    raises a ConfigError for a setting that is out of range or contradicts another one.

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
        for name, check in (("gammas", unit_number), ("trace_decays", unit_number), ("n_steps", _plain.whole)):
            given = getattr(self, name)
            if given is not None or name == "gammas":
                object.__setattr__(self, name, tuple(check(name, value) for value in _plain.entries(name, given)))
        gammas = self.gammas
        if not gammas:
            raise ConfigError("gammas must name at least one discount; got none: pass, say, gammas=(0.99,)")
        if any(low >= high for low, high in pairwise(gammas)):
            repeated = len(set(gammas)) < len(gammas)
            advice = "drop the repeated discount" if repeated else "sort them, smallest first"
            raise ConfigError(f"gammas must be strictly increasing in [0, 1]; got {gammas}: {advice}")
        for name, values in (("trace_decays", self.trace_decays), ("n_steps", self.n_steps)):
            if values is not None and len(values) != len(gammas):
                raise ConfigError(
                    f"{name} needs one entry per discount; got {len(values)} for {len(gammas)} discounts: "
                    f"pass {len(gammas)} of them"
                )
        if self.actor_trace_decay is not None:
            object.__setattr__(self, "actor_trace_decay", unit_number("actor_trace_decay", self.actor_trace_decay))

    def _warn_unless_contracting(self) -> None:
        if self.trace_decays is None:
            return
        each = zip(self.gammas, self.labels, self.trace_decays, self.contraction_factors, strict=True)
        growing = ", ".join(
            f"γ={label} has trace decay {decay:.4g} and factor {factor:.3g}"
            for gamma, label, decay, factor in each
            if factor >= 1 and gamma < 1
        )
        if growing:
            message = (
                f"full steps towards the targets make components grow: {growing}; contraction needs a factor below 1, "
                f"so use {setting('rule', 'capped')}, a smaller lam, or small steps"
            )
            warnings.warn(ContractionWarning(message), stacklevel=_caller_level(inspect.currentframe()))

    @classmethod
    def of(
        cls,
        scales: Any,
        *,
        gamma: float | None = None,
        lam: float | None = None,
        rule: Rule = "capped",
        n_step: int | None = None,
    ) -> "TimeScales":
        """Time scales from what a user calls `scales`, in Python, in a file or on the command line.

        Args:
            scales: One of

                - None: the halving ladder of `gamma`;
                - a name: "halving", "doubling" or "single";
                - discounts, numbers of at most 1, or horizons in steps, numbers of at least 1, smallest first;
                - a dict: `ladder`, one of the names, beside keywords of that constructor, such as
                  `{"ladder": "halving", "components": 4, "rule": "matched"}`, or what `to_dict` returns;
                - text or its words: "halving components=4" for such a dict, or numbers, "10 100 1000";
                - a `TimeScales`.
            gamma: The largest discount γ_Z in [0, 1]; None where `scales` names it.
            lam: λ in [0, 1] of the traces, for scales that name no trace decays; None leaves them without.
            rule: How that λ becomes decays, with c = λ γ_Z: "capped" c_z = min(c, γ_z), "matched" c_z = c, "constant"
                c_z = λ γ_z, "proportional" c_z = max(0, 1 − 2/h_z), where λ γ_Z is left to the policy's advantage.
            n_step: Steps k ≥ 1 of the longest window, for scales that name none: k_z = min(⌈h_z⌉, k) and k_Z = k.

        Returns:
            The scales, with trace decays and windows unless nobody named λ or `n_step`.

        Raises:
            ConfigError: `scales` is of another kind, a setting is out of range, or the largest discount of the scales
                is not `gamma`.

        Example:
            >>> TimeScales.of([0.5, 0.9], lam=0.8)
            TimeScales(gammas=(0.5, 0.9), trace_decays=(0.5, 0.7200000000000001))
            >>> TimeScales.of("halving components=3", gamma=0.99) == TimeScales.halving(0.99, components=3)
            True
        """
        named = scales if isinstance(scales, TimeScales) else plain_scales(scales)
        shared: dict[str, Any] = {"lam": lam, "rule": rule, "n_step": n_step}
        if isinstance(named, Mapping) and "ladder" not in named:
            named = cls.from_dict(named)
        if isinstance(named, TimeScales):
            made = _completed(named, **shared)
        elif isinstance(named, tuple):
            made = (cls.from_gammas if max(named) <= 1 else cls.from_horizons)(named, **shared)
        else:
            made = _ladder(named, gamma, shared)
        if gamma is not None and not math.isclose(made.gammas[-1], unit_number("gamma", gamma), rel_tol=_TOLERANCE):
            raise ConfigError(
                f"{setting('gamma')} must be the largest discount of scales, {made.gammas[-1]}, since the policy is "
                f"optimised for it; got gamma={gamma}: pass {setting('gamma', made.gammas[-1])}, or other scales"
            )
        return made

    @classmethod
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
            lam: See `of`.
            rule: See `of`.
            n_step: See `of`.
            components: Number of components, in place of `shortest_horizon`.
            shortest_horizon: No component has a shorter horizon than this many steps ≥ 1; 2 if neither is given.
            factor: Ratio > 1 of neighbouring horizons.
            longest_horizon: Longest finite horizon in steps; needed, and allowed, only for `gamma` = 1.

        Example:
            >>> [round(horizon, 3) for horizon in TimeScales.halving(0.99).horizons]
            [3.125, 6.25, 12.5, 25.0, 50.0, 100.0]
            >>> TimeScales.halving(0.99, components=2, factor=32).labels
            ('0.680', '0.990')
        """
        top, factor = _top(gamma, longest_horizon), _factor(factor)
        if components is not None and shortest_horizon is not None:
            raise ConfigError(
                f"components={components!r} and shortest_horizon={shortest_horizon!r} both say where the ladder ends: "
                "pass one of them"
            )
        shortest = 1.0 if components is not None else 2.0
        if shortest_horizon is not None:
            shortest = _horizon("shortest_horizon", shortest_horizon)
        lower: list[float] = []
        # The distance 1 − γ is exact for γ ≥ ½, where a horizon would be rounded.
        distance = 1 - top[0]
        while (distance := distance * factor) * shortest <= 1 + _TOLERANCE:
            lower.append(max(0.0, 1 - distance))
        if components is not None:
            wanted, most = _plain.whole("components", components), len(top) + len(lower)
            if not len(top) <= wanted <= most:
                raise ConfigError(
                    f"components must be between {len(top)} and {most}, since horizons start at "
                    f"{1 / (1 - top[0]):.6g} and shrink by {factor:g} to no less than one step; got {wanted}: pass "
                    "another number or factor"
                )
            lower = lower[: wanted - len(top)]
        return _completed(cls((*reversed(lower), *top)), lam, rule, n_step)

    @classmethod
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
            lam: See `of`.
            rule: See `of`.
            n_step: See `of`.
            shortest_horizon: Horizon of the first component in steps ≥ 1.
            factor: Ratio > 1 of neighbouring horizons.
            longest_horizon: Longest finite horizon in steps; needed, and allowed, only for `gamma` = 1.

        Example:
            >>> scales = TimeScales.doubling(0.9375, n_step=16)
            >>> scales.gammas, scales.n_steps
            ((0.0, 0.5, 0.75, 0.875, 0.9375), (1, 2, 4, 8, 16))
        """
        top = _top(gamma, longest_horizon)
        factor, shortest = _factor(factor), _horizon("shortest_horizon", shortest_horizon)
        if shortest * (1 - top[0]) > 1 + _TOLERANCE:
            raise ConfigError(
                f"shortest_horizon must be at most the longest, {1 / (1 - top[0]):.6g} steps; got {shortest:g}: "
                "pass a shorter one, or a larger gamma"
            )
        lower: list[float] = []
        while (distance := 1 / (shortest * factor ** len(lower))) * (1 - _TOLERANCE) > 1 - top[0]:
            lower.append(1 - distance)
        return _completed(cls((*lower, *top)), lam, rule, n_step)

    @classmethod
    def from_gammas(
        cls, gammas: Iterable[float], *, lam: float | None = None, rule: Rule = "capped", n_step: int | None = None
    ) -> "TimeScales":
        """Scales with the discounts named, strictly increasing in [0, 1].

        Example:
            >>> TimeScales.from_gammas([0.5, 0.9], lam=0.8).trace_decays
            (0.5, 0.7200000000000001)
        """
        return _completed(cls(unit_numbers("gammas", gammas)), lam, rule, n_step)

    @classmethod
    def from_horizons(
        cls, horizons: Iterable[float], *, lam: float | None = None, rule: Rule = "capped", n_step: int | None = None
    ) -> "TimeScales":
        """Scales with the horizons h_z = 1/(1 − γ_z) named, strictly increasing, in steps ≥ 1; infinity gives γ = 1.

        Example:
            >>> TimeScales.from_horizons([3.125, 100]).labels
            ('0.680', '0.990')
        """
        steps = tuple(_horizon("horizons", value) for value in _plain.entries("horizons", horizons))
        if not steps:
            raise ConfigError("horizons must name at least one; got none: pass, say, horizons=(100,)")
        if any(short >= long for short, long in pairwise(steps)):
            raise ConfigError(f"horizons must be strictly increasing; got {steps}: sort them and drop repeated ones")
        return _completed(cls(tuple(1 - 1 / value for value in steps)), lam, rule, n_step)

    @classmethod
    def single(
        cls, gamma: float, *, lam: float | None = None, rule: Rule = "capped", n_step: int | None = None
    ) -> "TimeScales":
        """One component, V_γ itself with γ in [0, 1]: every target becomes the ordinary one.

        Example:
            >>> TimeScales.single(0.99, lam=0.95, n_step=5)
            TimeScales(gammas=(0.99,), trace_decays=(0.9405,), n_steps=(5,))
        """
        return _completed(cls((unit_number("gamma", gamma),)), lam, rule, n_step)

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
        return tuple(
            0.0 if decay == gamma else math.inf if decay == 1 else abs(gamma - decay) / (1 - decay)
            for gamma, decay in zip(self.gammas, needed(self, "trace_decays", "contraction_factors"), strict=True)
        )

    @property
    def error_gains(self) -> tuple[float, ...]:
        """Growth of an error of the fit of W_z in V_{γ_Z}, with bootstrap-form λ-returns: h_Z (1−c_z).

        If every W_z ends up at its target plus a constant ε_z, V_{γ_Z} is off by Σ_z ε_z h_Z (1−c_z) where episodes go
        on for ever. In the difference form every component has the gain of the last, h_Z (1−c_Z), as a single critic
        has. It is 1 for c_z = γ_Z, and otherwise infinite if γ_Z = 1. Raises ConfigError without trace decays.
        """
        longest = self.gammas[-1]
        return tuple(
            1.0 if decay == longest else math.inf if longest == 1 else (1 - decay) / (1 - longest)
            for decay in needed(self, "trace_decays", "error_gains")
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
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        if self.actor_trace_decay is None:
            del plain["actor_trace_decay"]
        return plain

    @classmethod
    def from_dict(cls, plain: Any) -> "TimeScales":
        """Restore what `to_dict` made. Gives no ContractionWarning: it was given when the scales were chosen.

        A ConfigError if a key is missing or unknown, or a value is out of range.

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


def plain_scales(scales: Any) -> Any:
    """The shortest plain form of what `TimeScales.of` takes: it has a hash, and equal scales have equal forms.

    Returns:
        None for the halving ladder of γ, the name of another ladder, a tuple of discounts or of horizons, or a dict.

    Raises:
        ConfigError: `scales` is of another kind.
    """
    scales = _plain.plain(scales)
    words = [scales] if isinstance(scales, str) else scales
    if isinstance(words, list | tuple) and words and all(isinstance(word, str) for word in words):
        scales = _from_words(" ".join(map(_plain.tidy, words)))
    if isinstance(scales, TimeScales):
        scales = scales.to_dict()
    if scales is None or (isinstance(scales, Mapping) and "ladder" in scales):
        return _plain_ladder(scales or {})
    if isinstance(scales, Mapping):
        found = {key: value for key, value in TimeScales.from_dict(scales).to_dict().items() if value is not None}
        return tuple(found["gammas"]) if len(found) == 1 else _plain.frozen(found)
    if not isinstance(scales, Iterable):
        raise ConfigError(f"{setting('scales')} must name time scales; got {scales!r}: {_FORMS}")
    return _plain_numbers(_plain.entries("scales", scales))


def names_discounts(plain: Any) -> bool:
    """Tell whether scales in plain form name their largest discount, which a ladder takes from its `gamma`."""
    return isinstance(plain, tuple) or (isinstance(plain, Mapping) and "gammas" in plain)


_FORMS = (
    f"pass discounts, horizons in steps, or one of {', '.join(LADDERS)}, which may have settings as in "
    "'halving components=4'"
)


def _from_words(text: str) -> Any:
    """Numbers, or a ladder and its settings, from text such as "10 100" and "halving components=4"."""
    name, *words = text.replace(",", " ").split() or [""]
    if name in LADDERS:
        settings = dict(_setting(name, word) for word in words)
        if len(settings) < len(words):
            raise ConfigError(
                f"{setting('scales')} must give each setting of the ladder {name!r} once; got {text!r}: drop one"
            )
        return {"ladder": name, **settings}
    try:
        return [float(word) for word in (name, *words)]
    except ValueError:
        raise ConfigError(
            f"{setting('scales')} must be numbers, or name a ladder that is known; got {text!r}: {_FORMS}"
        ) from None


def _setting(ladder: str, word: str) -> tuple[str, Any]:
    """A setting of a ladder from text such as "components=4" and "rule=matched"."""
    key, _, value = word.partition("=")
    try:
        return key, value if value and key == "rule" else float(value)
    except ValueError:
        raise ConfigError(
            f"{setting('scales')} must give settings of the ladder {ladder!r} as KEY=VALUE, all but the rule with a "
            f"number; got {word!r}: {_FORMS}"
        ) from None


def _plain_ladder(given: Mapping[str, Any]) -> Any:
    """A ladder without what its constructor would take anyway."""
    name = given.get("ladder", "halving")
    if name not in LADDERS:
        raise ConfigError(
            f"{setting('scales')} must be numbers, or name a ladder that is known; got {name!r}: {_FORMS}"
        )
    settings = {"ladder": name}
    for key, value in given.items():
        value = (_plain.as_whole if key in ("components", "n_step") else _plain.as_real)(value)
        if value is not None and (key, value) != ("factor", 2.0):
            settings[key] = value
    if len(settings) > 1:
        return _plain.frozen(settings)
    return None if name == "halving" else name


def _plain_numbers(given: tuple[Any, ...]) -> tuple[float, ...]:
    """Discounts, or horizons; those of an infinite one as discounts, which JSON can hold."""
    numbers = tuple(_plain.number("scales", value) for value in given)
    if not numbers:
        raise ConfigError(
            f"{setting('scales')} must name at least one discount or horizon; got none: pass, say, "
            f"{setting('scales', (10, 100))}"
        )
    if all(number <= 1 for number in numbers):
        return numbers
    if not all(number >= 1 for number in numbers):
        raise ConfigError(
            f"{setting('scales')} must be discounts, all at most 1, or horizons in steps, all at least 1; got "
            f"{min(numbers)} and {max(numbers)} in {numbers}: pass one kind"
        )
    return tuple(1 - 1 / number for number in numbers) if math.inf in numbers else numbers


def _ladder(named: Any, gamma: Any, shared: Mapping[str, Any]) -> TimeScales:
    """A ladder by its name or dict; what the dict says counts more than what is shared."""
    settings = dict(named) if isinstance(named, Mapping) else {"ladder": named or "halving"}
    name = settings.pop("ladder")
    if "gamma" in settings and gamma is not None:
        raise ConfigError(f"{setting('scales')} must leave gamma to the algorithm; got {settings!r}: drop it there")
    gamma = gamma if gamma is not None else settings.pop("gamma", None)
    if gamma is None:
        raise ConfigError(
            f"{setting('gamma')} is needed where scales names no discounts; got "
            f"{setting('scales', named or 'halving')}: pass {setting('gamma', 0.99)}, or "
            f"{setting('scales', 'halving gamma=0.99')}, say"
        )
    if gamma == 1 and name != "single" and settings.get("longest_horizon") is None:
        raise ConfigError(
            f"the ladder {name!r} up to {setting('gamma', 1)} needs its longest finite horizon; got none: pass "
            f"{setting('scales', f'{name} longest_horizon=1000')}, say, or another gamma"
        )
    try:
        made: TimeScales = getattr(TimeScales, name)(gamma, **{**shared, **settings})
    except TypeError as error:
        raise ConfigError(
            f"{setting('scales')} must be settings of the ladder {name!r}; got {settings!r} ({error}): {_FORMS}"
        ) from error
    except ConfigError as error:
        if error.setting is None or error.setting not in settings:
            raise
        raise error.within("scales") from None
    return made


def _completed(scales: TimeScales, lam: Any, rule: Any, n_step: Any) -> TimeScales:
    """The scales, with traces and windows where they have none."""
    gammas, added = scales.gammas, dict[str, Any]()
    _plain.one_of("rule", rule, RULES)
    if lam is not None and scales.trace_decays is None:
        lam = unit_number("lam", lam)
        largest = lam * gammas[-1]
        rules: dict[str, Callable[[float], float]] = {
            "capped": lambda gamma: min(largest, gamma),
            "matched": lambda _: largest,
            "constant": lambda gamma: lam * gamma,
            "proportional": lambda gamma: max(0.0, 1 - (1 - gamma) / SHARE),
        }
        added["trace_decays"] = tuple(map(rules[rule], gammas))
        if added["trace_decays"][-1] != largest:
            added["actor_trace_decay"] = largest
    if n_step is not None and scales.n_steps is None:
        longest = _plain.whole("n_step", n_step)
        # k_z = min(⌈h_z⌉, k), and k itself for the last component
        horizons = (math.inf if gamma == 1 else math.ceil((1 - _TOLERANCE) / (1 - gamma)) for gamma in gammas[:-1])
        added["n_steps"] = (*(min(horizon, longest) for horizon in horizons), longest)
    return replace(scales, **added) if added else scales


def _top(gamma: Any, longest_horizon: Any) -> tuple[float, ...]:
    """The largest discount, below it the largest finite one where γ = 1."""
    gamma = unit_number("gamma", gamma)
    if gamma == 1:
        if longest_horizon is None:
            raise ConfigError(
                f"a ladder up to {setting('gamma', 1)} needs its longest finite horizon: pass "
                f"{setting('longest_horizon', 1000)}, say"
            )
        longest = _horizon("longest_horizon", longest_horizon)
        if 1 - 1 / longest == 1:
            raise ConfigError(
                f"{setting('longest_horizon')} must be finite; got {longest}: pass a number of steps such as 1000"
                + ("" if longest == math.inf else ", since no discount below 1 has that horizon")
            )
        return (1 - 1 / longest, 1.0)
    if longest_horizon is not None:
        raise ConfigError(
            f"{setting('longest_horizon', longest_horizon)} is only for {setting('gamma', 1)}; got "
            f"{setting('gamma', gamma)}: leave it out"
        )
    return (gamma,)


def number_text(value: float) -> str:
    """A horizon, or another number of a scale: four digits, or all before the point; "–" for NaN."""
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def needed(scales: TimeScales, field: Literal["trace_decays", "n_steps"], by: str) -> Any:
    """Trace decays or windows of the scales, which `by` cannot do without; ConfigError if they have none."""
    found = getattr(scales, field)
    if found is None:
        what, how = "trace decays", setting("lam", 0.95)
        if field == "n_steps":
            what, how = "n-step windows", setting("n_step", 16)
        raise ConfigError(f"{by} needs {what}; these scales have none: make them with {how}, say")
    return found


def unit_number(name: str, value: Any) -> float:
    """A number in [0, 1]."""
    number = _plain.number(name, value)
    if not 0 <= number <= 1:
        raise ConfigError(
            f"{setting(name)} must be in [0, 1]; got {number}: {_ADVICE.get(name, 'pass a number in that range')}"
        )
    return number


_ADVICE = {
    "trace_decays": "they are the products λ_z γ_z, so lower λ_z for that component",
    "lam": f"only the product λ_z γ_z may not exceed 1, and {setting('rule', 'matched')} already raises λ_z for the "
    "small discounts",
}


def unit_numbers(name: str, values: Any) -> tuple[float, ...]:
    """A sequence of numbers in [0, 1]."""
    return tuple(unit_number(name, value) for value in _plain.entries(name, values))


def _horizon(name: str, value: Any) -> float:
    number = _plain.number(name, value)
    if not number >= 1:
        raise ConfigError(f"{setting(name)} must be at least 1 step; got {number}: the discount 0 has horizon 1")
    return number


def _factor(value: Any) -> float:
    number = _plain.number("factor", value)
    if not 1.001 <= number < math.inf:  # nearer to 1 there would be thousands of components
        least = "a finite number above 1" if not 1 < number < math.inf else "at least 1.001"
        raise ConfigError(f"{setting('factor')} must be {least}; got {number}: 2 halves each horizon")
    return number


def _caller_level(frame: FrameType | None) -> int:
    """The `stacklevel`, for a warning given in this frame, of the first frame that is not the library's."""
    level = 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        level, frame = level + 1, frame.f_back
    return level
