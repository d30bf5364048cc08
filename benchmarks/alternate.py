"""Runs the sides of a speed comparison in turn and reports medians of ratios."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from worker import Settings

FOLDER = Path(__file__).parent
MiB = 1024**2


@dataclass(frozen=True)
class Plan:
    """Length of a measurement."""

    seconds: float = 20.0
    repeats: int = 5


def arguments(description: str, choices: Sequence[str] = ()) -> tuple[Plan, bool, list[str]]:
    """The command line that all benchmarks share: the plan, whether to print JSON only, and which of the choices."""
    parser = argparse.ArgumentParser(description=description)
    if choices:
        parser.add_argument("chosen", nargs="*", metavar="COMPARISON", help=f"of {', '.join(choices)}; default: all")
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="shortest time of one repeat")
    parser.add_argument("--repeats", type=int, default=Plan.repeats, help="repeats of each side, taken in turn")
    parser.add_argument("--quick", action="store_true", help="a smoke test: one repeat of half a second")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    given = parser.parse_args()
    chosen = list(getattr(given, "chosen", [])) or list(choices)
    if unknown := set(chosen) - set(choices):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(choices)}")
    return (Plan(0.5, 1) if given.quick else Plan(given.seconds, given.repeats)), given.json, chosen


class Worker:
    """A child process that trains when told to: one side of a comparison."""

    def __init__(self, python: Path | str, script: str, settings: Settings) -> None:
        if not Path(python).exists():
            raise SystemExit(f"{python} is missing: run `make bench`, which builds the rivals' virtual environments")
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [python, str(FOLDER / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.start_seconds = self._ask(asdict(settings))["start_seconds"]
        self.peak_memory_mib = 0.0

    def rate(self, seconds: float, **options: Any) -> float:
        """Environment steps per second over at least so many seconds; the options go to the worker's training."""
        answer = self._ask({"seconds": seconds, **options})
        self.peak_memory_mib = answer["peak_memory_mib"]
        return answer["steps"] / answer["seconds"]

    def close(self) -> None:
        """End the child."""
        self.process.stdin.close()
        self.process.wait()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"{self.process.args[1]} ended early with exit code {self.process.wait()}")
            if line.startswith("{"):
                return json.loads(line)


@dataclass
class Comparison:
    """Two sides measured in turn. A rate is higher for the faster side; the ratio is `ours` over `theirs`."""

    name: str
    ours: str
    theirs: str
    goal: float
    unit: str = "steps/s"
    our_rates: list[float] = field(default_factory=list)
    their_rates: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def measure(self, ours: Callable[[float], float], theirs: Callable[[float], float], plan: Plan) -> "Comparison":
        """Take the repeats, swapping who goes first: a machine that slows down hits both sides alike."""
        for repeat in range(plan.repeats):
            sides = [(ours, self.our_rates), (theirs, self.their_rates)]
            for rate, rates in sides if repeat % 2 == 0 else reversed(sides):
                rates.append(rate(plan.seconds))
        return self

    @property
    def ratio(self) -> float:
        """Median over repeats of ours / theirs."""
        return statistics.median(a / b for a, b in zip(self.our_rates, self.their_rates, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """All that was measured, for JSON."""
        return {
            **asdict(self),
            "our_median": statistics.median(self.our_rates),
            "their_median": statistics.median(self.their_rates),
            "ratio": self.ratio,
            "reached": self.ratio >= self.goal,
        }


def machine() -> dict[str, Any]:
    """Machine that the numbers were measured on."""
    processor = platform.processor()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [line.split(":", 1)[1].strip() for line in information.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def report(title: str, comparisons: list[Comparison], plan: Plan, *, json_only: bool, **more: Any) -> None:
    """Print JSON, and for people a table before it."""
    results = [comparison.as_dict() for comparison in comparisons]
    if not json_only:
        print(f"\n{title}: median of {plan.repeats} repeats of at least {plan.seconds:g} s", file=sys.stderr)
        for result in results:
            print(
                f"  {result['name']:<42} {result['our_median']:>12,.0f} against {result['their_median']:>12,.0f} "
                f"{result['unit']}: ratio {result['ratio']:.2f} (must reach {result['goal']:.2f})",
                file=sys.stderr,
            )
    print(json.dumps({"title": title, "plan": asdict(plan), "machine": machine(), "comparisons": results, **more}))
