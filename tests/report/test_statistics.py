import math

import numpy as np
import pytest
from scipy import stats

from tddelta.errors import ConfigError, ShapeError
from tddelta.report.statistics import (
    asymptotic_score,
    average_score,
    bootstrap_difference,
    critic_quality,
    holm,
    summarise,
    t_interval,
    welch_test,
)


class TestScores:
    def test_only_the_last_episodes_count(self):
        returns = [0.0] * 50 + [1.0] * 60 + [3.0] * 40
        assert asymptotic_score(returns) == pytest.approx((60 * 1 + 40 * 3) / 100)
        assert average_score(returns) == pytest.approx((60 + 120) / 150)
        assert asymptotic_score(returns, episodes=40) == 3

    def test_fewer_episodes_than_asked_for_all_count(self):
        assert asymptotic_score([1.0, 2.0]) == 1.5

    def test_no_episode_has_no_score(self):
        assert math.isnan(asymptotic_score([]))
        assert math.isnan(average_score([]))

    def test_wrong_arguments(self):
        with pytest.raises(ConfigError, match="episodes must be at least 1; got 0"):
            asymptotic_score([1.0], episodes=0)
        with pytest.raises(ShapeError, match="must have one axis"):
            average_score([[1.0], [2.0]])


class TestSummary:
    def test_seeds_are_the_replicates_and_episodes_are_not(self):
        # field case B46: 3 seeds × 100 constant episodes
        scores = [asymptotic_score([float(score)] * 100) for score in (0, 5, 10)]
        assert summarise(scores).mean == 5
        assert summarise(scores).standard_error == pytest.approx(2.887, abs=5e-4)

    def test_standard_error_and_t_interval(self):
        # field case B47
        scores = [1.0, 2.0, 3.0, 4.0, 5.0]
        assert summarise(scores).standard_error == pytest.approx(0.7071, abs=5e-5)
        interval = t_interval(scores)
        assert (interval.high - interval.low) / 2 == pytest.approx(1.9632, abs=5e-5)

    def test_one_seed_has_no_interval(self):
        assert summarise([4.0]).standard_error is None
        assert t_interval([4.0]).low is None
        assert "one seed" in t_interval([4.0]).note

    def test_not_a_number_is_not_dropped(self):
        summary = summarise([1.0, math.nan, 3.0])
        assert math.isnan(summary.mean)
        assert summary.note == "not a finite score: 1 of 3 seeds"
        assert t_interval([1.0, math.nan]).low is None

    def test_no_seed(self):
        assert math.isnan(summarise([]).mean)

    def test_level(self):
        with pytest.raises(ConfigError, match="level must lie between 0 and 1; got 95"):
            t_interval([1.0, 2.0], level=95.0)


class TestWelch:
    def test_numbers_worked_by_hand(self):
        # field case B45
        test = welch_test([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
        assert test.difference == -2
        assert test.statistic == pytest.approx(-1.5492, abs=5e-5)
        assert test.degrees_of_freedom == pytest.approx(2.9412, abs=5e-5)
        assert test.p_value == pytest.approx(0.2209, abs=5e-5)
        assert not test.note

    def test_rounding_noise_is_no_variance(self):
        # field case B45: a plain t-test of these equal numbers gives p = 3.4e-4
        test = welch_test([0.1] * 10, [0.1] * 20)
        assert (test.p_value, test.difference, test.note) == (None, 0, "no variance, equal")
        noisy = [0.1 + 0.2, 0.3, 0.3]
        assert welch_test(noisy, [0.3] * 3).note == "no variance, equal"

    def test_different_constants_are_degenerate(self):
        test = welch_test([0.0] * 3, [1.0] * 3)
        assert test.p_value is None
        assert test.difference == -1
        assert "degenerate" in test.note

    def test_one_constant_sample_is_tested(self):
        test = welch_test([0.1] * 5, [1.0, 2.0, 3.0])
        assert test.degrees_of_freedom == pytest.approx(2)
        assert test.p_value == pytest.approx(stats.ttest_1samp([1.0, 2.0, 3.0], 0.1).pvalue)

    @pytest.mark.parametrize("samples", [([1.0], [2.0, 3.0]), ([1.0, 2.0], [3.0]), ([1.0], [2.0])])
    def test_one_seed_is_not_tested(self, samples):
        test = welch_test(*samples)
        assert test.p_value is None
        assert test.note == "one seed: no test"
        assert math.isfinite(test.difference)

    def test_not_a_number(self):
        test = welch_test([1.0, math.nan], [1.0, 2.0])
        assert test.p_value is None
        assert "not a finite score" in test.note
        assert welch_test([], [1.0]).note == "no seed"


class TestBootstrap:
    def test_the_interval_contains_the_difference_and_repeats(self):
        first, second = [1.0, 4.0, 2.0, 6.0], [0.0, 1.0, 2.0]
        interval = bootstrap_difference(first, second, n_bootstrap=500)
        assert interval.low < np.mean(first) - np.mean(second) < interval.high
        assert bootstrap_difference(first, second, n_bootstrap=500) == interval
        assert bootstrap_difference(first, second, n_bootstrap=500, seed=1) != interval

    def test_a_higher_level_is_wider(self):
        first, second = [1.0, 4.0, 2.0, 6.0], [0.0, 1.0, 2.0]
        narrow, wide = (bootstrap_difference(first, second, level=level) for level in (0.5, 0.99))
        assert wide.low < narrow.low < narrow.high < wide.high

    def test_one_seed_has_no_interval(self):
        assert bootstrap_difference([1.0], [1.0, 2.0]).note == "one seed: no interval"

    def test_no_width_is_said(self):
        interval = bootstrap_difference([1.0] * 3, [0.0] * 3)
        assert (interval.low, interval.high) == (1, 1)
        assert "no width" in interval.note

    def test_not_a_number(self):
        assert bootstrap_difference([1.0, math.inf], [1.0, 2.0]).low is None

    def test_one_resample_is_an_error(self):
        with pytest.raises(ConfigError, match="n_bootstrap must be at least 2; got 1"):
            bootstrap_difference([1.0, 2.0], [1.0, 2.0], n_bootstrap=1)


class TestHolm:
    def test_by_hand(self):
        # sorted: .005·4, .01·3, .03·2, .04·1, then made monotone
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])

    def test_comparisons_without_a_test_do_not_count(self):
        assert holm([0.02, None, 0.03, math.nan]) == [pytest.approx(0.04), None, pytest.approx(0.04), None]

    def test_never_above_one(self):
        assert holm([0.9, 0.8]) == [1, 1]
        assert holm([]) == []

    def test_not_a_probability(self):
        with pytest.raises(ConfigError, match=r"\[0, 1\]; got 1.5"):
            holm([1.5])


class TestCritic:
    def test_by_hand(self):
        realised = np.array([[1.0, 10.0], [3.0, 20.0], [math.nan, 30.0]])
        predicted = np.array([[2.0, 10.0], [4.0, 20.0], [0.0, 30.0]])
        quality = critic_quality(predicted, realised)
        np.testing.assert_allclose(quality.rmse, [1, 0])
        np.testing.assert_allclose(quality.relative_rmse, [1, 0])
        np.testing.assert_allclose(quality.explained_variance, [1, 1])  # a constant error explains everything
        assert quality.states.tolist() == [2, 3]

    def test_predicting_the_mean_explains_nothing(self):
        realised = np.arange(5.0)[:, None]
        quality = critic_quality(np.full((5, 1), 2.0), realised)
        assert quality.explained_variance[0] == pytest.approx(0)
        assert quality.relative_rmse[0] == pytest.approx(1)

    def test_constant_or_unknown_returns(self):
        quality = critic_quality(np.ones((3, 2)), np.array([[2.0, math.nan]] * 3))
        assert quality.rmse[0] == 1
        assert np.isnan(quality.explained_variance).all()
        assert quality.states.tolist() == [3, 0]

    def test_shapes(self):
        with pytest.raises(ShapeError, match=r"\(N, Z\)"):
            critic_quality(np.zeros((3, 2)), np.zeros((3, 1)))
