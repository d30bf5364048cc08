"""Made-up rollouts for `tddelta.testing`, and the ordinary targets of one scale, written out plainly."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tddelta.timescales import TimeScales

ARRAYS = ("rewards", "deltas", "next_deltas", "terminated", "truncated")

SIZES = (
    (1, (), 1),
    (2, (), 1),
    (1, (), 2),
    (2, (), 2),
    (3, (), 2),
    (2, (2,), 2),
    (4, (2,), 3),
    (7, (3,), 3),
    (9, (2, 2), 4),
    (12, (3,), 5),
)


@dataclass(frozen=True)
class Rollout:
    """A made-up rollout of T steps of B streams: what `lambda_targets` takes, by name."""

    rewards: np.ndarray
    deltas: np.ndarray
    next_deltas: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    scales: TimeScales

    def steps(self, part: Any) -> "Rollout":
        """Some of the steps, or of the steps and streams."""
        return self._with({name: getattr(self, name)[part] for name in ARRAYS})

    def first_scales(self, number: int) -> "Rollout":
        """Without the components of longer horizons."""
        return replace(
            self,
            deltas=self.deltas[..., :number],
            next_deltas=self.next_deltas[..., :number],
            scales=_some(self.scales, slice(number)),
        )

    def value(self, z: int) -> "Rollout":
        """V_z alone, as a rollout with one scale."""
        return replace(
            self,
            deltas=self.deltas[..., : z + 1].sum(-1, keepdims=True),
            next_deltas=self.next_deltas[..., : z + 1].sum(-1, keepdims=True),
            scales=_some(self.scales, slice(z, z + 1)),
        )

    def laid_out(self, streams: tuple[int, ...]) -> "Rollout":
        """With other batch axes for the same streams."""
        steps, axes = len(self.rewards), self.rewards.ndim
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return self._with({name: array.reshape(steps, *streams, *array.shape[axes:]) for name, array in arrays.items()})

    def _with(self, arrays: dict[str, Any]) -> "Rollout":
        return Rollout(**arrays, scales=self.scales)

    def __str__(self) -> str:
        lines = [f"scales = {self.scales}"]
        for name in ARRAYS:
            array = getattr(self, name)
            lines.append(f"{name} = {np.array2string(array, separator=', ', prefix=name + ' = ')}")
        return "\n".join(lines)


def _some(scales: TimeScales, part: slice) -> TimeScales:
    decays, windows = scales.trace_decays, scales.n_steps
    return TimeScales(
        scales.gammas[part], None if decays is None else decays[part], None if windows is None else windows[part]
    )


def make_rollout(
    generator: np.random.Generator,
    steps: int,
    streams: tuple[int, ...],
    number: int,
    *,
    equal_decays: bool,
    equal_windows: bool,
) -> Rollout:
    """Small whole numbers, so that a failure can be checked by hand."""
    gammas = np.sort(generator.choice([0.0, 0.5, 0.75, 0.9, 0.95, 0.99], number, replace=False))
    # All of these contract, so that no warning is given.
    decays = np.full(number, 0.4) if equal_decays else gammas * generator.choice([0.0, 0.5, 0.9, 1.0], number)
    windows = generator.integers(1, 5, 1 if equal_windows else number)
    scales = TimeScales(tuple(gammas), tuple(decays), tuple(np.broadcast_to(windows, number)))
    shape = (steps, *streams)
    rewards, deltas, finals = (
        generator.integers(-4, 5, size).astype(float) for size in (shape, (*shape, number), (*shape, number))
    )
    terminated, truncated = generator.random(shape) < 0.25, generator.random(shape) < 0.25
    return Rollout(rewards, deltas, follow(deltas, finals, terminated | truncated), terminated, truncated, scales)


def follow(deltas: np.ndarray, finals: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The components at the true successors: the next ones, but the final ones at an end and after the last step."""
    return np.where(ends[..., None], finals, np.concatenate([deltas[1:], finals[-1:]]))


def one_step_target(rollout: Rollout) -> np.ndarray:
    """One-step targets of the components, written as differences of values."""
    gammas = np.array(rollout.scales.gammas)
    discounted = gammas * np.where(rollout.terminated[..., None], 0.0, rollout.next_deltas).cumsum(-1)
    first = rollout.rewards[..., None] + discounted[..., :1]
    return np.concatenate([first, np.diff(discounted, axis=-1)], axis=-1)


def lambda_return(rollout: Rollout) -> np.ndarray:
    """The ordinary λ-return of the only scale."""
    (decay,), target = rollout.scales.trace_decays or (0.0,), one_step_target(rollout)
    ends = (rollout.terminated | rollout.truncated)[..., None]
    for t in reversed(range(len(target) - 1)):
        target[t] += decay * np.where(ends[t], 0.0, target[t + 1] - rollout.deltas[t + 1])
    return target


def n_step_return(rollout: Rollout) -> np.ndarray:
    """The ordinary n-step return of the only scale."""
    target = one_step = one_step_target(rollout)
    ends = (rollout.terminated | rollout.truncated)[..., None]
    (window,) = rollout.scales.n_steps or (1,)
    for _ in range(window - 1):
        longer = rollout.rewards[:-1, ..., None] + rollout.scales.gammas[0] * target[1:]
        target = np.concatenate([np.where(ends[:-1], one_step[:-1], longer), one_step[-1:]])
    return target


KINDS: dict[str, Callable[[Rollout], np.ndarray]] = {
    "λ-return": lambda_return,
    "n-step return": n_step_return,
    "one-step target": one_step_target,
}
