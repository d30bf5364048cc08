"""Mixtures of the scales' discounts: weights b with Σ_z b_z γ_z^t close to another discount function. Numbers only."""

import bisect
import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tddelta._arrays import check_scales
from tddelta._plain import whole
from tddelta.errors import ConfigError, own_checks
from tddelta.timescales import TimeScales

Density = Callable[[npt.NDArray[np.float64]], npt.ArrayLike]
"""w(γ), from an array of discounts to an array of the same length."""

_NODES, _OUTSIDE = 32, 0.01
_SHORTER, _LONGER = 4, 3


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


@own_checks
def discount_fit(
    scales: TimeScales, discount: Callable[[npt.NDArray[np.float64]], npt.ArrayLike], *, steps: int | None = None
) -> DiscountFit:
    """The mixture of the scales that follows a discount function most closely, and how closely.

        b = argmin Σ_{t < steps} (d(t) − Σ_z b_z γ_z^t)²

    Args:
        scales: The scales; a discount of 1 is left out, having no horizon.
        discount: d(t), from an array of times 0 … steps − 1 to an array of the same length.
        steps: How many steps count; None means the longest finite horizon.

    Returns:
        The weights for `compose_discount`, and their error.

    Raises:
        ConfigError: `steps` is below 1, or the discount has another length or is not finite.

    Example:
        >>> fit = discount_fit(TimeScales.halving(0.99), lambda t: 0.97**t)
        >>> len(fit.weights), fit.error < 0.001
        (6, True)
    """
    check_scales(scales)
    finite = np.array(finite_gammas(scales))
    if steps is None:
        steps = max(1, round(1 / (1 - finite[-1])))
    steps = whole("steps", steps, most=10**8)
    times = np.arange(steps)
    wanted = np.asarray(discount(times.astype(np.float64)), np.float64)
    if wanted.shape != times.shape or not np.isfinite(wanted).all():
        raise ConfigError(
            f"discount must return one finite number for each of {steps} times; got {wanted!r:.80}: write it for arrays"
        )
    powers = finite ** times[:, None]
    found = np.linalg.lstsq(powers, wanted, rcond=None)[0]
    weights = np.zeros(len(scales))
    weights[: len(finite)] = found
    return DiscountFit(tuple(map(float, weights)), float(np.abs(powers @ found - wanted).max()), steps)


@functools.lru_cache(maxsize=4096)
def between(gammas: tuple[float, ...], gamma: float) -> npt.NDArray[np.float64]:
    """Weights b(γ) of `value_at`, one per discount: normal equations with two constraints.

    Only the four nearest shorter horizons and the three nearest longer ones count: more gain little, and let the errors
    of far horizons in, which are large where values are.
    """
    place = bisect.bisect_left(gammas, gamma)
    low, high = max(0, place - _SHORTER), min(len(gammas), place + _LONGER)
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


def integrated(scales: TimeScales, density: Density) -> npt.NDArray[np.float64]:
    """Weights of the scales for a density over γ."""
    finite = finite_gammas(scales)
    if len(finite) < 2:
        raise ConfigError(f"a density needs two trained discounts below 1 to lie between; got {scales.gammas}")
    nodes, sizes = np.polynomial.legendre.leggauss(_NODES)
    weights, inside = np.zeros(len(scales)), 0.0
    for low, high in pairwise(np.log([1 / (1 - gamma) for gamma in finite])):
        x = low + (high - low) * (nodes + 1) / 2
        gammas = 1 - np.exp(-x)
        dense = _density(density, gammas) * sizes * (high - low) / 2 * np.exp(-x)  # dγ = e^{−x} dx
        inside += float(np.abs(dense).sum())
        for gamma, share in zip(gammas, dense, strict=True):
            weights[: len(finite)] += share * between(finite, min(max(float(gamma), finite[0]), finite[-1]))
    outside = 0.0
    for low, high in ((0.0, finite[0]), (finite[-1], 1.0)):
        gammas = low + (high - low) * (nodes + 1) / 2
        outside += float((np.abs(_density(density, gammas)) * sizes).sum() * (high - low) / 2)
    if outside > _OUTSIDE * (inside + outside):
        raise ConfigError(
            f"w(γ) has {outside / (inside + outside):.0%} of its mass outside the trained discounts "
            f"{finite[0]:.4g} … {finite[-1]:.4g}, where no value is known: cut it off there, or train more horizons"
        )
    return weights


def _density(density: Density, gammas: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found = np.asarray(density(gammas), np.float64)
    if found.shape != gammas.shape or not np.isfinite(found).all():
        raise ConfigError(
            f"weights must return one finite number for each of {len(gammas)} discounts, an array of their shape; "
            f"got {found!s:.80}"
        )
    return found


def finite_gammas(scales: TimeScales) -> tuple[float, ...]:
    """The discounts below 1."""
    finite = tuple(gamma for gamma in scales.gammas if gamma < 1)
    if not finite:
        raise ConfigError(f"scales must have a discount below 1; got {scales.gammas}: no horizon is known")
    return finite


def horizons_text(scales: TimeScales) -> str:
    """The range of finite horizons, for messages."""
    finite = [1 / (1 - gamma) for gamma in finite_gammas(scales)]
    return f"{finite[0]:.4g} … {finite[-1]:.4g}" if len(finite) > 1 else f"{finite[0]:.4g}"
