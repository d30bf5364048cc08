"""Trackers: what they show equals the run directory, also after a break, and no run is lost for a curve."""

import json
import signal
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest

from deep_runs import BATCH, cartpole
from event_files import curves
from tddelta.deep import training
from tddelta.errors import ConfigError, MissingExtra, TrackingWarning
from tddelta.experiments.running import recorded_plan
from tddelta.runs import Logged, Run, RunWriter, check_trackers
from tddelta.runs.trackers import Tracking, WeightsAndBiases, scalars

CONFIG = {"format": 1, "environment": "E", "agent": {"name": "a"}, "seed": 0, "settings": {"gamma": 0.9}}
ROWS = [
    {"update": n, "steps": 10 * n, "episodes": n, "return_mean": n / 2, "value_loss/gamma=0.5": n} for n in range(1, 9)
]
EVALUATIONS = [
    {"steps": 20, "mode": "sampled", "seed": 3, "return_mean": 1.0, "returns": [1.0]},
    {"steps": 60, "return_mean": 2.0},
]


def expected(rows, evaluations):
    found = {(name, row["steps"]): value for row in rows for name, value in scalars(row, "train").items()}
    return found | {(name, row["steps"]): x for row in evaluations for name, x in scalars(row, "evaluation").items()}


def drawn(path):
    """The numbers that TensorBoard shows of a run, in order."""
    return {place: value.simple_value for place, value in curves(path / "tensorboard").items()}


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_what_is_not_a_finite_number_has_no_curve():
    row = {"steps": 5, "seed": 7, "mode": "sampled", "return_mean": None, "returns": [1.0]}
    row |= {"x": float("nan"), "y": True, "a": 1, "b/gamma=0.5": 2.0}
    assert scalars(row, "train") == {"train/a": 1.0, "b/gamma=0.5": 2.0}


def test_tensorboard_shows_the_run_directory(tmp_path):
    with RunWriter(tmp_path / "seed-0", CONFIG, {}) as writer:
        writer.track(["tensorboard"])
        writer.metrics(ROWS[:4])
        writer.timing({"event": "block", "steps": 40, "seconds": 1.0, "steps_per_second": 40.0})
        writer.evaluation(EVALUATIONS[0])
        writer.metrics(ROWS[4:])
        writer.status("finished")
    found = drawn(tmp_path / "seed-0")
    assert found.pop(("time/steps_per_second", 40)) == 40.0 and found.pop(("config/text_summary", 0)) == 0.0
    assert found == expected(ROWS, EVALUATIONS[:1])
    (text,) = curves(tmp_path / "seed-0" / "tensorboard")["config/text_summary", 0].tensor.string_val
    assert b"| gamma | 0.9 |" in text and b'| environment | "E" |' in text


@pytest.mark.parametrize("before", ["no file", "whole", "cut short", "zeros", "a flipped byte"])
def test_tensorboard_goes_on_where_the_run_goes_on(tmp_path, before):
    """The run broke off after 50 steps; its checkpoint is at 30, and some of its events never reached the disk."""
    if before != "no file":
        tracking = Tracking(["tensorboard"], tmp_path, CONFIG)
        tracking.metrics(ROWS[:2])
        tracking.evaluation(EVALUATIONS[0])
        tracking.metrics(ROWS[2:5])
        tracking.close("interrupted")
        (file,) = (tmp_path / "tensorboard").iterdir()
        content = bytearray(file.read_bytes())
        if before == "cut short":
            del content[-3:]
        elif before == "zeros":
            content[-40:] = bytes(80)
        elif before == "a flipped byte":
            content[len(content) // 2] ^= 1
        file.write_bytes(content)
    (tmp_path / "metrics.jsonl").write_text(lines(ROWS[:3]))
    (tmp_path / "evaluations.jsonl").write_text(lines(EVALUATIONS[:1]))
    blocks = [{"event": "block", "steps": at, "steps_per_second": float(at)} for at in (20, 30, 50)]
    timing = [{"event": "start"}, blocks[0], blocks[2], {"event": "resume", "steps": 20}, blocks[1]]
    (tmp_path / "timing.jsonl").write_text(lines(timing))
    tracking = Tracking(["tensorboard"], tmp_path, CONFIG, 30)
    later = [{**row, "return_mean": row["return_mean"] + 1} for row in ROWS[3:]]
    tracking.metrics(later[:3])
    tracking.evaluation(EVALUATIONS[1])
    tracking.metrics(later[3:])
    tracking.close("finished")
    found = drawn(tmp_path)
    del found["config/text_summary", 0]
    assert [found.pop(("time/steps_per_second", at)) for at in (20, 30)] == [20, 30]
    assert found == expected([*ROWS[:3], *later], EVALUATIONS)
    steps = [step for tag, step in found if tag == "train/return_mean"]
    assert steps == sorted(steps)


class Listening:
    """A tracker of one's own, which already has the updates up to 20 steps."""

    def __init__(self, path, config):
        self.heard = [(path.name, config["environment"])]

    def start(self, steps):
        self.heard.append(steps)
        return Logged(metrics=20)

    def metrics(self, rows):
        self.heard.extend(row["steps"] for row in rows)

    def evaluation(self, row):
        self.heard.append(("evaluation", row["steps"]))

    def speed(self, steps, steps_per_second):
        self.heard.append(("speed", steps))

    def close(self, state):
        self.heard.append(state)


def test_a_tracker_of_ones_own_hears_every_row_once(tmp_path):
    made = []

    def mine(path, config):
        made.append(Listening(path, config))
        return made[0]

    (tmp_path / "metrics.jsonl").write_text(lines(ROWS[:3]))
    (tmp_path / "evaluations.jsonl").write_text(lines(EVALUATIONS[:1]))
    tracking = Tracking(check_trackers(mine), tmp_path, CONFIG, 30)
    tracking.metrics(ROWS[2:4])
    tracking.timing({"event": "block", "steps": 40, "seconds": 1, "steps_per_second": 10.0})
    tracking.timing({"event": "end", "seconds": 1})
    tracking.close("finished")
    assert made[0].heard == [(tmp_path.name, "E"), 30, ("evaluation", 20), 30, 40, ("speed", 40), "finished"]


def test_a_tracker_that_fails_costs_no_run(tmp_path):
    class Broken(Listening):
        def metrics(self, rows):
            raise OSError(28, "No space left on device")

    def never(path, config):
        raise RuntimeError("no server")

    with RunWriter(tmp_path / "seed-0", CONFIG, {}) as writer:
        with pytest.warns(TrackingWarning, match=r"seed-0 is no longer tracked by never \(RuntimeError: no server\)"):
            writer.track([never, Broken])
        with pytest.warns(TrackingWarning, match="Broken .*No space left.*the run goes on"):
            writer.metrics(ROWS)
        writer.metrics(ROWS[:1])  # and no second warning
        writer.status("finished")
    assert len((tmp_path / "seed-0" / "metrics.jsonl").read_text().splitlines()) == 9


def test_trackers_are_checked_before_a_run_starts(monkeypatch):
    assert check_trackers(()) == () and check_trackers(["tensorboard", "tensorboard"]) == ("tensorboard",)
    with pytest.raises(ConfigError, match="unknown tracker 'tensorbord': did you mean tensorboard"):
        check_trackers("tensorbord")
    with pytest.raises(ConfigError, match="unknown tracker 'x': known are tensorboard, wandb"):
        check_trackers(["x"])
    monkeypatch.setattr("tddelta.runs.trackers.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'needs tensorboardX: pip install "tddelta\[track\]"'):
        check_trackers("tensorboard")


@pytest.mark.slow
def test_a_resumed_run_has_the_curves_of_one_without_a_break(tmp_path):
    config, stop = cartpole(), threading.Event()
    content = training.run_config(config, 0)
    options = {"options": {"track": ["tensorboard", "no such"]}}

    def halt(progress):
        if progress.steps >= 10 * BATCH:
            stop.set()

    for name, breaks in (("straight", [None]), ("broken/seed-0", [halt, None])):
        for progress in breaks:
            stop.clear()
            with RunWriter(tmp_path / name, content, options, resume=True) as writer:
                writer.track(["tensorboard"])
                training.train_run(config, 0, writer, progress=progress, stop=stop)
    straight, broken = (drawn(tmp_path / name) for name in ("straight", "broken/seed-0"))
    timeless = [{k: v for k, v in found.items() if k[0] != "time/steps_per_second"} for found in (straight, broken)]
    assert timeless[0] == timeless[1] and len(timeless[0]) > 100
    assert len(list((tmp_path / "broken/seed-0/tensorboard").iterdir())) == 2
    run = Run(tmp_path / "broken/seed-0")
    assert {step for tag, step in timeless[1] if tag == "train/update"} == set(run.metrics["steps"].tolist())
    # and a run that is resumed by its directory goes on with the trackers that it had
    assert recorded_plan(run.path)[1]["track"] == ("tensorboard",)


# ---------------------------------------------------------------- Weights & Biases


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """W&B as it is on a machine without a network, its own files in a temporary folder."""
    import wandb

    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.fixture
def logged(monkeypatch):
    """Values passed to W&B's `Run.log`, as ((name, step), value), in order."""
    import wandb

    points, log = [], wandb.Run.log

    def note(run, values, step):
        points.extend(((name, step), value) for name, value in values.items() if name != "evaluation/steps")
        log(run, values, step=step)

    monkeypatch.setattr(wandb.Run, "log", note)
    return points


KILLED = """
import json, os, signal, sys
from pathlib import Path
from tddelta.runs.trackers import Tracking
path, config, rows, evaluation = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
tracking = Tracking(["wandb"], path, config)
tracking.metrics(rows[:2])
tracking.evaluation(evaluation)
tracking.metrics(rows[2:5])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_wandb_goes_on_under_its_id_after_a_kill(tmp_path, offline, logged):
    path = tmp_path / "E" / "a" / "seed-0"
    path.mkdir(parents=True)
    given = [str(path), *map(json.dumps, (CONFIG, ROWS, EVALUATIONS[0]))]
    done = subprocess.run([sys.executable, "-c", KILLED, *given], check=False)
    assert done.returncode == -signal.SIGKILL
    memory = json.loads((path / "wandb" / "id.json").read_bytes())
    assert (memory["metrics"], memory["evaluations"]) == (-1, -1)  # W&B's own process had not written them yet
    (path / "metrics.jsonl").write_text(lines(ROWS[:3]))  # back at the checkpoint
    (path / "evaluations.jsonl").write_text(lines(EVALUATIONS[:1]))
    tracking = Tracking(["wandb"], path, CONFIG, 30)
    tracking.metrics(ROWS[3:6])
    tracking.timing({"event": "block", "steps": 60, "seconds": 1.0, "steps_per_second": 60.0})
    tracking.evaluation(EVALUATIONS[1])
    tracking.metrics(ROWS[6:])
    tracking.close("finished")
    found = dict(logged)
    assert len(found) == len(logged), "a (name, step) came twice"
    assert found.pop(("time/steps_per_second", 60)) == 60.0
    assert found == expected(ROWS, EVALUATIONS)
    memory |= {"metrics": 80, "evaluations": 60}
    assert json.loads((path / "wandb" / "id.json").read_bytes()) == memory
    files = [*(path / "wandb").glob("offline-run-*/run-*.wandb")]
    assert len(files) == 2 and {file.stem for file in files} == {f"run-{memory['id']}"}


def test_wandb_is_told_again_what_it_may_not_have(tmp_path, monkeypatch):
    run = Mock(step=0, starting_step=0)
    monkeypatch.setattr("wandb.init", lambda **_: run)
    monkeypatch.setattr("tddelta.runs.trackers.time", Mock(monotonic=Mock(side_effect=[0, 1, 16, 17, 32])))
    tracker = WeightsAndBiases(tmp_path, CONFIG)
    assert tracker.start(0) == Logged()
    remembered = []
    for row in ROWS[:4]:
        tracker.metrics([row])
        tracker.evaluation(row)
        content = json.loads((tmp_path / "wandb" / "id.json").read_bytes())
        remembered.append((content["metrics"], content["evaluations"]))
    # the row of 10 steps was closed by the next one, at 16 seconds, and that of 20 only at 17
    assert remembered == [(-1, -1), (-1, -1), (-1, -1), (10, 10)]
    run.starting_step = 31
    assert tracker.start(40) == Logged(30, 30), "the server of an online run knows better"


@pytest.mark.slow
def test_wandb_without_an_account_is_refused_and_without_a_server_goes_offline(tmp_path, offline, logged, monkeypatch):
    import wandb

    assert check_trackers("wandb") == ("wandb",)
    monkeypatch.setenv("WANDB_MODE", "online")
    wandb.teardown()
    with pytest.raises(ConfigError, match=r"no account to log to .*wandb login.*WANDB_MODE=offline"):
        check_trackers("wandb")
    with pytest.warns(TrackingWarning, match="cannot be reached .*logging offline.*wandb sync"):
        tracking = Tracking(["wandb"], tmp_path, CONFIG)
    tracking.metrics(ROWS)
    tracking.close("interrupted")
    assert dict(logged) == expected(ROWS, [])
    assert len([*(tmp_path / "wandb").glob("offline-run-*/run-*.wandb")]) == 1
