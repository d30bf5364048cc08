"""Values at every scale from somebody's logged trajectories, and how well they predict what happened afterwards.

What is evaluated is the policy that wrote the log. Nothing here says what another policy would have got: there are no
actions in it, and no off-policy correction.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse

from tddelta import _plain
from tddelta.decomposition import decompose
from tddelta.errors import ConfigError, own_checks
from tddelta.tabular._checks import FloatArray, IntArray
from tddelta.tabular.log_fitting import (
    Calibration,
    Encoder,
    Regression,
    calibrate,
    fit_encoder,
    realised_returns,
    solve,
)
from tddelta.tabular.log_reading import LastRow, Names, Steps, read_steps
from tddelta.tabular.mdp import reaching
from tddelta.timescales import TimeScales


def column_names(features: Any, model: Any, state: Any, options: dict[str, Any]) -> Names:
    """What the columns are called, and how the rows are to be read."""
    if model not in (None, "tiles", "linear"):
        raise ConfigError(f"model must be 'tiles' or 'linear', or None for labels; got {model!r}: pass one of these")
    if features is not None:
        if model is None:
            raise ConfigError("features need a model; got None: pass model='tiles' or model='linear'")
        _refuse({"state": state}, "beside features", "features stand in its place")
        features = _columns("features", features)
    labels = _columns("state", "state" if state is None else state)
    if model is not None and features is None:
        features = labels
    for name in ("episode", "reward", "terminated", "truncated", "time"):
        if options[name] is not None or name in ("episode", "reward"):
            options[name] = _column(name, options[name])
    prefix, last_row, unit = (options[name] for name in ("next_prefix", "last_row", "time_unit"))
    if not isinstance(prefix, str) or not prefix:
        raise ConfigError(f"next_prefix must be a text; got {prefix!r}: pass what stands before the names, as 'next_'")
    if last_row not in ("step", "observation"):
        raise ConfigError(f"last_row must be 'step' or 'observation'; got {last_row!r}: pass one of the two")
    unit = options["time_unit"] = _plain.plain(unit)
    if not _plain.is_number(unit) or not 0 < unit < math.inf:
        raise ConfigError(f"time_unit must be a number above 0; got {unit!r}: pass the time that one step of γ takes")
    if unit != 1 and options["time"] is None:
        raise ConfigError(f"time_unit={unit} needs time stamps: name their column with time=")
    return Names(state=labels, features=features, **options)


def check_method(method: Any, scales: TimeScales) -> None:
    """ConfigError unless these scales can be fitted so."""
    if method not in ("lambda", "td0", "monte_carlo"):
        raise ConfigError(f"method must be 'lambda', 'td0' or 'monte_carlo'; got {method!r}: pass one of these")
    if method == "lambda" and scales.trace_decays is None:
        raise ConfigError(
            "method='lambda' needs trace decays; these scales have none: make them with lam=, as in lam=0.95, or pass "
            "method='td0' or method='monte_carlo'"
        )


def of_model(model: str | None, tiles: Any, tilings: Any, ridge: Any) -> tuple[int, int, float]:
    """Tiles, tilings and ridge, where None stands for the default."""
    where = "without a model" if model is None else f"for model {model!r}"
    if model != "tiles":
        _refuse({"tiles": tiles, "tilings": tilings}, where, "it is for model='tiles'")
    if model is None:
        _refuse({"ridge": ridge}, where, "values of labels have no penalty")
    ridge = 0.01 if ridge is None else _within("ridge", ridge, lambda number: 0 <= number < math.inf, "[0, ∞)")
    if model == "tiles" and ridge == 0:
        raise ConfigError("ridge=0 leaves the weights of overlapping tiles open: pass ridge=0.01, say")
    grids = {"tiles": 8 if tiles is None else tiles, "tilings": 8 if tilings is None else tilings}
    return _plain.whole("tiles", grids["tiles"]), _plain.whole("tilings", grids["tilings"], most=10_000), ridge


def of_calibration(held_out: Any, tolerance: Any) -> tuple[float, float]:
    """The share of episodes that are held out, and the tolerance, where None stands for the default."""
    share = _within("held_out", held_out, lambda number: 0 <= number < 1, "[0, 1)")
    if share == 0:
        _refuse({"tolerance": tolerance}, "with held_out=0", "no return is compared")
    return share, 0.01 if tolerance is None else _within("tolerance", tolerance, lambda n: 0 < n < 1, "(0, 1)")


def _refuse(given: dict[str, Any], where: str, why: str) -> None:
    """ConfigError if an option is given that would not be looked at."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} has no meaning {where}; got {value!r:.80}: leave it out, since {why}")


def _columns(name: str, value: Any) -> tuple[str, ...]:
    """One name of a column, or several."""
    given = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not given:
        raise ConfigError(f"{name} must name at least one column; got none: pass, say, {name}=['pressure']")
    return tuple(_column(name, entry) for entry in given)


def _column(name: str, value: Any) -> str:
    if isinstance(value, str):
        return str(_plain.tidy(value))
    raise ConfigError(f"{name} must be the name of a column; got {value!r:.80}: pass text, as the log has it")


def _within(name: str, value: Any, fits: Callable[[float], bool], interval: str) -> float:
    value = _plain.plain(value)
    if _plain.is_number(value) and fits(float(value)):
        return float(value)
    raise ConfigError(f"{name} must be in {interval}; got {value!r:.80}: pass a number from there")


Method = Literal["lambda", "td0", "monte_carlo"]
"""Trace decays of the λ-returns: those of the scales, 0, or γ_z."""
Model = Literal["tiles", "linear"]
"""What makes values of continuous features."""


@dataclass(frozen=True, eq=False, repr=False)
class LogValues:
    """Values of the policy that wrote a log, at every scale.

    Attributes:
        scales: The time scales; in the units of time that `time_unit` chose, where there are time stamps.
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
    _encoder: Encoder
    _weights: FloatArray

    @property
    def deltas(self) -> FloatArray:
        """Components W_z = V_z − V_{z−1} of `values`."""
        return decompose(self.values)

    def predict(self, observations: Any) -> FloatArray:
        """Values of states or sensor readings that need not be in the log.

        Args:
            observations: Labels, (N,), or features in the order of `features=`, (N, F).

        Returns:
            V_z, (N, Z); NaN for labels without a value.

        Raises:
            ShapeError: Features are of another shape, or no numbers.
            DataError: Features are not finite, or labels are none.
        """
        features, known = self._encoder.encode(observations)
        return np.where(known[:, None], features @ self._weights, np.nan)

    def __repr__(self) -> str:
        size = f"{len(self.states)} states" if self.states else f"{len(self.values)} rows"
        return f"{type(self).__name__}({size}, {len(self.scales)} scales, {self.model}, {self.method})"


@own_checks
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

    Row t of an episode holds the state s_t, and the reward and the flags of the step out of s_t. The successor of a
    step is the state of the next row. After the last row of an episode nothing counts if it terminated; otherwise the
    state after it counts, and must be known in one of two ways, or the log is refused: from the column `next_state`
    (`next_` before the name of the state column, or of every feature), or, with `last_row="observation"`, since the
    last row of such an episode is its final observation and no step, so that its reward and flags are not looked at.
    The rows of an episode must be one block. Nothing is repaired: a row that cannot be used is an error with its
    number, counted from 1 without a header.

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
        scales: The time scales, as of `TimeScales.of`, for "lambda" with trace decays: those of λ = 0.95 where they are
            no `TimeScales`.
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
    scales = TimeScales.of(scales, lam=0.95 if traced else None)
    columns = {"episode": episode, "reward": reward, "terminated": terminated, "truncated": truncated, "time": time}
    reading = {"time_unit": time_unit, "next_prefix": next_prefix, "last_row": last_row}
    names = column_names(features, model, state, columns | reading)
    check_method(method, scales)
    settings = of_model(model, tiles, tilings, ridge)
    share, tolerance = of_calibration(held_out, tolerance)
    steps = read_steps(log, names)
    episodes = int(steps.episodes[-1]) + 1
    held = _held_out(share, episodes)
    train, test = (steps.select(part) for part in (steps.episodes < episodes - held, steps.episodes >= episodes - held))
    encoder, used = fit_encoder(train, model, *settings)
    encoded, known = encoder.encode(steps.observations)
    decays = {"td0": [0.0] * len(scales), "monte_carlo": scales.gammas, "lambda": scales.trace_decays}[method]
    problem = Regression(
        encoded[used.places],
        sparse.diags_array((used.successors >= 0).astype(np.float64)) @ encoded[np.maximum(used.successors, 0)],
        used.rewards,
        used.last,
        used.durations,
        encoder.penalty,
    )
    if model is None:
        _check_ends(problem, scales, encoder.labels)
    fitted = [solve(problem, gamma, decay) for gamma, decay in zip(scales.gammas, decays or (), strict=True)]
    weights = np.stack(fitted, axis=1)
    row_values = np.where(known[:, None], encoded @ weights, np.nan)
    return LogValues(
        scales,
        method,
        model or "table",
        encoder.labels,
        np.bincount(problem.features.indices, minlength=len(weights)) if model is None else np.zeros(0, np.int64),
        weights if model is None else row_values[: steps.rows],
        row_values[: steps.rows],
        episodes,
        held,
        len(used.rewards),
        len(train.rewards) - len(used.rewards),
        _calibrate(test, row_values, scales, tolerance) if held else None,
        encoder,
        weights,
    )


def _held_out(share: float, episodes: int) -> int:
    """How many episodes to hold out."""
    if share and episodes < 2:
        raise ConfigError(
            f"held_out={share} needs at least two episodes; the log has one: pass held_out=0 to go without calibration"
        )
    return max(1, int(share * episodes + 1e-9)) if share else 0


def _check_ends(problem: Regression, scales: TimeScales, labels: tuple[Hashable, ...]) -> None:
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


def _calibrate(test: Steps, values: FloatArray, scales: TimeScales, tolerance: float) -> Calibration:
    realised = realised_returns(test.rewards, test.last, test.successors < 0, test.durations, scales.gammas, tolerance)
    return calibrate(values[test.places], realised, episodes=test.episodes, tolerance=tolerance)
