"""The paper's theorems in numbers: what they say beside what is measured, as tables, figures and statements.

`measure` measures, `statements` and `drawings` show it, `tddelta reproduce theory` does both.
"""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import comb
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tddelta._arrays import FloatArray, IntArray
from tddelta.errors import ConfigError, ContractionWarning
from tddelta.paper.ring import RingPlan
from tddelta.report.figures import INK, Drawing, colour, label, laid_out, new_figure
from tddelta.report.tables import Table
from tddelta.tabular.bounds import Kind, counterexample, counterexample_probability, error_bound, lambda_operator
from tddelta.tabular.evaluation import Method, evaluate
from tddelta.tabular.mdp import FiniteMDP
from tddelta.tabular.sampling import Trajectory, packed, sample
from tddelta.targets import n_step_targets, td_errors
from tddelta.timescales import Rule, TimeScales, needed

Rows = list[dict[str, Any]]
"""A table: one dictionary per row, all with the same keys."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Bounds by name."""
RULES: tuple[Rule, ...] = get_args(Rule)
"""Trace rules by name."""
METHODS = ("single", "TD(Δ)")
"""Learners that the bounds are for."""


def measure(*, quick: bool = False, say: Callable[[str], None] = lambda _: None) -> dict[str, Rows]:
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
    with warnings.catch_warnings(action="ignore", category=ContractionWarning):  # what it warns of is the subject
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
    rows: Rows = []
    for seed, gamma in itertools.product(seeds, TimeScales.halving(0.99).gammas):
        mdp = FiniteMDP.random(10, 2, 3, seed)
        for decay in np.unique([*np.linspace(0, 0.975, 14), gamma]).tolist():
            scales = TimeScales((gamma,), (decay,))
            matrix = stretch(mdp, scales, 0)
            rows.append(
                {
                    "process": seed,
                    "gamma": gamma,
                    "decay": decay,
                    "lam": decay / gamma,
                    "factor": scales.contraction_factors[0],
                    "largest": float(np.abs(matrix).sum(axis=1).max()),
                    "after_50": _growth(matrix, seed, 50),
                }
            )
    return rows


def stretch(mdp: FiniteMDP, scales: TimeScales, z: int) -> FloatArray:
    """The operator of component z, the others fixed, as a matrix: from a difference to the difference of targets."""
    tables = np.zeros((mdp.states + 1, mdp.states, len(scales)))  # the first one is all zeros
    tables[1:, :, z] = np.eye(mdp.states)
    base, *columns = (lambda_operator(mdp, table, scales)[:, z] for table in tables)
    return np.stack([column - base for column in columns], axis=1)


def _growth(matrix: FloatArray, seed: int, steps: int) -> float:
    """Factor by which the last of some steps stretches a difference that was random at first."""
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
    """Contraction of the components of the paper's ladders: factors beside the largest stretch on random processes."""
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
        names, gammas = [f"W_{z}" for z in range(len(scales))] + ["V"], (*scales.gammas, scales.gammas[-1])
        for step in range(steps + 1):
            away = table - exact
            errors = np.abs(np.column_stack([away, away.sum(axis=1)])).max(axis=0)
            rows += [
                {"rule": rule, "step": step, "quantity": name, "gamma": gamma, "error": float(error)}
                for name, gamma, error in zip(names, gammas, errors, strict=True)
            ]
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
                "gamma": gamma,
                "steps": steps,
                "largest_weight": float(sizes[z]),
                "largest_difference": float(differences[z]),
            }
            for z, gamma in enumerate(scales.gammas)
        ]
    return rows


Variant = Literal["forward", "accumulating", "replacing", "true online", "momentum"]
"""Learners for which Theorem 1 holds, by name."""
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""All of them."""

_METHODS: dict[Variant, Method] = {
    "forward": "lambda_return",
    "accumulating": "traces",
    "true online": "true_online",
}  # what `evaluate` calls them; the others it does not have
_MOMENTUM = 0.5
_CHUNK = 100  # steps between two updates of the forward view
_TIMES = 50  # how often weights are compared
_STEP_SIZE = 0.02


def largest_differences(
    scales: TimeScales, variant: Variant, *, steps: int = 1000, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Run TD(Δ) beside a single TD(λ) learner for every discount, on one stream with ends and truncations.

    Linear features, eight binary ones that several states share. The learners are those of `evaluate`: "forward" its
    offline λ-returns, "accumulating" its traces, "true online". "replacing" and "momentum", accumulating traces with a
    heavy ball, are made of `td_errors` here. Weights are compared after 50 numbers of steps, evenly spaced, the last
    one T.

    Args:
        scales: The time scales, with one trace decay for all.
        variant: How is learned.
        steps: Steps T of the stream.
        seed: Seed of the process, the stream, the features and the first weights.

    Returns:
        max_t |Σ_{i≤z} θ^i_t − θ_t of the learner with γ_z|, and the largest |θ_t| of that learner, both of shape (Z,).
    """
    mdp = FiniteMDP.random(20, 2, 3, seed, ends=2)
    stream = Trajectory._make(array[0] for array in sample(mdp, steps, [seed], time_limit=40))
    generator = np.random.default_rng(seed)
    features = (generator.random((mdp.states, 8)) < 0.4).astype(np.float64)
    first = generator.normal(size=(8, len(scales)))
    times = np.unique(np.linspace(0, steps, min(steps, _TIMES) + 1).astype(int))[1:]
    decay, *others = dict.fromkeys(scales.trace_decays or ())
    assert not others, "Theorem 1 is about equal decays"

    def learn(own: TimeScales, begin: FloatArray) -> FloatArray:
        """Weights at all times, (times, F, Z)."""
        if variant not in _METHODS:
            return np.take(_written_out(own, decay, variant, stream, features, begin), times - 1, axis=0)
        options: dict[str, Any] = {"method": _METHODS[variant], "step_sizes": [_STEP_SIZE], "features": features}
        options |= {"initial_deltas": begin, "chunk": _CHUNK if variant == "forward" else None}
        # `evaluate` keeps the last weights only: so once for every number of steps
        parts = (Trajectory._make(array[:length] for array in stream) for length in times)
        return np.stack([np.asarray(evaluate(mdp, own, trajectory=part, **options).weights)[0, 0] for part in parts])

    with warnings.catch_warnings(action="ignore", category=ContractionWarning):  # small steps are stable
        singles = [TimeScales((gamma,), (decay,)) for gamma in scales.gammas]
    starts = np.split(np.cumsum(first, axis=1), len(scales), axis=1)
    alone = np.concatenate([learn(one, begin) for one, begin in zip(singles, starts, strict=True)], axis=-1)
    parts = learn(scales, first)
    return np.abs(np.cumsum(parts, axis=-1) - alone).max(axis=(0, 1)), np.abs(alone).max(axis=(0, 1))


def _written_out(
    scales: TimeScales, decay: float, variant: Variant, stream: Trajectory, features: FloatArray, first: FloatArray
) -> FloatArray:
    """Weights after every step, (T, F, Z), of the learners that `evaluate` does not have."""
    weights, velocity, trace = first.copy(), np.zeros_like(first), np.zeros(len(first))
    history = np.empty((len(stream.states), *first.shape))
    for t, (state, after) in enumerate(zip(stream.states, stream.next_states, strict=True)):
        now = slice(t, t + 1)
        errors = td_errors(
            stream.rewards[now],
            (features[state] @ weights)[None],
            (features[after] @ weights)[None],
            terminated=stream.terminated[now],
            scales=scales,
        )
        if variant == "replacing":
            trace = np.where(features[state] == 1, 1.0, decay * trace)
            velocity = np.outer(trace, errors)
        else:
            trace = decay * trace + features[state]
            velocity = _MOMENTUM * velocity + np.outer(trace, errors)
        weights += _STEP_SIZE * velocity
        if stream.terminated[t] or stream.truncated[t]:
            trace = np.zeros_like(trace)
        history[t] = weights
    return history


# ---------------------------------------------------------------- Theorems 3 and 4


def ring_ladders(gamma: float, window: int) -> tuple[TimeScales, TimeScales]:
    """The single estimator and TD(Δ) of the ring experiment."""
    return TimeScales.single(gamma, n_step=window), TimeScales.doubling(gamma, n_step=window)


def coefficients() -> Rows:
    """Coefficient of ε in every bound of one phase on the ring, over the paper's grid of discounts and windows."""
    ring, grid = FiniteMDP.ring(), RingPlan()
    rows: Rows = []
    for gamma, window in itertools.product(grid.gammas, grid.n_steps):
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
    """Frequency with which one phase breaks every bound on the counterexample, started from exact values, k = 1.

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


# ---------------------------------------------------------------- phased learning
#
# `evaluate(method="phased")` follows every trajectory and keeps the last table. Theorems 3 and 4 are about the
# components' errors after each phase, of two learners on the same samples, for n in the hundreds and windows up to 256
# steps, over hundreds of seeds: half a day of single steps. Here the numbers of trajectories in every state are drawn.

_MOST = 2**27  # numbers in memory for one seed: a GiB


def phased_tables(
    mdp: FiniteMDP,
    ladders: Sequence[TimeScales],
    *,
    samples: int,
    phases: int,
    seeds: Iterable[int],
    initial: Sequence[npt.ArrayLike] | None = None,
) -> list[FloatArray]:
    """Tables after every phase, for several ladders that learn from the same trajectories.

    In every phase n fresh trajectories start in every state; W_z becomes the mean of their k_z-step targets, with the
    values of the phase before. Only means over trajectories matter, so it is their number in every state that is drawn,
    step by step, from multinomial distributions: the cost does not depend on n.

    Args:
        mdp: The process and its policy.
        ladders: Discounts and windows of each learner.
        samples: Trajectories n ≥ 1 from every state.
        phases: Number of phases P.
        seeds: Seeds, N of them.
        initial: Components before the first phase, (S, Z) per ladder; None means zeros.

    Returns:
        Components W_z(s) per ladder, shape (N, P + 1, S, Z).

    Raises:
        ConfigError: A ladder has no windows, or windows so long that their steps do not fit into memory.
    """
    windows = [_windows(scales, phases * mdp.states**2) for scales in ladders]
    weights = [_weights(scales, max(window)) for scales, window in zip(ladders, windows, strict=True)]
    tables = []
    for place, scales in enumerate(ladders):
        first = np.zeros((mdp.states, len(scales))) if initial is None else np.asarray(initial[place], np.float64)
        tables.append(np.broadcast_to(first, (phases + 1, mdp.states, len(scales))).copy())
    per_seed = []
    for seed in seeds:
        rewards, places = _means(mdp, windows, samples, phases, np.random.default_rng(seed))
        per_seed.append([_learn(*each) for each in zip(weights, rewards, places, tables, strict=True)])
    return [np.stack(results) for results in zip(*per_seed, strict=True)]


def _windows(scales: TimeScales, numbers: int) -> IntArray:
    """Windows k_z, for each step of which so many numbers are kept."""
    windows = needed(scales, "n_steps", "phased learning")
    if max(windows) * numbers > _MOST:
        raise ConfigError(
            f"windows must be at most {_MOST // numbers} steps long here, to fit into memory; got {max(windows)}: "
            "pass a shorter n_step, or fewer phases"
        )
    return np.array(windows)


def _weights(scales: TimeScales, steps: int) -> tuple[FloatArray, FloatArray]:
    """Weights of n-step targets for each of K rewards, shape (K, Z), and for W_u at the window's end, shape (Z, Z).

    Targets are linear in both, so `n_step_targets` of unit vectors are their weights.
    """
    count = len(scales)
    none, units = np.zeros((steps, steps, count)), np.eye(steps)
    never = np.zeros((steps, steps), bool)
    received = n_step_targets(units, none, none, terminated=never, truncated=never, scales=scales)[0]
    none, ends = np.zeros((steps, count, count)), np.broadcast_to(np.eye(count), (steps, count, count))
    still, never = np.zeros((steps, count)), np.zeros((steps, count), bool)
    return received, n_step_targets(still, none, ends, terminated=never, truncated=never, scales=scales)[0]


def _means(
    mdp: FiniteMDP, windows: Sequence[IntArray], samples: int, phases: int, generator: np.random.Generator
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Draw every phase: the mean reward of each step, and where each component's window ends.

    Returns:
        Per ladder the mean rewards, shape (K, P, S), and the shares of trajectories from s in x after k_z steps, shape
        (Z, P, S, S).
    """
    outcomes, chances = packed((mdp.policy[:, :, None] * mdp.transition).reshape(mdp.states, -1))
    gains = np.take_along_axis(mdp.reward.reshape(mdp.states, -1), outcomes, axis=1)
    arrivals = np.eye(mdp.states)[outcomes % mdp.states].reshape(-1, mdp.states)

    longest = int(max(window.max() for window in windows))
    rewards = np.empty((longest, phases, mdp.states))
    shares = np.empty((longest + 1, phases, mdp.states, mdp.states))
    counts = np.broadcast_to(samples * np.eye(mdp.states, dtype=np.int64), shares.shape[1:])
    shares[0] = counts / samples
    for step in range(longest):
        drawn = generator.multinomial(counts, chances)  # (P, S, S, outcomes)
        rewards[step] = (drawn * gains).sum(axis=(-2, -1)) / samples
        counts = np.rint(drawn.reshape(phases, mdp.states, -1) @ arrivals).astype(np.int64)
        shares[step + 1] = counts / samples
    return [rewards[: int(window.max())] for window in windows], [shares[window] for window in windows]


def _learn(
    weights: tuple[FloatArray, FloatArray], rewards: FloatArray, places: FloatArray, start: FloatArray
) -> FloatArray:
    """Run all phases; `start` holds the first table, shape (P + 1, S, Z)."""
    tables = start.copy()
    received, bootstrapped = weights
    earned = np.einsum("kz,kps->psz", received, rewards)
    for phase in range(len(tables) - 1):
        ends = tables[phase] @ bootstrapped  # what every component's target gets from an end in x
        tables[phase + 1] = earned[phase] + np.einsum("zsx,xz->sz", places[:, phase], ends)
    return tables


# ---------------------------------------------------------------- tables and statements

Tables = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows by name of the table."""

_COLOURS = {"single": colour(0), "TD(Δ)": colour(5)}
_BOUND_LINES = {
    "published": ("published", "--"),
    "known_range": ("known range", ":"),
    "worst_case": ("worst case", "-."),
}
_CAPTIONS = {
    "contraction": "Theorem 2: the factor |γ − c|/(1 − c) beside the largest stretch of a difference between two "
    "tables by one full step, in the maximum norm, and the stretch after 50 steps, on random processes.",
    "ladders": "Theorem 2 on the ladders of the paper: which components contract.",
    "full-steps": "Errors under full steps towards the expected λ-returns, γ = .99, λ = .95.",
    "theorem-1": "Theorem 1: largest difference at 50 times between a prefix of TD(Δ) and the single learner.",
    "coefficients": "What multiplies ε in the bounds of one phase on the ring.",
    "phases": "Measured errors of phased learning on the ring, and the bounds.",
    "counterexample": "How often one phase breaks each bound on the counterexample.",
    "counterexample-errors": "Distribution of the error on the counterexample after one phase of the single estimator.",
}


def tables(results: Tables) -> Iterator[Table]:
    """Make the tables, for `Table.to_csv`."""
    for name, rows in results.items():
        yield Table(name, _CAPTIONS[name], (), [dict(row) for row in rows])


def statements(results: Tables) -> list[str]:
    """Say in sentences what the numbers show, for better or worse: one or two per finding."""
    off = max(abs(row["largest"] - row["factor"]) for row in results["contraction"])
    growing = [row for row in results["ladders"] if row["ladder"] == "matched" and not row["contracts"]]
    named = ", ".join(f"γ = {row['gamma']:.2f} by {row['factor']:.2f}" for row in growing)
    prefixes = max(row["largest_difference"] for row in results["theorem-1"])
    coins = {(row["method"], row["bound"]): row for row in results["counterexample"]}
    published, shares = coins["single", "published"], {name: row["broken_exact"] for name, row in coins.items()}
    lines = [
        f"Theorem 2 holds and its factor is reached: the largest stretch differs from |γ − c|/(1 − c) by {off:.1e} at "
        "most, also for λ > 1.",
        f"Under the paper's matched rule (γ = .99, λ = .95) full steps stretch errors of {named}; with the capped rule "
        "every component contracts.",
        f"Theorem 1 holds for every prefix in every view: the largest difference is {prefixes:.1e}.",
        "Theorems 3 and 4 are false as published: with the claimed probability "
        f"{published['claimed']:g} of failure, the counterexample breaks the bound with probability "
        f"{published['broken_exact']:.4f} ({published['broken_share']:.3f} of {published['seeds']} seeds), that of "
        f"TD(Δ) with {shares['TD(Δ)', 'published']:.4f}. The corrected bounds are broken with probability "
        f"{shares['single', 'known_range']:.2g} and {shares['TD(Δ)', 'known_range']:.2g}.",
    ]
    for gamma, k in ((0.9375, 16), (0.996, 256)):
        single, split = _where(results["coefficients"], gamma=gamma, k=k)
        lines.append(
            f"Ring, γ = {gamma:g}, k = {k}, what multiplies ε in one phase: with known ranges "
            f"{single['known_range']:.2f} for the single estimator and {split['known_range']:.2f} for TD(Δ). The valid "
            f"worst-case form shows no variance reduction: {single['worst_case']:.2f} and {split['worst_case']:.2f}."
        )
    last = _where(results["phases"], phase=results["phases"][-1]["phase"])
    for single, split in zip(last[::2], last[1::2], strict=True):
        visible = any(split[kind] < 0.99 * single[kind] for kind in ("published", "known_range"))
        lines.append(
            f"Ring, γ = {single['gamma']:g}, k = {single['k']}, after {single['phase']} phases: the measured error of "
            f"V is {single['value_error_mean']:.3f} for the single estimator and {split['value_error_mean']:.3f} for "
            f"TD(Δ), whose components' errors sum to {split['error_sum_mean']:.3f}. Followed over the phases the "
            f"bounds are {single['published']:.2f} and {split['published']:.2f} as published, "
            f"{single['known_range']:.2f} and {split['known_range']:.2f} with known ranges"
            + ("." if visible else ": over many phases no bound shows a reduction.")
        )
    return lines


def _where(rows: Sequence[Mapping[str, Any]], **values: Any) -> list[Mapping[str, Any]]:
    """Rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


# ---------------------------------------------------------------- figures


def drawings(results: Tables) -> Iterator[Drawing]:
    """Draw every figure."""
    figures = {"contraction": _contraction, "full-steps": _full_steps, "theorem-1": _theorem_one,
               "coefficients": _coefficients}  # fmt: skip
    drawn = [(name, name, draw(results[name])) for name, draw in figures.items()]
    for gamma, k in dict.fromkeys((row["gamma"], row["k"]) for row in results["phases"]):
        drawn.append((f"phases-{gamma:g}-{k}", "phases", _phases(_where(results["phases"], gamma=gamma, k=k))))
    drawn.append(("counterexample", "counterexample", _counterexample(results)))
    for name, table, figure in drawn:
        yield laid_out(Drawing(name, "theory", name, _CAPTIONS[table], _CAPTIONS[table], figure))


def _plot(axes: Axes, rows: Sequence[Mapping[str, Any]], x: str, y: str, *style: str, **given: Any) -> None:
    """Draw one column of some rows against another."""
    axes.plot([row[x] for row in rows], [row[y] for row in rows], *style, **given)


def _contraction(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure, (axes,) = new_figure(height=3.8)
    for place, gamma in enumerate(sorted({row["gamma"] for row in rows})):
        below, above = np.linspace(0, gamma, 100), np.linspace(gamma, 0.985, 100)
        with warnings.catch_warnings(action="ignore", category=ContractionWarning):  # the figure shows where it grows
            for decays, dash, text in ((below, "-", f"γ = {gamma:.2f}"), (above, "--", None)):
                factors = [TimeScales((gamma,), (float(decay),)).contraction_factors[0] for decay in decays]
                axes.plot(decays, factors, dash, color=colour(place), linewidth=1.4, label=text)
        _plot(axes, _where(rows, gamma=gamma), "decay", "largest", "o", color=colour(place), markersize=3)
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_ylim(0, 3)
    axes.set_xlim(0, 1)
    x, note = "Trace decay c = λγ (dashed: λ > 1)", "lines: factor, dots: measured"
    return _finish(figure, axes, x, "Stretch by a full step", note)


def _full_steps(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure, all_axes = new_figure(2, height=5.4, share_x=True)
    for axes, rule in zip(all_axes, ("matched", "capped"), strict=True):
        for place, quantity in enumerate(dict.fromkeys(row["quantity"] for row in rows)):
            # what a component has reached exactly has no place on a logarithmic axis
            own = [{**row, "error": max(row["error"], 1e-16)} for row in _where(rows, rule=rule, quantity=quantity)]
            whole = quantity == "V"
            _plot(
                axes,
                own,
                "step",
                "error",
                linestyle="--" if quantity == "W_0" else "-",  # it grows as W_1 does, with the other sign
                color=INK if whole else colour(place + 1),
                linewidth=2.2 if whole or quantity == "W_0" else 1.2,
                label=quantity if whole else f"{quantity}, γ = {own[0]['gamma']:.2f}",
            )
        axes.set_yscale("log")
        axes.set_title(f"rule {rule}", color=INK, fontsize=10, loc="left")
        label(axes, "", "Largest error")
    return _finish(figure, all_axes[-1], "Full steps", "Largest error", None)


def _theorem_one(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure, (axes,) = new_figure(height=3.4)
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    for place, variant in enumerate(variants):
        own = _where(rows, variant=variant)
        across = [row["prefix"] + 0.12 * (place - len(variants) / 2) for row in own]
        differences = [max(row["largest_difference"], 1e-17) for row in own]
        axes.plot(across, differences, "osD^v"[place], color=colour(place), markersize=4, label=variant)
    axes.axhline(1e-12, color=INK, linewidth=0.8)
    axes.set_yscale("log")
    first = _where(rows, variant=variants[0])
    axes.set_xticks([row["prefix"] for row in first], [f"{row['gamma']:.2f}" for row in first])
    return _finish(figure, axes, "Prefix up to discount γ", "Largest difference of weights", "0 is drawn at 1e-17")


def _coefficients(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure, all_axes = new_figure(2, height=5.8, share_x=True)
    for axes, gamma in zip(all_axes, (0.9375, 0.996), strict=True):
        for (method, shade), kind in itertools.product(_COLOURS.items(), ("published", "known_range")):
            name, dash = _BOUND_LINES[kind]
            own = _where(rows, gamma=gamma, method=method)
            _plot(axes, own, "k", kind, dash, color=shade, label=f"{method}, {name}")
        worst = max(row["worst_case"] for row in _where(rows, gamma=gamma))
        axes.axhline(worst, color=INK, linewidth=1.0)
        note = "worst case, both methods and every k: no variance reduction"
        axes.text(0.01, worst, note, transform=axes.get_yaxis_transform(), va="bottom", fontsize=8, color=INK)
        axes.set_ylim(0, worst * 1.12)
        axes.set_xscale("log", base=2)
        axes.set_title(f"ring, γ = {gamma:g}", color=INK, fontsize=10, loc="left")
        label(axes, "", "What multiplies ε")
    return _finish(figure, all_axes[-1], "Steps k of the longest window", "What multiplies ε", None)


def _phases(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure, (axes,) = new_figure(height=4.4)
    for method, shade in _COLOURS.items():
        own = _where(rows, method=method)
        _plot(axes, own, "phase", "value_error_mean", color=shade, label=f"{method}, error of V")
        if method != "single":
            sums = {"linewidth": 0.8, "marker": ".", "label": f"{method}, sum of errors"}
            _plot(axes, own, "phase", "error_sum_mean", color=shade, **sums)
        for kind, (name, dash) in _BOUND_LINES.items():
            _plot(axes, own, "phase", kind, dash, color=shade, linewidth=1.2, label=f"{method}, {name}")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    first = rows[0]
    axes.set_title(f"ring, γ = {first['gamma']:g}, k = {first['k']}", color=INK, fontsize=10, loc="left")
    note = f"mean over {first['seeds']} seeds, n = {first['samples']}; the worst case shows no variance reduction"
    return _finish(figure, axes, "Phase", "Largest error over states", note)


def _counterexample(results: Tables) -> Figure:
    figure, (axes,) = new_figure(height=3.6)
    chances: dict[float, float] = {}
    for row in results["counterexample-errors"]:
        error = round(row["error"], 9)
        chances[error] = chances.get(error, 0.0) + row["chance"]
    step = sorted(chances)[1]
    limits = {row["bound"]: row for row in _where(results["counterexample"], method="single")}
    beyond = [colour(3) if error > limits["published"]["limit"] else colour(2) for error in chances]
    axes.bar(list(chances), list(chances.values()), width=0.8 * step, color=beyond)
    for kind in ("published", "known_range"):
        row, (name, dash) = limits[kind], _BOUND_LINES[kind]
        text = f"{name} bound, broken with probability {row['broken_exact']:.4f}"
        axes.axvline(row["limit"], linestyle=dash, color=INK, linewidth=1.4, label=text)
    axes.set_xlim(-step, limits["known_range"]["limit"] * 1.1)
    row = limits["published"]
    note = f"γ = {row['gamma']:g}, k = 1, n = {row['samples']}, δ = {row['claimed']:g}"
    return _finish(figure, axes, "Error of V after one phase from exact values", "Probability", note)


def _finish(figure: Figure, axes: Axes, x: str, y: str, note: str | None) -> Figure:
    """Label the axes and put one legend below the figure."""
    label(axes, x, y)
    handles, names = axes.get_legend_handles_labels()
    legend = figure.legend(
        handles,
        names,
        title=note,
        fontsize=8,
        title_fontsize=8,
        frameon=False,
        labelcolor=INK,
        loc="outside lower left",
        ncols=1 if max(map(len, names)) > 34 else 2,
        alignment="left",
    )
    legend.get_title().set_color(INK)
    return figure
