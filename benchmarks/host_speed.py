"""Atari with 8 environments: against Stable-Baselines3, six components against one, our steps against ale-py's."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from alternate import Comparison, Plan, Worker, arguments, report
from worker import Settings

SB3 = Path(__file__).parent.parent / ".venv-sb3" / "bin" / "python"
GAME = Settings("Qbert", environments=8, minibatches=4, learning_rate=2.5e-4)


def rival(plan: Plan) -> Comparison:
    """Against Stable-Baselines3 at equal settings."""
    return _measured("ppo-delta against Stable-Baselines3 PPO", "ppo-delta", "stable-baselines3", 0.9, plan)


def components(plan: Plan) -> Comparison:
    """Cost of six components."""
    return _measured("six components against one", "ppo-delta", "ppo", 0.97, plan)


def stepping(plan: Plan) -> Comparison:
    """Cost of reading the steps."""
    return _measured("environment steps against ale-py's own", "vector", "ale", 0.9, plan)


COMPARISONS: dict[str, Callable[[Plan], Comparison]] = {"rival": rival, "components": components, "stepping": stepping}


def _measured(name: str, ours: str, theirs: str, goal: float, plan: Plan) -> Comparison:
    sides = [_worker(ours), _worker(theirs)]
    found = Comparison(name, ours, theirs, goal).measure(sides[0].rate, sides[1].rate, plan)
    found.notes["peak_memory_mib"] = {ours: sides[0].peak_memory_mib, theirs: sides[1].peak_memory_mib}
    for side in sides:
        side.close()
    return found


def _worker(agent: str) -> Worker:
    if agent == "stable-baselines3":
        return Worker(SB3, "worker_sb3_atari.py", GAME)
    return Worker(sys.executable, "worker_host.py", replace(GAME, agent=agent))


def main() -> None:
    """Measure and print."""
    plan, json_only, chosen = arguments(__doc__ or "", choices=tuple(COMPARISONS))
    report(
        "Atari, Qbert, 8 environments x 128 steps, 4 epochs, 4 minibatches",
        [COMPARISONS[name](plan) for name in chosen],
        plan,
        json_only=json_only,
    )


if __name__ == "__main__":
    main()
