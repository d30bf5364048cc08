"""What `evaluate` does once its arguments are checked: each method on the same task."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tddelta.errors import ConfigError
from tddelta.tabular import _settings, loops, n_step, own_target, phased
from tddelta.tabular.arrays import BoolArray, FloatArray, IntArray
from tddelta.tabular.compiled import over_blocks
from tddelta.tabular.mdp import FiniteMDP
from tddelta.tabular.sampling import Trajectory
from tddelta.timescales import TimeScales


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

    def over_runs(
        self, kernel: Callable[..., None], stream: Trajectory, decays: FloatArray, *options: Any
    ) -> FloatArray:
        """Run a kernel of `loops` for all settings and seeds; returns the errors (2, A, N, C)."""
        count, seeds = self.weights.shape[:2]
        errors = np.empty((2, count, seeds, len(self.checkpoints)))
        steps = stream.states, stream.rewards, stream.next_states, stream.terminated, stream.truncated
        model = self.columns, self.strengths, np.array(self.scales.gammas), decays, self.step_sizes, self.decaying
        books = self.exact_last, self.counted, self.checkpoints, self.averaged, self.visits, self.weights

        def block(first: int, last: int) -> None:
            kernel(first, last, *steps, *model, *options, *books, errors[0], errors[1])

        over_blocks(block, count * seeds, self.threads)
        return errors

    def noted(self, curves: FloatArray) -> FloatArray:
        """Errors at the checkpoints from errors after every step, both with steps on the last axis."""
        if self.averaged:
            curves = np.cumsum(curves, axis=-1) / np.arange(1, self.length + 1)
        return curves[..., self.checkpoints - 1]


def _decays(task: Task, method: str) -> FloatArray:
    return np.array(_settings.needed(task.scales.trace_decays, "trace_decays", "lam=0.95", method))


def _windows(task: Task, method: str) -> tuple[int, ...]:
    return _settings.needed(task.scales.n_steps, "n_steps", "n_step=16", method)


def _part(stream: Trajectory, of: int | slice) -> Trajectory:
    fields: Any = (field[of] for field in stream)
    return Trajectory(*fields)


def online(task: Task, stream: Trajectory, method: str) -> FloatArray:
    """TD(0), TD(λ) with accumulating traces, true online TD(λ), and semi-gradient TD(λ) or TD(0)."""
    if method == "td0" or (method == "linear" and task.scales.trace_decays is None):
        return task.over_runs(loops.online, stream, np.zeros(len(task.scales)), loops.TD0)
    kind = loops.TRUE_ONLINE if method == "true_online" else loops.TRACES
    return task.over_runs(loops.online, stream, _decays(task, method), kind)


def offline(task: Task, stream: Trajectory, method: str, chunk: int) -> FloatArray:
    """λ-returns in the bootstrap or the difference form."""
    coupled = method == "lambda_difference"
    return task.over_runs(loops.offline, stream, _decays(task, method), coupled, chunk)


def towards(task: Task, stream: Trajectory, target: Callable[..., Any], chunk: int) -> FloatArray:
    """A target function of the user's; in one thread, which need not be safe in many."""
    curves = np.empty((2, *task.weights.shape[:2], task.length))
    for n in range(len(task.seeds)):
        tables = np.ascontiguousarray(task.weights[:, n])
        curves[:, :, n] = own_target.learn(
            target,
            task.scales,
            _part(stream, n),
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


def windows(task: Task, stream: Trajectory, record: Any) -> FloatArray:
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
                _part(stream, slice(n, n + 1)), gammas, lengths, task.step_sizes[a : a + 1],
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
            curves[:, :, n] = phased.learn(
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
