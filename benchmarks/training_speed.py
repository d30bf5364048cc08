"""Breakout-MinAtar: six components against rejax's PPO, six against one, several seeds together against one by one."""

import sys
from collections.abc import Callable
from pathlib import Path

from alternate import Comparison, Plan, Worker, arguments, report
from worker import Settings

REJAX = Path(__file__).parent.parent / ".venv-rejax" / "bin" / "python"
GAME = "Breakout-MinAtar"


def rejax(plan: Plan) -> Comparison:
    """Against rejax's PPO at equal settings."""
    ours, theirs = _ours("ppo-delta"), Worker(REJAX, "worker_rejax.py", Settings(GAME))
    found = Comparison("ppo-delta, six components, against rejax 0.1.3", "tddelta", "rejax", goal=1.4)
    found.measure(ours.rate, theirs.rate, plan)
    found.notes["peak_memory_mib"] = {"ours": ours.peak_memory_mib, "theirs": theirs.peak_memory_mib}
    ours.close()
    theirs.close()
    return found


def components(plan: Plan) -> Comparison:
    """Cost of six components."""
    six, one = _ours("ppo-delta"), _ours("ppo")
    found = Comparison("six components against one", "ppo-delta", "ppo", goal=0.95).measure(six.rate, one.rate, plan)
    six.close()
    one.close()
    return found


def seeds(plan: Plan) -> Comparison:
    """Gain of several seeds from sharing the cores."""
    worker = Worker(sys.executable, "worker_seeds.py", Settings(GAME, "ppo-delta"))
    found = Comparison("four seeds together against one by one", "together", "one by one", goal=1.5)
    found.measure(
        lambda seconds: worker.rate(seconds, together_now=True),
        lambda seconds: worker.rate(seconds, together_now=False),
        plan,
    )
    worker.close()
    return found


COMPARISONS: dict[str, Callable[[Plan], Comparison]] = {"rejax": rejax, "components": components, "seeds": seeds}


def _ours(agent: str) -> Worker:
    return Worker(sys.executable, "worker_tddelta.py", Settings(GAME, agent))


def main() -> None:
    """Measure and print."""
    plan, json_only, chosen = arguments(__doc__ or "", choices=tuple(COMPARISONS))
    report(
        "Training speed, Breakout-MinAtar, MLP 2 x 64, 64 x 128, 4 epochs, 8 minibatches",
        [COMPARISONS[name](plan) for name in chosen],
        plan,
        json_only=json_only,
    )


if __name__ == "__main__":
    main()
