"""Words of a report: numbers as text, and the sentences that say what tables and figures show."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tddelta._plain import counted
from tddelta.decomposition import compose
from tddelta.report.run_set import Comparison, Group, RunSet, other_rules, verdict
from tddelta.report.statistics import Curve, Diagnosis, Estimate, FloatArray, Summary, summarise, welch_test
from tddelta.runs.recorder import realised_returns
from tddelta.timescales import TimeScales, number_text

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


def change(value: float) -> str:
    """A change in percent, with its sign."""
    return f"{100 * value:+.1f} %".replace("-", "−")


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
    "failed": ("failed", "failed"),
    "interrupted": ("was interrupted", "were interrupted"),
    "cut off": ("was cut off", "were cut off"),
    "running": ("is still running", "are still running"),
}  # of one run, of several


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
    verdict: list[str]
    cautions: list[str]


def headline(runs: RunSet) -> Headline:
    """Put the result into words; the numbers are those of the tables."""
    environments, agents, baseline = runs.environments, runs.agents, runs.baseline
    where = environments[0] if len(environments) == 1 else f"{len(environments)} environments"
    title = f"{runs.focus} against {baseline} on {where}" if baseline else f"{listed(agents)} on {where}"
    seeds = sorted({len(group.seeds) for group in runs.groups.values()})
    done = (group.planned_steps or seed.steps for group in runs.groups.values() for seed in group.seeds)
    steps = sorted(set(done))
    lead = (
        f"{counted(len(agents), 'agent')} ({', '.join(agents)}) {'was' if len(agents) == 1 else 'were'} trained on "
        f"{listed(environments)}, {_range(seeds)} {'seed' if seeds[-1] == 1 else 'seeds'} each, for {_range(steps)} "
        "environment steps per seed."
    )
    return Headline(title, lead, _verdict(runs, baseline), _cautions(runs))


def _verdict(runs: RunSet, baseline: str | None) -> list[str]:
    if baseline is None:
        return ["There is no baseline among these agents, so nothing is compared."]
    everything = runs.comparisons()
    mine = [c for c in everything if (c.agent, c.baseline) == (runs.focus, baseline)]
    judged = [c for c in mine if c.corrected is not None]
    sentences = []
    if judged:
        family = sum(c.corrected is not None for c in everything)
        corrected = _tally(judged, [c.corrected for c in judged])
        plain = _tally(judged, [c.welch.p_value for c in judged])
        sentences.append(
            f"{runs.focus} against {baseline}: {corrected} of {counted(len(judged), 'environment')} "
            f"(clear: p < 0.05, Holm-corrected for {counted(family, 'comparison')}; uncorrected "
            f"{'the same' if plain == corrected else plain})."
        )
    elif mine:
        sentences.append(f"{runs.focus} and {baseline} could not be tested against each other.")
    return sentences + [_compared(runs, comparison) for comparison in mine]


def _tally(comparisons: Sequence[Comparison], p_values: Sequence[float | None]) -> str:
    """Count on how many environments the difference is clear, in words."""
    found = [verdict(c.welch.difference, p) for c, p in zip(comparisons, p_values, strict=True)]
    findings = ("better", "worse", "no clear difference")
    return listed([f"{finding} on {found.count(finding)}" for finding in findings if finding in found])


def _compared(runs: RunSet, comparison: Comparison) -> str:
    ours, theirs = (
        f"{agent} {summary_text(runs.groups[comparison.environment, agent].summary('asymptotic'))}"
        for agent in (comparison.agent, comparison.baseline)
    )
    text = f"{comparison.environment}: {ours}, {theirs}"
    if comparison.welch.p_value is None:
        return f"{text}; {comparison.note or 'not tested'}."
    interval = interval_text(comparison.interval.low, comparison.interval.high)
    p = f"{p_phrase(comparison.welch.p_value)}, corrected {p_text(comparison.corrected)}"
    note = f" ({comparison.note})" if comparison.note else ""
    return f"{text}; difference {signed(comparison.welch.difference)} (95 % interval {interval}); {p}{note}."


def _cautions(runs: RunSet) -> list[str]:
    cautions = []
    for state, (one, several) in _UNFINISHED.items():
        if stopped := [seed.title for seed in runs.seeds if seed.state == state]:
            names = stopped[:4] + ([f"{len(stopped) - 4} more"] if len(stopped) > 4 else [])
            verb = one if len(stopped) == 1 else several
            cautions.append(f"{counted(len(stopped), 'run')} {verb}: {'; '.join(names)}.")
    for environment in runs.environments:
        if rules := other_rules(runs.groups_on(environment)):
            cautions.append(
                f"{environment} was played under different rules ({listed(rules)}): where they differ, agents are not "
                "compared."
            )
    counts = sorted({len(group.scored) for group in runs.groups.values()})
    if counts[0] == 1:
        cautions.append("An agent with one seed only has no standard error and cannot be tested.")
    elif counts[0] < 5:
        cautions.append(f"With {_range(counts)} seeds only a large difference can be told from chance.")
    missing = [f"{a} on {e}" for e in runs.environments for a in runs.agents if (e, a) not in runs.groups]
    return cautions + ([f"No run of {listed(missing)}."] if missing else [])


def critic_sentences(runs: RunSet) -> list[str]:
    """Say whether the critic of the agent in focus is better than the baseline's, at the longest horizon.

    One sentence per environment where both have held-out states; the p values are not corrected.
    """
    sentences = []
    for environment in runs.environments:
        pair = [runs.groups.get((environment, str(agent))) for agent in (runs.focus, runs.baseline)]
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


def learning(runs: RunSet, environment: str) -> str:
    """Learning curves: who is ahead in the end, by how much, and whether that survives correction; or ""."""
    scores = [(group, group.summary("asymptotic")) for group in runs.groups_on(environment)]
    scores = sorted((pair for pair in scores if math.isfinite(pair[1].mean)), key=lambda pair: -pair[1].mean)
    if not scores:
        return ""
    (first, best), start = scores[0], "Over the last 100 episodes"
    count = len(first.scored)
    if len(scores) == 1:
        text = f"{start} {first.agent} scores {summary_text(best)} ({counted(count, 'seed')})."
        return f"{text} {_progress(runs, first)}".strip()
    second, other = scores[1]
    seeds = counted(len(second.scored), "seed")
    each = f"{seeds} each" if len(second.scored) == count else f"{count} and {seeds}"
    if best.mean == other.mean:
        return f"{start} {first.agent} and {second.agent} are level at {number(best.mean)} ({each})."
    return (
        f"{start} {first.agent} is ahead with {summary_text(best)}, {number(best.mean - other.mean)} more than "
        f"{second.agent} with {summary_text(other)} ({each}). {_tested(runs, first, second)}"
    )


def _progress(runs: RunSet, group: Group) -> str:
    """Start of the curve of an agent alone, and when it was half-way."""
    curve = runs.curves(group.environment).get(group.agent)
    known = np.flatnonzero(np.isfinite(curve.mean)) if curve is not None else np.zeros(0, int)
    if curve is None or len(known) < 2:
        return ""
    first, last = (float(curve.mean[known[end]]) for end in (0, -1))
    if last <= first:
        return f"Its curve ends no higher than it began ({number(first)}, then {number(last)})."
    half = next(i for i in known if curve.mean[i] >= (first + last) / 2)
    return f"Its curve begins at {number(first)} and is half-way up after {curve.grid[half]:,.0f} steps."


def _tested(runs: RunSet, first: Group, second: Group) -> str:
    here = [c for c in runs.comparisons() if c.environment == first.environment]
    for c in here:
        if {c.agent, c.baseline} == {first.agent, second.agent}:
            return f"The difference {_survival(runs, c)}."
    text = "These two are not tested against each other"
    for c in here:
        if c.agent == first.agent:
            against = f"its difference from {c.baseline}, {signed(c.welch.difference)},"
            return f"{text}; {against} {_survival(runs, c)}."
    return f"{text}."


def _survival(runs: RunSet, comparison: Comparison) -> str:
    if comparison.corrected is None:
        return f"is not tested: {comparison.note or 'no test'}"
    count = sum(c.corrected is not None for c in runs.comparisons())
    p, clear = p_phrase(comparison.welch.p_value), comparison.corrected < 0.05
    if count == 1:
        return f"is {'clear' if clear else 'not clear'} ({p})"
    verb = "survives" if clear else "does not survive"
    return f"{verb} Holm's correction over {count} comparisons ({p}, corrected {p_text(comparison.corrected)})"


def critics(groups: Sequence[Group]) -> str:
    """Critics: whose values explain most at the longest horizon, and which horizon the best knows best and least."""
    found = {group.agent: [summary.mean for summary in group.explained_variance] for group in groups}
    scales = {group.agent: group.scales for group in groups}
    longest = {agent: values[-1] for agent, values in found.items() if math.isfinite(values[-1])}
    said = []
    if longest:
        first, *others = sorted(longest, key=lambda agent: -longest[agent])
        at = scales[first].labels[-1]
        said.append(
            f"At γ = {at} the critic of {first} explains {percent(longest[first])} of the variance of the returns that "
            "came"
        )
        for agent in others:
            label = scales[agent].labels[-1]
            said[0] += f", that of {agent} {percent(longest[agent])}" + (f" (at γ = {label})" if label != at else "")
        said[0] += "."
    ladders = [agent for agent, values in found.items() if np.isfinite(values).sum() > 1]
    if ladders:
        agent = max(ladders, key=lambda name: longest.get(name, -math.inf))
        best, least = (
            f"what comes over {number_text(scales[agent].horizons[z])} steps ({percent(found[agent][z])})"
            for z in (int(np.nanargmax(found[agent])), int(np.nanargmin(found[agent])))
        )
        said.append(f"{agent} knows best {best}, least {least}.")
    return " ".join(said)


def episode(scales: TimeScales, arrays: Mapping[str, Any], *, clipped: bool = False) -> str:
    """A recorded episode: which horizons carry its value, and how that compares with what came.

    The arrays are `deltas`, `rewards`, `terminated`, `truncated`; a `clipped` critic learned the signs of the rewards.
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
    compared = "about as much as" if near else f"{number(abs(gap))} {'more' if gap > 0 else 'less'} than"
    where = "over all steps" if known.all() else f"over the {known.sum():,} steps whose return is known"
    said.append(
        f"On average {where} V expects {number(mean)}, {compared} the discounted return that followed "
        f"({number(followed)})."
    )
    return " ".join(said)


def _half(scales: TimeScales, share: FloatArray) -> str:
    """Beyond which horizon half of the value lies, at least."""
    half = next(z for z in range(len(scales)) if share[: z + 1].sum() >= 0.5)
    where = f"Value beyond {number_text(scales.horizons[half - 1])} steps" if half else "Value of all horizons"
    return f"{where} is {percent(share[half:].sum())} of all parts of V"


def parts(scales: TimeScales, diagnosis: Diagnosis) -> list[str]:
    """The parts of a critic: which are large, well explained, biased, too flat or too steep, and which may diverge."""
    found = []
    names = [f"W_{z}" if len(scales) > 1 else "V" for z in range(len(scales))]
    horizons = [number_text(horizon) for horizon in scales.horizons]
    share, explained, bias = diagnosis.share, diagnosis.explained_variance, diagnosis.bias
    if len(scales) > 1 and np.isfinite(share).all():
        most = int(share.argmax())
        reach = f"horizons {horizons[most - 1]} to {horizons[most]}" if most else f"the next {horizons[0]} steps"
        found.append(f"{_half(scales, share)}; the largest is W_{most} ({reach}), with {percent(share[most])}.")
    judged = np.flatnonzero(np.isfinite(explained))
    if len(judged):
        best, worst = judged[explained[judged].argmax()], judged[explained[judged].argmin()]
        text = f"{names[best]} explains {percent(explained[best])} of its target's variance"
        off = judged[np.abs(bias[judged]).argmax()]
        found += [
            text + (f", {names[worst]} {percent(explained[worst])}." if worst != best else "."),
            f"{names[off]} is on average {number(abs(float(bias[off])))} too {'high' if bias[off] > 0 else 'low'}, "
            f"{percent(abs(bias[off]) / diagnosis.spread[off])} of its target's spread.",
        ]
        slope = float(diagnosis.slope[judged[-1]])
        if np.isfinite(slope):
            calibrated = "its differences between states are about right"
            if slope < 0.8:
                calibrated = "it exaggerates differences between states"
            elif slope > 1.25:
                calibrated = "it makes states too much alike"
            found.append(f"V over {horizons[judged[-1]]} steps: {calibrated} (slope {slope:.2f}, 1 is calibrated).")
    factors = zip(names, diagnosis.contraction_factor, scales.gammas, strict=True)
    growing = [name for name, factor, gamma in factors if factor >= 1 and gamma < 1]
    if growing:
        found.append(
            f"Full steps towards their targets let {', '.join(growing)} grow: a factor of 1 or more does not contract."
        )
    return found


def shares(parts: FloatArray) -> str:
    """Shares over training, (N, Z): the largest part at first and in the end."""
    first, last = (int(part.argmax()) for part in (parts[0], parts[-1]))
    return (
        f"At first W_{first} is the largest part ({percent(parts[0, first])}), "
        f"in the end W_{last} ({percent(parts[-1, last])})."
    )


def ladders(runs: RunSet) -> list[str]:
    """Ladders of all agents, one sentence for each; see `ladder`."""
    return [
        f"{', '.join(dict.fromkeys(group.agent for group in groups))}: {ladder(scales)}"
        for scales, groups in runs.ladders.items()
    ]


def ladder(scales: TimeScales) -> str:
    """A ladder of time scales: how far it reaches, and which of its parts learns slowest."""
    many = len(scales) > 1
    reach = " to ".join(number_text(scales.horizons[z]) for z in ((0, -1) if many else (0,)))
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


def profiles(found: Mapping[str, Curve]) -> str:
    """Performance profiles: the score that half of the runs of every agent exceed."""
    halves = {agent: float(p.grid[p.mean > 0.5].max(initial=-math.inf)) for agent, p in found.items()}
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
