"""Experiments: the plan is checked before anything starts, and no run can stop another."""

import signal
import threading
import types
from datetime import datetime
from pathlib import Path

import gymnax
import numpy as np
import pytest

import pretend
import tddelta
import tddelta.deep
from tddelta.errors import ConfigError, DataError
from tddelta.experiments import compare, plan_runs, run_plans, train
from tddelta.experiments.plan import default_out, divide
from tddelta.runs import Run, load_runs
from told import Told, start

CATCH, POLE = "Catch-bsuite", "CartPole-v1"
pytestmark = pytest.mark.usefixtures("elsewhere")


# ---------------------------------------------------------------- the plan


@pytest.mark.usefixtures("pretended")
class TestPlan:
    def test_order_is_environment_agent_seed(self):
        plans = plan_runs([CATCH, POLE], ["ppo-delta", "ppo"], seeds=[4, 2], steps=1000, out="o")
        assert [str(plan.path) for plan in plans] == [
            f"o/{environment}/{agent}/seed-{seed}"
            for environment in (CATCH, POLE)
            for agent in ("ppo-delta", "ppo")
            for seed in (4, 2)
        ]
        assert plans[0].name == f"{CATCH}, ppo-delta, seed 4"
        assert not Path("o").exists()  # nothing is written

    def test_one_name_will_do_and_settings_that_differ_from_the_preset_give_the_label_a_hash(self):
        (plan,) = plan_runs(CATCH, "ppo", seeds=np.arange(1), gamma=0.99)  # the preset's
        assert (plan.config.steps, plan.agent, plan.path.parts[0], type(plan.seed)) == (200_000, "ppo", "runs", int)
        changes = ({}, {"steps": 7}, {"gamma": 0.9}, {"environments": 8}, {"environment_kwargs": {"columns": 7}})
        plans = [plan for settings in changes for plan in plan_runs(CATCH, "ppo", seeds=2, **settings)]
        labels = {plan.agent for plan in plans}
        assert "ppo" in labels and len(labels) == 4 and 8 in {plan.config.environments for plan in plans}
        assert all(len(label) == len("ppo-12345678") for label in labels - {"ppo"})

    @pytest.mark.parametrize(
        ("arguments", "settings", "message"),
        [
            (("CartPol-v1", "ppo"), {}, r"unknown environment 'CartPol-v1': did you mean CartPole-v1\?"),
            ((CATCH, "ppo-dleta"), {}, r"unknown agent 'ppo-dleta': did you mean ppo-delta\?"),
            ((CATCH, "ppo"), {"learning_rte": 1}, r"unknown setting 'learning_rte': did you mean learning_rate\?"),
            ((CATCH, "ppo"), {"gamma": 1.5}, r"gamma must be in \[0, 1\]; got 1\.5"),
            (("gym:CartPol-v1", "ppo"), {}, r"unknown Gymnasium environment 'CartPol-v1': did you mean CartPole-v1\?"),
            (([], "ppo"), {}, "environments must name at least one"),
            ((CATCH, []), {}, "agents must name at least one"),
            (([CATCH, CATCH], "ppo"), {}, "Catch-bsuite, ppo, seed 0 is planned twice"),
            ((CATCH, "ppo"), {"seeds": 0}, r"seeds must be at least one whole number; got 0"),
            ((CATCH, "ppo"), {"seeds": [1, 1]}, r"seeds must differ.*got \[1, 1\]"),
            ((CATCH, "ppo"), {"seeds": [-1]}, "seeds must be"),
            ((CATCH, "ppo"), {"seeds": [2**32]}, "whole numbers from 0 to 4294967295"),
            ((CATCH, "ppo"), {"seeds": True}, "seeds must be"),
            ((CATCH, "ppo"), {"seeds": 2.5}, "seeds must be"),
            ((CATCH, "ppo"), {"out": 5}, "out is named by its path; got 5: pass the path of a folder"),
            ((CATCH, "ppo"), {"presets": 5}, "a preset file is named by its path; got 5: pass the path of a file that"),
        ],
    )
    def test_mistakes_are_found_before_anything_starts(self, arguments, settings, message):
        with pytest.raises(ConfigError, match=message):
            compare(*arguments, **settings)
        assert not Path("runs").exists()

    @pytest.mark.parametrize(
        ("out", "reason"),
        [("file", "file is not a folder"), ("file/below", "file is not a folder"), ("x" * 300, "File name too long")],
    )
    def test_a_folder_that_cannot_be_made_is_refused_before_anything_starts(self, out, reason):
        Path("file").touch()
        with pytest.raises(ConfigError, match=rf"ppo cannot be made \(.*{reason}\): choose another folder with out="):
            compare(CATCH, "ppo", seeds=1, steps=1000, out=out)

    def test_a_folder_that_cannot_be_written_to_is_refused(self, monkeypatch):
        monkeypatch.setattr("os.access", lambda path, mode: False)  # permissions do not bind an administrator
        with pytest.raises(ConfigError, match=r"ppo cannot be made \(.* cannot be written to\)"):
            compare(CATCH, "ppo", seeds=1, steps=1000, out="o")
        assert not Path("o").exists()

    def test_default_folder_is_new(self, monkeypatch):
        clock = types.SimpleNamespace(now=lambda: datetime(2026, 1, 2, 3, 4, 5))
        monkeypatch.setattr("tddelta.experiments.plan.datetime", clock)
        assert default_out() == Path("runs/20260102-030405")
        Path("runs/20260102-030405").mkdir(parents=True)
        Path("runs/20260102-030405-2").mkdir()
        assert default_out() == Path("runs/20260102-030405-3")


# ---------------------------------------------------------------- resuming


@pytest.mark.usefixtures("pretended")
class TestResume:
    def test_what_was_finished_before_keeps_its_place_among_the_runs(self):
        compare(CATCH, "ppo-delta", seeds=[1], steps=1000, out="o")
        runs = compare(CATCH, ["ppo", "ppo-delta"], seeds=[0, 1], steps=1000, out="o", resume=True)
        assert [(run.agent, run.seed) for run in runs] == [(a, s) for a in ("ppo", "ppo-delta") for s in (0, 1)]

    def test_existing_runs_are_refused_without_it(self):
        compare(CATCH, "ppo", seeds=2, steps=1000, out="o")
        with pytest.raises(ConfigError, match=r"seed-0 \(and 1 more\) exists already.*resume=True"):
            compare(CATCH, ["ppo", "ppo-delta"], seeds=2, steps=1000, out="o")
        assert not Path("o", CATCH, "ppo-delta").exists()

    def test_finished_runs_are_kept_missing_ones_started_unfinished_ones_set_aside(self):
        compare(CATCH, "ppo", seeds=2, steps=1000, out="o")
        kept, cut = Path("o", CATCH, "ppo", "seed-0"), Path("o", CATCH, "ppo", "seed-1")
        before = (kept / "metrics.jsonl").stat().st_mtime_ns
        for state, number in (("running", 1), ("interrupted", 2), ("failed", 3)):
            text = (cut / "status.json").read_text().replace("finished", state)
            (cut / "status.json").write_text(text)
            runs = compare(CATCH, "ppo", seeds=3, steps=1000, out="o", resume=True)
            assert [run.seed for run in runs] == [0, 1, 2]
            assert {run.status["state"] for run in runs} == {"finished"}
            assert Run(cut.with_name(f"seed-1.unfinished-{number}")).status["state"] == state
        assert (kept / "metrics.jsonl").stat().st_mtime_ns == before
        assert len(load_runs("o")) == 3

    def test_a_folder_without_config_is_set_aside(self):
        Path("o", CATCH, "ppo", "seed-0").mkdir(parents=True)
        compare(CATCH, "ppo", seeds=1, steps=1000, out="o", resume=True)
        assert Path("o", CATCH, "ppo", "seed-0.unfinished-1").is_dir()

    def test_other_settings_are_refused_and_named(self):
        train(CATCH, "ppo", steps=1000, out="o")
        with pytest.raises(ConfigError, match=r"other settings, steps 1000 there and 2000 now; settings\.steps 1000"):
            train(CATCH, "ppo", steps=2000, out="o", resume=True)
        plans = plan_runs(CATCH, "ppo", seeds=1, steps=1000, out="o", gamma=0.9)
        Path("o", CATCH, "ppo").rename(plans[0].path.parent)
        with pytest.raises(ConfigError, match=r"other settings, settings\.gamma 0\.99 there and 0\.9 now; .*: use"):
            divide(plans, resume=True)


# ---------------------------------------------------------------- working through it


@pytest.mark.usefixtures("pretended")
class TestRunPlans:
    @pytest.fixture(autouse=True)
    def told(self, monkeypatch):
        def display(*arguments, **options):
            self.display = Told(*arguments, **options)
            return self.display

        monkeypatch.setattr("tddelta.experiments.running.Display", display)

    def test_one_failing_run_does_not_stop_the_others(self):
        plans = plan_runs(CATCH, "ppo", seeds=[0, 13, 14, 1], steps=3000, out="o")
        outcomes = run_plans(plans, workers=2)
        assert [outcome.state for outcome in outcomes.runs] == ["finished", "failed", "failed", "finished"]
        assert [type(outcome.error) for outcome in outcomes.runs] == [type(None), DataError, RuntimeError, type(None)]
        assert [plan.seed for plan, _ in outcomes.failed] == [13, 14]
        assert (outcomes.finished, outcomes.signal) == (2, None)
        messages = [Run(plan.path).status["message"] for plan in plans]
        assert messages == [None, "step 0: reward is not a number", "RuntimeError: a bug", None]
        assert self.display.threads == {threading.current_thread()}
        states = {0: "finished", 1: "finished", 13: "failed", 14: "failed"}
        assert dict(self.display.ended()) == states

    @pytest.mark.parametrize("workers", [1, 2, None])
    def test_runs_start_in_order_and_not_more_than_there_are_workers(self, workers, monkeypatch):
        monkeypatch.setattr("tddelta.experiments.running.available_cores", lambda: 3)
        run_plans(plan_runs(CATCH, "ppo", seeds=5, steps=2000, out="o"), workers=workers)
        running, most = 0, 0
        for what in self.display.told:
            running += {"begin": 1, "end": -1}.get(what[0], 0)
            most = max(most, running)
        assert most == (workers or 3)
        assert [what[1] for what in self.display.told if what[0] == "begin"] == list(range(5))

    def test_on_a_gpu_the_seeds_of_an_agent_are_one_program(self, monkeypatch):
        calls, pretended = [], pretend.train_runs

        def train_runs(config, seeds, writers, **options):
            calls.append((config.agent.name, list(seeds)))
            pretended(config, seeds, writers, **options)

        monkeypatch.setattr("jax.default_backend", lambda: "gpu")
        monkeypatch.setattr(tddelta.deep.training, "train_runs", train_runs)
        plans = plan_runs(CATCH, ["ppo", "ppo-delta"], seeds=[0, 13, 1], steps=1000, out="o")
        outcomes = run_plans(plans).runs
        assert calls == [("ppo", [0, 13, 1]), ("ppo-delta", [0, 13, 1])]
        assert [outcome.state for outcome in outcomes] == ["finished", "failed", "finished"] * 2
        assert [str(outcome.error) for outcome in outcomes][:2] == ["None", "step 0: reward is not a number"]

    def test_a_directory_that_cannot_be_made_fails_its_run_only(self, monkeypatch):
        monkeypatch.setattr("tddelta.experiments.running.divide", lambda plans, **_: (plans, []))  # which would see it
        plans = plan_runs(CATCH, "ppo", seeds=2, steps=1000, out="o")
        (blocked,) = plan_runs(CATCH, "ppo-delta", seeds=1, steps=1000, out="file")
        Path("file").touch()
        outcomes = run_plans([blocked, *plans]).runs
        assert [outcome.state for outcome in outcomes] == ["failed", "finished", "finished"]
        assert isinstance(outcomes[0].error, ConfigError) and "cannot be made" in str(outcomes[0].error)

    def test_a_report_that_fails_stops_the_runs(self):
        with pytest.raises(ZeroDivisionError):
            run_plans(plan_runs(CATCH, "ppo", seeds=2, steps=10**6, out="o"), workers=2, report=lambda *_: 1 / 0)
        pretend.wait_for(lambda: not any(thread.name.startswith("run-") for thread in threading.enumerate()))
        assert {run.status["state"] for run in load_runs("o")} == {"interrupted"}

    def test_the_event_of_the_caller_is_left_alone_when_all_runs_have_ended(self):
        stop = threading.Event()
        assert run_plans(plan_runs(CATCH, "ppo", seeds=2, steps=1000, out="o"), stop=stop).finished == 2
        assert not stop.is_set()

    def test_origin_is_in_the_timing_file(self):
        (plan,) = plan_runs(CATCH, "ppo", seeds=1, steps=1000, out="o")
        run_plans([plan], command=["tddelta", "train", CATCH])
        start = Run(plan.path).timing[0]
        assert start["command"] == ["tddelta", "train", CATCH]
        assert start["versions"].keys() >= {"python", "numpy", "jax"}
        assert start["machine"].keys() == {"processor", "cores", "device", "system"}


# ---------------------------------------------------------------- the two calls


@pytest.mark.usefixtures("pretended")
class TestCalls:
    def test_train_returns_the_run(self, capfd):
        run = train(POLE, steps=2000, seed=3, out="o", eval_every=1000)
        assert (run.environment, run.agent, run.seed) == (POLE, "ppo-delta", 3)
        assert run.status["state"] == "finished" and len(run.evaluations) == 2
        assert capfd.readouterr() == ("", "")  # quiet where nobody watches

    def test_train_raises_what_went_wrong(self):
        with pytest.raises(DataError, match="reward is not a number"):
            train(CATCH, "ppo", seed=13, steps=1000, out="o")
        with pytest.raises(ConfigError, match=r"seed must be a whole number >= 0; got \[0\]"):
            train(CATCH, seed=[0])

    def test_compare_returns_all_runs_and_warns_of_those_that_failed(self):
        with pytest.warns(RuntimeWarning, match=r"1 of 2 runs failed: .*seed 13: DataError: .*not a number"):
            runs = compare(CATCH, "ppo", seeds=[0, 13], steps=1000, out="o")
        assert [run.status["state"] for run in runs] == ["finished", "failed"]
        with pytest.raises(RuntimeError, match="a bug"):
            compare(CATCH, "ppo", seeds=[14], steps=1000, out="p")

    def test_progress_is_told_to_a_function_or_printed(self, capfd):
        told = []
        train(CATCH, steps=3000, out="o", progress=lambda plan, progress: told.append((plan.seed, progress.steps)))
        assert told == [(0, 0), (0, 1000), (0, 2000)]
        compare(CATCH, "ppo", seeds=1, steps=3000, out="o", progress=True)
        out, err = capfd.readouterr()
        assert out.startswith("Catch-bsuite, ppo, seed 0: finished, 3,000 steps in 0 s (") and err == ""
        compare(CATCH, "ppo", seeds=1, steps=3000, out="o", progress=True, resume=True)
        assert capfd.readouterr().out == "Catch-bsuite, ppo, seed 0: finished before, 3,000 steps, return 1\n"

    def test_own_environments_and_agents_are_objects(self):
        environment, _ = gymnax.make(CATCH)
        (run,) = compare(environment, tddelta.AGENTS["ppo"].replace(name="mine"), seeds=1, steps=1000, out="o")
        assert (run.environment, run.agent) == ("Catch", "mine")


# ---------------------------------------------------------------- signals

INTERRUPTED = """
import signal, sys
import pretend
pretend.install()
from tddelta.experiments import compare
def go(plan, progress):
    print("go", flush=True)
try:
    compare("Catch-bsuite", "ppo", seeds=6, steps=100_000_000, out="o", progress=go)
except KeyboardInterrupt:
    print("KeyboardInterrupt")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_saves_the_runs_and_then_does_what_it_always_does(number, code, tmp_path):
    process = start("-c", INTERRUPTED, cwd=tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("KeyboardInterrupt" in rest) == (number == signal.SIGINT)
    runs = load_runs(tmp_path)
    assert {run.status["state"] for run in runs} == {"interrupted"}
    assert len(runs) < 6  # the rest was not started
    assert all(len(run.metrics["steps"]) == run.status["updates"] for run in runs)


def broken_targets(rewards, heads, next_heads, **options):
    raise ValueError("no such thing\nin detail")


def test_a_function_of_the_users_that_raises_is_named(tmp_path):
    settings = {"environments": 2, "rollout_length": 4, "minibatches": 1, "epochs": 1, "hidden_sizes": (4,)}
    agent = tddelta.AGENTS["ppo"].replace(name="mine", targets=broken_targets)
    sentence = r"^the target function .*:broken_targets raised ValueError: no such thing \(.*, line \d+, in broken_t"
    with pytest.raises(ConfigError, match=sentence) as caught:
        tddelta.train(CATCH, agent, steps=8, out=tmp_path, **settings)
    assert isinstance(caught.value.__cause__, ValueError)
