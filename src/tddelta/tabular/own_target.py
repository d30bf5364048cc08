"""Learning from a target function of the user's, with the signature of `tddelta.lambda_targets`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta._naming import blamed, reference
from tddelta.errors import ShapeError
from tddelta.tabular import loops
from tddelta.tabular.arrays import FloatArray
from tddelta.tabular.sampling import Trajectory
from tddelta.timescales import TimeScales


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
