"""Trajectories: their bytes, their ends, and their frequencies."""

import numpy as np
import pytest

from tddelta.errors import ConfigError
from tddelta.tabular import FiniteMDP, sample

LAKE_LIKE = FiniteMDP.random(6, 3, 3, 3, ends=2)


def test_a_seed_gives_the_same_bytes_alone_among_others_and_for_longer(monkeypatch):
    together = sample(LAKE_LIKE, 200, [5, 0, 9], time_limit=7)
    alone = sample(LAKE_LIKE, 50, [9], time_limit=7)
    monkeypatch.setattr("tddelta.tabular.sampling._BLOCK", 1)  # every seed a block of its own
    apart = sample(LAKE_LIKE, 200, (5, 0, 9), time_limit=7)
    for one, two, three in zip(together, alone, apart, strict=True):
        np.testing.assert_array_equal(one[2, :50], two[0])
        np.testing.assert_array_equal(one, three)
    assert not np.array_equal(together.states[0], together.states[1])


def test_few_seeds_and_many_give_the_same_bytes(monkeypatch):
    monkeypatch.setattr("tddelta.tabular.sampling._PART", 30)
    plain, start = FiniteMDP.random(9, 3, 4, 3, ends=1), [0.4, 0, 0.3, 0, 0, 0.3, 0, 0, 0]
    process = FiniteMDP(plain.transition, plain.reward, terminal=plain.terminal, start=start)
    for limit in (None, 7):
        many = sample(process, 200, 20, time_limit=limit)
        for seed in range(20):
            for one, other in zip(many, sample(process, 200, [seed], time_limit=limit), strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one[seed], other[0])


def test_steps_follow_the_process():
    stream = sample(LAKE_LIKE, 2000, 3, time_limit=5)
    assert stream.states.shape == (3, 2000)
    states, actions, after = stream.states, stream.actions, stream.next_states
    assert (LAKE_LIKE.transition[states, actions, after] > 0).all()
    np.testing.assert_array_equal(stream.rewards, LAKE_LIKE.reward[states, actions, after])
    np.testing.assert_array_equal(stream.terminated, LAKE_LIKE.terminal[after])
    ends = stream.terminated | stream.truncated
    assert not (stream.terminated & stream.truncated).any() and stream.truncated.any() and stream.terminated.any()
    np.testing.assert_array_equal(states[:, 1:][~ends[:, :-1]], after[:, :-1][~ends[:, :-1]])
    assert (states[:, 1:][ends[:, :-1]] == 0).all() and (states[:, 0] == 0).all()
    for row in range(3):  # an episode is truncated after five steps and no sooner
        length = 0
        for t in range(2000):
            length += 1
            assert stream.truncated[row, t] == (length == 5 and not stream.terminated[row, t])
            length = 0 if ends[row, t] else length


def test_frequencies():
    mdp = FiniteMDP(
        LAKE_LIKE.transition,
        LAKE_LIKE.reward,
        terminal=LAKE_LIKE.terminal,
        policy=[[0.7, 0.2, 0.1]] * 6,
        start=[0.5, 0, 0.3, 0.2, 0, 0],
    )
    stream = sample(mdp, 4000, 100)
    counts = np.zeros((6, 3, 6))
    np.add.at(counts, (stream.states, stream.actions, stream.next_states), 1)
    visits = counts.sum((1, 2))
    for s in np.flatnonzero(~mdp.terminal):
        share = counts[s].sum(1) / visits[s]
        np.testing.assert_allclose(share, mdp.policy[s], atol=5 / np.sqrt(visits[s]))
        for a in range(3):
            n = counts[s, a].sum()
            np.testing.assert_allclose(counts[s, a] / n, mdp.transition[s, a], atol=3 / np.sqrt(n))
    first = stream.states[:, 1:][stream.terminated[:, :-1]]
    np.testing.assert_allclose(np.bincount(first, minlength=6) / len(first), mdp.start, atol=3 / np.sqrt(len(first)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ring", 10), "mdp must be a FiniteMDP; got str: FiniteMDP"),
        ((LAKE_LIKE, 0), "steps must be a whole number of at least 1; got 0"),
        ((LAKE_LIKE, 5, [0.5]), r"seeds must be whole numbers >= 0, at least one; got \[0.5\]: pass a list of them"),
        ((LAKE_LIKE, 5, True), "got True"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ConfigError, match=message):
        sample(*arguments)
    with pytest.raises(ConfigError, match="time_limit must be a whole number of at least 1; got 0"):
        sample(LAKE_LIKE, 5, 1, time_limit=0)
