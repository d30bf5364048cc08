"""Values from logs: worked by hand, and against the public targets."""

import numpy as np
import pytest

import tddelta as tdd
from logs_data import SCALES, autoregressive, discounts, episodes_of, random_log, small
from tddelta.tabular import evaluate_log, logs

METHODS = ("lambda", "td0", "monte_carlo")


# ---------------------------------------------------------------- worked by hand


@pytest.mark.parametrize(("method", "value_of_a"), [("td0", 0.75), ("monte_carlo", 0.0), ("lambda", 0.6 * 0.75)])
def test_you_are_the_predictor(method, value_of_a):
    """Example 6.4 of Sutton and Barto: what one-step TD and Monte Carlo make of the same eight episodes.

    The λ-return from A is (1−λ) V(B) + λ·0 at γ = 1, with V(B) = 3/4.
    """
    log = episodes_of("A0 B0", *["B1"] * 6, "B0")
    result = evaluate_log(log, discounts(1.0, lam=0.4), method=method, held_out=0)
    assert result.states == ("A", "B") and result.visits.tolist() == [1, 8]
    np.testing.assert_allclose(result.values[:, 0], [value_of_a, 0.75], atol=1e-12)
    assert result.calibration is None and result.held_out == 0 and result.episodes == 8


@pytest.mark.parametrize("method", METHODS)
def test_an_endless_reward_is_the_closed_form(method):
    """One state, r = 1: V_z is the horizon and W = 1, 1, 2, 4, 8, from three steps that are cut."""
    log = {
        "episode": ["only"] * 3,
        "state": [0] * 3,
        "next_state": [0] * 3,
        "reward": [1] * 3,
        "terminated": [0, 0, 0],
        "truncated": [0, 0, 1],
    }
    scales = tdd.TimeScales.doubling(0.9375, lam=0.9)
    result = evaluate_log(log, scales, method=method, held_out=0)
    np.testing.assert_allclose(result.values, [scales.horizons], rtol=1e-12)
    np.testing.assert_allclose(result.deltas, [[1, 1, 2, 4, 8]], rtol=1e-12)
    del log["truncated"]  # that the last row has no flag says the same
    again = evaluate_log(log, scales, method=method, held_out=0, truncated=None)
    assert again.values.tobytes() == result.values.tobytes()


def test_durations_by_hand():
    """a takes 2 units of time, b one half: V(a) = 1 + γ² (4 + γ^½ V(c)), V(c) = 10."""
    log = {
        "episode": [0, 0, 0],
        "state": ["a", "b", "c"],
        "time": [0.0, 2.0, 2.5],
        "reward": [1.0, 4.0, 10.0],
        "terminated": [False, False, True],
        "truncated": [False] * 3,
    }
    for method in METHODS:
        result = evaluate_log(log, SCALES, time="time", method=method, held_out=0)
        expected = [[1 + g**2 * (4 + g**0.5 * 10), 4 + g**0.5 * 10, 10] for g in SCALES.gammas]
        np.testing.assert_allclose(result.values.T, expected, rtol=1e-12)
    hours = log | {"time": ["2026-01-31T12:00:00", "2026-01-31T14:00:00", "2026-01-31T14:30:00"]}
    dates = log | {"time": np.array(hours["time"], dtype="datetime64[s]")}
    for other in (hours, dates):
        again = evaluate_log(other, SCALES, time="time", time_unit=3600.0, method=method, held_out=0)
        assert again.values.tobytes() == result.values.tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_durations_of_one_change_no_byte(method):
    log = random_log(0, 40, 5)
    row = np.concatenate([np.arange(count) for count in np.bincount(log["episode"])])
    log |= {"time": row + 5.0, "next_time": row + 6.0}
    with_time = evaluate_log(log, SCALES, method=method, time="time")
    without = evaluate_log(log, SCALES, method=method)
    assert with_time.row_values.tobytes() == without.row_values.tobytes()
    assert with_time.calibration.realised.tobytes() == without.calibration.realised.tobytes()


# ---------------------------------------------------------------- oracles


@pytest.mark.parametrize("time", [None, "time"])
@pytest.mark.parametrize("method", METHODS)
def test_the_values_are_where_sweeps_of_the_public_targets_settle(method, time):
    """In every state W is the mean of the λ-returns of the public function, in its difference form."""
    log = random_log(1, 60, 7)
    result = evaluate_log(log, SCALES, method=method, held_out=0, time=time)
    decays = {"lambda": SCALES.trace_decays, "td0": (0.0,) * 3, "monte_carlo": SCALES.gammas}[method]
    place = {state: number for number, state in enumerate(result.states)}
    now, later = ([place[state] for state in log[name].tolist()] for name in ("state", "next_state"))
    last = np.append(log["episode"][1:] != log["episode"][:-1], True)
    targets = tdd.lambda_targets(
        log["reward"],
        result.deltas[now],
        result.deltas[later],
        terminated=log["terminated"],
        truncated=last,
        scales=tdd.TimeScales(SCALES.gammas, decays),
        form="difference",
        durations=log["next_time"] - log["time"] if time else None,
    )
    means = [targets[np.array(now) == number].mean(axis=0) for number in range(len(place))]
    np.testing.assert_allclose(result.deltas, means, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"features": ["time", "state"], "model": "tiles", "tiles": 4, "tilings": 3}])
@pytest.mark.parametrize("lam", [0.05, 0.5, 0.9, 1.0])
def test_many_features_are_solved_by_iteration_with_the_same_result(lam, options, monkeypatch):
    log = random_log(5, 60, 20)
    scales = discounts(0.0, 0.5, 0.9, 0.999, lam=lam)
    options = options or {"time": "time"}
    monkeypatch.setattr(logs, "_DENSE", 10**6)
    direct = evaluate_log(log, scales, **options)
    monkeypatch.setattr(logs, "_BLOCK", 1)  # one column of the matrix at a time
    np.testing.assert_allclose(evaluate_log(log, scales, **options).values, direct.values, atol=1e-9)
    monkeypatch.setattr(logs, "_DENSE", 0)
    np.testing.assert_allclose(evaluate_log(log, scales, **options).values, direct.values, atol=1e-7)


def test_an_iteration_that_does_not_settle_says_so(monkeypatch):
    monkeypatch.setattr(logs, "_DENSE", 0)
    monkeypatch.setattr(logs.sparse_linalg, "gmres", lambda *_, **__: (None, 1))
    with pytest.raises(tdd.ConfigError, match=r"the values of 20 states or tiles at γ=0.5 did not settle within 2000"):
        evaluate_log(random_log(5, 60, 20), SCALES, time="time")


# ---------------------------------------------------------------- ends of episodes


def test_the_final_observation_says_the_same_as_a_successor_column():
    log = random_log(6, 40, 5)
    named = evaluate_log(log, SCALES, time="time")
    ends = np.flatnonzero(np.append(log["episode"][1:] != log["episode"][:-1], True))
    final = {"episode": log["episode"][ends], "state": log["next_state"][ends], "time": log["next_time"][ends]}
    final |= {"reward": np.nan, "terminated": False, "truncated": False}
    rows = {name: np.insert(log[name], ends + 1, entries) for name, entries in final.items()}
    observed = evaluate_log(rows, SCALES, last_row="observation", time="time")
    assert observed.values.tobytes() == named.values.tobytes()
    assert observed.calibration.rmse.tobytes() == named.calibration.rmse.tobytes()
    assert len(observed.row_values) == len(named.row_values) + 40


def test_with_observations_last_the_last_reward_of_a_cut_episode_does_not_count():
    log = small()
    result = evaluate_log(log, SCALES, last_row="observation", method="td0", held_out=0)
    assert result.steps == 5 and result.visits.tolist() == [3, 2]
    log["reward"][4] = None
    log["terminated"][4] = None
    again = evaluate_log(log, SCALES, last_row="observation", method="td0", held_out=0)
    assert again.values.tobytes() == result.values.tobytes()
    np.testing.assert_allclose(result.values[:, 0], [(1 + 4 + 0.5) / 3, (2 + 3) / 2])


def test_steps_before_an_unknown_state_are_left_out():
    """The cut in "x" leaves b → x unused, and then a → b of that episode if b has no other step."""
    log = {
        "episode": [0, 0, 1, 1],
        "state": ["a", "b", "a", "c"],
        "next_state": ["b", "x", "c", "x"],
        "reward": [1.0, 2.0, 5.0, 7.0],
        "terminated": [False, False, False, True],
        "truncated": [False, True, False, False],
    }
    result = evaluate_log(log, SCALES, method="td0", held_out=0)
    assert result.left_out == 2 and result.steps == 2 and result.states == ("a", "c")
    np.testing.assert_allclose(result.values[0], 5 + np.array(SCALES.gammas) * 7)
    assert np.isnan(result.row_values[1]).all() and not np.isnan(result.row_values[0]).any()
    log["terminated"][3] = False
    with pytest.raises(tdd.DataError, match="every episode is cut in a state that has no step of its own"):
        evaluate_log(log, SCALES, held_out=0)


def test_a_terminal_successor_may_hold_anything():
    log = small("next_state", "x", "next_x")
    plain = evaluate_log(log, SCALES, held_out=0)
    model = {"features": ["x"], "model": "linear", "held_out": 0}
    readings = evaluate_log(log, SCALES, **model)
    for row in (2, 5):
        log["next_state"][row], log["next_x"][row] = None, np.inf
    assert evaluate_log(log, SCALES, held_out=0).values.tobytes() == plain.values.tobytes()
    assert evaluate_log(log, SCALES, **model).values.tobytes() == readings.values.tobytes()


def test_both_flags_mean_terminated():
    log = small("next_state", truncated=(3, True))
    result = evaluate_log(log, SCALES, held_out=0)
    assert result.values.tobytes() == evaluate_log(small("next_state"), SCALES, held_out=0).values.tobytes()


def test_an_undiscounted_value_without_an_end_is_refused():
    log = small("next_state", terminated=(6, False))
    log["terminated"][2] = False
    with pytest.raises(tdd.ConfigError, match="the value of state 'a' at γ = 1 is not determined"):
        evaluate_log(log, discounts(0.5, 1.0), method="td0", held_out=0)
    assert evaluate_log(log, discounts(0.5, 0.999), method="td0", held_out=0).states == ("a", "b")


# ---------------------------------------------------------------- labels


def test_labels_of_several_columns_are_tuples():
    log = small("next_state") | {"floor": [1, 1, 2, 1, 1, 2], "next_floor": [1, 2, 0, 1, 2, 0]}
    result = evaluate_log(log, SCALES, state=("state", "floor"), held_out=0)
    assert result.states == (("a", 1), ("a", 2), ("b", 1), ("b", 2))
    table = small() | {"state": np.array([[0, 1], [1, 1], [0, 2], [0, 1], [1, 1], [1, 2]])}
    table["truncated"] = [False] * 6
    again = evaluate_log(table, SCALES, last_row="observation", held_out=0)
    assert again.states == ((0, 1), (0, 2), (1, 1), (1, 2))


def test_labels_of_several_types_have_an_order():
    log = small(state=(1, 3)) | {"truncated": [False] * 6}
    result = evaluate_log(log, SCALES, last_row="observation", held_out=0)
    assert result.states == (3, "a", "b")
    np.testing.assert_array_equal(
        result.predict(["b", "nowhere", 3]), [result.values[2], [np.nan] * 3, result.values[0]]
    )


# ---------------------------------------------------------------- models of sensors


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["tiles", "linear"])
def test_models_find_the_value_of_a_sensor(model, method):
    scales = discounts(0.0, 0.5, 0.9, lam=0.9)
    result = evaluate_log(autoregressive(0), scales, features=["x"], model=model, method=method)
    points = np.linspace(-0.9, 0.9, 13)[:, None]
    exact = points / (1 - 0.9 * np.array(scales.gammas))
    worst = np.abs(result.predict(points) - exact).max(axis=0)
    assert (worst < ([0.06, 0.13, 0.6] if model == "tiles" else [1e-4, 0.04, 0.4])).all(), worst
    assert result.states == () and result.visits.shape == (0,) and result.values.shape == (12000, 3)
    found = result.calibration
    assert found.explained_variance[0] > 0.98 and found.unseen == 0 and found.count[0] == 2400
    with pytest.raises(tdd.ShapeError, match=r"observations must have shape \(N, 1\); got \(3,\): pass one row of"):
        result.predict([1.0, 2.0, 3.0])


def test_a_linear_model_with_one_column_per_state_is_the_table():
    log = random_log(8, 60, 4)
    table = evaluate_log(log, SCALES, time="time")
    for state in range(4):
        log |= {f"is_{state}": log["state"] == state, f"next_is_{state}": log["next_state"] == state}
    columns = [f"is_{state}" for state in range(3)]  # the constant is the fourth
    linear = evaluate_log(log, SCALES, time="time", features=columns, model="linear", ridge=0.0)
    np.testing.assert_allclose(linear.values, table.row_values, atol=1e-10)
    with pytest.raises(tdd.ConfigError, match="ridge=0 needs features that do not depend on each other: leave one"):
        evaluate_log(log, SCALES, features=[*columns, "is_3"], model="linear", ridge=0.0)
    with pytest.raises(tdd.ConfigError, match=r"ridge=0 leaves the weights of overlapping tiles open: pass"):
        evaluate_log(log, SCALES, features=columns, model="tiles", ridge=0.0)


def test_a_model_of_endless_episodes_has_no_undiscounted_value():
    with pytest.raises(tdd.ConfigError, match="the log does not determine the values at γ=1: pass a discount below 1"):
        evaluate_log(autoregressive(4, 5, 20), discounts(0.5, 1.0), features=["x"], model="linear", method="td0")


def test_beyond_what_was_seen_tiles_stay_constant():
    result = evaluate_log(autoregressive(1, 10, 50), SCALES, features=["x"], model="tiles", held_out=0)
    low, high = (np.array([[extreme]]) for extreme in (-99.0, 99.0))
    x = autoregressive(1, 10, 50)["x"]
    np.testing.assert_array_equal(result.predict(low), result.predict([[x.min()]]))
    np.testing.assert_array_equal(result.predict(high), result.predict([[x.max()]]))


def test_a_column_may_hold_several_features():
    log = autoregressive(2, 10, 30)
    log["pair"] = np.stack([log["x"], log["x"] ** 2], axis=1)
    log["next_pair"] = np.stack([log["next_x"], log["next_x"] ** 2], axis=1)
    log |= {"square": log["x"] ** 2, "next_square": log["next_x"] ** 2}
    one = evaluate_log(log, SCALES, features=["pair"], model="tiles", tilings=4, tiles=3)
    two = evaluate_log(log, SCALES, features=["x", "square"], model="tiles", tilings=4, tiles=3)
    np.testing.assert_allclose(one.values, two.values, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- episodes that are held out


def test_calibration_by_hand():
    """Trained on a → b with rewards 0 and 1, tested on an episode with rewards 0 and 3."""
    log = episodes_of("a0 b1", "a0 b3")
    found = evaluate_log(log, discounts(0.5), held_out=0.5, method="td0").calibration
    np.testing.assert_allclose(found.predicted[:, 0], [0.5, 1])
    np.testing.assert_allclose(found.realised[:, 0], [1.5, 3])
    assert (found.bias[0], found.correlation[0]) == pytest.approx((-1.5, 1))
    assert found.rmse[0] == pytest.approx(np.sqrt((1 + 4) / 2))
    assert found.explained_variance[0] == pytest.approx(1 - 0.25 / 0.5625)
    assert (found.episodes, found.steps, found.unseen) == (1, 2, 0)
    assert found.count.tolist() == [2] and found.too_near.tolist() == [0]


def test_the_error_of_the_bias_counts_episodes_not_steps():
    """Errors −1 and −1 in one episode, 3 in the other: sums around the mean 1/3 are −8/3 and 8/3."""
    log = episodes_of("a0 b0", "a0 b0", "a1 b1", "a-3")
    found = evaluate_log(log, discounts(0.0), held_out=0.5, method="td0").calibration
    assert found.bias[0] == pytest.approx(1 / 3)
    assert found.bias_error[0] == pytest.approx(np.sqrt(2 * 2 * (8 / 3) ** 2) / 3)
    single = evaluate_log(log, discounts(0.0), held_out=0.25, method="td0").calibration
    assert single.bias[0] == pytest.approx(3 + 0.5 * 1 / 1.5) and np.isnan(single.bias_error[0])


def test_returns_near_a_cut_are_not_known():
    """With γ = .5 the weight 1 % is passed after seven steps; with .1 after two; γ = 0 needs the step alone."""
    log = {
        "episode": [0] * 10 + [1] * 10,
        "state": [0] * 20,
        "next_state": [0] * 20,
        "reward": [1.0] * 20,
        "terminated": [False] * 20,
        "truncated": ([False] * 9 + [True]) * 2,
    }
    found = evaluate_log(log, discounts(0.0, 0.1, 0.5, 0.99), held_out=0.5, method="td0", tolerance=0.011).calibration
    assert found.count.tolist() == [10, 9, 4, 0] and found.too_near.tolist() == [0, 1, 6, 10]
    np.testing.assert_allclose(found.realised[:4, 2], [2 - 0.5**k for k in (9, 8, 7, 6)])
    assert np.isnan(found.realised[4:, 2]).all() and np.isnan(found.predicted[4:, 2]).all()
    assert np.isnan(found.bias[3]) and np.isnan(found.rmse[3])
    assert np.isnan(found.explained_variance[0]), "all realised returns are 1"
    longer = log | {"time": np.tile(np.arange(0, 20, 2), 2), "next_time": np.tile(np.arange(2, 22, 2), 2)}
    found = evaluate_log(longer, discounts(0.5), held_out=0.5, method="td0", time="time").calibration
    assert found.count.tolist() == [7], "two units of time a step"
    np.testing.assert_allclose(found.realised[:7, 0], [(1 - 0.25**k) / 0.75 for k in range(10, 3, -1)])


def test_states_that_training_never_saw_are_counted():
    log = episodes_of("a0 b1", "a0 c5 b3")
    found = evaluate_log(log, discounts(0.5, 0.9), held_out=0.5, method="td0").calibration
    assert found.unseen == 1 and found.count.tolist() == [2, 2] and found.too_near.tolist() == [0, 0]


@pytest.mark.parametrize(("share", "held"), [(0.2, 2), (0.29, 2), (0.3, 3), (0.01, 1), (0.99, 9), (0, 0)])
def test_the_last_episodes_are_held_out(share, held):
    log = episodes_of(*[f"a{number}" for number in range(10)])
    result = evaluate_log(log, discounts(0.5), held_out=share, method="td0")
    assert (result.episodes, result.held_out, result.steps) == (10, held, 10 - held)
    assert result.values.item() == pytest.approx(np.mean(np.arange(10 - held)))


def test_time_stamps_give_the_order_of_episodes():
    log = episodes_of("a0", "a1", "a2", "a3") | {"time": [3.0, 1.0, 9.0, 1.0]}
    result = evaluate_log(log, discounts(0.5), held_out=0.5, method="td0", time="time")
    assert result.values.item() == pytest.approx((1 + 3) / 2), "those that begin first, in the order of the log"
    np.testing.assert_allclose(result.calibration.realised[:, 0], [0, 2])


def test_groups_keep_equal_predictions_together():
    log = episodes_of(*["a0 b1"] * 4, "a0 b3 a1 b1", "a0 b1")
    found = evaluate_log(log, discounts(0.0), held_out=0.34, method="td0").calibration
    predicted, realised, counts = found.bins(3)
    np.testing.assert_allclose(predicted[0, :2], [0, 1])
    np.testing.assert_allclose(realised[0, :2], [1 / 3, 5 / 3])
    assert counts.tolist() == [[3, 3, 0]] and np.isnan(predicted[0, 2])
    many = evaluate_log(random_log(7, 80, 30), SCALES, method="td0").calibration
    predicted, realised, counts = many.bins(4)
    assert (counts.sum(axis=1) == many.count).all() and (np.diff(predicted, axis=1) > 0).all()
    np.testing.assert_allclose((realised * counts).sum(axis=1), np.nansum(many.realised, axis=0), atol=1e-9)
