"""The compiled n-step loop against golden cases and a literal Algorithm 1."""

import json
from pathlib import Path

import numpy as np
import pytest

from tddelta.errors import ConfigError, ShapeError
from tddelta.tabular import Trajectory, loops, n_step

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "ring.json").read_text(encoding="utf-8"))
GAMMAS, WINDOWS = (0.0, 0.5, 0.9), (1, 2, 4)


def trajectory(states, rewards, next_states, terminated, truncated) -> Trajectory:  # type: ignore[no-untyped-def]
    return Trajectory(states, np.zeros_like(states), rewards, next_states, terminated, truncated)


def episodes(seed: int = 0, seeds: int = 3, steps: int = 60, states: int = 6, ending: float = 0.25) -> Trajectory:
    """Random streams with ends of both kinds; the true successor at an end is not where the next step starts."""
    rng = np.random.default_rng(seed)
    ends = rng.random((2, seeds, steps)) < ending
    after = rng.integers(states, size=(seeds, steps))
    start = rng.integers(states, size=(seeds, steps))
    before = np.concatenate([start[:, :1], np.where(ends.any(0), start, after)[:, :-1]], axis=1)
    return trajectory(before, rng.normal(size=(seeds, steps)), after, ends[0], ends[1] & ~ends[0])


def literal(data, row, gammas, n_steps, alphas, exact, initial, counted=None, decaying=False):  # type: ignore[no-untyped-def]
    """Algorithm 1 for one stream, in the order of events of the mathematics page."""
    table, longest, scales = initial.copy(), max(n_steps), len(gammas)
    visits = np.zeros(len(table), int)
    counted = np.ones(len(table), bool) if counted is None else counted
    episode: list[tuple[int, float, int, bool]] = []
    curve = []

    def move(tau: int) -> None:
        targets = []
        for z in range(scales):
            n = min(n_steps[z], len(episode) - tau)
            before = gammas[z - 1] if z else 0.0
            _, _, after, terminal = episode[tau + n - 1]
            target = sum(
                (gammas[z] ** i - (before**i if z else 0.0)) * episode[tau + i][1] for i in range(n)
            )  # fmt: skip
            if not terminal:
                target += (gammas[z] ** n - (before**n if z else 0.0)) * sum(table[after, :z])
                target += gammas[z] ** n * table[after, z]
            targets.append(target)
        state = episode[tau][0]
        visits[state] += 1
        for z in range(scales):
            step = alphas[z] / visits[state] if decaying else alphas[z]
            table[state, z] += step * (targets[z] - table[state, z])

    for t in range(data.states.shape[1]):
        episode.append(
            (data.states[row, t], data.rewards[row, t], data.next_states[row, t], data.terminated[row, t])
        )  # fmt: skip
        if len(episode) >= longest:
            move(len(episode) - longest)
        if data.terminated[row, t] or data.truncated[row, t]:
            for tau in range(max(0, len(episode) - longest + 1), len(episode)):
                move(tau)
            episode = []
        error = (table.sum(axis=1) - exact)[counted]
        curve.append((np.sqrt(np.mean(error**2)), np.mean(np.abs(error))))
    return table, np.array(curve)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["note"])
def test_golden_ring(case: dict) -> None:
    states, rewards = np.array(case["states"])[None], np.array(case["rewards"])[None]
    assert states.shape[1] == rewards.shape[1] + 1
    never = np.zeros(rewards.shape, bool)
    data = trajectory(states[:, :-1], rewards, states[:, 1:], never, never)
    gammas, windows, alpha = case["gammas"], case["n_steps"], case["alpha"]
    split = n_step.run(data, gammas, windows, np.full((1, len(gammas)), alpha), np.zeros(5))
    np.testing.assert_allclose(split.deltas[0, 0], case["deltas"], rtol=0, atol=1e-12)
    single = n_step.run(data, gammas[-1:], windows[-1:], [[alpha]], np.zeros(5))
    np.testing.assert_allclose(single.deltas[0, 0, :, 0], case["baseline_values"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("windows", [WINDOWS, (4, 1, 3), (1, 1, 1), (2, 5, 100)], ids=str)
@pytest.mark.parametrize("ending", [0.0, 0.2])
@pytest.mark.parametrize("decaying", [False, True])
def test_equals_the_literal_algorithm(windows: tuple[int, ...], ending: float, decaying: bool) -> None:
    data = episodes(ending=ending)
    rng = np.random.default_rng(5)
    alphas, exact, initial = rng.uniform(0.1, 0.6, (4, 3)), rng.normal(size=6), rng.normal(size=(6, 3))
    counted = np.array([True, True, False, True, True, False])
    result = n_step.run(
        data, GAMMAS, windows, alphas, exact, record="curve", initial=initial, counted=counted, decaying=[decaying] * 4
    )
    final = n_step.run(data, GAMMAS, windows, alphas, exact, initial=initial, counted=counted, decaying=[decaying] * 4)
    for a, row in np.ndindex(4, 3):
        table, curve = literal(data, row, GAMMAS, windows, alphas[a], exact, initial, counted, decaying)
        np.testing.assert_allclose(result.deltas[a, row], table, rtol=0, atol=1e-12)
        np.testing.assert_allclose(result.rms_error[a, row], curve[:, 0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(result.abs_error[a, row], curve[:, 1], rtol=0, atol=1e-12)
        np.testing.assert_allclose(final.rms_error[a, row], curve[-1:, 0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(final.abs_error[a, row], curve[-1:, 1], rtol=0, atol=1e-12)
    learns = ending > 0 or max(windows) <= 60  # a window that the stream never fills moves nothing
    assert (result.rms_error.std() > 0.1) == learns


@pytest.mark.parametrize("window", [10**12, 10**30])
def test_windows_of_any_length_are_as_long_as_the_data(window: int) -> None:
    data = episodes()
    long, whole = (n_step.run(data, GAMMAS, (1, 2, k), [[0.3] * 3], np.zeros(6), record="curve") for k in (window, 61))
    for one, two in zip(long, whole, strict=True):
        np.testing.assert_array_equal(one, two)


def test_mixed_constant_and_decaying_step_sizes() -> None:
    data, exact, initial = episodes(), np.zeros(6), np.zeros((6, 3))
    result = n_step.run(data, GAMMAS, WINDOWS, [[0.3] * 3, [1.0] * 3], exact, decaying=[False, True])
    for a, alpha in enumerate((0.3, 1.0)):
        table, _ = literal(data, 1, GAMMAS, WINDOWS, [alpha] * 3, exact, initial, decaying=bool(a))
        np.testing.assert_allclose(result.deltas[a, 1], table, rtol=0, atol=1e-12)


def test_averages_are_those_of_the_curve() -> None:
    data, exact = episodes(), np.arange(6.0)
    curve = n_step.run(data, GAMMAS, WINDOWS, [[0.2] * 3], exact, record="curve")
    means = n_step.run(data, GAMMAS, WINDOWS, [[0.2] * 3], exact, record=(1, 7, 60))
    for column, point in enumerate((1, 7, 60)):
        np.testing.assert_allclose(means.rms_error[..., column], curve.rms_error[..., :point].mean(-1), rtol=1e-12)
        np.testing.assert_allclose(means.abs_error[..., column], curve.abs_error[..., :point].mean(-1), rtol=1e-12)
    np.testing.assert_allclose(means.deltas, curve.deltas, rtol=1e-12, atol=1e-12)


def test_error_before_the_first_update_is_that_of_the_zero_table() -> None:
    data = episodes(ending=0.0)
    result = n_step.run(data, (0.5,), (10,), [[0.9]], np.full(6, 2.0), record="curve")
    np.testing.assert_array_equal(result.rms_error[0, :, :9], 2.0)
    assert (result.rms_error[0, :, 9] != 2.0).all()


def test_there_are_as_many_threads_as_cores_that_a_container_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "available_cores", lambda: 3)
    assert loops.thread_count(None) == 3 and loops.thread_count(5) == 5


def test_same_bytes_for_any_threads_and_company() -> None:
    data, exact = episodes(seeds=7), np.arange(6.0)
    alphas = np.geomspace(0.01, 1, 37)[:, None].repeat(3, 1)
    whole = n_step.run(data, GAMMAS, WINDOWS, alphas, exact, record=(10, 60), threads=1)
    for threads in (2, 5, 16):
        other = n_step.run(data, GAMMAS, WINDOWS, alphas, exact, record=(10, 60), threads=threads)
        for one, two in zip(whole, other, strict=True):
            assert one.tobytes() == two.tobytes()
    for a, row in [(0, 0), (17, 3), (31, 6), (32, 2), (36, 6)]:
        alone = n_step.run(Trajectory(*(x[row : row + 1] for x in data)), GAMMAS, WINDOWS, alphas[a : a + 1], exact,
                           record=(10, 60))  # fmt: skip
        for one, two in zip(whole, alone, strict=True):
            assert one[a, row].tobytes() == two[0, 0].tobytes()


def test_progress_counts_every_seed() -> None:
    counts: list[int] = []
    n_step.run(episodes(seeds=7), GAMMAS, WINDOWS, [[0.1] * 3], np.zeros(6), done=counts.append, threads=2)
    assert sum(counts) == 7 and len(counts) > 1


def test_sum_equals_the_single_learner_when_all_windows_are_equal() -> None:
    data, exact = episodes(steps=200), np.zeros(6)
    split = n_step.run(data, GAMMAS, (5, 5, 5), [[0.4] * 3], exact, record=(200,))
    single = n_step.run(data, GAMMAS[-1:], (5,), [[0.4]], exact, record=(200,))
    np.testing.assert_allclose(split.deltas.sum(-1), single.deltas[..., 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(split.rms_error, single.rms_error, rtol=1e-12)
    tailored = n_step.run(data, GAMMAS, (*WINDOWS[:2], 5), [[0.4] * 3], exact)
    assert np.abs(tailored.deltas.sum(-1) - single.deltas[..., 0]).max() > 1e-3


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_stands_behind_a_terminal_state_never_leaks(poison: float) -> None:
    # state 5 is terminal, and somebody's table holds nonsense there
    states, after = np.array([[0, 1, 2, 0, 1, 2]]), np.array([[1, 2, 5, 1, 2, 5]])
    terminated = after == 5
    data = trajectory(states, np.ones((1, 6)), after, terminated, np.zeros_like(terminated))
    initial = np.zeros((6, 3))
    initial[5] = poison
    counted = np.arange(6) != 5
    result = n_step.run(data, GAMMAS, WINDOWS, [[0.5] * 3], np.zeros(6), initial=initial, counted=counted, record=(6,))
    clean = n_step.run(data, GAMMAS, WINDOWS, [[0.5] * 3], np.zeros(6), counted=counted, record=(6,))
    np.testing.assert_array_equal(result.deltas[..., :5, :], clean.deltas[..., :5, :])
    np.testing.assert_array_equal(result.rms_error, clean.rms_error)
    assert np.isfinite(clean.rms_error).all()


def test_truncation_bootstraps_from_the_true_successor() -> None:
    # state 1 is the true successor; the next episode starts in state 2
    never = np.zeros((1, 2), bool)
    data = trajectory(np.array([[0, 2]]), np.zeros((1, 2)), np.array([[1, 2]]), never, np.array([[True, False]]))
    initial = np.array([[0.0], [8.0], [100.0]])
    result = n_step.run(data, (0.5,), (2,), [[1.0]], np.zeros(3), initial=initial)
    assert result.deltas[0, 0, 0, 0] == 4.0


def test_a_bad_reward_stays_in_its_windows_and_its_stream() -> None:
    data = episodes(seeds=2, ending=0.0)
    data.rewards[0, 30] = np.nan
    result = n_step.run(data, GAMMAS, WINDOWS, [[0.3] * 3], np.zeros(6), record="curve")
    assert np.isfinite(result.rms_error[0, 0, :30]).all()
    assert np.isnan(result.rms_error[0, 0, 30])
    assert np.isfinite(result.rms_error[0, 1]).all()


def test_a_large_reward_leaves_no_rounding_behind() -> None:
    # a running sum that subtracts what leaves the window would keep errors of size 1e16 · 2^-53
    data = episodes(seeds=1, ending=0.0)
    data.rewards[0, 50] = 1e16
    plain = episodes(seeds=1, ending=0.0)
    short = [Trajectory(*(x[:, :50] for x in each)) for each in (data, plain)]
    results = [n_step.run(each, (1.0,), (4,), [[0.3]], np.zeros(6)) for each in short]
    np.testing.assert_array_equal(results[0].deltas, results[1].deltas)
    whole = n_step.run(data, (1.0,), (4,), [[0.3]], np.zeros(6), record="curve")
    reference = literal(data, 0, (1.0,), (4,), [0.3], np.zeros(6), np.zeros((6, 1)))[1]
    np.testing.assert_allclose(whole.rms_error[0, 0], reference[:, 0], rtol=1e-12)


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
        ({"initial": np.zeros((6, 2))}, ShapeError, r"initial must have shape \(6, 3\); got \(6, 2\)"),
        ({"counted": [True]}, ShapeError, r"counted must have shape \(6,\); got \(1,\)"),
        ({"trajectory": Trajectory(*(x[0] for x in episodes()))}, ShapeError, r"shape \(N, T\); got \(60,\)"),
    ],
)
def test_errors_say_what_to_do(changes: dict, kind: type[Exception], text: str) -> None:
    arguments = {
        "trajectory": episodes(), "gammas": GAMMAS, "n_steps": WINDOWS, "step_sizes": [[0.1] * 3],
        "exact_last": np.zeros(6),
    }  # fmt: skip
    with pytest.raises(kind, match=text):
        n_step.run(**arguments | changes)
