"""Rollouts and whole runs in host environments: every end as it is meant, in both ways of automatic reset."""

import dataclasses
import functools
import json
import os
import pickle
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tddelta as tdd
from deep_runs import go_on, trained, trained_together
from host_environments import (
    Broken,
    Counting,
    Lives,
    OfProbe,
    Poisoned,
    Pushed,
    tiny,
    vectors,
    vectors_of_counting,
)
from tddelta import ConfigError, DataError
from tddelta.deep import evaluation, host, policy, ppo, rollout, training
from tddelta.deep.training import HostTraining
from tddelta.runs import Run

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


pytestmark = pytest.mark.usefixtures("compiled_quickly")


def environment(mode=SAME, kind=Counting, **options):
    Counting.made.clear()
    return host.from_factory(vectors(mode, kind, **options), name="Plant")


def rollouts(config, count):
    """Rollouts of the first parameters, `count` of them, each with what was seen after it."""
    run = HostTraining(config, 0)
    acting, state, found = run.programs.acting, run.programs.init(config, jax.random.key(0)), []
    key = state.key
    for _ in range(count):
        key, drawn, _ = acting.noise(key)
        last, played = rollout.collect_host(config, acting, state.learned, run.playing, drawn)
        found.append((jax.tree.map(np.array, played), last))
    run.close()
    return state, found


@pytest.mark.slow
@pytest.mark.parametrize("truncates", [False, True])
def test_both_ways_of_automatic_reset_give_the_same_targets(truncates):
    # Field case B14: the steps that only reset have weight 0.
    found = []
    for mode, length in ((SAME, 6), (NEXT, 8)):
        config = tiny(environment(mode, truncates=truncates), rollout_length=length)
        state, ((played, _),) = rollouts(config, 1)
        counts = np.ones((6, 2), bool) if mode is SAME else played.weights > 0
        signals = ppo.learning_signals(config, state.learned, jax.tree.map(jnp.asarray, played))
        found.append([np.asarray(one)[counts] for one in (played.observations, *signals)])
        np.testing.assert_array_equal(played.finished_returns[played.finished_lengths > 0], [3, 3, 3, 3])
        clocks = found[-1][0][:, 0]
        np.testing.assert_array_equal(clocks, np.repeat([0, 1, 2, 0, 1, 2], 2))
    assert played.weights.mean() == 1 and not counts[[3, 7]].any()
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_rollout_that_may_be_all_resets_is_refused():
    with pytest.raises(ConfigError, match=r"rollout_length must be at least 2 for .* to reset themselves; got 1"):
        rollouts(tiny(environment(NEXT), rollout_length=1), 1)


def test_a_truncated_episode_is_continued_by_the_value_of_its_last_observation():
    config = tiny(environment(truncates=True))
    state, ((played, last),) = rollouts(config, 1)
    np.testing.assert_array_equal(played.truncated[:, 0], [False, False, True] * 2)
    acting = ppo.network(config, state.learned.parameters)
    own = played.observations[2, 0, 1]
    np.testing.assert_allclose(played.final_heads[2, 0], acting(jnp.array([3.0, own]))[1], rtol=1e-5)
    np.testing.assert_allclose(played.last_heads, jax.vmap(acting)(jnp.asarray(last))[1], rtol=1e-5)
    # A reset observation would have clock 0.
    assert not np.allclose(played.final_heads[2, 0], acting(jnp.array([0.0, own]))[1])


def test_evaluations_name_an_observation_that_is_no_number():
    class Lost(Counting):
        def seen(self):
            return np.array([self.clock, np.nan if len(self.actions) == 7 else 0])

    config = tiny(host.from_factory(Lost, name="Plant"))
    learned = ppo.initial(config, jax.random.key(0))
    with pytest.raises(DataError, match="Plant: observation not finite in environment 0, step 6: check the env"):
        evaluation.quota(config, learned, np.array([9]), greedy=True, seed=0, limit=100)


WIDE = """
import sys
import jax, numpy as np
from gymnasium.vector import AutoresetMode
from host_environments import tiny, vectors
from tddelta.deep import host
from tddelta.deep.training import HostTraining
modes = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
plants = [host.from_factory(vectors(mode, truncates=True), name="Plant") for mode in modes]
for config in [tiny("Qbert", hidden_sizes=(8,))] if sys.argv[1] == "Qbert" else map(tiny, plants):
    player = HostTraining(config, 0)
    state, metrics = player.update(config, player.programs.init(config, jax.random.key(0)))
    player.close()
    assert not metrics.fault and metrics.component_means.dtype == np.float64
    assert state.learned.parameters.policy.weight.dtype == np.float64
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Plant", "Qbert"])
def test_training_works_with_64_bits(name):
    surroundings = os.environ | {"JAX_ENABLE_X64": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", WIDE, name], env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_time_limit_can_be_an_end():
    config = tiny(environment(truncates=True), time_limit="terminate")
    _, ((played, _),) = rollouts(config, 1)
    np.testing.assert_array_equal(played.terminated[:, 0], [False, False, True] * 2)
    assert not played.truncated.any()


@pytest.mark.slow
def test_halves_that_act_in_turn_play_the_same(monkeypatch):
    state, found = rollouts(tiny(environment(uneven=True, truncates=True)), 2)
    monkeypatch.setattr(rollout, "parts_of", lambda environment, count: 2)
    other_state, other = rollouts(tiny(environment(uneven=True, truncates=True)), 2)
    jax.tree.map(np.testing.assert_array_equal, state.learned, other_state.learned)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


NORMALISED = {"normalize_observations": True, "normalize_rewards": True}


@pytest.mark.slow
def test_a_run_has_the_same_bytes_every_time(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "STREAM_LENGTH", 40)
    monkeypatch.setattr(training, "HOST_EPISODES", 4)
    config = tiny(environment(kind=Pushed), **NORMALISED)
    runs = [trained(tmp_path / name, config=config, eval_every=24) for name in "ab"]
    for name in ("metrics.jsonl", "episodes.npz", "parameters.safetensors", "rollout.npz", "critic.npz"):
        assert (runs[0].path / name).read_bytes() == (runs[1].path / name).read_bytes(), name
    run = runs[0]
    assert run.status["state"] == "finished" and run.status["steps"] == 48
    np.testing.assert_array_equal(run.episodes["returns"], [3] * 16)
    np.testing.assert_array_equal(run.episodes["steps"], np.repeat(np.arange(6, 49, 6), 2))
    assert run.rollout["deltas"].shape == (3, 3) and run.rollout["actions"].shape == (3, 2)
    assert run.critic["predicted"].shape[1] == 3 and np.isfinite(run.critic["realised"]).any()
    # Every environment that was made is closed.
    assert Counting.made and all(one.closed for one in Counting.made)
    evaluated = [json.loads(line) for line in (run.path / "evaluations.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in evaluated] == [24, 48] and evaluated[0]["return_mean"] == 3
    with pytest.raises(ConfigError, match="is not part of tddelta: pass environment="):
        tdd.load(run)
    loaded = policy.load(run, environment=config.environment)
    action = loaded.act(np.zeros(2))
    assert action.shape == (2,) and np.all(np.abs(action) <= 0.2)


@pytest.mark.parametrize("several", [True, False])
def test_a_description_can_be_pickled(several):
    described = (
        host.from_factory(vectors_of_counting if several else Counting),
        host.from_id("gym:host_environments:" + ("HostVectors-v0" if several else "HostCounting-v0"), {}),
    )
    for one in pickle.loads(pickle.dumps(described)):
        made = one.make(2)
        assert made.num_envs == 2
        made.close()


def test_long_and_short_episodes_count_the_same():
    # Field case B43: the first ten episodes to end would all be of one step.
    def make(num_envs):
        makers = [functools.partial(Counting, length) for length in (1, 11)]
        return SyncVectorEnv(makers[:num_envs], autoreset_mode=SAME)

    config = tiny(host.from_factory(make))
    learned = ppo.initial(config, jax.random.key(0))
    returns, lengths, done = evaluation.quota(config, learned, np.array([5, 5]), greedy=True, seed=0, limit=100)
    assert done.all()
    np.testing.assert_array_equal(returns, [[1] * 5, [11] * 5])
    np.testing.assert_array_equal(lengths, returns)


@pytest.mark.slow
def test_evaluations_are_of_whole_games_and_raw_scores():
    # Field case B44.
    game = dataclasses.replace(host.from_factory(Lives), lives=True)
    config = tiny(game, reward_clipping="sign")
    row = evaluation.evaluate(config, ppo.initial(config, jax.random.key(0)), episodes=2, mode="greedy")
    assert row["returns"] == [105, 105] and row["lengths"] == [6, 6] and row["mode"] == "greedy"
    _, ((played, _),) = rollouts(config, 1)
    np.testing.assert_array_equal(played.terminated[:, 0], [False, True] * 3)
    np.testing.assert_array_equal(rollout.learned_rewards(config, played.rewards)[:, 0], [0, 1, -1, 0, 1, 1])
    assert played.finished_returns[-1].tolist() == [105, 105] and not played.finished_lengths[:-1].any()


def test_a_run_goes_on_with_fresh_environments_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "STREAM_LENGTH", 10)
    config = tiny(environment())
    stop = threading.Event()
    path = tmp_path / "run"
    stopped = trained(path, config=config, stop=stop, progress=lambda news: stop.set() if news.steps else None)
    assert stopped.status["state"] == "interrupted" and stopped.status["steps"] == 12
    run = go_on(path, config)
    assert run.status["state"] == "finished"
    np.testing.assert_array_equal(run.metrics["steps"], [12, 24, 36, 48])
    first, fresh = (row for row in run.timing if row["event"] in ("environments", "fresh_environments"))
    assert first["event"] == "environments" and first["updates"] == 0
    assert fresh["event"] == "fresh_environments" and fresh["updates"] == stopped.status["updates"]
    assert len({*first["seeds"], *fresh["seeds"]}) == 4
    assert all(one.closed for one in Counting.made)


def test_an_environment_that_raises_leaves_a_readable_run(tmp_path):
    config = tiny(environment(kind=Broken))
    with pytest.raises(DataError, match=r"Plant, in step .*, raised StuckError: the valve is stuck"):
        trained(tmp_path / "run", config=config)
    run = Run(tmp_path / "run")
    assert len(run.metrics["steps"]) >= 1 and run.metrics["steps"][0] == 12
    assert policy.load(run, environment=config.environment).act(np.zeros(2)).shape == ()
    assert all(one.closed for one in Counting.made)


@pytest.mark.parametrize(("mode", "step"), [(SAME, 8), (NEXT, 10)])
def test_a_reward_that_is_no_number_is_named(mode, step, tmp_path):
    # Field case B27.
    config = tiny(environment(mode, kind=Poisoned))
    with pytest.raises(
        DataError, match=f"Plant: reward not finite in environment 1, step {step}, after 12 steps in all"
    ):
        trained(tmp_path / "run", config=config)
    run = Run(tmp_path / "run")
    assert run.status["state"] == "failed" and (run.path / "fault.json").exists()


@pytest.mark.slow
def test_several_seeds_of_a_host_environment_train_beside_one_another(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "STREAM_LENGTH", 10)
    config = tiny(environment())
    told = set()
    trained_together(tmp_path, config, [0, 1], progress=lambda index, news: told.add(index))
    assert told == {0, 1}
    assert (tmp_path / "0" / "metrics.jsonl").read_bytes() != (tmp_path / "1" / "metrics.jsonl").read_bytes()
    alone = trained(tmp_path / "alone", config=config)
    assert (tmp_path / "0" / "metrics.jsonl").read_bytes() == (alone.path / "metrics.jsonl").read_bytes()


def test_a_compiled_program_does_not_hold_what_runs_on_the_host():
    config = tiny(environment())
    with pytest.raises(ConfigError, match=r"Plant runs on the host, .*train it by tdd.train"):
        ppo.train(config, jax.random.key(0))
    with pytest.raises(ConfigError, match="shards are for device environments, and Plant runs on the host; got 2"):
        tiny(environment(), shards=2)


GAMMAS = np.array([0.5, 0.8, 0.95])
PROBES = {
    "constant": ("ConstantReward", 10, 1 / (1 - GAMMAS)[None]),
    "delayed": ("DelayedReward", None, GAMMAS ** np.arange(4)[::-1, None]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("probe", "mode"),
    # Truncations in the other way of reset have the same targets: see the first test.
    [("constant", SAME), ("delayed", NEXT)],
)
def test_every_component_of_a_probe_is_learned_on_the_host(probe, mode):
    name, limit, values = PROBES[probe]
    config = tiny(
        host.from_factory(vectors(mode, OfProbe, name=name, limit=limit), name=name),
        environments=8,
        rollout_length=32,
        epochs=4,
        minibatches=4,
        hidden_sizes=(16,),
        steps=256 * 150,
        learning_rate=2e-2,
        anneal_learning_rate=True,
        max_gradient_norm=10.0,
        entropy_coefficient=0.0,
    )
    player = HostTraining(config, 0)
    state, metrics, _ = player.block(config, player.programs.init(config, jax.random.key(0)), 150)
    player.close()
    assert not metrics.fault.any()
    states = jnp.eye(len(values)) if len(values) > 1 else jnp.ones((1, 1))
    _, heads = jax.vmap(ppo.network(config, state.learned.parameters))(states)
    found = np.asarray(ppo.components(config, state.learned, heads))
    np.testing.assert_allclose(found, np.diff(values, axis=-1, prepend=0), rtol=0.02, atol=0.005)
