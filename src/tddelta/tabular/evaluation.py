"""Values of a policy from its trajectories: every tabular method, for one scale and for many.

`evaluate` first, then growing ladders, the methods, and last their compiled loops.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args, no_type_check

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta._arrays import BoolArray, FloatArray, IntArray, array_of, check_scales, numbers
from tddelta._plain import blamed, reference
from tddelta.decomposition import compose
from tddelta.errors import ConfigError, ShapeError
from tddelta.runs import CHECKPOINT_SECONDS, Arrays
from tddelta.tabular import n_step
from tddelta.tabular.loops import (
    check_initial,
    check_record,
    check_step_sizes,
    compiled,
    component_errors,
    over_blocks,
    seed_by_seed,
)
from tddelta.tabular.mdp import FiniteMDP, check_mdp
from tddelta.tabular.sampling import Trajectory, check_seeds, check_trajectory, packed, sample, sample_paths
from tddelta.timescales import TimeScales, needed

Method = Literal[
    "td0", "n_step", "lambda_return", "lambda_difference", "traces", "true_online", "phased", "linear"
]  # fmt: skip
"""Methods with a name: see `evaluate`."""

METHODS: tuple[str, ...] = get_args(Method)
"""The same, as a tuple."""

Record = str | Iterable[int]
"""Errors to keep: "final", "curve", or steps up to which they are averaged."""

_OFFLINE = ("lambda_return", "lambda_difference")
_ENDLESS_CHUNK = 100  # many horizons of a trace, and few enough steps to learn soon
_MOST = 200_000_000  # steps in memory at a time, each of 16 bytes


@dataclass(frozen=True, eq=False, repr=False)
class TabularResult:
    """Result of `evaluate`, for A step sizes and N seeds.

    Attributes:
        scales: The time scales.
        deltas: Final components W_z(s), shape (A, N, S, Z); 0 in terminal states.
        rms_error: Root mean square error of V_Z over the states that are not terminal. Shape (A, N) for the final
            table, (A, N, T) for the curve (entry t after step t + 1), (A, N, C) for averages of it up to C steps.
        abs_error: The mean absolute error likewise.
        step_sizes: Step sizes α, shape (A, Z); not a number where one is "1/n".
        seeds: Seed of every run, or the number of the stream where the trajectory was given.
        exact: Exact values V_z(s), shape (S, Z).
        visits: Steps that left each state so far, shape (N, S): the n of "1/n". Phases for method "phased".
        weights: Weights θ_z of the features, shape (A, N, F, Z); None without features.
    """

    scales: TimeScales
    deltas: FloatArray
    rms_error: FloatArray
    abs_error: FloatArray
    step_sizes: FloatArray
    seeds: tuple[int, ...]
    exact: FloatArray
    visits: npt.NDArray[np.int64]
    weights: FloatArray | None = None

    @property
    def values(self) -> FloatArray:
        """Final values V_z(s) = Σ_{i≤z} W_i(s), shape (A, N, S, Z)."""
        with np.errstate(invalid="ignore"):  # where the components diverged
            return compose(self.deltas)

    def __repr__(self) -> str:
        settings, seeds, states, scales = self.deltas.shape
        return f"{type(self).__name__}({settings} step sizes, {seeds} seeds, {states} states, {scales} scales)"


def evaluate(
    mdp: FiniteMDP,
    scales: Any,
    *,
    method: Method | Callable[..., Any] = "n_step",
    step_sizes: Any = None,
    seeds: int | Iterable[int] | None = None,
    steps: int | None = None,
    record: Record = "final",
    time_limit: int | None = None,
    trajectory: Trajectory | None = None,
    initial_deltas: npt.ArrayLike | TabularResult | None = None,
    features: npt.ArrayLike | None = None,
    chunk: int | None = None,
    trajectories: int | None = None,
    threads: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
) -> TabularResult:
    """Learn the values of a policy at all scales, from sampled or given steps.

    W_z(s_t) moves by α_z towards its target. With one scale each method is the ordinary one. Where an episode is
    truncated the true successor is bootstrapped from; no trace, window or λ-return goes across an end.

    - "td0": after every step towards W_z(s_t) + δ^z_t; see `tddelta.td_errors`.
    - "n_step": Algorithm 1, see `tddelta.tabular.n_step`. A state moves once its longest window is full, and at an
      episode's end; the last states of a stream that goes on are not learned.
    - "traces": TD(λ), online, accumulating: e_z ← c_z e_z + φ(s_t), θ_z += α_z δ^z_t e_z.
    - "true_online": true online TD(λ), equal to the online λ-return.
    - "lambda_return", "lambda_difference": offline λ-returns in the bootstrap or the difference form. At an episode's
      end, or after `chunk` steps, targets are computed from one table; then the states move one after another.
    - a function like `tddelta.lambda_targets`, `f(rewards, deltas, next_deltas, *, terminated, truncated, scales)`:
      the same with its targets. Axes are (steps, step sizes), for components also scales.
    - "linear": semi-gradient TD(λ) with accumulating traces on `features`; TD(0) if the scales have no trace decays.
      Every method but "n_step" and "phased" takes features.
    - "phased": `trajectories` from every state, shared by all components and step sizes; all states move towards the
      mean of their n-step targets, bootstrapped from the table of the phase before.

    With a step size that is too large, components and errors of that setting become inf or nan, without a warning.

    Args:
        mdp: The process and its policy, which give the steps and the exact values.
        scales: The time scales, as of `TimeScales.of`, with `n_steps` or `trace_decays` as the method needs.
        method: One of the above.
        step_sizes: Settings to try, A of them, each a number above 0, or "1/n": 1 over the number of visits to the
            state; or one of these per scale, as in [(0.1, "1/n", 0.1)], which "n_step" does not mix. None means 0.1;
            for "phased" 1.
        seeds: Seeds of the trajectories, N of them, or a number N for the seeds 0 to N − 1. None means seed 0.
        steps: Steps T of each; for "phased" the number of phases. None means 1000.
        record: "final", "curve", or numbers of steps such as (100, 500): see `TabularResult.rms_error`. The table
            before its first update counts.
        time_limit: Steps after which an episode is truncated; None means never.
        trajectory: Steps to learn from in place of sampling, (T,) or (N, T); without `seeds`, `steps`, `time_limit`.
        initial_deltas: Components to begin with, shape (S, Z) or (A, N, S, Z), with features their weights; or a
            result to go on from, whose visits then count on. None means zeros.
        features: Features φ(s) of every state, shape (S, F): V is linear in them. None is a table; see `one_hot`.
        chunk: Steps between two updates of the offline methods at most; like a truncation, except that the episode
            goes on. None means whole episodes, and 100 steps where neither `mdp` nor the data has an end.
        trajectories: Trajectories n from every state in each phase of "phased". None means 1.
        threads: Threads; None means one per core. The result does not depend on it. A function of one's own is always
            called from one.
        checkpoint: Folder in which the seeds that are done are saved. A call with the same arguments goes on from
            there, whatever ended the one before, and returns the same bytes as one without a break.
        checkpoint_every: Seconds between two checkpoints at least; more where one takes over a hundredth of that.

    Returns:
        Components, errors and what they were learned with.

    Raises:
        ConfigError: A setting is out of range, is missing, or has no meaning for the method; a discount is 1 and the
            values do not converge; the checkpoint is of a call with other arguments.
        ShapeError, DataError: An array does not fit, or a trajectory is broken.
        CheckpointError, StorageError: The checkpoint is of a newer format, or cannot be written.
        MissingExtra: numba is not installed.

    Example:
        >>> scales = TimeScales.doubling(0.9375, n_step=16)
        >>> result = evaluate(FiniteMDP.ring(), scales, step_sizes=[0.05, 0.1], seeds=range(3), steps=200)
        >>> result.deltas.shape, result.rms_error.shape
        ((2, 3, 5, 5), (2, 3))

    Reference:
        Romoff et al., "Separating value functions across time-scales", ICML 2019: sections 4 and 5.
    """
    scales = TimeScales.of(scales)
    check_mdp(mdp)
    _check_use(
        method, time_limit=time_limit, trajectory=trajectory, features=features, chunk=chunk,
        trajectories=trajectories, seeds=seeds, steps=steps,
    )  # fmt: skip
    given = None if trajectory is None else check_trajectory(trajectory, mdp.terminal)
    if given is None:
        streams = check_seeds(1 if seeds is None else seeds)
        length = 1000 if steps is None else _plain.whole("steps", steps)
    else:
        streams, length = tuple(range(len(given.states))), given.states.shape[1]
    default = 1.0 if method == "phased" else 0.1
    alphas, decaying = check_step_sizes(default if step_sizes is None else step_sizes, len(scales))
    columns, strengths, width = _features(features, mdp.states)
    points, averaged = check_record(record, length)
    exact = mdp.exact_values(scales.gammas)
    initial = initial_deltas
    if isinstance(initial, TabularResult):
        initial = initial.deltas if initial.weights is None else initial.weights
    shape = len(alphas), len(streams), width, len(scales)
    task = _Task(
        mdp=mdp,
        scales=scales,
        method=method,
        step_sizes=alphas,
        decaying=decaying,
        seeds=streams,
        given=given,
        length=length,
        time_limit=time_limit,
        chunk=_chunk(chunk, length, time_limit, mdp, given),
        trajectories=1 if trajectories is None else _plain.whole("trajectories", trajectories),
        columns=columns,
        strengths=strengths,
        exact_last=np.ascontiguousarray(exact[:, -1]),
        record=record if isinstance(record, str) else tuple(points.tolist()),
        points=points,
        averaged=averaged,
        threads=None if threads is None else _plain.whole("threads", threads),
        weights=check_initial(
            initial, shape, "step sizes, seeds", "states, scales" if features is None else "features, scales"
        ),
        visits=_visits(initial_deltas, (len(streams), mdp.states)),  # of as many runs as was checked above
        errors=np.zeros((2, len(alphas), len(streams), len(points))),
    )
    seed_by_seed(
        task.learn, len(streams), task.threads, checkpoint, checkpoint_every,
        arguments=task.arguments, state=task.state, restore=task.restore,
    )  # fmt: skip
    return task.result(exact, features is None)


def _check_use(method: Any, **given: Any) -> None:
    """ConfigError for a method that does not exist, and for arguments that have no meaning for it."""
    if callable(method):
        name = str(getattr(method, "__name__", "of your own"))
    else:
        name = _plain.one_of("method", method, METHODS, also="a target function or ")
    phased, offline = method == "phased", callable(method) or method in _OFFLINE
    for unused, arguments, why in (
        (phased, ("time_limit", "trajectory", "features", "chunk"), "it fills a table from short trajectories"),
        (not phased, ("trajectories",), "'phased' samples from every state"),
        (not offline, ("chunk",), "it does not learn offline"),
        (method == "n_step", ("features",), "its loop is that of a table; use 'linear', 'true_online' or a λ-return"),
        (given["trajectory"] is not None, ("seeds", "steps", "time_limit"), "the trajectory is given"),
    ):
        for one in arguments if unused else ():
            if given[one] is not None:
                advice = f"{why}; leave it out"
                raise ConfigError(f"{one} has no meaning for method {name!r}; got {given[one]!r:.80}: {advice}")
    if method == "linear" and given["features"] is None:
        raise ConfigError("method 'linear' needs features=, shape (S, F); got None: one_hot(range(S)) is a table")


def _features(value: Any, states: int) -> tuple[IntArray, FloatArray, int]:
    """Features of every state as numbers (S, M) and values (S, M), and how many there are; None is a table."""
    if value is None:
        return np.arange(states)[:, None], np.ones((states, 1)), states
    matrix = array_of("features", value)
    if matrix.dtype.kind not in "biuf" or matrix.ndim != 2 or len(matrix) != states or not matrix.shape[1]:
        raise ShapeError(
            f"features must have shape (S, F) with one row for each of the {states} states; got "
            f"{matrix.dtype} of shape {matrix.shape}: features[s] are the features of state s"
        )
    return *packed(numbers("features", matrix)), matrix.shape[1]


def _visits(before: Any, shape: tuple[int, int]) -> IntArray:
    """Visits to go on from, (N, S), in a new array."""
    if not isinstance(before, TabularResult):
        return np.zeros(shape, np.int64)
    if before.visits.shape[-1] != shape[-1]:
        raise ShapeError(
            f"initial_deltas must be of the same process, with {shape[-1]} states; got a result with "
            f"{before.visits.shape[-1]}: pass its deltas or weights, as an array, to begin with them elsewhere"
        )
    return np.array(np.broadcast_to(before.visits, shape), np.int64)


def _chunk(chunk: Any, length: int, time_limit: int | None, mdp: FiniteMDP, given: Trajectory | None) -> int:
    """Steps between two updates of the offline methods at most."""
    if chunk is not None:
        return _plain.whole("chunk", chunk)
    ends = time_limit is not None or mdp.terminal.any() or (given is not None and given.truncated.any())
    return length if ends else min(length, _ENDLESS_CHUNK)


def add_scale(
    scales: TimeScales,
    deltas: npt.ArrayLike,
    gamma: float,
    *,
    trace_decay: float | None = None,
    n_step: int | None = None,
) -> tuple[TimeScales, FloatArray]:
    """Add a longer scale to what was learned: its component starts at W = 0, the others stay what they are.

    At that moment the value at the new discount is the one at the longest discount so far, exactly.

    Args:
        scales: The ladder so far.
        deltas: Components, shape (…, Z), for instance `result.deltas`, or the weights of features.
        gamma: New discount in [0, 1], above all others.
        trace_decay: Its trace decay c = λγ in [0, 1]; needed if the scales have trace decays, and only then.
        n_step: Steps of its window; needed if the scales have `n_steps`, and only then.

    Returns:
        The longer ladder, and the components, shape (…, Z + 1), for `evaluate(…, initial_deltas=…)`.

    Raises:
        ConfigError, ShapeError: A number is missing, superfluous or out of range, or `deltas` are of other scales.

    Example:
        >>> scales, deltas = add_scale(TimeScales.from_gammas([0.5, 0.9]), np.ones((3, 2)), 0.99)
        >>> scales.gammas, deltas[0]
        ((0.5, 0.9, 0.99), array([1., 1., 0.]))

    Reference:
        Romoff et al., "Separating value functions across time-scales", ICML 2019, section 7.
    """
    components = _components_of(scales, deltas)
    gamma = timescales.unit_number("gamma", gamma)
    if gamma <= scales.gammas[-1]:
        raise ConfigError(
            f"gamma must be above the longest discount so far, {scales.gammas[-1]}; got {gamma}: a ladder grows upwards"
        )
    longer = replace(
        scales,
        gammas=(*scales.gammas, gamma),
        trace_decays=_extended("trace_decay", scales.trace_decays, trace_decay),
        n_steps=_extended("n_step", scales.n_steps, n_step),
    )
    return longer, np.concatenate([components, np.zeros_like(components[..., :1])], axis=-1)


def remove_scale(scales: TimeScales, deltas: npt.ArrayLike, index: int) -> tuple[TimeScales, FloatArray]:
    """Take a scale out of what was learned: its component goes to the next longer one, W_{z+1} ← W_{z+1} + W_z.

    The values at all other discounts stay the same; without the longest scale the next shorter one is the longest.

    Args:
        scales: The ladder so far, two scales at least.
        deltas: Components, shape (…, Z).
        index: Which scale z, from 0 for the shortest; −1 is the longest.

    Returns:
        The shorter ladder, and the components, shape (…, Z − 1).

    Raises:
        ConfigError, ShapeError: There is no such scale, or no other; or `deltas` are of other scales.

    Example:
        >>> scales, deltas = remove_scale(TimeScales.from_gammas([0.5, 0.9, 0.99]), np.array([1.0, 2.0, 4.0]), 1)
        >>> scales.gammas, deltas
        ((0.5, 0.99), array([1., 6.]))
    """
    components = _components_of(scales, deltas)
    z = _plain.as_whole(index)
    fits = isinstance(z, int) and not isinstance(z, bool) and -len(scales) <= z < len(scales)
    if len(scales) == 1 or not fits:
        raise ConfigError(
            f"index must be a whole number that names one of {len(scales)} scales and leaves another; got {index!r}: "
            f"they are {scales.gammas}"
        )
    z %= len(scales)
    if z + 1 < len(scales):
        components[..., z + 1] += components[..., z]
    ladders = {name: getattr(scales, name) for name in ("gammas", "trace_decays", "n_steps")}
    shorter = replace(scales, **{name: ladder and ladder[:z] + ladder[z + 1 :] for name, ladder in ladders.items()})
    return shorter, np.delete(components, z, axis=-1)


def _components_of(scales: TimeScales, deltas: Any) -> FloatArray:
    """A new array of components that belong to the scales."""
    check_scales(scales)
    array = np.array(array_of("deltas", deltas))
    if array.dtype.kind != "f" or array.shape[-1:] != (len(scales),):
        raise ShapeError(
            f"deltas must be floating point with one entry for each of the {len(scales)} scales on the last axis; got "
            f"{array.dtype} of shape {array.shape}: pass the components that were learned at these scales"
        )
    return array


def _extended(name: str, before: tuple[Any, ...] | None, value: Any) -> tuple[Any, ...] | None:
    if (before is None) != (value is None):
        have, advice = (before, "pass the one of the new scale") if before else ("none", "leave it out")
        raise ConfigError(
            f"{name} must be given if the other scales have one; got {value!r} where they have {have}: {advice}"
        )
    return before and (*before, value)


# ---------------------------------------------------------------- methods


@dataclass(frozen=True, eq=False)
class _Task:
    """Checked arguments of `evaluate` for A step sizes and N seeds, and the arrays that the methods fill."""

    mdp: FiniteMDP
    scales: TimeScales
    method: Any  # a name, or a target function
    step_sizes: FloatArray  # α, (A, Z)
    decaying: BoolArray  # where α is divided by the visits, (A, Z)
    seeds: tuple[int, ...]
    given: Trajectory | None  # steps to learn from in place of sampling, (N, T)
    length: int  # steps T, or phases
    time_limit: int | None
    chunk: int
    trajectories: int
    columns: IntArray  # numbers of the features of every state, (S, M)
    strengths: FloatArray  # values of these features, (S, M)
    exact_last: FloatArray  # exact V_Z, (S,)
    record: Any
    points: IntArray  # steps after which errors are noted, (C,)
    averaged: bool  # whether as means up to there
    threads: int | None
    weights: FloatArray  # (A, N, F, Z): first the initial ones, in the end the result
    visits: IntArray  # (N, S): likewise
    errors: FloatArray  # (2, A, N, C)

    def learn(self, first: int, last: int) -> None:
        """Learn for the seeds first ≤ n < last."""
        chosen = slice(first, last)
        part = replace(
            self,
            seeds=self.seeds[chosen],
            weights=np.ascontiguousarray(self.weights[:, chosen]),
            visits=self.visits[chosen],
            errors=np.ascontiguousarray(self.errors[:, :, chosen]),
        )
        if self.method == "phased":
            _in_phases(part)
            new: Any = np.where(self.mdp.terminal, 0, self.length)
        else:
            if self.given is None:
                stream = sample(self.mdp, self.length, part.seeds, time_limit=self.time_limit)
            else:
                stream = _part_of(self.given, chosen)
            learner = _towards if callable(self.method) else _in_windows if self.method == "n_step" else _over_runs
            learner(part, stream)
            new = np.stack([np.bincount(states, minlength=self.mdp.states) for states in stream.states])
        self.weights[:, chosen], self.errors[:, :, chosen] = part.weights, part.errors
        self.visits[chosen] += new

    def noted(self, curves: FloatArray) -> FloatArray:
        """Errors that are kept, from those after every step, both with steps on the last axis."""
        if self.averaged:
            curves = np.cumsum(curves, axis=-1) / np.arange(1, self.length + 1)
        return curves[..., self.points - 1]

    def result(self, exact: FloatArray, table: bool) -> TabularResult:
        """Everything learned, beside the exact values; a table has no weights."""
        deltas = np.einsum("sm,ansmz->ansz", self.strengths, self.weights[:, :, self.columns])
        deltas[:, :, self.mdp.terminal] = 0.0
        errors = self.errors[..., 0] if self.record == "final" else self.errors
        return TabularResult(
            scales=self.scales,
            deltas=deltas,
            rms_error=errors[0],
            abs_error=errors[1],
            step_sizes=np.where(self.decaying, np.nan, self.step_sizes),
            seeds=self.seeds,
            exact=exact,
            visits=self.visits,
            weights=None if table else self.weights,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """All that the bytes of the result depend on."""
        function = self.method.func if isinstance(self.method, partial) else self.method
        return {
            "method": reference(function) if callable(function) else function,
            "scales": self.scales.to_dict(),
            "step_sizes": np.where(self.decaying, "1/n", self.step_sizes.astype(str)).tolist(),
            "seeds": list(self.seeds) if self.given is None else None,
            "steps": self.length,
            "record": self.record,
            "time_limit": self.time_limit,
            "chunk": self.chunk,
            "trajectories": self.trajectories,
            "mdp": self.mdp,
            "features": (self.columns, self.strengths),
            "initial_deltas": (self.weights, self.visits),
            "trajectory": None if self.given is None else tuple(self.given),
        }

    def state(self, _: int) -> Arrays:
        """Arrays of a checkpoint."""
        return {"weights": self.weights, "errors": self.errors, "visits": self.visits}

    def restore(self, _: int, arrays: Arrays) -> None:
        """Take over the arrays of a checkpoint."""
        for name, array in self.state(0).items():
            if arrays[name].shape != array.shape:
                raise ValueError(f"{name} of shape {arrays[name].shape} in place of {array.shape}")
            array[:] = arrays[name]


def _part_of(stream: Trajectory, rows: int | slice) -> Trajectory:
    return Trajectory._make(field[rows] for field in stream)


def _over_runs(task: _Task, stream: Trajectory) -> None:
    """TD(0), TD(λ) with accumulating traces, true online TD(λ), semi-gradient TD(λ) or TD(0), and λ-returns."""
    method = task.method
    if method == "td0" or (method == "linear" and task.scales.trace_decays is None):
        decays, kind = np.zeros(len(task.scales)), _TD0
    else:
        decays = np.array(needed(task.scales, "trace_decays", f"method {method!r}"))
        kind = _TRUE_ONLINE if method == "true_online" else _TRACES
    steps = stream.states, *stream[2:]  # without the actions
    model = task.columns, task.strengths, np.array(task.scales.gammas), decays
    rates = task.step_sizes, task.decaying, task.visits
    measure = task.exact_last, ~task.mdp.terminal, task.points, task.averaged

    def block(first: int, last: int) -> None:
        arrays = steps, model, rates, measure, task.weights, task.errors
        if method in _OFFLINE:
            _offline(first, last, *arrays, method == "lambda_difference", task.chunk)
        else:
            _online(first, last, *arrays, kind)

    over_blocks(block, task.weights.shape[0] * len(task.seeds), task.threads)


def _in_windows(task: _Task, stream: Trajectory) -> None:
    """n-step targets: Algorithm 1, see `n_step`."""
    windows = needed(task.scales, "n_steps", f"method {task.method!r}")
    decaying: BoolArray = np.all(task.decaying, axis=1)
    if (task.decaying != decaying[:, None]).any():
        raise ConfigError(
            "method 'n_step' must have step size '1/n' for all scales of a setting or for none; got a mix: pass "
            "numbers, or another method"
        )
    if task.decaying.any() and task.visits.any():
        raise ConfigError(
            "method 'n_step' cannot go on with step sizes '1/n', since some visits to a state are not learned; got a "
            "result with visits: pass its deltas, or constant step sizes"
        )

    learned = n_step.run(
        stream, task.scales.gammas, windows, task.step_sizes, task.exact_last, counted=~task.mdp.terminal,
        decaying=decaying, initial=task.weights, record=task.record, threads=task.threads,
    )  # fmt: skip
    task.weights[:], task.errors[:] = learned.deltas, (learned.rms_error, learned.abs_error)


@np.errstate(over="ignore", invalid="ignore")  # what diverges does so as in the compiled loops
def _towards(task: _Task, stream: Trajectory) -> None:
    """A target function of the user's: at every episode's end, and after `chunk` steps, step by step to its targets.

    All step sizes share one call, its batch axis; seeds follow one another, as the function need not be thread-safe.
    """
    target = blamed(f"the target function {reference(task.method)} raised")(task.method)
    for n in range(len(task.seeds)):
        tables, steps = np.ascontiguousarray(task.weights[:, n]), _part_of(stream, n)
        curves, count = np.empty((2, len(tables), task.length)), task.visits[n].copy()
        closed = steps.terminated | steps.truncated
        before, begin = _errors_of(task, tables), 0
        for t in range(task.length):
            curves[:, :, t] = before
            if closed[t] or t + 1 - begin == task.chunk or t + 1 == task.length:
                _learn_chunk(task, target, _part_of(steps, slice(begin, t + 1)), tables, count)
                curves[:, :, t] = before = _errors_of(task, tables)
                begin = t + 1
        task.weights[:, n], task.errors[:, :, n] = tables, task.noted(curves)


def _learn_chunk(task: _Task, target: Any, steps: Trajectory, tables: FloatArray, count: IntArray) -> None:
    """Move the weights (A, F, Z) towards the targets of some steps, and count the visits."""

    def values_at(states: IntArray) -> FloatArray:
        """W of some states, (T, A, Z)."""
        looked_up = tables[:, task.columns[states]] * task.strengths[states][..., None]
        return np.ascontiguousarray(np.moveaxis(looked_up.sum(axis=2), 0, 1))

    rewards, terminated, truncated = (
        np.repeat(array[:, None], len(tables), axis=1) for array in (steps.rewards, steps.terminated, steps.truncated)
    )
    deltas = values_at(steps.states)
    following = np.where(terminated[..., None], 0.0, values_at(steps.next_states))
    targets = target(rewards, deltas, following, terminated=terminated, truncated=truncated, scales=task.scales)
    targets = np.asarray(targets)
    if targets.shape != deltas.shape or not np.issubdtype(targets.dtype, np.floating):
        raise ShapeError(
            f"the target function must return floating-point targets of shape (steps, step sizes, scales) = "
            f"{deltas.shape}; got {targets.dtype} of shape {targets.shape}: return one target per component, as "
            "lambda_targets does"
        )
    targets, room = np.ascontiguousarray(targets, np.float64), np.empty(len(task.scales))
    for i, s in enumerate(steps.states):
        count[s] += 1
        for a, table in enumerate(tables):
            alpha = np.where(task.decaying[a], task.step_sizes[a] / count[s], task.step_sizes[a])
            _step_towards(table, task.columns[s], task.strengths[s], targets[i, a], alpha, room)


def _errors_of(task: _Task, tables: FloatArray) -> FloatArray:
    """Both errors of V_Z for every step size, (2, A)."""
    model = task.columns, task.strengths, task.exact_last, ~task.mdp.terminal
    return np.transpose([_value_errors(table, *model) for table in tables])


def _in_phases(task: _Task) -> None:
    """Phased learning: W_z ← W_z + α_z (mean of G^z − W_z) in all states at once, phase by phase."""
    windows = needed(task.scales, "n_steps", f"method {task.method!r}")
    if task.mdp.states * task.trajectories * max(windows) > _MOST:
        raise ConfigError(
            f"a phase must hold at most {_MOST:,} steps; got {task.mdp.states} states x {task.trajectories} "
            f"trajectories x {max(windows)} steps of the longest window: pass scales with shorter n_steps, or fewer "
            "trajectories"
        )
    gammas = np.array(task.scales.gammas)
    model = gammas, np.array(windows), gammas[:, None] ** np.arange(max(windows) + 1)
    inner = ~task.mdp.terminal

    @np.errstate(over="ignore", invalid="ignore")  # what diverges does so as in the compiled loops
    def block(first: int, last: int) -> None:
        for n in range(first, last):
            generator, before = np.random.default_rng(task.seeds[n]), int(task.visits[n].max())
            tables = np.ascontiguousarray(task.weights[:, n])
            curves = np.empty((2, len(tables), task.length))
            for phase in range(task.length):
                paths = sample_paths(task.mdp, task.trajectories, max(windows), generator)
                for a, table in enumerate(tables):
                    rates = task.step_sizes[a]
                    alpha = np.where(task.decaying[a], rates / (before + phase + 1), rates)
                    means = n_step.mean_targets(*paths, *model, table)
                    table[inner] += alpha * (means - table)[inner]
                    error = (table.sum(axis=-1) - task.exact_last)[inner]
                    curves[:, a, phase] = np.sqrt((error**2).mean()), np.abs(error).mean()
            task.weights[:, n], task.errors[:, :, n] = tables, task.noted(curves)

    over_blocks(block, len(task.seeds), task.threads)


# ---------------------------------------------------------------- compiled loops
#
# A state has a few features: `columns[s]` are their numbers and `strengths[s]` their values; in a table these are the
# state itself and 1. Runs are numbered step size by step size, `run = a · N + n`; each writes to its own entries only.
#
# Where the step size changes from visit to visit it belongs to the visit, and so enters the trace with it:
# θ += δ e with e ← c e + α φ. With constant α that is θ += α δ e with e ← c e + φ.

_TD0, _TRACES, _TRUE_ONLINE = 0, 1, 2


@compiled
@no_type_check
def _online(first, last, steps, model, rates, measure, weights, errors, method):
    """Update after every step: TD(0), TD(λ) with accumulating traces, or true online TD(λ), W_z by W_z."""
    states, rewards, next_states, terminated, truncated = steps
    columns, strengths, gammas, decays = model
    step_sizes, decaying, visits = rates
    streams, length = states.shape
    scales = len(gammas)
    own, following, delta, alpha = np.empty(scales), np.empty(scales), np.empty(scales), np.empty(scales)
    previous, overlap = np.empty(scales), np.empty(scales)
    for run in range(first, last):
        a, n = run // streams, run % streams
        # copies: the compiler knows that nothing else changes them
        table, count, trace = weights[a, n], visits[n].copy(), np.zeros(weights.shape[2:])
        book = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        previous[:] = 0.0
        for t in range(length):
            s = states[n, t]
            active, strength = columns[s], strengths[s]
            count[s] += 1
            for z in range(scales):
                alpha[z] = step_sizes[a, z] / count[s] if decaying[a, z] else step_sizes[a, z]
            _components(table, active, strength, own)
            if terminated[n, t]:
                following[:] = 0.0
            else:
                _components(table, columns[next_states[n, t]], strengths[next_states[n, t]], following)
            component_errors(rewards[n, t], own, following, terminated[n, t], gammas, delta)
            if method == _TD0:
                for m in range(len(active)):
                    for z in range(scales):
                        table[active[m], z] += alpha[z] * delta[z] * strength[m]
            else:
                overlap[:] = 0.0
                if method == _TRUE_ONLINE:
                    _components(trace, active, strength, overlap)
                for f in range(len(trace)):
                    for z in range(scales):
                        trace[f, z] *= decays[z]
                for m in range(len(active)):
                    for z in range(scales):
                        trace[active[m], z] += alpha[z] * (1.0 - decays[z] * overlap[z]) * strength[m]
                if method == _TRUE_ONLINE:
                    for m in range(len(active)):
                        for z in range(scales):
                            table[active[m], z] -= alpha[z] * (own[z] - previous[z]) * strength[m]
                    for z in range(scales):
                        delta[z] += own[z] - previous[z]
                        previous[z] = following[z]
                for f in range(len(trace)):
                    for z in range(scales):
                        table[f, z] += delta[z] * trace[f, z]
            if terminated[n, t] or truncated[n, t]:
                trace[:] = 0.0
                previous[:] = 0.0
            book[1] = 1.0
            _record(t, table, columns, strengths, measure, book, errors[0, a, n], errors[1, a, n])


@compiled
@no_type_check
def _offline(first, last, steps, model, rates, measure, weights, errors, coupled, chunk):
    """Update at every episode's end, and after `chunk` steps: step by step towards λ-returns from the table before."""
    states, rewards, next_states, terminated, truncated = steps
    columns, strengths, gammas, _ = model
    step_sizes, decaying, visits = rates
    streams, length = states.shape
    scales = len(gammas)
    goal, alpha, own = np.empty((min(chunk, length), scales)), np.empty(scales), np.empty(scales)
    for run in range(first, last):
        a, n = run // streams, run % streams
        table, count, begin = weights[a, n], visits[n].copy(), 0
        book = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        for t in range(length):
            if terminated[n, t] or truncated[n, t] or t + 1 - begin == chunk or t + 1 == length:
                part = slice(begin, t + 1)
                _lambda_returns(states[n, part], rewards[n, part], next_states[n, part], terminated[n, part], model,
                                coupled, table, goal)  # fmt: skip
                for i in range(begin, t + 1):
                    s = states[n, i]
                    count[s] += 1
                    for z in range(scales):
                        alpha[z] = step_sizes[a, z] / count[s] if decaying[a, z] else step_sizes[a, z]
                    _step_towards(table, columns[s], strengths[s], goal[i - begin], alpha, own)
                begin = t + 1
                book[1] = 1.0
            _record(t, table, columns, strengths, measure, book, errors[0, a, n], errors[1, a, n])


@compiled
@no_type_check
def _lambda_returns(states, rewards, next_states, terminated, model, coupled, table, goal):
    """λ-returns of steps in a row, none but the last an episode's end, into `goal`.

    `coupled` is the difference form: the difference of the λ-returns of V_z and V_{z−1}, each with its own decay.
    """
    columns, strengths, gammas, decays = model
    scales = len(gammas)
    own, following, delta, carry = np.empty(scales), np.empty(scales), np.empty(scales), np.zeros(scales)
    for t in range(len(states) - 1, -1, -1):
        _components(table, columns[states[t]], strengths[states[t]], own)
        if terminated[t]:
            following[:] = 0.0
        else:
            _components(table, columns[next_states[t]], strengths[next_states[t]], following)
        component_errors(rewards[t], own, following, terminated[t], gammas, delta)
        total, below = 0.0, 0.0  # in the difference form: TD error of V_z, and the λ-advantage of V_{z−1}
        for z in range(scales):
            if coupled:
                total += delta[z]
                carry[z] = total + decays[z] * carry[z]
                goal[t, z] = own[z] + carry[z] - below
                below = carry[z]
            else:
                carry[z] = delta[z] + decays[z] * carry[z]
                goal[t, z] = own[z] + carry[z]


@compiled
@no_type_check
def _components(table, columns, strengths, out):
    """W(s) = Σ_f φ_f θ_f of one state, from its features."""
    out[:] = 0.0
    for m in range(len(columns)):
        for z in range(len(out)):
            out[z] += strengths[m] * table[columns[m], z]


@compiled
@no_type_check
def _step_towards(table, columns, strengths, goal, alpha, own):
    """θ_f += α_z (G^z − W_z(s)) φ_f; `own` is room for W(s)."""
    _components(table, columns, strengths, own)
    for m in range(len(columns)):
        for z in range(len(goal)):
            table[columns[m], z] += alpha[z] * (goal[z] - own[z]) * strengths[m]


@compiled
@no_type_check
def _value_errors(table, columns, strengths, exact, counted):
    """Root mean square and mean absolute error of V_Z over the states that count."""
    squares, sizes, number = 0.0, 0.0, 0
    for s in range(len(exact)):
        if counted[s]:
            value = 0.0
            for m in range(columns.shape[1]):
                for z in range(table.shape[1]):
                    value += strengths[s, m] * table[columns[s, m], z]
            squares += (value - exact[s]) ** 2
            sizes += abs(value - exact[s])
            number += 1
    return np.sqrt(squares / number), sizes / number


@compiled
@no_type_check
def _record(t, table, columns, strengths, measure, book, rms, absolute):
    """Note the errors after step t.

    `book`: the next point, whether the table changed since the last call, both errors now, and their sums so far.
    """
    exact, counted, points, averaged = measure
    point = int(book[0])
    due = point < len(points) and t + 1 == points[point]
    if not due and not averaged:
        return
    if book[1] > 0.0:
        book[2], book[3] = _value_errors(table, columns, strengths, exact, counted)
        book[1] = 0.0
    book[4] += book[2]
    book[5] += book[3]
    if due:
        rms[point] = book[4] / (t + 1) if averaged else book[2]
        absolute[point] = book[5] / (t + 1) if averaged else book[3]
        book[0] += 1.0
