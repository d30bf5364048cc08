"""The targets against literal loops."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

import targets_literal as literal
from targets_cases import examples, problems
from targets_literal import Problem
from tddelta.targets import advantages, lambda_targets, n_step_targets, td_errors

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@examples
@given(problems())
def test_td_errors(problem):
    np.testing.assert_allclose(td_errors(*problem.arrays, **problem.td_options), literal.td_errors(problem), **CLOSE)


@examples
@given(problems())
def test_n_step_targets(problem):
    got = n_step_targets(*problem.arrays, **problem.options)
    np.testing.assert_allclose(got, literal.n_step_targets(problem), **CLOSE)


@examples
@given(problems())
def test_lambda_targets_in_both_forms(problem):
    for form in ("bootstrap", "difference"):
        got = lambda_targets(*problem.arrays, **problem.options, form=form)
        np.testing.assert_allclose(got, literal.lambda_targets(problem, form), **CLOSE)


@examples
@given(problems())
def test_advantages(problem):
    got = advantages(*problem.arrays, **problem.options)
    wanted = literal.advantages(problem, problem.decays[-1])
    np.testing.assert_allclose(got, wanted, **CLOSE)


@settings(max_examples=10, deadline=None)
@given(problems(max_scales=1))
def test_many_scales_use_a_cumulative_sum(problem):
    # Beyond 16 scales the sum over smaller ones is no longer written out.
    generator = np.random.default_rng(0)
    many = replace(
        problem,
        gammas=tuple(np.linspace(0, 1, 20)),
        decays=tuple(generator.random(20)),
        windows=(1,) * 20,
        deltas=generator.normal(size=(*problem.rewards.shape, 20)),
        next_deltas=generator.normal(size=(*problem.rewards.shape, 20)),
    )
    np.testing.assert_allclose(td_errors(*many.arrays, **many.td_options), literal.td_errors(many), **CLOSE)
    for form in ("bootstrap", "difference"):
        got = lambda_targets(*many.arrays, **many.options, form=form)
        np.testing.assert_allclose(got, literal.lambda_targets(many, form), **CLOSE)


def test_many_steps_with_both_kinds_of_ends():
    """B11: T=64, N=3, Z=4 with a tenth of both ends: loop and vectorised agree; the sum is the single learner."""
    generator = np.random.default_rng(11)
    shape = (64, 3)
    deltas, next_deltas = generator.normal(size=(2, *shape, 4))
    terminated, truncated = generator.random((2, *shape)) < 0.1
    ladder = (0.25, 0.5, 0.9, 0.99), (0.99 * 0.95,) * 4, (1, 2, 8, 40)
    problem = Problem(*ladder, generator.normal(size=shape), deltas, next_deltas, terminated, truncated)
    got = lambda_targets(*problem.arrays, **problem.options)
    np.testing.assert_allclose(got, literal.lambda_targets(problem), **CLOSE)
    windows = n_step_targets(*problem.arrays, **problem.options)
    np.testing.assert_allclose(windows, literal.n_step_targets(problem), **CLOSE)
    for stream in range(3):
        single = literal.plain_gae(
            problem.rewards[:, stream],
            deltas[:, stream].sum(-1),
            next_deltas[:, stream].sum(-1),
            terminated[:, stream],
            truncated[:, stream],
            0.99,
            0.99 * 0.95,
        )
        np.testing.assert_allclose((got - deltas)[:, stream].sum(-1), single, rtol=0, atol=1e-12)
