"""From the rows of a log to steps whose successors are known; what cannot be used is named, nothing is guessed."""

import csv
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from tddelta._plain import tidy
from tddelta.errors import ConfigError, DataError, MissingExtra, own_checks
from tddelta.runs.files import UNREADABLE
from tddelta.tabular._checks import BoolArray, FloatArray, IntArray

Column = npt.NDArray[Any]
"""A column: one entry per row, of any dtype."""

FORMATS = ".npz, .csv, .tsv, .parquet"
"""Suffixes of the files that can be read."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")


def refuse(rows: Any, problem: str, advice: str) -> NoReturn:
    """Raise the error that names the rows that cannot be used.

    Args:
        rows: Positions of the rows, from 0 on.
        problem: What is wrong with the first of them.
        advice: What to do.

    Raises:
        DataError: Always. Rows are counted from 1, and a header is no row.
    """
    first, *others = (int(row) + 1 for row in np.atleast_1d(rows))
    more = ""
    if others:
        named = ", ".join(map(str, others[:4])) + (", …" if len(others) > 4 else "")
        more = f" ({len(others)} more: {named})"
    raise DataError(f"row {first}{more}: {problem}: {advice}; rows are counted from 1, without a header")


def read_columns(log: Any, wanted: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Column]:
    """Read the columns that are asked for.

    Args:
        log: A mapping of arrays, a structured array, a table with `columns` and `to_numpy` (pandas, Polars), a pyarrow
            table, a path, the text "minari:ID", or a Minari dataset. A dataset has the columns episode, state, reward,
            terminated, truncated and next_state, the last two of which may be asked for by these names only.
        wanted: Names of columns that must be there.
        optional: Names of columns that are read if they are there.

    Returns:
        The columns by name, all of one length ≥ 1.

    Raises:
        ConfigError: The log is of no such kind, the file does not exist, or a column is missing.
        DataError: The file is empty or damaged, or its columns differ in length.
        MissingExtra: Parquet without pyarrow, or a Minari dataset by its name without minari.
    """
    columns = _columns(log, {*wanted, *optional})
    if not columns.names:
        what = log if isinstance(log, str | Path) else "the log"
        raise DataError(f"{what} is empty: pass a log with columns such as {', '.join(wanted)}")
    for name in wanted:
        if name not in columns:
            known = ", ".join(sorted(repr(one) for one in columns.names))
            raise ConfigError(
                f"the log has no column {name!r}; its columns are {known}: say what yours is called, as in "
                "reward='score', and None for flags that it does not have"
            )
    found = {name: _as_array(name, columns[name]) for name in [*wanted, *optional] if name in columns}
    lengths = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"all columns must have one entry per row; got {counts}: pass columns of one length")
    if not next(iter(lengths.values())):
        raise DataError("the log has no rows: pass one with at least one step")
    return found


class _Columns(dict[str, Any]):
    """Columns that were read, and the names of all that there are."""

    def __init__(self, columns: Mapping[str, Any], names: Sequence[str] = ()) -> None:
        super().__init__({tidy(name): column for name, column in columns.items()})
        self.names = [tidy(name) for name in names or columns]
        twice = {name for name in self.names if self.names.count(name) > 1}
        if twice:
            raise DataError(f"the log names columns twice, {', '.join(map(repr, twice))}: give each a name of its own")


def _columns(log: Any, asked: set[str]) -> _Columns:
    if isinstance(log, str) and log.startswith("minari:"):
        return _minari(_named_dataset(log.removeprefix("minari:")))
    if isinstance(log, str) and not log:
        raise ConfigError(f"a log needs a name; got '': name a file of {FORMATS}, or a Minari dataset as minari:NAME")
    if isinstance(log, str | Path):
        return _file(Path(log), asked)
    if hasattr(log, "iterate_episodes"):
        return _minari(log)
    if isinstance(log, Mapping):
        return _Columns(log)
    if isinstance(log, np.ndarray) and log.dtype.names:
        return _Columns({name: log[name] for name in log.dtype.names})
    if hasattr(log, "column_names"):  # a pyarrow table
        return _Columns(
            {name: _arrow(log.column(name)) for name in log.column_names if tidy(name) in asked}, log.column_names
        )
    if hasattr(log, "columns"):  # pandas, Polars
        names = [name for name in log.columns if isinstance(name, str)]
        return _Columns({name: log[name].to_numpy() for name in names if tidy(name) in asked}, names)
    raise ConfigError(
        f"a log must be a mapping of arrays, a table, a Minari dataset or a path ({FORMATS}); got "
        f"{type(log).__name__}: pass one of these"
    )


def _file(path: Path, asked: set[str]) -> _Columns:
    try:
        kinds = (("a file", path.is_file), ("a folder", path.is_dir), ("no ordinary file", path.exists))
        found = next((kind for kind, holds in kinds if holds()), None)
    except OSError as error:  # a part of the path may not be entered
        raise ConfigError(f"{path} cannot be read ({error}): check the path and its permissions") from error
    if found is None:
        hint = "" if path.suffix else "; a Minari dataset is minari:NAME"
        raise ConfigError(f"{path} does not exist: check the path{hint}")
    if found != "a file":
        raise ConfigError(f"{path} is {found}: name a file of {FORMATS}, or a Minari dataset as minari:NAME")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _npz(path, asked)
    if suffix in (".csv", ".tsv"):
        return _csv(path, asked, "\t" if suffix == ".tsv" else ",")
    if suffix == ".parquet":
        return _parquet(path, asked)
    raise ConfigError(f"a log must be a file of {FORMATS}; got {path}: convert it to one of these")


def _npz(path: Path, asked: set[str]) -> _Columns:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return _Columns({name: archive[name] for name in archive.files if tidy(name) in asked}, archive.files)
    except UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read as NPZ ({error}): write it with np.savez, with arrays of numbers, flags or text"
        ) from error


def _parquet(path: Path, asked: set[str]) -> _Columns:
    try:
        pyarrow, parquet = (import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ModuleNotFoundError as error:
        raise MissingExtra('reading Parquet needs pyarrow: pip install "tddelta[tabular]"') from error
    try:
        names = parquet.read_schema(path).names
        table = parquet.read_table(path, columns=[name for name in names if tidy(name) in asked])
        return _Columns({name: _arrow(table.column(name)) for name in table.column_names}, names)
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # a text that is no UTF-8 is a ValueError
        raise DataError(f"{path} cannot be read as Parquet ({error}): write it anew") from error


def _arrow(column: Any) -> Column:
    """A pyarrow column as an array; missing entries become None or not-a-number."""
    if type(column.type).__name__ == "DictionaryType":
        column = column.cast(column.type.value_type)
    if column.null_count and str(column.type).startswith(("int", "uint")):
        return np.array(column.to_pylist(), dtype=object)  # to floats they would lose digits
    array: Column = column.to_numpy()
    return array


def _csv(path: Path, asked: set[str], delimiter: str) -> _Columns:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
            heads, *rows = [[field.strip() for field in line] for line in lines if line] or [[]]
            heads = [tidy(head) for head in heads]
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}): write it as UTF-8 with one header line") from error
    other = next((mark for mark in ",;\t|" if mark != delimiter and len(heads) == 1 and mark in heads[0]), None)
    if other:  # a log has more columns than one
        raise DataError(
            f"{path} separates its columns by {other!r}; a {path.suffix} file is read with {delimiter!r}: write it so, "
            f"with points in numbers, or pass the table that pandas.read_csv(..., sep={other!r}) reads"
        )
    if len(set(heads)) < len(heads):
        raise DataError(f"{path} names a column twice in {', '.join(heads)}: give each a name of its own")
    ragged = [row for row, line in enumerate(rows) if len(line) != len(heads)]
    if ragged:
        refuse(ragged, f"has {len(rows[ragged[0]])} fields under {len(heads)} names", "write one field per column")
    places = [place for place, name in enumerate(heads) if tidy(name) in asked]
    return _Columns({heads[place]: _typed([line[place] for line in rows]) for place in places}, heads)


def _typed(texts: Sequence[str]) -> Column:
    """Text as numbers where every entry is one as a program writes it, so that a label such as 007 stays text."""
    given = [text for text in texts if text]
    if given and all(_WHOLE.fullmatch(text) for text in given):
        whole = [int(text) if text else None for text in texts]
        return np.array(whole) if len(given) == len(texts) else _array(whole)
    if given and all(_NUMBER.fullmatch(text) for text in given):
        return np.array([float(text) if text else np.nan for text in texts])
    return _array([text or None for text in texts])


def _as_array(name: str, column: Any) -> Column:
    """A column as an array; NumPy would turn 3 into text in a list that also holds text."""
    if isinstance(column, list | tuple) and any(isinstance(entry, str | tuple) for entry in column):
        return _array(column)
    try:
        return np.asarray(column)
    except ValueError as error:
        raise DataError(f"{name} is no array ({error}): pass entries of one shape") from error


def _array(entries: Sequence[Any]) -> Column:
    """An array of objects, of one axis whatever the objects are."""
    array = np.empty(len(entries), dtype=object)
    array[:] = entries
    return array


def _named_dataset(name: str) -> Any:
    try:
        minari = import_module("minari")
    except ModuleNotFoundError as error:
        raise MissingExtra("a Minari dataset by its name needs minari: pip install minari") from error
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"no Minari dataset {name!r} ({error}): minari download {name}") from error


def _minari(dataset: Any) -> _Columns:
    """A Minari dataset as columns: an episode of T steps has T + 1 observations."""
    parts: dict[str, list[Any]] = {
        name: [] for name in ("episode", "state", "reward", "terminated", "truncated", "next_state")
    }
    for episode in dataset.iterate_episodes():
        if not isinstance(episode.observations, np.ndarray):
            raise DataError(
                f"episode {episode.id} of the Minari dataset has {type(episode.observations).__name__} observations; "
                "only arrays can be read: pass a mapping of the columns that you need"
            )
        steps = len(episode.rewards)
        if len(episode.observations) != steps + 1:
            raise DataError(
                f"episode {episode.id} of the Minari dataset has {len(episode.observations)} observations for {steps} "
                "steps; there must be one more than steps: record the dataset anew"
            )
        observations = episode.observations.reshape(steps + 1, -1)
        observations = observations[:, 0] if observations.shape[1] == 1 else observations
        entries = (np.full(steps, episode.id), observations[:-1], episode.rewards)
        flags = (episode.terminations, episode.truncations, observations[1:])
        for part, entry in zip(parts.values(), (*entries, *flags), strict=True):
            part.append(np.asarray(entry))
    return _Columns({name: np.concatenate(part) if part else np.empty(0) for name, part in parts.items()})


_FIX = "correct the row or leave its episode out"
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
_TEXT = (str, bytes)


def numbers(name: str, column: Column, used: BoolArray) -> FloatArray:
    """A column of finite numbers.

    Args:
        name: Its name, for messages.
        column: The entries, (R,).
        used: Which rows count; the others may hold anything and become 0.

    Returns:
        Numbers of double precision, (R,).

    Raises:
        DataError: An entry that counts is missing, no number, or not finite.
    """
    _one_axis(name, column)
    if column.dtype.kind in "biuf":
        result = column.astype(np.float64)
    else:
        result, wrong = _each(column, used, _number)
        if wrong:
            refuse(wrong, f"{name} is {column[wrong[0]]!r}, not a number", _FIX)
    _check_finite(name, result, used)
    return np.where(used, result, 0.0)


def flags(name: str, column: Column, used: BoolArray, optional: BoolArray | None = None) -> BoolArray:
    """A column of flags: booleans, the numbers 0 and 1, or the words true and false.

    Args:
        name: Its name, for messages.
        column: The entries, (R,).
        used: Which rows count; the others may hold anything and become False.
        optional: Where an entry may be missing, which means False.

    Returns:
        Flags, (R,).

    Raises:
        DataError: An entry that counts is missing or something else.
    """
    _one_axis(name, column)
    if column.dtype.kind == "b":
        return np.where(used, column, False)
    if optional is not None:
        used = used.copy()
        used[[row for row in np.flatnonzero(optional).tolist() if _is_missing(column[row])]] = False
    if column.dtype.kind in "iuf":
        result, wrong = column, np.flatnonzero(used & (column != 0) & (column != 1)).tolist()
    else:
        result, wrong = _each(column, used, lambda entry: float(_FLAGS[str(entry).strip().lower()]))
    if wrong:
        entry = column[wrong[:1]].tolist()[0]
        missing = f"{name} is missing" if _is_missing(entry) else f"{name} is {entry!r}, which is no flag"
        refuse(wrong, missing, "write true or false, or 1 or 0")
    return np.where(used, result == 1, False)


def moments(name: str, column: Column, used: BoolArray, origin: Any = None) -> tuple[FloatArray, Any]:
    """A column of time stamps: numbers, or dates and times, which become seconds.

    Args:
        name: Its name, for messages.
        column: The entries, (R,); text in ISO 8601.
        used: Which rows count; the others may hold anything and become 0.
        origin: The date from which seconds are counted; None takes the first one.

    Returns:
        Times, (R,), and the origin, None for numbers.

    Raises:
        DataError: An entry that counts is missing or no time stamp.
    """
    _one_axis(name, column)
    if column.dtype.kind == "M":
        column = column.astype("datetime64[us]").astype(object)
    given = next((row for row in np.flatnonzero(used).tolist() if not _is_missing(column[row])), None)
    if given is None or not isinstance(column[given], datetime | str) or _is_number(column[given]):
        return numbers(name, column, used), None
    advice = "write numbers, or ISO 8601 as in 2026-01-31T12:00:00, all with or all without a zone"
    if origin is None:
        try:
            origin = _date(column[given])
        except ValueError:
            refuse(given, f"{name} is {column[given]!r}, no time stamp", advice)
    result, wrong = _each(column, used, lambda entry: (_date(entry) - origin) / timedelta(seconds=1))
    if wrong:
        entry = column[wrong[0]]
        problem = f"{name} is missing" if _is_missing(entry) else f"{name} is {entry!r}, no time stamp like the others"
        refuse(wrong, problem, advice)
    return result, origin


def labels(name: str, column: Column, used: BoolArray) -> list[Hashable]:
    """A column of labels: whole numbers, text, or anything else hashable; a row of a table of integers is a tuple.

    Args:
        name: Its name, for messages.
        column: The entries, (R,) or (R, F).
        used: Which rows count; the others may hold anything and become None.

    Returns:
        Labels, whole numbers as integers, so that 2.0 and 2 are the same.

    Raises:
        DataError: An entry that counts is missing, a fraction, or not hashable.
    """
    if column.ndim > 1:
        parts = [labels(name, column[:, part], used) for part in range(column.shape[1])]
        return list(zip(*parts, strict=True))
    entries = column.tolist()
    if column.dtype.kind not in "iubSU":
        for row in np.flatnonzero(used).tolist():
            entry = entries[row]
            if _is_missing(entry):
                refuse(_missing_rows(entries, used), f"{name} is missing", _FIX)
            if isinstance(entry, np.generic):
                entry = entries[row] = entry.item()
            if isinstance(entry, float):
                if not entry.is_integer():
                    advice = "name columns of sensors with features=[...] and a model"
                    refuse(row, f"{name} is {entry!r}, a fraction and no label", advice)
                entries[row] = int(entry)
            elif not isinstance(entry, Hashable) or (isinstance(entry, tuple) and not _is_hashable(entry)):
                refuse(row, f"{name} is of type {type(entry).__name__}, which is no label", "use numbers or text")
    elif column.dtype.kind in "SU" and not all(entries):
        empty = [row for row in np.flatnonzero(used).tolist() if not entries[row]]
        if empty:
            refuse(empty, f"{name} is missing", _FIX)
    return [entry if counts else None for entry, counts in zip(entries, used.tolist(), strict=True)]


def features(name: str, column: Column, used: BoolArray) -> FloatArray:
    """A column of sensor readings, or several of them side by side in one array.

    Args:
        name: Its name, for messages.
        column: The entries, (R,) or (R, F).
        used: Which rows count; the others may hold anything and become 0.

    Returns:
        Finite numbers, (R, F).

    Raises:
        DataError: An entry that counts is missing, no number, or not finite.
    """
    wide = column.reshape(len(column), -1)
    return np.stack([numbers(name, wide[:, part], used) for part in range(wide.shape[1])], axis=1)


def _one_axis(name: str, column: Column) -> None:
    if column.ndim != 1:
        refuse(0, f"{name} has shape {column.shape[1:]} in each row", "pass one number per row")


def _each(column: Column, used: BoolArray, read: Callable[[Any], float]) -> tuple[FloatArray, list[int]]:
    """Every entry that counts, read on its own, and the rows where that is impossible."""
    result, wrong = np.zeros(len(column)), []
    for row in np.flatnonzero(used).tolist():
        try:
            result[row] = read(column[row])
        except (TypeError, ValueError, KeyError):
            wrong.append(row)
    return result, wrong


def _number(entry: Any) -> float:
    return math.nan if _is_missing(entry) else float(entry)


def _is_number(entry: Any) -> bool:
    try:
        float(entry)
    except (TypeError, ValueError):
        return False
    return True


def _date(entry: Any) -> Any:
    """A date and time; a ValueError where there is none."""
    if isinstance(entry, str):
        return datetime.fromisoformat(entry)
    if isinstance(entry, datetime) and not _is_missing(entry):
        return entry
    raise ValueError(entry)


def _check_finite(name: str, values: FloatArray, used: BoolArray) -> None:
    wrong = np.flatnonzero(used & ~np.isfinite(values))
    if len(wrong):
        found = values[wrong[0]]
        refuse(wrong, f"{name} is missing or not a number" if np.isnan(found) else f"{name} is {found}", _FIX)


def _is_missing(entry: Any) -> bool:
    """None, an empty text, not-a-number, and what pandas has for missing entries, which is not imported for that."""
    if entry is None or (isinstance(entry, _TEXT) and not entry):
        return True
    return type(entry).__name__ in ("NAType", "NaTType") or (isinstance(entry, float) and math.isnan(entry))


def _missing_rows(entries: list[Any], used: BoolArray) -> list[int]:
    return [row for row in np.flatnonzero(used).tolist() if _is_missing(entries[row])]


def _is_hashable(entry: Any) -> bool:
    try:
        hash(entry)
    except TypeError:
        return False
    return True


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
        log: See `read_columns`.
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
