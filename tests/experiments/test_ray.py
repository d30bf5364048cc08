"""Sweeps on a Ray cluster of two nodes, one of which is killed in the middle."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from pretend import wait_for
from tddelta.cli import main
from tddelta.errors import ConfigError, DataError
from tddelta.experiments import plan_runs
from tddelta.experiments.workers import _packed, do_task, make_job, unpack
from tddelta.runs import load_runs

pytest.importorskip("ray")

CATCH = "Catch-bsuite"
TINY = "environments = 4\nrollout_length = 16\nminibatches = 1\nepochs = 1\nhidden_sizes = [8]\n"
pytestmark = pytest.mark.usefixtures("elsewhere")


# ---------------------------------------------------------------- what comes back


@pytest.mark.parametrize(
    "name",
    ["../config.json", "/tmp/config.json", "a/../../b", "", ".", "a//b", "./a", "a\\b", "a/.hidden", "x\0y", "a b"],
)
def test_no_file_of_the_cluster_can_leave_the_run_directory(name):
    path = Path("o/env/agent/seed-0")
    with pytest.raises(DataError, match=r"which no run has: nothing of .* was written"):
        unpack({"config.json": b"{}", name: b"x"}, path)
    assert not Path("o").exists()


def test_files_of_the_cluster_become_a_run_directory_and_an_unfinished_one_makes_way():
    path = Path("o/env/agent/seed-0")
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("old")
    unpack({"config.json": b"{}", "checkpoints/0000000001/state.safetensors": b"s"}, path)
    assert (path / "checkpoints/0000000001/state.safetensors").read_bytes() == b"s"
    assert not (path / "metrics.jsonl").exists()
    assert (path.with_name("seed-0.unfinished-1") / "metrics.jsonl").read_text() == "old"
    assert {entry.name for entry in path.parent.iterdir()} == {"seed-0", "seed-0.unfinished-1"}


def test_a_task_says_what_went_wrong_and_leaves_nothing_behind():
    (planned,) = plan_runs(CATCH, "ppo", seeds=[3], steps=64, out="o")
    job = {**make_job([planned], {"eval_every": None}, ["test"]), "digest": "of another version"}
    ((state, error),), files = do_task(job, os.getcwd(), True, {})
    assert (state, type(error), files) == ("failed", ConfigError, {})
    assert "seed 3 has other settings in this process than where it was planned" in str(error)
    assert not Path("o").exists()


def test_what_a_full_disk_left_unfinished_does_not_come_back(tmp_path):
    run = tmp_path / "env" / "agent" / "seed-0"
    run.mkdir(parents=True)
    for name in ("config.json", ".episodes.npz.tmp"):
        (run / name).touch()
    assert _packed(tmp_path) == {"config.json": b""}


@pytest.mark.parametrize("mode", [None, "disabled"])
def test_a_cluster_that_is_not_there_is_missed_at_once_and_a_token_spoken_of(mode, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", mode) if mode else monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    Path("study.toml").write_text(f'environments = "{CATCH}"\nagents = "ppo"\nseeds = 1')
    assert main(["sweep", "study.toml", "--ray", "127.0.0.1:1"]) == 2
    err = capsys.readouterr().err
    said = "tddelta: there is no Ray cluster at '127.0.0.1:1' ([Errno 111] Connection refused): start one"
    assert err.startswith(said)
    assert ("or set RAY_AUTH_MODE=token for one that asks for a token" in err) == (mode is None)


# ---------------------------------------------------------------- a real cluster


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


@contextmanager
def node(folder, *options):
    """A node of a cluster, and in the end nothing of it."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1", "--num-gpus=0"]
    command += ["--disable-usage-stats", "--include-log-monitor=false", "--object-store-memory=80000000", *options]
    environment = os.environ | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # else it wants the token that another program may have left in the home folder
        "RAY_enable_metrics_collection": "false",
        "RAY_TMPDIR": str(folder),
        "RAY_worker_niceness": "0",  # else whatever else this machine does comes first
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        # a node that is gone is missed after a second
        "RAY_health_check_initial_delay_ms": "500",
        "RAY_health_check_period_ms": "300",
        "RAY_health_check_failure_threshold": "3",
    }
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        kill_node(process)


def kill_node(process):
    """End a node as a failure of its machine does: everything that it started, whatever its session."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    doomed = [process.pid]
    for parent in doomed:
        doomed += [child for child, above in parents.items() if above == parent]
    for one in doomed:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_runs_survive_the_loss_of_a_node_and_may_come_back_over_the_network():
    port = free_port()
    Path("study.toml").write_text(
        f'environments = "{CATCH}"\nagents = ["ppo"]\nseeds = 3\nsteps = 100_000\ncheckpoint_every = 0\n'
        f"[settings]\n{TINY}"
    )
    address = f"127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("tddelta")), "sweep", "study.toml", "--ray", address]
    with ExitStack() as stack:
        # a short path: the names of sockets in it may have 107 characters
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        first = stack.enter_context(node(folder, "--head", f"--port={port}", "--include-dashboard=false",
                                         "--min-worker-port=20000", "--max-worker-port=20100"))  # fmt: skip
        wait_for(lambda: socket.create_connection(("127.0.0.1", port), timeout=1).close() or True, first, 180)
        second = stack.enter_context(
            node(folder, f"--address={address}", "--min-worker-port=20200", "--max-worker-port=20300")
        )
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        try:
            wait_for(lambda: len(seeds_with("checkpoints/0*")) >= 2, process, 300)
            kill_node(second)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 0, err
        assert out.endswith("3 of 3 runs are finished: study\n")
        runs = load_runs("study")
        assert all((run.metrics["update"] == range(1, run.status["updates"] + 1)).all() for run in runs)
        # what the second node was training went on from its checkpoint
        assert any(row["event"] == "resume" for run in runs for row in run.timing)
        # and one more, which comes back as a result
        assert main(["sweep", "study.toml", "--ray", address, "--ray-fetch", "--add-seeds", "1"]) == 0
        runs = load_runs("study")
        assert [run.seed for run in runs] == [0, 1, 2, 3] and runs[3].status["state"] == "finished"


def seeds_with(pattern):
    return {path.relative_to("study").parts[2] for path in Path("study").glob(f"*/*/seed-*/{pattern}")}
