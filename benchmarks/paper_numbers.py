"""The paper's published Atari results, corrected for the number of comparisons.

python benchmarks/paper_numbers.py

The numbers are the asymptotic returns of arXiv:1902.01883, mean and standard error over 10 seeds. Either trace rule is
compared with the baseline, PPO or PPO+, that has the higher mean: Welch's t-test from means and standard errors, then
Holm's correction over the 18 comparisons.
"""

from tddelta.paper.published import PUBLISHED, published_gains


def main() -> None:
    """Print one line per comparison; a star marks those below .05 after the correction."""
    print(f"{'game':12} {'agent':18} {'against':8} {'difference':>10} {'p (Welch)':>10} {'p (Holm)':>10}")
    for (game, agent), (test, corrected) in published_gains().items():
        star = " *" if corrected < 0.05 else ""
        baseline = PUBLISHED[game].baseline
        print(
            f"{game:12} {agent:18} {baseline:8} {test.difference:+10.0f} {test.p_value:10.2g} {corrected:10.2g}{star}"
        )


if __name__ == "__main__":
    main()
