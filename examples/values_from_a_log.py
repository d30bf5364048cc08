"""From a log file to values at every horizon: what is a pump worth that shakes like this, over 1, 8 and 40 hours?

A pump earns while it runs, shakes more the more it is worn, and breaks down sooner when it shakes. The log is a CSV
file with a row for every reading, at irregular times; no state, just a sensor. The values are those of the policy that
wrote the log, here: run until it breaks.

    python examples/values_from_a_log.py
    tddelta values pump.csv --scales 1 8 40 --features vibration --model tiles --time hours --out values
"""

import csv

import numpy as np

import tddelta as tdd
from tddelta.tabular import evaluate_log

COLUMNS = ("episode", "hours", "vibration", "reward", "terminated", "truncated")


def write_log(path: str, pumps: int, seed: int) -> None:
    """Write one episode per pump: it earns 1 an hour, and its breakdown costs 30."""
    generator = np.random.default_rng(seed)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for pump in range(pumps):
            hours, wear, broken = 1000.0 * pump, 0.0, False
            while not broken:
                passed = generator.choice([0.5, 1.0, 2.0])  # hours to the next reading
                wear += passed * generator.exponential(0.02)
                vibration = wear + 0.02 * generator.normal()
                broken = bool(generator.random() > np.exp(-passed * 0.4 * wear**3))
                writer.writerow([pump, hours, vibration, passed - 30 * broken, broken, False])
                hours += passed


def main() -> None:
    """Write the log, evaluate it, compare with what happened to later pumps."""
    write_log("pump.csv", pumps=200, seed=0)
    scales = tdd.TimeScales.from_horizons([1, 8, 40], lam=0.9)  # in hours, the unit of the time stamps
    result = evaluate_log("pump.csv", scales, features=["vibration"], model="tiles", time="hours")

    print(f"fitted to {result.steps} readings of {result.episodes - result.held_out} pumps")
    print("\nvibration " + "".join(f"{f'V, {horizon:.0f} h':>10}" for horizon in scales.horizons))
    levels = np.array([0.1, 0.4, 0.7, 1.0])
    for level, values in zip(levels, result.predict(levels[:, None]), strict=True):
        print(f"{level:9.1f} " + "".join(f"{value:10.2f}" for value in values))

    found = result.calibration
    assert found is not None
    print(f"\nagainst what happened to the last {found.episodes} pumps")
    print("horizon   readings            bias      RMSE  explained variance")
    for z, horizon in enumerate(scales.horizons):
        bias = f"{found.bias[z]:6.2f} ± {found.bias_error[z]:4.2f}"
        print(
            f"{horizon:5.0f} h {found.count[z]:10d} {bias:>15} {found.rmse[z]:9.2f} {found.explained_variance[z]:19.2f}"
        )


if __name__ == "__main__":
    main()
