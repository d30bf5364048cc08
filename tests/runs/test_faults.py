"""Faults of real runs, in processes of their own. `benchmarks/faults.py` injects them more often."""

import os
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

import told
from deep_runs import EVAL_EVERY, UPDATES, bytes_of, cartpole, go_on, trained
from pretend import wait_for
from run_directories import CONFIG, begin
from tddelta import CheckpointError, ConfigError, StorageError, compare
from tddelta.deep import training
from tddelta.experiments import plan_runs
from tddelta.runs import Run, RunWriter, checkpoints

# The command line an update at a time; after the sixth it pauses until it is told to stop.
PROGRAM = """
import sys
from tddelta.cli import main
from tddelta.deep import training
training.LONGEST_BLOCK, record, blocks = 1, training._Training._record, []
def slowly(self, *arguments):
    blocks.append(arguments)
    self.stop.wait(120 if len(blocks) > 6 else 0)
    record(self, *arguments)
training._Training._record = slowly
sys.exit(main(sys.argv[1:]))
"""
SETTINGS = {
    "environments": 3, "rollout_length": 8, "minibatches": 1, "epochs": 1, "hidden_sizes": (8,), "steps": 955,
    "learning_rate": 0.01, "environment_kwargs": {"max_steps_in_episode": 30},
}  # fmt: skip
OPTIONS = (
    "--environments 3 --rollout-length 8 --minibatches 1 --epochs 1 --hidden-sizes 8 --steps 955 --learning-rate 0.01 "
    f"--env-kwargs max_steps_in_episode=30 --out o --checkpoint-every 0 --eval-every {EVAL_EVERY}"
)


def start(folder, *arguments):
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "c"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return told.start("-c", PROGRAM, *arguments, env=cache | os.environ, cwd=folder)


@pytest.mark.slow
def test_kill_9_and_then_sigterm_change_nothing(tmp_path):
    (plan,) = plan_runs("CartPole-v1", "ppo-delta", seeds=1, out=tmp_path / "o", **SETTINGS)
    command = ("train", "CartPole-v1", *OPTIONS.split())
    with start(tmp_path, *command) as process:
        wait_for(lambda: (plan.path / "checkpoints" / "0000000005").exists(), process)
        process.send_signal(signal.SIGKILL)
    assert Run(plan.path).status["state"] == "running"
    before = checkpoints.latest(plan.path).count("updates")
    with start(tmp_path, "train", "--resume", "o") as process:  # with the pauses of the first call
        wait_for(lambda: checkpoints.latest(plan.path).count("updates") > before, process)
        with pytest.raises(ConfigError, match="is being written by another process"):
            RunWriter(plan.path, plan.content, {}, resume=True)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 143
    assert "stopping: every run saves what it has" in said
    assert "stopped: 0 of 1 runs are finished" in said and "to go on: tddelta train --resume o\n" in said
    run = Run(plan.path)
    assert run.status["state"] == "interrupted" and before < run.status["updates"] < UPDATES
    straight = trained(tmp_path / "straight", config=plan.config, eval_every=EVAL_EVERY)
    assert bytes_of(go_on(plan.path, plan.config, eval_every=EVAL_EVERY)) == bytes_of(straight)
    assert [row["event"] for row in run.timing if row["event"] in ("start", "resume")] == ["start", "resume", "resume"]


@pytest.fixture(scope="module")
def compiled():
    """The programs with blocks as long as they are elsewhere, since whoever comes first compiles them for all."""
    training.programs(jax.tree.map(float, cartpole()))


@pytest.mark.usefixtures("compiled")
def test_a_run_whose_folder_vanishes_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LONGEST_BLOCK", 2)
    plans = plan_runs("CartPole-v1", "ppo-delta", seeds=2, out=tmp_path / "o", **SETTINGS)

    def vanish(plan, news):
        if plan.seed == 0 and news.steps and plan.path.exists():
            shutil.move(plan.path, tmp_path / "gone")

    with pytest.warns(RuntimeWarning, match=r"1 of 2 runs failed: .*seed 0: StorageError: .* cannot be written"):
        runs = compare("CartPole-v1", "ppo-delta", seeds=2, out=tmp_path / "o", progress=vanish, **SETTINGS)
    assert [(run.seed, run.status["state"]) for run in runs] == [(1, "finished")]
    # It comes back: what was saved before it vanished is whole.
    shutil.move(tmp_path / "gone", plans[0].path)
    runs = compare("CartPole-v1", "ppo-delta", seeds=2, out=tmp_path / "o", resume=True, **SETTINGS)
    assert [run.status["state"] for run in runs] == ["finished", "finished"]
    assert bytes_of(runs[0]) == bytes_of(trained(tmp_path / "straight", config=plans[0].config))


@pytest.mark.usefixtures("compiled")
def test_a_full_disk_keeps_what_was_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LONGEST_BLOCK", 2)
    path, config = tmp_path / "seed-0", cartpole()
    save = checkpoints.save

    def full(run, number, arrays, record):
        if number > 10:
            monkeypatch.setattr(Path, "mkdir", lambda *arguments, **options: (_ for _ in ()).throw(OSError(28, "full")))
        save(run, number, arrays, record)

    monkeypatch.setattr(checkpoints, "save", full)
    with pytest.raises(StorageError, match=r"checkpoints.00000000\d\d cannot be written \(full\): free some space"):
        trained(path, config=config, checkpoint_every=0.0)
    monkeypatch.undo()
    assert checkpoints.latest(path).count("updates") > 5
    assert bytes_of(go_on(path, config)) == bytes_of(trained(tmp_path / "straight", config=config))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("evaluations.jsonl", '{"steps": 5}\n{"steps": "many"}\n', "steps must be a number; got 'many'"),
        ("status.json", '{"state": 1}', "status.json: state must be one of running, .*; got 1"),
        ("status.json", '{"state": "running", "updates": true}', "updates must be a whole number >= 0; got True"),
    ],
)
def test_a_strangers_types_are_a_sentence_and_nothing_is_changed(name, text, message, tmp_path):
    path = tmp_path / "seed-0"
    begin(path, 3).close()
    (path / name).write_text(text)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        RunWriter(path, CONFIG, {}, resume=True)
    assert contents(tmp_path) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_episodes_that_are_no_numbers_pass_a_checkpoint_over(tmp_path):
    path = tmp_path / "seed-0"
    begin(path, 3).close()
    for wrong in (np.array(["a"] * 3), np.float64(3)):
        np.savez(path / "episodes.npz", steps=np.arange(3), returns=wrong, lengths=np.arange(3))
        with pytest.raises(CheckpointError, match="lacks some of the 3 episodes"):
            checkpoints.before(path, checkpoints.latest(path))
