"""Four seeds by one command against the same seeds by four commands one after another, from start to end.

What a user waits for: starting Python, compiling, training on Breakout-MinAtar, recording, and (once) the report.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from alternate import Comparison, arguments, report

SEEDS = 4
STEPS_PER_SECOND = 20_000  # so many steps of each seed for every second a repeat should last at least
BATCH = 8192


def main() -> None:
    """Measure and print."""
    plan, json_only, _ = arguments(__doc__ or "")
    steps = max(BATCH, int(plan.seconds * STEPS_PER_SECOND) // BATCH * BATCH)
    common = ["--steps", str(steps), "--out"]

    def timed(commands: Callable[[str], list[list[str]]]) -> Callable[[float], float]:
        def rate(_: float) -> float:
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                for command in commands(folder):
                    tddelta = str(Path(sys.executable).with_name("tddelta"))
                    subprocess.run([tddelta, *command], check=True, capture_output=True)
                return SEEDS * steps / (time.perf_counter() - began)

        return rate

    def together(folder: str) -> list[list[str]]:
        return [["compare", "Breakout-MinAtar", "--agents", "ppo-delta", "--seeds", str(SEEDS), *common, folder]]

    def one_by_one(folder: str) -> list[list[str]]:
        agent = ["train", "Breakout-MinAtar", "--agent", "ppo-delta"]
        return [[*agent, "--seed", str(seed), *common, folder] for seed in range(SEEDS)]

    comparison = Comparison("four seeds by one command against four commands", "compare", "train", goal=1.5)
    comparison.measure(timed(together), timed(one_by_one), plan)
    report(f"Waiting for {SEEDS} seeds of {steps:,} steps each", [comparison], plan, json_only=json_only)


if __name__ == "__main__":
    main()
