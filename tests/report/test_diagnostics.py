"""What the report says about every part of a critic."""

import json

import numpy as np
import pytest

from report_synthetic import agent_data, scales_of, write_run
from tddelta.decomposition import compose, decompose
from tddelta.report.figures import drawings
from tddelta.report.run_set import RunSet
from tddelta.report.statistics import calibration, diagnose
from tddelta.report.tables import diagnostics_table
from tddelta.report.words import parts
from tddelta.runs import load_runs
from tddelta.timescales import TimeScales

SCALES = TimeScales.halving(0.99, lam=0.95)


def states(rng, count=4000):
    """Realised returns, and predictions with known faults: W_1 is ½ too high, W_5 half as large as it should be."""
    parts = rng.normal(size=(count, 6)) * np.arange(1, 7) + 3
    believed = parts.copy()
    believed[:, 1] += 0.5
    believed[:, 5] = 3 + (parts[:, 5] - 3) / 2
    return compose(believed), compose(parts)


def test_numbers_are_those_of_the_parts():
    predicted, realised = states(np.random.default_rng(0))
    realised[:7, 3:] = np.nan
    found = diagnose(SCALES, predicted, realised)
    np.testing.assert_allclose(found.bias, [0, 0.5, 0, 0, 0, 0], atol=0.1)
    np.testing.assert_allclose(found.bias[1], 0.5, atol=1e-9)
    np.testing.assert_allclose(found.explained_variance, [1, 1, 1, 1, 1, 0.75], atol=1e-6)
    np.testing.assert_allclose(found.spread, np.arange(1, 7), rtol=0.05)
    np.testing.assert_array_equal(found.states, [4000, 4000, 4000, 3993, 3993, 3993])
    np.testing.assert_allclose(found.contraction_factor, SCALES.contraction_factors)
    size = np.abs(decompose(predicted)).mean(axis=0)
    np.testing.assert_allclose(found.share, size / size.sum())
    assert found.slope[0] == pytest.approx(1)
    # Var of V_5 is 55 + 9, its covariance with the return 55 + 18
    assert found.slope[5] == pytest.approx(73 / 64, rel=0.05)


def test_what_is_not_known_is_not_a_number():
    found = diagnose(TimeScales.from_gammas([0.5, 0.9]), np.ones((5, 2)), np.full((5, 2), np.nan))
    for name in ("contraction_factor", "bias", "spread", "explained_variance", "slope"):
        assert np.isnan(getattr(found, name)).all()
    constant = diagnose(TimeScales.from_gammas([0.5, 0.9]), np.ones((5, 2)), np.ones((5, 2)))
    assert np.isnan(constant.explained_variance).all()
    np.testing.assert_array_equal(constant.bias, 0)


def test_calibration_groups_states_by_prediction():
    rng = np.random.default_rng(1)
    predicted = rng.uniform(0, 10, 2000)
    realised = 2 * predicted + rng.normal(size=2000)
    realised[rng.random(2000) < 0.3] = np.nan
    means, returns = calibration(predicted, realised)
    assert len(means) == 10
    assert (np.diff(means) > 0).all()
    np.testing.assert_allclose(returns, 2 * means, atol=0.4)
    assert len(calibration(predicted, np.full(2000, np.nan))[0]) == 0
    assert len(calibration(predicted[:3], predicted[:3])[0]) == 3


def metrics_of(path, means):
    """Write the metrics of a run: mean values of the components, one row per update."""
    labels = scales_of(path.parent.name).labels
    rows = [
        {"update": n + 1, "steps": 100 * (n + 1), "episodes": n}
        | {f"value_mean/gamma={label}": value for label, value in zip(labels, row, strict=True)}
        for n, row in enumerate(means)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    parts = np.array([[4.0, 1, 1, 1, 1, 0], [2, 2, 2, -2, 1, 1], [0, 0, 0, 0, 3, 1]])
    for agent in ("ppo", "ppo-delta", "ppo-multi"):
        for seed in range(2):
            path = write_run(out, agent=agent, seed=seed)
            means = {"ppo": parts.sum(axis=1, keepdims=True), "ppo-multi": compose(parts)}.get(agent, parts)
            metrics_of(path, means[: 3 - seed] * (1 + seed))
    return RunSet(load_runs(out))


def test_which_scale_carries_the_value_is_the_same_in_both_bases(runs):
    expected = np.array([[4, 1, 1, 1, 1, 0], [2, 2, 2, 2, 1, 1]]) / np.array([[8], [10]])
    for agent in ("ppo-delta", "ppo-multi"):
        assert agent_data(agent)["basis"] == ("W" if agent == "ppo-delta" else "V")
        steps, shares = runs.groups["Breakout-MinAtar", agent].shares
        np.testing.assert_array_equal(steps, [100, 200])  # as far as both seeds have come
        np.testing.assert_allclose(shares, expected)
    assert runs.groups["Breakout-MinAtar", "ppo"].shares is None


def test_words_say_what_the_numbers_say():
    predicted, realised = states(np.random.default_rng(0))
    found = diagnose(SCALES, predicted, realised)
    said = parts(SCALES, found)
    half = int(np.argmax(np.cumsum(found.share) >= 0.5))
    assert said[0].startswith(
        f"Value beyond {SCALES.horizons[half - 1]:.4g} steps is {100 * found.share[half:].sum():.0f} %"
    )
    assert f"the largest is W_{found.share.argmax()}" in said[0]
    assert said[1].endswith("of its target's variance, W_5 75 %.")
    assert said[2] == "W_1 is on average 0.500 too high, 25 % of its target's spread."
    assert "about right (slope 1.1" in said[3]
    assert len(said) == 4
    for stretch, words in ((3.0, "exaggerates differences"), (0.3, "makes states too much alike")):
        stretched = diagnose(SCALES, realised * stretch, realised)
        assert any(words in sentence for sentence in parts(SCALES, stretched))


@pytest.mark.filterwarnings("ignore::tddelta.errors.ContractionWarning")
def test_parts_that_do_not_contract_are_named():
    scales = TimeScales((0.68, 0.99), trace_decays=(0.95, 0.95))
    predicted = np.random.default_rng(0).normal(size=(50, 2))
    said = parts(scales, diagnose(scales, predicted, predicted))
    assert said[-1] == "Full steps towards their targets let W_0 grow: a factor of 1 or more does not contract."


@pytest.mark.slow
def test_table_and_figures_show_them(runs):
    table = diagnostics_table(runs)
    assert len(table.rows) == 1 + 6 + 6
    group = runs.groups["Breakout-MinAtar", "ppo-delta"]
    found = diagnose(group.scales, *group.held_out)
    mine = [row for row in table.records if row["agent"] == "ppo-delta"]
    np.testing.assert_array_equal([row["bias"] for row in mine], found.bias)
    np.testing.assert_array_equal([row["share"] for row in mine], found.share)
    drawn = {drawing.name: drawing for drawing in drawings(runs) if drawing.section == "diagnostics"}
    assert sorted(drawn) == [
        "calibration-breakout-minatar-ppo-delta",
        "calibration-breakout-minatar-ppo-multi",
        "shares-breakout-minatar-ppo-delta",
        "shares-breakout-minatar-ppo-multi",
    ]
    assert [name for name, drawing in drawn.items() if not drawing.minor] == [
        "calibration-breakout-minatar-ppo-delta",
        "shares-breakout-minatar-ppo-delta",
    ]
    mine = drawn["calibration-breakout-minatar-ppo-delta"]
    for sentence in parts(group.scales, found):
        assert sentence in mine.reading and sentence in mine.alternative
    pair = group.held_out
    for z, axes in enumerate(mine.figure.axes):
        means, returns = calibration(pair[0][:, z], pair[1][:, z])
        np.testing.assert_array_equal(axes.lines[1].get_xdata(), means)
        np.testing.assert_array_equal(axes.lines[1].get_ydata(), returns)
    words = drawn["shares-breakout-minatar-ppo-delta"].reading
    assert words == ("At first W_0 is the largest part (50 %), in the end W_0 (20 %).")
