"""Agents learn the exact values of environments whose values are known; and a ladder that cannot."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep_environments import QUICKLY
from tddelta import ContractionWarning, TimeScales, compose, lambda_targets
from tddelta.deep import ppo

GAMMAS = np.array([0.5, 0.8, 0.95])
PROBES = {
    "constant reward": ("ConstantReward", {}, 1 / (1 - GAMMAS)[None]),
    "constant reward, time limit": ("ConstantReward", {"max_steps_in_episode": 10}, 1 / (1 - GAMMAS)[None]),
    "delayed reward": ("DelayedReward", {}, GAMMAS ** np.arange(4)[::-1, None]),
    "reward for an action": ("ActionReward", {}, 1 / (1 - GAMMAS)[None]),
}


def learned_components(probe, agent, **settings):
    """W of every state of a probe after training, (states, Z)."""
    name, options, values = PROBES[probe]
    config = ppo.preset(
        f"tddelta.deep.probes:{name}",
        agent,
        environment_kwargs=options,
        **{
            "environments": 8,
            "rollout_length": 32,
            "minibatches": 4,
            "steps": 256 * 150,
            "hidden_sizes": (16,),
            "scales": (2.0, 5.0, 20.0),
            "learning_rate": 2e-2,
            "max_gradient_norm": 10.0,
            "entropy_coefficient": 0.0,
            **settings,
        },
    )
    state, _ = jax.jit(ppo.train, compiler_options=QUICKLY)(config, jax.random.key(0))
    config = config.at(config.updates)
    states = jnp.eye(len(values)) if len(values) > 1 else jnp.ones((1, 1))
    _, heads = jax.vmap(ppo.network(config, state.learned.parameters))(states)
    return np.asarray(ppo.components(config, state.learned, heads))


# With λ = .7 the paper's equal traces contract on this ladder: .665 < (1 + .5)/2.
LADDERS = [("ppo-delta", {}), ("ppo-delta-bootstrap", {}), ("ppo-multi", {}), ("ppo-delta-matched", {"lam": 0.7})]


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(("agent", "settings"), LADDERS)
def test_every_component_is_learned(probe, agent, settings):
    values = PROBES[probe][2]
    expected = np.diff(values, axis=-1, prepend=0)
    found = learned_components(probe, agent, **settings)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("agent", ["ppo", "ppo+"])
def test_the_value_is_learned(probe, agent):
    found = learned_components(probe, agent)
    assert found.shape == (len(PROBES[probe][2]), 1)
    np.testing.assert_allclose(found[:, 0], PROBES[probe][2][:, -1], rtol=0.02)


GROWING = {"scales": (2.0, 5.0), "grow": [(256 * 50, 20)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "scale", "probe"),
    [  # every agent with every scale; every agent, and every scale, with both probes
        (agent, scale, ("constant reward, time limit", "delayed reward")[(i + j) % 2])
        for i, agent in enumerate(("ppo", "ppo+", "ppo-multi", "ppo-delta"))
        for j, scale in enumerate(("none", "horizon", "running"))
    ],
)
def test_a_ladder_that_grew_is_learned_as_a_whole(agent, scale, probe):
    values = PROBES[probe][2]
    expected = values[:, -1:] if agent in ("ppo", "ppo+") else np.diff(values, axis=-1, prepend=0)
    found = learned_components(probe, agent, component_scale=scale, **GROWING)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.01)


LONG = {"scales": (10.0, 100.0, 1000.0), "lam": 0.99, "environments": 4, "rollout_length": 128, "steps": 512 * 150}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "scale"), [("ppo-delta", "horizon"), ("ppo-delta", "running"), ("ppo-multi", "running")]
)
def test_scaled_components_learn_a_long_horizon(agent, scale):
    found = learned_components("constant reward", agent, component_scale=scale, **LONG)
    np.testing.assert_allclose(found, [[10, 90, 900]], rtol=0.02)


@pytest.mark.slow
def test_components_without_scale_do_not_learn_it_in_the_same_time():
    assert learned_components("constant reward", "ppo-delta", **LONG)[0, -1] < 700


def full_steps(scales, count):
    """W after each of `count` full steps towards the λ-returns of the endless state with reward 1, (count, Z)."""
    deltas, found = np.zeros((1, len(scales))), []
    for _ in range(count):
        everywhere = np.repeat(deltas, 200, axis=0)
        never = np.zeros(200, bool)
        targets = lambda_targets(np.ones(200), everywhere, everywhere, terminated=never, truncated=never, scales=scales)
        deltas = targets[:1]
        found.append(deltas[0])
    return np.array(found)


def test_the_matched_ladder_diverges_under_full_steps():
    # γ = .99, λ = .95: the decay .9405 is too long for γ = .68 (factor 4.38) and γ = .84 (1.69).
    with pytest.warns(ContractionWarning, match=r"γ=0\.680 has trace decay 0\.9405 and factor 4\.38"):
        scales = TimeScales.halving(0.99, lam=0.95, rule="matched")
    deltas = full_steps(scales, 60)
    values = compose(deltas)
    exact = 1 / (1 - np.array(scales.gammas))
    factors = (np.array(scales.gammas) - 0.9405) / (1 - 0.9405)
    # At first V_Z converges as if nothing were wrong, with the factor of its own.
    errors = values[:, -1] - exact[-1]
    np.testing.assert_allclose(errors[1:12] / errors[:11], factors[-1], rtol=1e-3)
    # The first components meanwhile grow, with opposite signs, and both change sign with every step.
    np.testing.assert_allclose(deltas[10:20, 0] / deltas[9:19, 0], factors[0], rtol=1e-3)
    assert np.all(np.abs(deltas[20:, :2]) > 1e10) and np.all(deltas[20:, 0] * deltas[20:, 1] < 0)
    # In the end rounding of the large terms is all that is left of their sum.
    assert abs(errors[20]) < 5 and abs(errors[-1]) > 1e6


@pytest.mark.parametrize("rule", ["capped", "constant", "proportional"])
def test_other_ladders_converge_under_full_steps(rule):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scales = TimeScales.halving(0.99, lam=0.95, rule=rule)
    deltas = full_steps(scales, 60)
    exact = np.diff(1 / (1 - np.array(scales.gammas)), prepend=0)
    assert np.abs(deltas).max() < 60
    np.testing.assert_allclose(deltas[-1], exact, rtol=0.01)
