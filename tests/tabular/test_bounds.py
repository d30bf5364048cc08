"""Theorems 2 to 4: the operator of the λ-return, and the bounds against their formulas written out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tddelta as tdd
from targets_literal import make_scales
from tddelta.errors import ConfigError, DataError, ShapeError
from tddelta.tabular import FiniteMDP, counterexample, counterexample_probability, error_bound, lambda_operator
from tddelta.timescales import TimeScales

RING = FiniteMDP.ring()


discounts = st.sets(st.floats(0, 0.99), min_size=1, max_size=5)
windows = st.lists(st.integers(1, 20), min_size=5, max_size=5)


def ladder(gammas, steps):
    return TimeScales(tuple(sorted(gammas)), n_steps=tuple(steps[: len(gammas)]))


def half_range(column):
    return (max(column) - min(column)) / 2


# ---------------------------------------------------------------- golden values


@pytest.mark.parametrize(
    ("gamma", "k", "single", "split", "worst"), [(0.9375, 16, 10.49, 8.11, 16), (0.996, 256, 160.6, 103.1, 250)]
)
def test_coefficients_on_the_ring(gamma, k, single, split, worst):
    for scales, known in ((TimeScales.single(gamma, n_step=k), single), (TimeScales.doubling(gamma, n_step=k), split)):
        values = RING.exact_values(scales.gammas)
        bound = error_bound(scales, samples=1, values=values)
        assert float(f"{bound.coefficient:.4g}") == pytest.approx(known, abs=0.005)
        assert error_bound(scales, "worst_case", samples=1, states=5).coefficient == pytest.approx(worst, rel=1e-12)


def test_counterexample():
    values = counterexample().exact_values([0.9])
    np.testing.assert_allclose(values[:, 0], [0, 10, -10], atol=1e-12)
    # literally: |heads − 25| ≥ 2 of 50 coins, since 9 · 2/50 < ε = .384 < 9 · 4/50
    close = sum(math.comb(50, heads) for heads in (24, 25, 26)) / 2**50
    assert counterexample_probability() == pytest.approx(1 - close, rel=1e-12)
    assert 9 * 2 / 50 < error_bound(TimeScales.single(0.9, n_step=1), "published", samples=50).epsilon < 9 * 4 / 50


@pytest.mark.parametrize("scales", [TimeScales.single(0.9, n_step=5), TimeScales.doubling(0.9, n_step=3)])
@pytest.mark.parametrize("kind", ["known_range", "worst_case"])
def test_the_corrected_bounds_hold_on_the_counterexample(scales, kind):
    for samples in (1, 10, 50, 400):
        assert counterexample_probability(scales, kind, samples=samples) <= 0.05


# ---------------------------------------------------------------- formulas, written out


@given(discounts, windows, st.integers(1, 1000), st.lists(st.floats(0, 5), min_size=5, max_size=5))
@settings(deadline=None, max_examples=60)
def test_published_bound_is_that_of_the_theorems(gammas, steps, samples, errors):
    scales = ladder(gammas, sorted(steps))
    gammas, steps, last = scales.gammas, scales.n_steps, len(scales) - 1
    errors = errors[: len(scales)]
    k, gamma = steps[-1], gammas[-1]
    epsilon = math.sqrt(2 * math.log(2 * k / 0.05) / samples)
    total = epsilon * (1 - gamma**k) / (1 - gamma) + gamma**k * sum(errors)
    for z in range(last):
        now, following = gammas[z] ** steps[z], gammas[z] ** steps[z + 1]
        total += epsilon * (following - now) / (1 - gammas[z]) + (now - following) * sum(errors[: z + 1])
    bound = error_bound(scales, "published", samples=samples)
    assert bound.after(errors).sum() == pytest.approx(total, rel=1e-9, abs=1e-9)


@given(discounts, windows, st.integers(1, 1000), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_corrected_bounds(gammas, steps, samples, seed):
    scales = ladder(gammas, steps)
    gammas, steps, count = scales.gammas, scales.n_steps, len(scales)
    values = np.random.default_rng(seed).normal(size=(4, count))
    known, worst = 0.0, 0.0
    for z in range(count):
        gamma, k, below = gammas[z], steps[z], gammas[z - 1] if z else None
        rewards = sum(gamma**i - (0 if z == 0 else below**i) for i in range(k))
        difference = gamma**k - (0 if z == 0 else below**k)
        parts = values[:, z] - (values[:, z - 1] if z else 0)
        known += rewards + gamma**k * half_range(parts) + (difference * half_range(values[:, z - 1]) if z else 0)
        largest, shorter = 1 / (1 - gamma), (1 / (1 - below) if z else 0.0)
        worst += rewards + difference * shorter + gamma**k * (largest - shorter)
    bound = error_bound(scales, "known_range", samples=samples, values=values, probability=0.1)
    assert bound.epsilon == pytest.approx(math.sqrt(2 * math.log(2 * count * 4 / 0.1) / samples))
    assert bound.coefficient == pytest.approx(known, rel=1e-9, abs=1e-9)
    bound = error_bound(scales, "worst_case", samples=samples, states=4)
    assert bound.coefficient == pytest.approx(worst, rel=1e-9)
    assert bound.coefficient == pytest.approx(1 / (1 - gammas[-1]), rel=1e-9), "no variance reduction in the worst case"


def test_phases_follow_one_another():
    scales = TimeScales.doubling(0.75, n_step=4)
    bound = error_bound(scales, samples=10, values=RING.exact_values(scales.gammas))
    curve = bound.phases([1.0, 2.0, 3.0], 3)
    assert curve.shape == (4, 3)
    np.testing.assert_array_equal(curve[0], [1, 2, 3])
    np.testing.assert_allclose(curve[3], bound.after(bound.after(bound.after([1.0, 2.0, 3.0]))))
    np.testing.assert_allclose(bound.after([[1.0, 2, 3]] * 2)[1], curve[1])


# ---------------------------------------------------------------- Theorem 2


@pytest.mark.parametrize("ends", [0, 2])
def test_exact_components_are_the_fixed_point(ends):
    mdp = FiniteMDP.random(7, 2, 3, 5, ends=ends)
    scales = make_scales((0.0, 0.5, 0.9), (0.3, 0.8, 0.7))
    exact = mdp.exact_deltas(scales.gammas)
    np.testing.assert_allclose(lambda_operator(mdp, exact, scales), exact, atol=1e-12)
    np.testing.assert_array_equal(lambda_operator(mdp, exact + 1, scales)[mdp.terminal], 0)


@given(st.integers(0, 999), st.floats(0, 0.99), st.floats(0, 0.95))
@settings(deadline=None, max_examples=40)
def test_the_factor_is_reached_and_never_passed(seed, gamma, decay):
    scales, mdp = make_scales((gamma,), (decay,)), FiniteMDP.random(5, 2, 3, seed)
    (factor,) = scales.contraction_factors
    generator = np.random.default_rng(seed)
    one, two = generator.normal(size=(2, 5, 1))
    stretched = np.abs(lambda_operator(mdp, one, scales) - lambda_operator(mdp, two, scales)).max()
    assert stretched <= factor * np.abs(one - two).max() * (1 + 1e-9) + 1e-12
    shifted = lambda_operator(mdp, one + 1, scales) - lambda_operator(mdp, one, scales)
    np.testing.assert_allclose(np.abs(shifted), factor, atol=1e-10)


@pytest.mark.parametrize("ends", [False, True])
def test_operator_equals_the_targets_where_nothing_is_random(ends):
    mdp = FiniteMDP.chain(6, reward=2.0, step_reward=-1.0) if ends else FiniteMDP.ring(slip=0.0)
    scales = make_scales((0.2, 0.6, 0.9), (0.5, 0.5, 0.7))
    deltas = np.random.default_rng(0).normal(size=(mdp.states, 3))
    stream = tdd.tabular.sample(mdp, 200, [0])
    targets = tdd.lambda_targets(
        stream.rewards[0],
        deltas[stream.states[0]],
        np.where(stream.terminated[0][:, None], np.nan, deltas[stream.next_states[0]]),
        terminated=stream.terminated[0],
        truncated=stream.truncated[0],
        scales=scales,
        form="bootstrap",
    )
    expected = lambda_operator(mdp, deltas, scales)
    np.testing.assert_allclose(targets[:20], expected[stream.states[0, :20]], atol=1e-12)


# ---------------------------------------------------------------- bad input

SCALES = TimeScales.doubling(0.75, n_step=4, lam=0.9)
FALLING = TimeScales((0.5, 0.9), n_steps=(2, 1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kind": "valid"}, ConfigError, "kind must be one of published, worst_case, known_range; got 'valid'"),
        ({"samples": 0}, ConfigError, "samples must be a whole number of at least 1; got 0"),
        ({"probability": 1.0}, ConfigError, "probability must be above 0 and below 1; got 1.0"),
        ({}, ConfigError, "needs exact values: pass values="),
        ({"kind": "worst_case"}, ConfigError, "needs the number of states: pass states="),
        ({"values": np.zeros((5, 2))}, ShapeError, r"values must have shape \(S, Z\) .* Z = 3 .*got \(5, 2\)"),
        ({"values": np.zeros((0, 3))}, ShapeError, r"with a state at least .*got \(0, 3\)"),
        ({"values": np.full((5, 3), np.nan)}, DataError, "values must be finite"),
        ({"scales": TimeScales.from_gammas([0.5])}, ConfigError, "needs n-step windows"),
        ({"scales": TimeScales((0.5, 1.0), n_steps=(1, 2))}, ConfigError, "need discounts below 1; got 1.0"),
        ({"scales": FALLING, "kind": "published"}, ConfigError, r"needs ascending n_steps; got \(2, 1\)"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        error_bound(**{"scales": SCALES, "samples": 10} | arguments)


def test_other_errors():
    bound = error_bound(SCALES, "worst_case", samples=10, states=5)
    with pytest.raises(ShapeError, match=r"errors must have 3 entries on the last axis.*got shape \(2,\)"):
        bound.after([1.0, 2.0])
    with pytest.raises(ConfigError, match="count must be a whole number of at least 1; got 0"):
        bound.phases([0.0, 0, 0], 0)
    with pytest.raises(ShapeError, match=r"deltas must have shape \(S, Z\) = \(5, 3\); got \(3, 5\)"):
        lambda_operator(RING, np.zeros((3, 5)), SCALES)
    with pytest.raises(ConfigError, match="lambda_operator needs trace decays"):
        lambda_operator(RING, np.zeros((5, 1)), TimeScales.single(0.9))


# a loop beside a chain that ends
HALF = FiniteMDP([[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1.0]], 1.0, terminal=[False, True, False])


@pytest.mark.parametrize("mdp", [FiniteMDP([[1.0]], 1.0), RING, HALF], ids=["loop", "ring", "half"])
def test_whole_returns_need_an_end_within_reach_of_every_state(mdp):
    with pytest.raises(ConfigError, match="with trace decay 1 does not converge, as some states never reach an end"):
        lambda_operator(mdp, np.zeros((mdp.states, 2)), make_scales((0.5, 0.9), (0.5, 1.0)))
    assert np.isfinite(lambda_operator(mdp, np.ones((mdp.states, 2)), make_scales((0.5, 0.9), (0.5, 0.999)))).all()


def test_whole_returns_where_every_episode_ends():
    mdp = FiniteMDP.random(7, 2, 3, 5, ends=2)
    exact = mdp.exact_deltas((0.5, 1.0))
    away = exact + np.where(mdp.terminal[:, None], 0.0, 1.0)
    np.testing.assert_allclose(lambda_operator(mdp, exact, make_scales((0.5, 1.0), (1.0, 1.0))), exact, atol=1e-12)
    # γ = c = 1: one full step leads from any table to the exact values
    step = lambda_operator(mdp, away[:, 1:] + exact[:, :1], make_scales((1.0,), (1.0,)))
    np.testing.assert_allclose(step[:, 0], exact.sum(axis=1), atol=1e-12)
