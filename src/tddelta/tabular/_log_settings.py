"""Checks of what `evaluate_log` is asked to do.

Arguments annotated `Any` come from the user. An option that would do nothing is a misunderstanding, and refused.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from tddelta import _plain
from tddelta.errors import ConfigError
from tddelta.tabular.log_steps import Names
from tddelta.timescales import TimeScales


def column_names(features: Any, model: Any, state: Any, options: dict[str, Any]) -> Names:
    """What the columns are called, and how the rows are to be read."""
    if model not in (None, "tiles", "linear"):
        raise ConfigError(f"model must be 'tiles' or 'linear', or None for labels; got {model!r}: pass one of these")
    if features is not None:
        if model is None:
            raise ConfigError("features need a model; got None: pass model='tiles' or model='linear'")
        _refuse({"state": state}, "beside features", "features stand in its place")
        features = _columns("features", features)
    labels = _columns("state", "state" if state is None else state)
    if model is not None and features is None:
        features = labels
    for name in ("episode", "reward", "terminated", "truncated", "time"):
        if options[name] is not None or name in ("episode", "reward"):
            options[name] = _column(name, options[name])
    prefix, last_row, unit = (options[name] for name in ("next_prefix", "last_row", "time_unit"))
    if not isinstance(prefix, str) or not prefix:
        raise ConfigError(f"next_prefix must be a text; got {prefix!r}: pass what stands before the names, as 'next_'")
    if last_row not in ("step", "observation"):
        raise ConfigError(f"last_row must be 'step' or 'observation'; got {last_row!r}: pass one of the two")
    unit = options["time_unit"] = _plain.plain(unit)
    if not _plain.is_number(unit) or not 0 < unit < math.inf:
        raise ConfigError(f"time_unit must be a number above 0; got {unit!r}: pass the time that one step of γ takes")
    if unit != 1 and options["time"] is None:
        raise ConfigError(f"time_unit={unit} needs time stamps: name their column with time=")
    return Names(state=labels, features=features, **options)


def check_method(method: Any, scales: TimeScales) -> None:
    """ConfigError unless these scales can be fitted so."""
    if method not in ("lambda", "td0", "monte_carlo"):
        raise ConfigError(f"method must be 'lambda', 'td0' or 'monte_carlo'; got {method!r}: pass one of these")
    if method == "lambda" and scales.trace_decays is None:
        raise ConfigError(
            "method='lambda' needs trace decays; these scales have none: make them with lam=, as in lam=0.95, or pass "
            "method='td0' or method='monte_carlo'"
        )


def of_model(model: str | None, tiles: Any, tilings: Any, ridge: Any) -> tuple[int, int, float]:
    """Tiles, tilings and ridge, where None stands for the default."""
    where = "without a model" if model is None else f"for model {model!r}"
    if model != "tiles":
        _refuse({"tiles": tiles, "tilings": tilings}, where, "it is for model='tiles'")
    if model is None:
        _refuse({"ridge": ridge}, where, "values of labels have no penalty")
    ridge = 0.01 if ridge is None else _within("ridge", ridge, lambda number: 0 <= number < math.inf, "[0, ∞)")
    if model == "tiles" and ridge == 0:
        raise ConfigError("ridge=0 leaves the weights of overlapping tiles open: pass ridge=0.01, say")
    grids = {"tiles": 8 if tiles is None else tiles, "tilings": 8 if tilings is None else tilings}
    return _plain.whole("tiles", grids["tiles"]), _plain.whole("tilings", grids["tilings"], most=10_000), ridge


def of_calibration(held_out: Any, tolerance: Any) -> tuple[float, float]:
    """The share of episodes that are held out, and the tolerance, where None stands for the default."""
    share = _within("held_out", held_out, lambda number: 0 <= number < 1, "[0, 1)")
    if share == 0:
        _refuse({"tolerance": tolerance}, "with held_out=0", "no return is compared")
    return share, 0.01 if tolerance is None else _within("tolerance", tolerance, lambda n: 0 < n < 1, "(0, 1)")


def _refuse(given: dict[str, Any], where: str, why: str) -> None:
    """ConfigError if an option is given that would not be looked at."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} has no meaning {where}; got {value!r:.80}: leave it out, since {why}")


def _columns(name: str, value: Any) -> tuple[str, ...]:
    """One name of a column, or several."""
    given = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not given:
        raise ConfigError(f"{name} must name at least one column; got none: pass, say, {name}=['pressure']")
    return tuple(_column(name, entry) for entry in given)


def _column(name: str, value: Any) -> str:
    if isinstance(value, str):
        return str(_plain.tidy(value))
    raise ConfigError(f"{name} must be the name of a column; got {value!r:.80}: pass text, as the log has it")


def _within(name: str, value: Any, fits: Callable[[float], bool], interval: str) -> float:
    value = _plain.plain(value)
    if _plain.is_number(value) and fits(float(value)):
        return float(value)
    raise ConfigError(f"{name} must be in {interval}; got {value!r:.80}: pass a number from there")
