"""Arguments from users: values made plain in one place before anything judges them, and functions and classes.

These are named as "module:name"; what they raise becomes one sentence; and names that are nearly right get a hint.
"""

import functools
import importlib
import math
import os
import traceback
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, ClassVar, TypeGuard

import numpy as np

from tddelta.errors import ConfigError, TDDeltaError, setting


def plain(value: Any) -> Any:
    """A value as Python's own: numbers, text and flags of NumPy, JAX or PyTorch, also within lists, tuples and dicts.

    Arrays become lists. What is traced by a compiler, and everything else, stays as it is.
    """
    if isinstance(value, Mapping):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, Decimal | Fraction):
        return float(value)
    if isinstance(value, np.generic):
        found = value.item()
        return float(value) if isinstance(found, np.generic) else found  # such as a long double, or half precision
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        try:
            return plain(value.tolist())
        except (TypeError, RuntimeError):  # traced
            return value
    return value


def tidy(name: Any) -> Any:
    """A name without blanks around it and without invisible characters, such as a byte order mark."""
    if not isinstance(name, str):
        return name
    return "".join(one for one in name if unicodedata.category(one) != "Cf").strip()


def is_number(value: Any) -> TypeGuard[int | float]:
    """Tell whether a plain value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(name: str, value: Any) -> float:
    """One number, which may be infinite or NaN."""
    value = as_real(value)
    if not is_number(value):
        advice = unquoted(value) or ": pass a Python float"
        raise ConfigError(
            f"{setting(name)} must be a plain number, known before compilation; got {value!r:.80}{advice}"
        )
    return float(value)


def finite(name: str, value: Any) -> float:
    """One finite number."""
    value = plain(value)
    if not (is_number(value) and -math.inf < value < math.inf):
        raise ConfigError(f"{name} must be one finite number; got {value!r:.80}: pass a Python float")
    return float(value)


def as_whole(value: Any) -> Any:
    """A whole number as an int, also where it is written as 1e6; anything else as plain as it can be."""
    value = plain(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def whole_text(text: str) -> int:
    """A whole number from text such as 200_000 or 1e6; a ValueError where it is none."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def as_real(value: Any) -> Any:
    """A whole number as a float, anything else as plain as it can be; infinity for one that no float can hold."""
    value = plain(value)
    if type(value) is not int:
        return value
    return float(value) if abs(value) < 10**300 else math.inf if value > 0 else -math.inf


def whole(name: str, value: Any, least: int = 1, most: int | None = None, advice: str = "") -> int:
    """A whole number of at least `least` and at most `most`, with a ConfigError that ends in `advice` otherwise."""
    found = as_whole(value)
    if type(found) is not int or found < least:
        advice = f": {advice or ('pass a positive int' if least == 1 else 'pass a larger int')}"
        raise ConfigError(
            f"{setting(name)} must be a whole number of at least {least}; got {value!r:.80}{unquoted(found) or advice}"
        )
    if most is not None and found > most:
        raise ConfigError(f"{setting(name)} must be at most {most:,}; got {value!r:.80}: pass a smaller one")
    return found


def one_of(name: str, value: Any, options: Sequence[str], also: str = "") -> str:
    """A text that is one of the options; the error suggests the closest one."""
    if not isinstance(value, str) or value not in options:
        close = get_close_matches(str(value), options, n=1, cutoff=0)[0]
        said = f"{setting(name)} must be {also}one of {', '.join(options)}; got {value!r}"
        raise ConfigError(f"{said}: did you mean {close!r}?")
    return value


def entries(name: str, values: Any) -> tuple[Any, ...]:
    """Any sequence as a tuple."""
    values = plain(values)
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{setting(name)} must be a sequence of numbers; got {values!r}: pass a list or tuple")
    return tuple(map(plain, values))


def _hash(options: Mapping[Any, Any]) -> int:
    return hash(frozenset(options.items()))


class Options(dict[Any, Any]):
    """Plain options that can be a key: what a program is compiled for, and found again by."""

    __hash__: ClassVar[Any] = _hash


class Pairs(tuple[Any, ...]):
    """A tuple that equals another only where both also read alike: True, 1 and 1.0 are three options."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and tuple.__eq__(self, other) and repr(self) == repr(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def unquoted(value: Any) -> str:
    """The end of a sentence about a number that came as text; empty for anything else."""
    with suppress(ValueError):
        if isinstance(value, str) and math.isfinite(float(value)):
            return ": write it without quotes"
    return ""


def frozen(value: Any) -> Any:
    """A plain value with tuples in place of lists and `Options` in place of dicts, so that it has a hash."""
    if isinstance(value, Mapping):
        return Options((key, frozen(entry)) for key, entry in value.items())
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


# ---------------------------------------------------------------- functions and classes by name

_OTHERS = (os.path.dirname(__file__), os.path.dirname(os.__file__), "site-packages", "dist-packages", "<frozen ")
"""Parts of the paths of code that is not the user's."""


@contextmanager
def blamed(what: str, *, advice: str = "", passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what a function of the user's raises into a ConfigError of one sentence; also a decorator of that function.

    The sentence is, say, "the target function mine:f raised" (`what`), the exception, ": check its options" (`advice`).
    Our own exceptions and those `passing` stay as they are.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (TDDeltaError, *passing)):
            raise
        raise ConfigError(f"{what} {described(error)}{advice}") from error


def described(error: BaseException) -> str:
    """Kind of an exception, first line of its message, and its place: the innermost in code of the user's, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    where = (_users(frames) or frames)[-1]
    text = ": ".join(filter(None, (type(error).__name__, str(error).strip().partition("\n")[0])))
    return f"{text} ({where.filename}, line {where.lineno}, in {where.name})"


def _users(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    return [one for one in frames if not any(part in one.filename for part in _OTHERS)]


def reference(function: Any) -> str:
    """Name of a function or class: "module:qualified name"; of a partial also its arguments."""
    if isinstance(function, functools.partial):
        given = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        return f"{reference(function.func)}({', '.join(given)})"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def imported(path: str, what: str) -> Any:
    """The object at "package.module:name", or a ConfigError that says what it should be, and why it is not there."""
    module_name, _, attribute = path.partition(":")
    with blamed(f"{module_name}, named by {path!r}, cannot be imported,"):
        try:
            found: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as error:
            if _users(traceback.extract_tb(error.__traceback__)):  # the module is there, and raises
                raise
            raise ConfigError(
                f"no {what} at {path!r}: {error}; name it package.module:name with the module on the Python path"
            ) from error
    return found


def counted(number: int, noun: str) -> str:
    """A number of things, as in "1 episode" and "1,000 episodes"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def closest(name: str, known: tuple[str, ...]) -> str:
    """The end of an error sentence: the closest known name; all of them if none is close and they are few."""
    if not name.strip():
        return "name one"
    folded = {one.casefold(): one for one in reversed(known)}
    match = get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    if match:
        return f"did you mean {folded[match[0]]}?"
    if len(known) <= 12:
        return f"known are {', '.join(known)}"
    nearest = get_close_matches(name.casefold(), folded, n=1, cutoff=0.0)[0]
    return f"the closest of the {len(known)} known names is {folded[nearest]}"
