"""The ring experiment end to end on a tiny grid, and redrawing from its files."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from tddelta.cli import main
from tddelta.cli.reproduce import write_folder
from tddelta.errors import CheckpointError, ConfigError, StorageError
from tddelta.paper import ring as ring
from tddelta.paper.ring import write_ring
from tddelta.tabular import FiniteMDP, n_step, sample
from tddelta.timescales import TimeScales

TINY = ring.RingPlan(
    gammas=(0.75, 0.875, 0.9375), n_steps=(2, 4, 64), step_sizes=(0.05, 0.2, 0.6), lengths=(50, 200), seeds=6,
    equal_seeds=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ring.run_ring(TINY, tmp_path_factory.mktemp("ring") / "run", threads=2)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """--quick takes less than a second."""
    plan = ring.RingPlan(gammas=(0.9375,), n_steps=(4,), step_sizes=(0.1, 0.3), lengths=(60,), seeds=4, equal_seeds=2)
    monkeypatch.setattr(ring, "QUICK", plan)


def rows_of(table: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))


def test_the_published_grid() -> None:
    plan = ring.RingPlan()
    assert (len(plan.gammas), len(plan.n_steps), len(plan.step_sizes), plan.seeds) == (7, 7, 20, 200)
    assert plan.lengths == (100, 500, 1000, 5000)
    assert plan.step_sizes[0] == 0.001 and plan.step_sizes[-1] < 1
    np.testing.assert_allclose(np.diff(np.log(plan.step_sizes)), np.log(1000) / 20)
    entered = [cell for cell in plan.cells if cell[0] == "entered"]
    scales = sum(1 + len(TimeScales.doubling(gamma)) for _, gamma, _ in entered)
    assert 2 * scales * 20 * 200 * 5000 == 13_720_000_000
    assert set(plan.cells) - set(entered) == {(c, 0.9375, n) for c in ("edges", "left") for n in plan.n_steps}


def test_other_seeds_are_others() -> None:
    others = ring.other_seeds(200)
    assert len(set(others) | set(range(200))) == 400
    assert ring.other_seeds(3) == others[:3]


def test_averages_are_those_of_the_kernel(folder: Path) -> None:
    data = ring.RingData.load(folder)
    assert data.errors.shape == (2, 3, 3, 2, 2, 3, 6, 2)
    for which, seeds in enumerate((range(6), ring.other_seeds(6))):
        trajectory = sample(FiniteMDP.ring(), 200, seeds)
        exact = FiniteMDP.ring().exact_values([0.875])[:, 0]
        for method, scales in enumerate((TimeScales.single(0.875, n_step=4), TimeScales.doubling(0.875, n_step=4))):
            alphas = np.full((1, len(scales)), 0.2)
            curve = n_step.run(trajectory, scales.gammas, scales.n_steps, alphas, exact, record="curve")
            for measure, errors in enumerate((curve.rms_error, curve.abs_error)):
                for t, length in enumerate(TINY.lengths):
                    expected = errors[0, :, :length].mean(axis=-1)
                    np.testing.assert_allclose(data.errors[which, 1, 1, method, measure, 1, :, t], expected, rtol=1e-12)


def test_conventions_share_the_trajectories_and_differ(folder: Path) -> None:
    data = ring.RingData.load(folder)
    np.testing.assert_array_equal(data.headline_errors[0], data.errors[:, 2])
    for other in (1, 2):
        assert np.abs(data.headline_errors[other] - data.headline_errors[0])[..., 0, 0, :, :, 1].max() > 1e-3


def test_equal_windows_make_the_methods_equal(folder: Path) -> None:
    data = ring.RingData.load(folder)
    assert data.equality.shape == (3, 3)
    assert data.equality.max() < 1e-13
    assert np.abs(data.errors[0, 2, 1, 0] - data.errors[0, 2, 1, 1]).max() > 1e-3  # tailored ones do not


def test_best_step_size_is_chosen_on_the_seeds_named() -> None:
    errors = np.zeros((2, 1, 3, 4, 1))  # (set, cell, α, seed, length)
    errors[0, 0, :, :, 0] = np.array([[3.0], [1.0], [2.0]])
    errors[1, 0, :, :, 0] = np.array([[3.0], [np.nan], [2.0]])
    assert ring.best(errors, "reported") == [[1]]
    assert ring.best(errors, "other") == [[2]]


def test_cells_report_the_first_set_whatever_chose_the_step_size(folder: Path) -> None:
    data = ring.RingData.load(folder)
    for selection, which in (("reported", 0), ("other", 1)):
        found = [c for c in ring.cells(data, "absolute", selection) if c.place["length"] == 200]
        assert len(found) == 9
        for cell in found:
            g, k = TINY.gammas.index(cell.place["gamma"]), TINY.n_steps.index(cell.place["n_step"])
            chosen = data.errors[which, g, k, 1, 1, :, :, 1].mean(axis=-1).argmin()
            assert cell.step_sizes[1] == TINY.step_sizes[chosen]
            np.testing.assert_array_equal(cell.errors[1], data.errors[0, g, k, 1, 1, chosen, :, 1])


def test_comparisons_correct_over_the_family() -> None:
    spread = np.linspace(-0.1, 0.1, 30)
    shifts = (-0.5, 0.5, 0.0, 0.033)
    found = ring.compare([ring.Cell({}, (0.1, 0.1), np.stack([1 + spread, 1 + shift + spread])) for shift in shifts])
    assert [ring.verdict(one["difference"], one["p_welch"]) for one in found] == ["better", "worse", "same", "worse"]
    assert [one["verdict"] for one in found] == ["better", "worse", "same", "same"]
    assert found[3]["p_holm"] == pytest.approx(2 * found[3]["p_welch"])  # two are smaller
    np.testing.assert_allclose([one["difference"] for one in found], shifts, atol=1e-12)
    assert found[0]["gain"] == pytest.approx(0.5)
    for one in found:
        assert one["bootstrap_low"] < one["difference"] < one["bootstrap_high"] < one["difference"] + 0.06


def test_equal_samples_are_neither_better_nor_worse() -> None:
    (same,) = ring.compare([ring.Cell({}, (0.1, 0.1), np.ones((2, 5)))])
    assert (same["p_welch"], same["verdict"], same["difference"]) == (None, "same", 0.0)


def test_growth_of_the_gain() -> None:
    assert ring._growth(np.array([[1.0, 2, 3], [3, 2, 1], [5, 5, 5]])) == ("+0.00", "1 of 2")
    assert ring._growth(np.array([[1.0, 2]])) == ("n/a", "n/a")


@pytest.mark.slow
def test_tables_and_figures_are_made_from_the_files_alone(tmp_path: Path) -> None:
    plan = ring.RingPlan(
        gammas=(0.875, 0.9375), n_steps=(2, 4), step_sizes=(0.05, 0.2, 0.6), lengths=(200,), seeds=6, equal_seeds=3,
        conventions=("entered", "left"),
    )  # fmt: skip
    folder = ring.run_ring(plan, tmp_path / "run", threads=2)
    names: list[str] = []
    lines = write_ring(folder, done=names.append)
    assert lines[0].startswith("never significantly worse")
    assert lines[-1].startswith("equal when every k_z is the same")
    figures = {name for name in names if name.startswith("figures/")}
    expected = {f"{kind}-{m}-{s}" for kind in ("headline", "by-n-step") for m in ring.MEASURES
                for s in ring.SELECTIONS}  # fmt: skip
    expected |= {"headline", *(f"by-step-size-{m}-{gamma:g}" for m in ring.MEASURES for gamma in plan.gammas)}
    assert figures == {f"figures/{name}.png" for name in expected}
    rows = rows_of(folder / "tables" / "ring-cells.csv")
    assert len(rows) == 2 * 2 * 2 * 2
    row = next(r for r in rows if (r["gamma"], r["n_step"], r["measure"], r["selection"])
               == ("0.9375", "4", "rms", "other"))  # fmt: skip
    data = ring.RingData.load(folder)
    chosen = data.errors[1, 1, 1, 0, 0, :, :, 0].mean(axis=-1).argmin()
    assert float(row["single"]) == pytest.approx(data.errors[0, 1, 1, 0, 0, chosen, :, 0].mean())
    assert float(row["step_size_single"]) == plan.step_sizes[chosen]
    sizes = rows_of(folder / "tables" / "ring-step-sizes.csv")
    assert len(sizes) == 2 * 2 * 2 * 2 * 3
    assert {row["method"] for row in sizes} == set(ring.METHODS)
    assert float(sizes[3]["mean"]) == data.errors[0, 0, 0, 0, 1, 0].mean()  # absolute error, smallest step size
    before = {name: (folder / name).read_bytes() for name in names}
    with matplotlib.rc_context({"text.usetex": True, "savefig.dpi": 33, "font.size": 22}):
        write_ring(folder)
    assert all((folder / name).read_bytes() == content for name, content in before.items())


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_command_writes_a_folder_and_redraws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ring"
    assert main(["reproduce", "ring", "--quick", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "never significantly worse" in said.out and said.out.endswith(f"ring: {out}\n")
    lines = said.err.splitlines()
    for line, convention in zip(lines, ring.CONVENTIONS, strict=False):
        assert line == f"ring, reward {convention!r}: 1 pairs of γ and n, 2 methods, 8 seeds"
    assert "component updates in" in lines[3] and lines[-1].endswith(" GiB at most")
    timing = json.loads((out / "timing.json").read_text(encoding="utf-8"))
    assert 2**26 < timing["peak_memory_bytes"] < 2**36
    assert [path.name for path in tmp_path.iterdir()] == ["ring"], "a temporary folder was left"
    assert json.loads((out / "ring.json").read_text(encoding="utf-8"))["seeds"] == 4
    figure = out / "figures" / "headline-rms-reported.png"
    content = figure.read_bytes()
    figure.unlink()
    assert main(["reproduce", "ring", "--redraw", str(out)]) == 0
    assert figure.read_bytes() == content
    assert main(["reproduce", "ring", "--quick", "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


# ---------------------------------------------------------------- what can go wrong


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("what", "code"), [("disk", 1), ("interrupt", 130), ("terminate", 143)])
def test_what_was_computed_outlives_the_drawing(
    what: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path, **_: object) -> list[str]:
        if what == "disk":
            raise OSError(28, "No space left on device", "ring.png")
        if what == "interrupt":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not reached")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ring, "write_ring", fail)
    out = tmp_path / "my ring"
    try:
        ended = main(["reproduce", "ring", "--quick", "--out", str(out)])
    except SystemExit as left:
        ended = left.code  # type: ignore[assignment]
    assert ended == code
    said = capsys.readouterr().err
    assert f"averages are kept: tddelta reproduce ring --redraw '{out}'\n" in said
    assert what != "disk" or said.endswith("tddelta: ring.png: No space left on device\n")
    assert ring.RingData.load(out).plan.seeds == 4
    assert list(tmp_path.iterdir()) == [out]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_computing_leaves_nothing(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from tddelta.cli import main; sys.exit(main(sys.argv[1:]))",
         "reproduce", "ring", "--out", "ring"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "ring, reward 'entered': 49 pairs of γ and n, 2 methods, 400 seeds\n"
    assert [path.name for path in tmp_path.iterdir()] == [f".ring.{process.pid}.tmp"]
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert err == ("tddelta: interrupted\n" if number == signal.SIGINT else "")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_appears_meanwhile_is_left_alone(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "content").touch()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "other").touch()

    with pytest.raises(ConfigError, match=r"out cannot be made \(.*\): what was to go there is in .*\.tmp"):
        write_folder(tmp_path / "out", fill)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["content", "other"]


def test_a_file_in_the_way_of_the_tables(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ring.json", "ring.npz"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "tables").touch()
    monkeypatch.setattr(ring, "_figures", lambda *_: iter(()))
    with pytest.raises(
        StorageError, match=r"tables/ring-\S+ cannot be written \(File exists\): .* move what is in its way"
    ):
        write_ring(tmp_path)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (None, "it has no ring.json"),
        ("no JSON", "one of its files is damaged"),
        ({"experiment": "theory"}, "ring.json is about something else"),
        ({"gammas": None}, "ring.json has no plan: gammas must be a sequence of numbers; got None"),
        ({"lengths": []}, "ring.json has no plan: lengths must be increasing, one at least; got ()"),
        ({"seeds": 7}, "errors in ring.npz does not fit ring.json"),
        ({"conventions": ["entered"]}, "headline_errors in ring.npz does not fit ring.json"),
    ],
)
def test_what_is_no_ring_experiment(
    settings: object, text: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "ring.npz", tmp_path)
    if isinstance(settings, dict):
        known = json.loads((folder / "ring.json").read_text(encoding="utf-8"))
        (tmp_path / "ring.json").write_text(json.dumps(known | settings), encoding="utf-8")
    elif settings is not None:
        (tmp_path / "ring.json").write_text(str(settings), encoding="utf-8")
    assert main(["reproduce", "ring", "--redraw", str(tmp_path)]) == 1
    said = f"tddelta: {tmp_path} is no folder of a ring experiment: {text}; name one that `tddelta reproduce ring` made"
    assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.parametrize("name", ["missing", "a file", "{braces}"])
def test_nothing_to_redraw(name: str, tmp_path: Path) -> None:
    if name == "a file":
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"is no folder of a ring experiment: it has no ring\.json; name one"):
        ring.RingData.load(tmp_path / name)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"gammas": (0.9375, 0.9375)}, r"gammas must be increasing, one at least; got \(0.9375, 0.9375\)"),
        ({"gammas": ()}, r"gammas must be increasing, one at least; got \(\)"),
        ({"gammas": (0.9375, 1)}, r"gammas must be below 1; got \(0.9375, 1.0\): the ring never ends"),
        ({"gammas": (-0.5, 0.9375)}, r"gammas must be in \[0, 1\]; got -0.5"),
        ({"gammas": (0.5,)}, r"headline must be one of the discounts \(0.5,\); got 0.9375: name one"),
        ({"n_steps": ()}, r"n_steps must be increasing, one at least; got \(\)"),
        ({"n_steps": (4, 4)}, r"n_steps must be increasing"),
        ({"n_steps": (0,)}, "n_steps must be a whole number of at least 1; got 0"),
        ({"n_steps": (2.5,)}, "n_steps must be a whole number of at least 1; got 2.5"),
        ({"step_sizes": (0.0,)}, r"step_sizes must be finite numbers above 0; got \(0.0,\)"),
        ({"step_sizes": (np.nan,)}, r"step_sizes must be finite numbers above 0; got \(nan,\)"),
        ({"step_sizes": (np.inf,)}, r"step_sizes must be finite numbers above 0; got \(inf,\)"),
        ({"step_sizes": ("1/n",)}, "step_sizes must be finite numbers above 0; got"),
        ({"step_sizes": (0.2, 0.1)}, r"step_sizes must be increasing, .* got \(0.2, 0.1\): sort them"),
        ({"lengths": (5, 5)}, r"lengths must be increasing, one at least; got \(5, 5\)"),
        ({"lengths": (0,)}, "lengths must be a whole number of at least 1; got 0"),
        ({"seeds": 1}, "seeds must be at least 2 .* got 1 and 20: one seed has no standard error"),
        ({"seeds": 2.5}, "seeds must be a whole number of at least 1; got 2.5"),
        ({"equal_seeds": 0}, "equal_seeds must be a whole number of at least 1; got 0"),
        ({"conventions": ()}, r"conventions must be one or several of entered, edges, left; got \(\): name each once"),
        ({"conventions": ("left", "left")}, "name each once"),
        ({"conventions": ("state",)}, r"got \('state',\)"),
    ],
)
def test_plans_that_cannot_be_run(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ring.RingPlan(**settings)


def test_lists_and_arrays_make_a_plan() -> None:
    plan = ring.RingPlan(gammas=[0.5, 0.9375], step_sizes=np.array([0.1, 0.2]), n_steps=[4], conventions=["left"])  # type: ignore[arg-type]
    assert (plan.gammas, plan.step_sizes) == ((0.5, 0.9375), (0.1, 0.2))
    assert plan.cells == [("left", 0.5, 4), ("left", 0.9375, 4)]


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ConfigError, match="never overwritten: choose another folder with out="):
        ring.run_ring(TINY, tmp_path)
