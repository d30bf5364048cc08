"""TD(Δ) in plain NumPy: learn the value of an endless reward of 1 at five horizons, with one call for all targets.

The exact answer is known: V_z = 1 / (1 - γ_z), so W = 1, 1, 2, 4, 8.

    python examples/targets_numpy.py
"""

import numpy as np

import tddelta as tdd

T = 32  # steps between two updates
STEP_SIZE = 0.5


def main() -> None:
    """Learn a table with one state."""
    scales = tdd.TimeScales.doubling(gamma=0.9375, lam=0.8)  # horizons 1, 2, 4, 8, 16
    rewards = np.ones(T)
    no_end = np.zeros(T, dtype=bool)
    table = np.zeros(len(scales))  # W of the only state

    for _ in range(200):
        deltas = np.broadcast_to(table, (T, len(scales)))
        next_deltas = tdd.successors(deltas, table, terminated=no_end, truncated=no_end)
        targets = tdd.lambda_targets(rewards, deltas, next_deltas, terminated=no_end, truncated=no_end, scales=scales)
        table = table + STEP_SIZE * (targets.mean(axis=0) - table)

    print("horizon        W   exact        V   exact")
    exact = np.asarray(scales.horizons)
    rows = zip(exact, table, tdd.decompose(exact), tdd.compose(table), exact, strict=True)
    for horizon, delta, exact_delta, value, exact_value in rows:
        print(f"{horizon:7.1f} {delta:8.3f} {exact_delta:7.1f} {value:8.3f} {exact_value:7.1f}")
    np.testing.assert_allclose(tdd.compose(table), exact, rtol=1e-3)


if __name__ == "__main__":
    main()
