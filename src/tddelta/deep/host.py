"""Environments that run on the host: Gymnasium's, one at a time or vectorised, and what the learner sees of them.

    config = ppo.preset("gym:LunarLander-v3", "ppo-delta")
    config = ppo.preset(host.from_factory(make_plant, name="Plant"), "ppo-delta")

The learner sees observations as uint8 or float32, actions that count from 0 or vectors, and every kind of end as it is
meant, whichever automatic reset the environment has: see `stepping`.
"""

import dataclasses
import functools
import importlib
import inspect
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from tddelta.deep import making
from tddelta.deep._gymnax import spaces
from tddelta.deep.agents import closest
from tddelta.deep.tasks import Task
from tddelta.errors import ConfigError, MissingExtra

PREFIX = "gym:"
"""What names of Gymnasium environments begin with."""


class _NoGuardError(ConfigError, SystemExit):
    """A script that would run again in every process it starts; where nobody catches this, only its text is shown."""

    def __init__(self, script: str) -> None:
        super().__init__(
            f"worker_processes would run {script} again, from its first line, in every process: put what trains below "
            'the line if __name__ == "__main__":'
        )
        self.code = str(self)


_OURS = ("frame_stack", "worker_processes")


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
        """What the name and the options meant."""
        return dict(self.description)


def from_id(name: str, options: Mapping[str, Any]) -> HostEnvironment:
    """A registered environment of Gymnasium.

    Args:
        name: "gym:ID", or "gym:package.module:ID", which imports a module first that registers it.
        options: Keyword arguments of `gymnasium.make`, and two of ours. `frame_stack`: the last so many observations
            together are one, oldest first, the first repeated at the start of an episode. `worker_processes`: True runs
            every environment in a process of its own, for those that take milliseconds a step.

    Raises:
        ConfigError: If there is no such environment, or the learner cannot use it.
        MissingExtra: If Gymnasium, or what the environment needs, is not installed.
    """
    gymnasium = _gymnasium(name)
    spec = _spec(gymnasium, name)
    given = dict(options)
    frames, processes = given.pop("frame_stack", None), given.pop("worker_processes", False)
    if frames is not None and not (type(frames) is int and frames >= 1):
        raise ConfigError(f"frame_stack must be a whole number of at least 1; got {frames!r}")
    if not isinstance(processes, bool):
        raise ConfigError(f"worker_processes must be True or False; got {processes!r}")
    if processes:
        _check_guard()
    vectors = spec.entry_point is None  # registered as a vector environment only
    if vectors and (frames is not None or processes):
        raise ConfigError(f"{name} is a vector environment of its own: drop {' and '.join(_OURS)}")
    make_one = functools.partial(making.made, spec, given, frames)
    make_several = functools.partial(making.several, spec, given)
    try:
        one = make_several(1) if vectors else make_one()
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra(f'{name} needs more than Gymnasium ({error}): pip install "tddelta[gym]"') from error
    except (TypeError, gymnasium.error.Error) as error:
        raise ConfigError(
            f"{name} cannot be made ({error}): environment_kwargs are those of gymnasium.make, and "
            f"{' and '.join(_OURS)}"
        ) from error
    described = {"id": spec.id, "frame_stack": frames, "flattened": not vectors and making.flattens(one.unwrapped)}
    draws = None
    if not vectors and "rgb_array" in (one.metadata or {}).get("render_modes", ()):
        drawing = functools.partial(making.made, spec, given | {"render_mode": "rgb_array"}, frames)
        draws = functools.partial(_vectorised, drawing)
    try:
        return from_space_of(
            one,
            name,
            make_several if vectors else functools.partial(_vectorised, make_one, processes=processes),
            description={key: value for key, value in described.items() if value},
            overlaps=processes,
            draws=draws,
        )
    finally:
        one.close()


def _check_guard() -> None:
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        return
    with suppress(OSError):  # no source
        text = Path(script).read_bytes()
        if b"__name__" not in text and b"parent_process" not in text:
            raise _NoGuardError(script)


def from_factory(factory: Callable[..., Any], *, name: str | None = None) -> HostEnvironment:
    """An environment of a function of your own.

    Args:
        factory: f() that makes a `gymnasium.Env`; or f(num_envs) that makes a `gymnasium.vector.VectorEnv`, whose
            automatic reset may be in the same or in the next step. It is called several times, and what it makes is
            seeded by `reset`. The inspector shows the pictures of those made with `render_mode="rgb_array"`.
        name: Name of the environment in folders, tables and figures; None takes the function's.

    Raises:
        ConfigError: If it makes something else, or the learner cannot use its spaces.
        MissingExtra: If Gymnasium is not installed.
    """
    name = name or str(getattr(factory, "__name__", type(factory).__name__))
    gymnasium = _gymnasium(name)
    several = makes_vectors(factory)
    made = factory(num_envs=1) if several else factory()
    try:
        kind = gymnasium.vector.VectorEnv if several else gymnasium.Env
        if not isinstance(made, kind):
            raise ConfigError(
                f"environment {name}: the factory must make a {kind.__name__} of Gymnasium; got {type(made).__name__}"
            )
        make = functools.partial(_several, factory) if several else functools.partial(_vectorised, factory)
        draws = make if made.render_mode == "rgb_array" else None
        return from_space_of(made, name, make, factory=factory, draws=draws)
    finally:
        made.close()


def from_space_of(instance: Any, name: str, make: Callable[[int], Any], **more: Any) -> HostEnvironment:
    """The description of an environment by one instance of it, an environment or a vector of them.

    Args:
        instance: What has the spaces.
        name: Name of the environment.
        make: f(count) → vector environment.
        **more: Other fields of `HostEnvironment`.

    Raises:
        ConfigError: If the learner cannot use one of the spaces.
    """
    observations = getattr(instance, "single_observation_space", instance.observation_space)
    actions = getattr(instance, "single_action_space", instance.action_space)
    observation_space = _observations(name, observations)
    action_space, first = _actions(name, actions)
    limit = getattr(instance.spec, "max_episode_steps", None) if instance.spec is not None else None
    return HostEnvironment(
        name=name,
        make=make,
        observation_space=observation_space,
        action_space=action_space,
        observation_shape=tuple(observation_space.shape),
        storage=observation_space.dtype,
        discrete=isinstance(action_space, spaces.Discrete),
        first_action=first,
        **{"time_limit": limit, **more},
    )


def is_gymnasiums_own(name: str) -> bool:
    """Whether a name is of an environment that comes with Gymnasium, so that making it runs nobody else's code."""
    if not re.fullmatch(r"gym:[\w.-]+", name):
        return False
    try:
        entry = _spec(_gymnasium(name), name).entry_point
    except (ConfigError, MissingExtra):
        return False
    return isinstance(entry, str) and entry.startswith("gymnasium.envs.")


def makes_vectors(factory: Any) -> bool:
    """Whether a function makes vector environments: it has an argument `num_envs`."""
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # no function, or a class written in C
        return False


def is_of_gymnasium(instance: Any) -> bool:
    """Whether something is an environment of Gymnasium, or a vector of them."""
    spaces_of_gymnax = callable(getattr(instance, "observation_space", None))
    return hasattr(instance, "single_action_space") or (hasattr(instance, "metadata") and not spaces_of_gymnax)


def refuse_object(name: str, instance: Any) -> None:
    """Refuse objects and functions of Gymnasium: only a function that is known as such makes as many as are needed."""
    if is_of_gymnasium(instance) or inspect.isroutine(instance):
        what = "an object of Gymnasium" if is_of_gymnasium(instance) else "a function"
        raise ConfigError(
            f"environment {name} is {what}: pass host.from_factory(function) with the function that makes it, or name "
            "it package.module:function, or register it and name it gym:package.module:ID"
        )


def _gymnasium(name: str) -> Any:
    try:
        gymnasium = importlib.import_module("gymnasium")
        importlib.import_module("gymnasium.vector")
    except ImportError as error:
        raise MissingExtra(f'{name} needs Gymnasium: pip install "tddelta[gym]"') from error
    return gymnasium


def _spec(gymnasium: Any, name: str) -> Any:
    module, _, identifier = name.removeprefix(PREFIX).rpartition(":")
    if identifier.startswith("ALE/") or "NoFrameskip" in identifier:
        raise ConfigError(
            f"{name} would play without the preprocessing of Atari; name it {identifier.removeprefix('gym:')}, "
            f"without {PREFIX}"
        )
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"no module {module!r} for {name!r} ({error}): name it gym:package.module:ID with the module on the "
                "Python path"
            ) from error
    try:
        return gymnasium.spec(identifier)
    except gymnasium.error.Error as error:
        known = tuple(key for key in gymnasium.registry if "/" not in key)
        raise ConfigError(
            f"unknown Gymnasium environment {identifier!r}: {closest(identifier, known)} "
            "(gym:package.module:ID imports the module that registers one of your own)"
        ) from error


def _vectorised(make_one: Callable[[], Any], count: int, *, processes: bool = False) -> Any:
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    if not processes:
        return SyncVectorEnv([make_one] * count, autoreset_mode=AutoresetMode.SAME_STEP)
    # Gymnasium prints what a worker raised over many lines, before it raises it.
    warnings.filterwarnings("ignore", r"(?s).*ERROR: ", UserWarning, r"gymnasium\.vector\.async_vector_env")
    makers = [functools.partial(making.in_process, os.getpid(), make_one)] * count
    # A forked process would inherit the threads of JAX as locks that nobody opens.
    return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, context="spawn")


def _several(factory: Callable[..., Any], count: int) -> Any:
    return factory(num_envs=count)


def _observations(name: str, space: Any) -> spaces.Box:
    if type(space).__name__ != "Box":
        raise ConfigError(
            f"environment {name}: observations must be one array, a Box; got {space}: wrap it in "
            "gymnasium.wrappers.FlattenObservation"
        )
    whole = space.dtype == np.uint8
    low, high = (np.asarray(end) if whole else np.asarray(end, np.float32) for end in (space.low, space.high))
    return spaces.Box(low, high, tuple(space.shape), jnp.uint8 if whole else jnp.float32)


def _actions(name: str, space: Any) -> tuple[spaces.Box | spaces.Discrete, int]:
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n)), int(space.start)
    if kind == "Box" and np.issubdtype(space.dtype, np.floating) and math.prod(space.shape) > 0:
        ends = (np.asarray(end, np.float32) for end in (space.low, space.high))
        return spaces.Box(*ends, tuple(space.shape), jnp.float32), 0
    raise ConfigError(
        f"environment {name}: actions must be Discrete or a Box of real numbers; got {space}: wrap it so that one "
        "number names each combination"
    )
