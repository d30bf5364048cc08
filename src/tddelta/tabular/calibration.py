"""Predicted values against the discounted returns that followed, on episodes that were held out."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tddelta import _plain
from tddelta.errors import own_checks
from tddelta.tabular.arrays import BoolArray, FloatArray, IntArray
from tddelta.tabular.log_fitting import backwards, powers


@dataclass(frozen=True, eq=False)
class Calibration:
    """How well values predict realised returns, per scale. NaN where a measure is not defined.

    The return from a step is known if its episode terminated; where it was cut, if what comes after the cut counts for
    little: γ^{time to the cut} ≤ tolerance. Steps that fail this are left out at that scale and counted in `too_near`.

    Attributes:
        episodes: Number of held-out episodes.
        steps: Number of their steps.
        unseen: Steps in states that the training episodes never visited, which have no value.
        too_near: Steps, other than those, left out since they are too near to a cut, (Z,).
        count: Steps that the measures are taken over, (Z,).
        bias: Mean of predicted − realised, (Z,).
        bias_error: Its standard error, which takes the steps of an episode as one observation, (Z,).
        rmse: Root of the mean squared difference, (Z,).
        explained_variance: 1 − Var(realised − predicted) / Var(realised), (Z,).
        correlation: Pearson's correlation of predicted and realised, (Z,).
        predicted: V_z(s_t) of every held-out step, (N, Z); NaN where left out.
        realised: Σ_i γ_z^{time from t to t+i} r_{t+i} to the episode's end, (N, Z); NaN where left out.
        tolerance: The largest weight of what is not known.
    """

    episodes: int
    steps: int
    unseen: int
    too_near: IntArray
    count: IntArray
    bias: FloatArray
    bias_error: FloatArray
    rmse: FloatArray
    explained_variance: FloatArray
    correlation: FloatArray
    predicted: FloatArray
    realised: FloatArray
    tolerance: float

    @own_checks
    def bins(self, number: int = 10) -> tuple[FloatArray, FloatArray, IntArray]:
        """Means over groups of about equally many steps, in the order of the predicted value.

        Equal predictions stay together, so that groups may be larger, smaller or empty.

        Args:
            number: Number of groups at each scale, at least 1.

        Returns:
            Mean predicted value, mean realised return, (Z, number) with NaN in empty groups, and numbers of steps.

        Raises:
            ConfigError: The number is no whole number of at least 1.
        """
        number = _plain.whole("number", number)
        scales = self.predicted.shape[1]
        means = np.full((2, scales, number), np.nan)
        counts = np.zeros((scales, number), dtype=np.int64)
        for z in range(scales):
            known = np.isfinite(self.realised[:, z])
            said, got = self.predicted[known, z], self.realised[known, z]
            order = np.argsort(said, kind="stable")
            said, got = said[order], got[order]
            distinct, first = np.unique(said, return_index=True)
            if len(distinct) > number:  # begin each group where its first prediction begins
                first = np.searchsorted(said, said[len(said) * np.arange(number) // number])
            edges = [*first.tolist(), *[len(said)] * (number + 1 - len(first))]
            for group, (start, stop) in enumerate(pairwise(edges)):
                counts[z, group] = stop - start
                if stop > start:
                    means[:, z, group] = said[start:stop].mean(), got[start:stop].mean()
        return means[0], means[1], counts


def realised_returns(
    rewards: FloatArray,
    last: BoolArray,
    terminated: BoolArray,
    durations: FloatArray | None,
    gammas: tuple[float, ...],
    tolerance: float,
) -> FloatArray:
    """Discounted returns to the end of each episode, NaN where too much may come after its cut.

    Args:
        rewards: r_t of episodes one after the other, (T,).
        last: Whether step t is the last of its episode, (T,).
        terminated: Whether it terminated there, (T,).
        durations: τ_t, (T,), or None for 1.
        gammas: Discounts, Z of them.
        tolerance: Largest weight γ^{time to the cut} of what is not known.

    Returns:
        Returns, (T, Z).
    """
    elapsed = np.ones_like(rewards) if durations is None else durations
    to_cut = backwards(np.where(last, 0.0, 1.0), elapsed)
    cut = backwards(np.where(last, 0.0, 1.0), (last & ~terminated).astype(np.float64)) > 0
    columns = []
    for gamma in gammas:
        returns = backwards(np.where(last, 0.0, powers(gamma, durations, len(rewards))), rewards)
        columns.append(np.where(cut & (gamma**to_cut > tolerance), np.nan, returns))
    return np.stack(columns, axis=1)


def calibrate(predicted: FloatArray, realised: FloatArray, *, episodes: IntArray, tolerance: float) -> Calibration:
    """Compare values with realised returns.

    Args:
        predicted: V_z(s_t), (N, Z); NaN where the state has no value.
        realised: Realised returns, (N, Z); NaN where not known.
        episodes: Number of the episode of each step, (N,).
        tolerance: That of the realised returns, for the record.

    Returns:
        The measures per scale.
    """
    steps, scales = predicted.shape
    unseen: BoolArray = np.asarray(np.isnan(predicted).any(axis=1))
    known: BoolArray = ~unseen[:, None] & np.isfinite(realised)
    measures = np.full((5, scales), np.nan)
    for z in range(scales):
        said, got = predicted[known[:, z], z], realised[known[:, z], z]
        if not len(got):
            continue
        error = said - got
        measures[:3, z] = error.mean(), _clustered(error, episodes[known[:, z]]), np.sqrt(np.mean(error**2))
        if _varies(got):
            measures[3, z] = 1 - error.var() / got.var()
            if _varies(said):
                measures[4, z] = np.corrcoef(said, got)[0, 1]
    return Calibration(
        len(np.unique(episodes)),
        steps,
        int(unseen.sum()),
        (~unseen).sum() - known.sum(axis=0),
        known.sum(axis=0),
        measures[0],
        measures[1],
        measures[2],
        measures[3],
        measures[4],
        np.where(known, predicted, np.nan),
        np.where(known, realised, np.nan),
        tolerance,
    )


def _clustered(errors: FloatArray, episodes: IntArray) -> float:
    """Standard error of the mean error, from the sums over episodes; NaN for a single one."""
    numbers = np.unique(episodes, return_inverse=True)[1]
    sums = np.bincount(numbers, weights=errors - errors.mean())
    count = len(sums)
    return float(np.sqrt(count / (count - 1) * np.sum(sums**2)) / len(errors)) if count > 1 else np.nan


def _varies(values: FloatArray) -> bool:
    """Whether values differ by more than rounding."""
    return bool(values.std() > 1e-12 * np.abs(values).max())
