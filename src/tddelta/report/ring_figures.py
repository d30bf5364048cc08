"""Figures of the ring experiment, and the folder of figures and tables, all from the saved averages."""

import functools
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from tddelta._matplotlib import own_style
from tddelta.errors import DataError
from tddelta.report import ring_tables
from tddelta.report.plots import INK, LINE, colour
from tddelta.report.ring import (
    SELECTIONS,
    Cell,
    RingData,
    cells,
    comparison_rows,
    comparisons,
    headline_cells,
    step_size_rows,
    to_csv,
)
from tddelta.runs.files import replace

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
    return ring_tables.statements(data, families)


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def _tables(data: RingData, families: ring_tables.Families) -> Iterator[tuple[str, bytes]]:
    headline = comparisons(data, headline_cells)
    rows = {
        "cells": [row for found in families.values() for row in comparison_rows(found)],
        "conventions": [row for found in headline.values() for row in comparison_rows(found)],
        "step-sizes": step_size_rows(data),
    }
    for name, table in rows.items():
        yield f"tables/ring-{name}.csv", to_csv(table).encode()
    texts = {
        "verdicts": ring_tables.verdicts(data, families),
        "growth": ring_tables.growth(data, families),
        "equality": ring_tables.equality(data),
        "edges": ring_tables.edges(data, families),
        "selection": ring_tables.selection(data, families),
        "statements": "".join(f"- {line}\n" for line in ring_tables.statements(data, families)),
        "conventions": ring_tables.conventions(data, headline["rms", "other"]),
    }
    for measure in data.axis("measures"):
        texts[f"worse-{measure}"] = ring_tables.worse(families[measure, "other"])
        for length in data.axis("lengths"):
            texts[f"gains-{measure}-{length}"] = ring_tables.gains(data, families[measure, "other"], length)
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
