"""Words of a report: numbers as text, and the sentences that say what tables and figures show."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tddelta.decomposition import compose
from tddelta.report.aggregates import Estimate, Profile
from tddelta.report.statistics import Diagnosis, FloatArray, Summary, summarise, welch_test
from tddelta.report.study import Comparison, Group, Study, other_rules
from tddelta.runs.recorder import realised_returns
from tddelta.timescales import TimeScales

MISSING = "–"
"""Text in place of a missing value."""

# ---------------------------------------------------------------- numbers as text


def number(value: float | None) -> str:
    """A number for reading: about three significant digits, and no exponent where possible."""
    if value is None or math.isnan(value):
        return "n/a"
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}".replace("-", "−")
    decimals = min(_decimals(value, 4), 2) if abs(value) >= 1 else _decimals(value, 3)
    return f"{value:,.{decimals}f}".replace("-", "−")


def _decimals(value: float, digits: int) -> int:
    """Decimals that show this many significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else digits - 1


def signed(value: float) -> str:
    """A difference with its sign."""
    return f"+{number(value)}" if value > 0 else number(value)


def mean_text(mean: float, error: float | None) -> str:
    """Mean ± standard error, with one or two digits of the error."""
    if error is None or not math.isfinite(mean):
        return number(mean)
    if error == 0:
        return f"{number(mean)} ± 0"
    decimals = max(min(_decimals(error, 2), 2 if abs(mean) >= 1 else 3), _decimals(error, 1))
    return f"{mean:,.{decimals}f} ± {error:,.{decimals}f}".replace("-", "−")


def summary_text(summary: Summary) -> str:
    """Mean ± standard error of a summary."""
    return mean_text(summary.mean, summary.standard_error)


def interval_text(low: float | None, high: float | None) -> str:
    """An interval, or "n/a"."""
    return "n/a" if low is None or high is None else f"{number(low)} to {number(high)}"


def p_text(p: float | None) -> str:
    """A p value for a table."""
    return "n/a" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def p_phrase(p: float | None) -> str:
    """A p value for a sentence: "p = 0.012" or "p < 0.001"."""
    return f"p = {p_text(p)}".replace("= <", "< ")


def percent(value: float) -> str:
    """A share in whole percent."""
    return f"{100 * float(value):.0f} %".replace("-", "−")


def steps_text(horizon: float) -> str:
    """A horizon in steps."""
    return "∞" if math.isinf(horizon) else f"{horizon:.4g}"


def counted(count: int, noun: str) -> str:
    """A number of things, as in "1 seed" and "3 seeds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def text_of(value: Any) -> str:
    """A setting for a reader."""
    if value is None:
        return MISSING
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(text_of, value)) + ")"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text_of(item)}" for key, item in value.items()) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def slug(name: str) -> str:
    """A name that is safe in file names and HTML ids."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"


def sentence_of(text: str) -> str:
    """A clause as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def listed(names: Sequence[str]) -> str:
    """Names as in "a, b and c"."""
    return ", ".join(names) if len(names) < 2 else ", ".join(names[:-1]) + " and " + names[-1]


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


# ---------------------------------------------------------------- head of the page

_UNFINISHED = {
    "failed": "failed",
    "interrupted": "was interrupted",
    "cut off": "was cut off",
    "running": "is still running",
}


@dataclass(frozen=True)
class Headline:
    """Top of the page.

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
    """Put the result into words; the numbers are those of the tables."""
    environments, baseline = study.environments, study.baseline
    where = environments[0] if len(environments) == 1 else f"{len(environments)} environments"
    title = f"{study.focus} against {baseline} on {where}" if baseline else f"{listed(study.agents)} on {where}"
    return Headline(title, _lead(study), tuple(_verdict(study, baseline)), tuple(_cautions(study)))


def _lead(study: Study) -> str:
    seeds = sorted({len(group.seeds) for group in study.groups.values()})
    steps = sorted({group.planned_steps for group in study.groups.values()})
    agents = f"{counted(len(study.agents), 'agent')} ({', '.join(study.agents)})"
    each = f"{_range(seeds)} {'seed' if seeds[-1] == 1 else 'seeds'} each"
    verb = "was" if len(study.agents) == 1 else "were"
    where = listed(study.environments)
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
        corrected = _tally(judged, [c.corrected for c in judged])
        plain = _tally(judged, [c.welch.p_value for c in judged])
        sentences.append(
            f"{study.focus} against {baseline}: {corrected} of {counted(len(judged), 'environment')} "
            f"(clear: p < 0.05, Holm-corrected for {counted(len(tested), 'comparison')}; uncorrected "
            f"{'the same' if plain == corrected else plain})."
        )
    elif mine:
        sentences.append(f"{study.focus} and {baseline} could not be tested against each other.")
    return sentences + [_compared(study, comparison) for comparison in mine]


def _tally(comparisons: Sequence[Comparison], p_values: Sequence[float | None]) -> str:
    """Count on how many environments the difference is clear, in words."""
    counts = {"better on": 0, "worse on": 0, "no clear difference on": 0}
    for comparison, p in zip(comparisons, p_values, strict=True):
        clear = "better on" if comparison.welch.difference > 0 else "worse on"
        counts["no clear difference on" if p is None or p >= 0.05 else clear] += 1
    return listed([f"{words} {count}" for words, count in counts.items() if count])


def _compared(study: Study, comparison: Comparison) -> str:
    groups = [study.groups[comparison.environment, agent] for agent in (comparison.agent, comparison.baseline)]
    ours, theirs = (summary_text(group.summary("asymptotic")) for group in groups)
    text = f"{comparison.environment}: {comparison.agent} {ours}, {comparison.baseline} {theirs}"
    if comparison.welch.p_value is None:
        return f"{text}; {comparison.note or 'not tested'}."
    interval = interval_text(comparison.interval.low, comparison.interval.high)
    p = f"{p_phrase(comparison.welch.p_value)}, corrected {p_text(comparison.corrected)}"
    note = f" ({comparison.note})" if comparison.note else ""
    return f"{text}; difference {signed(comparison.welch.difference)} (95 % interval {interval}); {p}{note}."


def _cautions(study: Study) -> list[str]:
    cautions = []
    for state, words in _UNFINISHED.items():
        stopped = [seed for seed in study.seeds if seed.state == state]
        if stopped:
            plural = words.replace("was", "were").replace("is still", "are still") if len(stopped) > 1 else words
            names = [seed.title for seed in stopped[:4]] + ([f"{len(stopped) - 4} more"] if len(stopped) > 4 else [])
            cautions.append(f"{counted(len(stopped), 'run')} {plural}: {'; '.join(names)}.")
    for environment in study.environments:
        rules = other_rules(study.groups_on(environment))
        if rules:
            cautions.append(
                f"{environment} was played under different rules ({listed(rules)}): where they differ, agents are not "
                "compared."
            )
    counts = sorted({len(group.scored) for group in study.groups.values()})
    if counts[0] == 1:
        cautions.append("An agent with one seed only has no standard error and cannot be tested.")
    elif counts[0] < 5:
        cautions.append(f"With {_range(counts)} seeds only a large difference can be told from chance.")
    missing = [
        f"{agent} on {e}" for e in study.environments for agent in study.agents if (e, agent) not in study.groups
    ]
    if missing:
        cautions.append(f"No run of {listed(missing)}.")
    return cautions


def critic_sentences(study: Study) -> list[str]:
    """Say whether the critic of the agent in focus is better than the baseline's, at the longest horizon.

    One sentence per environment where both have held-out states; the p values are not corrected.
    """
    sentences = []
    for environment in study.environments:
        pair = [study.groups.get((environment, str(agent))) for agent in (study.focus, study.baseline)]
        groups = [group for group in pair if group is not None and group.critic]
        if len(groups) < 2 or groups[0].scales.gammas[-1] != groups[1].scales.gammas[-1]:
            continue
        samples = [[float(quality.explained_variance[-1]) for quality in group.critic] for group in groups]
        welch = welch_test(*samples)
        texts = [f"{g.agent} {summary_text(summarise(s))}" for g, s in zip(groups, samples, strict=True)]
        how = p_phrase(welch.p_value) if welch.p_value is not None else welch.note
        sentences.append(
            f"{environment}: explained variance of V at γ = {groups[0].scales.labels[-1]} on held-out states: "
            f"{texts[0]}, {texts[1]}; difference {signed(welch.difference)} ({how})."
        )
    return sentences


# ---------------------------------------------------------------- under the figures


def learning(study: Study, environment: str) -> str:
    """Learning curves: who is ahead in the end, by how much, and whether that survives correction.

    Args:
        study: The runs.
        environment: Whose learning curves are drawn.

    Returns:
        The sentences; "" where no score is known.
    """
    groups = [g for g in study.groups_on(environment) if math.isfinite(g.summary("asymptotic").mean)]
    groups.sort(key=lambda group: -group.summary("asymptotic").mean)
    if not groups:
        return ""
    first, text = groups[0], summary_text(groups[0].summary("asymptotic"))
    start = "Over the last 100 episodes"
    if len(groups) == 1:
        seeds = counted(len(first.scored), "seed")
        return f"{start} {first.agent} scores {text} ({seeds}). {_progress(study, first)}".strip()
    second = groups[1]
    counts = [len(group.scored) for group in (first, second)]
    seeds = counted(counts[1], "seed")
    each = f"{seeds} each" if counts[0] == counts[1] else f"{counts[0]} and {seeds}"
    best = first.summary("asymptotic").mean
    gap = best - second.summary("asymptotic").mean
    if gap == 0:
        return f"{start} {first.agent} and {second.agent} are level at {number(best)} ({each})."
    theirs = summary_text(second.summary("asymptotic"))
    lead = f"{start} {first.agent} is ahead with {text}, {number(gap)} more than {second.agent} with {theirs} ({each})."
    return f"{lead} {_tested(study, first, second)}"


def _progress(study: Study, group: Group) -> str:
    """Start of the curve of an agent alone, and when it was half-way."""
    curve = study.curves(group.environment).get(group.agent)
    known = np.flatnonzero(np.isfinite(curve.mean)) if curve is not None else np.zeros(0, int)
    if curve is None or len(known) < 2:
        return ""
    first, last = (float(curve.mean[known[end]]) for end in (0, -1))
    if last <= first:
        return f"Its curve ends no higher than it began ({number(first)}, then {number(last)})."
    half = next(i for i in known if curve.mean[i] >= (first + last) / 2)
    return f"Its curve begins at {number(first)} and is half-way up after {curve.grid[half]:,.0f} steps."


def _tested(study: Study, first: Group, second: Group) -> str:
    here = [c for c in study.comparisons() if c.environment == first.environment]
    mine = [c for c in here if {c.agent, c.baseline} == {first.agent, second.agent}]
    if mine:
        return f"The difference {_survival(study, mine[0])}."
    others = [c for c in here if c.agent == first.agent]
    text = "These two are not tested against each other"
    if not others:
        return f"{text}."
    against = f"its difference from {others[0].baseline}, {signed(others[0].welch.difference)},"
    return f"{text}; {against} {_survival(study, others[0])}."


def _survival(study: Study, comparison: Comparison) -> str:
    if comparison.corrected is None:
        return f"is not tested: {comparison.note or 'no test'}"
    count = sum(c.corrected is not None for c in study.comparisons())
    p, clear = p_phrase(comparison.welch.p_value), comparison.corrected < 0.05
    if count == 1:
        return f"is {'clear' if clear else 'not clear'} ({p})"
    verb = "survives" if clear else "does not survive"
    return f"{verb} Holm's correction over {count} comparisons ({p}, corrected {p_text(comparison.corrected)})"


def critics(groups: Sequence[Group]) -> str:
    """Critics: whose values explain most at the longest horizon, and which horizon the best knows best and least.

    Args:
        groups: The agents that are drawn.

    Returns:
        The sentences; "" where nothing is known.
    """
    found = {group.agent: (group.scales, _explained(group)) for group in groups}
    longest = {agent: float(values[-1]) for agent, (_, values) in found.items() if math.isfinite(values[-1])}
    said = []
    if longest:
        order = sorted(longest, key=lambda agent: -longest[agent])
        labels = {agent: found[agent][0].labels[-1] for agent in order}
        others = ", ".join(
            f"that of {agent} {percent(longest[agent])}"
            + (f" (at γ = {labels[agent]})" if labels[agent] != labels[order[0]] else "")
            for agent in order[1:]
        )
        said.append(
            f"At γ = {labels[order[0]]} the critic of {order[0]} explains {percent(longest[order[0]])} of the variance "
            f"of the returns that came{f', {others}' if others else ''}."
        )
    ladders = [agent for agent, (_, values) in found.items() if np.isfinite(values).sum() > 1]
    if ladders:
        agent = max(ladders, key=lambda name: longest.get(name, -math.inf))
        scales, values = found[agent]
        best, worst = int(np.nanargmax(values)), int(np.nanargmin(values))
        said.append(
            f"{agent} knows best what comes over {steps_text(scales.horizons[best])} steps ({percent(values[best])}), "
            f"least what comes over {steps_text(scales.horizons[worst])} steps ({percent(values[worst])})."
        )
    return " ".join(said)


def _explained(group: Group) -> FloatArray:
    """Explained variance at every discount, the mean over the seeds where it is known, (Z,)."""
    columns = np.transpose([quality.explained_variance for quality in group.critic])
    return np.array([summarise(column[np.isfinite(column)]).mean for column in columns])


def episode(scales: TimeScales, arrays: Mapping[str, Any], *, clipped: bool = False) -> str:
    """A recorded episode: which horizons carry its value, and how that compares with what came.

    Args:
        scales: The critic's scales.
        arrays: The recording: `deltas`, `rewards`, `terminated`, `truncated`.
        clipped: Whether the critic learned from the signs of the rewards.

    Returns:
        The sentences.
    """
    deltas, paid = (np.asarray(arrays[name], np.float64) for name in ("deltas", "rewards"))
    values = compose(deltas)[:, -1]
    said = []
    share = np.abs(deltas).mean(axis=0)
    if len(scales) > 1 and share.sum() > 0:
        said.append(f"{_half(scales, share / share.sum())} along this episode.")
    never = np.zeros(len(paid), bool)
    ends = {name: arrays.get(name, never) for name in ("terminated", "truncated")}
    came = realised_returns(np.sign(paid) if clipped else paid, np.array(scales.gammas[-1:]), **ends)[:, 0]
    known = np.isfinite(came)
    if not known.any():
        return " ".join([*said, "It is too short for the return at the longest horizon to be known."])
    mean, followed = float(values[known].mean()), float(came[known].mean())
    gap = mean - followed
    near = abs(gap) <= 0.01 * max(abs(mean), abs(followed))
    verdict = "about as much as" if near else f"{number(abs(gap))} {'more' if gap > 0 else 'less'} than"
    where = "over all steps" if known.all() else f"over the {known.sum():,} steps whose return is known"
    said.append(
        f"On average {where} V expects {number(mean)}, {verdict} the discounted return that followed "
        f"({number(followed)})."
    )
    return " ".join(said)


def _half(scales: TimeScales, share: FloatArray) -> str:
    """Beyond which horizon half of the value lies, at least."""
    half = next(z for z in range(len(scales)) if share[: z + 1].sum() >= 0.5)
    where = f"Value beyond {steps_text(scales.horizons[half - 1])} steps" if half else "Value of all horizons"
    return f"{where} is {percent(share[half:].sum())} of all parts of V"


def parts(scales: TimeScales, diagnosis: Diagnosis) -> list[str]:
    """The parts of a critic: which are large, well explained, biased, too flat or too steep, and which may diverge."""
    found = []
    names = [f"W_{z}" if len(scales) > 1 else "V" for z in range(len(scales))]
    horizons = [steps_text(horizon) for horizon in scales.horizons]
    if len(scales) > 1 and np.isfinite(diagnosis.share).all():
        most = int(diagnosis.share.argmax())
        reach = f"horizons {horizons[most - 1]} to {horizons[most]}" if most else f"the next {horizons[0]} steps"
        found.append(
            f"{_half(scales, diagnosis.share)}; the largest is W_{most} ({reach}), with "
            f"{percent(diagnosis.share[most])}."
        )
    explained, bias = diagnosis.explained_variance, diagnosis.bias
    judged = [z for z in range(len(scales)) if np.isfinite(explained[z])]
    if judged:
        best, worst = (pick(judged, key=lambda z: float(explained[z])) for pick in (max, min))
        text = f"{names[best]} explains {percent(explained[best])} of its target's variance"
        if worst != best:
            text += f", {names[worst]} {percent(explained[worst])}"
        off = max(judged, key=lambda z: abs(float(bias[z])))
        found += [
            f"{text}.",
            f"{names[off]} is on average {number(abs(float(bias[off])))} too {'high' if bias[off] > 0 else 'low'}, "
            f"{percent(abs(bias[off]) / diagnosis.spread[off])} of its target's spread.",
        ]
        slope = float(diagnosis.slope[judged[-1]])
        if np.isfinite(slope):
            verdict = "its differences between states are about right"
            if slope < 0.8:
                verdict = "it exaggerates differences between states"
            elif slope > 1.25:
                verdict = "it makes states too much alike"
            found.append(f"V over {horizons[judged[-1]]} steps: {verdict} (slope {slope:.2f}, 1 is calibrated).")
    growing = [names[z] for z, factor in enumerate(diagnosis.factors) if factor >= 1 and scales.gammas[z] < 1]
    if growing:
        found.append(
            f"Full steps towards their targets let {', '.join(growing)} grow: a factor of 1 or more does not contract."
        )
    return found


def shares(parts: FloatArray) -> str:
    """Shares over training, (N, Z): the largest part at first and in the end."""
    first, last = (int(part.argmax()) for part in (parts[0], parts[-1]))
    return (
        f"At first W_{first} is the largest part ({100 * parts[0, first]:.0f} %), "
        f"in the end W_{last} ({100 * parts[-1, last]:.0f} %)."
    )


def ladders(study: Study) -> list[str]:
    """Ladders of all agents, one sentence for each; see `ladder`."""
    return [
        f"{', '.join(dict.fromkeys(group.agent for group in groups))}: {ladder(scales)}"
        for scales, groups in study.ladders.items()
    ]


def ladder(scales: TimeScales) -> str:
    """A ladder of time scales: how far it reaches, and which of its parts learns slowest."""
    many = len(scales) > 1
    reach = " to ".join(steps_text(scales.horizons[z]) for z in ((0, -1) if many else (0,)))
    text = f"{len(scales)} scale{'s look' if many else ' looks'} {reach} steps ahead"
    finite = np.array([horizon for horizon in scales.horizons if math.isfinite(horizon)])
    ratios = finite[1:] / finite[:-1]
    if len(ratios):
        even = ratios.max() / ratios.min() < 1.05
        times = f"{ratios.mean():.3g}" if even else f"{ratios.min():.3g} to {ratios.max():.3g}"
        text += f", each {times} times as far as the one before"
    if scales.trace_decays is None:
        return f"{text}."
    slowest = int(np.argmax(scales.contraction_factors))
    factor = scales.contraction_factors[slowest]
    part = f"W_{slowest}" if many else "V"
    if factor >= 1:
        return f"{text}; full steps towards its target need not bring {part} closer."
    return f"{text}; a full step leaves at most {percent(factor)} of the error of {part}{', the slowest' * many}."


def interquartile(estimates: Mapping[str, Estimate]) -> str:
    """Interquartile means: the highest, and whether intervals overlap."""
    order = sorted(estimates, key=lambda agent: -estimates[agent].value)
    best = estimates[order[0]]
    if len(order) == 1:
        interval = interval_text(best.interval.low, best.interval.high)
        return f"{order[0]} has {number(best.value)} (95 % interval {interval})."
    second = estimates[order[1]]
    text = f"{order[0]} has the highest, {number(best.value)}, before {order[1]} with {number(second.value)}"
    if best.interval.low is None or second.interval.high is None:
        return f"{text}; with one seed there is no interval."
    return f"{text}; their intervals {'overlap' if best.interval.low <= second.interval.high else 'do not overlap'}."


def profiles(found: Mapping[str, Profile]) -> str:
    """Performance profiles: the score that half of the runs of every agent exceed."""
    halves = {agent: float(p.thresholds[p.fractions > 0.5].max(initial=-math.inf)) for agent, p in found.items()}
    known = {agent: half for agent, half in halves.items() if math.isfinite(half)}
    if not known:
        return ""
    order = sorted(known, key=lambda agent: -known[agent])
    others = "".join(f", of those of {agent} above {number(known[agent])}" for agent in order[1:])
    return f"More than half of the runs of {order[0]} score above {number(known[order[0]])}{others}."


def improvement(agent: str, baseline: str, estimate: Estimate) -> str:
    """Probability of improvement, and whether it could be a draw."""
    text = f"A run of {agent} beats one of {baseline} with a chance of {percent(estimate.value)}"
    low, high = estimate.interval.low, estimate.interval.high
    if low is None or high is None:
        return f"{text}; with one seed there is no interval."
    return f"{text}; its interval {'includes a draw' if low <= 0.5 <= high else 'excludes a draw'}."
