"""`ppo` against a plain PPO that shares no code with it."""

import jax
import numpy as np
import pytest

from deep_environments import init, tiny, update
from plain_ppo import PlainPPO
from tddelta.deep.ppo import shuffled

TIME, LANES, LIMIT = 16, 4, 12


def layers_of(learned):
    """Weights and biases of the two networks."""
    found = learned.parameters
    return jax.tree.map(
        np.asarray,
        {
            name: [(layer.weight.T, layer.bias) for layer in (*trunk.layers, out)]
            for name, trunk, out in (
                ("policy", found.policy_trunk, found.policy),
                ("critic", found.critic_trunk, found.critic),
            )
        },
    )


def random_numbers(key, config):
    """The random numbers of an update, split as `update` and `collect` do; and the key of the next."""
    key, rollout_key, shuffle_key = jax.random.split(key, 3)
    noise_key, step_key = jax.random.split(rollout_key)
    noise = jax.random.gumbel(noise_key, (TIME, LANES, 2))
    keys = jax.random.split(step_key, (TIME, LANES))
    orders = [shuffled(one, TIME, LANES) for one in jax.random.split(shuffle_key, config.epochs)]
    minibatches = np.concatenate(orders).reshape(config.epochs * config.minibatches, -1)
    return key, noise, keys, minibatches


@pytest.mark.slow
def test_ppo_is_plain_ppo():
    config = tiny(
        "CartPole-v1",
        "ppo",
        environment_kwargs={"max_steps_in_episode": LIMIT},
        rollout_length=TIME,
        environments=LANES,
        epochs=2,
        minibatches=4,
        steps=3 * TIME * LANES,
        hidden_sizes=(16, 16),
        clip=0.02,
    )
    state = init(config, jax.random.key(4))
    plain = PlainPPO(
        layers_of(state.learned),
        state.playing.environment,
        state.playing.observation,
        LIMIT,
        gamma=0.99,
        lam=0.95,
        clip=0.02,
        entropy_coefficient=0.01,
        value_coefficient=1.0,
        max_gradient_norm=0.5,
    )
    key = state.key
    for number in range(3):
        key, noise, keys, minibatches = random_numbers(key, config)
        state, metrics = update(config, state)
        report = plain.update(noise, keys, minibatches, rate=1e-2 * (1 - number / 3))
        found = [
            metrics.policy_loss,
            metrics.value_loss,
            metrics.entropy,
            metrics.approximate_kl,
            metrics.clip_fraction,
            metrics.gradient_norm,
        ]
        np.testing.assert_allclose(found, report, rtol=1e-5, atol=1e-5)
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5),
            layers_of(state.learned),
            plain.parameters,
        )
    # The comparison saw what it is for.
    assert plain.terminations > 0 and plain.truncations > 0 and 0 < metrics.clip_fraction < 1
