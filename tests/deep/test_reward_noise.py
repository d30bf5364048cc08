"""Noise on rewards: what the learner sees of it, and that nothing else does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import host_environments
from deep_environments import play, roll, state_of, tiny
from tddelta.deep import host, ppo, rollout
from tddelta.deep.training import HostTraining

RANDOM = np.random.default_rng(0)
REWARDS, ENDS = RANDOM.normal(size=(8, 3)), RANDOM.random((8, 3)) < 0.2


def rolled(**settings):
    config, first = tiny(**settings), state_of(tiny())
    playing = play(first.playing, REWARDS, ENDS, np.zeros((8, 3), bool))
    return config, first.learned, roll(config, first.learned, playing, jax.random.key(3))[1]


@pytest.mark.parametrize("clipping", ["none", "sign"])
def test_the_learner_sees_it_and_nothing_else_does(clipping):
    _, _, plain = rolled(reward_clipping=clipping)
    config, learned, noisy = rolled(reward_clipping=clipping, reward_noise=0.5)
    assert plain.reward_noise is None
    for name in set(plain._fields) - {"reward_noise", "reward_returns", "weights"}:
        np.testing.assert_array_equal(getattr(noisy, name), getattr(plain, name), err_msg=name)
    noise = np.asarray(noisy.reward_noise)
    assert noise.shape == (8, 3) and 0.2 < noise.std() < 0.8 and len(np.unique(noise)) == 24
    seen = (np.sign(REWARDS) if clipping == "sign" else REWARDS) + noise
    expected, before = np.zeros((8, 3)), np.zeros(3)
    for t in range(8):
        expected[t] = seen[t] + config.gamma * before
        before = np.where(ENDS[t], 0.0, expected[t])
    np.testing.assert_allclose(noisy.reward_returns, expected, rtol=1e-5, atol=1e-5)
    by_hand = noisy._replace(rewards=jnp.asarray(seen, jnp.float32), reward_noise=None)
    _, targets, advantages = ppo.learning_signals(tiny(), learned, by_hand)
    _, found, actor = ppo.learning_signals(config, learned, noisy)
    np.testing.assert_allclose(found, targets, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(actor, advantages, rtol=1e-5, atol=1e-5)


def test_every_rollout_has_its_own():
    config, state = tiny(reward_noise=1.0), state_of(tiny())
    drawn = [roll(config, state.learned, state.playing, jax.random.key(seed))[1].reward_noise for seed in (0, 1)]
    assert not np.intersect1d(*drawn).size


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_in_host_environments(mode):
    found = {}
    for sigma in (0.0, 2.0):
        made = host.from_factory(host_environments.vectors(mode), name="Plant")
        config = host_environments.tiny(made, reward_noise=sigma, rollout_length=40)
        run = HostTraining(config, 0)
        state = run.programs.init(config, jax.random.key(0))
        _, drawn, _ = run.programs.acting.noise(state.key)
        found[sigma] = jax.tree.map(
            np.array, rollout.collect_host(config, run.programs.acting, state.learned, run.playing, drawn)[1]
        )
        run.close()
    plain, noisy = found[0.0], found[2.0]
    for name in set(plain._fields) - {"reward_noise", "reward_returns"}:
        np.testing.assert_array_equal(getattr(noisy, name), getattr(plain, name), err_msg=name)
    assert plain.reward_noise is None and 1.5 < noisy.reward_noise.std() < 2.5
    assert np.abs(noisy.reward_returns - plain.reward_returns).max() > 1
