"""Theorem 1 in numbers: with equal step sizes and trace decays, prefixes of TD(Δ) are single learners."""

import warnings
from typing import Literal, get_args

import numpy as np

from tddelta.errors import ContractionWarning
from tddelta.tabular.arrays import FloatArray
from tddelta.tabular.mdp import FiniteMDP
from tddelta.tabular.sampling import Trajectory, sample
from tddelta.targets import lambda_targets
from tddelta.timescales import TimeScales

Variant = Literal["forward", "accumulating", "replacing", "true online", "momentum"]
"""Learners for which Theorem 1 holds."""

VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""The same, as a tuple."""

_MOMENTUM = 0.5
_BATCH = 100  # steps between two updates of the forward view


def largest_differences(
    scales: TimeScales, variant: Variant, *, steps: int = 1000, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Run TD(Δ) beside a single TD(λ) learner for every discount, on one stream with ends and truncations.

    Linear features, eight binary ones that several states share; the step size falls over time. "forward" uses
    `lambda_targets` on batches; the others learn after every step, "momentum" with accumulating traces and a heavy
    ball.

    Args:
        scales: The time scales, with one trace decay for all.
        variant: How is learned.
        steps: Steps T of the stream.
        seed: Seed of the process, the stream, the features and the first weights.

    Returns:
        max_t |Σ_{i≤z} θ^i_t − θ_t of the learner with γ_z|, and the largest |θ_t| of that learner, both of shape (Z,).
    """
    mdp = FiniteMDP.random(20, 2, 3, seed, ends=2)
    stream = Trajectory._make(array[0] for array in sample(mdp, steps, [seed], time_limit=40))
    generator = np.random.default_rng(seed)
    features = (generator.random((mdp.states, 8)) < 0.4).astype(np.float64)
    features[mdp.terminal] = np.nan  # never to be read
    first = generator.normal(size=(8, len(scales)))
    run = _forward if variant == "forward" else _online
    parts = run(scales, variant, stream, features, first, split=True)
    singles = run(scales, variant, stream, features, np.cumsum(first, axis=1), split=False)
    return np.abs(np.cumsum(parts, axis=-1) - singles).max(axis=(0, 1)), np.abs(singles).max(axis=(0, 1))


def _step_size(t: int) -> float:
    return 0.05 / (1 + t / 500)


def _online(
    scales: TimeScales, variant: Variant, stream: Trajectory, features: FloatArray, first: FloatArray, *, split: bool
) -> FloatArray:
    """Weights after every step, (T, F, Z); every column is a component if `split`, else a learner of its own."""
    gammas, decay = np.array(scales.gammas), _decay(scales)
    gaps = np.diff(gammas, prepend=0.0)
    weights, momentum = first.copy(), np.zeros_like(first)
    trace, old = np.zeros(len(first)), np.zeros(len(gammas))
    history = np.empty((len(stream.states), *first.shape))
    for t, (state, reward, after) in enumerate(zip(stream.states, stream.rewards, stream.next_states, strict=True)):
        alpha, phi = _step_size(t), features[state]
        now = phi @ weights
        following = np.zeros(len(gammas)) if stream.terminated[t] else features[after] @ weights
        if split:  # the shorter scales' value of the successor is the reward of a component
            errors = gammas * following + gaps * (np.cumsum(following) - following) - now
            errors[0] += reward
        else:
            errors = reward + gammas * following - now
        if variant == "replacing":
            trace = np.where(phi == 1, 1.0, decay * trace)
        elif variant == "true online":
            trace = decay * trace + (1 - alpha * decay * (trace @ phi)) * phi
        else:
            trace = decay * trace + phi
        if variant == "true online":
            weights += alpha * (np.outer(trace, errors + now - old) - np.outer(phi, now - old))
            old = following
        else:
            momentum = (_MOMENTUM if variant == "momentum" else 0.0) * momentum + np.outer(trace, errors)
            weights += alpha * momentum
        if stream.terminated[t] or stream.truncated[t]:
            trace, old = np.zeros_like(trace), np.zeros_like(old)
        history[t] = weights
    return history


def _forward(
    scales: TimeScales, variant: Variant, stream: Trajectory, features: FloatArray, first: FloatArray, *, split: bool
) -> FloatArray:
    """Weights after every batch, (batches, F, Z)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContractionWarning)  # small steps are stable
        learners = [scales] if split else [TimeScales((gamma,), (_decay(scales),)) for gamma in scales.gammas]
    weights = first.copy()
    history = []
    for begin in range(0, len(stream.states), _BATCH):
        batch = Trajectory._make(array[begin : begin + _BATCH] for array in stream)
        phi, following = features[batch.states], features[batch.next_states] @ weights
        now = phi @ weights
        columns = np.split(np.arange(len(scales)), len(learners))
        targets = np.concatenate(
            [
                lambda_targets(
                    batch.rewards,
                    now[:, own],
                    following[:, own],
                    terminated=batch.terminated,
                    truncated=batch.truncated,
                    scales=learner,
                )
                for learner, own in zip(learners, columns, strict=True)
            ],
            axis=1,
        )
        weights = weights + _step_size(begin) / 10 * phi.T @ (targets - now)
        history.append(weights)
    return np.stack(history)


def _decay(scales: TimeScales) -> float:
    """The one trace decay of all components."""
    assert scales.trace_decays is not None and len(set(scales.trace_decays)) == 1, "Theorem 1 is about equal decays"
    return scales.trace_decays[0]
