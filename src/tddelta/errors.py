"""What can go wrong, by kind.

Every message says what was wrong, the value received and what to do. The first three kinds are also `ValueError`, and
a missing extra is also an `ImportError`, so that code which knows nothing of this library catches them as usual.
"""

import unicodedata


class TDDeltaError(Exception):
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


class CheckpointWarning(UserWarning):
    """A damaged checkpoint or run was passed over, or an agent acts in another precision than it was trained in."""


class ContractionWarning(UserWarning):
    """Some component's targets do not contract: full steps towards them make it grow.

    The usual warning filters apply: `warnings.simplefilter("ignore", ContractionWarning)` silences it.
    """


class TrackingWarning(UserWarning):
    """A tracker such as TensorBoard cannot follow a run; the run itself goes on."""


def printable(text: str) -> str:
    """Text without control characters, which a terminal would obey: a stranger's files may hold some. Lines stay."""
    return "".join(one for one in text if one in "\n\t" or unicodedata.category(one) != "Cc")
