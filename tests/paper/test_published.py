"""Reports of Atari runs: beside the published numbers, hold-out episodes, reward densities. Runs are made up."""

import json
from pathlib import Path

import numpy as np
import pytest

from report_synthetic import write_run as write_any_run
from tddelta.paper.published import PUBLISHED, densities, published_agent, published_gains, rewards, sections
from tddelta.report import Report, page
from tddelta.report.run_set import RunSet
from tddelta.report.statistics import Moments, welch_of_moments, welch_test
from tddelta.report.words import headline
from tddelta.runs import append_evaluation, load_runs, write_reward_density


def write_run(out: Path, game: str, agent: str, seed: int, **given: object) -> Path:
    return write_any_run(out, game, agent, seed, parameters={"game": game, "protocol": "classic"}, **given)


def runs_of(out: Path, agents: dict[str, float], game: str = "Qbert", seeds: int = 5, **settings: object) -> None:
    for agent, score in agents.items():
        for seed in range(seeds):
            returns = np.full(150, score) + 300.0 * (seed - (seeds - 1) / 2)
            write_run(out, game, agent, seed, returns=returns, steps=10_000_000, critic=False, **settings)


def tables_of(out: Path) -> dict:
    return {table.name: table for section in sections(RunSet(load_runs(out))) for table in section.tables}


def test_a_welch_test_from_means_and_standard_errors_is_the_one_from_the_scores() -> None:
    first, second = np.array([3.0, 5.0, 4.5, 7.0]), np.array([1.0, 2.0, 6.0])
    moments = [Moments(x.mean(), x.std(ddof=1) / len(x) ** 0.5, len(x)) for x in (first, second)]
    whole, summarised = welch_test(first, second), welch_of_moments(*moments)
    for name in ("difference", "statistic", "degrees_of_freedom", "p_value"):
        assert getattr(summarised, name) == pytest.approx(getattr(whole, name))


def test_without_any_variance_there_is_no_p() -> None:
    test = welch_of_moments(Moments(1.0, 0.0, 3), Moments(2.0, 0.0, 3))
    assert (test.p_value, test.difference) == (None, -1.0)


def test_of_the_published_gains_few_survive_the_correction() -> None:
    significant = {key: test.difference for key, (test, p) in published_gains().items() if p < 0.05}
    assert {key for key, difference in significant.items() if difference > 0} == {
        ("Hero", "ppo-delta-matched"), ("Hero", "ppo-delta-bootstrap"), ("Qbert", "ppo-delta-matched"),
    }  # fmt: skip
    assert {key for key, difference in significant.items() if difference < 0} == {
        ("Zaxxon", "ppo-delta-matched"), ("Zaxxon", "ppo-delta-bootstrap"), ("WizardOfWor", "ppo-delta-matched"),
        ("WizardOfWor", "ppo-delta-bootstrap"), ("BankHeist", "ppo-delta-bootstrap"),
    }  # fmt: skip
    assert len(published_gains()) == 18


def test_scores_stand_beside_the_published_ones_with_both_p_values(tmp_path: Path) -> None:
    runs_of(tmp_path, {"ppo": 11_700, "ppo-delta-matched": 9_000})
    table = tables_of(tmp_path)["atari-published"]
    ours = {row["agent"]: row for row in table.records}
    assert ours["ppo"]["published"] == 11735
    assert ours["ppo"]["difference"] == pytest.approx(-35)
    assert ours["ppo-delta-matched"]["p"] < ours["ppo-delta-matched"]["p_holm"] < 0.01
    findings = {row[1]: row[-1] for row in table.rows}
    assert findings == {"ppo": "no clear difference", "ppo-delta-matched": "lower"}
    assert {row[5:7] for row in table.rows} == {("PPO", "11,735 ± 387"), ("PPO-TD(λ,Δ)", "13,428 ± 333")}
    assert any("Qbert 17,319 ± 386" in note for note in table.notes)


def test_an_agent_that_repeats_the_released_code_is_compared_with_the_agent_of_the_paper() -> None:
    assert published_agent("ppo-delta-matched-released") == "ppo-delta-matched"
    assert published_agent("ppo-delta-bootstrap-published") == "ppo-delta-bootstrap"
    assert published_agent("ppo-multi") is None


def test_gains_are_over_the_better_baseline_here_and_in_the_paper(tmp_path: Path) -> None:
    runs_of(tmp_path, {"ppo": 9_000, "ppo+": 10_000, "ppo-delta-bootstrap": 12_000})
    (row,) = tables_of(tmp_path)["atari-gains"].records
    assert (row["baseline"], row["published_baseline"]) == ("ppo+", "ppo")
    assert row["difference"] == pytest.approx(2000)
    assert row["published_difference"] == 13092 - 11735
    assert row["published_p"] < 0.05 < row["published_p_holm"]


def test_one_seed_stands_beside_the_paper_without_a_test(tmp_path: Path) -> None:
    runs_of(tmp_path, {"ppo": 11_000}, seeds=1)
    (row,) = tables_of(tmp_path)["atari-published"].records
    assert (row["seeds"], row["p"], row["p_holm"]) == (1, None, None)
    assert tables_of(tmp_path)["atari-published"].rows[0][-1] == "one seed: no standard error"


def test_fewer_steps_than_published_are_pointed_out(tmp_path: Path) -> None:
    write_run(tmp_path, "Qbert", "ppo", 0, steps=2_000_000)
    table = tables_of(tmp_path)["atari-published"]
    assert table.records[0]["steps"] == 2_000_000
    assert any("The published runs had 10,000,000 steps" in note for note in table.notes)


def test_games_of_other_kinds_have_no_published_numbers(tmp_path: Path) -> None:
    write_any_run(tmp_path, "Breakout-MinAtar", "ppo", 0)
    write_run(tmp_path, "Pong", "ppo", 0)
    assert tables_of(tmp_path) == {}


def test_hold_out_episodes_are_no_usual_evaluations(tmp_path: Path) -> None:
    for seed in range(3):
        path = write_run(tmp_path, "Qbert", "ppo", seed)
        append_evaluation(path, {"steps": 1, "mode": "sampled", "return_mean": 50.0 + seed})
        append_evaluation(path, {"steps": 1, "mode": "sampled", "starts": "no-ops", "return_mean": 10.0 + seed})
    runs = RunSet(load_runs(tmp_path))
    group = runs.groups["Qbert", "ppo"]
    assert group.evaluated("sampled") == [50.0, 51.0, 52.0]
    assert group.scores("hold_out").tolist() == [10.0, 11.0, 12.0]


def test_reward_densities_have_a_table(tmp_path: Path) -> None:
    for seed in range(2):
        path = write_run(tmp_path, "Qbert", "ppo", seed)
        write_reward_density(path, {"trained": 12.0 + seed, "random": 4.0, "steps": 10_000, "seed": seed})
    table = tables_of(tmp_path)["reward-density"]
    (row,) = table.records
    assert (row["trained"], row["random"], row["published"]) == (12.5, 4.0, PUBLISHED["Qbert"].density)
    assert densities(table) == {"Qbert": {"trained": 12.5, "random": 4.0, "paper": 12.26}}
    (figure,) = sections(RunSet(load_runs(tmp_path)))[0].figures
    assert "trained 12.50, random 4.00, paper 12.26" in figure.alternative
    assert figure.reading == "The trained agent gets 12.50 rewards per 100 steps on Qbert."
    assert rewards({"Qbert": {"trained": 12.5}, "Zaxxon": {"trained": 0.25}}) == (
        "The trained agent gets 12.50 rewards per 100 steps on Qbert, and 0.250 on Zaxxon."
    )


def test_the_page_shows_what_is_there_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_of(tmp_path, {"ppo": 11_000, "ppo-delta-bootstrap": 12_000}, seeds=2)
    path = write_run(tmp_path, "MsPacman", "ppo", 1153780, state="running", returns=[])
    append_evaluation(tmp_path / "Qbert/ppo/seed-0", {"mode": "sampled", "starts": "no-ops", "return_mean": 9.0})
    monkeypatch.setattr(page, "drawings", lambda runs: ())
    report = Report(load_runs(tmp_path), sections=sections)
    html = report.write(tmp_path).read_text(encoding="utf-8")
    assert 'id="published"' in html
    assert 'id="table-hold-out"' in html
    assert "MsPacman" in html and path.exists()
    assert (tmp_path / "tables/atari-published.csv").read_text().startswith("environment,agent,seeds,steps,score")


def test_the_shown_episode_is_that_of_the_papers_seed(tmp_path: Path) -> None:
    for seed in (0, 1153780):
        write_run(tmp_path, "Qbert", "ppo-delta-bootstrap", seed)
    recorded = RunSet(load_runs(tmp_path)).groups["Qbert", "ppo-delta-bootstrap"].recorded
    assert recorded is not None and recorded[0].number == 1153780


def test_a_changed_protocol_has_no_published_numbers(tmp_path: Path) -> None:
    write_any_run(tmp_path, "Qbert-v5", "ppo", 0, parameters={"game": "Qbert", "protocol": "machado"})
    path = write_run(tmp_path, "Qbert", "ppo", 0)
    config = json.loads((path / "config.json").read_text())
    config["environment_kwargs"] = {"frame_skip": 2}
    (path / "config.json").write_text(json.dumps(config))
    assert tables_of(tmp_path) == {}
    config["environment_kwargs"] = {"threads": 2}
    (path / "config.json").write_text(json.dumps(config))
    assert tables_of(tmp_path) != {}


def test_runs_under_other_rules_are_not_compared(tmp_path: Path) -> None:
    for agent, sticky in (("ppo", 0.0), ("ppo-delta-bootstrap", 0.25)):
        for seed in range(3):
            rules = {"game": "Pong", "protocol": "classic", "repeat_action_probability": sticky}
            write_any_run(tmp_path, "Pong", agent, seed, parameters=rules, returns=np.full(9, 1.0 * seed))
    runs = RunSet(load_runs(tmp_path))
    (comparison,) = runs.comparisons()
    assert comparison.welch.p_value is None
    assert comparison.note == "played under other rules (repeat_action_probability)"
    assert any("different rules (repeat_action_probability)" in text for text in headline(runs).cautions)
