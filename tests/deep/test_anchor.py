"""The anchor: a constant fitted to every V_z, in closed form, through the output biases of the critic alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep_environments import play, roll, state_of, tiny, update
from tddelta import ConfigError, compose
from tddelta.deep import ppo

RANDOM = np.random.default_rng(0)
FOREVER = {"lam": 0.5, "learning_rate": 1e-6, "anchor": 1}
AGENTS = ["ppo", "ppo+", "ppo-multi", "ppo-delta"]  # the others differ in targets, which do not enter


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        *((agent, {}) for agent in AGENTS),
        pytest.param("ppo-delta", {"max_steps_in_episode": 3}, id="time limit", marks=pytest.mark.slow),
    ],
)
def test_a_constant_reward_is_known_after_one_rollout_at_every_discount(agent, options):
    config = tiny("tddelta.deep.probes:ConstantReward", agent, environment_kwargs=options, gamma=0.999, **FOREVER)
    found = values_of_constant(config)
    np.testing.assert_allclose(found, config.critic_scales.horizons, rtol=1e-3)


def test_without_it_a_constant_reward_is_not_known_so_early():
    config = tiny("tddelta.deep.probes:ConstantReward", gamma=0.999, **FOREVER | {"anchor": 0})
    assert abs(values_of_constant(config)[-1]) < 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"component_scale": "horizon"},
        {"component_scale": "running"},
        {"component_trunks": True},
        {"shared_trunk": True},
        {"shards": 3},
    ],
    ids=str,
)
def test_other_units_and_networks(settings):
    config = tiny("tddelta.deep.probes:ConstantReward", "ppo-delta", **FOREVER, **settings)
    np.testing.assert_allclose(values_of_constant(config), config.critic_scales.horizons, rtol=1e-3)


def values_of_constant(config):
    return values_of(config, update(config, state_of(config))[0])


def values_of(config, state):
    _, heads = ppo.network(config, state.learned.parameters)(jnp.ones(1))
    return compose(ppo.components(config, state.learned, heads))


@pytest.mark.parametrize("agent", ["ppo-multi", "ppo-delta"])
def test_a_scale_that_is_new_is_anchored_too(agent):
    settings = {**FOREVER, "anchor": 2, "scales": (10, 30, 100), "grow": [(24, 300)]}
    config = tiny("tddelta.deep.probes:ConstantReward", agent, **settings)
    state, _ = update(config.at(0), state_of(config))
    (stage,) = config.at(0).past_stages(1)
    config, state = config.at(1), ppo.grow(stage, state)
    np.testing.assert_allclose(values_of(config, state)[:3], [10, 30, 100], rtol=1e-3)
    state, _ = update(config, state)
    np.testing.assert_allclose(values_of(config, state), [10, 30, 100, 300], rtol=1e-3)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_shift_is_the_one_with_mean_errors_of_zero(agent):
    config = tiny(agent=agent, lam=0.4)
    state = state_of(config)
    ends = RANDOM.random((8, 3)) < 0.2, RANDOM.random((8, 3)) < 0.2
    rollout = roll(config, state.learned, play(state.playing, RANDOM.normal(size=(8, 3)), *ends), jax.random.key(3))[1]
    weights = jnp.asarray(RANDOM.integers(0, 2, (8, 3)), jnp.float32)
    rollout = rollout._replace(weights=weights / weights.mean())
    shift = ppo.constant_error(config, state.learned, rollout)
    # By hand, from values.
    rewards, heads, next_heads, ends = ppo.seen(config, state.learned, rollout)
    deltas = (ppo.Basis(config.agent.basis).deltas(each) for each in (heads, next_heads))
    values, following = (np.cumsum(np.asarray(each, np.float64), -1) for each in deltas)
    numerator, denominator = 0.0, 0.0
    for t, b in np.argwhere(np.asarray(weights)):
        discounts = np.array(config.critic_scales.gammas) * (not ends["terminated"][t, b])
        numerator = numerator + rewards[t, b] + discounts * following[t, b] - values[t, b]
        denominator = denominator + 1 - discounts
    np.testing.assert_allclose(shift, numerator / denominator, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("agent", ["ppo+", "ppo-multi", "ppo-delta"])
def test_only_the_output_biases_of_the_critic_change_and_only_in_the_first_rollouts(agent):
    config = tiny(agent=agent, anchor=2, learning_rate=1e-30)
    state = state_of(config)
    for count in range(3):
        following, _ = update(config, state)
        changes = jax.tree.map(
            lambda old, new: float(jnp.abs(new - old).max()), state.learned.parameters, following.learned.parameters
        )
        largest = sorted(jax.tree.leaves(changes))
        assert largest[-2] < 1e-25 and (changes.critic.bias > 1e-4) == (count < 2)
        state = following


def test_after_its_rollouts_it_changes_nothing():
    state = state_of(tiny())._replace(updates=jnp.int32(1))
    (plain, one), (late, two) = update(tiny(), state), update(tiny(anchor=1), state)
    jax.tree.map(np.testing.assert_array_equal, (plain.learned, one), (late.learned, two))


class Alone(eqx.Module):
    """A network of one's own."""

    bias: jax.Array

    def __call__(self, observation):
        return jnp.zeros(2), self.bias


def test_networks_whose_biases_are_unknown_are_refused():
    with pytest.raises(
        ConfigError, match=r"anchor shifts the output biases of the critic, .* are unknown; got 1: give"
    ):
        tiny(anchor=1, network=lambda key, observations, actions, heads: Alone(jnp.zeros(heads)))
