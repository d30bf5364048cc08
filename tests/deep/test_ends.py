"""Ends of episodes in a rollout: what is bootstrapped from, and what is forgotten."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep_environments import features, play, roll, state_of, tiny
from tddelta.deep import agents, ppo
from tddelta.deep.rollout import advance

TIME, LANES = 8, 3
NEVER = np.zeros((TIME, LANES), bool)
RANDOM = np.random.default_rng(3)


def marks(*steps):
    """Flags (time, environment) that are True at these places; a place without environment means all."""
    flags = NEVER.copy()
    for step in steps:
        flags[step] = True
    return flags


ENDS = {
    "none": (NEVER, NEVER),
    "all truncate at once": (NEVER, marks(3)),
    "one truncates": (NEVER, marks((4, 1))),
    "truncation in the last step": (NEVER, marks((7, 2))),
    "all truncate in the last step": (NEVER, marks(7)),
    "truncation in the first step": (NEVER, marks((0, 0))),
    "termination": (marks((2, 0), (7, 1)), NEVER),
    "termination and truncation of different environments": (marks((5, 0)), marks((5, 1))),
    "both at once": (marks((3, 1), (6, 2)), marks((3, 1), (6, 2))),
    "an end in every step": (marks((0, 0), (2, 0), (4, 0), (6, 0)), marks((1, 0), (3, 0), (5, 0), (7, 0))),
    "random": (RANDOM.random((TIME, LANES)) < 0.2, RANDOM.random((TIME, LANES)) < 0.3),
}


def rollout_of(config, terminated, truncated, rewards=None):
    """A rollout through a script, and the environments after it."""
    rewards = np.ones((TIME, LANES)) if rewards is None else rewards
    state = state_of(config)
    playing = play(state.playing, rewards, terminated, truncated)
    return roll(config, state.learned, playing, jax.random.key(5))


def successors_of(config, rollout):
    """next_deltas as they reach the agent's target function."""
    asked = []

    def look(rewards, deltas, next_deltas, **_):
        asked.append((deltas, next_deltas))
        return deltas

    agent = agents.AGENTS["ppo-delta"].replace(name="look", targets=look)
    looking = tiny(agent=agent, time_limit=config.time_limit)
    ppo.learning_signals(looking, state_of(config).learned, rollout)
    return (np.asarray(array) for array in asked[0])


def simulated(terminated, truncated):
    """Observations and true successors, one step after the other."""
    seen, successors = np.zeros((TIME, LANES, 4)), np.zeros((TIME, LANES, 4))
    lanes, began = np.arange(LANES), np.zeros(LANES)
    for t in range(TIME):
        seen[t] = features(lanes, began, np.full(LANES, t)).T
        successors[t] = features(lanes, began, np.full(LANES, t + 1)).T
        began = np.where(terminated[t] | truncated[t], t + 1, began)
    return seen, successors


def heads_at(config, observations):
    """The critic's outputs, straight from the parameters."""
    layers = state_of(config).learned.parameters
    x = np.asarray(observations, np.float64)
    for layer in layers.critic_trunk.layers:
        x = np.tanh(x @ np.asarray(layer.weight, np.float64).T + np.asarray(layer.bias))
    return x @ np.asarray(layers.critic.weight, np.float64).T + np.asarray(layers.critic.bias)


@pytest.mark.parametrize("case", ENDS)
def test_the_successor_of_a_step_is_the_true_one(case):
    config = tiny()
    terminated, truncated = ENDS[case]
    _, rollout = rollout_of(config, terminated, truncated)
    deltas, next_deltas = successors_of(config, rollout)
    seen, true = simulated(terminated, truncated)
    np.testing.assert_allclose(rollout.observations, seen, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(deltas, heads_at(config, seen), rtol=1e-5, atol=1e-5)
    counts = ~terminated
    np.testing.assert_allclose(next_deltas[counts], heads_at(config, true)[counts], rtol=1e-5, atol=1e-5)
    inside = ~(terminated | truncated)[:-1]
    np.testing.assert_allclose(next_deltas[:-1][inside], deltas[1:][inside], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rollout.terminated, terminated)
    np.testing.assert_array_equal(rollout.truncated, truncated & ~terminated)


def steps_of(config, terminated, truncated):
    """Transitions of a script with reward 1, one step at a time and not compiled."""
    playing = play(state_of(tiny()).playing, np.ones(terminated.shape), terminated, truncated)
    keys = jax.random.split(jax.random.key(0), LANES)
    moves = []
    for _ in terminated:
        playing, moved = advance(config, config.environment_object(), playing, jnp.zeros(LANES, jnp.int32), keys)
        moves.append(moved)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *moves)


def test_a_time_limit_can_be_the_end():
    terminated, truncated = ENDS["random"]
    moved = steps_of(tiny(time_limit="terminate"), terminated, truncated)
    np.testing.assert_array_equal(moved.terminated, terminated | truncated)
    np.testing.assert_array_equal(moved.truncated, NEVER)
    moved = steps_of(tiny(), terminated, truncated)
    np.testing.assert_array_equal(moved.terminated, terminated)
    np.testing.assert_array_equal(moved.truncated, truncated & ~terminated)


@pytest.mark.parametrize("case", ENDS)
def test_returns_and_lengths_of_finished_episodes(case):
    terminated, truncated = ENDS[case]
    rewards = RANDOM.normal(size=(TIME, LANES))
    playing, rollout = rollout_of(tiny(), terminated, truncated, rewards)
    returns, lengths = np.zeros((TIME, LANES)), np.zeros((TIME, LANES), int)
    running, steps = np.zeros(LANES), np.zeros(LANES, int)
    for t in range(TIME):
        running, steps, ended = running + rewards[t], steps + 1, terminated[t] | truncated[t]
        returns[t], lengths[t] = np.where(ended, running, 0), np.where(ended, steps, 0)
        running, steps = np.where(ended, 0, running), np.where(ended, 0, steps)
    np.testing.assert_allclose(rollout.rewards, rewards, rtol=1e-5)
    np.testing.assert_allclose(rollout.finished_returns, returns, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rollout.finished_lengths, lengths)
    np.testing.assert_allclose(playing.episode_return, running, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(playing.episode_length, steps)


@pytest.mark.parametrize("case", ["random", "all truncate at once", "none"])
def test_two_rollouts_go_on_where_the_first_stopped(case):
    config = tiny()
    terminated, truncated = ENDS[case]
    both = np.concatenate([terminated, NEVER]), np.concatenate([truncated, marks((2, 1))])
    state = state_of(config)
    playing = play(state.playing, np.ones((2 * TIME, LANES)), *both)
    playing, first = roll(config, state.learned, playing, jax.random.key(5))
    _, second = roll(config, state.learned, playing, jax.random.key(6))
    np.testing.assert_allclose(first.last_heads, second.heads[0], rtol=1e-5, atol=1e-5)
    began = max([t + 1 for t in range(TIME) if (terminated | truncated)[t, 1]], default=0)
    assert second.finished_lengths[2, 1] == TIME + 3 - began
    assert second.finished_returns[2, 1] == TIME + 3 - began


def test_the_return_that_normalises_rewards_starts_anew_with_every_episode():
    # Field case B17.
    config = tiny()
    ends = marks((1, 0)), marks((4, 1))
    playing, rollout = rollout_of(config, *ends)
    np.testing.assert_allclose(rollout.reward_returns[:4, 0], [1, 1.99, 1, 1.99], rtol=1e-5)
    np.testing.assert_allclose(rollout.reward_returns[4:6, 1], [sum(0.99**i for i in range(5)), 1], rtol=1e-5)
    np.testing.assert_allclose(playing.reward_return[2], sum(0.99**i for i in range(8)), rtol=1e-5)
    playing, _ = rollout_of(config, marks(7), NEVER)
    np.testing.assert_array_equal(playing.reward_return, 0.0)


@pytest.mark.parametrize(
    "ladder", [{"scales": "halving components=2"}, {"scales": (3.0, 100.0)}, {"agent": "ppo"}, {"rule": "constant"}]
)
def test_the_ladder_does_not_change_how_rewards_are_normalised(ladder):
    moved = steps_of(tiny(**ladder), *ENDS["termination"])
    np.testing.assert_allclose(moved.reward_returns[:4, 0], [1, 1.99, 1 + 0.99 * 1.99, 1], rtol=1e-5)


def test_the_discount_of_normalised_rewards_can_be_named():
    moved = steps_of(tiny(reward_discount=0.5, normalize_rewards=True), *ENDS["termination"])
    np.testing.assert_allclose(moved.reward_returns[:4, 0], [1, 1.5, 1.75, 1], rtol=1e-5)
