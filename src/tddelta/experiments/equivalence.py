"""Theorem 1 in numbers: with equal step sizes and trace decays, prefixes of TD(Δ) are single learners."""

import warnings
from typing import Literal, get_args

import numpy as np

from tddelta.errors import ContractionWarning
from tddelta.tabular.arrays import FloatArray, IntArray
from tddelta.tabular.evaluation import Method, evaluate
from tddelta.tabular.mdp import FiniteMDP
from tddelta.tabular.sampling import Trajectory, sample
from tddelta.targets import td_errors
from tddelta.timescales import TimeScales

Variant = Literal["forward", "accumulating", "replacing", "true online", "momentum"]
"""Learners for which Theorem 1 holds."""

VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""The same, as a tuple."""

_METHODS: dict[Variant, Method] = {
    "forward": "lambda_return",
    "accumulating": "traces",
    "true online": "true_online",
}  # what `evaluate` calls them; the others it does not have
_MOMENTUM = 0.5
_CHUNK = 100  # steps between two updates of the forward view
_TIMES = 50  # how often weights are compared
_STEP_SIZE = 0.02


def largest_differences(
    scales: TimeScales, variant: Variant, *, steps: int = 1000, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Run TD(Δ) beside a single TD(λ) learner for every discount, on one stream with ends and truncations.

    Linear features, eight binary ones that several states share. The learners are those of `evaluate`: "forward" its
    offline λ-returns, "accumulating" its traces, "true online". "replacing" and "momentum", accumulating traces with a
    heavy ball, are made of `td_errors` here. Weights are compared after 50 numbers of steps, evenly spaced, the last
    one T.

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
    first = generator.normal(size=(8, len(scales)))
    times = np.unique(np.linspace(0, steps, min(steps, _TIMES) + 1).astype(int))[1:]
    decay = _decay(scales)

    def learn(own: TimeScales, begin: FloatArray) -> FloatArray:
        """Weights at all times, (times, F, Z)."""
        if variant in _METHODS:
            return _evaluated(mdp, own, _METHODS[variant], stream, features, begin, times)
        history = _written_out(own, decay, variant, stream, features, begin)
        return np.take(history, times - 1, axis=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContractionWarning)  # small steps are stable
        singles = [TimeScales((gamma,), (decay,)) for gamma in scales.gammas]
    starts = np.split(np.cumsum(first, axis=1), len(scales), axis=1)
    alone = np.concatenate([learn(one, begin) for one, begin in zip(singles, starts, strict=True)], axis=-1)
    parts = learn(scales, first)
    return np.abs(np.cumsum(parts, axis=-1) - alone).max(axis=(0, 1)), np.abs(alone).max(axis=(0, 1))


def _evaluated(
    mdp: FiniteMDP, scales: TimeScales, method: Method, stream: Trajectory, features: FloatArray, first: FloatArray,
    times: IntArray,
) -> FloatArray:  # fmt: skip
    """Weights by `evaluate`, which keeps the last ones only: so once for every number of steps."""
    history = []
    for length in times:
        result = evaluate(
            mdp,
            scales,
            method=method,
            step_sizes=[_STEP_SIZE],
            trajectory=Trajectory._make(array[:length] for array in stream),
            initial_deltas=first,
            features=features,
            chunk=_CHUNK if method == "lambda_return" else None,
        )
        assert result.weights is not None  # there are features
        history.append(result.weights[0, 0])
    return np.stack(history)


def _written_out(
    scales: TimeScales, decay: float, variant: Variant, stream: Trajectory, features: FloatArray, first: FloatArray
) -> FloatArray:
    """Weights after every step, (T, F, Z), of the learners that `evaluate` does not have."""
    weights, velocity, trace = first.copy(), np.zeros_like(first), np.zeros(len(first))
    history = np.empty((len(stream.states), *first.shape))
    for t, (state, after) in enumerate(zip(stream.states, stream.next_states, strict=True)):
        now = slice(t, t + 1)
        errors = td_errors(
            stream.rewards[now],
            (features[state] @ weights)[None],
            (features[after] @ weights)[None],
            terminated=stream.terminated[now],
            scales=scales,
        )
        if variant == "replacing":
            trace = np.where(features[state] == 1, 1.0, decay * trace)
            velocity = np.outer(trace, errors)
        else:
            trace = decay * trace + features[state]
            velocity = _MOMENTUM * velocity + np.outer(trace, errors)
        weights += _STEP_SIZE * velocity
        if stream.terminated[t] or stream.truncated[t]:
            trace = np.zeros_like(trace)
        history[t] = weights
    return history


def _decay(scales: TimeScales) -> float:
    """The one trace decay of all components."""
    assert scales.trace_decays is not None and len(set(scales.trace_decays)) == 1, "Theorem 1 is about equal decays"
    return scales.trace_decays[0]
