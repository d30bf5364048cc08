"""The paper's theorems in numbers: what they say beside what is measured, as rows of tables.

`tddelta.report.theory` draws it, `tddelta reproduce theory` does both.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from math import comb
from typing import Any, get_args

import numpy as np

from tddelta.errors import ContractionWarning
from tddelta.experiments.equivalence import VARIANTS, largest_differences
from tddelta.experiments.phased import phased_tables
from tddelta.experiments.ring import RingPlan
from tddelta.tabular.arrays import FloatArray
from tddelta.tabular.bounds import Kind, counterexample, counterexample_probability, error_bound, lambda_operator
from tddelta.tabular.mdp import FiniteMDP
from tddelta.timescales import Rule, TimeScales

Rows = list[dict[str, Any]]
"""A table: one dictionary per row, all with the same keys."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Bounds by name."""
RULES: tuple[Rule, ...] = get_args(Rule)
"""Trace rules by name."""
METHODS = ("single", "TD(Δ)")
"""Learners that the bounds are for."""


def study(*, quick: bool = False, say: Callable[[str], None] = lambda _: None) -> dict[str, Rows]:
    """Check Theorems 1 to 4 and the counterexample.

    Args:
        quick: Fewer processes, seeds and settings.
        say: Told what comes next.

    Returns:
        The tables "contraction", "ladders", "full-steps", "theorem-1", "coefficients", "phases", "counterexample"
        and "counterexample-errors".

    Raises:
        MissingExtra: numba is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContractionWarning)  # what it warns of is the subject
        tables: dict[str, Rows] = {}
        say("Theorem 2: contraction of the λ-return's operator")
        tables["contraction"] = contraction(seeds=range(2 if quick else 5))
        tables["ladders"] = ladders(seeds=range(2 if quick else 5))
        tables["full-steps"] = full_steps(steps=40)
        say("Theorem 1: TD(Δ) beside single learners")
        tables["theorem-1"] = theorem_one(steps=1000 if quick else 5000)
        say("Theorems 3 and 4: bounds and measured errors")
        tables["coefficients"] = coefficients()
        settings = ((0.9375, 16),) if quick else ((0.75, 4), (0.9375, 16), (0.984375, 64), (0.996, 256))
        tables["phases"] = phases(settings, samples=100, count=20, seeds=range(50 if quick else 200))
        say("the counterexample")
        tables["counterexample"] = coin(seeds=range(500 if quick else 5000))
        tables["counterexample-errors"] = coin_errors()
    return tables


# ---------------------------------------------------------------- Theorem 2


def contraction(*, seeds: Iterable[int]) -> Rows:
    """Largest stretch of a difference between two tables by one full step, on random processes.

    For every discount and decay, λ = c/γ above 1 included: the factor |γ − c| / (1 − c), the operator's largest stretch
    in the maximum norm over all differences, and the stretch of one difference after 50 further steps.
    """
    gammas = TimeScales.halving(0.99).gammas
    rows: Rows = []
    for seed in seeds:
        mdp = FiniteMDP.random(10, 2, 3, seed)
        for gamma in gammas:
            for decay in np.unique([*np.linspace(0, 0.975, 14), gamma]):
                scales = TimeScales((gamma,), (float(decay),))
                matrix = stretch(mdp, scales, 0)
                rows.append(
                    {
                        "process": seed,
                        "gamma": gamma,
                        "decay": float(decay),
                        "lam": float(decay) / gamma,
                        "factor": scales.contraction_factors[0],
                        "largest": float(np.abs(matrix).sum(axis=1).max()),
                        "after_50": _growth(matrix, seed, 50),
                    }
                )
    return rows


def stretch(mdp: FiniteMDP, scales: TimeScales, z: int) -> FloatArray:
    """The operator of component z, the others fixed, as a matrix: from a difference to the difference of targets."""
    base = lambda_operator(mdp, np.zeros((mdp.states, len(scales))), scales)[:, z]
    columns = []
    for state in range(mdp.states):
        table = np.zeros((mdp.states, len(scales)))
        table[state, z] = 1.0
        columns.append(lambda_operator(mdp, table, scales)[:, z] - base)
    return np.stack(columns, axis=1)


def _growth(matrix: FloatArray, seed: int, steps: int) -> float:
    """By how much the last of some steps stretches a difference that was random at first."""
    difference = np.random.default_rng(seed).normal(size=len(matrix))
    ratio = 0.0
    for _ in range(steps + 1):
        after = matrix @ difference
        size = float(np.abs(after).max())
        if size < 1e-14 * float(np.abs(difference).max()):  # c = γ: one step leads to the fixed point
            return 0.0
        ratio, difference = size / float(np.abs(difference).max()), after / size
    return ratio


def paper_ladders() -> Iterator[tuple[str, TimeScales]]:
    """The ladders of the paper's deep agents, λ = .95, under all trace rules, and one of long horizons."""
    for rule in RULES:
        yield rule, TimeScales.halving(0.99, lam=0.95, rule=rule)
    for short in (0.68, 0.92):
        yield f"matched, γ = {short:g} and .99", TimeScales.from_gammas([short, 0.99], lam=0.95, rule="matched")
    yield "matched, up to γ = .9999", TimeScales.halving(0.9999, lam=0.95, rule="matched")


def ladders(*, seeds: Iterable[int]) -> Rows:
    """Which components of the paper's ladders contract: the factor beside the largest stretch on random processes."""
    processes = [FiniteMDP.random(10, 2, 3, seed) for seed in seeds]
    rows: Rows = []
    for name, scales in paper_ladders():
        assert scales.trace_decays is not None
        for z, (gamma, decay) in enumerate(zip(scales.gammas, scales.trace_decays, strict=True)):
            measured = max(float(np.abs(stretch(mdp, scales, z)).sum(axis=1).max()) for mdp in processes)
            rows.append(
                {
                    "ladder": name,
                    "component": z,
                    "gamma": gamma,
                    "horizon": scales.horizons[z],
                    "decay": decay,
                    "lam": decay / gamma,
                    "factor": scales.contraction_factors[z],
                    "largest": measured,
                    "contracts": measured < 1,
                }
            )
    return rows


def full_steps(*, steps: int) -> Rows:
    """Errors of all components under full steps towards their λ-returns, matched rule against capped."""
    mdp = FiniteMDP.random(10, 2, 3, 0)
    rows: Rows = []
    compared: tuple[Rule, Rule] = ("matched", "capped")
    for rule in compared:
        scales = TimeScales.halving(0.99, lam=0.95, rule=rule)
        exact, table = mdp.exact_deltas(scales.gammas), np.zeros((mdp.states, len(scales)))
        for step in range(steps + 1):
            errors = np.abs(table - exact).max(axis=0)
            rows += [
                {"rule": rule, "step": step, "quantity": f"W_{z}", "gamma": scales.gammas[z], "error": float(errors[z])}
                for z in range(len(scales))
            ]
            whole = float(np.abs((table - exact).sum(axis=1)).max())
            rows.append({"rule": rule, "step": step, "quantity": "V", "gamma": scales.gammas[-1], "error": whole})
            table = lambda_operator(mdp, table, scales)
    return rows


# ---------------------------------------------------------------- Theorem 1


def theorem_one(*, steps: int, seed: int = 0) -> Rows:
    """Largest difference between every prefix of TD(Δ) and the single learner at its discount."""
    scales = TimeScales.halving(0.99, lam=0.95, rule="matched")
    rows: Rows = []
    for variant in VARIANTS:
        differences, sizes = largest_differences(scales, variant, steps=steps, seed=seed)
        rows += [
            {
                "variant": variant,
                "prefix": z,
                "gamma": scales.gammas[z],
                "steps": steps,
                "largest_weight": float(sizes[z]),
                "largest_difference": float(differences[z]),
            }
            for z in range(len(scales))
        ]
    return rows


# ---------------------------------------------------------------- Theorems 3 and 4


def ring_ladders(gamma: float, window: int) -> tuple[TimeScales, TimeScales]:
    """The single estimator and TD(Δ) of the ring experiment."""
    return TimeScales.single(gamma, n_step=window), TimeScales.doubling(gamma, n_step=window)


def coefficients() -> Rows:
    """What multiplies ε in every bound of one phase on the ring, over the paper's grid of discounts and windows."""
    ring, grid = FiniteMDP.ring(), RingPlan()
    rows: Rows = []
    for gamma in grid.gammas:
        for window in grid.n_steps:
            for method, scales in zip(METHODS, ring_ladders(gamma, window), strict=True):
                row = {"gamma": gamma, "k": window, "method": method, "components": len(scales)}
                bounds = _bounds(ring, scales, samples=100)
                rows.append(row | {kind: bound.coefficient for kind, bound in bounds.items()})
    return rows


def phases(settings: Iterable[tuple[float, int]], *, samples: int, count: int, seeds: Iterable[int]) -> Rows:
    """Sums of the components' errors on the ring after every phase, beside the bounds.

    A bound is followed from phase to phase from the error of the zero table. `broken_…` is the share of seeds in which
    one phase broke the bound that follows from the errors measured before it.
    """
    ring, seeds = FiniteMDP.ring(), list(seeds)
    rows: Rows = []
    for gamma, window in settings:
        both = ring_ladders(gamma, window)
        learned = phased_tables(ring, both, samples=samples, phases=count, seeds=seeds)
        for method, scales, tables in zip(METHODS, both, learned, strict=True):
            away = tables - ring.exact_deltas(scales.gammas)
            errors = np.abs(away).max(axis=2)  # Δ^z, (N, P + 1, Z)
            sums, whole = errors.sum(axis=-1), np.abs(away.sum(axis=-1)).max(axis=-1)
            bounds = _bounds(ring, scales, samples=samples)
            curves = {kind: bound.phases(errors[0, 0], count).sum(axis=-1) for kind, bound in bounds.items()}
            single = {kind: bound.after(errors[:, :-1]).sum(axis=-1) for kind, bound in bounds.items()}
            for phase in range(count + 1):
                row = {
                    "gamma": gamma,
                    "k": window,
                    "method": method,
                    "phase": phase,
                    "samples": samples,
                    "seeds": len(seeds),
                    "error_sum_mean": float(sums[:, phase].mean()),
                    "error_sum_largest": float(sums[:, phase].max()),
                    "value_error_mean": float(whole[:, phase].mean()),
                    "value_error_largest": float(whole[:, phase].max()),
                }
                row |= {kind: float(curve[phase]) for kind, curve in curves.items()}
                row |= {
                    f"broken_{kind}": float((sums[:, phase] > bound[:, phase - 1]).mean()) if phase else None
                    for kind, bound in single.items()
                }
                rows.append(row)
    return rows


def coin(*, seeds: Iterable[int], gamma: float = 0.9, samples: int = 50, probability: float = 0.05) -> Rows:
    """How often one phase breaks every bound on the counterexample, started from exact values, k = 1.

    The chance is exact, from the binomial distribution; the share is that of the seeds.
    """
    mdp, seeds = counterexample(), list(seeds)
    both = ring_ladders(gamma, 1)
    exact = [mdp.exact_deltas(scales.gammas) for scales in both]
    learned = phased_tables(mdp, both, samples=samples, phases=1, seeds=seeds, initial=exact)
    rows: Rows = []
    for method, scales, truth, tables in zip(METHODS, both, exact, learned, strict=True):
        sums = np.abs(tables[:, 1] - truth).max(axis=1).sum(axis=-1)
        for kind, bound in _bounds(mdp, scales, samples=samples, probability=probability).items():
            limit = float(bound.after(np.zeros(len(scales))).sum())
            chance = counterexample_probability(scales, kind, samples=samples, probability=probability)
            rows.append(
                {
                    "method": method,
                    "bound": kind,
                    "gamma": gamma,
                    "samples": samples,
                    "claimed": probability,
                    "limit": limit,
                    "broken_exact": chance,
                    "broken_share": float((sums > limit).mean()),
                    "seeds": len(seeds),
                }
            )
    return rows


def coin_errors(*, gamma: float = 0.9, samples: int = 50) -> Rows:
    """Distribution of the error of V on the counterexample after one phase: γ/(1−γ) |mean of n coins ±1|."""
    size = gamma / (1 - gamma)
    return [
        {
            "heads_more_than_tails": 2 * heads - samples,
            "error": size * abs(2 * heads / samples - 1),
            "chance": comb(samples, heads) / 2**samples,
        }
        for heads in range(samples + 1)
    ]


def _bounds(mdp: FiniteMDP, scales: TimeScales, *, samples: int, probability: float = 0.05) -> dict[Kind, Any]:
    values = mdp.exact_values(scales.gammas)
    return {
        kind: error_bound(scales, kind, samples=samples, probability=probability, states=mdp.states, values=values)
        for kind in KINDS
    }
