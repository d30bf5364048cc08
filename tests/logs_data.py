"""Logs for the tests: as rows that can be read, and the same as columns with one entry changed."""

import copy
from typing import Any

import numpy as np

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
