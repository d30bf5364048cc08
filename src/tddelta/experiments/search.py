"""What a search may vary, as data: which settings, within which bounds, and where the preset stands among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from tddelta.errors import ConfigError
from tddelta.timescales import Rule

if TYPE_CHECKING:
    import optuna

    from tddelta.deep.config import Config

SEARCHABLE = ("learning_rate", "lam", "rule", "components", "shortest_horizon", "component_weights")
"""Settings that can be searched."""

_LADDER = ("components", "shortest_horizon")
_ENDS_LADDER = ("horizons", "ladder_factor")  # settings that leave nothing of the ladder to search
_RATES = 10.0  # the learning rate varies by this factor up and down from the preset's
_LAMS = (0.6, 0.99)
_COMPONENTS = (2, 8)
_WEIGHTS = (0.25, 4.0)
_SHORTEST = 1.5  # steps


@dataclass(frozen=True)
class Space:
    """The settings that vary, for one agent in one environment.

    Attributes:
        names: What is searched, of `SEARCHABLE`.
        fixed: Settings that every trial has.
        config: The preset with these settings: where the search starts.
    """

    names: tuple[str, ...]
    fixed: Mapping[str, Any]
    config: "Config"

    @property
    def longest(self) -> float:
        """The longest finite horizon, in steps."""
        return next(horizon for horizon in reversed(self.config.ladder.horizons) if horizon != float("inf"))

    @property
    def tops(self) -> int:
        """Components that are on the ladder whatever its length: that of γ = 1 has no horizon to divide."""
        return 2 if self.config.ladder.gammas[-1] == 1 else 1

    def bounds(self) -> dict[str, tuple[float, float]]:
        """The bounds of every number that is searched, by name."""
        rate = float(self.config.learning_rate)
        every = {
            "learning_rate": (rate / _RATES, rate * _RATES),
            "lam": _LAMS,
            "components": (max(_COMPONENTS[0], self.tops + 1), max(_COMPONENTS[1], len(self.config.ladder))),
            "shortest_horizon": (_SHORTEST, self.longest / 2),
        }
        return {name: every[name] for name in self.names if name in every}

    def start(self) -> dict[str, Any] | None:
        """The preset as a point of the search; None where it lies outside the bounds."""
        ladder = self.config.ladder
        values: dict[str, Any] = {
            "learning_rate": float(self.config.learning_rate),
            "lam": self.config.lam,
            "rule": self.config.rule or self.config.agent.rule,
            "components": len(ladder),
            "shortest_horizon": ladder.horizons[0],
        }
        point = {name: values[name] for name in self.names if name in values}
        if any(not low <= point[name] <= high for name, (low, high) in self.bounds().items()):
            return None
        if "component_weights" in self.names:
            weights = self.config.component_weights or (1.0,) * len(ladder)
            if any(not _WEIGHTS[0] <= weight <= _WEIGHTS[1] for weight in weights):
                return None
            point |= {f"weight_{z}": weight for z, weight in enumerate(weights)}
        return point

    def suggest(self, trial: "optuna.trial.BaseTrial") -> dict[str, Any]:
        """Let the sampler choose, and return the settings of the trial without the fixed ones.

        Number of components n and shortest horizon h_0 make a ladder of n − 1 equal ratios (H/h_0)^{1/(n − 1)}.
        """
        bounds, chosen = self.bounds(), dict[str, Any]()
        if "learning_rate" in bounds:
            rate = trial.suggest_float("learning_rate", *bounds["learning_rate"], log=True)
            chosen["learning_rate"] = _rounded(rate)
        if "lam" in bounds:
            chosen["lam"] = _rounded(trial.suggest_float("lam", *bounds["lam"]))
        if "rule" in self.names:
            chosen["rule"] = trial.suggest_categorical("rule", get_args(Rule))
        count = len(self.config.ladder)
        if set(_LADDER) & set(self.names):
            shortest = self.config.ladder.horizons[0]
            if "components" in bounds:
                low, high = bounds["components"]
                count = trial.suggest_int("components", int(low), int(high))
            if "shortest_horizon" in bounds:
                shortest = trial.suggest_float("shortest_horizon", *bounds["shortest_horizon"], log=True)
            ratio = (self.longest / shortest) ** (1 / (count - self.tops))
            chosen |= {"components": count, "ladder_factor": float(f"{ratio:.7g}")}
        if "component_weights" in self.names:
            weights = [trial.suggest_float(f"weight_{z}", *_WEIGHTS, log=True) for z in range(count)]
            chosen["component_weights"] = [_rounded(weight) for weight in weights]
        return chosen

    def settings(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of a trial: the fixed ones, and the chosen in place of what they say otherwise."""
        whole = {**self.fixed, **chosen}
        if "components" in chosen:
            whole.pop("shortest_horizon", None)  # the ladder's ratio says it
        return whole


def make_space(config: "Config", fixed: Mapping[str, Any], search: Sequence[str] | None) -> Space:
    """Decide what is searched.

    Args:
        config: The preset with the fixed settings.
        fixed: Settings that every trial has; they are not searched.
        search: Names of `SEARCHABLE`; None is all that mean something to the agent and are not fixed.

    Raises:
        ConfigError: A name is unknown, fixed as well, or means nothing to the agent; or nothing is left.
    """
    agent = config.agent
    if agent.heads == "one":  # a single scale has no ladder, and every rule is the same for it
        able: tuple[str, ...] = ("learning_rate", "lam")
    elif agent.basis == "sum":  # one value: the ladder only says how many outputs it is the sum of
        able = ("learning_rate", "lam", "components")
    else:
        able = SEARCHABLE
    settled = set(fixed) & set(SEARCHABLE)
    if set(fixed) & set(_ENDS_LADDER):
        settled |= set(_LADDER)
    start = Space((), fixed, config)
    if len(config.ladder) <= start.tops or start.longest <= 2 * _SHORTEST:  # too short to divide
        able = tuple(name for name in able if name not in _LADDER)
    if search is not None:
        for name in search:
            if name not in SEARCHABLE:
                raise ConfigError(f"{name!r} cannot be searched: choose among {', '.join(SEARCHABLE)}")
            if name not in able:
                raise ConfigError(f"{name} means nothing to {agent.name}: search {', '.join(able)}")
            if name in settled:
                raise ConfigError(f"{name} is to be searched and is fixed by another setting, too: drop one of them")
    names = tuple(name for name in able if name not in settled and (search is None or name in search))
    if not names:
        raise ConfigError(f"nothing is left to search for {agent.name}: fix fewer settings than {sorted(settled)}")
    if "component_weights" in settled and set(_LADDER) & set(names):
        # weights belong to components: their number cannot change any more
        names = tuple(name for name in names if name != "components")
    return Space(names, dict(fixed), config)


def _rounded(value: float) -> float:
    """Four digits: no search tells more apart, and a person can read them."""
    return float(f"{value:.4g}")
