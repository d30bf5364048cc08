"""From the rows of a log to steps whose successors are known; what cannot be used is refused by row number."""

import csv
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from tddelta._arrays import BoolArray, FloatArray, IntArray
from tddelta._plain import tidy
from tddelta.errors import ConfigError, DataError, MissingExtra, TDDeltaError, setting

Column = npt.NDArray[Any]
"""A column: one entry per row, of any dtype."""

LastRow = Literal["step", "observation"]
"""The last row of an episode that has not terminated: a step like the others, or the final observation alone."""

_FIX = "correct the row or leave its episode out"
_GAP = "a row is missing or out of order: put it back, or begin a new episode there"


@dataclass(frozen=True)
class Names:
    """Names of the columns of a log, and how its rows are to be read; see `evaluate_log`."""

    observed: tuple[str, ...]  # the columns that tell where the agent is
    sensors: bool  # whether they hold numbers, not labels
    episode: str
    reward: str
    terminated: str | None
    truncated: str | None
    time: str | None
    time_unit: float
    next_prefix: str
    last_row: LastRow

    @property
    def following(self) -> tuple[str, ...]:
        """The columns that tell where a step led."""
        return tuple(self.next_prefix + name for name in self.observed)


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a log, (T,), episodes one after the other in the order in which they begin."""

    observations: Column  # labels or features: one per row of the log, then those that only successor columns hold
    rows: int  # of the log
    places: IntArray  # place in `observations` of the state of each step, which is its row
    successors: IntArray  # place in `observations` of its successor; −1 where it terminated
    rewards: FloatArray
    durations: FloatArray | None  # time that each step takes, 1 where it terminated; None without time stamps
    episodes: IntArray  # number of the episode of each step, 0, 1, …, never falling

    @property
    def last(self) -> BoolArray:
        """Flags of the steps that are the last of their episode, (T,)."""
        return np.asarray(self.episodes != np.append(self.episodes[1:], -1))

    def select(self, chosen: BoolArray) -> "Steps":
        """Some of the steps, with the same observations."""
        names = ["places", "successors", "rewards", "episodes"] + ["durations"] * (self.durations is not None)
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


def read_steps(log: Any, names: Names) -> Steps:
    """Read a log of any kind that `evaluate_log` takes, and check every row; a DataError has the row's number."""
    flagged = [name for name in (names.terminated, names.truncated, names.time) if name is not None]
    optional = [*names.following] + ([names.next_prefix + names.time] if names.time else [])
    columns = _read_columns(log, [names.episode, *names.observed, names.reward, *flagged], optional)
    rows = len(columns[names.episode])

    episode, last = _episodes(_labels(names.episode, columns[names.episode], np.ones(rows, bool)), names)
    step, terminated, cut = _ends(names, columns, episode, last)
    rewards = _numbers(names.reward, columns[names.reward], step)
    inner, beyond = step & ~last & ~terminated, last & cut  # the successor is in the next row, or in none
    read = _features if names.sensors else _label_column
    now = read(names.observed, columns, np.ones(rows, bool))
    later = _beyond("that state", names.following, columns, now, read, inner, beyond)
    durations, starts = None, np.zeros(episode[-1] + 1)
    if names.time is not None:
        durations, starts = _durations(names, names.time, columns, last, inner, beyond)

    successors = np.where(terminated, -1, np.arange(1, rows + 1)).astype(np.int64)
    successors[beyond] = rows + np.arange(beyond.sum())
    # Those that begin at the same moment, and all without time stamps, stay as they are in the log.
    rank = np.empty(len(starts), dtype=np.int64)
    rank[np.argsort(starts, kind="stable")] = np.arange(len(starts))
    order: IntArray = np.flatnonzero(step).astype(np.int64)
    order = order[np.argsort(rank[episode[order]], kind="stable")]
    if not len(order):
        refuse(
            0, "holds no step: every row is the final observation of its episode", f"pass {setting('last_row', 'step')}"
        )
    return Steps(
        np.concatenate([now, later]),
        rows,
        order,
        successors[order],
        rewards[order],
        None if durations is None else durations[order],
        np.unique(rank[episode[order]], return_inverse=True)[1].astype(np.int64),
    )


def refuse(rows: Any, problem: str, advice: str) -> NoReturn:
    """Raise a DataError that names the rows at these positions, and the problem of the first of them."""
    first, *others = (int(row) + 1 for row in np.atleast_1d(rows))
    more = ""
    if others:
        named = ", ".join(map(str, others[:4])) + (", …" if len(others) > 4 else "")
        more = f" ({len(others)} more: {named})"
    raise DataError(f"row {first}{more}: {problem}: {advice}; rows are counted from 1, without a header")


# ---------------------------------------------------------------- episodes


def _episodes(given: Sequence[Hashable], names: Names) -> tuple[IntArray, BoolArray]:
    """Number the episodes in the order in which they begin; each must be one block of rows."""
    seen: dict[Hashable, int] = {}
    episode = np.array([seen.setdefault(label, len(seen)) for label in given], dtype=np.int64)
    begins = np.append(True, episode[1:] != episode[:-1])
    again = np.setdiff1d(np.flatnonzero(begins), np.unique(episode, return_index=True)[1])
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
    """Rows that are steps, those of them that terminated, and those that ended their episode otherwise."""
    maybe = last if names.last_row == "observation" else np.zeros_like(last)  # here flags may be missing

    terminated, truncated = (
        np.zeros_like(last) if name is None else _flags(name, columns[name], maybe)
        for name in (names.terminated, names.truncated)
    )
    step = ~(maybe & ~terminated)
    following = np.append(step[1:], False) & ~last  # whether the next row is a step of the same episode
    middle = np.flatnonzero((terminated | truncated) & following)
    if len(middle):
        name = names.terminated if terminated[middle[0]] else names.truncated
        hint = ""
        if names.last_row == "step" and last[middle + 1].all():
            observation = setting("last_row", "observation")
            hint = f"; if the last row of an episode holds only its final observation, pass {observation}"
        advice = "give what follows an episode of its own"
        refuse(middle, f"{name} is set, but the episode goes on in row {middle[0] + 2}", advice + hint)
    return step, terminated & step, step & ~terminated & ~following


def _beyond(
    what: str,
    following: Sequence[str],
    columns: dict[str, Column],
    now: Column,
    read: Callable[[Sequence[str], dict[str, Column], BoolArray], Column],
    inner: BoolArray,
    beyond: BoolArray,
) -> Column:
    """Read the states after the last rows from successor columns; for other rows the next one must agree.

    `now` is what the columns of the states themselves say, of every row: labels, features or moments.
    """
    absent = [name for name in following if name not in columns]
    if 0 < len(absent) < len(following):
        raise ConfigError(
            f"the log has successor columns, but not {', '.join(absent)}: pass all of {', '.join(following)}, or none"
        )
    if absent and beyond.any():
        refuse(
            np.flatnonzero(beyond),
            "the episode ends here without having terminated, so that the value of the state after it counts, and "
            f"{what} is not known",
            f"add {', '.join(following)} to the log, or pass {setting('last_row', 'observation')} to take the last row "
            "of such an episode as its final observation alone",
        )
    if absent:
        return now[:0]
    later = read(following, columns, inner | beyond)
    differs = later[:-1] != now[1:]
    wrong = np.flatnonzero(inner[:-1] & (differs if differs.ndim == 1 else differs.any(axis=1)))
    if len(wrong):
        said, found = later[wrong].tolist()[0], now[wrong + 1].tolist()[0]
        refuse(wrong, f"{', '.join(following)} is {said!r}, but the next row of the episode has {found!r}", _GAP)
    return later[beyond]


def _durations(
    names: Names, time: str, columns: dict[str, Column], last: BoolArray, inner: BoolArray, beyond: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Duration of each step, 1 where it terminated since that counts for nothing, and the start of each episode."""
    stamps, origin = _moments(time, columns[time], np.ones_like(last))
    following = names.next_prefix + time

    def read(_: Sequence[str], columns: dict[str, Column], used: BoolArray) -> FloatArray:
        return _moments(following, columns[following], used, origin)[0]

    def check_rising(places: BoolArray, name: str, shift: int, where: str) -> None:
        wrong = np.flatnonzero(places & (later <= stamps))
        if len(wrong):
            refuse(
                wrong + shift,
                f"{name} is {later[wrong[0]]:.12g}, not after {stamps[wrong[0]]:.12g} in {where}",
                "time stamps must rise within an episode: sort its rows, and give every step the time that it takes",
            )

    later = np.append(stamps[1:], 0.0)
    check_rising(~last, time, 1, "the row before")
    later[beyond] = _beyond("its time", [following], columns, stamps, read, inner, beyond)
    check_rising(beyond, following, 0, "the same row")
    durations = np.where(inner | beyond, (later - stamps) / names.time_unit, 1.0)
    return durations, stamps[np.append(True, last[:-1])]


# ---------------------------------------------------------------- entries


class _EntryError(Exception):
    """An entry that cannot be used: the problem, where "{}" stands for the entry, and what to do."""


def _read(name: str, column: Column, used: BoolArray, read: Callable[[Any], Any]) -> list[Any]:
    """Read each entry that counts; the rows that fail as the first one does are refused together."""
    if column.ndim != 1:
        refuse(0, f"{name} has shape {column.shape[1:]} in each row", "pass one number per row")
    entries = [entry.item() if isinstance(entry, np.generic) else entry for entry in column.tolist()]
    found: list[Any] = [None] * len(entries)
    wrong: dict[tuple[str, str], list[int]] = {}
    for row in np.flatnonzero(used).tolist():
        try:
            found[row] = read(entries[row])
        except _EntryError as error:
            wrong.setdefault(error.args, []).append(row)
    for (problem, advice), rows in wrong.items():
        refuse(rows, f"{name} {problem.format(repr(entries[rows[0]]))}", advice)
    return found


def _numbers(name: str, column: Column, used: BoolArray) -> FloatArray:
    """Finite numbers of double precision; 0 in rows that do not count."""
    if column.ndim == 1 and column.dtype.kind in "biuf" and np.isfinite(column[used]).all():
        return np.where(used, column, 0).astype(np.float64)
    return np.where(used, np.array(_read(name, column, used, _number), np.float64), 0.0)


def _number(entry: Any) -> float:
    try:
        value = math.nan if _is_missing(entry) else float(entry)
    except (TypeError, ValueError):
        raise _EntryError("is {}, not a number", _FIX) from None
    if not math.isfinite(value):
        raise _EntryError("is missing or not a number" if math.isnan(value) else f"is {value}", _FIX)
    return value


_FLAGS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


def _flags(name: str, column: Column, optional: BoolArray) -> BoolArray:
    """Booleans, the numbers 0 and 1, or the words true and false; where optional, a missing one means False."""
    if column.ndim == 1 and column.dtype.kind in "biuf" and np.isin(column, (0, 1)).all():
        return np.equal(column, 1)
    used = ~optional | [not _is_missing(entry) for entry in column]
    return np.array([flag is True for flag in _read(name, column, used, _flag)])


def _flag(entry: Any) -> bool:
    advice = "write true or false, or 1 or 0"
    if _is_missing(entry):
        raise _EntryError("is missing", advice)
    if str(entry).strip().lower() not in _FLAGS:
        raise _EntryError("is {}, which is no flag", advice)
    return _FLAGS[str(entry).strip().lower()]


def _is_number(entry: Any) -> bool:
    """Tell numbers, also "nan" and "inf", which are refused as numbers."""
    with suppress(TypeError, ValueError):
        float(entry)
        return True
    return False


def _moments(name: str, column: Column, used: BoolArray, origin: Any = None) -> tuple[FloatArray, Any]:
    """Numbers, or dates and times as seconds since `origin`, by default the first of them; and that origin."""
    if column.dtype.kind == "M":
        column = column.astype("datetime64[us]").astype(object)
    given = next((entry for entry in column[used].tolist() if not _is_missing(entry)), None)
    if not isinstance(given, datetime | str) or _is_number(given):
        return _numbers(name, column, used), None

    def seconds(entry: Any) -> float:
        nonlocal origin
        advice = "write numbers, or ISO 8601 as in 2026-01-31T12:00:00, all with or all without a zone"
        if _is_missing(entry):
            raise _EntryError("is missing", advice)
        try:
            date = datetime.fromisoformat(entry) if isinstance(entry, str) else entry
            origin = date if origin is None else origin
            return float((date - origin) / timedelta(seconds=1))
        except (TypeError, ValueError):
            raise _EntryError("is {}, no time stamp" + ("" if origin is None else " like the others"), advice) from None

    return np.where(used, np.array(_read(name, column, used, seconds), np.float64), 0.0), origin


def _labels(name: str, column: Column, used: BoolArray) -> list[Any]:
    """Whole numbers as integers, text, or anything else hashable; a row of several numbers is a tuple."""
    if column.ndim > 1:
        return list(zip(*(_labels(name, part, used) for part in np.moveaxis(column, 1, 0)), strict=True))
    if column.dtype.kind in "iub" and used.all():
        entries: list[Any] = column.tolist()
        return entries
    return _read(name, column, used, _label)


def _label(entry: Any) -> Hashable:
    if _is_missing(entry):
        raise _EntryError("is missing", _FIX)
    if isinstance(entry, float) and not entry.is_integer():
        advice = f"name columns of sensors with {setting('features', '')} and a model"
        raise _EntryError("is {}, a fraction and no label", advice)
    if isinstance(entry, float):
        return int(entry)
    try:
        hash(entry)
    except TypeError:
        raise _EntryError(f"is of type {type(entry).__name__}, which is no label", "use numbers or text") from None
    return entry  # type: ignore[no-any-return]


def _label_column(names: Sequence[str], columns: dict[str, Column], used: BoolArray) -> Column:
    """Labels, (R,); of several columns tuples."""
    parts = [_labels(name, columns[name], used) for name in names]
    return _array(parts[0] if len(parts) == 1 else list(zip(*parts, strict=True)))


def _features(names: Sequence[str], columns: dict[str, Column], used: BoolArray) -> FloatArray:
    """Sensor readings side by side, (R, F); a column may hold several."""
    wide = [(name, part) for name in names for part in columns[name].reshape(len(used), -1).T]
    return np.stack([_numbers(name, part, used) for name, part in wide], axis=1)


def _is_missing(entry: Any) -> bool:
    """None, an empty text, not-a-number, and what pandas has for missing entries, which is not imported for that."""
    if entry is None or (isinstance(entry, str | bytes) and not entry):
        return True
    return type(entry).__name__ in ("NAType", "NaTType") or (isinstance(entry, float) and math.isnan(entry))


# ---------------------------------------------------------------- columns

_Pairs = list[tuple[str, Any]]
"""Every column of a log by its name: those that are asked for, and None for the others."""

FORMATS = ".npz, .csv, .tsv, .parquet"
"""Suffixes of the files that can be read."""


def _read_columns(log: Any, wanted: Sequence[str], optional: Sequence[str]) -> dict[str, Column]:
    """Columns that are wanted and optional ones that are there, of one length ≥ 1, of any log of `evaluate_log`."""
    pairs = _pairs(log, {*wanted, *optional})
    what = log if isinstance(log, str | Path) else "the log"
    if not pairs:
        raise DataError(f"{what} is empty: pass a log with columns such as {', '.join(wanted)}")
    names = [tidy(name) for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise DataError(f"{what} names columns twice, {', '.join(map(repr, twice))}: give each a name of its own")
    given = dict(zip(names, (column for _, column in pairs), strict=True))
    for name in wanted:
        if name not in given:
            raise ConfigError(
                f"the log has no column {name!r}; its columns are {', '.join(sorted(map(repr, names)))}: say what "
                f"yours is called, as in {setting('reward', 'score')}, and {setting('truncated', None)} if there is "
                "none"
            )
    found = {name: _as_array(name, given[name]) for name in [*wanted, *optional] if name in given}
    lengths = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"all columns must have one entry per row; got {counts}: pass columns of one length")
    if not next(iter(lengths.values())):
        raise DataError("the log has no rows: pass one with at least one step")
    return found


def _pairs(log: Any, asked: set[str]) -> _Pairs:
    if isinstance(log, str) and log.startswith("minari:"):
        return _minari(_named_dataset(log.removeprefix("minari:")))
    if isinstance(log, str) and not log:
        raise ConfigError(f"a log needs a name; got '': name a file of {FORMATS}, or a Minari dataset as minari:NAME")
    if isinstance(log, str | Path):
        return _file(Path(log), asked)
    if hasattr(log, "iterate_episodes"):
        return _minari(log)
    if isinstance(log, Mapping):
        return list(log.items())
    if isinstance(log, np.ndarray) and log.dtype.names:
        return [(name, log[name]) for name in log.dtype.names]
    if hasattr(log, "column_names"):  # a pyarrow table
        columns = zip(log.column_names, log.columns, strict=True)
        return [(name, _entries(_polars().Series(part)) if tidy(name) in asked else None) for name, part in columns]
    if hasattr(log, "columns"):  # pandas, Polars
        names = [name for name in log.columns if isinstance(name, str)]
        return [(name, _entries(log[name]) if tidy(name) in asked else None) for name in names]
    raise ConfigError(
        f"a log must be a mapping of arrays, a table, a Minari dataset or a path ({FORMATS}); got "
        f"{type(log).__name__}: pass one of these"
    )


def _file(path: Path, asked: set[str]) -> _Pairs:
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
    readers = {
        ".npz": (_npz, "NPZ", "write it with np.savez, with arrays of numbers, flags or text"),
        ".csv": (_csv, "CSV", "write it as UTF-8 with one header line"),
        ".tsv": (_csv, "CSV", "write it as UTF-8 with one header line"),
        ".parquet": (_parquet, "Parquet", "write it anew"),
    }
    if path.suffix.lower() not in readers:
        raise ConfigError(f"a log must be a file of {FORMATS}; got {path}: convert it to one of these")
    read, kind, advice = readers[path.suffix.lower()]
    try:
        return read(path, asked)
    except TDDeltaError:
        raise
    except Exception as error:  # damaged files have many ways to fail
        raise DataError(f"{path} cannot be read as {kind} ({error}): {advice}") from error


def _npz(path: Path, asked: set[str]) -> _Pairs:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return [(name, archive[name] if tidy(name) in asked else None) for name in archive.files]


def _csv(path: Path, asked: set[str]) -> _Pairs:
    """Read CSV as the standard library does, which can tell which row has too few or too many fields."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
        heads, *rows = [[field.strip() for field in line] for line in lines if line] or [[]]
    other = next((mark for mark in ",;\t|" if mark != delimiter and len(heads) == 1 and mark in heads[0]), None)
    if other:  # a log has more columns than one
        raise DataError(
            f"{path} separates its columns by {other!r}; a {path.suffix} file is read with {delimiter!r}: write it so, "
            f"with points in numbers, or pass the table that pandas.read_csv(..., sep={other!r}) reads"
        )
    ragged = [row for row, line in enumerate(rows) if len(line) != len(heads)]
    if ragged:
        refuse(ragged, f"has {len(rows[ragged[0]])} fields under {len(heads)} names", "write one field per column")
    columns = zip(*rows, strict=True) if rows else [()] * len(heads)
    return [(name, _typed(texts) if tidy(name) in asked else None) for name, texts in zip(heads, columns, strict=True)]


_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _typed(texts: Sequence[str]) -> Column:
    """Numbers where every entry is one as a program writes it, so that a label such as 007 stays text."""
    given = [text for text in texts if text]
    if not given or not all(map(_NUMBER.fullmatch, given)):
        return _array([text or None for text in texts])
    kind = int if all(text.lstrip("-").isdigit() and text != "-0" for text in given) else float
    return np.asarray([kind(text) if text else None for text in texts])


def _parquet(path: Path, asked: set[str]) -> _Pairs:
    polars = _polars()
    with path.open("rb") as file:  # a name is a pattern to polars
        names = list(polars.read_parquet_schema(file))
        file.seek(0)
        table = polars.read_parquet(file, columns=[name for name in names if tidy(name) in asked])
    return [(name, _entries(table[name]) if name in table.columns else None) for name in names]


def _polars() -> Any:
    try:
        return import_module("polars")
    except ModuleNotFoundError as error:
        raise MissingExtra('reading Parquet and Arrow needs polars: pip install "tddelta[tabular]"') from error


def _entries(column: Any) -> Column:
    """A column of pandas or Polars; integers with gaps would lose digits as floats."""
    whole = str(column.dtype).startswith(("Int", "UInt"))
    return np.asarray(column.to_list() if whole else column.to_numpy())


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


def _minari(dataset: Any) -> _Pairs:
    """Columns of a Minari dataset, in which an episode of T steps has T + 1 observations."""
    names = "episode", "state", "reward", "terminated", "truncated", "next_state"
    parts: list[tuple[Any, ...]] = []
    for episode in dataset.iterate_episodes():
        seen, steps = episode.observations, len(episode.rewards)
        what = f"episode {episode.id} of the Minari dataset has"
        if not isinstance(seen, np.ndarray):
            raise DataError(
                f"{what} {type(seen).__name__} observations; only arrays can be read: pass a mapping of the columns "
                "that you need"
            )
        if len(seen) != steps + 1:
            raise DataError(
                f"{what} {len(seen)} observations for {steps} steps; there must be one more than steps: record the "
                "dataset anew"
            )
        seen = seen.reshape(steps + 1, -1)
        seen = seen[:, 0] if seen.shape[1] == 1 else seen
        flags = episode.terminations, episode.truncations
        parts.append((np.full(steps, episode.id), seen[:-1], episode.rewards, *flags, seen[1:]))
    columns: Iterable[Any] = map(np.concatenate, zip(*parts, strict=True)) if parts else [[]] * len(names)
    return list(zip(names, columns, strict=True))
