"""Values from logs of sensors: tiles and linear models against closed forms, and against the table."""

import numpy as np
import pytest

import tddelta as tdd
from logs_data import autoregressive, discounts, random_log
from tddelta.tabular import evaluate_log

SCALES = tdd.TimeScales.from_gammas([0.0, 0.5, 0.9], lam=0.8)
METHODS = ("lambda", "td0", "monte_carlo")


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
    with pytest.raises(tdd.ShapeError, match="observations must be an array of numbers; got 'warm'"):
        result.predict("warm")
    with pytest.raises(tdd.DataError, match=r"observations must be finite; got nan at \[1, 0\]"):
        result.predict([[0.0], [np.nan]])


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
