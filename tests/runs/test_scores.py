"""Scores of episodes, and the returns that a critic is compared with."""

import numpy as np

from tddelta.runs.recorder import realised_returns, summary


def test_returns_end_with_their_episode_and_are_unknown_where_too_much_is_missing() -> None:
    flags = {"terminated": [False, True, False, False, False], "truncated": [False, False, False, True, False]}
    found = realised_returns([1, 2, 3, 4, 5], [0.0, 0.005, 0.5], **flags)
    np.testing.assert_allclose(found[:2], np.array([[1, 1.01, 2], [2, 2, 2]]))
    np.testing.assert_array_equal(found[2:, 0], [3, 4, 5])
    np.testing.assert_allclose(found[2:, 1], [3.02, 4, 5])
    assert np.isnan(found[2:, 2]).all()


def test_streams_do_not_mix() -> None:
    rewards, ends = np.arange(8.0).reshape(4, 2), np.array([[0, 1], [1, 0], [0, 0], [1, 1]], bool)
    both = realised_returns(rewards, [0.5, 0.9], terminated=ends, truncated=np.zeros_like(ends))
    assert both.shape == (4, 2, 2)
    for place in range(2):
        flags = {"terminated": ends[:, place], "truncated": np.zeros(4, bool)}
        alone = realised_returns(rewards[:, place], [0.5, 0.9], **flags)
        np.testing.assert_allclose(both[:, place], alone, rtol=1e-12)


def test_a_summary_of_one_or_no_episode_has_no_spread() -> None:
    one = summary(np.array([3.0]), np.array([7]), mode="greedy", seed=1, unfinished=0)
    assert (one["return_mean"], one["return_standard_deviation"], one["length_mean"]) == (3.0, None, 7.0)
    none = summary(np.zeros(0), np.zeros(0, int), mode="sampled", seed=1, unfinished=2)
    assert none["return_mean"] is None and none["unfinished"] == 2 and none["returns"] == []
