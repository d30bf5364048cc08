"""Properties of every tabular method: Theorem 1, golden values, closed forms, and ends of episodes."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from targets_literal import make_scales
from tddelta import TimeScales, lambda_targets
from tddelta.tabular import FiniteMDP, Trajectory, evaluate, sample

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "ring.json").read_text(encoding="utf-8"))
GAMMAS = (0.0, 0.5, 0.9, 0.97)
PROCESS = FiniteMDP.random(6, 2, 3, seed=3, ends=1)


def gap(method, decays, windows=(4, 4, 4, 4), **options):
    """Largest difference between a prefix of the components and the single learner of its discount, relative to it."""
    options = {"steps": 300, "seeds": [0, 1], "step_sizes": [0.02, 0.3, "1/n"], "time_limit": 20} | options
    many = evaluate(PROCESS, make_scales(GAMMAS, decays, windows), method=method, **options)
    assert np.abs(many.deltas[..., -1]).max() > 0.01
    gaps = []
    for z, gamma in enumerate(GAMMAS):
        one = make_scales((gamma,), decays[z : z + 1], windows[z : z + 1])
        single = evaluate(PROCESS, one, method=method, **options).values[..., 0]
        gaps.append(np.abs(many.values[..., z] - single).max() / max(1, np.abs(single).max()))
    return max(gaps)


EQUAL = (0.7,) * 4


@pytest.mark.parametrize("method", ["td0", "traces", "true_online", "lambda_return", "lambda_difference", "n_step"])
def test_every_prefix_is_a_single_learner(method):
    """Theorem 1: equal step sizes and trace decays, for windows equal k."""
    assert gap(method, EQUAL) < 1e-12


def test_every_prefix_is_a_single_learner_with_features():
    features = 0.5 * np.random.default_rng(0).normal(size=(PROCESS.states, 4))
    for method in ("linear", "true_online", "lambda_return"):
        assert gap(method, EQUAL, features=features, step_sizes=[0.01, 0.05]) < 1e-12


def test_the_difference_form_needs_no_equal_decays():
    assert gap("lambda_difference", (0.0, 0.3, 0.9, 0.5)) < 1e-12
    assert gap(partial(lambda_targets, form="difference"), (0.0, 0.3, 0.9, 0.5), steps=60) < 1e-12


def test_every_prefix_is_a_single_learner_phase_by_phase():
    options = {"steps": 5, "trajectories": 3, "step_sizes": [0.3, 1.0, "1/n"], "time_limit": None}
    assert gap("phased", EQUAL, **options) < 1e-12


def test_other_decays_and_windows_do_not_telescope():
    """The conditions of the theorem are needed, so that the tests above can fail."""
    assert gap("traces", (0.0, 0.3, 0.9, 0.5)) > 1e-3
    assert gap("lambda_return", (0.0, 0.3, 0.9, 0.5)) > 1e-3
    assert gap("n_step", EQUAL, (1, 2, 4, 4)) > 1e-3


@pytest.mark.parametrize("case", GOLDEN, ids=[case["note"] for case in GOLDEN])
def test_golden_ring(case):
    states, rewards = np.array(case["states"]), np.array(case["rewards"])
    no = np.zeros(len(rewards), bool)
    steps = Trajectory(states[:-1], np.zeros_like(states[:-1]), rewards, states[1:], no, no)
    scales = make_scales(case["gammas"], None, tuple(case["n_steps"]))
    ring = FiniteMDP.ring()
    result = evaluate(ring, scales, trajectory=steps, step_sizes=case["alpha"])
    np.testing.assert_allclose(result.deltas[0, 0], case["deltas"], rtol=0, atol=1e-12)
    single = TimeScales.single(case["gammas"][-1], n_step=case["n_steps"][-1])
    baseline = evaluate(ring, single, trajectory=steps, step_sizes=case["alpha"])
    np.testing.assert_allclose(baseline.values[0, 0, :, 0], case["baseline_values"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["td0", "n_step", "traces", "true_online", "lambda_return", "lambda_difference"])
def test_an_endless_reward_of_one(method):
    """B25: W = 1, 1, 2, 4, 8 for γ = 0, .5, .75, .875, .9375."""
    scales = TimeScales.doubling(0.9375, lam=0.5, n_step=4)
    chunk = 8 if method.startswith("lambda") else None
    result = evaluate(FiniteMDP([[1.0]], 1.0), scales, method=method, step_sizes=0.2, steps=6000, chunk=chunk)
    np.testing.assert_allclose(result.deltas[0, 0, 0], [1, 1, 2, 4, 8], rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.values[0, 0, 0], [1, 2, 4, 8, 16], rtol=0, atol=1e-10)


def test_horizons_of_a_million_steps_keep_their_digits():
    """B25: exact, and learned in full steps of long windows."""
    scales = make_scales((0.0, 0.5, 0.75, 0.875, 0.9375, 0.999999), None, (1, 2, 4, 8, 16, 2**12))
    result = evaluate(FiniteMDP([[1.0]], 1.0), scales, step_sizes=1.0, steps=20_000)
    assert abs(result.exact[0, -1] / 1e6 - 1) < 1e-9
    assert abs(result.values[0, 0, 0, -1] / 1e6 - 1) < 1e-6
    np.testing.assert_allclose(result.deltas[0, 0, 0, :5], [1, 1, 2, 4, 8], rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["traces", "true_online", "lambda_return", "lambda_difference"])
def test_a_trace_decays_on_the_way_in(method):
    """B29: s0 → s1 → end with reward 1 at the end, λ = 1: the credit is γ, not 0."""
    chain = FiniteMDP.chain(2)
    result = evaluate(chain, make_scales((0.9,), (0.9,)), method=method, steps=2, step_sizes=0.1)
    np.testing.assert_allclose(result.values[0, 0, :2, 0], [0.09, 0.1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("worst", [np.nan, np.inf])
@pytest.mark.parametrize(
    "method", ["td0", "n_step", "traces", "true_online", "lambda_return", "lambda_difference", "phased", lambda_targets]
)
def test_a_terminal_successor_is_not_read(method, worst):
    chain = FiniteMDP.chain(3)
    dirty = np.zeros((4, 2))
    dirty[3] = worst
    scales = make_scales((0.5, 0.9), (0.4, 0.6), (2, 3))
    run = partial(evaluate, chain, scales, method=method, steps=20, record="curve")
    got, wanted = run(initial_deltas=dirty), run(initial_deltas=np.zeros((4, 2)))  # warnings are errors here
    np.testing.assert_array_equal(got.deltas, wanted.deltas)
    np.testing.assert_array_equal(got.rms_error, wanted.rms_error)
    assert got.deltas[0, 0, 0].any() and not got.deltas[0, 0, 3].any()


def test_all_methods_approach_the_exact_values():
    process = FiniteMDP.random(5, 2, 3, seed=1, ends=1)
    scales, inner = TimeScales.doubling(0.9, lam=0.7, n_step=4), ~process.terminal
    steps = sample(process, 10_000, range(4), time_limit=50)
    for method in ("td0", "n_step", "traces", "true_online", "lambda_return", "lambda_difference"):
        result = evaluate(process, scales, method=method, trajectory=steps, step_sizes=0.01)
        error = np.abs((result.values - result.exact)[0].mean(0)[inner])
        assert error.max() < 0.15 * np.abs(result.exact[inner]).max(), method


def test_sampled_and_given_steps_are_the_same():
    scales = make_scales((0.5, 0.9), None, (2, 3))
    sampled = evaluate(PROCESS, scales, seeds=[4, 2], steps=50, time_limit=9)
    given = evaluate(PROCESS, scales, trajectory=sample(PROCESS, 50, [4, 2], time_limit=9))
    np.testing.assert_array_equal(sampled.deltas, given.deltas)
    assert sampled.seeds == (4, 2) and given.seeds == (0, 1)
