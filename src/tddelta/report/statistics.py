"""Scores of training runs, and how sure a difference between two agents is.

Everything takes and returns numbers. A replicate is one *seed*: the episodes of one run share their parameters and
say nothing about how much another seed would differ, so no function here pools episodes of several runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from tddelta.decomposition import decompose
from tddelta.errors import ConfigError, ShapeError
from tddelta.timescales import TimeScales

FloatArray = npt.NDArray[np.float64]
"""An array of float64, of any shape."""

RELATIVE_NOISE = 1e-12
"""A standard deviation below this share of the mean is rounding, not variance."""


@dataclass(frozen=True)
class Summary:
    """Mean and standard error over seeds.

    Attributes:
        values: One score per seed.
        mean: Their mean; NaN where a score is not finite or there is none.
        standard_error: Standard deviation (n − 1) over √n; None for fewer than two seeds.
        note: Why something is missing, else "".
    """

    values: tuple[float, ...]
    mean: float
    standard_error: float | None
    note: str = ""

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.values)


@dataclass(frozen=True)
class Interval:
    """An interval, or the reason why there is none.

    Attributes:
        low: Lower end, or None.
        high: Upper end, or None.
        note: Why it is missing or has no width, else "".
    """

    low: float | None
    high: float | None
    note: str = ""


@dataclass(frozen=True)
class Welch:
    """Result of Welch's two-sided t-test.

    Attributes:
        difference: Mean of the first minus mean of the second sample; NaN where undefined.
        statistic: t, or None.
        degrees_of_freedom: Welch–Satterthwaite degrees of freedom, or None.
        p_value: Two-sided p, or None where a test makes no sense; `note` then says why.
        degenerate: Neither sample has any variance, but their means differ.
        note: Why there is no p, else "".
    """

    difference: float
    statistic: float | None
    degrees_of_freedom: float | None
    p_value: float | None
    degenerate: bool = False
    note: str = ""


def asymptotic_score(returns: npt.ArrayLike, episodes: int = 100) -> float:
    """Mean return of the last training episodes of one run.

    Args:
        returns: Undiscounted returns in the order in which the episodes ended, shape (N,).
        episodes: How many of the last episodes count; all, where there are fewer.

    Returns:
        The mean, or NaN for a run in which no episode ended.

    Raises:
        ConfigError: `episodes` is less than 1.
        ShapeError: `returns` does not have one axis.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1; got {episodes}: give how many of the last episodes count")
    return average_score(_vector("returns", returns)[-episodes:])


def average_score(returns: npt.ArrayLike) -> float:
    """Mean return of all training episodes of one run: it rewards learning early.

    Args:
        returns: Undiscounted returns, shape (N,).

    Returns:
        The mean, or NaN for a run in which no episode ended.

    Raises:
        ShapeError: `returns` does not have one axis.
    """
    values = _vector("returns", returns)
    return float(values.mean()) if len(values) else math.nan


def summarise(scores: npt.ArrayLike) -> Summary:
    """Mean ± standard error over seeds.

    Args:
        scores: One score per seed, shape (n,).

    Returns:
        The summary. A score that is not finite makes the mean NaN instead of being dropped.

    Raises:
        ShapeError: `scores` does not have one axis.
    """
    values = _vector("scores", scores)
    plain = tuple(float(value) for value in values)
    if not len(values):
        return Summary(plain, math.nan, None, "no seed")
    if not np.isfinite(values).all():
        return Summary(plain, math.nan, None, _not_finite(values))
    mean = float(values.mean())
    if len(values) == 1:
        return Summary(plain, mean, None, "one seed: no standard error")
    return Summary(plain, mean, float(values.std(ddof=1) / math.sqrt(len(values))))


def t_interval(scores: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Student's t interval of the mean over seeds, mean ± t_{(1+level)/2, n−1} · standard error.

    Args:
        scores: One score per seed, shape (n,).
        level: Confidence level in (0, 1).

    Returns:
        The interval; without ends for fewer than two seeds or scores that are not finite.

    Raises:
        ConfigError: `level` lies outside (0, 1).
        ShapeError: `scores` does not have one axis.
    """
    check_level(level)
    summary = summarise(scores)
    if summary.standard_error is None:
        return Interval(None, None, summary.note.replace("standard error", "interval"))
    half = float(stats.t.ppf((1 + level) / 2, summary.n - 1)) * summary.standard_error
    return Interval(summary.mean - half, summary.mean + half)


def welch_test(first: npt.ArrayLike, second: npt.ArrayLike) -> Welch:
    """Welch's t-test: do two agents differ in their mean over seeds?

    Rounding noise is not variance: `[.1] * 10` against `[.1] * 20` has p = 3e-4 in a plain t-test, and is
    reported here as "no variance, equal".

    Args:
        first: One score per seed, shape (n,).
        second: One score per seed of the other agent, shape (m,).

    Returns:
        The test; `p_value` is None, with the reason in `note`, where a test makes no sense.

    Raises:
        ShapeError: A sample does not have one axis.
    """
    first, second = _vector("first", first), _vector("second", second)
    problem = _incomparable(first, second)
    if problem:
        return Welch(math.nan, None, None, None, note=problem)
    difference = float(first.mean() - second.mean())
    constant = is_constant(first), is_constant(second)
    if all(constant):
        if is_constant(np.concatenate([first, second])):
            return Welch(0.0, None, None, None, note="no variance, equal")
        if min(len(first), len(second)) > 1:
            note = "no variance within either agent: the test is degenerate"
            return Welch(difference, None, None, None, degenerate=True, note=note)
    if min(len(first), len(second)) < 2:
        return Welch(difference, None, None, None, note="one seed: no test")
    if constant[1]:  # Welch's test of a sample without variance is the test of one sample against a number
        result = stats.ttest_1samp(first, second[0])
        return Welch(difference, float(result.statistic), float(result.df), float(result.pvalue))
    if constant[0]:
        result = stats.ttest_1samp(second, first[0])
        return Welch(difference, -float(result.statistic), float(result.df), float(result.pvalue))
    result = stats.ttest_ind(first, second, equal_var=False)
    return Welch(difference, float(result.statistic), float(result.df), float(result.pvalue))


class Moments(NamedTuple):
    """Scores of an agent of which only moments are known, as in a publication.

    Attributes:
        mean: Mean over seeds.
        standard_error: Its standard error.
        n: Number of seeds, at least 2.
    """

    mean: float
    standard_error: float
    n: int


def welch_of_moments(first: Moments, second: Moments) -> Welch:
    """Welch's two-sided t-test from means and standard errors, where the scores of the seeds are not known.

    Args:
        first: Of one agent.
        second: Of the other.

    Returns:
        The test; `p_value` is None where neither has any variance.
    """
    both, difference = (first, second), first.mean - second.mean
    if first.standard_error == second.standard_error == 0:
        return Welch(difference, None, None, None, degenerate=difference != 0, note="no variance within either agent")
    spreads = [moments.standard_error * math.sqrt(moments.n) for moments in both]
    result = stats.ttest_ind_from_stats(
        first.mean, spreads[0], first.n, second.mean, spreads[1], second.n, equal_var=False
    )
    squares = [moments.standard_error**2 for moments in both]
    freedom = sum(squares) ** 2 / sum(s**2 / (m.n - 1) for s, m in zip(squares, both, strict=True))
    return Welch(difference, float(result.statistic), freedom, float(result.pvalue))


def bootstrap_difference(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    n_bootstrap: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of the difference of two means, resampling the seeds of each agent.

    With fewer than about five seeds such an interval is too narrow.

    Args:
        first: One score per seed, shape (n,).
        second: One score per seed of the other agent, shape (m,).
        n_bootstrap: Number of resamples, at least 2.
        level: Confidence level in (0, 1).
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        The interval; without ends where an agent has one seed, or a score is not finite.

    Raises:
        ConfigError: `n_bootstrap` is less than 2 or `level` lies outside (0, 1).
        ShapeError: A sample does not have one axis.
    """
    check_bootstrap(n_bootstrap, level)
    first, second = _vector("first", first), _vector("second", second)
    problem = _incomparable(first, second)
    if problem:
        return Interval(None, None, problem)
    if min(len(first), len(second)) < 2:
        return Interval(None, None, "one seed: no interval")
    rng = np.random.default_rng(seed)
    means = [resample(x, n_bootstrap, rng).mean(axis=1) for x in (first, second)]
    note = "no variance: the interval has no width" if is_constant(first) and is_constant(second) else ""
    return Interval(*percentiles(means[0] - means[1], level), note)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction over a family of tests.

    With p_(1) ≤ … ≤ p_(m): corrected p_(i) = max over j ≤ i of min(1, (m − j + 1) p_(j)).

    Args:
        p_values: p of every test; None or NaN for a comparison that was not tested, which does not count.

    Returns:
        The corrected values, in the order given.

    Raises:
        ConfigError: A value lies outside [0, 1].
    """
    tested = [(p, index) for index, p in enumerate(p_values) if p is not None and not math.isnan(p)]
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(sorted(tested)):
        if not 0 <= p <= 1:
            raise ConfigError(f"p_values must lie in [0, 1]; got {p}: pass the p values of the tests")
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        corrected[index] = largest
    return corrected


@dataclass(frozen=True)
class CriticQuality:
    """Match of predicted values with realised discounted returns, per scale; each array has shape (Z,).

    Attributes:
        rmse: Root of the mean squared error, in units of the return.
        relative_rmse: `rmse` over the standard deviation of the realised returns; NaN where that is 0.
        explained_variance: 1 − Var(realised − predicted) / Var(realised); NaN where the latter is 0.
        states: Number of states whose realised return is known.
    """

    rmse: FloatArray
    relative_rmse: FloatArray
    explained_variance: FloatArray
    states: npt.NDArray[np.int64]


def critic_quality(predicted: npt.ArrayLike, realised: npt.ArrayLike) -> CriticQuality:
    """Compare predicted values with realised discounted returns of held-out states.

    Args:
        predicted: V_z(s) of each state and scale, shape (N, Z).
        realised: Realised discounted return from that state at γ_z, shape (N, Z); NaN where it is not known.

    Returns:
        The measures per scale; NaN where a scale has no state with a known return.

    Raises:
        ShapeError: The shapes differ, or are not (N, Z).
    """
    predicted, realised = np.asarray(predicted, np.float64), np.asarray(realised, np.float64)
    if predicted.ndim != 2 or predicted.shape != realised.shape:
        raise ShapeError(
            "predicted and realised must both have shape (N, Z); "
            f"got {predicted.shape} and {realised.shape}: pass one row per state and one column per discount"
        )
    columns = [_column_quality(predicted[:, z], realised[:, z]) for z in range(predicted.shape[1])]
    table = np.array([column[:3] for column in columns], np.float64).reshape(-1, 3)
    return CriticQuality(table[:, 0], table[:, 1], table[:, 2], np.array([column[3] for column in columns], np.int64))


def _column_quality(predicted: FloatArray, realised: FloatArray) -> tuple[float, float, float, int]:
    known = np.isfinite(realised)
    predicted, realised = predicted[known], realised[known]
    if not len(realised):
        return math.nan, math.nan, math.nan, 0
    error = realised - predicted
    rmse = float(np.sqrt(np.mean(error**2)))
    if is_constant(realised):
        return rmse, math.nan, math.nan, len(realised)
    spread = float(realised.std())
    return rmse, rmse / spread, 1 - float(error.var()) / spread**2, len(realised)


BINS = 10
"""Groups of equally many states, from the lowest predicted value to the highest."""


@dataclass(frozen=True)
class Diagnosis:
    """Components of one agent's critic on held-out states, all seeds together; each array has shape (Z,).

    What is compared with W_z is the realised part: the discounted return at γ_z less that at γ_{z−1}.

    Attributes:
        factors: Contraction factor of each component's targets; NaN where there are no traces.
        share: Mean |W_z| over the sum of these.
        bias: Mean of W_z less the realised part, in units of reward; NaN where nothing is known.
        spread: Standard deviation of the realised part.
        explained_variance: Of the realised part by W_z.
        slope: Slope of the realised return at γ_z against V_z: 1 where predictions are calibrated.
        states: States whose returns are known up to γ_z.
    """

    factors: FloatArray
    share: FloatArray
    bias: FloatArray
    spread: FloatArray
    explained_variance: FloatArray
    slope: FloatArray
    states: FloatArray


def diagnose(scales: TimeScales, predicted: FloatArray, realised: FloatArray) -> Diagnosis:
    """Compare the components of predicted values with those of realised returns.

    Args:
        scales: The critic's scales.
        predicted: V_z(s), (N, Z).
        realised: Discounted return at γ_z, (N, Z); NaN where it is not known.

    Returns:
        The measures.
    """
    parts, came = decompose(predicted), decompose(realised)
    error = parts - came
    rows: list[tuple[float, float, float, float, float]] = []
    for z in range(len(scales)):
        known = np.isfinite(came[:, z])
        if not known.any():
            rows.append((math.nan, math.nan, math.nan, math.nan, 0.0))
            continue
        target, value, returns = came[known, z], predicted[known, z], realised[known, z]
        constant = is_constant(target)
        explained = math.nan if constant else 1 - float(error[known, z].var() / target.var())
        flat = is_constant(value)
        slope = math.nan if flat else float(np.cov(value, returns, bias=True)[0, 1] / value.var())
        rows.append((float(error[known, z].mean()), float(target.std()), explained, slope, float(known.sum())))
    table = np.array(rows)
    size = np.abs(parts).mean(axis=0)
    factors = scales.contraction_factors if scales.trace_decays is not None else (math.nan,) * len(scales)
    total = float(size.sum())
    return Diagnosis(
        np.array(factors), size / total if total else np.full(len(size), math.nan), *(table[:, i] for i in range(5))
    )


def calibration(predicted: FloatArray, realised: FloatArray, bins: int = BINS) -> tuple[FloatArray, FloatArray]:
    """Mean realised return of states with about the same predicted value.

    Args:
        predicted: V(s), (N,).
        realised: Discounted return, (N,); NaN where it is not known.
        bins: Number of groups of equally many states.

    Returns:
        Mean prediction and mean return of each group; empty where no return is known.
    """
    known = np.isfinite(realised)
    order = np.argsort(predicted[known], kind="stable")
    groups = [part for part in np.array_split(order, bins) if len(part)]
    means = [[float(values[known][part].mean()) for part in groups] for values in (predicted, realised)]
    return np.array(means[0]), np.array(means[1])


# ---------------------------------------------------------------- checks and resampling shared with `aggregates`


def is_constant(values: FloatArray) -> bool:
    """Tell whether all values are equal up to rounding."""
    return bool(np.ptp(values) == 0 or values.std() < RELATIVE_NOISE * abs(values.mean()))


def resample(values: FloatArray, n_bootstrap: int, rng: np.random.Generator) -> FloatArray:
    """Draw with replacement: shape (n,) becomes (n_bootstrap, n)."""
    return values[rng.integers(len(values), size=(n_bootstrap, len(values)))]


def percentiles(samples: FloatArray, level: float) -> tuple[float, float]:
    """Return the central `level` of the samples."""
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def check_level(level: float) -> None:
    """Raise ConfigError unless `level` is a confidence level."""
    if not 0 < level < 1:
        raise ConfigError(f"level must lie between 0 and 1; got {level}: 0.95 is usual")


def check_bootstrap(n_bootstrap: int, level: float) -> None:
    """Raise ConfigError unless a bootstrap with these settings means something."""
    check_level(level)
    if n_bootstrap < 2:
        raise ConfigError(f"n_bootstrap must be at least 2; got {n_bootstrap}: use 1000 or more")


def _vector(name: str, values: npt.ArrayLike) -> FloatArray:
    array: npt.NDArray[Any] = np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ShapeError(f"{name} must have one axis; got shape {array.shape}: pass one number per seed or episode")
    return array


def _not_finite(values: FloatArray) -> str:
    bad = int((~np.isfinite(values)).sum())
    return f"not a finite score: {bad} of {len(values)} seeds"


def _incomparable(first: FloatArray, second: FloatArray) -> str:
    for values in (first, second):
        if not len(values):
            return "no seed"
        if not np.isfinite(values).all():
            return _not_finite(values)
    return ""
