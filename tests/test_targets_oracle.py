"""The targets against the plain recursion and against literal loops."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

import targets_literal as literal
from targets_cases import examples, problems
from targets_literal import Problem
from tddelta.targets import advantages, lambda_targets, n_step_targets, plain_targets, td_errors


def assert_close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10)


def assert_literal(problem):
    """Every function is what its literal form is."""
    assert_close(td_errors(*problem.arrays, **problem.td_options), literal.td_errors(problem))
    assert_close(n_step_targets(*problem.arrays, **problem.options), literal.n_step_targets(problem))
    for form in ("bootstrap", "difference"):
        got = lambda_targets(*problem.arrays, **problem.options, form=form)
        assert_close(got, literal.lambda_targets(problem, form))
    wanted = literal.advantages(problem, problem.decays[-1])
    assert_close(advantages(*problem.arrays, **problem.options), wanted)


def plain(problem):
    """The recursion of the paper; without durations."""
    gammas, decays = np.array(problem.gammas), np.array(problem.decays)
    return plain_targets(*problem.arrays, problem.terminated, problem.truncated, gammas=gammas, trace_decays=decays)


@examples
@given(problems())
def test_targets_are_their_literal_forms(problem):
    assert_literal(problem)


@examples
@given(problems(durations=False))
def test_lambda_targets_and_advantages_are_the_plain_recursion(problem):
    assert_close(lambda_targets(*problem.arrays, **problem.options), plain(problem))
    alone = problem.value(len(problem.gammas) - 1)
    assert_close(advantages(*problem.arrays, **problem.options), (plain(alone) - alone.deltas)[..., 0])


@settings(max_examples=10, deadline=None)
@given(problems(max_scales=1, max_steps=4))
def test_many_scales_use_a_cumulative_sum(problem):
    # Beyond 16 scales the sum over smaller ones is no longer written out.
    generator = np.random.default_rng(0)
    deltas, next_deltas = generator.normal(size=(2, *problem.rewards.shape, 20))
    ladder = {"gammas": tuple(np.linspace(0, 1, 20)), "decays": tuple(generator.random(20)), "windows": (1,) * 20}
    assert_literal(replace(problem, **ladder, deltas=deltas, next_deltas=next_deltas))


def test_many_steps_with_both_kinds_of_ends():
    """B11: T=64, N=3, Z=4 with a tenth of both ends: loop and vectorised agree; the sum is the single learner."""
    generator = np.random.default_rng(11)
    shape = (64, 3)
    deltas, next_deltas = generator.normal(size=(2, *shape, 4))
    terminated, truncated = generator.random((2, *shape)) < 0.1
    ladder = (0.25, 0.5, 0.9, 0.99), (0.99 * 0.95,) * 4, (1, 2, 8, 40)
    problem = Problem(*ladder, generator.normal(size=shape), deltas, next_deltas, terminated, truncated)
    got, alone = lambda_targets(*problem.arrays, **problem.options), problem.value(3)
    assert_close(got, literal.lambda_targets(problem))
    assert_close(got, plain(problem))
    assert_close(n_step_targets(*problem.arrays, **problem.options), literal.n_step_targets(problem))
    single = (plain(alone) - alone.deltas)[..., 0]
    np.testing.assert_allclose((got - deltas).sum(-1), single, rtol=0, atol=1e-12)
