"""What each scale of a critic contributes, how well it is learned, and what that means in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tddelta.decomposition import compose, decompose
from tddelta.errors import TDDeltaError
from tddelta.report import statistics
from tddelta.report.aggregates import Estimate, Profile
from tddelta.report.statistics import FloatArray
from tddelta.report.study import Comparison, Group, Study
from tddelta.report.words import MISSING, Table, interval_text, number, p_text, signed, summary_text
from tddelta.timescales import TimeScales

UNKNOWN_WEIGHT = 0.01
"""A return is known once what is missing of it weighs less than this."""


def learning(study: Study, environment: str) -> str:
    """Who is ahead in the end, by how much, and whether the difference survives correction.

    Args:
        study: The runs.
        environment: Whose learning curves are drawn.

    Returns:
        The sentences; "" where no score is known.
    """
    groups = [group for group in study.groups.values() if group.environment == environment]
    groups = [group for group in groups if math.isfinite(group.summary("asymptotic").mean)]
    groups.sort(key=lambda group: -group.summary("asymptotic").mean)
    if not groups:
        return ""
    first, text = groups[0], summary_text(groups[0].summary("asymptotic"))
    start = "Over the last 100 episodes"
    if len(groups) == 1:
        return f"{start} {first.agent} scores {text} ({seeds(len(first.scored))}). {_progress(study, first)}".strip()
    second = groups[1]
    counts = [len(group.scored) for group in (first, second)]
    each = f"{seeds(counts[0])} each" if counts[0] == counts[1] else f"{counts[0]} and {seeds(counts[1])}"
    best = first.summary("asymptotic").mean
    gap = best - second.summary("asymptotic").mean
    if gap == 0:
        return f"{start} {first.agent} and {second.agent} are level at {number(best)} ({each})."
    theirs = summary_text(second.summary("asymptotic"))
    lead = f"{start} {first.agent} is ahead with {text}, {number(gap)} more than {second.agent} with {theirs} ({each})."
    return f"{lead} {_tested(study, first, second)}"


def critics(groups: Sequence[Group]) -> str:
    """Whose values explain most at the longest horizon, and at which horizon a critic knows most and least.

    Args:
        groups: The agents that are drawn.

    Returns:
        The sentences; "" where nothing is known.
    """
    found = {group.agent: (group.scales, explained(group)) for group in groups}
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
        known = np.flatnonzero(np.isfinite(values))
        best, worst = (int(known[pick(values[known])]) for pick in (np.argmax, np.argmin))
        said.append(
            f"{agent} knows best what comes over {_steps_at(scales, best)} steps ({percent(values[best])}), least what "
            f"comes over {_steps_at(scales, worst)} steps ({percent(values[worst])})."
        )
    return " ".join(said)


def episode(scales: TimeScales, arrays: Mapping[str, Any], *, clipped: bool = False) -> str:
    """Where the value of a recorded episode lies, and how it compares with what came.

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
        share /= share.sum()
        half = next(z for z in range(len(scales)) if share[: z + 1].sum() >= 0.5)
        where = f"Value beyond {_steps_at(scales, half - 1)} steps" if half else "Value of all horizons"
        said.append(f"{where} is {percent(share[half:].sum())} of all parts of V along this episode.")
    came = realised(np.sign(paid) if clipped else paid, arrays, scales.gammas[-1])
    known = np.isfinite(came)
    if known.any():
        mean, followed = float(values[known].mean()), float(came[known].mean())
        gap = mean - followed
        near = abs(gap) <= 0.01 * max(abs(mean), abs(followed))
        verdict = "about as much as" if near else f"{number(abs(gap))} {'more' if gap > 0 else 'less'} than"
        where = "over all steps" if known.all() else f"over the {known.sum():,} steps whose return is known"
        said.append(
            f"On average {where} V expects {number(mean)}, {verdict} the discounted return that followed "
            f"({number(followed)})."
        )
    else:
        said.append("It is too short for the return at the longest horizon to be known.")
    return " ".join(said)


def realised(rewards: FloatArray, arrays: Mapping[str, Any], gamma: float) -> FloatArray:
    """Discounted return that followed every step, (T,); NaN where what lies beyond a cut weighs over a hundredth."""
    never = np.zeros(len(rewards), bool)
    over, cut = (np.asarray(arrays.get(name, never), bool) for name in ("terminated", "truncated"))
    found = np.zeros(len(rewards))
    following, missing = 0.0, 1.0
    for t in reversed(range(len(rewards))):
        if over[t] or cut[t]:
            following, missing = 0.0, float(not over[t])
        following, missing = rewards[t] + gamma * following, gamma * missing
        found[t] = math.nan if missing > UNKNOWN_WEIGHT else following
    return found


def ladders(study: Study) -> list[str]:
    """How far every critic looks, one sentence for each ladder; see `ladder`."""
    shared: dict[TimeScales, dict[str, None]] = {}
    for group in study.groups.values():
        if group.seeds[0].run.config.get("scales_known", True):  # a monitor log does not know its critic
            shared.setdefault(group.scales, {})[group.agent] = None
    return [f"{', '.join(agents)}: {ladder(scales)}" for scales, agents in shared.items()]


def ladder(scales: TimeScales) -> str:
    """How far a critic looks, and which of its parts learns slowest.

    Args:
        scales: Its time scales.

    Returns:
        The sentence.
    """
    finite = [horizon for horizon in scales.horizons if math.isfinite(horizon)]
    many = len(scales) > 1
    reach = f"{_steps_at(scales, 0)} to {_steps_at(scales, -1)}" if many else _steps_at(scales, 0)
    text = f"{len(scales)} scale{'s look' if many else ' looks'} {reach} steps ahead"
    ratios = np.array(finite[1:]) / np.array(finite[:-1])
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
    """Who has the highest interquartile mean, and whether intervals overlap."""
    order = sorted(estimates, key=lambda agent: -estimates[agent].value)
    best = estimates[order[0]]
    if len(order) == 1:
        return f"{order[0]} has {number(best.value)} (95 % interval {interval_text(best.interval)})."
    second = estimates[order[1]]
    text = f"{order[0]} has the highest, {number(best.value)}, before {order[1]} with {number(second.value)}"
    if best.interval.low is None or second.interval.high is None:
        return f"{text}; with one seed there is no interval."
    return f"{text}; their intervals {'overlap' if best.interval.low <= second.interval.high else 'do not overlap'}."


def profiles(found: Mapping[str, Profile]) -> str:
    """Which score half of the runs of every agent exceed."""
    halves = {agent: float(p.thresholds[p.fractions > 0.5].max(initial=-math.inf)) for agent, p in found.items()}
    known = {agent: half for agent, half in halves.items() if math.isfinite(half)}
    if not known:
        return ""
    order = sorted(known, key=lambda agent: -known[agent])
    others = "".join(f", of those of {agent} above {number(known[agent])}" for agent in order[1:])
    return f"More than half of the runs of {order[0]} score above {number(known[order[0]])}{others}."


def improvement(agent: str, baseline: str, estimate: Estimate) -> str:
    """How likely a run of one agent is better than one of the other, and whether that could be a draw."""
    text = f"A run of {agent} beats one of {baseline} with a chance of {percent(estimate.value)}"
    low, high = estimate.interval.low, estimate.interval.high
    if low is None or high is None:
        return f"{text}; with one seed there is no interval."
    return f"{text}; its interval {'includes a draw' if low <= 0.5 <= high else 'excludes a draw'}."


def rewards(densities: Mapping[str, Mapping[str, float]]) -> str:
    """Where rewards come most and least often under the trained agent."""
    trained = {environment: row["trained"] for environment, row in densities.items() if "trained" in row}
    if not trained:
        return ""
    most, fewest = max(trained, key=lambda name: trained[name]), min(trained, key=lambda name: trained[name])
    text = f"The trained agent gets {number(trained[most])} rewards per 100 steps on {most}"
    return f"{text}." if most == fewest else f"{text}, and {number(trained[fewest])} on {fewest}."


def explained(group: Group) -> FloatArray:
    """Explained variance at every discount, the mean over the seeds where it is known, (Z,)."""
    values = np.array([quality.explained_variance for quality in group.critic], np.float64)
    known = np.isfinite(values)
    found = np.full(values.shape[1], np.nan)
    np.divide(np.where(known, values, 0).sum(axis=0), known.sum(axis=0), out=found, where=known.any(axis=0))
    return found


def percent(value: float) -> str:
    """A share, in whole percent."""
    return f"{100 * float(value):.0f} %".replace("-", "−")


def seeds(count: int) -> str:
    """So many seeds."""
    return "1 seed" if count == 1 else f"{count} seeds"


def _steps_at(scales: TimeScales, z: int) -> str:
    horizon = scales.horizons[z]
    return "∞" if math.isinf(horizon) else f"{horizon:.4g}"


def _progress(study: Study, group: Group) -> str:
    """From where the curve of an agent alone started, and when it was half-way."""
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
    names = {first.agent, second.agent}
    mine = [c for c in here if {c.agent, c.baseline} == names]
    if mine:
        return f"The difference {_verdict(study, mine[0])}."
    others = [c for c in here if c.agent == first.agent]
    text = "These two are not tested against each other"
    if not others:
        return f"{text}."
    against = f"its difference from {others[0].baseline}, {signed(others[0].welch.difference)},"
    return f"{text}; {against} {_verdict(study, others[0])}."


def _verdict(study: Study, comparison: Comparison) -> str:
    if comparison.corrected is None:
        return f"is not tested: {comparison.note or 'no test'}"
    count = sum(c.corrected is not None for c in study.comparisons())
    p = f"p = {p_text(comparison.welch.p_value)}".replace("= <", "< ")
    if count == 1:
        return f"is {'clear' if comparison.corrected < 0.05 else 'not clear'} ({p})"
    corrected = f"{p}, corrected {p_text(comparison.corrected)}"
    verb = "survives" if comparison.corrected < 0.05 else "does not survive"
    return f"{verb} Holm's correction over {count} comparisons ({corrected})"


BINS = 10
"""Groups of equally many states, from the lowest predicted value to the highest."""


@dataclass(frozen=True)
class Diagnosis:
    """Components of one agent's critic on held-out states, all seeds together; each array has shape (Z,).

    What is compared with W_z is the realised part: the discounted return at γ_z less that at γ_{z−1}.

    Attributes:
        factors: Contraction factor of each component's targets; NaN where there are no traces.
        share: Mean |W_z| over the sum of these.
        bias: Mean of W_z less the realised part, in units of reward; NaN where nothing is known.
        spread: Standard deviation of the realised part.
        explained_variance: Of the realised part by W_z.
        slope: Slope of the realised return at γ_z against V_z: 1 where predictions are calibrated.
        states: States whose returns are known up to γ_z.
    """

    factors: FloatArray
    share: FloatArray
    bias: FloatArray
    spread: FloatArray
    explained_variance: FloatArray
    slope: FloatArray
    states: FloatArray


def held_out(group: Group) -> tuple[FloatArray, FloatArray] | None:
    """Predicted values and realised returns of all seeds of an agent, (N, Z) each; None where there are none."""
    predicted, realised = [], []
    for seed in group.scored:
        try:
            arrays = seed.run.critic
            if arrays is None:
                continue
            pair = [np.asarray(arrays[name], np.float64) for name in ("predicted", "realised")]
        except (TDDeltaError, KeyError):  # the group's own reading of the file names it among the problems
            continue
        if pair[0].shape == pair[1].shape and pair[0].shape[1:] == (len(group.scales),):
            predicted.append(pair[0])
            realised.append(pair[1])
    return (np.concatenate(predicted), np.concatenate(realised)) if predicted else None


def diagnose(scales: TimeScales, predicted: FloatArray, realised: FloatArray) -> Diagnosis:
    """Compare the components of predicted values with those of realised returns.

    Args:
        scales: The critic's scales.
        predicted: V_z(s), (N, Z).
        realised: Discounted return at γ_z, (N, Z); NaN where it is not known.

    Returns:
        The measures.
    """
    parts, came = decompose(predicted), decompose(realised)
    error = parts - came
    rows: list[tuple[float, float, float, float, float]] = []
    for z in range(len(scales)):
        known = np.isfinite(came[:, z])
        if not known.any():
            rows.append((math.nan, math.nan, math.nan, math.nan, 0.0))
            continue
        target, value, returns = came[known, z], predicted[known, z], realised[known, z]
        constant = statistics.is_constant(target)
        explained = math.nan if constant else 1 - float(error[known, z].var() / target.var())
        flat = statistics.is_constant(value)
        slope = math.nan if flat else float(np.cov(value, returns, bias=True)[0, 1] / value.var())
        rows.append((float(error[known, z].mean()), float(target.std()), explained, slope, float(known.sum())))
    table = np.array(rows)
    size = np.abs(parts).mean(axis=0)
    factors = scales.contraction_factors if scales.trace_decays is not None else (math.nan,) * len(scales)
    total = float(size.sum())
    return Diagnosis(
        np.array(factors), size / total if total else np.full(len(size), math.nan), *(table[:, i] for i in range(5))
    )


def calibration(predicted: FloatArray, realised: FloatArray, bins: int = BINS) -> tuple[FloatArray, FloatArray]:
    """Mean realised return of states with about the same predicted value.

    Args:
        predicted: V(s), (N,).
        realised: Discounted return, (N,); NaN where it is not known.
        bins: Number of groups of equally many states.

    Returns:
        Mean prediction and mean return of each group; empty where no return is known.
    """
    known = np.isfinite(realised)
    order = np.argsort(predicted[known], kind="stable")
    groups = [part for part in np.array_split(order, bins) if len(part)]
    means = [[float(values[known][part].mean()) for part in groups] for values in (predicted, realised)]
    return np.array(means[0]), np.array(means[1])


def shares_over_training(group: Group) -> tuple[FloatArray, FloatArray] | None:
    """How the mean value divides into its components while an agent learns, averaged over seeds.

    Returns:
        Environment steps (N,) and |mean W_z| over the sum of these (N, Z); None where it was not logged for several
        scales.
    """
    scales, found, steps = group.scales, [], []
    if len(scales) < 2:
        return None
    for seed in group.scored:
        try:
            metrics = seed.run.metrics
        except TDDeltaError:
            continue
        names = [f"value_mean/gamma={label}" for label in scales.labels]
        if "steps" not in metrics or any(name not in metrics for name in names):
            continue
        means = np.stack([metrics[name] for name in names], axis=-1)
        if seed.run.config["agent"].get("basis") == "V":
            means = decompose(means)
        size = np.abs(means)
        total = size.sum(axis=1, keepdims=True)
        found.append(np.divide(size, total, out=np.full(size.shape, np.nan), where=total > 0))
        steps.append(np.asarray(metrics["steps"], np.float64))
    if not found or not min(map(len, found)):
        return None
    count = min(map(len, found))
    shares = np.stack([part[:count] for part in found])
    known = np.isfinite(shares).all(axis=(0, 2))
    return (steps[0][:count][known], shares.mean(axis=0)[known]) if known.any() else None


def sentences(group: Group, diagnosis: Diagnosis) -> list[str]:
    """The diagnosis in plain words.

    Args:
        group: The agent.
        diagnosis: Its critic.

    Returns:
        A few sentences.
    """
    scales, found = group.scales, []
    horizons = [_steps(horizon) for horizon in scales.horizons]
    if len(scales) > 1 and np.isfinite(diagnosis.share).all():
        half = next(z for z in range(len(scales)) if diagnosis.share[: z + 1].sum() >= 0.5)
        where = f"Value beyond {horizons[half - 1]} steps" if half else "Value of all horizons"
        most = int(diagnosis.share.argmax())
        found.append(
            f"{where} is {_percent(diagnosis.share[half:].sum())} of all parts of V; the largest is W_{most} "
            f"({_reach(horizons, most)}), with {_percent(diagnosis.share[most])}."
        )
    judged = [z for z in range(len(scales)) if np.isfinite(diagnosis.explained_variance[z])]
    parts = [f"W_{z}" if len(scales) > 1 else "V" for z in range(len(scales))]
    if judged:
        worst = min(judged, key=lambda z: float(diagnosis.explained_variance[z]))
        best = max(judged, key=lambda z: float(diagnosis.explained_variance[z]))
        text = f"{parts[best]} explains {_percent(diagnosis.explained_variance[best])} of its target's variance"
        if worst != best:
            text += f", {parts[worst]} {_percent(diagnosis.explained_variance[worst])}"
        found.append(f"{text}.")
        off = max(judged, key=lambda z: abs(float(diagnosis.bias[z])))
        found.append(
            f"{parts[off]} is on average {number(abs(float(diagnosis.bias[off])))} too "
            f"{'high' if diagnosis.bias[off] > 0 else 'low'}, {_relative(diagnosis, off)} of its target's spread."
        )
        slope = float(diagnosis.slope[judged[-1]])
        if np.isfinite(slope):
            verdict = (
                "its differences between states are about right"
                if 0.8 <= slope <= 1.25
                else "it exaggerates differences between states"
                if slope < 0.8
                else "it makes states too much alike"
            )
            found.append(f"V over {horizons[judged[-1]]} steps: {verdict} (slope {slope:.2f}, 1 is calibrated).")
    growing = [z for z, factor in enumerate(diagnosis.factors) if factor >= 1 and scales.gammas[z] < 1]
    if growing:
        names = ", ".join(f"W_{z}" for z in growing)
        found.append(f"Full steps towards their targets let {names} grow: a factor of 1 or more does not contract.")
    return found


def diagnostics_table(study: Study) -> Table:
    """Every component of every critic: contraction, share of V, bias and spread, explained variance, calibration."""
    rows, data = [], []
    for group in study.groups.values():
        pair = held_out(group)
        if pair is None:
            continue
        found = diagnose(group.scales, *pair)
        for z, label in enumerate(group.scales.labels):
            numbers = {
                "contraction_factor": float(found.factors[z]),
                "share": float(found.share[z]),
                "bias": float(found.bias[z]),
                "spread": float(found.spread[z]),
                "explained_variance": float(found.explained_variance[z]),
                "slope": float(found.slope[z]),
            }
            texts = [
                MISSING
                if math.isnan(value)
                else "∞"
                if math.isinf(value)
                else _percent(value)
                if name == "share"
                else number(value)
                for name, value in numbers.items()
            ]
            part = f"W_{z}" if len(group.scales) > 1 else "V"
            rows.append((group.environment, group.agent, part, label, *texts))
            data.append(
                {"environment": group.environment, "agent": group.agent, "z": z, "gamma": group.scales.gammas[z]}
                | numbers
                | {"states": int(found.states[z])}
            )
    columns = (
        *("Environment", "Agent", "Part", "γ", "Contraction factor", "Share of V", "Bias", "Spread of target"),
        *("Explained variance", "Calibration slope"),
    )
    notes = (
        "Held-out states, all seeds together. A part's target is the realised return at its discount less that at the "
        "one before; its bias is the mean of prediction less target, its spread the target's standard deviation. "
        "Share: mean |W_z| over the sum of these.",
        "Calibration slope: of the realised return against V at that discount; 1 is calibrated, below it differences "
        "between states are exaggerated.",
    )
    return Table("diagnostics", "Every part of every critic", columns, rows, data, notes)


def _steps(horizon: float) -> str:
    return "∞" if math.isinf(horizon) else f"{horizon:.4g}"


def _reach(horizons: Sequence[str], z: int) -> str:
    return f"horizons {horizons[z - 1]} to {horizons[z]}" if z else f"the next {horizons[0]} steps"


def _percent(value: Any) -> str:
    return f"{100 * float(value):.0f} %".replace("-", "−")


def _relative(diagnosis: Diagnosis, z: int) -> str:
    return _percent(abs(diagnosis.bias[z]) / diagnosis.spread[z])
