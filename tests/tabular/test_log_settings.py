"""Values from logs: settings that are out of range, of another type, or without a meaning."""

import numpy as np
import pytest

import tddelta as tdd
from logs_data import discounts, episodes_of, small
from tddelta.tabular import evaluate_log

SCALES = tdd.TimeScales.from_gammas([0.0, 0.5, 0.9], lam=0.8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "td1"}, "method must be one of lambda, td0, monte_carlo; got 'td1': did you mean 'td0'"),
        ({"model": "forest"}, "model must be None for labels, or one of tiles, linear; got 'forest'"),
        ({"features": ["x"]}, "features need a model; got None: pass model='tiles' or model='linear'"),
        ({"features": [], "model": "linear"}, "features must name at least one column; got none"),
        ({"held_out": 1.0}, r"held_out must be in \[0, 1\); got 1.0"),
        ({"tolerance": 0.0}, r"tolerance must be in \(0, 1\); got 0.0"),
        ({"held_out": "a"}, r"held_out must be in \[0, 1\); got 'a': pass a number from there"),
        ({"held_out": True}, r"held_out must be in \[0, 1\); got True"),
        ({"model": "linear", "features": ["x"], "ridge": -1.0}, r"ridge must be in \[0, ∞\); got -1.0"),
        ({"model": "linear", "features": ["x"], "ridge": "a"}, r"ridge must be in \[0, ∞\); got 'a'"),
        ({"state": 3}, "state must be the name of a column; got 3: pass text, as the log has it"),
        ({"state": ["state", None]}, "state must be the name of a column; got None"),
        ({"features": 3, "model": "linear"}, "features must be the name of a column; got 3"),
        ({"episode": None}, "episode must be the name of a column; got None"),
        ({"terminated": False}, "terminated must be the name of a column; got False"),
        ({"next_prefix": ""}, "next_prefix must be a text; got ''"),
        ({"time": "time", "time_unit": "hours"}, "time_unit must be a number above 0; got 'hours'"),
        ({"last_row": "skip"}, "last_row must be one of step, observation; got 'skip'"),
        ({"time_unit": 2.0}, "time_unit=2.0 needs time stamps: name their column with time="),
        ({"time": "time", "time_unit": 0.0}, "time_unit must be a number above 0; got 0.0"),
        ({"model": "tiles", "features": ["x"], "tiles": 0}, "tiles must be a whole number of at least 1; got 0"),
        (
            {"model": "tiles", "features": ["x"], "tilings": 1.5},
            "tilings must be a whole number of at least 1; got 1.5",
        ),
        ({"reward": "score"}, "the log has no column 'score'; its columns are 'episode', .*: say what yours is called"),
        ({"tiles": 4}, "tiles has no meaning without a model; got 4: leave it out, since it is for model='tiles'"),
        (
            {"ridge": 0.01},
            "ridge has no meaning without a model; got 0.01: leave it out, since values of labels have no",
        ),
        ({"features": "x", "model": "linear", "tiles": 8}, "tiles has no meaning for model 'linear'; got 8: leave it"),
        ({"features": "x", "model": "linear", "tilings": "a"}, "tilings has no meaning for model 'linear'; got 'a'"),
        ({"features": "x", "model": "tiles", "state": "state"}, "state has no meaning beside features; got 'state'"),
        (
            {"held_out": 0, "tolerance": 2.0},
            "tolerance has no meaning with held_out=0; got 2.0: leave it out, since no",
        ),
    ],
)
def test_settings_out_of_range_or_without_a_meaning_are_explained(options, message):
    with pytest.raises(tdd.ConfigError, match=message):
        evaluate_log(small("next_state", "x", "next_x", "time", "next_time"), SCALES, **options)


def test_lambda_needs_trace_decays():
    with pytest.raises(tdd.ConfigError, match=r"method='lambda' needs trace decays; these scales have none: make them"):
        evaluate_log(small("next_state"), discounts(0.5))
    with pytest.raises(tdd.ConfigError, match=r"scales must name time scales; got 0\.9"):
        evaluate_log(small("next_state"), 0.9)


def test_one_episode_cannot_be_split():
    with pytest.raises(tdd.ConfigError, match=r"held_out=0.2 needs at least two episodes; the log has one: pass held"):
        evaluate_log(episodes_of("a0 b1"), SCALES)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({}, {"state": "state", "tolerance": 0.01}),
        ({"features": "x", "model": "tiles"}, {"tiles": 8, "tilings": 8, "ridge": 0.01}),
        (
            {"features": "x", "model": "linear"},
            {"features": ("x",), "ridge": np.float32(0.01), "held_out": np.float64(0.2)},
        ),
        ({"model": "linear", "state": "x"}, {"state": ["x"], "ridge": 0.01}),
    ],
)
def test_what_the_defaults_are(options, given):
    log = small("next_state", "x", "next_x")
    found, expected = (evaluate_log(log, SCALES, **settings) for settings in (options, options | given))
    np.testing.assert_allclose(found.row_values, expected.row_values, rtol=1e-6)
    assert found.calibration.tolerance == 0.01


def test_predictions_are_for_labels():
    result = evaluate_log(small("next_state"), SCALES, held_out=0)
    for wrong in (None, 3, "ab", [["a", "b"]]):
        with pytest.raises(tdd.DataError, match=r"observations must be a sequence of labels; got .*: pass "):
            result.predict(wrong)
    assert result.predict([]).shape == (0, 3)


def test_results_are_compared_by_identity_and_shown_in_a_line():
    first, second = (evaluate_log(small("next_state"), SCALES, held_out=0.4) for _ in range(2))
    assert first != second and first == first
    assert first.calibration != second.calibration and len({first, second, first.calibration}) == 3
    assert repr(first) == "LogValues(2 states, 3 scales, table, lambda)"
    sensors = evaluate_log(small("x", "next_x"), SCALES, features="x", model="linear", held_out=0)
    assert repr(sensors) == "LogValues(6 rows, 3 scales, linear, lambda)"


@pytest.mark.parametrize("number", [-1, 0, 2.5, None])
def test_groups_that_cannot_be(number):
    found = evaluate_log(small("next_state"), SCALES, held_out=0.4).calibration
    with pytest.raises(tdd.ConfigError, match=f"number must be a whole number of at least 1; got {number}"):
        found.bins(number)
