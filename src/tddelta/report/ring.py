"""The ring experiment's numbers: best step sizes, differences between the methods, and what became of the claims.

Everything is made from `ring.npz` and `ring.json` alone, which `tddelta.experiments.ring` wrote.
"""

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta.errors import CheckpointError
from tddelta.report.statistics import FloatArray, bootstrap_difference, holm, welch_test
from tddelta.runs.files import Arrays, read_arrays, read_json

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
