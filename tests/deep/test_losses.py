"""Losses against numbers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tddelta import ShapeError
from tddelta.decomposition import explained_variance
from tddelta.deep import ppo
from tddelta.deep.rollout import no_moments


@pytest.mark.parametrize(
    ("advantages", "expected"),
    [
        ([5.0], [0.0]),
        ([2.0, 2.0, 2.0], [0.0, 0.0, 0.0]),
        ([0.1] * 7, [0.0] * 7),
        ([1e6 + 0.1] * 3, [0.0] * 3),
        ([1.0, 2.0, 3.0, 4.0], [-1.3416408, -0.4472136, 0.4472136, 1.3416408]),
        ([0.0, 1e-3], [-1.0, 1.0]),
    ],
)
def test_standardized(advantages, expected):
    # Field case B26: the population's deviation, and no NaN for one sample.
    found = ppo.standardized(jnp.array(advantages))
    np.testing.assert_allclose(found, expected, atol=2e-4)
    whole = ppo.standardized(jnp.arange(12.0).reshape(3, 4))
    np.testing.assert_allclose([whole.mean(), whole.std()], [0, 1], rtol=1e-5, atol=1e-5)


def test_steps_of_weight_0_count_nowhere():
    random = np.random.default_rng(0)
    played = random.random((6, 4)) < 0.7
    weights = jnp.asarray(played / played.mean(), jnp.float32)
    values, targets = (
        jnp.asarray(np.where(played[..., None], random.normal(size=(6, 4, 3)), np.nan), jnp.float32) for _ in range(2)
    )
    logs, old, advantages = jnp.moveaxis(values, -1, 0)

    def both(function, *arrays, rtol=1e-5):
        """The function of all steps with their weights, and of those that count."""
        whole = function(*(array.reshape(-1, *array.shape[2:]) for array in arrays), weights.reshape(-1))
        part = function(*(array[played] for array in arrays), None)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-5), whole, part)

    both(lambda new, old, a, weights: ppo.clipped_surrogate(new, old, a, 0.2, weights), logs, old, advantages)
    both(lambda v, t, weights: ppo.squared_error(v, t, None, weights), values, targets)
    filled = ppo.filled(advantages, weights)
    np.testing.assert_allclose(
        ppo.standardized(filled, (), weights)[played], ppo.standardized(advantages[played]), rtol=1e-4, atol=1e-5
    )
    both_filled = (ppo.filled(each, weights).reshape(-1, 3) for each in (values, targets))
    np.testing.assert_allclose(
        explained_variance(*both_filled), explained_variance(values[played], targets[played]), rtol=1e-4
    )
    found, expected = (
        no_moments((3,)).updated(values, (0, 1), (), weights),
        no_moments((3,)).updated(values[played], (0,)),
    )
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.deviation, expected.deviation, rtol=1e-4)


def test_the_value_loss_sums_over_components():
    # Field case B32: 3.75 is the mean over components.
    heads = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    for weights, expected in ((None, 7.5), (jnp.array([2.0, 0.1]), 5.5)):
        loss, components = ppo.squared_error(heads, jnp.zeros((2, 2)), weights)
        np.testing.assert_allclose([loss, *components], [expected, 2.5, 5.0], rtol=1e-5)


def test_the_value_loss_is_not_clipped():
    # Field case B32: with a clip range around the old value 0 the gradient would be 0.
    gradient = jax.grad(lambda value: ppo.squared_error(value, jnp.array([[100.0]]))[0])(jnp.array([[1.0]]))
    np.testing.assert_allclose(gradient, [[-99.0]], rtol=1e-5)
    np.testing.assert_allclose(ppo.squared_error(jnp.array([[1.0]]), jnp.array([[100.0]]))[0], 9801 / 2, rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (4,), (4, 1, 1), (1, 4)])
def test_losses_of_other_shapes_are_refused(shape):
    # Field case B31: broadcasting would average over the batch.
    with pytest.raises(ShapeError, match=r"shapes must be equal; got heads \(4, 1\), targets .*broadcast"):
        ppo.squared_error(jnp.zeros((4, 1)), jnp.zeros(shape))
    for wrong in range(3):
        arrays = [jnp.zeros(shape) if place == wrong else jnp.zeros(3) for place in range(3)]
        with pytest.raises(ShapeError, match="shapes must be equal; got log_probabilities"):
            ppo.clipped_surrogate(*arrays, 0.2)


def test_the_clipped_surrogate_by_hand():
    ratios = np.array([1.0, 1.5, 1.5, 0.5, 0.5, 1.1])
    advantages = np.array([2.0, 1.0, -1.0, 1.0, -1.0, 3.0])
    # The pessimistic of both: clipped where the advantage would pay for leaving the range, and only there.
    surrogate = [2.0, 1.2, -1.5, 0.5, -0.8, 3.3]
    old = np.full(6, -0.7)
    loss, kl, clipped = ppo.clipped_surrogate(
        jnp.array(old + np.log(ratios)), jnp.array(old), jnp.array(advantages), 0.2
    )
    np.testing.assert_allclose(loss, -np.mean(surrogate), rtol=1e-5)
    np.testing.assert_allclose(kl, np.mean(ratios - 1 - np.log(ratios)), rtol=1e-4)
    np.testing.assert_allclose(clipped, 4 / 6, rtol=1e-5)


def test_gradients_of_the_clipped_surrogate():
    def loss(logs):
        return ppo.clipped_surrogate(logs, jnp.zeros(4), jnp.array([1.0, 1.0, -1.0, -1.0]), 0.2)[0]

    ratios = np.array([1.5, 0.5, 1.5, 0.5])
    gradient = jax.grad(loss)(jnp.log(jnp.array(ratios)))
    np.testing.assert_allclose(gradient, [0, -0.5 / 4, 1.5 / 4, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "targets", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([5, 6, 7], [1, 2, 3], 1.0),  # an offset is not variance
        ([0, 0, 0], [1, 2, 3], 0.0),
        ([3, 2, 1], [1, 2, 3], -3.0),
        ([0, 0, 1], [0, 0, 2], 0.75),
        ([1, 2, 3], [4, 4, 4], np.nan),  # nothing to explain
        ([1] * 7, [0.1] * 7, np.nan),
        ([1], [2], np.nan),
        ([1] * 8, [3.0000002] + [3] * 7, np.nan),  # equal but for rounding
    ],
)
def test_explained_variance(values, targets, expected):
    found = explained_variance(jnp.array(values, jnp.float32), jnp.array(targets, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
