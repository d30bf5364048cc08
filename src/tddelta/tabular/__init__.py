"""The tabular laboratory: finite MDPs, exact values, and TD(Δ) in compiled loops. Algorithm 1 is in `n_step`.

The public names, resolved when they are first used: importing this package loads neither numba nor polars.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tddelta.tabular.action_values import ControlResult as ControlResult
    from tddelta.tabular.action_values import control as control
    from tddelta.tabular.bounds import PhasedBound as PhasedBound
    from tddelta.tabular.bounds import counterexample as counterexample
    from tddelta.tabular.bounds import counterexample_probability as counterexample_probability
    from tddelta.tabular.bounds import error_bound as error_bound
    from tddelta.tabular.bounds import lambda_operator as lambda_operator
    from tddelta.tabular.evaluation import TabularResult as TabularResult
    from tddelta.tabular.evaluation import add_scale as add_scale
    from tddelta.tabular.evaluation import evaluate as evaluate
    from tddelta.tabular.evaluation import remove_scale as remove_scale
    from tddelta.tabular.logs import LogValues as LogValues
    from tddelta.tabular.logs import evaluate_log as evaluate_log
    from tddelta.tabular.mdp import FiniteMDP as FiniteMDP
    from tddelta.tabular.sampling import Trajectory as Trajectory
    from tddelta.tabular.sampling import sample as sample
    from tddelta.tabular.tiles import TileCoding as TileCoding
    from tddelta.tabular.tiles import one_hot as one_hot

_HOMES = {
    "action_values": ("ControlResult", "control"),
    "bounds": ("PhasedBound", "counterexample", "counterexample_probability", "error_bound", "lambda_operator"),
    "evaluation": ("TabularResult", "add_scale", "evaluate", "remove_scale"),
    "logs": ("LogValues", "evaluate_log"),
    "mdp": ("FiniteMDP",),
    "sampling": ("Trajectory", "sample"),
    "tiles": ("TileCoding", "one_hot"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tddelta.tabular' has no attribute {name!r}")
    value = getattr(import_module(f"tddelta.tabular.{_HOME_OF[name]}"), name)
    globals()[name] = value  # found once, then an ordinary attribute
    return value


def __dir__() -> list[str]:
    return list(__all__)
