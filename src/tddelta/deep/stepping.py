"""Stepping host environments: what a step did, whichever automatic reset they have, and whose fault an error is."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from tddelta._answers import AnswerError, check_shape, check_values, guard
from tddelta._naming import described
from tddelta.deep.making import RemoteError
from tddelta.deep.tasks import HostEnvironment
from tddelta.errors import ConfigError, DataError


class Moved(NamedTuple):
    """What one step of B environments did.

    Attributes:
        observations: What the next action is for; after an end the first of the next episode, (B, *observation).
        rewards: (B,).
        terminated: Also where a life was lost, if the environment says so, (B,).
        truncated: (B,), False where terminated.
        over: Whether the episode whose score counts is over, (B,).
        played: False where this step was an automatic reset, which ignores the action, (B,).
        finals: The true successors where an episode was truncated, by environment.
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    over: np.ndarray
    played: np.ndarray
    finals: dict[int, np.ndarray]


class Vector:
    """So many environments, to be stepped together, and closed in the end.

    Args:
        environment: The environment.
        seeds: One per environment, whole numbers below 2³¹.

    Attributes:
        waits: Whether the environments reset themselves in the step after an end (Gymnasium's NEXT_STEP), which is
            then no step of theirs; else they do it in the same step (SAME_STEP).
        frames: Of an Atari game: frames of the episode so far, (B,); else 0.

    Raises:
        ConfigError: If the environments cannot be used.
        DataError: If making them raises.
    """

    def __init__(self, environment: HostEnvironment, seeds: Sequence[int]) -> None:
        self._environment, self._seeds, self._steps = environment, list(seeds), 0
        self._made: Any = None
        with self._blamed("being made"):
            self._made = environment.make(len(seeds))
            _prepare(environment.name, self._made)
        self.waits = _waits(environment.name, self._made, len(seeds))
        self._resetting: np.ndarray = np.zeros(len(seeds), bool)
        self.frames: np.ndarray = np.zeros(len(seeds), np.int64)
        self._actions: Any = None

    def __enter__(self) -> "Vector":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reset(self) -> np.ndarray:
        """The first observations, (B, *observation)."""
        # ale-py takes an array, Gymnasium a list.
        of_ale = type(self._made.unwrapped).__module__.startswith("ale_py")
        seeds = np.array(self._seeds) if of_ale else self._seeds
        with self._blamed("reset"):
            found = self._made.reset(seed=seeds)
            check_values("reset", found, "(observations, information)", "return both")
            observations = self._batch("reset", found[0])
        self.frames = self._frames(found[1])
        return observations

    def begin(self, actions: np.ndarray) -> None:
        """Hand over the actions, (B, …); environments that overlap step from now on."""
        space = self._made.single_action_space
        self._actions = actions.astype(space.dtype)
        if not self._environment.discrete and space.dtype != np.float32:  # whose bounds were rounded to float32
            self._actions = np.clip(self._actions, space.low, space.high)
        if self._environment.overlaps:
            send = self._made.step_async if _is_gymnasiums(self._made) else self._made.send
            with self._blamed("step"):
                send(self._actions)

    def finish(self) -> Moved:
        """What the step has done."""
        with self._blamed("step"):
            if not self._environment.overlaps:
                found = self._made.step(self._actions)
            else:
                found = self._made.step_wait() if _is_gymnasiums(self._made) else self._made.recv()
            check_values("step", found, "(observations, rewards, terminated, truncated, information)", "return them")
            kept, information = self._batch("step", found[0]), found[4]
            rewards, terminated, truncated = (
                self._column(name, column, kinds)
                for name, column, kinds in zip(("rewards", "terminated", "truncated"), found[1:4], _KINDS, strict=True)
            )
        self._steps += 1
        truncated &= ~terminated
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
        self.frames = frames
        finals = {}
        for place in np.flatnonzero(truncated):
            finals[int(place)] = kept[place] if self.waits else self._final(information, int(place))
        return Moved(kept, rewards.astype(np.float32), terminated, truncated, over, played, finals)

    def picture(self) -> np.ndarray:
        """What the first environment shows now, (H, W, 3) bytes.

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
        """Release what the environments hold; processes among it."""
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
        return array if "f" in kinds else array.astype(bool)

    def _frames(self, information: Any) -> np.ndarray:
        if self._environment.rom is None and not self._environment.lives:
            return self.frames
        return np.array(information.get("episode_frame_number", self.frames), np.int64)

    @contextmanager
    def _blamed(self, what: str) -> Iterator[None]:
        try:
            yield
        except (DataError, ConfigError):
            raise
        except AnswerError as error:
            raise DataError(f"{self._environment.name}: {error} (in {what} after {self._steps} steps)") from error
        except Exception as error:
            name, when = self._environment.name, f"after {self._steps} steps of {len(self._seeds)} environments"
            if isinstance(error, (EOFError, ConnectionError)) and hasattr(self._made, "processes"):
                _kill(self._made)
                raise DataError(
                    f"{name}: a worker process ended in {what} {when}, as where memory runs out: look into the "
                    "system's log, or use fewer environments"
                ) from error
            text = str(error) if isinstance(error, RemoteError) else described(error)
            raise DataError(f"{name}, in {what} {when}, raised {text}") from error


_KINDS = ("biuf", "biu", "biu")
"""Kinds of numbers that rewards and the two flags may be."""


def _prepare(name: str, made: Any) -> None:
    """Guard the environments of a vector of Gymnasium's, and let none of their information stop them."""
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
        purpose: "train", "evaluate" or "held-out".
        count: How many.
        part: Which of several times the environments are made: training after a break plays others.
    """
    key = (("train", "evaluate", "held-out").index(purpose), part)
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


def _is_gymnasiums(made: Any) -> bool:
    return hasattr(made, "step_async")


def _kill(made: Any) -> None:
    """End worker processes that cannot be asked to, since one of them is dead."""
    for process in made.processes:
        process.kill()
        process.join()
    made.closed = True
