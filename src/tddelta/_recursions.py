"""The arithmetic of the targets: one step back, all steps back, and windows of steps.

`plain_targets` is the recursion as the paper has it; what follows makes it fast in every framework, and adds windows,
durations and the difference form. It rests on one map over the scale axis, `mix`: each entry times one weight, plus
the sum of the entries of all smaller scales times another. With the weights γ_z and γ_z − γ_{z−1} it takes W(s') one
step back; with c_z and c_z − c_{z−1} it does the same to advantages in the difference form. The functions expect arrays
of one framework whose shapes fit, as `_arrays.check_steps` leaves them. Only `_scan` knows whether it compiles.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_jax_array
from jaxtyping import Bool, Float, Shaped

from tddelta._arrays import Array, constant, opaque
from tddelta.timescales import TimeScales

# Up to here the sum over smaller scales is written out term by term: quadratic, but compiled into vector instructions,
# where a cumulative sum along a short last axis takes several times as long.
_WRITTEN_OUT = 16


class Steps(NamedTuple):
    """Arguments of a target function, as `tddelta.targets` describes them: arrays of one framework whose shapes fit."""

    rewards: Shaped[Array, " T *batch"]
    deltas: Float[Array, "T *batch Z"]
    next_deltas: Float[Array, "T *batch Z"]
    terminated: Bool[Array, " T *batch"]
    truncated: Bool[Array, " T *batch"] | None
    durations: Shaped[Array, " T *batch"] | None


def plain_targets(
    rewards: np.ndarray,
    deltas: np.ndarray,
    next_deltas: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    *,
    gammas: np.ndarray,
    trace_decays: np.ndarray,
) -> np.ndarray:
    """λ-returns of all components in the bootstrap form, step by step in NumPy: what `critic_targets` must equal."""
    targets, advantage = np.empty_like(deltas), np.zeros_like(deltas[0])
    for t in reversed(range(len(rewards))):
        successor = np.where(terminated[t][..., None], 0.0, next_deltas[t])
        smaller = np.cumsum(successor, axis=-1) - successor  # V_{z−1}(s')
        error = np.diff(gammas, prepend=0.0) * smaller + gammas * successor - deltas[t]
        error[..., 0] += rewards[t]
        ended = (terminated | truncated)[t][..., None]
        advantage = error + np.where(ended, 0.0, trace_decays * advantage)
        targets[t] = deltas[t] + advantage
    return targets


def one_step_errors(steps: Steps, *, scales: TimeScales) -> Float[Array, "T *batch Z"]:
    """TD errors δ^z of all scales."""
    deltas = steps.deltas
    xp = array_namespace(deltas)
    rewards, durations = _cast(steps.rewards, deltas, xp), _cast(steps.durations, deltas, xp)
    own, below = _weights(scales.gammas, durations, deltas, xp)
    successor = xp.where(steps.terminated[..., None], 0.0, steps.next_deltas)
    received = xp.where(_first(deltas, xp), rewards[..., None], 0.0)
    return mix(received, successor, own, below, xp) - deltas


def critic_targets(
    steps: Steps, *, scales: TimeScales, trace_decays: tuple[float, ...], coupled: bool
) -> Float[Array, "T *batch Z"]:
    """λ-returns of all components; coupled is the difference form, else the bootstrap form."""
    deltas = steps.deltas
    xp = array_namespace(deltas)
    errors = one_step_errors(steps, scales=scales)
    own, below = _weights(trace_decays, _cast(steps.durations, deltas, xp), deltas, xp)
    # With equal decays the coupling is zero: the two forms are one.
    coupled = coupled and len(set(trace_decays)) > 1
    return deltas + _all_steps_back(errors, steps.terminated | steps.truncated, own, below if coupled else None, xp)


def actor_advantages(steps: Steps, trace_decay: Float[Array, ""], *, gamma: float) -> Float[Array, " T *batch"]:
    """Ordinary generalised advantages of V_Z, the sum of all components."""
    xp = array_namespace(steps.deltas)
    values, next_values = (
        array if array.shape[-1] == 1 else xp.sum(array, axis=-1, keepdims=True)
        for array in (steps.deltas, steps.next_deltas)
    )
    alone = steps._replace(deltas=values, next_deltas=next_values)
    errors = one_step_errors(alone, scales=TimeScales((gamma,)))
    decay = _unfolded(xp.reshape(trace_decay, (1,)), xp)
    if steps.durations is not None:
        elapsed = _cast(steps.durations, values, xp)[..., None]
        positive = decay > 0
        log = xp.log(xp.where(positive, decay, 1.0))
        raised = xp.where(positive, xp.exp(elapsed * log), 0.0)
        decay = xp.where(elapsed == 1, decay + (elapsed - 1) * decay * log, raised)
    return _all_steps_back(errors, steps.terminated | steps.truncated, decay, None, xp)[..., 0]


def window_targets(steps: Steps, *, scales: TimeScales, n_steps: tuple[int, ...]) -> Float[Array, "T *batch Z"]:
    """n-step targets of all components, windows ended early by an episode's end or the end of the data.

    A window of n steps takes the pair (W_z, V_{z−1}) at its end back n times. Going back 2^j steps at once is again
    such a map, and 2^{j+1} steps are two of them, so that k steps need only the binary digits of k.
    """
    next_deltas, terminated = steps.next_deltas, steps.terminated
    xp = array_namespace(next_deltas)
    rewards, elapsed = _cast(steps.rewards, next_deltas, xp), _cast(steps.durations, next_deltas, xp)
    first = _first(next_deltas, xp)
    received = xp.where(first, rewards[..., None], 0.0), xp.where(first, 0.0, rewards[..., None])

    # The last step of each window looks at its true successor. Nothing goes back over a stop.
    successor = xp.where(terminated[..., None], 0.0, next_deltas)
    own, below = _weights(scales.gammas, elapsed, next_deltas, xp)
    smaller = _smaller(own, xp)
    result = mix(received[0], successor, own, below, xp), mix(received[1], successor, 0 * smaller, smaller, xp)
    stop = terminated | steps.truncated
    stop = xp.concat([stop[:-1], xp.ones_like(stop[-1:])])
    span = tuple(xp.where(stop[..., None], last, got) for last, got in zip(result, received, strict=True))

    def double(state: tuple[Any, ...], level: tuple[Any, ...]) -> tuple[Any, None]:
        result, span, stop, elapsed = state
        jump, unit, chosen, *powers = level
        own, below = _weights(scales.gammas, elapsed, next_deltas, xp, unit, powers)
        smaller = _smaller(own, xp)

        def back(pair: tuple[Any, ...]) -> tuple[Any, ...]:
            # What comes around from the start of the data is masked: there the span has stopped at the last step.
            later, later_sum = (xp.where(stop[..., None], 0.0, xp.roll(array, -jump, axis=0)) for array in pair)
            return span[0] + own * later + below * later_sum, span[1] + smaller * later_sum

        result = tuple(xp.where(chosen, moved, stays) for moved, stays in zip(back(result), result, strict=True))
        longer = None if elapsed is None else elapsed + xp.roll(elapsed, -jump, axis=0)
        return (result, back(span), stop | xp.roll(stop, -jump, axis=0), longer), None

    more = np.minimum(n_steps, next_deltas.shape[0]) - 1
    jumps = 2 ** np.arange(int(more.max()).bit_length())
    if len(jumps) == 0:
        return result[0]
    chosen = constant((more & jumps[:, None]) > 0, next_deltas, xp) > 0
    levels = (jumps, constant(jumps, next_deltas, xp), chosen, *_powers(scales.gammas, jumps, next_deltas, xp))
    (targets, _), *_ = _scan(double, (result, span, stop, elapsed), levels)[0]
    return targets


def mix(
    start: Float[Array, "*#steps Z"],
    entries: Float[Array, "*steps Z"],
    own: Float[Array, "*#steps Z"],
    below: Float[Array, "*#steps Z"],
    xp: ModuleType,
) -> Float[Array, "*steps Z"]:
    """start_z + own_z · x_z + below_z · Σ_{i<z} x_i.

    One chain of sums, so that a compiler has no choice of which product to fuse with which sum, and weights from
    durations that are all 1 give the bytes that constant weights give.
    """
    size = entries.shape[-1]
    if size > _WRITTEN_OUT:
        sums = xp.cumulative_sum(entries[..., :-1], axis=-1)
        return start + own * entries + below * xp.concat([xp.zeros_like(entries[..., :1]), sums], axis=-1)
    return _written_out(start, entries, _weights_of_each(own, below, entries, xp))


def _weights_of_each(own: Any, below: Any, entries: Any, xp: ModuleType) -> list[Any]:
    """What each of few entries is multiplied by, for every entry of the result."""
    size = entries.shape[-1]
    if size == 1:
        return [own]
    place = constant(range(size), entries, xp)
    return [xp.where(place == index, own, xp.where(place > index, below, 0.0)) for index in range(size)]


def _written_out(start: Any, entries: Any, weights: Sequence[Any]) -> Any:
    """The sum of `mix`, term by term."""
    total = start
    for index, weight in enumerate(weights):
        total = total + weight * entries[..., index : index + 1]
    return total


def _all_steps_back(
    errors: Float[Array, "T *batch Z"],
    ends: Bool[Array, " T *batch"],
    own: Float[Array, "#T *#batch Z"] | Float[Array, " Z"],
    below: Float[Array, "#T *#batch Z"] | Float[Array, " Z"] | None,
    xp: ModuleType,
) -> Float[Array, "T *batch Z"]:
    """A_t = δ_t + mix(A_{t+1}) where step t ended no episode, δ_t where it did; A_T = 0."""
    keep = xp.astype(~ends, errors.dtype)
    # A mask that differs along the scale axis compiles into vector instructions, an equal one into a branch per row
    # that takes twice as long. Any positive numbers would do.
    uneven = opaque(constant(range(1, errors.shape[-1] + 1), errors, xp))
    varying = own.ndim > 1
    # Once for all steps; a compiler sees to that itself.
    fixed = below is not None and not varying and errors.shape[-1] <= _WRITTEN_OUT and not is_jax_array(errors)
    weights_of_each = _weights_of_each(own, below, errors, xp) if fixed else []

    def back(later: Any, step: tuple[Any, ...]) -> tuple[Any, Any]:
        error, kept, *weights = step
        carried = xp.where(kept[..., None] * uneven > 0, later, 0.0)
        own_now, below_now = weights if varying else (own, below)
        if below is None:
            now = error + own_now * carried
        elif fixed:
            now = _written_out(error, carried, weights_of_each)
        else:
            now = mix(error, carried, own_now, below_now, xp)
        return now, now

    steps = (errors, keep, own, below) if varying else (errors, keep)
    return _scan(back, xp.zeros_like(errors[0]), steps, reverse=True)[1]


def _scan(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: tuple[Any, ...], *, reverse: bool = False
) -> tuple[Any, Any]:
    """`jax.lax.scan` over the first axes of the inputs; for other frameworks the same as a loop."""
    if any(is_jax_array(array) for array in inputs):
        from jax import lax

        scanned: tuple[Any, Any] = lax.scan(step, state, inputs, reverse=reverse)
        return scanned
    order = range(len(inputs[0]))
    outputs = []
    for index in reversed(order) if reverse else order:
        state, output = step(state, tuple(None if array is None else array[index] for array in inputs))
        outputs.append(output)
    if outputs[0] is None:
        return state, None
    return state, array_namespace(outputs[0]).stack(outputs[::-1] if reverse else outputs)


def _weights(
    bases: tuple[float, ...],
    elapsed: Any,
    like: Any,
    xp: ModuleType,
    unit: Any = 1,
    powers: Sequence[Any] | None = None,
) -> tuple[Any, Any]:
    """b_z^e and b_z^e − b_{z−1}^e with b_{−1} = 0: after `unit` steps, or after the time elapsed where it is given."""
    if powers is None:
        powers = [rows[0] for rows in _powers(bases, [unit], like, xp)]
    power, gap, slope, gap_slope = powers
    if elapsed is None:
        return power, gap
    high, low = np.array(bases), np.array([0.0, *bases[:-1]])
    larger, less = np.maximum(high, low), np.minimum(high, low)
    elapsed = elapsed[..., None]

    def general(base: np.ndarray) -> Any:
        raised = xp.exp(elapsed * constant(_log(base), like, xp))
        return xp.where(constant(base, like, xp) > 0, raised, 0.0)

    # Without cancellation: larger^e · (1 − exp(−e log(larger / less))), with the sign of the difference.
    ratio = constant(np.where(less > 0, _log(larger) - _log(less), 1.0), like, xp)
    share = xp.where(constant(less, like, xp) > 0, -xp.expm1(-elapsed * ratio), 1.0)
    apart = constant(np.where(high < low, -1.0, 1.0), like, xp) * general(larger) * share

    # Where the time elapsed is the number of steps, the values are known exactly; the slopes are for gradients.
    beyond = elapsed - unit
    return (
        xp.where(beyond == 0, power + beyond * slope, general(high)),
        xp.where(beyond == 0, gap + beyond * gap_slope, apart),
    )


def _powers(bases: tuple[float, ...], units: Any, like: Any, xp: ModuleType) -> tuple[Any, ...]:
    """b_z^n, b_z^n − b_{z−1}^n and the slopes of both in n, a row for every n; of double precision, cast once."""
    exponents = np.asarray(units)[:, None]
    high, low = np.array(bases), np.array([0.0, *bases[:-1]])
    power, lower = high**exponents, low**exponents
    rows = (power, power - lower, power * _log(high), power * _log(high) - lower * _log(low))
    return tuple(_unfolded(constant(row, like, xp), xp) for row in rows)


def _unfolded(weights: Float[Array, "*steps Z"], xp: ModuleType) -> Float[Array, "*steps Z"]:
    """The same weights, to a compiler no more constant than weights from durations, so that both give the same bytes.

    Known constants would be folded into the masks, and a product rounded on its own that is otherwise fused with a
    sum. XLA folds arrays of one entry in any case, hence one more on the way; 2 since it differs from any weight.
    """
    return opaque(xp.concat([weights, xp.full_like(weights[..., :1], 2.0)], axis=-1))[..., :-1]


def _log(bases: np.ndarray) -> np.ndarray:
    """Natural logarithm, and 0 at 0, where the result does not count."""
    return np.log(np.where(bases > 0, bases, 1.0))


def _smaller(own: Any, xp: ModuleType) -> Any:
    """b_{z−1}^e from b_z^e, with b_{−1} = 0."""
    return xp.concat([xp.zeros_like(own[..., :1]), own[..., :-1]], axis=-1)


def _first(like: Any, xp: ModuleType) -> Any:
    """True for the first scale."""
    return constant(range(like.shape[-1]), like, xp) == 0


def _cast(array: Any, like: Any, xp: ModuleType) -> Any:
    return None if array is None else xp.astype(array, like.dtype, copy=False)
