"""Questions to a critic that has several scales: what it believes between them, and for other ways to discount.

A value is linear in the discount function: a critic that knows V_{γ_z} = Σ_t γ_z^t r_t for all z knows Σ_t d(t) r_t for
every d(t) = Σ_z b_z γ_z^t. Each question is answered by the d of this form that comes closest to the one asked for.

Everywhere `deltas` are the components W, (*batch, Z), of a critic, and `scales` their scales: a ShapeError if these do
not fit. Answers are of the framework and dtype of `deltas`.
"""

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Shaped

from tddelta._arrays import Array, ArrayT, check_components, check_scales, check_steps, constant, widened
from tddelta._plain import is_number, number, plain, whole
from tddelta.decomposition import compose
from tddelta.errors import ConfigError
from tddelta.targets import advantages
from tddelta.timescales import TimeScales, needed

Density = Callable[[npt.NDArray[np.float64]], npt.ArrayLike]
"""w(γ), from an array of discounts to an array of the same length."""


@dataclass(frozen=True)
class DiscountFit:
    """A discount function as a mixture of those of the scales: d(t) ≈ Σ_z b_z γ_z^t.

    Attributes:
        weights: b_z, one per scale; the value is Σ_z b_z V_{γ_z}.
        error: max |d(t) − Σ_z b_z γ_z^t| over t < `steps`. A reward of size 1 at one moment moves the value by no more.
        steps: How many steps the fit looks at.
    """

    weights: tuple[float, ...]
    error: float
    steps: int

    @property
    def amplification(self) -> float:
        """Σ_z |b_z|: an error of ε in every V_{γ_z} becomes at most this times ε."""
        return sum(map(abs, self.weights))


def discount_fit(
    scales: TimeScales, discount: Callable[[npt.NDArray[np.float64]], npt.ArrayLike], *, steps: int | None = None
) -> DiscountFit:
    """The mixture of the scales that follows a discount function most closely, and how closely.

        b = argmin Σ_{t < steps} (d(t) − Σ_z b_z γ_z^t)²

    Args:
        scales: The scales; a discount of 1 is left out, having no horizon.
        discount: d(t), from an array of times 0 … steps − 1 to an array of the same length, finite.
        steps: How many steps count, at least 1; None means the longest finite horizon.

    Returns:
        The weights for `compose_discount`, and their error.

    Example:
        >>> fit = discount_fit(TimeScales.halving(0.99), lambda t: 0.97**t)
        >>> len(fit.weights), fit.error < 0.001
        (6, True)
    """
    check_scales(scales)
    finite = np.array(_finite_gammas(scales))
    if steps is None:
        steps = max(1, round(1 / (1 - finite[-1])))
    steps = whole("steps", steps, most=10**8)
    times = np.arange(steps)
    wanted = _called("discount", discount, times.astype(np.float64), "times")
    powers = finite ** times[:, None]
    found = np.linalg.lstsq(powers, wanted, rcond=None)[0]
    weights = np.zeros(len(scales))
    weights[: len(finite)] = found
    return DiscountFit(tuple(map(float, weights)), float(np.abs(powers @ found - wanted).max()), steps)


def value_at(
    deltas: Float[ArrayT, "*batch Z"],
    scales: TimeScales,
    gamma: float | Sequence[float],
    *,
    extrapolate: bool = False,
) -> Float[ArrayT, "..."]:
    """V at a discount that was never trained.

        V_γ ≈ Σ_z b_z(γ) V_{γ_z},   b = argmin Σ_t (γ^t − Σ_z b_z γ_z^t)² / (t + 1)
        with Σ_z b_z = 1 and Σ_z b_z / (1 − γ_z) = 1 / (1 − γ),   over the 4 shorter and 3 longer horizons next to γ

    It interpolates (1 − γ) V_γ: exact at every trained discount, for a reward that comes now, and for rewards that
    never change. Between horizons that double, from 3 steps on, the error is below 1 % of max |V_γ| on rings, chains
    and random processes; between horizons of 1 and 2 steps, and of wide ladders, no function of these values can
    promise that. The page about the inspector has the numbers.

    Args:
        deltas: Components W, (*batch, Z).
        scales: Their scales.
        gamma: γ, or G of them. Outside the trained discounts the value is a guess and needs `extrapolate`. Between the
            largest discount below 1 and 1 nothing is known.
        extrapolate: Whether a discount below the smallest or above the largest trained one is allowed.

    Returns:
        V_γ, (*batch); (*batch, G) for a sequence.

    Raises:
        ConfigError: A discount is outside the trained ones.

    Example:
        >>> scales = TimeScales.halving(0.99)
        >>> horizons = np.array(scales.horizons)  # of a reward of 1 in every step
        >>> float(value_at(np.diff(horizons, prepend=0), scales, gamma=0.95).round(6))
        20.0

    Reference:
        Sherstan et al., "Generalizing value estimation over timescale", 2018: values for all discounts from one critic.
    """
    xp = check_components(scales, deltas)
    values = compose(widened(deltas))
    given: Any = plain(gamma)
    single = is_number(given)
    if not single and (isinstance(given, str) or not np.iterable(given)):
        raise ConfigError(f"gamma must be a discount or several; got {given!r:.80}")
    asked = [given] if single else list(given)
    if not asked:
        raise ConfigError("gamma must name at least one discount; got none")
    found = [_at(values, scales, one, extrapolate, xp) for one in asked]
    return _as_given(found[0] if single else xp.stack(found, axis=-1), deltas, xp)


def compose_discount(
    deltas: Float[ArrayT, "*batch Z"], scales: TimeScales, weights: Sequence[float] | npt.NDArray[Any] | Density
) -> Float[ArrayT, "*batch"]:
    """A mixture of values: Σ_z w_z V_{γ_z}, or ∫ w(γ) V_γ dγ.

    Args:
        deltas: Components W, (*batch, Z).
        scales: Their scales.
        weights: w_z, one per scale; or a function w(γ) of an array of discounts. The integral runs over the trained
            discounts, with `value_at` between them: Gauss–Legendre with 32 nodes in the logarithm of the horizon from
            one trained horizon to the next. Its own error is below 1e-8 of the result for a smooth w, so that what
            remains is the error of `value_at`, weighted with |w|.

    Returns:
        The mixture, (*batch).

    Raises:
        ConfigError: The weights are not as many as the scales or not finite, or w(γ) has more than 1 % of its mass
            outside the trained discounts.

    Example:
        >>> scales = TimeScales.from_gammas([0.5, 0.9])
        >>> float(compose_discount(np.array([2.0, 8.0]), scales, [0.5, 0.5]))
        6.0
    """
    xp = check_components(scales, deltas)
    try:
        plain = None if callable(weights) else np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"weights must be one number per scale, {len(scales)}, or a function of discounts; got {weights!r:.80}"
        ) from error
    numbers = _integrated(scales, weights) if callable(weights) else np.asarray(plain)
    if numbers.shape != (len(scales),):
        raise ConfigError(f"weights must be one per scale, {len(scales)}; got shape {numbers.shape}")
    if not np.isfinite(numbers).all():
        raise ConfigError(f"weights must be finite; got {numbers.tolist()}")
    return _as_given(_weighted(compose(widened(deltas)), numbers, xp), deltas, xp)


def hyperbolic(
    deltas: Float[ArrayT, "*batch Z"],
    scales: TimeScales,
    k: float,
    *,
    steps: int | None = None,
    tolerance: float = 0.02,
) -> Float[ArrayT, "*batch"]:
    """The value under hyperbolic discounting, Σ_t r_t / (1 + kt).

    The weights are those of `discount_fit` for d(t) = 1/(1 + kt), whose `error` is the error of the quadrature. For
    k = 0.01 and horizons 3.1 … 100 it is 0.004 up to t = 100. Later rewards count with Σ_z b_z γ_z^t, which dies out
    with the longest horizon as every critic does, while 1/(1 + kt) would go on: train a longer horizon for those.

    Args:
        deltas: Components W, (*batch, Z).
        scales: Their scales.
        k: How fast the discount falls, > 0: it is ½ after 1/k steps.
        steps: The discount is matched at t < `steps`; None means the longest finite horizon.
        tolerance: Largest error of the discount that is accepted.

    Returns:
        The value, (*batch).

    Raises:
        ConfigError: `k` is not above 0, or no mixture of the scales follows the discount within `tolerance`.

    Example:
        >>> scales = TimeScales.halving(0.99)
        >>> first = np.eye(6)[0]  # a reward of 1 now: every V is 1
        >>> float(hyperbolic(first, scales, k=0.01).round(2))
        1.0

    Reference:
        Fedus et al., "Hyperbolic discounting and learning over multiple horizons", 2019, whose Riemann sum over γ this
        fit replaces.
    """
    xp = check_components(scales, deltas)
    k = number("k", k)
    if not 0 < k < math.inf:
        raise ConfigError(f"k must be above 0 and finite; got {k}: 0.01 halves a reward's weight after 100 steps")
    fit = _hyperbolic_fit(scales, k, steps)
    if fit.error > tolerance:
        raise ConfigError(
            f"no mixture of the horizons {_horizons_text(scales)} follows 1/(1 + {k:g} t) for {fit.steps} steps: it is "
            f"off by {fit.error:.3g}, more than the tolerance {tolerance:g}; train shorter or longer horizons, lower "
            "steps, or accept it with a higher tolerance"
        )
    return _as_given(_weighted(compose(widened(deltas)), np.array(fit.weights), xp), deltas, xp)


def stopping_horizon(deltas: Float[ArrayT, "*batch Z"], scales: TimeScales, cost: float) -> Float[ArrayT, "*batch"]:
    """The horizon from which on going on is not worth its cost per step.

        h* = argmax_h V_γ − cost · h,   h = 1/(1 − γ),   which is 0 if nothing is gained at any h

    V_γ − cost · h is the value when every step costs `cost`, in units of reward and finite, ≥ 0. It is looked at on 16
    horizons, `value_at` in between, from each trained horizon to the next. h* is in steps, (*batch): 0 where even the
    first steps do not pay, infinity where going on pays up to the longest finite horizon.

    Example:
        >>> scales = TimeScales.halving(0.99)
        >>> steady = np.diff(scales.horizons, prepend=0)  # W for a reward of 1 in every step
        >>> stopping_horizon(np.stack([steady, 0.05 * steady]), scales, cost=0.1)
        array([inf,  0.])

    Reference:
        Romoff et al. 2019, "Interpreting performance at different time-scales": whether the return at a larger horizon
        is worth its cost.
    """
    xp = check_components(scales, deltas)
    cost = number("cost", cost)
    if not 0 <= cost < math.inf:
        raise ConfigError(f"cost must be at least 0 and finite; got {cost}: give the reward that a step costs")
    finite = _finite_gammas(scales)
    trained = np.log([1 / (1 - gamma) for gamma in finite])
    looked_at = np.unique(np.concatenate([np.linspace(low, high, 17) for low, high in pairwise(trained)] or [trained]))
    grid = [min(max(1 - math.exp(-x), finite[0]), finite[-1]) for x in looked_at]
    horizons = np.array([1 / (1 - gamma) for gamma in grid])
    values: Any = value_at(widened(deltas), scales, grid)
    worth = values - constant(cost * horizons, deltas, xp)
    answers = constant(np.append(horizons[:-1], math.inf), deltas, xp)
    best = xp.reshape(xp.argmax(worth, axis=-1), (-1,))
    horizon = xp.reshape(xp.take(answers, best, axis=0), tuple(worth.shape[:-1]))
    return _as_given(xp.where(xp.max(worth, axis=-1) > 0, horizon, xp.zeros_like(horizon)), deltas, xp)


def scale_advantages(
    rewards: Shaped[Array, " T *batch"],
    deltas: Float[ArrayT, "T *batch Z"],
    next_deltas: Float[Array, "T *batch Z"],
    *,
    terminated: Bool[Array, " T *batch"],
    truncated: Bool[Array, " T *batch"],
    scales: TimeScales,
) -> Float[ArrayT, "T *batch Z"]:
    """Advantages of the actions taken at every scale: generalised advantages of V_{γ_z} with its own decay c_z.

        A^z_t = δ^z_t + c_z · 1[step t ends no episode] · A^z_{t+1},   δ^z_t = r_t + (1−d_t) γ_z V_z(s'_t) − V_z(s_t)

    An action can be good soon and bad later on: then A^z changes its sign with z.

    Arguments and errors are those of `tddelta.targets`; the scales need trace decays. Returns A^z, (T, *batch, Z).

    Reference:
        Schulman et al., "High-dimensional continuous control using generalized advantage estimation", ICLR 2016.
    """
    xp = check_components(scales, deltas)
    decays = needed(scales, "trace_decays", "scale_advantages")
    check_steps(deltas, next_deltas=next_deltas)
    values, next_values = (compose(widened(array)) for array in (deltas, next_deltas))
    found, flags = [], {"terminated": terminated, "truncated": truncated}
    for z, (gamma, decay) in enumerate(zip(scales.gammas, decays, strict=True)):
        alone = values[..., z : z + 1], next_values[..., z : z + 1]
        found.append(advantages(rewards, *alone, **flags, scales=TimeScales((gamma,)), trace_decay=decay))
    return _as_given(xp.stack(found, axis=-1), deltas, xp)


@functools.lru_cache(maxsize=256)
def _hyperbolic_fit(scales: TimeScales, k: float, steps: int | None) -> DiscountFit:
    return discount_fit(scales, lambda t: 1 / (1 + k * t), steps=steps)


def _as_given(answer: Any, deltas: ArrayT, xp: Any) -> ArrayT:
    """An answer, computed in single precision at least, in the dtype of the components."""
    given: Any = deltas
    cast: ArrayT = xp.astype(answer, given.dtype, copy=False)
    return cast


def _weighted(values: Any, weights: npt.NDArray[np.float64], xp: Any) -> Any:
    # Not a matrix product: on accelerators those round to fewer digits.
    return xp.sum(values * constant(weights, values, xp), axis=-1)


def _at(values: Any, scales: TimeScales, gamma: Any, extrapolate: bool, xp: Any) -> Any:
    gamma = plain(gamma)
    if not is_number(gamma) or not 0 <= gamma <= 1:
        raise ConfigError(f"gamma must be a number in [0, 1]; got {gamma!r}: 0.95 looks about 20 steps ahead")
    gamma = float(gamma)
    if gamma in scales.gammas:
        return values[..., scales.gammas.index(gamma)]
    finite = _finite_gammas(scales)
    if not finite[0] < gamma < finite[-1]:
        if gamma == 1 or (gamma > finite[-1] and scales.gammas[-1] == 1):
            raise ConfigError(
                f"gamma={gamma:g} is beyond the longest finite horizon of the scales, {_horizons_text(scales)}: "
                "nothing is known there; train a discount that large"
            )
        if not extrapolate:
            raise ConfigError(
                f"gamma={gamma:g}, a horizon of {1 / (1 - gamma):.4g} steps, is outside the trained horizons "
                f"{_horizons_text(scales)}: choose one within, or pass extrapolate=True for a guess"
            )
    weights = np.zeros(len(scales))
    weights[: len(finite)] = _between(finite, gamma)
    return _weighted(values, weights, xp)


@functools.lru_cache(maxsize=4096)
def _between(gammas: tuple[float, ...], gamma: float) -> npt.NDArray[np.float64]:
    """Weights b(γ) of `value_at`, one per discount: normal equations with two constraints.

    Only the four nearest shorter horizons and the three nearest longer ones count: more gain little, and let the errors
    of far horizons in, which are large where values are.
    """
    place = bisect.bisect_left(gammas, gamma)
    low, high = max(0, place - 4), min(len(gammas), place + 3)
    known, count = np.array(gammas[low:high]), high - low
    weights = np.zeros(len(gammas))
    if count == 1:
        weights[low:high] = (1 - known) / (1 - gamma)
    else:
        scale = 1 / np.sqrt(_overlap(known * known))
        system, right = np.zeros((count + 2, count + 2)), np.zeros(count + 2)
        system[:count, :count] = _overlap(np.outer(known, known)) * np.outer(scale, scale)
        right[:count] = _overlap(known * gamma) * scale
        for row, constraint in enumerate((scale, scale * (1 - gamma) / (1 - known)), start=count):
            system[row, :count] = system[:count, row] = constraint
            right[row] = 1.0
        weights[low:high] = np.linalg.solve(system, right)[:count] * scale
    weights.flags.writeable = False
    return weights


def _overlap(products: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Σ_t x^t / (t + 1) = −ln(1 − x) / x."""
    small = products < 1e-8
    safe = np.where(small, 0.5, products)
    found: npt.NDArray[np.float64] = np.where(small, 1 + products / 2, -np.log1p(-safe) / safe)
    return found


def _integrated(scales: TimeScales, density: Density) -> npt.NDArray[np.float64]:
    """Weights of the scales for a density over γ."""
    finite = _finite_gammas(scales)
    if len(finite) < 2:
        raise ConfigError(f"a density needs two trained discounts below 1 to lie between; got {scales.gammas}")
    weigh = functools.partial(_called, "weights", density, what="discounts")
    nodes, sizes = np.polynomial.legendre.leggauss(32)
    weights, inside = np.zeros(len(scales)), 0.0
    for low, high in pairwise(np.log([1 / (1 - gamma) for gamma in finite])):
        x = low + (high - low) * (nodes + 1) / 2
        gammas = 1 - np.exp(-x)
        dense = weigh(gammas) * sizes * (high - low) / 2 * np.exp(-x)  # dγ = e^{−x} dx
        inside += float(np.abs(dense).sum())
        for gamma, share in zip(gammas, dense, strict=True):
            weights[: len(finite)] += share * _between(finite, min(max(float(gamma), finite[0]), finite[-1]))
    outside = 0.0
    for low, high in ((0.0, finite[0]), (finite[-1], 1.0)):
        gammas = low + (high - low) * (nodes + 1) / 2
        outside += float((np.abs(weigh(gammas)) * sizes).sum() * (high - low) / 2)
    if outside > 0.01 * (inside + outside):
        raise ConfigError(
            f"w(γ) has {outside / (inside + outside):.0%} of its mass outside the trained discounts "
            f"{finite[0]:.4g} … {finite[-1]:.4g}, where no value is known: cut it off there, or train more horizons"
        )
    return weights


def _called(name: str, function: Density, points: npt.NDArray[np.float64], what: str) -> npt.NDArray[np.float64]:
    found = np.asarray(function(points), np.float64)
    if found.shape != points.shape or not np.isfinite(found).all():
        raise ConfigError(
            f"{name} must return one finite number for each of {len(points)} {what}, an array of their shape; "
            f"got {found!s:.80}: write it for arrays"
        )
    return found


def _finite_gammas(scales: TimeScales) -> tuple[float, ...]:
    finite = tuple(gamma for gamma in scales.gammas if gamma < 1)
    if not finite:
        raise ConfigError(f"scales must have a discount below 1; got {scales.gammas}: no horizon is known")
    return finite


def _horizons_text(scales: TimeScales) -> str:
    finite = [1 / (1 - gamma) for gamma in _finite_gammas(scales)]
    return f"{finite[0]:.4g} … {finite[-1]:.4g}" if len(finite) > 1 else f"{finite[0]:.4g}"
