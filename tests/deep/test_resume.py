"""Runs with breaks: what they end with is what they end with without one, to the byte."""

import functools
import json
import shutil
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep_runs import BATCH, EVAL_EVERY, UPDATES, bytes_of, cartpole, finished, go_on, trained, trained_together
from tddelta import CheckpointError, CheckpointWarning, ConfigError, train
from tddelta.cli import main
from tddelta.deep import training
from tddelta.deep.policy import from_arrays, to_arrays
from tddelta.experiments import plan_runs
from tddelta.experiments.display import Display
from tddelta.runs import Run, RunWriter, checkpoints
from tddelta.runs.checkpoints import SHARE, Pauses


def stopped_after(updates, told=None):
    """Options that stop a run once so many updates are done, or soon after."""
    stop = threading.Event()

    def progress(news):
        if told is not None:
            told.append(news)
        if news.steps >= updates * BATCH:
            stop.set()

    return {"stop": stop, "progress": progress}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run without a break, with evaluations."""
    return trained(tmp_path_factory.mktemp("straight") / "seed-0", eval_every=EVAL_EVERY)


def test_a_run_with_breaks_has_the_bytes_of_one_without(straight, tmp_path, monkeypatch):
    # Field case B50. Short blocks: every break is somewhere else.
    monkeypatch.setattr(training, "LONGEST_BLOCK", 3)
    path, done = tmp_path / "seed-0", 0
    run = trained(path, eval_every=EVAL_EVERY, **stopped_after(5))
    while run.status["state"] == "interrupted":
        assert run.status["updates"] > done and len(run.metrics["update"]) == run.status["updates"]
        done = run.status["updates"]
        assert 1 <= len(list((path / "checkpoints").iterdir())) <= 2
        run = go_on(path, cartpole(), eval_every=EVAL_EVERY, **stopped_after(done + 9))
    assert bytes_of(run) == bytes_of(straight)
    events = [row["event"] for row in run.timing]
    assert events.count("start") == 1 and events.count("resume") == events.count("end") - 1 >= 3


def test_a_run_cut_off_at_any_moment_goes_on_with_the_same_bytes(straight, tmp_path):
    """Copies of a run's directory at every moment it can be looked at: what a kill -9 would have left."""
    path, copies = tmp_path / "seed-0", []

    def look(news):
        copies.append(shutil.copytree(path, tmp_path / f"copy-{len(copies)}" / "seed-0"))

    trained(path, eval_every=EVAL_EVERY, checkpoint_every=0.0, progress=look)
    phases = {len(Run(copy).metrics["update"]) for copy in copies}
    assert len(phases) > 3
    for copy in (copies[0], copies[len(copies) // 2], copies[-3], copies[-1]):
        assert Run(copy).status["state"] == "running"
        assert str(tmp_path).encode() not in b"".join(bytes_of(Run(copy)).values())
        assert bytes_of(go_on(copy, cartpole(), eval_every=EVAL_EVERY)) == bytes_of(straight)
    # Only the first had no checkpoint yet.
    assert [copy.parent.name for copy in copies if copy.with_name("seed-0.unfinished-1").exists()] == ["copy-0"]


def test_what_was_written_after_the_checkpoint_is_cut_off(straight, tmp_path):
    path, told = tmp_path / "seed-0", []
    run = trained(path, eval_every=EVAL_EVERY, **stopped_after(14))
    updates = run.status["updates"]
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"update": updates + 1, "steps": (updates + 1) * BATCH}) + '\n{"upd')
    later = {"steps": run.status["steps"] + BATCH, "return_mean": 5.0}
    with (path / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps(later) + '\n{"st')
    with np.load(path / "episodes.npz") as archive:
        longer = {name: np.append(archive[name], archive[name][-1:]) for name in archive.files}
    np.savez_compressed(path / "episodes.npz", **longer)
    (path / "rollout.npz").write_bytes(b"of an end that was not reached")
    run = go_on(path, cartpole(), eval_every=EVAL_EVERY, progress=told.append)
    assert bytes_of(run) == bytes_of(straight)
    # Field case B54: no step twice, none missing, and speeds of this call alone.
    np.testing.assert_array_equal(run.metrics["steps"], BATCH * np.arange(1, UPDATES + 1))
    assert [news.steps for news in told if news.phase == "compiling"] == [updates * BATCH]
    start, resume = (next(row for row in run.timing if row["event"] == event) for event in ("start", "resume"))
    assert start["command"] == ["test"] and resume["command"] == ["again"]
    assert (resume["updates"], resume["steps"]) == (updates, updates * BATCH)
    ends = [row for row in run.timing if row["event"] == "end"]
    assert [row["steps"] for row in ends] == [updates * BATCH, (UPDATES - updates) * BATCH]
    after = [row for row in run.timing[run.timing.index(resume) :] if row["event"] == "block"]
    np.testing.assert_allclose(ends[1]["steps_per_second"], ends[1]["steps"] / sum(row["seconds"] for row in after))


def test_evaluations_of_ones_own_stay(tmp_path):
    path = tmp_path / "seed-0"
    steps = trained(path, **stopped_after(5)).status["steps"]
    own = {"steps": steps, "mode": "greedy", "return_mean": 7.0}  # as `tddelta evaluate` writes it
    (path / "evaluations.jsonl").write_text(json.dumps(own) + "\n")
    run = go_on(path, cartpole())
    assert run.status["state"] == "finished" and run.evaluations == [own]


def test_a_finished_run_keeps_no_checkpoints_and_is_not_gone_on_with(tmp_path):
    run = trained(tmp_path / "seed-0", checkpoint_every=0.0)
    assert not (run.path / "checkpoints").exists() and bytes_of(run) == bytes_of(finished())
    with pytest.raises(ConfigError, match="seed-0 is finished: there is nothing to go on with"):
        go_on(run.path, cartpole())
    with pytest.raises(ConfigError, match="was started with other settings"):
        go_on(run.path, cartpole(gamma=0.9))


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LONGEST_BLOCK", 3)
    path = tmp_path / "seed-0"
    trained(path, checkpoint_every=0.0, **stopped_after(20))
    older, newest = sorted((path / "checkpoints").iterdir())
    content = (newest / "state.safetensors").read_bytes()
    (newest / "state.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.warns(CheckpointWarning, match=r"state\.safetensors is damaged: it has \d+ bytes in place of \d+"):
        run = go_on(path, cartpole())
    assert bytes_of(run) == bytes_of(finished())
    assert next(row for row in run.timing if row["event"] == "resume")["updates"] == int(older.name)


def test_a_state_that_does_not_fit_is_an_error(tmp_path):
    path = tmp_path / "seed-0"
    trained(path, **stopped_after(5))
    saved = checkpoints.latest(path)
    arrays = {name: array for name, array in saved.arrays.items() if name != "playing.observation"}
    checkpoints.save(path, 999, arrays, {**saved.record, "format": 1})
    with pytest.raises(CheckpointError, match=r"0000000999 lacks playing\.observation: it was made with another env"):
        go_on(path, cartpole())


def test_every_kind_of_array_comes_back():
    state = {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2),
        "half": jnp.arange(3, dtype=jnp.bfloat16),
        "none": None,
        "number": jnp.float32(2.5),
        "flags": jnp.array([[True, False]]),
        "empty": jnp.zeros((0, 3)),
    }
    arrays = to_arrays(state)
    assert {array.dtype.kind for array in arrays.values()} <= set("biuf")
    shapes = jax.eval_shape(lambda: state)
    back = from_arrays(arrays, shapes, "here")
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
    np.testing.assert_array_equal(jax.random.normal(back["key"]), jax.random.normal(state["key"]))
    np.testing.assert_array_equal(back["half"], state["half"])
    for wrong, message in [
        ({**arrays, "more": np.zeros(1)}, "here has more, which this version's state has not"),
        ({**arrays, "number": np.zeros(2, np.float32)}, r"here has number as float32\(2,\), where float32\(\) is need"),
        ({**arrays, "number": np.float64(1)}, r"here has number as float64\(\), where float32\(\) is needed"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            from_arrays({name: np.asarray(array) for name, array in wrong.items()}, shapes, "here")


def test_pauses_grow_with_what_saving_costs(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    pauses, at_once, never = Pauses(10.0), Pauses(10.0, at_once=True), Pauses(0.0)
    assert at_once.over and not pauses.over and never.over
    for cost, pause in ((0.05, 10), (2.0, 200), (0.1, 10)):
        with pauses.ended(), never.ended():
            now[0] += cost
        assert not pauses.over and never.over
        now[0] += pause - 0.01
        assert not pauses.over
        now[0] += 0.02
        assert pauses.over


def test_checkpoints_and_episodes_together_take_their_share_of_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    both = (Pauses(5.0, share=SHARE / 2), 0.4), (Pauses(10.0, at_once=True, share=SHARE / 2), 0.3)
    while now[0] < 10_000:
        now[0] += 1  # a block of updates
        for pauses, cost in both:
            if pauses.over:
                with pauses.ended():
                    now[0] += cost
    assert 0.009 * now[0] < sum(pauses.spent for pauses, _ in both) < 0.0101 * now[0]


@pytest.mark.usefixtures("straight")  # which compiles, before blocks become shorter
def test_the_seconds_spent_on_saving_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LONGEST_BLOCK", 3)
    save, saved = checkpoints.save, []

    def slowly(*arguments):
        time.sleep(0.1)
        saved.append(arguments[1])
        save(*arguments)

    monkeypatch.setattr(checkpoints, "save", slowly)
    run = trained(tmp_path / "seed-0", checkpoint_every=1e-6)
    (end,) = [row for row in run.timing if row["event"] == "end"]
    assert len(saved) == 1  # the next one is due 20 seconds later
    assert 0.1 < end["saving_seconds"] < end["seconds"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("eval_every", 0), *(("checkpoint_every", wrong) for wrong in (-1.0, float("nan"), float("inf")))],
)
def test_pauses_are_checked(name, wrong, tmp_path):
    with pytest.raises(ConfigError, match=rf"{name} must be a (number of seconds >= 0|whole number .* 1); got {wrong}"):
        trained(tmp_path / "run", **{name: wrong})


def test_the_display_counts_the_steps_of_this_call_only(tmp_path, monkeypatch):
    # Field case B54.
    now = [1000.0]
    monkeypatch.setattr("tddelta.experiments.display.time.monotonic", lambda: now[0])
    (plan,) = plan_runs("CartPole-v1", "ppo", seeds=1, steps=200_000, out=tmp_path)
    display = Display([plan], live=False)
    display.begin(plan)
    now[0] += 100
    display.progress(plan, training.Progress(150_000, 200_000, None, None, None, "compiling"))
    assert "150,000 of 200,704 steps" in display._overall() and "steps/s" not in display._overall()
    display.progress(plan, training.Progress(151_000, 200_000, 10.0, None, None, "training"))
    assert display._overall().endswith("151,000 of 200,704 steps, 10 steps/s, 1:22:50 h left")


# ---------------------------------------------------------------- from the command line


TINY = ["--environments", "3", "--rollout-length", "8", "--minibatches", "1", "--epochs", "1", "--hidden-sizes", "8"]


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
def test_train_resume_goes_on_with_what_is_recorded(capsys):
    options = [*TINY, "--steps", "955", "--learning-rate", "0.01", "--env-kwargs", "max_steps_in_episode=30"]
    given = {"steps": 955, "learning_rate": 0.01, "environment_kwargs": {"max_steps_in_episode": 30}}
    given |= {"environments": 3, "rollout_length": 8, "minibatches": 1, "epochs": 1, "hidden_sizes": (8,)}

    def interrupt(plan, news):
        if news.steps:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # what stops the loop also makes the run save what it has
        train("CartPole-v1", out="o", eval_every=EVAL_EVERY, progress=interrupt, **given)
    (path,) = Path("o").rglob("seed-0")
    while Run(path).status["state"] == "running":
        threading.Event().wait(0.05)
    assert Run(path).status["state"] == "interrupted"
    copy = shutil.copytree(path, Path("p", "seed-0"))
    assert main(["train", "--resume", "o"]) == 0
    run = Run(path)
    assert [row["steps"] for row in run.evaluations] == [312, 600, 912, 960]  # the pauses are remembered, too
    said = capsys.readouterr().out
    assert run.timing[-1]["event"] == "end" and f"run: {path}" in said
    assert f"finished, 960 steps, {run.timing[-1]['steps']} of them in" in said
    assert bytes_of(train(resume=copy)) == bytes_of(run)
    straight = train("CartPole-v1", out="q", eval_every=EVAL_EVERY, **given)
    assert bytes_of(run) == bytes_of(straight)
    # A finished run is skipped, and the other form is the same.
    assert main(["train", "--resume", str(path)]) == 0
    assert "finished before" in capsys.readouterr().out
    assert main(["train", "CartPole-v1", *options, "--out", "o", "--resume"]) == 0


@pytest.mark.usefixtures("elsewhere")
def test_train_resume_refuses_what_it_cannot_know(tmp_path, capsys):
    def refused(*arguments):
        assert main(["train", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    path = tmp_path / "o" / "seed-0"
    trained(path, **stopped_after(5))
    assert "goes on with the settings recorded there; got --gamma: leave it out" in refused(
        "--resume", path, "--gamma", 0.9
    )
    assert "got --seed" in refused(path, "--resume", "--seed", 3)
    assert "--resume needs --out, or a run directory in place of ENV" in refused("--resume", "nowhere")
    shutil.copytree(path, path.with_name("seed-1"))
    assert "has 2 runs, " in refused("--resume", "o")
    with pytest.raises(ConfigError, match=r"resume='o' goes on with the settings recorded there; got learning_rate"):
        train(resume="o", learning_rate=0.1)
    with pytest.raises(ConfigError, match="train needs an environment; got None"):
        train()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": "os:system"}, r"the run's environment 'os:system' is not part of tddelta: repeat the command"),
        ({"network": "stranger:make"}, r"the run's network 'stranger:make' is not part of tddelta: repeat the command"),
        ({"agent": "stranger:agent"}, r"the agent 'stranger:agent' of .* is not part of tddelta: repeat the command"),
        ({"targets": "stranger:f"}, r"the agent 'ppo-delta' of .* is not part of tddelta"),
        ({"gamma": 2.0}, r"gamma must be in \[0, 1\]; got 2"),
        ({"adam_epsilon": None}, "is no complete config|adam_epsilon"),
    ],
)
def test_a_strangers_run_directory_executes_nothing(change, message, tmp_path, monkeypatch):
    Path("stranger.py").write_text("import pathlib\npathlib.Path('canary').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "o" / "seed-0"
    content = json.loads(json.dumps(training.run_config(cartpole(), 0)))
    for name, value in change.items():
        if name == "agent":
            content["agent"]["name"] = value
        elif name == "targets":
            content["agent"]["targets"] = value
        else:
            content["settings"][name] = value
    with RunWriter(path, content, {}):
        pass
    with pytest.raises((ConfigError, CheckpointError), match=message):
        train(resume=path)
    assert not Path("canary").exists()


# ---------------------------------------------------------------- seeds as one program, normalisers


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
def test_seeds_of_one_program_go_on_together_also_with_normalisers(tmp_path):
    config = cartpole(normalize_observations=True, normalize_rewards=True, component_scale="running")

    together = functools.partial(trained_together, config=config, seeds=[3, 0], resume=True)
    together(tmp_path / "whole")
    stop = threading.Event()
    together(tmp_path / "parts", stop=stop, progress=lambda index, news: news.steps >= 5 * BATCH and stop.set())
    assert {Run(path).status["state"] for path in (tmp_path / "parts").iterdir()} == {"interrupted"}
    together(tmp_path / "parts")
    for seed in ("0", "3"):
        assert bytes_of(Run(tmp_path / "parts" / seed)) == bytes_of(Run(tmp_path / "whole" / seed))


def test_runs_that_are_not_equally_far_are_not_one_program(tmp_path):
    config = cartpole()
    trained(tmp_path / "7", 7, **stopped_after(5))
    with (
        RunWriter(tmp_path / "5", training.run_config(config, 5), {}) as new,
        RunWriter(tmp_path / "7", training.run_config(config, 7), {}, resume=True) as old,
        pytest.raises(ConfigError, match=r"must have come equally far; got updates \[0, \d+\]"),
    ):
        training.train_runs(config, [5, 7], [new, old])
