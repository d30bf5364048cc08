"""How far `value_at` is off between trained horizons: exact values of finite processes, and trained agents.

    python benchmarks/queries_error.py          exact values; seconds
    python benchmarks/queries_error.py RUN ...  runs trained with --ladder-factor 1.4142135623730951

Such a run has twice as many horizons as the usual ladder: every second one is asked for, from the others alone.
"""

import sys

import numpy as np

import tddelta as tdd
from tddelta.mixtures import discount_fit

LADDERS = {
    "deep agents, 3.1 … 100": tdd.TimeScales.halving(0.99),
    "deep agents, 3.9 … 1,000": tdd.TimeScales.halving(0.999),
    "tables, 1 … 16": tdd.TimeScales.doubling(0.9375),
    "tables, 1 … 200": tdd.TimeScales.doubling(0.995),
    "every fourth, 3.1 … 100": tdd.TimeScales.from_horizons([3.125, 17.678, 100]),
}
FiniteMDP = tdd.tabular.FiniteMDP


def exact() -> None:
    """Print a row per ladder: the largest error in percent of max |V_γ| over 60 held-out discounts."""
    processes = {
        "rings of 5 and 100": [FiniteMDP.ring(), FiniteMDP.ring(states=100)],
        "chain of 19": [FiniteMDP.chain(19)],
        "20 random processes": [FiniteMDP.random(30, 2, 3, seed=seed, ends=seed % 3) for seed in range(20)],
    }
    print("| ladder, horizons | from steps |", *(f"{name} |" for name in processes), "Σ abs(b) at most |")
    print("|---|---|" + "---|" * (len(processes) + 1))
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
            amplified = np.abs(tdd.value_at(units, scales, held_out)).sum(axis=0).max()
            print(f"| {name} | {least} |", *(f"{error:.2f} % |" for error in worst), f"{amplified:.1f} |")


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
        print("\n| horizon left out | root mean square | largest |\n|---|---|---|")
        for i, z in enumerate(left_out):
            rms, most = np.sqrt((error[:, i] ** 2).mean()) / size[i], np.abs(error[:, i]).max() / size[i]
            print(f"| {run.scales.horizons[z]:.1f} | {100 * rms:.2f} % | {100 * most:.2f} % |")


if __name__ == "__main__":
    if sys.argv[1:]:
        trained(sys.argv[1:])
    else:
        exact()
        hyperbolic()
