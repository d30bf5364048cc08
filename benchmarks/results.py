"""The learning results of `docs/results.md`: hours of training that can be interrupted and go on where they stopped.

python benchmarks/results.py              # everything, into runs/results
python benchmarks/results.py minatar      # one of the studies
python benchmarks/results.py --quick      # a smoke test: a few thousand steps, one seed, into runs/results-quick
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tddelta as tdd
from tddelta.report import summary_table, write_report

MINATAR = ["Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "SpaceInvaders-MinAtar"]
LONG = ["DiscountingChain", "DelayedReward"]
GAMMAS = (0.99, 0.999, 0.9999)
RULES = ("capped", "matched", "constant", "proportional")
COMPONENT_SCALES = ("none", "horizon", "running")


def minatar() -> Iterator[tuple[str, dict[str, Any]]]:
    """All six agents on four games."""
    yield "", {"environments": MINATAR, "agents": list(tdd.AGENTS), "steps": 2_000_000}


def cartpole() -> Iterator[tuple[str, dict[str, Any]]]:
    """The classic: solved or not."""
    yield "", {"environments": ["CartPole-v1"], "agents": ["ppo", "ppo-delta-bootstrap"], "steps": 500_000}


def horizons() -> Iterator[tuple[str, dict[str, Any]]]:
    """Long horizons: every trace rule and component scale, with one critic at the same discount beside them."""
    for gamma in GAMMAS:
        yield f"gamma-{gamma}/one-critic", {"environments": LONG, "agents": ["ppo"], "gamma": gamma}
        for rule in RULES:
            for scale in COMPONENT_SCALES:
                settings = {"gamma": gamma, "rule": rule, "component_scale": scale, "agents": ["ppo-delta-bootstrap"]}
                yield f"gamma-{gamma}/{rule}-{scale}", {"environments": LONG, **settings}


STUDIES = {"minatar": minatar, "cartpole": cartpole, "horizons": horizons}


def main() -> None:
    """Train what is missing, then write a report of each study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], help="which; all of them if none is named")
    parser.add_argument("--out", type=Path, default=None, help="folder of the run directories")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps")
    given = parser.parse_args()
    folder = given.out or Path("runs", "results-quick" if given.quick else "results")
    for name in given.studies or STUDIES:
        cases = list(STUDIES[name]())
        for number, (case, arguments) in enumerate(cases, start=1):
            print(f"{name} {number}/{len(cases)} {case}", flush=True)
            if given.quick:
                arguments["steps"] = 20_000
            environments = arguments.pop("environments")
            try:
                tdd.compare(
                    environments, **arguments, seeds=1 if given.quick else 3, out=folder / name / case, resume=True
                )
            except tdd.DataError as error:
                # A ladder that does not contract can end in numbers that are not finite: that is a result.
                print(f"all runs failed: {error}", flush=True)
        print(f"report: {write_report([folder / name], folder / name / 'report.html')}")
        for row in summary_table(tdd.load_runs(folder / name)):
            print(row)


if __name__ == "__main__":
    main()
