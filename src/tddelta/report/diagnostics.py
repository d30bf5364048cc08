"""What each scale of a critic contributes, how well it is learned, and what that means in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tddelta.decomposition import decompose
from tddelta.errors import TDDeltaError
from tddelta.report import statistics
from tddelta.report.formatting import MISSING, Table, number
from tddelta.report.groups import Group
from tddelta.report.statistics import FloatArray
from tddelta.report.study import Study
from tddelta.timescales import TimeScales

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
