"""The figures of a report: what is drawn on axes, the figures of a set of runs, and their files.

A function that takes `axes` draws on them; `styles` comes from `agent_styles`. Nothing here touches pyplot or
matplotlib's global state, and nothing computes a statistic.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from tddelta.report import statistics, words
from tddelta.report.run_set import Group, RunSet, Suite
from tddelta.report.statistics import (
    Curve,
    Estimate,
    FloatArray,
    aggregate,
    performance_profile,
    probability_of_improvement,
)
from tddelta.report.words import number, sentence_of, slug, summary_text
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
    dashes = _DASHES[(style + style // len(PALETTE)) % len(_DASHES)]
    return {"color": colour(style), "linestyle": dashes, "linewidth": 1.8}


def _marker(style: int) -> str:
    return _MARKERS[(style + style // len(PALETTE)) % len(_MARKERS)]


def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = 4.4,
    height: float = 3.0,
    share_x: bool = False,
    text: float = 9.5,
    grid: Literal["both", "y"] = "y",
) -> tuple[Figure, list[Axes]]:
    """Make a figure of this size in inches with rows of axes, styled as the report's; `text` is the size of numbers."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = list(np.ravel(figure.subplots(rows, columns, sharex=share_x)))
    for each in axes:
        each.patch.set_alpha(0)
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(INK)
        each.tick_params(colors=INK, labelsize=text)
        each.grid(axis=grid, color=LINE, linewidth=0.6)
        each.set_axisbelow(True)
    return figure, axes


def panels(count: int, *, columns: int = 3, width: float = 2.7, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` panels, each of this size in inches, at most `columns` of them side by side."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure, axes = new_figure(rows, columns, width=width * columns, height=height * rows, text=9.0, grid="both")
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def label(axes: Axes, x: str, y: str, *, size: float = 10) -> None:
    """Label the two axes."""
    axes.set_xlabel(x, color=INK, fontsize=size)
    axes.set_ylabel(y, color=INK, fontsize=size)


def legend_below(axes: Axes, title: str | None) -> int:
    """Put the legend below the axis label, where it covers no data, and return how many lines it has."""
    below = axes.transAxes + ScaledTranslation(0, -40 / 72, axes.figure.dpi_scale_trans)
    handles, names = axes.get_legend_handles_labels()
    texts = [textwrap.fill(name, 44) for name in names]
    short = all(len(name) <= 22 for name in names)
    legend = axes.legend(
        handles,
        texts,
        title=title,
        fontsize=9,
        title_fontsize=9,
        frameon=False,
        labelcolor=INK,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        borderaxespad=0,
        ncols=2 if short else 1,
        columnspacing=1.0,
        handlelength=2.4,
        alignment="left",
    )
    legend.get_title().set_color(INK)
    return 1 + (-(-len(texts) // 2) if short else sum(text.count("\n") + 1 for text in texts))


# ---------------------------------------------------------------- what is drawn on axes


def learning_curves(axes: Axes, curves: Mapping[str, Curve], styles: Mapping[str, int]) -> int:
    """Mean return of each agent against environment steps, with the interval over seeds.

    Where fewer seeds than at most have a value, since they stopped earlier, the line is thin and has no band. Returns
    how many lines the legend has.
    """
    labels = {curve.label for curve in curves.values()}
    for agent, curve in curves.items():
        style = _line(styles[agent])
        full = curve.n == curve.n.max(initial=0)
        axes.fill_between(curve.grid, curve.low, curve.high, where=full, color=style["color"], alpha=0.16, linewidth=0)
        axes.plot(curve.grid, curve.mean, **style | {"linewidth": 0.8})
        every = max(1, len(curve.grid) // 7)
        axes.plot(
            curve.grid,
            np.where(full, curve.mean, np.nan),
            **style,
            label=agent if len(labels) == 1 else f"{agent} ({curve.label})",
            marker=_marker(styles[agent]),
            markersize=4,
            markevery=(styles[agent] % every, every),
        )
    label(axes, "Environment steps", "Return of training episodes")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 300k, 2M
    axes.locator_params(axis="x", integer=True)  # half a step would be 500m
    return legend_below(axes, labels.pop() if len(labels) == 1 else None)


def recorded_episode(
    axes: Sequence[Axes], deltas: npt.ArrayLike, rewards: npt.ArrayLike, scales: TimeScales, *, points: int = 400
) -> None:
    """Values of a critic during one episode: V, every W_z, and the rewards below on the same time axis.

    Args:
        axes: One for V where there are several scales, one per scale with the longest horizon first, one for the
            rewards: `panel_count` says how many.
        deltas: W_z(s_t), shape (T, Z).
        rewards: Rewards, shape (T,).
        scales: The critic's time scales.
        points: About how many points to draw of a longer episode; extremes are kept.
    """
    parts, gains = np.asarray(deltas, np.float64), np.asarray(rewards, np.float64)
    count = parts.shape[1]
    shades = [_blend(z / max(count - 1, 1)) for z in range(count)]
    lines = [("V", parts.sum(axis=1), INK if count > 1 else shades[0])]
    lines += [(f"W  γ={scales.labels[z]}", parts[:, z], shades[z]) for z in reversed(range(count)) if count > 1]
    for each, (title, series, shade) in zip(axes, lines, strict=False):
        time, kept = thin(series, points)
        each.plot(time, kept, color=shade, linewidth=1.2)
        if kept.min() <= 0 <= kept.max():  # elsewhere a zero line would squeeze the series
            each.axhline(0, color=INK, linewidth=0.5, alpha=0.5)
        each.set_ylabel(title, rotation=0, ha="right", va="center", color=INK, fontsize=9)
        each.yaxis.set_major_locator(MaxNLocator(2))
        each.spines["bottom"].set_visible(False)
        each.tick_params(axis="x", length=0)
    last = axes[len(lines)]
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
    last.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")


def panel_count(scales: TimeScales) -> int:
    """Number of axes that `recorded_episode` needs."""
    return len(scales) + 2 if len(scales) > 1 else 2


def thin(series: FloatArray, points: int) -> tuple[FloatArray, FloatArray]:
    """Time steps and values of about `points` of a long series (T,): the extremes of each stretch, in their order."""
    length = len(series)
    if length <= points:
        return np.arange(length, dtype=np.float64), series
    kept = {0, length - 1}
    for part in np.array_split(np.arange(length), max(points // 2, 1)):
        finite = np.nan_to_num(series[part])
        kept |= {int(part[finite.argmin()]), int(part[finite.argmax()])}
    index = np.array(sorted(kept))
    return index.astype(np.float64), series[index]


def _blend(share: float) -> str:
    """A shade between two colours that both stand out on light and dark: short horizons warm, long ones cool."""
    stops = ((0xD9, 0x6B, 0x1C), (0xB0, 0x4A, 0x9A), (0x2F, 0x7D, 0xD1))
    mixed = (round(np.interp(share, (0, 0.5, 1), part)) for part in zip(*stops, strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def intervals(
    axes: Axes,
    estimates: Mapping[str, Estimate],
    colours: Mapping[str, str],
    *,
    title: str,
    middle: float | None = None,
) -> None:
    """Estimates of what the title says with their intervals, one named row each; a vertical line at `middle`."""
    for row, (name, estimate) in enumerate(reversed(list(estimates.items()))):
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
    axes.set_ylim(-0.45, len(estimates) - 0.15)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    if middle is not None:
        axes.axvline(middle, color=INK, linewidth=0.8)
    label(axes, title, "")


def values_by_horizon(
    axes: Axes, horizons: Sequence[float], values: npt.ArrayLike, names: Sequence[str], *, unit: str = "steps"
) -> None:
    """V_z(s), (S, Z), against the horizon 1/(1 − γ_z) of its discount in some unit, a line for each named state."""
    where = np.minimum(np.array(horizons), 1e9)
    for index, (name, row) in enumerate(zip(names, np.asarray(values, np.float64), strict=True)):
        axes.plot(
            where,
            row,
            color=colour(index),
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


def predicted_against_realised(
    axes: Axes, predicted: FloatArray, realised: FloatArray, *, title: str, remark: str
) -> None:
    """Mean realised return against mean predicted value of groups of steps, and the line where they agree.

    Means are NaN for groups without steps. `title` and `remark`, a line of numbers, stand above.
    """
    axes.set_title(f"{title}\n{remark}", color=INK, fontsize=9)
    known = np.isfinite(predicted) & np.isfinite(realised)
    if not known.any():
        axes.text(0.5, 0.5, "no return is known", transform=axes.transAxes, ha="center", color=INK, fontsize=9)
        axes.set(xticks=[], yticks=[])
        return
    both = np.concatenate([predicted[known], realised[known]])
    room = 0.05 * float(np.ptp(both)) or 0.05 * max(1.0, abs(float(both[0])))
    ends = float(both.min()) - room, float(both.max()) + room
    axes.plot(ends, ends, color=INK, linewidth=0.8, alpha=0.6)
    axes.plot(predicted[known], realised[known], "o", color=colour(5), markersize=4.5)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set(xlim=ends, ylim=ends)
    label(axes, "Predicted", "Realised", size=9)


# ---------------------------------------------------------------- the figures of a set of runs


@dataclass(frozen=True)
class Drawing:
    """A figure of the report.

    Attributes:
        name: File name without suffix.
        section: Which part of the page it belongs to.
        title: Heading above it.
        caption: What it shows and how it was made.
        alternative: The same in words, for those who cannot see it.
        figure: The figure itself, in light colours.
        minor: Whether it stays folded away at first.
        reading: What it says, in a sentence or two, computed from the data.
    """

    name: str
    section: str
    title: str
    caption: str
    alternative: str
    figure: Figure
    minor: bool = False
    reading: str = ""


def laid_out(drawing: Drawing) -> Drawing:
    """Lay the axes of a figure out, once for all formats."""
    drawing.figure.draw_without_rendering()
    drawing.figure.set_layout_engine("none")
    return drawing


def drawings(runs: RunSet) -> Iterator[Drawing]:
    """Make every figure that the runs have data for, section by section."""
    styles = agent_styles(runs.agents)
    for environment in runs.environments:
        yield from _learning(runs, environment, styles)
    for suite in runs.suites[0]:
        yield from _aggregates(runs, suite, styles)
    for section in (_critics, _diagnostics, _episodes):
        for environment in runs.environments:
            yield from section(runs, environment)


def fit(figure: Figure, lines: int) -> None:
    """Make a figure high enough for the lines of the legend below its axes."""
    figure.set_size_inches(figure.get_figwidth(), 3.1 + 0.17 * lines)


def _learning(runs: RunSet, environment: str, styles: dict[str, int]) -> Iterator[Drawing]:
    curves = runs.curves(environment)
    if not curves:
        return
    figure, (axes,) = new_figure()
    fit(figure, learning_curves(axes, curves, styles))
    ends = [f"{g.agent} {summary_text(g.summary('asymptotic'))}" for g in runs.groups_on(environment)]
    seeds = sorted({int(curve.n.max(initial=0)) for curve in curves.values()})
    caption = "Mean return of the episodes that ended since the previous point, averaged over seeds."
    if seeds[-1] > 1:
        caption += " The band is a 95 % t interval of that mean."
    if any((curve.n[curve.n > 0] < curve.n.max()).any() for curve in curves.values()):
        caption += " Where the line is thin, fewer seeds have a value; nothing is extrapolated."
    yield Drawing(
        f"learning-{slug(environment)}",
        "learning",
        environment,
        caption,
        f"Learning curves on {environment}. Return over the last 100 episodes: {'; '.join(ends)}.",
        figure,
        reading=words.learning(runs, environment),
    )


def _aggregates(runs: RunSet, suite: Suite, styles: dict[str, int]) -> Iterator[Drawing]:
    estimates = {agent: aggregate(scores) for agent, scores in suite.scores.items()}
    colours = {agent: colour(styles[agent]) for agent in estimates}
    figure, (axes,) = new_figure(width=3.7, height=0.7 + 0.42 * len(estimates))
    intervals(axes, estimates, colours, title="Normalised score")
    told = "; ".join(f"{agent} {number(estimate.value)}" for agent, estimate in estimates.items())
    where = ", ".join(suite.environments)
    yield Drawing(
        f"iqm-{slug(suite.name)}",
        "aggregates",
        "Interquartile mean",
        f"Over {where}. Bars: 95 % stratified bootstrap interval. {sentence_of(suite.unit)}",
        f"Interquartile mean: {told}.",
        figure,
        reading=words.interquartile(estimates),
    )
    yield _profiles(suite, styles)
    chances = {
        f"{agent} over {baseline}": (agent, probability_of_improvement(suite.scores[agent], suite.scores[baseline]))
        for agent, baseline in runs.pairs
    }
    if chances:
        figure, (axes,) = new_figure(width=3.7, height=0.7 + 0.42 * len(chances))
        found = {name: estimate for name, (_, estimate) in chances.items()}
        colours = {name: colour(styles[agent]) for name, (agent, _) in chances.items()}
        intervals(axes, found, colours, title="Probability of improvement", middle=0.5)
        axes.set_xlim(-0.02, 1.02)
        told = "; ".join(f"{name} {number(estimate.value)}" for name, estimate in found.items())
        yield Drawing(
            f"improvement-{slug(suite.name)}",
            "aggregates",
            "Probability of improvement",
            "Chance that a run of the first agent scores more than a run of the second on the same environment; "
            "½ is a draw. Bars: 95 % stratified bootstrap interval.",
            f"Probability of improvement: {told}.",
            figure,
            reading=words.improvement(*runs.pairs[0], next(iter(found.values()))),
        )


def _profiles(suite: Suite, styles: dict[str, int]) -> Drawing:
    everything = np.concatenate([array for scores in suite.scores.values() for array in scores])
    thresholds = np.linspace(min(0.0, float(everything.min())), float(everything.max()) * 1.02, 101)
    profiles = {agent: performance_profile(scores, thresholds) for agent, scores in suite.scores.items()}
    figure, (axes,) = new_figure(width=3.7)
    for agent, profile in profiles.items():
        style = _line(styles[agent])
        band = {"color": style["color"], "alpha": 0.14, "linewidth": 0}
        axes.fill_between(profile.grid, profile.low, profile.high, step="post", **band)
        axes.step(profile.grid, profile.mean, where="post", label=agent, **style)
    axes.set_ylim(-0.02, 1.02)
    label(axes, "Normalised score τ", "Share of runs above τ")
    banded = [profile for profile in profiles.values() if np.isfinite(profile.low).any()]
    fit(figure, legend_below(axes, (banded or list(profiles.values()))[0].label))
    return Drawing(
        f"profile-{slug(suite.name)}",
        "aggregates",
        "Performance profile",
        f"Share of runs, over {', '.join(suite.environments)}, whose normalised score is above τ, with a pointwise "
        "band.",
        "Performance profiles of " + ", ".join(profiles) + ".",
        figure,
        reading=words.profiles(profiles),
    )


def _critics(runs: RunSet, environment: str) -> Iterator[Drawing]:
    groups = [g for g in runs.groups_on(environment) if any(np.isfinite(q.explained_variance).any() for q in g.critic)]
    if not groups:
        return
    styles = agent_styles(runs.agents)
    figure, (axes,) = new_figure()
    shift = np.linspace(-1, 1, max(len(groups), 2)) * 0.025  # agents side by side, on a logarithmic axis
    for offset, group in zip(shift, groups, strict=False):
        summaries = group.explained_variance
        axes.errorbar(
            np.minimum(np.array(group.scales.horizons), 1e9) * 10**offset,
            [summary.mean for summary in summaries],
            yerr=[summary.standard_error or 0.0 for summary in summaries],
            **_line(styles[group.agent]) | {"linewidth": 1.2},
            marker=_marker(styles[group.agent]),
            markersize=5,
            capsize=2,
            label=group.agent,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -1.0), min(high, 1.05) if low < 1.05 else high)
    if low < 0:
        axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda *_: "")
    label(axes, "Horizon 1/(1 − γ) in steps", "Explained variance")
    fit(figure, legend_below(axes, "mean ± standard error over seeds"))
    longest = {g.agent: [q.explained_variance[-1] for q in g.critic] for g in groups}
    told = "; ".join(f"{agent} {number(float(np.mean(values)))}" for agent, values in longest.items())
    yield Drawing(
        f"critic-{slug(environment)}",
        "critic",
        environment,
        "How much of the variance of realised discounted returns the critic explains on held-out states of its own "
        "policy, for every discount it estimates: 1 is perfect, 0 no better than a constant. Values below −1 are cut.",
        f"Explained variance of the value at the longest horizon on {environment}: {told}.",
        figure,
        reading=words.critics(groups),
    )


def _diagnostics(runs: RunSet, environment: str) -> Iterator[Drawing]:
    for group in runs.groups_on(environment):
        minor = group.agent != runs.focus
        if group.held_out is not None and (len(group.scales) > 1 or not minor):
            yield _calibration(group, *group.held_out, minor=minor)
        if group.shares is not None:
            yield _shares(group, *group.shares, minor=minor)


def _calibration(group: Group, predicted: FloatArray, realised: FloatArray, *, minor: bool) -> Drawing:
    scales, found = group.scales, statistics.diagnose(group.scales, predicted, realised)
    figure, axes = panels(len(scales), width=1.9, height=2.1)
    for z, each in enumerate(axes):
        part = f"W_{z}" if len(scales) > 1 else "V"
        predicted_against_realised(
            each,
            *statistics.calibration(predicted[:, z], realised[:, z])[:2],
            title=f"γ = {scales.labels[z]}",
            remark=f"{part} explained: {number(float(found.explained_variance[z]))}",
        )
    title, said = f"{group.agent} on {group.environment}", " ".join(words.parts(scales, found))
    return Drawing(
        f"calibration-{slug(group.environment)}-{slug(group.agent)}",
        "diagnostics",
        f"{title}: predicted and realised",
        "Each point: a tenth of the held-out states, by predicted value; on the line a prediction "
        "comes true on average.",
        f"Realised against predicted returns of {title} at every discount. {said}",
        figure,
        minor,
        said,
    )


def _shares(group: Group, steps: FloatArray, shares: FloatArray, *, minor: bool) -> Drawing:
    """Shares (N, Z) of the parts of the value at N environment steps, stacked, shortest horizon below."""
    figure, (axes,) = new_figure()
    upper = np.cumsum(shares, axis=1)
    for z, name in enumerate(group.scales.labels):
        low = upper[:, z - 1] if z else np.zeros(len(steps))
        axes.fill_between(steps, low, upper[:, z], color=colour(z + 1), linewidth=0, label=f"W_{z}  γ={name}")
    axes.set_xlim(float(steps[0]), float(steps[-1]) if len(steps) > 1 else float(steps[0]) + 1)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    label(axes, "Environment steps", "Share of all parts")
    axes.legend(reverse=True, fontsize=8.5, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1, 0.5))
    title, said = f"{group.agent} on {group.environment}", words.shares(shares)
    return Drawing(
        f"shares-{slug(group.environment)}-{slug(group.agent)}",
        "diagnostics",
        f"{title}: which scale carries the value",
        "Share of each part in the mean value of the rollouts, averaged over seeds.",
        f"Shares of the parts of the value of {title} during training. {said}",
        figure,
        minor,
        said,
    )


def _episodes(runs: RunSet, environment: str) -> Iterator[Drawing]:
    recorded = [(g, *g.recorded) for g in runs.groups_on(environment) if g.recorded is not None]
    # the agent that the report is about stands open, others with several scales are folded away
    recorded.sort(key=lambda found: (found[0].agent != runs.focus, -len(found[0].scales)))
    for place, (group, seed, arrays) in enumerate(recorded):
        several = len(group.scales) > 1
        if place and not several:
            continue
        count = panel_count(group.scales)
        figure, axes = new_figure(count, height=0.75 + 0.62 * count, share_x=True)
        recorded_episode(axes, arrays["deltas"], arrays["rewards"], group.scales)
        length, total = len(arrays["rewards"]), float(np.sum(arrays["rewards"]))
        clipped = seed.run.config.get("settings", {}).get("reward_clipping") == "sign"
        what = "V (the sum), every component W from the longest horizon to the shortest," if several else "The value V"
        yield Drawing(
            f"episode-{slug(environment)}-{slug(group.agent)}",
            "episode",
            f"{group.agent} on {environment}",
            f"{what} and the rewards of one episode of the final policy (seed {seed.number}, {length:,} steps, "
            f"return {number(total)}). Each panel has its own scale.",
            f"Values of {group.agent} against time during one recorded episode of {environment}, rewards below.",
            figure,
            minor=place > 0,
            reading=words.episode(group.scales, arrays, clipped=clipped),
        )


# ---------------------------------------------------------------- files


def to_bytes(figure: Figure, kind: Literal["png", "pdf"] = "png") -> bytes:
    """Render a figure: the same bytes for the same figure."""
    file = io.BytesIO()
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(file, format=kind, dpi=180, metadata=metadata, facecolor="white" if kind == "png" else "none")
    return file.getvalue()


def to_svg(drawing: Drawing) -> str:
    """Render a figure as SVG for inlining into a page.

    Text stays text in the page's font and colour, agents take the page's colours (`--p0`, `--p1`, …), and ids are
    made unique by the figure's name.
    """
    file, name = io.StringIO(), drawing.name
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawing.figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    svg = svg.replace(INK, "currentColor").replace(LINE, "var(--line)")
    for index, (light, _) in enumerate(PALETTE):
        svg = svg.replace(light, f"var(--p{index})")
    svg = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag.group()), svg)  # 0.01 pt is enough
    return re.sub(r"\n\s*", "\n", svg).strip()
