"""The values on which sweeps of λ-returns over a log settle, solved for at once.

For features φ, V(s) = θ·φ(s), the λ-returns G_t(θ) of all steps, and regression of G on φ with penalties κ, the sweep
has its fixed point where Σ_t φ_t (G_t(θ) − φ_t·θ) = κ θ. G is linear in θ, so that this is a linear system: LSTD(λ).
For labels φ has one entry per state, there is no penalty, and at the fixed point V(s) is the mean of the λ-returns that
followed s: with λ = 0 the exact values of the Markov chain that was seen, with λ = 1 averaged returns.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, sparse
from scipy.sparse import linalg as sparse_linalg

from tddelta.errors import ConfigError
from tddelta.tabular.arrays import BoolArray, FloatArray

_DENSE = 100  # up to so many features the whole matrix is made
_BLOCK = 2**23  # entries of the arrays on the way there


class Regression(NamedTuple):
    """Steps of whole episodes, one after the other.

    Attributes:
        features: φ(s_t), sparse (T, D).
        successors: φ(s'_t), sparse (T, D); rows of zeros where the step terminated.
        rewards: r_t, (T,).
        last: Whether step t is the last of its episode, (T,).
        durations: τ_t, (T,), or None for 1.
        penalty: κ of every feature, (D,).
    """

    features: Any
    successors: Any
    rewards: FloatArray
    last: BoolArray
    durations: FloatArray | None
    penalty: FloatArray


def solve(problem: Regression, gamma: float, decay: float) -> FloatArray:
    """Weights θ of V at one discount.

    Args:
        problem: The steps and their features.
        gamma: Discount γ in [0, 1]; γ^τ counts where there are durations.
        decay: Trace decay c = λγ in [0, 1]; c^τ counts where there are durations.

    Returns:
        θ, (D,).

    Raises:
        ConfigError: The features do not determine the weights, or the iteration for many features did not converge.
    """
    features = problem.features
    discounts, decays = (powers(base, problem.durations, len(problem.rewards)) for base in (gamma, decay))
    difference = (features - sparse.diags_array(discounts) @ problem.successors).tocsc()
    carry = np.where(problem.last, 0.0, decays)
    received = features.T @ backwards(carry, problem.rewards)
    if decay == 0:
        matrix = (features.T @ difference + sparse.diags_array(problem.penalty)).tocsc()
        return _checked(matrix, received, lambda: sparse_linalg.splu(matrix).solve(received), gamma)
    if features.shape[1] <= _DENSE:
        dense = _dense(features, difference, carry, problem.penalty)
        return _checked(dense, received, lambda: linalg.solve(dense, received), gamma)
    return _iterate(features, difference, carry, problem.penalty, received, gamma, decay)


def backwards(carry: FloatArray, entries: FloatArray) -> FloatArray:
    """x_t = entries_t + carry_t · x_{t+1}, with x_T = 0, by solving the system of two diagonals that this is.

    Args:
        carry: (T,); 0 where an episode ends.
        entries: (T,) or (T, N).

    Returns:
        x, of the shape of `entries`.
    """
    if len(entries) == 1:
        return entries.copy()  # SciPy wants as many columns as diagonals
    bands = np.ones((2, len(carry)))
    bands[0, 0], bands[0, 1:] = 0.0, -carry[:-1]
    solved: FloatArray = linalg.solve_banded((0, 1), bands, entries, check_finite=False)
    return solved


def powers(base: float, durations: FloatArray | None, steps: int) -> FloatArray:
    """base^τ for every step; the base itself to the last digit where τ is 1.

    Args:
        base: A discount or trace decay in [0, 1].
        durations: τ_t, (T,), or None for 1.
        steps: T.

    Returns:
        Weights, (T,).
    """
    if durations is None:
        return np.full(steps, base)
    return np.where(durations == 1, base, base**durations)


def _dense(features: Any, difference: Any, carry: FloatArray, penalty: FloatArray) -> FloatArray:
    """Φᵀ (I − C)⁻¹ (Φ − ΓΦ′) + κ, where (I − C)⁻¹ sums up what follows within an episode."""
    size = features.shape[1]
    matrix = np.diag(penalty)
    width = max(1, _BLOCK // len(carry))
    for start in range(0, size, width):
        block = difference[:, start : start + width].toarray()
        matrix[:, start : start + width] += features.T @ backwards(carry, block)
    return matrix


def _checked(matrix: Any, received: FloatArray, run: Any, gamma: float) -> FloatArray:
    """The solution of a system, or an error that says why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", linalg.LinAlgWarning)
            solution: FloatArray = run()
    except (RuntimeError, linalg.LinAlgError):
        solution = np.full_like(received, np.nan)
    scale = abs(matrix).sum(axis=1).max() * np.abs(solution).max() + np.abs(received).max()
    if not np.isfinite(solution).all() or np.abs(matrix @ solution - received).max() > 1e-8 * scale:
        raise ConfigError(
            f"the log does not determine the values at γ={gamma:.6g}: pass a discount below 1, a trace decay below the "
            "discount (rule='capped'), or a larger ridge"
        )
    return solution


def _iterate(
    features: Any,
    difference: Any,
    carry: FloatArray,
    penalty: FloatArray,
    received: FloatArray,
    gamma: float,
    decay: float,
) -> FloatArray:
    """The same for more features: the matrix is only ever applied, and never made."""
    size = features.shape[1]

    def apply(weights: FloatArray) -> FloatArray:
        found: FloatArray = features.T @ backwards(carry, difference @ weights) + penalty * weights
        return found

    # A sweep of regressions on λ-returns shrinks errors by about (γ − c)/(1 − c). With short traces solving for c = 0
    # instead leaves less, about c.
    short = decay < 1 and decay < (gamma - decay) / (1 - decay)
    nearly = features.T @ (difference if short else features) + sparse.diags_array(penalty)
    factors = sparse_linalg.splu(nearly.tocsc())
    operator, preconditioner = (
        sparse_linalg.LinearOperator((size, size), matvec=function, dtype=np.float64)
        for function in (apply, factors.solve)
    )
    weights, failed = sparse_linalg.gmres(
        operator, received, M=preconditioner, rtol=1e-11, atol=0.0, restart=100, maxiter=20
    )
    if failed:
        raise ConfigError(
            f"the values of {size} states or tiles at γ={gamma:.6g} did not settle within 2000 iterations: pass "
            "method='td0', another λ, or fewer tiles"
        )
    solution: FloatArray = weights
    return solution
