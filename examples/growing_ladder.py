"""A ladder that grows while learning: γ from .9 to .996 in steps, against learning .996 from the start.

A longer scale is added with W = 0, so that its value is the best answer so far. Both learn from the same steps. On the
ring the values at .9 are close to those at .996, and much sooner learned: that is what the growing ladder starts from.

The best answer to .996 is the first one. With step size .02 its error is .057 after the first stage, and every longer
scale then adds noise of its own: .136, .253 and .433, where .996 from the start ends at .557. With .1 nothing is left
of the gain in the end, 1.152 against 1.166. Every stage is a stream of its own to `evaluate`: both drop its last K − 1
windows, which are not full, K being the longest of the ladder.

    python examples/growing_ladder.py
"""

import numpy as np

import tddelta as tdd
from tddelta.tabular import FiniteMDP, Trajectory, add_scale, evaluate, sample

STAGES = (0.9, 0.96, 0.984, 0.996)
STEPS = 1000  # per stage
SEEDS = range(50)
STEP_SIZES = [0.02, 0.05, 0.1]


def root_mean_square(values, exact):
    """Error over states and seeds for every step size."""
    return np.sqrt(((values - exact) ** 2).mean(axis=(1, 2)))


def main() -> None:
    """Compare the two on the ring."""
    ring = FiniteMDP.ring()
    exact = ring.exact_values(STAGES)
    steps = sample(ring, STEPS * len(STAGES), SEEDS)
    whole = tdd.TimeScales.single(STAGES[-1], n_step=32)
    scales, deltas, single = tdd.TimeScales.from_gammas(STAGES[:1], n_step=10), None, None

    print("error of V at γ = .996 for step sizes " + ", ".join(map(str, STEP_SIZES)))
    print("  steps  longest γ   growing ladder        .996 from the start")
    for stage, gamma in enumerate(STAGES):
        if stage:
            scales, deltas = add_scale(scales, deltas, gamma, n_step=32)
        part = Trajectory(*(field[:, stage * STEPS : (stage + 1) * STEPS] for field in steps))
        grown = evaluate(ring, scales, trajectory=part, step_sizes=STEP_SIZES, initial_deltas=deltas)
        once = evaluate(ring, whole, trajectory=part, step_sizes=STEP_SIZES, initial_deltas=single)
        deltas, single = grown.deltas, once.deltas
        errors = [root_mean_square(result.values[..., -1], exact[:, -1]) for result in (grown, once)]
        columns = ["  ".join(f"{error:.3f}" for error in of_method) for of_method in errors]
        print(f"  {(stage + 1) * STEPS:5d}  {gamma:9.3f}   {columns[0]}   {columns[1]}")


if __name__ == "__main__":
    main()
