"""The tables of a report: a list of records and one description of the columns make page, terminal, CSV and LaTeX."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tddelta.report import statistics
from tddelta.report.aggregates import STATISTICS, aggregate, probability_of_improvement
from tddelta.report.statistics import summarise
from tddelta.report.study import Group, Measure, Study, Suite, flat_settings, verdict
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
    steps_text,
    text_of,
)

Record = dict[str, Any]
"""A row as plain values in full precision, by name."""

MARKS = {"better": "better", "higher": "better", "worse": "worse", "lower": "worse"}
"""Marks of findings."""


@dataclass(frozen=True)
class Column:
    """A column of a table as a reader sees it.

    Attributes:
        head: Its head.
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
        columns: Its columns.
        records: Its rows; the first one names all fields of the CSV file.
        notes: Remarks below it.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    records: Sequence[Record]
    notes: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        rows = [tuple(column.of(record) for column in self.columns) for record in self.records]
        object.__setattr__(self, "rows", rows)

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads of the columns."""
        return tuple(column.head for column in self.columns)

    @property
    def marks(self) -> list[tuple[str, ...]]:
        """Mark of every cell, row by row."""
        pairs = [zip(self.columns, row, strict=True) for row in self.rows]
        return [tuple(column.mark(text) for column, text in pair) for pair in pairs]

    def to_csv(self) -> str:
        """All values in full precision; an empty field is a missing number."""
        file = io.StringIO()
        writer = csv.DictWriter(file, list(self.records[0]) if self.records else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _csv_field(value) for name, value in record.items()} for record in self.records)
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


def _csv_field(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


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


ENVIRONMENT, AGENT, SEEDS = Column("Environment", "environment"), Column("Agent", "agent"), Column("Seeds", "seeds")
"""Columns of what was trained."""
DIFFERENCE, INTERVAL = (
    Column("Difference", "difference", signed),
    Column("95 % interval", ("low", "high"), interval_text),
)
"""Columns of a comparison."""
P_VALUES = (Column("p", "p", p_text), Column("p (Holm)", "p_holm", p_text))
"""Columns of its test, without and with Holm's correction."""


def mean_column(head: str, name: str, error: str = "") -> Column:
    """A mean ± its standard error, the field `error` or else `NAME_standard_error`."""
    return Column(head, (name, error or f"{name}_standard_error"), mean_text)


def of_group(group: Group, **values: Any) -> Record:
    """Record of the seeds of an agent on an environment."""
    return {"environment": group.environment, "agent": group.agent, **values}


# ---------------------------------------------------------------- scores and differences

MEASURES: dict[Measure, str] = {"asymptotic": "Last 100 episodes", "average": "All episodes"}
"""The measures of training by the name a reader sees."""

TITLES: dict[Measure, str] = {**MEASURES, "hold_out": "Hold-out episodes"}
"""All measures by the name a reader sees."""

AGGREGATES = {
    "interquartile_mean": "Interquartile mean",
    "median": "Median",
    "mean": "Mean",
    "optimality_gap": "Optimality gap",
}
"""The aggregates by the name a reader sees."""


def score_table(study: Study) -> Table:
    """Scores of every agent on every environment."""
    records = []
    for group in study.groups.values():
        record = of_group(group, seeds=len(group.scored))
        for measure in MEASURES:
            summary = group.summary(measure)
            record |= {measure: summary.mean, f"{measure}_standard_error": summary.standard_error}
        records.append(record | {"runs": len(group.seeds), "finished": sum(seed.finished for seed in group.seeds)})
    notes = ["Mean return of training episodes, ± standard error over seeds."]
    if not all(record["finished"] for record in records):
        notes.append("† no seed finished: these are the scores so far, and they are not tested.")
    if any(0 < record["finished"] < record["runs"] for record in records):
        notes.append("‡ scores are those of the seeds that finished; leaving out seeds that failed flatters an agent.")
    short = min((len(s.returns) for g in study.groups.values() for s in g.scored), default=0)
    if short < 100:
        notes.append(f"The run with the fewest has {short} training episodes, all of which count as its last 100.")
    means = (mean_column(title, measure) for measure, title in MEASURES.items())
    seeds = Column("Seeds", ("runs", "finished"), seeds_text)
    return Table(
        "scores", "Return per agent and environment", (ENVIRONMENT, AGENT, *means, seeds), records, tuple(notes)
    )


def seeds_text(runs: int, finished: int) -> str:
    """Number of seeds behind a score."""
    if not finished:
        return f"{runs} †"
    return str(runs) if finished == runs else f"{finished} of {runs} ‡"


def summary_rows(study: Study) -> list[dict[str, str]]:
    """Scores, and differences from the first baseline, as rows for a terminal: see `Report.summary`."""
    scores, first = score_table(study), next(iter(study.compared_with), None)
    columns = [scores.columns[i] for i in (0, 1, 4, 2, 3)]
    differences = (DIFFERENCE, INTERVAL, *P_VALUES)
    heads = (f"Difference from {first}", *(column.head for column in differences[1:]))
    compared = {
        (record["environment"], record["agent"]): record
        for record in difference_table(study).records
        if record["baseline"] == first
    }
    rows = []
    for record in scores.records:
        row = {column.head: column.of(record) for column in columns}
        if compared:
            other = compared.get((record["environment"], record["agent"]))
            row |= {h: c.of(other) if other else "" for h, c in zip(heads, differences, strict=True)}
        rows.append(row)
    return rows


def difference_table(study: Study, measure: Measure = "asymptotic") -> Table:
    """Every agent against every baseline."""
    comparisons = study.comparisons(measure)
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
    pairs = [study.groups[c.environment, agent] for c in comparisons for agent in (c.agent, c.baseline)]
    if min((group.summary(measure).n for group in pairs), default=5) < 5:
        notes.append("A bootstrap interval from fewer than five seeds is too narrow: trust the test more.")
    finding = Column(
        "Finding",
        ("difference", "p_holm", "note"),
        lambda difference, p, note: "; ".join(filter(None, (verdict(difference, p), note))),
        lambda text: MARKS.get(text.split(";")[0], ""),
    )
    columns = (ENVIRONMENT, AGENT, Column("Against", "baseline"), DIFFERENCE, INTERVAL, *P_VALUES, finding)
    title = f"Differences: {TITLES[measure].lower()}"
    return Table(f"differences-{measure}", title, columns, records, tuple(notes))


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
    means = (Column(AGGREGATES[name], (name, f"{name}_low", f"{name}_high"), _with_interval) for name in STATISTICS)
    return Table(
        f"aggregates-{slug(suite.name)}",
        f"{suite.name}: {len(suite.environments)} environments together",
        (AGENT, *means, Column("Runs", "runs")),
        records,
        tuple(dict.fromkeys(notes)),
    )


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    return f"{number(value)} [n/a]" if low is None else f"{number(value)} [{number(low)}, {number(high)}]"


def improvement_table(study: Study, suite: Suite) -> Table:
    """Probability of improvement of every challenger over every baseline."""
    records: list[Record] = []
    for agent, baseline in study.pairs:
        estimate = probability_of_improvement(suite.scores[agent], suite.scores[baseline])
        low, high = estimate.interval.low, estimate.interval.high
        records.append({"agent": agent, "baseline": baseline, "probability": estimate.value, "low": low, "high": high})
    notes = ["Chance that a run of the agent scores more than one of the other, averaged over environments; ½: a draw."]
    if any(record["low"] is not None and record["low"] == record["high"] for record in records):
        notes.append("An interval without width: the same in every resample, as with few seeds and no overlap.")
    columns = (AGENT, Column("Over", "baseline"), Column("Probability", "probability", number), INTERVAL)
    title = f"{suite.name}: probability of improvement"
    return Table(f"improvement-{slug(suite.name)}", title, columns, records, tuple(notes))


# ---------------------------------------------------------------- episodes of the final policy

_RETURN = mean_column("Return", "return_mean", "standard_error")


def evaluation_table(study: Study) -> Table:
    """Return of the final policy in evaluation episodes, apart from training."""
    records = []
    for group in study.groups.values():
        for mode in ("sampled", "greedy"):
            summary = summarise(group.evaluated(mode))
            if summary.n:
                means = {"return_mean": summary.mean, "standard_error": summary.standard_error}
                records.append(of_group(group, mode=mode, seeds=summary.n, **means))
    notes = ("Mean return of the last evaluation of each seed, ± standard error over seeds.",)
    columns = (ENVIRONMENT, AGENT, Column("Actions", "mode"), _RETURN, SEEDS)
    return Table("evaluations", "Evaluation episodes", columns, records, notes)


def hold_out_table(study: Study) -> Table:
    """Return of the final policy in episodes that begin with 0, 1, 2, … further no-ops."""
    summaries = [(group, group.summary("hold_out")) for group in study.groups.values()]
    records = [
        of_group(group, seeds=summary.n, return_mean=summary.mean, standard_error=summary.standard_error)
        for group, summary in summaries
        if summary.n
    ]
    notes = (
        "Mean raw score of one episode each after 0, 1, 2, … no-ops beyond the usual start, actions drawn from the "
        "final policy, ± standard error over seeds.",
    )
    return Table("hold-out", TITLES["hold_out"], (ENVIRONMENT, AGENT, _RETURN, SEEDS), records, notes)


# ---------------------------------------------------------------- time scales and critics


def ladder_table(study: Study) -> Table:
    """Time scales of every agent; agents that share a ladder share its rows."""
    records: list[Record] = []
    for scales, groups in study.ladders.items():
        who = _who(study, groups)
        for z, gamma in enumerate(scales.gammas):
            decay = scales.trace_decays[z] if scales.trace_decays is not None else None
            records.append(
                {
                    "agents": who,
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
        Column("Horizon", "horizon", steps_text),
        Column("γ", "label"),
        Column("λ = c/γ", "lambda", _decimals(4)),
        Column("c", "trace_decay", _decimals(4)),
        Column("Contraction factor", "contraction_factor", _decimals(3)),
    )
    return Table("ladder", "Time scales of the critics", columns, records, tuple(notes))


def _decimals(digits: int) -> Callable[[float | None], str]:
    return lambda value: MISSING if value is None else "∞" if math.isinf(value) else f"{value:.{digits}f}"


def _who(study: Study, groups: Sequence[Group]) -> str:
    """Name the agents of some groups, and the environments where they are not on all of them."""
    parts = []
    for agent in study.agents:
        here = [g.environment for g in groups if g.agent == agent]
        everywhere = len(here) == sum(key[1] == agent for key in study.groups)
        parts += [agent if everywhere else f"{agent} on {', '.join(here)}"] if here else []
    return ", ".join(parts)


def critic_table(study: Study, *, every: bool = True) -> Table:
    """Error and explained variance of the critics on held-out states: of every V_γ, or at the longest horizon only."""
    measures = {"rmse": "Error (RMSE)", "relative_rmse": "Relative error", "explained_variance": "Explained variance"}
    records = []
    for group in study.groups.values():
        for z in reversed(range(len(group.scales))) if group.critic else ():
            if z < len(group.scales) - 1 and not every:
                continue
            found = {name: _known(float(getattr(quality, name)[z]) for quality in group.critic) for name in measures}
            record = of_group(
                group,
                gamma=group.scales.gammas[z],
                seeds=min(summary.n for summary in found.values()),
                states=int(sum(quality.states[z] for quality in group.critic)),
            )
            for name, summary in found.items():
                record |= {name: summary.mean, f"{name}_standard_error": summary.standard_error}
            records.append(record | {"label": group.scales.labels[z]})
    notes = (
        "Predicted V_γ against the realised discounted return of held-out states, mean ± standard error over seeds. "
        "Relative error: over the standard deviation of the returns, so 1 is no better than predicting their mean.",
        "Each critic is judged on the states of its own policy: a better policy faces other, often larger, returns.",
    )
    means = (mean_column(title, name) for name, title in measures.items())
    columns = (ENVIRONMENT, AGENT, Column("γ", "label"), *means, SEEDS)
    if every:
        return Table("critic-every-discount", "Critics on held-out states, every discount", columns, records, notes)
    return Table("critic", "Critics on held-out states, longest horizon", columns, records, notes)


def _known(values: Iterable[float]) -> statistics.Summary:
    """Summary of the seeds in which a measure is defined."""
    return summarise([value for value in values if np.isfinite(value)])


def diagnostics_table(study: Study) -> Table:
    """Every component of every critic: contraction, share of V, bias and spread, explained variance, calibration."""
    measures = {
        "contraction_factor": "factors",
        "share": "share",
        "bias": "bias",
        "spread": "spread",
        "explained_variance": "explained_variance",
        "slope": "slope",
    }
    records = []
    for group in study.groups.values():
        if group.held_out is None:
            continue
        found = statistics.diagnose(group.scales, *group.held_out)
        for z, gamma in enumerate(group.scales.gammas):
            values = {name: float(getattr(found, attribute)[z]) for name, attribute in measures.items()}
            part = f"W_{z}" if len(group.scales) > 1 else "V"
            ends = {"states": int(found.states[z]), "part": part, "label": group.scales.labels[z]}
            records.append(of_group(group, z=z, gamma=gamma) | values | ends)
    columns = (
        ENVIRONMENT,
        AGENT,
        Column("Part", "part"),
        Column("γ", "label"),
        Column("Contraction factor", "contraction_factor", _measure),
        Column("Share of V", "share", lambda share: MISSING if math.isnan(share) else percent(share)),
        Column("Bias", "bias", _measure),
        Column("Spread of target", "spread", _measure),
        Column("Explained variance", "explained_variance", _measure),
        Column("Calibration slope", "slope", _measure),
    )
    notes = (
        "Held-out states, all seeds together. A part's target is the realised return at its discount less that at the "
        "one before; its bias is the mean of prediction less target, its spread the target's standard deviation. "
        "Share: mean |W_z| over the sum of these.",
        "Calibration slope: of the realised return against V at that discount; 1 is calibrated, below it differences "
        "between states are exaggerated.",
    )
    return Table("diagnostics", "Every part of every critic", columns, records, notes)


def _measure(value: float) -> str:
    return MISSING if math.isnan(value) else "∞" if math.isinf(value) else number(value)


# ---------------------------------------------------------------- settings and runs


def settings_tables(study: Study) -> tuple[Table, Table]:
    """Settings in which the agents differ on some environment, and those that all share."""
    settings = {key: flat_settings(group.seeds[0].run.config) for key, group in study.groups.items()}
    differing: list[Record] = []
    common: list[Record] = []
    for name in dict.fromkeys(name for one in settings.values() for name in one):
        texts = {key: text_of(one.get(name)) for key, one in settings.items()}
        first = {environment: text for (environment, _), text in reversed(texts.items())}
        if any(text != first[environment] for (environment, _), text in texts.items()):
            of_agents = {a: {e: texts[e, a] for e in study.environments if (e, a) in texts} for a in study.agents}
            differing.append({"Setting": name} | {agent: _over(values) for agent, values in of_agents.items()})
        else:
            common.append({"setting": name, "value": _over({e: first[e] for e in study.environments})})
    heads = ("Setting", *study.agents)
    both = (Column("Setting", "setting"), Column("Value", "value"))
    return (
        Table(
            "settings-differing", "Settings that differ between agents", tuple(Column(h, h) for h in heads), differing
        ),
        Table("settings-common", "Settings that all agents share", both, common),
    )


def _over(values: Mapping[str, str]) -> str:
    """One text where all environments have the same, else one for each."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return "; ".join(f"{environment}: {value}" for environment, value in values.items())


def run_table(study: Study) -> Table:
    """Every run with its state."""
    order = sorted(study.seeds, key=lambda s: (s.environment, study.agents.index(s.agent), s.number))
    records: list[Record] = [
        {
            "environment": seed.environment,
            "agent": seed.agent,
            "seed": seed.number,
            "state": seed.state,
            "steps": seed.steps,
            "episodes": len(seed.returns),
            "asymptotic": seed.asymptotic,
            "average": seed.average,
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
        Column("Steps per second", "steps_per_second", lambda speed: MISSING if speed is None else f"{speed:,.0f}"),
    )
    return Table("runs", "Every run", columns, records, (note,) if together else ())
