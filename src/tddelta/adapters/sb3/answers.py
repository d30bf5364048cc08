"""Checks of what environments answer: SB3 takes some wrong answers for right, and does not name others."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from tddelta import _answers
from tddelta._answers import check_finite
from tddelta.errors import DataError

LIBRARIES = ("stable_baselines3.", "tddelta.")
"""Prefixes of the modules whose classes are not a user's own."""


def environment_name(vectorised: Any) -> str:
    """The name of vectorised environments: what they are registered as, or their class."""
    try:
        spec = vectorised.get_attr("spec")[0]
    except Exception:  # an environment in another process may fail in any way, and a name is not worth a run
        spec = None
    if spec is not None and getattr(spec, "id", None):
        return str(spec.id)
    several = getattr(vectorised.unwrapped, "envs", None)
    return type(several[0].unwrapped).__name__ if several else "environment"


def watch(vectorised: VecEnv) -> None:
    """Make the next `reset` and `step` of environments in this process raise a DataError if they answer wrongly.

    Nothing is called or copied for it, and afterwards each environment is as it was. What SB3 trains right with is
    taken, whatever the interface says.
    """
    base = vectorised.unwrapped
    for outer in base.envs if isinstance(base, DummyVecEnv) else ():
        for one in _answers.layers(outer):
            for method in ("reset", "step"):
                if isinstance(one, gymnasium.Env) and not isinstance(vars(one).get(method), _First):
                    vars(one)[method] = _First(one, method, environment_name(vectorised), shown=one is outer)


class _First:
    """A method of an environment whose next answer is checked. No closure: an environment may copy itself."""

    def __init__(self, environment: Any, method: str, name: str, shown: bool) -> None:
        functools.update_wrapper(self, getattr(environment, method))  # Gymnasium's checker looks at the arguments
        self._environment, self._method, self._name, self._shown = environment, method, name, shown
        self._replaced = vars(environment).get(method)
        self._call: Callable[..., Any] = getattr(environment, method)
        self.seen: Any = None
        """Before a step: the observation of the reset, and what it was then."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        own = vars(self._environment)
        if own.get(self._method) is self:  # nobody has wrapped it since
            del own[self._method]
            if self._replaced is not None:
                own[self._method] = self._replaced
        try:
            try:
                found = self._call(*given, **named)
            except TypeError:
                if self._method == "reset":
                    _answers.check_arguments(self._call, **named)
                raise
            (self._check_reset if self._method == "reset" else self._check_step)(found)
            space = self._environment.observation_space
            # SB3 lets NumPy fit shapes: that is right as long as no number is repeated.
            if type(space).__name__ == "Box" and np.size(found[0]) != np.prod(space.shape):
                _answers.observed(space, found[0], self._method)
        except _answers.AnswerError as error:
            raise DataError(f"{self._name}: {error}") from error
        return found

    def _check_reset(self, found: Any) -> None:
        if not (isinstance(found, tuple | list) and len(found) == 2 and found[1] is None):  # which nobody reads
            _answers.check_reset(found)
        following = vars(self._environment).get("step")
        if self._shown and isinstance(following, _First) and isinstance(found[0], np.ndarray):
            following.seen = found[0], found[0].copy()

    def _check_step(self, found: Any) -> None:
        _answers.check_step(found)
        try:
            float(found[1])  # as SB3 reads it
        except (TypeError, ValueError):
            _answers.check_number("reward", found[1], "biuf", "float(reward)")
        if self.seen is not None and found[0] is self.seen[0] and not np.array_equal(*self.seen):
            warnings.warn(
                f"{self._name}: step writes into the observation that it returned before, so that the last observation "
                "of an episode that is truncated becomes that of the reset: return a copy",
                UserWarning,
                stacklevel=2,
            )


class StepChecker(BaseCallback):
    """Refuses steps that nothing can be learned from; after other callbacks, which may repair them."""

    def _init_callback(self) -> None:
        policy: Any = self.model.policy
        kinds = type(policy), policy.features_extractor_class
        # One of somebody's own may have a meaning for them.
        self._reads = all(kind.__module__.startswith(LIBRARIES) for kind in kinds)
        self._name = environment_name(self.training_env)

    def _on_training_start(self) -> None:
        self._check_observations("before the first step", self.model._last_obs)

    def _on_step(self) -> bool:
        rewards, infos = np.asarray(self.locals["rewards"], np.float64), self.locals["infos"]
        count = self.training_env.num_envs
        when = f"after {self.num_timesteps} steps in all"
        if rewards.shape != (count,) and not rewards.size == count == 1:
            raise DataError(f"{self._name}: step must return rewards of shape {(count,)}; got shape {rewards.shape}")
        check_finite(self._name, when, reward=rewards)
        self._check_observations(when, self.locals["new_obs"])
        for place in np.flatnonzero(self.locals["dones"]):
            if not infos[place].get("TimeLimit.truncated", False):
                continue
            final = infos[place].get("terminal_observation")
            if final is None:
                raise DataError(
                    f"{self._name}: environment {place} was truncated, and its step's information has no "
                    "terminal_observation: the value of what would have come cannot be known without it; keep it in "
                    "every wrapper"
                )
            self._check_observations(when, {part: one[None] for part, one in _parts(final).items()}, int(place))
        return True

    def _check_observations(self, when: str, observations: Any, first: int = 0) -> None:
        for part, array in _parts(observations).items():
            if self._reads and array.dtype.kind == "f":
                check_finite(self._name, when, first, **{part: array})


def _parts(observations: Any) -> dict[str, np.ndarray]:
    parts = observations if isinstance(observations, dict) else {"observation": observations}
    return {part: np.asarray(array) for part, array in parts.items()}
