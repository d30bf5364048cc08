"""Components and values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tddelta.decomposition import compose, decompose, explained_variance, variance
from tddelta.errors import ShapeError

shapes = st.tuples(st.sampled_from([(), (3,), (2, 4)]), st.integers(1, 6))


@given(shapes, st.integers(0, 2**32 - 1))
def test_each_is_the_inverse_of_the_other(shape, seed):
    array = np.random.default_rng(seed).normal(size=(*shape[0], shape[1]))
    values = compose(array)
    np.testing.assert_allclose(decompose(values), array, atol=1e-12)
    np.testing.assert_allclose(compose(decompose(array)), array, atol=1e-12)
    for z in range(shape[1]):
        np.testing.assert_allclose(values[..., z], array[..., : z + 1].sum(-1), atol=1e-12)


def test_a_difference_is_not_lost_between_large_values():
    values = np.array([1e6, 1e6 + 1], dtype=np.float32)
    np.testing.assert_array_equal(decompose(values), [1e6, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_scale_is_returned_unchanged(dtype):
    array = np.ones((3, 1), dtype)
    assert compose(array) is array
    assert decompose(array) is array


def test_jax_also_compiled():
    deltas = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    for function in (compose, decompose):
        there = jax.jit(function)(jnp.asarray(deltas))
        assert there.dtype == np.float32
        np.testing.assert_allclose(there, function(deltas), rtol=1e-5, atol=1e-5)
    gradient = jax.grad(lambda array: compose(array)[..., -1].sum())(jnp.asarray(deltas))
    np.testing.assert_array_equal(gradient, np.ones_like(deltas))


def test_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    deltas = np.random.default_rng(0).normal(size=(4, 3))
    for function in (compose, decompose):
        there = function(torch.asarray(deltas))
        assert there.dtype == torch.float64
        np.testing.assert_allclose(there.numpy(), function(deltas))


@pytest.mark.parametrize("function", [compose, decompose])
@pytest.mark.parametrize(
    ("array", "message"),
    [
        ([1.0, 2.0], "got list: convert it, for instance with np.asarray"),
        (np.array([1, 2]), "must be floating point; got dtype int64"),
        (np.array(1.0), r"needs a last axis.*got shape \(\)"),
        (np.zeros((3, 0)), r"got shape \(3, 0\)"),
    ],
)
def test_errors(function, array, message):
    with pytest.raises(ShapeError, match=message):
        function(array)


def arrays(values):
    """The same in single precision in every framework, and in double precision."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    single = np.asarray(values, np.float32)
    return jnp.asarray(single), torch.asarray(single), single, single.astype(np.float64)


def test_explained_variance_is_the_same_in_every_framework():
    random = np.random.default_rng(0)
    targets = random.normal(3.0, 2.0, (50, 2))
    values = targets + random.normal(size=(50, 2))
    for guess, target in zip(arrays(values), arrays(targets), strict=True):
        found = np.asarray(explained_variance(guess, target))
        np.testing.assert_allclose(found, 1 - (targets - values).var(0) / targets.var(0), rtol=1e-4)
        np.testing.assert_allclose(float(explained_variance(guess[:, 0], target[:, 0])), found[0], rtol=1e-4)


def test_rounding_is_not_variance():
    for constant in ([0.0] * 7, [0.1] * 7, [0.1] * 100_000, [3.0] * 6 + [3.0 + 2.0**-22]):
        *several, double = arrays(constant)
        for array in several:
            assert float(variance(array)) == 0 and np.isnan(float(explained_variance(array + 1, array)))
        assert (variance(double) == 0) == (np.ptp(double) == 0), "in double precision it can be told"
    noisy = np.array([0.1 + 0.2, 0.3, 0.3])
    assert variance(noisy) == 0 < np.ptp(noisy)
    rows = np.full((100_000, 2), 0.1, np.float32)  # added row by row
    assert np.isnan(explained_variance(rows + 1, rows)).all()
    assert np.isnan(variance(np.array([1.0, np.nan])))
