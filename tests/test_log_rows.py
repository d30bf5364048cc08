"""Rows that cannot be used are named, and all kinds of files give the same."""

import importlib
import math
import subprocess
import sys

import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet

import tddelta as tdd
from logs_data import random_log, small
from tddelta.tabular import evaluate_log

SCALES = tdd.TimeScales.from_gammas([0.0, 0.5, 0.9], lam=0.8)
COUNTED = "; rows are counted from 1, without a header"


def evaluate(log, **options):
    return evaluate_log(log, SCALES, **{"held_out": 0, **options})


# ---------------------------------------------------------------- malformed rows


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        (
            {"reward": (3, None)},
            {},
            "row 3: reward is missing or not a number: correct the row or leave its episode out",
        ),
        ({"reward": (3, math.nan)}, {}, "row 3: reward is missing or not a number: correct the row"),
        ({"reward": (4, math.inf)}, {}, "row 4: reward is inf: correct the row"),
        ({"reward": (2, "two")}, {}, "row 2: reward is 'two', not a number: correct the row"),
        ({"state": (2, None)}, {}, "row 2: state is missing: correct the row"),
        ({"state": (2, "")}, {}, "row 2: state is missing: correct the row"),
        (
            {"state": (5, 0.5)},
            {},
            "row 5: state is 0.5, a fraction and no label: name columns of sensors with features=",
        ),
        ({"state": (5, ["b"])}, {}, "row 5: state is of type list, which is no label: use numbers or text"),
        ({"episode": (1, None)}, {}, "row 1: episode is missing"),
        ({"terminated": (4, None)}, {}, "row 4: terminated is missing: write true or false, or 1 or 0"),
        ({"terminated": (4, 2)}, {}, "row 4: terminated is 2, which is no flag: write true or false, or 1 or 0"),
        ({"truncated": (6, "maybe")}, {}, "row 6: truncated is 'maybe', which is no flag"),
        (
            {"terminated": (2, True)},
            {},
            "row 2: terminated is set, but the episode goes on in row 3: give what follows",
        ),
        ({"truncated": (1, True)}, {}, "row 1: truncated is set, but the episode goes on in row 2: give what follows"),
        ({"episode": (6, 7)}, {}, "row 6: episode 7 goes on after rows of 8: sort the rows by episode and time"),
        ({"next_state": (5, None)}, {}, "row 5: next_state is missing"),
        ({"next_state": (1, None)}, {}, "row 1: next_state is missing"),
        (
            {"next_state": (1, "c")},
            {},
            "row 1: next_state is 'c', but the next row of the episode has 'b': a row is miss",
        ),
        (
            {"time": (3, 1.0)},
            {"time": "time"},
            "row 3: time is 1, not after 1 in the row before: time stamps must rise",
        ),
        ({"time": (2, -1.0)}, {"time": "time"}, "row 2: time is -1, not after 0 in the row before"),
        ({"time": (5, math.nan)}, {"time": "time"}, "row 5: time is missing or not a number"),
        (
            {"time": (1, "noon")},
            {"time": "time"},
            "row 1: time is 'noon', no time stamp: write numbers, or ISO 8601 as in",
        ),
        ({"next_time": (5, 10.5)}, {"time": "time"}, "row 5: next_time is 10.5, not after 10.5 in the same row"),
        ({"next_time": (1, 1.5)}, {"time": "time"}, "row 1: next_time is 1.5, but the next row of the episode has 1:"),
        ({"next_time": (5, None)}, {"time": "time"}, "row 5: next_time is missing or not a number"),
        ({"x": (2, math.nan)}, {"features": ["x"]}, "row 2: x is missing or not a number"),
        ({"x": (2, "warm")}, {"features": ["x"]}, "row 2: x is 'warm', not a number"),
        (
            {"next_x": (4, 0.6)},
            {"features": ["x"]},
            "row 4: next_x is [0.6], but the next row of the episode has [0.5]:",
        ),
        ({"next_x": (5, None)}, {"features": ["x"]}, "row 5: next_x is missing or not a number"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(changes, options, message):
    log = small("next_state", "time", "next_time", "x", "next_x", **changes)
    if "features" in options:
        options = {"model": "linear", **options}
    with pytest.raises(tdd.DataError) as caught:
        evaluate(log, **options)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(COUNTED)


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
    with pytest.raises(
        tdd.DataError, match=r"^row 5: .* time of the state after it is not known: add next_time to the"
    ):
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


# ---------------------------------------------------------------- kinds of logs


def columns(seed=0):
    """Columns of every kind, text labels among them."""
    log = random_log(seed, 25, 5)
    names = np.array(["north", "east", "south", "west", "007"])
    log["state"], log["next_state"] = names[log["state"]], names[log["next_state"]]
    log["sensor"], log["next_sensor"] = np.sin(log["time"]), np.sin(log["next_time"])
    return log


def write_csv(path, log, separator=","):
    lines = [separator.join(log)]
    for row in zip(*(column.tolist() for column in log.values()), strict=True):
        lines.append(separator.join(repr(entry) if isinstance(entry, float) else str(entry) for entry in row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("options", [{}, {"time": "time"}, {"features": ["sensor"], "model": "tiles"}])
def test_every_kind_of_log_gives_the_same(options, tmp_path):
    log = columns()
    expected = evaluate(log, held_out=0.2, **options)
    frame = pandas.DataFrame(log)
    table = pyarrow.table(log)
    structured = np.rec.fromarrays(list(log.values()), names=list(log))
    np.savez(tmp_path / "log.npz", **log)
    parquet.write_table(table, tmp_path / "log.parquet")
    frame.astype({"state": "category"}).to_parquet(tmp_path / "pandas.parquet")
    written = [write_csv(tmp_path / "log.csv", log), write_csv(tmp_path / "log.tsv", log, "\t")]
    frame.to_csv(tmp_path / "pandas.csv", index=False)
    files = [*written, *(tmp_path / name for name in ("log.npz", "log.parquet", "pandas.parquet", "pandas.csv"))]
    lists = {name: column.tolist() for name, column in log.items()}
    categories = frame.astype({"state": "category", "truncated": "boolean"})
    for other in (lists, frame, categories, table, structured, str(files[0]), *files):
        found = evaluate(other, held_out=0.2, **options)
        assert found.states == expected.states
        assert found.row_values.tobytes() == expected.row_values.tobytes(), type(other)
        assert found.calibration.rmse.tobytes() == expected.calibration.rmse.tobytes()


def test_numbers_are_labels_in_every_kind_of_log(tmp_path):
    log = random_log(1, 20, 4)
    expected = evaluate(log)
    assert expected.states == (0, 1, 2, 3)
    frame = pandas.DataFrame(log)
    frame.to_csv(tmp_path / "whole.csv", index=False)
    frame.astype({"state": float}).to_csv(tmp_path / "float.csv", index=False)
    for other in (
        tmp_path / "whole.csv",
        tmp_path / "float.csv",
        frame.astype({"state": "Int64"}),
        frame.astype({"state": float}),
    ):
        found = evaluate(other)
        assert found.states == expected.states and all(type(state) is int for state in found.states)
        assert found.values.tobytes() == expected.values.tobytes()


def test_missing_entries_of_tables_are_named(tmp_path):
    frame = pandas.DataFrame(small("next_state"))
    frame["terminated"] = frame["terminated"].astype("boolean")
    frame.loc[3, "terminated"] = pandas.NA
    log = small("next_state", "x", "next_x", state=(2, None))
    table = pyarrow.table(log)
    readings = pyarrow.table(small("x", "next_x", reward=(4, None)))
    dates = pandas.to_datetime(pandas.Series([0, 1, 3, 10, 11, None]), unit="s")
    for other, options, message in (
        (frame, {}, "row 4: terminated is missing"),
        (table, {}, "row 2: state is missing"),
        (readings, {"features": ["x"], "model": "linear"}, "row 4: reward is missing"),
        (pandas.DataFrame(small("next_state")).assign(when=dates), {"time": "when"}, "row 6: when is missing"),
    ):
        with pytest.raises(tdd.DataError, match=f"^{message}"):
            evaluate(other, **options)
    whole = pyarrow.table(small("next_state") | {"state": [1, None, 1, 1, 2, 2]})
    with pytest.raises(tdd.DataError, match=r"^row 2: state is missing"):
        evaluate(whole)
    lines = ["episode,state,reward,terminated,truncated", "0,a,1,False,False", "", "0,,1,True,False"]
    (tmp_path / "log.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(tdd.DataError, match=r"^row 2: state is missing"):
        evaluate(tmp_path / "log.csv")


def test_dates_with_zones_and_numbers_as_text(tmp_path):
    log = small("next_state", "time", "next_time")
    expected = evaluate(log, time="time")
    start = pandas.Timestamp("2026-03-01T08:00:00", tz="Europe/Paris")
    frame = pandas.DataFrame(log)
    for name in ("time", "next_time"):
        frame[name] = start + pandas.to_timedelta(frame[name], unit="s")
    text = frame.assign(**{name: frame[name].map(lambda date: date.isoformat()) for name in ("time", "next_time")})
    text.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    numbers = log | {"time": [str(entry) for entry in log["time"]]}
    for other in (frame, text, numbers, tmp_path / "log.csv", tmp_path / "log.parquet"):
        assert evaluate(other, time="time").values.tobytes() == expected.values.tobytes()


# ---------------------------------------------------------------- files that cannot be read


def test_files_that_cannot_be_read(tmp_path):
    def complaint(name, content, kind=tdd.DataError):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(kind) as caught:
            evaluate(path)
        return str(caught.value).replace(str(path), name)

    assert complaint("log.npz", b"no").startswith("log.npz cannot be read as NPZ (")
    assert complaint("log.parquet", b"no").startswith("log.parquet cannot be read as Parquet (")
    assert complaint("log.csv", b"\xff\xfe").startswith("log.csv cannot be read as CSV (")
    assert complaint("log.csv", b'a,"b').startswith("log.csv cannot be read as CSV (")
    assert (
        complaint("log.csv", b"a,b,a\n1,2,3\n")
        == "log.csv names a column twice in a, b, a: give each a name of its own"
    )
    assert complaint("log.csv", b"a,b\n1,2\n1\n").startswith(
        "row 2: has 1 fields under 2 names: write one field per column"
    )
    assert complaint("log.csv", b"", tdd.ConfigError).startswith("the log has no column 'episode'; its columns are")
    assert complaint("log.xlsx", b"", tdd.ConfigError).startswith("a log must be a file of .npz, .csv, .tsv, .parquet;")
    np.savez(tmp_path / "objects.npz", **{name: np.array(column, object) for name, column in small().items()})
    with pytest.raises(tdd.DataError, match=r"cannot be read as NPZ .*: write it with np.savez, with arrays"):
        evaluate(tmp_path / "objects.npz")
    with pytest.raises(tdd.ConfigError, match=r"nowhere.csv does not exist: check the path"):
        evaluate("nowhere.csv")
    with pytest.raises(tdd.ConfigError, match="is a folder: minari:NAME reads a Minari dataset"):
        evaluate(tmp_path)
    with pytest.raises(tdd.ConfigError, match="a log must be a mapping of arrays, a table, a Minari dataset or a path"):
        evaluate(3)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    parquet.write_table(pyarrow.table(small("next_state")), tmp_path / "log.parquet")

    def refuse(name, *arguments):
        if name.split(".")[0] in ("pyarrow", "minari"):
            raise ModuleNotFoundError(name)
        return real(name, *arguments)

    real = importlib.import_module
    monkeypatch.setattr("tddelta.tabular.log_files.import_module", refuse)
    with pytest.raises(tdd.MissingExtra, match=r'reading Parquet needs pyarrow: pip install "tddelta\[tabular\]"'):
        evaluate(tmp_path / "log.parquet")
    with pytest.raises(tdd.MissingExtra, match="a Minari dataset by its name needs minari: pip install minari"):
        evaluate("minari:D4RL/door/human-v2")


def test_a_minari_dataset_by_its_name(monkeypatch):
    def load(name):
        if name != "known":
            raise FileNotFoundError(name)
        return SimpleDataset()

    class SimpleDataset:
        def iterate_episodes(self):
            return iter(())

    minari = type(sys)("minari")
    minari.load_dataset = load
    monkeypatch.setitem(sys.modules, "minari", minari)
    with pytest.raises(tdd.DataError, match="the log has no rows"):
        evaluate("minari:known")
    with pytest.raises(tdd.ConfigError, match=r"no Minari dataset 'other' \(other\): minari download other"):
        evaluate("minari:other")


def test_arrays_and_csv_need_no_extra(tmp_path):
    write_csv(tmp_path / "log.csv", columns())
    program = (
        "import sys, tddelta as tdd\n"
        "from tddelta.tabular import evaluate_log\n"
        f"result = evaluate_log({str(tmp_path / 'log.csv')!r}, tdd.TimeScales.single(0.9, lam=0.9))\n"
        "assert len(result.states) == 5\n"
        "print(*({'numba', 'pyarrow', 'pandas', 'minari', 'jax', 'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.split()
