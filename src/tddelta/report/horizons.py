"""Figures of values against horizons, and of predicted against realised returns: axes in, axes out."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tddelta.report.plots import INK, LINE, PALETTE
from tddelta.report.statistics import FloatArray
from tddelta.timescales import TimeScales

_MARKERS = "osD^vPX*h"


def panels(count: int, *, columns: int = 3, width: float = 2.7, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """Make a figure of so many panels side by side, in rows.

    Args:
        count: Number of panels.
        columns: Largest number side by side.
        width: Width of a panel in inches.
        height: Height of a panel in inches.

    Returns:
        The figure and its axes.
    """
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(np.ravel(figure.subplots(rows, columns)))
    for unused in axes[count:]:
        unused.remove()
    for each in axes[:count]:
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(INK)
        each.tick_params(colors=INK, labelsize=9)
        each.grid(color=LINE, linewidth=0.6)
        each.set_axisbelow(True)
    return figure, axes[:count]


def values_by_horizon(
    axes: Axes, horizons: Sequence[float], values: npt.ArrayLike, names: Sequence[str], *, unit: str = "steps"
) -> Axes:
    """V against the horizon of its discount, a line for each state.

    Args:
        axes: Where to draw.
        horizons: 1/(1 − γ_z), Z of them.
        values: V_z(s), (S, Z).
        names: What the states are called, S of them.
        unit: Of the horizons.

    Returns:
        The axes.
    """
    where = np.minimum(np.array(horizons), 1e9)
    for index, (name, row) in enumerate(zip(names, np.asarray(values, np.float64), strict=True)):
        axes.plot(
            where,
            row,
            color=PALETTE[index % len(PALETTE)][0],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4,
            linewidth=1.6,
            label=name if len(name) <= 24 else f"{name[:23]}…",
        )
    axes.set_xscale("log")
    axes.set_xticks(where, ["∞" if horizon > 1e9 else f"{horizon:.4g}" for horizon in horizons])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"Horizon 1/(1 − γ) in {unit}", color=INK, fontsize=10)
    axes.set_ylabel("V", color=INK, fontsize=10)
    axes.legend(fontsize=8.5, frameon=False, labelcolor=INK)
    return axes


def predicted_against_realised(
    axes: Axes, predicted: FloatArray, realised: FloatArray, *, title: str, remark: str
) -> Axes:
    """Mean realised return against mean predicted value of groups of steps, and the line where they agree.

    Args:
        axes: Where to draw.
        predicted: Mean predicted value of each group; NaN for groups without steps.
        realised: Mean realised return of each group.
        title: What the panel shows.
        remark: A line of numbers below the title.

    Returns:
        The axes.
    """
    axes.set_title(f"{title}\n{remark}", color=INK, fontsize=9)
    known = np.isfinite(predicted) & np.isfinite(realised)
    if not known.any():
        axes.text(0.5, 0.5, "no return is known", transform=axes.transAxes, ha="center", color=INK, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
        return axes
    both = np.concatenate([predicted[known], realised[known]])
    room = 0.05 * float(np.ptp(both)) or 0.05 * max(1.0, abs(float(both[0])))
    ends = float(both.min()) - room, float(both.max()) + room
    axes.plot(ends, ends, color=INK, linewidth=0.8, alpha=0.6)
    axes.plot(predicted[known], realised[known], "o", color=PALETTE[5][0], markersize=4.5)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlim(ends)
    axes.set_ylim(ends)
    axes.set_xlabel("Predicted", color=INK, fontsize=9)
    axes.set_ylabel("Realised", color=INK, fontsize=9)
    return axes


def value_shares(axes: Axes, steps: FloatArray, shares: FloatArray, scales: TimeScales) -> Axes:
    """Which scale carries the value while an agent learns: shares of the parts, stacked, shortest horizon below.

    Args:
        axes: Where to draw.
        steps: Environment steps, (N,).
        shares: Share of each part, (N, Z), summing to 1.
        scales: The critic's time scales.

    Returns:
        The axes.
    """
    upper = np.cumsum(shares, axis=1)
    for z, name in enumerate(scales.labels):
        low = upper[:, z - 1] if z else np.zeros(len(steps))
        shade = PALETTE[(z + 1) % len(PALETTE)][0]
        axes.fill_between(steps, low, upper[:, z], color=shade, linewidth=0, label=f"W_{z}  γ={name}")
    axes.set_xlim(float(steps[0]), float(steps[-1]) if len(steps) > 1 else float(steps[0]) + 1)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("Environment steps", color=INK, fontsize=10)
    axes.set_ylabel("Share of all parts", color=INK, fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        fontsize=8.5,
        frameon=False,
        labelcolor=INK,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
    return axes
