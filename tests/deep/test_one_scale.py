"""With one scale there is nothing to decompose: all agents are the same program, and PPO (field case B22)."""

import functools

import jax
import numpy as np
import pytest

from deep_environments import QUICKLY, tiny
from tddelta.deep import ppo
from tddelta.deep.agents import AGENTS


def one_scale(agent, **settings):
    # Episodes end after 6 steps, which is before any pole falls: there are truncations, and no terminations.
    return tiny(
        "CartPole-v1",
        agent,
        environment_kwargs={"max_steps_in_episode": 6},
        minibatches=2,
        gamma=0.99,
        **{"scales": (100.0,), **settings},
    )


@functools.cache
def program(config):
    """The update as text, before any compiler has seen it."""
    state = jax.eval_shape(ppo.init, config, jax.random.key(0))
    return jax.jit(ppo.update).lower(config, state).as_text()


DELTA = ["ppo-delta", "ppo-delta-matched", "ppo-delta-bootstrap"]


# In the other agents the sum of one head and the last of one head are written down as such: see the last test.
@pytest.mark.parametrize("agent", DELTA)
def test_agents_are_one_program(agent):
    assert program(one_scale(agent)) == program(one_scale("ppo"))


@pytest.mark.parametrize("rule", ["capped", "matched", "constant"])
def test_the_trace_rule_does_not_matter(rule):
    assert program(one_scale("ppo-delta", rule=rule)) == program(one_scale("ppo"))


def test_but_a_proportional_trace_does():
    config = one_scale("ppo", rule="proportional")
    assert config.critic_scales.trace_decays == (0.98,)
    assert program(config) != program(one_scale("ppo"))


def test_several_scales_are_another_program():
    assert program(one_scale("ppo-delta", scales=(10.0, 100.0))) != program(one_scale("ppo"))


@functools.cache
def trained(agent, **settings):
    """All metrics and the final state after three updates."""
    config = one_scale(agent, steps=3 * 24, **settings)
    state, metrics = jax.jit(ppo.train, compiler_options=QUICKLY)(config, jax.random.key(1))
    assert metrics.policy_loss.shape == (3,)
    assert np.sum(metrics.finished_lengths == 6) == 3 * 24 // 6
    state = state._replace(key=jax.random.key_data(state.key))
    named, _ = jax.tree_util.tree_flatten_with_path((state, metrics))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in named}


@pytest.mark.slow
@pytest.mark.parametrize("agent", sorted({*AGENTS} - {"ppo", *DELTA}))
def test_the_other_agents_give_the_same_numbers(agent):
    reference, found = trained("ppo"), trained(agent)
    assert len(found) > 30
    for name, expected in reference.items():
        # Three updates add to the rounding.
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4, err_msg=name)
