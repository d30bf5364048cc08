"""What the actor is told: the ordinary advantage of V_Z with a decay of its own, whatever the critic's heads are."""

import jax
import numpy as np
import pytest

from deep_environments import QUICKLY, play, roll, state_of, tiny
from tddelta.deep import ppo

TIME, LANES, GAMMA = 8, 3, 0.99
RANDOM = np.random.default_rng(0)
REWARDS = RANDOM.normal(size=(TIME, LANES))
TERMINATED, TRUNCATED = RANDOM.random((TIME, LANES)) < 0.15, RANDOM.random((TIME, LANES)) < 0.25

signals = jax.jit(ppo.learning_signals, compiler_options=QUICKLY)


def value(agent, heads):
    """V_Z of the network's outputs."""
    return heads[..., -1] if agent == "ppo-multi" else heads.sum(-1)


def estimate(rollout, agent, decay):
    """Generalised advantages of V_Z, step by step."""
    values, last = value(agent, rollout.heads), value(agent, rollout.last_heads)
    final = value(agent, rollout.final_heads)
    advantages = np.zeros((TIME, LANES))
    for lane in range(LANES):
        later = 0.0
        for t in reversed(range(TIME)):
            if rollout.terminated[t, lane]:
                following, carried = 0.0, 0.0
            elif rollout.truncated[t, lane]:
                following, carried = final[t, lane], 0.0
            else:
                following, carried = (values[t + 1] if t + 1 < TIME else last)[lane], later
            later = rollout.rewards[t, lane] + GAMMA * following - values[t, lane] + decay * carried
            advantages[t, lane] = later
    return advantages


@pytest.mark.parametrize("actor_lam", [None, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("agent", ["ppo-multi", "ppo+", "ppo-delta"])
def test_advantages_are_those_of_the_longest_value(agent, actor_lam):
    config = tiny(agent=agent, actor_lam=actor_lam)
    assert config.heads == 6
    state = state_of(config)
    _, rollout = roll(config, state.learned, play(state.playing, REWARDS, TERMINATED, TRUNCATED), jax.random.key(1))
    assert rollout.terminated.any() and rollout.truncated.any()
    _, _, advantages = signals(config, state.learned, rollout)
    expected = estimate(
        jax.tree.map(lambda array: np.asarray(array, np.float64), rollout), agent, (actor_lam or 0.95) * GAMMA
    )
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)
