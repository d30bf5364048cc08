"""Scores of training runs, aggregates over environments, and how sure a difference between two agents is.

Everything takes and returns numbers. A replicate is one *seed*: the episodes of one run share their parameters and
say nothing about how much another seed would differ, so no function here pools episodes of several runs.

Aggregates take the scores of an agent as one array per environment with one normalised score per seed; environments
may have different numbers of seeds. Their intervals come from the stratified bootstrap: the seeds of each environment
are resampled apart, the environments stay as they are. Definitions are those of rliable (Agarwal et al., 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice").

Everywhere `level` is a confidence level in (0, 1), `n_bootstrap` a number of resamples of at least 2, and `seed` that
of the resampling, the same of which gives the same interval. Functions raise ConfigError for other values, and
ShapeError for samples that do not have one axis.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from tddelta.decomposition import decompose, explained_variance, variance
from tddelta.errors import ConfigError, ShapeError
from tddelta.runs.files import LAST_EPISODES
from tddelta.timescales import TimeScales

FloatArray = npt.NDArray[np.float64]
"""An array of float64, of any shape."""

# ---------------------------------------------------------------- scores of seeds


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


def asymptotic_score(returns: npt.ArrayLike, episodes: int = LAST_EPISODES) -> float:
    """Mean return of the last training episodes of one run; NaN for a run in which no episode ended.

    Args:
        returns: Undiscounted returns in the order in which the episodes ended, shape (N,).
        episodes: How many of the last episodes count, at least 1; all, where there are fewer.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1; got {episodes}: give how many of the last episodes count")
    return average_score(_vector("returns", returns)[-episodes:])


def average_score(returns: npt.ArrayLike) -> float:
    """Mean of the returns (N,) of all training episodes of one run, or NaN: it rewards learning early."""
    values = _vector("returns", returns)
    return float(values.mean()) if len(values) else math.nan


def summarise(scores: npt.ArrayLike) -> Summary:
    """Mean ± standard error of one score per seed, (n,); one that is not finite makes the mean NaN."""
    values = _vector("scores", scores)
    plain = tuple(values.tolist())
    if problem := _unusable(values):
        return Summary(plain, math.nan, None, problem)
    mean = float(values.mean())
    if len(values) == 1:
        return Summary(plain, mean, None, "one seed: no standard error")
    return Summary(plain, mean, float(values.std(ddof=1) / math.sqrt(len(values))))


def t_interval(scores: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Student's t interval of the mean of one score per seed, mean ± t_{(1+level)/2, n−1} · standard error.

    It has no ends for fewer than two seeds or scores that are not finite.
    """
    _check_level(level)
    summary = summarise(scores)
    if summary.standard_error is None:
        return Interval(None, None, summary.note.replace("standard error", "interval"))
    half = float(stats.t.ppf((1 + level) / 2, summary.n - 1)) * summary.standard_error
    return Interval(summary.mean - half, summary.mean + half)


# ---------------------------------------------------------------- learning curves


@dataclass(frozen=True)
class Curve:
    """A curve with a band; every array has the shape of `grid`.

    Attributes:
        grid: Environment steps, or normalised scores τ of a performance profile.
        mean: Mean over the seeds that have a value here, NaN where none has; or the share of runs above τ.
        low: Lower end of the band; NaN for fewer than two seeds.
        high: Upper end.
        n: How many seeds have a value here, or how many runs there are.
        label: What the band is, for a legend.
    """

    grid: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    n: npt.NDArray[np.int64]
    label: str


def learning_grid(steps: Sequence[npt.ArrayLike], *, points: int = 60, per_point: float = 5) -> FloatArray:
    """Equally spaced steps up to the last episode of any run, (K,) with 2 ≤ K ≤ `points`; empty without episodes.

    Args:
        steps: Environment steps at the end of each episode, one array per run.
        points: The most grid points.
        per_point: How many episodes per point the run with the fewest episodes should have on average.
    """
    arrays = [array for array in (np.asarray(run, np.float64) for run in steps) if len(array)]
    if not arrays:
        return np.zeros(0)
    last = max(float(array[-1]) for array in arrays)
    # the density of episodes matters, so a run that was cut short does not make the grid coarse
    density = min(len(array) / max(float(array[-1]), 1.0) for array in arrays)
    count = int(np.clip(density * last / per_point, 2, points))
    return np.linspace(last / count, last, count)


def curve_values(steps: npt.ArrayLike, returns: npt.ArrayLike, grid: npt.ArrayLike) -> FloatArray:
    """One run's learning curve on a grid.

    The value at grid point g_i is the mean return of the episodes that ended in (g_{i−1}, g_i], for the first point in
    (−∞, g_0]. A point without an episode lies on the line between its neighbours; before the first and after the last
    episode of the run there is no value: nothing is extrapolated or held.

    Args:
        steps: Environment steps at the end of each episode, ascending, shape (N,).
        returns: Their returns, shape (N,).
        grid: Ascending steps, shape (K,).

    Returns:
        The values, shape (K,), NaN outside the run's range.
    """
    ends, values, points = (np.asarray(x, np.float64) for x in (steps, returns, grid))
    if ends.shape != values.shape or ends.ndim != 1:
        raise ShapeError(
            f"steps and returns must have one shape (N,); got {ends.shape} and {values.shape}: "
            "pass one entry per episode"
        )
    bins: npt.NDArray[Any] = np.searchsorted(points, ends, side="left")  # g_{i−1} < end ≤ g_i gives i
    inside = bins < len(points)
    counts = np.bincount(bins[inside], minlength=len(points))
    sums = np.bincount(bins[inside], weights=values[inside], minlength=len(points))
    filled = counts > 0
    if not filled.any():
        return np.full(len(points), np.nan)
    return np.interp(points, points[filled], sums[filled] / counts[filled], left=np.nan, right=np.nan)


def learning_curve(
    steps: Sequence[npt.ArrayLike], returns: Sequence[npt.ArrayLike], grid: npt.ArrayLike, *, level: float = 0.95
) -> Curve:
    """Mean learning curve of several seeds, with a t interval over seeds.

    Args:
        steps: Environment steps at the end of each episode, one array per seed.
        returns: The episodes' returns, one array per seed.
        grid: Strictly increasing steps, shape (K,); `learning_grid` chooses one.
        level: Confidence level of the interval.
    """
    _check_level(level)
    points = np.asarray(grid, np.float64)
    if (np.diff(points) <= 0).any():
        raise ConfigError(f"grid must be strictly increasing; got {points.tolist()}: sort it and drop repeated steps")
    if len(steps) != len(returns):
        raise ShapeError(f"steps and returns must have one array per seed; got {len(steps)} and {len(returns)}")
    rows = [curve_values(end, value, points) for end, value in zip(steps, returns, strict=True)]
    values = np.array(rows, np.float64).reshape(-1, len(points))
    known = np.ma.masked_invalid(values)
    n = known.count(axis=0)
    mean = known.mean(axis=0)
    half = stats.t.ppf((1 + level) / 2, n - 1) * np.sqrt(known.var(axis=0, ddof=1) / n)
    mean, low, high = (np.ma.filled(line, np.nan) for line in (mean, mean - half, mean + half))
    most = int(n.max(initial=0))
    label = "one seed, no band" if most < 2 else f"mean of {most} seeds, band: {100 * level:g} % t interval"
    return Curve(points, mean, low, high, n, label)


# ---------------------------------------------------------------- two agents


@dataclass(frozen=True)
class Welch:
    """Result of Welch's two-sided t-test.

    Attributes:
        difference: Mean of the first minus mean of the second sample; NaN where undefined.
        statistic: t, or None.
        degrees_of_freedom: Welch–Satterthwaite degrees of freedom, or None.
        p_value: Two-sided p, or None where a test makes no sense; `note` then says why.
        note: Why there is no p, else "".
        interval: 95 % interval of the difference, or None where there is no test or the scores are not known.
    """

    difference: float
    statistic: float | None = None
    degrees_of_freedom: float | None = None
    p_value: float | None = None
    note: str = ""
    interval: tuple[float, float] | None = None


def welch_test(first: npt.ArrayLike, second: npt.ArrayLike) -> Welch:
    """Welch's t-test of one score per seed, (n,) and (m,): do two agents differ in their mean over seeds?

    Rounding noise is not variance: `[.1] * 10` against `[.1] * 20` has p = 3e-4 in a plain t-test, and is
    reported here as "no variance, equal".
    """
    first, second = _vector("first", first), _vector("second", second)
    if problem := _unusable(first) or _unusable(second):
        return Welch(math.nan, note=problem)
    difference = float(first.mean() - second.mean())
    constant = _is_constant(first), _is_constant(second)
    if all(constant):
        if _is_constant(np.concatenate([first, second])):
            return Welch(0.0, note="no variance, equal")
        if min(len(first), len(second)) > 1:
            return Welch(difference, note="no variance within either agent: the test is degenerate")
    if min(len(first), len(second)) < 2:
        return Welch(difference, note="one seed: no test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of equal scores on one side
        result = stats.ttest_ind(first, second, equal_var=False)
    low, high = map(float, result.confidence_interval(0.95))
    return Welch(difference, float(result.statistic), float(result.df), float(result.pvalue), interval=(low, high))


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
    """Welch's two-sided t-test from means and standard errors, where the scores of the seeds are not known."""
    both, difference = (first, second), first.mean - second.mean
    if first.standard_error == second.standard_error == 0:
        return Welch(difference, note="no variance within either agent")
    spreads = [moments.standard_error * math.sqrt(moments.n) for moments in both]
    result = stats.ttest_ind_from_stats(
        first.mean, spreads[0], first.n, second.mean, spreads[1], second.n, equal_var=False
    )
    squares = [moments.standard_error**2 for moments in both]
    freedom = sum(squares) ** 2 / sum(s**2 / (m.n - 1) for s, m in zip(squares, both, strict=True))
    return Welch(difference, float(result.statistic), freedom, float(result.pvalue))


def bootstrap_difference(
    first: npt.ArrayLike, second: npt.ArrayLike, *, n_bootstrap: int = 10_000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of the difference of two means, resampling the seeds (n,) and (m,) of each agent.

    It has no ends where an agent has one seed, or a score is not finite. With fewer than about five seeds such an
    interval is too narrow.
    """
    _check_bootstrap(n_bootstrap, level)
    samples = [_vector("first", first), _vector("second", second)]
    if problem := _unusable(samples[0]) or _unusable(samples[1]):
        return Interval(None, None, problem)
    if min(map(len, samples)) < 2:
        return Interval(None, None, "one seed: no interval")
    ours, theirs = (drawn.mean(axis=1) for drawn in _resample(samples, n_bootstrap, seed))
    return Interval(*_percentiles(ours - theirs, level), _no_width(samples))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction over a family of tests.

    With p_(1) ≤ … ≤ p_(m): corrected p_(i) = max over j ≤ i of min(1, (m − j + 1) p_(j)).

    Args:
        p_values: p of every test in [0, 1]; None or NaN for a comparison that was not tested, which does not count.

    Returns:
        The corrected values, in the order given.
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


# ---------------------------------------------------------------- aggregates over environments

Scores = Sequence[npt.ArrayLike]
"""Scores of one agent: per environment one array with one score per seed."""

Statistic = Callable[[list[FloatArray]], FloatArray]
"""From one array (resamples, seeds) per environment to one number per resample, (resamples,)."""


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: The point estimate.
        interval: Its bootstrap interval, or the reason why there is none.
        note: What a reader should know about the number, else "".
    """

    value: float
    interval: Interval
    note: str = ""


def interquartile_mean(scores: Scores) -> float:
    """Mean of the middle half of all runs of all environments together.

    `scipy.stats.trim_mean(…, 0.25)` over the flattened scores: of n runs ⌊n/4⌋ are dropped at either end, so three
    runs lose none and their interquartile mean is their mean. Where environments have different numbers of seeds, each
    environment keeps the same weight, and what is dropped at either end is that share of the total weight.
    """
    return float(_iqm(_rows(_check(scores)))[0])


def aggregate(
    scores: Scores,
    statistic: str = "interquartile_mean",
    *,
    n_bootstrap: int = 2_000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """An aggregate of normalised scores with its stratified bootstrap interval.

    The statistic is "interquartile_mean"; "mean" or "median" of the environments' means; or "optimality_gap", the
    mean shortfall below 1. The interval has no ends where an environment has one seed only.
    """
    _check_bootstrap(n_bootstrap, level)
    if statistic not in STATISTICS:
        raise ConfigError(f"statistic must be one of {', '.join(STATISTICS)}; got {statistic!r}")
    arrays, function = _check(scores), STATISTICS[statistic]
    value, count = float(function(_rows(arrays))[0]), sum(len(x) for x in arrays)
    notes = []
    if statistic == "interquartile_mean" and count < 4:
        notes.append(f"an interquartile mean of {count} runs trims nothing: it is their mean")
    if len({len(x) for x in arrays}) > 1:
        notes.append("the numbers of seeds differ, and every environment has the same weight")
    interval = Interval(None, None, _no_interval(arrays))
    if not interval.note:
        samples = function(_resample(arrays, n_bootstrap, seed))
        interval = Interval(*_percentiles(samples, level), _no_width(arrays))
    return Estimate(value, interval, "; ".join(notes))


def performance_profile(
    scores: Scores, thresholds: npt.ArrayLike, *, n_bootstrap: int = 2_000, level: float = 0.95, seed: int = 0
) -> Curve:
    """Share of runs that score more than each threshold τ, (K,), with a pointwise stratified bootstrap band."""
    _check_bootstrap(n_bootstrap, level)
    arrays, points = _check(scores), np.asarray(thresholds, np.float64)
    fractions = np.array([_above(_rows(arrays), point)[0] for point in points], np.float64)
    n = np.full(len(points), sum(map(len, arrays)))
    if _no_interval(arrays):
        unknown = np.full(len(points), np.nan)
        return Curve(points, fractions, unknown, unknown, n, "one seed: no band")
    drawn = _resample(arrays, n_bootstrap, seed)
    band = np.array([_percentiles(_above(drawn, point), level) for point in points]).reshape(-1, 2)
    return Curve(points, fractions, band[:, 0], band[:, 1], n, f"band: {100 * level:g} % bootstrap")


def probability_of_improvement(
    first: Scores, second: Scores, *, n_bootstrap: int = 2_000, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Chance that a run of the first agent beats one of the second on an environment drawn at random.

    P(X > Y) + ½ P(X = Y) per environment (the Mann–Whitney statistic over n·m), averaged over environments. Both
    agents have the same environments, in the same order.
    """
    _check_bootstrap(n_bootstrap, level)
    ours, theirs = _check(first), _check(second)
    if len(ours) != len(theirs):
        raise ShapeError(
            f"first and second must cover the same environments; got {len(ours)} and {len(theirs)}: "
            "leave out the environments that one of them lacks"
        )
    value = float(_improvement(_rows(ours), _rows(theirs))[0])
    both = [*ours, *theirs]
    if problem := _no_interval(both):
        return Estimate(value, Interval(None, None, problem))
    drawn = _resample(both, n_bootstrap, seed)
    low, high = _percentiles(_improvement(drawn[: len(ours)], drawn[len(ours) :]), level)
    return Estimate(value, Interval(low, high, "the same in every resample" if low == high else ""))


# Statistics of rows, one array (B, n) per environment.


def _iqm(rows: list[FloatArray]) -> FloatArray:
    flat = np.concatenate(rows, axis=1)
    weights = np.concatenate([np.full(row.shape[1], 1 / (len(rows) * row.shape[1])) for row in rows])
    order = np.argsort(flat, axis=1)
    end = np.cumsum(weights[order], axis=1)
    cut = flat.shape[1] // 4 / flat.shape[1]  # equal weights: exactly the runs that trim_mean drops
    kept = np.clip(end, cut, 1 - cut) - np.clip(end - weights[order], cut, 1 - cut)
    return np.asarray((kept * np.take_along_axis(flat, order, axis=1)).sum(axis=1) / kept.sum(axis=1), np.float64)


def _means(rows: list[FloatArray]) -> FloatArray:
    return np.stack([row.mean(axis=1) for row in rows], axis=1)


STATISTICS: dict[str, Statistic] = {
    "interquartile_mean": _iqm,
    "mean": lambda rows: np.asarray(_means(rows).mean(axis=1), np.float64),
    "median": lambda rows: np.asarray(np.median(_means(rows), axis=1), np.float64),
    "optimality_gap": lambda rows: np.asarray(1 - _means([np.minimum(row, 1) for row in rows]).mean(axis=1)),
}
"""Statistics of `aggregate` by name."""


def _above(rows: list[FloatArray], threshold: float) -> FloatArray:
    return np.asarray(np.mean([(row > threshold).mean(axis=1) for row in rows], axis=0), np.float64)


def _improvement(first: list[FloatArray], second: list[FloatArray]) -> FloatArray:
    pairs = [(ours[:, :, None], theirs[:, None, :]) for ours, theirs in zip(first, second, strict=True)]
    return np.asarray(np.mean([np.mean((x > y) + 0.5 * (x == y), axis=(1, 2)) for x, y in pairs], axis=0), np.float64)


def _rows(arrays: list[FloatArray]) -> list[FloatArray]:
    return [array[None] for array in arrays]


def _check(scores: Any) -> list[FloatArray]:
    arrays = [np.asarray(array, np.float64) for array in scores]
    matrix = isinstance(scores, np.ndarray)  # would be read by rows, and rliable's matrices have seeds there
    if matrix or not arrays or any(array.ndim != 1 or not len(array) for array in arrays):
        raise ShapeError(
            "scores must be one array per environment with one number per seed; "
            f"got {'a matrix with rows of' if matrix else 'arrays of'} shapes {[array.shape for array in arrays]}: "
            "pass the columns of a matrix (seeds, environments) as list(matrix.T)"
        )
    if not all(np.isfinite(array).all() for array in arrays):
        raise ShapeError("scores must be finite; got NaN or infinity: leave out the environments without a score")
    return arrays


def _no_interval(arrays: list[FloatArray]) -> str:
    return "an environment has one seed: no interval" if min(map(len, arrays)) < 2 else ""


# ---------------------------------------------------------------- critics


@dataclass(frozen=True)
class CriticQuality:
    """Match of predicted values with realised discounted returns, per scale; each array has shape (Z,).

    Attributes:
        rmse: Root of the mean squared error, in units of the return.
        relative_rmse: `rmse` over the standard deviation of the realised returns; NaN where that is 0.
        explained_variance: Of the realised returns by the values; NaN where the former do not vary.
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
    rmse, relative, explained = np.full((3, predicted.shape[1]), np.nan)
    known = np.isfinite(realised)
    for z in np.flatnonzero(known.any(axis=0)):
        values, returns = predicted[known[:, z], z], realised[known[:, z], z]
        rmse[z], explained[z] = np.sqrt(np.mean((returns - values) ** 2)), explained_variance(values, returns)
        if not _is_constant(returns):
            relative[z] = rmse[z] / returns.std()
    return CriticQuality(rmse, relative, explained, known.sum(axis=0))


BINS = 10
"""Groups of about equally many states, from the lowest predicted value to the highest."""


@dataclass(frozen=True)
class Diagnosis:
    """Components of one agent's critic on held-out states, all seeds together; each array has shape (Z,).

    What is compared with W_z is the realised part: the discounted return at γ_z less that at γ_{z−1}.

    Attributes:
        contraction_factor: Contraction factor of each component's targets; NaN where there are no traces.
        share: Mean |W_z| over the sum of these.
        bias: Mean of W_z less the realised part, in units of reward; NaN where nothing is known.
        spread: Standard deviation of the realised part.
        explained_variance: Of the realised part by W_z.
        slope: Slope of the realised return at γ_z against V_z: 1 where predictions are calibrated.
        states: States whose returns are known up to γ_z.
    """

    contraction_factor: FloatArray
    share: FloatArray
    bias: FloatArray
    spread: FloatArray
    explained_variance: FloatArray
    slope: FloatArray
    states: npt.NDArray[np.int64]


def diagnose(scales: TimeScales, predicted: FloatArray, realised: FloatArray) -> Diagnosis:
    """Compare the components of predicted values with those of realised returns.

    Args:
        scales: The critic's scales.
        predicted: V_z(s), (N, Z).
        realised: Discounted return at γ_z, (N, Z); NaN where it is not known.
    """
    parts, came = decompose(predicted), decompose(realised)
    bias, spread, explained, slope = np.full((4, len(scales)), np.nan)
    known = np.isfinite(came)
    for z in np.flatnonzero(known.any(axis=0)):
        there = known[:, z]
        target, error = came[there, z], (parts - came)[there, z]
        value, returns = predicted[there, z], realised[there, z]
        bias[z], spread[z] = error.mean(), target.std()
        explained[z] = explained_variance(parts[there, z], target)
        if not _is_constant(value):
            slope[z] = np.cov(value, returns, bias=True)[0, 1] / value.var()
    size = np.abs(parts).mean(axis=0)
    share = size / size.sum() if size.sum() else np.full(len(size), np.nan)
    factors = scales.contraction_factors if scales.trace_decays is not None else (math.nan,) * len(scales)
    return Diagnosis(np.array(factors), share, bias, spread, explained, slope, known.sum(axis=0))


def calibration(
    predicted: FloatArray, realised: FloatArray, bins: int = BINS
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.int64]]:
    """Means over groups of about equally many states, by their predicted value; equal predictions stay together.

    Args:
        predicted: V(s), (N,).
        realised: Discounted return, (N,); NaN where it is not known.
        bins: Number of groups.

    Returns:
        Mean prediction and mean realised return, (bins,), NaN in groups without a state, and numbers of states.
    """
    known = np.isfinite(realised)
    order = np.argsort(predicted[known], kind="stable")
    said, got = predicted[known][order], realised[known][order]
    distinct, first = np.unique(said, return_index=True)
    if len(distinct) > bins:  # begin each group where its first prediction begins
        first = np.searchsorted(said, said[len(said) * np.arange(bins) // bins])
    edges = [*first.tolist(), *[len(said)] * (bins + 1 - len(first))]
    means, counts = np.full((2, bins), np.nan), np.diff(edges)
    for group in np.flatnonzero(counts):
        part = slice(edges[group], edges[group + 1])
        means[:, group] = said[part].mean(), got[part].mean()
    return means[0], means[1], counts


# ---------------------------------------------------------------- checks and resampling


def _is_constant(values: FloatArray) -> bool:
    """Tell whether all values are equal up to rounding."""
    return bool(variance(values) == 0)


def _no_width(arrays: list[FloatArray]) -> str:
    return "no variance: the interval has no width" if all(map(_is_constant, arrays)) else ""


def _resample(arrays: list[FloatArray], n_bootstrap: int, seed: int) -> list[FloatArray]:
    """Draw from each array with replacement: shape (n,) becomes (n_bootstrap, n)."""
    rng = np.random.default_rng(seed)
    return [values[rng.integers(len(values), size=(n_bootstrap, len(values)))] for values in arrays]


def _percentiles(samples: FloatArray, level: float) -> tuple[float, float]:
    """Return the central `level` of the samples."""
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"level must lie between 0 and 1; got {level}: 0.95 is usual")


def _check_bootstrap(n_bootstrap: int, level: float) -> None:
    _check_level(level)
    if n_bootstrap < 2:
        raise ConfigError(f"n_bootstrap must be at least 2; got {n_bootstrap}: use 1000 or more")


def _vector(name: str, values: npt.ArrayLike) -> FloatArray:
    array: npt.NDArray[Any] = np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ShapeError(f"{name} must have one axis; got shape {array.shape}: pass one number per seed or episode")
    return array


def _unusable(values: FloatArray) -> str:
    """Reason why these scores of seeds have no mean, or ""."""
    bad = int((~np.isfinite(values)).sum())
    return f"not a finite score: {bad} of {len(values)} seeds" if bad else "" if len(values) else "no seed"
