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
from dataclasses import asdict, dataclass, fields
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
from tddelta.errors import CheckpointError, ConfigError
from tddelta.experiments.plan import folder_of
from tddelta.report.figures import INK, LINE, colour
from tddelta.report.statistics import bootstrap_difference, holm, summarise, welch_test
from tddelta.report.tables import Column, Record, Table, markdown, of_summary
from tddelta.report.words import change, number, p_text
from tddelta.runs.files import Arrays, read_arrays, read_json, replace, storing, to_json
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
        def settle(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        gammas = timescales.unit_numbers("gammas", self.gammas)
        if 1.0 in gammas:
            raise ConfigError(f"gammas must be below 1; got {gammas}: the ring never ends, and there is no value at 1")
        settle("gammas", gammas)
        for name in ("n_steps", "lengths"):
            settle(name, tuple(_plain.whole(name, value) for value in _plain.entries(name, getattr(self, name))))
        sizes = _plain.entries("step_sizes", self.step_sizes)
        if not all(_plain.is_number(size) and 0 < size < math.inf for size in sizes):
            raise ConfigError(f"step_sizes must be finite numbers above 0; got {sizes}: .1 is usual")
        settle("step_sizes", tuple(map(float, sizes)))
        for name in ("gammas", "n_steps", "step_sizes", "lengths"):
            values = getattr(self, name)
            if not values or any(low >= high for low, high in pairwise(values)):
                raise ConfigError(f"{name} must be increasing, one at least; got {values}: sort them, each once")
        named = _plain.entries("conventions", self.conventions)
        if not named or any(name not in CONVENTIONS or named.count(name) > 1 for name in named):
            raise ConfigError(
                f"conventions must be one or several of {', '.join(CONVENTIONS)}; got {named}: name each once"
            )
        settle("conventions", named)
        settle("headline", _plain.number("headline", self.headline))
        if self.headline not in self.gammas:
            raise ConfigError(f"headline must be one of the discounts {self.gammas}; got {self.headline}: name one")
        for name in ("seeds", "equal_seeds"):
            settle(name, _plain.whole(name, getattr(self, name)))
        if self.seeds < 2 or self.equal_seeds > self.seeds:
            raise ConfigError(
                f"seeds must be at least 2 and equal_seeds between 1 and seeds; got {self.seeds} and "
                f"{self.equal_seeds}: one seed has no standard error"
            )

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
        return 2 * scales * len(self.step_sizes) * self.seeds * self.lengths[-1]


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
                ladders = TimeScales.single(gamma, n_step=n_step), TimeScales.doubling(gamma, n_step=n_step)
                cell = np.stack([_learn(plan, trajectory, scales, exact, threads, advance) for scales in ladders])
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

    assert scales.n_steps is not None  # every ladder here was made with an n_step
    per_seed = len(scales) * len(plan.step_sizes) * plan.lengths[-1]
    result = n_step.run(
        trajectory,
        scales.gammas,
        scales.n_steps,
        np.outer(plan.step_sizes, np.ones(len(scales))),
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
        sizes = np.outer(plan.step_sizes, np.ones(len(gammas)))
        result = n_step.run(few, gammas, [length] * len(gammas), sizes, exact, threads=threads)
        values.append(result.deltas.sum(axis=-1))
    return float(np.abs(values[0] - values[1]).max())


def other_seeds(number: int) -> list[int]:
    """Seeds below 2^64 that are none of 0, 1, 2, …, spawned from an entropy of their own; fewer begin as more do."""
    return [int(child.generate_state(1, np.uint64)[0]) for child in np.random.SeedSequence(OTHER_ENTROPY).spawn(number)]


# ---------------------------------------------------------------- the averages, read again

SELECTIONS = ("reported", "other")
"""Seeds on which the best step size of a cell is chosen: those that are reported, as the paper did, or others."""

CHOSEN = {"reported": "the reported seeds", "other": "other seeds"}
"""Names of the two ways to choose step sizes in the tables."""

LEVEL = 0.05
"""Level of the tests."""

_RESAMPLES = 2000


@dataclass(frozen=True)
class RingData:
    """The averages of a ring experiment.

    Attributes:
        plan: What was run.
        errors: Average errors, shape (set of seeds, γ, n, method, measure, α, seed, length); set 0 is reported.
        headline_errors: The same for one discount, with the convention of the reward in front and no axis γ.
        equality: Largest difference of V_Z between the methods where every k_z is the same, shape (γ, n).
    """

    plan: RingPlan
    errors: FloatArray
    headline_errors: FloatArray
    equality: FloatArray

    @classmethod
    def load(cls, folder: Path) -> "RingData":
        """Read a folder that `run_ring` wrote; CheckpointError where there is none, or a damaged one."""
        problem = next((f"it has no {n}" for n in ("ring.json", "ring.npz") if not (folder / n).is_file()), "")
        try:
            if not problem:
                return cls._of(read_json(folder / "ring.json"), read_arrays(folder / "ring.npz") or {})
        except ConfigError as error:
            problem = str(error)
        except CheckpointError:  # what it advises is for run directories
            problem = "one of its files is damaged"
        raise CheckpointError(
            f"{folder} is no folder of a ring experiment: {problem}; name one that `tddelta reproduce ring` made"
        )

    @classmethod
    def _of(cls, settings: dict[str, Any], arrays: Arrays) -> "RingData":
        """ConfigError with the reason why these are not the settings and averages of a ring experiment."""
        if settings.get("experiment") != "ring":
            raise ConfigError("ring.json is about something else")
        try:
            plan = RingPlan(**{field.name: settings.get(field.name) for field in fields(RingPlan)})  # type: ignore[arg-type]
        except ConfigError as error:
            raise ConfigError(f"ring.json has no plan: {str(error).partition(':')[0]}") from error
        cell = (len(plan.n_steps), len(METHODS), len(MEASURES), len(plan.step_sizes), plan.seeds, len(plan.lengths))
        shapes = {
            "errors": (2, len(plan.gammas), *cell),
            "headline_errors": (len(plan.conventions), 2, *cell),
            "equality": (len(plan.gammas), len(plan.n_steps)),
        }
        for name, shape in shapes.items():
            if name not in arrays or arrays[name].shape != shape or arrays[name].dtype != np.float64:
                raise ConfigError(f"{name} in ring.npz does not fit ring.json")
        return cls(plan, *(arrays[name] for name in shapes))


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


def cells(data: RingData, measure: str, selection: str, *, headline: bool = False) -> Iterator[Cell]:
    """Every (γ, n, length) of the grid, or (convention, n, length) for the headline discount."""
    plan, m = data.plan, MEASURES.index(measure)
    if headline:
        lines = [({"convention": name, "gamma": plan.headline}, data.headline_errors[c])
                 for c, name in enumerate(plan.conventions)]  # fmt: skip
    else:
        lines = [({"gamma": gamma}, data.errors[:, g]) for g, gamma in enumerate(plan.gammas)]
    for place, line in lines:
        errors = line[:, :, :, m]  # (set, n, method, α, seed, length)
        chosen = best(errors, selection)
        for (k, n_step), (t, length) in itertools.product(enumerate(plan.n_steps), enumerate(plan.lengths)):
            one, two = (int(chosen[k, method, t]) for method in (0, 1))
            named = {**place, "n_step": n_step, "length": length, "measure": measure, "selection": selection}
            found = np.stack([errors[0, k, 0, one, :, t], errors[0, k, 1, two, :, t]])
            yield Cell(named, (plan.step_sizes[one], plan.step_sizes[two]), found)


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
        single, delta = map(summarise, cell.errors)
        numbers = {
            "step_size_single": cell.step_sizes[0],
            "step_size_delta": cell.step_sizes[1],
            **of_summary("single", single),
            **of_summary("delta", delta),
            "gain": 1 - delta.mean / single.mean,
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


def comparisons(data: RingData, *, headline: bool = False) -> dict[tuple[str, str], list[Record]]:
    """All comparisons by (measure, selection)."""
    pairs = itertools.product(MEASURES, SELECTIONS)
    return {pair: compare(list(cells(data, *pair, headline=headline))) for pair in pairs}


# ---------------------------------------------------------------- tables and statements


def step_size_records(data: RingData) -> list[Record]:
    """Mean and standard error over seeds for every step size, and the mean on the other seeds."""
    means = data.errors.mean(axis=-2)
    spread = data.errors[0].std(axis=-2, ddof=1) / np.sqrt(data.errors.shape[-2])
    plan = data.plan
    axes = {"gamma": plan.gammas, "n_step": plan.n_steps, "method": METHODS, "measure": MEASURES,
            "step_size": plan.step_sizes, "length": plan.lengths}  # fmt: skip
    places = itertools.product(*axes.values())
    numbers = zip(means[0].flat, spread.flat, means[1].flat, strict=True)
    names = (*axes, "mean", "standard_error", "mean_other_seeds")
    return [
        dict(zip(names, (*place, *map(float, three)), strict=True))
        for place, three in zip(places, numbers, strict=True)
    ]


def _plus_minus(mean: float, error: float) -> str:
    return f"{number(mean)} ± {number(error)}"


_GAMMA, _N, _STEPS = (
    Column("γ", "gamma", "{:g}".format),
    Column("n", "n_step"),
    Column("steps", "length", "{:,}".format),
)
_GAIN, _HOLM = Column("gain", "gain", change), Column("p (Holm)", "p_holm", p_text)
_CHOICE = ("error", "step size chosen on")
_TITLES = {"single": "single", "delta": "TD(Δ)"}


def _over(found: Sequence[Record], length: int) -> list[Record]:
    return [one for one in found if one["length"] == length]


def _by_length(data: RingData, families: Families) -> Iterator[tuple[list[str], list[Record]]]:
    """Every measure, choice of step sizes and length, as the beginning of a line, and the comparisons there."""
    for ((measure, selection), found), length in itertools.product(families.items(), data.plan.lengths):
        yield [measure, CHOSEN[selection], f"{length:,}"], _over(found, length)


def worse(found: Sequence[Record]) -> str:
    """The cells in which the corrected test finds TD(Δ) worse."""
    some = [one for one in found if one["verdict"] == "worse"]
    means = (Column(title, name, number) for name, title in _TITLES.items())
    return Table("worse", "", (_GAMMA, _N, _STEPS, *means, _GAIN, _HOLM), some).to_markdown() if some else "None.\n"


def conventions(data: RingData, found: Sequence[Record]) -> str:
    """Both methods under every convention of the reward, for the headline discount and the longest runs."""
    means = (Column(title, (name, f"{name}_standard_error"), _plus_minus) for name, title in _TITLES.items())
    columns = (Column("reward", "convention"), _N, *means, _GAIN, _HOLM)
    return Table("conventions", "", columns, _over(found, data.plan.lengths[-1])).to_markdown()


def verdicts(data: RingData, families: Families) -> str:
    """Number of cells in which TD(Δ) is better or worse, by measure, choice of step sizes and length."""
    rows = []
    for place, found in _by_length(data, families):
        after = [one["verdict"] for one in found]
        before = [verdict(one["difference"], one["p_welch"]) for one in found]
        counts = [after.count(name) for name in ("better", "worse", "same")]
        counts += [before.count(name) for name in ("better", "worse")]
        gained = [one["gain"] for one in found]
        rows.append([*place, *map(str, counts), *map(change, (float(np.median(gained)), min(gained), max(gained)))])
    head = [*_CHOICE, "steps", "better", "worse", "neither", "better, uncorrected",
            "worse, uncorrected", "median gain", "smallest", "largest"]  # fmt: skip
    return markdown(head, rows)


def gains(data: RingData, found: Sequence[Record], length: int) -> str:
    """Gain of every discount and window, with a mark where the corrected test finds a difference."""
    marks = {"better": "**{}**", "worse": "{} (worse)", "same": "{}"}
    return _matrix(data, [marks[one["verdict"]].format(change(one["gain"])) for one in _over(found, length)])


def equality(data: RingData) -> str:
    """Largest difference of V_Z between the methods where every component has the same window."""
    return _matrix(data, [f"{difference:.1e}" for difference in data.equality.flat])


def _matrix(data: RingData, texts: Sequence[str]) -> str:
    """Texts of all (γ, n), in this order."""
    plan, count = data.plan, len(data.plan.n_steps)
    rows = [[f"{gamma:g}", *texts[g * count : (g + 1) * count]] for g, gamma in enumerate(plan.gammas)]
    return markdown(["γ", *(f"n = {n_step}" for n_step in plan.n_steps)], rows)


def growth(data: RingData, families: Families) -> str:
    """Growth of the gain with γ and with n: mean rank correlation, and in how many lines it grows throughout.

    Once for the gain as a share of the single learner's error, and once for the difference of the errors.
    """
    rows = []
    for place, found in _by_length(data, families):
        rows += [[*place, name, *with_gamma, *with_n] for name, with_gamma, with_n in _along(data, found)]
    head = [*_CHOICE, "steps", "gain as", "rank correlation with γ", "grows throughout with γ",
            "rank correlation with n", "grows throughout with n"]  # fmt: skip
    return markdown(head, rows)


def _along(data: RingData, found: Sequence[Record]) -> Iterator[tuple[str, tuple[str, str], tuple[str, str]]]:
    """Growth with γ and with n of the gain as a share and as a difference."""
    shape = len(data.plan.gammas), len(data.plan.n_steps)
    both = {"share": [one["gain"] for one in found], "difference": [-one["difference"] for one in found]}
    for name, values in both.items():
        table = np.reshape(values, shape)
        yield name, _growth(table.T), _growth(table)


def _growth(lines: FloatArray) -> tuple[str, str]:
    """Mean Spearman correlation of the lines with their place, and how many grow at every step."""
    kept = [line for line in lines if np.ptp(line) > 0]
    if not kept or len(lines[0]) < 3:
        return "n/a", "n/a"
    correlations = [float(stats.spearmanr(np.arange(len(line)), line).statistic) for line in kept]
    growing = sum(bool((np.diff(line) > 0).all()) for line in kept)
    return f"{np.mean(correlations):+.2f}".replace("-", "−"), f"{growing} of {len(kept)}"


def selection(families: Families) -> str:
    """Effect of choosing the step size on the reported seeds."""
    rows = []
    for measure, (name, title) in itertools.product(MEASURES, _TITLES.items()):
        pairs = list(zip(families[measure, "reported"], families[measure, "other"], strict=True))
        moved = sum(one[f"step_size_{name}"] != two[f"step_size_{name}"] for one, two in pairs)
        larger = [two[name] / one[name] - 1 for one, two in pairs]
        rows.append([measure, title, f"{moved} of {len(pairs)}", change(float(np.mean(larger))), change(max(larger))])
    head = ["error", "method", "another step size chosen", "error larger by, on average", "at most"]
    return markdown(head, rows)


def edges(data: RingData, families: Families) -> str:
    """Number of best step sizes that are the smallest or the largest of the grid: a finer grid might do better."""
    rows = []
    low, high = data.plan.step_sizes[0], data.plan.step_sizes[-1]
    for ((measure, selection), found), (name, title) in itertools.product(families.items(), _TITLES.items()):
        sizes = [one[f"step_size_{name}"] for one in found if (one["single_standard_error"] or 0) > 0]
        counts = [len(sizes), sizes.count(low), sizes.count(high)]
        rows.append([measure, CHOSEN[selection], title, *map(str, counts)])
    return markdown([*_CHOICE, "method", "cells", f"α = {low:g}", f"α = {high:.3g}"], rows)


def statements(data: RingData, families: Families) -> list[str]:
    """The paper's statements and what became of them: RMS error, step sizes chosen on other seeds."""
    found, last = families["rms", "other"], data.plan.lengths[-1]
    better, worse = (sum(one["verdict"] == name for one in found) for name in ("better", "worse"))
    losing = sum(one["difference"] > 0 for one in found)
    longest = _over(found, last)
    gained = [one["gain"] for one in longest]
    lines = [
        f"never significantly worse: {'does not hold' if worse else 'holds'}; of {len(found)} cells "
        f"TD(Δ) is better in {better} and worse in {worse} (Welch with Holm, {data.plan.seeds} seeds); "
        f"its mean error is larger in {losing}",
        f"gain over {last:,} steps: from {change(min(gained))} to {change(max(gained))} of the single learner's "
        f"error, median {change(float(np.median(gained)))}",
    ]
    if len(data.plan.gammas) > 2 and len(data.plan.n_steps) > 2:
        for name, (with_gamma, lines_gamma), (with_n, lines_n) in _along(data, longest):
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
        StorageError: A file cannot be written.
    """
    data = RingData.load(folder)
    families, headline = comparisons(data), comparisons(data, headline=True)
    for name, content in itertools.chain(_images(data, families, headline), _tables(data, families, headline)):
        path = folder / name
        with storing(path, _IN_THE_WAY):
            path.parent.mkdir(exist_ok=True)
            replace(path, content, durable=False, again=_IN_THE_WAY)
        if done is not None:
            done(name)
    return statements(data, families)


_IN_THE_WAY = "or move what is in its way"


def _tables(data: RingData, families: Families, headline: Families) -> Iterator[tuple[str, bytes]]:
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
        "selection": selection(families),
        "statements": "".join(f"- {line}\n" for line in statements(data, families)),
        "conventions": conventions(data, headline["rms", "other"]),
    }
    for measure in MEASURES:
        texts[f"worse-{measure}"] = worse(families[measure, "other"])
        for length in data.plan.lengths:
            texts[f"gains-{measure}-{length}"] = gains(data, families[measure, "other"], length)
    for name, text in texts.items():
        yield f"tables/ring-{name}.md", text.encode()


_MEASURE = {"rms": "Root mean square error", "absolute": "Mean absolute error"}
_REWARD = {
    "entered": "reward for the state entered",
    "edges": "reward for the edge",
    "left": "reward for the state left",
}
_STYLES: dict[str, dict[str, Any]] = {
    "single": {"color": colour(0), "marker": "o", "label": "single n-step TD"},
    "delta": {"color": colour(5), "marker": "s", "label": "n-step TD(Δ)"},
}


def _images(data: RingData, families: Families, headline: Families) -> Iterator[tuple[str, bytes]]:
    """Every figure as PNG: with so many panels a PDF of each would double the time."""
    for name, figure in _figures(data, families, headline):
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=130, metadata={"Software": None}, facecolor="white")
        yield f"figures/{name}.png", file.getvalue()


def _figures(data: RingData, families: Families, headline: Families) -> Iterator[tuple[str, Figure]]:
    conventions: dict[Any, str] = {name: _REWARD[name] for name in data.plan.conventions}
    gammas: dict[Any, str] = {gamma: f"γ = {gamma:g}" for gamma in data.plan.gammas}
    found, last = headline["rms", "other"], data.plan.lengths[-1:]
    yield "headline", _by_n_step(data, found, "convention", conventions, "rms", last)
    for measure in MEASURES:
        for which in SELECTIONS:
            found = headline[measure, which]
            yield f"headline-{measure}-{which}", _by_n_step(data, found, "convention", conventions, measure)
            if len(gammas) > 1:
                found = families[measure, which]
                yield f"by-n-step-{measure}-{which}", _by_n_step(data, found, "gamma", gammas, measure)
        for gamma in gammas:
            yield f"by-step-size-{measure}-{gamma:g}", _by_step_size(data, measure, gamma)


def _by_n_step(
    data: RingData,
    found: Sequence[Record],
    axis: str,
    titles: dict[Any, str],
    measure: str,
    lengths: Sequence[int] | None = None,
) -> Figure:
    """Error against n at the best step size: a row per length, a column per discount or convention."""
    lengths = lengths or data.plan.lengths
    figure, axes = _panels(lengths, list(titles.values()), share_y=False)
    for (row, length), (column, value) in itertools.product(enumerate(lengths), enumerate(titles)):
        some = [one for one in _over(found, length) if one[axis] == value]
        each = axes[row, column]
        for method, style in _STYLES.items():
            means, bars = (
                np.array([one[name] for one in some], float) for name in (method, f"{method}_standard_error")
            )
            each.errorbar(data.plan.n_steps, means, yerr=bars, markersize=3.5, linewidth=1.3, **style)
        each.set_xscale("log", base=2)
        each.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        each.xaxis.set_minor_locator(NullLocator())
    return _finish(figure, axes[0, 0], "n, steps of the longest window", _MEASURE[measure])


def _by_step_size(data: RingData, measure: str, gamma: float) -> Figure:
    """Error against the step size: a row per length, a column per n."""
    plan = data.plan
    errors = data.errors[0, plan.gammas.index(gamma), :, :, MEASURES.index(measure)]
    figure, axes = _panels(plan.lengths, [f"n = {n_step}" for n_step in plan.n_steps], share_y=True)
    means = errors.mean(axis=-2)
    bars = errors.std(axis=-2, ddof=1) / np.sqrt(errors.shape[-2])
    for (row, column), each in np.ndenumerate(axes):
        for method, style in enumerate(_STYLES.values()):
            mean, bar = means[column, method, :, row], bars[column, method, :, row]
            each.plot(plan.step_sizes, mean, markersize=2, linewidth=1.1, **style)
            each.fill_between(plan.step_sizes, mean - bar, mean + bar, color=style["color"], alpha=0.25, linewidth=0)
        each.set_xscale("log")
        each.xaxis.set_minor_locator(NullLocator())
    for row, first in enumerate(axes[:, 0]):
        # a row shares its axis: large steps that learn nothing must not flatten what the others show
        smallest_step = float(np.nanmax(means[:, :, 0, row]))
        first.set_ylim(0, min(1.05 * float(np.nanmax(means[..., row])), 1.3 * smallest_step))
    return _finish(figure, axes[0, 0], f"step size α (γ = {gamma:g})", _MEASURE[measure])


def _panels(lengths: Sequence[int], titles: Sequence[str], *, share_y: bool) -> tuple[Figure, npt.NDArray[Any]]:
    """Axes with a row per length and a titled column.

    They have places of their own: a layout engine would draw every figure twice to find them.
    """
    rows, columns = len(lengths), len(titles)
    width, height, gap = 1.75 if share_y else 2.1, 1.35, 0.12 if share_y else 0.48  # inches
    left, right, bottom, top = 0.8, 0.15, 0.6, 0.7
    size = (left + columns * (width + gap) - gap + right, bottom + rows * (height + 0.2) - 0.2 + top)
    figure = Figure(figsize=size)
    axes: npt.NDArray[Any] = figure.subplots(
        rows, columns, sharex=True, sharey="row" if share_y else False, squeeze=False,
        gridspec_kw={"left": left / size[0], "right": 1 - right / size[0], "bottom": bottom / size[1],
                     "top": 1 - top / size[1], "wspace": gap / width, "hspace": 0.2 / height},
    )  # fmt: skip
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(colors=INK, labelsize=7)
        each.grid(axis="y", color=LINE, linewidth=0.5)
        each.set_axisbelow(True)
    for each, title in zip(axes[0], titles, strict=True):
        each.set_title(title, fontsize=9, color=INK)
    for each, length in zip(axes[:, 0], lengths, strict=True):
        each.set_ylabel(f"first {length:,} steps", fontsize=9, color=INK)
    return figure, axes


def _finish(figure: Figure, first: Axes, x: str, y: str) -> Figure:
    width, height = figure.get_size_inches()
    figure.supxlabel(x, fontsize=9.5, color=INK, y=0.08 / height, va="bottom")
    figure.text(0.1 / width, 1 - 0.12 / height, y, fontsize=10, color=INK, va="top")
    handles, names = first.get_legend_handles_labels()
    figure.legend(handles, names, loc="upper right", ncols=2, fontsize=9, frameon=False, labelcolor=INK)
    return figure
