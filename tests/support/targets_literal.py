"""The targets written out literally, one entry at a time in double precision: slow, and hard to get wrong.

Each follows a different line of reasoning than the library: sums over windows and differences of ordinary targets of
V_z instead of recursions over components.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tddelta.errors import ContractionWarning
from tddelta.timescales import TimeScales


def make_scales(gammas, decays=None, windows=None) -> TimeScales:
    """Scales that need not contract: the identities hold all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContractionWarning)
        return TimeScales(tuple(gammas), decays, windows)


@dataclass(frozen=True)
class Problem:
    """One call of a target function."""

    gammas: tuple[float, ...]
    decays: tuple[float, ...]
    windows: tuple[int, ...]
    rewards: np.ndarray
    deltas: np.ndarray
    next_deltas: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    durations: np.ndarray | None = None

    @property
    def scales(self) -> TimeScales:
        return make_scales(self.gammas, self.decays, self.windows)

    @property
    def ends(self) -> np.ndarray:
        return self.terminated | self.truncated

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.rewards, self.deltas, self.next_deltas

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of every function but `td_errors`."""
        return {
            "terminated": self.terminated,
            "truncated": self.truncated,
            "scales": self.scales,
            "durations": self.durations,
        }

    @property
    def td_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name != "truncated"}

    def value(self, z: int) -> "Problem":
        """The same with V_z as the only scale."""
        return replace(
            self,
            deltas=self.deltas[..., : z + 1].sum(-1, keepdims=True),
            next_deltas=self.next_deltas[..., : z + 1].sum(-1, keepdims=True),
            gammas=self.gammas[z : z + 1],
            decays=self.decays[z : z + 1],
            windows=self.windows[z : z + 1],
        )

    def steps(self, part: slice) -> "Problem":
        return self.pick(lambda array: array[part])

    def pick(self, of: Callable[[np.ndarray], np.ndarray]) -> "Problem":
        """The same function of every array."""
        names = ("rewards", "deltas", "next_deltas", "terminated", "truncated", "durations")
        return replace(self, **{n: of(getattr(self, n)) for n in names if getattr(self, n) is not None})


def _elapsed(problem: Problem, stream: tuple, start: int, stop: int) -> float:
    if problem.durations is None:
        return float(stop - start)
    return float(sum(problem.durations[(t, *stream)] for t in range(start, stop)))


def _discount(problem: Problem, gamma: float, stream: tuple, start: int, stop: int) -> float:
    return gamma ** _elapsed(problem, stream, start, stop)


def window_return(problem: Problem, z: int, gamma: float, steps: int, t: int, stream: tuple) -> float:
    """The ordinary n-step return of V_z (z = −1: zero) with discount gamma from t."""
    total = 0.0
    for i in range(t, min(t + steps, len(problem.rewards))):
        total += _discount(problem, gamma, stream, t, i) * problem.rewards[(i, *stream)]
        if problem.ends[(i, *stream)] or i == min(t + steps, len(problem.rewards)) - 1:
            if not problem.terminated[(i, *stream)]:
                bootstrap = problem.next_deltas[(i, *stream)][: z + 1].sum()
                total += _discount(problem, gamma, stream, t, i + 1) * bootstrap
            return total
    raise AssertionError("a window has at least one step")


def lambda_return(problem: Problem, z: int, gamma: float, decay: float, t: int, stream: tuple) -> float:
    """V_z + its λ-advantage with discount gamma and trace decay, as a sum of decayed TD errors."""
    value = problem.deltas[(t, *stream)][: z + 1].sum()
    total, weight = value, 1.0
    for i in range(t, len(problem.rewards)):
        successor = 0.0 if problem.terminated[(i, *stream)] else problem.next_deltas[(i, *stream)][: z + 1].sum()
        gamma_now = _discount(problem, gamma, stream, i, i + 1)
        error = problem.rewards[(i, *stream)] + gamma_now * successor - problem.deltas[(i, *stream)][: z + 1].sum()
        total += weight * error
        weight *= _discount(problem, decay, stream, i, i + 1)
        if problem.ends[(i, *stream)]:
            break
    return total


def _every(problem: Problem, ordinary: Callable[..., float]) -> np.ndarray:
    """Target of V_z less that of V_{z−1}, of every step; f(z, γ, own, t, stream), `own` says whose window or decay."""
    gammas, result = problem.gammas, np.empty(problem.deltas.shape)
    for t, *stream, z in np.ndindex(result.shape):
        place = z, t, tuple(stream)
        below = ordinary(z - 1, gammas[z - 1], *place) if z else 0.0
        result[(t, *stream, z)] = ordinary(z, gammas[z], *place) - below
    return result


def td_errors(problem: Problem) -> np.ndarray:
    def ordinary(z, gamma, own, t, stream):
        return window_return(problem, z, gamma, 1, t, stream)

    return _every(problem, ordinary) - problem.deltas


def n_step_targets(problem: Problem) -> np.ndarray:
    """G^z = R(V_z; γ_z, k_z) − R(V_{z−1}; γ_{z−1}, k_z)."""

    def ordinary(z, gamma, own, t, stream):
        return window_return(problem, z, gamma, problem.windows[own], t, stream)

    return _every(problem, ordinary)


def lambda_targets(problem: Problem, form: str = "difference") -> np.ndarray:
    """Bootstrap form: the decay c_z in both terms of the difference; difference form: each with its own."""

    def ordinary(z, gamma, own, t, stream):
        return lambda_return(problem, z, gamma, problem.decays[own if form == "bootstrap" else z], t, stream)

    return _every(problem, ordinary)


def advantages(problem: Problem, decay: float) -> np.ndarray:
    result, last = np.empty(problem.rewards.shape), len(problem.gammas) - 1
    for t, *stream in np.ndindex(result.shape):
        target = lambda_return(problem, last, problem.gammas[-1], decay, t, tuple(stream))
        result[(t, *stream)] = target - problem.deltas[(t, *stream)].sum()
    return result
