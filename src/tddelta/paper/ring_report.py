"""The ring experiment's numbers, tables and figures, all from the saved averages.

The ring experiment's numbers: best step sizes, differences between the methods, and what became of the claims.

Everything is made from `ring.npz` and `ring.json` alone, which `tddelta.paper.ring` wrote.
"""

import csv
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from scipy import stats

from tddelta._matplotlib import own_style
from tddelta.errors import CheckpointError, DataError
from tddelta.report.plots import INK, LINE, colour
from tddelta.report.statistics import FloatArray, bootstrap_difference, holm, welch_test
from tddelta.report.words import number, p_text
from tddelta.runs.files import Arrays, read_arrays, read_json, replace

"""An array of float64, of any shape."""

SELECTIONS = ("reported", "other")
"""On which seeds the best step size of a cell is chosen: those that are reported, as the paper did, or others."""

LEVEL = 0.05
"""Level of the tests."""

_RESAMPLES = 2000


@dataclass(frozen=True)
class RingData:
    """The averages of a ring experiment.

    Attributes:
        settings: `ring.json`.
        errors: Average errors, shape (set of seeds, γ, n, method, measure, α, seed, length); set 0 is reported.
        headline_errors: The same for one discount, with the convention of the reward in front and no axis γ.
        equality: Largest difference of V_Z between the methods where every k_z is the same, shape (γ, n).
    """

    settings: dict[str, Any]
    errors: FloatArray
    headline_errors: FloatArray
    equality: FloatArray

    @classmethod
    def load(cls, folder: Path) -> "RingData":
        """Read a folder that `run_ring` wrote; CheckpointError where there is none, or a damaged one."""
        settings: dict[str, Any] = {}
        arrays: Arrays = {}
        problem = next((f"it has no {name}" for name in _FILES if not (folder / name).is_file()), "")
        if not problem:
            try:
                settings, arrays = read_json(folder / _FILES[0]), read_arrays(folder / _FILES[1]) or {}
                problem = _problem(settings, arrays)
            except CheckpointError:  # what it advises is for run directories
                problem = "one of its files is damaged"
        if problem:
            raise CheckpointError(
                f"{folder} is no folder of a ring experiment: {problem}; name one that `tddelta reproduce ring` made"
            )
        return cls(settings, *(arrays[name] for name in ("errors", "headline_errors", "equality")))

    @property
    def seeds(self) -> int:
        """Number of reported seeds."""
        return int(self.errors.shape[-2])

    def axis(self, name: str) -> list[Any]:
        """Values along an axis: gammas, n_steps, methods, measures, step_sizes, lengths or conventions."""
        return list(self.settings[name])


def _problem(settings: dict[str, Any], arrays: Arrays) -> str:
    """Why these are not the settings and averages of a ring experiment; nothing if they are."""
    if settings.get("experiment") != "ring":
        return "ring.json is about something else"
    for name, allowed in _AXES.items():
        axis = settings.get(name)
        if not isinstance(axis, list) or not axis or not all(allowed(entry) for entry in axis):
            return f"ring.json names no {name}"
    if settings.get("headline") not in settings["gammas"] or not _is_whole(settings.get("seeds")):
        return "ring.json names no headline, or no seeds"
    size = {name: len(settings[name]) for name in _AXES}
    cell = (
        *(size[name] for name in ("n_steps", "methods", "measures", "step_sizes")),
        settings["seeds"],
        size["lengths"],
    )
    shapes = {
        "errors": (2, size["gammas"], *cell),
        "headline_errors": (size["conventions"], 2, *cell),
        "equality": (size["gammas"], size["n_steps"]),
    }
    for name, shape in shapes.items():
        if name not in arrays or arrays[name].shape != shape or arrays[name].dtype != np.float64:
            return f"{name} in ring.npz does not fit ring.json"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_FILES = "ring.json", "ring.npz"
_AXES: dict[str, Callable[[Any], bool]] = {
    "gammas": _is_number,
    "n_steps": _is_whole,
    "methods": ("single", "delta").__contains__,
    "measures": ("rms", "absolute").__contains__,
    "step_sizes": _is_number,
    "lengths": _is_whole,
    "conventions": ("entered", "edges", "left").__contains__,
}  # and what stands on them


@dataclass(frozen=True)
class Cell:
    """Both methods at their best step sizes; arrays over the reported seeds.

    Attributes:
        place: What the cell is, by name of the axis, as in {"gamma": .75, "n_step": 4, "length": 100, …}.
        step_sizes: Best step size of the single learner and of TD(Δ).
        single: Errors of the single learner, shape (N,).
        delta: Errors of TD(Δ), shape (N,).
    """

    place: dict[str, Any]
    step_sizes: tuple[float, float]
    single: FloatArray
    delta: FloatArray

    @property
    def gain(self) -> float:
        """Share of the single learner's error that TD(Δ) saves; negative where it is worse."""
        return float(1 - self.delta.mean() / self.single.mean())


@dataclass(frozen=True)
class Comparison:
    """A cell with its tests: Welch without and with Holm's correction over its family, and a bootstrap interval."""

    cell: Cell
    difference: float
    p_value: float | None
    corrected: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """What the corrected test says of TD(Δ): "better", "worse" or "same"."""
        return self._verdict(self.corrected)

    @property
    def uncorrected(self) -> str:
        """The same for the uncorrected test."""
        return self._verdict(self.p_value)

    def _verdict(self, p: float | None) -> str:
        if p is None or p >= LEVEL:
            return "same"
        return "better" if self.difference < 0 else "worse"


def best(errors: FloatArray, selection: str) -> npt.NDArray[np.int64]:
    """Index of the step size with the smallest mean over seeds; where it is not finite, a step size cannot win.

    Args:
        errors: Shape (set of seeds, …, α, seed, length).
        selection: One of `SELECTIONS`.

    Returns:
        Shape (…, length).
    """
    means = errors[SELECTIONS.index(selection)].mean(axis=-2)
    return np.asarray(np.where(np.isfinite(means), means, np.inf).argmin(axis=-2))


def cells(data: RingData, measure: str, selection: str) -> Iterator[Cell]:
    """Every (γ, n, length) of the grid."""
    for g, gamma in enumerate(data.axis("gammas")):
        yield from _cells(data, data.errors[:, g], {"gamma": gamma}, measure, selection)


def headline_cells(data: RingData, measure: str, selection: str) -> Iterator[Cell]:
    """Every (convention, n, length) for the headline discount."""
    for c, convention in enumerate(data.axis("conventions")):
        place = {"convention": convention, "gamma": data.settings["headline"]}
        yield from _cells(data, data.headline_errors[c], place, measure, selection)


def _cells(data: RingData, errors: FloatArray, place: dict[str, Any], measure: str, selection: str) -> Iterator[Cell]:
    errors = errors[:, :, :, data.axis("measures").index(measure)]  # (set, n, method, α, seed, length)
    chosen, sizes = best(errors, selection), data.axis("step_sizes")
    axes = enumerate(data.axis("n_steps")), enumerate(data.axis("lengths"))
    for (k, n_step), (t, length) in itertools.product(*axes):
        alphas = [int(chosen[k, method, t]) for method in (0, 1)]
        single, delta = (errors[0, k, method, alphas[method], :, t] for method in (0, 1))
        named = {**place, "n_step": n_step, "length": length, "measure": measure, "selection": selection}
        yield Cell(named, (sizes[alphas[0]], sizes[alphas[1]]), single, delta)


def compare(found: Sequence[Cell]) -> list[Comparison]:
    """Test every cell, TD(Δ) against the single learner; the cells given are one family for Holm's correction."""

    def bootstrap(cell: Cell) -> tuple[float | None, float | None]:
        interval = bootstrap_difference(cell.delta, cell.single, n_bootstrap=_RESAMPLES)
        return interval.low, interval.high

    tests = [welch_test(cell.delta, cell.single) for cell in found]
    corrected = holm([test.p_value for test in tests])
    with ThreadPoolExecutor() as pool:
        intervals = list(pool.map(bootstrap, found))
    return [
        Comparison(cell, test.difference, test.p_value, p, *interval)
        for cell, test, p, interval in zip(found, tests, corrected, intervals, strict=True)
    ]


def comparisons(
    data: RingData, source: Callable[[RingData, str, str], Iterator[Cell]] = cells
) -> dict[tuple[str, str], list[Comparison]]:
    """All comparisons by (measure, selection): each of these is one family of tests over the grid."""
    pairs = itertools.product(data.axis("measures"), SELECTIONS)
    return {pair: compare(list(source(data, *pair))) for pair in pairs}


# ---------------------------------------------------------------- as rows


def step_size_rows(data: RingData) -> list[dict[str, Any]]:
    """Mean and standard error over seeds for every step size, and the mean on the other seeds."""
    rows = []
    means = data.errors.mean(axis=-2)
    spread = data.errors[0].std(axis=-2, ddof=1) / np.sqrt(data.errors.shape[-2])
    names = ("gammas", "n_steps", "methods", "measures", "step_sizes", "lengths")
    for index in itertools.product(*(range(len(data.axis(name))) for name in names)):
        place = {name.removesuffix("s"): data.axis(name)[i] for name, i in zip(names, index, strict=True)}
        numbers = {"mean": means[0][index], "standard_error": spread[index], "mean_other_seeds": means[1][index]}
        rows.append(place | {name: float(value) for name, value in numbers.items()})
    return rows


def comparison_rows(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Comparisons as numbers for a file."""
    rows = []
    for one in found:
        cell, root = one.cell, np.sqrt(len(one.cell.single))
        rows.append(
            cell.place
            | {
                "step_size_single": cell.step_sizes[0],
                "step_size_delta": cell.step_sizes[1],
                "single": float(cell.single.mean()),
                "single_standard_error": float(cell.single.std(ddof=1) / root),
                "delta": float(cell.delta.mean()),
                "delta_standard_error": float(cell.delta.std(ddof=1) / root),
                "gain": cell.gain,
                "difference": one.difference,
                "p_welch": one.p_value,
                "p_holm": one.corrected,
                "bootstrap_low": one.low,
                "bootstrap_high": one.high,
                "verdict": one.verdict,
            }
        )
    return rows


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV; an empty field is a missing number."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return file.getvalue()


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


_MEASURE = {"rms": "Root mean square error", "absolute": "Mean absolute error"}
_REWARD = {
    "entered": "reward for the state entered",
    "edges": "reward for the edge",
    "left": "reward for the state left",
}
_METHODS: tuple[dict[str, Any], ...] = (
    {"color": colour(0), "marker": "o", "label": "single n-step TD"},
    {"color": colour(5), "marker": "s", "label": "n-step TD(Δ)"},
)


@own_style()
def write_ring(folder: Path, *, done: Callable[[str], None] | None = None) -> list[str]:
    """Draw all figures and tables of a ring experiment anew, into `figures/` and `tables/` in its folder.

    Args:
        folder: A folder that `run_ring` wrote.
        done: Called with the name of every file written.

    Returns:
        What became of the paper's statements, in sentences.

    Raises:
        CheckpointError: The folder holds no ring experiment.
        DataError: A file cannot be written.
    """
    data = RingData.load(folder)
    families = comparisons(data)
    for name, content in itertools.chain(_images(data), _tables(data, families)):
        path = folder / name
        try:
            path.parent.mkdir(exist_ok=True)
            replace(path, functools.partial(_write, content), durable=False)
        except OSError as error:
            reason = error.strerror or error
            raise DataError(
                f"{path} cannot be written ({reason}): make room for it, or move what is in its way"
            ) from error
        if done is not None:
            done(name)
    return statements(data, families)


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def _tables(data: RingData, families: Families) -> Iterator[tuple[str, bytes]]:
    headline = comparisons(data, headline_cells)
    rows = {
        "cells": [row for found in families.values() for row in comparison_rows(found)],
        "conventions": [row for found in headline.values() for row in comparison_rows(found)],
        "step-sizes": step_size_rows(data),
    }
    for name, table in rows.items():
        yield f"tables/ring-{name}.csv", to_csv(table).encode()
    texts = {
        "verdicts": verdicts(data, families),
        "growth": growth(data, families),
        "equality": equality(data),
        "edges": edges(data, families),
        "selection": selection(data, families),
        "statements": "".join(f"- {line}\n" for line in statements(data, families)),
        "conventions": conventions(data, headline["rms", "other"]),
    }
    for measure in data.axis("measures"):
        texts[f"worse-{measure}"] = worse(families[measure, "other"])
        for length in data.axis("lengths"):
            texts[f"gains-{measure}-{length}"] = gains(data, families[measure, "other"], length)
    for name, text in texts.items():
        yield f"tables/ring-{name}.md", text.encode()


def _figures(data: RingData) -> Iterator[tuple[str, Figure]]:
    whole = len(data.axis("gammas")) > 1
    for measure in data.axis("measures"):
        for selection in SELECTIONS:
            found = list(headline_cells(data, measure, selection))
            titles = {name: _REWARD[name] for name in data.axis("conventions")}
            yield f"headline-{measure}-{selection}", _by_n_step(found, "convention", titles, measure)
            if whole:
                grid = list(cells(data, measure, selection))
                titles = {gamma: f"γ = {gamma:g}" for gamma in data.axis("gammas")}
                yield f"by-n-step-{measure}-{selection}", _by_n_step(grid, "gamma", titles, measure)
        for gamma in data.axis("gammas"):
            yield f"by-step-size-{measure}-{gamma:g}", _by_step_size(data, measure, gamma)


def _by_n_step(found: Sequence[Cell], axis: str, titles: dict[Any, str], measure: str) -> Figure:
    """Error against n at the best step size: a row per length, a column per discount or convention."""
    lengths = sorted({cell.place["length"] for cell in found})
    figure, axes = _grid(len(lengths), len(titles), sharey=False)
    for row, length in enumerate(lengths):
        for column, (value, title) in enumerate(titles.items()):
            some = [cell for cell in found if cell.place["length"] == length and cell.place[axis] == value]
            windows = [cell.place["n_step"] for cell in some]
            each = axes[row][column]
            for method, style in enumerate(_METHODS):
                errors = np.array([(cell.single, cell.delta)[method] for cell in some])
                bars = errors.std(axis=1, ddof=1) / np.sqrt(errors.shape[1])
                each.errorbar(windows, errors.mean(axis=1), yerr=bars, markersize=3.5, linewidth=1.3, **style)
            each.set_xscale("log", base=2)
            each.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            each.xaxis.set_minor_locator(NullLocator())
            if row == 0:
                each.set_title(title, fontsize=9, color=INK)
            if column == 0:
                each.set_ylabel(f"first {length:,} steps", fontsize=9, color=INK)
    return _finish(figure, axes, "n, steps of the longest window", _MEASURE[measure])


def _by_step_size(data: RingData, measure: str, gamma: float) -> Figure:
    """Error against the step size: a row per length, a column per n."""
    errors = data.errors[0, data.axis("gammas").index(gamma), :, :, data.axis("measures").index(measure)]
    lengths, windows, sizes = data.axis("lengths"), data.axis("n_steps"), data.axis("step_sizes")
    figure, axes = _grid(len(lengths), len(windows), sharey=True)
    means = errors.mean(axis=-2)
    bars = errors.std(axis=-2, ddof=1) / np.sqrt(errors.shape[-2])
    for row, length in enumerate(lengths):
        for column, n_step in enumerate(windows):
            each = axes[row][column]
            for method, style in enumerate(_METHODS):
                mean, bar = means[column, method, :, row], bars[column, method, :, row]
                each.plot(sizes, mean, markersize=2, linewidth=1.1, **style)
                each.fill_between(sizes, mean - bar, mean + bar, color=style["color"], alpha=0.25, linewidth=0)
            each.set_xscale("log")
            each.xaxis.set_minor_locator(NullLocator())
            if row == 0:
                each.set_title(f"n = {n_step}", fontsize=9, color=INK)
            if column == 0:
                each.set_ylabel(f"first {length:,} steps", fontsize=9, color=INK)
        # a row shares its axis: large steps that learn nothing must not flatten what the others show
        smallest_step = float(np.nanmax(means[:, :, 0, row]))
        axes[row][0].set_ylim(0, min(1.05 * float(np.nanmax(means[..., row])), 1.3 * smallest_step))
    return _finish(figure, axes, f"step size α (γ = {gamma:g})", _MEASURE[measure])


def _grid(rows: int, columns: int, *, sharey: bool) -> tuple[Figure, list[list[Axes]]]:
    """Panels in places of their own: a layout engine would draw every figure twice to find them."""
    width, height, gap = 1.75 if sharey else 2.1, 1.35, 0.12 if sharey else 0.48  # inches
    left, right, bottom, top = 0.8, 0.15, 0.6, 0.7
    size = (left + columns * (width + gap) - gap + right, bottom + rows * (height + 0.2) - 0.2 + top)
    figure = Figure(figsize=size)
    axes = figure.subplots(
        rows, columns, sharex=True, sharey="row" if sharey else False, squeeze=False,
        gridspec_kw={"left": left / size[0], "right": 1 - right / size[0], "bottom": bottom / size[1],
                     "top": 1 - top / size[1], "wspace": gap / width, "hspace": 0.2 / height},
    )  # fmt: skip
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(colors=INK, labelsize=7)
        each.grid(axis="y", color=LINE, linewidth=0.5)
        each.set_axisbelow(True)
    return figure, axes.tolist()


def _finish(figure: Figure, axes: list[list[Axes]], x: str, y: str) -> Figure:
    width, height = figure.get_size_inches()
    figure.supxlabel(x, fontsize=9.5, color=INK, y=0.08 / height, va="bottom")
    figure.text(0.1 / width, 1 - 0.12 / height, y, fontsize=10, color=INK, va="top")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper right", ncols=2, fontsize=9, frameon=False, labelcolor=INK)
    return figure


def _images(data: RingData) -> Iterator[tuple[str, bytes]]:
    """Every figure as PNG: with so many panels a PDF of each would double the time."""
    for name, figure in _figures(data):
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=130, metadata={"Software": None}, facecolor="white")
        yield f"figures/{name}.png", file.getvalue()
