"""Values at every scale from somebody's logged trajectories, and how well they predict what happened afterwards.

What is evaluated is the policy that wrote the log. Nothing here says what another policy would have got: there are no
actions in it, and no off-policy correction.

The values are those on which sweeps of λ-returns over the log settle, solved for at once. For features φ,
V(s) = θ·φ(s), the λ-returns G_t(θ) of all steps, and regression of G on φ with penalties κ, the sweep has its fixed
point where Σ_t φ_t (G_t(θ) − φ_t·θ) = κ θ. G is linear in θ, so that this is a linear system: LSTD(λ). For labels φ has
one entry per state, there is no penalty, and at the fixed point V(s) is the mean of the λ-returns that followed s: with
λ = 0 the exact values of the Markov chain that was seen, with λ = 1 averaged returns.
"""

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy import linalg, sparse
from scipy.sparse import linalg as sparse_linalg

from tddelta import _plain
from tddelta._arrays import BoolArray, FloatArray, IntArray
from tddelta.decomposition import decompose, explained_variance, variance
from tddelta.errors import ConfigError, DataError, setting
from tddelta.runs.recorder import UNKNOWN_WEIGHT
from tddelta.tabular.log_reading import LastRow, Names, Steps, read_steps
from tddelta.tabular.mdp import reaching
from tddelta.tabular.tiles import TileCoding, check_points
from tddelta.timescales import LAM, TimeScales, needed

Method = Literal["lambda", "td0", "monte_carlo"]
"""Trace decays of the λ-returns: those of the scales, 0, or γ_z."""
Model = Literal["tiles", "linear"]
"""Model that makes values of continuous features."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Quality of values as predictions of realised returns, per scale, (Z,). NaN where a measure is not defined.

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

    def bins(self, number: int = 10) -> tuple[FloatArray, FloatArray, IntArray]:
        """Means over groups of about equally many steps, `number` ≥ 1 at each scale, by their predicted value.

        Equal predictions stay together, so that groups may be larger, smaller or empty.

        Returns:
            Mean predicted value, mean realised return, (Z, number) with NaN in empty groups, and numbers of steps.
        """
        from tddelta.report.statistics import calibration  # a second, for matplotlib

        number = _plain.whole("number", number)
        found = [calibration(*pair, number) for pair in zip(self.predicted.T, self.realised.T, strict=True)]
        predicted, realised, counts = map(np.array, zip(*found, strict=True))
        return predicted, realised, counts


@dataclass(frozen=True, eq=False, repr=False)
class LogValues:
    """Values of the policy that wrote a log, at every scale.

    Attributes:
        scales: The time scales as they were given, also decays that `method` does not use; in the units of time that
            `time_unit` chose, where there are time stamps.
        method: How values were fitted.
        model: "table" for labels, else "tiles" or "linear".
        states: The labels in training episodes, sorted where they can be; empty for features, (S,).
        visits: Training steps in each state, (S,).
        values: V_z of each state, (S, Z); with features V_z of each row of the log, (R, Z).
        row_values: V_z of each row of the log in its own order, held-out ones too, (R, Z); NaN where a state has none.
        episodes: Number of episodes with at least one step.
        held_out: How many of them, the last ones, were held out.
        steps: Training steps that values were fitted to.
        left_out: Training steps that were not used, since the state at their episode's cut has no step of its own.
        calibration: Predictions against what followed in the held-out episodes; None if there are none.
    """

    scales: TimeScales
    method: str
    model: str
    states: tuple[Hashable, ...]
    visits: IntArray
    values: FloatArray
    row_values: FloatArray
    episodes: int
    held_out: int
    steps: int
    left_out: int
    calibration: Calibration | None
    _encoder: "_Encoder"
    _weights: FloatArray

    @property
    def deltas(self) -> FloatArray:
        """Components W_z = V_z − V_{z−1} of `values`."""
        return decompose(self.values)

    def predict(self, observations: Any) -> FloatArray:
        """Values V_z, (N, Z), of states or sensor readings that need not be in the log; NaN for labels without one.

        Args:
            observations: Labels, (N,), or features in the order of `features=`, (N, F).

        Raises:
            ShapeError, DataError: Features are of another shape, no numbers or not finite, or labels are none.
        """
        features, known = self._encoder.encode(observations)
        return np.where(known[:, None], features @ self._weights, np.nan)

    def __repr__(self) -> str:
        size = f"{len(self.states)} states" if self.states else f"{len(self.values)} rows"
        return f"{type(self).__name__}({size}, {len(self.scales)} scales, {self.model}, {self.method})"


def evaluate_log(
    log: Any,
    scales: Any,
    *,
    features: Sequence[str] | None = None,
    model: Model | None = None,
    method: Method = "lambda",
    held_out: float = 0.2,
    tolerance: float | None = None,
    episode: str = "episode",
    state: str | Sequence[str] | None = None,
    reward: str = "reward",
    terminated: str | None = "terminated",
    truncated: str | None = "truncated",
    time: str | None = None,
    time_unit: float = 1.0,
    next_prefix: str = "next_",
    last_row: LastRow = "step",
    tiles: int | None = None,
    tilings: int | None = None,
    ridge: float | None = None,
) -> LogValues:
    """Values at every scale of the policy that wrote a log; this is no off-policy evaluation.

    Row t of an episode holds the state s_t, and the reward and the flags of the step out of s_t; the rows of an episode
    are one block. If an episode ends without having terminated, the state after its last row counts, and must be known
    from the column `next_state` (`next_` before the name of the state column, or of every feature), or, with
    `last_row="observation"`, since the last row of such an episode is its final observation and no step. Nothing is
    repaired: a row that cannot be used is an error with its number. The page "TD(Δ) in ten minutes" shows all this.

    The last episodes are held out, in the order in which they begin by the time stamps, and where these are equal or
    missing in the order of the log. From the others V_z becomes the fixed point of regression on λ-returns with trace
    decay c_z; `tddelta.targets.lambda_targets` in its difference form has it, too. Each V_z is the same
    whatever other scales there are. The system is solved exactly; there is no step size and no chance.

    - "td0", c = 0: exact values of the Markov chain with the transitions counted in the log. Needs the least data, and
      is wrong where the labels leave out what matters for the future.
    - "monte_carlo", c = γ_z: means of the returns that followed each visit. Assumes nothing about the states (cut
      episodes bootstrap where they are cut), and is noisy at long horizons.
    - "lambda", c = `scales.trace_decays`: in between. Compare their calibrations.

    Args:
        log: A mapping of arrays, a structured array, a pandas, Polars or pyarrow table, a path to a file (.npz, .csv,
            .tsv, .parquet), a Minari dataset, or "minari:NAME".
        scales: The time scales, as of `TimeScales.of`. Their trace decays count for "lambda" only, so that all three
            methods take the same scales; those of λ = 0.95 where `scales` is no `TimeScales`.
        features: Columns of continuous sensors, in place of `state`; a column may have two axes. Needs `model`.
        model: None for labels. "tiles": a weight for each tile that was visited, tiles over all features together, good
            for up to about three; outside of what was seen in training the nearest point counts. "linear": in the
            features as they are, and a constant; add columns of your own for curves. Without `features` it takes those
            in the column `state`, as in a Minari dataset.
        method: Trace decays; see above.
        held_out: Share of episodes in [0, 1) held out for calibration, at least one episode unless it is 0.
        tolerance: Weight in (0, 1) that what follows a cut may have in a realised return that counts as known. None
            means 0.01; needs episodes that are held out.
        episode: Column of the episode's name: whole numbers or text.
        state: Column of the label: whole numbers, text or anything hashable. Several columns make tuples. None means
            "state"; not with `features`.
        reward: Column of the reward.
        terminated: Column of flags, whether the step led to a terminal state; None if no episode ever does.
        truncated: Column of flags, whether the episode was cut after the step; None if the log has none. An episode
            whose last row has neither flag was cut, too.
        time: Column of the time of s_t: numbers, or dates, which count in seconds. Step t then takes the time from its
            row to the next, γ^τ and c^τ count, and `next_` before the name is the time of the state after a cut.
        time_unit: Time that one step of γ takes: 3600.0 with dates makes horizons hours.
        next_prefix: What stands before the names of successor columns. Where they are given for other rows than the
            last, the next row must agree.
        last_row: "step" or "observation"; see above.
        tiles: Tiles per feature of one grid of the model "tiles". None means 8.
        tilings: Number of its shifted grids. None means 8.
        ridge: Penalty on the weights of a model, in visits: each weight is drawn towards 0, and the value towards the
            mean, as by this many steps. None means 0.01. 0 is allowed in a linear model whose features do not depend
            on each other.

    Returns:
        Values, visits and calibration.

    Raises:
        ConfigError: A setting is out of range or has no meaning beside the others, a column is missing, or the log
            does not determine a value at γ = 1.
        DataError: A row cannot be used, or a file is damaged.
        MissingExtra: A package for this kind of file is not installed.

    Example:
        >>> import tddelta as tdd
        >>> log = {
        ...     "episode": [0, 0, 1],
        ...     "state": ["a", "b", "b"],
        ...     "reward": [0.0, 1.0, 3.0],
        ...     "terminated": [False, True, True],
        ...     "truncated": [False, False, False],
        ... }
        >>> result = evaluate_log(log, tdd.TimeScales.from_gammas([0.5, 0.9]), method="td0", held_out=0)
        >>> result.states, result.visits.tolist(), result.values.tolist()
        (('a', 'b'), [1, 2], [[1.0, 1.8], [2.0, 2.0]])

    Reference:
        Boyan, "Technical update: least-squares temporal difference learning", Machine Learning 49, 2002.
    """
    traced = method == "lambda" and not isinstance(scales, TimeScales)
    scales = TimeScales.of(scales, lam=LAM if traced else None)
    columns = {"episode": episode, "reward": reward, "terminated": terminated, "truncated": truncated, "time": time}
    reading = {"time_unit": time_unit, "next_prefix": next_prefix, "last_row": last_row}
    names = _names(features, model, state, columns | reading)
    _plain.one_of("method", method, get_args(Method))
    if method == "lambda":
        needed(scales, "trace_decays", "method 'lambda', unlike 'td0' and 'monte_carlo',")
    settings = _of_model(model, tiles, tilings, ridge)
    share = _within("held_out", held_out, lambda number: 0 <= number < 1, "[0, 1)")
    if share == 0:
        _refuse({"tolerance": tolerance}, f"with {setting('held_out', 0)}", "no return is compared")
    weight = UNKNOWN_WEIGHT if tolerance is None else tolerance
    tolerance = _within("tolerance", weight, lambda number: 0 < number < 1, "(0, 1)")
    steps = read_steps(log, names)
    episodes = int(steps.episodes[-1]) + 1
    if share and episodes < 2:
        raise ConfigError(
            f"{setting('held_out', share)} needs at least two episodes; the log has one: pass "
            f"{setting('held_out', 0)} to go without calibration"
        )
    held = max(1, int(share * episodes + 1e-9)) if share else 0
    train, test = (steps.select(part) for part in (steps.episodes < episodes - held, steps.episodes >= episodes - held))
    encoder, used, penalty = _fit_encoder(train, model, *settings)
    encoded, known = encoder.encode(steps.observations)
    after = sparse.diags_array((used.successors >= 0).astype(np.float64)) @ encoded[np.maximum(used.successors, 0)]
    problem = _Regression(encoded[used.places], after, used.rewards, used.last, used.durations, penalty)
    states = encoder.labels if isinstance(encoder, _Table) else ()
    if states:
        _check_ends(problem, scales, states)
    decays = {"td0": [0.0] * len(scales), "monte_carlo": scales.gammas, "lambda": scales.trace_decays}[method]
    fitted = [_solve(problem, gamma, decay) for gamma, decay in zip(scales.gammas, decays or (), strict=True)]
    weights = np.stack(fitted, axis=1)
    values = np.where(known[:, None], encoded @ weights, np.nan)
    return LogValues(
        scales,
        method,
        model or "table",
        states,
        np.bincount(problem.features.indices, minlength=len(weights)) if states else np.zeros(0, np.int64),
        weights if states else values[: steps.rows],
        values[: steps.rows],
        episodes,
        held,
        len(used.rewards),
        len(train.rewards) - len(used.rewards),
        _calibrate(test, values[test.places], scales.gammas, tolerance) if held else None,
        encoder,
        weights,
    )


# ---------------------------------------------------------------- settings


def _names(features: Any, model: Any, state: Any, options: dict[str, Any]) -> Names:
    """Names of the columns, and how the rows are to be read."""
    if model is not None:
        _plain.one_of("model", model, get_args(Model), also="None for labels, or ")
    if features is not None:
        if model is None:
            raise ConfigError(
                f"{setting('features')} need a model; got None: pass {setting('model', 'tiles')} or "
                f"{setting('model', 'linear')}"
            )
        _refuse({"state": state}, "beside features", "features stand in its place")
        observed = _columns("features", features)
    else:
        observed = _columns("state", "state" if state is None else state)
    for name in ("episode", "reward", "terminated", "truncated", "time"):
        if options[name] is not None or name in ("episode", "reward"):
            (options[name],) = _columns(name, [options[name]])
    prefix, unit = options["next_prefix"], _plain.plain(options["time_unit"])
    if not isinstance(prefix, str) or not prefix:
        raise ConfigError(
            f"{setting('next_prefix')} must be a text; got {prefix!r}: pass what stands before the names, as 'next_'"
        )
    _plain.one_of("last_row", options["last_row"], get_args(LastRow))
    if not _plain.is_number(unit) or not 0 < unit < math.inf:
        raise ConfigError(
            f"{setting('time_unit')} must be a number above 0; got {unit!r}: pass the time that one step of γ takes"
        )
    if unit != 1 and options["time"] is None:
        raise ConfigError(
            f"{setting('time_unit', unit)} needs time stamps: name their column with {setting('time', '')}"
        )
    return Names(observed, model is not None, **options | {"time_unit": unit})


def _columns(name: str, value: Any) -> tuple[str, ...]:
    """One name of a column, or several."""
    given = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not given:
        raise ConfigError(
            f"{setting(name)} must name at least one column; got none: pass, say, {setting(name, ['pressure'])}"
        )
    for entry in given:
        if not isinstance(entry, str):
            raise ConfigError(
                f"{setting(name)} must be the name of a column; got {entry!r:.80}: pass text, as the log has it"
            )
    return tuple(map(_plain.tidy, given))


def _of_model(model: str | None, tiles: Any, tilings: Any, ridge: Any) -> tuple[int, int, float]:
    """Tiles, tilings and ridge, where None stands for the default."""
    where = "without a model" if model is None else f"for model {model!r}"
    if model != "tiles":
        _refuse({"tiles": tiles, "tilings": tilings}, where, f"it is for {setting('model', 'tiles')}")
    if model is None:
        _refuse({"ridge": ridge}, where, "values of labels have no penalty")
    ridge = 0.01 if ridge is None else _within("ridge", ridge, lambda number: 0 <= number < math.inf, "[0, ∞)")
    if model == "tiles" and ridge == 0:
        raise ConfigError(
            f"{setting('ridge', 0)} leaves the weights of overlapping tiles open: pass {setting('ridge', 0.01)}, say"
        )
    tiles, tilings = (8 if number is None else number for number in (tiles, tilings))
    return _plain.whole("tiles", tiles), _plain.whole("tilings", tilings, most=10_000), ridge


def _refuse(given: dict[str, Any], where: str, why: str) -> None:
    """ConfigError if an option is given that would not be looked at."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{setting(name)} has no meaning {where}; got {value!r:.80}: leave it out, since {why}")


def _within(name: str, value: Any, fits: Callable[[float], bool], interval: str) -> float:
    value = _plain.plain(value)
    if _plain.is_number(value) and fits(float(value)):
        return float(value)
    raise ConfigError(f"{setting(name)} must be in {interval}; got {value!r:.80}: pass a number from there")


# ---------------------------------------------------------------- features


@dataclass(frozen=True)
class _Table:
    """One feature for each label."""

    labels: tuple[Hashable, ...]

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

    def encode(self, observations: Any) -> tuple[Any, BoolArray]:
        points = check_points("observations", observations, len(self.mean))
        columns = np.column_stack([np.ones(len(points)), (points - self.mean) / self.spread])
        return sparse.csr_array(columns), np.ones(len(points), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """A constant, and one feature for each tile that was visited in training; any other tile has the weight 0."""

    coding: TileCoding
    visited: IntArray

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


_Encoder = _Table | _Linear | _Tiles
"""`encode` makes features of observations, sparse (N, D), and says whether each observation has a value, (N,)."""


def _fit_encoder(
    train: Steps, model: str | None, tiles: int, tilings: int, ridge: float
) -> tuple[_Encoder, Steps, FloatArray]:
    """Features by what was seen in training, the steps whose values can be known, and the penalty on every weight."""
    if model is None:
        used = _with_known_ends(train)
        table = _Table(_sorted({train.observations[place] for place in used.places.tolist()}))
        return table, used, np.zeros(len(table.labels))
    points = np.asarray(train.observations)[train.places]
    if model == "linear":
        spread = points.std(axis=0)
        linear = _Linear(points.mean(axis=0), np.where(spread > 0, spread, 1.0))
        if ridge == 0 and np.linalg.matrix_rank(linear.encode(points)[0].toarray()) <= points.shape[1]:
            raise ConfigError(
                f"{setting('ridge', 0)} needs features that do not depend on each other: leave one out, or pass "
                f"{setting('ridge', 0.01)}"
            )
        return linear, train, np.append(0.0, np.full(points.shape[1], ridge))
    coding = TileCoding(tuple(points.min(axis=0)), tuple(points.max(axis=0)), tiles, tilings)
    visited = np.unique(coding.indices(points))
    return _Tiles(coding, visited), train, np.append(0.0, np.full(len(visited), ridge))


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


# ---------------------------------------------------------------- the linear system

_DENSE = 100  # up to so many features the whole matrix is made
_BLOCK = 2**23  # entries of the arrays on the way there


class _Regression(NamedTuple):
    """Steps of whole episodes, one after the other."""

    features: Any  # φ(s_t), sparse (T, D)
    successors: Any  # φ(s'_t), sparse (T, D); rows of zeros where the step terminated
    rewards: FloatArray  # r_t, (T,)
    last: BoolArray  # whether step t is the last of its episode, (T,)
    durations: FloatArray | None  # τ_t, (T,), or None for 1
    penalty: FloatArray  # κ of every feature, (D,)


def _check_ends(problem: _Regression, scales: TimeScales, labels: tuple[Hashable, ...]) -> None:
    """ConfigError unless, at γ = 1, an end is reached in the log from every state."""
    if scales.gammas[-1] < 1:
        return
    ends = problem.features.T @ (np.asarray(problem.successors.sum(axis=1)) == 0)
    reached = reaching(problem.features.T @ problem.successors, ends > 0)
    if not reached.all():
        raise ConfigError(
            f"the value of state {labels[int(np.argmin(reached))]!r} at γ = 1 is not determined: in the log no "
            "terminated step can be reached from it; choose discounts below 1"
        )


def _solve(problem: _Regression, gamma: float, decay: float) -> FloatArray:
    """Weights θ of V, (D,), at a discount γ, with trace decay c = λγ."""
    features, penalty = problem.features, problem.penalty
    discounts, decays = (_powers(base, problem.durations, len(problem.rewards)) for base in (gamma, decay))
    difference = (features - sparse.diags_array(discounts) @ problem.successors).tocsc()
    carry = np.where(problem.last, 0.0, decays)
    received = features.T @ _backwards(carry, problem.rewards)
    if decay == 0:
        matrix = (features.T @ difference + sparse.diags_array(penalty)).tocsc()
        return _checked(matrix, received, lambda: sparse_linalg.splu(matrix).solve(received), gamma)
    if features.shape[1] <= _DENSE:
        dense = _dense(features, difference, carry, penalty)
        return _checked(dense, received, lambda: linalg.solve(dense, received), gamma)

    # With more features the matrix is only ever applied, and never made.
    def apply(weights: FloatArray) -> FloatArray:
        return np.asarray(features.T @ _backwards(carry, difference @ weights) + penalty * weights)

    # A sweep of regressions on λ-returns shrinks errors by about (γ − c)/(1 − c). With short traces solving for c = 0
    # instead leaves less, about c.
    short = decay < 1 and decay < (gamma - decay) / (1 - decay)
    nearly = features.T @ (difference if short else features) + sparse.diags_array(penalty)
    shape = features.shape[1], features.shape[1]
    operator, preconditioner = (
        sparse_linalg.LinearOperator(shape, matvec=function, dtype=np.float64)
        for function in (apply, sparse_linalg.splu(nearly.tocsc()).solve)
    )
    weights, failed = sparse_linalg.gmres(
        operator, received, M=preconditioner, rtol=1e-11, atol=0.0, restart=100, maxiter=20
    )
    if failed:
        raise ConfigError(
            f"the values of {shape[0]} states or tiles at γ={gamma:.6g} did not settle within 2000 iterations: pass "
            f"{setting('method', 'td0')}, another λ, or fewer tiles"
        )
    return np.asarray(weights)


def _backwards(carry: FloatArray, entries: FloatArray) -> FloatArray:
    """x_t = entries_t + carry_t · x_{t+1}, with x_T = 0, by solving the system of two diagonals that this is.

    `carry` is (T,), 0 where an episode ends; `entries` and x are (T,) or (T, N).
    """
    if len(entries) == 1:
        return entries.copy()  # SciPy wants as many columns as diagonals
    bands = np.ones((2, len(carry)))
    bands[0, 0], bands[0, 1:] = 0.0, -carry[:-1]
    return np.asarray(linalg.solve_banded((0, 1), bands, entries, check_finite=False))


def _powers(base: float, durations: FloatArray | None, steps: int) -> FloatArray:
    """base^τ for every step; the base itself to the last digit where τ is 1."""
    return np.full(steps, base) if durations is None else np.where(durations == 1, base, base**durations)


def _dense(features: Any, difference: Any, carry: FloatArray, penalty: FloatArray) -> FloatArray:
    """Φᵀ (I − C)⁻¹ (Φ − ΓΦ′) + κ, where (I − C)⁻¹ sums up what follows within an episode."""
    matrix = np.diag(penalty)
    width = max(1, _BLOCK // len(carry))
    for start in range(0, len(penalty), width):
        block = difference[:, start : start + width].toarray()
        matrix[:, start : start + width] += features.T @ _backwards(carry, block)
    return matrix


def _checked(matrix: Any, received: FloatArray, run: Callable[[], FloatArray], gamma: float) -> FloatArray:
    """The solution of a system, or an error that says why there is none."""
    try:
        with warnings.catch_warnings(action="ignore", category=linalg.LinAlgWarning):
            solution = run()
    except (RuntimeError, linalg.LinAlgError):
        solution = np.full_like(received, np.nan)
    scale = abs(matrix).sum(axis=1).max() * np.abs(solution).max() + np.abs(received).max()
    if not np.isfinite(solution).all() or np.abs(matrix @ solution - received).max() > 1e-8 * scale:
        raise ConfigError(
            f"the log does not determine the values at γ={gamma:.6g}: pass a discount below 1, a trace decay below the "
            f"discount ({setting('rule', 'capped')}), or a larger ridge"
        )
    return solution


# ---------------------------------------------------------------- calibration


def _calibrate(test: Steps, predicted: FloatArray, gammas: tuple[float, ...], tolerance: float) -> Calibration:
    """Compare values of held-out steps, (N, Z), with what followed; they are NaN in states without a value."""
    realised = _realised_returns(test, gammas, tolerance)
    unseen: BoolArray = np.asarray(np.isnan(predicted).any(axis=1))
    known: BoolArray = ~unseen[:, None] & np.isfinite(realised)
    names = ("bias", "bias_error", "rmse", "explained_variance", "correlation")
    measures = {name: np.full(len(gammas), np.nan) for name in names}
    for z in range(len(gammas)):
        said, got = predicted[known[:, z], z], realised[known[:, z], z]
        if not len(got):
            continue
        error = said - got
        measures["bias"][z], measures["rmse"][z] = error.mean(), np.sqrt(np.mean(error**2))
        measures["bias_error"][z] = _clustered(error, test.episodes[known[:, z]])
        measures["explained_variance"][z] = explained_variance(said, got)
        if variance(said) > 0 and variance(got) > 0:
            measures["correlation"][z] = np.corrcoef(said, got)[0, 1]
    return Calibration(
        episodes=len(np.unique(test.episodes)),
        steps=len(predicted),
        unseen=int(unseen.sum()),
        too_near=(~unseen).sum() - known.sum(axis=0),
        count=known.sum(axis=0),
        predicted=np.where(known, predicted, np.nan),
        realised=np.where(known, realised, np.nan),
        tolerance=tolerance,
        **measures,
    )


def _realised_returns(test: Steps, gammas: tuple[float, ...], tolerance: float) -> FloatArray:
    """Discounted returns to the end of each episode, (T, Z), NaN where too much may come after its cut."""
    rewards, durations, going_on = test.rewards, test.durations, np.where(test.last, 0.0, 1.0)
    to_cut = _backwards(going_on, np.ones_like(rewards) if durations is None else durations)
    cut = _backwards(going_on, (test.last & (test.successors >= 0)).astype(np.float64)) > 0
    columns = []
    for gamma in gammas:
        returns = _backwards(going_on * _powers(gamma, durations, len(rewards)), rewards)
        columns.append(np.where(cut & (gamma**to_cut > tolerance), np.nan, returns))
    return np.stack(columns, axis=1)


def _clustered(errors: FloatArray, episodes: IntArray) -> float:
    """Standard error of the mean error, from the sums over episodes; NaN for a single one."""
    numbers = np.unique(episodes, return_inverse=True)[1]
    sums = np.bincount(numbers, weights=errors - errors.mean())
    count = len(sums)
    return float(np.sqrt(count / (count - 1) * np.sum(sums**2)) / len(errors)) if count > 1 else np.nan
