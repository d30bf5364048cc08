"""Reference scores that put the returns of different environments on one scale.

The tables are data (`references/*.json`), with the source of every number.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta.errors import ConfigError
from tddelta.report.statistics import FloatArray

_TABLES = ("minatar", "atari")

# what names of Atari games carry besides the game: "gym:ALE/Alien-v5", "AlienNoFrameskip-v4"
_ATARI_NAME = re.compile(r"(?:gym:)?(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?")


@dataclass(frozen=True)
class Reference:
    """Two scores of one environment that fix its scale.

    Attributes:
        suite: Name of the table; aggregates never mix two tables.
        unit: What 0 and 1 mean.
        random: Return of uniformly random play.
        reference: Return that counts as 1.
        source: Where both numbers come from.
    """

    suite: str
    unit: str
    random: float
    reference: float
    source: str

    def normalise(self, scores: npt.ArrayLike) -> FloatArray:
        """Return (score − random) / (reference − random)."""
        return np.asarray((np.asarray(scores, np.float64) - self.random) / (self.reference - self.random), np.float64)


def find_reference(
    environment: str,
    given: Mapping[str, tuple[float, float]] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Reference | None:
    """Look an environment up in the tables.

    Args:
        environment: Its name, such as "Breakout-MinAtar", "Alien" or "gym:ALE/Alien-v5".
        given: The user's own (random, reference) scores by environment; they come before the tables.
        parameters: Parameters of the environment that the runs changed: such a variant has no entry in the tables.

    Returns:
        The reference, or None without an entry.

    Raises:
        ConfigError: A user's own pair has two equal scores.
    """
    if given and environment in given:
        random, reference = (float(score) for score in given[environment])
        if random == reference:
            raise ConfigError(
                f"references[{environment!r}] must be two different scores (random, reference); got {random} twice"
            )
        return Reference(
            "given", "score between the two that were given: 0 the first, 1 the second", random, reference, "given"
        )
    if parameters:
        return None
    for table in _TABLES:
        content = _table(table)
        name = _atari_name(environment) if table == "atari" else environment
        row = content["environments"].get(name)
        if row is not None:
            sources = dict.fromkeys(content["sources"][row[key]] for key in ("random_source", "reference_source"))
            return Reference(content["name"], content["unit"], row["random"], row["reference"], " ".join(sources))
    return None


def atari_game(config: Mapping[str, Any]) -> str | None:
    """Return the game that a run is of, such as "Qbert", or None where it is not one under the classic protocol.

    Args:
        config: What `config.json` holds.
    """
    meant = config.get("environment_parameters", {})
    changed = set(config.get("environment_kwargs", {})) - {"protocol", "threads"}
    return str(meant["game"]) if "game" in meant and meant.get("protocol") == "classic" and not changed else None


def _atari_name(environment: str) -> str:
    match = _ATARI_NAME.fullmatch(environment)
    return match.group(1) if match else environment


@cache
def _table(name: str) -> dict[str, Any]:
    text = resources.files("tddelta.report").joinpath("references", f"{name}.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
