"""The result of a set of runs in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass

from tddelta.report.formatting import interval_text, p_text, signed, summary_text
from tddelta.report.statistics import summarise, welch_test
from tddelta.report.study import Comparison, Study, other_rules

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
