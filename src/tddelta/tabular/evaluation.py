"""Values of a policy from its trajectories: every tabular method, for one scale and for many."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta._arrays import check_scales
from tddelta.decomposition import compose
from tddelta.errors import ConfigError, ShapeError, own_checks
from tddelta.runs import CHECKPOINT_SECONDS
from tddelta.tabular import _checks, _resumable, learners
from tddelta.tabular._checks import FloatArray
from tddelta.tabular.learners import Task
from tddelta.tabular.mdp import FiniteMDP, check_mdp
from tddelta.tabular.sampling import Trajectory
from tddelta.timescales import TimeScales


@own_checks
def add_scale(
    scales: TimeScales,
    deltas: npt.ArrayLike,
    gamma: float,
    *,
    trace_decay: float | None = None,
    n_step: int | None = None,
) -> tuple[TimeScales, FloatArray]:
    """Add a longer scale to what was learned: its component starts at W = 0.

    At that moment the value at the new discount is the one at the longest discount so far, exactly, and the other
    components stay what they are: the learner goes on from its best answer, and has one at any time.

    Args:
        scales: The ladder so far.
        deltas: Components, shape (…, Z), for instance `result.deltas`, or the weights of features.
        gamma: New discount in [0, 1], above all others.
        trace_decay: Its trace decay c = λγ in [0, 1]; needed if the scales have trace decays, and only then.
        n_step: Steps of its window; needed if the scales have `n_steps`, and only then.

    Returns:
        The longer ladder, and the components, shape (…, Z + 1), for `evaluate(…, initial_deltas=…)`.

    Raises:
        ConfigError: The discount is not above the others, or what the scales need of it is missing.
        ShapeError: The last axis of `deltas` does not have one entry per scale.

    Example:
        >>> scales, deltas = add_scale(TimeScales.from_gammas([0.5, 0.9]), np.ones((3, 2)), 0.99)
        >>> scales.gammas, deltas[0]
        ((0.5, 0.9, 0.99), array([1., 1., 0.]))

    Reference:
        Romoff et al., "Separating value functions across time-scales", ICML 2019, section 7.
    """
    components = _components(scales, deltas)
    gamma = timescales.unit_number("gamma", gamma)
    if gamma <= scales.gammas[-1]:
        raise ConfigError(
            f"gamma must be above the longest discount so far, {scales.gammas[-1]}; got {gamma}: a ladder grows upwards"
        )
    longer = TimeScales(
        (*scales.gammas, gamma),
        _extended("trace_decay", scales.trace_decays, trace_decay),
        _extended("n_step", scales.n_steps, n_step),
        scales.actor_trace_decay,
    )
    return longer, np.concatenate([components, np.zeros_like(components[..., :1])], axis=-1)


@own_checks
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
        ConfigError: There is no such scale, or no other.
        ShapeError: The last axis of `deltas` does not have one entry per scale.

    Example:
        >>> scales, deltas = remove_scale(TimeScales.from_gammas([0.5, 0.9, 0.99]), np.array([1.0, 2.0, 4.0]), 1)
        >>> scales.gammas, deltas
        ((0.5, 0.99), array([1., 6.]))
    """
    components = _components(scales, deltas)
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

    def without(field: Any) -> Any:
        return None if field is None else field[:z] + field[z + 1 :]

    shorter = TimeScales(
        without(scales.gammas), without(scales.trace_decays), without(scales.n_steps), scales.actor_trace_decay
    )
    return shorter, np.delete(components, z, axis=-1)


def _components(scales: TimeScales, deltas: Any) -> FloatArray:
    """A new array of components that belong to the scales."""
    check_scales(scales)
    array = np.array(_checks.array_of("deltas", deltas))
    if array.dtype.kind != "f" or array.shape[-1:] != (len(scales),):
        raise ShapeError(
            f"deltas must be floating point with one entry for each of the {len(scales)} scales on the last axis; got "
            f"{array.dtype} of shape {array.shape}: pass the components that were learned at these scales"
        )
    return array


def _extended(name: str, before: tuple[Any, ...] | None, value: Any) -> tuple[Any, ...] | None:
    if (before is None) != (value is None):
        have = "have none" if before is None else f"have {before}"
        advice = "leave it out" if before is None else "pass the one of the new scale"
        raise ConfigError(
            f"{name} must be given if the other scales have one; got {value!r} where they {have}: {advice}"
        )
    return None if before is None else (*before, value)


Method = Literal[
    "td0", "n_step", "lambda_return", "lambda_difference", "traces", "true_online", "phased", "linear"
]  # fmt: skip
"""Methods with a name: see `evaluate`."""

Record = str | Iterable[int]
"""What is kept of the errors: "final", "curve", or steps up to which they are averaged."""

METHODS: tuple[str, ...] = get_args(Method)
"""The same, as a tuple."""

_ENDLESS_CHUNK = 100  # many horizons of a trace, and few enough steps to learn soon


@own_checks
@dataclass(frozen=True, eq=False, repr=False)
class TabularResult:
    """What `evaluate` learned, for A step sizes and N seeds.

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


@own_checks
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

    Every component has its own step size: W_z(s_t) moves by α_z towards its target. With one scale each method is the
    ordinary one. Episodes that end are learned to their end; where one is truncated the true successor is bootstrapped
    from; no trace, window or λ-return goes across an end, and nothing is read of a terminal successor.

    - "td0": after every step towards W_z(s_t) + δ^z_t; see `tddelta.td_errors`.
    - "n_step": Algorithm 1 with windows `scales.n_steps`; see `tddelta.n_step_targets`. A state moves once its longest
      window is full, and at an episode's end; the last states of a stream that goes on are not learned.
    - "traces": TD(λ), online, accumulating: e_z ← c_z e_z + φ(s_t), θ_z += α_z δ^z_t e_z.
    - "true_online": true online TD(λ), equal to the online λ-return.
    - "lambda_return", "lambda_difference": offline λ-returns in the bootstrap or the difference form; see
      `tddelta.lambda_targets`. At an episode's end, or after `chunk` steps, its targets are computed from one table;
      then the states move one after another, in their order.
    - a function like `tddelta.lambda_targets`, `f(rewards, deltas, next_deltas, *, terminated, truncated, scales)`:
      the same with its targets. Axes are (steps, step sizes), for components also scales.
    - "linear": semi-gradient TD(λ) with accumulating traces on `features`; TD(0) if the scales have no trace decays.
      Every method but "n_step" and "phased" takes features.
    - "phased": `trajectories` from every state, shared by all components and step sizes; all states move towards the
      mean of their n-step targets, bootstrapped from the table of the phase before.

    Where a step size is too large for a method, learning diverges: components and errors of that setting grow until
    they are inf or nan, without a warning, and no other setting is touched. `np.isfinite(result.rms_error)` tells.

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
        checkpoint: Folder in which what was learned so far is saved. A call with the same arguments goes on from
            there, whatever ended the one before, and returns the same bytes as one without a break; what has come
            to its end is read and returned at once.
        checkpoint_every: Seconds between two checkpoints at least; more where one takes over a hundredth of that.

    Returns:
        Components, errors and what they were learned with.

    Raises:
        ConfigError: A setting is out of range, is missing, or has no meaning for the method; a discount is 1 and the
            values do not converge; the checkpoint is of a call with other arguments.
        ShapeError: An array has a shape that does not fit.
        DataError: A trajectory is broken, or leads to states that do not exist.
        CheckpointError: The checkpoint is of a newer format.
        StorageError: The checkpoint cannot be written.
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
    name = _name(method)
    unused = partial(learners.unused, name)
    if method == "phased":
        given = {"time_limit": time_limit, "trajectory": trajectory, "features": features, "chunk": chunk}
        unused(given, "it follows short trajectories from every state, to fill a table; leave it out")
    else:
        unused({"trajectories": trajectories}, "'phased' samples from every state; leave it out")
    if isinstance(method, str) and method not in (*learners.OFFLINE, "phased"):
        unused({"chunk": chunk}, "it does not learn offline; leave it out")
    if method == "n_step":
        unused({"features": features}, "its loop is that of a table; use 'linear', 'true_online' or a λ-return")
    if method == "linear" and features is None:
        raise ConfigError("method 'linear' needs features=, shape (S, F); got None: one_hot(range(S)) is a table")
    if trajectory is not None:
        unused({"seeds": seeds, "steps": steps, "time_limit": time_limit}, "the trajectory is given; leave it out")
        stream = learners.trajectory(trajectory, mdp.terminal)
        numbers, length = tuple(range(len(stream.states))), stream.states.shape[1]
        given_steps: Trajectory | None = stream
    else:
        given_steps = None
        numbers = _checks.seeds(1 if seeds is None else seeds)
        length = 1000 if steps is None else _plain.whole("steps", steps)
    default = 1.0 if method == "phased" else 0.1
    alphas, decaying = learners.step_sizes(default if step_sizes is None else step_sizes, len(scales))
    columns, strengths, width = learners.features(features, mdp.states)
    before = initial_deltas.visits if isinstance(initial_deltas, TabularResult) else None
    shape = len(alphas), len(numbers), width, len(scales)
    points, averaged = learners.checkpoints(record, length)
    if not isinstance(record, str):
        record = tuple(points.tolist())
    exact = mdp.exact_values(scales.gammas)
    task = Task(
        mdp=mdp,
        scales=scales,
        step_sizes=alphas,
        decaying=decaying,
        seeds=numbers,
        columns=columns,
        strengths=strengths,
        exact_last=np.ascontiguousarray(exact[:, -1]),
        weights=learners.weights(_start_of(initial_deltas), shape, "states" if features is None else "features"),
        visits=learners.visits(before, len(numbers), mdp.states),
        length=length,
        checkpoints=points,
        averaged=averaged,
        threads=None if threads is None else _plain.whole("threads", threads),
    )
    if chunk is not None:
        chunk = _plain.whole("chunk", chunk)
    else:
        cut = time_limit is not None or mdp.terminal.any() or (given_steps is not None and given_steps.truncated.any())
        chunk = length if cut else min(length, _ENDLESS_CHUNK)
    number = 1 if trajectories is None else _plain.whole("trajectories", trajectories)
    lesson = learners.Lesson(method, record, chunk, number, time_limit, given_steps)
    if checkpoint is None:
        errors, visits = lesson.learn(task)
    else:
        errors, visits = _resumable.learn(task, lesson, Path(checkpoint), checkpoint_every)
    deltas = np.einsum("sm,ansmz->ansz", strengths, task.weights[:, :, columns])
    deltas[:, :, mdp.terminal] = 0.0
    return TabularResult(
        scales=scales,
        deltas=deltas,
        rms_error=errors[0, ..., 0] if record == "final" else errors[0],
        abs_error=errors[1, ..., 0] if record == "final" else errors[1],
        step_sizes=np.where(decaying, np.nan, alphas),
        seeds=numbers,
        exact=exact,
        visits=visits,
        weights=None if features is None else task.weights,
    )


def _name(method: Any) -> str:
    """What messages call the method."""
    if callable(method):
        return str(getattr(method, "__name__", "of your own"))
    return learners.known_method(method, METHODS, also="a target function or ")


def _start_of(initial: Any) -> Any:
    """The array to begin with."""
    if isinstance(initial, TabularResult):
        return initial.deltas if initial.weights is None else initial.weights
    return initial
