"""Measures over several environments at once: interquartile mean, performance profile, probability of improvement.

One data shape throughout: `scores` is a sequence with one array per environment, each with one normalised score per
seed. Environments may have different numbers of seeds. Intervals come from the stratified bootstrap: the seeds of
each environment are resampled apart, the environments stay as they are.

Definitions are those of rliable (Agarwal et al., 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from tddelta.errors import ConfigError, ShapeError
from tddelta.report.statistics import (
    FloatArray,
    Interval,
    check_bootstrap,
    check_level,
    is_constant,
    percentiles,
    resample,
)


@dataclass(frozen=True)
class Curve:
    """Mean learning curve over seeds; every array but `values` has the shape of `grid`.

    Attributes:
        grid: Environment steps.
        mean: Mean over the seeds that have a value here; NaN where none has.
        low: Lower end of the t interval; NaN for fewer than two seeds.
        high: Upper end.
        n: How many seeds have a value here.
        values: Value of each seed, shape (seeds, grid); NaN outside the seed's own range.
        level: Confidence level of the interval.
    """

    grid: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    n: npt.NDArray[np.int64]
    values: FloatArray
    level: float

    @property
    def label(self) -> str:
        """Legend of line and band."""
        most = int(self.n.max(initial=0))
        if most < 2:
            return "one seed, no band"
        return f"mean of {most} seeds, band: {100 * self.level:g} % t interval"


def learning_grid(steps: Sequence[npt.ArrayLike], *, points: int = 60, per_point: float = 5) -> FloatArray:
    """Choose grid points that all runs can share.

    Args:
        steps: Environment steps at the end of each episode, one array per run.
        points: The most grid points.
        per_point: How many episodes per point the run with the fewest episodes should have on average.

    Returns:
        Equally spaced steps up to the last episode of any run, shape (K,), 2 ≤ K ≤ `points`; empty without episodes.
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

    Raises:
        ShapeError: `steps` and `returns` differ in shape.
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
    curve = np.full(len(points), np.nan)
    if filled.any():
        curve[filled] = sums[filled] / counts[filled]
        curve = np.interp(points, points[filled], curve[filled], left=np.nan, right=np.nan)
    return curve


def learning_curve(
    steps: Sequence[npt.ArrayLike],
    returns: Sequence[npt.ArrayLike],
    grid: npt.ArrayLike,
    *,
    level: float = 0.95,
) -> Curve:
    """Mean learning curve of several seeds, with a t interval over seeds.

    Args:
        steps: Environment steps at the end of each episode, one array per seed.
        returns: The episodes' returns, one array per seed.
        grid: Ascending steps, shape (K,); `learning_grid` chooses one.
        level: Confidence level of the interval in (0, 1).

    Returns:
        The curve, with the number of seeds at every point.

    Raises:
        ConfigError: `level` lies outside (0, 1), or `grid` is not ascending.
        ShapeError: The seeds of `steps` and `returns` differ in number or shape.
    """
    check_level(level)
    points = np.asarray(grid, np.float64)
    if (np.diff(points) <= 0).any():
        raise ConfigError(f"grid must be strictly increasing; got {points.tolist()}: sort it and drop repeated steps")
    if len(steps) != len(returns):
        raise ShapeError(f"steps and returns must have one array per seed; got {len(steps)} and {len(returns)}")
    rows = [curve_values(end, value, points) for end, value in zip(steps, returns, strict=True)]
    values = np.array(rows, np.float64).reshape(-1, len(points))
    known = np.isfinite(values)
    n = known.sum(axis=0).astype(np.int64)
    several = n >= 2
    mean = np.full(len(points), np.nan)
    np.divide(np.where(known, values, 0).sum(axis=0), n, out=mean, where=n > 0)
    squares = np.where(known, (values - mean) ** 2, 0).sum(axis=0)
    half = np.full(len(points), np.nan)
    count = n[several]
    half[several] = stats.t.ppf((1 + level) / 2, count - 1) * np.sqrt(squares[several] / (count - 1) / count)
    return Curve(points, mean, mean - half, mean + half, n, values, level)


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


@dataclass(frozen=True)
class Profile:
    """A performance profile; every array has the shape of `thresholds`.

    Attributes:
        thresholds: Normalised scores τ.
        fractions: Share of runs, over all environments, that score more than τ.
        low: Lower end of the pointwise band; NaN where there is no interval.
        high: Upper end of the band.
        note: Why there is no band, else "".
    """

    thresholds: FloatArray
    fractions: FloatArray
    low: FloatArray
    high: FloatArray
    note: str = ""


def interquartile_mean(scores: Scores) -> float:
    """Mean of the middle half of all runs of all environments together.

    `scipy.stats.trim_mean(…, 0.25)` over the flattened scores: of n runs ⌊n/4⌋ are dropped at either end, so three
    runs lose none and their interquartile mean is their mean. Where environments have different numbers of seeds, each
    environment keeps the same weight, and what is dropped at either end is that share of the total weight.

    Args:
        scores: Per environment one normalised score per seed.

    Returns:
        The interquartile mean.

    Raises:
        ShapeError: There is no score, or an array does not have one axis.
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

    Args:
        scores: Per environment one normalised score per seed.
        statistic: "interquartile_mean"; "mean" or "median" of the environments' means; "optimality_gap", the mean
            shortfall below 1.
        n_bootstrap: Number of resamples, at least 2.
        level: Confidence level in (0, 1).
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        The estimate; its interval has no ends where an environment has one seed only.

    Raises:
        ConfigError: `n_bootstrap` is less than 2, `level` lies outside (0, 1), or `statistic` is unknown.
        ShapeError: There is no score, or an array does not have one axis.
    """
    check_bootstrap(n_bootstrap, level)
    if statistic not in STATISTICS:
        raise ConfigError(f"statistic must be one of {', '.join(STATISTICS)}; got {statistic!r}")
    arrays, function = _check(scores), STATISTICS[statistic]
    value, count = float(function(_rows(arrays))[0]), sum(len(x) for x in arrays)
    notes = []
    if statistic == "interquartile_mean" and count < 4:
        notes.append(f"an interquartile mean of {count} runs trims nothing: it is their mean")
    if len({len(x) for x in arrays}) > 1:
        notes.append("the numbers of seeds differ, and every environment has the same weight")
    problem = _no_interval(arrays)
    if problem:
        return Estimate(value, Interval(None, None, problem), "; ".join(notes))
    samples = function(_stratified(arrays, n_bootstrap, np.random.default_rng(seed)))
    flat = "no variance: the interval has no width" if all(is_constant(x) for x in arrays) else ""
    return Estimate(value, Interval(*percentiles(samples, level), flat), "; ".join(notes))


def performance_profile(
    scores: Scores,
    thresholds: npt.ArrayLike,
    *,
    n_bootstrap: int = 2_000,
    level: float = 0.95,
    seed: int = 0,
) -> Profile:
    """Share of runs that score more than each threshold, with a pointwise stratified bootstrap band.

    Args:
        scores: Per environment one normalised score per seed.
        thresholds: Normalised scores τ, shape (K,).
        n_bootstrap: Number of resamples, at least 2.
        level: Confidence level of the band in (0, 1).
        seed: Seed of the resampling.

    Returns:
        The profile.

    Raises:
        ConfigError: `n_bootstrap` is less than 2 or `level` lies outside (0, 1).
        ShapeError: There is no score, or an array does not have one axis.
    """
    check_bootstrap(n_bootstrap, level)
    arrays, points = _check(scores), np.asarray(thresholds, np.float64)
    fractions = np.array([_above(_rows(arrays), point)[0] for point in points], np.float64)
    problem = _no_interval(arrays)
    if problem:
        unknown = np.full(len(points), np.nan)
        return Profile(points, fractions, unknown, unknown, problem)
    drawn = _stratified(arrays, n_bootstrap, np.random.default_rng(seed))
    band = np.array([percentiles(_above(drawn, point), level) for point in points]).reshape(-1, 2)
    return Profile(points, fractions, band[:, 0], band[:, 1])


def probability_of_improvement(
    first: Scores,
    second: Scores,
    *,
    n_bootstrap: int = 2_000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Chance that a run of the first agent beats one of the second on an environment drawn at random.

    P(X > Y) + ½ P(X = Y) per environment (the Mann–Whitney statistic over n·m), averaged over environments.

    Args:
        first: Per environment one score per seed.
        second: The same environments, in the same order, for the other agent.
        n_bootstrap: Number of resamples, at least 2.
        level: Confidence level in (0, 1).
        seed: Seed of the resampling.

    Returns:
        The estimate.

    Raises:
        ConfigError: `n_bootstrap` is less than 2 or `level` lies outside (0, 1).
        ShapeError: The agents have different numbers of environments, or a score is missing.
    """
    check_bootstrap(n_bootstrap, level)
    ours, theirs = _check(first), _check(second)
    if len(ours) != len(theirs):
        raise ShapeError(
            f"first and second must cover the same environments; got {len(ours)} and {len(theirs)}: "
            "leave out the environments that one of them lacks"
        )
    value = float(_improvement(_rows(ours), _rows(theirs))[0])
    problem = _no_interval(ours) or _no_interval(theirs)
    if problem:
        return Estimate(value, Interval(None, None, problem))
    rng = np.random.default_rng(seed)
    samples = _improvement(_stratified(ours, n_bootstrap, rng), _stratified(theirs, n_bootstrap, rng))
    low, high = percentiles(samples, level)
    return Estimate(value, Interval(low, high, "the same in every resample" if low == high else ""))


# ---------------------------------------------------------------- on rows: one array (B, n) per environment


def _iqm(rows: list[FloatArray]) -> FloatArray:
    flat = np.concatenate(rows, axis=1)
    weights = np.concatenate([np.full(row.shape[1], 1 / (len(rows) * row.shape[1])) for row in rows])
    order = np.argsort(flat, axis=1)
    end = np.cumsum(weights[order], axis=1)
    cut = flat.shape[1] // 4 / flat.shape[1]  # equal weights: exactly the runs that trim_mean drops
    kept = np.clip(end, cut, 1 - cut) - np.clip(end - weights[order], cut, 1 - cut)
    return np.asarray((kept * np.take_along_axis(flat, order, axis=1)).sum(axis=1) / kept.sum(axis=1), np.float64)


def _above(rows: list[FloatArray], threshold: float) -> FloatArray:
    return np.asarray(np.mean([(row > threshold).mean(axis=1) for row in rows], axis=0), np.float64)


def _task_means(rows: list[FloatArray]) -> FloatArray:
    return np.stack([row.mean(axis=1) for row in rows], axis=1)


def _mean(rows: list[FloatArray]) -> FloatArray:
    return np.asarray(_task_means(rows).mean(axis=1), np.float64)


def _median(rows: list[FloatArray]) -> FloatArray:
    return np.asarray(np.median(_task_means(rows), axis=1), np.float64)


def _optimality_gap(rows: list[FloatArray]) -> FloatArray:
    return np.asarray(1 - _task_means([np.minimum(row, 1) for row in rows]).mean(axis=1), np.float64)


STATISTICS: dict[str, Statistic] = {
    "interquartile_mean": _iqm,
    "mean": _mean,
    "median": _median,
    "optimality_gap": _optimality_gap,
}
"""Statistics of `aggregate` by name."""


def _improvement(first: list[FloatArray], second: list[FloatArray]) -> FloatArray:
    chances = []
    for ours, theirs in zip(first, second, strict=True):
        x, y = ours[:, :, None], theirs[:, None, :]
        chances.append(np.mean((x > y) + 0.5 * (x == y), axis=(1, 2)))
    return np.asarray(np.mean(chances, axis=0), np.float64)


def _rows(arrays: list[FloatArray]) -> list[FloatArray]:
    return [array[None] for array in arrays]


def _stratified(arrays: list[FloatArray], n_bootstrap: int, rng: np.random.Generator) -> list[FloatArray]:
    return [resample(array, n_bootstrap, rng) for array in arrays]


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
    return "an environment has one seed: no interval" if min(len(array) for array in arrays) < 2 else ""
