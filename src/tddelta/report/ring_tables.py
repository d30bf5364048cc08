"""Tables of the ring experiment: where the paper's statements hold, and where they do not."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy import stats

from tddelta.report.formatting import number, p_text
from tddelta.report.ring import Comparison, RingData
from tddelta.report.statistics import FloatArray

Families = Mapping[tuple[str, str], Sequence[Comparison]]
"""Comparisons by (measure, seeds on which the step sizes were chosen)."""

CHOSEN = {"reported": "the reported seeds", "other": "other seeds"}
"""How the tables name the two ways to choose step sizes."""


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def verdicts(data: RingData, families: Families) -> str:
    """In how many cells TD(Δ) is better or worse, by measure, choice of step sizes and length."""
    rows = []
    for (measure, selection), found in families.items():
        for length in data.axis("lengths"):
            some = [one for one in found if one.cell.place["length"] == length]
            counts = [str(sum(one.verdict == verdict for one in some)) for verdict in ("better", "worse", "same")]
            before = [str(sum(one.uncorrected == verdict for one in some)) for verdict in ("better", "worse")]
            gains = [one.cell.gain for one in some]
            rows.append(
                [measure, CHOSEN[selection], f"{length:,}", *counts, *before,
                 *(_percent(value) for value in (np.median(gains), min(gains), max(gains)))]
            )  # fmt: skip
    head = ["error", "step size chosen on", "steps", "better", "worse", "neither", "better, uncorrected",
            "worse, uncorrected", "median gain", "smallest", "largest"]  # fmt: skip
    return markdown(head, rows)


def gains(data: RingData, found: Sequence[Comparison], length: int) -> str:
    """Gain of every discount and window, with a mark where the corrected test finds a difference."""
    table = {(one.cell.place["gamma"], one.cell.place["n_step"]): one for one in found
             if one.cell.place["length"] == length}  # fmt: skip
    marks = {"better": "**{}**", "worse": "{} (worse)", "same": "{}"}
    rows = []
    for gamma in data.axis("gammas"):
        some = [table[gamma, n_step] for n_step in data.axis("n_steps")]
        rows.append([f"{gamma:g}", *(marks[one.verdict].format(_percent(one.cell.gain)) for one in some)])
    return markdown(["γ", *(f"n = {n_step}" for n_step in data.axis("n_steps"))], rows)


def growth(data: RingData, families: Families) -> str:
    """Whether the gain grows with γ and with n: mean rank correlation, and in how many lines it grows throughout.

    Once for the gain as a share of the single learner's error, and once for the difference of the errors.
    """
    rows = []
    for (measure, selection), found in families.items():
        for length in data.axis("lengths"):
            some = [one for one in found if one.cell.place["length"] == length]
            for name, values in (
                ("share", [one.cell.gain for one in some]), ("difference", [-one.difference for one in some])
            ):  # fmt: skip
                along = _along(data, values)
                rows.append(
                    [measure, CHOSEN[selection], f"{length:,}", name, *(text for pair in along for text in pair)]
                )
    head = ["error", "step size chosen on", "steps", "gain as", "rank correlation with γ", "grows throughout with γ",
            "rank correlation with n", "grows throughout with n"]  # fmt: skip
    return markdown(head, rows)


def statements(data: RingData, families: Families) -> list[str]:
    """What became of the paper's statements, in sentences: RMS error, step sizes chosen on other seeds."""
    found = families["rms", "other"]
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in ("better", "worse", "same")}
    losing = sum(one.difference > 0 for one in found)
    last = data.axis("lengths")[-1]
    longest = [one for one in found if one.cell.place["length"] == last]
    gained = [one.cell.gain for one in longest]
    lines = [
        f"never significantly worse: {'holds' if not counts['worse'] else 'does not hold'}; of {len(found)} cells "
        f"TD(Δ) is better in {counts['better']} and worse in {counts['worse']} (Welch with Holm, {data.seeds} seeds); "
        f"its mean error is larger in {losing}",
        f"gain over {last:,} steps: from {_percent(min(gained))} to {_percent(max(gained))} of the single learner's "
        f"error, median {_percent(float(np.median(gained)))}",
    ]
    if len(data.axis("gammas")) > 2 and len(data.axis("n_steps")) > 2:
        for name, values in (("a share", gained), ("a difference", [-one.difference for one in longest])):
            (with_gamma, lines_gamma), (with_n, lines_n) = _along(data, values)
            lines.append(
                f"gain as {name} over {last:,} steps: rank correlation {with_gamma} with γ (it grows throughout for "
                f"{lines_gamma} n) and {with_n} with n (throughout for {lines_n} γ)"
            )
    lines.append(f"equal when every k_z is the same: V_Z differs by {data.equality.max():.1e} at most")
    return lines


def _along(data: RingData, values: Sequence[float]) -> list[tuple[str, str]]:
    table = np.reshape(values, (len(data.axis("gammas")), len(data.axis("n_steps"))))
    return [_growth(table.T), _growth(table)]


def equality(data: RingData) -> str:
    """Largest difference of V_Z between the methods where every component has the same window."""
    rows = [
        [f"{gamma:g}", *(f"{difference:.1e}" for difference in line)]
        for gamma, line in zip(data.axis("gammas"), data.equality, strict=True)
    ]
    return markdown(["γ", *(f"n = {n_step}" for n_step in data.axis("n_steps"))], rows)


def conventions(data: RingData, found: Sequence[Comparison]) -> str:
    """Both methods under every convention of the reward, for the headline discount and the longest runs."""
    rows = []
    for one in found:
        place = one.cell.place
        if place["length"] == data.axis("lengths")[-1]:
            means = [f"{number(float(errors.mean()))} ± {number(_error(errors))}"
                     for errors in (one.cell.single, one.cell.delta)]  # fmt: skip
            rows.append(
                [place["convention"], str(place["n_step"]), *means, _percent(one.cell.gain), p_text(one.corrected)]
            )
    return markdown(["reward", "n", "single", "TD(Δ)", "gain", "p (Holm)"], rows)


def worse(found: Sequence[Comparison]) -> str:
    """The cells in which the corrected test finds TD(Δ) worse."""
    rows = []
    for one in found:
        if one.verdict == "worse":
            place = one.cell.place
            numbers = [number(float(errors.mean())) for errors in (one.cell.single, one.cell.delta)]
            rows.append([f"{place['gamma']:g}", str(place["n_step"]), f"{place['length']:,}", *numbers,
                         _percent(one.cell.gain), p_text(one.corrected)])  # fmt: skip
    return markdown(["γ", "n", "steps", "single", "TD(Δ)", "gain", "p (Holm)"], rows) if rows else "None.\n"


def selection(data: RingData, families: Families) -> str:
    """What choosing the step size on the reported seeds changes."""
    rows = []
    for measure in data.axis("measures"):
        for method, name in enumerate(("single", "TD(Δ)")):
            pairs = list(zip(families[measure, "reported"], families[measure, "other"], strict=True))
            moved = sum(one.cell.step_sizes[method] != two.cell.step_sizes[method] for one, two in pairs)
            means = [[float((one.cell.single, one.cell.delta)[method].mean()) for one in pair] for pair in pairs]
            larger = [theirs / own - 1 for own, theirs in means]
            rows.append([measure, name, f"{moved} of {len(pairs)}", _percent(float(np.mean(larger))),
                         _percent(max(larger))])  # fmt: skip
    head = ["error", "method", "another step size chosen", "error larger by, on average", "at most"]
    return markdown(head, rows)


def edges(data: RingData, families: Families) -> str:
    """How often a best step size is the smallest or the largest of the grid, where a finer grid might do better."""
    rows = []
    low, high = data.axis("step_sizes")[0], data.axis("step_sizes")[-1]
    for (measure, selection), found in families.items():
        for method, name in enumerate(("single", "TD(Δ)")):
            sizes = [one.cell.step_sizes[method] for one in found if one.cell.single.std() > 0]
            rows.append([measure, CHOSEN[selection], name, str(len(sizes)), str(sizes.count(low)),
                         str(sizes.count(high))])  # fmt: skip
    head = ["error", "step size chosen on", "method", "cells", f"α = {low:g}", f"α = {high:.3g}"]
    return markdown(head, rows)


def _growth(lines: FloatArray) -> tuple[str, str]:
    """Mean Spearman correlation of the lines with their place, and how many grow at every step."""
    kept = [line for line in lines if np.ptp(line) > 0]
    if not kept or len(lines[0]) < 3:
        return "n/a", "n/a"
    correlations = [float(stats.spearmanr(np.arange(len(line)), line).statistic) for line in kept]
    growing = sum(bool((np.diff(line) > 0).all()) for line in kept)
    return f"{np.mean(correlations):+.2f}".replace("-", "−"), f"{growing} of {len(kept)}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _error(errors: FloatArray) -> float:
    return float(errors.std(ddof=1) / np.sqrt(len(errors)))
