"""The ring experiment of the paper in full: n-step TD against n-step TD(Δ), every discount, length and step size.

Both methods see the same trajectories. The error of V_Z against the exact values is taken after every environment step
(before the first update it is that of the zero table), and averages of it up to certain steps are all that `run_ring`
keeps: `ring.npz` and `ring.json`, from which alone `write_ring` makes every table and figure: best step sizes,
differences between the methods, and what became of the paper's statements.
"""

import io
import itertools
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from scipy import stats

from tddelta import __version__, _plain, timescales
from tddelta._arrays import FloatArray
from tddelta._matplotlib import own_style
from tddelta.errors import CheckpointError, ConfigError, DataError, StorageError
from tddelta.experiments.plan import folder_of
from tddelta.report.figures import INK, LINE, colour
from tddelta.report.statistics import bootstrap_difference, holm, welch_test
from tddelta.report.tables import Column, Record, Table, markdown
from tddelta.report.words import number, p_text
from tddelta.runs.files import Arrays, read_arrays, read_json, replace, to_json
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
"""Conventions for the rewards of states 2 and 3; see `FiniteMDP.ring`. The first one is that of the whole grid."""


@dataclass(frozen=True)
class RingPlan:
    """Plan of the experiment; the defaults are the published grid.

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


# ---------------------------------------------------------------- the averages, read again

SELECTIONS = ("reported", "other")
"""Seeds on which the best step size of a cell is chosen: those that are reported, as the paper did, or others."""

CHOSEN = {"reported": "the reported seeds", "other": "other seeds"}
"""Names of the two ways to choose step sizes in the tables."""

LEVEL = 0.05
"""Level of the tests."""

_RESAMPLES = 2000


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_AXES: dict[str, Callable[[Any], bool]] = {
    "gammas": _plain.is_number,
    "n_steps": _is_whole,
    "methods": METHODS.__contains__,
    "measures": MEASURES.__contains__,
    "step_sizes": _plain.is_number,
    "lengths": _is_whole,
    "conventions": CONVENTIONS.__contains__,
}  # and what stands on them


@dataclass(frozen=True)
class RingData:
    """The averages of a ring experiment.

    Attributes:
        settings: `ring.json`.
        errors: Average errors, shape (set of seeds, γ, n, method, measure, α, seed, length); set 0 is reported.
        headline_errors: The same for one discount, with the convention of the reward in front and no axis γ.
        equality: Largest difference of V_Z between the methods where every k_z is the same, shape (γ, n).
    """

    settings: dict[str, Any]
    errors: FloatArray
    headline_errors: FloatArray
    equality: FloatArray

    @classmethod
    def load(cls, folder: Path) -> "RingData":
        """Read a folder that `run_ring` wrote; CheckpointError where there is none, or a damaged one."""
        settings: dict[str, Any] = {}
        arrays: Arrays = {}
        problem = next((f"it has no {n}" for n in ("ring.json", "ring.npz") if not (folder / n).is_file()), "")
        if not problem:
            try:
                settings, arrays = read_json(folder / "ring.json"), read_arrays(folder / "ring.npz") or {}
                problem = _problem(settings, arrays)
            except CheckpointError:  # what it advises is for run directories
                problem = "one of its files is damaged"
        if problem:
            raise CheckpointError(
                f"{folder} is no folder of a ring experiment: {problem}; name one that `tddelta reproduce ring` made"
            )
        return cls(settings, *(arrays[name] for name in ("errors", "headline_errors", "equality")))

    @property
    def seeds(self) -> int:
        """Number of reported seeds."""
        return int(self.errors.shape[-2])

    def axis(self, name: str) -> list[Any]:
        """Values along an axis: gammas, n_steps, methods, measures, step_sizes, lengths or conventions."""
        return list(self.settings[name])


def _problem(settings: dict[str, Any], arrays: Arrays) -> str:
    """Reason why these are not the settings and averages of a ring experiment; "" if they are."""
    if settings.get("experiment") != "ring":
        return "ring.json is about something else"
    for name, allowed in _AXES.items():
        axis = settings.get(name)
        if not isinstance(axis, list) or not axis or not all(allowed(entry) for entry in axis):
            return f"ring.json names no {name}"
    if settings.get("headline") not in settings["gammas"] or not _is_whole(settings.get("seeds")):
        return "ring.json names no headline, or no seeds"
    size = {name: len(settings[name]) for name in _AXES}
    inner = (size[name] for name in ("n_steps", "methods", "measures", "step_sizes"))
    cell = (*inner, settings["seeds"], size["lengths"])
    shapes = {
        "errors": (2, size["gammas"], *cell),
        "headline_errors": (size["conventions"], 2, *cell),
        "equality": (size["gammas"], size["n_steps"]),
    }
    for name, shape in shapes.items():
        if name not in arrays or arrays[name].shape != shape or arrays[name].dtype != np.float64:
            return f"{name} in ring.npz does not fit ring.json"
    return ""


# ---------------------------------------------------------------- cells and their tests


@dataclass(frozen=True)
class Cell:
    """Both methods at their best step sizes.

    Attributes:
        place: Values by name of the axis, as in {"gamma": .75, "n_step": 4, "length": 100, …}.
        step_sizes: Best step size of the single learner and of TD(Δ).
        errors: Their errors, over the reported seeds, shape (2, N).
    """

    place: dict[str, Any]
    step_sizes: tuple[float, float]
    errors: FloatArray


def best(errors: FloatArray, selection: str) -> npt.NDArray[np.int64]:
    """Index of the step size with the smallest mean over seeds; where it is not finite, a step size cannot win.

    Args:
        errors: Shape (set of seeds, …, α, seed, length).
        selection: One of `SELECTIONS`.

    Returns:
        Shape (…, length).
    """
    means = errors[SELECTIONS.index(selection)].mean(axis=-2)
    return np.asarray(np.where(np.isfinite(means), means, np.inf).argmin(axis=-2))


def cells(data: RingData, measure: str, selection: str) -> Iterator[Cell]:
    """Every (γ, n, length) of the grid."""
    for g, gamma in enumerate(data.axis("gammas")):
        yield from _cells(data, data.errors[:, g], {"gamma": gamma}, measure, selection)


def headline_cells(data: RingData, measure: str, selection: str) -> Iterator[Cell]:
    """Every (convention, n, length) for the headline discount."""
    for c, convention in enumerate(data.axis("conventions")):
        place = {"convention": convention, "gamma": data.settings["headline"]}
        yield from _cells(data, data.headline_errors[c], place, measure, selection)


def _cells(data: RingData, errors: FloatArray, place: dict[str, Any], measure: str, selection: str) -> Iterator[Cell]:
    errors = errors[:, :, :, data.axis("measures").index(measure)]  # (set, n, method, α, seed, length)
    chosen, sizes = best(errors, selection), data.axis("step_sizes")
    axes = enumerate(data.axis("n_steps")), enumerate(data.axis("lengths"))
    for (k, n_step), (t, length) in itertools.product(*axes):
        one, two = (int(chosen[k, method, t]) for method in (0, 1))
        named = {**place, "n_step": n_step, "length": length, "measure": measure, "selection": selection}
        found = np.stack([errors[0, k, 0, one, :, t], errors[0, k, 1, two, :, t]])
        yield Cell(named, (sizes[one], sizes[two]), found)


def compare(found: Sequence[Cell]) -> list[Record]:
    """Test every cell, TD(Δ) against the single learner; the cells given are one family for Holm's correction.

    Returns:
        Per cell its place, means and standard errors, the gain, which is the share of the single learner's error that
        TD(Δ) saves, p of Welch's test without and with Holm's correction, a bootstrap interval, and the verdict.
    """
    tests = [welch_test(cell.errors[1], cell.errors[0]) for cell in found]
    corrected = holm([test.p_value for test in tests])
    with ThreadPoolExecutor() as pool:
        intervals = pool.map(lambda c: bootstrap_difference(c.errors[1], c.errors[0], n_bootstrap=_RESAMPLES), found)
    records: list[Record] = []
    for cell, test, p, interval in zip(found, tests, corrected, intervals, strict=True):
        single, delta = (float(errors.mean()) for errors in cell.errors)
        spread = [float(errors.std(ddof=1) / np.sqrt(len(errors))) for errors in cell.errors]
        numbers = {
            "step_size_single": cell.step_sizes[0],
            "step_size_delta": cell.step_sizes[1],
            "single": single,
            "single_standard_error": spread[0],
            "delta": delta,
            "delta_standard_error": spread[1],
            "gain": 1 - delta / single,
            "difference": test.difference,
            "p_welch": test.p_value,
            "p_holm": p,
            "bootstrap_low": interval.low,
            "bootstrap_high": interval.high,
            "verdict": verdict(test.difference, p),
        }
        records.append(cell.place | numbers)
    return records


def verdict(difference: float, p: float | None) -> str:
    """Say what a p value says of TD(Δ): "better", "worse" or "same"."""
    if p is None or p >= LEVEL:
        return "same"
    return "better" if difference < 0 else "worse"


Families = Mapping[tuple[str, str], Sequence[Record]]
"""Comparisons by (measure, seeds on which the step sizes were chosen): each is one family of tests."""


def comparisons(
    data: RingData, source: Callable[[RingData, str, str], Iterator[Cell]] = cells
) -> dict[tuple[str, str], list[Record]]:
    """All comparisons by (measure, selection)."""
    pairs = itertools.product(data.axis("measures"), SELECTIONS)
    return {pair: compare(list(source(data, *pair))) for pair in pairs}


# ---------------------------------------------------------------- tables and statements


def step_size_records(data: RingData) -> list[Record]:
    """Mean and standard error over seeds for every step size, and the mean on the other seeds."""
    records = []
    means = data.errors.mean(axis=-2)
    spread = data.errors[0].std(axis=-2, ddof=1) / np.sqrt(data.errors.shape[-2])
    names = ("gammas", "n_steps", "methods", "measures", "step_sizes", "lengths")
    for index in itertools.product(*(range(len(data.axis(name))) for name in names)):
        place = {name.removesuffix("s"): data.axis(name)[i] for name, i in zip(names, index, strict=True)}
        numbers = {"mean": means[0][index], "standard_error": spread[index], "mean_other_seeds": means[1][index]}
        records.append(place | {name: float(value) for name, value in numbers.items()})
    return records


def _share(value: float) -> str:
    return f"{100 * value:+.1f} %".replace("-", "−")


def _plus_minus(mean: float, error: float) -> str:
    return f"{number(mean)} ± {number(error)}"


_GAMMA, _N, _STEPS = (
    Column("γ", "gamma", "{:g}".format),
    Column("n", "n_step"),
    Column("steps", "length", "{:,}".format),
)
_GAIN, _HOLM = Column("gain", "gain", _share), Column("p (Holm)", "p_holm", p_text)
_CHOICE = ("error", "step size chosen on")


def worse(found: Sequence[Record]) -> str:
    """The cells in which the corrected test finds TD(Δ) worse."""
    some = [one for one in found if one["verdict"] == "worse"]
    means = Column("single", "single", number), Column("TD(Δ)", "delta", number)
    return Table("worse", "", (_GAMMA, _N, _STEPS, *means, _GAIN, _HOLM), some).to_markdown() if some else "None.\n"


def conventions(data: RingData, found: Sequence[Record]) -> str:
    """Both methods under every convention of the reward, for the headline discount and the longest runs."""
    columns = (
        Column("reward", "convention"),
        _N,
        Column("single", ("single", "single_standard_error"), _plus_minus),
        Column("TD(Δ)", ("delta", "delta_standard_error"), _plus_minus),
        _GAIN,
        _HOLM,
    )
    return Table("conventions", "", columns, _over(found, data.axis("lengths")[-1])).to_markdown()


def _over(found: Sequence[Record], length: int) -> list[Record]:
    return [one for one in found if one["length"] == length]


def verdicts(data: RingData, families: Families) -> str:
    """Number of cells in which TD(Δ) is better or worse, by measure, choice of step sizes and length."""
    rows = []
    for ((measure, selection), found), length in itertools.product(families.items(), data.axis("lengths")):
        some = _over(found, length)
        counts = [sum(one["verdict"] == name for one in some) for name in ("better", "worse", "same")]
        before = [verdict(one["difference"], one["p_welch"]) for one in some]
        gained = [one["gain"] for one in some]
        rows.append(
            [measure, CHOSEN[selection], f"{length:,}", *map(str, counts),
             str(before.count("better")), str(before.count("worse")),
             *(_share(value) for value in (float(np.median(gained)), min(gained), max(gained)))]
        )  # fmt: skip
    head = [*_CHOICE, "steps", "better", "worse", "neither", "better, uncorrected",
            "worse, uncorrected", "median gain", "smallest", "largest"]  # fmt: skip
    return markdown(head, rows)


def gains(data: RingData, found: Sequence[Record], length: int) -> str:
    """Gain of every discount and window, with a mark where the corrected test finds a difference."""
    marks = {"better": "**{}**", "worse": "{} (worse)", "same": "{}"}
    table = {(o["gamma"], o["n_step"]): marks[o["verdict"]].format(_share(o["gain"])) for o in _over(found, length)}
    return _matrix(data, [[table[gamma, n_step] for n_step in data.axis("n_steps")] for gamma in data.axis("gammas")])


def equality(data: RingData) -> str:
    """Largest difference of V_Z between the methods where every component has the same window."""
    return _matrix(data, [[f"{difference:.1e}" for difference in line] for line in data.equality])


def _matrix(data: RingData, texts: Sequence[Sequence[str]]) -> str:
    rows = [[f"{gamma:g}", *line] for gamma, line in zip(data.axis("gammas"), texts, strict=True)]
    return markdown(["γ", *(f"n = {n_step}" for n_step in data.axis("n_steps"))], rows)


def growth(data: RingData, families: Families) -> str:
    """Growth of the gain with γ and with n: mean rank correlation, and in how many lines it grows throughout.

    Once for the gain as a share of the single learner's error, and once for the difference of the errors.
    """
    rows = []
    for ((measure, selection), found), length in itertools.product(families.items(), data.axis("lengths")):
        for name, along in _along(data, _over(found, length)).items():
            rows.append([measure, CHOSEN[selection], f"{length:,}", name, *(text for pair in along for text in pair)])
    head = [*_CHOICE, "steps", "gain as", "rank correlation with γ", "grows throughout with γ",
            "rank correlation with n", "grows throughout with n"]  # fmt: skip
    return markdown(head, rows)


def _along(data: RingData, found: Sequence[Record]) -> dict[str, list[tuple[str, str]]]:
    """Growth with γ and with n of the gain as a share and as a difference."""
    shape = len(data.axis("gammas")), len(data.axis("n_steps"))
    both = {"share": [one["gain"] for one in found], "difference": [-one["difference"] for one in found]}
    tables = {name: np.reshape(values, shape) for name, values in both.items()}
    return {name: [_growth(table.T), _growth(table)] for name, table in tables.items()}


def _growth(lines: FloatArray) -> tuple[str, str]:
    """Mean Spearman correlation of the lines with their place, and how many grow at every step."""
    kept = [line for line in lines if np.ptp(line) > 0]
    if not kept or len(lines[0]) < 3:
        return "n/a", "n/a"
    correlations = [float(stats.spearmanr(np.arange(len(line)), line).statistic) for line in kept]
    growing = sum(bool((np.diff(line) > 0).all()) for line in kept)
    return f"{np.mean(correlations):+.2f}".replace("-", "−"), f"{growing} of {len(kept)}"


def selection(data: RingData, families: Families) -> str:
    """Effect of choosing the step size on the reported seeds."""
    rows = []
    for measure, (name, title) in itertools.product(data.axis("measures"), _TITLES.items()):
        pairs = list(zip(families[measure, "reported"], families[measure, "other"], strict=True))
        moved = sum(one[f"step_size_{name}"] != two[f"step_size_{name}"] for one, two in pairs)
        larger = [two[name] / one[name] - 1 for one, two in pairs]
        mean = _share(float(np.mean(larger)))
        rows.append([measure, title, f"{moved} of {len(pairs)}", mean, _share(max(larger))])
    head = ["error", "method", "another step size chosen", "error larger by, on average", "at most"]
    return markdown(head, rows)


def edges(data: RingData, families: Families) -> str:
    """Number of best step sizes that are the smallest or the largest of the grid: a finer grid might do better."""
    rows = []
    low, high = data.axis("step_sizes")[0], data.axis("step_sizes")[-1]
    for ((measure, selection), found), (name, title) in itertools.product(families.items(), _TITLES.items()):
        sizes = [one[f"step_size_{name}"] for one in found if one["single_standard_error"] > 0]
        counts = [len(sizes), sizes.count(low), sizes.count(high)]
        rows.append([measure, CHOSEN[selection], title, *map(str, counts)])
    return markdown([*_CHOICE, "method", "cells", f"α = {low:g}", f"α = {high:.3g}"], rows)


_TITLES = {"single": "single", "delta": "TD(Δ)"}


def statements(data: RingData, families: Families) -> list[str]:
    """The paper's statements and what became of them: RMS error, step sizes chosen on other seeds."""
    found, last = families["rms", "other"], data.axis("lengths")[-1]
    better, worse = (sum(one["verdict"] == name for one in found) for name in ("better", "worse"))
    losing = sum(one["difference"] > 0 for one in found)
    longest = _over(found, last)
    gained = [one["gain"] for one in longest]
    lines = [
        f"never significantly worse: {'does not hold' if worse else 'holds'}; of {len(found)} cells "
        f"TD(Δ) is better in {better} and worse in {worse} (Welch with Holm, {data.seeds} seeds); "
        f"its mean error is larger in {losing}",
        f"gain over {last:,} steps: from {_share(min(gained))} to {_share(max(gained))} of the single learner's "
        f"error, median {_share(float(np.median(gained)))}",
    ]
    if len(data.axis("gammas")) > 2 and len(data.axis("n_steps")) > 2:
        for name, ((with_gamma, lines_gamma), (with_n, lines_n)) in _along(data, longest).items():
            lines.append(
                f"gain as a {name} over {last:,} steps: rank correlation {with_gamma} with γ (it grows throughout for "
                f"{lines_gamma} n) and {with_n} with n (throughout for {lines_n} γ)"
            )
    lines.append(f"equal when every k_z is the same: V_Z differs by {data.equality.max():.1e} at most")
    return lines


# ---------------------------------------------------------------- files and figures


@own_style()
def write_ring(folder: Path, *, done: Callable[[str], None] | None = None) -> list[str]:
    """Draw all figures and tables of a ring experiment anew, into `figures/` and `tables/` in its folder.

    Args:
        folder: A folder that `run_ring` wrote.
        done: Called with the name of every file written.

    Returns:
        The paper's statements and what became of them, in sentences.

    Raises:
        CheckpointError: The folder holds no ring experiment.
        DataError: A file cannot be written.
    """
    data = RingData.load(folder)
    families = comparisons(data)
    for name, content in itertools.chain(_images(data), _tables(data, families)):
        path = folder / name
        try:
            path.parent.mkdir(exist_ok=True)
            replace(path, content, durable=False)
        except (OSError, StorageError) as error:
            cause = error.__cause__ or error
            reason = getattr(cause, "strerror", None) or cause
            raise DataError(
                f"{path} cannot be written ({reason}): make room for it, or move what is in its way"
            ) from error
        if done is not None:
            done(name)
    return statements(data, families)


def _tables(data: RingData, families: Families) -> Iterator[tuple[str, bytes]]:
    headline = comparisons(data, headline_cells)
    records = {
        "cells": [one for found in families.values() for one in found],
        "conventions": [one for found in headline.values() for one in found],
        "step-sizes": step_size_records(data),
    }
    for name, some in records.items():
        yield f"tables/ring-{name}.csv", Table(name, "", (), some).to_csv().encode()
    texts = {
        "verdicts": verdicts(data, families),
        "growth": growth(data, families),
        "equality": equality(data),
        "edges": edges(data, families),
        "selection": selection(data, families),
        "statements": "".join(f"- {line}\n" for line in statements(data, families)),
        "conventions": conventions(data, headline["rms", "other"]),
    }
    for measure in data.axis("measures"):
        texts[f"worse-{measure}"] = worse(families[measure, "other"])
        for length in data.axis("lengths"):
            texts[f"gains-{measure}-{length}"] = gains(data, families[measure, "other"], length)
    for name, text in texts.items():
        yield f"tables/ring-{name}.md", text.encode()


_MEASURE = {"rms": "Root mean square error", "absolute": "Mean absolute error"}
_REWARD = {
    "entered": "reward for the state entered",
    "edges": "reward for the edge",
    "left": "reward for the state left",
}
_METHODS: tuple[dict[str, Any], ...] = (
    {"color": colour(0), "marker": "o", "label": "single n-step TD"},
    {"color": colour(5), "marker": "s", "label": "n-step TD(Δ)"},
)


def _images(data: RingData) -> Iterator[tuple[str, bytes]]:
    """Every figure as PNG: with so many panels a PDF of each would double the time."""
    for name, figure in _figures(data):
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=130, metadata={"Software": None}, facecolor="white")
        yield f"figures/{name}.png", file.getvalue()


def _figures(data: RingData) -> Iterator[tuple[str, Figure]]:
    whole = len(data.axis("gammas")) > 1
    for measure in data.axis("measures"):
        for selection in SELECTIONS:
            found = list(headline_cells(data, measure, selection))
            titles = {name: _REWARD[name] for name in data.axis("conventions")}
            yield f"headline-{measure}-{selection}", _by_n_step(found, "convention", titles, measure)
            if whole:
                grid = list(cells(data, measure, selection))
                titles = {gamma: f"γ = {gamma:g}" for gamma in data.axis("gammas")}
                yield f"by-n-step-{measure}-{selection}", _by_n_step(grid, "gamma", titles, measure)
        for gamma in data.axis("gammas"):
            yield f"by-step-size-{measure}-{gamma:g}", _by_step_size(data, measure, gamma)


def _by_n_step(found: Sequence[Cell], axis: str, titles: dict[Any, str], measure: str) -> Figure:
    """Error against n at the best step size: a row per length, a column per discount or convention."""
    lengths = sorted({cell.place["length"] for cell in found})
    figure, axes = _panels(len(lengths), len(titles), sharey=False)
    for row, length in enumerate(lengths):
        for column, (value, title) in enumerate(titles.items()):
            some = [cell for cell in found if cell.place["length"] == length and cell.place[axis] == value]
            windows = [cell.place["n_step"] for cell in some]
            each = axes[row][column]
            for method, style in enumerate(_METHODS):
                errors = np.array([cell.errors[method] for cell in some])
                bars = errors.std(axis=1, ddof=1) / np.sqrt(errors.shape[1])
                each.errorbar(windows, errors.mean(axis=1), yerr=bars, markersize=3.5, linewidth=1.3, **style)
            each.set_xscale("log", base=2)
            each.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            each.xaxis.set_minor_locator(NullLocator())
            if row == 0:
                each.set_title(title, fontsize=9, color=INK)
            if column == 0:
                each.set_ylabel(f"first {length:,} steps", fontsize=9, color=INK)
    return _finish(figure, axes, "n, steps of the longest window", _MEASURE[measure])


def _by_step_size(data: RingData, measure: str, gamma: float) -> Figure:
    """Error against the step size: a row per length, a column per n."""
    errors = data.errors[0, data.axis("gammas").index(gamma), :, :, data.axis("measures").index(measure)]
    lengths, windows, sizes = data.axis("lengths"), data.axis("n_steps"), data.axis("step_sizes")
    figure, axes = _panels(len(lengths), len(windows), sharey=True)
    means = errors.mean(axis=-2)
    bars = errors.std(axis=-2, ddof=1) / np.sqrt(errors.shape[-2])
    for row, length in enumerate(lengths):
        for column, n_step in enumerate(windows):
            each = axes[row][column]
            for method, style in enumerate(_METHODS):
                mean, bar = means[column, method, :, row], bars[column, method, :, row]
                each.plot(sizes, mean, markersize=2, linewidth=1.1, **style)
                each.fill_between(sizes, mean - bar, mean + bar, color=style["color"], alpha=0.25, linewidth=0)
            each.set_xscale("log")
            each.xaxis.set_minor_locator(NullLocator())
            if row == 0:
                each.set_title(f"n = {n_step}", fontsize=9, color=INK)
            if column == 0:
                each.set_ylabel(f"first {length:,} steps", fontsize=9, color=INK)
        # a row shares its axis: large steps that learn nothing must not flatten what the others show
        smallest_step = float(np.nanmax(means[:, :, 0, row]))
        axes[row][0].set_ylim(0, min(1.05 * float(np.nanmax(means[..., row])), 1.3 * smallest_step))
    return _finish(figure, axes, f"step size α (γ = {gamma:g})", _MEASURE[measure])


def _panels(rows: int, columns: int, *, sharey: bool) -> tuple[Figure, list[list[Axes]]]:
    """Panels in places of their own: a layout engine would draw every figure twice to find them."""
    width, height, gap = 1.75 if sharey else 2.1, 1.35, 0.12 if sharey else 0.48  # inches
    left, right, bottom, top = 0.8, 0.15, 0.6, 0.7
    size = (left + columns * (width + gap) - gap + right, bottom + rows * (height + 0.2) - 0.2 + top)
    figure = Figure(figsize=size)
    axes = figure.subplots(
        rows, columns, sharex=True, sharey="row" if sharey else False, squeeze=False,
        gridspec_kw={"left": left / size[0], "right": 1 - right / size[0], "bottom": bottom / size[1],
                     "top": 1 - top / size[1], "wspace": gap / width, "hspace": 0.2 / height},
    )  # fmt: skip
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(colors=INK, labelsize=7)
        each.grid(axis="y", color=LINE, linewidth=0.5)
        each.set_axisbelow(True)
    return figure, axes.tolist()


def _finish(figure: Figure, axes: list[list[Axes]], x: str, y: str) -> Figure:
    width, height = figure.get_size_inches()
    figure.supxlabel(x, fontsize=9.5, color=INK, y=0.08 / height, va="bottom")
    figure.text(0.1 / width, 1 - 0.12 / height, y, fontsize=10, color=INK, va="top")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper right", ncols=2, fontsize=9, frameon=False, labelcolor=INK)
    return figure
