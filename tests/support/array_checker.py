"""Run-time check of array annotations: shapes and dtypes, by beartype, in the whole test run.

Plain types are mypy's. The functions of `_CHECKED_BY_THEMSELVES` meet wrong arrays with sentences of their own, which
their tests read: of these only the results are checked.
"""

from collections.abc import Callable
from inspect import isclass
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray

_CHECKED_BY_THEMSELVES = ("tddelta.decomposition", "tddelta.queries", "tddelta.targets")


def arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the hints of a function that name shapes, and no others."""
    public = function.__module__ in _CHECKED_BY_THEMSELVES and not function.__name__.startswith("_")
    hints = function.__annotations__
    kept = {name for name, hint in hints.items() if _names_a_shape(hint) and (name == "return" or not public)}
    if not kept:
        return function
    function.__annotations__ = {name: hint if name in kept else Any for name, hint in hints.items()}
    return beartype(function)


def _names_a_shape(hint: Any) -> bool:
    return (isclass(hint) and issubclass(hint, AbstractArray)) or any(map(_names_a_shape, get_args(hint)))
