"""Well-known finite processes, as keyword arguments of `FiniteMDP`."""

from importlib.util import find_spec
from typing import Any

import numpy as np

from tddelta import _ladders, _plain
from tddelta._naming import blamed
from tddelta.errors import ConfigError, MissingExtra
from tddelta.tabular import _checks

Parts = dict[str, Any]
"""Keyword arguments of `FiniteMDP`."""


def ring(reward_on: Any, states: Any, slip: Any) -> Parts:
    """See `FiniteMDP.ring`."""
    states, slip = _plain.whole("states", states, least=4), _ladders.unit_number("slip", slip)
    if slip == 1:
        raise ConfigError("slip must be below 1; got 1.0: a ring whose state never advances is no ring")
    ahead = np.roll(np.eye(states), 1, axis=1)
    sign = np.zeros(states)
    sign[2], sign[3] = 1.0, -1.0
    if reward_on == "entered":
        reward = np.broadcast_to(sign, (states, states))
    elif reward_on == "edges":
        reward = ahead * sign
    elif reward_on == "left":
        reward = np.broadcast_to(sign[:, None], (states, states))
    else:
        raise ConfigError(f"reward_on must be one of entered, edges, left; got {reward_on!r}: entered is the default")
    return {"transition": (1 - slip) * ahead + slip * np.eye(states), "reward": reward}


def chain(length: Any, forward: Any, reward: Any, step_reward: Any, left_reward: Any) -> Parts:
    """See `FiniteMDP.chain`."""
    length, forward = _plain.whole("length", length), _ladders.unit_number("forward", forward)
    reward, step_reward = _checks.number("reward", reward), _checks.number("step_reward", step_reward)
    left_reward = _checks.number("left_reward", left_reward)
    if forward == 0:
        raise ConfigError("forward must be above 0; got 0.0: with no step forward the end is never reached")
    if forward == 1 and left_reward != 0:
        raise ConfigError(f"left_reward={left_reward!r} is never earned with forward=1: pass forward below 1")
    both = forward < 1
    states = length + 1 + both
    transition, entered = np.zeros((states, states)), np.full(states, step_reward)
    for state in range(length):
        transition[state, state + 1] = forward
        transition[state, state - 1 if state else -1] += 1 - forward
    entered[length] = reward
    if both:
        entered[-1] = left_reward
    return {
        "transition": transition,
        "reward": entered,
        "terminal": np.arange(states) >= length,
        "start": length // 2 if both else 0,
    }


def garnet(states: Any, actions: Any, branching: Any, seed: Any, ends: Any) -> Parts:
    """See `FiniteMDP.random`."""
    states, actions = _plain.whole("states", states), _plain.whole("actions", actions)
    branching = _plain.whole("branching", branching)
    if branching > states:
        raise ConfigError(f"branching must be at most the number of states, {states}; got {branching}: pass less")
    ends = _plain.whole("ends", ends, least=0)
    if ends >= states:
        raise ConfigError(
            f"ends must be below the number of states, {states}; got {ends}: one must be left to start in"
        )
    rng = np.random.default_rng(_plain.whole("seed", seed, least=0))
    transition = np.zeros((states, actions, states))
    for state in range(states):
        for action in range(actions):
            successors = rng.choice(states, branching, replace=False)
            cuts = np.sort(rng.random(branching - 1))
            transition[state, action, successors] = np.diff(cuts, prepend=0.0, append=1.0)
    reward = rng.normal(size=(states, actions, states))
    return {"transition": transition, "reward": reward, "terminal": np.arange(states) >= states - ends}


def from_gymnasium(environment: Any, kwargs: dict[str, Any]) -> Parts:
    """See `FiniteMDP.from_gymnasium`."""
    table, start = _table(environment, kwargs)
    numbers = {state: number for number, state in enumerate(_keys(table))}
    names = _keys(table[next(iter(numbers))])
    states, actions = len(numbers), len(names)
    for state in numbers:
        if _keys(table[state]) != names:
            raise ConfigError(
                f"every state of the transition table P must have the actions {names}; state {state} has "
                f"{_keys(table[state])}: let those that do nothing lead back to the state"
            )
    if start.shape != (states,):
        raise ConfigError(f"initial_state_distrib must have one number for each of {states} states; got {start.shape}")
    found = [
        (state, action, probability, after, gain, bool(ended))
        for state in numbers
        for action in names
        for probability, after, gain, ended in table[state][action]
        if probability > 0
    ]
    for state, action, _, after, *_ in found:
        if after not in numbers:
            raise ConfigError(f"action {action} of state {state} leads to {after!r}, which is no state of the table P")
    entries = [
        (numbers[state], names.index(action), *rest, numbers[after], gain, end)
        for state, action, *rest, after, gain, end in found
    ]
    ended = {after for *_, after, _, end in entries if end}
    passed = {after for *_, after, _, end in entries if not end} | set(np.flatnonzero(start).tolist())
    size = states + bool(ended & passed)  # with one more state for ends in states that are also passed through
    transition, gains = np.zeros((size, actions, size)), np.zeros((size, actions, size))
    for state, action, probability, after, gain, end in entries:
        target = states if end and after in passed else after
        transition[state, action, target] += probability
        gains[state, action, target] += probability * gain
    terminal = np.zeros(size, bool)
    terminal[sorted(ended - passed)] = True
    terminal[states:] = True
    return {
        "transition": transition,
        "reward": np.divide(gains, transition, out=np.zeros_like(gains), where=transition > 0),
        "terminal": terminal,
        "start": np.append(start, np.zeros(size - states)),
    }


def _keys(table: Any) -> list[Any]:
    """What states, or the actions of one, are called, in order: spaces of Gymnasium need not start at 0."""
    return sorted(table) if isinstance(table, dict) else list(range(len(table)))


def _table(environment: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The transition table of a Gymnasium environment, and its distribution of first states."""
    made = isinstance(environment, str)
    if made:
        if find_spec("gymnasium") is None:
            raise MissingExtra('from_gymnasium needs gymnasium: pip install "tddelta[tabular]"')
        import gymnasium

        with blamed(f"Gymnasium cannot make {environment!r} with {kwargs},"):
            environment = gymnasium.make(environment, **kwargs)
    elif kwargs:
        raise ConfigError(f"{', '.join(kwargs)} cannot be set in an environment that is already made: pass its id")
    plain = getattr(environment, "unwrapped", environment)
    try:
        table, start = getattr(plain, "P", None), getattr(plain, "initial_state_distrib", None)
        if table is None or start is None:
            raise ConfigError(
                f"the environment must hold a transition table P and initial_state_distrib; got "
                f"{type(plain).__name__} without: FrozenLake, CliffWalking and Taxi have them"
            )
        if getattr(plain, "fickle_passenger", False):
            raise ConfigError(
                "Taxi with fickle_passenger=True does not follow its transition table: pass fickle_passenger=False"
            )
        return table, np.array(start, dtype=np.float64)
    finally:
        if made:
            environment.close()
