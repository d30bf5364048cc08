"""The compiled n-step loop against the literal Algorithm 1."""

import numpy as np
import pytest

import tabular_literal
from tddelta.errors import ConfigError, ShapeError
from tddelta.tabular import Trajectory, loops, n_step

GAMMAS, WINDOWS = (0.0, 0.5, 0.9), (1, 2, 4)


def part(data, *of):
    return Trajectory(*(field[of] for field in data))


def episodes(seeds=3, steps=60, states=6, ending=0.25):
    """Random streams with ends of both kinds; the true successor at an end is not where the next step starts."""
    rng = np.random.default_rng(0)
    ends = rng.random((2, seeds, steps)) < ending
    after = rng.integers(states, size=(seeds, steps))
    start = rng.integers(states, size=(seeds, steps))
    before = np.concatenate([start[:, :1], np.where(ends.any(0), start, after)[:, :-1]], axis=1)
    return Trajectory(before, before, rng.normal(size=(seeds, steps)), after, ends[0], ends[1] & ~ends[0])


def literal(data, row, gammas, windows, rate, initial):
    """Tables after every step, (T, S, Z)."""
    visits = np.zeros(len(initial), int)
    learner = tabular_literal.Learner(gammas, None, windows, rate, np.eye(len(initial)), initial, visits)
    return np.array(list(tabular_literal.n_step(learner, part(data, row))))


@pytest.mark.parametrize("windows", [WINDOWS, (4, 1, 3), (1, 1, 1), (2, 5, 100)], ids=str)
@pytest.mark.parametrize("ending", [0.0, 0.2])
@pytest.mark.parametrize("decaying", [False, True])
def test_equals_the_literal_algorithm(windows, ending, decaying):
    data = episodes(ending=ending)
    rng = np.random.default_rng(5)
    alphas, exact, initial = rng.uniform(0.1, 0.6, (4, 3)), rng.normal(size=6), rng.normal(size=(6, 3))
    counted = np.array([True, True, False, True, True, False])
    given = {"initial": initial, "counted": counted, "decaying": [decaying] * 4}
    result = n_step.run(data, GAMMAS, windows, alphas, exact, record="curve", **given)
    final = n_step.run(data, GAMMAS, windows, alphas, exact, **given)
    for a, row in np.ndindex(4, 3):
        tables = literal(data, row, GAMMAS, windows, lambda n, a=a: alphas[a] / (n if decaying else 1), initial)
        np.testing.assert_allclose(result.deltas[a, row], tables[-1], rtol=0, atol=1e-12)
        wrong = (tables.sum(axis=-1) - exact)[:, counted]
        for name, curve in (("rms_error", np.sqrt((wrong**2).mean(1))), ("abs_error", np.abs(wrong).mean(1))):
            np.testing.assert_allclose(getattr(result, name)[a, row], curve, rtol=0, atol=1e-12)
            np.testing.assert_allclose(getattr(final, name)[a, row], curve[-1:], rtol=0, atol=1e-12)
    learns = ending > 0 or max(windows) <= 60  # a window that the stream never fills moves nothing
    assert (result.rms_error.std() > 0.1) == learns


def test_windows_of_any_length_are_as_long_as_the_data():
    long, whole = (n_step.run(episodes(), GAMMAS, (1, 2, k), [[0.3] * 3], np.zeros(6)) for k in (10**30, 61))
    np.testing.assert_array_equal(long.deltas, whole.deltas)


def test_there_are_as_many_threads_as_cores_that_a_container_leaves(monkeypatch):
    monkeypatch.setattr(loops, "available_cores", lambda: 3)
    assert loops.thread_count(None) == 3 and loops.thread_count(5) == 5


def test_same_bytes_for_any_threads_and_company():
    data, exact = episodes(seeds=7), np.arange(6.0)
    alphas = np.geomspace(0.01, 1, 37)[:, None].repeat(3, 1)  # more than fit side by side
    counts = []
    whole = n_step.run(data, GAMMAS, WINDOWS, alphas, exact, record=(10, 60), threads=1)
    threaded = n_step.run(data, GAMMAS, WINDOWS, alphas, exact, record=(10, 60), threads=2, done=counts.append)
    assert sum(counts) == 7 and len(counts) > 1
    for one, two in zip(whole, threaded, strict=True):
        assert one.tobytes() == two.tobytes()
    for a, row in [(0, 0), (17, 3), (31, 6), (32, 2), (36, 6)]:
        one_row = part(data, slice(row, row + 1))
        alone = n_step.run(one_row, GAMMAS, WINDOWS, alphas[a : a + 1], exact, record=(10, 60))
        for one, two in zip(whole, alone, strict=True):
            assert one[a, row].tobytes() == two[0, 0].tobytes()


def test_a_bad_reward_stays_in_its_windows_and_its_stream():
    data = episodes(seeds=2, ending=0.0)
    data.rewards[0, 30] = np.nan
    result = n_step.run(data, GAMMAS, WINDOWS, [[0.3] * 3], np.zeros(6), record="curve")
    assert np.isfinite(result.rms_error[0, 0, :30]).all()
    assert np.isnan(result.rms_error[0, 0, 30])
    assert np.isfinite(result.rms_error[0, 1]).all()


def test_a_large_reward_leaves_no_rounding_behind():
    # a running sum that subtracts what leaves the window would keep errors of size 1e16 · 2^-53
    data, plain = episodes(seeds=1, ending=0.0), episodes(seeds=1, ending=0.0)
    data.rewards[0, 50] = 1e16
    short = slice(None), slice(50)
    results = [n_step.run(part(each, *short), (1.0,), (4,), [[0.3]], np.zeros(6)) for each in (data, plain)]
    np.testing.assert_array_equal(results[0].deltas, results[1].deltas)
    whole = n_step.run(data, (1.0,), (4,), [[0.3]], np.zeros(6), record="curve")
    tables = literal(data, 0, (1.0,), (4,), lambda n: 0.3, np.zeros((6, 1)))
    np.testing.assert_allclose(whole.rms_error[0, 0], np.sqrt((tables[..., 0] ** 2).mean(1)), rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"record": (0, 5)}, ConfigError, "record must be a whole number of at least 1; got 0"),
        ({"record": (5, 61)}, ConfigError, r"no average reaches beyond the data"),
        ({"record": (5, 5)}, ConfigError, r"got \(5, 5\)"),
        ({"threads": 0}, ConfigError, "threads must be a whole number of at least 1; got 0"),
        ({"step_sizes": [0.1]}, ShapeError, r"step_sizes must have shape \(A, 3\); got \(1,\)"),
        ({"n_steps": (1, 2)}, ShapeError, r"n_steps must be 3 whole numbers ≥ 1; got \(1, 2\)"),
        ({"n_steps": (1, 0, 2)}, ShapeError, r"got \(1, 0, 2\): one per discount"),
        ({"n_steps": (1, 2, 2.5)}, ShapeError, r"got \(1, 2, 2.5\): one per discount"),
        ({"exact_last": np.zeros(3)}, ShapeError, r"states must lie in 0…2; got 0…5: exact_last has 3 states"),
        ({"initial": np.zeros((6, 2))}, ShapeError, r"initial must have shape \(6, 3\) or .*; got \(6, 2\)"),
        ({"counted": [True]}, ShapeError, r"counted must have shape \(6,\); got \(1,\)"),
        ({"trajectory": Trajectory(*(x[0] for x in episodes()))}, ShapeError, r"shape \(N, T\); got \(60,\)"),
    ],
)
def test_errors_say_what_to_do(changes, kind, text):
    arguments = {"trajectory": episodes(), "gammas": GAMMAS, "n_steps": WINDOWS, "step_sizes": [[0.1] * 3]}
    with pytest.raises(kind, match=text):
        n_step.run(**arguments | {"exact_last": np.zeros(6)} | changes)
