"""Every tabular method against its literal form, the pure targets, and each other; ladders that grow."""

from functools import partial

import numpy as np
import pytest

import tabular_literal as literal
from targets_literal import make_scales
from tddelta import ConfigError, ShapeError, TimeScales, compose, lambda_targets, n_step_targets
from tddelta.tabular import FiniteMDP, Trajectory, add_scale, evaluate, one_hot, remove_scale, sample

SCALES = make_scales((0.0, 0.6, 0.9), (0.0, 0.5, 0.8), (2, 1, 4))
PROCESS = FiniteMDP.random(6, 2, 3, seed=3, ends=1)
METHODS = ("td0", "n_step", "traces", "true_online", "lambda_return", "lambda_difference")
TAKE_FEATURES = tuple(method for method in METHODS if method != "n_step")
OFFLINE = ("lambda_return", "lambda_difference")
STEPS = 60
RATES = [(0.1, 0.3, 0.2), "1/n"]
MIXED = (0.1, "1/n", 0.2)
RATE_OF = {
    RATES[0]: lambda n: np.array(RATES[0]),
    "1/n": lambda n: np.full(3, 1 / n),
    MIXED: lambda n: np.array([0.1, 1 / n, 0.2]),
}


def steps_with_ends():
    steps = sample(PROCESS, STEPS, [0, 5], time_limit=7)
    assert steps.terminated.any(axis=1).all() and steps.truncated.any(axis=1).all()
    return steps


@pytest.mark.parametrize(
    ("method", "kind"),
    [(method, "table") for method in METHODS]
    + [(method, kind) for method in TAKE_FEATURES for kind in ("dense", "sparse")],
)
def test_methods_are_what_they_say(method, kind):
    generator = np.random.default_rng(0)
    steps, count = steps_with_ends(), PROCESS.states
    phi = np.eye(count)
    if kind != "table":
        phi = generator.normal(size=(count, 4)) * (1.0 if kind == "dense" else generator.random((count, 4)) < 0.5)
    start = generator.normal(size=(phi.shape[1], len(SCALES)))
    dirty = start.copy()
    if kind == "table":
        dirty[PROCESS.terminal] = np.nan  # what stands behind an end never counts
    rates = RATES if method == "n_step" else [*RATES, MIXED]
    with np.errstate(invalid="ignore"):
        result = evaluate(
            PROCESS, SCALES, method=method, trajectory=steps, step_sizes=rates, initial_deltas=dirty, record="curve",
            features=None if kind == "table" else phi, chunk=5 if method in OFFLINE else None,
        )  # fmt: skip
    inner = ~PROCESS.terminal
    for a, rate in enumerate(map(RATE_OF.get, rates)):
        for n in range(2):
            ladder = SCALES.gammas, SCALES.trace_decays, SCALES.n_steps
            learner = literal.Learner(*ladder, rate, phi, start, np.zeros(count))
            history = np.array(list(literal.LEARNERS[method](learner, Trajectory(*(field[n] for field in steps)))))
            deltas = phi @ history
            np.testing.assert_allclose(result.deltas[a, n, inner], deltas[-1, inner], rtol=1e-10, atol=1e-10)
            wrong = (deltas.sum(-1) - result.exact[:, -1])[:, inner]
            np.testing.assert_allclose(result.rms_error[a, n], np.sqrt((wrong**2).mean(1)), rtol=1e-10)
            np.testing.assert_allclose(result.abs_error[a, n], np.abs(wrong).mean(1), rtol=1e-10)
            if method != "n_step":
                np.testing.assert_array_equal(learner.visits, result.visits[n])
    assert not result.deltas[:, :, ~inner].any()


@pytest.mark.parametrize(("form", "method"), [("bootstrap", "lambda_return"), ("difference", "lambda_difference")])
def test_a_target_function_of_ones_own(form, method):
    options = {"trajectory": steps_with_ends(), "step_sizes": [*RATES, MIXED], "record": (7, 60), "chunk": 5}
    for features in (None, np.random.default_rng(1).normal(size=(PROCESS.states, 3))):
        run = partial(evaluate, PROCESS, SCALES, features=features, **options)
        mine, theirs = run(method=partial(lambda_targets, form=form)), run(method=method)
        for name in ("deltas", "rms_error", "abs_error", "visits"):
            np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=0, atol=1e-12)


def test_phased_learning_is_the_mean_of_n_step_targets():
    from tddelta.tabular.sampling import sample_paths

    result = evaluate(
        PROCESS, SCALES, method="phased", trajectories=4, steps=3, seeds=[8],
        step_sizes=[1.0, (0.2, "1/n", 1.0), "1/n"], record="curve",
    )  # fmt: skip
    rates = [lambda p: 1.0, lambda p: np.array([0.2, 1 / (p + 1), 1.0]), lambda p: 1 / (p + 1)]
    for a, rate in enumerate(rates):
        generator, table = np.random.default_rng(8), np.zeros((PROCESS.states, 3))
        for phase in range(3):
            paths = sample_paths(PROCESS, 4, 4, generator)
            means = np.zeros_like(table)
            for s in np.flatnonzero(~PROCESS.terminal):
                goals = []
                for i in range(4):
                    length, at = paths.lengths[s, i], paths.next_states[s, i]
                    ends = np.arange(4) == length - 1 if paths.terminated[s, i] else np.zeros(4, bool)
                    assert PROCESS.terminal[at[:length]].tolist() == ends[:length].tolist()
                    no = np.zeros(4, bool)
                    options = {"terminated": ends, "truncated": no, "scales": SCALES}
                    goals.append(n_step_targets(paths.rewards[s, i], table[at], table[at], **options)[0])
                means[s] = np.mean(goals, axis=0)
            table = table + rate(phase) * (means - table)
            wrong = (table.sum(-1) - result.exact[:, -1])[~PROCESS.terminal]
            np.testing.assert_allclose(result.rms_error[a, 0, phase], np.sqrt((wrong**2).mean()), rtol=1e-12)
            np.testing.assert_allclose(result.abs_error[a, 0, phase], np.abs(wrong).mean(), rtol=1e-12)
        np.testing.assert_allclose(result.deltas[a, 0], table, rtol=0, atol=1e-12)
    assert paths.rewards.any() and paths.terminated.any() and not paths.terminated.all()


def test_linear_is_traces_or_td0_by_the_scales():
    features = one_hot([0, 0, 1, 1, 2, 2])
    options = {"trajectory": steps_with_ends(), "features": features, "step_sizes": RATES}
    for method, scales in (("traces", SCALES), ("td0", make_scales(SCALES.gammas))):
        linear = evaluate(PROCESS, scales, method="linear", **options)
        weights = evaluate(PROCESS, scales, method=method, **options).weights
        np.testing.assert_allclose(linear.weights, weights, rtol=1e-12, atol=1e-12)
        assert linear.weights.shape == (2, 2, 3, 3)
        np.testing.assert_allclose(linear.deltas[:, :, 0], linear.deltas[:, :, 1], rtol=1e-12)
    table = evaluate(PROCESS, SCALES, method="linear", **options | {"features": one_hot(range(6))})
    deltas = evaluate(PROCESS, SCALES, method="traces", **options | {"features": None}).deltas
    np.testing.assert_allclose(table.deltas, deltas, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", [*METHODS, "phased", lambda_targets])
def test_records_agree_with_the_curve(method):
    run = partial(evaluate, PROCESS, SCALES, method=method, steps=30, seeds=[1, 2], step_sizes=[0.1, "1/n"])
    if method != "phased":
        run = partial(run, time_limit=8)
    curve, final, averages = run(record="curve"), run(), run(record=(1, 10, 30))
    for name in ("rms_error", "abs_error"):
        every = getattr(curve, name)
        assert every.shape == (2, 2, 30)
        np.testing.assert_allclose(getattr(final, name), every[..., -1], rtol=1e-12)
        means = [every[..., :steps].mean(-1) for steps in (1, 10, 30)]
        np.testing.assert_allclose(getattr(averages, name), np.stack(means, -1), rtol=1e-12)
    for other in (final, averages):
        np.testing.assert_allclose(curve.deltas, other.deltas, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", [*METHODS, "phased", lambda_targets])
def test_neither_threads_nor_company_change_a_byte(method):
    run = partial(evaluate, PROCESS, SCALES, method=method, steps=25, record="curve")
    together = run(step_sizes=[0.1, 0.4], seeds=[3, 7, 4], threads=2)
    single = run(step_sizes=[0.1, 0.4], seeds=[3, 7, 4], threads=1)
    alone = run(step_sizes=0.4, seeds=[7])
    for name in ("deltas", "rms_error", "abs_error"):
        np.testing.assert_array_equal(getattr(together, name), getattr(single, name))
        np.testing.assert_array_equal(getattr(together, name)[1, 1], getattr(alone, name)[0, 0])


@pytest.mark.parametrize(
    ("method", "features"),
    [(method, None) for method in (*METHODS, lambda_targets)]
    + [(method, one_hot([0, 1, 2, 3, 3, 4])) for method in (*TAKE_FEATURES, lambda_targets)],
)
def test_a_result_goes_on_as_if_it_had_not_stopped(method, features):
    rates = [0.1] if method == "n_step" else [0.1, "1/n"]
    steps = sample(PROCESS, STEPS, [5], time_limit=7)
    end = np.flatnonzero((steps.terminated | steps.truncated)[0])[1] + 1  # traces and windows begin anew there
    run = partial(evaluate, PROCESS, SCALES, method=method, step_sizes=rates, features=features)
    parts = [Trajectory(*(field[:, part] for field in steps)) for part in (slice(None, end), slice(end, None))]
    straight = run(trajectory=steps)
    halves = run(trajectory=parts[1], initial_deltas=run(trajectory=parts[0]))
    np.testing.assert_allclose(halves.deltas, straight.deltas, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(halves.visits, straight.visits)


@pytest.mark.parametrize("method", [*METHODS, "phased", lambda_targets])
def test_a_step_size_that_is_too_large_diverges_silently_and_alone(method):
    run = partial(evaluate, FiniteMDP.ring(), SCALES, method=method, steps=200)
    both = run(step_sizes=[0.1, 1e9])  # warnings are errors here
    assert np.isfinite(both.rms_error).tolist() == np.isfinite(both.abs_error).tolist() == [[True], [False]]
    assert both.values.shape == (2, 1, 5, 3)
    np.testing.assert_array_equal(both.deltas[0], run(step_sizes=0.1).deltas[0])


def test_steps_to_record_may_be_an_array_or_an_iterator():
    run = partial(evaluate, PROCESS, SCALES, steps=20)
    np.testing.assert_array_equal(run(record=np.array([5, 10])).rms_error, run(record=(5, 10)).rms_error)
    assert run(record=iter([5, 10])).rms_error.shape == (1, 1, 2)


def test_the_ring_experiment_of_a_line():
    result = evaluate(FiniteMDP.ring(), make_scales((0.0, 0.9), None, (1, 8)), step_sizes=[0.01, 0.1], seeds=range(3))
    assert repr(result) == "TabularResult(2 step sizes, 3 seeds, 5 states, 2 scales)"
    assert result.values.shape == result.deltas.shape == (2, 3, 5, 2)
    assert result.rms_error.shape == result.abs_error.shape == (2, 3)
    untrained = np.sqrt((result.exact[:, -1] ** 2).mean())
    assert (result.rms_error < 0.3 * untrained).all()
    np.testing.assert_array_equal(result.step_sizes, [[0.01, 0.01], [0.1, 0.1]])
    assert result.visits.sum() == 3 * 1000


# ---------------------------------------------------------------- ladders that grow while learning


def learned():
    scales = make_scales((0.5, 0.8, 0.9), (0.4, 0.4, 0.4), (2, 4, 4))
    return evaluate(FiniteMDP.ring(), scales, seeds=range(2), steps=300, step_sizes=[0.1, 0.2])


def test_a_longer_scale_changes_nothing_at_that_moment():
    before = learned()
    scales, deltas = add_scale(before.scales, before.deltas, 0.996, trace_decay=0.4, n_step=8)
    assert scales == make_scales((0.5, 0.8, 0.9, 0.996), (0.4, 0.4, 0.4, 0.4), (2, 4, 4, 8))
    assert deltas.shape == (2, 2, 5, 4)
    np.testing.assert_array_equal(deltas[..., :3], before.deltas)
    np.testing.assert_array_equal(compose(deltas)[..., 2], before.values[..., 2])
    np.testing.assert_array_equal(compose(deltas)[..., 3], before.values[..., 2])


def test_removing_a_scale_keeps_the_values_of_the_others():
    before = learned()
    for index in range(-3, 3):
        scales, deltas = remove_scale(before.scales, before.deltas, index)
        kept = [z for z in range(3) if z != index % 3]
        gammas, windows = ([ladder[z] for z in kept] for ladder in (before.scales.gammas, (2, 4, 4)))
        assert scales == make_scales(gammas, (0.4, 0.4), windows)
        np.testing.assert_allclose(compose(deltas), before.values[..., kept], rtol=0, atol=1e-12)
    assert before.deltas.shape[-1] == 3  # what was passed is left alone


def test_what_does_not_fit_is_refused():
    scales, deltas = TimeScales.from_gammas([0.5, 0.9]), np.zeros((5, 2))
    with pytest.raises(ConfigError, match=r"gamma must be above the longest discount so far, 0\.9; got 0\.9: a ladder"):
        add_scale(scales, deltas, 0.9)
    with pytest.raises(ConfigError, match=r"n_step must be given if the other scales .*; got 4 where they have none"):
        add_scale(scales, deltas, 0.99, n_step=4)
    with pytest.raises(ConfigError, match=r"trace_decay must be given .* None where they have \(0\.4, 0\.4\): pass"):
        add_scale(make_scales((0.5, 0.9), (0.4, 0.4)), deltas, 0.99)
    with pytest.raises(ShapeError, match=r"for each of the 2 scales .* got float64 of shape \(5, 3\)"):
        add_scale(scales, np.zeros((5, 3)), 0.99)
    with pytest.raises(ShapeError, match=r"deltas must be an array of numbers; got .* pass lists of equal length"):
        add_scale(scales, [[1.0, 2.0], [3.0]], 0.99)
    for index in (2, 1.5, True):
        with pytest.raises(ConfigError, match=f"names one of 2 scales and leaves another; got {index}: they are"):
            remove_scale(scales, deltas, index)
    with pytest.raises(ConfigError, match="names one of 1 scales and leaves another; got 0"):
        remove_scale(TimeScales.single(0.9), np.zeros((5, 1)), 0)
