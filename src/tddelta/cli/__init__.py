"""The command line: `tddelta COMMAND ...`. Parse, call, print; everything it does can be done from Python.

Exit codes: 0 done, 1 failed while running, 2 wrong usage, 129 after SIGHUP, 130 after Ctrl-C, 143 after SIGTERM.
"""

import inspect
import os
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro

import tddelta
from tddelta._plain import closest, whole_text
from tddelta._streams import lasting_streams
from tddelta.cli.reading import Evaluate, Inspect, Redraw, Scales, options_of
from tddelta.cli.reproduce import Reproduce
from tddelta.cli.sweep import Critics, Sweep, Tune
from tddelta.cli.training import Compare, Train, with_settings
from tddelta.cli.values import Values
from tddelta.errors import (
    CheckpointError,
    CheckpointWarning,
    ConfigError,
    ContractionWarning,
    DataError,
    StorageError,
    TDDeltaError,
    TrackingWarning,
    printable,
)
from tddelta.timescales import FORMER

COMMANDS: dict[str, Any] = {
    "scales": Scales,
    "train": Train,
    "compare": Compare,
    "sweep": Sweep,
    "tune": Tune,
    "critics": Critics,
    "evaluate": Evaluate,
    "inspect": Inspect,
    "report": Redraw,
    "reproduce": Reproduce,
    "values": Values,
}
"""The commands by name. Each is a frozen dataclass: its fields are the options, `run()` does the work."""

_EXTRAS = {
    **dict.fromkeys(("equinox", "flax", "gymnax", "jax", "optax", "six"), "train"),
    **dict.fromkeys(("numba", "polars"), "tabular"),
    **dict.fromkeys(("tensorboardX", "wandb"), "track"),
    **{"imageio_ffmpeg": "video", "ale_py": "atari", "gymnasium": "gym", "optuna": "tune", "ray": "ray"},
}
"""The extra that each package belongs to, for those that are found missing where they are imported."""

_DESCRIPTION = """Value functions split across time scales: train agents with and without.
  First steps:
    tddelta scales --gamma 0.99                 the ladder of time scales below a discount
    tddelta train CartPole-v1 --steps 200_000   one agent, one seed
    tddelta compare Breakout-MinAtar --agents ppo ppo-delta --seeds 3
                                                agents and seeds, a table, report.html
    tddelta sweep study.toml                    a study in a file, on one machine or many
  `tddelta COMMAND --help` explains a command, `tddelta --version` tells the version.
  Exit codes: 0 done, 1 failed while running, 2 wrong usage, 129 after SIGHUP,
  130 after Ctrl-C, 143 after SIGTERM."""


_NUMBERS = tyro.constructors.ConstructorRegistry()


@_NUMBERS.primitive_rule
def _whole_numbers(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Options that are whole numbers, also written as 1e6 or 32.0."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_text(words[0]),
        is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: What follows `tddelta` on the command line; None takes it from there.

    Returns:
        The exit code.
    """
    # XLA's alarms, such as "Very slow compile?", are errors to it (level 2). What fails raises an exception as well.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    given = list(sys.argv[1:] if arguments is None else arguments)
    with lasting_streams() as failures:
        code = _handled(given)
        sys.stdout.flush()
        if failures:
            _complain(f"the output cannot be written: {failures[0].strerror}")
        return 1 if failures and not code else code


def _handled(given: list[str]) -> int:
    before = warnings.showwarning
    try:
        return _dispatch(given)
    except KeyboardInterrupt:
        _complain("interrupted")
        if any(thread.name.startswith("run-") for thread in threading.enumerate()):  # a second one: do not wait
            sys.stdout.flush()
            os._exit(130)
        return 130
    except TDDeltaError as error:
        _complain(str(error))
        return 1 if isinstance(error, DataError | CheckpointError | StorageError) else 2
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        _complain(f'{missing} is not installed: pip install "tddelta[{_EXTRAS[missing]}]"')
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        place = "" if error.filename is None else f"{error.filename}: "
        _complain(f"{place}{error.strerror or error}")
        return 1
    finally:
        warnings.showwarning = before


def _dispatch(given: list[str]) -> int:
    name = given[0] if given else "--help"
    if name == "--version":
        print(f"tddelta {tddelta.__version__}")
        return 0
    if name in COMMANDS:
        if os.getcwd() not in sys.path:  # for package.module:name in the folder where the user is
            sys.path.append(os.getcwd())
        command = COMMANDS[name]
        if issubclass(command, Scales | Train | Compare | Tune | Critics | Values):
            _refuse_former(given[1:])
        parsed: Any = tyro.cli(
            with_settings(command) if issubclass(command, Train | Compare | Tune | Critics) else command,
            prog=f"tddelta {name}",
            description=_description(command),
            args=given[1:],
            config=(tyro.conf.OmitArgPrefixes,),
            registry=_NUMBERS,
        )
        warnings.showwarning = _warning_printer(parsed)
        try:
            return int(parsed.run(["tddelta", *given]))
        except TDDeltaError as error:
            error.args = (error.written(options_of(parsed)),)
            raise
    if not name.startswith("-"):
        _complain(f"unknown command {name!r}: {closest(name, tuple(COMMANDS))}")
        return 2
    choices: Any = None
    for known, command in COMMANDS.items():
        summary = tyro.conf.subcommand(known, description=_description(command).partition("\n")[0])
        choice: Any = Annotated[command, summary]
        choices = choice if choices is None else choices | choice
    tyro.cli(choices, prog="tddelta", description=_DESCRIPTION, args=given or ["--help"])
    return 0  # not reached: help and errors leave through SystemExit


def _refuse_former(words: Sequence[str]) -> None:
    """ConfigError for an option of before that --scales says now."""
    options = {f"--{name.replace('_', '-')}": scales for name, scales in FORMER.items()}
    for word in words:
        option = word.partition("=")[0].replace("_", "-")
        if option in options:
            scales = options[option]
            text = scales if isinstance(scales, str) else " ".join(map(str, scales))
            raise ConfigError(f"{option} is part of --scales now: pass, say, --scales {text}")


def _description(command: Any) -> str:
    """The command's docstring in lines that fit a terminal; tyro keeps breaks before indented lines only."""
    summary, *paragraphs = inspect.cleandoc(command.__doc__).split("\n\n")
    lines = [textwrap.fill(text, 78, initial_indent="  ", subsequent_indent="  ") for text in paragraphs]
    return "\n".join([summary, *lines])


def _complain(text: str) -> None:
    print(f"tddelta: {printable(text)}", file=sys.stderr, flush=True)


def _warning_printer(command: Any) -> Callable[..., None]:
    """Return a `warnings.showwarning` that prints our own warnings in words of a command, and others as usual."""
    said: set[str] = set()  # Python's own record of what was said is lost when a library changes the filters
    usual = warnings.showwarning

    def show(message: Warning | str, *where: Any) -> None:
        if not isinstance(message, CheckpointWarning | ContractionWarning | TrackingWarning):
            usual(message, *where)
        elif str(message) not in said:
            said.add(str(message))
            _complain(f"warning: {message.written(options_of(command))}")

    return show
