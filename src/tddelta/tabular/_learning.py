"""What `evaluate` does once its arguments are checked: each method on the same task."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tddelta.errors import ConfigError
from tddelta.tabular import _settings, loops, n_step, own_target, phased
from tddelta.tabular.arrays import BoolArray, FloatArray, IntArray
from tddelta.tabular.compiled import over_blocks
from tddelta.tabular.mdp import FiniteMDP
from tddelta.tabular.sampling import Trajectory, sample
from tddelta.timescales import TimeScales

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
    return np.array(_settings.needed(task.scales.trace_decays, "trace_decays", "lam=0.95", method))


def _windows(task: Task, method: str) -> tuple[int, ...]:
    return _settings.needed(task.scales.n_steps, "n_steps", "n_step=16", method)


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
        curves[:, :, n] = own_target.learn_from(
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
            curves[:, :, n] = phased.learn_in_phases(
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
