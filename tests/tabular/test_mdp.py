"""Finite MDPs: their matrices, exact values, optimal values, and what is refused."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tddelta as tdd
from tddelta.errors import ConfigError, DataError, MissingExtra, ShapeError
from tddelta.tabular import FiniteMDP, one_hot

garnets = st.tuples(st.integers(1, 8), st.integers(1, 4), st.floats(0, 1), st.integers(0, 2**32 - 1), st.integers(0, 3))


def garnet(parameters):
    """A random process, with and without ends."""
    states, actions, share, seed, ends = parameters
    branching = 1 + int(share * (states - 1))
    return FiniteMDP.random(states, actions, branching, seed, ends=min(ends, states - 1))


# ---------------------------------------------------------------- golden values


def test_ring():
    ring = FiniteMDP.ring()
    np.testing.assert_allclose(ring.state_reward, [0, 0.95, -0.90, -0.05, 0], atol=1e-12)
    values = ring.exact_values([0.9375, 0.996])
    np.testing.assert_allclose(values[:, 0], [0.2228, 0.2384, -0.8115, 0.1421, 0.2082], atol=5e-5)
    np.testing.assert_allclose(values[:, 1], [0.2113, 0.2122, -0.7909, 0.1569, 0.2104], atol=5e-5)
    assert ring.states == 5 and ring.actions == 1 and not ring.terminal.any()
    np.testing.assert_array_equal(ring.start, [1, 0, 0, 0, 0])


def test_ring_reward_conventions():
    edges, left = FiniteMDP.ring("edges"), FiniteMDP.ring("left")
    np.testing.assert_allclose(edges.state_reward, [0, 0.95, -0.95, 0, 0], atol=1e-12)
    np.testing.assert_array_equal(left.state_reward, [0, 0, 1, -1, 0])
    # the reward of the state entered now is the reward of the state left one step later
    entered = FiniteMDP.ring().exact_values([0.9])
    np.testing.assert_allclose(left.exact_values([0.9]), left.state_reward[:, None] + 0.9 * entered, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_chain_closed_forms(length):
    gammas = np.array([0.0, 0.5, 0.9, 1.0])
    left = length - 1 - np.arange(length)[:, None]
    chain = FiniteMDP.chain(length, reward=3.0, step_reward=-1.0)
    # Σ_{i<left} γ^i steps, then the end
    steps = np.where(gammas < 1, (1 - gammas**left) / np.where(gammas < 1, 1 - gammas, 1), left)
    np.testing.assert_allclose(chain.exact_values(gammas)[:-1], 3 * gammas**left - steps, atol=1e-12)
    np.testing.assert_array_equal(chain.exact_values(gammas)[-1], 0)
    walk = FiniteMDP.chain(length, forward=0.5)
    np.testing.assert_allclose(
        walk.exact_values([1.0])[:length, 0], np.arange(1, length + 1) / (length + 1), atol=1e-12
    )
    both = FiniteMDP.chain(length, forward=0.5, left_reward=1.0)
    np.testing.assert_allclose(both.exact_values([1.0])[:length, 0], 1, atol=1e-12)
    assert walk.start[length // 2] == 1


def test_a_state_without_further_reward_is_worth_nothing_at_gamma_1():
    forever = FiniteMDP([[0, 1.0], [0, 1]], [[0, 5.0], [0, 0]])
    np.testing.assert_allclose(forever.exact_values([0.5, 1.0]), [[5, 5], [0, 0]], rtol=1e-12)


# ---------------------------------------------------------------- properties


@given(garnets, st.floats(0, 0.99))
@settings(deadline=None, max_examples=60)
def test_rows_sum_to_one_and_values_solve_the_bellman_equation(parameters, gamma):
    mdp = garnet(parameters)
    np.testing.assert_allclose(mdp.transition.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(mdp.policy.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(mdp.state_transition.sum(-1), ~mdp.terminal, atol=1e-12)
    value = mdp.exact_values([gamma])[:, 0]
    # literally, state by state
    for s in range(mdp.states):
        right = 0.0
        for a in range(mdp.actions):
            for t in range(mdp.states):
                right += mdp.policy[s, a] * mdp.transition[s, a, t] * (mdp.reward[s, a, t] + gamma * value[t])
        assert value[s] == pytest.approx(0 if mdp.terminal[s] else right, abs=1e-9)


@given(garnets, st.floats(0, 0.95))
@settings(deadline=None, max_examples=40)
def test_optimal_action_values_are_those_of_value_iteration(parameters, gamma):
    mdp = garnet(parameters)
    table = np.zeros((mdp.states, mdp.actions))
    for _ in range(700):
        after = np.where(mdp.terminal, 0.0, table.max(axis=1))
        table = (mdp.transition * (mdp.reward + gamma * after)).sum(-1)
    np.testing.assert_allclose(mdp.optimal_action_values(gamma), np.where(mdp.terminal[:, None], 0, table), atol=1e-8)


def test_undiscounted_control_keeps_to_policies_that_end():
    """Waiting costs nothing and is as good as walking, so a greedy choice between them may never end."""
    stay_or_go = np.zeros((3, 2, 3))
    stay_or_go[:2, 0] = np.eye(3)[:2]
    stay_or_go[[0, 1], 1, [1, 2]] = 1
    mdp = FiniteMDP(stay_or_go, [0.0, 0, 1], terminal=[False, False, True])
    np.testing.assert_allclose(mdp.optimal_action_values(1.0), [[1, 1], [1, 1], [0, 0]], rtol=1e-12)


def test_optimal_values_close_to_gamma_1_end():
    mdp = FiniteMDP.random(20, 3, 3, 0)
    best = mdp.optimal_action_values(1 - 1e-9)
    assert np.isfinite(best).all() and best.max() > 1e8


def test_ties_go_to_the_lowest_action():
    mdp = FiniteMDP.random(2, 3, 1, 0)
    np.testing.assert_array_equal(mdp.greedy_policy([[1, 2, 2], [0, 0, 0]]), [[0, 1, 0], [1, 0, 0]])


def test_policies_as_probabilities_and_as_actions():
    mdp = FiniteMDP.random(3, 2, 2, 1)
    np.testing.assert_array_equal(mdp.with_policy([0, 1, 1]).policy, [[1, 0], [0, 1], [0, 1]])
    np.testing.assert_array_equal(mdp.with_policy([[0.25, 0.75]] * 3).policy, [[0.25, 0.75]] * 3)
    assert mdp.with_policy([0, 1, 1]).transition is mdp.transition
    np.testing.assert_array_equal(mdp.with_policy([0, 1, 1]).with_policy(None).policy, mdp.policy)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (2.0, lambda s, a, t: 2.0),
        ([0.0, 1, 2], lambda s, a, t: t),
        (np.arange(3.0)[:, None, None], lambda s, a, t: s),
        (np.arange(6.0).reshape(3, 2, 1), lambda s, a, t: 2 * s + a),
        (np.arange(18.0).reshape(3, 2, 3), lambda s, a, t: 6 * s + 3 * a + t),
    ],
)
def test_reward_broadcasts(reward, expected):
    mdp = FiniteMDP(np.full((3, 2, 3), 1 / 3), reward)
    for index in np.ndindex(3, 2, 3):
        assert mdp.reward[index] == expected(*index)


def test_terminal_rows_are_ignored():
    rows = [[0, 1.0], [7, -3]]
    mdp = FiniteMDP(rows, 1.0, terminal=[False, True])
    np.testing.assert_array_equal(mdp.transition[1, 0], [0, 1])
    np.testing.assert_array_equal(mdp.reward[1], 0)
    np.testing.assert_allclose(mdp.exact_values([0.9, 1.0]), [[1, 1], [0, 0]], rtol=1e-12)


def test_float32_rows_are_accepted_and_rounding_is_divided_out():
    rows = np.full((3, 3), 1 / 3, np.float32)
    np.testing.assert_allclose(FiniteMDP(rows, 0.0).transition.sum(-1), 1, atol=1e-12)


def test_arrays_are_frozen_and_the_callers_are_not():
    given = np.eye(2)
    mdp = FiniteMDP(given, np.zeros((2, 2)), policy=np.ones((2, 1)))
    given[0, 0] = 5
    assert mdp.transition[0, 0, 0] == 1
    for name in ("transition", "reward", "terminal", "policy", "start"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(mdp, name)[...] = 0
    with pytest.raises(AttributeError):
        mdp.transition = given
    assert given.flags.writeable


def test_same_seed_same_garnet():
    one, two, other = (FiniteMDP.random(6, 2, 3, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.transition, two.transition)
    np.testing.assert_array_equal(one.reward, two.reward)
    assert (one.transition != other.transition).any()
    assert ((one.transition > 0).sum(-1) == 3).all()


# ---------------------------------------------------------------- bad input

RING = FiniteMDP.ring()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FiniteMDP([[0.5, 0.4], [0, 1]], 0.0), DataError, r"must sum to one; got 0\.9 at \[0, 0\]: divide"),
        (lambda: FiniteMDP([[0, 1], [0, 0]], 0.0), DataError, "or mark the state as terminal"),
        (lambda: FiniteMDP([[1.5, -0.5], [0, 1]], 0.0), DataError, r"not be negative; got -0\.5 at \[0, 0, 1\]"),
        (lambda: FiniteMDP([[np.nan, 1], [0, 1]], 0.0), DataError, r"transition must be finite; got nan at \[0, 0\]"),
        (lambda: FiniteMDP([[1, 0]], 0.0), ShapeError, r"must have shape \(S, A, S\).*got \(1, 2\)"),
        (lambda: FiniteMDP([[1, 0], [1]], 0.0), ShapeError, "transition must be an array of numbers"),
        (lambda: FiniteMDP(np.zeros((0, 1, 0)), 0.0), ShapeError, r"got \(0, 1, 0\)"),
        (lambda: FiniteMDP(np.eye(2), [np.inf, 0]), DataError, r"reward must be finite; got inf at \[0\]"),
        (lambda: FiniteMDP(np.eye(2), np.zeros(3)), ShapeError, r"reward must broadcast.*got \(3,\)"),
        # (S, A) and (A, S) cannot be told apart where S = A
        (lambda: FiniteMDP(np.full((2, 2, 2), 0.5), np.eye(2)), ShapeError, r"pass reward\[:, :, None\]"),
        (lambda: FiniteMDP(np.eye(2), 0.0, terminal=[0, 1]), ShapeError, "terminal must hold one boolean per state"),
        (lambda: FiniteMDP(np.eye(2), 0.0, terminal=[True]), ShapeError, r"of shape \(1,\)"),
        (lambda: FiniteMDP(np.eye(2), 0.0, terminal=[True, True]), ConfigError, "terminal marks every state"),
        (lambda: FiniteMDP(np.eye(2), 0.0, terminal=[True, False]), ConfigError, "cannot start in a terminal state"),
        (lambda: FiniteMDP(np.eye(2), 0.0, start=2), ConfigError, "start must be a state from 0 to 1; got 2"),
        (lambda: FiniteMDP(np.eye(2), 0.0, start=-1), ConfigError, "start must be a state"),
        (lambda: FiniteMDP(np.eye(2), 0.0, start=[0.5, 0.4]), DataError, r"rows of start must sum to one; got 0\.9"),
        (lambda: FiniteMDP(np.eye(2), 0.0, start=0.5), ShapeError, "start must be a whole number"),
        (lambda: FiniteMDP(np.eye(2), 0.0, policy=[[0.5], [1]]), DataError, r"rows of policy must sum to one"),
        (lambda: FiniteMDP(np.eye(2), 0.0, policy=[1, 0]), ConfigError, "name actions from 0 to 0; got 1 in state 0"),
        (lambda: FiniteMDP(np.eye(2), 0.0, policy=np.ones((1, 2))), ShapeError, r"policy must have shape \(S, A\)"),
        (lambda: FiniteMDP(np.eye(2), 0.0, names=["a"]), ConfigError, "names must be 2 different texts"),
        (lambda: FiniteMDP(np.eye(2), 0.0, names="ab"), ConfigError, "one per state; got 'ab': pass a list that"),
        (lambda: FiniteMDP(np.eye(2), 0.0, terminal=[[True], []]), ShapeError, "terminal must be an array of numbers"),
        (lambda: FiniteMDP(np.eye(2), 0.0, policy=[[1, 0], [1]]), ShapeError, "policy must be an array .* equal len"),
        (lambda: FiniteMDP(np.eye(2), 0.0, start=[[1], []]), ShapeError, "start must be an array of numbers; got"),
        (lambda: FiniteMDP.ring("leaving"), ConfigError, "one of entered, edges, left; got 'leaving'"),
        (lambda: FiniteMDP.ring(states=3), ConfigError, "states must be a whole number of at least 4; got 3"),
        (lambda: FiniteMDP.ring(slip=1.0), ConfigError, "slip must be below 1"),
        (lambda: FiniteMDP.chain(0), ConfigError, "length must be a whole number of at least 1; got 0"),
        (lambda: FiniteMDP.chain(3, forward=0.0), ConfigError, "forward must be above 0"),
        (lambda: FiniteMDP.chain(3, left_reward=1.0), ConfigError, "is never earned with forward=1"),
        (lambda: FiniteMDP.chain(3, reward="a"), ConfigError, "reward must be one finite number; got 'a': pass"),
        (lambda: FiniteMDP.chain(3, step_reward=[1, 2]), ConfigError, r"step_reward must be one .*; got \[1, 2\]"),
        (lambda: FiniteMDP.chain(3, left_reward=np.nan), ConfigError, "left_reward must be one finite number; got nan"),
        (lambda: one_hot(3), ConfigError, "labels must be one hashable label per state; got 3 .*: pass a list"),
        (lambda: one_hot([[1]]), ConfigError, r"got \[\[1\]\] \(.*unhashable"),
        (lambda: FiniteMDP.random(3, 1, 4, 0), ConfigError, "branching must be at most the number of states, 3; got 4"),
        (lambda: FiniteMDP.random(3, 1, 2, 0, ends=3), ConfigError, "ends must be below the number of states"),
        (lambda: FiniteMDP.random(3, 1, 2, -1), ConfigError, "seed must be a whole number of at least 0; got -1"),
        (lambda: RING.exact_values([0.9, 0.5]), ConfigError, "gammas must be strictly increasing"),
        (lambda: RING.exact_values([]), ConfigError, "gammas must name at least one discount"),
        (lambda: RING.exact_values([1.5]), ConfigError, r"gammas must be in \[0, 1\]; got 1.5"),
        (lambda: RING.exact_values([0.5, 1.0]), ConfigError, "gamma=1 does not converge: from 5 of 5 states"),
        (lambda: RING.optimal_action_values(1.0), ConfigError, "does not converge"),
        (lambda: RING.greedy_policy([1.0, 2]), ShapeError, r"action_values must have shape \(S, A\) = \(5, 1\)"),
        (lambda: RING.greedy_policy([[np.nan]] * 5), DataError, "action_values must be finite"),
        (lambda: FiniteMDP.from_gymnasium(object()), ConfigError, "must hold a transition table P"),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_gamma_1_names_the_states_that_never_end():
    """States 0 and 1 may end up in 2, which pays for ever; 3 ends."""
    rows = [[0, 0.5, 0.5, 0, 0], [0, 0, 0, 0.5, 0.5], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0] * 5]
    mdp = FiniteMDP(rows, 1.0, terminal=[False] * 4 + [True])
    with pytest.raises(ConfigError, match="from 1 of 5 states, the first being 2, rewards go on for ever"):
        mdp.exact_values([1.0])


def test_import_is_light():
    program = (
        "import sys, tddelta.tabular as tabular\n"
        "tabular.FiniteMDP.ring().exact_values([.5]); tabular.sample(tabular.FiniteMDP.ring(), 3); dir(tabular)\n"
        "heavy = {'numba', 'polars', 'gymnasium', 'jax', 'torch', 'pandas', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_resolve():
    assert sorted(tdd.tabular.__all__) == dir(tdd.tabular)
    with pytest.raises(AttributeError, match=r"No tddelta\.tabular attribute Ring"):
        tdd.tabular.Ring  # noqa: B018  (the access is the test)


# ---------------------------------------------------------------- Gymnasium


@pytest.fixture(scope="module")
def gymnasium():
    return pytest.importorskip("gymnasium")


def against_the_table(gymnasium, environment, **kwargs):
    """Compare a process with the table of its environment, entry by entry."""
    plain = gymnasium.make(environment, **kwargs).unwrapped
    mdp = FiniteMDP.from_gymnasium(environment, **kwargs)
    states, actions = plain.observation_space.n, plain.action_space.n
    assert mdp.actions == actions
    for state in range(states):
        for action in range(actions):
            if mdp.terminal[state]:
                continue
            ended, gained, arrived = 0.0, 0.0, np.zeros(mdp.states)
            for probability, after, reward, terminated in plain.P[state][action]:
                ended += probability * terminated
                gained += probability * reward
                arrived[-1 if terminated and mdp.states > states else after] += probability
            row = mdp.transition[state, action]
            np.testing.assert_allclose(row, arrived, atol=1e-12)
            assert row @ mdp.terminal == pytest.approx(ended, abs=1e-12)
            assert row @ mdp.reward[state, action] == pytest.approx(gained, abs=1e-12)
    np.testing.assert_allclose(mdp.start[:states], plain.initial_state_distrib)
    return mdp


def test_frozen_lake(gymnasium):
    lake = against_the_table(gymnasium, "FrozenLake-v1")
    np.testing.assert_array_equal(np.flatnonzero(lake.terminal), [5, 7, 11, 12, 15])
    # from the corner, pushing into the wall: two of three ways stay, and their probabilities add up
    assert lake.transition[0, 0, 0] == pytest.approx(2 / 3)
    assert lake.optimal_action_values(1.0)[0].max() == pytest.approx(14 / 17)  # known for the 4×4 map
    dry = FiniteMDP.from_gymnasium("FrozenLake-v1", is_slippery=False)
    assert dry.optimal_action_values(0.9)[0].max() == pytest.approx(0.9**5)


def test_cliff_walking(gymnasium):
    cliff = against_the_table(gymnasium, "CliffWalking-v1")
    np.testing.assert_array_equal(np.flatnonzero(cliff.terminal), [47])
    assert cliff.optimal_action_values(1.0)[36].max() == -13


@pytest.mark.parametrize("kwargs", [{}, pytest.param({"is_rainy": True}, marks=pytest.mark.slow)])
def test_taxi_ends_in_a_state_of_its_own(gymnasium, kwargs):
    taxi = against_the_table(gymnasium, "Taxi-v4", **kwargs)
    assert taxi.states == 501
    np.testing.assert_array_equal(np.flatnonzero(taxi.terminal), [500])
    best = taxi.optimal_action_values(1.0).max(axis=1)
    if not kwargs:  # the optimal return is 20 − 1 per earlier step, at most 18 of them here
        assert best[taxi.start > 0].min() >= 20 - 18 and best[taxi.start > 0].max() <= 20 - 5 + 1
        assert taxi.start @ best == pytest.approx(7.93, abs=0.01)


def of_table(table):
    """The process of an environment with this table, which starts in its first state, of two."""
    return FiniteMDP.from_gymnasium(SimpleNamespace(P=table, initial_state_distrib=np.array([1.0, 0.0])))


def test_states_and_actions_that_do_not_start_at_zero():
    """Action 3 ends with reward 2, action 2 stays."""
    stay, end, over = (1.0, 5, -1.0, False), (1.0, 6, 2.0, True), (1.0, 6, 0.0, True)
    mdp = of_table({5: {2: [stay], 3: [end]}, 6: {2: [over], 3: [over]}})
    assert (mdp.states, mdp.actions) == (2, 2) and mdp.terminal.tolist() == [False, True]
    np.testing.assert_array_equal(mdp.optimal_action_values(0.5), [[0.0, 2.0], [0.0, 0.0]])
    with pytest.raises(ConfigError, match=r"must have the actions \[2, 3\]; state 6 has \[2\]"):
        of_table({5: {2: [stay], 3: [end]}, 6: {2: [over]}})
    with pytest.raises(ConfigError, match="action 2 of state 5 leads to 0, which is no state of the table P"):
        of_table({5: {2: [(1.0, 0, 0.0, False)], 3: [end]}, 6: {2: [over], 3: [over]}})


def test_gymnasium_errors(gymnasium, monkeypatch):
    made = gymnasium.make("FrozenLake-v1")
    assert FiniteMDP.from_gymnasium(made).states == 16
    for environment, options, message in (
        ("FrozenLak-v1", {}, "Gymnasium cannot make 'FrozenLak-v1'"),
        ("FrozenLake-v1", {"map_name": "9x9"}, r"Gymnasium cannot make 'FrozenLake-v1' with {'map_name': '9x9'}"),
        ("nosuch:Env-v0", {}, "Gymnasium cannot make 'nosuch:Env-v0'"),
        ("CartPole-v1", {}, "got CartPoleEnv without: FrozenLake, CliffWalking and Taxi"),
        ("Taxi-v4", {"fickle_passenger": True}, "does not follow its transition table"),
        (made, {"is_slippery": False}, "is_slippery cannot be set in an environment that is already made"),
    ):
        with pytest.raises(ConfigError, match=message):
            FiniteMDP.from_gymnasium(environment, **options)
    monkeypatch.setattr("tddelta.tabular.mdp.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "tddelta\[tabular\]"'):
        FiniteMDP.from_gymnasium("FrozenLake-v1")


def test_ends_apart_from_states_that_are_passed_through():
    """State 1 ends the episode when entered by action 1 and does not by action 0; both entries pay differently."""
    table = {
        0: {0: [(1.0, 1, 0.0, False)], 1: [(0.25, 1, 4.0, True), (0.75, 1, 8.0, True)]},
        1: {0: [(0.5, 0, 2.0, False), (0.5, 0, 4.0, False)], 1: [(0.5, 1, 0.0, False), (0.5, 1, 6.0, True)]},
    }
    mdp = of_table(table)
    np.testing.assert_array_equal(mdp.terminal, [False, False, True])
    np.testing.assert_array_equal(mdp.transition[0], [[0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(mdp.transition[1], [[1, 0, 0], [0, 0.5, 0.5]])
    assert mdp.reward[0, 1, 2] == 7 and mdp.reward[1, 0, 0] == 3 and mdp.reward[1, 1, 2] == 6
