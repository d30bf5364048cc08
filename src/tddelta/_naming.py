"""What users name: their functions and classes as "module:name", what these raise, and names that are nearly right."""

import difflib
import functools
import importlib
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tddelta.errors import ConfigError, TDDeltaError

_OTHERS = (os.path.dirname(__file__), os.path.dirname(os.__file__), "site-packages", "dist-packages", "<frozen ")
"""What the paths of code contain that is not the user's."""


@contextmanager
def blamed(what: str, *, advice: str = "", passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what a function of the user's raises into one sentence; also a decorator of that function.

    Args:
        what: How the sentence begins, as in "the target function mine:f raised".
        advice: How it ends, as in ": check its options".
        passing: Kinds of exceptions to leave as they are, besides our own.

    Raises:
        ConfigError: In place of the exception, which is its cause.
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
    """Where a function or class is: "module:qualified name"; of a partial also its arguments."""
    if isinstance(function, functools.partial):
        given = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        return f"{reference(function.func)}({', '.join(given)})"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def imported(path: str, what: str) -> Any:
    """The object at "package.module:name".

    Args:
        path: Module and name, separated by a colon.
        what: What it should be, for the error.

    Raises:
        ConfigError: If the module or the name does not exist, or the module cannot be imported.
    """
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


def closest(name: str, known: tuple[str, ...]) -> str:
    """The end of an error sentence: the closest known name; all of them if none is close and they are few."""
    if not name.strip():
        return "name one"
    folded = {one.casefold(): one for one in reversed(known)}
    match = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    if match:
        return f"did you mean {folded[match[0]]}?"
    if len(known) <= 12:
        return f"known are {', '.join(known)}"
    nearest = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.0)[0]
    return f"the closest of the {len(known)} known names is {folded[nearest]}"
