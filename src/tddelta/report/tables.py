"""The tables of a report: a list of records and one description of the columns make page, terminal, CSV and LaTeX."""

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tddelta.report import statistics
from tddelta.report.run_set import Group, Measure, RunSet, Suite, flat_settings, verdict
from tddelta.report.statistics import STATISTICS, Summary, aggregate, probability_of_improvement, summarise
from tddelta.report.words import (
    MISSING,
    interval_text,
    mean_text,
    number,
    p_text,
    percent,
    sentence_of,
    signed,
    slug,
    text_of,
)
from tddelta.timescales import number_text

Record = dict[str, Any]
"""A row as plain values in full precision, by name."""

MARKS = {"better": "better", "higher": "better", "worse": "worse", "lower": "worse"}
"""Marks of findings."""


@dataclass(frozen=True)
class Column:
    """A column of a table as a reader sees it.

    Attributes:
        fields: Names of the values in a record that it shows, one or several.
        text: Makes its text from these values.
        mark: Makes "better", "worse" or "" from its text, to colour it.
    """

    head: str
    fields: str | tuple[str, ...]
    text: Callable[..., str] = str
    mark: Callable[[str], str] = lambda _: ""

    def of(self, record: Mapping[str, Any]) -> str:
        """Text of a record in this column."""
        names = (self.fields,) if isinstance(self.fields, str) else self.fields
        return self.text(*(record[name] for name in names))


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: File name without suffix.
        caption: What it shows.
        records: Its rows; the first one names all fields of the CSV file, or the columns do where there is none.
        notes: Remarks below it.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    records: Sequence[Record]
    notes: Sequence[str] = ()

    @cached_property
    def rows(self) -> Sequence[tuple[str, ...]]:
        """Texts of its cells, row by row."""
        return [tuple(column.of(record) for column in self.columns) for record in self.records]

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads of the columns."""
        return tuple(column.head for column in self.columns)

    @property
    def marks(self) -> list[tuple[str, ...]]:
        """Mark of every cell, row by row."""
        return [tuple(c.mark(text) for c, text in zip(self.columns, row, strict=True)) for row in self.rows]

    def to_csv(self) -> str:
        """All values in full precision; an empty field is a missing number."""
        file = io.StringIO()
        fields = ([c.fields] if isinstance(c.fields, str) else c.fields for c in self.columns)
        names = list(self.records[0] if self.records else dict.fromkeys(itertools.chain.from_iterable(fields)))
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if is_missing(v) else v for name, v in record.items()} for record in self.records)
        return file.getvalue()

    def to_latex(self) -> str:
        """A booktabs table; the document needs the package booktabs."""
        lines = [
            r"\begin{table}",
            rf"  \caption{{{latex_escape(self.caption)}}}",
            rf"  \begin{{tabular}}{{{'l' * len(self.columns)}}}",
            r"    \toprule",
            "    " + " & ".join(map(latex_escape, self.heads)) + r" \\",
            r"    \midrule",
            *("    " + " & ".join(map(latex_escape, row)) + r" \\" for row in self.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            *(rf"  \par\footnotesize {latex_escape(note)}" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def to_markdown(self) -> str:
        """The table alone, in Markdown."""
        return markdown(self.heads, self.rows)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def is_missing(value: Any) -> bool:
    """True for None and NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "∞": r"$\infty$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "½": r"$\frac12$",
    "<": r"$<$",
    ">": r"$>$",
}


def latex_escape(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def shown(form: Callable[[Any], str]) -> Callable[[float | None], str]:
    """Text of a number that may be missing or infinite, in some form."""
    return lambda value: MISSING if is_missing(value) else "∞" if value == math.inf else form(value)


ENVIRONMENT, AGENT, SEEDS = Column("Environment", "environment"), Column("Agent", "agent"), Column("Seeds", "seeds")
"""Columns of what was trained."""
DIFFERENCE = Column("Difference", "difference", signed)
"""Column of a comparison."""
INTERVAL = Column("95 % interval", ("low", "high"), interval_text)
"""Column of its bootstrap interval."""
P_VALUES = (Column("p", "p", p_text), Column("p (Holm)", "p_holm", p_text))
"""Columns of its test, without and with Holm's correction."""


def mean_column(head: str, name: str, error: str = "") -> Column:
    """A mean ± its standard error, the field `error` or else `NAME_standard_error`."""
    return Column(head, (name, error or f"{name}_standard_error"), mean_text)


def of_summary(name: str, summary: Summary, error: str = "") -> Record:
    """The two fields of a `mean_column`."""
    return {name: summary.mean, error or f"{name}_standard_error": summary.standard_error}


def of_group(group: Group, **values: Any) -> Record:
    """Record of the seeds of an agent on an environment."""
    return {"environment": group.environment, "agent": group.agent, **values}


# ---------------------------------------------------------------- scores and differences

MEASURES: dict[Measure, str] = {"asymptotic": "Last 100 episodes", "average": "All episodes"}
"""The measures of training by the name a reader sees."""

TITLES: dict[Measure, str] = {**MEASURES, "hold_out": "Hold-out episodes"}
"""All measures by the name a reader sees."""


def score_table(runs: RunSet) -> Table:
    """Scores of every agent on every environment."""
    records = []
    for group in runs.groups.values():
        record = of_group(group, seeds=len(group.scored))
        for measure in MEASURES:
            record |= of_summary(measure, group.summary(measure))
        records.append(record | {"runs": len(group.seeds), "finished": sum(seed.finished for seed in group.seeds)})
    notes = ["Mean return of training episodes, ± standard error over seeds."]
    if not all(record["finished"] for record in records):
        notes.append("† no seed finished: these are the scores so far, and they are not tested.")
    if any(0 < record["finished"] < record["runs"] for record in records):
        notes.append("‡ scores are those of the seeds that finished; leaving out seeds that failed flatters an agent.")
    short = min((len(s.returns) for g in runs.groups.values() for s in g.scored), default=0)
    if short < 100:
        notes.append(f"The run with the fewest has {short} training episodes, all of which count as its last 100.")
    means = (mean_column(title, measure) for measure, title in MEASURES.items())
    seeds = Column("Seeds", ("runs", "finished"), _seeds_text)
    return Table("scores", "Return per agent and environment", (ENVIRONMENT, AGENT, *means, seeds), records, notes)


def _seeds_text(runs: int, finished: int) -> str:
    if not finished:
        return f"{runs} †"
    return str(runs) if finished == runs else f"{finished} of {runs} ‡"


def summary_rows(runs: RunSet) -> list[dict[str, str]]:
    """Scores, and differences from the first baseline, as rows for a terminal: see `Report.summary`."""
    scores, first = score_table(runs), next(iter(runs.compared_with), None)
    columns = [scores.columns[i] for i in (0, 1, 4, 2, 3)]
    differences = {f"Difference from {first}": DIFFERENCE} | {column.head: column for column in (INTERVAL, *P_VALUES)}
    compared = {
        (record["environment"], record["agent"]): record
        for record in difference_table(runs).records
        if record["baseline"] == first
    }
    rows = []
    for record in scores.records:
        row = {column.head: column.of(record) for column in columns}
        if compared:
            other = compared.get((record["environment"], record["agent"]))
            row |= {head: column.of(other) if other else "" for head, column in differences.items()}
        rows.append(row)
    return rows


def difference_table(runs: RunSet, measure: Measure = "asymptotic") -> Table:
    """Every agent against every baseline."""
    comparisons = runs.comparisons(measure)
    records: list[Record] = [
        {
            "environment": c.environment,
            "agent": c.agent,
            "baseline": c.baseline,
            "difference": c.welch.difference,
            "low": c.interval.low,
            "high": c.interval.high,
            "t": c.welch.statistic,
            "degrees_of_freedom": c.welch.degrees_of_freedom,
            "p": c.welch.p_value,
            "p_holm": c.corrected,
            "note": c.note,
        }
        for c in comparisons
    ]
    tested = sum(c.corrected is not None for c in comparisons)
    notes = [
        "Difference of means over seeds, 95 % bootstrap interval of it, and Welch's two-sided t-test, "
        f"without and with Holm's correction ({tested} tested here). The measures are corrected "
        "apart: whoever picks the better of the two has more chances than that.",
    ]
    groups = [runs.groups[c.environment, agent] for c in comparisons for agent in (c.agent, c.baseline)]
    if min((group.summary(measure).n for group in groups), default=5) < 5:
        notes.append("A bootstrap interval from fewer than five seeds is too narrow: trust the test more.")
    finding = Column(
        "Finding",
        ("difference", "p_holm", "note"),
        lambda difference, p, note: "; ".join(filter(None, (verdict(difference, p), note))),
        lambda text: MARKS.get(text.split(";")[0], ""),
    )
    columns = (ENVIRONMENT, AGENT, Column("Against", "baseline"), DIFFERENCE, INTERVAL, *P_VALUES, finding)
    return Table(f"differences-{measure}", f"Differences: {TITLES[measure].lower()}", columns, records, notes)


def aggregate_table(suite: Suite) -> Table:
    """Aggregates over the environments of one suite."""
    records, notes = [], [sentence_of(suite.unit), f"Source: {suite.source}"]
    for agent, scores in suite.scores.items():
        record: Record = {"agent": agent, "runs": sum(len(x) for x in scores)}
        for name in STATISTICS:
            estimate = aggregate(scores, name)
            interval = estimate.interval
            record |= {name: estimate.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
            notes += [sentence_of(text) for text in (estimate.note, interval.note) if text]
        records.append(record)
    notes.append("Intervals: 95 % stratified bootstrap over seeds within each environment.")
    titles = {name: name.replace("_", " ").capitalize() for name in STATISTICS}
    means = (Column(titles[name], (name, f"{name}_low", f"{name}_high"), _with_interval) for name in STATISTICS)
    caption = f"{suite.name}: {len(suite.environments)} environments together"
    columns = (AGENT, *means, Column("Runs", "runs"))
    return Table(f"aggregates-{slug(suite.name)}", caption, columns, records, list(dict.fromkeys(notes)))


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    return f"{number(value)} [n/a]" if low is None else f"{number(value)} [{number(low)}, {number(high)}]"


def improvement_table(runs: RunSet, suite: Suite) -> Table:
    """Probability of improvement of every challenger over every baseline."""
    records: list[Record] = []
    for agent, baseline in runs.pairs:
        estimate = probability_of_improvement(suite.scores[agent], suite.scores[baseline])
        low, high = estimate.interval.low, estimate.interval.high
        records.append({"agent": agent, "baseline": baseline, "probability": estimate.value, "low": low, "high": high})
    notes = ["Chance that a run of the agent scores more than one of the other, averaged over environments; ½: a draw."]
    if any(record["low"] is not None and record["low"] == record["high"] for record in records):
        notes.append("An interval without width: the same in every resample, as with few seeds and no overlap.")
    columns = (AGENT, Column("Over", "baseline"), Column("Probability", "probability", number), INTERVAL)
    caption = f"{suite.name}: probability of improvement"
    return Table(f"improvement-{slug(suite.name)}", caption, columns, records, notes)


# ---------------------------------------------------------------- episodes of the final policy

_RETURN = mean_column("Return", "return_mean", "standard_error")


def evaluation_table(runs: RunSet) -> Table:
    """Return of the final policy in evaluation episodes, apart from training."""
    records = [
        of_group(group, mode=mode, seeds=summary.n, **of_summary("return_mean", summary, "standard_error"))
        for group in runs.groups.values()
        for mode in ("sampled", "greedy")
        if (summary := summarise(group.evaluated(mode))).n
    ]
    notes = ("Mean return of the last evaluation of each seed, ± standard error over seeds.",)
    columns = (ENVIRONMENT, AGENT, Column("Actions", "mode"), _RETURN, SEEDS)
    return Table("evaluations", "Evaluation episodes", columns, records, notes)


def hold_out_table(runs: RunSet) -> Table:
    """Return of the final policy in episodes that begin with 0, 1, 2, … further no-ops."""
    records = [
        of_group(group, seeds=summary.n, **of_summary("return_mean", summary, "standard_error"))
        for group in runs.groups.values()
        if (summary := group.summary("hold_out")).n
    ]
    notes = (
        "Mean raw score of one episode each after 0, 1, 2, … no-ops beyond the usual start, actions drawn from the "
        "final policy, ± standard error over seeds.",
    )
    return Table("hold-out", TITLES["hold_out"], (ENVIRONMENT, AGENT, _RETURN, SEEDS), records, notes)


# ---------------------------------------------------------------- time scales and critics


def ladder_table(runs: RunSet) -> Table:
    """Time scales of every agent; agents that share a ladder share its rows."""
    records: list[Record] = []
    for scales, groups in runs.ladders.items():
        decays = scales.trace_decays or (None,) * len(scales)
        for z, (gamma, decay) in enumerate(zip(scales.gammas, decays, strict=True)):
            records.append(
                {
                    "agents": _who(runs, groups),
                    "z": z,
                    "horizon": scales.horizons[z],
                    "gamma": gamma,
                    "lambda": decay / gamma if decay is not None and gamma > 0 else None,
                    "trace_decay": decay,
                    "contraction_factor": scales.contraction_factors[z] if decay is not None else None,
                    "label": scales.labels[z],
                }
            )
    diverging = sorted({record["agents"] for record in records if (record["contraction_factor"] or 0) > 1})
    notes = ["Horizon 1/(1 − γ) in steps; c = λγ is the trace decay; a component contracts when its factor is below 1."]
    notes += [f"{who}: a factor above 1 lets that component grow under full steps." for who in diverging]
    columns = (
        Column("Agents", "agents"),
        Column("z", "z"),
        Column("Horizon", "horizon", number_text),
        Column("γ", "label"),
        Column("λ = c/γ", "lambda", shown("{:.4f}".format)),
        Column("c", "trace_decay", shown("{:.4f}".format)),
        Column("Contraction factor", "contraction_factor", shown("{:.3f}".format)),
    )
    return Table("ladder", "Time scales of the critics", columns, records, notes)


def _who(runs: RunSet, groups: Sequence[Group]) -> str:
    """Name the agents of some groups, and the environments where they are not on all of them."""
    parts = []
    for agent in runs.agents:
        here = [g.environment for g in groups if g.agent == agent]
        everywhere = len(here) == sum(key[1] == agent for key in runs.groups)
        parts += [agent if everywhere else f"{agent} on {', '.join(here)}"] if here else []
    return ", ".join(parts)


def critic_table(runs: RunSet, *, every: bool = True) -> Table:
    """Error and explained variance of the critics on held-out states: of every V_γ, or at the longest horizon only."""
    measures = {"rmse": "Error (RMSE)", "relative_rmse": "Relative error", "explained_variance": "Explained variance"}
    records = []
    for group in runs.groups.values():
        longest_first = range(len(group.scales))[::-1] if group.critic else ()
        for z in longest_first if every else longest_first[:1]:
            columns = {name: [float(getattr(quality, name)[z]) for quality in group.critic] for name in measures}
            found = {name: summarise([x for x in column if np.isfinite(x)]) for name, column in columns.items()}
            record = of_group(
                group,
                gamma=group.scales.gammas[z],
                seeds=min(summary.n for summary in found.values()),
                states=int(sum(quality.states[z] for quality in group.critic)),
            )
            for name, summary in found.items():
                record |= of_summary(name, summary)
            records.append(record | {"label": group.scales.labels[z]})
    notes = (
        "Predicted V_γ against the realised discounted return of held-out states, mean ± standard error over seeds. "
        "Relative error: over the standard deviation of the returns, so 1 is no better than predicting their mean.",
        "Each critic is judged on the states of its own policy: a better policy faces other, often larger, returns.",
    )
    means = (mean_column(title, name) for name, title in measures.items())
    name, which = ("critic-every-discount", "every discount") if every else ("critic", "longest horizon")
    shape = (ENVIRONMENT, AGENT, Column("γ", "label"), *means, SEEDS)
    return Table(name, f"Critics on held-out states, {which}", shape, records, notes)


def diagnostics_table(runs: RunSet) -> Table:
    """Every component of every critic: contraction, share of V, bias and spread, explained variance, calibration."""
    measures = {
        "contraction_factor": "Contraction factor",
        "share": "Share of V",
        "bias": "Bias",
        "spread": "Spread of target",
        "explained_variance": "Explained variance",
        "slope": "Calibration slope",
    }
    records = []
    for group in runs.groups.values():
        if group.held_out is None:
            continue
        found = statistics.diagnose(group.scales, *group.held_out)
        for z, gamma in enumerate(group.scales.gammas):
            values = {name: float(getattr(found, name)[z]) for name in measures}
            part = f"W_{z}" if len(group.scales) > 1 else "V"
            ends = {"states": int(found.states[z]), "part": part, "label": group.scales.labels[z]}
            records.append(of_group(group, z=z, gamma=gamma) | values | ends)
    means = (Column(title, name, shown(percent if name == "share" else number)) for name, title in measures.items())
    notes = (
        "Held-out states, all seeds together. A part's target is the realised return at its discount less that at the "
        "one before; its bias is the mean of prediction less target, its spread the target's standard deviation. "
        "Share: mean |W_z| over the sum of these.",
        "Calibration slope: of the realised return against V at that discount; 1 is calibrated, below it differences "
        "between states are exaggerated.",
    )
    columns = (ENVIRONMENT, AGENT, Column("Part", "part"), Column("γ", "label"), *means)
    return Table("diagnostics", "Every part of every critic", columns, records, notes)


# ---------------------------------------------------------------- settings and runs


def settings_tables(runs: RunSet) -> tuple[Table, Table]:
    """Settings in which the agents differ on some environment, and those that all share."""
    settings = {key: flat_settings(group.config) for key, group in runs.groups.items()}
    differing: list[Record] = []
    common: list[Record] = []
    for name in dict.fromkeys(name for one in settings.values() for name in one):
        texts = {key: text_of(one.get(name)) for key, one in settings.items()}
        first = {environment: text for (environment, _), text in reversed(texts.items())}
        if any(text != first[environment] for (environment, _), text in texts.items()):
            of_agents = {a: {e: texts[e, a] for e in runs.environments if (e, a) in texts} for a in runs.agents}
            differing.append({"Setting": name} | {agent: _over(values) for agent, values in of_agents.items()})
        else:
            common.append({"setting": name, "value": _over({e: first[e] for e in runs.environments})})
    heads = tuple(Column(head, head) for head in ("Setting", *runs.agents))
    both = (Column("Setting", "setting"), Column("Value", "value"))
    return (
        Table("settings-differing", "Settings that differ between agents", heads, differing),
        Table("settings-common", "Settings that all agents share", both, common),
    )


def _over(values: Mapping[str, str]) -> str:
    """One text where all environments have the same, else one for each."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return "; ".join(f"{environment}: {value}" for environment, value in values.items())


def run_table(runs: RunSet) -> Table:
    """Every run with its state."""
    order = sorted(runs.seeds, key=lambda s: (s.environment, runs.agents.index(s.agent), s.number))
    records: list[Record] = [
        {
            "environment": seed.environment,
            "agent": seed.agent,
            "seed": seed.number,
            "state": seed.state,
            "steps": seed.steps,
            "episodes": len(seed.returns),
            **{measure: seed.score(measure) for measure in MEASURES},
            "steps_per_second": seed.speed,
            "vectorized": seed.vectorized,
            "message": seed.message,
        }
        for seed in order
    ]
    together = sum(seed.vectorized for seed in order)
    note = (
        f"{'All' if together == len(order) else together} of these runs were vectorised, the seeds of an agent in "
        "one program: an update equals that of a run of its own to about 1e-4, not byte for byte."
    )
    columns = (
        ENVIRONMENT,
        AGENT,
        Column("Seed", "seed"),
        Column(
            "State",
            ("state", "message"),
            lambda state, message: f"{state}: {message}" if message else state,
            lambda text: "" if text == "finished" else "worse",
        ),
        Column("Steps", "steps", "{:,}".format),
        *(Column(title, measure, number) for measure, title in MEASURES.items()),
        Column("Steps per second", "steps_per_second", shown("{:,.0f}".format)),
    )
    return Table("runs", "Every run", columns, records, (note,) if together else ())
