"""The errors of critics of a frozen policy, read from the folder of a study: numbers, tests, tables and one page.

`experiments.critics` makes such a folder: `study.json`, `truth.json`, and one file for each critic in `cells`.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tddelta._matplotlib import own_style
from tddelta._plain import counted
from tddelta.errors import CheckpointError, ConfigError
from tddelta.report.figures import Drawing, agent_styles, fit, label, learning_curves, new_figure
from tddelta.report.page import provenance_of, write_page
from tddelta.report.run_set import verdict
from tddelta.report.statistics import (
    Curve,
    FloatArray,
    Interval,
    Summary,
    Welch,
    holm,
    summarise,
    t_interval,
    welch_test,
)
from tddelta.report.tables import AGENT, INTERVAL, MARKS, P_VALUES, Column, Table, mean_column, of_summary, shown
from tddelta.report.words import change, listed, number, p_phrase, p_text, percent, summary_text
from tddelta.runs.files import read_json, read_rows

FORMAT = 1
"""The version of a study's files. A reader refuses another one."""

MEASURES = {"centred": "Centred squared error of V", "error": "Squared error of V"}
"""Measures that critics can be chosen by, and the names a reader sees."""

_STEPS = Column("Steps", "steps", "{:,}".format)
_CRITIC = (AGENT, _STEPS, Column("λ", "lam", "{:g}".format), Column("Rate", "learning_rate", "{:g}".format))


class Cell(NamedTuple):
    """A critic: name of its agent, λ, learning rate."""

    agent: str
    lam: float
    learning_rate: float


@dataclass(frozen=True)
class Difference:
    """One form against the baseline at one budget, both as they were chosen there.

    Attributes:
        form: Label of the form.
        steps: Environment steps.
        ours: Error of the form, over seeds.
        theirs: Error of the baseline, over the same seeds.
        test: Paired two-sided t-test of the difference, seed by seed.
        interval: 95 % t interval of the difference.
        corrected: p of the test with Holm's correction for all comparisons of the study; None where there is no p.
    """

    form: str
    steps: int
    ours: Summary
    theirs: Summary
    test: Welch
    interval: Interval
    corrected: float | None

    @property
    def share(self) -> float | None:
        """The difference as a share of the baseline's error; None where that is not above 0."""
        return self.test.difference / self.theirs.mean if self.theirs.mean > 0 else None


class CriticStudy:
    """A study of critics of a frozen policy.

    Args:
        path: Its folder; a study in progress has what is there so far.

    Attributes:
        question: What was asked: policy, forms, grids, budgets, seeds and settings.
        truth: What V is compared with: `kind` "forked" or "realised", number of `states`, their `mean` V, `variance`
            of V over them, and `noise`, the variance of what stands for V (0 where it is not known).

    Raises:
        ConfigError: The folder holds no study.
        CheckpointError: A file is damaged, or of another version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "study.json").is_file():
            raise ConfigError(f"{self.path} holds no study of critics: name a folder that tddelta critics wrote")
        study = read_json(self.path / "study.json", "repeat the command with another folder")
        if study.get("format") != FORMAT:
            raise CheckpointError(
                f"{self.path} has format {study.get('format')!r}, and this tddelta reads {FORMAT}: install another one"
            )
        self.question: dict[str, Any] = study["question"]
        truth, advice = self.path / "truth.json", "repeat the command, which makes it anew"
        self.truth: dict[str, Any] = read_json(truth, advice) if truth.exists() else {}

    @property
    def forms(self) -> list[str]:
        """Labels of the forms, the baseline first."""
        return [form["label"] for form in self.question["forms"]]

    @property
    def tuned(self) -> bool:
        """True if some form has several λ or learning rates to choose from."""
        return bool(self.grid())

    @cached_property
    def cells(self) -> dict[tuple[Cell, int], list[dict[str, Any]]]:
        """Measures at each budget, by critic and seed: `steps`, `error`, `centred`, `bias`, None where it diverged."""
        found = {}
        for path in sorted((self.path / "cells").glob("seed-*/*.json")):
            try:
                cell = read_json(path)
                found[Cell(*(cell[name] for name in Cell._fields)), cell["seed"]] = cell["budgets"]
            except (CheckpointError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"{path} is damaged: delete it and repeat the command, which trains that critic again"
                ) from error
        return found

    @cached_property
    def steps(self) -> list[int]:
        """Environment steps of the budgets, in whole updates; none before the first critic is there."""
        return [row["steps"] for row in next(iter(self.cells.values()), [])]

    def _grid(self, form: str) -> list[Cell]:
        given = next(one for one in self.question["forms"] if one["label"] == form)
        rates = self.question["learning_rates"]
        return [Cell(given["agent"]["name"], lam, rate) for lam in given["lam"] for rate in rates]

    def chosen(self, form: str, budget: int) -> Cell:
        """The critic of a form that had the least mean error on the tuning seeds.

        Args:
            form: Its label.
            budget: Which budget, from 0.
        """

        def mean(cell: Cell) -> float:
            values = self._tuning_errors(cell, budget)
            return float(values.mean()) if len(values) and not np.isnan(values).any() else math.inf  # none: in progress

        grid = self._grid(form)
        return grid[0] if len(grid) == 1 else min(grid, key=mean)

    def _tuning_errors(self, cell: Cell, budget: int) -> FloatArray:
        return self._values(cell, budget, self.question["measure"], self.question["tuning_seeds"])

    def _values(self, cell: Cell, budget: int, measure: str, seeds: Sequence[int]) -> FloatArray:
        rows = [self.cells[cell, seed][budget][measure] for seed in seeds if (cell, seed) in self.cells]
        return np.array(rows, np.float64)  # None is NaN

    def grid(self) -> list[Cell]:
        """Every critic of a form that has several to choose from: those to train with the tuning seeds."""
        grids = [self._grid(form) for form in self.forms]
        return list(dict.fromkeys(cell for grid in grids if len(grid) > 1 for cell in grid))

    def needed(self) -> list[Cell]:
        """Every critic that is chosen at some budget: those to train with the reported seeds."""
        budgets = range(len(self.question["budgets"]))
        return list(dict.fromkeys(self.chosen(form, budget) for form in self.forms for budget in budgets))

    def errors(self, form: str, budget: int, measure: str | None = None) -> FloatArray:
        """Errors of a form as chosen at a budget, one for each reported seed, NaN where it diverged.

        Args:
            form: Its label.
            budget: Which budget, from 0.
            measure: "centred", "error" or "bias"; None is the one that was chosen by.
        """
        measure = measure or self.question["measure"]
        return self._values(self.chosen(form, budget), budget, measure, self.question["seeds"])

    @cached_property
    def differences(self) -> list[Difference]:
        """Every other form against the baseline at every budget, by the measure that was chosen by."""
        baseline, *others = self.forms
        found = []
        for form in others:
            for budget, steps in enumerate(self.steps):
                ours, theirs = self.errors(form, budget), self.errors(baseline, budget)
                if not len(ours) == len(theirs) == len(self.question["seeds"]):
                    continue  # in progress
                apart = ours - theirs
                # the paired test is that of the differences against 0
                test, interval = welch_test(apart, np.zeros(len(apart))), t_interval(apart)
                found.append(Difference(form, steps, summarise(ours), summarise(theirs), test, interval, None))
        corrected = holm([each.test.p_value for each in found])
        return [replace(d, corrected=p) for d, p in zip(found, corrected, strict=True)]

    def noise_share(self, form: str, budget: int) -> float | None:
        """Share of the measured error, before the noise was subtracted, that was noise; None where it is unknown."""
        if self.truth["kind"] != "forked":
            return None
        measured = float(self.errors(form, budget).mean()) + self.truth["noise"]
        return self.truth["noise"] / measured if measured > 0 else None  # None also where a critic diverged

    # ------------------------------------------------------------ tables

    @property
    def error_table(self) -> Table:
        """Errors of every form at every budget.

        Raises:
            ConfigError: Some form has no critic yet.
        """
        if not self.truth or not self.steps or any(not len(self.errors(form, 0)) for form in self.forms):
            raise ConfigError(f"{self.path} has no critics of every form yet: repeat the command that began it")
        measure, spread = self.question["measure"], self.truth["variance"]
        records = []
        for form in self.forms:
            for budget, steps in enumerate(self.steps):
                cell = self.chosen(form, budget)
                record = {"agent": form, "steps": steps, "lam": cell.lam, "learning_rate": cell.learning_rate}
                for name in MEASURES:
                    record |= of_summary(name, summarise(self.errors(form, budget, name)))
                share = summarise(self.errors(form, budget) / spread) if spread > 0 else summarise([])
                record |= of_summary("share", share) | {"noise": self.noise_share(form, budget)}
                records.append(record)
        short = {"centred": "Centred error", "error": "Error"}
        columns = (
            *_CRITIC,
            *(mean_column(short[name], name) for name in (measure, *sorted({*MEASURES} - {measure}))),
            mean_column(f"{short[measure]} / Var(V)", "share"),
            Column("Noise", "noise", shown(percent)),
        )
        notes = [
            f"Mean over {counted(len(self.question['seeds']), 'seed')} ± standard error."
            + f" Of several λ and rates: those with the least {_inside(measure)} on the tuning seeds." * self.tuned,
            "Error: mean of (V̂ − V)² over held-out states. Centred: variance of V̂ − V: a constant does not count.",
        ]
        if self.truth["kind"] == "forked":
            notes.append("Noise: share of the measured error that was noise of the continuations, which is subtracted.")
        return Table("errors", "Error of the values", columns, records, notes)

    @property
    def difference_table(self) -> Table:
        """Every form against the baseline."""
        records = [
            {
                "agent": d.form,
                "baseline": self.forms[0],
                "steps": d.steps,
                "difference": d.test.difference,
                "share": d.share,
                "low": d.interval.low,
                "high": d.interval.high,
                "t": d.test.statistic,
                "p": d.test.p_value,
                "p_holm": d.corrected,
                "note": d.test.note,
            }
            for d in self.differences
        ]
        finding = Column(
            "Finding",
            ("difference", "p_holm", "note"),
            lambda difference, p, note: verdict(-difference, p) or note,
            lambda text: MARKS.get(text, ""),
        )
        columns = (
            AGENT,
            Column("Against", "baseline"),
            _STEPS,
            Column("Difference", "share", shown(change)),
            INTERVAL,
            *P_VALUES,
            finding,
        )
        notes = [
            "Difference of the errors in percent of the baseline's, 95 % t interval of it in units of the error, and "
            "paired two-sided t-test over seeds, since the critics of a seed learn from the same stream, without and "
            f"with Holm's correction for all {sum(d.corrected is not None for d in self.differences)} comparisons. "
            "Below 0 is better.",
            "All seeds share the held-out states: the tests speak of other streams, not of other states.",
        ]
        return Table("differences", f"Differences: {MEASURES[self.question['measure']]}", columns, records, notes)

    @property
    def tuning_table(self) -> Table:
        """Mean errors on the tuning seeds, from which the critics were chosen."""
        records = [
            cell._asdict() | {"steps": steps} | of_summary("error", summarise(self._tuning_errors(cell, budget)))
            for cell in self.grid()
            for budget, steps in enumerate(self.steps)
        ]
        columns = (*_CRITIC, mean_column(MEASURES[self.question["measure"]], "error"))
        seeds = listed([str(seed) for seed in self.question["tuning_seeds"]])
        return Table("tuning", "What was chosen from", columns, records, [f"Seeds {seeds}, which are not reported."])

    def summary(self) -> list[dict[str, str]]:
        """Errors and differences as rows for a terminal, the same numbers as on the page."""
        errors, tests = self.error_table, self.difference_table
        compared = {(record["agent"], record["steps"]): record for record in tests.records}
        rows = []
        for record in errors.records:
            other = compared.get((record["agent"], record["steps"]))
            row = {column.head: column.of(record) for column in errors.columns}
            rows.append(row | {column.head: column.of(other) if other else "" for column in tests.columns[3:]})
        return rows

    # ------------------------------------------------------------ the page

    @own_style()
    def write(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Write `report.html`, with its figures and tables beside it as of `Report.write`.

        Args:
            out: The file to write, ending in `.html`, or a folder for it; None is the folder of the study.

        Returns:
            The path of the page.

        Raises:
            ConfigError: Some form has no critic yet, or nothing can be written at `out`.
        """
        tables = [self.error_table, self.difference_table, self.tuning_table]
        content = {
            "title": f"Critics of a frozen policy on {self.question['environment']}",
            "lead": self._lead(),
            "verdict": self.sentences(),
            "cautions": self._cautions(),
            "truth": self._truth(),
            "settings": self.question["settings"],
            "provenance": provenance_of(read_rows(self.path / "timing.jsonl")),
            "styles": agent_styles(self.forms),
        }
        return write_page(self.path if out is None else out, [self._figure()], tables, "critics.html.j2", content)[0]

    def _lead(self) -> str:
        asked, seeds = self.question, len(self.question["seeds"])
        noise = f", rewards with noise of standard deviation {asked['reward_noise']:g}" if asked["reward_noise"] else ""
        return (
            f"{counted(len(self.forms), 'critic')} ({', '.join(self.forms)}) learned from the same streams of one "
            f"frozen policy, {counted(seeds, 'seed')} each, at γ = {asked['gamma']:g}{noise}. What is compared is how "
            "far V is from the returns that follow held-out states."
        )

    def sentences(self) -> list[str]:
        """The result in words: one sentence for each comparison, after one on all."""
        judged = [d for d in self.differences if d.corrected is not None]
        found = []
        if judged:
            clear = [verdict(-d.test.difference, d.corrected) for d in judged]
            found.append(
                f"{counted(len(judged), 'comparison')} with {self.forms[0]}: {clear.count('better')} clearly better, "
                f"{clear.count('worse')} clearly worse (p < 0.05, Holm-corrected for all of them)."
            )
        for d in self.differences:
            text = (
                f"{d.form} after {d.steps:,} steps: {_inside(self.question['measure'])} {summary_text(d.ours)}, "
                f"{self.forms[0]} {summary_text(d.theirs)}"
            )
            if d.test.p_value is None:
                found.append(f"{text}; {d.test.note}.")
            else:
                test = f"{p_phrase(d.test.p_value)}, corrected {p_text(d.corrected)}"
                share = "" if d.share is None else f"{change(d.share)}, "
                found.append(f"{text}; {share}{test}.")
        return found or ["There is one form, so that nothing is compared."]

    def _truth(self) -> list[str]:
        truth, states = self.truth, f"{self.truth['states']:,} held-out states from streams of their own"
        spread = f"V has mean {number(truth['mean'])} and variance {number(truth['variance'])} over them."
        if truth["kind"] != "forked":
            return [
                f"{states}, each with the one return that followed. {spread}",
                "The environment cannot be forked, so that the noise of these returns cannot be told from the error: "
                "it is part of every number here, the same for all critics, and of the variance of V.",
            ]
        sentences = [
            f"{states}; from each the policy went on {truth['continuations']} times, up to {truth['length']:,} steps. "
            f"{spread}",
            f"The mean over continuations has a variance of {number(truth['noise'])} around V, which is subtracted "
            "from every error.",
        ]
        if self.question["settings"]["time_limit"] == "truncate":
            sentences.append("Continuations go on beyond the time limit, where the learner bootstraps.")
        return sentences

    def _cautions(self) -> list[str]:
        found = []
        seeds = len(self.question["seeds"])
        if seeds < 5:
            found.append(f"With {counted(seeds, 'seed')} only a large difference can be told from chance.")
        lost = [
            f"{form} after {steps:,} steps"
            for form in self.forms
            for budget, steps in enumerate(self.steps)
            if np.isnan(self.errors(form, budget)).any()
        ]
        if lost:
            found.append(f"Critics diverged and have no error: {listed(lost)}.")
        if self.truth["variance"] <= 0:
            found.append("V does not vary over the held-out states by more than noise: errors are not put in relation.")
        if self.truth.get("cut", 0) > 0:
            found.append(
                f"{percent(self.truth['cut'])} of the continuations were cut by the environment where the learner "
                "bootstraps: what would have come counts as 0."
            )
        if self.truth.get("unknown", 0) > 0:
            found.append(
                f"{percent(self.truth['unknown'])} of the states of the held-out streams were left out: their episode, "
                "or the stream, was cut before what follows them was known. The others may not be typical of all."
            )
        return found

    def _figure(self) -> Drawing:
        measure, count = MEASURES[self.question["measure"]], len(self.question["seeds"])
        told = f"mean of {count} seeds, band: 95 % t interval" if count > 1 else "one seed, no band"
        grid, curves = np.array(self.steps, np.float64), {}
        for form in self.forms:
            values = [self.errors(form, budget) for budget in range(len(grid))]
            mean = np.array([each.mean() for each in values])
            low, high = np.array([(end.low, end.high) for end in map(t_interval, values)], np.float64).T  # None is NaN
            curves[form] = Curve(grid, mean, low, high, np.full(len(grid), count), told)
        figure, (axes,) = new_figure()
        fit(figure, learning_curves(axes, curves, agent_styles(self.forms)))
        label(axes, "Environment steps", measure)
        axes.set_ylim(bottom=min(float(np.nanmin(curve.mean, initial=0.0)) for curve in curves.values()))
        last = "; ".join(f"{form} {number(float(curve.mean[-1]))}" for form, curve in curves.items())
        return Drawing(
            "errors",
            "errors",
            f"{measure} against steps",
            "Each form as it was chosen at each budget. " * self.tuned + "Lower is better.",
            f"{measure} against environment steps. After {self.steps[-1]:,}: {last}.",
            figure,
        )


def _inside(measure: str) -> str:
    """The name of a measure within a sentence."""
    return MEASURES[measure][0].lower() + MEASURES[measure][1:]
