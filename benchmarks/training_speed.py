"""Breakout-MinAtar: six components against rejax's PPO, six against one, several seeds together against one by one."""

import sys
from pathlib import Path

from alternate import Comparison, Worker, arguments, report
from worker import Settings

REJAX = Path(__file__).parent.parent / ".venv-rejax" / "bin" / "python"


def main() -> None:
    """Measure and print."""
    plan, json_only = arguments(__doc__ or "")
    six = Worker(sys.executable, "worker_tddelta.py", Settings("Breakout-MinAtar", "ppo-delta"))
    comparisons = []

    rejax = Worker(REJAX, "worker_rejax.py", Settings("Breakout-MinAtar"))
    against_rejax = Comparison("ppo-delta, six components, against rejax 0.1.3", "tddelta", "rejax", goal=1.4)
    comparisons.append(against_rejax.measure(six.rate, rejax.rate, plan))
    against_rejax.notes["peak_memory_mib"] = {"ours": six.peak_memory_mib, "theirs": rejax.peak_memory_mib}
    rejax.close()

    one = Worker(sys.executable, "worker_tddelta.py", Settings("Breakout-MinAtar", "ppo"))
    against_one = Comparison("six components against one", "ppo-delta", "ppo", goal=0.95)
    comparisons.append(against_one.measure(six.rate, one.rate, plan))
    one.close()
    six.close()

    seeds = Worker(sys.executable, "worker_seeds.py", Settings("Breakout-MinAtar", "ppo-delta"))
    of_seeds = Comparison("four seeds together against one by one", "together", "one by one", goal=1.5)

    def together(seconds: float) -> float:
        return seeds.rate(seconds, together_now=True)

    def one_by_one(seconds: float) -> float:
        return seeds.rate(seconds, together_now=False)

    comparisons.append(of_seeds.measure(together, one_by_one, plan))
    seeds.close()

    report(
        "Training speed, Breakout-MinAtar, MLP 2 x 64, 64 x 128, 4 epochs, 8 minibatches",
        comparisons,
        plan,
        json_only=json_only,
    )


if __name__ == "__main__":
    main()
