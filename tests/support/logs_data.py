"""Logs for the tests: as rows that can be read, and the same as columns with one entry changed."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np

import tddelta as tdd
from tddelta.tabular import evaluate_log

SCALES = tdd.TimeScales.from_gammas([0.0, 0.5, 0.9], lam=0.8)
COLUMNS = ("episode", "state", "reward", "terminated", "truncated")

# Episode 7 terminates, episode 8 is cut in a state that has steps of its own, episode 9 terminates at once.
SMALL: dict[str, list[Any]] = {
    "episode": [7, 7, 7, 8, 8, 9],
    "state": ["a", "b", "a", "a", "b", "b"],
    "reward": [1.0, 2.0, 4.0, 0.5, -1.0, 3.0],
    "terminated": [False, False, True, False, False, True],
    "truncated": [False, False, False, False, True, False],
    "next_state": ["b", "a", "end", "b", "a", "end"],
    "time": [0.0, 1.0, 3.0, 10.0, 10.5, 20.0],
    "next_time": [1.0, 3.0, 4.0, 10.5, 12.0, 20.5],
    "x": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    "next_x": [0.2, 0.3, 0.0, 0.5, 0.7, 0.0],
}


def evaluate(log, **options):
    """Values of a log, of which nothing is held out unless it is asked for."""
    return evaluate_log(log, SCALES, **{"held_out": 0, **options})


def small(*names: str, **changes: Any) -> dict[str, list[Any]]:
    """The small log with the columns that it always has and others by name; `reward=(row, value)` changes an entry."""
    log = copy.deepcopy({name: SMALL[name] for name in (*COLUMNS, *names)})
    for name, (row, value) in changes.items():
        log[name][row - 1] = value
    return log


def random_log(seed: int, episodes: int, states: int, *, longest: int = 12) -> dict[str, Any]:
    """Episodes of random lengths over random states; about half terminate, the others are cut."""
    generator = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "next_state", "time", "next_time")}
    for episode in range(episodes):
        length = int(generator.integers(1, longest + 1))
        visited = generator.integers(states, size=length + 1)
        moments = 1000 * episode + np.cumsum(generator.choice([0.25, 0.5, 1.0, 2.0], size=length + 1))
        ends = generator.random() < 0.5
        last = np.arange(length) == length - 1
        columns["episode"] += [episode] * length
        columns["state"] += visited[:-1].tolist()
        columns["reward"] += generator.normal(size=length).tolist()
        columns["terminated"] += (last & ends).tolist()
        columns["truncated"] += (last & (not ends) & (generator.random() < 0.5)).tolist()
        columns["next_state"] += visited[1:].tolist()
        columns["time"] += moments[:-1].tolist()
        columns["next_time"] += moments[1:].tolist()
    return {name: np.array(column) for name, column in columns.items()}


def discounts(*gammas, **options):
    """Scales of these discounts."""
    return tdd.TimeScales.from_gammas(gammas, **options)


def episodes_of(*rows):
    """A log of episodes, each a text of states and rewards such as "A0 B1", all of which terminate."""
    log = {name: [] for name in COLUMNS}
    for number, row in enumerate(rows):
        steps = row.split()
        log["episode"] += [number] * len(steps)
        log["state"] += [step[0] for step in steps]
        log["reward"] += [float(step[1:]) for step in steps]
        log["terminated"] += [False] * (len(steps) - 1) + [True]
        log["truncated"] += [False] * len(steps)
    return log


def autoregressive(seed, episodes=60, length=200):
    """x' = .9 x + noise with reward x; V(x) = x / (1 − .9 γ)."""
    generator = np.random.default_rng(seed)
    x = np.zeros((length + 1, episodes))
    for step in range(length):
        x[step + 1] = 0.9 * x[step] + 0.3 * generator.normal(size=episodes)
    last = np.arange(length) == length - 1
    return {
        "episode": np.repeat(np.arange(episodes), length),
        "x": x[:-1].T.ravel(),
        "next_x": x[1:].T.ravel(),
        "reward": x[:-1].T.ravel(),
        "terminated": np.zeros(episodes * length, dtype=bool),
        "truncated": np.tile(last, episodes),
    }


def minari_like(episodes):
    """Something that gives episodes as a Minari dataset does: one observation more than steps."""
    parts = [
        SimpleNamespace(
            id=number,
            observations=observations,
            rewards=np.array(rewards),
            terminations=np.array(ends),
            truncations=np.arange(len(rewards)) == len(rewards) - 1,
        )
        for number, (observations, rewards, ends) in enumerate(episodes)
    ]
    return SimpleNamespace(iterate_episodes=lambda: iter(parts))
