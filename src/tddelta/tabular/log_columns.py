"""What the entries of a log's columns mean: numbers, flags, moments and labels, or the row that is none of these."""

import math
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from tddelta.tabular.arrays import BoolArray, FloatArray
from tddelta.tabular.log_files import Column, refuse

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
