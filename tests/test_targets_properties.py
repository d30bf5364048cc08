"""The targets against the plain recursion and literal loops, and their identities, on random problems."""

from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import targets_literal as literal
from targets_cases import assert_same_bytes, everything, examples, problems
from targets_literal import Problem
from tddelta.decomposition import compose
from tddelta.targets import advantages, lambda_targets, n_step_targets, plain_targets, successors, td_errors

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


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


@examples
@given(problems())
def test_targets_are_their_literal_forms(problem):
    assert_literal(problem)


@examples
@given(problems())
def test_the_plain_recursion_gives_the_literal_sums_and_lambda_targets_the_same(problem):
    elapsed = 1.0 if problem.durations is None else problem.durations[..., None]
    discounts = {"gammas": np.array(problem.gammas) ** elapsed, "trace_decays": np.array(problem.decays) ** elapsed}
    got = plain_targets(*problem.arrays, problem.terminated, problem.truncated, **discounts)
    assert_close(got, literal.lambda_targets(problem))
    assert_close(lambda_targets(*problem.arrays, **problem.options), got)


def test_the_plain_recursion_leaves_what_is_not_finite_in_its_episode():
    zeros, ended, never = np.zeros((2, 1)), np.array([True, False]), np.zeros(2, bool)
    got = plain_targets(np.array([1.0, np.nan]), zeros, zeros, ended, never, gammas=np.ones(1), trace_decays=np.ones(1))
    np.testing.assert_array_equal(got, [[1.0], [np.nan]])


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
    got = lambda_targets(*problem.arrays, **problem.options)
    assert_close(got, literal.lambda_targets(problem))
    assert_close(got, literal.lambda_targets(problem, "bootstrap"))  # one form with equal decays
    assert_close(n_step_targets(*problem.arrays, **problem.options), literal.n_step_targets(problem))
    single = literal.advantages(problem, problem.decays[-1])
    np.testing.assert_allclose((got - deltas).sum(-1), single, rtol=0, atol=1e-12)


@examples
@given(problems())
def test_td_errors_and_the_difference_form_telescope_for_every_prefix(problem):
    errors = compose(td_errors(*problem.arrays, **problem.td_options))
    targets = compose(lambda_targets(*problem.arrays, **problem.options))
    for z in range(len(problem.gammas)):
        alone = problem.value(z)
        np.testing.assert_allclose(errors[..., z : z + 1], td_errors(*alone.arrays, **alone.td_options), **CLOSE)
        np.testing.assert_allclose(targets[..., z : z + 1], lambda_targets(*alone.arrays, **alone.options), **CLOSE)


@examples
@given(problems(equal_decays=True, equal_windows=True))
def test_n_step_targets_and_the_bootstrap_form_telescope_for_every_prefix_where_all_are_equal(problem):
    for function in (n_step_targets, partial(lambda_targets, form="bootstrap")):
        sums = compose(function(*problem.arrays, **problem.options))
        for z in range(len(problem.gammas)):
            alone = problem.value(z)
            np.testing.assert_allclose(sums[..., z : z + 1], function(*alone.arrays, **alone.options), **CLOSE)
    # Theorem 1: the sum of the advantages is the ordinary generalised advantage.
    summed = sums[..., -1] - problem.deltas.sum(-1)
    np.testing.assert_allclose(summed, advantages(*problem.arrays, **problem.options), **CLOSE)


@examples
@given(problems(followed=True, max_scales=4), st.floats(0, 1))
def test_difference_form_weighs_n_step_targets(problem, lam):
    """With c_z = λγ_z it is Σ_{n<N} (1−λ)λ^{n−1} G^(n) + λ^{N−1} G^(N)."""
    problem = replace(problem, decays=tuple(lam * gamma for gamma in problem.gammas), durations=None)
    steps = len(problem.rewards)
    windows = [
        n_step_targets(*p.arrays, **p.options)
        for p in (replace(problem, windows=(n,) * len(problem.gammas)) for n in range(1, steps + 1))
    ]
    wanted = np.zeros_like(problem.deltas)
    for t in range(steps):
        for stream in np.ndindex(problem.rewards.shape[1:]):
            ends = problem.ends[(slice(t, None), *stream)]
            left = int(np.argmax(ends)) + 1 if ends.any() else steps - t
            for n in range(1, left + 1):
                weight = lam ** (n - 1) * (1 if n == left else 1 - lam)
                wanted[(t, *stream)] += weight * windows[n - 1][(t, *stream)]
    got = lambda_targets(*problem.arrays, **problem.options, form="difference")
    np.testing.assert_allclose(got, wanted, **CLOSE)


@examples
@given(problems(durations=False))
def test_durations_of_one_give_the_same_bytes(problem):
    ones = replace(problem, durations=np.ones(problem.rewards.shape))
    assert_same_bytes(everything(problem), everything(ones))


@examples
@given(problems(), st.sampled_from([np.nan, np.inf, -np.inf, 1e300]))
def test_terminal_values_never_count(problem, value):
    """Nor does the other flag count where an episode terminated."""
    changed = np.where(problem.terminated[..., None], value, problem.next_deltas)
    only = problem.truncated & ~problem.terminated
    assert_same_bytes(everything(problem), everything(replace(problem, next_deltas=changed, truncated=only)))


@examples
@given(problems(max_steps=5))
def test_streams_stay_apart(problem):
    """B27: a NaN stays in its stream, and a stream alone gives the same."""
    if problem.rewards.ndim == 1:
        return
    wanted = everything(problem)
    spoilt = problem.pick(np.copy)
    for array in (*spoilt.arrays,):
        array[:, 0] = np.nan
    for name, result in everything(spoilt).items():
        np.testing.assert_array_equal(result[:, 1:], wanted[name][:, 1:])
        assert np.isnan(result[:, 0]).any()
    alone = everything(problem.pick(lambda array: array[:, -1:]))
    for name, result in alone.items():
        np.testing.assert_allclose(result, wanted[name][:, -1:], **CLOSE)


@examples
@given(problems(), st.integers(2, 5))
def test_a_step_may_be_split_in_time(problem, pieces):
    """A long step and the shorter ones it consists of, without rewards or critic between, bootstrap alike."""
    total = replace(problem, durations=np.full(problem.rewards.shape, float(pieces))).steps(slice(1))
    zero = np.zeros_like(total.rewards)
    n_step = replace(
        total,
        rewards=np.concatenate([total.rewards, *[zero] * (pieces - 1)]),
        deltas=np.repeat(total.deltas, pieces, axis=0),
        next_deltas=np.repeat(total.next_deltas, pieces, axis=0),
        terminated=np.concatenate([*[np.zeros_like(total.terminated)] * (pieces - 1), total.terminated]),
        truncated=np.concatenate([*[np.zeros_like(total.truncated)] * (pieces - 1), total.truncated]),
        durations=None,
        windows=(pieces,) * len(total.gammas),
    )
    wanted = total.deltas + td_errors(*total.arrays, **total.td_options)
    np.testing.assert_allclose(n_step_targets(*n_step.arrays, **n_step.options)[:1], wanted, **CLOSE)


@examples
@given(problems(durations=False))
def test_successors_choose_the_true_successor(problem):
    last, finals = problem.next_deltas[-1], problem.next_deltas * 7
    got = successors(
        problem.deltas, last, terminated=problem.terminated, truncated=problem.truncated, final_deltas=finals
    )
    for t in range(len(problem.rewards)):
        for stream in np.ndindex(problem.rewards.shape[1:]):
            here = (t, *stream)
            if problem.terminated[here]:
                wanted = np.zeros(len(problem.gammas))
            elif problem.truncated[here]:
                wanted = finals[here]
            else:
                wanted = problem.deltas[(t + 1, *stream)] if t + 1 < len(problem.rewards) else last[stream]
            np.testing.assert_array_equal(got[here], wanted)
