"""Tables and figures of the theorems, drawn from rows of numbers as `paper.theory.study` makes them."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tddelta.errors import ContractionWarning
from tddelta.report import plots
from tddelta.report.figures import Drawing
from tddelta.report.tables import Table
from tddelta.timescales import TimeScales

Row = Mapping[str, Any]
"""One row of a table, by column."""
Tables = Mapping[str, Sequence[Row]]
"""Rows by name of the table."""

_METHODS = {"single": plots.colour(0), "TD(Δ)": plots.colour(5)}
_BOUNDS = {"published": ("published", "--"), "known_range": ("known range", ":"), "worst_case": ("worst case", "-.")}
_CAPTIONS = {
    "contraction": "Theorem 2: the factor |γ − c|/(1 − c) beside the largest stretch of a difference between two "
    "tables by one full step, in the maximum norm, and the stretch after 50 steps, on random processes.",
    "ladders": "Theorem 2 on the ladders of the paper: which components contract.",
    "full-steps": "Errors under full steps towards the expected λ-returns, γ = .99, λ = .95.",
    "theorem-1": "Theorem 1: largest difference at 50 times between a prefix of TD(Δ) and the single learner.",
    "coefficients": "What multiplies ε in the bounds of one phase on the ring.",
    "phases": "Measured errors of phased learning on the ring, and the bounds.",
    "counterexample": "How often one phase breaks each bound on the counterexample.",
    "counterexample-errors": "Distribution of the error on the counterexample after one phase of the single estimator.",
}


def tables(results: Tables) -> Iterator[Table]:
    """Make the tables, for `Table.to_csv`.

    Args:
        results: Rows by the name of their table.

    Yields:
        The tables.
    """
    for name, rows in results.items():
        yield Table(name, _CAPTIONS[name], (), [dict(row) for row in rows])


def statements(results: Tables) -> list[str]:
    """Say in sentences what the numbers show, for better or worse.

    Args:
        results: Rows by the name of their table.

    Returns:
        One sentence or two per finding.
    """
    off = max(abs(row["largest"] - row["factor"]) for row in results["contraction"])
    growing = [row for row in results["ladders"] if row["ladder"] == "matched" and not row["contracts"]]
    named = ", ".join(f"γ = {row['gamma']:.2f} by {row['factor']:.2f}" for row in growing)
    prefixes = max(row["largest_difference"] for row in results["theorem-1"])
    coins = {(row["method"], row["bound"]): row for row in results["counterexample"]}
    published, shares = coins["single", "published"], {name: row["broken_exact"] for name, row in coins.items()}
    lines = [
        f"Theorem 2 holds and its factor is reached: the largest stretch differs from |γ − c|/(1 − c) by {off:.1e} at "
        "most, also for λ > 1.",
        f"Under the paper's matched rule (γ = .99, λ = .95) full steps stretch errors of {named}; with the capped rule "
        "every component contracts.",
        f"Theorem 1 holds for every prefix in every view: the largest difference is {prefixes:.1e}.",
        "Theorems 3 and 4 are false as published: with the claimed probability "
        f"{published['claimed']:g} of failure, the counterexample breaks the bound with probability "
        f"{published['broken_exact']:.4f} ({published['broken_share']:.3f} of {published['seeds']} seeds), that of "
        f"TD(Δ) with {shares['TD(Δ)', 'published']:.4f}. The corrected bounds are broken with probability "
        f"{shares['single', 'known_range']:.2g} and {shares['TD(Δ)', 'known_range']:.2g}.",
    ]
    for gamma, k in ((0.9375, 16), (0.996, 256)):
        single, split = (
            next(r for r in results["coefficients"] if (r["gamma"], r["k"], r["method"]) == (gamma, k, method))
            for method in _METHODS
        )
        lines.append(
            f"Ring, γ = {gamma:g}, k = {k}, what multiplies ε in one phase: with known ranges "
            f"{single['known_range']:.2f} for the single estimator and {split['known_range']:.2f} for TD(Δ). The valid "
            f"worst-case form shows no variance reduction: {single['worst_case']:.2f} and {split['worst_case']:.2f}."
        )
    for single, split in _last_phases(results["phases"]):
        visible = any(split[kind] < 0.99 * single[kind] for kind in ("published", "known_range"))
        lines.append(
            f"Ring, γ = {single['gamma']:g}, k = {single['k']}, after {single['phase']} phases: the measured error of "
            f"V is {single['value_error_mean']:.3f} for the single estimator and {split['value_error_mean']:.3f} for "
            f"TD(Δ), whose components' errors sum to {split['error_sum_mean']:.3f}. Followed over the phases the "
            f"bounds are {single['published']:.2f} and {split['published']:.2f} as published, "
            f"{single['known_range']:.2f} and {split['known_range']:.2f} with known ranges"
            + ("." if visible else ": over many phases no bound shows a reduction.")
        )
    return lines


def _last_phases(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    last = max(row["phase"] for row in rows)
    for row in rows:
        if row["phase"] == last and row["method"] == "single":
            yield (
                row,
                next(
                    other
                    for other in rows
                    if other["method"] != "single" and all(other[key] == row[key] for key in ("gamma", "k", "phase"))
                ),
            )


# ---------------------------------------------------------------- figures


def drawings(results: Tables) -> Iterator[Drawing]:
    """Draw every figure.

    Args:
        results: Rows by the name of their table.

    Yields:
        The figures.
    """
    for name, caption, figure in _figures(results):
        figure.draw_without_rendering()  # lays the axes out, once for all formats
        figure.set_layout_engine("none")
        yield Drawing(name, "theory", name, caption, caption, figure)


def _figures(results: Tables) -> Iterator[tuple[str, str, Figure]]:
    yield "contraction", _CAPTIONS["contraction"], _contraction(results["contraction"])
    yield "full-steps", _CAPTIONS["full-steps"], _full_steps(results["full-steps"])
    yield "theorem-1", _CAPTIONS["theorem-1"], _theorem_one(results["theorem-1"])
    yield "coefficients", _CAPTIONS["coefficients"], _coefficients(results["coefficients"])
    settings = dict.fromkeys((row["gamma"], row["k"]) for row in results["phases"])
    for gamma, k in settings:
        rows = [row for row in results["phases"] if (row["gamma"], row["k"]) == (gamma, k)]
        yield f"phases-{gamma:g}-{k}", _CAPTIONS["phases"], _phases(rows)
    yield "counterexample", _CAPTIONS["counterexample"], _counterexample(results)


def _contraction(rows: Sequence[Row]) -> Figure:
    figure, (axes,) = plots.new_figure(height=3.8)
    gammas = sorted({row["gamma"] for row in rows})
    for place, gamma in enumerate(gammas):
        own = [row for row in rows if row["gamma"] == gamma]
        for above, dash in ((False, "-"), (True, "--")):
            decays = np.linspace(gamma, 0.985, 100) if above else np.linspace(0, gamma, 100)
            label = None if above else f"γ = {gamma:.2f}"
            colour = plots.colour(place)
            axes.plot(decays, _factors(gamma, decays), dash, color=colour, linewidth=1.4, label=label)
        measured = [row["largest"] for row in own]
        axes.plot([row["decay"] for row in own], measured, "o", color=plots.colour(place), markersize=3)
    axes.axhline(1, color=plots.INK, linewidth=0.8)
    axes.set_ylim(0, 3)
    axes.set_xlim(0, 1)
    _finish(
        figure, axes, "Trace decay c = λγ (dashed: λ > 1)", "Stretch by a full step", "lines: factor, dots: measured"
    )
    return figure


def _factors(gamma: float, decays: Iterable[float]) -> list[float]:
    """Contraction factor for every trace decay."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContractionWarning)  # the figure shows where it does not contract
        return [TimeScales((gamma,), (float(decay),)).contraction_factors[0] for decay in decays]


def _full_steps(rows: Sequence[Row]) -> Figure:
    figure, all_axes = plots.new_figure(2, height=5.4, share_x=True)
    quantities = list(dict.fromkeys(row["quantity"] for row in rows))
    for axes, rule in zip(all_axes, ("matched", "capped"), strict=True):
        for place, quantity in enumerate(quantities):
            own = [row for row in rows if (row["rule"], row["quantity"]) == (rule, quantity)]
            whole = quantity == "V"
            # what a component has reached exactly has no place on a logarithmic axis
            errors = [max(row["error"], 1e-16) for row in own]
            axes.plot(
                [row["step"] for row in own],
                errors,
                linestyle="--" if quantity == "W_0" else "-",  # it grows as W_1 does, with the other sign
                color=plots.INK if whole else plots.colour(place + 1),
                linewidth=2.2 if whole or quantity == "W_0" else 1.2,
                label=quantity if whole else f"{quantity}, γ = {own[0]['gamma']:.2f}",
            )
        axes.set_yscale("log")
        axes.set_title(f"rule {rule}", color=plots.INK, fontsize=10, loc="left")
        _label(axes, "", "Largest error")
    _finish(figure, all_axes[-1], "Full steps", "Largest error", None)
    return figure


def _theorem_one(rows: Sequence[Row]) -> Figure:
    figure, (axes,) = plots.new_figure(height=3.4)
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    for place, variant in enumerate(variants):
        own = [row for row in rows if row["variant"] == variant]
        across = [row["prefix"] + 0.12 * (place - len(variants) / 2) for row in own]
        shown = [max(row["largest_difference"], 1e-17) for row in own]
        axes.plot(across, shown, "osD^v"[place], color=plots.colour(place), markersize=4, label=variant)
    axes.axhline(1e-12, color=plots.INK, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xticks(sorted({row["prefix"] for row in rows}))
    axes.set_xticklabels([f"{row['gamma']:.2f}" for row in rows if row["variant"] == variants[0]])
    _finish(figure, axes, "Prefix up to discount γ", "Largest difference of weights", "0 is drawn at 1e-17")
    return figure


def _coefficients(rows: Sequence[Row]) -> Figure:
    figure, all_axes = plots.new_figure(2, height=5.8, share_x=True)
    for axes, gamma in zip(all_axes, (0.9375, 0.996), strict=True):
        for method, colour in _METHODS.items():
            own = [row for row in rows if (row["gamma"], row["method"]) == (gamma, method)]
            for kind in ("published", "known_range"):
                name, dash = _BOUNDS[kind]
                heights = [row[kind] for row in own]
                axes.plot([row["k"] for row in own], heights, dash, color=colour, label=f"{method}, {name}")
        worst = max(row["worst_case"] for row in rows if row["gamma"] == gamma)
        axes.axhline(worst, color=plots.INK, linewidth=1.0)
        note = "worst case, both methods and every k: no variance reduction"
        axes.text(0.01, worst, note, transform=axes.get_yaxis_transform(), va="bottom", fontsize=8, color=plots.INK)
        axes.set_ylim(0, worst * 1.12)
        axes.set_xscale("log", base=2)
        axes.set_title(f"ring, γ = {gamma:g}", color=plots.INK, fontsize=10, loc="left")
        _label(axes, "", "What multiplies ε")
    _finish(figure, all_axes[-1], "Steps k of the longest window", "What multiplies ε", None)
    return figure


def _phases(rows: Sequence[Row]) -> Figure:
    figure, (axes,) = plots.new_figure(height=4.4)
    for method, colour in _METHODS.items():
        own = [row for row in rows if row["method"] == method]
        time = [row["phase"] for row in own]
        axes.plot(time, [row["value_error_mean"] for row in own], color=colour, label=f"{method}, error of V")
        if method != "single":
            sums = [row["error_sum_mean"] for row in own]
            axes.plot(time, sums, color=colour, linewidth=0.8, marker=".", label=f"{method}, sum of errors")
        for kind, (name, dash) in _BOUNDS.items():
            axes.plot(time, [row[kind] for row in own], dash, color=colour, linewidth=1.2, label=f"{method}, {name}")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    first = rows[0]
    axes.set_title(f"ring, γ = {first['gamma']:g}, k = {first['k']}", color=plots.INK, fontsize=10, loc="left")
    note = f"mean over {first['seeds']} seeds, n = {first['samples']}; the worst case shows no variance reduction"
    _finish(figure, axes, "Phase", "Largest error over states", note)
    return figure


def _counterexample(results: Tables) -> Figure:
    figure, (axes,) = plots.new_figure(height=3.6)
    chances: dict[float, float] = {}
    for row in results["counterexample-errors"]:
        error = round(row["error"], 9)
        chances[error] = chances.get(error, 0.0) + row["chance"]
    step = sorted(chances)[1]
    limits = {row["bound"]: row for row in results["counterexample"] if row["method"] == "single"}
    beyond = [plots.colour(3) if error > limits["published"]["limit"] else plots.colour(2) for error in chances]
    axes.bar(list(chances), list(chances.values()), width=0.8 * step, color=beyond)
    for kind in ("published", "known_range"):
        row, (name, dash) = limits[kind], _BOUNDS[kind]
        label = f"{name} bound, broken with probability {row['broken_exact']:.4f}"
        axes.axvline(row["limit"], linestyle=dash, color=plots.INK, linewidth=1.4, label=label)
    axes.set_xlim(-step, limits["known_range"]["limit"] * 1.1)
    row = limits["published"]
    note = f"γ = {row['gamma']:g}, k = 1, n = {row['samples']}, δ = {row['claimed']:g}"
    _finish(figure, axes, "Error of V after one phase from exact values", "Probability", note)
    return figure


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=plots.INK, fontsize=10)
    axes.set_ylabel(y, color=plots.INK, fontsize=10)


def _finish(figure: Figure, axes: Axes, x: str, y: str, note: str | None) -> None:
    """Label the axes and put one legend below the figure."""
    _label(axes, x, y)
    handles, names = axes.get_legend_handles_labels()
    legend = figure.legend(
        handles,
        names,
        title=note,
        fontsize=8,
        title_fontsize=8,
        frameon=False,
        labelcolor=plots.INK,
        loc="outside lower left",
        ncols=1 if max(map(len, names)) > 34 else 2,
        alignment="left",
    )
    legend.get_title().set_color(plots.INK)
