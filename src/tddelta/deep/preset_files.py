"""Settings in a file: what `tddelta tune` writes and `--preset` reads. Names and values only, never code."""

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tddelta._naming import closest
from tddelta.deep import environments as known_environments
from tddelta.deep.agents import Agent, resolve
from tddelta.deep.config import Config
from tddelta.errors import ConfigError, own_checks
from tddelta.runs.files import replace
from tddelta.runs.reading import a_path

FORMAT = 1
"""The version of the file's layout. A reader refuses a newer one."""

_PARTS = ("format", "environment", "agent", "settings", "tuning")
_APART = ("environment", "environment_kwargs", "agent")  # named by the file itself, or by who uses it
_NAMES = tuple(field.name for field in dataclasses.fields(Config) if field.name not in _APART)


@dataclasses.dataclass(frozen=True)
class PresetFile:
    """Settings for one agent in one environment.

    Attributes:
        path: The file.
        environment: Name of the environment.
        agent: Name of the agent.
        settings: Fields of `Config` and their values.
    """

    path: Path
    environment: str
    agent: str
    settings: Mapping[str, Any]

    @property
    def whose(self) -> str:
        """Agent and environment in words."""
        return f"{self.agent} on {self.environment}"

    def is_for(self, environment: Any, agent: str | Agent, environment_kwargs: Any = ()) -> bool:
        """Whether the settings were made for this agent in this environment."""
        if resolve(agent).name != self.agent:
            return False
        if isinstance(environment, str):
            short = known_environments.SHORT_NAMES
            return short.get(environment, environment) == short.get(self.environment, self.environment)
        return known_environments.resolve(environment, dict(environment_kwargs)).name == self.environment


@own_checks
def read_preset(path: str | os.PathLike[str]) -> PresetFile:
    """Read a preset file.

    Args:
        path: A TOML file with `format`, `environment`, `agent` and a table `settings`.

    Raises:
        ConfigError: The file is missing, is no preset file, is of a newer format, names an unknown setting, or names
            code to run.
    """
    path = a_path(path, "a preset file", "a file that tune wrote")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read as a preset file ({reason}): name one that tune wrote") from error
    for name in found:
        if name not in _PARTS:
            raise ConfigError(f"{path}: unknown key {name!r}: {closest(name, _PARTS)}")
    version = found.get("format")
    if type(version) is not int or version < 1:
        raise ConfigError(f"{path} must say format = {FORMAT}; got {version!r}: is it a preset file?")
    if version > FORMAT:
        raise ConfigError(f"{path} has format {version}, and this tddelta reads up to {FORMAT}: install a newer one")
    environment, agent, settings = found.get("environment"), found.get("agent"), found.get("settings")
    if not (isinstance(environment, str) and isinstance(agent, str) and isinstance(settings, dict)):
        raise ConfigError(f"{path} must name an environment, an agent and a table [settings]: is it a preset file?")
    for name, value in settings.items():
        if name not in _NAMES:
            raise ConfigError(f"{path}: unknown setting {name!r}: {closest(name, _NAMES)}")
        if isinstance(value, str) and ":" in value:
            raise ConfigError(
                f"{path}: {name} = {value!r} names code, and a preset file holds values only: drop it there, and "
                f"pass it yourself, with {name}="
            )
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return PresetFile(path, environment, agent, plain)


def with_preset_files(
    files: Sequence[PresetFile], whom: Sequence[tuple[Any, str | Agent]], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Put the settings of files under those that were given.

    Args:
        files: Preset files.
        whom: Pairs of an environment and an agent.
        settings: Settings of all pairs, which win over a file's.

    Returns:
        The settings of each pair: with those of the file that was made for it, if there is one.

    Raises:
        ConfigError: A file is for none of the pairs, or two are for the same.
    """
    merged = [dict(settings) for _ in whom]
    taken: dict[int, PresetFile] = {}
    for file in files:
        kwargs = settings.get("environment_kwargs", ())
        mine = [place for place, (environment, agent) in enumerate(whom) if file.is_for(environment, agent, kwargs)]
        if not mine:
            raise ConfigError(f"{file.path} holds settings for {file.whose}, which is not trained here: leave it out")
        for place in mine:
            if place in taken:
                raise ConfigError(f"{taken[place].path} and {file.path} are both for {file.whose}: pass one of them")
            taken[place] = file
            merged[place] = {**file.settings, **settings}
    return merged


def write_preset(path: Path, environment: str, agent: str, settings: Mapping[str, Any], **tuning: Any) -> None:
    """Write a preset file.

    Args:
        path: The file; one that is there is replaced.
        environment: Name of the environment.
        agent: Name of the agent.
        settings: Fields of `Config` and their values: numbers, names, lists of them.
        **tuning: How they were found, for people to read.
    """
    lines = [f"format = {FORMAT}", f"environment = {_toml(environment)}", f"agent = {_toml(agent)}"]
    for title, table in (("settings", settings), ("tuning", tuning)):
        if table or title == "settings":
            lines += ["", f"[{title}]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
    replace(path, ("\n".join(lines) + "\n").encode())


def _toml(value: Any) -> str:
    """A value as TOML writes it: strings, numbers and lists are as in JSON."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
