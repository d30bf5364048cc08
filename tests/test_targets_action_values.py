"""Action values: one action for all components, chosen by their sum (Q-learning, SARSA, Expected SARSA)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from targets_cases import examples, problems
from tddelta import TimeScales, compose, td_errors


def followed(next_deltas, how, weights):
    """W of what follows, (T, *batch, Z), from those of every action (A, T, *batch, Z)."""
    totals = compose(next_deltas)[..., -1]
    if how == "q_learning":
        return np.take_along_axis(next_deltas, np.argmax(totals, 0)[None, ..., None], 0)[0]
    if how == "sarsa":  # any action: the policy's
        return next_deltas[-1]
    return np.einsum("a...z,a...->...z", next_deltas, weights)


@pytest.mark.parametrize("how", ["q_learning", "sarsa", "expected_sarsa"])
@examples
@given(problems(durations=False), st.data())
def test_one_action_for_all_components_telescopes_for_every_prefix(how, problem, data):
    numbers = st.floats(-3, 3)
    next_deltas = data.draw(arrays.arrays(float, (3, *problem.deltas.shape), elements=numbers))
    weights = data.draw(arrays.arrays(float, (3, *problem.rewards.shape), elements=st.floats(0.1, 1)))
    weights /= weights.sum(0)
    chosen = followed(next_deltas, how, weights)
    errors = td_errors(problem.rewards, problem.deltas, chosen, terminated=problem.terminated, scales=problem.scales)
    values, next_values = compose(problem.deltas), compose(chosen)
    alive = ~problem.terminated
    for z, gamma in enumerate(problem.gammas):
        ordinary = problem.rewards + gamma * np.where(alive, next_values[..., z], 0.0) - values[..., z]
        np.testing.assert_allclose(compose(errors)[..., z], ordinary, rtol=1e-9, atol=1e-9)


def test_a_maximum_per_component_does_not_telescope():
    scales = TimeScales(gammas=(0.5, 0.9))
    actions = np.array([[2.0, 0.0], [0.0, 3.0]])  # W of two actions: each is best in one component
    flags = {"terminated": np.zeros(1, bool), "scales": scales}
    zeros = np.zeros((1, 2))
    common = td_errors(np.zeros(1), zeros, actions[1][None], **flags).sum()
    apart = td_errors(np.zeros(1), zeros, actions.max(0)[None], **flags).sum()
    assert common == pytest.approx(0.9 * 3.0)
    assert apart == pytest.approx(0.9 * 5.0)  # of an action that does not exist


@pytest.mark.parametrize("seed", range(3))
def test_each_prefix_becomes_the_value_of_the_policy_greedy_in_the_sum(seed):
    random = np.random.default_rng(seed)
    states, choices = 4, 3
    transition = random.dirichlet(np.full(states, 0.3), size=(states, choices))
    reward = random.normal(size=(states, choices))
    scales = TimeScales(gammas=(0.0, 0.5, 0.9))
    deltas = np.zeros((states, choices, 3))
    # every (s, a, s') is one row of time; expected full steps towards the TD targets
    rewards = np.broadcast_to(reward[..., None], transition.shape).reshape(-1)
    never = np.zeros(rewards.shape, bool)
    for _ in range(600):
        best = np.argmax(compose(deltas)[..., -1], 1)
        greedy = deltas[np.arange(states), best]
        shape = (*transition.shape, 3)
        rows = (np.broadcast_to(deltas[:, :, None], shape), np.broadcast_to(greedy, shape))
        errors = td_errors(rewards, *(row.reshape(-1, 3) for row in rows), terminated=never, scales=scales)
        deltas = deltas + np.einsum("sat,satz->saz", transition, errors.reshape(shape))
    for z, gamma in enumerate(scales.gammas):
        moves, gains = transition[np.arange(states), best], reward[np.arange(states), best]
        exact = np.linalg.solve(np.eye(states) - gamma * moves, gains)
        np.testing.assert_allclose(compose(deltas)[np.arange(states), best, z], exact, atol=1e-10)
    # and that policy is optimal at the largest discount
    total = compose(deltas)[..., -1]
    np.testing.assert_allclose(total, reward + 0.9 * transition @ total.max(1), atol=1e-10)
