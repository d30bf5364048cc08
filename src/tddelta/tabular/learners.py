"""The methods of `evaluate` on one task, and the checks of what they are asked to do."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple, no_type_check

import numpy as np
import numpy.typing as npt

from tddelta import _plain
from tddelta._naming import blamed, reference
from tddelta.errors import ConfigError, DataError, ShapeError
from tddelta.tabular import _checks, loops, n_step
from tddelta.tabular._checks import BoolArray, FloatArray, IntArray
from tddelta.tabular.loops import compiled, over_blocks
from tddelta.tabular.mdp import FiniteMDP
from tddelta.tabular.sampling import Choice, Trajectory, sample
from tddelta.timescales import TimeScales


def step_sizes(value: Any, scales: int) -> tuple[FloatArray, BoolArray]:
    """Step sizes (A, Z), and which of them are "1/n": these are 1, to be divided by the visits."""
    value = _plain.plain(value)
    settings = [value] if _single(value) else list(value)
    if not settings:
        raise ConfigError("step_sizes must name at least one; got none: pass, say, step_sizes=[0.1]")
    rates = np.array([_row(setting, scales) for setting in settings])
    decaying = np.isnan(rates)
    return np.where(decaying, 1.0, rates), decaying


def _row(setting: Any, scales: int) -> list[float]:
    """One setting, a number for every scale; not a number where it is "1/n"."""
    try:
        row = [_rate(entry) for entry in ((setting,) * scales if _single(setting) else setting)]
    except (TypeError, ValueError, OverflowError):
        row = []
    if len(row) != scales:
        raise ConfigError(
            f"a step size must be a number above 0 or '1/n', or one of these for each of the {scales} scales; "
            f"got {setting!r:.80}: pass, say, 0.1, or a tuple of {scales}"
        )
    return row


def _rate(value: Any) -> float:
    if value == "1/n":
        return math.nan
    number = _plain.number("step_sizes", value)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def _single(value: Any) -> bool:
    """Whether something is one entry, as a text and a number."""
    return isinstance(value, (str, bytes)) or not isinstance(value, Iterable)


def known_method(value: Any, methods: tuple[str, ...], also: str = "") -> str:
    """The name of a method, unless it is none of these."""
    if not isinstance(value, str) or value not in methods:
        close = get_close_matches(str(value), methods, n=1, cutoff=0)[0]
        raise ConfigError(f"method must be {also}one of {', '.join(methods)}; got {value!r}: did you mean {close!r}?")
    return value


def checkpoints(value: Any, length: int) -> tuple[IntArray, bool]:
    """After which steps errors are noted, and whether they are averages up to there."""
    if isinstance(value, str):
        if value == "final":
            return np.array([length]), False
        if value == "curve":
            return np.arange(1, length + 1), False
        points: tuple[Any, ...] = ()
    else:
        points = tuple(_plain.whole("record", point) for point in _plain.entries("record", value))
    if not points or points[-1] > length or any(a >= b for a, b in pairwise(points)):
        raise ConfigError(
            f"record must be 'final', 'curve' or increasing numbers of steps up to {length}; got {value!r}: "
            "no average reaches beyond the data"
        )
    return np.array(points, np.int64), True


def features(value: Any, states: int) -> tuple[IntArray, FloatArray, int]:
    """Features of every state as numbers (S, M) and values (S, M), and how many there are; None is a table."""
    if value is None:
        return np.arange(states)[:, None], np.ones((states, 1)), states
    matrix = _checks.array_of("features", value)
    if matrix.dtype.kind not in "biuf" or matrix.ndim != 2 or len(matrix) != states or not matrix.shape[1]:
        raise ShapeError(
            f"features must have shape (S, F) with one row for each of the {states} states; got "
            f"{matrix.dtype} of shape {matrix.shape}: features[s] are the features of state s"
        )
    matrix = matrix.astype(np.float64)
    if not np.isfinite(matrix).all():
        state, feature = (int(index) for index in np.argwhere(~np.isfinite(matrix))[0])
        raise DataError(f"features must be finite; got {matrix[state, feature]} at [{state}, {feature}]: replace it")
    # Few features are active in a state where they come from tiles or groups, and only these are computed with.
    active = matrix != 0
    most = max(1, int(active.sum(axis=1).max()))
    columns = np.ascontiguousarray(np.argsort(~active, axis=1, kind="stable")[:, :most])
    return columns, np.ascontiguousarray(np.take_along_axis(matrix, columns, axis=1)), matrix.shape[1]


def weights(value: Any, shape: tuple[int, int, int, int], what: str) -> FloatArray:
    """Components, or weights of the features, to begin with: a new array (A, N, F, Z)."""
    if value is None:
        return np.zeros(shape)
    array = _checks.array_of("initial_deltas", value)
    try:
        if array.dtype.kind not in "iuf" or array.shape[-2:] != shape[-2:]:
            raise ValueError
        return np.array(np.broadcast_to(array, shape), np.float64, order="C")
    except ValueError:
        raise ShapeError(
            f"initial_deltas must have shape ({what}, scales) = {shape[-2:]}, or (step sizes, seeds, {what}, scales) = "
            f"{shape}; got {array.dtype} of shape {array.shape}: use add_scale where the ladder has grown"
        ) from None


def visits(value: Any, seeds: int, states: int) -> IntArray:
    """Visits to go on from: a new array (N, S)."""
    if value is None:
        return np.zeros((seeds, states), np.int64)
    if value.shape[-1] != states:
        raise ShapeError(
            f"initial_deltas must be of the same process, with {states} states; got a result with {value.shape[-1]}: "
            "pass its deltas or weights, as an array, to begin with them elsewhere"
        )
    return np.array(np.broadcast_to(value, (seeds, states)), order="C")


def trajectory(value: Any, terminal: BoolArray) -> Trajectory:
    """Steps of shape (N, T) that fit the process: one unbroken stream per row."""
    try:
        fields = [_checks.array_of(f"{name} of the trajectory", getattr(value, name)) for name in Trajectory._fields]
    except AttributeError:
        raise ConfigError(
            f"trajectory must be a Trajectory; got {type(value).__name__}: use what sample returns"
        ) from None
    if any(field.ndim not in (1, 2) or field.shape != fields[0].shape or not field.size for field in fields):
        raise ShapeError(
            f"the arrays of a trajectory must all have shape (T,) or (N, T); got {[field.shape for field in fields]}: "
            "one entry per step"
        )
    states, actions, rewards, next_states, terminated, truncated = (np.atleast_2d(field) for field in fields)
    if states.dtype.kind not in "iu" or next_states.dtype.kind not in "iu":
        raise ShapeError(f"states must be whole numbers; got {states.dtype} and {next_states.dtype}: number the states")
    if terminated.dtype != bool or truncated.dtype != bool or rewards.dtype.kind not in "biuf":
        raise ShapeError(
            f"terminated and truncated must be boolean and rewards real; got {terminated.dtype}, {truncated.dtype} and "
            f"{rewards.dtype}: cast them, say what they mean"
        )
    # After a termination nothing is read: whatever stands there is replaced by a state that exists.
    next_states = np.where(terminated, 0, next_states)
    for name, array in (("states", states), ("next_states", next_states)):
        wrong = (array < 0) | (array >= len(terminal))
        if wrong.any():
            seed, step = (int(index) for index in np.argwhere(wrong)[0])
            raise DataError(
                f"{name} must be between 0 and {len(terminal) - 1}; got {array[seed, step]} at step {step} of stream "
                f"{seed}: the process has {len(terminal)} states"
            )
    broken = (next_states[:, :-1] != states[:, 1:]) & ~(terminated | truncated)[:, :-1]
    if broken.any():
        seed, step = (int(index) for index in np.argwhere(broken)[0])
        raise DataError(
            f"a step must begin where the one before ended; got state {states[seed, step + 1]} after next state "
            f"{next_states[seed, step]} at step {step} of stream {seed}: mark the end of the episode"
        )
    inside = terminal[states] | (terminal[next_states] & ~terminated)
    if inside.any():
        seed, step = (int(index) for index in np.argwhere(inside)[0])
        raise DataError(
            f"an episode must end in a terminal state; got a step that goes on in one at step {step} of stream {seed}: "
            "set terminated there"
        )
    return Trajectory(
        np.ascontiguousarray(states, np.int64),
        np.ascontiguousarray(actions),
        np.ascontiguousarray(rewards, np.float64),
        np.ascontiguousarray(next_states, np.int64),
        np.ascontiguousarray(terminated),
        np.ascontiguousarray(truncated),
    )


def unused(method: str, given: dict[str, Any], why: str) -> None:
    """ConfigError if an argument is given that the method does not look at."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ConfigError(f"{names[0]} has no meaning for method {method!r}; got {given[names[0]]!r:.80}: {why}")


def needed(scales: Iterable[Any] | None, argument: str, example: str, method: str) -> tuple[Any, ...]:
    """A field of the scales that a method cannot do without."""
    if scales is None:
        raise ConfigError(f"method {method!r} needs scales with {argument}; these have none: make them with {example}")
    return tuple(scales)


@np.errstate(over="ignore", invalid="ignore")  # what diverges does so as in the compiled loops
def learn_from(
    target: Callable[..., Any],
    scales: TimeScales,
    stream: Trajectory,
    columns: npt.NDArray[np.int64],
    strengths: FloatArray,
    step_sizes: FloatArray,
    decaying: npt.NDArray[np.bool_],
    *,
    chunk: int,
    visits: npt.NDArray[np.int64],
    tables: FloatArray,
    exact_last: FloatArray,
    counted: npt.NDArray[np.bool_],
) -> FloatArray:
    """Learn from one stream: at every episode's end, and after `chunk` steps, step by step towards the targets.

    All step sizes share one call: its batch axis.

    Args:
        target: `target(rewards, deltas, next_deltas, *, terminated, truncated, scales)` with arrays (T, A) and
            (T, A, Z), returning targets for W(s_t), (T, A, Z).
        scales: The time scales, handed on.
        stream: Steps, shape (T,).
        columns: Numbers of the features of every state, shape (S, M).
        strengths: Their values, shape (S, M).
        step_sizes: α, shape (A, Z).
        decaying: Where α is divided by the number of visits, shape (A, Z).
        chunk: Steps between updates at most.
        visits: Earlier visits to every state, shape (S,).
        tables: Weights before the first step, shape (A, F, Z); changed in place.
        exact_last: Exact V_Z, shape (S,).
        counted: Which states count in the errors, shape (S,).

    Returns:
        Root mean square and mean absolute error of V_Z after every step, shape (2, A, T).

    Raises:
        ShapeError: The function returned something else than targets.
        ConfigError: It raised something.
    """
    settings, length = len(tables), len(stream.states)
    errors, room = np.empty((2, settings, length)), np.empty(len(scales))
    count = visits.copy()

    def current() -> list[tuple[float, float]]:
        return [loops.value_errors(table, columns, strengths, exact_last, counted) for table in tables]

    def values_at(states: npt.NDArray[np.int64]) -> FloatArray:
        """W of some states, (T, A, Z)."""
        looked_up = tables[:, columns[states]] * strengths[states][..., None]
        return np.ascontiguousarray(np.moveaxis(looked_up.sum(axis=2), 0, 1))

    target = blamed(f"the target function {reference(target)} raised")(target)
    before = current()
    closed = stream.terminated | stream.truncated
    begin = 0
    for t in range(length):
        errors[:, :, t] = np.transpose(before)
        if not (closed[t] or t + 1 - begin == chunk or t + 1 == length):
            continue
        part = slice(begin, t + 1)
        rewards, terminated, truncated = (
            np.repeat(array[part, None], settings, axis=1)
            for array in (stream.rewards, stream.terminated, stream.truncated)
        )
        deltas = values_at(stream.states[part])
        following = np.where(terminated[..., None], 0.0, values_at(stream.next_states[part]))
        targets = target(rewards, deltas, following, terminated=terminated, truncated=truncated, scales=scales)
        targets = _checked(targets, deltas.shape)
        for i, s in enumerate(stream.states[part]):
            count[s] += 1
            for a, table in enumerate(tables):
                alpha = np.where(decaying[a], step_sizes[a] / count[s], step_sizes[a])
                loops.step_towards(table, columns[s], strengths[s], targets[i, a], alpha, room)
        before = current()
        errors[:, :, t] = np.transpose(before)
        begin = t + 1
    return errors


def _checked(targets: Any, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(targets)
    if array.shape != shape or not np.issubdtype(array.dtype, np.floating):
        raise ShapeError(
            f"the target function must return floating-point targets of shape (steps, step sizes, scales) = {shape}; "
            f"got {array.dtype} of shape {array.shape}: return one target per component, as lambda_targets does"
        )
    return np.ascontiguousarray(array, np.float64)


_MOST = 200_000_000  # steps in memory at a time, each of 16 bytes


class Paths(NamedTuple):
    """Trajectories from every state, n each, of at most K steps.

    Attributes:
        rewards: Rewards of the steps, shape (S, n, K).
        next_states: True successors, shape (S, n, K).
        lengths: Number of steps until the episode ended, at most K, shape (S, n); what comes later does not count.
        terminated: Whether it ended within K steps, shape (S, n).
    """

    rewards: FloatArray
    next_states: IntArray
    lengths: IntArray
    terminated: npt.NDArray[np.bool_]


def sample_paths(mdp: FiniteMDP, trajectories: int, length: int, generator: np.random.Generator) -> Paths:
    """Follow the policy from every state.

    Args:
        mdp: The process and its policy.
        trajectories: Trajectories n from each state.
        length: Steps K of each.
        generator: Source of random numbers.

    Returns:
        The trajectories. Those from terminal states have no meaning.
    """
    act, move = Choice(mdp.policy), Choice(mdp.transition)
    shape = (mdp.states, trajectories)
    rewards, successors = np.zeros((*shape, length)), np.zeros((*shape, length), np.int64)
    lengths, terminated = np.full(shape, length), np.zeros(shape, np.bool_)
    state = np.broadcast_to(np.arange(mdp.states)[:, None], shape)
    for t in range(length):
        which, where = generator.random((2, *shape))
        action = act(which, state)
        after = move(where, state, action)
        rewards[..., t], successors[..., t] = mdp.reward[state, action, after], after
        ends = mdp.terminal[after] & ~terminated
        lengths[ends] = t + 1
        terminated |= ends
        state = after
    return Paths(rewards, successors, lengths, terminated)


@compiled
@no_type_check
def mean_targets(rewards, next_states, lengths, terminated, gammas, n_steps, powers, table):
    """Mean over the trajectories of the n-step targets G^z of every state, all bootstrapped from the same table.

    `powers[z, i]` is γ_z^i, for i up to the longest window.
    """
    states, trajectories = lengths.shape
    scales = len(gammas)
    means = np.zeros((states, scales))
    for s in range(states):
        for i in range(trajectories):
            for z in range(scales):
                steps = min(n_steps[z], lengths[s, i])
                target = 0.0
                for t in range(steps):
                    target += (powers[z, t] - (powers[z - 1, t] if z > 0 else 0.0)) * rewards[s, i, t]
                if not (terminated[s, i] and steps == lengths[s, i]):
                    x = next_states[s, i, steps - 1]
                    below = 0.0
                    for shorter in range(z):
                        below += table[x, shorter]
                    target += (powers[z, steps] - (powers[z - 1, steps] if z > 0 else 0.0)) * below
                    target += powers[z, steps] * table[x, z]
                means[s, z] += target
    return means / trajectories


@np.errstate(over="ignore", invalid="ignore")  # what diverges does so as in the compiled loops
def learn_in_phases(
    mdp: FiniteMDP,
    gammas: tuple[float, ...],
    n_steps: tuple[int, ...],
    step_sizes: FloatArray,
    decaying: npt.NDArray[np.bool_],
    *,
    trajectories: int,
    phases: int,
    seed: int,
    tables: FloatArray,
    visits: int,
    exact_last: FloatArray,
) -> FloatArray:
    """Phased n-step TD(Δ) for one seed: W_z ← W_z + α_z (mean of G^z − W_z) in all states at once, phase by phase.

    Args:
        mdp: The process and its policy.
        gammas: Discounts γ_z.
        n_steps: Window k_z of every component.
        step_sizes: α, shape (A, Z); 1 replaces the table, as in the paper.
        decaying: Where α is divided by the number of the phase, shape (A, Z).
        trajectories: Trajectories n from every state in every phase, the same for all step sizes and components.
        phases: Number of phases P.
        seed: Seed of the trajectories.
        tables: Components before the first phase, shape (A, S, Z); changed in place.
        visits: Number of phases that went before.
        exact_last: Exact V_Z, shape (S,).

    Returns:
        Root mean square and mean absolute error of V_Z after every phase, shape (2, A, P).

    Raises:
        ConfigError: The trajectories of a phase are too long to be held in memory.
    """
    held = mdp.states * trajectories * max(n_steps)
    if held > _MOST:
        raise ConfigError(
            f"a phase must hold at most {_MOST:,} steps; got {mdp.states} states x {trajectories} trajectories x "
            f"{max(n_steps)} steps of the longest window: pass scales with shorter n_steps, or fewer trajectories"
        )
    generator = np.random.default_rng(seed)
    discounts, windows = np.asarray(gammas), np.asarray(n_steps)
    powers = discounts[:, None] ** np.arange(max(n_steps) + 1)
    inner = ~mdp.terminal
    errors = np.empty((2, len(tables), phases))
    for phase in range(phases):
        paths = sample_paths(mdp, trajectories, max(n_steps), generator)
        for a, table in enumerate(tables):
            alpha = np.where(decaying[a], step_sizes[a] / (visits + phase + 1), step_sizes[a])
            means = mean_targets(*paths, discounts, windows, powers, table)
            table[inner] += alpha * (means - table)[inner]
            error = (table.sum(axis=-1) - exact_last)[inner]
            errors[:, a, phase] = np.sqrt((error**2).mean()), np.abs(error).mean()
    return errors


ONLINE = ("td0", "traces", "true_online", "linear")
"""Methods that learn from every step at once."""

OFFLINE = ("lambda_return", "lambda_difference")
"""Methods that learn at an episode's end, or after a chunk of steps."""


@dataclass(frozen=True)
class Task:
    """Settings × seeds to learn.

    Attributes:
        mdp: The process.
        scales: The time scales.
        step_sizes: α, shape (A, Z), and in `decaying`, (A, Z), where it is divided by the visits.
        decaying: See `step_sizes`.
        seeds: Seeds, N of them.
        columns: Numbers of the features of every state, shape (S, M), and in `strengths` their values.
        strengths: See `columns`.
        exact_last: Exact V_Z, shape (S,).
        weights: Shape (A, N, F, Z): first the initial ones, in the end the result.
        visits: Visits before, shape (N, S).
        length: Steps T, or phases.
        checkpoints: After which of them errors are noted; `averaged` says whether as means up to there.
        averaged: See `checkpoints`.
        threads: Threads, or None.
    """

    mdp: FiniteMDP
    scales: TimeScales
    step_sizes: FloatArray
    decaying: BoolArray
    seeds: tuple[int, ...]
    columns: IntArray
    strengths: FloatArray
    exact_last: FloatArray
    weights: FloatArray
    visits: IntArray
    length: int
    checkpoints: IntArray
    averaged: bool
    threads: int | None

    @property
    def counted(self) -> BoolArray:
        """Which states count in the errors."""
        return ~self.mdp.terminal

    def over_runs(self, loop: "Loop", stream: Trajectory) -> FloatArray:
        """Run a kernel of `loops` for all settings and seeds; returns the errors (2, A, N, C)."""
        errors = self.no_errors()

        def block(first: int, last: int) -> None:
            memory = Memory.of(self, 1)
            self.call(loop, stream, errors, first, last, (0, self.length), memory)

        over_blocks(block, self.weights.shape[0] * len(self.seeds), self.threads)
        return errors

    def no_errors(self) -> FloatArray:
        """Room for the errors, (2, A, N, C)."""
        return np.zeros((2, len(self.step_sizes), len(self.seeds), len(self.checkpoints)))

    def call(
        self,
        loop: "Loop",
        stream: Trajectory,
        errors: FloatArray,
        first: int,
        last: int,
        part: tuple[int, int],
        memory: "Memory",
    ) -> None:
        """Let a kernel do some steps, from part[0] to before part[1], of the runs first ≤ run < last."""
        steps = stream.states, stream.rewards, stream.next_states, stream.terminated, stream.truncated
        model = self.columns, self.strengths, np.array(self.scales.gammas), loop.decays, self.step_sizes, self.decaying
        books = self.exact_last, self.counted, self.checkpoints, self.averaged, self.visits, self.weights
        loop.kernel(first, last, *steps, *model, *loop.options, *books, errors[0], errors[1], *part, *memory)

    def noted(self, curves: FloatArray) -> FloatArray:
        """Errors at the checkpoints from errors after every step, both with steps on the last axis."""
        if self.averaged:
            curves = np.cumsum(curves, axis=-1) / np.arange(1, self.length + 1)
        return curves[..., self.checkpoints - 1]


class Loop(NamedTuple):
    """A kernel of `loops`.

    Attributes:
        kernel: The compiled loop.
        decays: Trace decay of every component, shape (Z,).
        options: Its own arguments.
    """

    kernel: Callable[..., None]
    decays: FloatArray
    options: tuple[Any, ...]


class Memory(NamedTuple):
    """What R runs carry from step to step in the kernels of `loops`.

    Attributes:
        traces: Eligibility traces, shape (R, F, Z).
        before: V of the successor before its update, of true online TD(λ), shape (R, Z).
        books: Of the errors; see `loops.record`, shape (R, 6).
        counts: Visits of every state, shape (R, S).
        begun: The step at which what is not learned yet began, of the offline methods, shape (R,).
    """

    traces: FloatArray
    before: FloatArray
    books: FloatArray
    counts: IntArray
    begun: IntArray

    @classmethod
    def of(cls, task: Task, runs: int) -> "Memory":
        """Memory of some runs of a task; a kernel that begins clears it."""
        features, scales = task.weights.shape[2:]
        return cls(
            np.zeros((runs, features, scales)),
            np.zeros((runs, scales)),
            np.zeros((runs, 6)),
            np.zeros((runs, task.visits.shape[1]), np.int64),
            np.zeros(runs, np.int64),
        )

    def rows(self, first: int, last: int) -> "Memory":
        """Those of some runs, not copied."""
        rows: Any = (array[first:last] for array in self)
        return Memory(*rows)


def _decays(task: Task, method: str) -> FloatArray:
    return np.array(needed(task.scales.trace_decays, "trace_decays", "lam=0.95", method))


def _windows(task: Task, method: str) -> tuple[int, ...]:
    return needed(task.scales.n_steps, "n_steps", "n_step=16", method)


def part_of(stream: Trajectory, of: int | slice) -> Trajectory:
    """The streams of some seeds."""
    fields: Any = (field[of] for field in stream)
    return Trajectory(*fields)


def loop_of(task: Task, method: str, chunk: int) -> Loop:
    """The kernel of a method that learns step by step or offline.

    "td0", "traces", "true_online" and "linear" are TD(0), TD(λ) with accumulating traces, true online TD(λ), and
    semi-gradient TD(λ) or TD(0); the others are λ-returns in the bootstrap or the difference form.
    """
    if method in OFFLINE:
        return Loop(loops.offline, _decays(task, method), (method == "lambda_difference", chunk))
    if method == "td0" or (method == "linear" and task.scales.trace_decays is None):
        return Loop(loops.online, np.zeros(len(task.scales)), (loops.TD0,))
    kind = loops.TRUE_ONLINE if method == "true_online" else loops.TRACES
    return Loop(loops.online, _decays(task, method), (kind,))


def towards(task: Task, stream: Trajectory, target: Callable[..., Any], chunk: int) -> FloatArray:
    """A target function of the user's; in one thread, which need not be safe in many."""
    curves = np.empty((2, *task.weights.shape[:2], task.length))
    for n in range(len(task.seeds)):
        tables = np.ascontiguousarray(task.weights[:, n])
        curves[:, :, n] = learn_from(
            target,
            task.scales,
            part_of(stream, n),
            task.columns,
            task.strengths,
            task.step_sizes,
            task.decaying,
            chunk=chunk,
            visits=task.visits[n],
            tables=tables,
            exact_last=task.exact_last,
            counted=task.counted,
        )
        task.weights[:, n] = tables
    return task.noted(curves)


def learn_in_windows(task: Task, stream: Trajectory, record: Any) -> FloatArray:
    """n-step targets: Algorithm 1."""
    gammas, lengths = task.scales.gammas, _windows(task, "n_step")
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
    given, weights = {"counted": task.counted, "record": record}, task.weights
    if (weights == weights[0, 0]).all():
        learned = n_step.run(
            stream, gammas, lengths, task.step_sizes, task.exact_last, decaying=decaying,
            initial=weights[0, 0], threads=task.threads, **given,
        )  # fmt: skip
        weights[:] = learned.deltas
        return np.stack([learned.rms_error, learned.abs_error])
    errors = np.empty((2, *weights.shape[:2], len(task.checkpoints)))

    def block(first: int, last: int) -> None:  # one call per run: each has a table of its own to begin with
        for run in range(first, last):
            a, n = divmod(run, len(task.seeds))
            learned = n_step.run(
                part_of(stream, slice(n, n + 1)), gammas, lengths, task.step_sizes[a : a + 1],
                task.exact_last, decaying=decaying[a : a + 1], initial=weights[a, n], threads=1, **given,
            )  # fmt: skip
            weights[a, n] = learned.deltas[0, 0]
            errors[:, a, n] = learned.rms_error[0, 0], learned.abs_error[0, 0]

    over_blocks(block, errors[0, ..., 0].size, task.threads)
    return errors


def phases(task: Task, trajectories: int) -> FloatArray:
    """Phased learning."""
    lengths = _windows(task, "phased")
    curves = np.empty((2, *task.weights.shape[:2], task.length))

    def block(first: int, last: int) -> None:
        for n in range(first, last):
            tables = np.ascontiguousarray(task.weights[:, n])
            curves[:, :, n] = learn_in_phases(
                task.mdp,
                task.scales.gammas,
                lengths,
                task.step_sizes,
                task.decaying,
                trajectories=trajectories,
                phases=task.length,
                seed=task.seeds[n],
                tables=tables,
                visits=int(task.visits[n].max()),
                exact_last=task.exact_last,
            )
            task.weights[:, n] = tables

    over_blocks(block, len(task.seeds), task.threads)
    return task.noted(curves)


@dataclass(frozen=True)
class Lesson:
    """What is to be done with a task, and from which steps.

    Attributes:
        method: Name of the method, or a target function.
        record: As given to `evaluate`.
        chunk: Steps between two updates of the offline methods at most.
        trajectories: Trajectories from every state in each phase.
        time_limit: Steps after which an episode is truncated, or None.
        given: Steps to learn from in place of sampling, (N, T), or None.
    """

    method: Any
    record: Any
    chunk: int
    trajectories: int
    time_limit: int | None
    given: Trajectory | None

    @property
    def loop(self) -> bool:
        """Whether the method is one of those that can be interrupted at any step."""
        return isinstance(self.method, str) and self.method in (*ONLINE, *OFFLINE)

    def stream(self, task: Task, seeds: slice) -> Trajectory:
        """The steps of some of a task's seeds."""
        if self.given is not None:
            return part_of(self.given, seeds)
        return sample(task.mdp, task.length, task.seeds[seeds], time_limit=self.time_limit)

    def learn(self, task: Task, stream: Trajectory | None = None) -> tuple[FloatArray, IntArray]:
        """Learn to the end: errors (2, A, N, C), and visits (N, S)."""
        if self.method == "phased":
            return phases(task, self.trajectories), task.visits + np.where(task.mdp.terminal, 0, task.length)
        stream = self.stream(task, slice(None)) if stream is None else stream
        return self._errors(task, stream), visits_after(task, stream)

    def _errors(self, task: Task, stream: Trajectory) -> FloatArray:
        if self.loop:
            return task.over_runs(loop_of(task, self.method, self.chunk), stream)
        if self.method == "n_step":
            return learn_in_windows(task, stream, self.record)
        return towards(task, stream, self.method, self.chunk)


def visits_after(task: Task, stream: Trajectory) -> IntArray:
    """Visits to every state after a stream, (N, S)."""
    return task.visits + np.stack([np.bincount(states, minlength=task.mdp.states) for states in stream.states])
