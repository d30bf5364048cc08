"""`tddelta values`: the table, the files, JSON, and wrong usage."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tddelta as tdd
from logs_data import random_log, small
from tddelta.cli import main
from tddelta.cli.values import Values
from tddelta.report import figures
from tddelta.tabular import evaluate_log


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("log.npz", **random_log(0, 60, 4))
    np.savez("sensors.npz", **(log := random_log(1, 40, 4)), x=np.sin(log["time"]), next_x=np.sin(log["next_time"]))


def call(*arguments):
    return main(["values", *arguments])


def test_files_are_written_before_the_words(monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Values, "_print", stopped)
    assert call("log.npz", "--out", "o") == 130
    assert table("o/values.csv")


def table(name):
    with Path(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_has_every_state_at_every_horizon(capsys):
    assert call("log.npz", "--scales", "2", "10", "--lam", "0.9") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    words = [line.split() for line in lines]
    result = evaluate_log("log.npz", tdd.TimeScales.from_horizons([2, 10], lam=0.9))
    assert lines[0] == "V of the policy that wrote log.npz; horizons 1/(1 − γ) in steps"
    assert words[2] == ["state", "visits", "2", "10"]
    order = np.argsort(-result.visits, kind="stable")
    rows = zip(result.states, result.visits, result.values, strict=True)
    told = [[str(state), str(visits), *(f"{value:.4g}" for value in values)] for state, visits, values in rows]
    assert words[4:8] == [told[place] for place in order]
    assert f"fitted to {result.steps} steps of 48 episodes (table, lambda)" in lines
    assert f"Predicted against realised returns of the last 12 episodes, {result.calibration.steps} steps" in lines
    found = result.calibration
    measures = (found.bias, found.bias_error, found.rmse, found.explained_variance, found.correlation)
    counts = str(found.count[1]), str(found.too_near[1])
    assert words[-1] == ["10", "0.900", *counts, *(f"{measure[1]:.4g}" for measure in measures)]
    assert err == "" and "\x1b" not in out


def test_only_the_most_visited_states_are_shown(capsys):
    assert call("log.npz", "--rows", "2", "--held-out", "0", "--scales", "0.5") == 0
    out = capsys.readouterr().out
    assert "2 of 4 states; --rows shows more" in out and "Predicted" not in out


def test_files_hold_everything_in_full_precision(capsys):
    assert call("log.npz", "--scales", "0.5", "0.9", "--out", "o", "--method", "td0") == 0
    assert capsys.readouterr().out.endswith("written: o\n")
    result = evaluate_log("log.npz", tdd.TimeScales.from_gammas([0.5, 0.9]), method="td0")
    values = table("o/values.csv")
    assert [row["state"] for row in values] == ["0", "1", "2", "3"]
    for row, visits, expected in zip(values, result.visits, result.values, strict=True):
        assert int(row["visits"]) == visits
        assert [float(row["value/gamma=0.500"]), float(row["value/gamma=0.900"])] == expected.tolist()
    found = result.calibration
    for z, row in enumerate(table("o/calibration.csv")):
        assert float(row["gamma"]) == result.scales.gammas[z] and int(row["count"]) == found.count[z]
        for name in ("bias", "bias_error", "rmse", "explained_variance", "correlation"):
            assert float(row[name]) == getattr(found, name)[z]
    assert sum(int(row["count"]) for row in table("o/bins.csv")) == found.count.sum()
    figures = [Path("o/values.png").read_bytes(), Path("o/calibration.png").read_bytes()]
    assert all(figure.startswith(b"\x89PNG") and len(figure) > 5000 for figure in figures)
    assert call("log.npz", "--scales", "0.5", "0.9", "--out", "deep/er", "--method", "td0") == 0
    again = [Path("deep/er/values.png").read_bytes(), Path("deep/er/calibration.png").read_bytes()]
    assert figures == again, "the same bytes"


def test_nothing_is_overwritten(capsys, monkeypatch):
    """The log may be called values.csv, too, and lie in the folder where the user is."""
    Path("values.csv").write_text("mine", encoding="utf-8")
    Path("full").mkdir()
    Path("link").symlink_to("nowhere")
    monkeypatch.setattr("tddelta.tabular.logs.evaluate_log", lambda *_, **__: pytest.fail("it was evaluated"))
    for out in (".", "full", "log.npz", "link"):
        assert call("values.csv", "--out", out) == 2
        complaint = f"tddelta: {out} exists already, and nothing is overwritten: name another folder with --out\n"
        assert capsys.readouterr() == ("", complaint)
    assert Path("values.csv").read_text(encoding="utf-8") == "mine" and not list(Path("full").iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(capsys):
    assert call("log.npz", "--scales", "0.5", "--out", "log.npz/o") == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("tddelta: log.npz/o cannot be written (")
    assert err.endswith("): name another folder with --out\n") and err.count("\n") == 1


def test_a_log_that_cannot_be_used_leaves_no_folder(capsys):
    assert call("log.npz", "--reward", "score", "--out", "new/o") == 2
    assert "no column 'score'" in capsys.readouterr().err and not Path("new").exists()


def test_json_is_all_there_is_on_the_standard_output(capsys):
    assert call("log.npz", "--scales", "0.5", "0.9", "--json", "--out", "o") == 0
    out, err = capsys.readouterr()
    plain = json.loads(out)
    result = evaluate_log("log.npz", tdd.TimeScales.from_gammas([0.5, 0.9], lam=0.95))
    assert err == "written: o\n"
    assert plain["scales"] == result.scales.to_dict() and plain["held_out"] == 12
    assert [entry["state"] for entry in plain["states"]] == [0, 1, 2, 3]
    assert [entry["values"] for entry in plain["states"]] == result.values.tolist()
    assert plain["calibration"]["rmse"] == result.calibration.rmse.tolist()
    assert plain["calibration"]["count"] == result.calibration.count.tolist()


def test_what_is_not_known_is_null(capsys):
    log = {"episode": [0, 1], "state": ["a", "a"], "next_state": ["a", "a"], "reward": [1.0, 2.0]}
    np.savez("short.npz", **log)
    options = ["short.npz", "--gamma", "0.9", "--terminated", "none", "--truncated", "none"]
    assert call(*options, "--json", "--out", "o") == 0
    plain = json.loads(capsys.readouterr().out)
    assert set(plain["calibration"]["bias"]) == {None} and set(plain["calibration"]["count"]) == {0}
    assert {row["bias"] for row in table("o/calibration.csv")} == {""}
    assert call(*options) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-5:] == ["–"] * 5


def test_sensors_have_values_in_every_row(capsys):
    options = ["sensors.npz", "--features", "x", "--model", "tiles", "--time", "time", "--gamma", "0.9", "--rows", "3"]
    assert call(*options, "--tiles", "4", "--out", "o") == 0
    out = capsys.readouterr().out
    scales = tdd.TimeScales.halving(0.9, lam=0.95)
    result = evaluate_log("sensors.npz", scales, features=["x"], model="tiles", time="time", tiles=4)
    rows = len(result.values)
    assert "horizons 1/(1 − γ) in units of time" in out and f"3 of {rows} rows; --rows shows more" in out
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines[4:7]] == ["1", str(1 + round((rows - 1) / 2)), str(rows)]
    assert lines[4][1:] == [f"{value:.4g}" for value in result.values[0]]
    written = table("o/values.csv")
    assert len(written) == rows and float(written[-1]["value/gamma=0.900"]) == result.values[-1, -1]
    assert call(*options, "--tiles", "4", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in plain["rows"]][::2] == [1, rows]
    assert plain["rows"][0]["values"] == result.values[0].tolist()


def test_an_undiscounted_horizon_is_infinite(capsys):
    assert call("log.npz", "--scales", "0.5", "1") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2] == ["state", "visits", "2", "∞"] and lines[-1][:2] == ["∞", "1.000"]


def test_what_was_left_out_is_said(capsys):
    log = small("next_state")
    log["next_state"][4] = "nowhere"
    log["state"][5] = "unseen"
    np.savez("cut.npz", **{name: np.array(column) for name, column in log.items()})
    assert call("cut.npz", "--scales", "0.5", "--held-out", "0.4") == 0
    out = capsys.readouterr().out
    assert "1 step left out: after them an episode was cut in a state that has no steps" in out
    assert "in states that were not seen in training: 1 more step\n" in out


WRONG_USAGE = """
nowhere.csv => nowhere.csv does not exist: check the path
log.npz --reward score => the log has no column 'score'; its columns are 'episode', 'next_
log.npz --features time => : --features need a model; got None: pass --model tiles or --model linear
log.npz --scales 0.9 0.5 => : gammas must be strictly increasing in [0, 1]; got (0.9, 0.5)
log.npz --gamma 1 => : the ladder 'halving' up to --gamma 1 needs its longest finite horizon; got none: pass
log.npz --rows 0 => --rows must be at least 1; got 0
log.npz --rows 5 --json => --rows has no meaning with --json; got 5: leave it out, every state
log.npz --method td0 --lam 0.9 => --lam has no meaning with --method td0; got 0.9: leave it
log.npz --method td0 --scales halving lam=0.5 => \
: lam in --scales has no meaning with --method td0; got 0.5: leave it out
log.npz --method monte_carlo --scales halving rule=matched => \
: rule in --scales has no meaning with --method monte_carlo; got matched: leave it out
log.npz --scales halving lam=0.5 --lam 0.9 => : --lam is in --scales, too; got 0.9 and there 0.5: drop one of them
log.npz --scales halving rule=matched --rule capped => \
: --rule is in --scales, too; got capped and there matched: drop one of them
log.npz --tiles 4 => : --tiles has no meaning without a model; got 4: leave it out, since it is for --model tiles
log.npz --held-out 0 --tolerance 5 => : --tolerance has no meaning with --held-out 0; got 5.0
sensors.npz --features x --model linear --state state => \
: --state has no meaning beside features; got ('state',): leave it out
 --gamma 0.9 => a log needs a name; got '': name a file of .npz, .csv, .tsv, .parquet, or a Minari
sensors.npz --features x --model tiles --tilings 1e20 => \
: --tilings must be at most 10,000; got 100000000000000000000: pass a smaller one
sensors.npz --features x --model tiles --tiles 1e20 => \
: 8 grids over 1 features have 800000000000000000008 tiles, more than can be numbered: name
empty.csv => empty.csv is empty: pass a log with columns such as episode, state, reward, terminated
log.npz --reward state --terminated reward => , which is no flag: write true or false, or 1 or 0; rows
"""


@pytest.mark.parametrize("row", WRONG_USAGE.strip("\n").splitlines())
def test_wrong_usage_is_one_line(row, capsys):
    line, message = row.split(" => ")
    Path("empty.csv").touch()
    assert call(*line.split(" ")) == (1 if "empty" in line or "--reward state" in line else 2)
    out, err = capsys.readouterr()
    assert err.startswith("tddelta: ") and message in err and err.count("\n") == 1 and out == ""


@pytest.mark.parametrize(
    ("log", "options", "message"),
    [
        (small(), (), "add next_state to the log, or pass --last-row observation to take the last row of"),
        (small(terminated=(2, True)), (), "final observation, pass --last-row observation; rows"),
        (
            {name: column[3:4] for name, column in small().items()},
            ("--last-row", "observation"),
            "every row is the final observation of its episode: pass --last-row step; rows",
        ),
    ],
)
def test_sentences_about_the_last_row_name_the_option(log, options, message, capsys):
    np.savez("last.npz", **{name: np.array(column) for name, column in log.items()})
    assert call("last.npz", "--gamma", "0.9", *options) == 1
    assert message in capsys.readouterr().err


def test_a_figure_of_nothing_says_so():
    figure, panels = figures.panels(5, columns=3)
    assert len(panels) == 5 and len(figure.axes) == 5
    nothing = np.full(3, np.nan)
    axes = panels[0]
    figures.predicted_against_realised(axes, nothing, nothing, title="horizon 2", remark="bias –")
    assert [text.get_text() for text in axes.texts] == ["no return is known"]
    axes = panels[1]
    figures.values_by_horizon(axes, [1.0, np.inf], np.ones((2, 2)), ["a" * 30, "b"])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "∞"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a" * 23 + "…", "b"]


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_commands_of_the_page_and_of_the_example_run(capsys):
    """After their programs, which write the logs."""
    page = (ROOT / "docs" / "ten-minutes.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "values_from_a_log.py").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    for source, text in ((program, page), (example, example)):
        done = subprocess.run([sys.executable, "-W", "error", "-c", source], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        commands = re.findall(r"^    tddelta values (.*)$", text, re.MULTILINE)
        assert len(commands) == 1
        assert call(*commands[0].split()) == 0
        assert "Predicted against realised" in capsys.readouterr().out
    assert {path.name for path in Path("machine-values").iterdir()} == {path.name for path in Path("values").iterdir()}
    assert len(list(Path("values").iterdir())) == 5
