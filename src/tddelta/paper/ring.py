"""The ring experiment of the paper in full: n-step TD against n-step TD(Δ), every discount, length and step size.

Both methods see the same trajectories. The error of V_Z against the exact values is taken after every environment step
(before the first update it is that of the zero table), and averages of it up to certain steps are all that is kept:
`ring.npz` and `ring.json`, from which `tddelta.paper.ring_report` makes every table and figure.
"""

import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tddelta import __version__, _plain, timescales
from tddelta.errors import ConfigError, own_checks
from tddelta.experiments.plan import folder_of
from tddelta.runs.files import replace, to_json
from tddelta.tabular._checks import FloatArray
from tddelta.timescales import TimeScales

METHODS = ("single", "delta")
"""n-step TD(γ_Z), and n-step TD(Δ) on the doubling ladder below γ_Z."""
MEASURES = ("rms", "absolute")
"""Root mean square over the states, as in the released code, and mean absolute error, as in the paper's text."""
OTHER_ENTROPY = 20190610
"""Entropy from which the second set of seeds is spawned."""

Convention = Literal["entered", "edges", "left"]
"""A convention for the rewards, by name."""
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
"""What the rewards of states 2 and 3 belong to; see `FiniteMDP.ring`. The first one is that of the whole grid."""


@own_checks
@dataclass(frozen=True)
class RingPlan:
    """What is run; the defaults are the published grid.

    Attributes:
        gammas: Discounts γ_Z in [0, 1), increasing.
        n_steps: Lengths k ≥ 1 of the longest window, increasing.
        step_sizes: Step sizes α > 0, increasing, the same for all components.
        lengths: Steps up to which the error is averaged, increasing; the last one is the length of a run.
        seeds: Seeds 0 to `seeds` − 1 are reported, at least 2; as many others choose step sizes apart from them.
        headline: Discount for which all conventions of the reward are run.
        conventions: Conventions of the reward, the first one for the whole grid.
        equal_seeds: How many seeds check that equal windows for all components make both methods equal.

    Raises:
        ConfigError: A setting is out of range, empty, or names something twice.
    """

    gammas: tuple[float, ...] = (0.75, 0.875, 0.9375, 0.96875, 0.984375, 0.992, 0.996)
    n_steps: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    step_sizes: tuple[float, ...] = tuple(np.geomspace(0.001, 1.0, 20, endpoint=False).tolist())
    lengths: tuple[int, ...] = (100, 500, 1000, 5000)
    seeds: int = 200
    headline: float = 0.9375
    conventions: tuple[Convention, ...] = CONVENTIONS
    equal_seeds: int = 20

    def __post_init__(self) -> None:
        gammas = timescales.unit_numbers("gammas", self.gammas)
        if 1.0 in gammas:
            raise ConfigError(f"gammas must be below 1; got {gammas}: the ring never ends, and there is no value at 1")
        self._settle("gammas", gammas)
        for name in ("n_steps", "lengths"):
            given = _plain.entries(name, getattr(self, name))
            self._settle(name, tuple(_plain.whole(name, value) for value in given))
        sizes = _plain.entries("step_sizes", self.step_sizes)
        if not all(_plain.is_number(size) and 0 < size < math.inf for size in sizes):
            raise ConfigError(f"step_sizes must be finite numbers above 0; got {sizes}: .1 is usual")
        self._settle("step_sizes", tuple(map(float, sizes)))
        named = _plain.entries("conventions", self.conventions)
        if not named or any(name not in CONVENTIONS or named.count(name) > 1 for name in named):
            raise ConfigError(
                f"conventions must be one or several of {', '.join(CONVENTIONS)}; got {named}: name each once"
            )
        object.__setattr__(self, "conventions", named)
        object.__setattr__(self, "headline", _plain.number("headline", self.headline))
        if self.headline not in self.gammas:
            raise ConfigError(f"headline must be one of the discounts {self.gammas}; got {self.headline}: name one")
        for name in ("seeds", "equal_seeds"):
            object.__setattr__(self, name, _plain.whole(name, getattr(self, name)))
        if self.seeds < 2 or self.equal_seeds > self.seeds:
            raise ConfigError(
                f"seeds must be at least 2 and equal_seeds between 1 and seeds; got {self.seeds} and "
                f"{self.equal_seeds}: one seed has no standard error"
            )

    def _settle(self, name: str, values: tuple[float, ...] | tuple[int, ...]) -> None:
        """Store an axis of the grid, if it is one."""
        if not values or any(low >= high for low, high in pairwise(values)):
            raise ConfigError(f"{name} must be increasing, one at least; got {values}: sort them, each once")
        object.__setattr__(self, name, values)

    @property
    def cells(self) -> list[tuple[Convention, float, int]]:
        """Every convention, discount and length of the window that is run, for both methods and sets of seeds."""
        return [
            (convention, gamma, n_step)
            for convention in self.conventions
            for gamma in (self.gammas if convention == self.conventions[0] else (self.headline,))
            for n_step in self.n_steps
        ]

    @property
    def component_updates(self) -> int:
        """Updates of components of the whole plan on both sets of seeds, which the progress bar counts."""
        scales = sum(1 + len(TimeScales.doubling(gamma)) for _, gamma, _ in self.cells)
        return 2 * scales * self._runs * self.lengths[-1]

    @property
    def _runs(self) -> int:
        return len(self.step_sizes) * self.seeds


QUICK = RingPlan(gammas=(0.9375,), seeds=100)
"""The headline figure: one discount, all conventions, half the seeds."""


@own_checks
def run_ring(
    plan: RingPlan | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    live: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Run the grid and write its averages.

    Args:
        plan: What to run; None is the published grid.
        out: Folder for `ring.npz`, `ring.json` and `timing.json`, which must not exist or be empty; None makes
            `runs/YYYYMMDD-HHMMSS`.
        threads: Threads to use; None uses one per core. It does not change the results.
        live: Whether to show a progress bar on the standard error.
        say: Told what comes next, once per convention of the reward.

    Returns:
        The folder.

    Raises:
        ConfigError: The folder holds something, or cannot be made.
        MissingExtra: numba is not installed.
    """
    from tddelta.tabular.loops import thread_count  # before the folder is made: a missing extra shows here

    plan, used = plan or RingPlan(), thread_count(threads)
    folder = _new_folder(folder_of(out))
    began, worked = time.perf_counter(), time.process_time()
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[speed]}"), console=Console(stderr=True), transient=True, disable=not live,
    ) as progress:  # fmt: skip
        task = progress.add_task("ring", total=plan.component_updates, speed="")

        def advance(updates: int) -> None:
            done = progress.tasks[0].completed + updates
            speed = done / max(time.perf_counter() - began, 1e-9)
            progress.update(task, advance=updates, speed=f"{speed / 1e6:,.0f}M component updates/s")

        arrays = _grid(plan, threads, advance, say)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
    replace(folder / "ring.npz", lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    settings = {"experiment": "ring", **asdict(plan), "methods": METHODS, "measures": MEASURES,
                "version": __version__}  # fmt: skip
    replace(folder / "ring.json", to_json(settings))
    timing = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "component_updates": plan.component_updates,
        "peak_memory_bytes": peak_memory(),
        "threads": used,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    replace(folder / "timing.json", to_json(timing))
    return folder


def peak_memory() -> int | None:
    """The most memory that this process has held so far, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _new_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        used = any(path.iterdir())
    except OSError as error:
        raise ConfigError(f"{path} cannot be made ({error}): choose another folder with out=") from error
    if used:
        raise ConfigError(f"{path} exists already, and results are never overwritten: choose another folder with out=")
    return path


def _grid(
    plan: RingPlan, threads: int | None, advance: Callable[[int], None], say: Callable[[str], None]
) -> dict[str, npt.NDArray[Any]]:
    """All averages.

    `errors` has the axes (set of seeds, γ, n, method, measure, α, seed, length); `headline_errors` has the convention
    in front and no γ. Set 0 is reported, set 1 the others.
    """
    from tddelta.tabular import FiniteMDP, sample

    sets = [list(range(plan.seeds)), other_seeds(plan.seeds)]
    tail = (len(METHODS), len(MEASURES), len(plan.step_sizes), plan.seeds, len(plan.lengths))
    errors = np.full((2, len(plan.gammas), len(plan.n_steps), *tail), np.nan)
    headline = np.full((len(plan.conventions), 2, len(plan.n_steps), *tail), np.nan)
    equality = np.full((len(plan.gammas), len(plan.n_steps)), np.nan)
    for c, convention in enumerate(plan.conventions):
        mdp, own = FiniteMDP.ring(convention), [cell[1:] for cell in plan.cells if cell[0] == convention]
        say(f"ring, reward {convention!r}: {len(own)} pairs of γ and n, 2 methods, {2 * plan.seeds} seeds")
        for which, seeds in enumerate(sets):
            trajectory = sample(mdp, plan.lengths[-1], seeds)
            for gamma, n_step in own:
                g, k = plan.gammas.index(gamma), plan.n_steps.index(n_step)
                exact = mdp.exact_values([gamma])[:, 0]
                scales = TimeScales.doubling(gamma, n_step=n_step), TimeScales.single(gamma, n_step=n_step)
                cell = np.full(tail, np.nan)
                for method, ladder in enumerate(reversed(scales)):
                    cell[method] = _learn(plan, trajectory, ladder, exact, threads, advance)
                if c == 0:
                    errors[which, g, k] = cell
                    if which == 0:
                        equality[g, k] = _equality(plan, trajectory, gamma, n_step, exact, threads)
                if gamma == plan.headline:
                    headline[c, which, k] = cell
    return {
        "errors": errors,
        "headline_errors": headline,
        "equality": equality,
        "seeds": np.array(sets[0], np.uint64),
        "other_seeds": np.array(sets[1], np.uint64),
    }


def _learn(
    plan: RingPlan, trajectory: Any, scales: TimeScales, exact: FloatArray, threads: int | None,
    advance: Callable[[int], None],
) -> FloatArray:  # fmt: skip
    """Averages of one method in one cell: (measure, α, seed, length)."""
    from tddelta.tabular import n_step

    per_seed = len(scales) * len(plan.step_sizes) * plan.lengths[-1]
    result = n_step.run(
        trajectory,
        scales.gammas,
        _windows(scales),
        _rows(plan.step_sizes, len(scales)),
        exact,
        record=plan.lengths,
        threads=threads,
        done=lambda seeds: advance(seeds * per_seed),
    )
    return np.stack([result.rms_error, result.abs_error])


def _equality(
    plan: RingPlan, trajectory: Any, gamma: float, length: int, exact: FloatArray, threads: int | None
) -> float:
    """Largest difference of V_Z between the methods, over step sizes, seeds and states, if every k_z is the same."""
    from tddelta.tabular import n_step

    few = type(trajectory)(*(array[: plan.equal_seeds] for array in trajectory))
    values = []
    for gammas in (TimeScales.doubling(gamma).gammas, (gamma,)):
        rows = _rows(plan.step_sizes, len(gammas))
        result = n_step.run(few, gammas, [length] * len(gammas), rows, exact, threads=threads)
        values.append(result.deltas.sum(axis=-1))
    return float(np.abs(values[0] - values[1]).max())


def _windows(scales: TimeScales) -> Sequence[int]:
    assert scales.n_steps is not None  # every ladder here was made with an n_step
    return scales.n_steps


def _rows(step_sizes: Sequence[float], scales: int) -> FloatArray:
    return np.repeat(np.array(step_sizes)[:, None], scales, axis=1)


def other_seeds(number: int) -> list[int]:
    """Seeds that have nothing in common with 0, 1, 2, …: spawned from an entropy of their own.

    Args:
        number: How many; fewer are the beginning of more.

    Returns:
        Whole numbers below 2^64.
    """
    return [int(child.generate_state(1, np.uint64)[0]) for child in np.random.SeedSequence(OTHER_ENTROPY).spawn(number)]
