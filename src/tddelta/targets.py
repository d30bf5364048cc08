"""Pure targets for all scales at once, in NumPy, JAX (also under jit, vmap and grad) and PyTorch.

Axes are always time, then any batch axes, then scales: (T, *batch, Z). All functions take some of these arguments:

- `rewards`: r_t, (T, *batch), t = 0 … T−1. Real; cast to the dtype of `deltas`, to float32 for half.
- `deltas`: components W(s_t), (T, *batch, Z), floating point.
- `next_deltas`: W(s'_t) at the TRUE successor of step t, (T, *batch, Z): at an episode's end the final observation,
  never the one after the reset; `successors` builds it. What the critic says after a termination never counts, not even
  if it is not a number, in values or in gradients. The last step bootstraps from `next_deltas[T−1]`.
- `terminated`: d_t, whether s'_t is terminal, (T, *batch), boolean: nothing is bootstrapped.
- `truncated`: whether the episode is cut after step t, (T, *batch), boolean: bootstraps from the true successor and
  cuts the trace. Both flags mean terminated.
- `scales`: the time scales, static under jit.
- `durations`: τ_t > 0, the length of each step in units of time, (T, *batch): γ^{τ_t} and c^{τ_t} take the places of γ
  and c. None means 1.

The functions name only what differs from this. Rewards, flags and durations belong to the transition out of s_t, never
to an observation that starts an episode. Nothing is broadcast or converted: shapes, dtypes or frameworks that do not
fit are a ShapeError, a duration that is not above 0 or not finite a DataError (looked at in NumPy only), and what is no
`TimeScales`, or scales without what the function needs, a ConfigError. Results have the dtype of `deltas`.

Nothing is detached. In a loss a target is a constant: put `jax.lax.stop_gradient` or `.detach()` around it.

Everything is computed in single precision at least: where `deltas` are bfloat16 or float16, discounts, decays, rewards
and all steps back are float32, and only the result is cast to the dtype of `deltas`.

Not a number or infinity in the data stays in its own stream (its entry of the batch axes). Where a batch axis is as
long as the scale axis, swapped axes cannot be told by their shape.

First comes `plain_targets`, the recursion in plain lines, then the functions, then the arithmetic that makes them fast
in every framework. It rests on one map over the scale axis, `mix`: each entry times one weight, plus the sum of
the entries of all smaller scales times another. With the weights γ_z and γ_z − γ_{z−1} it takes W(s') one step back;
with c_z and c_z − c_{z−1} it does the same to advantages in the difference form. Only `_scan` compiles.
"""

from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_jax_array
from jaxtyping import Bool, Float, Shaped

from tddelta._arrays import (
    Array,
    ArrayT,
    check_components,
    check_form,
    check_never_cut,
    check_steps,
    constant,
    framework,
    opaque,
    single,
)
from tddelta._plain import is_number
from tddelta.errors import ConfigError, ShapeError
from tddelta.timescales import TimeScales, needed

Form = Literal["bootstrap", "difference"]
"""Coupling of the λ-returns of the components: see `lambda_targets`."""

# Up to here the sum over smaller scales is written out term by term: quadratic, but compiled into vector instructions,
# where a cumulative sum along a short last axis takes several times as long.
_WRITTEN_OUT = 16


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
    """λ-returns of all V_z, each less the one below, step by step in NumPy: what `lambda_targets` must give.

    Discounts and decays are (Z,), or those of every step, γ^τ and c^τ, (T, *batch, Z).

    Example:
        >>> import numpy as np
        >>> critic, never = np.full((2, 2), [1.0, 3.0]), np.array([False, False])
        >>> discounts = {"gammas": np.array([0.5, 0.9]), "trace_decays": np.array([0.5, 0.8])}
        >>> plain_targets(np.array([1.0, 2.0]), critic, critic, never, never, **discounts)
        array([[2.25, 3.63],
               [2.5 , 3.1 ]])
    """
    values, next_values = deltas.cumsum(-1), next_deltas.cumsum(-1)
    gammas, trace_decays = (np.broadcast_to(each, deltas.shape) for each in (gammas, trace_decays))
    returns, advantage = np.empty_like(values), np.zeros_like(values[0])
    for t in reversed(range(len(rewards))):
        successor = np.where(terminated[t][..., None], 0.0, next_values[t])
        error = rewards[t][..., None] + gammas[t] * successor - values[t]
        ended = (terminated | truncated)[t][..., None]
        advantage = error + np.where(ended, 0.0, trace_decays[t] * advantage)
        returns[t] = values[t] + advantage
    return np.diff(returns, prepend=0.0)


def td_errors(
    rewards: Shaped[Array, " T *batch"],
    deltas: Float[ArrayT, "T *batch Z"],
    next_deltas: Float[Array, "T *batch Z"],
    *,
    terminated: Bool[Array, " T *batch"],
    scales: TimeScales,
    durations: Shaped[Array, " T *batch"] | None = None,
) -> Float[ArrayT, "T *batch Z"]:
    """One-step TD errors δ^z_t of all components, (T, *batch, Z).

        δ^0_t = r_t + (1−d_t) γ_0 W_0(s'_t) − W_0(s_t)
        δ^z_t = (1−d_t) [(γ_z − γ_{z−1}) V_{z−1}(s'_t) + γ_z W_z(s'_t)] − W_z(s_t)

    Every prefix telescopes: Σ_{i≤z} δ^i is the ordinary TD error of V_{γ_z}. With one scale it is the TD error of
    TD(0); `deltas + td_errors(…)` are the targets of one-step TD(Δ).

    Example:
        >>> import numpy as np
        >>> scales = TimeScales.from_gammas([0.5, 0.9])
        >>> deltas, next_deltas = np.array([[1.0, 0.0]]), np.array([[3.0, 0.0]])
        >>> td_errors(np.zeros(1), deltas, next_deltas, terminated=np.array([False]), scales=scales)
        array([[0.5, 1.2]])

    Reference:
        Romoff et al. 2019, section "Single-step TD(Δ)".
    """
    steps = _steps(scales, rewards, deltas, next_deltas, terminated, None, durations)
    return _run(_one_step_errors, deltas, steps, scales=scales)


def n_step_targets(
    rewards: Shaped[Array, " T *batch"],
    deltas: Float[ArrayT, "T *batch Z"],
    next_deltas: Float[Array, "T *batch Z"],
    *,
    terminated: Bool[Array, " T *batch"],
    truncated: Bool[Array, " T *batch"],
    scales: TimeScales,
    durations: Shaped[Array, " T *batch"] | None = None,
) -> Float[ArrayT, "T *batch Z"]:
    """n-step targets G^z_t, (T, *batch, Z), of all components, with windows of k_z = `scales.n_steps[z]` steps.

        G^z_t = Σ_{i<n} (γ_z^i − γ_{z−1}^i) r_{t+i} + (1−d) [(γ_z^n − γ_{z−1}^n) V_{z−1}(x) + γ_z^n W_z(x)]

    n ≤ k_z is the length of the window, ended early by an episode's end (also a truncation) or the end of the data; x
    is the true successor of its last step and d that step's `terminated`. Of `deltas` only shape and dtype matter. With
    `durations` the exponents are the time elapsed.

    With one scale it is the n-step return, with k_z = 1 for all z one-step TD(Δ), with windows that reach every
    episode's end the Monte Carlo return. With equal k_z the sum over components is the ordinary n-step return.

    Example:
        >>> import numpy as np
        >>> scales = TimeScales(gammas=(0.5, 0.9), n_steps=(2, 2))
        >>> critic = np.array([[0.0, 0.0], [2.0, 8.0]])
        >>> flags = np.array([False, False])
        >>> n_step_targets(np.array([1.0, 2.0]), critic, critic, terminated=flags, truncated=flags, scales=scales)[0]
        array([2.5, 8.4])

    Reference:
        Romoff et al. 2019, section "Multi-step TD(Δ)" and Algorithm 1, with k_z where the paper writes k.
    """
    steps = _steps(scales, rewards, deltas, next_deltas, terminated, truncated, durations)
    return _run(_window_targets, deltas, steps, scales=scales, n_steps=needed(scales, "n_steps", "n_step_targets"))


def lambda_targets(
    rewards: Shaped[Array, " T *batch"],
    deltas: Float[ArrayT, "T *batch Z"],
    next_deltas: Float[Array, "T *batch Z"],
    *,
    terminated: Bool[Array, " T *batch"],
    truncated: Bool[Array, " T *batch"],
    scales: TimeScales,
    form: Form = "difference",
    durations: Shaped[Array, " T *batch"] | None = None,
) -> Float[ArrayT, "T *batch Z"]:
    """λ-returns of all components, (T, *batch, Z), with trace decays c_z = `scales.trace_decays[z]`.

    Difference form: W_z(s_t) + X^z_t − X^{z−1}_t, where X^z is the ordinary λ-advantage of V_{γ_z} with discount γ_z
    and decay c_z. It telescopes for any decays: the sum over components is the ordinary λ-return of V_{γ_Z}, that of a
    critic without components.

    Bootstrap form, the paper's: W_z(s_t) + A^z_t with the TD errors δ of `td_errors` and

        A^z_t = δ^z_t + c_z · 1[step t ends no episode] · A^z_{t+1},   A_T = 0.

    With equal decays the forms are the same, and both telescope. Otherwise errors of the fit grow along the ladder in
    the bootstrap form, see `TimeScales.error_gains`.

    With one scale it is the λ-return of TD(λ), and of PPO's value loss; with c_z = 0 it is one-step TD(Δ); with
    c_z = γ_z the bootstrap is gone for one scale: Monte Carlo. The target of the last step of an episode, and of the
    data, is r + γV for any λ, since (1−λ)V + λV = V: the bootstrap is not counted twice and λ has nothing to weigh.

    Example:
        >>> import numpy as np
        >>> scales = TimeScales(gammas=(0.5, 0.9), trace_decays=(0.5, 0.5))
        >>> critic = np.full((2, 2), [1.0, 3.0])
        >>> flags = np.array([False, False])
        >>> lambda_targets(np.array([1.0, 2.0]), critic, critic, terminated=flags, truncated=flags, scales=scales)
        array([[2.25, 3.15],
               [2.5 , 3.1 ]])

    Reference:
        Romoff et al. 2019, sections "TD(λ, Δ)" and "TD(λ, Δ) with GAE", Theorem 1. The difference form is ours.
    """
    steps = _steps(scales, rewards, deltas, next_deltas, terminated, truncated, durations)
    check_form(form)
    decays = needed(scales, "trace_decays", "lambda_targets")
    return _run(_critic_targets, deltas, steps, scales=scales, trace_decays=decays, coupled=form == "difference")


def advantages(
    rewards: Shaped[Array, " T *batch"],
    deltas: Float[ArrayT, "T *batch Z"],
    next_deltas: Float[Array, "T *batch Z"],
    *,
    terminated: Bool[Array, " T *batch"],
    truncated: Bool[Array, " T *batch"],
    scales: TimeScales,
    trace_decay: Any = None,
    durations: Shaped[Array, " T *batch"] | None = None,
) -> Float[ArrayT, " T *batch"]:
    """Ordinary generalised advantages of V_{γ_Z} = Σ_z W_z, (T, *batch), all that the policy sees of the scales.

        A_t = δ_t + c · 1[step t ends no episode] · A_{t+1},   δ_t = r_t + (1−d_t) γ_Z V_Z(s'_t) − V_Z(s_t)

    It is GAE(γ_Z, λ) for c = λ γ_Z, the TD error of one-step actor-critic for c = 0, and the Monte Carlo return less
    the baseline for c = γ_Z. The traces of the critic's other components do not enter, and nothing is normalised.

    c is `trace_decay`, in [0, 1]: a Python float or an array without axes, traced or not. None means λ_Z γ_Z of the
    scales, `actor_trace_decay` if they have it, else the last of `trace_decays`.

    Example:
        >>> import numpy as np
        >>> scales = TimeScales.single(0.9, lam=0.8)
        >>> value, next_value = np.full((3, 1), 0.5), np.array([[0.5], [0.5], [2.0]])
        >>> ended, no = np.array([False, True, False]), np.zeros(3, dtype=bool)
        >>> advantages(np.ones(3), value, next_value, terminated=ended, truncated=no, scales=scales)
        array([1.31, 0.5 , 2.3 ])

    Reference:
        Schulman et al., "High-dimensional continuous control using generalized advantage estimation", ICLR 2016;
        Romoff et al. 2019, section "TD(λ, Δ) with GAE".
    """
    steps = _steps(scales, rewards, deltas, next_deltas, terminated, truncated, durations)
    decay = _actor_decay(trace_decay, scales, deltas)
    return _run(_actor_advantages, deltas, steps, decay, gamma=scales.gammas[-1])


def successors(
    deltas: Float[ArrayT, "T *batch Z"],
    last_deltas: Float[Array, "*batch Z"],
    *,
    terminated: Bool[Array, " T *batch"],
    truncated: Bool[Array, " T *batch"],
    final_deltas: Float[Array, "T *batch Z"] | None = None,
) -> Float[ArrayT, "T *batch Z"]:
    """The critic at the true successor of every step: `next_deltas` for the target functions.

    `deltas[t+1]`, after the last step `last_deltas`; where an episode was cut, `final_deltas[t]`, the critic at the
    final observation, since `deltas[t+1]` belongs to the next episode; where it terminated, zeros.

    Args:
        deltas: W(s_t), (T, *batch, Z).
        last_deltas: W at the observation after the last step, (*batch, Z); does not count where the last step ended
            an episode.
        terminated: Whether s'_t is terminal, (T, *batch), boolean.
        truncated: Whether the episode is cut after step t, (T, *batch), boolean. Both flags mean terminated.
        final_deltas: W at the final observations, (T, *batch, Z). Only entries where an episode was cut count, the
            others may hold anything. Needed if there are any, and always under jit, where nobody can look.

    Returns:
        W(s'_t), (T, *batch, Z), with the dtype of `deltas`.

    Raises:
        ShapeError: Shapes, dtypes or frameworks do not fit; nothing is broadcast.
        ConfigError: `final_deltas` is missing; the message names the step and the batch entry.

    Example:
        >>> import numpy as np
        >>> deltas, flags = np.array([[1.0], [2.0]]), np.array([False, False])
        >>> successors(deltas, np.array([3.0]), terminated=np.array([True, False]), truncated=flags)
        array([[0.],
               [3.]])
    """
    flags = {"terminated": terminated, "truncated": truncated}
    xp: Any = check_steps(deltas, last_deltas=last_deltas, **flags, final_deltas=final_deltas)
    if final_deltas is None:
        check_never_cut(terminated, truncated, xp)
    array: Any = deltas
    following = xp.concat([array[1:], last_deltas[None]])
    if final_deltas is not None:
        following = xp.where(truncated[..., None], final_deltas, following)
    result: ArrayT = xp.where(terminated[..., None], 0.0, following)
    return result


class _Steps(NamedTuple):
    """Arguments of a target function: arrays of one framework whose shapes fit."""

    rewards: Shaped[Array, " T *batch"]
    deltas: Float[Array, "T *batch Z"]
    next_deltas: Float[Array, "T *batch Z"]
    terminated: Bool[Array, " T *batch"]
    truncated: Bool[Array, " T *batch"] | None
    durations: Shaped[Array, " T *batch"] | None


def _steps(scales: Any, *arrays: Any) -> _Steps:
    """Arrays, in the order of `_Steps`, that fit together and have a component for each of the scales."""
    steps = _Steps(*arrays)
    check_components(scales, steps.deltas)
    check_steps(**steps._asdict())
    return steps


def _actor_decay(trace_decay: Any, scales: TimeScales, deltas: Array) -> Array:
    """The decay of the policy's advantage as an array without axes."""
    xp = array_namespace(deltas)
    if trace_decay is None:
        trace_decay = scales.actor_trace_decay
        if trace_decay is None and scales.trace_decays is not None:
            trace_decay = scales.trace_decays[-1]
        if trace_decay is None:
            raise ConfigError(
                "advantages needs trace_decay=, or scales with trace decays; got neither: pass 0.95 * gamma"
            )
    elif framework(trace_decay) is not None:
        if framework(trace_decay) != framework(deltas) or trace_decay.ndim != 0:
            raise ShapeError(
                f"trace_decay must be a float, or an array without axes of the framework of deltas; got a "
                f"{framework(trace_decay)} array of shape {tuple(trace_decay.shape)}: pass one number"
            )
        return xp.astype(trace_decay, single(deltas.dtype, xp), copy=False)
    elif not is_number(trace_decay) or not 0 <= trace_decay <= 1:
        raise ConfigError(
            f"trace_decay must be in [0, 1]; got {trace_decay!r}: it is the product λγ, pass for instance 0.95 * 0.99"
        )
    return constant(float(trace_decay), deltas, xp)


def _run(core: Callable[..., Any], like: ArrayT, *arrays: Any, **static: Any) -> ArrayT:
    """Compile for JAX, so that a call outside jit costs one launch and gives the bytes that it gives inside."""
    given: Any = like
    if given.dtype.itemsize < 4:
        core = _in_single_precision(core, given.dtype)
    if is_jax_array(like):
        core = _compiled(core, tuple(static))
    result: ArrayT = core(*arrays, **static)
    return result


@cache
def _in_single_precision(core: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    """The same function for steps of a smaller dtype, which its result has."""

    def wider(steps: _Steps, *decay: Any, **static: Any) -> Any:
        xp = array_namespace(steps.deltas)

        def wide(array: Any) -> Any:
            return array if array is None or array.dtype == xp.bool else xp.astype(array, xp.float32)

        return xp.astype(core(_Steps(*map(wide, steps)), *map(wide, decay), **static), dtype)

    return wider


@cache
def _compiled(core: Callable[..., Any], static: tuple[str, ...]) -> Callable[..., Any]:
    from jax import jit

    return jit(core, static_argnames=static)


# ---------------------------------------------------------------- arithmetic


def _one_step_errors(steps: _Steps, *, scales: TimeScales) -> Float[Array, "T *batch Z"]:
    deltas = steps.deltas
    xp = array_namespace(deltas)
    rewards, durations = _cast(steps.rewards, deltas, xp), _cast(steps.durations, deltas, xp)
    own, below = _weights(scales.gammas, durations, deltas, xp)
    successor = xp.where(steps.terminated[..., None], 0.0, steps.next_deltas)
    received = xp.where(_first(deltas, xp), rewards[..., None], 0.0)
    return mix(received, successor, own, below, xp) - deltas


def _critic_targets(
    steps: _Steps, *, scales: TimeScales, trace_decays: tuple[float, ...], coupled: bool
) -> Float[Array, "T *batch Z"]:
    """λ-returns of all components; coupled is the difference form, else the bootstrap form."""
    deltas = steps.deltas
    xp = array_namespace(deltas)
    errors = _one_step_errors(steps, scales=scales)
    own, below = _weights(trace_decays, _cast(steps.durations, deltas, xp), deltas, xp)
    # With equal decays the coupling is zero: the two forms are one.
    coupled = coupled and len(set(trace_decays)) > 1
    return deltas + _all_steps_back(errors, steps.terminated | steps.truncated, own, below if coupled else None, xp)


def _actor_advantages(steps: _Steps, trace_decay: Float[Array, ""], *, gamma: float) -> Float[Array, " T *batch"]:
    """Ordinary generalised advantages of V_Z, the sum of all components."""
    xp = array_namespace(steps.deltas)
    values, next_values = (
        array if array.shape[-1] == 1 else xp.sum(array, axis=-1, keepdims=True)
        for array in (steps.deltas, steps.next_deltas)
    )
    alone = steps._replace(deltas=values, next_deltas=next_values)
    errors = _one_step_errors(alone, scales=TimeScales((gamma,)))
    decay = _unfolded(xp.reshape(trace_decay, (1,)), xp)
    if steps.durations is not None:
        elapsed = _cast(steps.durations, values, xp)[..., None]
        positive = decay > 0
        log = xp.log(xp.where(positive, decay, 1.0))
        raised = xp.where(positive, xp.exp(elapsed * log), 0.0)
        decay = xp.where(elapsed == 1, decay + (elapsed - 1) * decay * log, raised)
    return _all_steps_back(errors, steps.terminated | steps.truncated, decay, None, xp)[..., 0]


def _window_targets(steps: _Steps, *, scales: TimeScales, n_steps: tuple[int, ...]) -> Float[Array, "T *batch Z"]:
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
    """Factors of each of few entries, for every entry of the result."""
    size = entries.shape[-1]
    if size == 1:
        return [own]
    place = constant(range(size), entries, xp)
    return [xp.where(place == index, own, xp.where(place > index, below, 0.0)) for index in range(size)]


def _written_out(start: Any, entries: Any, weights: Sequence[Any]) -> Any:
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
