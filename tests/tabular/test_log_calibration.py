"""Values from logs: which episodes are held out, and how predictions are compared with what followed."""

import numpy as np
import pytest

import tddelta as tdd
from logs_data import discounts, episodes_of, random_log
from tddelta.tabular import evaluate_log

SCALES = tdd.TimeScales.from_gammas([0.0, 0.5, 0.9], lam=0.8)


def test_calibration_by_hand():
    """Trained on a → b with rewards 0 and 1, tested on an episode with rewards 0 and 3."""
    log = episodes_of("a0 b1", "a0 b3")
    found = evaluate_log(log, discounts(0.5), held_out=0.5, method="td0").calibration
    np.testing.assert_allclose(found.predicted[:, 0], [0.5, 1])
    np.testing.assert_allclose(found.realised[:, 0], [1.5, 3])
    assert (found.bias[0], found.correlation[0]) == pytest.approx((-1.5, 1))
    assert found.rmse[0] == pytest.approx(np.sqrt((1 + 4) / 2))
    assert found.explained_variance[0] == pytest.approx(1 - 0.25 / 0.5625)
    assert (found.episodes, found.steps, found.unseen) == (1, 2, 0)
    assert found.count.tolist() == [2] and found.too_near.tolist() == [0]


def test_the_error_of_the_bias_counts_episodes_not_steps():
    """Errors −1 and −1 in one episode, 3 in the other: sums around the mean 1/3 are −8/3 and 8/3."""
    log = episodes_of("a0 b0", "a0 b0", "a1 b1", "a-3")
    found = evaluate_log(log, discounts(0.0), held_out=0.5, method="td0").calibration
    assert found.bias[0] == pytest.approx(1 / 3)
    assert found.bias_error[0] == pytest.approx(np.sqrt(2 * 2 * (8 / 3) ** 2) / 3)
    single = evaluate_log(log, discounts(0.0), held_out=0.25, method="td0").calibration
    assert single.bias[0] == pytest.approx(3 + 0.5 * 1 / 1.5) and np.isnan(single.bias_error[0])


def test_returns_near_a_cut_are_not_known():
    """With γ = .5 the weight 1 % is passed after seven steps; with .1 after two; γ = 0 needs the step alone."""
    log = {
        "episode": [0] * 10 + [1] * 10,
        "state": [0] * 20,
        "next_state": [0] * 20,
        "reward": [1.0] * 20,
        "terminated": [False] * 20,
        "truncated": ([False] * 9 + [True]) * 2,
    }
    found = evaluate_log(log, discounts(0.0, 0.1, 0.5, 0.99), held_out=0.5, method="td0", tolerance=0.011).calibration
    assert found.count.tolist() == [10, 9, 4, 0] and found.too_near.tolist() == [0, 1, 6, 10]
    np.testing.assert_allclose(found.realised[:4, 2], [2 - 0.5**k for k in (9, 8, 7, 6)])
    assert np.isnan(found.realised[4:, 2]).all() and np.isnan(found.predicted[4:, 2]).all()
    assert np.isnan(found.bias[3]) and np.isnan(found.rmse[3])
    assert np.isnan(found.explained_variance[0]), "all realised returns are 1"
    longer = log | {"time": np.tile(np.arange(0, 20, 2), 2), "next_time": np.tile(np.arange(2, 22, 2), 2)}
    found = evaluate_log(longer, discounts(0.5), held_out=0.5, method="td0", time="time").calibration
    assert found.count.tolist() == [7], "two units of time a step"
    np.testing.assert_allclose(found.realised[:7, 0], [(1 - 0.25**k) / 0.75 for k in range(10, 3, -1)])


def test_states_that_training_never_saw_are_counted():
    log = episodes_of("a0 b1", "a0 c5 b3")
    found = evaluate_log(log, discounts(0.5, 0.9), held_out=0.5, method="td0").calibration
    assert found.unseen == 1 and found.count.tolist() == [2, 2] and found.too_near.tolist() == [0, 0]


@pytest.mark.parametrize(("share", "held"), [(0.2, 2), (0.29, 2), (0.3, 3), (0.01, 1), (0.99, 9), (0, 0)])
def test_the_last_episodes_are_held_out(share, held):
    log = episodes_of(*[f"a{number}" for number in range(10)])
    result = evaluate_log(log, discounts(0.5), held_out=share, method="td0")
    assert (result.episodes, result.held_out, result.steps) == (10, held, 10 - held)
    assert result.values.item() == pytest.approx(np.mean(np.arange(10 - held)))


def test_time_stamps_give_the_order_of_episodes():
    log = episodes_of("a0", "a1", "a2", "a3") | {"time": [3.0, 1.0, 9.0, 1.0]}
    result = evaluate_log(log, discounts(0.5), held_out=0.5, method="td0", time="time")
    assert result.values.item() == pytest.approx((1 + 3) / 2), "those that begin first, in the order of the log"
    np.testing.assert_allclose(result.calibration.realised[:, 0], [0, 2])


def test_groups_keep_equal_predictions_together():
    log = episodes_of(*["a0 b1"] * 4, "a0 b3 a1 b1", "a0 b1")
    found = evaluate_log(log, discounts(0.0), held_out=0.34, method="td0").calibration
    predicted, realised, counts = found.bins(3)
    np.testing.assert_allclose(predicted[0, :2], [0, 1])
    np.testing.assert_allclose(realised[0, :2], [1 / 3, 5 / 3])
    assert counts.tolist() == [[3, 3, 0]] and np.isnan(predicted[0, 2])
    many = evaluate_log(random_log(7, 80, 30), SCALES, method="td0").calibration
    predicted, realised, counts = many.bins(4)
    assert (counts.sum(axis=1) == many.count).all() and (np.diff(predicted, axis=1) > 0).all()
    np.testing.assert_allclose((realised * counts).sum(axis=1), np.nansum(many.realised, axis=0), atol=1e-9)
