"""Theorems 2, 3 and 4 of the paper: the operator of the λ-return, and error bounds of phased learning.

In phased learning every phase follows n trajectories from every state, averages the n-step targets over them, and
bootstraps from the table of the phase before. Rewards lie in [−1, 1]; Δ^z_t is the largest error of W_z over states
after phase t.
"""

from fractions import Fraction
from math import comb, log, sqrt
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tddelta import _plain, timescales
from tddelta._arrays import FloatArray, numbers
from tddelta.decomposition import compose, decompose
from tddelta.errors import ConfigError, ShapeError
from tddelta.tabular.mdp import FiniteMDP, reaching
from tddelta.timescales import TimeScales, needed

Kind = Literal["published", "worst_case", "known_range"]
"""Kind of error bound: as the paper states it, or one of the two that hold."""


class PhasedBound(NamedTuple):
    """Bound of every component's error after a phase: Δ^z_t ≤ ε · noise[z] + Σ_u carry[z, u] · Δ^u_{t−1}.

    Attributes:
        epsilon: ε, which bounds the mean of n samples in [−1, 1] around its expectation.
        noise: Factor of ε for every component, shape (Z,).
        carry: Factors of the errors of the phase before, shape (Z, Z).
    """

    epsilon: float
    noise: FloatArray
    carry: FloatArray

    @property
    def coefficient(self) -> float:
        """Factor of ε in the bound of Σ_z Δ^z, and so in the bound of the error of V_Z."""
        return float(self.noise.sum())

    def after(self, errors: npt.ArrayLike) -> FloatArray:
        """Bounds of Δ^z_t after one phase, from errors Δ^z_{t−1}, both of shape (*batch, Z), or a ShapeError.

        Their sum over the last axis bounds the error of V_Z.
        """
        given = numbers("errors", errors)
        if given.shape[-1:] != self.noise.shape:
            raise ShapeError(
                f"errors must have {len(self.noise)} entries on the last axis, one per component; "
                f"got shape {given.shape}: pass Δ^z of every component"
            )
        return self.epsilon * self.noise + given @ self.carry.T

    def phases(self, errors: npt.ArrayLike, count: int) -> FloatArray:
        """Bounds after 0, 1, …, `count` ≥ 1 phases, (count + 1, Z), from errors Δ^z, (Z,), before the first.

        Each follows from the one before; with fresh samples in every phase all hold together with probability
        1 − count · δ. A ShapeError or ConfigError for another shape or count.
        """
        bounds = [numbers("errors", errors)]
        for _ in range(_plain.whole("count", count)):
            bounds.append(self.after(bounds[-1]))
        return np.stack(bounds)


def error_bound(
    scales: TimeScales,
    kind: Kind = "known_range",
    *,
    samples: int,
    probability: float = 0.05,
    states: int | None = None,
    values: npt.ArrayLike | None = None,
) -> PhasedBound:
    """Error bound of one phase of phased TD(Δ) with k_z-step targets, for one scale the bound of the single estimator.

    carry[z, u] = γ_z^{k_z} − γ_{z−1}^{k_z} for u < z, γ_z^{k_z} for u = z, else 0, and with H(f) half the range of f

        published:   noise[z] = Σ_{i<k_z} (γ_z^i − γ_{z−1}^i),                 ε = sqrt(2 log(2 k_Z / δ) / n)
        known_range: that + (γ_z^{k_z} − γ_{z−1}^{k_z}) H(V_{z−1}) + γ_z^{k_z} H(W_z),  ε = sqrt(2 log(2 Z |S| / δ) / n)
        worst_case:  the same with H(V_z) = 1/(1−γ_z) and H(W_z) = 1/(1−γ_z) − 1/(1−γ_{z−1}),

    Z being the number of components. The published bound (Theorems 3 and 4) is false: it leaves out the sampling error
    of the bootstrapped values, and the union over states; see `counterexample`. In the worst case the coefficient is
    1/(1−γ_Z) whatever the components and their k_z: that form shows no variance reduction. Where rewards reach up to
    ±c, divide `values` by c: the bound is then one of the errors divided by c.

    Args:
        scales: Discounts below 1 and `n_steps`.
        kind: One of the three; the latter two hold.
        samples: Trajectories n ≥ 1 from every state.
        probability: δ in (0, 1): the bound of one phase holds with probability 1 − δ.
        states: Number of states |S|; needed for "worst_case".
        values: Exact values V_z(s), shape (S, Z), as from `FiniteMDP.exact_values`; needed for "known_range".

    Raises:
        ConfigError: Something is missing or out of range, the last discount is 1, or the windows of the published
            bound are not in ascending order, which its theorem does not cover.
        ShapeError: `values` has another shape than (S, Z), or no states.

    Example:
        >>> scales = TimeScales.doubling(0.9375, n_step=16)
        >>> values = FiniteMDP.ring().exact_values(scales.gammas)
        >>> round(error_bound(scales, "known_range", samples=100, values=values).coefficient, 2)
        8.11
        >>> round(error_bound(scales, "worst_case", samples=100, states=5).coefficient, 2)
        16.0

    Reference:
        Romoff et al. 2019, Theorems 3 and 4; Kearns and Singh 2000.
    """
    _plain.one_of("kind", kind, get_args(Kind))
    n, chance = _plain.whole("samples", samples), timescales.unit_number("probability", probability)
    if not 0 < chance < 1:
        raise ConfigError(f"probability must be above 0 and below 1; got {chance}: .05 is usual")
    gammas, windows = np.array(scales.gammas), needed(scales, "n_steps", "error_bound")
    if gammas[-1] == 1:
        raise ConfigError("the error bounds need discounts below 1; got 1.0: values have no bound at gamma=1")
    if kind == "published" and list(windows) != sorted(windows):
        raise ConfigError(f"the published bound needs ascending n_steps; got {windows}: use known_range or worst_case")
    steps = np.array(windows)
    below = np.concatenate([[0.0], gammas[:-1]])
    # for z = 0 the weight of γ_{−1} is 0, also to the power 0
    power, lower = gammas**steps, np.where(np.arange(len(gammas)) > 0, below**steps, 0.0)
    noise = (1 - power) / (1 - gammas)
    noise[1:] -= (1 - lower[1:]) / (1 - below[1:])
    carry = np.diag(power) + np.tril(np.broadcast_to((power - lower)[:, None], (len(gammas),) * 2), -1)
    if kind == "published":
        return PhasedBound(sqrt(2 * log(2 * windows[-1] / chance) / n), noise, carry)
    count, value_ranges, delta_ranges = _ranges(gammas, kind, states, values)
    noise += (power - lower) * np.concatenate([[0.0], value_ranges[:-1]]) + power * delta_ranges
    return PhasedBound(sqrt(2 * log(2 * len(gammas) * count / chance) / n), noise, carry)


def _ranges(gammas: FloatArray, kind: str, states: Any, values: Any) -> tuple[int, FloatArray, FloatArray]:
    """|S|, H(V_z) and H(W_z)."""
    if kind == "worst_case":
        if states is None:
            raise ConfigError("the worst-case bound needs the number of states: pass states=mdp.states")
        largest = 1 / (1 - gammas)
        return _plain.whole("states", states), largest, np.diff(largest, prepend=0.0)
    if values is None:
        raise ConfigError("the known-range bound needs exact values: pass values=mdp.exact_values(scales.gammas)")
    exact = numbers("values", values)
    if exact.ndim != 2 or exact.shape[1] != len(gammas) or not len(exact):
        raise ShapeError(
            f"values must have shape (S, Z) with a state at least and Z = {len(gammas)} discounts; got {exact.shape}: "
            "pass mdp.exact_values(scales.gammas)"
        )
    return len(exact), np.ptp(exact, axis=0) / 2, np.ptp(decompose(exact), axis=0) / 2


def lambda_operator(mdp: FiniteMDP, deltas: npt.ArrayLike, scales: TimeScales) -> FloatArray:
    """Expected λ-return of every component from every state: W_z + (I − c_z P)^{−1} δ^z, with δ^z the mean TD error.

    The operator of component z, the other components fixed, has the max-norm factor |γ_z − c_z| / (1 − c_z) where no
    episode ends: see `TimeScales.contraction_factors`. Its fixed point are the exact components.

    Args:
        mdp: The process and its policy.
        deltas: Components W_z(s), shape (S, Z).
        scales: Discounts and trace decays.

    Returns:
        Expected targets, shape (S, Z); 0 in terminal states.

    Raises:
        ShapeError: `deltas` has another shape.
        ConfigError: The scales have no trace decays, or one is 1 and some state never reaches an end.

    Reference:
        Romoff et al. 2019, Theorem 2.
    """
    shape = mdp.states, len(scales)
    table = numbers("deltas", deltas, shape, f"(S, Z) = {shape}", "one component per state and discount")
    decays, transition = needed(scales, "trace_decays", "lambda_operator"), mdp.state_transition
    if 1 in decays and not reaching(transition, mdp.terminal).all():
        raise ConfigError(
            "the λ-return with trace decay 1 does not converge, as some states never reach an end: pass a smaller lam"
        )
    table = np.where(mdp.terminal[:, None], 0.0, table)
    values = compose(table)
    targets = np.empty_like(table)
    for z, (gamma, decay) in enumerate(zip(scales.gammas, decays, strict=True)):
        bootstrap = gamma * table[:, z]
        if z:
            bootstrap += (gamma - scales.gammas[z - 1]) * values[:, z - 1]
        errors = transition @ bootstrap - table[:, z] + (0 if z else mdp.state_reward)
        targets[:, z] = table[:, z] + np.linalg.solve(np.eye(mdp.states) - decay * transition, errors)
    return targets


def counterexample() -> FiniteMDP:
    """Process for which the published bound fails: one coin, then +1 for ever or −1 for ever.

    State 0 pays nothing and leads to state 1 or 2 with probability ½ each; they pay +1 and −1 on every step: V(0) = 0
    and V(1) = −V(2) = 1/(1−γ).
    """
    coin = [[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    return FiniteMDP(coin, np.array([0.0, 1.0, -1.0])[:, None, None], names=("coin", "up", "down"))


def counterexample_probability(
    scales: TimeScales | None = None, kind: Kind = "published", *, samples: int = 50, probability: float = 0.05
) -> float:
    """Chance that one phase of learning, started from exact values, breaks a bound on `counterexample`: exact.

    The sum of the components' errors in state 0 is γ_Z/(1−γ_Z) times the mean of n coins ±1, whatever the windows. The
    arguments, and the errors that they may raise, are those of `error_bound`: the chance should not exceed
    `probability`. No `scales` mean the single estimator with γ = .9 and k = 1.

    Example:
        >>> round(counterexample_probability(), 4), round(counterexample_probability(kind="known_range"), 4)
        (0.6718, 0.0003)
    """
    scales = TimeScales.single(0.9, n_step=1) if scales is None else scales
    mdp, n = counterexample(), _plain.whole("samples", samples)
    values = mdp.exact_values(scales.gammas)
    bound = error_bound(scales, kind, samples=n, probability=probability, states=mdp.states, values=values)
    limit, size = bound.epsilon * bound.coefficient, scales.gammas[-1] / (1 - scales.gammas[-1])
    ways = sum(comb(n, heads) for heads in range(n + 1) if size * abs(2 * heads / n - 1) > limit)
    return float(Fraction(ways, 2**n))
