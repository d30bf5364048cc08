"""Features for linear values: groups of states, and tile coding, several shifted grids over continuous features."""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tddelta import _plain
from tddelta._arrays import FloatArray, IntArray, numbers
from tddelta.errors import ConfigError


def one_hot(labels: Iterable[Hashable]) -> npt.NDArray[np.float64]:
    """Feature matrix with one feature per label: states of one label share their value (state aggregation).

    Labels of their own make a table, `one_hot(range(S))`.

    Args:
        labels: Group of every state, anything hashable, S of them.

    Returns:
        Matrix of 0 and 1, shape (S, F), one column per label in the order of first appearance.

    Raises:
        ConfigError: The labels are no sequence, or one of them is not hashable.

    Example:
        >>> one_hot(["left", "left", "right"])
        array([[1., 0.],
               [1., 0.],
               [0., 1.]])
    """
    try:
        groups = list(labels)
        order = {label: column for column, label in enumerate(dict.fromkeys(groups))}
    except TypeError as error:
        raise ConfigError(
            f"labels must be one hashable label per state; got {labels!r:.80} ({error}): "
            "pass a list of numbers, texts or tuples"
        ) from None
    return np.eye(len(order))[[order[label] for label in groups]]


@dataclass(frozen=True)
class TileCoding:
    """`tilings` grids of `tiles` intervals per feature between `low` and `high`, each shifted by a part of a tile.

    The grid of tiling k is shifted along feature j by the share ((2j + 1) k mod tilings) / tilings of a tile, so that
    no two grids coincide along any feature. Points outside of the bounds count as points on them.

    Attributes:
        low: Smallest value of each feature, (F,).
        high: Largest value of each feature, (F,); where it equals `low`, the feature says nothing.
        tiles: Intervals per feature and grid, at least 1.
        tilings: Number of grids, at least 1.

    Raises:
        ConfigError: A number is out of range, or the grids have more tiles than can be numbered.

    Example:
        >>> coding = TileCoding(low=(0.0,), high=(1.0,), tiles=2, tilings=2)
        >>> coding.size, coding.indices(np.array([[0.1], [0.3], [0.9]])).tolist()
        (6, [[0, 3], [0, 4], [1, 5]])

    Reference:
        Sutton and Barto, "Reinforcement Learning", 2nd edition, section 9.5.4.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    tiles: int = 8
    tilings: int = 8

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _bound(name, getattr(self, name)))
        if not self.low or len(self.low) != len(self.high):
            raise ConfigError(
                f"low and high must name one number per feature; got {len(self.low)} and {len(self.high)} numbers: "
                "pass as many of one as of the other"
            )
        if not all(-math.inf < low <= high < math.inf for low, high in zip(self.low, self.high, strict=True)):
            raise ConfigError(f"low must not exceed high; got {self.low} and {self.high}: pass finite bounds in order")
        for name in ("tiles", "tilings"):
            object.__setattr__(self, name, _plain.whole(name, getattr(self, name)))
        if self.size > 2**62:  # tiles are numbered by 64-bit integers
            raise ConfigError(
                f"{self.tilings} grids over {len(self.low)} features have {self.size} tiles, more than can be "
                "numbered: name fewer features, or use a linear model"
            )

    @property
    def size(self) -> int:
        """Number of all tiles, tilings · (tiles + 1)^F: a shifted grid needs one interval more."""
        return math.prod([self.tilings, *[self.tiles + 1] * len(self.low)])

    def indices(self, points: npt.ArrayLike) -> IntArray:
        """The tile of each grid in which each point lies.

        Args:
            points: Features, (N, F), finite.

        Returns:
            Numbers of tiles in 0 … size − 1, (N, tilings); those of different grids differ.

        Raises:
            ShapeError: The shape is another one, or these are no numbers.
            DataError: A number is not finite.
        """
        array = check_points("points", points, len(self.low))
        low, high = np.array(self.low), np.array(self.high)
        width = np.where(high > low, high - low, 1.0)
        place = np.clip((array - low) / width, 0.0, 1.0) * self.tiles
        tiling, feature = np.arange(self.tilings), np.arange(len(low))
        shift = ((2 * feature + 1) * tiling[:, None] % self.tilings) / self.tilings
        # On the upper bound itself, a grid that is not shifted would begin another tile.
        last = np.where(shift > 0, self.tiles, self.tiles - 1)
        cells = np.minimum(np.floor(place[:, None, :] + shift), last).astype(np.int64)
        place_in_grid = (cells * (self.tiles + 1) ** feature).sum(axis=2)
        return np.asarray(place_in_grid + tiling * (self.size // self.tilings))

    def matrix(self, points: npt.ArrayLike) -> FloatArray:
        """One column per tile, 1 where the point lies in it, (N, size): features for `evaluate(..., features=...)`.

        Arguments and errors are those of `indices`; each row has `tilings` ones.
        """
        active = self.indices(points)
        result = np.zeros((len(active), self.size))
        np.put_along_axis(result, active, 1.0, axis=1)
        return result


def check_points(name: str, value: Any, size: int) -> FloatArray:
    """Points as an array of finite features, (N, size); ShapeError or DataError for anything else."""
    return numbers(name, value, (None, size), f"(N, {size})", "pass one row of features per point")


def _bound(name: str, value: Any) -> tuple[float, ...]:
    """One number per feature."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)  # has no axis either
    if array.ndim != 1:
        raise ConfigError(f"{name} must be a sequence of numbers; got {value!r:.80}: pass one number per feature")
    return tuple(array.tolist())
