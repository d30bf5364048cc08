"""Several machines on one folder: here several executors, with the locks of real run directories."""

import subprocess
import threading
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from studies import end
from tddelta.deep.config import Config
from tddelta.errors import ConfigError
from tddelta.experiments.plan import Outcome, RunPlan
from tddelta.experiments.running import Trainer, Work, work_through
from tddelta.runs import RunWriter, is_being_written, load_runs
from told import Told, start

CONTENT = {
    "format": 1, "environment": "E", "agent": {"name": "a"}, "seed": 0, "settings": {}, "scales": {},
}  # fmt: skip


def plan(out, seed):
    return RunPlan("E", "a", seed, out / "E" / "a" / f"seed-{seed}", Config(), CONTENT)


class OneAtATime(Trainer):
    """Finishes one run whenever it is asked to start some; `before` is called just before it opens one."""

    def __init__(self, before=lambda plan: None):
        self.trained, self.before = [], before

    def start(self, waiting):
        run, future = waiting[0], Future()
        self.before(run)
        try:
            with RunWriter(run.path, CONTENT, {}, resume=True) as writer:
                writer.status("finished")
            self.trained.append(run.seed)
            future.set_result([Outcome(run, "finished")])
        except ConfigError as error:
            future.set_result([Outcome(run, "failed", error)])
        return [([run], future)]


class OneThatLasts(OneAtATime):
    """The same, but the run goes on for a while, in which there is no room for another."""

    def __init__(self):
        super().__init__()
        self.lasting = Future()
        self.lasting.cancel()

    def start(self, waiting):
        if not self.lasting.done():
            return []
        ((group, done),) = super().start(waiting)
        self.lasting = Future()
        threading.Timer(0.05, self.lasting.set_result, [done.result()]).start()
        return [(group, self.lasting)]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("tddelta.experiments.running.LOOK_SECONDS", 0.001)


def work(plans, trainer, stop=None):
    display = Told()
    work_through(Work(plans, display, shared=True, stop=stop or threading.Event()), trainer)
    return display.ended()


def test_what_another_machine_has_finished_is_told_and_not_trained(tmp_path):
    plans = [plan(tmp_path, seed) for seed in range(3)]
    end(plans[1])
    inner = OneAtATime()
    told = work(plans, inner)
    assert inner.trained == [0, 2]
    assert sorted(told) == [(0, "finished"), (1, "finished", "skipped"), (2, "finished")]


def test_what_another_machine_has_begun_comes_last_and_is_waited_for(tmp_path, capsys, monkeypatch):
    plans = [plan(tmp_path, seed) for seed in range(3)]
    other = RunWriter(plans[0].path, CONTENT, {})
    looks = []

    def being_written(path):
        looks.append(path)
        if len(inner.trained) == 2 and len(looks) > 20:
            other.status("finished")
            other.close()
        return is_being_written(path)

    monkeypatch.setattr("tddelta.experiments.running.is_being_written", being_written)
    inner = OneAtATime()
    told = work(plans, inner)
    assert inner.trained == [1, 2]
    assert told[-1] == (0, "finished", "skipped")
    assert "1 runs are in progress elsewhere: waiting for them" in capsys.readouterr().err


def test_nobody_looks_for_runs_to_take_while_there_is_no_room_for_one(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr("tddelta.experiments.running.is_being_written", looks.append)
    plans = [plan(tmp_path, seed) for seed in range(3)]
    assert [seed for seed, *_ in work(plans, OneThatLasts())] == [0, 1, 2]
    assert looks == [one.path for count in range(3) for one in plans[count:]]


def test_a_run_whose_machine_was_lost_is_taken_over(tmp_path):
    run = plan(tmp_path, 0)
    RunWriter(run.path, CONTENT, {}).close()  # its lock went with its process
    assert work([run], OneAtATime()) == [(0, "finished")]


def test_a_run_that_another_machine_took_a_moment_before_is_no_failure(tmp_path):
    plans = [plan(tmp_path, seed) for seed in range(2)]
    other = []

    def snatch(run):
        if run.seed == 0 and not other:
            other.append(RunWriter(run.path, CONTENT, {}))
        elif run.seed == 1:
            other[0].status("finished")
            other[0].close()

    inner = OneAtATime(snatch)
    told = work(plans, inner)
    assert inner.trained == [1]
    assert sorted(told) == [(0, "finished", "skipped"), (1, "finished")]


def test_a_run_that_another_machine_took_is_no_failure_while_all_are_stopped(tmp_path):
    stop = threading.Event()
    with ExitStack() as other:

        def snatch(run):
            other.enter_context(RunWriter(run.path, CONTENT, {}))
            stop.set()

        assert work([plan(tmp_path, 0)], OneAtATime(snatch), stop) == [(0, "interrupted")]


def test_a_failure_of_ones_own_stays_one(tmp_path):
    (tmp_path / "E").mkdir()
    (tmp_path / "E" / "a").write_text("in the way")
    assert work([plan(tmp_path, 0)], OneAtATime()) == [(0, "failed")]


PROGRAM = """
import sys
import pretend
pretend.install()
from tddelta.experiments import plan_runs, run_plans

plans = plan_runs("CartPole-v1", "ppo", seeds=4, steps=20_000, out=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
outcomes = run_plans(plans, resume=True, shared=True, workers=1)
print(sum(not outcome.skipped for outcome in outcomes.runs), outcomes.finished)
"""


@pytest.mark.slow
def test_two_processes_divide_the_runs_of_a_folder_between_them(tmp_path):
    with ExitStack() as stack:
        options = {"stdin": subprocess.PIPE, "stderr": None}
        both = [stack.enter_context(start("-c", PROGRAM, str(tmp_path), **options)) for _ in range(2)]
        for one in both:
            assert one.stdout.readline() == "ready\n"
        for one in both:
            one.stdin.write("go\n")
            one.stdin.flush()
        answers = [one.communicate()[0].split() for one in both]
    assert [one.returncode for one in both] == [0, 0]
    trained = [int(answer[0]) for answer in answers]
    assert sum(trained) == 4 and min(trained) > 0
    assert [answer[1] for answer in answers] == ["4", "4"]
    runs = load_runs(tmp_path)
    assert {run.seed: run.status["state"] for run in runs} == dict.fromkeys(range(4), "finished")
    for run in runs:
        assert [row["event"] for row in run.timing if row["event"] in ("start", "resume")] == ["start"]
    assert sorted(path.name for path in runs[0].path.parent.iterdir()) == [f"seed-{seed}" for seed in range(4)]
