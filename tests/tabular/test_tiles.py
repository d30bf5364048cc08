"""Tile coding: counts, neighbours, bounds."""

import numpy as np
import pytest

import tddelta as tdd
from tddelta.tabular import TileCoding


def test_one_grid_is_a_histogram():
    coding = TileCoding((0.0, -1.0), (1.0, 1.0), tiles=2, tilings=1)
    points = [[0.0, -1.0], [0.49, 0.1], [0.5, -0.1], [1.0, 1.0]]
    assert coding.indices(points).tolist() == [[0], [3], [1], [4]]
    assert coding.size == 9


def test_every_grid_has_one_active_tile_and_numbers_do_not_overlap():
    coding = TileCoding((0.0, 5.0), (2.0, 6.0), tiles=4, tilings=6)
    points = np.random.default_rng(0).random((500, 2)) * [2, 1] + [0, 5]
    active = coding.indices(points)
    assert (active // (coding.size // 6) == np.arange(6)).all()
    assert (coding.matrix(points).sum(axis=1) == 6).all() and coding.matrix(points).shape == (500, coding.size)
    assert (coding.matrix(points[:1])[0].nonzero()[0] == active[0]).all()


def test_the_share_of_common_tiles_falls_with_the_distance():
    """With T grids of unit tiles, points d apart along one feature share T (1 − d) tiles, up to one."""
    coding = TileCoding((0.0,), (8.0,), tiles=8, tilings=16)
    for start in np.random.default_rng(1).random(50) * 6:
        for distance in (0.0, 0.25, 0.5, 0.75, 1.0):
            shared = (coding.indices([[start]]) == coding.indices([[start + distance]])).sum()
            assert abs(shared - 16 * (1 - distance)) <= 1


def test_points_outside_count_as_points_on_the_bounds():
    coding = TileCoding((0.0,), (1.0,), tiles=3, tilings=4)
    assert (coding.indices([[-5.0], [9.0]]) == coding.indices([[0.0], [1.0]])).all()
    assert (coding.indices([[1.0]]) == coding.indices([[1 - 1e-9]])).all(), "the upper bound begins no tile of its own"


def test_a_feature_that_never_varies_says_nothing():
    coding = TileCoding((2.0, 0.0), (2.0, 1.0), tiles=3, tilings=2)
    one, other = TileCoding((0.0,), (1.0,), tiles=3, tilings=2), np.random.default_rng(2).random(200)
    pairs = coding.indices(np.stack([np.full(200, 2.0), other], axis=1))
    assert len(np.unique(pairs, axis=0)) == len(np.unique(one.indices(other[:, None]), axis=0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), ()), "low and high must name one number per feature; got 0 and 0 numbers"),
        (((0.0,), (1.0, 2.0)), "low and high must name one number per feature; got 1 and 2 numbers"),
        ((0.0, (1.0,)), "low must be a sequence of numbers; got 0.0: pass one number per feature"),
        (((0.0,), "ab"), "high must be a sequence of numbers; got 'ab'"),
        ((((0.0,),), (1.0,)), r"low must be a sequence of numbers; got \(\(0.0,\),\)"),
        (((1.0,), (0.0,)), r"low must not exceed high; got \(1.0,\) and \(0.0,\)"),
        (((0.0,), (np.inf,)), r"low must not exceed high; got \(0.0,\) and \(inf,\): pass finite bounds"),
        (((0.0,), (1.0,), 0), "tiles must be a whole number of at least 1; got 0"),
        (((0.0,), (1.0,), 8, 1.5), "tilings must be a whole number of at least 1; got 1.5"),
        (((0.0,) * 30, (1.0,) * 30), "8 grids over 30 features have .* tiles, more than can be numbered: name fewer"),
    ],
)
def test_grids_that_cannot_be(arguments, message):
    with pytest.raises(tdd.ConfigError, match=message):
        TileCoding(*arguments)


def test_points_that_cannot_be():
    coding = TileCoding((0.0, 0.0), (1.0, 1.0))
    with pytest.raises(tdd.ShapeError, match=r"points must have shape \(N, 2\); got \(3,\): pass one row of features"):
        coding.indices([1.0, 2.0, 3.0])
    with pytest.raises(tdd.ShapeError, match="points must be an array of numbers; got 'here'"):
        coding.indices("here")
    with pytest.raises(tdd.DataError, match=r"points must be finite; got nan at \[0, 1\]"):
        coding.matrix([[0.0, np.nan]])
