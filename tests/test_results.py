"""The results page: its tables and figures are drawn from rows of data, as far as there are any."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
AGENTS = ("ppo", "ppo-delta", "ppo-delta-bootstrap")
FIELDS = ("return_last", "return_average", "reward_per_step", "length_last", "at_limit", "explained_variance")


@pytest.fixture(scope="module")
def made():
    """`results` and `results_tables`, which are programs beside the package."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("results"), importlib.import_module("results_tables")
    sys.path.remove(str(BENCHMARKS))


def row(key, seed, mean, rng):
    curve = {f"return@{step}": "nan" if step == 100 else f"{mean + rng.normal():.6g}" for step in (100, 200, 300)}
    numbers = {name: f"{mean + rng.normal():.6g}" for name in FIELDS}
    return {
        **key,
        "seed": str(seed),
        "date": "2026-11-30",
        "version": "0.1.0",
        "machine": "2 cores of a kind",
        **numbers,
        **curve,
    }


def cells(text, start):
    """Cells of the first row of a table that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def literal_holm(p_values):
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = {}, 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        corrected[i] = largest
    return [corrected[i] for i in range(len(p_values))]


def test_tables_and_figures_of_what_is_there(made, tmp_path, monkeypatch, capsys):
    results, tables = made
    rng = np.random.default_rng(0)
    (case,) = results.STUDIES["cartpole"]
    keys = {agent: key for _, agent, key in results.groups(case)}
    rows = [row(keys["ppo"], seed, 100.0, rng) for seed in range(10)]
    rows += [row(keys["ppo-delta"], seed, 90.0, rng) for seed in range(10)]
    rows += [row(keys["ppo-delta-bootstrap"], seed, 50.0, rng) for seed in range(7)]  # not tested before all are there
    rows.append(row(keys["ppo"], 10, 1e6, rng))  # a seed that the study does not plan
    rows += [row({**keys["ppo"], "gamma": "0.5"}, seed, 1e6, rng) for seed in range(10)]  # nor this discount
    results.write_rows(tmp_path / "data" / "cartpole.csv", rows)
    monkeypatch.setattr(sys, "argv", ["", "--data", str(tmp_path / "data"), "--out", str(tmp_path)])
    tables.main()

    text = (tmp_path / "tables" / "results-cartpole.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert text.startswith(
        "2 of 3 groups complete, 27 of 30 runs. Trained 2026-11-30, version 0.1.0, on 2 cores of a kind."
    )
    last = {a: [float(r["return_last"]) for r in rows[:20] if r["agent"] == a] for a in ("ppo", "ppo-delta")}
    mean, error = np.mean(last["ppo"]), stats.sem(last["ppo"])
    assert "**CartPole-v1**\n" in text
    assert cells(text, "`ppo` ")[1:3] == ["10 of 10", f"{mean:.2f} ± {error:.2f}"]
    assert cells(text, "`ppo-delta-bootstrap` ")[1] == "7 of 10"
    p = stats.ttest_ind(last["ppo-delta"], last["ppo"], equal_var=False).pvalue
    assert p < 1e-3 and cells(text, "CartPole-v1 | `ppo-delta` − `ppo` ")[-2:] == ["<0.001", "<0.001"]
    assert "1 of 2 comparisons can be made; Holm's correction counts all 2." in text
    assert "Clear after it (p < .05): `ppo-delta` below `ppo` on CartPole-v1 (p < 0.001)." in text
    assert re.search(r"!\[.+\]\(\.\./_static/results-cartpole\.png\)", text)
    assert (tmp_path / "_static" / "results-cartpole.png").read_bytes().startswith(b"\x89PNG")
    empty = (tmp_path / "tables" / "results-noise.md").read_text()
    assert empty.startswith("0 of 12 groups complete, 0 of 120 runs.\n") and "0 of 16 comparisons can be made" in empty
    assert len(list((tmp_path / "_static").iterdir())) == 1


def test_methods_of_one_problem_are_compared_and_missing_ones_count(made, tmp_path):
    results, tables = made
    rng = np.random.default_rng(1)
    rows = [
        row(key, seed, {"1": 50.0, "0.95": 50.5}[key["lam"]], rng)
        for case in results.STUDIES["noise"]
        for _, agent, key in results.groups(case)
        if key["reward_noise"] == "1" and agent != "ppo-delta"
        for seed in case.seeds
    ]
    results.write_rows(tmp_path / "noise.csv", rows)
    found = tables.read("noise", tmp_path)
    assert [len(group.rows) for group in found] == [10, 0, 10, 10, 0, 10] + [0] * 6
    last = {group.name: np.array(group.values("return_last")) for group in found if group.rows}
    pairs = [(f"`ppo-delta-bootstrap`, λ = {a}", f"`ppo`, λ = {b}") for a in ("0.95", "1") for b in ("0.95", "1")]
    p_values = [stats.ttest_ind(last[a], last[b], equal_var=False).pvalue for a, b in pairs]
    corrected = literal_holm([*p_values, *[1.0] * 12])
    text = tables.tests(found)
    for (a, b), p, q in zip(pairs, p_values, corrected, strict=False):
        shown = [f"{p:.3f}", f"{q:.3f}"]
        assert cells(text, f"SpaceInvaders-MinAtar, σ = 1 | {a} − {b} |")[-2:] == [
            "<0.001" if float(number) < 0.001 else number for number in shown
        ]
    assert "4 of 16 comparisons can be made" in text
    assert tables.scores(found).endswith("\nTo come: SpaceInvaders-MinAtar, σ = 3.\n")
    curve = found[0].curve()
    values = np.array([float(r["return@200"]) for r in found[0].rows])
    low, high = stats.t.interval(0.95, 9, values.mean(), stats.sem(values))
    assert curve.grid.tolist() == [100, 200, 300] and np.isnan(curve.mean[0])
    np.testing.assert_allclose([curve.mean[1], curve.low[1], curve.high[1]], [values.mean(), low, high])
