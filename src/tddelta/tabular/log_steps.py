"""From the rows of a log to steps whose successors are known; what cannot be used is named, nothing is guessed."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tddelta.errors import ConfigError, own_checks
from tddelta.tabular.arrays import BoolArray, FloatArray, IntArray
from tddelta.tabular.log_columns import features, flags, labels, moments, numbers
from tddelta.tabular.log_files import Column, read_columns, refuse

LastRow = Literal["step", "observation"]
"""What the last row of an episode is that has not terminated: a step like the others, or the final observation."""


@own_checks
@dataclass(frozen=True)
class Names:
    """What the columns of a log are called, and how its rows are to be read; see `evaluate_log`."""

    episode: str = "episode"
    state: tuple[str, ...] = ("state",)
    reward: str = "reward"
    terminated: str | None = "terminated"
    truncated: str | None = "truncated"
    time: str | None = None
    time_unit: float = 1.0
    next_prefix: str = "next_"
    last_row: LastRow = "step"
    features: tuple[str, ...] | None = None

    @property
    def observed(self) -> tuple[str, ...]:
        """The columns that tell where the agent is."""
        return self.state if self.features is None else self.features


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a log, episodes one after the other in the order of time.

    Attributes:
        observations: Labels or features: one per row of the log, then those that only successor columns hold.
        rows: Number of rows of the log.
        places: Where in `observations` the state of each step is, which is its row, (T,).
        successors: Where in `observations` its successor is; −1 where it terminated, (T,).
        rewards: Rewards, (T,).
        durations: Time that each step takes, (T,); None without time stamps. 1 where the step terminated.
        episodes: Number of the episode of each step, 0, 1, …, never falling, (T,).
    """

    observations: list[Hashable] | FloatArray
    rows: int
    places: IntArray
    successors: IntArray
    rewards: FloatArray
    durations: FloatArray | None
    episodes: IntArray

    @property
    def last(self) -> BoolArray:
        """Whether a step is the last of its episode, (T,)."""
        following = np.append(self.episodes[1:], -1)
        ends: BoolArray = self.episodes != following
        return ends

    def select(self, chosen: BoolArray) -> "Steps":
        """Some of the steps, with the same observations."""
        return Steps(
            self.observations,
            self.rows,
            self.places[chosen],
            self.successors[chosen],
            self.rewards[chosen],
            None if self.durations is None else self.durations[chosen],
            self.episodes[chosen],
        )


def read_steps(log: Any, names: Names) -> Steps:
    """Read a log and make sure of every row.

    Args:
        log: See `log_files.read_columns`.
        names: What the columns are called, and how the rows are to be read.

    Returns:
        The steps.

    Raises:
        ConfigError: A column is missing.
        DataError: Some row cannot be used; the message has its number.
        MissingExtra: A package for this kind of file is not installed.
    """
    following = tuple(names.next_prefix + name for name in names.observed)
    optional = [*following] + ([names.next_prefix + names.time] if names.time else [])
    given = [name for name in (names.terminated, names.truncated, names.time) if name is not None]
    columns = read_columns(log, [names.episode, *names.observed, names.reward, *given], optional)
    rows = len(columns[names.episode])
    everything = np.ones(rows, dtype=bool)

    episode, last = _episodes(labels(names.episode, columns[names.episode], everything), names)
    step, terminated, cut = _ends(names, columns, episode, last)
    rewards = numbers(names.reward, columns[names.reward], step)
    asked = _asked(following, columns, last & cut)
    observations, extra = _observations(names, columns, following, step & ~last & ~terminated, asked)
    durations, starts = None, np.zeros(episode[-1] + 1)
    if names.time is not None:
        durations, starts = _durations(names, columns, last, step & ~terminated, asked)

    successors = np.where(terminated, -1, np.arange(1, rows + 1)).astype(np.int64)
    successors[asked] = rows + np.arange(extra)
    # Those that begin at the same moment, and all without time stamps, stay as they are in the log.
    rank = np.empty(len(starts), dtype=np.int64)
    rank[np.argsort(starts, kind="stable")] = np.arange(len(starts))
    order: IntArray = np.flatnonzero(step).astype(np.int64)
    order = order[np.argsort(rank[episode[order]], kind="stable")]
    if not len(order):
        refuse(0, "holds no step: every row is the final observation of its episode", "pass last_row='step'")
    numbered = np.unique(rank[episode[order]], return_inverse=True)[1]
    return Steps(
        observations,
        rows,
        order,
        successors[order],
        rewards[order],
        None if durations is None else durations[order],
        numbered.astype(np.int64),
    )


def _episodes(given: Sequence[Hashable], names: Names) -> tuple[IntArray, BoolArray]:
    """Number the episodes in the order in which they begin; each must be one block of rows."""
    seen: dict[Hashable, int] = {}
    episode = np.array([seen.setdefault(label, len(seen)) for label in given], dtype=np.int64)
    begins = np.append(True, episode[1:] != episode[:-1])
    first = np.unique(episode, return_index=True)[1]
    again = np.setdiff1d(np.flatnonzero(begins), first)
    if len(again):
        label, other = given[again[0]], given[again[0] - 1]
        refuse(
            again,
            f"{names.episode} {label!r} goes on after rows of {other!r}",
            f"sort the rows by {names.episode} and time, or give each part a name of its own",
        )
    return episode, np.append(begins[1:], True)


def _ends(
    names: Names, columns: dict[str, Column], episode: IntArray, last: BoolArray
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Which rows are steps, which of them terminated, and which ended their episode otherwise."""
    maybe = last if names.last_row == "observation" else np.zeros_like(last)  # here flags may be missing

    def read(name: str | None) -> BoolArray:
        everything = np.ones_like(last)
        return ~everything if name is None else flags(name, columns[name], everything, optional=maybe)

    terminated, truncated = read(names.terminated), read(names.truncated)
    step = ~(maybe & ~terminated)
    following = np.append(step[1:], False) & ~last  # whether the next row is a step of the same episode
    middle = np.flatnonzero((terminated | truncated) & following)
    if len(middle):
        name = names.terminated if terminated[middle[0]] else names.truncated
        hint = ""
        if names.last_row == "step" and last[middle + 1].all():
            hint = "; if the last row of an episode holds only its final observation, pass last_row='observation'"
        advice = "give what follows an episode of its own"
        refuse(middle, f"{name} is set, but the episode goes on in row {middle[0] + 2}", advice + hint)
    return step, terminated & step, step & ~terminated & ~following


def _asked(following: tuple[str, ...], columns: dict[str, Column], ends: BoolArray) -> BoolArray:
    """Which last rows have their successor in columns of its own; it must be known somehow."""
    present = [name in columns for name in following]
    if any(present) and not all(present):
        absent = ", ".join(name for name in following if name not in columns)
        raise ConfigError(
            f"the log has successor columns, but not {absent}: pass all of {', '.join(following)}, or none"
        )
    if ends.any() and not all(present):
        refuse(
            np.flatnonzero(ends),
            "the episode ends here without having terminated, so that the value of the state after it counts, and "
            "that state is not known",
            f"add {', '.join(following)} to the log, or pass last_row='observation' to take the last row of such an "
            "episode as its final observation alone",
        )
    return ends


def _observations(
    names: Names, columns: dict[str, Column], following: tuple[str, ...], inner: BoolArray, asked: BoolArray
) -> tuple[list[Hashable] | FloatArray, int]:
    """Labels or features of all rows, then those of the successors that are asked for, and how many these are.

    Where the log names the successor of a row that is not the last, the next row must agree.
    """
    rows, everything = len(inner), np.ones_like(inner)
    compared = inner | asked if following[0] in columns else np.zeros_like(inner)
    if names.features is None:
        now = _join([labels(name, columns[name], everything) for name in names.observed])
        later: Any = [None] * rows
        if compared.any():
            later = _join([labels(name, columns[name], compared) for name in following])
        wrong = [row for row in np.flatnonzero(compared & inner).tolist() if later[row] != now[row + 1]]
        observations: Any = now + [later[row] for row in np.flatnonzero(asked).tolist()]
    else:
        now_read = [features(name, columns[name], everything) for name in names.observed]
        present = np.concatenate(now_read, axis=1)
        later = np.zeros_like(present)
        if compared.any():
            later = np.concatenate([features(name, columns[name], compared) for name in following], axis=1)
        differs = np.append((later[:-1] != present[1:]).any(axis=1), False)
        wrong = np.flatnonzero(compared & inner & differs).tolist()
        observations = np.concatenate([present, later[asked]])
        now, later = present.tolist(), later.tolist()
    if wrong:
        row, what = wrong[0], ", ".join(following)
        refuse(
            wrong,
            f"{what} is {later[row]!r}, but the next row of the episode has {now[row + 1]!r}",
            "a row is missing or out of order: put it back, or begin a new episode there",
        )
    return observations, int(asked.sum())


def _join(parts: list[list[Hashable]]) -> list[Hashable]:
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def _durations(
    names: Names, columns: dict[str, Column], last: BoolArray, going_on: BoolArray, asked: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """How long each step takes, 1 where it terminated since that counts for nothing, and when each episode begins."""
    assert names.time is not None
    stamps, origin = moments(names.time, columns[names.time], np.ones_like(last))
    later = np.append(stamps[1:], 0.0)
    following = names.next_prefix + names.time
    inner = ~last
    rise = "time stamps must rise within an episode: sort its rows, and give every step the time that it takes"
    backwards = np.flatnonzero(inner & (later <= stamps))
    if len(backwards):
        row = backwards[0]
        refuse(
            backwards + 1, f"{names.time} is {later[row]:.12g}, not after {stamps[row]:.12g} in the row before", rise
        )
    if following in columns:
        known = (inner & going_on) | asked
        said, _ = moments(following, columns[following], known, origin)
        wrong = np.flatnonzero(known & inner & (said != later))
        if len(wrong):
            refuse(
                wrong,
                f"{following} is {said[wrong[0]]:.12g}, but the next row of the episode has {later[wrong[0]]:.12g}",
                "a row is missing or out of order: put it back, or begin a new episode there",
            )
        later = np.where(asked, said, later)
    elif asked.any():
        refuse(
            np.flatnonzero(asked),
            "the episode ends here without having terminated, and the time of the state after it is not known",
            f"add {following} to the log, or pass last_row='observation'",
        )
    backwards = np.flatnonzero(asked & (later <= stamps))
    if len(backwards):
        row = backwards[0]
        refuse(backwards, f"{following} is {later[row]:.12g}, not after {stamps[row]:.12g} in the same row", rise)
    durations = np.where(going_on, (later - stamps) / names.time_unit, 1.0)
    begins = np.append(True, last[:-1])
    return durations, stamps[begins]
