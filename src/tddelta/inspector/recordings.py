"""Recordings: one game, and what one critic or two believed along it. NumPy alone reads and writes them.

An `.npz` archive of plain arrays, T steps, Z scales; row t is the state before step t, and the step out of it:

```
rewards     (T,)    r_t                          frames        (T, H, W) or (T, H, W, 3), bytes     optional
deltas      (T, Z)  W of s_t                     observations  (T, ...)                             optional
gammas      (Z,)    the discounts, rising        actions       (T, ...)                             optional
terminated  (T,)    boolean                      lives         (T,) at s_t                          optional
truncated   (T,)    boolean                      name, environment   text                           optional
learner_rewards (T,)  what the critic learned   other_deltas (T, Y), other_gammas (Y,), other_name optional
            from where it is not rewards          no_frames     text: why there are no frames       optional
```
"""

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta.decomposition import compose
from tddelta.errors import CheckpointError, ConfigError, DataError, ShapeError
from tddelta.runs import Run, files
from tddelta.runs.files import ELSEWHERE, read_arrays
from tddelta.runs.recorder import realised_returns
from tddelta.timescales import TimeScales

Array = npt.NDArray[Any]
"""An array of any type."""

_NEEDED = ("rewards", "deltas", "gammas", "terminated", "truncated")
_OPTIONAL = (
    *("frames", "observations", "actions", "lives", "name", "environment"),
    *("learner_rewards", "other_deltas", "other_gammas", "other_name", "no_frames", "last_deltas"),
)
_SAVED = ("rewards", "terminated", "truncated", "frames", "observations", "actions", "lives", "learner_rewards")


@dataclass(frozen=True)
class Critic:
    """Beliefs of one critic along a game.

    Attributes:
        name: What to call it.
        gammas: Its discounts, rising, (Z,).
        deltas: W of every state, (T, Z).
    """

    name: str
    gammas: Array
    deltas: Array

    @property
    def scales(self) -> TimeScales:
        """Its time scales, without traces."""
        return TimeScales.from_gammas([float(gamma) for gamma in self.gammas])

    @property
    def values(self) -> Array:
        """V at every scale, (T, Z)."""
        return compose(self.deltas)


@dataclass(frozen=True)
class Recording:
    """One game, checked.

    Attributes:
        rewards: r_t, (T,).
        terminated: Whether step t ended an episode, (T,).
        truncated: Whether it was cut after step t, (T,).
        critics: One or two.
        frames: What the screen showed at s_t, (T, H, W, 3) bytes, or None.
        observations: What the agent saw, (T, …), or None.
        actions: (T, …), or None.
        lives: Lives left at s_t, (T,), or None.
        environment: What was played, or "".
        learner_rewards: What the critics learned from in place of r_t, such as its sign, (T,), or None.
        no_frames: Why there are no frames, or "".
    """

    rewards: Array
    terminated: Array
    truncated: Array
    critics: tuple[Critic, ...]
    frames: Array | None = field(default=None, repr=False)
    observations: Array | None = field(default=None, repr=False)
    actions: Array | None = None
    lives: Array | None = None
    environment: str = ""
    learner_rewards: Array | None = None
    no_frames: str = ""

    def __len__(self) -> int:
        return len(self.rewards)

    @classmethod
    def read(cls, source: "str | os.PathLike[str] | Mapping[str, Any]") -> "Recording":
        """Read and check a recording.

        Args:
            source: An `.npz` file, or its arrays by name, of NumPy, JAX or PyTorch.

        Raises:
            ConfigError: It is neither, or there is no such file.
            DataError: A field is missing or unknown, something is not finite, or the file is no archive of arrays.
            ShapeError: Fields do not belong together.
        """
        if isinstance(source, Mapping):
            return _checked({str(name): _array(str(name), value) for name, value in source.items()}, "the recording")
        if not isinstance(source, str | os.PathLike):
            raise ConfigError(
                f"recording must be the path of an .npz file, a dict of its arrays by name or a Recording; got "
                f"{source!r:.80}: pass one, with {', '.join(_NEEDED)}"
            )
        path = Path(source)
        if not path.exists():
            raise ConfigError(f"{path} does not exist: name a recording, an .npz file, or a run directory")
        if path.is_dir():
            raise ConfigError(
                f"{path} is a folder, no recording: tddelta inspect {path} plays a game of the run in it, "
                "tddelta.inspector.record does so from Python"
            )
        try:
            arrays = read_arrays(path)
        except CheckpointError as error:
            raise DataError(f"{path} is no archive of plain arrays, or damaged: write it with np.savez") from error
        return _checked(arrays or {}, str(path))

    @classmethod
    def of_run(cls, run: Run) -> "Recording":
        """The episode that a run recorded when it ended, whatever library trained it.

        Raises:
            ConfigError: It recorded none.
            DataError: It is damaged.
        """
        arrays = run.rollout
        if arrays is None:
            raise ConfigError(
                f"{run.path} has no recorded episode: it is not finished, or was trained without eval_env= of "
                "RunDirectory"
            )
        named = {"name": np.array(f"{run.agent}, seed {run.seed}"), "environment": np.array(run.environment)}
        return _checked({**arrays, **named}, str(run.path / "rollout.npz"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as an `.npz` file that `read` gives back.

        Raises:
            StorageError: The file cannot be written.
        """
        arrays: dict[str, Any] = {name: array for name in _SAVED if (array := getattr(self, name)) is not None}
        arrays["environment"] = np.array(self.environment)
        if self.no_frames:
            arrays["no_frames"] = np.array(self.no_frames)
        for prefix, critic in zip(("", "other_"), self.critics, strict=False):
            arrays[f"{prefix}deltas"], arrays[f"{prefix}gammas"] = critic.deltas, critic.gammas
            arrays[f"{prefix}name"] = np.array(critic.name)
        write = functools.partial(np.savez_compressed, **arrays)
        files.replace(Path(path), write, durable=False, again=ELSEWHERE)

    def beside(self, critic: Critic) -> "Recording":
        """The same game with a second critic beside the first.

        Raises:
            ShapeError: The critic is of another number of steps.
        """
        _check_critic(critic, len(self), "the second critic", "")
        return replace(self, critics=(self.critics[0], critic))

    @property
    def pictures(self) -> Array | None:
        """The frames, or else what `from_observations` makes of the observations, (T, H, W, 3) bytes."""
        return self.frames if self.frames is not None else from_observations(self.observations)

    def realised(self, critic: Critic) -> Array:
        """Discounted return that followed each state, at the discounts of a critic, (T, Z).

        Of the rewards that the critics learned from. NaN where what lies beyond the end of the recording, or beyond a
        cut, weighs more than a hundredth.
        """
        rewards = self.rewards if self.learner_rewards is None else self.learner_rewards
        flags = {"terminated": self.terminated, "truncated": self.truncated}
        return realised_returns(rewards, critic.gammas, **flags)


PLANES = (
    *((86, 180, 233), (240, 228, 66), (120, 120, 120), (213, 94, 0), (0, 158, 115)),
    *((204, 121, 167), (230, 159, 0), (0, 114, 178), (255, 255, 255), (150, 90, 40)),
)
"""Colours of the planes of a MinAtar observation, on black; told apart in the common kinds of colour blindness."""

LARGEST_SIDE = 320
"""Longest side of a picture that is kept as it is, in pixels."""


def from_observations(observations: Array | None) -> Array | None:
    """Frames of observations that are pictures: binary planes in colour, images as they are.

    Args:
        observations: (T, …).

    Returns:
        (T, H, W, 3) bytes; None for observations that are no picture, such as angles and speeds.
    """
    if observations is None:
        return None
    array = np.asarray(observations)
    if array.ndim == 3 and min(array.shape[1:]) >= 3:
        array = array[..., None]
    if array.ndim != 4 or min(array.shape[1:3]) < 3:
        return None
    if array.shape[-1] <= len(PLANES) and bool(((array == 0) | (array == 1)).all()):
        frames = np.zeros((*array.shape[:3], 3), np.uint8)
        for plane, colour in zip(np.moveaxis(array > 0, -1, 0), PLANES, strict=False):
            frames[plane] = colour  # a later plane covers an earlier one
        return frames
    if array.dtype != np.uint8:
        return None
    if array.shape[-1] == 3:
        return array
    return np.repeat(array[..., -1:], 3, axis=-1)  # grey, or the newest of a stack of grey pictures


def smaller(picture: Array) -> Array:
    """A picture (H, W, 3) with no side longer than a page keeps, by leaving out whole rows and columns."""
    factor = -(-max(picture.shape[:2]) // LARGEST_SIDE)
    return picture[::factor, ::factor].copy()  # not a view, which would keep the whole


def _checked(arrays: dict[str, Array], place: str) -> Recording:
    """A recording of these arrays; `place` begins the sentence about what is wrong with them."""
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise DataError(f"{place} lacks {', '.join(missing)}: a recording has {', '.join(_NEEDED)}")
    unknown = sorted(set(arrays) - {*_NEEDED, *_OPTIONAL})
    if unknown:
        raise DataError(
            f"{place} has {', '.join(unknown)}, no field of a recording: drop it; "
            f"others may have {', '.join(_OPTIONAL)}"
        )
    if ("other_deltas" in arrays) != ("other_gammas" in arrays):
        raise DataError(f"{place} has one of other_deltas and other_gammas: a second critic needs both")
    rewards = _numbers("rewards", arrays["rewards"], place)
    if rewards.ndim != 1 or len(rewards) == 0:
        raise ShapeError(f"{place}: rewards must be (T,) with at least one step; got {rewards.shape}")
    steps, learned, lives = len(rewards), arrays.get("learner_rewards"), arrays.get("lives")
    if learned is not None and _numbers("learner_rewards", learned, place).shape != (steps,):
        raise ShapeError(f"{place}: learner_rewards must be ({steps},), as rewards are; got {learned.shape}")
    for name in ("observations", "actions", "lives"):
        array = arrays.get(name)
        if array is not None and (array.ndim == 0 or len(array) != steps or (name == "lives" and array.ndim > 1)):
            raise ShapeError(f"{place}: {name} must have one entry for each of {steps} steps; got shape {array.shape}")
    return Recording(
        rewards=_floating(rewards),
        **{name: _flags(name, arrays[name], steps, place) for name in ("terminated", "truncated")},
        critics=tuple(_critics(arrays, steps, place)),
        frames=None if "frames" not in arrays else _frames(arrays["frames"], steps, place),
        observations=arrays.get("observations"),
        actions=arrays.get("actions"),
        lives=None if lives is None else _numbers("lives", lives, place),
        environment=_text(arrays.get("environment"), ""),
        learner_rewards=None if learned is None else _floating(learned),
        no_frames=_text(arrays.get("no_frames"), ""),
    )


def _critics(arrays: dict[str, Array], steps: int, place: str) -> Iterator[Critic]:
    for prefix, unnamed in (("", "critic"), ("other_", "other critic")):
        if f"{prefix}deltas" in arrays:
            deltas, gammas = (_numbers(name, arrays[name], place) for name in (f"{prefix}deltas", f"{prefix}gammas"))
            critic = Critic(_text(arrays.get(f"{prefix}name"), unnamed), gammas, _floating(deltas))
            _check_critic(critic, steps, place, prefix)
            yield critic


def _array(name: str, value: Any) -> Array:
    """An array of what somebody passed: a PyTorch tensor without its gradient, from whatever device it is on."""
    try:
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except ValueError as error:
        raise ShapeError(
            f"the recording: {name} must be an array, all rows of one length; got {value!r:.80}: pass as many numbers "
            "for every step"
        ) from error
    except (TypeError, RuntimeError) as error:
        raise DataError(
            f"the recording: {name} cannot be made an array of NumPy ({error}); got {value!r:.80}: convert it first"
        ) from error


def _numbers(name: str, array: Array, place: str) -> Array:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{place}: {name} must hold numbers; got {array.dtype}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise DataError(f"{place}: {name} must be finite; got {array[tuple(bad[0])]} at {tuple(map(int, bad[0]))}")
    return array


def _floating(array: Array) -> Array:
    """Single or double precision as it is, anything else as doubles."""
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _flags(name: str, array: Array, steps: int, place: str) -> Array:
    if array.shape != (steps,):
        raise ShapeError(f"{place}: {name} must be ({steps},), as rewards are; got {array.shape}")
    if array.dtype != np.bool_:
        raise DataError(f"{place}: {name} must be boolean; got {array.dtype}: write {name}.astype(bool)")
    return array


def _check_critic(critic: Critic, steps: int, place: str, prefix: str) -> None:
    gammas = critic.gammas
    if gammas.ndim != 1 or critic.deltas.shape != (steps, len(gammas)):
        raise ShapeError(
            f"{place}: {prefix}deltas must be (T, Z) with T = {steps} steps and Z = {gammas.size} discounts; got "
            f"{critic.deltas.shape}: one row per state, W (not V) of every discount"
        )
    try:
        TimeScales.from_gammas([float(gamma) for gamma in gammas])  # raises unless they rise within [0, 1]
    except ConfigError as error:
        raise ConfigError(f"{place}: {prefix}{error}") from error


def _frames(array: Array, steps: int, place: str) -> Array:
    if array.dtype != np.uint8:
        raise DataError(f"{place}: frames must be bytes, 0 … 255; got {array.dtype}: scale and cast them to np.uint8")
    if array.ndim == 3:
        array = np.repeat(array[..., None], 3, axis=-1)
    if array.ndim != 4 or array.shape[0] != steps or array.shape[3] != 3 or 0 in array.shape:
        raise ShapeError(f"{place}: frames must be ({steps}, H, W) or ({steps}, H, W, 3); got {array.shape}")
    return array


def _text(array: Array | None, otherwise: str) -> str:
    return otherwise if array is None else str(array.reshape(-1)[0] if array.size else otherwise)
