"""Descriptions of environments for a learner, and those that run on the host: Gymnasium's, by name or by a function.

    config = ppo.preset("gym:LunarLander-v3", "ppo-delta")
    config = ppo.preset(host.from_factory(make_plant, name="Plant"), "ppo-delta")

The learner sees observations as uint8 or float32, actions that count from 0 or vectors, and every kind of end as it is
meant, whichever automatic reset the environment has: see `Vector`.
"""

import dataclasses
import functools
import importlib
import inspect
import json
import math
import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from numpy.random import mtrand

from tddelta import _answers
from tddelta._answers import AnswerError, RemoteError, check_finite, check_shape, check_values, guard
from tddelta._plain import blamed, closest, described, plain, whole
from tddelta.errors import ConfigError, DataError, MissingExtra


class _Later(ModuleType):
    """A module that is imported at its first use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or sys.modules.get(self.__name__) is self:
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _without_plotting() -> Iterator[None]:
    """Keep gymnax from importing what it draws with."""
    names = ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "matplotlib.animation", "seaborn")
    before = {name: sys.modules.get(name) for name in names}
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
class AnyEnvironment:
    """Description of an environment for a learner, wherever it runs.

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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HostEnvironment(AnyEnvironment):
    """An environment that runs on the host. Those that are the same to the learner are equal, and share programs.

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

    @functools.cached_property
    def _kind(self) -> tuple[Any, ...]:
        actions = self.action_space
        moves = actions.n if self.discrete else (actions.shape, actions.low.tobytes(), actions.high.tobytes())
        seen = self.observation_shape, str(np.dtype(self.storage)), np.asarray(self.observation_space.high).tobytes()
        said = json.dumps(dict(self.description), sort_keys=True)
        return (self.name, seen, moves, self.time_limit, self.first_action, self.rom, self.lives, said)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostEnvironment) and self._kind == other._kind

    def __hash__(self) -> int:
        return hash(self._kind)

    def to_dict(self) -> dict[str, Any]:
        """Meaning of the name and the options, for the run's record."""
        return dict(self.description)


# ---------------------------------------------------------------- steps


class Moved(NamedTuple):
    """Results of one step of B environments.

    Attributes:
        observations: What the next action is for; after an end the first of the next episode, (B, *observation).
        rewards: (B,).
        terminated: Also where a life was lost, if the environment says so, (B,).
        truncated: (B,), False where terminated.
        played: False where this step was an automatic reset, which ignores the action, (B,).
        finals: The true successors where an episode was truncated, by environment.
        finished_returns: Undiscounted return of the episode whose score counts, where it is over, (B,).
        finished_lengths: Its steps; 0 where none is over, (B,).
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    played: np.ndarray
    finals: dict[int, np.ndarray]
    finished_returns: np.ndarray
    finished_lengths: np.ndarray

    @property
    def over(self) -> np.ndarray:
        """Flags of environments in which the episode whose score counts is over, (B,)."""
        over: np.ndarray = self.finished_lengths > 0
        return over


class Vector:
    """Environments that step together, one per seed, a whole number below 2³¹; to be closed in the end.

    Attributes:
        waits: Whether the environments reset themselves in the step after an end (Gymnasium's NEXT_STEP), which is
            then no step of theirs; else they do it in the same step (SAME_STEP).
        observations: Those that the next actions are for, (B, *observation).
        lengths: Steps of the running episodes, (B,).
        frames: Of an Atari game: frames of the episode so far, (B,); else 0.

    Raises:
        ConfigError: If the environments cannot be used.
        DataError: If making them raises.
    """

    def __init__(self, environment: HostEnvironment, seeds: Sequence[int]) -> None:
        self._environment, self._seeds, self._steps = environment, list(seeds), 0
        self._made: Any = None
        count = len(seeds)
        with self._blamed("being made"):
            self._made = environment.make(count)
            _prepare(environment.name, self._made)
        self.waits = _waits(environment.name, self._made, count)
        self.observations: Any = None
        self._actions: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def reset(self) -> np.ndarray:
        """The first observations, (B, *observation)."""
        # ale-py takes an array, Gymnasium a list.
        of_ale = type(self._made.unwrapped).__module__.startswith("ale_py")
        with self._blamed("reset"):
            found = self._made.reset(seed=np.array(self._seeds) if of_ale else self._seeds)
            check_values("reset", found, "(observations, information)", "return both")
            self.observations = self._batch("reset", found[0])
        count = len(self._seeds)
        self._resetting: np.ndarray = np.zeros(count, bool)
        self._returns, self.lengths = np.zeros(count), np.zeros(count, int)
        self.frames: np.ndarray = np.zeros(count, np.int64)
        self.frames = self._frames(found[1])
        return np.asarray(self.observations)

    def begin(self, actions: np.ndarray) -> None:
        """Hand over the actions, (B, …); environments that overlap step from now on."""
        made, space = self._made, self._made.single_action_space
        self._actions = actions.astype(space.dtype)
        if not self._environment.discrete and space.dtype != np.float32:  # whose bounds were rounded to float32
            self._actions = np.clip(self._actions, space.low, space.high)
        if self._environment.overlaps:
            with self._blamed("step"):  # what ale-py has is another pair of names
                (made.step_async if hasattr(made, "step_async") else made.send)(self._actions)

    def finish(self) -> Moved:
        """Wait for the step, and return its results."""
        made = self._made
        with self._blamed("step"):
            if not self._environment.overlaps:
                found = made.step(self._actions)
            else:
                found = (made.step_wait if hasattr(made, "step_wait") else made.recv)()
            check_values("step", found, "(observations, rewards, terminated, truncated, information)", "return them")
            kept, information = self._batch("step", found[0]), found[4]
            rewards = self._column("rewards", found[1], "biuf").astype(np.float32)
            terminated = self._column("terminated", found[2], "biu").astype(bool)
            truncated = self._column("truncated", found[3], "biu").astype(bool) & ~terminated
        self._steps += 1
        played = ~self._resetting
        if self.waits:
            # The observation at an end is that of the end, and the next step is the reset.
            terminated, truncated = terminated & played, truncated & played
            self._resetting = terminated | truncated
        over = terminated | truncated
        frames = self._frames(information)
        if self._environment.lives:
            # Where a life was lost the game's frames go on.
            over = truncated | (terminated & (frames <= self.frames))
        self.frames, self.observations = frames, kept
        finals = {}
        for place in map(int, np.flatnonzero(truncated)):
            finals[place] = kept[place] if self.waits else self._final(information, place)
        self._returns += np.where(played, rewards, 0.0)
        self.lengths += played
        finished = np.where(over, self._returns, 0.0), np.where(over, self.lengths, 0)
        self._returns[over], self.lengths[over] = 0.0, 0
        return Moved(kept, rewards, terminated, truncated, played, finals, *finished)

    def picture(self) -> np.ndarray:
        """Picture of the first environment as it is now, (H, W, 3) bytes.

        Raises:
            DataError: It does not draw, or what it draws is no picture.
        """
        with self._blamed("render"):
            shown = self._made.render()
            first = np.array(shown[0] if shown is not None and len(shown) else ())
        if first.dtype != np.uint8 or first.ndim != 3 or first.shape[2] != 3 or 0 in first.shape:
            raise DataError(
                f"{self._environment.name}: render must give (H, W, 3) bytes; got {first.dtype} of shape {first.shape}"
            )
        return first

    def close(self) -> None:
        """Release all that the environments hold, such as processes."""
        made, self._made = self._made, None  # emulators end with the last reference
        if made is not None:
            made.close()

    def _final(self, information: Any, place: int) -> np.ndarray:
        # The older name is that of Gymnasium before 1.0.
        for name in ("final_obs", "final_observation"):
            if name in information and information[name][place] is not None:
                return self._kept(information[name][place])
        raise DataError(
            f"{self._environment.name}: environment {place} was truncated, and its step's information has no "
            "final_obs: the value of what would have come cannot be known without it; keep it in every wrapper"
        )

    def _kept(self, observations: Any) -> np.ndarray:
        # A copy: environments may write into their arrays again.
        return np.array(observations, self._environment.storage)

    def _batch(self, what: str, observations: Any) -> np.ndarray:
        check_shape(what, (len(self._seeds), *self._environment.observation_shape), observations)
        return self._kept(observations)

    def _column(self, name: str, values: Any, kinds: str) -> np.ndarray:
        """One number of every environment, as a new array."""
        array = np.array(values)
        if array.shape != (len(self._seeds),) or array.dtype.kind not in kinds:
            raise AnswerError(
                f"step must return {name} of shape {(len(self._seeds),)}, "
                f"{'numbers' if 'f' in kinds else 'True or False'}; got {array.dtype} of shape {array.shape}"
            )
        return array

    def _frames(self, information: Any) -> np.ndarray:
        if self._environment.rom is None and not self._environment.lives:
            return self.frames
        return np.array(information.get("episode_frame_number", self.frames), np.int64)

    @contextmanager
    def _blamed(self, what: str) -> Iterator[None]:
        name, steps = self._environment.name, self._steps
        when = f"after {steps} steps of {len(self._seeds)} environments"
        try:
            yield
        except (DataError, ConfigError):
            raise
        except AnswerError as error:
            raise DataError(f"{name}: {error} (in {what} after {steps} steps)") from error
        except Exception as error:
            if isinstance(error, (EOFError, ConnectionError)) and hasattr(self._made, "processes"):
                for process in self._made.processes:  # none can be asked to end, since one of them is dead
                    process.kill()
                    process.join()
                self._made.closed = True
                raise DataError(
                    f"{name}: a worker process ended in {what} {when}, as where memory runs out: look into the "
                    "system's log, or use fewer environments"
                ) from error
            text = str(error) if isinstance(error, RemoteError) else described(error)
            raise DataError(f"{name}, in {what} {when}, raised {text}") from error


def _prepare(name: str, made: Any) -> None:
    """Guard the environments of a vector of Gymnasium's, and keep it from merging information that nobody reads."""
    together = getattr(made.unwrapped, "envs", ())
    if len({id(one.unwrapped) for one in together}) < len(together):
        raise ConfigError(f"environment {name}: the factory must make a new environment every time; it gave one twice")
    for one in together:
        guard(one)
    if type(made).__module__.startswith("gymnasium.vector."):
        # Nobody reads the rest, which Gymnasium cannot merge where its shapes or types differ.
        made._add_info = functools.partial(_merge_final, made.num_envs)
    elif hasattr(made.unwrapped, "_add_info"):  # of which somebody's own vector or wrapper may read what can be merged
        made.unwrapped._add_info = functools.partial(_merge_possible, made.unwrapped._add_info)


def _merge_final(count: int, merged: dict[str, Any], information: dict[str, Any], place: int) -> dict[str, Any]:
    """The final observations of a vector, as its method `_add_info` merges them."""
    if "final_obs" in information:
        merged.setdefault("final_obs", np.full(count, None))[place] = information["final_obs"]
    return merged


def _merge_possible(
    merge: Callable[..., dict[str, Any]], merged: dict[str, Any], information: dict[str, Any], place: int
) -> dict[str, Any]:
    """All information that the method `merge` can merge."""
    for name, value in information.items():
        with suppress(Exception):
            merged = merge(merged, {name: value}, place)
    return merged


def spawned_seeds(entropy: int, purpose: str, count: int, part: int = 0) -> list[int]:
    """Seeds of environments, all different, and unrelated to those of another purpose, part or number.

    Args:
        entropy: The seed of the run or of the evaluation.
        purpose: "train", "evaluate", "held-out" or "reward noise".
        count: How many.
        part: Which of several times the environments are made: training after a break plays others.
    """
    key = (("train", "evaluate", "held-out", "reward noise").index(purpose), part)
    drawn = np.random.SeedSequence(entropy, spawn_key=key).spawn(count)
    return [int(one.generate_state(1)[0] >> 1) for one in drawn]


def _waits(name: str, made: Any, count: int) -> bool:
    mode = (made.metadata or {}).get("autoreset_mode")
    said = getattr(mode, "name", mode)
    if said not in ("SAME_STEP", "NEXT_STEP", "SameStep", "NextStep"):
        raise ConfigError(
            f"environment {name}: metadata['autoreset_mode'] must be gymnasium.vector.AutoresetMode.SAME_STEP or "
            f"NEXT_STEP; got {mode!r}: without it nobody knows which steps are resets"
        )
    if made.num_envs != count:
        raise ConfigError(f"environment {name}: the factory must make {count} environments here; got {made.num_envs}")
    return said in ("NEXT_STEP", "NextStep")


# ---------------------------------------------------------------- descriptions


PREFIX = "gym:"
"""Prefix of the names of Gymnasium environments."""


class _NoGuardError(ConfigError, SystemExit):
    """A script that would run again in every process it starts; where nobody catches this, only its text is shown."""

    def __init__(self, script: str) -> None:
        super().__init__(
            f"worker_processes would run {script} again, from its first line, in every process: put what trains below "
            'the line if __name__ == "__main__":'
        )
        self.code = str(self)


WHOLE = ("max_episode_steps", "frame_stack")
"""Options that are whole numbers."""

_OURS = ("frame_stack", "worker_processes")

_TRIED = 5
"""Steps that an environment must make before it is trained in."""


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
    given = plain(dict(options))
    frames, processes = given.pop("frame_stack", None), given.pop("worker_processes", False)
    frames = None if frames is None else whole("frame_stack", frames, most=1000)
    if not isinstance(processes, bool):
        raise ConfigError(f"worker_processes must be True or False; got {processes!r}")
    if processes:
        _check_guard()
    vectors = spec.entry_point is None  # registered as a vector environment only
    if vectors and (frames is not None or processes):
        raise ConfigError(f"{name} is a vector environment of its own: drop {' and '.join(_OURS)}")
    # Descriptions can be pickled.
    make_one = functools.partial(_answers.made, spec, given, frames)
    make_several = functools.partial(_registered, spec, given)
    missing = gymnasium.error.DependencyNotInstalled
    advice = f": environment_kwargs are those of gymnasium.make, and {' and '.join(_OURS)}"
    try:
        with blamed(f"{name} cannot be made,", advice=advice, passing=(missing,)):
            one = make_several(1) if vectors else make_one()
    except missing as error:
        raise MissingExtra(f'{name} needs more than Gymnasium ({error}): pip install "tddelta[gym]"') from error
    described = {"id": spec.id, "frame_stack": frames, "flattened": not vectors and _answers.flattens(one.unwrapped)}
    draws = None
    if not vectors and "rgb_array" in (one.metadata or {}).get("render_modes", ()):
        drawing = functools.partial(_answers.made, spec, given | {"render_mode": "rgb_array"}, frames)
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
    script = str(getattr(sys.modules["__main__"], "__file__", None) or "")
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
    if not callable(factory):
        raise ConfigError(f"environment {name}: pass a function that makes it; got an object, {type(factory).__name__}")
    with blamed(f"environment {name} cannot be made,"):
        made = factory(num_envs=1) if several else factory()
    kind = gymnasium.vector.VectorEnv if several else gymnasium.Env
    if not isinstance(made, kind):
        got = f"the class {made.__name__}: call it, or pass it alone" if isinstance(made, type) else type(made).__name__
        raise ConfigError(f"environment {name}: the factory must make a {kind.__name__} of Gymnasium; got {got}")
    try:
        make = functools.partial(_several if several else _vectorised, factory)
        return from_space_of(made, name, make, factory=factory, draws=make if made.render_mode == "rgb_array" else None)
    finally:
        made.close()


def from_space_of(instance: Any, name: str, make: Callable[[int], Any], **more: Any) -> HostEnvironment:
    """The description of an environment by one instance of it, an environment or a vector of them, which is tried out.

    Args:
        instance: What has the spaces.
        name: Name of the environment.
        make: f(count) → vector environment.
        **more: Other fields of `HostEnvironment`.

    Raises:
        ConfigError: If the learner cannot use one of the spaces, or an answer is wrong.
    """
    observation_space = _observations(name, _space(name, instance, "observation_space"))
    action_space, first = _actions(name, _space(name, instance, "action_space"))
    limit = getattr(instance.spec, "max_episode_steps", None)
    environment = HostEnvironment(
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
    _try_out(environment, instance)
    return environment


def _try_out(environment: HostEnvironment, instance: Any) -> None:
    """Reset one instance and make a few steps, so that wrong answers are known before anything is trained."""
    alone = not hasattr(instance, "single_action_space")
    vector = None

    def make(count: int) -> Any:
        nonlocal vector
        vector = _vectorised(lambda: instance, count) if alone else instance
        return vector

    # Environments that draw random numbers from these are not moved on.
    python, legacy = random.getstate(), mtrand.get_bit_generator()
    numpy = legacy.state
    space = environment.action_space
    action = environment.first_action if environment.discrete else np.clip(np.zeros(space.shape), space.low, space.high)
    try:
        made = Vector(dataclasses.replace(environment, make=make, overlaps=False), [0])
        check_finite(environment.name, "when reset", observation=made.reset())
        for step in range(_TRIED):
            made.begin(np.asarray(action)[None])
            moved = made.finish()
            check_finite(environment.name, f"step {step}", observation=moved.observations, reward=moved.rewards)
    except DataError as error:
        raise ConfigError(str(error)) from error
    finally:
        random.setstate(python)
        legacy.state = numpy
        if alone and vector is not None:
            vector.closed = True  # who made the instance closes it


def is_gymnasiums_own(name: str) -> bool:
    """Tell environments that come with Gymnasium, which run nobody else's code, by their name."""
    if re.fullmatch(r"gym:[\w.-]+", name):
        with suppress(ConfigError, MissingExtra):
            return str(_spec(_gymnasium(name), name).entry_point).startswith("gymnasium.envs.")
    return False


def makes_vectors(factory: Any) -> bool:
    """Tell functions that make vector environments by their argument `num_envs`."""
    with suppress(TypeError, ValueError):  # no function, or a class written in C
        return "num_envs" in inspect.signature(factory).parameters
    return False


def is_of_gymnasium(instance: Any) -> bool:
    """Tell environments of Gymnasium, and vectors of them, from others."""
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
            with blamed(f"{module}, named by {name!r}, cannot be imported,", passing=(ImportError,)):
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
    makers = [functools.partial(_answers.in_process, os.getpid(), make_one)] * count
    # A forked process would inherit the threads of JAX as locks that nobody opens.
    return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, context="spawn")


def _registered(spec: Any, options: Mapping[str, Any], count: int) -> Any:
    import gymnasium

    return gymnasium.make_vec(spec, num_envs=count, vectorization_mode="vector_entry_point", **options)


def _several(factory: Callable[..., Any], count: int) -> Any:
    return factory(num_envs=count)


def _space(name: str, instance: Any, which: str) -> Any:
    space = getattr(instance, f"single_{which}", None) or getattr(instance, which, None)
    if not hasattr(space, "shape"):
        raise ConfigError(
            f"environment {name} must have a space of gymnasium.spaces as {which}; got {space!r:.99}: set it "
            "in __init__"
        )
    return space


def _observations(name: str, space: Any) -> spaces.Box:
    if type(space).__name__ != "Box":
        raise ConfigError(
            f"environment {name}: observations must be one array, a Box; got {space}: wrap it in "
            "gymnasium.wrappers.FlattenObservation"
        )
    if math.prod(space.shape) == 0:
        raise ConfigError(f"environment {name}: observations must hold at least one number; got {space}")
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
