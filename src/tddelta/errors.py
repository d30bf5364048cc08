"""Errors and warnings by kind.

Every message says what was wrong, the value received and what to do. The first three kinds are also `ValueError`, and
a missing extra is also an `ImportError`, so that code which knows nothing of this library catches them as usual.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Self

_MARKED = re.compile("\x02(.*?)\x1f(.*?)\x1f(.*?)\x03", re.DOTALL)


def setting(name: str, value: Any = ...) -> str:
    """Mark a setting or argument in a message: Python's users read `lam` or `lam=0.9`, those of a command `--lam 0.9`.

    Args:
        name: Its name in Python.
        value: What to pass; "" leaves that to the reader, as in `lam=`.
    """
    python = name if value is ... else f"{name}={'' if value == '' else repr(value)}"
    several = value if isinstance(value, list | tuple) else [] if value is ... else [value]
    words = " ".join("none" if one is None else str(one) for one in several)
    return f"\x02{name}\x1f{python}\x1f{words}\x03"


class _Message(Exception):  # noqa: N818  (of an error or a warning)
    """An exception whose message may have marked settings."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        plain = [_MARKED.sub(r"\2", one) if isinstance(one, str) else one for one in arguments]
        super().__init__(*plain, **named)
        only = arguments[0] if len(arguments) == 1 else None
        self._text = only if isinstance(only, str) else str(self)

    @property
    def setting(self) -> str | None:
        """Name of the setting or argument that is wrong, the first of the message; None where it has none."""
        found = _MARKED.search(self._text)
        return None if found is None else found[1]

    def within(self, outer: str) -> Self:
        """Return the error as one of a setting that is part of another: "rule in scales must be …"."""
        return type(self)(_MARKED.sub(lambda found: f"{found[2]} in {setting(outer)}", self._text, count=1))

    def alone(self) -> Self:
        """Return an error of this kind and message with nothing else, such as a cause or notes."""
        return type(self)(self._text)

    def written(self, write: Callable[[str, str, str], str]) -> str:
        """Return the message with `write(name, python, words)` for each setting: as in "lam", "lam=0.9" and "0.9"."""
        return _MARKED.sub(lambda found: write(*found.groups()), self._text)


class TDDeltaError(_Message):
    """Any error raised on purpose by this library."""


class ConfigError(TDDeltaError, ValueError):
    """A setting is out of range, unknown, missing, or contradicts another one."""


class ShapeError(TDDeltaError, ValueError):
    """An array has the wrong shape, dtype or framework."""


class DataError(TDDeltaError, ValueError):
    """Data cannot be used: not-a-number in a reward, a file that does not hold what it should."""


class MissingExtra(TDDeltaError, ImportError):  # noqa: N818  (the name says what is missing, the base class that it is an error)
    """A feature needs packages that are not installed; the message holds the install command."""


class CheckpointError(TDDeltaError):
    """A saved file is damaged, of another format, or written by a newer version."""


class StorageError(TDDeltaError, OSError):
    """A file cannot be written: the disk is full, the folder is read-only or has vanished."""


class CheckpointWarning(_Message, UserWarning):
    """A damaged checkpoint or run was passed over, or an agent acts in another precision than it was trained in."""


class ContractionWarning(_Message, UserWarning):
    """Some component's targets do not contract: full steps towards them make it grow.

    The usual warning filters apply: `warnings.simplefilter("ignore", ContractionWarning)` silences it.
    """


class TrackingWarning(_Message, UserWarning):
    """A tracker such as TensorBoard cannot follow a run; the run itself goes on."""


def printable(text: str) -> str:
    """Text without control characters, which a terminal would obey: a stranger's files may hold some. Lines stay."""
    return "".join(one for one in text if one in "\n\t" or unicodedata.category(one) != "Cc")
