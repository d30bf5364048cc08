"""Figures of a report: every function draws on the axes it is given and returns them.

Nothing here touches pyplot or matplotlib's global state, and nothing computes a statistic.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from tddelta.report.aggregates import Curve, Estimate, Profile
from tddelta.report.statistics import CriticQuality, FloatArray, summarise
from tddelta.timescales import TimeScales

INK = "#24292f"
"""Text and axes. The page replaces it by the text colour of its theme."""
LINE = "#d0d7de"
"""Grid lines."""

PALETTE = (
    ("#5b6470", "#a8b3c2"),
    ("#a86f00", "#e8ab3f"),
    ("#00836a", "#35c7a0"),
    ("#c2410c", "#f58d55"),
    ("#a8428c", "#e28fca"),
    ("#0a63b0", "#62aef5"),
    ("#6741d9", "#ad98f7"),
    ("#4a7a14", "#90c95a"),
    ("#875a35", "#cfa27c"),
)
"""Colours on a light and on a dark background, told apart in the common kinds of colour blindness."""

_KNOWN = ("ppo", "ppo+", "ppo-multi", "ppo-delta-bootstrap", "ppo-delta-matched", "ppo-delta")
_MARKERS = "osD^vPX*h"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))


def agent_styles(agents: Sequence[str]) -> dict[str, int]:
    """Give every agent an entry of `PALETTE`; the agents of this library always get the same one."""
    styles = {agent: _KNOWN.index(agent) for agent in agents if agent in _KNOWN}
    free = [index for index in range(len(PALETTE)) if index not in styles.values()] or list(range(len(PALETTE)))
    others = [agent for agent in agents if agent not in styles]
    # agents beyond the palette share a colour; their markers and dashes still differ
    return styles | {agent: free[i % len(free)] + len(PALETTE) * (i // len(free)) for i, agent in enumerate(others)}


def colour(style: int) -> str:
    """Colour of a style on a light background."""
    return PALETTE[style % len(PALETTE)][0]


def _line(style: int) -> dict[str, Any]:
    return {
        "color": colour(style),
        "linestyle": _DASHES[(style + style // len(PALETTE)) % len(_DASHES)],
        "linewidth": 1.8,
    }


def _marker(style: int) -> str:
    return _MARKERS[(style + style // len(PALETTE)) % len(_MARKERS)]


def new_figure(
    rows: int = 1, *, width: float = 4.4, height: float = 3.0, share_x: bool = False
) -> tuple[Figure, list[Axes]]:
    """Make a figure with `rows` axes below each other, styled as the report's."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = list(np.ravel(figure.subplots(rows, 1, sharex=share_x)))
    for each in axes:
        each.patch.set_alpha(0)
        _style(each, 9.5, "y")
    return figure, axes


def _style(axes: Axes, size: float, grid: Literal["both", "y"]) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=size)
    axes.grid(axis=grid, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def learning_curves(axes: Axes, curves: Mapping[str, Curve], styles: Mapping[str, int]) -> Axes:
    """Mean return against environment steps, with the interval over seeds.

    Where fewer seeds than at most have a value, since they stopped earlier, the line is thin and has no band.

    Args:
        axes: Where to draw.
        curves: Curve of each agent.
        styles: Style of each agent, from `agent_styles`.

    Returns:
        The axes.
    """
    labels = {curve.label for curve in curves.values()}
    for agent, curve in curves.items():
        style = _line(styles[agent])
        name = agent if len(labels) == 1 else f"{agent} ({curve.label})"
        full = curve.n == curve.n.max(initial=0)
        axes.fill_between(curve.grid, curve.low, curve.high, where=full, color=style["color"], alpha=0.16, linewidth=0)
        axes.plot(curve.grid, curve.mean, **style | {"linewidth": 0.8})
        every = max(1, len(curve.grid) // 7)
        axes.plot(
            curve.grid,
            np.where(full, curve.mean, np.nan),
            **style,
            label=name,
            marker=_marker(styles[agent]),
            markersize=4,
            markevery=(styles[agent] % every, every),
        )
    label(axes, "Environment steps", "Return of training episodes")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))
    _legend(axes, labels.pop() if len(labels) == 1 else None)
    return axes


def recorded_episode(
    axes: Sequence[Axes],
    deltas: npt.ArrayLike,
    rewards: npt.ArrayLike,
    scales: TimeScales,
    *,
    points: int = 400,
) -> Sequence[Axes]:
    """Values of a critic during one episode: V, every W_z, and the rewards below on the same time axis.

    Args:
        axes: One for V where there are several scales, one per scale with the longest horizon first, one for the
            rewards: `panel_count` says how many.
        deltas: W_z(s_t), shape (T, Z).
        rewards: Rewards, shape (T,).
        scales: The critic's time scales.
        points: About how many points to draw of a longer episode; extremes are kept.

    Returns:
        The axes.
    """
    parts, gains = np.asarray(deltas, np.float64), np.asarray(rewards, np.float64)
    count = parts.shape[1]
    shades = [_blend(z / max(count - 1, 1)) for z in range(count)]
    values = parts.sum(axis=1)
    panels = [("V", values, INK)] if count > 1 else [("V", values, shades[0])]
    panels += [(f"W  γ={scales.labels[z]}", parts[:, z], shades[z]) for z in reversed(range(count)) if count > 1]
    for each, (title, series, shade) in zip(axes, panels, strict=False):
        time, kept = thin(series, points)
        each.plot(time, kept, color=shade, linewidth=1.2)
        if kept.min() <= 0 <= kept.max():  # elsewhere a zero line would squeeze the series
            each.axhline(0, color=INK, linewidth=0.5, alpha=0.5)
        each.set_ylabel(title, rotation=0, ha="right", va="center", color=INK, fontsize=9)
        each.yaxis.set_major_locator(MaxNLocator(2))
        each.spines["bottom"].set_visible(False)
        each.tick_params(axis="x", length=0)
    last = axes[len(panels)]
    when = np.flatnonzero(gains)
    if len(when) <= points:
        last.vlines(when, 0, gains[when], color=INK, linewidth=1.0)
    else:
        last.plot(*thin(gains, points), color=INK, linewidth=1.0)
    last.axhline(0, color=INK, linewidth=0.5)
    last.set_xlim(-0.01 * len(gains), 1.01 * len(gains))
    last.set_ylabel("reward", rotation=0, ha="right", va="center", color=INK, fontsize=9)
    last.set_xlabel("Time step of the episode", color=INK, fontsize=9)
    last.set_yticks(sorted({0.0, float(gains.min()), float(gains.max())}))
    last.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    return axes


def panel_count(scales: TimeScales) -> int:
    """Number of axes that `recorded_episode` needs."""
    return len(scales) + 2 if len(scales) > 1 else 2


def explained_variance(
    axes: Axes,
    critics: Mapping[str, tuple[TimeScales, Sequence[CriticQuality]]],
    styles: Mapping[str, int],
) -> Axes:
    """Explained variance of V_γ on held-out states against the horizon of γ, ± standard error over seeds.

    Args:
        axes: Where to draw.
        critics: Per agent its time scales and the quality of its critic, one entry per seed.
        styles: Style of each agent.

    Returns:
        The axes.
    """
    shift = np.linspace(-1, 1, max(len(critics), 2)) * 0.025  # agents side by side, on a logarithmic axis
    for offset, (agent, (scales, qualities)) in zip(shift, critics.items(), strict=False):
        horizons = np.minimum(np.array(scales.horizons), 1e9) * 10**offset
        cells = [[q.explained_variance[z] for q in qualities] for z in range(len(scales))]
        summaries = [summarise([value for value in cell if np.isfinite(value)]) for cell in cells]
        axes.errorbar(
            horizons,
            [summary.mean for summary in summaries],
            yerr=[summary.standard_error or 0.0 for summary in summaries],
            **_line(styles[agent]) | {"linewidth": 1.2},
            marker=_marker(styles[agent]),
            markersize=5,
            capsize=2,
            label=agent,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -1.0), min(high, 1.05) if low < 1.05 else high)
    if low < 0:
        axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    label(axes, "Horizon 1/(1 − γ) in steps", "Explained variance")
    _legend(axes, "mean ± standard error over seeds")
    return axes


def performance_profiles(axes: Axes, profiles: Mapping[str, Profile], styles: Mapping[str, int]) -> Axes:
    """Share of runs above each normalised score, with the bootstrap band.

    Args:
        axes: Where to draw.
        profiles: Profile of each agent.
        styles: Style of each agent.

    Returns:
        The axes.
    """
    for agent, profile in profiles.items():
        style = _line(styles[agent])
        axes.fill_between(
            profile.thresholds, profile.low, profile.high, step="post", alpha=0.14, linewidth=0, color=style["color"]
        )
        axes.step(profile.thresholds, profile.fractions, where="post", label=agent, **style)
    axes.set_ylim(-0.02, 1.02)
    label(axes, "Normalised score τ", "Share of runs above τ")
    banded = any(np.isfinite(profile.low).any() for profile in profiles.values())
    _legend(axes, "band: 95 % bootstrap" if banded else "one seed: no band")
    return axes


def intervals(
    axes: Axes,
    estimates: Mapping[str, Estimate],
    colours: Mapping[str, str],
    *,
    title: str,
    middle: float | None = None,
) -> Axes:
    """Estimates with their intervals, one row each.

    Args:
        axes: Where to draw.
        estimates: The estimates by the name of their row.
        colours: Colour of each row.
        title: What is estimated.
        middle: Where to draw a vertical line, such as ½ for a probability of improvement.

    Returns:
        The axes.
    """
    names = list(estimates)
    for row, name in enumerate(reversed(names)):
        estimate = estimates[name]
        if estimate.interval.low is not None and estimate.interval.high is not None:
            ends = (estimate.interval.low, estimate.interval.high)
            axes.plot(ends, (row, row), color=colours[name], linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot([estimate.value], [row], marker="|", markersize=11, markeredgewidth=2.5, color=colours[name])
        # above its row, so that a long name leaves the width to the numbers
        short = name if len(name) <= 50 else f"{name[:49]}…"
        text = axes.text(0, row + 0.2, short, transform=axes.get_yaxis_transform(), color=INK, fontsize=9, va="bottom")
        text.set_in_layout(False)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.45, len(names) - 0.15)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    if middle is not None:
        axes.axvline(middle, color=INK, linewidth=0.8)
    label(axes, title, "")
    return axes


def reward_densities(axes: Axes, densities: Mapping[str, Mapping[str, float]]) -> Axes:
    """Frequency of rewards, one row per environment, one mark per policy.

    Args:
        axes: Where to draw.
        densities: Rewards per 100 steps by environment and name of the policy.

    Returns:
        The axes.
    """
    names = list(densities)
    kinds = list(dict.fromkeys(kind for row in densities.values() for kind in row))
    for place, kind in enumerate(kinds):
        rows = [(len(names) - 1 - i, densities[name][kind]) for i, name in enumerate(names) if kind in densities[name]]
        heights, values = zip(*rows, strict=True)
        axes.plot(values, heights, linestyle="", marker=_MARKERS[place], markersize=6, color=colour(place), label=kind)
    axes.set_yticks(range(len(names)), reversed(names))
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.set_xlim(left=0)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    label(axes, "Rewards per 100 steps", "")
    _legend(axes, None)
    return axes


def thin(series: FloatArray, points: int) -> tuple[FloatArray, FloatArray]:
    """Keep the smallest and the largest value of each stretch of a long series, in their order.

    Args:
        series: Values, shape (T,).
        points: About how many to keep, at least 2.

    Returns:
        Time steps and values.
    """
    length = len(series)
    if length <= points:
        return np.arange(length, dtype=np.float64), series
    kept = {0, length - 1}
    for part in np.array_split(np.arange(length), max(points // 2, 1)):
        finite = np.nan_to_num(series[part])
        kept |= {int(part[finite.argmin()]), int(part[finite.argmax()])}
    index = np.array(sorted(kept))
    return index.astype(np.float64), series[index]


def short_count(value: float) -> str:
    """A count of steps for an axis: 300k, 2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _blend(share: float) -> str:
    """A shade between two colours that both stand out on light and dark: short horizons warm, long ones cool."""
    stops = np.array([[0xD9, 0x6B, 0x1C], [0xB0, 0x4A, 0x9A], [0x2F, 0x7D, 0xD1]], np.float64)
    position = share * (len(stops) - 1)
    low = min(int(position), len(stops) - 2)
    red, green, blue = stops[low] + (stops[low + 1] - stops[low]) * (position - low)
    return f"#{round(red):02x}{round(green):02x}{round(blue):02x}"


def label(axes: Axes, x: str, y: str) -> None:
    """Label the two axes."""
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)


def legend_lines(axes: Axes) -> int:
    """Lines of text of the legend below the axes, for choosing the figure's height."""
    legend = axes.get_legend()
    if legend is None:
        return 0
    lines = [text.get_text().count("\n") + 1 for text in legend.get_texts()]
    return 1 + (-(-len(lines) // 2) if _short(axes) else sum(lines))


def _short(axes: Axes) -> bool:
    """True if the legend's names are short enough for two columns."""
    return all(len(name) <= 22 for name in axes.get_legend_handles_labels()[1])


def _legend(axes: Axes, title: str | None) -> None:
    """Put the legend below the axis label, where it covers no data."""
    below = axes.transAxes + ScaledTranslation(0, -40 / 72, axes.figure.dpi_scale_trans)
    handles, names = axes.get_legend_handles_labels()
    legend = axes.legend(
        handles,
        [textwrap.fill(name, 44) for name in names],
        title=title,
        fontsize=9,
        title_fontsize=9,
        frameon=False,
        labelcolor=INK,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        borderaxespad=0,
        ncols=2 if _short(axes) else 1,
        columnspacing=1.0,
        handlelength=2.4,
        alignment="left",
    )
    legend.get_title().set_color(INK)


def panels(count: int, *, columns: int = 3, width: float = 2.7, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` panels side by side, in rows.

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
        _style(each, 9.0, "both")
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
    label(axes, f"Horizon 1/(1 − γ) in {unit}", "V")
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
    label(axes, "Environment steps", "Share of all parts")
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
