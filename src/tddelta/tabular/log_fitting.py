"""The values on which sweeps of λ-returns over a log settle, solved for at once.

For features φ, V(s) = θ·φ(s), the λ-returns G_t(θ) of all steps, and regression of G on φ with penalties κ, the sweep
has its fixed point where Σ_t φ_t (G_t(θ) − φ_t·θ) = κ θ. G is linear in θ, so that this is a linear system: LSTD(λ).
For labels φ has one entry per state, there is no penalty, and at the fixed point V(s) is the mean of the λ-returns that
followed s: with λ = 0 the exact values of the Markov chain that was seen, with λ = 1 averaged returns.
"""

import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, sparse
from scipy.sparse import linalg as sparse_linalg

from tddelta import _plain
from tddelta.errors import ConfigError, DataError, own_checks
from tddelta.tabular._checks import BoolArray, FloatArray, IntArray
from tddelta.tabular.log_reading import Steps
from tddelta.tabular.tiles import TileCoding, check_points

_DENSE = 100  # up to so many features the whole matrix is made
_BLOCK = 2**23  # entries of the arrays on the way there


class Regression(NamedTuple):
    """Steps of whole episodes, one after the other.

    Attributes:
        features: φ(s_t), sparse (T, D).
        successors: φ(s'_t), sparse (T, D); rows of zeros where the step terminated.
        rewards: r_t, (T,).
        last: Whether step t is the last of its episode, (T,).
        durations: τ_t, (T,), or None for 1.
        penalty: κ of every feature, (D,).
    """

    features: Any
    successors: Any
    rewards: FloatArray
    last: BoolArray
    durations: FloatArray | None
    penalty: FloatArray


def solve(problem: Regression, gamma: float, decay: float) -> FloatArray:
    """Weights θ of V at one discount.

    Args:
        problem: The steps and their features.
        gamma: Discount γ in [0, 1]; γ^τ counts where there are durations.
        decay: Trace decay c = λγ in [0, 1]; c^τ counts where there are durations.

    Returns:
        θ, (D,).

    Raises:
        ConfigError: The features do not determine the weights, or the iteration for many features did not converge.
    """
    features = problem.features
    discounts, decays = (powers(base, problem.durations, len(problem.rewards)) for base in (gamma, decay))
    difference = (features - sparse.diags_array(discounts) @ problem.successors).tocsc()
    carry = np.where(problem.last, 0.0, decays)
    received = features.T @ backwards(carry, problem.rewards)
    if decay == 0:
        matrix = (features.T @ difference + sparse.diags_array(problem.penalty)).tocsc()
        return _checked(matrix, received, lambda: sparse_linalg.splu(matrix).solve(received), gamma)
    if features.shape[1] <= _DENSE:
        dense = _dense(features, difference, carry, problem.penalty)
        return _checked(dense, received, lambda: linalg.solve(dense, received), gamma)
    return _iterate(features, difference, carry, problem.penalty, received, gamma, decay)


def backwards(carry: FloatArray, entries: FloatArray) -> FloatArray:
    """x_t = entries_t + carry_t · x_{t+1}, with x_T = 0, by solving the system of two diagonals that this is.

    Args:
        carry: (T,); 0 where an episode ends.
        entries: (T,) or (T, N).

    Returns:
        x, of the shape of `entries`.
    """
    if len(entries) == 1:
        return entries.copy()  # SciPy wants as many columns as diagonals
    bands = np.ones((2, len(carry)))
    bands[0, 0], bands[0, 1:] = 0.0, -carry[:-1]
    solved: FloatArray = linalg.solve_banded((0, 1), bands, entries, check_finite=False)
    return solved


def powers(base: float, durations: FloatArray | None, steps: int) -> FloatArray:
    """base^τ for every step; the base itself to the last digit where τ is 1.

    Args:
        base: A discount or trace decay in [0, 1].
        durations: τ_t, (T,), or None for 1.
        steps: T.

    Returns:
        Weights, (T,).
    """
    if durations is None:
        return np.full(steps, base)
    return np.where(durations == 1, base, base**durations)


def _dense(features: Any, difference: Any, carry: FloatArray, penalty: FloatArray) -> FloatArray:
    """Φᵀ (I − C)⁻¹ (Φ − ΓΦ′) + κ, where (I − C)⁻¹ sums up what follows within an episode."""
    size = features.shape[1]
    matrix = np.diag(penalty)
    width = max(1, _BLOCK // len(carry))
    for start in range(0, size, width):
        block = difference[:, start : start + width].toarray()
        matrix[:, start : start + width] += features.T @ backwards(carry, block)
    return matrix


def _checked(matrix: Any, received: FloatArray, run: Any, gamma: float) -> FloatArray:
    """The solution of a system, or an error that says why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", linalg.LinAlgWarning)
            solution: FloatArray = run()
    except (RuntimeError, linalg.LinAlgError):
        solution = np.full_like(received, np.nan)
    scale = abs(matrix).sum(axis=1).max() * np.abs(solution).max() + np.abs(received).max()
    if not np.isfinite(solution).all() or np.abs(matrix @ solution - received).max() > 1e-8 * scale:
        raise ConfigError(
            f"the log does not determine the values at γ={gamma:.6g}: pass a discount below 1, a trace decay below the "
            "discount (rule='capped'), or a larger ridge"
        )
    return solution


def _iterate(
    features: Any,
    difference: Any,
    carry: FloatArray,
    penalty: FloatArray,
    received: FloatArray,
    gamma: float,
    decay: float,
) -> FloatArray:
    """The same for more features: the matrix is only ever applied, and never made."""
    size = features.shape[1]

    def apply(weights: FloatArray) -> FloatArray:
        found: FloatArray = features.T @ backwards(carry, difference @ weights) + penalty * weights
        return found

    # A sweep of regressions on λ-returns shrinks errors by about (γ − c)/(1 − c). With short traces solving for c = 0
    # instead leaves less, about c.
    short = decay < 1 and decay < (gamma - decay) / (1 - decay)
    nearly = features.T @ (difference if short else features) + sparse.diags_array(penalty)
    factors = sparse_linalg.splu(nearly.tocsc())
    operator, preconditioner = (
        sparse_linalg.LinearOperator((size, size), matvec=function, dtype=np.float64)
        for function in (apply, factors.solve)
    )
    weights, failed = sparse_linalg.gmres(
        operator, received, M=preconditioner, rtol=1e-11, atol=0.0, restart=100, maxiter=20
    )
    if failed:
        raise ConfigError(
            f"the values of {size} states or tiles at γ={gamma:.6g} did not settle within 2000 iterations: pass "
            "method='td0', another λ, or fewer tiles"
        )
    solution: FloatArray = weights
    return solution


@dataclass(frozen=True)
class _Table:
    """One feature for each label."""

    labels: tuple[Hashable, ...]

    @property
    def penalty(self) -> FloatArray:
        return np.zeros(len(self.labels))

    def encode(self, observations: Any) -> tuple[Any, BoolArray]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        try:
            if isinstance(observations, str | bytes):  # its letters are no labels
                raise TypeError
            found = np.array([numbers.get(label, -1) for label in observations], dtype=np.int64)
        except TypeError:
            raise DataError(
                f"observations must be a sequence of labels; got {observations!r:.80}: pass [label], and tuples for "
                "labels of several columns"
            ) from None
        known = found >= 0
        starts = np.append(0, np.cumsum(known))
        shape = len(found), len(self.labels)
        return sparse.csr_array((np.ones(starts[-1]), found[known], starts), shape=shape), known


@dataclass(frozen=True, eq=False)
class _Linear:
    """A constant, and the readings less their means over their deviations in training."""

    mean: FloatArray
    spread: FloatArray
    ridge: float
    labels: tuple[Hashable, ...] = ()

    @property
    def penalty(self) -> FloatArray:
        return np.append(0.0, np.full(len(self.mean), self.ridge))

    def encode(self, observations: Any) -> tuple[Any, BoolArray]:
        points = check_points("observations", observations, len(self.mean))
        columns = np.column_stack([np.ones(len(points)), (points - self.mean) / self.spread])
        return sparse.csr_array(columns), np.ones(len(points), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """A constant, and one feature for each tile that was visited in training; any other tile has the weight 0."""

    coding: TileCoding
    visited: IntArray
    ridge: float
    labels: tuple[Hashable, ...] = ()

    @property
    def penalty(self) -> FloatArray:
        return np.append(0.0, np.full(len(self.visited), self.ridge))

    def encode(self, observations: Any) -> tuple[Any, BoolArray]:
        active = self.coding.indices(check_points("observations", observations, len(self.coding.low)))
        place = np.searchsorted(self.visited, active)
        present = np.append(self.visited, -1)[place] == active
        rows = np.nonzero(present)[0]
        every = np.arange(len(active))
        entries = np.ones(len(active) + len(rows))
        where = np.append(every, rows), np.append(np.zeros(len(active), np.int64), 1 + place[present])
        shape = len(active), 1 + len(self.visited)
        return sparse.coo_array((entries, where), shape=shape).tocsr(), np.ones(len(active), dtype=bool)


Encoder = _Table | _Linear | _Tiles
"""Makes features φ of observations. `labels` are the states where there is one feature for each, `penalty` is κ of
every feature in the regression, (D,), and `encode(observations)` gives the features as a sparse array, (N, D), and
whether each observation has a value, (N,)."""


def fit_encoder(train: Steps, model: str | None, tiles: int, tilings: int, ridge: float) -> tuple[Encoder, Steps]:
    """Choose features by what was seen in training.

    Args:
        train: Steps of the training episodes.
        model: None for labels, "tiles" or "linear".
        tiles: Tiles per feature of one grid.
        tilings: Number of grids.
        ridge: Penalty on every weight but that of the constant.

    Returns:
        The encoder, and the steps whose values can be known: all but those before a cut in a state without steps.

    Raises:
        ConfigError: The features depend on each other, and there is no penalty.
        DataError: No step is left.
    """
    if model is None:
        used = _with_known_ends(train)
        seen: set[Any] = {train.observations[place] for place in used.places.tolist()}
        return _Table(_sorted(seen)), used
    points = np.asarray(train.observations)[train.places]
    if model == "linear":
        spread = points.std(axis=0)
        linear = _Linear(points.mean(axis=0), np.where(spread > 0, spread, 1.0), ridge)
        if ridge == 0 and np.linalg.matrix_rank(linear.encode(points)[0].toarray()) <= points.shape[1]:
            raise ConfigError(
                "ridge=0 needs features that do not depend on each other: leave one out, or pass ridge=0.01"
            )
        return linear, train
    coding = TileCoding(tuple(points.min(axis=0)), tuple(points.max(axis=0)), tiles, tilings)
    return _Tiles(coding, np.unique(coding.indices(points)), ridge), train


def _with_known_ends(train: Steps) -> Steps:
    """Leave out steps at the end of cut episodes until each leads to a state that has steps of its own."""
    numbers: dict[Hashable, int] = {}
    code = np.array([numbers.setdefault(label, len(numbers)) for label in train.observations])
    kept = np.ones(len(train.places), dtype=bool)
    counts = np.bincount(code[train.places], minlength=len(numbers))
    ends = np.flatnonzero(train.last & (train.successors >= 0))
    begins = np.flatnonzero(np.append(True, train.last[:-1]))
    first = begins[train.episodes[ends] - train.episodes[0]]
    while True:
        unknown = (ends >= first) & (counts[code[train.successors[ends]]] == 0)
        if not unknown.any():
            break
        kept[ends[unknown]] = False
        np.subtract.at(counts, code[train.places[ends[unknown]]], 1)
        ends = ends - unknown
    if not kept.any():
        raise DataError(
            "no value can be known from this log: every episode is cut in a state that has no step of its own; "
            "pass longer episodes, or coarser labels"
        )
    return train.select(kept)


def _sorted(labels: set[Any]) -> tuple[Hashable, ...]:
    try:
        return tuple(sorted(labels))
    except TypeError:  # of several types
        return tuple(sorted(labels, key=lambda label: (type(label).__name__, repr(label))))


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
