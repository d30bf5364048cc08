"""The command line: its output, its exit codes, and the one line that says what was wrong."""

import ast
import dataclasses
import io
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import pretend
import tddelta
import tddelta.deep
from report_synthetic import write_run
from tddelta.cli import COMMANDS, main
from tddelta.cli.reading import options_of
from tddelta.cli.sweep import Tune
from tddelta.cli.training import Compare, Train, with_settings
from tddelta.deep.config import Config, _made
from tddelta.errors import ConfigError, ContractionWarning, DataError, MissingExtra, StorageError, setting
from tddelta.runs import Run, find_runs, load_runs
from tddelta.runs.files import HAS_LOCKS, lock

CATCH = "Catch-bsuite"
pytestmark = pytest.mark.usefixtures("elsewhere")


def call(*arguments):
    """Run a command, given as one text or as words, in this process and return its exit code."""
    try:
        return main(shlex.split(arguments[0]) if len(arguments) == 1 else [*map(str, arguments)])
    except SystemExit as stop:
        return stop.code


# ---------------------------------------------------------------- help


def test_help_is_quick_and_loads_no_framework():
    program = (
        "import sys, contextlib\nfrom tddelta.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "print(sorted({'jax', 'torch', 'scipy', 'matplotlib', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command, capsys):
    assert call(command, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: tddelta {command}")
    assert "(default: )" not in text and "None" not in text


@pytest.mark.parametrize("command", ["train", "compare"])
def test_every_setting_is_an_option_with_its_help(command, capsys):
    call(command, "--help")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for field in dataclasses.fields(Config):
        if field.name not in ("environment", "environment_kwargs", "agent"):
            assert f"--{field.name.replace('_', '-')} " in text
        if field.name not in ("environment", "environment_kwargs", "agent", "steps", "network"):
            assert " ".join(field.metadata["help"].split()) in text
    assert "minatar-conv, nature-conv, or package.module:function. (default" in text  # it cannot take a function
    rate = "--learning-rate FLOAT Adam's step size (continuous). (default: 0.00025, or the environment's preset)"
    assert rate in text


def test_version_and_no_arguments(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"tddelta {tddelta.__version__}\n"
    assert call() == 0
    assert "First steps" in capsys.readouterr().out


# ---------------------------------------------------------------- scales


def test_scales_prints_the_ladder(capsys):
    assert call("scales", "--gamma", "0.99", "--n-step", "16") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["component", "horizon", "γ", "λ", "c", "=", "λγ", "factor", "error", "gain", "n"]
    assert lines[2].split() == ["W_0", "3.125", "0.680", "1", "0.68", "0", "32", "4"]
    assert lines[7].split() == ["W_5", "100", "0.990", "0.95", "0.9405", "0.8319", "5.95", "16"]
    assert lines[-3].startswith("Every component contracts")
    assert lines[-1].startswith("If a component keeps an error ε")


def test_scales_warns_in_words(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert call("scales", "--rule", "matched") == 0
    out, err = capsys.readouterr()
    assert "Every component contracts" not in out
    assert err.startswith("tddelta: warning: full steps towards the targets make components grow: γ=0.680 has")
    assert "so use --rule capped" in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("pretended")
def test_training_warns_once(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call("compare", CATCH, "--agents", "ppo-delta-matched", "--steps", "1000") == 0
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    "options", ["ppo-delta-matched --scales halving components=1", "ppo --rule matched", "ppo+ --rule matched"]
)
def test_one_scale_has_nothing_to_contract_with(options, capsys):
    _made.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call(f"compare {CATCH} --steps 1000 --agents {options}") == 0
    assert "grow" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "gammas"),
    [
        ("--scales doubling --gamma 0.75", [0.0, 0.5, 0.75]),
        ("--scales doubling shortest_horizon=2 --gamma 0.75", [0.5, 0.75]),
        ("--scales halving components=2 rule=constant --gamma 0.9", [0.8, 0.9]),
        ("--scales halving components=2 gamma=0.9 lam=0.5", [0.8, 0.9]),
        ("--scales 2 4", [0.5, 0.75]),
        ("--scales 0.5 0.9", [0.5, 0.9]),
        ("--gamma 1 --scales halving longest_horizon=4 components=3", [0.5, 0.75, 1.0]),
    ],
)
def test_scales_makes_other_ladders(options, gammas, capsys):
    assert call(f"scales --json {options}") == 0
    assert json.loads(capsys.readouterr().out)["gammas"] == gammas


# ---------------------------------------------------------------- wrong usage


# a "$" is the end; some of field case B57: a wrong name, what this version cannot run, an empty folder
WRONG_USAGE = r"""
trian => unknown command 'trian': did you mean train?
xyz => unknown command 'xyz': known are scales, train, compare, sweep, tune, critics, evaluate
scales --gamma 1.5 => gamma must be in [0, 1]; got 1.5
scales --gamma 1 => pass --scales halving longest_horizon=1000, say, or another gamma
scales --scales 0.5 2 => --scales must be discounts, all at most 1, or horizons in steps, all at
scales --scales => --scales must name at least one discount or horizon; got none: pass, say, --scales 10
scales --scales doubling components=2 => --scales must be settings of the ladder 'doubling'; got
scales --scales halved rule=matched => --scales must be numbers, or name a ladder that is known; got 'halved rule=matche
scales --scales halving gamma=0.9 components => all but the rule with a number; got 'compone
scales --scales halving lam=high => all but the rule with a number; got 'lam=high': pass disc
scales --scales doubling shortest_horizon=0 => shortest_horizon in --scales must be at least 1 step
scales --scales halving rule=mached => tddelta: rule in --scales must be one of capped, matched
scales --scales halving lam=0.5 --lam 0.9 => --lam is in --scales, too; got 0.9 and there 0.5
scales --scales halving n_step=5 --n-step 4 => --n-step is in --scales, too; got 4 and ther
scales --scales halving gamma=0.9 --gamma 0.8 => --gamma is in --scales, too; got 0.8 and
train Catch --scales halving lam=0.5 => got 0.5: drop it there and pass --lam 0.5$
train Catch --horizons 10 100 => tddelta: --horizons is part of --scales now: pass, say, --scales 10 100$
scales --ladder doubling => --ladder is part of --scales now: pass, say, --scales doubling$
scales --components=4 => --components is part of --scales now: pass, say, --scales halving components
scales --factor 3 => --factor is part of --scales now: pass, say, --scales halving factor=3$
values log.csv --gammas 0.9 => --gammas is part of --scales now: pass, say, --scales 0.9 0.99$
compare Catch --shortest_horizon=4 => --shortest-horizon is part of --scales now: pass, say, --scales halving
tune Catch --longest-horizon 9 => --scales halving longest_horizon=1000$
train Catch --ladder-factor 3 => --ladder-factor is part of --scales now: pass, say, --scales halv
train '' => unknown environment '': name one
train Xyz => (python -c "from tddelta.deep.environments import NAMES; print(*NAMES)" lists all; package.
train Catch --agent ppo-delta-difference => unknown agent 'ppo-delta-difference': it is called ppo-delta now
train Catch --agent nowhere:agent => no agent at 'nowhere:agent': No module named 'nowhere'
train Catch --gamma 2 => --gamma must be in [0, 1]; got 2.0
train Catch --resume => --resume needs --out
train Catch --out FILE => is not a folder): choose another folder with --out
train Catch --eval-every 0 => --eval-every must be a whole number of at least 1; got 0: leave it out
train Catch --env-kwargs '{1' => --env-kwargs must be KEY=VALUE ... or one JSON object; got '{1'
train Catch --env-kwargs rows => got 'rows': write it as rows=VALUE
train Catch --steps 99999999999999999999999 => --steps must be at most 9,223,372,036,854,775,807; got 9999
train Catch --environments 1e11 => --environments must be at most 2,147,483,647; got 100000000000
train Catch --hidden-sizes => --hidden-sizes must be whole numbers of at least 1; got ()
train Catch --seed 99999999999 => seeds must be at least one whole number; got [99999999999]
compare => compare needs an environment
compare Catch --seeds 0 => --seeds must be at least one whole number; got 0
evaluate => evaluate needs a run
evaluate nowhere => nowhere does not exist
evaluate . => no run at or below .
evaluate . --seed -1 => --seed must be a whole number from 0 to 4294967295; got -1
report => report needs runs
report . => no run at or below .
"""


@pytest.mark.parametrize("line", WRONG_USAGE.strip().splitlines())
@pytest.mark.usefixtures("pretended")
def test_wrong_usage_is_one_line_and_code_2(line, capsys):
    arguments, message = line.split(" => ")
    assert call(*shlex.split(arguments.replace("FILE", __file__))) == 2
    out, err = capsys.readouterr()
    assert err.startswith("tddelta: ") and message in err.replace("\n", "$")
    assert err.count("\n") == 1 and out == ""
    assert not Path("runs").exists()


@pytest.mark.usefixtures("pretended")
def test_unknown_options_are_explained(capsys):
    assert call(f"train {CATCH} --learning-rte 3") == 2
    assert "--learning-rate" in capsys.readouterr().err


@pytest.mark.usefixtures("pretended")
def test_existing_runs_are_refused(capsys):
    assert call("train", CATCH, "--out", "o", "--steps", "1000") == 0
    assert call("train", CATCH, "--out", "o", "--steps", "1000") == 2
    assert "--resume" in capsys.readouterr().err
    assert call("train", CATCH, "--out", "o", "--steps", "1000", "--resume") == 0
    assert capsys.readouterr().out.startswith(f"{CATCH}, ppo-delta, seed 0: finished before, 1,000 steps")
    assert call("train", CATCH, "--out", "o", "--steps", "2_000", "--resume") == 2
    assert "was started with other settings, steps 1000 there and 2000 now" in capsys.readouterr().err


def test_damaged_files_are_code_1(capsys):
    Path("config.json").write_text("{")
    assert call("report", ".") == 1
    err = capsys.readouterr().err
    assert err.startswith("tddelta: config.json is damaged") and err.count("\n") == 1


@pytest.mark.usefixtures("pretended")
def test_a_damaged_run_is_named_and_the_others_go_on(capsys):
    command = ("compare", CATCH, "--agents", "ppo", "--steps", "1000", "--out", "o")
    assert call(*command, "--seeds", "2") == 0
    damaged = Path("o", CATCH, "ppo", "seed-0", "config.json")
    damaged.write_text("{")
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call("train", "--resume", "o") == 0
    out, err = capsys.readouterr()
    assert "seed 1: finished before" in out
    assert err.startswith(f"tddelta: warning: {damaged} is damaged") and err.endswith("this run was left out\n")
    assert call(*command, "--seeds", "3", "--resume") == 1
    out, err = capsys.readouterr()
    assert "seed 1: finished before" in out and "seed 2: finished, 1,000 steps" in out
    assert f"tddelta: Catch-bsuite, ppo, seed 0 failed: {damaged} is damaged" in err
    with pytest.warns(RuntimeWarning, match="1 of 3 runs failed: .*is damaged"):
        assert [run.seed for run in tddelta.compare(CATCH, "ppo", steps=1000, out="o", resume=True)] == [1, 2]


def test_a_report_tells_on_the_terminal_and_the_page_what_was_left_out(tmp_path, capsys):
    write_run(tmp_path)
    bad = write_run(tmp_path, seed=1)
    (bad / "config.json").write_text('{"format": 1, "envi')
    assert call("report", tmp_path) == 0
    out, err = capsys.readouterr()
    assert "Breakout-MinAtar" in out and err.count("seed-1/config.json is damaged") == 1
    assert "this run was left out" in err and "this run was left out" in (tmp_path / "report.html").read_text("utf-8")


# ---------------------------------------------------------------- training


@pytest.mark.usefixtures("pretended")
def test_train_writes_the_run_and_names_it(capsys):
    options = "--learning-rate 3e-4 --hidden-sizes 8 8 --shared-trunk True --env-kwargs max_steps_in_episode=7"
    assert call(f"train {CATCH} --agent ppo --seed 2 --steps 3_000 {options}") == 0
    (run,) = load_runs("runs")
    assert (run.environment, run.seed, run.config["steps"]) == (CATCH, 2, 3000)
    settings = run.config["settings"]
    assert (settings["learning_rate"], settings["hidden_sizes"], settings["shared_trunk"]) == (3e-4, [8, 8], True)
    assert run.config["environment_kwargs"] == {"max_steps_in_episode": 7}
    assert run.timing[0]["command"][:3] == ["tddelta", "train", CATCH]
    out, err = capsys.readouterr()
    first, last = out.splitlines()
    assert first.startswith(f"{CATCH}, {run.agent}, seed 2: finished, 3,000 steps in 0 s (")
    assert last == f"run: {run.path}" and err == ""


@pytest.mark.usefixtures("pretended")
def test_environment_options_are_pairs_or_json():
    for out, given in (("j", '{"max_steps_in_episode": 7}'), ("p", "max_steps_in_episode=7")):
        assert call("train", CATCH, "--out", out, "--steps", "1000", "--env-kwargs", given) == 0
    assert load_runs("j")[0].config == load_runs("p")[0].config


@pytest.mark.usefixtures("pretended")
def test_json_is_all_there_is_on_the_standard_output(capsys):
    assert call("compare", CATCH, "--agents", "ppo", "--seeds", "3", "--steps", "2000", "--out", "o", "--json") == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert sorted(row["seed"] for row in rows) == [0, 1, 2]
    for row in rows:
        assert row["state"] == "finished" and row["steps"] == 2000 and row["steps_per_second"] > 0
        assert Run(row["path"]).seed == row["seed"]
    assert err == f"report: {Path('o/report.html').absolute()}\n"
    assert call("train", CATCH, "--steps", "2000", "--out", "p", "--json") == 0
    assert json.loads(capsys.readouterr().out)["agent"] == "ppo-delta"


@pytest.mark.usefixtures("pretended")
def test_compare_loads_every_run_once_and_reports_the_whole_folder(monkeypatch):
    compare = ("compare", CATCH, "--seeds", "2", "--steps", "1000", "--out", "o", "--agents")
    assert call(*compare, "ppo") == 0
    loaded, load = [], Run.__init__

    def noted(self, path):
        loaded.append(path)
        load(self, path)

    monkeypatch.setattr(Run, "__init__", noted)
    assert call(*compare, "ppo-delta") == 0
    assert sorted(loaded) == find_runs("o")  # those of before for the report, which is of the whole folder


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_compare_ends_with_a_table_and_the_report(capsys):
    assert call("compare", CATCH, "--agents", "ppo", "ppo-delta", "--seed-list", "5", "3", "--steps", "2000") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len([line for line in lines if ": finished, 2,000 steps in 0 s" in line]) == 4
    (heads,) = (line for line in lines if line.startswith("Environment"))
    assert "Agent" in heads and "Seeds" in heads
    page = Path(lines[-1].removeprefix("report: "))
    assert page.name == "report.html" and page.is_file()
    assert "\x1b" not in out + err and err == ""
    assert call("report", page.parent, "--out", "again", "--baselines", "ppo") == 0
    assert Path("again/report.html").is_file()


@pytest.mark.usefixtures("pretended")
def test_a_failed_run_is_code_1_and_the_others_finish(capsys):
    options = ["--agents", "ppo", "--steps", "1000", "--out", "o"]
    assert call("compare", CATCH, "--seed-list", "13", "0", "14", "16", *options) == 1
    out, err = capsys.readouterr()
    assert f"{CATCH}, ppo, seed 13: failed: DataError: step 0: reward is not a number" in out
    assert f"tddelta: {CATCH}, ppo, seed 13 failed: step 0: reward is not a number" in err
    assert f"tddelta: {CATCH}, ppo, seed 14; {CATCH}, ppo, seed 16 failed:\n" in err
    assert err.count("Traceback") == 1 and "RuntimeError: a bug" in err  # what nobody expected keeps its traceback
    assert "report: " in out and "seed 0: finished" in out
    assert call("train", CATCH, "--seed", "13", "--steps", "1000", "--json") == 1
    assert json.loads(capsys.readouterr().out)["state"] == "failed"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.usefixtures("pretended")
def test_the_table_fits_the_terminal(width):
    from rich.console import Console

    from tddelta.experiments.display import Display, table
    from tddelta.experiments.plan import plan_runs

    plans = plan_runs(["SpaceInvaders-MinAtar", CATCH], "ppo-delta-bootstrap", seeds=1, steps=2_000_000, gamma=0.9)
    display = Display(plans, live=False)
    for plan in plans:
        display.begin(plan)
    display.progress(plans[0], pretend.Progress(1_234_567, 2_000_896, 67_890.1, 3723.4, 123.456, "training"))
    display.progress(plans[1], pretend.Progress(0, 2_000_896, None, None, None, "compiling"))
    console = Console(width=width, file=io.StringIO())
    console.print(table([*display._running.values()], width=width), display._overall())
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shown = ["62%", "1:02:03 h", "123.5"] if width < 80 else ["1,234,567", " 67,890 ", "1:02:03 h", "123.5"]
    assert all(expected in lines[1] for expected in shown)
    assert "compiling" in lines[2] and "0 of 2 runs done" in lines[3]
    assert (f"of {plans[0].steps:,}" in lines[1]) == (width == 120)


# ---------------------------------------------------------------- advice


def _options_of(command):
    """Fields of a command and of its settings, by the name of the option."""
    whole = with_settings(command) if issubclass(command, Train | Compare | Tune) else command
    for field in dataclasses.fields(whole):
        within = dataclasses.fields(field.default_factory) if field.name == "settings" else [field]
        yield from (("list" if one.name == "listed" else one.name.replace("_", "-"), one) for one in within)


def test_sentences_name_options_in_the_form_that_the_command_line_takes():
    known = dict(option for command in COMMANDS.values() for option in _options_of(command))
    # of other programs, and of CSS
    others = {"help", "version", "head", "upgrade", "logdir", "line", "p", "no-", "array"}
    wrong = []
    for path in Path(tddelta.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            for found in re.finditer(r"(?<![\w-])--([a-z][a-z-]*)(?: (True|False))?", text):
                flag = found[1] in known and isinstance(known[found[1]].default, bool)
                if found[1] not in {*known, *others} or (flag and found[2]):
                    wrong.append(f"{path.name}, line {node.lineno}: {found[0]}")
            if re.search(r"--[a-z-]+ \([a-z_]+=", text):  # both forms at once: the door knows which one is meant
                wrong.append(f"{path.name}, line {node.lineno}: {text}")
    assert not wrong


@pytest.mark.parametrize(
    ("marked", "python", "command"),
    [
        (setting("lam"), "lam", "--lam"),
        (setting("resume", True), "resume=True", "--resume"),
        (setting("out", ""), "out=", "--out"),
        (setting("hidden_sizes", (64, 64)), "hidden_sizes=(64, 64)", "--hidden-sizes 64 64"),
        (setting("normalize_rewards", True), "normalize_rewards=True", "--normalize-rewards True"),
        (setting("environment_kwargs"), "environment_kwargs", "--env-kwargs"),
        (setting("rule", "b"), "rule='b'", "--rule b"),
        (setting("scales", "halving gamma=1"), "scales='halving gamma=1'", "--scales halving gamma=1"),
        (setting("actor_lam", None), "actor_lam=None", "--actor-lam none"),
        (setting("held_out", 0), "held_out=0", "held_out=0"),  # none of its options
    ],
)
def test_a_setting_in_a_message_is_in_words_of_the_reader(marked, python, command):
    error = ConfigError(f"{marked} must be known; got 'rule=a'")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == f"{python} must be known; got 'rule=a'"
    assert error.setting == python.partition("=")[0]
    told = error.written(options_of(with_settings(Train)(environment="Catch")))
    assert told == f"{command} must be known; got 'rule=a'"


@pytest.mark.parametrize(
    ("error", "text", "attributes"),
    [
        (DataError("row 2: reward is missing"), "row 2: reward is missing", {}),
        (ConfigError(), "", {}),
        (ConfigError("a", 3), "('a', 3)", {"args": ("a", 3)}),
        (ConfigError(KeyError("k")), "'k'", {}),
        (MissingExtra("a", name="x"), "a", {"name": "x"}),
        (StorageError(28, "full", "file"), "[Errno 28] full: 'file'", {"errno": 28, "filename": "file"}),
        (ContractionWarning(1), "1", {"args": (1,)}),
    ],
)
def test_errors_can_be_made_like_any_exception(error, text, attributes):
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == one.written(lambda *words: "") == text and one.setting is None
        assert {name: getattr(one, name) for name in attributes} == attributes


@pytest.mark.usefixtures("pretended")
def test_an_agent_of_the_current_folder_is_found_and_a_run_of_it_cannot_be_repeated_from_its_record(capsys):
    Path("slow_agents.py").write_text("import tddelta\nslow = tddelta.AGENTS['ppo'].replace(name='slow')\n")
    assert call("train", CATCH, "--agent", "slow_agents:slow", "--steps", "1000", "--out", "mine") == 0
    assert load_runs("mine")[0].agent == "slow"
    assert call("compare", CATCH, "--agents", "ppo", "--seeds", "2", "--steps", "1000", "--out", "two") == 0
    capsys.readouterr()
    assert call("train", "--resume", "mine") == 2
    assert capsys.readouterr().err.endswith(
        "is not part of tddelta: repeat the command that started it, with its --out and --resume\n"
    )
    assert call("train", "--resume", "two") == 2
    assert capsys.readouterr().err.endswith(
        "name one of them, or repeat the command that started them with its --out and --resume\n"
    )


@pytest.mark.skipif(not HAS_LOCKS, reason="this system has no locks on files")
@pytest.mark.usefixtures("pretended")
def test_a_locked_folder_is_told_in_words_of_the_command(capsys, monkeypatch):
    pytest.importorskip("optuna")
    assert call("train", CATCH, "--steps", "1000", "--out", "o") == 0
    (run,) = load_runs("o")
    (run.path / "status.json").write_text(json.dumps({**run.status, "state": "interrupted"}))
    Path("timing.jsonl").touch()
    again = ("train", CATCH, "--steps", "1000", "--out", "o", "--resume")
    advice = "is being written by another process: wait for it, or choose another folder with --out\n"
    capsys.readouterr()
    with lock(run.path), lock(Path()):
        assert call(*again) == 2
        assert capsys.readouterr().err.endswith(advice)
        monkeypatch.setattr("tddelta.experiments.plan.is_being_written", lambda path: False)  # it was not, a moment ago
        assert call(*again) == 1
        assert f"failed: {run.path} {advice}" in capsys.readouterr().err
        assert call("tune", CATCH, "--trials", "1", "--out", ".") == 2
        assert capsys.readouterr().err.endswith(advice)


def test_whole_numbers_are_taken_as_they_are_written(pretended, monkeypatch):
    seen = []
    monkeypatch.setattr(Train, "run", lambda self, command: seen.append(self.steps) or 0)
    assert [call("train", CATCH, "--steps", text) for text in ("1e6", "1_000_000", "1000000.0")] == [0, 0, 0]
    assert seen == [1_000_000] * 3


@pytest.mark.parametrize(
    ("platform", "command"), [("cuda", ("sweep", "study.toml")), ("misspelt", ("train", CATCH, "--out", "new"))]
)
def test_a_device_that_is_not_there_is_one_sentence(command, platform):
    Path("study.toml").write_text(f'environments = ["{CATCH}"]\nsteps = 1000\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tddelta", *command],
        capture_output=True, text=True, check=False, env={**os.environ, "JAX_PLATFORMS": platform},
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr == (
        f"tddelta: JAX_PLATFORMS must name devices that JAX finds here; got '{platform}': unset it, or set it to cpu\n"
    )


def test_a_table_that_is_wider_than_the_terminal_goes_on_below(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert call("scales") == 0
    whole = capsys.readouterr().out.splitlines()
    monkeypatch.setenv("COLUMNS", "40")
    assert call("scales") == 0
    blocks = [block.splitlines() for block in capsys.readouterr().out.split("\n\n")][:2]
    assert all(len(line) <= 40 for block in blocks for line in block)
    beside = [first + rest[len("component") :] for first, rest in zip(*blocks, strict=True)]
    assert [line.split() for line in beside] == [line.split() for line in whole[: len(beside)]]
