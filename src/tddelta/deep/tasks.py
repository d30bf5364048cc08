"""Descriptions of environments for a learner, wherever they run; and gymnax, without the plotting it imports."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

_NAMES = ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "matplotlib.animation", "seaborn")


class _Later(ModuleType):
    """A module that is imported at its first use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or sys.modules.get(self.__name__) is self:
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _without_plotting() -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in _NAMES}
    sys.modules.update({name: _Later(name) for name, module in before.items() if module is None})
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


with _without_plotting():
    import gymnax as gymnax
    from gymnax.environments import environment as environment
    from gymnax.environments import spaces as spaces


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """Description of an environment for a learner.

    Attributes:
        name: Its name in folders, tables and figures.
        observation_space: gymnax space.
        action_space: gymnax space.
        observation_shape: Shape of one observation.
        storage: Data type in which a rollout keeps observations: uint8 for images and binary planes
            (a quarter of the memory of float32, and exact), else float32.
        discrete: Whether actions are integers 0…n−1; else they are real vectors in a box.
        time_limit: Steps after which the environment truncates, or None if it names none.
        first_action: What the environment calls the learner's action 0.
    """

    name: str
    observation_space: Any
    action_space: Any
    observation_shape: tuple[int, ...]
    storage: Any
    discrete: bool
    time_limit: int | None
    first_action: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The environment in the record of a run."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HostEnvironment(Task):
    """An environment that runs on the host.

    Attributes:
        make: f(count) → a Gymnasium vector environment of so many.
        factory: The function that was given to make it, or None where a name says all.
        description: What the record says of it.
        rom: Name of the ROM of an Atari game, else None.
        lives: Whether the loss of a life terminates for the learner while the game goes on.
        overlaps: Whether it can step while something else is computed.
        draws: Like `make`, with `render` giving pictures; None where it cannot.
    """

    make: Callable[[int], Any] = dataclasses.field(repr=False)
    factory: Any = dataclasses.field(default=None, repr=False)
    description: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    rom: str | None = None
    lives: bool = False
    overlaps: bool = False
    draws: Callable[[int], Any] | None = dataclasses.field(default=None, repr=False)

    def _kind(self) -> tuple[Any, ...]:
        observations, actions = self.observation_space, self.action_space
        ends = [() if self.discrete else (actions.low.tobytes(), actions.high.tobytes())]
        traits = (self.name, self.observation_shape, str(np.dtype(self.storage)), self.time_limit, self.first_action)
        spaces = (np.asarray(observations.high).tobytes(), actions.n if self.discrete else actions.shape, *ends)
        return (*traits, *spaces, self.rom, self.lives, json.dumps(dict(self.description), sort_keys=True))

    def __eq__(self, other: object) -> bool:
        # Those that are the same to the learner share their programs, whatever makes them.
        return isinstance(other, HostEnvironment) and self._kind() == other._kind()

    def __hash__(self) -> int:
        return hash(self._kind())

    def to_dict(self) -> dict[str, Any]:
        """Meaning of the name and the options."""
        return dict(self.description)
