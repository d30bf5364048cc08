"""Compile time of a block of updates and peak memory while training, for each agent in a fresh process."""

import json
import sys
import time
from dataclasses import asdict

from alternate import Worker, arguments, machine
from worker import Settings

AGENTS = ("ppo", "ppo+", "ppo-multi", "ppo-delta", "ppo-delta-bootstrap", "ppo-delta-matched")
LIMIT = 10.0  # seconds


def main() -> None:
    """Measure and print."""
    plan, json_only, _ = arguments(__doc__ or "")
    results = []
    for agent in AGENTS:
        begin = time.perf_counter()
        worker = Worker(sys.executable, "worker_tddelta.py", Settings("Breakout-MinAtar", agent))
        process_seconds = time.perf_counter() - begin
        rate = worker.rate(min(plan.seconds, 5.0))
        worker.close()
        results.append(
            {
                "agent": agent,
                "compile_seconds": worker.start_seconds,
                "process_seconds": process_seconds,
                "steps_per_second": rate,
                "peak_memory_mib": worker.peak_memory_mib,
                "reached": worker.start_seconds < LIMIT,
            }
        )
    if not json_only:
        print(f"\nTo the end of the first block, Breakout-MinAtar (must be below {LIMIT:g} s)", file=sys.stderr)
        for result in results:
            print(
                f"  {result['agent']:<22} {result['compile_seconds']:6.1f} s, with imports "
                f"{result['process_seconds']:6.1f} s; peak memory {result['peak_memory_mib']:6.0f} MiB",
                file=sys.stderr,
            )
    settings = asdict(Settings("Breakout-MinAtar"))
    print(json.dumps({"title": "Compile time", "machine": machine(), "settings": settings, "agents": results}))


if __name__ == "__main__":
    main()
