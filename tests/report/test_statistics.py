import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from tddelta.errors import ConfigError, ShapeError
from tddelta.report.run_set import find_reference
from tddelta.report.statistics import (
    aggregate,
    asymptotic_score,
    average_score,
    bootstrap_difference,
    critic_quality,
    curve_values,
    holm,
    interquartile_mean,
    learning_curve,
    learning_grid,
    performance_profile,
    probability_of_improvement,
    summarise,
    t_interval,
    welch_test,
)

SCORES = ([0.1, 0.5, 0.9, 0.2, 0.4], [2.0, 2.5, 2.2, 2.9, 2.1])


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (asymptotic_score, ([1.0], 0), ConfigError, "episodes must be at least 1; got 0"),
        (average_score, ([[1.0], [2.0]],), ShapeError, "must have one axis"),
        (t_interval, ([1.0, 2.0], 95.0), ConfigError, "level must lie between 0 and 1; got 95"),
        (holm, ([1.5],), ConfigError, r"\[0, 1\]; got 1.5"),
        (critic_quality, (np.zeros((3, 2)), np.zeros((3, 1))), ShapeError, r"\(N, Z\)"),
        (learning_curve, ([[1]], [[1.0]], [2, 1]), ConfigError, "grid must be strictly increasing"),
        (learning_curve, ([[1]], [], [1]), ShapeError, "one array per seed"),
        (partial(learning_curve, level=1.0), ([[1]], [[1.0]], [1]), ConfigError, "level must lie between 0 and 1"),
        (curve_values, ([1, 2], [1.0], [1]), ShapeError, "one entry per episode"),
        (aggregate, (SCORES, "mode"), ConfigError, "statistic must be one of"),
        (aggregate, (list(np.zeros((2, 3, 4))),), ShapeError, "one array per environment"),
        (aggregate, (np.zeros((2, 3)),), ShapeError, r"list\(matrix.T\)"),
        (aggregate, ([],), ShapeError, "one array per environment"),
        (aggregate, ([[1.0, np.nan]],), ShapeError, "finite"),
        (probability_of_improvement, ([[1.0]], [[1.0], [2.0]]), ShapeError, "same environments; got 1 and 2"),
    ],
)
def test_wrong_arguments(function, arguments, error, text):
    with pytest.raises(error, match=text):
        function(*arguments)


@pytest.mark.parametrize("function", [bootstrap_difference, aggregate, performance_profile, probability_of_improvement])
def test_a_bootstrap_with_settings_that_mean_nothing(function):
    given = {bootstrap_difference: ([1.0, 2.0],) * 2, aggregate: (SCORES,)}.get(function, (SCORES,) * 2)
    with pytest.raises(ConfigError, match="n_bootstrap must be at least 2; got 1"):
        function(*given, n_bootstrap=1)
    with pytest.raises(ConfigError, match="level must lie between 0 and 1; got 1"):
        function(*given, level=1.0)


class TestScores:
    def test_only_the_last_episodes_count(self):
        returns = [0.0] * 50 + [1.0] * 60 + [3.0] * 40
        assert asymptotic_score(returns) == pytest.approx((60 * 1 + 40 * 3) / 100)
        assert average_score(returns) == pytest.approx((60 + 120) / 150)
        assert asymptotic_score(returns, episodes=40) == 3
        assert asymptotic_score([1.0, 2.0]) == 1.5  # fewer than asked for all count
        assert math.isnan(asymptotic_score([])) and math.isnan(average_score([]))

    def test_standard_error_and_t_interval(self):
        # field case B47
        scores = [1.0, 2.0, 3.0, 4.0, 5.0]
        assert summarise(scores).standard_error == pytest.approx(0.7071, abs=5e-5)
        interval = t_interval(scores)
        assert (interval.high - interval.low) / 2 == pytest.approx(1.9632, abs=5e-5)

    @pytest.mark.parametrize(
        ("scores", "note"),
        [
            ([4.0], "one seed: no standard error"),
            ([1.0, math.nan, 3.0], "not a finite score: 1 of 3 seeds"),  # and not dropped
            ([], "no seed"),
        ],
    )
    def test_what_has_no_interval_says_why(self, scores, note):
        summary, interval = summarise(scores), t_interval(scores)
        assert (summary.standard_error, summary.note) == (None, note)
        assert math.isnan(summary.mean) is (scores != [4.0])
        assert (interval.low, interval.high, interval.note) == (None, None, note.replace("standard error", "interval"))


class TestWelch:
    def test_numbers_worked_by_hand(self):
        # field case B45
        test = welch_test([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
        assert test.difference == -2
        assert test.statistic == pytest.approx(-1.5492, abs=5e-5)
        assert test.degrees_of_freedom == pytest.approx(2.9412, abs=5e-5)
        assert test.p_value == pytest.approx(0.2209, abs=5e-5)
        assert not test.note

    @pytest.mark.parametrize(
        ("samples", "difference", "note"),
        [
            # field case B45: a plain t-test of these equal numbers gives p = 3.4e-4
            (([0.1] * 10, [0.1] * 20), 0, "no variance, equal"),
            (([0.1 + 0.2, 0.3, 0.3], [0.3] * 3), 0, "no variance, equal"),
            (([0.0] * 3, [1.0] * 3), -1, "no variance within either agent: the test is degenerate"),
            (([1.0], [2.0, 3.0]), -1.5, "one seed: no test"),
            (([1.0, 2.0], [3.0]), -1.5, "one seed: no test"),
            (([1.0], [2.0]), -1, "one seed: no test"),
            (([1.0, math.nan], [1.0, 2.0]), None, "not a finite score: 1 of 2 seeds"),
            (([], [1.0]), None, "no seed"),
        ],
    )
    def test_where_a_test_makes_no_sense_there_is_no_p(self, samples, difference, note):
        test = welch_test(*samples)
        assert (test.p_value, test.note) == (None, note)
        assert test.difference == difference if difference is not None else math.isnan(test.difference)

    def test_one_constant_sample_is_tested(self):
        test, other = (welch_test(*pair) for pair in (([0.1] * 5, [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [0.1] * 5)))
        assert test.degrees_of_freedom == other.degrees_of_freedom == pytest.approx(2)
        assert test.p_value == other.p_value == pytest.approx(stats.ttest_1samp([1.0, 2.0, 3.0], 0.1).pvalue)
        assert test.statistic == -other.statistic < 0

    def test_the_interval_is_that_of_scipy(self):
        first, second = [1.0, 2.0, 4.0, 3.0], [0.5, 0.6, 0.4]
        known = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
        assert welch_test(first, second).interval == pytest.approx((known.low, known.high))
        low, high = welch_test(first, [0.5] * 3).interval  # that of one sample against a number
        alone = stats.ttest_1samp(first, 0.5).confidence_interval(0.95)
        assert (low, high) == pytest.approx((alone.low - 0.5, alone.high - 0.5))
        assert welch_test([1.0], second).interval is welch_test([1.0, 1.0], [2.0, 2.0]).interval is None


class TestBootstrap:
    samples = ([1.0, 4.0, 2.0, 6.0], [0.0, 1.0, 2.0])

    def test_the_interval_contains_the_difference_and_repeats(self):
        interval = bootstrap_difference(*self.samples, n_bootstrap=500)
        assert interval.low < np.mean(self.samples[0]) - np.mean(self.samples[1]) < interval.high
        assert bootstrap_difference(*self.samples, n_bootstrap=500) == interval
        assert bootstrap_difference(*self.samples, n_bootstrap=500, seed=1) != interval

    def test_a_higher_level_is_wider(self):
        narrow, wide = (bootstrap_difference(*self.samples, level=level) for level in (0.5, 0.99))
        assert wide.low < narrow.low < narrow.high < wide.high

    def test_without_a_second_seed_or_variance(self):
        assert bootstrap_difference([1.0], [1.0, 2.0]).note == "one seed: no interval"
        assert bootstrap_difference([1.0, math.inf], [1.0, 2.0]).low is None
        interval = bootstrap_difference([1.0] * 3, [0.0] * 3)
        assert (interval.low, interval.high) == (1, 1)
        assert "no width" in interval.note


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # sorted: .005·4, .01·3, .03·2, .04·1, made monotone
        ([0.02, None, 0.03, math.nan], [0.04, None, 0.04, None]),  # comparisons without a test do not count
        ([0.9, 0.8], [1, 1]),
        ([], []),
    ],
)
def test_holm_by_hand(p_values, corrected):
    assert holm(p_values) == [None if p is None else pytest.approx(p) for p in corrected]


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
        quality = critic_quality(np.full((5, 1), 2.0), np.arange(5.0)[:, None])
        assert quality.explained_variance[0] == pytest.approx(0)
        assert quality.relative_rmse[0] == pytest.approx(1)

    def test_constant_or_unknown_returns(self):
        quality = critic_quality(np.ones((3, 2)), np.array([[2.0, math.nan]] * 3))
        assert quality.rmse[0] == 1
        assert np.isnan(quality.explained_variance).all()
        assert quality.states.tolist() == [3, 0]


class TestCurves:
    def test_runs_of_different_length(self):
        # field case B47: run A at 0, 100, 200; run B at 0, 100
        curve = learning_curve([[0, 100, 200], [0, 100]], [[0.0, 10.0, 20.0], [0.0, 20.0]], [0, 100, 200])
        assert curve.mean.tolist() == [0, 15, 20]
        assert curve.n.tolist() == [2, 2, 1]
        assert np.isnan(curve.low[2])  # one seed has no interval
        assert curve.low[1] < 15 < curve.high[1]

    def test_the_band_is_the_t_interval_and_says_so(self):
        # field case B47: half-width 1.9632 for 1…5
        ends, returns = [[10]] * 5, [[float(score)] for score in range(1, 6)]
        curve = learning_curve(ends, returns, [10])
        assert curve.high[0] - 3 == pytest.approx(1.9632, abs=5e-5)
        assert curve.label == "mean of 5 seeds, band: 95 % t interval"
        assert learning_curve(ends, returns, [10], level=0.5).label == "mean of 5 seeds, band: 50 % t interval"

    @pytest.mark.parametrize(
        ("ends", "returns", "grid", "values"),
        [
            ([1, 10, 11, 20, 21], [1.0, 3.0, 10.0, 20.0, 99.0], [10, 20], [2, 15]),  # 10 is in the first bin
            ([10, 40], [1.0, 4.0], [10, 20, 30, 40, 50], [1, 2, 3, 4, np.nan]),  # on the line between neighbours
            ([30], [5.0], [10, 20, 30, 40], [np.nan, np.nan, 5, np.nan]),  # nothing before the first, or after
            ([], [], [10, 20], [np.nan, np.nan]),
        ],
    )
    def test_a_point_is_the_mean_of_its_bin(self, ends, returns, grid, values):
        np.testing.assert_array_equal(curve_values(ends, returns, grid), values)

    def test_a_seed_without_episodes_does_not_count(self):
        curve = learning_curve([[], [1, 2]], [[], [3.0, 4.0]], [1, 2])
        assert (curve.n.tolist(), curve.mean.tolist()) == ([1, 1], [3, 4])
        assert np.isnan(curve.low).all() and curve.label == "one seed, no band"

    def test_the_grid_covers_the_longest_run_and_adapts_to_few_episodes(self):
        grid = learning_grid([np.arange(1, 1001), np.arange(1, 501)])
        assert (len(grid), grid[-1]) == (60, 1000)
        assert len(learning_grid([np.arange(10, 110, 10)])) == 2
        assert len(learning_grid([[], []])) == 0
        assert len(learning_grid([[5]])) == 2


class TestAggregates:
    @pytest.mark.parametrize("seeds", [1, 2, 3, 5, 10])
    @pytest.mark.parametrize("environments", [1, 2, 7])
    def test_the_interquartile_mean_is_the_trimmed_mean(self, seeds, environments):
        scores = np.random.default_rng(0).normal(size=(seeds, environments))
        expected = stats.trim_mean(scores, 0.25, axis=None)
        assert interquartile_mean(list(scores.T)) == pytest.approx(expected, abs=1e-12)

    def test_by_hand(self):
        assert interquartile_mean([[0.0, 1.0, 2.0, 30.0]]) == 1.5
        assert aggregate([[0.0, 2.0], [4.0, 4.0], [9.0, 9.0]], "median").value == 4
        assert aggregate([[0.5, 2.0], [0.25, 1.0]], "optimality_gap").value == pytest.approx((0.5 + 0.75) / 4)
        three = aggregate([[0.0, 1.0, 8.0]])
        assert (three.value, three.note) == (3, "an interquartile mean of 3 runs trims nothing: it is their mean")

    def test_environments_weigh_the_same_whatever_their_seeds(self):
        few, many = [[0.0, 1.0], [5.0, 6.0, 7.0]], [[0.0, 1.0] * 3, [5.0, 6.0, 7.0] * 2]
        assert aggregate(few, "mean").value == aggregate(many, "mean").value == 3.25
        assert "every environment has the same weight" in aggregate(few).note
        # each score of the first environment has weight 1/4, of the second 1/6; 1/5 is cut at either end
        assert interquartile_mean(few) == pytest.approx((0 * 0.05 + 1 * 0.25 + 5 / 6 + 6 * (0.3 - 1 / 6)) / 0.6)

    def test_stratified_by_environment(self):
        # environments differ by 100 and hardly vary: resampling them together would make a wide interval
        estimate = aggregate([[0.0, 0.1, 0.2], [100.0, 100.1, 100.2]], "mean", n_bootstrap=500)
        assert estimate.interval.high - estimate.interval.low < 0.2

    def test_without_a_second_seed_or_variance(self):
        estimate = aggregate([[1.0, 2.0], [3.0]])
        assert estimate.interval.low is None
        assert estimate.interval.note == "an environment has one seed: no interval"
        assert "no width" in aggregate([[1.0, 1.0]]).interval.note

    def test_profiles_by_hand(self):
        profile = performance_profile([[0.0, 1.0], [2.0, 3.0]], [-1.0, 0.0, 1.5, 3.0], n_bootstrap=100)
        assert profile.mean.tolist() == [1, 0.75, 0.5, 0]
        assert (profile.low <= profile.mean).all()
        assert (profile.mean <= profile.high).all()
        assert (profile.low[1], profile.high[1]) == (0.5, 1)
        assert profile.label == "band: 95 % bootstrap"
        alone = performance_profile([[0.0]], [0.0])
        assert np.isnan(alone.low).all() and alone.label == "one seed: no band"

    def test_improvement_is_the_mann_whitney_statistic(self):
        rng = np.random.default_rng(1)
        first, second = rng.integers(0, 5, 9).astype(float), rng.integers(0, 5, 7).astype(float)
        expected = stats.mannwhitneyu(first, second, alternative="greater").statistic / 63
        assert probability_of_improvement([first], [second]).value == pytest.approx(expected)
        assert probability_of_improvement([second], [first]).value == pytest.approx(1 - expected)
        assert probability_of_improvement([first], [first]).value == 0.5
        assert "every resample" in probability_of_improvement([[5.0, 6.0]], [[1.0, 2.0]]).interval.note

    def test_rliable_gives_the_same(self):
        # rliable 1.2.0 with 20,000, 3,000 and 5,000 resamples on these matrices (seeds, environments)
        rng = np.random.default_rng(3)
        first, second = (list(rng.normal(centre, 0.5, (6, 4)).T) for centre in (1.0, 0.8))
        expected = {
            "interquartile_mean": (0.90831927, 0.776, 1.068),
            "median": (1.00081614, 0.755, 1.203),
            "mean": (0.97838294, 0.753, 1.213),
            "optimality_gap": (0.22083986, 0.109, 0.354),
        }
        for statistic, (value, low, high) in expected.items():
            estimate = aggregate(first, statistic, n_bootstrap=5000)
            assert aggregate(first, statistic, n_bootstrap=5000) == estimate
            assert estimate.value == pytest.approx(value, abs=1e-8)
            assert (estimate.interval.low, estimate.interval.high) == pytest.approx((low, high), abs=0.015)
        chance = probability_of_improvement(first, second)
        assert chance.value == pytest.approx(0.5555555555555556)
        assert (chance.interval.low, chance.interval.high) == pytest.approx((0.375, 0.729), abs=0.02)
        profile = performance_profile(first, [0.0, 0.5, 1.0, 1.5, 2.0])
        assert profile.mean == pytest.approx([0.91666667, 0.875, 0.375, 0.125, 0.08333333])
        assert profile.low == pytest.approx([0.792, 0.75, 0.208, 0, 0], abs=0.05)
        assert profile.high == pytest.approx([1, 1, 0.542, 0.25, 0.208], abs=0.05)


class TestReferences:
    def test_normalised_scores(self):
        reference = find_reference("Breakout-MinAtar")
        assert reference.suite == "MinAtar"
        assert reference.normalise([reference.random, reference.reference]).tolist() == [0, 1]
        assert "gymnax 1.0.1" in reference.source

    def test_atari_under_all_its_names(self):
        scores = {
            "Alien": (227.8, 7127.7),
            "Amidar": (5.8, 1719.5),
            "BankHeist": (14.2, 753.1),
            "Frostbite": (65.2, 4334.7),
            "Hero": (1027.0, 30826.4),
            "MsPacman": (307.3, 6951.6),
            "Qbert": (163.9, 13455.0),
            "WizardOfWor": (563.5, 4756.5),
            "Zaxxon": (32.5, 9173.3),
        }
        for name, pair in scores.items():
            for environment in (name, f"gym:ALE/{name}-v5", f"{name}NoFrameskip-v4", f"gym:{name}NoFrameskip-v4"):
                reference = find_reference(environment)
                assert (reference.suite, (reference.random, reference.reference)) == ("Atari", pair)

    def test_no_entry(self):
        assert find_reference("CartPole-v1") is None
        assert find_reference("Seaquest-MinAtar") is None
        assert find_reference("Breakout-MinAtar", parameters={"ramping": False}) is None

    def test_own_scores_come_first(self):
        reference = find_reference("CartPole-v1", {"CartPole-v1": (20.0, 500.0)})
        assert reference.normalise([20.0, 260.0]).tolist() == [0, 0.5]
        with pytest.raises(ConfigError, match="two different scores"):
            find_reference("CartPole-v1", {"CartPole-v1": (20.0, 20.0)})
