"""Error of `value_at` between trained horizons: exact values of finite processes, and trained agents.

    python benchmarks/queries_error.py          exact values; seconds
    python benchmarks/queries_error.py RUN ...  runs trained with --scales halving factor=1.4142135623730951

Such a run has twice as many horizons as the usual ladder: every second one is asked for, from the others alone.
"""

import sys

import numpy as np
from scipy.optimize import linprog

import tddelta as tdd
from tddelta.queries import discount_fit

LADDERS = {
    "deep agents, 3.1 … 100": tdd.TimeScales.halving(0.99),
    "deep agents, 3.9 … 1,000": tdd.TimeScales.halving(0.999),
    "tables, 1 … 16": tdd.TimeScales.doubling(0.9375),
    "tables, 1 … 200": tdd.TimeScales.doubling(0.995),
    "tables, 1 … 16, 1.4 and 2.8 too": tdd.TimeScales.from_horizons([1, 2**0.5, 2, 8**0.5, 4, 8, 16]),
    "every fourth, 3.1 … 100": tdd.TimeScales.from_horizons([3.125, 17.678, 100]),
}
FiniteMDP = tdd.tabular.FiniteMDP


def exact() -> None:
    """Print a row per ladder: the largest error in percent of max |V_γ| over 60 held-out discounts."""
    processes = {
        "rings of 5 and 100": [FiniteMDP.ring(), FiniteMDP.ring(states=100)],
        "chains of 19 and 40": [FiniteMDP.chain(19), FiniteMDP.chain(40, forward=0.6)],
        "20 random processes": [FiniteMDP.random(30, 2, 3, seed=seed, ends=seed % 3) for seed in range(20)],
    }
    print("| ladder, horizons | from steps |", *(f"{name} |" for name in processes), "Σ abs(b) at most | Λ |")
    print("|---|---|" + "---|" * (len(processes) + 2))
    for name, scales in LADDERS.items():
        for least in (1, 3) if scales.horizons[0] < 3 else (3,):
            horizons = np.geomspace(max(least, scales.horizons[0]), scales.horizons[-1], 62)[1:-1]
            held_out = list(1 - 1 / horizons)
            worst = []
            for mdps in processes.values():
                errors = []
                for mdp in mdps:
                    true = mdp.exact_values(held_out)
                    found = tdd.value_at(mdp.exact_deltas(scales.gammas), scales, held_out)
                    errors.append((np.abs(found - true).max(axis=0) / np.abs(true).max(axis=0)).max())
                worst.append(100 * max(errors))
            units = tdd.decompose(np.eye(len(scales)))
            weights = np.abs(tdd.value_at(units, scales, held_out))
            amplified = weights.sum(axis=0).max()
            lebesgue = (np.array(scales.horizons)[:, None] * weights).sum(axis=0) / horizons  # of (1 − γ) V
            print(
                f"| {name} | {least} |",
                *(f"{error:.2f} % |" for error in worst),
                f"{amplified:.1f} | {lebesgue.max():.1f} |",
            )


def limit(gammas: tuple[float, ...], gamma: float, steps: int) -> float:
    """Error that no function of the values at `gammas` can be better than, in percent of max |V_γ|.

    Two chains with rewards r, r' ≥ 0 whose first states have the same value at every trained discount, and values at γ
    that lie as far apart as they can: half of that is the error on one of them. A linear programme; no state of either
    chain is worth more than 1 at γ.
    """
    times = np.arange(steps)
    ahead = times[None] - times[:, None]
    suffix = np.where(ahead >= 0, gamma ** np.maximum(ahead, 0).astype(float), 0.0)  # V_γ of every state
    trained = np.array(gammas)[:, None] ** times
    trained /= trained.sum(axis=1, keepdims=True)
    apart = np.concatenate([suffix[0], -suffix[0]]) / 2
    found = linprog(
        -apart,
        A_ub=np.kron(np.eye(2), suffix),
        b_ub=np.ones(2 * steps),
        A_eq=np.concatenate([trained, -trained], axis=1),
        b_eq=np.zeros(len(gammas)),
    )
    return -100 * float(found.fun)


def limits() -> None:
    """Print the least error that any function of the trained values can promise on every process."""
    print("\n| ladder, horizons | held-out horizon | no function of V promises less than |\n|---|---|---|")
    for name, asked in (("tables, 1 … 16", (1.3, 1.5, 2.8, 6.0)), ("deep agents, 3.1 … 100", (4.4, 8.8, 17.7, 70.0))):
        gammas = LADDERS[name].gammas
        for horizon in asked:
            print(f"| {name} | {horizon} | {limit(gammas, 1 - 1 / horizon, 300):.2f} % |")


def hyperbolic() -> None:
    """Print how well the ladders follow hyperbolic discounts up to their longest horizon."""
    print("\n| ladder, horizons | k | largest error of the discount | Σ abs(b) |\n|---|---|---|---|")
    for name, scales in list(LADDERS.items())[:2]:
        for k in (0.001, 0.01, 0.1):
            fit = discount_fit(scales, lambda t, k=k: 1 / (1 + k * t))
            print(f"| {name} | {k} | {fit.error:.4f} | {fit.amplification:.1f} |")


def trained(runs: list[str]) -> None:
    """Print a row per run: values at every second horizon, from the others, on held-out states."""
    for run in tdd.load_runs(*runs):
        assert run.critic is not None
        values, gammas = run.critic["predicted"].astype(np.float64), np.array(run.scales.gammas)
        kept = np.arange(len(gammas))[::-1][::2][::-1]
        scales = tdd.TimeScales.from_gammas(gammas[kept])
        left_out = [z for z in range(kept[0], len(gammas)) if z not in kept]
        found = tdd.value_at(tdd.decompose(values[:, kept]), scales, list(gammas[left_out]))
        error = found - values[:, left_out]
        size = np.abs(values[:, left_out]).max(axis=0)
        print(f"\n{run.environment}, {run.agent}, {run.status['steps']:,} steps, {len(values):,} held-out states")
        print("\n| horizon left out | root mean square | 99 % of states within | largest |\n|---|---|---|---|")
        for i, z in enumerate(left_out):
            sizes = 100 * np.abs(error[:, i]) / size[i]
            found_out = np.sqrt((sizes**2).mean()), np.quantile(sizes, 0.99), sizes.max()
            print(f"| {run.scales.horizons[z]:.1f} |", *(f"{each:.2f} % |" for each in found_out))


if __name__ == "__main__":
    if sys.argv[1:]:
        trained(sys.argv[1:])
    else:
        exact()
        limits()
        hyperbolic()
