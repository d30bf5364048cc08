"""Sweeps: what is finished is skipped, what died is replaced, what failed is tried again, and everybody hears of it."""

import multiprocessing
import os
import pickle
import resource
import signal
import threading
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

import sweep_worker
import tddelta
from pretend import wait_for
from tddelta.errors import ConfigError, DataError, setting
from tddelta.experiments import plan_runs
from tddelta.experiments.running import Work, work_through
from tddelta.experiments.workers import Processes, WorkerError, _ending, _sendable
from told import Told, spawned, start

CATCH = "Catch-bsuite"
pytestmark = pytest.mark.usefixtures("elsewhere")


def sweep(seeds, *, workers=2, retries=2, display=None, backend=sweep_worker.cpu, agents=("ppo",)):
    plans = plan_runs(CATCH, list(agents), seeds=seeds, steps=64, out="o")
    processes = Processes(workers, train=sweep_worker.train, backend=backend)
    outcomes = work_through(Work(plans, display or Told(), retries=retries), processes)
    return outcomes.runs, outcomes.signal


def jobs():
    """Seeds and processes in the order in which the runs began."""
    return [tuple(map(int, line.split()[:2])) for line in Path("o/jobs").read_text().splitlines()]


# ---------------------------------------------------------------- processes


def test_one_failing_run_stops_no_other_and_is_tried_again_if_that_can_help():
    display = Told()
    outcomes, number = sweep([0, 13, 14, 20, 21, 22, 1], retries=1, display=display)
    assert [outcome.state for outcome in outcomes] == [
        *("finished", "failed", "failed", "finished", "failed", "finished", "finished")
    ]
    assert number is None
    count = {seed: sum(seed == begun for begun, _ in jobs()) for seed in (0, 13, 14, 20, 21, 22, 1)}
    assert count == {0: 1, 13: 1, 14: 2, 20: 2, 21: 2, 22: 2, 1: 1}
    errors = [outcome.error for outcome in outcomes]
    assert isinstance(errors[1], DataError) and str(errors[1]) == "reward is not a number"
    assert isinstance(errors[2], WorkerError) and str(errors[2]) == "KeyError: 'a bug'"
    assert errors[2].__notes__[0].startswith("In the process that trained it:\nKeyError: 'a bug'")
    assert "ended with signal 9 (SIGKILL); its last words: a word of seed 21" in str(errors[4])
    assert ("again", 22, "interrupted") in display.told
    # a run that is tried again waits until all others have had their turn
    assert [seed for seed, _ in jobs()].index(1) < len(jobs()) - 3
    assert not active_children()


def test_the_order_is_kept_and_a_process_prefers_the_program_that_it_has():
    sweep(range(30, 33), agents=("ppo", "ppo+"))
    processes = [process for _, process in jobs()]
    assert len(set(processes)) == 2
    # the second process begins with the agent that the first one does not have
    seeds = [[seed for seed, process in jobs() if process == one] for one in dict.fromkeys(processes)]
    assert seeds == [[30, 31, 32], [30, 31, 32]]
    sweep(5, workers=1, display=(display := Told()))
    assert [what[1] for what in display.told if what[0] == "begin"] == [0, 1, 2, 3, 4]


def test_on_a_gpu_one_process_trains_the_waiting_seeds_of_an_agent_together(monkeypatch):
    monkeypatch.setattr("tddelta.experiments.workers.available_cores", lambda: 8)
    outcomes, _ = sweep(4, workers=None, backend=sweep_worker.gpu, agents=("ppo", "ppo+"))
    assert {outcome.state for outcome in outcomes} == {"finished"} and len(outcomes) == 8
    assert len({process for _, process in jobs()}) == 1


def test_without_a_gpu_there_is_a_process_per_core(monkeypatch):
    monkeypatch.setattr("tddelta.experiments.workers.available_cores", lambda: 3)

    def all_begun(*what):
        if what[0] == "begin" and sum(told[0] == "begin" for told in display.told) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    display = Told(do=all_begun)
    outcomes, number = sweep([15, 0, 1, 2], workers=None, display=display)
    assert number == signal.SIGINT and outcomes[0].state == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_every_run_save_and_starts_no_other(number):
    display = Told(do=lambda *what: what == ("begin", 15) and signal.raise_signal(number))
    before = signal.getsignal(number)
    outcomes, received = sweep([15, 0, 1, 2, 3], workers=1, display=display)
    assert received == number and display.told == [("begin", 15), ("stopping",), ("end", 15, "interrupted")]
    assert [outcome.state for outcome in outcomes] == ["interrupted"]
    assert signal.getsignal(number) == before and not active_children()


@pytest.mark.parametrize(
    ("backend", "number"), [(sweep_worker.signalling, signal.SIGINT), (sweep_worker.hanging, signal.SIGTERM)]
)
def test_a_signal_while_the_first_process_starts_or_hangs_starts_no_run(backend, number):
    began, display = time.monotonic(), Told()
    assert sweep([15, 0], backend=backend, display=display) == ([], number)
    assert time.monotonic() - began < 60  # of the 120 seconds that it hangs
    assert display.told == [("stopping",)] and not Path("o").exists() and not active_children()


def test_why_there_is_no_folder_for_processes_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        sweep([0])


def test_an_error_of_ours_from_another_process_keeps_its_settings():
    error = ConfigError(f"choose another folder with {setting('out', '')}")
    sent = pickle.loads(pickle.dumps(_sendable(error)))
    assert (type(sent), str(sent), sent.setting) == (ConfigError, "choose another folder with out=", "out")
    assert sent.written(lambda name, python, words: f"--{name}") == "choose another folder with --out"


def test_a_second_signal_ends_the_processes_at_once():
    signals = []  # when each was sent

    def twice(*what):
        if what in (("begin", 16), ("stopping",)):
            signals.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sweep([16, 0], workers=1, display=Told(do=twice))
    assert time.monotonic() - signals[1] < 45 and not active_children()  # the process would take two minutes


def test_processes_that_cannot_start_are_not_tried_for_ever():
    with pytest.raises(ConfigError, match="processes for training cannot start, exit code 1: no JAX here"):
        sweep([0], backend=sweep_worker.dead)
    assert not active_children()


def test_wrong_numbers_of_processes_and_runs_planned_from_objects_are_refused():
    with pytest.raises(ConfigError, match=f"workers must be at most 10,000; got {10**20}: pass a smaller one"):
        Processes(10**20)
    with pytest.raises(ConfigError, match="workers must be a whole number of at least 1; got 0"):
        Processes(0)
    (planned,) = plan_runs(CATCH, tddelta.AGENTS["ppo"], seeds=1, out="o")
    with pytest.raises(ConfigError, match="objects, and other processes can only be told names"):
        work_through(Work([planned], Told()), Processes(1, backend=sweep_worker.cpu))


def test_a_process_that_may_start_no_others_refuses_to_sweep(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # as in a multiprocessing.Pool
    said = "a daemonic process, such as one of a multiprocessing.Pool, may not start any: start the sweep outside of it"
    with pytest.raises(ConfigError, match=said):
        Processes(1)


def test_waiting_costs_no_processor_time():
    def stop_later(*what):
        if what == ("begin", 15):
            used.append(time.process_time())
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        elif what == ("stopping",):
            used.append(time.process_time())

    used = []
    sweep([15, 0], workers=1, display=Told(do=stop_later))
    assert used[1] - used[0] < 0.1  # of half a second


SCRIPT = """
import sys
import sweep_worker
from tddelta.experiments import plan_runs
from tddelta.experiments.display import Display
from tddelta.experiments.running import Work, work_through
from tddelta.experiments.workers import Processes

print("begun", flush=True)
plans = plan_runs("Catch-bsuite", "ppo", seeds=[int(sys.argv[1])], steps=64, out="o")
processes = Processes(1, train=sweep_worker.train, backend=sweep_worker.cpu)
outcomes = work_through(Work(plans, Display([])), processes)
print(outcomes.finished, outcomes.signal)
"""


def start_script(seed, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "script.py").write_text(SCRIPT)
    return start("elsewhere/script.py", str(seed), start_new_session=True)


def test_a_process_imports_neither_a_script_without_a_guard_nor_files_of_the_current_folder(tmp_path):
    Path("signal.py").write_text("raise SystemExit('not this one')")
    with start_script(0, tmp_path) as process:
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (0, "begun\n1 None\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_while_the_first_one_starts_is_no_failure_of_it(number, tmp_path):
    with start_script(15, tmp_path) as process:
        wait_for(lambda: spawned(process), process)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (0, f"begun\n0 {int(number)}\n", "stopping: every run saves what it has\n")
    assert not Path("o").exists()


def test_a_process_saves_its_run_and_leaves_when_its_parent_is_killed(tmp_path):
    with start_script(15, tmp_path) as process:
        wait_for(jobs, process)
        ((_, worker),) = jobs()
        process.kill()
    stat = Path(f"/proc/{worker}/stat")
    wait_for(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_many_runs_leave_nothing_behind():
    def used():
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return len(os.listdir("/proc/self/fd")), threading.active_count(), memory

    sweep(10)
    before, deadline = used(), time.monotonic() + 60
    outcomes, _ = sweep(range(100, 200))
    assert len(outcomes) == 100 and not active_children()
    while (after := used())[0] > before[0] or after[1] > before[1]:  # a thread may end a moment later
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert after[2] < 1.05 * before[2]


@pytest.mark.parametrize(
    ("code", "said"), [(3, "exit code 3"), (-9, "signal 9 (SIGKILL)"), (-40, "signal 40"), (-200, "signal 200")]
)
def test_every_end_of_a_process_has_words(code, said):
    assert _ending(code) == said
