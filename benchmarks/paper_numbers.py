"""What the paper's published Atari results say once they are corrected for the number of comparisons.

python benchmarks/paper_numbers.py

The numbers are the asymptotic returns of arXiv:1902.01883, mean and standard error over 10 seeds. Either trace rule is
compared with the baseline, PPO or PPO+, that has the higher mean: Welch's t-test from means and standard deviations
(standard error · √10), then Holm's correction over the 18 comparisons.
"""

import math

from scipy.stats import ttest_ind_from_stats

from tddelta.report.statistics import holm

SEEDS = 10
AGENTS = ("matched", "capped", "PPO+", "PPO")
# mean and standard error of the PPO-TD with the matched rule, of that with the capped rule, of PPO+ and of PPO
PUBLISHED = {
    "Alien": ((1606, 112), (1663, 113), (1374, 85), (1315, 70)),
    "Amidar": ((731, 30), (672, 45), (611, 34), (575, 54)),
    "BankHeist": ((1183, 13), (1166, 5), (1199, 5), (1190, 3)),
    "Frostbite": ((292, 7), (304, 21), (299, 2), (294, 5)),
    "Hero": ((29074, 512), (29014, 764), (23511, 843), (21038, 972)),
    "MsPacman": ((2273, 67), (2241, 78), (1876, 89), (1888, 111)),
    "Qbert": ((13428, 333), (13092, 430), (10594, 335), (11735, 387)),
    "WizardOfWor": ((2118, 138), (2440, 89), (2870, 218), (3408, 193)),
    "Zaxxon": ((396, 210), (3291, 812), (7006, 211), (7366, 223)),
}


def comparisons() -> list[tuple[str, str, str, float, float]]:
    """Game, trace rule, better baseline, difference of means and p of every comparison."""
    rows = []
    for game, published in PUBLISHED.items():
        results = dict(zip(AGENTS, published, strict=True))
        baseline = max(("PPO+", "PPO"), key=lambda name: results[name])
        for rule in ("matched", "capped"):
            sides = [(mean, error * math.sqrt(SEEDS), SEEDS) for mean, error in (results[rule], results[baseline])]
            test = ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False)
            rows.append((game, rule, baseline, sides[0][0] - sides[1][0], float(test.pvalue)))
    return rows


def main() -> None:
    """Print one line per comparison; a star marks those below .05 after the correction."""
    rows = comparisons()
    corrected = holm([p for *_, p in rows])
    print(f"{'game':12} {'rule':8} {'against':8} {'difference':>10} {'p (Welch)':>10} {'p (Holm)':>10}")
    for (game, rule, baseline, difference, p), holm_p in zip(rows, corrected, strict=True):
        star = " *" if holm_p is not None and holm_p < 0.05 else ""
        print(f"{game:12} {rule:8} {baseline:8} {difference:+10.0f} {p:10.2g} {holm_p:10.2g}{star}")


if __name__ == "__main__":
    main()
