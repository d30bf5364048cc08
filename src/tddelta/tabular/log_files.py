"""Columns of a log: from NPZ, CSV or Parquet files, tables, mappings of arrays, or Minari datasets."""

import csv
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tddelta._plain import tidy
from tddelta.errors import ConfigError, DataError, MissingExtra
from tddelta.runs.files import UNREADABLE

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
