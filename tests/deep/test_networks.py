"""The convolution for MinAtar: that it is one, its sizes, and that it trains."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep_environments import state_of, tiny, update
from host_environments import Counting
from tddelta import ConfigError
from tddelta.deep import host, ppo
from tddelta.deep.networks import Trunk, patches
from tddelta.experiments.plan import plan_runs


@pytest.mark.parametrize("shape", [(10, 10, 4), (3, 3, 1), (5, 7, 3)])
def test_patches_times_a_matrix_is_a_convolution(shape):
    image_key, filter_key = jax.random.split(jax.random.key(0))
    image, weight = jax.random.normal(image_key, shape), jax.random.normal(filter_key, (9 * shape[-1], 5))
    expected = jax.lax.conv_general_dilated(
        image[None],
        weight.reshape(3, 3, shape[-1], 5),
        window_strides=(1, 1),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )[0]
    assert expected.shape == (shape[0] - 2, shape[1] - 2, 5)
    np.testing.assert_allclose(patches(image, 3) @ weight, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_trunk_is_convolution_then_dense_layers():
    trunk = Trunk(jax.random.key(0), (10, 10, 4), (6,), 2, "relu")
    image = jax.random.bernoulli(jax.random.key(1), shape=(10, 10, 4)).astype(jnp.float32)
    # every patch and every filter on its own, by hand
    features = np.zeros((8, 8, 2))
    for i in range(8):
        for j in range(8):
            patch = np.asarray(image[i : i + 3, j : j + 3]).reshape(-1)
            features[i, j] = np.maximum(patch @ np.asarray(trunk.convolution.weight).T, 0)
    expected = np.maximum(features.reshape(-1) @ np.asarray(trunk.layers[0].weight).T, 0)
    np.testing.assert_allclose(trunk(image), expected, rtol=1e-4, atol=1e-5)


def parameters_of(**settings):
    """Shapes of the parameters on Breakout, whose observations are 10 × 10 × 4."""
    config = ppo.preset("Breakout-MinAtar", "ppo-delta", network="minatar-conv", **settings)
    return jax.eval_shape(lambda key: ppo.initial(config, key).parameters, jax.random.key(0))


def shapes(trunk):
    return [layer.weight.shape for layer in (trunk.convolution, *trunk.layers)]


def test_default_sizes_are_16_filters_and_128_dense_units_for_policy_and_critic_each():
    parameters = parameters_of()
    assert shapes(parameters.policy_trunk) == shapes(parameters.critic_trunk) == [(16, 36), (128, 8 * 8 * 16)]
    assert (parameters.policy.weight.shape, parameters.critic.weight.shape) == ((3, 128), (6, 128))


def test_filters_layers_and_a_shared_trunk_are_settings():
    parameters = parameters_of(filters=4, hidden_sizes=(32, 8), shared_trunk=True)
    assert shapes(parameters.policy_trunk) == [(4, 36), (32, 8 * 8 * 4), (8, 32)]
    assert parameters.critic_trunk is None
    assert (parameters.policy.weight.shape, parameters.critic.weight.shape) == ((3, 8), (6, 8))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_an_update_trains_every_layer(shared):
    config = tiny("Breakout-MinAtar", network="minatar-conv", filters=2, shared_trunk=shared)
    before = state_of(config)
    after, metrics = update(config, before)
    assert metrics.fault == 0 and np.isfinite(metrics.value_loss)
    old, new = (jax.tree_util.tree_leaves_with_path(state.learned.parameters) for state in (before, after))
    assert len(old) == (4 if shared else 8) + 4
    unchanged = [path for (path, first), (_, second) in zip(old, new, strict=True) if np.array_equal(first, second)]
    assert not unchanged


@pytest.mark.parametrize(
    ("shape", "settings", "network"),
    [
        ((7, 7, 3), {}, "mlp"),
        ((7, 7, 3), {"network": "mlp"}, "mlp"),
        ((7, 7, 3), {"network": "minatar-conv"}, "minatar-conv"),
        ((40, 40, 40), {}, "mlp"),
        ((40, 40, 40), {"image_channels": "first"}, "nature-conv"),
        ((84, 84, 3), {}, "nature-conv"),
        ((84, 84), {"network": "nature-conv"}, "nature-conv"),
        ((7, 7), {"network": "minatar-conv"}, "minatar-conv"),
    ],
)
def test_images_of_every_size_have_a_network(shape, settings, network, tmp_path):
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    kind = type("Images", (Counting,), {"observation_space": space, "seen": lambda self: space.low})
    (plan,) = plan_runs(host.from_factory(kind), "ppo-delta", seeds=1, out=tmp_path, **settings)
    config, environment = plan.config, plan.config.environment_object()
    assert config.network == network

    def heads(key):
        spaces = environment.observation_space, environment.action_space
        return config.network_factory()(key, *spaces, config.heads)(jnp.zeros(shape))[1]

    assert jax.eval_shape(heads, jax.random.key(0)).shape == (config.heads,)


@pytest.mark.parametrize("channels", ["first", "last"])
def test_an_image_that_is_too_small_for_the_convolutions_names_a_network(channels):
    space = gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8)
    kind = type("Images", (Counting,), {"observation_space": space, "seen": lambda self: space.low})
    with pytest.raises(ConfigError, match=r"at least 36×36 pixels; got \(7, 7, 3\): use network mlp"):
        ppo.preset(host.from_factory(kind), image_channels=channels)
