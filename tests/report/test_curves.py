import numpy as np
import pytest

from tddelta.errors import ConfigError, ShapeError
from tddelta.report.statistics import curve_values, learning_curve, learning_grid


def test_runs_of_different_length():
    # field case B47: run A at 0, 100, 200; run B at 0, 100
    curve = learning_curve([[0, 100, 200], [0, 100]], [[0.0, 10.0, 20.0], [0.0, 20.0]], [0, 100, 200])
    assert curve.mean.tolist() == [0, 15, 20]
    assert curve.n.tolist() == [2, 2, 1]
    assert np.isnan(curve.low[2])  # one seed has no interval
    assert curve.low[1] < 15 < curve.high[1]
    assert np.isnan(curve.values[1, 2])


def test_the_band_is_the_t_interval_and_says_so():
    # field case B47: half-width 1.9632 for 1…5
    curve = learning_curve([[10]] * 5, [[float(score)] for score in range(1, 6)], [10])
    assert curve.high[0] - 3 == pytest.approx(1.9632, abs=5e-5)
    assert curve.label == "mean of 5 seeds, band: 95 % t interval"
    assert learning_curve([[10]] * 5, [[1.0]] * 5, [10], level=0.5).label == "mean of 5 seeds, band: 50 % t interval"


def test_one_seed():
    curve = learning_curve([[1, 2]], [[3.0, 4.0]], [1, 2])
    assert curve.mean.tolist() == [3, 4]
    assert np.isnan(curve.low).all()
    assert curve.label == "one seed, no band"


def test_a_point_is_the_mean_of_its_bin():
    values = curve_values([1, 10, 11, 20, 21], [1.0, 3.0, 10.0, 20.0, 99.0], [10, 20])
    assert values.tolist() == [2, 15]  # 10 belongs to the first bin, 21 lies past the grid


def test_a_bin_without_episodes_lies_on_the_line_between_its_neighbours():
    values = curve_values([10, 40], [1.0, 4.0], [10, 20, 30, 40, 50])
    np.testing.assert_array_equal(values, [1, 2, 3, 4, np.nan])


def test_nothing_before_the_first_episode():
    np.testing.assert_array_equal(curve_values([30], [5.0], [10, 20, 30, 40]), [np.nan, np.nan, 5, np.nan])


def test_no_episodes():
    assert np.isnan(curve_values([], [], [10, 20])).all()
    curve = learning_curve([[], [5]], [[], [1.0]], [10.0])
    assert (curve.n.tolist(), curve.mean.tolist()) == ([1], [1])


def test_the_grid_covers_the_longest_run_and_adapts_to_few_episodes():
    grid = learning_grid([np.arange(1, 1001), np.arange(1, 501)])
    assert (len(grid), grid[-1]) == (60, 1000)
    assert len(learning_grid([np.arange(10, 110, 10)])) == 2
    assert len(learning_grid([[], []])) == 0
    assert len(learning_grid([[5]])) == 2


def test_wrong_arguments():
    with pytest.raises(ConfigError, match="grid must be strictly increasing"):
        learning_curve([[1]], [[1.0]], [2, 1])
    with pytest.raises(ShapeError, match="one array per seed"):
        learning_curve([[1]], [], [1])
    with pytest.raises(ShapeError, match="one entry per episode"):
        curve_values([1, 2], [1.0], [1])
    with pytest.raises(ConfigError, match="level"):
        learning_curve([[1]], [[1.0]], [1], level=1.0)
