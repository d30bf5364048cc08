"""Sentences, tables and figures of a report say what the arrays say: of curves, critics, episodes and ladders."""

import json
import re

import numpy as np
import pytest

from report_synthetic import agent_data, scales_of, write_run
from tddelta.decomposition import compose, decompose
from tddelta.report import figures, words
from tddelta.report.run_set import RunSet
from tddelta.report.statistics import aggregate, calibration, diagnose, performance_profile, probability_of_improvement
from tddelta.report.tables import diagnostics_table
from tddelta.runs import load_runs
from tddelta.runs.recorder import realised_returns
from tddelta.timescales import TimeScales

ENVIRONMENTS = ("Breakout-MinAtar", "Asterix-MinAtar")
FINAL = {"ppo": 4.0, "ppo-multi": 9.0, "ppo-delta": 10.0}


MEANS = np.array([[4.0, 1, 1, 1, 1, 0], [2, 2, 2, -2, 1, 1], [0, 0, 0, 0, 3, 1]])
"""Mean values of the components, one row per update."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three agents, four seeds: ppo far behind, the other two too close to tell apart. Seeds 2 and 3 stop earlier."""
    out = tmp_path_factory.mktemp("runs")
    for environment in ENVIRONMENTS:
        for agent, final in FINAL.items():
            means = {"ppo": MEANS.sum(axis=1, keepdims=True), "ppo-multi": compose(MEANS)}.get(agent, MEANS)
            for seed in range(4):
                returns = np.linspace(0, final + seed - 1.5, 200)
                path = write_run(out, environment, agent, seed, returns=returns, quality={"ppo": 0.2}.get(agent, 0.8))
                names = [f"value_mean/gamma={label}" for label in scales_of(agent).labels]
                rows = [
                    {"update": n + 1, "steps": 100 * (n + 1), "episodes": n} | dict(zip(names, row, strict=True))
                    for n, row in enumerate((means[: 3 - seed // 2] * (1 + seed)).tolist())
                ]
                (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return RunSet(load_runs(out))


def numbers(text):
    return [float(found.replace("−", "-")) for found in re.findall(r"−?\d+(?:\.\d+)?", text)]


def test_learning_curves_say_who_is_ahead_and_whether_it_could_be_chance(runs):
    # of 200 returns from 0 to x the last 100 have the mean 149.5/199 x; x is 8.5 … 11.5 for ppo-delta, else 7.5 … 10.5
    assert words.learning(runs, "Breakout-MinAtar") == (
        "Over the last 100 episodes ppo-delta is ahead with 7.51 ± 0.48, 0.751 more than ppo-multi with 6.76 ± 0.48 "
        "(4 seeds each). The difference does not survive Holm's correction over 4 comparisons (p = 0.315, corrected "
        "0.631)."
    )


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, "does not survive"), (5.0, "survives")])
def test_a_difference_survives_correction_or_does_not(tmp_path, gap, verdict):
    for environment in ENVIRONMENTS:
        for agent, final in (("ppo", 5.0), ("ppo-delta", 5.1 + gap)):
            for seed in range(4):
                write_run(tmp_path, environment, agent, seed, returns=[final + seed] * 200, rollout=False, critic=False)
    found = RunSet(load_runs(tmp_path))
    said = words.learning(found, "Asterix-MinAtar")
    assert f"The difference {verdict} Holm's correction over 2 comparisons" in said
    corrected = next(c.corrected for c in found.comparisons() if c.environment == "Asterix-MinAtar")
    assert (corrected < 0.05) is (verdict == "survives")


def test_a_lone_agent_and_lone_seeds_are_read_for_what_they_are(tmp_path):
    def said(name, **agents):
        for agent, returns in agents.items():
            write_run(tmp_path / name, agent=agent, returns=returns, rollout=False, critic=False)
        return words.learning(RunSet(load_runs(tmp_path / name)), "Breakout-MinAtar")

    # 40 points of 5 episodes each, whose returns are 0 … 10, over 300,000 steps
    assert said("one", ppo=np.linspace(0, 10, 200)) == (
        "Over the last 100 episodes ppo scores 7.51 (1 seed). Its curve begins at 0.101 and is half-way up after "
        "157,500 steps."
    )
    assert said("two", ppo=[1.0] * 50, mine=[2.0] * 50) == (
        "Over the last 100 episodes mine is ahead with 2.00, 1.00 more than ppo with 1.00 (1 seed each). The "
        "difference is not tested: one seed: no test."
    )
    assert said("flat", ppo=[1.0] * 50).endswith("Its curve ends no higher than it began (1.00, then 1.00).")
    assert said("none", ppo=[]) == ""


def test_critics_are_ranked_at_the_longest_horizon(runs):
    groups = runs.groups_on("Breakout-MinAtar")
    explained = {g.agent: np.mean([q.explained_variance for q in g.critic], axis=0) for g in groups}
    assert sorted(explained, key=lambda agent: -explained[agent][-1]) == ["ppo-multi", "ppo-delta", "ppo"]
    best, worst = explained["ppo-multi"].argmax(), explained["ppo-multi"].argmin()
    assert [groups[1].scales.horizons[z] for z in (best, worst)] == pytest.approx([12.5, 25])
    assert words.critics(groups) == (
        "At γ = 0.990 the critic of ppo-multi explains 83 % of the variance of the returns that came, that of "
        "ppo-delta 83 %, that of ppo 24 %. ppo-multi knows best what comes over 12.5 steps (84 %), least what comes "
        "over 25 steps (83 %)."
    )


TWO = TimeScales.from_gammas([0.5, 0.9])


def ends(length, *, cut=False):
    """The flags of an episode that ends with its last step, or is cut there."""
    last = np.arange(length) == length - 1
    return {"terminated": last & (not cut), "truncated": last & cut}


def recorded(deltas, rewards, *, cut=False):
    return {"deltas": deltas, "rewards": rewards, **ends(len(rewards), cut=cut)}


def test_an_episode_is_read_along_its_own_arrays():
    rng = np.random.default_rng(0)
    deltas, rewards = rng.random((60, 2)) * [1.0, 4.0], rng.random(60)
    came = realised_returns(rewards, np.array([0.9]), **ends(60))[:, 0]
    expected = [sum(0.9 ** (k - t) * rewards[k] for k in range(t, 60)) for t in range(60)]
    np.testing.assert_allclose(came, expected)
    values = compose(deltas)[:, -1]
    share = 100 * deltas[:, 1].mean() / np.abs(deltas).mean(axis=0).sum()
    assert words.episode(TWO, recorded(deltas, rewards)) == (
        f"Value beyond 2 steps is {share:.0f} % of all parts of V along this episode. On average over all steps V "
        f"expects {values.mean():.2f}, {came.mean() - values.mean():.2f} less than the discounted return that followed "
        f"({came.mean():.2f})."
    )
    exact = np.stack([np.zeros(60), expected], axis=1)
    assert "about as much as the discounted return" in words.episode(TWO, recorded(exact, rewards))


def test_of_an_episode_that_was_cut_the_known_steps_count():
    rewards = np.ones(100)
    deltas = np.stack([np.zeros(100), np.full(100, 20.0)], axis=1)
    known = np.isfinite(realised_returns(rewards, np.array([0.9]), **ends(100, cut=True))[:, 0])
    assert 0 < known.sum() < 100
    assert 0.9 ** (100 - np.flatnonzero(known)[-1]) <= 0.01
    said = words.episode(TWO, recorded(deltas, rewards, cut=True))
    assert f"over the {known.sum()} steps whose return is known V expects 20" in said
    assert " more than the discounted return" in said
    short = recorded(deltas[:5], rewards[:5], cut=True)
    assert words.episode(TWO, short).endswith("too short for the return at the longest horizon to be known.")


def test_rewards_count_as_the_critic_learned_them():
    rewards = np.full(200, 30.0)
    deltas = np.stack([np.zeros(200), (1 - 0.9 ** np.arange(200, 0, -1)) * 10], axis=1)
    assert "about as much as" in words.episode(TWO, recorded(deltas, rewards), clipped=True)
    assert "about as much as" not in words.episode(TWO, recorded(deltas, rewards))


@pytest.mark.parametrize(
    ("scales", "said"),
    [
        (
            lambda: TimeScales.halving(0.99, lam=0.95),
            "6 scales look 3.125 to 100 steps ahead, each 2 times as far as the one before; a full step leaves at most "
            "83 % of the error of W_5, the slowest.",
        ),
        (lambda: TimeScales.single(0.99), "1 scale looks 100 steps ahead."),
        (
            lambda: TimeScales.from_horizons([1, 4, 8]),
            "3 scales look 1 to 8 steps ahead, each 2 to 4 times as far as the one before.",
        ),
        (lambda: TimeScales((0.5, 1.0)), "2 scales look 2 to ∞ steps ahead."),
        (
            lambda: TimeScales((0.5, 0.9), trace_decays=(0.9, 0.9)),
            "2 scales look 2 to 10 steps ahead, each 5 times as far as the one before; full steps towards its target "
            "need not bring W_0 closer.",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::tddelta.errors.ContractionWarning")
def test_ladders_are_read_from_their_scales(scales, said):
    assert words.ladder(scales()) == said


def test_aggregates_are_read_from_their_estimates():
    rng = np.random.default_rng(1)
    far, near = [rng.random(5) + 3 for _ in range(2)], [rng.random(5) for _ in range(2)]
    estimates = {"slow": aggregate(near), "fast": aggregate(far)}
    said = words.interquartile(estimates)
    assert said.startswith("fast has the highest, ")
    assert numbers(said) == pytest.approx([estimates["fast"].value, estimates["slow"].value], rel=0.01)
    assert said.endswith("their intervals do not overlap.")
    assert words.interquartile({"a": aggregate(near), "b": aggregate(near)}).endswith("their intervals overlap.")
    one = [np.array([1.0]), np.array([2.0])]
    assert words.interquartile({"a": aggregate(one), "b": aggregate(one)}).endswith("there is no interval.")

    thresholds = np.linspace(0, 4, 101)
    said = words.profiles({name: performance_profile(s, thresholds) for name, s in {"a": near, "b": far}.items()})
    half = {name: np.median(np.concatenate(s)) for name, s in {"a": near, "b": far}.items()}
    assert said.startswith("More than half of the runs of b score above ")
    for value, name in zip(numbers(said), ("b", "a"), strict=True):
        assert value == pytest.approx(half[name], abs=0.15)
        assert np.mean(np.concatenate({"a": near, "b": far}[name]) > value) > 0.5

    better = probability_of_improvement(far, near)
    assert words.improvement("a", "b", better) == (
        "A run of a beats one of b with a chance of 100 %; its interval excludes a draw."
    )
    assert words.improvement("a", "b", probability_of_improvement(near, near)).endswith(
        "with a chance of 50 %; its interval includes a draw."
    )


def test_every_figure_has_its_reading(runs):
    made = list(figures.drawings(runs))  # not laid out, which takes long
    assert {drawing.section for drawing in made} == {"learning", "aggregates", "critic", "diagnostics", "episode"}
    assert all(drawing.reading.endswith(".") for drawing in made)
    assert [sentence.partition(":")[0] for sentence in words.ladders(runs)] == ["ppo", "ppo-multi", "ppo-delta"]


# ---------------------------------------------------------------- parts of a critic

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
    means, returns, counts = calibration(predicted, realised)
    assert counts.sum() == np.isfinite(realised).sum() and np.ptp(counts) <= 1
    assert len(means) == 10
    assert (np.diff(means) > 0).all()
    np.testing.assert_allclose(returns, 2 * means, atol=0.4)
    assert calibration(predicted, np.full(2000, np.nan))[2].sum() == 0
    assert calibration(predicted[:3], predicted[:3])[2].tolist() == [1, 1, 1, *[0] * 7]


def test_which_scale_carries_the_value_is_the_same_in_both_bases(runs):
    expected = np.array([[4, 1, 1, 1, 1, 0], [2, 2, 2, 2, 1, 1]]) / np.array([[8], [10]])
    for agent in ("ppo-delta", "ppo-multi"):
        assert agent_data(agent)["basis"] == ("deltas" if agent == "ppo-delta" else "values")
        steps, shares = runs.groups["Breakout-MinAtar", agent].shares
        np.testing.assert_array_equal(steps, [100, 200])  # as far as both seeds have come
        np.testing.assert_allclose(shares, expected)
    assert runs.groups["Breakout-MinAtar", "ppo"].shares is None


def test_words_say_what_the_numbers_say():
    predicted, realised = states(np.random.default_rng(0))
    found = diagnose(SCALES, predicted, realised)
    assert found.share[3:].sum() == pytest.approx(0.55, abs=5e-3) and found.share[4] == pytest.approx(0.21, abs=5e-3)
    assert words.parts(SCALES, found) == [
        "Value beyond 12.5 steps is 55 % of all parts of V; the largest is W_4 (horizons 25 to 50), with 21 %.",
        "W_0 explains 100 % of its target's variance, W_5 75 %.",
        "W_1 is on average 0.500 too high, 25 % of its target's spread.",
        "V over 100 steps: its differences between states are about right (slope 1.15, 1 is calibrated).",
    ]
    for stretch, told in ((3.0, "exaggerates differences"), (0.3, "makes states too much alike")):
        stretched = diagnose(SCALES, realised * stretch, realised)
        assert any(told in sentence for sentence in words.parts(SCALES, stretched))


@pytest.mark.filterwarnings("ignore::tddelta.errors.ContractionWarning")
def test_parts_that_do_not_contract_are_named():
    scales = TimeScales((0.68, 0.99), trace_decays=(0.95, 0.95))
    predicted = np.random.default_rng(0).normal(size=(50, 2))
    said = words.parts(scales, diagnose(scales, predicted, predicted))
    assert said[-1] == "Full steps towards their targets let W_0 grow: a factor of 1 or more does not contract."


@pytest.mark.slow
def test_table_and_figures_show_them(runs):
    table = diagnostics_table(runs)
    assert len(table.rows) == 2 * (1 + 6 + 6)
    group = runs.groups["Breakout-MinAtar", "ppo-delta"]
    found = diagnose(group.scales, *group.held_out)
    place = ("Breakout-MinAtar", "ppo-delta")
    mine = [row for row in table.records if (row["environment"], row["agent"]) == place]
    np.testing.assert_array_equal([row["bias"] for row in mine], found.bias)
    np.testing.assert_array_equal([row["share"] for row in mine], found.share)
    made = [drawing for drawing in figures.drawings(runs) if drawing.section == "diagnostics"]
    drawn = {drawing.name: drawing for drawing in made if "breakout" in drawing.name}
    assert {name: drawing.minor for name, drawing in drawn.items()} == {
        f"{kind}-breakout-minatar-{agent}": agent != "ppo-delta"
        for kind in ("calibration", "shares")
        for agent in ("ppo-delta", "ppo-multi")
    }
    mine = drawn["calibration-breakout-minatar-ppo-delta"]
    for sentence in words.parts(group.scales, found):
        assert sentence in mine.reading and sentence in mine.alternative
    pair = group.held_out
    for z, axes in enumerate(mine.figure.axes):
        means, returns, counts = calibration(pair[0][:, z], pair[1][:, z])
        np.testing.assert_array_equal(axes.lines[1].get_xdata(), means[counts > 0])
        np.testing.assert_array_equal(axes.lines[1].get_ydata(), returns[counts > 0])
    assert drawn["shares-breakout-minatar-ppo-delta"].reading == (
        "At first W_0 is the largest part (50 %), in the end W_0 (20 %)."
    )
