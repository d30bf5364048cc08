"""The figures of a report, made from a study, and their files."""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tddelta._matplotlib import own_style
from tddelta.report import plots, statistics, words
from tddelta.report.aggregates import aggregate, performance_profile, probability_of_improvement
from tddelta.report.plots import panels, predicted_against_realised, values_by_horizon
from tddelta.report.statistics import FloatArray
from tddelta.report.study import Group, Study, Suite
from tddelta.report.words import MISSING, number, sentence_of, slug, summary_text
from tddelta.timescales import TimeScales


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


def drawings(study: Study) -> Iterator[Drawing]:
    """Make every figure that the runs have data for.

    Args:
        study: The runs.

    Yields:
        The figures, section by section.
    """
    styles = plots.agent_styles(study.agents)
    for environment in study.environments:
        yield from _learning(study, environment, styles)
    for suite in study.suites[0]:
        yield from _aggregates(study, suite, styles)
    for environment in study.environments:
        yield from _critics(study, environment, styles)
    for environment in study.environments:
        yield from _diagnostics(study, environment)
    for environment in study.environments:
        yield from _episodes(study, environment)


def _fit(figure: Figure, axes: Axes) -> None:
    """Make a figure high enough for the legend below its axes."""
    figure.set_size_inches(figure.get_figwidth(), 3.1 + 0.17 * plots.legend_lines(axes))


def _learning(study: Study, environment: str, styles: dict[str, int]) -> Iterator[Drawing]:
    curves = study.curves(environment)
    if not curves:
        return
    figure, (axes,) = plots.new_figure()
    plots.learning_curves(axes, curves, styles)
    _fit(figure, axes)
    ends = [f"{g.agent} {summary_text(g.summary('asymptotic'))}" for g in study.groups_on(environment)]
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
        reading=words.learning(study, environment),
    )


def _aggregates(study: Study, suite: Suite, styles: dict[str, int]) -> Iterator[Drawing]:
    estimates = {agent: aggregate(scores) for agent, scores in suite.scores.items()}
    figure, (axes,) = plots.new_figure(width=3.7, height=0.7 + 0.42 * len(estimates))
    label = "Normalised score"
    plots.intervals(axes, estimates, {agent: plots.colour(styles[agent]) for agent in estimates}, title=label)
    told = "; ".join(f"{agent} {number(estimate.value)}" for agent, estimate in estimates.items())
    where = ", ".join(suite.environments)
    caption = f"Over {where}. Bars: 95 % stratified bootstrap interval. {sentence_of(suite.unit)}"
    yield Drawing(
        f"iqm-{slug(suite.name)}",
        "aggregates",
        "Interquartile mean",
        caption,
        f"Interquartile mean: {told}.",
        figure,
        reading=words.interquartile(estimates),
    )

    everything = np.concatenate([array for scores in suite.scores.values() for array in scores])
    thresholds = np.linspace(min(0.0, float(everything.min())), float(everything.max()) * 1.02, 101)
    profiles = {agent: performance_profile(scores, thresholds) for agent, scores in suite.scores.items()}
    figure, (axes,) = plots.new_figure(width=3.7)
    plots.performance_profiles(axes, profiles, styles)
    _fit(figure, axes)
    yield Drawing(
        f"profile-{slug(suite.name)}",
        "aggregates",
        "Performance profile",
        f"Share of runs, over {where}, whose normalised score is above τ, with a pointwise band.",
        "Performance profiles of " + ", ".join(profiles) + ".",
        figure,
        reading=words.profiles(profiles),
    )

    chances = {
        f"{agent} over {baseline}": (agent, probability_of_improvement(suite.scores[agent], suite.scores[baseline]))
        for agent, baseline in study.pairs
    }
    if chances:
        figure, (axes,) = plots.new_figure(width=3.7, height=0.7 + 0.42 * len(chances))
        plots.intervals(
            axes,
            {name: estimate for name, (_, estimate) in chances.items()},
            {name: plots.colour(styles[agent]) for name, (agent, _) in chances.items()},
            title="Probability of improvement",
            middle=0.5,
        )
        axes.set_xlim(-0.02, 1.02)
        told = "; ".join(f"{name} {number(estimate.value)}" for name, (_, estimate) in chances.items())
        yield Drawing(
            f"improvement-{slug(suite.name)}",
            "aggregates",
            "Probability of improvement",
            "Chance that a run of the first agent scores more than a run of the second on the same environment; "
            "½ is a draw. Bars: 95 % stratified bootstrap interval.",
            f"Probability of improvement: {told}.",
            figure,
            reading=words.improvement(*study.pairs[0], next(iter(chances.values()))[1]),
        )


def _critics(study: Study, environment: str, styles: dict[str, int]) -> Iterator[Drawing]:
    groups = [g for g in study.groups_on(environment) if any(np.isfinite(q.explained_variance).any() for q in g.critic)]
    if not groups:
        return
    figure, (axes,) = plots.new_figure()
    plots.explained_variance(axes, {g.agent: (g.scales, g.critic) for g in groups}, styles)
    _fit(figure, axes)
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


def _diagnostics(study: Study, environment: str) -> Iterator[Drawing]:
    for group in study.groups_on(environment):
        minor, where = group.agent != study.focus, f"{slug(environment)}-{slug(group.agent)}"
        if group.held_out is not None and (len(group.scales) > 1 or not minor):
            yield _calibration(group, where, minor=minor)
        if group.shares is not None:
            steps, parts = group.shares
            figure, (axes,) = plots.new_figure()
            plots.value_shares(axes, steps, parts, group.scales)
            said = words.shares(parts)
            yield Drawing(
                f"shares-{where}",
                "diagnostics",
                f"{group.agent} on {environment}: which scale carries the value",
                "Share of each part in the mean value of the rollouts, averaged over seeds.",
                f"Shares of the parts of the value of {group.agent} on {environment} during training. {said}",
                figure,
                minor,
                said,
            )


def _calibration(group: Group, where: str, *, minor: bool) -> Drawing:
    assert group.held_out is not None
    predicted, realised = group.held_out
    scales, found = group.scales, statistics.diagnose(group.scales, predicted, realised)
    figure, panels = plots.panels(len(scales), columns=3, width=1.9, height=2.1)
    figure.patch.set_alpha(0)
    for z, axes in enumerate(panels):
        axes.patch.set_alpha(0)
        part = f"W_{z}" if len(scales) > 1 else "V"
        plots.predicted_against_realised(
            axes,
            *statistics.calibration(predicted[:, z], realised[:, z]),
            title=f"γ = {scales.labels[z]}",
            remark=f"{part} explained: {number(float(found.explained_variance[z]))}",
        )
    title, said = f"{group.agent} on {group.environment}", " ".join(words.parts(scales, found))
    return Drawing(
        f"calibration-{where}",
        "diagnostics",
        f"{title}: predicted and realised",
        "Each point: a tenth of the held-out states, by predicted value; on the line a prediction "
        "comes true on average.",
        f"Realised against predicted returns of {title} at every discount. {said}",
        figure,
        minor,
        said,
    )


def _episodes(study: Study, environment: str) -> Iterator[Drawing]:
    recorded = [g for g in study.groups_on(environment) if g.recorded is not None]
    # the agent that the report is about stands open, others with several scales are folded away
    recorded.sort(key=lambda g: (g.agent != study.focus, -len(g.scales), study.agents.index(g.agent)))
    for place, group in enumerate(recorded):
        if place == 0 or len(group.scales) > 1:
            yield _episode(group, minor=place > 0)


def _episode(group: Group, *, minor: bool) -> Drawing:
    assert group.recorded is not None
    seed, arrays = group.recorded
    panels = plots.panel_count(group.scales)
    figure, axes = plots.new_figure(panels, height=0.75 + 0.62 * panels, share_x=True)
    plots.recorded_episode(axes, arrays["deltas"], arrays["rewards"], group.scales)
    length, total = len(arrays["rewards"]), float(np.sum(arrays["rewards"]))
    several = len(group.scales) > 1
    clipped = seed.run.config.get("settings", {}).get("reward_clipping") == "sign"
    what = "V (the sum), every component W from the longest horizon to the shortest," if several else "The value V"
    return Drawing(
        f"episode-{slug(group.environment)}-{slug(group.agent)}",
        "episode",
        f"{group.agent} on {group.environment}",
        f"{what} and the rewards of one episode of the final policy (seed {seed.number}, {length:,} steps, "
        f"return {number(total)}). Each panel has its own scale.",
        f"Values of {group.agent} against time during one recorded episode of {group.environment}, rewards below.",
        figure,
        minor,
        words.episode(group.scales, arrays, clipped=clipped),
    )


# ---------------------------------------------------------------- files


def to_bytes(drawing: Drawing, kind: str) -> bytes:
    """Render a figure as "png" or "pdf": the same bytes for the same figure."""
    file = io.BytesIO()
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        facecolor = "white" if kind == "png" else "none"
        drawing.figure.savefig(file, format=kind, dpi=180, metadata=metadata, facecolor=facecolor)
    return file.getvalue()


def to_svg(drawing: Drawing) -> str:
    """Render a figure as SVG for inlining into a page.

    Text stays text in the page's font and colour, agents take the page's colours (`--p0`, `--p1`, …), and ids are
    made unique by the figure's name.
    """
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": drawing.name}):
        drawing.figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{drawing.name}-\1"', svg)
    svg = re.sub(r'url\(#([^)]+)\)|href="#([^"]+)"', lambda m: _reference(drawing.name, m), svg)
    svg = svg.replace(plots.INK, "currentColor").replace(plots.LINE, "var(--line)")
    for index, (light, _) in enumerate(plots.PALETTE):
        svg = svg.replace(light, f"var(--p{index})")
    svg = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag.group()), svg)  # 0.01 pt is enough
    return re.sub(r"\n\s*", "\n", svg).strip()


def _reference(name: str, match: re.Match[str]) -> str:
    return f"url(#{name}-{match.group(1)})" if match.group(1) else f'href="#{name}-{match.group(2)}"'


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
