"""The tables of a report: one source for the page, the terminal, CSV and LaTeX."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tddelta.report.aggregates import STATISTICS, aggregate, probability_of_improvement
from tddelta.report.statistics import Summary, summarise, welch_test
from tddelta.report.study import Comparison, Group, Measure, Study, Suite, other_rules
from tddelta.report.words import (
    MISSING,
    Table,
    flat_settings,
    interval_text,
    number,
    p_text,
    signed,
    slug,
    summary_text,
    text_of,
)
from tddelta.runs import Run

_UNFINISHED = {
    "failed": "failed",
    "interrupted": "was interrupted",
    "cut off": "was cut off",
    "running": "is still running",
}


@dataclass(frozen=True)
class Headline:
    """What a reader should know first.

    Attributes:
        title: One line.
        lead: What was run.
        verdict: Who is better, by how much, how sure; one sentence per environment after the first.
        cautions: What weakens the result.
    """

    title: str
    lead: str
    verdict: tuple[str, ...]
    cautions: tuple[str, ...]


def headline(study: Study) -> Headline:
    """Put the result into words; the numbers are those of the tables.

    Args:
        study: The runs.

    Returns:
        The headline.
    """
    agents, environments = study.agents, study.environments
    where = environments[0] if len(environments) == 1 else f"{len(environments)} environments"
    baseline = study.compared_with[0] if study.compared_with and study.challengers else None
    title = f"{study.focus} against {baseline} on {where}" if baseline else f"{_listed(agents)} on {where}"
    return Headline(title, _lead(study), tuple(_verdict(study, baseline)), tuple(_cautions(study)))


def critic_sentences(study: Study) -> list[str]:
    """Say whether the critic of the agent in focus is better than the baseline's, at the longest horizon.

    Args:
        study: The runs.

    Returns:
        One sentence per environment where both have held-out states; the p values are not corrected.
    """
    sentences = []
    baseline = study.compared_with[0] if study.compared_with and study.challengers else None
    for environment in study.environments if baseline is not None else ():
        groups = [study.group(environment, agent) for agent in (study.focus, str(baseline))]
        ours, theirs = (None if g is None or not g.critic else g for g in groups)
        if ours is None or theirs is None or ours.scales.gammas[-1] != theirs.scales.gammas[-1]:
            continue
        samples = [[float(quality.explained_variance[-1]) for quality in g.critic] for g in (ours, theirs)]
        welch = welch_test(*samples)
        texts = [f"{g.agent} {summary_text(summarise(s))}" for g, s in zip((ours, theirs), samples, strict=True)]
        how = f"p = {p_text(welch.p_value)}".replace("= <", "< ") if welch.p_value is not None else welch.note
        sentences.append(
            f"{environment}: explained variance of V at γ = {ours.scales.labels[-1]} on held-out states: "
            f"{texts[0]}, {texts[1]}; difference {signed(welch.difference)} ({how})."
        )
    return sentences


def _lead(study: Study) -> str:
    seeds = sorted({len(group.seeds) for group in study.groups.values()})
    steps = sorted({group.planned_steps for group in study.groups.values()})
    agents = f"{_count(len(study.agents), 'agent')} ({', '.join(study.agents)})"
    each = f"{_range(seeds)} {'seed' if seeds[-1] == 1 else 'seeds'} each"
    verb = "was" if len(study.agents) == 1 else "were"
    where = _listed(study.environments)
    return f"{agents} {verb} trained on {where}, {each}, for {_range(steps)} environment steps per seed."


def _verdict(study: Study, baseline: str | None) -> list[str]:
    if baseline is None:
        return ["There is no baseline among these agents, so nothing is compared."]
    everything = study.comparisons()
    tested = [c for c in everything if c.corrected is not None]
    mine = [c for c in everything if (c.agent, c.baseline) == (study.focus, baseline)]
    sentences = []
    judged = [c for c in mine if c.corrected is not None]
    if judged:
        corrected = _tally(judged, [_corrected(c) for c in judged])
        plain = _tally(judged, [_uncorrected(c) for c in judged])
        plain = "the same" if plain == corrected else plain
        sentences.append(
            f"{study.focus} against {baseline}: {corrected} of {_count(len(judged), 'environment')} "
            f"(clear: p < 0.05, Holm-corrected for {_count(len(tested), 'comparison')}; uncorrected {plain})."
        )
    elif mine:
        sentences.append(f"{study.focus} and {baseline} could not be tested against each other.")
    sentences += [_sentence(study, comparison) for comparison in mine]
    return sentences


def _tally(comparisons: Sequence[Comparison], p_values: Sequence[float]) -> str:
    """Count on how many environments the difference is clear, in words."""
    counts = {"better on": 0, "worse on": 0, "no clear difference on": 0}
    for comparison, p in zip(comparisons, p_values, strict=True):
        better = comparison.welch.difference > 0
        counts["no clear difference on" if p >= 0.05 else "better on" if better else "worse on"] += 1
    return _listed([f"{words} {count}" for words, count in counts.items() if count])


def _corrected(comparison: Comparison) -> float:
    return 1.0 if comparison.corrected is None else comparison.corrected


def _uncorrected(comparison: Comparison) -> float:
    return 1.0 if comparison.welch.p_value is None else comparison.welch.p_value


def _sentence(study: Study, comparison: Comparison) -> str:
    groups = [study.groups[comparison.environment, agent] for agent in (comparison.agent, comparison.baseline)]
    ours, theirs = (summary_text(group.summary("asymptotic")) for group in groups)
    text = f"{comparison.environment}: {comparison.agent} {ours}, {comparison.baseline} {theirs}"
    if comparison.welch.p_value is None:
        return f"{text}; {comparison.note or 'not tested'}."
    interval = interval_text(comparison.interval)
    p = f"p = {p_text(comparison.welch.p_value)}, corrected {p_text(comparison.corrected)}".replace("= <", "< ")
    note = f" ({comparison.note})" if comparison.note else ""
    return f"{text}; difference {signed(comparison.welch.difference)} (95 % interval {interval}); {p}{note}."


def _cautions(study: Study) -> list[str]:
    cautions = []
    for state, words in _UNFINISHED.items():
        stopped = [seed for seed in study.seeds if seed.state == state]
        if stopped:
            plural = words.replace("was", "were").replace("is still", "are still") if len(stopped) > 1 else words
            names = [seed.title for seed in stopped[:4]] + ([f"{len(stopped) - 4} more"] if len(stopped) > 4 else [])
            cautions.append(f"{_count(len(stopped), 'run')} {plural}: {'; '.join(names)}.")
    for environment in study.environments:
        rules = other_rules([group for group in study.groups.values() if group.environment == environment])
        if rules:
            cautions.append(
                f"{environment} was played under different rules ({_listed(rules)}): where they differ, agents are not "
                "compared."
            )
    counts = sorted({len(group.scored) for group in study.groups.values()})
    fewest = counts[0]
    if fewest == 1:
        cautions.append("An agent with one seed only has no standard error and cannot be tested.")
    elif fewest < 5:
        cautions.append(f"With {_range(counts)} seeds only a large difference can be told from chance.")
    missing = [f"{agent} on {e}" for e in study.environments for agent in study.agents if study.group(e, agent) is None]
    if missing:
        cautions.append(f"No run of {_listed(missing)}.")
    return cautions


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 2 else ", ".join(names[:-1]) + " and " + names[-1]


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


def summary_table(runs: Sequence[Run], *, baselines: Sequence[str] | None = None) -> list[dict[str, str]]:
    """The scores of a report as rows for a terminal: the same numbers as on the page.

    Args:
        runs: The runs, as `load_runs` returns them.
        baselines: Agents to compare with; the first that is present gets the columns of differences. None means the
            report's default.

    Returns:
        One mapping from column head to text per environment and agent, all with the same heads.

    Raises:
        ConfigError: There is no readable run, or a baseline is not among the agents.
    """
    study = Study(runs, baselines)
    first = study.compared_with[0] if study.compared_with else None
    compared = {(c.environment, c.agent): c for c in study.comparisons() if c.baseline == first}
    rows = []
    for group in study.groups.values():
        row = {
            "Environment": group.environment,
            "Agent": group.agent,
            "Seeds": seeds_text(group),
            **{title: summary_text(group.summary(measure)) for measure, title in MEASURES.items()},
        }
        if compared and first is not None:
            comparison = compared.get((group.environment, group.agent))
            row |= {
                f"Difference from {first}": signed(comparison.welch.difference) if comparison else "",
                "95 % interval": interval_text(comparison.interval) if comparison else "",
                "p": p_text(comparison.welch.p_value) if comparison else "",
                "p (Holm)": p_text(comparison.corrected) if comparison else "",
            }
        rows.append(row)
    return rows


def score_table(study: Study) -> Table:
    """Scores of every agent on every environment."""
    rows, data = [], []
    for group in study.groups.values():
        texts = [summary_text(group.summary(measure)) for measure in MEASURES]
        rows.append((group.environment, group.agent, *texts, seeds_text(group)))
        record: dict[str, Any] = {"environment": group.environment, "agent": group.agent, "seeds": len(group.scored)}
        for measure in MEASURES:
            summary = group.summary(measure)
            record |= {measure: summary.mean, f"{measure}_standard_error": summary.standard_error}
        data.append(record)
    notes = ["Mean return of training episodes, ± standard error over seeds."]
    unfinished = [g for g in study.groups.values() if not g.complete]
    partial = [g for g in study.groups.values() if g.complete and len(g.scored) < len(g.seeds)]
    if unfinished:
        notes.append("† no seed finished: these are the scores so far, and they are not tested.")
    if partial:
        notes.append("‡ scores are those of the seeds that finished; leaving out seeds that failed flatters an agent.")
    short = min((len(s.returns) for g in study.groups.values() for s in g.scored), default=0)
    if short < 100:
        notes.append(f"The run with the fewest has {short} training episodes, all of which count as its last 100.")
    columns = ("Environment", "Agent", *MEASURES.values(), "Seeds")
    return Table("scores", "Return per agent and environment", columns, rows, data, tuple(notes))


def difference_table(study: Study, measure: Measure = "asymptotic") -> Table:
    """Every agent against every baseline."""
    comparisons = study.comparisons(measure)
    rows = [
        (
            c.environment,
            c.agent,
            c.baseline,
            signed(c.welch.difference),
            interval_text(c.interval),
            p_text(c.welch.p_value),
            p_text(c.corrected),
            "; ".join(filter(None, (c.verdict, c.note))),
        )
        for c in comparisons
    ]
    tested = sum(c.corrected is not None for c in comparisons)
    notes = [
        "Difference of means over seeds, 95 % bootstrap interval of it, and Welch's two-sided t-test, "
        f"without and with Holm's correction ({tested} tested here). The measures are corrected "
        "apart: whoever picks the better of the two has more chances than that.",
    ]
    fewest = min((min(s.n for s in _summaries(study, c, measure)) for c in comparisons), default=5)
    if fewest < 5:
        notes.append("A bootstrap interval from fewer than five seeds is too narrow: trust the test more.")
    return Table(
        f"differences-{measure}",
        f"Differences: {TITLES[measure].lower()}",
        ("Environment", "Agent", "Against", "Difference", "95 % interval", "p", "p (Holm)", "Finding"),
        rows,
        [
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
        ],
        tuple(notes),
        tuple(c.verdict if c.verdict in ("better", "worse") else "" for c in comparisons),
        "Finding",
    )


def _summaries(study: Study, comparison: Comparison, measure: Measure) -> list[Summary]:
    agents = comparison.agent, comparison.baseline
    return [study.groups[comparison.environment, agent].summary(measure) for agent in agents]


def aggregate_table(suite: Suite) -> Table:
    """Aggregates over the environments of one suite."""
    rows, data, notes = [], [], [f"{suite.unit[0].upper()}{suite.unit[1:]}.", f"Source: {suite.source}"]
    for agent, scores in suite.scores.items():
        texts, record = [], {"agent": agent, "runs": sum(len(x) for x in scores)}
        for name in STATISTICS:
            estimate = aggregate(scores, name)
            interval = estimate.interval
            shown = f" [{number(interval.low)}, {number(interval.high)}]" if interval.low is not None else " [n/a]"
            texts.append(number(estimate.value) + shown)
            record |= {name: estimate.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
            notes += [f"{text[0].upper()}{text[1:]}." for text in (estimate.note, interval.note) if text]
        rows.append((agent, *texts, str(record["runs"])))
        data.append(record)
    notes.append("Intervals: 95 % stratified bootstrap over seeds within each environment.")
    return Table(
        f"aggregates-{slug(suite.name)}",
        f"{suite.name}: {len(suite.environments)} environments together",
        ("Agent", *(AGGREGATES[name] for name in STATISTICS), "Runs"),
        rows,
        data,
        tuple(dict.fromkeys(notes)),
    )


def improvement_table(study: Study, suite: Suite) -> Table:
    """Probability of improvement of every challenger over every baseline."""
    rows, data, flat = [], [], False
    for agent, baseline in study.pairs:
        estimate = probability_of_improvement(suite.scores[agent], suite.scores[baseline])
        rows.append((agent, baseline, number(estimate.value), interval_text(estimate.interval)))
        low, high = estimate.interval.low, estimate.interval.high
        flat |= low is not None and low == high
        data.append({"agent": agent, "baseline": baseline, "probability": estimate.value, "low": low, "high": high})
    notes = ["Chance that a run of the agent scores more than one of the other, averaged over environments; ½: a draw."]
    if flat:
        notes.append("An interval without width: the same in every resample, as with few seeds and no overlap.")
    columns = ("Agent", "Over", "Probability", "95 % interval")
    title = f"{suite.name}: probability of improvement"
    return Table(f"improvement-{slug(suite.name)}", title, columns, rows, data, tuple(notes))


def evaluation_table(study: Study) -> Table:
    """Return of the final policy in evaluation episodes, apart from training."""
    rows, data = [], []
    for group in study.groups.values():
        for mode in ("sampled", "greedy"):
            summary = summarise(group.evaluated(mode))
            if summary.n:
                rows.append((group.environment, group.agent, mode, summary_text(summary), str(summary.n)))
                record = {"environment": group.environment, "agent": group.agent, "mode": mode, "seeds": summary.n}
                data.append(record | {"return_mean": summary.mean, "standard_error": summary.standard_error})
    columns = ("Environment", "Agent", "Actions", "Return", "Seeds")
    notes = ("Mean return of the last evaluation of each seed, ± standard error over seeds.",)
    return Table("evaluations", "Evaluation episodes", columns, rows, data, notes)


def ladder_table(study: Study) -> Table:
    """Time scales of every agent; agents that share a ladder share its rows."""
    shared: dict[Any, list[Group]] = {}
    for group in study.groups.values():
        if group.seeds[0].run.config.get("scales_known", True):  # a monitor log does not know its critic
            shared.setdefault(group.scales, []).append(group)
    rows, data = [], []
    for scales, groups in shared.items():
        who = _who(study, groups)
        for z, gamma in enumerate(scales.gammas):
            decay = scales.trace_decays[z] if scales.trace_decays is not None else None
            factor = scales.contraction_factors[z] if decay is not None else None
            lam = decay / gamma if decay is not None and gamma > 0 else None
            rows.append(
                (
                    who,
                    str(z),
                    "∞" if math.isinf(scales.horizons[z]) else f"{scales.horizons[z]:.4g}",
                    scales.labels[z],
                    MISSING if lam is None else f"{lam:.4f}",
                    MISSING if decay is None else f"{decay:.4f}",
                    MISSING if factor is None else "∞" if math.isinf(factor) else f"{factor:.3f}",
                )
            )
            values = (scales.horizons[z], gamma, lam, decay, factor)
            names = ("horizon", "gamma", "lambda", "trace_decay", "contraction_factor")
            data.append({"agents": who, "z": z, **dict(zip(names, values, strict=True))})
    diverging = sorted(
        {row[0] for row, record in zip(rows, data, strict=True) if (record["contraction_factor"] or 0) > 1}
    )
    notes = ["Horizon 1/(1 − γ) in steps; c = λγ is the trace decay; a component contracts when its factor is below 1."]
    notes += [f"{who}: a factor above 1 lets that component grow under full steps." for who in diverging]
    columns = ("Agents", "z", "Horizon", "γ", "λ = c/γ", "c", "Contraction factor")
    return Table("ladder", "Time scales of the critics", columns, rows, data, tuple(notes))


def critic_table(study: Study, *, every: bool = True) -> Table:
    """Error and explained variance of the critics on held-out states: of every V_γ, or at the longest horizon only."""
    rows, data = [], []
    for group in study.groups.values():
        if not group.critic:
            continue
        for z in reversed(range(len(group.scales)) if every else [len(group.scales) - 1]):
            parts = {
                name: _known([float(getattr(quality, name)[z]) for quality in group.critic])
                for name in ("rmse", "relative_rmse", "explained_variance")
            }
            seeds = min(summary.n for summary in parts.values())
            rows.append(
                (
                    group.environment,
                    group.agent,
                    group.scales.labels[z],
                    *(summary_text(summary) for summary in parts.values()),
                    str(seeds),
                )
            )
            record: dict[str, Any] = {
                "environment": group.environment,
                "agent": group.agent,
                "gamma": group.scales.gammas[z],
                "seeds": seeds,
                "states": int(sum(quality.states[z] for quality in group.critic)),
            }
            for name, summary in parts.items():
                record |= {name: summary.mean, f"{name}_standard_error": summary.standard_error}
            data.append(record)
    notes = (
        "Predicted V_γ against the realised discounted return of held-out states, mean ± standard error over seeds. "
        "Relative error: over the standard deviation of the returns, so 1 is no better than predicting their mean.",
        "Each critic is judged on the states of its own policy: a better policy faces other, often larger, returns.",
    )
    columns = ("Environment", "Agent", "γ", "Error (RMSE)", "Relative error", "Explained variance", "Seeds")
    if every:
        return Table("critic-every-discount", "Critics on held-out states, every discount", columns, rows, data, notes)
    return Table("critic", "Critics on held-out states, longest horizon", columns, rows, data, notes)


def settings_tables(study: Study) -> tuple[Table, Table]:
    """Settings in which the agents differ on some environment, and those that all share."""
    settings = {key: flat_settings(group.seeds[0].run.config) for key, group in study.groups.items()}
    names = dict.fromkeys(name for one in settings.values() for name in one)
    differing, common = [], []
    for name in names:
        per_environment = [
            {agent: text_of(settings[e, agent].get(name)) for agent in study.agents if (e, agent) in settings}
            for e in study.environments
        ]
        if any(len(set(values.values())) > 1 for values in per_environment):
            differing.append((name, *(_over_environments(study, per_environment, agent) for agent in study.agents)))
        else:
            values = [next(iter(values.values())) for values in per_environment]
            common.append((name, values[0] if len(set(values)) == 1 else _by_environment(study.environments, values)))
    heads = ("Setting", *study.agents)
    return (
        Table(
            "settings-differing",
            "Settings that differ between agents",
            heads,
            differing,
            [dict(zip(heads, row, strict=True)) for row in differing],
        ),
        Table(
            "settings-common",
            "Settings that all agents share",
            ("Setting", "Value"),
            common,
            [{"setting": name, "value": value} for name, value in common],
        ),
    )


def run_table(study: Study) -> Table:
    """Every run with its state."""
    rows, data, marks = [], [], []
    order = sorted(study.seeds, key=lambda s: (s.environment, study.agents.index(s.agent), s.number))
    for seed in order:
        state = f"{seed.state}: {seed.message}" if seed.message else seed.state
        speed = MISSING if seed.speed is None else f"{seed.speed:,.0f}"
        scores = number(seed.asymptotic), number(seed.average)
        rows.append((seed.environment, seed.agent, str(seed.number), state, f"{seed.steps:,}", *scores, speed))
        marks.append("" if seed.finished else "worse")
        data.append(
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
            }
        )
    notes = []
    together = sum(seed.vectorized for seed in order)
    if together:
        notes.append(
            f"{'All' if together == len(order) else together} of these runs were vectorised, the seeds of an agent in "
            "one program: an update equals that of a run of its own to about 1e-4, not byte for byte."
        )
    columns = ("Environment", "Agent", "Seed", "State", "Steps", *MEASURES.values(), "Steps per second")
    return Table("runs", "Every run", columns, rows, data, tuple(notes), tuple(marks), "State")


def _known(values: Iterable[float]) -> Summary:
    """Summary of the seeds in which a measure is defined."""
    return summarise([value for value in values if np.isfinite(value)])


def _who(study: Study, groups: Sequence[Group]) -> str:
    """Name the agents of some groups, and the environments where they are not on all of them."""
    agents = [agent for agent in study.agents if any(group.agent == agent for group in groups)]
    parts = []
    for agent in agents:
        here = [g.environment for g in groups if g.agent == agent]
        everywhere = len(here) == sum(key[1] == agent for key in study.groups)
        parts.append(agent if everywhere else f"{agent} on {', '.join(here)}")
    return ", ".join(parts)


def _over_environments(study: Study, per_environment: Sequence[Mapping[str, str]], agent: str) -> str:
    present = [
        (e, values[agent]) for e, values in zip(study.environments, per_environment, strict=True) if agent in values
    ]
    values = [value for _, value in present]
    return values[0] if len(set(values)) == 1 else _by_environment([e for e, _ in present], values)


def _by_environment(environments: Sequence[str], values: Sequence[str]) -> str:
    return "; ".join(f"{environment}: {value}" for environment, value in zip(environments, values, strict=True))


def seeds_text(group: Group) -> str:
    """How many seeds stand behind a score."""
    if not group.complete:
        return f"{len(group.seeds)} †"
    if len(group.scored) < len(group.seeds):
        return f"{len(group.scored)} of {len(group.seeds)} ‡"
    return str(len(group.seeds))
