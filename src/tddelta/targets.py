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

Rewards, flags and durations belong to the transition out of s_t, never to an observation that starts an episode.
Nothing is broadcast or converted: shapes, dtypes or frameworks that do not fit are a ShapeError, a duration that is not
above 0 or not finite a DataError (looked at in NumPy only), and what is no `TimeScales` a ConfigError. Results have the
dtype of `deltas`.

Nothing is detached. In a loss a target is a constant: put `jax.lax.stop_gradient` or `.detach()` around it.

Everything is computed in single precision at least: where `deltas` are bfloat16 or float16, discounts, decays, rewards
and all steps back are float32, and only the result is cast to the dtype of `deltas`.

Not a number or infinity in the data stays in its own stream (its entry of the batch axes). Where a batch axis is as
long as the scale axis, swapped axes cannot be told by their shape.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from array_api_compat import array_namespace, is_jax_array
from jaxtyping import Bool, Float, Shaped

from tddelta import _recursions as recursions
from tddelta._arrays import (
    Array,
    ArrayT,
    check_components,
    check_form,
    check_never_cut,
    check_steps,
    constant,
    framework,
    single,
)
from tddelta._plain import is_number
from tddelta.errors import ConfigError, ShapeError
from tddelta.timescales import TimeScales

Form = Literal["bootstrap", "difference"]
"""How λ-returns of the components are coupled: see `lambda_targets`."""


def td_errors(
    rewards: Shaped[Array, " T *batch"],
    deltas: Float[ArrayT, "T *batch Z"],
    next_deltas: Float[Array, "T *batch Z"],
    *,
    terminated: Bool[Array, " T *batch"],
    scales: TimeScales,
    durations: Shaped[Array, " T *batch"] | None = None,
) -> Float[ArrayT, "T *batch Z"]:
    """One-step TD errors δ^z_t of all components.

        δ^0_t = r_t + (1−d_t) γ_0 W_0(s'_t) − W_0(s_t)
        δ^z_t = (1−d_t) [(γ_z − γ_{z−1}) V_{z−1}(s'_t) + γ_z W_z(s'_t)] − W_z(s_t)

    Every prefix telescopes: Σ_{i≤z} δ^i is the ordinary TD error of V_{γ_z}. With one scale it is the TD error of
    TD(0); `deltas + td_errors(…)` are the targets of one-step TD(Δ).

    Args:
        rewards: r_t, (T, *batch); this and all others as in the head of the module.
        deltas: W(s_t), (T, *batch, Z).
        next_deltas: W(s'_t) at the true successors, (T, *batch, Z).
        terminated: d_t, (T, *batch).
        scales: The time scales.
        durations: τ_t > 0, (T, *batch), or None for 1.

    Returns:
        δ, (T, *batch, Z).

    Raises:
        ShapeError: Shapes, dtypes or frameworks do not fit.
        DataError: A duration is not above 0 or not finite.
        ConfigError: `scales` is not a `TimeScales`.

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
    return _run(recursions.one_step_errors, deltas, steps, scales=scales)


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
    """n-step targets G^z_t of all components, with windows of k_z = `scales.n_steps[z]` steps.

        G^z_t = Σ_{i<n} (γ_z^i − γ_{z−1}^i) r_{t+i} + (1−d) [(γ_z^n − γ_{z−1}^n) V_{z−1}(x) + γ_z^n W_z(x)]

    n ≤ k_z is the length of the window, ended early by an episode's end (also a truncation) or the end of the data; x
    is the true successor of its last step and d that step's `terminated`.

    With one scale it is the n-step return, with k_z = 1 for all z one-step TD(Δ), with windows that reach every
    episode's end the Monte Carlo return. With equal k_z the sum over components is the ordinary n-step return.

    Args:
        rewards: r_t, (T, *batch); this and all others as in the head of the module.
        deltas: W(s_t), (T, *batch, Z). Only shape and dtype matter.
        next_deltas: W(s'_t) at the true successors, (T, *batch, Z).
        terminated: d_t, (T, *batch).
        truncated: Whether the episode is cut after step t, (T, *batch).
        scales: The time scales with `n_steps`. Longer windows than the data are fine.
        durations: τ_t > 0, (T, *batch), or None for 1: the exponents become the time elapsed.

    Returns:
        G, (T, *batch, Z).

    Raises:
        ShapeError: Shapes, dtypes or frameworks do not fit.
        DataError: A duration is not above 0 or not finite.
        ConfigError: `scales` has no `n_steps`, or is not a `TimeScales`.

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
    if scales.n_steps is None:
        raise ConfigError(
            "n_step_targets needs windows; these scales have none: make them with n_step=, as in n_step=5"
        )
    return _run(recursions.window_targets, deltas, steps, scales=scales, n_steps=scales.n_steps)


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
    """λ-returns of all components, with trace decays c_z = `scales.trace_decays[z]`.

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

    Args:
        rewards: r_t, (T, *batch); this and all others as in the head of the module.
        deltas: W(s_t), (T, *batch, Z).
        next_deltas: W(s'_t) at the true successors, (T, *batch, Z).
        terminated: d_t, (T, *batch).
        truncated: Whether the episode is cut after step t, (T, *batch).
        scales: The time scales with `trace_decays`.
        form: "difference" or "bootstrap".
        durations: τ_t > 0, (T, *batch), or None for 1.

    Returns:
        Targets for W(s_t), (T, *batch, Z).

    Raises:
        ShapeError: Shapes, dtypes or frameworks do not fit.
        DataError: A duration is not above 0 or not finite.
        ConfigError: `scales` has no `trace_decays` or is not a `TimeScales`, or `form` is unknown.

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
    if scales.trace_decays is None:
        raise ConfigError(
            "lambda_targets needs trace decays; these scales have none: make them with lam=, as in lam=0.95"
        )
    settings = {"trace_decays": scales.trace_decays, "coupled": form == "difference"}
    return _run(recursions.critic_targets, deltas, steps, scales=scales, **settings)


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
    """Ordinary generalised advantages of V_{γ_Z} = Σ_z W_z, all that the policy sees of the scales.

        A_t = δ_t + c · 1[step t ends no episode] · A_{t+1},   δ_t = r_t + (1−d_t) γ_Z V_Z(s'_t) − V_Z(s_t)

    It is GAE(γ_Z, λ) for c = λ γ_Z, the TD error of one-step actor-critic for c = 0, and the Monte Carlo return less
    the baseline for c = γ_Z. The traces of the critic's other components do not enter.

    Args:
        rewards: r_t, (T, *batch); this and all others as in the head of the module.
        deltas: W(s_t), (T, *batch, Z).
        next_deltas: W(s'_t) at the true successors, (T, *batch, Z).
        terminated: d_t, (T, *batch).
        truncated: Whether the episode is cut after step t, (T, *batch).
        scales: The time scales.
        trace_decay: c in [0, 1], a Python float or an array without axes, traced or not. None means λ_Z γ_Z of the
            scales: `actor_trace_decay` if they have it, else the last of `trace_decays`.
        durations: τ_t > 0, (T, *batch), or None for 1.

    Returns:
        A, (T, *batch); not normalised.

    Raises:
        ShapeError: Shapes, dtypes or frameworks do not fit.
        DataError: A duration is not above 0 or not finite.
        ConfigError: `trace_decay` is outside [0, 1], or neither given nor known from `scales`.

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
    return _run(recursions.actor_advantages, deltas, steps, decay, gamma=scales.gammas[-1])


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


def _steps(scales: Any, *arrays: Any) -> recursions.Steps:
    """Arrays, in the order of `Steps`, that fit together and have a component for each of the scales."""
    steps = recursions.Steps(*arrays)
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

    def wider(steps: recursions.Steps, *decay: Any, **static: Any) -> Any:
        xp = array_namespace(steps.deltas)

        def wide(array: Any) -> Any:
            return array if array is None or array.dtype == xp.bool else xp.astype(array, xp.float32)

        return xp.astype(core(recursions.Steps(*map(wide, steps)), *map(wide, decay), **static), dtype)

    return wider


@cache
def _compiled(core: Callable[..., Any], static: tuple[str, ...]) -> Callable[..., Any]:
    from jax import jit

    return jit(core, static_argnames=static)
