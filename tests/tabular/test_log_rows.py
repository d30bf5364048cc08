"""Rows that cannot be used are named, and all kinds of files give the same."""

import math

import numpy as np
import pytest

import tddelta as tdd
from logs_data import small
from tddelta.tabular import evaluate_log

SCALES = tdd.TimeScales.from_gammas([0.0, 0.5, 0.9], lam=0.8)


def evaluate(log, **options):
    return evaluate_log(log, SCALES, **{"held_out": 0, **options})


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
    options = {"features": ["x"], "model": "linear"} if "x" in name.split("_") else {}
    options |= {"time": "time"} if "time" in name else {}
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
        r"^row 5: the episode ends here without having terminated, so that the value of the state after it counts, and "
        r"that state is not known: add next_state to the log, or pass last_row='observation' to take the last row"
    )
    with pytest.raises(tdd.DataError, match=message):
        evaluate(small())
    with pytest.raises(tdd.DataError, match=message):
        evaluate(small(truncated=(5, False)))  # that no flag is set says the same
    with pytest.raises(tdd.DataError, match=r"^row 5: .* and its time is not known: add next_time to the"):
        evaluate(small("next_state", "time"), time="time")
    both = small("x", "time", "next_x")
    with pytest.raises(
        tdd.ConfigError, match="the log has successor columns, but not next_time: pass all of next_x, nex"
    ):
        evaluate(both, features=["x", "time"], model="linear")


def test_a_flag_before_a_last_row_hints_at_final_observations():
    log = small(terminated=(2, True), truncated=(4, True))
    log["terminated"][2] = log["truncated"][4] = False
    log["episode"] = [7, 7, 7, 8, 8, 8]
    log["terminated"] = [False, True, False, False, True, False]
    log["truncated"] = [False] * 6
    with pytest.raises(tdd.DataError, match=r"^row 2 \(1 more: 5\): terminated is set, .* pass last_row='observation'"):
        evaluate(log)
    result = evaluate(log, last_row="observation", method="td0")
    assert result.steps == 4
    only = {name: column[:1] for name, column in log.items()}
    with pytest.raises(tdd.DataError, match="row 1: holds no step: every row is the final observation"):
        evaluate(only, last_row="observation")


def test_columns_of_two_axes_where_one_is_needed():
    log = small("next_state")
    log["reward"] = np.zeros((6, 2))
    with pytest.raises(tdd.DataError, match=r"row 1: reward has shape \(2,\) in each row: pass one number per row"):
        evaluate(log)


def test_lengths_must_agree():
    log = small("next_state")
    log["reward"].pop()
    with pytest.raises(
        tdd.DataError, match="all columns must have one entry per row; got episode 6, state 6, reward 5"
    ):
        evaluate(log)
    with pytest.raises(tdd.DataError, match="the log has no rows: pass one with at least one step"):
        evaluate({name: [] for name in small()})
    with pytest.raises(tdd.DataError, match="reward is no array"):
        evaluate(small() | {"reward": [[1.0], [1.0, 2.0]] * 3})


def test_time_stamps_of_two_kinds():
    log = small("next_state", "next_time") | {"time": ["2026-01-01T00:00:00"] * 5 + ["2026-01-01T00:00:00+01:00"]}
    with pytest.raises(
        tdd.DataError, match=r"row 6: time is '2026.*', no time stamp like the others: write numbers, or"
    ):
        evaluate(log, time="time")
