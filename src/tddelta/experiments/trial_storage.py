"""What a search remembers: its trials in SQLite, and what it is about, so that it is resumed as it was begun."""

import errno
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tddelta.errors import CheckpointError, ConfigError
from tddelta.runs.files import append_rows, storing
from tddelta.runs.locking import lock

if TYPE_CHECKING:
    import optuna

Pruner = Literal["median", "halving", "none"]
"""How trials are given up early: see `tune`."""

STORAGE = "tune.db"
"""Name of the file that remembers the trials: SQLite, of numbers and JSON."""

_STUDY = "tune"  # its name within the file

_NUMBERS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}
"""What the system calls that which prevents SQLite from writing."""


@dataclass(frozen=True)
class Question:
    """What a search is about: remembered in its storage, so that it is resumed as it was begun.

    Attributes:
        environment: Name of the environment.
        agent: Name of the agent.
        settings: The settings of the preset and of every trial, before what is searched.
        search: Names of the settings searched.
        pruner: How trials are given up.
        seed: Of the sampler and of the seeds below.
        search_seeds: Seeds of every trial.
        evaluation_seeds: Seeds of the comparison at the end; none of them is a search seed.
    """

    environment: str
    agent: str
    settings: Mapping[str, Any]
    search: tuple[str, ...]
    pruner: str
    seed: int
    search_seeds: tuple[int, ...]
    evaluation_seeds: tuple[int, ...]


@contextmanager
def open_study(out: Path, question: Question, *, resume: bool) -> "Iterator[optuna.Study]":
    """Open the storage of a search, and keep other processes from it.

    Args:
        out: Folder of the search.
        question: What the search is about.
        resume: Whether there may be a search already.

    Raises:
        ConfigError: There is one, and it is not to be resumed or about something else; or another process has it open;
            or the folder cannot be made.
        CheckpointError: The storage is damaged or of another version.
        StorageError: The storage cannot be written, now or while it is open.
    """
    import optuna
    import sqlalchemy

    file = out / STORAGE
    if file.exists() and not resume:
        raise ConfigError(
            f"{file} exists already: pass resume=True to go on with that search, or choose another folder with out="
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written to ({error.strerror}): choose another folder with out=") from error
    event = {"event": "start", "time": datetime.now(UTC).isoformat(timespec="seconds")}
    append_rows(out / "timing.jsonl", [event])
    held, verbosity = lock(out), optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would tell of every study on the standard error
    storage: optuna.storages.RDBStorage | None = None
    try:
        with _as_sentences(file, RuntimeError, ValueError, KeyError):
            url = sqlalchemy.engine.URL.create("sqlite", database=str(file))
            storage = optuna.storages.RDBStorage(url.render_as_string(hide_password=False))
            study = optuna.create_study(
                study_name=_STUDY, storage=storage, direction="maximize", load_if_exists=True,
                pruner=_pruner(question.pruner),
            )  # fmt: skip
            begun = study.user_attrs.get("question")
        asked = json.loads(json.dumps(asdict(question)))
        if begun is not None and begun != asked:
            raise ConfigError(
                f"{file} is a search for something else, {_difference(begun, asked)}: choose another folder with out="
            )
        with _as_sentences(file):
            if begun is None:
                study.set_user_attr("question", asked)
            yield study
    finally:
        optuna.logging.set_verbosity(verbosity)
        if storage is not None:
            storage.remove_session()
            storage.engine.dispose()
        if held is not None:
            held.close()


@contextmanager
def _as_sentences(file: Path, *others: type[Exception]) -> Iterator[None]:
    """Say in a sentence what SQLite and Optuna find wrong with a storage, also by errors of other kinds.

    Raises:
        StorageError: It cannot be written.
        CheckpointError: It is damaged.
    """
    import optuna
    import sqlalchemy

    kinds: tuple[type[Exception], ...] = sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError
    try:
        yield
    except kinds + others as error:
        database = getattr(error, "orig", getattr(error.__cause__, "orig", None))
        number = _NUMBERS.get(getattr(database, "sqlite_errorcode", 0) & 0xFF)
        if number is None:
            raise CheckpointError(f"{file} is damaged, or of another version of Optuna ({error})") from error
        with storing(file):
            raise OSError(number, str(database)) from error


def _pruner(name: str) -> "optuna.pruners.BasePruner":
    import optuna

    if name == "median":
        # four trials to compare with, and two tenths of the steps before anybody is judged
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=3)
    if name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return optuna.pruners.NopPruner()


def _difference(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Name what differs, as in "pruner median there and none now"."""
    texts = []
    for name in asked:
        old, new = begun.get(name), asked[name]
        if name == "settings" and isinstance(old, dict):
            texts += [f"{key} {old.get(key)!r} there and {new[key]!r} now" for key in new if old.get(key) != new[key]]
        elif old != new:
            texts.append(f"{name} {old!r} there and {new!r} now")
    return "; ".join(texts)
