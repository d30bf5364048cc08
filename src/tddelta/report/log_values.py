"""Tables and figures of values from a log: two files for the values, three for how well they predict."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tddelta._matplotlib import own_style
from tddelta.report.figures import Drawing, to_bytes
from tddelta.report.formatting import MISSING
from tddelta.report.horizons import panels, predicted_against_realised, values_by_horizon
from tddelta.report.statistics import FloatArray
from tddelta.timescales import TimeScales


@own_style()
def write_values(
    folder: Path,
    scales: TimeScales,
    values: FloatArray,
    *,
    states: Sequence[str] = (),
    visits: Sequence[int] = (),
    drawn: Sequence[int],
    unit: str = "steps",
) -> None:
    """Write values.csv, all values in full precision, and values.png, some of them against the horizon.

    Args:
        folder: Where to write.
        scales: The time scales.
        values: V_z, (N, Z), of each state, or of each row of the log where there are no states.
        states: What the states are called, N of them or none.
        visits: How often each state was visited.
        drawn: Which of the values are drawn.
        unit: Of the horizons.
    """
    heads = [f"value/gamma={label}" for label in scales.labels]
    if states:
        named = zip(states, visits, values, strict=True)
        lines: Iterable[list[Any]] = ([state, visit, *_fields(row)] for state, visit, row in named)
        _write_csv(folder / "values.csv", ["state", "visits", *heads], lines)
    else:
        lines = ([number, *_fields(row)] for number, row in enumerate(values, start=1))
        _write_csv(folder / "values.csv", ["row", *heads], lines)
    names = [states[place] if states else f"row {place + 1}" for place in drawn]
    figure, (axes,) = panels(1, width=5.2, height=3.6)
    values_by_horizon(axes, scales.horizons, values[list(drawn)], names, unit=unit)
    caption = "V against the horizon."
    _write_figure(folder, Drawing("values", "log", "Values", caption, caption, figure))


@own_style()
def write_calibration(
    folder: Path,
    scales: TimeScales,
    measures: Mapping[str, npt.NDArray[Any]],
    *,
    predicted: FloatArray,
    realised: FloatArray,
    counts: npt.NDArray[Any],
) -> None:
    """Write calibration.csv, the measures per scale, and bins.csv and calibration.png, means over groups of steps.

    Args:
        folder: Where to write.
        scales: The time scales.
        measures: Columns of calibration.csv by name, each (Z,), `bias` and `rmse` among them.
        predicted: Mean predicted value of each group, (Z, G).
        realised: Mean realised return of each group, (Z, G).
        counts: Number of steps in each group, (Z, G).
    """
    horizons = scales.horizons
    _write_csv(
        folder / "calibration.csv",
        ["gamma", "horizon", *measures],
        ([gamma, horizons[z], *_fields(m[z] for m in measures.values())] for z, gamma in enumerate(scales.gammas)),
    )
    filled = ((z, group) for z in range(len(scales)) for group in range(counts.shape[1]) if counts[z, group])
    _write_csv(
        folder / "bins.csv",
        ["gamma", "bin", "count", "predicted", "realised"],
        ([scales.gammas[z], g + 1, *_fields((counts[z, g], predicted[z, g], realised[z, g]))] for z, g in filled),
    )
    figure, axes = panels(len(scales))
    for z, each in enumerate(axes):
        remark = f"bias {_short(measures['bias'][z])}, RMSE {_short(measures['rmse'][z])}"
        title = f"horizon {_short(horizons[z])}"
        predicted_against_realised(each, predicted[z], realised[z], title=title, remark=remark)
    caption = "Predicted values against realised returns."
    _write_figure(folder, Drawing("calibration", "log", "Calibration", caption, caption, figure))


def _write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(rows)


def _write_figure(folder: Path, drawing: Drawing) -> None:
    (folder / f"{drawing.name}.png").write_bytes(to_bytes(drawing, "png"))


def _short(value: float) -> str:
    return "∞" if value == math.inf else f"{value:.4g}" if math.isfinite(value) else MISSING


def _fields(values: Iterable[Any]) -> list[Any]:
    """Plain numbers; an empty field where there is none."""
    return [value if math.isfinite(value) else "" for value in (each.item() for each in values)]
