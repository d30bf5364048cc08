"""Playing a game for the inspector: the same seed is the same game, and every number is the agent's."""

import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

import tddelta as tdd
from deep_environments import QUICKLY, state_of, tiny
from deep_runs import BATCH, cartpole, finished, trained
from host_environments import Counting
from inspect_data import game as made_up
from tddelta import load
from tddelta.cli import main
from tddelta.deep import host, training
from tddelta.deep.host import spawned_seeds
from tddelta.deep.policy import Policy, to_arrays
from tddelta.deep.rollout import advance, start
from tddelta.errors import ConfigError, MissingExtra, ShapeError
from tddelta.inspector import Recording
from tddelta.inspector.record import agent_at, opinion, record
from tddelta.runs import RunWriter, checkpoints

STEPS = 40  # longer than an episode of `cartpole`, and one compiled program for all tests


def call(*arguments):
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A copy of the shared run, so that nothing is written into that."""
    path = tmp_path_factory.mktemp("runs") / "seed-0"
    shutil.copytree(finished().path, path)
    return path


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run of another seed that was stopped, with its checkpoints."""
    stop = threading.Event()
    options = {"stop": stop, "progress": lambda news: news.steps >= 2 * BATCH and stop.set()}
    return trained(tmp_path_factory.mktemp("stopped") / "seed-1", 1, checkpoint_every=0.0, **options).path


@pytest.mark.slow
def test_a_seed_is_a_game_and_the_numbers_are_the_agents(run):
    policy = load(run)
    game, again = (record(policy, name="mine", seed=3, steps=STEPS) for _ in range(2))
    for name in ("rewards", "observations", "actions", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(game, name), getattr(again, name))
    assert not np.array_equal(game.observations[0], record(policy, seed=4, steps=STEPS).observations[0])
    assert game.terminated[-1] or game.truncated[-1]
    assert not (game.terminated[:-1] | game.truncated[:-1]).any()
    assert (game.environment, game.critics[0].name) == ("CartPole-v1", "mine")
    np.testing.assert_allclose(game.critics[0].deltas, policy.components(game.observations), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(game.critics[0].gammas, policy.scales.gammas)
    greedy = record(policy, mode="greedy", steps=STEPS)  # takes the most probable action
    np.testing.assert_array_equal(greedy.actions, policy.act(greedy.observations))


@pytest.mark.slow
def test_a_recorded_game_replays_to_the_frame():
    """The environment, given the actions of the recording and its keys, shows what the recording holds."""
    config = tiny("Breakout-MinAtar")
    policy = Policy(config, state_of(config).learned)
    game = record(policy, seed=5, steps=STEPS)
    environment = config.environment_object()
    start_key, key = jax.random.split(jax.random.key(5))
    playing = start(environment, start_key, 1)
    move = jax.jit(
        lambda playing, action, key: advance(config, environment, playing, action, key), compiler_options=QUICKLY
    )
    for t, step_key in enumerate(jax.random.split(key, STEPS)[: len(game)]):
        np.testing.assert_array_equal(playing.observation[0], game.observations[t])
        playing, moved = move(playing, game.actions[t][None], jax.random.split(jax.random.split(step_key)[1], 1))
        assert (moved.rewards[0], moved.terminated[0]) == (game.rewards[t], game.terminated[t])
    assert len(game) > 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"mode": "best"}, "mode must be sampled or greedy; got 'best'"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_settings_that_cannot_be(run, settings, words):
    with pytest.raises(ConfigError, match=words):
        record(load(run), **settings)


@pytest.mark.slow
def test_a_second_critic_is_asked_about_the_same_game(run, interrupted):
    policy, name = agent_at(run)
    assert name == "ppo-delta, seed 0"
    game = record(policy, name=name, steps=STEPS)
    other, other_name = agent_at(interrupted)
    both = game.beside(opinion(other, game, other_name))
    np.testing.assert_array_equal(both.critics[1].deltas, other.components(game.observations))
    assert not np.allclose(both.critics[0].deltas, both.critics[1].deltas)
    with pytest.raises(ConfigError, match="no observations"):
        opinion(other, replace(game, observations=None), "x")
    with pytest.raises(ShapeError, match="the second critic: deltas must be"):
        game.beside(opinion(other, record(policy, seed=4, steps=5), "x"))


def test_a_checkpoint_is_an_agent_too(interrupted):
    newest = checkpoints.latest(interrupted)
    policy, name = agent_at(newest.path)
    assert name == f"ppo-delta, seed 1, update {newest.count('updates')}"
    # a stopped run's parameters are those of its last checkpoint
    saved = load(interrupted)
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.components(observations), saved.components(observations))
    older = sorted((interrupted / "checkpoints").iterdir())[0]
    assert older != newest.path
    assert not np.allclose(agent_at(older)[0].components(observations), saved.components(observations))


def test_a_checkpoint_has_the_scales_that_the_ladder_had_grown_to(tmp_path):
    stop, config = threading.Event(), cartpole(scales=(10, 30, 100), grow=[(2 * BATCH, 300)])
    options = {"stop": stop, "progress": lambda news: news.steps >= 2 * BATCH and stop.set()}
    run = trained(tmp_path / "seed-0", config=config, checkpoint_every=0.0, **options)
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    before, after = (agent_at(path)[0] for path in sorted((run.path / "checkpoints").iterdir()))
    assert (len(before.scales), after.scales) == (3, load(run).scales)
    np.testing.assert_array_equal(after.components(observations), load(run).components(observations))
    assert after.components(observations).shape == (5, 4)


def test_the_command_writes_page_and_recording(run, interrupted, capsys):
    assert call("inspect", run, "--state", 7, "--steps", STEPS) == 0
    said = capsys.readouterr().out
    assert f"page: {run / 'inspect.html'}\nrecording: {run / 'inspect.npz'}" in said
    game = Recording.read(run / "inspect.npz")
    values = game.critics[0].values[7]
    assert f"V over 100 steps is {values[-1]:.4g}" in said
    assert [line.split()[0] for line in said.splitlines()[2 : 2 + len(values)]] == [
        f"W_{z}" for z in range(len(values))
    ]
    page = (run / "inspect.html").read_text(encoding="utf-8")
    assert '"step":7,' in page and "tddelta inspect" in page

    assert call("inspect", run / "inspect.npz", "--out", run / "again.html") == 0
    assert (run / "again.html").exists()
    assert call("inspect", run, "--compare", interrupted, "--steps", STEPS, "--out", run / "both.html") == 0
    assert names(run / "both.npz") == ["ppo-delta, seed 0", "ppo-delta, seed 1"]
    both = sorted((interrupted / "checkpoints").iterdir())
    assert call("inspect", both[0], "--compare", both[1], "--steps", STEPS) == 0
    assert names(interrupted / "inspect.npz") == [f"ppo-delta, seed 1, update {int(place.name)}" for place in both]


def names(recording):
    return [critic.name for critic in Recording.read(recording).critics]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["nowhere.npz"], "nowhere.npz does not exist"),
        (["RUN", "--state", "99999", "--steps", STEPS], "the recording has steps 0 … "),
        (["RUN", "--compare", "nowhere"], "nowhere does not exist"),
        (["RUN/inspect.npz", "--seed", "1"], "--seed goes with a run; got the recording"),
        (["RUN/.."], "has 2 runs"),
    ],
)
def test_wrong_usage_is_one_sentence(run, arguments, words, capsys):
    second = run.with_name("seed-1")
    if not second.exists():
        shutil.copytree(finished().path, second)
    given = [str(argument).replace("RUN", str(run)) for argument in arguments]
    assert call("inspect", *given) == 2
    error = capsys.readouterr().err
    assert error.startswith("tddelta: ") and words in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_run_on_something_else_is_no_comparison(run, tmp_path, capsys):
    config = tiny("Catch")
    with RunWriter(tmp_path / "seed-0", training.run_config(config, 0), {"command": ["test"]}) as writer:
        writer.parameters(to_arrays(state_of(config).learned), {})
    assert call("inspect", run, "--compare", tmp_path / "seed-0", "--steps", STEPS) == 2
    assert "--compare needs a run on CartPole-v1; got one on Catch" in capsys.readouterr().err


def test_playing_names_the_extra_that_it_needs():
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "try: from tddelta.inspector import record\nexcept ImportError as error: print(repr(error))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtra") and 'pip install "tddelta[train]"' in done.stdout


def test_a_video_needs_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtra, match=r'pip install "tddelta\[video\]"'):
        tdd.inspect(made_up(3), tmp_path, video=tmp_path / "game.mp4")
    with pytest.raises(ConfigError, match=r"video must end in \.mp4"):
        tdd.inspect(made_up(3), tmp_path, video=tmp_path / "game.gif")


@pytest.mark.slow
def test_an_environment_of_gymnasium_is_drawn_frame_by_frame():
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    pytest.importorskip("pygame", reason="pygame is not installed")
    config = tiny("gym:CartPole-v1")
    game = record(Policy(config, state_of(config).learned), seed=2, steps=12)
    assert game.no_frames == "" and game.frames.shape == (len(game), 200, 300, 3)
    environment = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    seen, _ = environment.reset(seed=spawned_seeds(2, "held-out", 1)[0])
    for t in range(len(game)):
        np.testing.assert_array_equal(game.observations[t], seen)
        np.testing.assert_array_equal(game.frames[t], environment.render()[::2, ::2])
        seen, reward, *_ = environment.step(int(game.actions[t]))
        assert reward == game.rewards[t]
    environment.close()
    assert (game.frames[0] != game.frames[-1]).any()


class Undrawn(Counting):
    """Cannot draw, and says so where it is asked to."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def render(self) -> Any:
        raise ImportError("no module named pygame")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Counting, "Plant has no render_mode rgb_array"), (Undrawn, "Plant cannot draw here: no module named pygame")],
)
def test_without_pictures_the_recording_says_why(kind, reason, tmp_path):
    config = tiny(host.from_factory(kind, name="Plant"))
    game = record(Policy(config, state_of(config).learned), steps=5)
    assert (len(game), game.frames) == (3, None) and game.no_frames.startswith(reason)
    game.save(tmp_path / "game.npz")
    page = tdd.inspect(tmp_path / "game.npz", tmp_path).read_text(encoding="utf-8")
    assert f"No pictures: {reason}" in page


def test_rewards_are_kept_as_the_critic_learned_them(monkeypatch):
    config = tiny(host.from_factory(Counting, name="Plant"), reward_clipping="sign")
    monkeypatch.setattr(Counting, "step", lambda self, action, step=Counting.step: _tenfold(step(self, action)))
    game = record(Policy(config, state_of(config).learned), steps=5)
    np.testing.assert_array_equal(game.rewards, [10, 10, 10])
    np.testing.assert_array_equal(game.learner_rewards, [1, 1, 1])
    assert game.realised(game.critics[0])[0, -1] < 3


def _tenfold(moved):
    return moved[0], 10 * moved[1], *moved[2:]


@pytest.mark.slow
def test_an_atari_game_is_recorded_in_colour_with_its_lives():
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    config = tiny("Breakout", network="mlp")
    policy = Policy(config, state_of(config).learned)
    game = record(policy, steps=120)
    again = record(policy, steps=20)
    np.testing.assert_array_equal(game.frames[:20], again.frames)
    assert game.frames.shape == (len(game), 210, 160, 3)
    assert len(np.unique(game.frames.reshape(-1, 3), axis=0)) > 5
    # the learner saw the same screens: grey, smaller, and the newest of four
    for t in (0, len(game) // 2, len(game) - 1):
        grey = game.frames[t].astype(float) @ [0.299, 0.587, 0.114]
        seen = game.observations[t, 3].astype(float)
        small = grey[:210].reshape(42, 5, 32, 5).mean(axis=(1, 3))
        shown = np.array([[seen[y * 2 : y * 2 + 2, int(x * 2.625)].mean() for x in range(32)] for y in range(42)])
        assert np.corrcoef(small.ravel(), shown.ravel())[0, 1] > 0.8
    lost = np.flatnonzero(np.diff(game.lives)) + 1
    assert game.lives[0] == 5 and len(lost) > 0
    np.testing.assert_array_equal(np.flatnonzero(game.terminated[:-1]), lost - 1)
    np.testing.assert_allclose(
        game.critics[0].deltas[:5], policy.components(game.observations[:5]), rtol=1e-4, atol=1e-5
    )
