"""From observations to the features of a linear value: one per state, one per tile, or the readings themselves."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from tddelta.errors import ConfigError, DataError
from tddelta.tabular.arrays import BoolArray, FloatArray, IntArray
from tddelta.tabular.log_steps import Steps
from tddelta.tabular.tiles import TileCoding, check_points


@dataclass(frozen=True)
class _Table:
    """One feature for each label."""

    labels: tuple[Hashable, ...]

    @property
    def penalty(self) -> FloatArray:
        return np.zeros(len(self.labels))

    def encode(self, observations: Any) -> tuple[Any, BoolArray]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        try:
            if isinstance(observations, str | bytes):  # its letters are no labels
                raise TypeError
            found = np.array([numbers.get(label, -1) for label in observations], dtype=np.int64)
        except TypeError:
            raise DataError(
                f"observations must be a sequence of labels; got {observations!r:.80}: pass [label], and tuples for "
                "labels of several columns"
            ) from None
        known = found >= 0
        starts = np.append(0, np.cumsum(known))
        shape = len(found), len(self.labels)
        return sparse.csr_array((np.ones(starts[-1]), found[known], starts), shape=shape), known


@dataclass(frozen=True, eq=False)
class _Linear:
    """A constant, and the readings less their means over their deviations in training."""

    mean: FloatArray
    spread: FloatArray
    ridge: float
    labels: tuple[Hashable, ...] = ()

    @property
    def penalty(self) -> FloatArray:
        return np.append(0.0, np.full(len(self.mean), self.ridge))

    def encode(self, observations: Any) -> tuple[Any, BoolArray]:
        points = check_points("observations", observations, len(self.mean))
        columns = np.column_stack([np.ones(len(points)), (points - self.mean) / self.spread])
        return sparse.csr_array(columns), np.ones(len(points), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """A constant, and one feature for each tile that was visited in training; any other tile has the weight 0."""

    coding: TileCoding
    visited: IntArray
    ridge: float
    labels: tuple[Hashable, ...] = ()

    @property
    def penalty(self) -> FloatArray:
        return np.append(0.0, np.full(len(self.visited), self.ridge))

    def encode(self, observations: Any) -> tuple[Any, BoolArray]:
        active = self.coding.indices(check_points("observations", observations, len(self.coding.low)))
        place = np.searchsorted(self.visited, active)
        present = np.append(self.visited, -1)[place] == active
        rows = np.nonzero(present)[0]
        every = np.arange(len(active))
        entries = np.ones(len(active) + len(rows))
        where = np.append(every, rows), np.append(np.zeros(len(active), np.int64), 1 + place[present])
        shape = len(active), 1 + len(self.visited)
        return sparse.coo_array((entries, where), shape=shape).tocsr(), np.ones(len(active), dtype=bool)


Encoder = _Table | _Linear | _Tiles
"""Makes features φ of observations. `labels` are the states where there is one feature for each, `penalty` is κ of
every feature in the regression, (D,), and `encode(observations)` gives the features as a sparse array, (N, D), and
whether each observation has a value, (N,)."""


def fit_encoder(train: Steps, model: str | None, tiles: int, tilings: int, ridge: float) -> tuple[Encoder, Steps]:
    """Choose features by what was seen in training.

    Args:
        train: Steps of the training episodes.
        model: None for labels, "tiles" or "linear".
        tiles: Tiles per feature of one grid.
        tilings: Number of grids.
        ridge: Penalty on every weight but that of the constant.

    Returns:
        The encoder, and the steps whose values can be known: all but those before a cut in a state without steps.

    Raises:
        ConfigError: The features depend on each other, and there is no penalty.
        DataError: No step is left.
    """
    if model is None:
        used = _with_known_ends(train)
        seen: set[Any] = {train.observations[place] for place in used.places.tolist()}
        return _Table(_sorted(seen)), used
    points = np.asarray(train.observations)[train.places]
    if model == "linear":
        spread = points.std(axis=0)
        linear = _Linear(points.mean(axis=0), np.where(spread > 0, spread, 1.0), ridge)
        if ridge == 0 and np.linalg.matrix_rank(linear.encode(points)[0].toarray()) <= points.shape[1]:
            raise ConfigError(
                "ridge=0 needs features that do not depend on each other: leave one out, or pass ridge=0.01"
            )
        return linear, train
    coding = TileCoding(tuple(points.min(axis=0)), tuple(points.max(axis=0)), tiles, tilings)
    return _Tiles(coding, np.unique(coding.indices(points)), ridge), train


def _with_known_ends(train: Steps) -> Steps:
    """Leave out steps at the end of cut episodes until each leads to a state that has steps of its own."""
    numbers: dict[Hashable, int] = {}
    code = np.array([numbers.setdefault(label, len(numbers)) for label in train.observations])
    kept = np.ones(len(train.places), dtype=bool)
    counts = np.bincount(code[train.places], minlength=len(numbers))
    ends = np.flatnonzero(train.last & (train.successors >= 0))
    begins = np.flatnonzero(np.append(True, train.last[:-1]))
    first = begins[train.episodes[ends] - train.episodes[0]]
    while True:
        unknown = (ends >= first) & (counts[code[train.successors[ends]]] == 0)
        if not unknown.any():
            break
        kept[ends[unknown]] = False
        np.subtract.at(counts, code[train.places[ends[unknown]]], 1)
        ends = ends - unknown
    if not kept.any():
        raise DataError(
            "no value can be known from this log: every episode is cut in a state that has no step of its own; "
            "pass longer episodes, or coarser labels"
        )
    return train.select(kept)


def _sorted(labels: set[Any]) -> tuple[Hashable, ...]:
    try:
        return tuple(sorted(labels))
    except TypeError:  # of several types
        return tuple(sorted(labels, key=lambda label: (type(label).__name__, repr(label))))
