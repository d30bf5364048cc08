"""Rows of logs that cannot be used are named; settings that are out of range or have no meaning are explained."""

import math

import numpy as np
import pytest

import tddelta as tdd
from logs_data import SCALES, discounts, episodes_of, evaluate, small
from tddelta.tabular import evaluate_log

DAY = "2026-01-01"
TILES, LINEAR = ({"features": ["x"], "model": model} for model in ("tiles", "linear"))


# ---------------------------------------------------------------- malformed rows


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("reward", 3, None, "row 3: reward is missing or not a number: correct the row or leave its episode out"),
        ("reward", 3, math.nan, "row 3: reward is missing or not a number: correct the row"),
        ("reward", 4, math.inf, "row 4: reward is inf: correct the row"),
        ("reward", 2, "two", "row 2: reward is 'two', not a number: correct the row"),
        ("state", 2, None, "row 2: state is missing: correct the row"),
        ("state", 2, "", "row 2: state is missing: correct the row"),
        ("state", 5, 0.5, "row 5: state is 0.5, a fraction and no label: name columns of sensors with features="),
        ("state", 5, ["b"], "row 5: state is of type list, which is no label: use numbers or text"),
        ("episode", 1, None, "row 1: episode is missing"),
        ("terminated", 4, None, "row 4: terminated is missing: write true or false, or 1 or 0"),
        ("terminated", 4, 2, "row 4: terminated is 2, which is no flag: write true or false, or 1 or 0"),
        ("truncated", 6, "maybe", "row 6: truncated is 'maybe', which is no flag"),
        ("terminated", 2, True, "row 2: terminated is set, but the episode goes on in row 3: give what follows"),
        ("truncated", 1, True, "row 1: truncated is set, but the episode goes on in row 2: give what follows"),
        ("episode", 6, 7, "row 6: episode 7 goes on after rows of 8: sort the rows by episode and time"),
        ("next_state", 5, None, "row 5: next_state is missing"),
        ("next_state", 1, None, "row 1: next_state is missing"),
        ("next_state", 1, "c", "row 1: next_state is 'c', but the next row of the episode has 'b': a row is miss"),
        ("time", 3, 1.0, "row 3: time is 1, not after 1 in the row before: time stamps must rise"),
        ("time", 2, -1.0, "row 2: time is -1, not after 0 in the row before"),
        ("time", 5, math.nan, "row 5: time is missing or not a number"),
        ("time", 1, "noon", "row 1: time is 'noon', no time stamp: write numbers, or ISO 8601 as in"),
        ("next_time", 5, 10.5, "row 5: next_time is 10.5, not after 10.5 in the same row"),
        ("next_time", 1, 1.5, "row 1: next_time is 1.5, but the next row of the episode has 1.0:"),
        ("next_time", 5, None, "row 5: next_time is missing or not a number"),
        ("x", 2, math.nan, "row 2: x is missing or not a number"),
        ("x", 2, "warm", "row 2: x is 'warm', not a number"),
        ("next_x", 4, 0.6, "row 4: next_x is [0.6], but the next row of the episode has [0.5]:"),
        ("next_x", 5, None, "row 5: next_x is missing or not a number"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(name, row, value, message):
    options = LINEAR if "x" in name.split("_") else {"time": "time"} if "time" in name else {}
    with pytest.raises(tdd.DataError) as caught:
        evaluate(small("next_state", "time", "next_time", "x", "next_x", **{name: (row, value)}), **options)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("; rows are counted from 1, without a header")


def test_several_rows_of_a_kind_are_named_together():
    log = small("next_state")
    log["reward"][1] = log["reward"][4] = None
    with pytest.raises(tdd.DataError, match=r"^row 2 \(1 more: 5\): reward is missing"):
        evaluate(log)
    log["reward"] = [None] * 6
    with pytest.raises(tdd.DataError, match=r"^row 1 \(5 more: 2, 3, 4, 5, …\): reward is missing"):
        evaluate(log)


def test_an_unknown_successor_is_not_guessed():
    message = (
        "^row 5: the episode ends here .* that state is not known: add next_state to the log, or pass last_row='obs"
    )
    with pytest.raises(tdd.DataError, match=message):
        evaluate(small())
    with pytest.raises(tdd.DataError, match=message):
        evaluate(small(truncated=(5, False)))  # that no flag is set says the same
    with pytest.raises(tdd.DataError, match=r"^row 5: .* and its time is not known: add next_time to the"):
        evaluate(small("next_state", "time"), time="time")
    with pytest.raises(tdd.ConfigError, match="has successor columns, but not next_time: pass all of next_x, next_t"):
        evaluate(small("x", "time", "next_x"), features=["x", "time"], model="linear")


def test_a_flag_before_a_last_row_hints_at_final_observations():
    ends = [False, True, False, False, True, False]
    log = small() | {"episode": [7, 7, 7, 8, 8, 8], "terminated": ends, "truncated": [False] * 6}
    with pytest.raises(tdd.DataError, match=r"^row 2 \(1 more: 5\): terminated is set, .* pass last_row='observation'"):
        evaluate(log)
    result = evaluate(log, last_row="observation", method="td0")
    assert result.steps == 4
    only = {name: column[:1] for name, column in log.items()}
    with pytest.raises(tdd.DataError, match="row 1: holds no step: every row is the final observation"):
        evaluate(only, last_row="observation")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"reward": np.zeros((6, 2))}, r"row 1: reward has shape \(2,\) in each row: pass one number per row"),
        ({"reward": [1.0] * 5}, "all columns must have one entry per row; got episode 6, state 6, reward 5"),
        ({name: [] for name in small()}, "the log has no rows: pass one with at least one step"),
        ({"reward": [[1.0], [1.0, 2.0]] * 3}, "reward is no array"),
        # two kinds of time stamps; a number that is none in a column of text, which is blamed and no other
        ({"time": [f"{DAY}T00:00"] * 5 + [f"{DAY}T00:00+01:00"]}, f"row 6: time is '{DAY}.*', no time stamp like the"),
        ({"time": ["nan", "1", "2", "0", "1", "2"]}, "^row 1: time is missing or not a number: correct the row"),
        ({"time": ["inf", "1", "2", "0", "1", "2"]}, "^row 1: time is inf: correct the row"),
    ],
)
def test_columns_that_cannot_be_used(column, message):
    names = ("next_state", "next_time") if "time" in column else ()
    with pytest.raises(tdd.DataError, match=message):
        evaluate(small(*names) | column, time="time" if "time" in column else None)


# ---------------------------------------------------------------- settings


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
        ({**LINEAR, "ridge": -1.0}, r"ridge must be in \[0, ∞\); got -1.0"),
        ({**LINEAR, "ridge": "a"}, r"ridge must be in \[0, ∞\); got 'a'"),
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
        ({**TILES, "tiles": 0}, "tiles must be a whole number of at least 1; got 0"),
        ({**TILES, "tilings": 1.5}, "tilings must be a whole number of at least 1; got 1.5"),
        ({"reward": "score"}, "the log has no column 'score'; its columns are 'episode', .*: say what yours is called"),
        ({"tiles": 4}, "tiles has no meaning without a model; got 4: leave it out, since it is for model='tiles'"),
        ({"ridge": 0.01}, "ridge has no meaning without a model; got 0.01: leave it out, since values of labels have"),
        ({**LINEAR, "tiles": 8}, "tiles has no meaning for model 'linear'; got 8: leave it"),
        ({**LINEAR, "tilings": "a"}, "tilings has no meaning for model 'linear'; got 'a'"),
        ({**TILES, "state": "state"}, "state has no meaning beside features; got 'state'"),
        ({"held_out": 0, "tolerance": 2.0}, "tolerance has no meaning with held_out=0; got 2.0: leave it out, since"),
    ],
)
def test_settings_out_of_range_or_without_a_meaning_are_explained(options, message):
    with pytest.raises(tdd.ConfigError, match=message):
        evaluate_log(small("next_state", "x", "next_x", "time", "next_time"), SCALES, **options)


def test_lambda_needs_trace_decays():
    with pytest.raises(tdd.ConfigError, match=r"method 'lambda', .*, needs trace decays; these scales have none: "):
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
        (LINEAR, {"features": ("x",), "ridge": np.float32(0.01), "held_out": np.float64(0.2)}),
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
