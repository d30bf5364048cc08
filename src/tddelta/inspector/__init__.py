"""See what a value function believes, along one game: a page, a table of one moment, a video.

Everything is made from a recording, one game and what one critic or two believed along it. It is an `.npz` archive of
plain arrays, T steps, Z scales; row t is the state before step t, and the step out of it:

```
rewards          (T,)    r_t                                   needed
deltas           (T, Z)  W of s_t                              needed
gammas           (Z,)    the discounts, rising                 needed
terminated       (T,)    boolean: step t ended an episode      needed
truncated        (T,)    boolean: it was cut after step t      needed
frames           (T, H, W) or (T, H, W, 3), bytes: the screen at s_t
observations     (T, ...) what the agent saw at s_t;  actions (T, ...);  lives (T,) left at s_t
learner_rewards  (T,)    what the critic learned from where it is not rewards, such as their signs
other_deltas, other_gammas, other_name  (T, Y), (Y,), text: a second critic
name, environment, no_frames            text; the last says why there are no frames
```

NumPy alone reads and writes recordings; the page and the video need more.
"""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta.decomposition import compose
from tddelta.errors import CheckpointError, ConfigError, DataError, ShapeError
from tddelta.runs import Run, files
from tddelta.runs.files import ELSEWHERE
from tddelta.runs.recorder import realised_returns
from tddelta.timescales import TimeScales

__all__ = ["Critic", "Recording", "from_observations", "inspect", "smaller"]

Array = npt.NDArray[Any]
"""An array of any type."""

_NEEDED = ("rewards", "deltas", "gammas", "terminated", "truncated")
_OPTIONAL = (
    *("frames", "observations", "actions", "lives", "name", "environment"),
    *("learner_rewards", "other_deltas", "other_gammas", "other_name", "no_frames", "last_deltas"),
)
_SAVED = ("rewards", "terminated", "truncated", "frames", "observations", "actions", "lives", "learner_rewards")
_NUMBERS = ("rewards", "learner_rewards", "lives", "deltas", "gammas", "other_deltas", "other_gammas")


@dataclass(frozen=True)
class Critic:
    """Name of a critic, its discounts `gammas` (Z,), rising, and its beliefs along a game: `deltas`, W (T, Z)."""

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
    """One game, checked: the fields of the archive, with one or two `critics`, and `frames` in colour, (T, H, W, 3)."""

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
            arrays = files.read_arrays(path)
        except CheckpointError as error:
            raise DataError(f"{path} is no archive of plain arrays, or damaged: write it with np.savez") from error
        return _checked(arrays or {}, str(path))

    @classmethod
    def of_run(cls, run: Run) -> "Recording":
        """The episode that a run recorded when it ended, whatever library trained it.

        Raises:
            ConfigError: It recorded none.
            CheckpointError, DataError: It is damaged.
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
        """Write it as an `.npz` file that `read` gives back; StorageError where that cannot be."""
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
        """The same game with a second critic beside the first; ShapeError if that has another number of steps."""
        _check_critic(critic, len(self), "the second critic")
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
    for name in _NUMBERS:
        _check_numbers(name, arrays.get(name, np.zeros(0)), place)
    rewards = arrays["rewards"]
    if rewards.ndim != 1 or len(rewards) == 0:
        raise ShapeError(f"{place}: rewards must be (T,) with at least one step; got {rewards.shape}")
    steps = len(rewards)
    for name in _SAVED:
        shape = arrays.get(name, rewards).shape
        rows = ", …" if name in ("frames", "observations", "actions") else ","
        if shape[:1] != (steps,) or (rows == "," and len(shape) > 1):
            raise ShapeError(f"{place}: {name} must be ({steps}{rows}), as rewards are; got {shape}")
    for name in ("terminated", "truncated"):
        if arrays[name].dtype != np.bool_:
            raise DataError(f"{place}: {name} must be boolean; got {arrays[name].dtype}: write {name}.astype(bool)")
    critics = [_critic(arrays, prefix, steps, place) for prefix in ("", "other_") if f"{prefix}deltas" in arrays]
    fields: dict[str, Any] = {name: arrays.get(name) for name in _SAVED}
    fields |= {name: _floating(arrays[name]) for name in ("rewards", "learner_rewards") if name in arrays}
    fields |= {name: _text(arrays, name) for name in ("environment", "no_frames")}
    if "frames" in arrays:
        fields["frames"] = _frames(arrays["frames"], place)
    return Recording(critics=tuple(critics), **fields)


def _critic(arrays: dict[str, Array], prefix: str, steps: int, place: str) -> Critic:
    name = _text(arrays, f"{prefix}name") or f"{prefix}critic".replace("_", " ")
    critic = Critic(name, arrays[f"{prefix}gammas"], _floating(arrays[f"{prefix}deltas"]))
    _check_critic(critic, steps, place, prefix)
    return critic


def _check_critic(critic: Critic, steps: int, place: str, prefix: str = "") -> None:
    gammas = critic.gammas
    if gammas.ndim != 1 or critic.deltas.shape != (steps, len(gammas)):
        raise ShapeError(
            f"{place}: {prefix}deltas must be (T, Z) with T = {steps} steps and Z = {gammas.size} discounts; got "
            f"{critic.deltas.shape}: one row per state, W (not V) of every discount"
        )
    try:
        _ = critic.scales  # raises unless they rise within [0, 1]
    except ConfigError as error:
        raise ConfigError(f"{place}: {prefix}{error}") from error


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


def _check_numbers(name: str, array: Array, place: str) -> None:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{place}: {name} must hold numbers; got {array.dtype}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise DataError(f"{place}: {name} must be finite; got {array[tuple(bad[0])]} at {tuple(map(int, bad[0]))}")


def _floating(array: Array) -> Array:
    """Single or double precision as it is, anything else as doubles."""
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _frames(array: Array, place: str) -> Array:
    if array.dtype != np.uint8:
        raise DataError(f"{place}: frames must be bytes, 0 … 255; got {array.dtype}: scale and cast them to np.uint8")
    steps = len(array)
    frames = np.repeat(array[..., None], 3, axis=-1) if array.ndim == 3 else array
    if frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
        raise ShapeError(f"{place}: frames must be ({steps}, H, W) or ({steps}, H, W, 3); got {array.shape}")
    return frames


def _text(arrays: dict[str, Array], name: str) -> str:
    found = arrays.get(name, np.array("")).reshape(-1)
    return str(found[0]) if found.size else ""


def inspect(
    recording: "str | os.PathLike[str] | Mapping[str, Any] | Recording",
    out: str | os.PathLike[str] = "inspect.html",
    *,
    step: int = 0,
    video: str | os.PathLike[str] | None = None,
    provenance: str = "",
) -> Path:
    """Show a recording on one HTML page that needs no network.

    Args:
        recording: An `.npz` file, its arrays by name, or a `Recording`: `rewards` (T,), `deltas` (T, Z), `gammas`
            (Z,), `terminated` and `truncated` (T,); `frames` and others are optional, see `tddelta.inspector`. For a
            run directory use the command `tddelta inspect`, or `tddelta.inspector.record`.
        out: The page, ending in `.html`, or a folder for `inspect.html`.
        step: Where the cursor stands at first.
        video: Write an `.mp4` there too; needs the extra `video`.
        provenance: Sentence on how the recording was made, for the page's last line.

    Returns:
        The path of the page.

    Raises:
        ConfigError: `recording` is of another kind, there is no such file, or the recording has no such step.
        DataError: A field is missing, or something in it is not finite.
        ShapeError: The fields do not belong together.
        MissingExtra: A video is asked for, and the extra is not installed.
        StorageError: The page cannot be written.
    """
    recording = recording if isinstance(recording, Recording) else Recording.read(recording)
    from tddelta.inspector.page import html

    target = Path(out) if Path(out).suffix == ".html" else Path(out) / "inspect.html"
    if video is not None and Path(video).suffix != ".mp4":
        raise ConfigError(f"video must end in .mp4; got {os.fspath(video)!r}")
    text = html(recording, step=step, provenance=provenance)
    with files.storing(target, ELSEWHERE):
        target.parent.mkdir(parents=True, exist_ok=True)
    files.replace(target, text.encode(errors="backslashreplace"), again=ELSEWHERE)
    if video is not None:
        from tddelta.inspector.video import write_video

        write_video(recording, Path(video))
    return target
