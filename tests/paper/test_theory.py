"""The theory experiment: what it measures, its statements, and the folder that `tddelta reproduce theory` writes."""

import csv
import itertools
import json

import matplotlib
import numpy as np
import pytest

from tddelta.cli import main
from tddelta.errors import ConfigError
from tddelta.paper import theory as theory
from tddelta.paper.theory import VARIANTS, largest_differences, phased_tables
from tddelta.tabular import FiniteMDP, counterexample_probability, evaluate
from tddelta.timescales import TimeScales

# Most of them look at the numbers of one quick run.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tddelta.errors.ContractionWarning")]


@pytest.fixture(scope="module")
def results():
    return theory.measure(quick=True)


@pytest.fixture(scope="module")
def drawings(results):
    return list(theory.drawings(results))


# ---------------------------------------------------------------- Theorem 1


def test_theorem_one_is_measured_for_every_prefix(results):
    rows = results["theorem-1"]
    assert {(row["variant"], row["prefix"]) for row in rows} == set(itertools.product(VARIANTS, range(6)))
    assert max(row["largest_difference"] for row in rows) < 1e-12
    assert min(row["largest_weight"] for row in rows) > 0.1, "nothing was learned"


def test_unequal_decays_are_not_covered():
    with pytest.raises(AssertionError, match="equal decays"):
        largest_differences(TimeScales((0.5, 0.9), (0.1, 0.2)), "accumulating", steps=5)


@pytest.mark.parametrize("variant", ["accumulating", "replacing"])
def test_a_difference_is_seen(variant, monkeypatch):
    """The two sides differ where the theorem does not hold: with unequal step sizes."""
    original = theory.evaluate, theory.td_errors

    def faster(*arguments, step_sizes, **named):
        scales = arguments[1]
        return original[0](*arguments, step_sizes=[[0.02, 0.03][: len(scales)]], **named)

    def longer(*arguments, scales, **named):
        return original[1](*arguments, scales=scales, **named) * np.array([1.0, 1.5])[: len(scales)]

    monkeypatch.setattr(theory, "evaluate", faster)
    monkeypatch.setattr(theory, "td_errors", longer)
    differences, _ = largest_differences(TimeScales((0.5, 0.9), (0.4, 0.4)), variant, steps=50)
    assert differences[1] > 1e-3 > 1e-12 > differences[0]


# ---------------------------------------------------------------- Theorem 2


def test_measured_contraction_is_the_factor(results):
    rows = results["contraction"]
    assert any(row["lam"] > 1 and row["factor"] > 1 for row in rows) and any(row["factor"] < 1 for row in rows)
    for row in rows:
        assert row["factor"] == pytest.approx(abs(row["gamma"] - row["decay"]) / (1 - row["decay"]), abs=1e-12)
        assert row["largest"] == pytest.approx(row["factor"], abs=1e-10)
        assert row["after_50"] == pytest.approx(row["factor"], abs=1e-10)


def test_which_components_of_the_papers_ladders_contract(results):
    growing = [(row["ladder"], round(row["gamma"], 2)) for row in results["ladders"] if not row["contracts"]]
    assert growing == [
        ("matched", 0.68),
        ("matched", 0.84),
        ("matched, γ = 0.68 and .99", 0.68),
        ("matched, up to γ = .9999", 0.59),
        ("matched, up to γ = .9999", 0.8),
        ("matched, up to γ = .9999", 0.9),
    ]
    factors = [row["largest"] for row in results["ladders"] if row["ladder"] == "matched"]
    assert factors[:2] == [pytest.approx(4.38, abs=0.005), pytest.approx(1.69, abs=0.005)]


def test_full_steps_grow_with_opposite_signs_until_rounding_destroys_the_sum(results):
    def errors(rule, quantity):
        return [row["error"] for row in results["full-steps"] if (row["rule"], row["quantity"]) == (rule, quantity)]

    for step in range(5, 15):
        for component in ("W_0", "W_1"):
            assert errors("matched", component)[step + 1] > 4 * errors("matched", component)[step]
        assert errors("matched", "V")[step + 1] == pytest.approx(0.832 * errors("matched", "V")[step], rel=0.05)
    assert errors("matched", "V")[40] > 1e6 > 1 > errors("capped", "V")[40]


# ---------------------------------------------------------------- phased learning


@pytest.mark.parametrize("mdp", [FiniteMDP.ring(slip=0.0), FiniteMDP.chain(4, step_reward=-1.0)])
def test_phased_learning_is_that_of_the_engine_where_nothing_is_random(mdp):
    ladders = [TimeScales.doubling(0.9, n_step=6), TimeScales((0.0, 0.8), n_steps=(3, 1))]
    start = [np.random.default_rng(0).normal(size=(mdp.states, len(scales))) for scales in ladders]
    for table in start:
        table[mdp.terminal] = 0
    learned = phased_tables(mdp, ladders, samples=3, phases=2, seeds=[0, 1], initial=start)
    for scales, first, tables in zip(ladders, start, learned, strict=True):
        assert tables.shape == (2, 3, mdp.states, len(scales))
        np.testing.assert_array_equal(tables[:, 0], [first] * 2)
        for phase in (1, 2):
            engine = evaluate(mdp, scales, method="phased", steps=phase, trajectories=3, seeds=2, initial_deltas=first)
            np.testing.assert_allclose(tables[:, phase], engine.deltas[0], atol=1e-12)


def test_phased_learning_is_distributed_as_that_of_the_engine():
    """Two phases of five trajectories, many seeds: means and spreads of all components."""
    mdp = FiniteMDP.random(3, 2, 2, 1, ends=1)
    scales = TimeScales.doubling(0.75, n_step=3)
    number = 1500
    (drawn,) = phased_tables(mdp, [scales], samples=5, phases=2, seeds=range(number))
    followed = evaluate(mdp, scales, method="phased", steps=2, trajectories=5, seeds=range(number)).deltas[0]
    one, two = drawn[:, 2, :2], followed[:, :2]
    spread = np.sqrt((one.var(0) + two.var(0)) / number)
    assert (np.abs(one.mean(0) - two.mean(0)) < 4.5 * spread + 1e-12).all()
    np.testing.assert_allclose(one.std(0), two.std(0), rtol=0.12)
    np.testing.assert_allclose(
        np.corrcoef(one.reshape(number, -1).T), np.corrcoef(two.reshape(number, -1).T), atol=0.15
    )


def test_a_seed_is_the_same_alone_and_fresh_in_every_phase():
    ladder = [TimeScales.single(0.9, n_step=4)]
    (several,) = phased_tables(FiniteMDP.ring(), ladder, samples=5, phases=3, seeds=[4, 7])
    (alone,) = phased_tables(FiniteMDP.ring(), ladder, samples=5, phases=3, seeds=[7])
    np.testing.assert_allclose(several[1], alone[0], atol=1e-12)
    exact = [FiniteMDP.ring().exact_deltas((0.9,))]
    (tables,) = phased_tables(FiniteMDP.ring(), ladder, samples=5, phases=2, seeds=[0], initial=exact)
    assert np.abs(tables[0, 1] - exact[0]).max() > 1e-3, "no sampling error"
    with pytest.raises(ConfigError, match="phased learning needs n-step windows"):
        phased_tables(FiniteMDP.ring(), [TimeScales.single(0.9)], samples=1, phases=1, seeds=[0])
    with pytest.raises(ConfigError, match=r"windows must be at most 5368709 steps long here, .* got 1000000000000: "):
        phased_tables(FiniteMDP.ring(), [TimeScales.single(0.9, n_step=10**12)], samples=1, phases=1, seeds=[0])


def test_bounds_and_measured_errors(results):
    rows = results["phases"]
    for row in rows:
        assert row["error_sum_largest"] * (1 + 1e-12) >= row["error_sum_mean"] > 0
        assert row["value_error_mean"] <= row["error_sum_mean"] + 1e-12
        for kind in ("worst_case", "known_range"):
            assert row["error_sum_largest"] <= row[kind] * (1 + 1e-12)
            assert row["phase"] == 0 or row[f"broken_{kind}"] <= 0.05
    single, split = ([row for row in rows if row["method"] == method][-1] for method in theory.METHODS)
    assert split["value_error_mean"] < single["value_error_mean"]


def test_coefficients_cover_the_grid(results):
    rows = results["coefficients"]
    assert len(rows) == 7 * 7 * 2
    for single, split in zip(rows[::2], rows[1::2], strict=True):
        assert single["worst_case"] == pytest.approx(split["worst_case"]) == pytest.approx(1 / (1 - single["gamma"]))
        assert split["published"] < single["published"]


# ---------------------------------------------------------------- the counterexample


def test_the_counterexample_breaks_the_published_bound(results):
    for row in results["counterexample"]:
        if row["bound"] == "published":
            assert row["broken_exact"] == pytest.approx(0.6718, abs=5e-5)
            assert row["broken_share"] == pytest.approx(0.6718, abs=4 * np.sqrt(0.22 / row["seeds"]))
        else:
            assert row["broken_exact"] <= row["claimed"] and row["broken_share"] <= row["claimed"]
    chances = results["counterexample-errors"]
    assert sum(row["chance"] for row in chances) == pytest.approx(1)
    limit = results["counterexample"][0]["limit"]
    assert sum(row["chance"] for row in chances if row["error"] > limit) == pytest.approx(counterexample_probability())


# ---------------------------------------------------------------- figures and the command


def test_statements_name_the_numbers(results):
    text = "\n".join(theory.statements(results))
    for number in ("0.6718", "4.38", "1.69", "10.49", "8.11", "16.00 and 16.00", "103.07", "no variance reduction"):
        assert number in text


def test_figures_say_that_the_worst_case_shows_no_reduction(drawings):
    figures = {drawing.name: drawing.figure for drawing in drawings}
    assert set(figures) == {
        "contraction", "full-steps", "theorem-1", "coefficients", "phases-0.9375-16", "counterexample"
    }  # fmt: skip
    for axes in figures["coefficients"].axes:
        assert "no variance reduction" in axes.texts[0].get_text()
    (legend,) = figures["phases-0.9375-16"].legends
    assert "no variance reduction" in legend.get_title().get_text()
    (legend,) = figures["counterexample"].legends
    assert "published bound, broken with probability 0.6718" in [text.get_text() for text in legend.get_texts()]


def test_command_writes_one_folder_and_overwrites_nothing(tmp_path, monkeypatch, capsys, results, drawings):
    monkeypatch.setattr(theory, "measure", lambda **_: results)

    def drawn(_):
        assert not matplotlib.rcParams["text.usetex"], "the user's settings of matplotlib count"
        return iter(drawings[-2:])

    monkeypatch.setattr(theory, "drawings", drawn)
    out = tmp_path / "below" / "theory"
    with matplotlib.rc_context({"text.usetex": True}):
        assert main(["reproduce", "theory", "--quick", "--out", str(out)]) == 0
    assert "0.6718" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"tables", "figures", "theory.md", "settings.json"}
    assert {path.stem for path in (out / "tables").iterdir()} == set(results)
    with (out / "tables" / "phases.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results["phases"])
    assert float(rows[-1]["known_range"]) == results["phases"][-1]["known_range"]
    names = {path.name for path in (out / "figures").iterdir()}
    assert names == {f"{drawing.name}.{kind}" for drawing in drawings[-2:] for kind in ("png", "pdf")}
    assert json.loads((out / "settings.json").read_text(encoding="utf-8"))["quick"] is True
    assert [path.name for path in out.parent.iterdir()] == ["theory"], "a temporary folder was left"
    before = (out / "theory.md").stat().st_mtime_ns
    assert main(["reproduce", "theory", "--quick", "--out", str(out)]) == 2
    assert "exists already, and nothing is overwritten: name another folder with --out" in capsys.readouterr().err
    assert (out / "theory.md").stat().st_mtime_ns == before


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(theory, "measure", fail)
    assert main(["reproduce", "theory", "--out", str(tmp_path / "out")]) == 130
    assert list(tmp_path.iterdir()) == []
    blocked = tmp_path / "file"
    blocked.touch()
    assert main(["reproduce", "theory", "--out", str(blocked / "out")]) == 2


@pytest.mark.parametrize(
    "measured",
    [
        lambda: theory.contraction(seeds=range(1)),
        lambda: theory.ladders(seeds=range(1)),
        lambda: theory.theorem_one(steps=40),
        lambda: theory.phases(SETTINGS[:2], samples=100, count=3, seeds=range(3)),
        lambda: theory.coin(seeds=range(50)),
    ],
)
def test_measuring_again_gives_the_same_numbers(measured):
    assert measured() == measured()


SETTINGS = ((0.75, 4), (0.9375, 16), (0.984375, 64), (0.996, 256))


def test_the_whole_experiment(monkeypatch, results):
    """Its sizes, and what fewer seeds of it show."""
    asked = {}
    for name in ("contraction", "ladders", "theorem_one", "phases", "coin"):
        monkeypatch.setattr(
            theory, name, lambda *given, name=name, **named: asked.update({name: (*given, named)}) or []
        )
    whole = theory.measure()
    monkeypatch.undo()
    assert set(whole) == set(results)
    assert asked == {
        "contraction": ({"seeds": range(5)},),
        "ladders": ({"seeds": range(5)},),
        "theorem_one": ({"steps": 5000},),
        "phases": (SETTINGS, {"samples": 100, "count": 20, "seeds": range(200)}),
        "coin": ({"seeds": range(5000)},),
    }
    rows = theory.phases(SETTINGS, samples=100, count=20, seeds=range(10))
    for gamma, k in SETTINGS:
        single, split = [row for row in rows if (row["gamma"], row["k"], row["phase"]) == (gamma, k, 20)]
        assert split["value_error_mean"] < single["value_error_mean"]
        assert split["known_range"] > single["known_range"], "followed over phases the bound shows no reduction"
    assert len(theory.statements(results | {"phases": rows})) == 4 + 2 + len(SETTINGS)
