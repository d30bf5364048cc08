"""The command line in a process of its own: on a terminal, stopped by signals, and with real training."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import told
from pretend import wait_for
from tddelta.cli import main
from tddelta.runs import checkpoints, load_runs

CATCH = "Catch-bsuite"
PROGRAM = "import sys, pretend; pretend.install(); from tddelta.cli import main; sys.exit(main(sys.argv[1:]))"
pytestmark = pytest.mark.usefixtures("elsewhere")


def start(*arguments):
    return told.start("-c", PROGRAM, *arguments)


@pytest.mark.parametrize(("own", "level"), [(None, "3"), ("0", "0")])
def test_xla_is_quiet_unless_the_user_says_otherwise(own, level):
    program = (
        "import os, sys; from tddelta.cli import main; assert 'jax' not in sys.modules; main(['--version']);"
        "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    if own is not None:
        environment["TF_CPP_MIN_LOG_LEVEL"] = own
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == level


# ---------------------------------------------------------------- on a terminal


@pytest.mark.slow
def test_a_terminal_shows_all_runs_in_progress_and_keeps_the_lines():
    arguments = ["compare", CATCH, "--agents", "ppo", "--seeds", "4", "--steps", "40_000", "--out", "o"]
    text = told.on_a_terminal("-c", PROGRAM, *arguments)
    for expected in ("environment", "steps/s", "left", "return", "of 40,960", "4 runs done", "Ctrl-C saves"):
        assert expected in text
    assert "\x1b[" in text
    lines = {line.rpartition("\x1b[2K")[2] for line in text.replace("\r", "").split("\n")}
    assert sum(": finished, 40,000 steps in" in line for line in lines) == 4
    assert any(line.startswith("report: ") for line in lines)


# ---------------------------------------------------------------- signals


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_readable_runs_and_says_how_to_go_on(number, code):
    process = start("compare", CATCH, "--agents", "ppo", "--seeds", "9", "--steps", "900_000_000", "--out", "my runs")
    wait_for(lambda: list(Path("my runs").rglob("metrics.jsonl")), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    assert "stopping: every run saves what it has" in err
    assert "stopped: 0 of 9 runs are finished; the run directories in my runs can be read" in err
    again = "tddelta compare Catch-bsuite --agents ppo --seeds 9 --steps 900_000_000 --out 'my runs' --resume"
    assert f"to go on: {again}\n" in err
    runs = load_runs("my runs")
    assert {run.status["state"] for run in runs} == {"interrupted"}
    assert all(": interrupted, " in line for line in out.splitlines())


@pytest.mark.slow
def test_a_second_signal_stops_at_once():
    process = start("train", CATCH, "--seed", "15", "--out", "o")  # seed 15 does not listen
    wait_for(lambda: list(Path("o").rglob("config.json")), process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None and process.stderr.readline() == "stopping: every run saves what it has\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "tddelta: interrupted\n"


@pytest.mark.slow
def test_nohup_keeps_a_run_alive_and_a_second_hang_up_does_not_cut_it_off():
    training = ["train", CATCH, "--steps", "900_000_000", "--out"]
    for out, ignored in (("o", True), ("p", False)):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN) if ignored else signal.getsignal(signal.SIGHUP)
        process = start(*training, out)
        signal.signal(signal.SIGHUP, before)
        wait_for(lambda out=out: list(Path(out).rglob("metrics.jsonl")), process)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        if ignored:
            time.sleep(0.3)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode in ((143,) if ignored else (129, -signal.SIGHUP))
        assert load_runs(out)[0].status["state"] == "interrupted"


ON_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tddelta.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_terminal_that_is_closed_leaves_a_checkpoint_to_go_on_from():
    master, slave = os.openpty()
    os.set_blocking(master, False)
    arguments = ["train", CATCH, *TINY, "--steps", "900_000_000", "--out", "o"]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
    process = told.start("-c", ON_A_TERMINAL, *arguments, **streams, start_new_session=True)
    os.close(slave)

    def trains():
        with suppress(BlockingIOError):
            os.read(master, 65536)  # or else its pictures of progress would fill the terminal
        return any(path.stat().st_size for path in Path("o").rglob("metrics.jsonl"))

    wait_for(trains, process)
    os.close(master)
    assert process.wait(60) == 129
    (run,) = load_runs("o")
    assert run.status["state"] == "interrupted"
    assert checkpoints.latest(run.path).count("updates") == run.status["updates"] > 0


# ---------------------------------------------------------------- what becomes of the terminal


def shell(redirection, *arguments, **variables):
    """Run the command line with redirected streams, in a shell."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        env=os.environ | told.PLACES | variables,
        timeout=60,
    )


@pytest.mark.parametrize(
    "variables", [{"PYTHONIOENCODING": "cp1252"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}]
)
def test_what_a_terminal_cannot_write_has_a_replacement(variables):
    done = shell("", "scales", "--scales", "0.5", "1", **variables)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode("ascii").splitlines()
    assert lines[0].split()[:6] == ["component", "horizon", "gamma", "lambda", "c", "="]
    assert len({len(line) for line in lines[:4]}) == 1 and "inf" in lines[3] and set(lines[1]) == {"-", " "}


def test_training_goes_on_when_nobody_reads_and_when_streams_are_closed():
    process = start("compare", CATCH, "--agents", "ppo", "--seeds", "3", "--steps", "1000", "--out", "o")
    with process:
        process.stdout.close()
        assert process.wait(60) == 0 and process.stderr.read() == ""
    assert [run.status["state"] for run in load_runs("o")] == ["finished"] * 3 and Path("o", "report.html").exists()
    done = shell("2>&- >&- <&-", "train", CATCH, "--steps", "1000", "--out", "p")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert load_runs("p")[0].status["state"] == "finished"


def test_output_that_is_lost_for_another_reason_is_an_error():
    done = shell("> /dev/full", "scales")
    assert done.returncode == 1
    assert done.stderr == b"tddelta: the output cannot be written: No space left on device\n"


MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from tddelta.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("jax", "train", ["sweep", "study.toml"]),
        ("jax", "train", ["inspect", "run"]),
        ("gymnasium", "gym", ["train", "gym:CartPole-v1"]),
    ],
)
def test_a_missing_package_is_named_with_its_extra(module, extra, command):
    Path("study.toml").write_text('environments = ["Catch-bsuite"]\nagents = ["ppo"]\nseeds = 1\n', encoding="utf-8")
    Path("run").mkdir()
    Path("run", "checkpoint.json").touch()
    done = subprocess.run([sys.executable, "-c", MISSING, module, *command], capture_output=True, text=True)
    assert done.stderr == f'tddelta: {module} is not installed: pip install "tddelta[{extra}]"\n'
    assert done.returncode == 2


# ---------------------------------------------------------------- with real training


TINY = ["--environments", "4", "--rollout-length", "16", "--minibatches", "2", "--epochs", "1", "--hidden-sizes", "8"]


@pytest.mark.slow
def test_train_evaluate_report_for_real(capsys):
    options = [*TINY, "--agents", "ppo-delta", "--seeds", "2", "--steps", "640", "--scales", "3.125", "100"]
    assert main(["compare", CATCH, *options, "--out", "together", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(row["seed"] for row in rows) == [0, 1]
    assert all(row["state"] == "finished" and row["steps"] == 640 and row["steps_per_second"] > 0 for row in rows)

    # the bytes of a seed do not depend on its company, nor on evaluations in between
    del options[options.index("--agents") : options.index("--steps")]
    options += ["--agent", "ppo-delta", "--seed", "1", "--eval-every", "320"]
    assert main(["train", CATCH, *options, "--out", "alone"]) == 0
    (together,), (alone,) = load_runs("together")[1:], load_runs("alone")
    assert len(alone.evaluations) == 2
    for file in together.path.iterdir():
        if file.name != "timing.jsonl":
            assert file.read_bytes() == (alone.path / file.name).read_bytes(), file.name
    assert together.scales.labels == ("0.680", "0.990")
    assert len(together.rollout["deltas"][0]) == len(together.critic["predicted"][0]) == 2

    # field case B57: a run directory, the folder above it and a file in it are the same run
    capsys.readouterr()
    spoken = []
    for path in (alone.path, alone.path.parent, alone.path / "parameters.safetensors"):
        assert main(["evaluate", str(path), "--episodes", "128", "--json"]) == 0
        spoken.append(capsys.readouterr().out)
    assert spoken[0] == spoken[1] == spoken[2].replace(str(alone.path.absolute()), str(alone.path))
    rows = [json.loads(line) for line in spoken[0].splitlines()]
    assert [row["mode"] for row in rows] == ["sampled", "greedy"]
    assert all(row["steps"] == 640 and row["episodes"] == len(row["returns"]) == 128 for row in rows)
    assert alone.evaluations[2]["returns"] == rows[0]["returns"]
    assert main(["evaluate", str(alone.path), "--episodes", "128", "--mode", "greedy"]) == 0
    assert ", seed 1: greedy, 128 episodes: mean return " in capsys.readouterr().out

    for command, limit in (
        (["evaluate", "--episodes"], "10,000,000"),
        (["inspect", "--steps"], "10,000,000"),
        (["inspect", "--seed"], "4,294,967,295"),
    ):
        assert main([*command, "100_000_000_000_000_000_000", str(alone.path)]) == 2
        err = capsys.readouterr().err
        assert err == f"tddelta: {command[1]} must be at most {limit}; got {10**20}: pass a smaller one\n"

    # one run that cannot be evaluated does not keep the others from it
    (together.path / "parameters.safetensors").unlink()
    assert main(["evaluate", str(together.path), "--episodes", "128"]) == 1
    assert capsys.readouterr().err.startswith(f"tddelta: {together.path}")
    assert main(["evaluate", "together", "--episodes", "128", "--mode", "greedy"]) == 1
    out, err = capsys.readouterr()
    assert out.count("mean return") == 1 and err.startswith(f"tddelta: {together.path}") and err.count("\n") == 1
