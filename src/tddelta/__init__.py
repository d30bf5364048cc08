"""Value functions split across time scales, TD(Δ).

The public names, resolved when they are first used: importing this package loads neither a deep-learning framework
nor anything else that a caller of the pure target functions does not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tddelta import tabular as tabular
    from tddelta import testing as testing
    from tddelta.decomposition import compose as compose
    from tddelta.decomposition import decompose as decompose
    from tddelta.deep.agents import AGENTS as AGENTS
    from tddelta.deep.agents import Agent as Agent
    from tddelta.deep.policy import load as load
    from tddelta.errors import CheckpointError as CheckpointError
    from tddelta.errors import CheckpointWarning as CheckpointWarning
    from tddelta.errors import ConfigError as ConfigError
    from tddelta.errors import ContractionWarning as ContractionWarning
    from tddelta.errors import DataError as DataError
    from tddelta.errors import MissingExtra as MissingExtra
    from tddelta.errors import ShapeError as ShapeError
    from tddelta.errors import StorageError as StorageError
    from tddelta.errors import TDDeltaError as TDDeltaError
    from tddelta.errors import TrackingWarning as TrackingWarning
    from tddelta.experiments import compare as compare
    from tddelta.experiments import sweep as sweep
    from tddelta.experiments import train as train
    from tddelta.experiments import tune as tune
    from tddelta.inspector import inspect as inspect
    from tddelta.queries import compose_discount as compose_discount
    from tddelta.queries import hyperbolic as hyperbolic
    from tddelta.queries import scale_advantages as scale_advantages
    from tddelta.queries import stopping_horizon as stopping_horizon
    from tddelta.queries import value_at as value_at
    from tddelta.runs import load_runs as load_runs
    from tddelta.targets import advantages as advantages
    from tddelta.targets import lambda_targets as lambda_targets
    from tddelta.targets import n_step_targets as n_step_targets
    from tddelta.targets import successors as successors
    from tddelta.targets import td_errors as td_errors
    from tddelta.timescales import TimeScales as TimeScales

__version__ = "0.1.0"

_HOMES = {
    "timescales": ("TimeScales",),
    "decomposition": ("compose", "decompose"),
    "targets": ("advantages", "lambda_targets", "n_step_targets", "successors", "td_errors"),
    "queries": ("compose_discount", "hyperbolic", "scale_advantages", "stopping_horizon", "value_at"),
    "deep.agents": ("AGENTS", "Agent"),
    "experiments": ("compare", "sweep", "train", "tune"),
    "deep.policy": ("load",),
    "runs": ("load_runs",),
    "inspector": ("inspect",),
    "errors": (
        "CheckpointError",
        "CheckpointWarning",
        "ConfigError",
        "ContractionWarning",
        "DataError",
        "MissingExtra",
        "ShapeError",
        "StorageError",
        "TDDeltaError",
        "TrackingWarning",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AGENTS",
    "Agent",
    "CheckpointError",
    "CheckpointWarning",
    "ConfigError",
    "ContractionWarning",
    "DataError",
    "MissingExtra",
    "ShapeError",
    "StorageError",
    "TDDeltaError",
    "TimeScales",
    "TrackingWarning",
    "__version__",
    "advantages",
    "compare",
    "compose",
    "compose_discount",
    "decompose",
    "hyperbolic",
    "inspect",
    "lambda_targets",
    "load",
    "load_runs",
    "n_step_targets",
    "scale_advantages",
    "stopping_horizon",
    "successors",
    "sweep",
    "tabular",
    "td_errors",
    "testing",
    "train",
    "tune",
    "value_at",
]


def __getattr__(name: str) -> object:
    if name in ("tabular", "testing"):
        return import_module(f"tddelta.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tddelta' has no attribute {name!r}")
    value = getattr(import_module(f"tddelta.{_HOME_OF[name]}"), name)
    globals()[name] = value  # found once, then an ordinary attribute
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
