"""The ring experiment end to end on a tiny grid, and redrawing from its files."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tddelta.cli import main
from tddelta.cli.reproduce import Reproduce
from tddelta.errors import CheckpointError, ConfigError
from tddelta.experiments import ring
from tddelta.report import ring as numbers
from tddelta.report import ring_tables
from tddelta.report.ring_figures import write_ring
from tddelta.tabular import FiniteMDP, n_step, sample
from tddelta.timescales import TimeScales

TINY = ring.RingPlan(
    gammas=(0.75, 0.875, 0.9375), n_steps=(2, 4, 64), step_sizes=(0.05, 0.2, 0.6), lengths=(50, 200), seeds=6,
    equal_seeds=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ring.run_ring(TINY, tmp_path_factory.mktemp("ring") / "run", threads=2)


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
    data = numbers.RingData.load(folder)
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


def test_the_zero_table_counts_before_the_first_update(folder: Path) -> None:
    data = numbers.RingData.load(folder)
    exact = FiniteMDP.ring().exact_values([0.75])[:, 0]
    # the window of 64 steps is not full within the first 50
    np.testing.assert_allclose(data.errors[:, 0, 2, :, 0, :, :, 0], np.sqrt(np.mean(exact**2)), rtol=1e-12)
    np.testing.assert_allclose(data.errors[:, 0, 2, :, 1, :, :, 0], np.mean(np.abs(exact)), rtol=1e-12)


def test_conventions_share_the_trajectories_and_differ(folder: Path) -> None:
    data = numbers.RingData.load(folder)
    np.testing.assert_array_equal(data.headline_errors[0], data.errors[:, 2])
    for other in (1, 2):
        assert np.abs(data.headline_errors[other] - data.headline_errors[0])[..., 0, 0, :, :, 1].max() > 1e-3


def test_equal_windows_make_the_methods_equal(folder: Path) -> None:
    data = numbers.RingData.load(folder)
    assert data.equality.shape == (3, 3)
    assert data.equality.max() < 1e-13
    assert np.abs(data.errors[0, 2, 1, 0] - data.errors[0, 2, 1, 1]).max() > 1e-3  # tailored ones do not


def test_same_bytes_for_any_number_of_threads(folder: Path, tmp_path: Path) -> None:
    other = ring.run_ring(TINY, tmp_path / "one", threads=1)
    first, second = np.load(folder / "ring.npz"), np.load(other / "ring.npz")
    assert first.files == second.files
    for name in first.files:
        assert first[name].tobytes() == second[name].tobytes()


def test_best_step_size_is_chosen_on_the_seeds_named() -> None:
    errors = np.zeros((2, 1, 3, 4, 1))  # (set, cell, α, seed, length)
    errors[0, 0, :, :, 0] = np.array([[3.0], [1.0], [2.0]])
    errors[1, 0, :, :, 0] = np.array([[3.0], [np.nan], [2.0]])
    assert numbers.best(errors, "reported") == [[1]]
    assert numbers.best(errors, "other") == [[2]]


def test_cells_report_the_first_set_whatever_chose_the_step_size(folder: Path) -> None:
    data = numbers.RingData.load(folder)
    for selection, which in (("reported", 0), ("other", 1)):
        found = [c for c in numbers.cells(data, "absolute", selection) if c.place["length"] == 200]
        assert len(found) == 9
        for cell in found:
            g, k = TINY.gammas.index(cell.place["gamma"]), TINY.n_steps.index(cell.place["n_step"])
            chosen = data.errors[which, g, k, 1, 1, :, :, 1].mean(axis=-1).argmin()
            assert cell.step_sizes[1] == TINY.step_sizes[chosen]
            np.testing.assert_array_equal(cell.delta, data.errors[0, g, k, 1, 1, chosen, :, 1])


def test_comparisons_correct_over_the_family() -> None:
    spread = np.linspace(-0.1, 0.1, 30)
    made = [numbers.Cell({}, (0.1, 0.1), 1 + spread, 1 + shift + spread) for shift in (-0.5, 0.5, 0.0, 0.033)]
    found = numbers.compare(made)
    assert [one.uncorrected for one in found] == ["better", "worse", "same", "worse"]
    assert [one.verdict for one in found] == ["better", "worse", "same", "same"]
    assert found[3].corrected == pytest.approx(2 * found[3].p_value)  # two are smaller
    np.testing.assert_allclose([one.difference for one in found], (-0.5, 0.5, 0, 0.033), atol=1e-12)
    assert made[0].gain == pytest.approx(0.5)
    for one in found:
        assert one.low < one.difference < one.high < one.difference + 0.06


def test_equal_samples_are_neither_better_nor_worse() -> None:
    same = numbers.compare([numbers.Cell({}, (0.1, 0.1), np.ones(5), np.ones(5))])[0]
    assert (same.p_value, same.verdict, same.difference) == (None, "same", 0.0)


def test_growth_of_the_gain() -> None:
    assert ring_tables._growth(np.array([[1.0, 2, 3], [3, 2, 1], [5, 5, 5]])) == ("+0.00", "1 of 2")
    assert ring_tables._growth(np.array([[1.0, 2]])) == ("n/a", "n/a")


@pytest.mark.slow
def test_tables_and_figures_are_made_from_the_files_alone(folder: Path) -> None:
    names: list[str] = []
    lines = write_ring(folder, done=names.append)
    assert lines[0].startswith("never significantly worse")
    assert lines[-1].startswith("equal when every k_z is the same")
    figures = {name for name in names if name.endswith(".png")}
    expected = {f"figures/{kind}-{m}-{s}.png" for kind in ("headline", "by-n-step") for m in ring.MEASURES
                for s in numbers.SELECTIONS}  # fmt: skip
    expected |= {f"figures/by-step-size-{m}-{gamma:g}.png" for m in ring.MEASURES for gamma in TINY.gammas}
    assert figures == expected
    rows = rows_of(folder / "tables" / "ring-cells.csv")
    assert len(rows) == 3 * 3 * 2 * 2 * 2
    row = next(r for r in rows if (r["gamma"], r["n_step"], r["length"], r["measure"], r["selection"])
               == ("0.9375", "4", "200", "rms", "other"))  # fmt: skip
    data = numbers.RingData.load(folder)
    chosen = data.errors[1, 2, 1, 0, 0, :, :, 1].mean(axis=-1).argmin()
    assert float(row["single"]) == pytest.approx(data.errors[0, 2, 1, 0, 0, chosen, :, 1].mean())
    assert float(row["step_size_single"]) == TINY.step_sizes[chosen]
    sizes = rows_of(folder / "tables" / "ring-step-sizes.csv")
    assert len(sizes) == 3 * 3 * 2 * 2 * 3 * 2
    assert {row["method"] for row in sizes} == set(ring.METHODS)
    before = {name: (folder / name).read_bytes() for name in names}
    write_ring(folder)
    assert all((folder / name).read_bytes() == content for name, content in before.items())


@pytest.mark.slow
def test_command_writes_a_folder_and_redraws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ring.RingPlan(gammas=(0.9375,), n_steps=(4,), step_sizes=(0.1, 0.3), lengths=(60,), seeds=4, equal_seeds=2)
    monkeypatch.setattr(ring, "QUICK", small)
    out = tmp_path / "ring"
    assert main(["reproduce", "ring", "--quick", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "never significantly worse" in said.out and said.out.endswith(f"ring: {out}\n")
    assert "component updates in" in said.err
    assert json.loads((out / "ring.json").read_text(encoding="utf-8"))["seeds"] == 4
    figure = out / "figures" / "headline-rms-reported.png"
    content = figure.read_bytes()
    figure.unlink()
    assert main(["reproduce", "ring", "--redraw", str(out)]) == 0
    assert figure.read_bytes() == content
    assert main(["reproduce", "ring", "--quick", "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ConfigError, match="never overwritten: choose another --out"):
        ring.run_ring(TINY, tmp_path)
    with pytest.raises(ConfigError, match=r"headline must be one of the discounts \(0.5,\); got 0.9375: name one"):
        ring.RingPlan(gammas=(0.5,))
    with pytest.raises(ConfigError, match=r"seeds must be at least 2 .* got 1 and 20: one seed has no standard error"):
        ring.RingPlan(seeds=1)
    with pytest.raises(ConfigError, match=r"lengths must be increasing steps ≥ 1; got \(5, 5\)"):
        ring.RingPlan(lengths=(5, 5))
    with pytest.raises(ConfigError, match="--redraw goes with ring alone"):
        Reproduce("theory", redraw=tmp_path).run([])
    (tmp_path / "ring.json").write_text('{"experiment": "theory"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="holds no ring experiment: name a folder"):
        numbers.RingData.load(tmp_path)
