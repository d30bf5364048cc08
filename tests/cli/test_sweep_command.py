"""`tddelta sweep`: one command that starts a study, goes on with it, grows it and says how far it is."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import pretend
import tddelta
import tddelta.deep
from studies import CATCH, STUDY, end, look, run_of, states, write
from tddelta.cli import main
from tddelta.errors import ConfigError
from tddelta.experiments import sweeping
from tddelta.experiments.display import Board
from tddelta.experiments.running import Trainer, in_thread, train_group
from tddelta.experiments.sweeping import slurm_script as script
from tddelta.runs import Run, load_runs
from told import spawned, start

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def pretended(pretended, monkeypatch):
    """Replace also processes, by a thread."""

    class OneThread(Trainer):
        def __init__(self, count, *, options, command):
            self.options, self.origin, self.run = options, {"command": list(command)}, None
            self.halt, type(self).count = threading.Event(), count

        def start(self, waiting):
            if self.run is not None and not self.run.done():
                return []
            train = functools.partial(train_group, **self.options)
            self.run = in_thread("run", train, waiting[:1], self.origin, lambda *_: None, self.halt)
            return [(waiting[:1], self.run)]

        def stop(self):
            self.halt.set()

    monkeypatch.setattr(sweeping, "Processes", OneThread)


# ---------------------------------------------------------------- working through a study


@pytest.mark.usefixtures("pretended")
class TestSweep:
    def test_there_are_as_many_processes_as_asked_for(self):
        write(STUDY)
        assert main(["sweep", "study.toml", "--workers", "3"]) == 0
        assert sweeping.Processes.count == 3

    def test_finished_runs_are_skipped_interrupted_ones_go_on_failed_ones_are_tried_again(self, capsys):
        write(STUDY.replace("seeds = 2", "seeds = [0, 1, 13, 14]"))
        assert main(["sweep", "study.toml"]) == 1
        out, err = capsys.readouterr()
        assert out.endswith("2 of 4 runs are finished: study\n")
        assert "seed 13 failed: step 0: reward is not a number" in err and "RuntimeError: a bug" in err
        assert err.count("tried again later: RuntimeError: a bug") == 1 and "seed 13: tried again" not in err
        assert err.endswith("to go on: tddelta sweep study.toml\n")
        assert states() == ["finished", "finished", "failed", "failed"]
        kept = (run_of(0) / "metrics.jsonl").stat().st_mtime_ns
        interrupted = run_of(1) / "status.json"
        interrupted.write_text(interrupted.read_text().replace("finished", "interrupted"))
        assert main(["sweep", "study.toml", "--json"]) == 1
        rows = {row["seed"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
        assert {seed: (row["state"], row["skipped"]) for seed, row in rows.items()} == {
            0: ("finished", True), 1: ("finished", False), 13: ("failed", False), 14: ("failed", False)
        }  # fmt: skip
        assert (run_of(0) / "metrics.jsonl").stat().st_mtime_ns == kept

    def test_seeds_are_added_once_and_remembered(self, capsys):
        write()
        assert main(["sweep", "study.toml"]) == 0
        assert main(["sweep", "study.toml", "--add-seeds", "2"]) == 0
        assert sorted(run.seed for run in load_runs("study")) == [0, 1, 2, 3]
        assert main(["sweep", "study.toml"]) == 0  # without the option they stay
        assert capsys.readouterr().out.count("finished before") == 2 + 4
        assert main(["sweep", "study.toml", "--add-seeds", "1"]) == 0
        assert [state.entry.seed for state in look()] == [0, 1, 2, 3, 4]
        shutil.rmtree(run_of(4))
        assert states()[-1] == "waiting"  # the study knows of runs that are not there
        assert main(["sweep", "study.toml", "--add-seeds", "-1"]) == 2
        assert (
            "add-seeds must be a whole number of at least 0; got -1: seeds can only be added" in capsys.readouterr().err
        )

    def test_seeds_that_another_sweep_added_meanwhile_are_not_forgotten(self):
        early = write()
        sweeping.remember(sweeping.plan(Path("study.toml"), 3))
        with pytest.raises(ConfigError, match="another sweep added seeds meanwhile, 3 in place of 0: start it again"):
            sweeping.work(early)
        assert json.loads(Path("study/study.json").read_text())["added_seeds"] == 3

    def test_a_second_sweep_is_refused_by_the_lock_of_the_first(self, capsys):
        write()
        with sweeping._claim(Path("study")):
            assert main(["sweep", "study.toml"]) == 2
            said = capsys.readouterr().err
            assert "study is being written by another process: wait for it, or watch it with --status --watch" in said
            assert main(["sweep", "study.toml", "--only", "0"]) == 2
        with sweeping._claim(Path("study"), shared=True):  # the jobs of a cluster do not exclude each other
            assert main(["sweep", "study.toml", "--only", "0"]) == 0
            assert main(["sweep", "study.toml"]) == 2

    def test_one_run_alone(self, capsys):
        write()
        assert main(["sweep", "study.toml", "--only", "1"]) == 0
        assert states() == ["waiting", "finished"]
        assert capsys.readouterr().out.endswith("1 of 1 runs are finished: study\n")
        assert main(["sweep", "study.toml", "--only", "1"]) == 0  # a job that starts again
        assert "finished before" in capsys.readouterr().out
        assert main(["sweep", "study.toml", "--only", "2"]) == 2
        assert "the study has the runs 0 to 1; got 2" in capsys.readouterr().err

    def test_from_python(self):
        write(STUDY.replace("seeds = 2", "seeds = [0, 13]"))
        with pytest.warns(RuntimeWarning, match=r"2 of 3 runs failed: .*, seed 13: DataError: .*not a number"):
            runs = tddelta.sweep("study.toml", add_seeds=1)  # 14 is the next one, a bug; its kind is tried twice
        assert [run.status["state"] for run in runs] == ["finished", "failed", "failed"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--slurm", "--status"], "--slurm and --status exclude each other"),
            (["--only", "0", "--ray", "auto"], "--only and --ray exclude each other"),
            (["--watch"], "--watch goes with --status"),
            (["--status", "--watch", "--json"], "--watch shows a table, which is no JSON"),
            (["--only", "0", "--workers", "2"], "--workers has no meaning with --only; got 2"),
            (["--status", "--add-seeds", "1"], "--add-seeds changes the study, and --status must not; got 1"),
            (["--add-seeds", "1e20"], f"--add-seeds must be at most 100,000; got {10**20}: pass a smaller one"),
            (["--only", "1e20"], f"the study has the runs 0 to 1; got {10**20}: name one of them"),
            (["--ray-fetch"], "--ray-fetch is for a Ray cluster"),
            (["--ray", "auto", "--workers", "1"], "--workers has no meaning with --ray"),
            (["--track", "tensorbord"], "unknown tracker 'tensorbord': did you mean tensorboard?"),
        ],
    )
    def test_options_that_contradict_each_other(self, options, message, capsys):
        write()
        assert main(["sweep", "study.toml", *options]) == 2
        assert message in capsys.readouterr().err and not Path("study", CATCH).exists()


# ---------------------------------------------------------------- Slurm


class TestSlurm:
    def test_the_script_is_a_job_array_of_the_runs_that_are_left(self, capsys, tmp_path):
        folder = tmp_path / "a folder; rm -rf 'x' $HOME"
        folder.mkdir()
        text = STUDY.replace("seeds = 2", "seeds = 6") + '[resources]\ncpus = 2\ngpus = 1\n[slurm]\ntime = "1-0"\n'
        study = folder / "my study.toml"
        study.write_text(text)
        planned = sweeping.plan(study)
        for index in (1, 4):
            end(planned.plans[index])
        assert main(["sweep", str(study), "--slurm"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "#!/bin/bash"
        assert "#SBATCH --array=0-3" in lines and "runs=(0 {2..3} 5)" in lines and "#SBATCH --time=1-0" in lines
        assert "#SBATCH --cpus-per-task=2" in lines and "#SBATCH --gpus-per-task=1" in lines
        assert "#SBATCH --signal=B:TERM@120" in lines and "#SBATCH --requeue" in lines
        assert (folder / "my study" / "slurm").is_dir()  # Slurm does not make the folder of its logs

    @pytest.mark.usefixtures("pretended")
    def test_its_jobs_train_one_run_each(self, tmp_path, capsys):
        folder = tmp_path / "a folder; rm -rf 'x' $HOME"
        folder.mkdir()
        (folder / "my study.toml").write_text(STUDY)
        assert main(["sweep", str(folder / "my study.toml"), "--slurm", "--checkpoint-every", "60"]) == 0
        text = capsys.readouterr().out
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        # in the place of the command a program that says what it was called with, and where
        said = Path("tddelta")
        said.write_text('#!/bin/bash\nprintf "%s\\n" "$PWD" "$@"\n')
        said.chmod(0o755)
        command = next(line for line in text.splitlines() if line.startswith("exec "))
        program = str(Path(sys.executable).with_name("tddelta"))
        changed = text.replace(command, command.replace(program, str(said.absolute())))
        assert changed != text
        done = subprocess.run(
            ["bash"], input=changed, text=True, check=True, capture_output=True, env={"SLURM_ARRAY_TASK_ID": "1"}
        )
        assert done.stdout.splitlines() == [
            *(str(folder), "sweep", "my study.toml", "--checkpoint-every", "60.0", "--only", "1")
        ]

    def test_more_runs_than_an_array_takes_are_several_arrays(self):
        planned = write()
        (state,) = Board(planned.plans[:1]).look()
        states = [replace(state, state="finished" if index == 1500 else "waiting") for index in range(2500)]
        text = script(planned.study, states)
        assert "| bash" in text.splitlines()[1]
        bin = Path("bin").absolute()
        bin.mkdir()
        # keeps what it is given as 1, 2, 3, as the real one would
        (bin / "sbatch").write_text(f'#!/bin/bash\ncat > "{bin}/$(ls {bin} | wc -l).sh"\n')
        (bin / "tddelta").write_text('#!/bin/bash\necho "${@: -1}"\n')
        for program in bin.iterdir():
            program.chmod(0o755)
        program = str(Path(sys.executable).with_name("tddelta"))
        environment = {"PATH": f"{bin}:/usr/bin:/bin"}
        subprocess.run(["bash"], input=text.replace(program, "tddelta"), text=True, check=True, env=environment)
        arrays = sorted(bin.glob("*.sh"))
        assert [re.search(r"--array=0-(\d+)", one.read_text())[1] for one in arrays] == ["999", "999", "498"]
        for number, job, run in ((0, 0, 0), (0, 999, 999), (1, 0, 1000), (1, 500, 1501), (2, 498, 2499)):
            job = environment | {"SLURM_ARRAY_TASK_ID": str(job)}
            done = subprocess.run(["bash", arrays[number]], text=True, check=True, capture_output=True, env=job)
            assert done.stdout == f"{run}\n"

    def test_nothing_is_left(self):
        planned = write()
        for one in planned.plans:
            end(one)
        with pytest.raises(ConfigError, match=r"all 2 runs of study\.toml are finished: add seeds with --add-seeds"):
            script(planned.study, Board(planned.plans).look())


# ---------------------------------------------------------------- with real processes and real training


def test_the_example_is_a_study():
    shutil.copy(ROOT / "examples" / "study.toml", "study.toml")
    plans = sweeping.plan(Path("study.toml")).plans
    assert len(plans) == 9 and plans[-1].config.entropy_coefficient == 0


@pytest.mark.slow
def test_the_example_survives_the_death_of_a_process_and_of_the_sweep(capsys, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")  # three processes compile its program
    text = (ROOT / "examples" / "study.toml").read_text(encoding="utf-8").replace("16_384", "65_536")
    text = text.replace('"ppo", "ppo-delta"', '"ppo"').replace('["ppo-delta"]', '["ppo"]')
    write(text.replace("\n[settings]", "\n[settings]\nhidden_sizes = [8]\nepochs = 1\nminibatches = 1"))
    command = ["sweep", "study.toml", "--workers", "1"]
    process = start("-m", "tddelta", *command, "--checkpoint-every", "0")

    def begun():  # a whole checkpoint: one in the making has a hidden name
        return list(Path("study").glob("*/*/seed-*/checkpoints/[0-9]*"))

    pretend.wait_for(begun, process)
    (worker,) = spawned(process)
    os.kill(worker, signal.SIGKILL)
    pretend.wait_for(lambda: "finished" in states(), process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "signal 9 (SIGKILL)" in err and "stopping: every run saves what it has" in err
    assert err.endswith(f"to go on: tddelta {' '.join(command)} --checkpoint-every 0\n")
    assert 1 <= out.count(": finished") < 5
    assert main(command) == 0
    assert capsys.readouterr().out.endswith("5 of 5 runs are finished: study\n")
    runs = load_runs("study")
    assert len(runs) == 5 and not list(Path("study").rglob("*.unfinished-*"))
    for run in runs:
        assert (run.metrics["update"] == range(1, run.status["updates"] + 1)).all()
    assert any(row["event"] == "resume" for run in runs for row in Run(run.path).timing)


@pytest.mark.slow
def test_a_hundred_real_runs_leave_nothing_behind(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    program = [sys.executable, str(ROOT / "benchmarks" / "many_runs.py"), "--quick"]
    out = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert "100 of 100 runs finished" in out
    used = {when: line for line in out.splitlines() for when in WHEN if line.startswith(f"{when}: ")}
    files, processes = ([_number(used[when], what) for when in WHEN] for what in ("open files", "processes"))
    assert files[0] == files[3] and files[1] == files[2]
    assert processes == [1, 2, 2, 1]
    growth = next(line for line in out.splitlines() if line.startswith("growth of memory: "))
    assert float(growth.removeprefix("growth of memory: ").removesuffix("%")) < 5


WHEN = ("before", "after a tenth", "at the end", "afterwards")


def _number(line, what):
    return int(line.partition(f" {what}")[0].split()[-1])
