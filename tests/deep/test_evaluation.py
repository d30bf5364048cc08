"""Scores of a fixed quota of episodes, and what is kept of a critic to judge it by."""

import jax
import numpy as np
import pytest

from deep_environments import SCRIPTED, TwoLengths, init, tiny
from tddelta import ConfigError
from tddelta.deep import evaluation
from tddelta.deep.rollout import start
from tddelta.runs.recorder import critic_check

# 32 environments: a second episode for the first eight.
EPISODES = 40
QUOTAS = np.where(np.arange(32) < 8, 2, 1)
TWO_LENGTHS = TwoLengths()


@pytest.fixture(scope="module")
def config():
    return tiny(TWO_LENGTHS, "ppo")


@pytest.fixture(scope="module")
def learned(config):
    return init(config, jax.random.key(0)).learned


def is_long(config, seed):
    """Flags of the environments of an evaluation that have long episodes."""
    start_key, _ = jax.random.split(jax.random.key(seed))
    return np.asarray(start(config.environment_object(), start_key, 32).environment.long)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sampled", "greedy"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_environment_has_its_quota(config, learned, mode, seed):
    # Field case B43: the first 40 episodes to finish would nearly all be short ones.
    row = evaluation.evaluate(config, learned, episodes=EPISODES, mode=mode, seed=seed)
    long = np.repeat(is_long(config, seed), QUOTAS)
    assert 8 < long.sum() < 32
    assert (row["mode"], row["seed"], row["episodes"], row["unfinished"]) == (mode, seed, EPISODES, 0)
    np.testing.assert_array_equal(row["lengths"], np.where(long, 11, 1))
    np.testing.assert_allclose(row["returns"], np.where(long, 10, 1), atol=0.0111)
    np.testing.assert_allclose(row["return_mean"], np.mean(row["returns"]))
    np.testing.assert_allclose(row["return_standard_deviation"], np.std(row["returns"], ddof=1))
    np.testing.assert_allclose(row["length_mean"], np.where(long, 11, 1).mean())


def test_the_greedy_policy_has_no_luck_and_the_sampled_one_has(config, learned):
    def long_returns(mode, seed):
        row = evaluation.evaluate(config, learned, episodes=EPISODES, mode=mode, seed=seed)
        return np.array(row["returns"])[np.array(row["lengths"]) == 11].round(4)

    assert len(np.unique(np.concatenate([long_returns("greedy", seed) for seed in range(3)]))) == 1
    sampled = long_returns("sampled", 0)
    assert len(np.unique(sampled)) > 3
    np.testing.assert_array_equal(sampled, long_returns("sampled", 0))
    assert not np.array_equal(sampled[:8], long_returns("sampled", 1)[:8])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"episodes": 0}, "episodes must be a whole number of at least 1; got 0"),
        ({"mode": "best"}, "mode must be sampled or greedy; got 'best'"),
    ],
)
def test_settings_of_an_evaluation_are_checked(config, learned, wrong, sentence):
    with pytest.raises(ConfigError, match=sentence):
        evaluation.evaluate(config, learned, **wrong)


@pytest.mark.parametrize(("episodes", "limit"), [(64, 100_000), (32 * 5000, 150_000), (32 * 50_000, 1_000_000)])
def test_there_are_as_many_steps_as_the_episodes_of_an_environment_may_take(episodes, limit, monkeypatch):
    given = []

    def quota(config, learned, quotas, *, limit, **options):
        given.append(limit)
        shape = len(quotas), quotas.max()
        return np.zeros(shape), np.zeros(shape, int), np.zeros(shape, bool)

    monkeypatch.setattr(evaluation, "quota", quota)
    config = tiny("CartPole-v1", "ppo", environment_kwargs={"max_steps_in_episode": 30})
    evaluation.evaluate(config, init(config, jax.random.key(0)).learned, episodes=episodes)
    assert given == [limit]


@pytest.mark.slow
def test_episodes_that_do_not_end_are_counted():
    config = tiny(SCRIPTED, "ppo")
    row = evaluation.evaluate(config, init(config, jax.random.key(0)).learned, episodes=2)
    assert (row["episodes"], row["unfinished"], row["return_mean"], row["returns"]) == (0, 2, None, [])


TIME, STREAMS = 300, 5
RANDOM = np.random.default_rng(0)


def stream(terminated, truncated):
    """Made-up steps with these ends."""
    shape = terminated.shape
    return evaluation.Step(
        observations=RANDOM.normal(size=(*shape, 4)),
        actions=RANDOM.integers(2, size=shape),
        rewards=RANDOM.normal(size=shape),
        deltas=RANDOM.normal(size=(*shape, 6)),
        final_deltas=RANDOM.normal(size=(*shape, 6)),
        terminated=terminated,
        truncated=truncated & ~terminated,
        finished_lengths=(terminated | truncated).astype(int),
    )


def some(share, *shape):
    return RANDOM.random(shape) < share


@pytest.mark.parametrize(("over", "cut"), [(0.05, 0.0), (0.0, 0.05), (0.02, 0.02), (0.0, 0.0), (0.002, 0.002)])
def test_realised_returns(over, cut):
    rows = stream(some(over, TIME, STREAMS), some(cut, TIME, STREAMS))
    gammas = np.array(tiny().critic_scales.gammas)
    found = critic_check(rows.rewards, rows.deltas, gammas, terminated=rows.terminated, truncated=rows.truncated)
    realised = np.zeros((TIME, STREAMS, 6))
    for lane in range(STREAMS):
        for t in range(TIME):
            total, weight, terminated = np.zeros(6), np.ones(6), False
            for later in range(t, TIME):
                total = total + weight * rows.rewards[later, lane]
                weight = weight * gammas
                terminated = rows.terminated[later, lane]
                if terminated or rows.truncated[later, lane]:
                    break
            # Not terminated within the data: known only where what is missing weighs nearly nothing.
            realised[t, lane] = np.where(terminated | (weight <= 0.01), total, np.nan)
    np.testing.assert_allclose(found["realised"], realised.reshape(-1, 6), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["predicted"], np.cumsum(rows.deltas, -1).reshape(-1, 6), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["gammas"], gammas)
    assert found["predicted"].dtype == found["realised"].dtype == np.float32
    known = np.isfinite(found["realised"])
    assert known.any() and (over or not known.all())


def test_held_out_states_are_spread_over_the_data():
    rows = stream(some(0.05, 1000, 16), some(0, 1000, 16))
    rows = rows._replace(deltas=np.arange(16000.0).reshape(1000, 16, 1) * np.ones(6))
    flags = {"terminated": rows.terminated, "truncated": rows.truncated}
    found = critic_check(rows.rewards, rows.deltas, np.ones(6), **flags)
    first = found["predicted"][:, 0]
    assert len(first) == 4096 and first[0] == 0 and first[-1] == 15999 and set(np.diff(first)) == {3.0, 4.0}


def single(terminated, truncated):
    rows = stream(terminated[:, None], truncated[:, None])
    return jax.tree.map(lambda leaf: leaf[:, 0], rows)


@pytest.mark.parametrize(
    ("over", "cut", "length"),
    [
        (17, None, 18),
        (None, 17, 18),
        (17, 5, 6),
        (0, None, 1),
        (2099, None, 2000),
        (1999, None, 2000),
        (None, None, 2000),
    ],
)
def test_the_recorded_episode(over, cut, length):
    flags = np.zeros((2, 2100), bool)
    for row, step in zip(flags, (over, cut), strict=True):
        if step is not None:
            row[step] = True
    steps, last = single(*flags), RANDOM.normal(size=6)
    found = evaluation.recording(tiny(), steps, last)
    for name in ("observations", "actions", "rewards", "deltas", "terminated", "truncated"):
        np.testing.assert_allclose(found[name], getattr(steps, name)[:length], rtol=1e-5)
    ended = flags[:, length - 1].any()
    expected = steps.final_deltas[length - 1] if ended else steps.deltas[length]
    np.testing.assert_array_equal(found["last_deltas"], expected)


def test_a_recording_that_reaches_the_end_of_the_data():
    steps, last = single(np.zeros(50, bool), np.zeros(50, bool)), RANDOM.normal(size=6)
    found = evaluation.recording(tiny(), steps, last)
    assert len(found["rewards"]) == 50
    np.testing.assert_array_equal(found["last_deltas"], last)
