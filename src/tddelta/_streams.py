"""Going on without a terminal: standard streams that outlive whoever reads them, and the signal of its end."""

import codecs
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

_GONE = (errno.EPIPE, errno.EIO)
"""Error numbers of a pipe that nobody reads, and of a terminal that was closed."""


_INSTEAD = {"−": "-", "–": "-", "─": "-", "×": "x", "±": "+-", "∞": "inf", "γ": "gamma", "λ": "lambda", "…": "..."}


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    """Give the bytes of a file name that is no text as they are, and ASCII for what the encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    return b"".join(
        bytes([ord(one) - 0xDC00]) if "\udc80" <= one <= "\udcff" else _INSTEAD.get(one, "?").encode() for one in found
    ), error.end


codecs.register_error("tddelta.replace", _replaced)


class _Lasting(io.TextIOWrapper):
    """A stream that leads into nothing once it cannot be written; an error other than `_GONE` is kept in `failures`."""

    failures: list[OSError]

    def write(self, text: str) -> int:
        with self._outlived():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._outlived():
            super().flush()

    @contextmanager
    def _outlived(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _GONE:
                self.failures.append(error)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)


@contextmanager
def lasting_streams() -> Iterator[list[OSError]]:
    """Let whatever is written to the standard output and the standard error meanwhile succeed.

    ASCII stands for what their encoding lacks, as in "lambda", or "?". What is written once the pipe or the terminal is
    closed is lost; other errors of writing, such as that of a full disk, are yielded in a list. Streams that were put
    in the place of these two, such as a notebook's, only get the replacement.
    """
    failures: list[OSError] = []
    before = sys.stdout, sys.stderr
    if None in (sys.stdin, *before):  # closed, as by 2>&-: the next file must not get the number of a stream
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
    with ExitStack() as stack:
        sys.stdout, sys.stderr = (_lasting(*each, failures, stack) for each in zip(before, (1, 2), strict=True))
        try:
            yield failures
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            sys.stdout, sys.stderr = before


def _lasting(stream: Any, number: int, failures: list[OSError], stack: ExitStack) -> Any:
    if stream is None:
        return stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _Lasting):
        return stream
    with suppress(OSError, ValueError):
        stream.flush()
        if stream.fileno() == number:
            lasting = _Lasting(
                io.BufferedWriter(io.FileIO(number, "wb", closefd=False)),
                encoding=stream.encoding,
                errors="tddelta.replace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            lasting.failures = failures
            return lasting
    stack.callback(stream.reconfigure, errors=stream.errors)
    stream.reconfigure(errors="tddelta.replace")
    return stream


def written(text: str) -> str:
    """Return a text as the standard output will show it."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "tddelta.replace").decode(encoding, "replace")


def hang_ups() -> list[signal.Signals]:
    """Return SIGHUP, which says that the terminal is closed, in a list: empty where it is ignored, as under nohup."""
    found = [one for one in signal.Signals if one.name == "SIGHUP"]  # which not every system has
    return [one for one in found if signal.getsignal(one) is not signal.SIG_IGN]
