"""Logs of all kinds give the same, and files that cannot be read are named."""

import importlib
import subprocess
import sys

import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet

import tddelta as tdd
from logs_data import SCALES, autoregressive, evaluate, minari_like, random_log, small
from tddelta.tabular import evaluate_log

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
    frames = (frame.astype({"state": kind}) for kind in ("Int64", float))
    for other in (tmp_path / "whole.csv", tmp_path / "float.csv", *frames):
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
    lines = ["episode,state,reward,terminated,truncated", "0,a,1,False,False", "", "0,,1,True,False"]
    (tmp_path / "log.csv").write_text("\n".join(lines), encoding="utf-8")
    for other, options, message in (
        (frame, {}, "row 4: terminated is missing"),
        (table, {}, "row 2: state is missing"),
        (readings, {"features": ["x"], "model": "linear"}, "row 4: reward is missing"),
        (pandas.DataFrame(small("next_state")).assign(when=dates), {"time": "when"}, "row 6: when is missing"),
        (pyarrow.table(small("next_state") | {"state": [1, None, 1, 1, 2, 2]}), {}, "row 2: state is missing"),
        (tmp_path / "log.csv", {}, "row 2: state is missing"),
    ):
        with pytest.raises(tdd.DataError, match=f"^{message}"):
            evaluate(other, **options)


def test_dates_with_zones_and_numbers_as_text(tmp_path):
    log = small("next_state", "time", "next_time")
    expected = evaluate(log, time="time")
    start = pandas.Timestamp("2026-03-01T08:00:00", tz="Europe/Paris")
    frame = pandas.DataFrame(log)
    for name in ("time", "next_time"):
        frame[name] = start + pandas.to_timedelta(frame[name], unit="s")
    text = frame.assign(**{name: frame[name].map(lambda date: date.isoformat()) for name in ("time", "next_time")})
    text.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log[1].parquet")
    numbers = log | {"time": [str(entry) for entry in log["time"]]}
    for other in (frame, text, numbers, tmp_path / "log.csv", tmp_path / "log[1].parquet"):
        assert evaluate(other, time="time").values.tobytes() == expected.values.tobytes()


def test_blanks_and_invisible_characters_around_names_do_not_count(tmp_path):
    log = columns()
    expected = evaluate(log).values.tobytes()
    usual = write_csv(tmp_path / "log.csv", log).read_text(encoding="utf-8")
    (tmp_path / "blanks.csv").write_text("\ufeff\ufeff" + usual.replace(",", " , "), encoding="utf-8")
    assert evaluate(tmp_path / "blanks.csv").values.tobytes() == expected
    assert evaluate({f" {name}\u200b": column for name, column in log.items()}).values.tobytes() == expected
    assert evaluate(log, state=" state", reward="reward\u00a0").values.tobytes() == expected
    with pytest.raises(tdd.DataError, match="the log names columns twice, 'reward': give each"):
        evaluate(log | {"reward ": log["reward"]})


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
    assert complaint("log.csv", b"a,b,a\n1,2,3\n") == "log.csv names columns twice, 'a': give each a name of its own"
    assert complaint("log.csv", b"a,b\n1,2\n1\n").startswith("row 2: has 1 fields under 2 names: write one field per")
    for empty in (b"", b"\n\n", b"\xef\xbb\xbf"):
        assert complaint("log.csv", empty).startswith("log.csv is empty: pass a log with columns such as episode, sta")
    for name, content, words in (
        ("log.csv", b"episode;state;reward\n1;2;0,5\n", "by ';'; a .csv file is read with ','"),
        ("log.csv", b"episode\tstate\n1\t2\n", r"by '\t'; a .csv file is read with ','"),
        ("log.tsv", b"episode,state\n1,2\n", r"by ','; a .tsv file is read with '\t'"),
    ):
        assert complaint(name, content).startswith(f"{name} separates its columns {words}: write it so, with points in")
    assert complaint("log.xlsx", b"", tdd.ConfigError).startswith("a log must be a file of .npz, .csv, .tsv, .parquet;")
    np.savez(tmp_path / "objects.npz", **{name: np.array(column, object) for name, column in small().items()})
    for log, kind, message in (
        (tmp_path / "objects.npz", tdd.DataError, r"cannot be read as NPZ .*: write it with np.savez, with arrays"),
        ("nowhere.csv", tdd.ConfigError, r"nowhere.csv does not exist: check the path$"),
        ("nowhere", tdd.ConfigError, r"nowhere does not exist: check the path; a Minari dataset is minari:NAME"),
        (tmp_path, tdd.ConfigError, r"is a folder: name a file of .npz, .csv, .tsv, .parquet, or a Minari"),
        ("", tdd.ConfigError, r"a log needs a name; got '': name a file of .npz, .csv"),
        ("log" * 2000 + ".csv", tdd.ConfigError, r"cannot be read \(.*\): check the path and its permissions"),
        ({}, tdd.DataError, r"^the log is empty: pass a log with columns such as episode"),
        (3, tdd.ConfigError, "a log must be a mapping of arrays, a table, a Minari dataset or a path"),
    ):
        with pytest.raises(kind, match=message):
            evaluate(log)


def test_a_damaged_archive_is_named(tmp_path):
    path = tmp_path / "log.npz"
    np.savez_compressed(path, **random_log(0, 3, 3))
    whole = path.read_bytes()
    for place in range(0, len(whole), 31):  # in headers, in data, in the directory at the end
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            evaluate(path)
        except (tdd.ConfigError, tdd.DataError) as error:
            assert "log" in str(error)  # another name of a column is no damage that can be seen
        path.write_bytes(whole[:place])
        with pytest.raises(tdd.DataError, match=r"log.npz cannot be read as NPZ \("):
            evaluate(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(path)
    with pytest.raises(tdd.DataError, match=r"log.npz cannot be read as NPZ \(.*\): write it with np.savez"):
        evaluate(path)


@pytest.mark.parametrize(
    ("kind", "opens"),
    [("CSV", "pathlib.Path.open"), ("NPZ", "pathlib.Path.open"), ("Parquet", "polars.read_parquet_schema")],
)
def test_a_file_that_may_not_be_read_is_named(kind, opens, tmp_path, monkeypatch):
    (tmp_path / f"log.{kind.lower()}").touch()

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(opens, refuse)
    with pytest.raises(tdd.DataError, match=rf"cannot be read as {kind} \(.*Permission denied\): write it"):
        evaluate(tmp_path / f"log.{kind.lower()}")


def test_missing_packages_are_named(tmp_path, monkeypatch):
    parquet.write_table(pyarrow.table(small("next_state")), tmp_path / "log.parquet")

    def refuse(name, *arguments):
        if name in ("polars", "minari"):
            raise ModuleNotFoundError(name)
        return real(name, *arguments)

    real = importlib.import_module
    monkeypatch.setattr("tddelta.tabular.log_reading.import_module", refuse)
    for log in (tmp_path / "log.parquet", pyarrow.table(small("next_state"))):
        with pytest.raises(tdd.MissingExtra, match=r'Parquet and Arrow needs polars: pip install "tddelta\[tabular\]"'):
            evaluate(log)
    with pytest.raises(tdd.MissingExtra, match="a Minari dataset by its name needs minari: pip install minari"):
        evaluate("minari:D4RL/door/human-v2")


def test_a_minari_dataset_by_its_name(monkeypatch):
    def load(name):
        if name != "known":
            raise FileNotFoundError(name)
        return minari_like([])

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
        "print(*({'numba', 'polars', 'pyarrow', 'pandas', 'minari', 'jax', 'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.split()


# ---------------------------------------------------------------- Minari


def test_a_minari_dataset_is_a_log():
    dataset = minari_like(
        [
            (np.array([0, 1, 0, 5]), [1.0, 2.0, 4.0], [False, False, True]),
            (np.array([0, 1, 0]), [0.5, -1.0], [False, False]),
            (np.array([1, 5]), [3.0], [True]),
        ]
    )
    result = evaluate_log(dataset, SCALES, held_out=0.4)
    expected = evaluate_log(small("next_state"), SCALES, held_out=0.4)
    assert result.states == (0, 1) and result.values.tobytes() == expected.values.tobytes()


def test_a_minari_dataset_of_sensors_needs_a_model_only():
    log = autoregressive(3, 12, 20)
    x = np.concatenate([log["x"].reshape(12, 20), log["next_x"].reshape(12, 20)[:, -1:]], axis=1)
    rewards = log["reward"].reshape(12, 20)
    dataset = minari_like([(x[e][:, None], rewards[e], [False] * 20) for e in range(12)])
    result = evaluate_log(dataset, SCALES, model="linear")
    assert result.values.tobytes() == evaluate_log(log, SCALES, features=["x"], model="linear").values.tobytes()
    with pytest.raises(tdd.DataError, match=r"state is .*, a fraction and no label: name columns of sensors"):
        evaluate_log(dataset, SCALES)


def test_minari_datasets_that_cannot_be_read():
    dictionary = minari_like([({"position": np.zeros(2)}, [1.0], [True])])
    with pytest.raises(tdd.DataError, match="episode 0 of the Minari dataset has dict observations; only arrays"):
        evaluate_log(dictionary, SCALES)
    short = minari_like([(np.zeros(1), [1.0], [True])])
    with pytest.raises(tdd.DataError, match="has 1 observations for 1 steps; there must be one more than steps"):
        evaluate_log(short, SCALES)
