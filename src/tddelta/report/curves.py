"""Learning curves of several seeds on one grid of environment steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from tddelta.errors import ConfigError, ShapeError
from tddelta.report.statistics import FloatArray, check_level


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
        """What line and band are, in words."""
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
