import numpy as np
import pytest
from scipy import stats

from tddelta.errors import ConfigError, ShapeError
from tddelta.report.run_set import find_reference
from tddelta.report.statistics import (
    aggregate,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)


class TestInterquartileMean:
    def test_by_hand(self):
        assert interquartile_mean([[0.0, 1.0, 2.0, 30.0]]) == 1.5
        assert interquartile_mean([[0.0, 1.0], [2.0, 30.0]]) == 1.5

    @pytest.mark.parametrize("seeds", [1, 2, 3, 5, 10])
    @pytest.mark.parametrize("environments", [1, 2, 7])
    def test_equals_the_trimmed_mean(self, seeds, environments):
        scores = np.random.default_rng(0).normal(size=(seeds, environments))
        expected = stats.trim_mean(scores, 0.25, axis=None)
        assert interquartile_mean(list(scores.T)) == pytest.approx(expected, abs=1e-12)

    def test_environments_weigh_the_same_whatever_their_seeds(self):
        few, many = [[0.0, 1.0], [5.0, 6.0, 7.0]], [[0.0, 1.0] * 3, [5.0, 6.0, 7.0] * 2]
        assert aggregate(few, "mean").value == aggregate(many, "mean").value == 3.25
        assert "every environment has the same weight" in aggregate(few).note
        # each score of the first environment has weight 1/4, of the second 1/6; 1/5 is cut at either end
        assert interquartile_mean(few) == pytest.approx((0 * 0.05 + 1 * 0.25 + 5 / 6 + 6 * (0.3 - 1 / 6)) / 0.6)

    def test_three_runs_lose_none(self):
        estimate = aggregate([[0.0, 1.0, 8.0]])
        assert estimate.value == 3
        assert estimate.note == "an interquartile mean of 3 runs trims nothing: it is their mean"


class TestIntervals:
    scores = ([0.1, 0.5, 0.9, 0.2, 0.4], [2.0, 2.5, 2.2, 2.9, 2.1])

    @pytest.mark.parametrize("statistic", ["interquartile_mean", "mean", "median", "optimality_gap"])
    def test_low_below_value_below_high(self, statistic):
        estimate = aggregate(self.scores, statistic, n_bootstrap=200)
        assert estimate.interval.low < estimate.value < estimate.interval.high
        assert aggregate(self.scores, statistic, n_bootstrap=200) == estimate

    def test_stratified_by_environment(self):
        # environments differ by 100 and hardly vary: resampling them together would make a wide interval
        estimate = aggregate([[0.0, 0.1, 0.2], [100.0, 100.1, 100.2]], "mean", n_bootstrap=500)
        assert estimate.interval.high - estimate.interval.low < 0.2

    def test_one_seed_has_no_interval(self):
        estimate = aggregate([[1.0, 2.0], [3.0]])
        assert estimate.interval.low is None
        assert estimate.interval.note == "an environment has one seed: no interval"

    def test_no_variance_is_said(self):
        assert "no width" in aggregate([[1.0, 1.0]]).interval.note

    def test_by_hand(self):
        assert aggregate([[0.0, 2.0], [4.0, 4.0], [9.0, 9.0]], "median").value == 4
        assert aggregate([[0.5, 2.0], [0.25, 1.0]], "optimality_gap").value == pytest.approx((0.5 + 0.75) / 4)

    def test_wrong_arguments(self):
        with pytest.raises(ConfigError, match="n_bootstrap"):
            aggregate(self.scores, n_bootstrap=1)
        with pytest.raises(ConfigError, match="statistic must be one of"):
            aggregate(self.scores, "mode")
        with pytest.raises(ShapeError, match="one array per environment"):
            aggregate(list(np.zeros((2, 3, 4))))
        with pytest.raises(ShapeError, match=r"list\(matrix.T\)"):
            aggregate(np.zeros((2, 3)))
        with pytest.raises(ShapeError, match="one array per environment"):
            aggregate([])
        with pytest.raises(ShapeError, match="finite"):
            aggregate([[1.0, np.nan]])


class TestProfile:
    def test_by_hand(self):
        profile = performance_profile([[0.0, 1.0], [2.0, 3.0]], [-1.0, 0.0, 1.5, 3.0], n_bootstrap=100)
        assert profile.fractions.tolist() == [1, 0.75, 0.5, 0]
        assert (profile.low <= profile.fractions).all()
        assert (profile.fractions <= profile.high).all()
        assert (profile.low[1], profile.high[1]) == (0.5, 1)

    def test_one_seed_has_no_band(self):
        profile = performance_profile([[0.0]], [0.0])
        assert np.isnan(profile.low).all()
        assert "one seed" in profile.note


class TestImprovement:
    def test_by_hand(self):
        # first environment: 3 of 4 pairs won; second: one tie, one win, two losses
        estimate = probability_of_improvement([[1.0, 3.0], [1.0, 2.0]], [[0.0, 2.0], [1.0, 3.0]], n_bootstrap=200)
        assert estimate.value == pytest.approx((0.75 + 0.375) / 2)
        assert estimate.interval.low < estimate.value < estimate.interval.high

    def test_is_the_mann_whitney_statistic(self):
        rng = np.random.default_rng(1)
        first, second = rng.integers(0, 5, 9).astype(float), rng.integers(0, 5, 7).astype(float)
        expected = stats.mannwhitneyu(first, second, alternative="greater").statistic / 63
        assert probability_of_improvement([first], [second]).value == pytest.approx(expected)

    def test_the_two_directions_sum_to_one(self):
        first, second = [[1.0, 2.0, 3.0]], [[2.0, 2.0, 1.0]]
        ours, theirs = probability_of_improvement(first, second), probability_of_improvement(second, first)
        assert ours.value + theirs.value == pytest.approx(1)
        assert probability_of_improvement(first, first).value == 0.5

    def test_different_environments(self):
        with pytest.raises(ShapeError, match="same environments; got 1 and 2"):
            probability_of_improvement([[1.0]], [[1.0], [2.0]])

    def test_the_same_in_every_resample(self):
        assert "every resample" in probability_of_improvement([[5.0, 6.0]], [[1.0, 2.0]]).interval.note


def test_rliable_gives_the_same():
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
        assert estimate.value == pytest.approx(value, abs=1e-8)
        assert (estimate.interval.low, estimate.interval.high) == pytest.approx((low, high), abs=0.015)
    chance = probability_of_improvement(first, second)
    assert chance.value == pytest.approx(0.5555555555555556)
    assert (chance.interval.low, chance.interval.high) == pytest.approx((0.375, 0.729), abs=0.02)
    profile = performance_profile(first, [0.0, 0.5, 1.0, 1.5, 2.0])
    assert profile.fractions == pytest.approx([0.91666667, 0.875, 0.375, 0.125, 0.08333333])
    assert profile.low == pytest.approx([0.792, 0.75, 0.208, 0, 0], abs=0.05)
    assert profile.high == pytest.approx([1, 1, 0.542, 0.25, 0.208], abs=0.05)


class TestReferences:
    def test_normalised_scores(self):
        reference = find_reference("Breakout-MinAtar")
        assert reference.suite == "MinAtar"
        assert reference.normalise([reference.random, reference.reference]).tolist() == [0, 1]
        assert "gymnax 1.0.1" in reference.source

    @pytest.mark.parametrize(
        ("name", "random", "human"),
        [
            ("Alien", 227.8, 7127.7),
            ("Amidar", 5.8, 1719.5),
            ("BankHeist", 14.2, 753.1),
            ("Frostbite", 65.2, 4334.7),
            ("Hero", 1027.0, 30826.4),
            ("MsPacman", 307.3, 6951.6),
            ("Qbert", 163.9, 13455.0),
            ("WizardOfWor", 563.5, 4756.5),
            ("Zaxxon", 32.5, 9173.3),
        ],
    )
    def test_atari_under_all_its_names(self, name, random, human):
        for environment in (name, f"gym:ALE/{name}-v5", f"{name}NoFrameskip-v4", f"gym:{name}NoFrameskip-v4"):
            reference = find_reference(environment)
            assert (reference.suite, reference.random, reference.reference) == ("Atari", random, human)

    def test_no_entry(self):
        assert find_reference("CartPole-v1") is None
        assert find_reference("Seaquest-MinAtar") is None
        assert find_reference("Breakout-MinAtar", parameters={"ramping": False}) is None

    def test_own_scores_come_first(self):
        reference = find_reference("CartPole-v1", {"CartPole-v1": (20.0, 500.0)})
        assert reference.normalise([20.0, 260.0]).tolist() == [0, 0.5]
        with pytest.raises(ConfigError, match="two different scores"):
            find_reference("CartPole-v1", {"CartPole-v1": (20.0, 20.0)})
