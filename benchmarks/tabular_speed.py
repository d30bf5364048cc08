"""Times n-step TD(Δ) in a table: component updates per second, and how the time grows with every size."""

import json
import statistics
import sys
import time
from dataclasses import asdict

import numpy as np
from alternate import arguments, machine

from tddelta.tabular import FiniteMDP, Trajectory, n_step, sample
from tddelta.tabular.loops import thread_count

STEPS, SEEDS, STEP_SIZES, SCALES, WINDOW = 5000, 40, 20, 9, 16
GOAL = 13_720_000_000 / 60  # component updates per second: the published grid, both sets of seeds, in a minute


def walk(states: int, seeds: int) -> Trajectory:
    """Trajectories on a ring of so many states."""
    return sample(FiniteMDP.ring(states=states), STEPS, seeds)


def seconds(trajectory: Trajectory, states: int, scales: int, window: int, threads: int | None = None) -> float:
    """Time of one run over all step sizes, errors recorded after every step and averaged."""
    gammas = (1 - 0.5 ** np.arange(SCALES))[SCALES - scales :]
    windows = [min(2**z, window) for z in range(scales - 1)] + [window]
    alphas = np.repeat(np.geomspace(0.001, 1, STEP_SIZES, endpoint=False)[:, None], scales, axis=1)
    begin = time.perf_counter()
    n_step.run(trajectory, gammas, windows, alphas, np.zeros(states), record=(100, STEPS), threads=threads)
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    plan, json_only, _ = arguments(main.__doc__ or "")
    begin = time.perf_counter()
    seconds(walk(5, 1), 5, 2, 2)
    start_seconds = time.perf_counter() - begin  # to compile, or to read what is on disk

    five = walk(5, SEEDS)
    cases = {("scales", scales): (five, 5, scales, WINDOW) for scales in (1, 3, 5, 9)}
    cases |= {("n", window): (five, 5, SCALES, window) for window in (4, 16, 64, 256)}
    cases |= {("states", states): (walk(states, SEEDS), states, SCALES, WINDOW) for states in (5, 20, 100, 1000)}
    cases |= {("seeds", seeds): (walk(5, seeds), 5, SCALES, WINDOW) for seeds in (10, 40, 160)}
    cases |= {("threads", count): (five, 5, SCALES, WINDOW, count) for count in (1, thread_count(None))}
    times: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    rounds = 0
    began = time.perf_counter()
    # every case in turn, so that a machine that slows down slows all of them
    while rounds < plan.repeats or (rounds < 100 and time.perf_counter() - began < plan.seconds):
        for case, setting in cases.items():
            times[case].append(seconds(*setting))
        rounds += 1

    rows = []
    for (axis, size), taken in times.items():
        trajectory, _, scales, *_ = cases[axis, size]
        updates = trajectory.states.size * STEP_SIZES * scales
        median = statistics.median(taken)
        rows.append({"axis": axis, "size": size, "seconds": median, "component_updates_per_second": updates / median})
    rate = next(row["component_updates_per_second"] for row in rows if (row["axis"], row["size"]) == ("seeds", 160))
    if not json_only:
        print(f"\nn-step TD(Δ), {STEP_SIZES} step sizes, {STEPS:,} steps: median of {rounds} rounds", file=sys.stderr)
        for row in rows:
            print(
                f"  {row['axis']:<8}{row['size']:>6}  {row['seconds']:8.3f} s  "
                f"{row['component_updates_per_second'] / 1e6:8,.0f}M component updates/s",
                file=sys.stderr,
            )
        print(
            f"  160 seeds: {rate / 1e6:,.0f}M component updates/s (must reach {GOAL / 1e6:,.0f}M); "
            f"ready after {start_seconds:.1f} s",
            file=sys.stderr,
        )
    settings = {"steps": STEPS, "seeds": SEEDS, "step_sizes": STEP_SIZES, "scales": SCALES, "n": WINDOW}
    print(
        json.dumps(
            {
                "title": "Tabular speed",
                "plan": asdict(plan),
                "machine": machine(),
                "settings": settings,
                "rows": rows,
                "start_seconds": start_seconds,
                "goal": GOAL,
                "reached": rate >= GOAL,
            }
        )
    )


if __name__ == "__main__":
    main()
