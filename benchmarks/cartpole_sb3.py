"""CartPole-v1 with 64 environments: `ppo-delta` against the PPO of Stable-Baselines3 at equal settings."""

import sys
from pathlib import Path

from alternate import Comparison, Worker, arguments, report
from worker import Settings

SB3 = Path(__file__).parent.parent / ".venv-sb3" / "bin" / "python"


def main() -> None:
    """Measure and print."""
    plan, json_only, _ = arguments(__doc__ or "")
    ours = Worker(sys.executable, "worker_tddelta.py", Settings("CartPole-v1", "ppo-delta"))
    theirs = Worker(SB3, "worker_sb3.py", Settings("CartPole-v1"))
    comparison = Comparison("ppo-delta against Stable-Baselines3 PPO", "tddelta", "stable-baselines3", goal=5.0)
    comparison.measure(ours.rate, theirs.rate, plan)
    comparison.notes = {
        "peak_memory_mib": {"tddelta": ours.peak_memory_mib, "stable-baselines3": theirs.peak_memory_mib}
    }
    ours.close()
    theirs.close()
    report("CartPole-v1, 64 environments", [comparison], plan, json_only=json_only)


if __name__ == "__main__":
    main()
