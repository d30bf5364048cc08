"""Ladders that grow while learning."""

import numpy as np
import pytest

from targets_literal import make_scales
from tddelta import ConfigError, ShapeError, TimeScales, compose
from tddelta.tabular import FiniteMDP, add_scale, evaluate, remove_scale

RING = FiniteMDP.ring()


def learned(scales=None):
    scales = scales or make_scales((0.5, 0.8, 0.9), (0.4, 0.4, 0.4), (2, 4, 4))
    return evaluate(RING, scales, seeds=range(2), steps=300, step_sizes=[0.1, 0.2])


def test_a_longer_scale_changes_nothing_at_that_moment():
    before = learned()
    scales, deltas = add_scale(before.scales, before.deltas, 0.996, trace_decay=0.4, n_step=8)
    assert scales == make_scales((0.5, 0.8, 0.9, 0.996), (0.4, 0.4, 0.4, 0.4), (2, 4, 4, 8))
    assert deltas.shape == (2, 2, 5, 4)
    np.testing.assert_array_equal(deltas[..., :3], before.deltas)
    np.testing.assert_array_equal(compose(deltas)[..., 2], before.values[..., 2])
    np.testing.assert_array_equal(compose(deltas)[..., 3], before.values[..., 2])


def test_the_others_go_on_as_if_nothing_were_added():
    for method in ("td0", "traces", "true_online", "lambda_return", "n_step"):
        before = learned()
        scales, deltas = add_scale(before.scales, before.deltas, 0.99, trace_decay=0.4, n_step=4)
        options = {"method": method, "seeds": [7, 8], "steps": 100, "step_sizes": [0.1, 0.2]}
        grown = evaluate(RING, scales, initial_deltas=deltas, **options)
        same = evaluate(RING, before.scales, initial_deltas=before.deltas, **options)
        np.testing.assert_allclose(grown.deltas[..., :3], same.deltas, rtol=1e-12, atol=1e-12)
        assert grown.deltas[..., 3].any()


def test_removing_a_scale_keeps_the_values_of_the_others():
    before = learned()
    for index in range(-3, 3):
        scales, deltas = remove_scale(before.scales, before.deltas, index)
        kept = [z for z in range(3) if z != index % 3]
        assert scales == make_scales(
            [before.scales.gammas[z] for z in kept], (0.4, 0.4), tuple((2, 4, 4)[z] for z in kept)
        )
        np.testing.assert_allclose(compose(deltas), before.values[..., kept], rtol=0, atol=1e-12)
    assert before.deltas.shape[-1] == 3  # what was passed is left alone


def test_adding_and_removing_is_where_it_began():
    before = learned(TimeScales(gammas=(0.5, 0.9), n_steps=(2, 4)))
    scales, deltas = remove_scale(*add_scale(before.scales, before.deltas, 0.99, n_step=4), 2)
    assert scales == before.scales
    np.testing.assert_array_equal(deltas, before.deltas)


def test_what_does_not_fit_is_refused():
    scales, deltas = TimeScales.from_gammas([0.5, 0.9]), np.zeros((5, 2))
    with pytest.raises(ConfigError, match=r"gamma must be above the longest discount so far, 0\.9; got 0\.9: a ladder"):
        add_scale(scales, deltas, 0.9)
    with pytest.raises(ConfigError, match=r"n_step must be given if the other scales .*; got 4 where they have none"):
        add_scale(scales, deltas, 0.99, n_step=4)
    with pytest.raises(ConfigError, match=r"trace_decay must be given .* None where they have \(0\.4, 0\.4\): pass"):
        add_scale(make_scales((0.5, 0.9), (0.4, 0.4)), deltas, 0.99)
    with pytest.raises(ShapeError, match=r"for each of the 2 scales .* got float64 of shape \(5, 3\)"):
        add_scale(scales, np.zeros((5, 3)), 0.99)
    with pytest.raises(ShapeError, match=r"deltas must be an array of numbers; got .* pass lists of equal length"):
        add_scale(scales, [[1.0, 2.0], [3.0]], 0.99)
    for index in (2, 1.5, True):
        with pytest.raises(ConfigError, match=f"names one of 2 scales and leaves another; got {index}: they are"):
            remove_scale(scales, deltas, index)
    with pytest.raises(ConfigError, match="names one of 1 scales and leaves another; got 0"):
        remove_scale(TimeScales.single(0.9), np.zeros((5, 1)), 0)
