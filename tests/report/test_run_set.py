import json
from typing import Any

import numpy as np
import pytest

from report_synthetic import write_run
from tddelta.errors import ConfigError
from tddelta.report import summary_table
from tddelta.report.run_set import RunSet, verdict
from tddelta.report.tables import (
    critic_table,
    difference_table,
    evaluation_table,
    ladder_table,
    run_table,
    score_table,
    settings_tables,
)
from tddelta.report.words import critic_sentences, headline
from tddelta.runs import load_runs


def write_scores(out: Any, scores: dict[str, dict[str, list[float]]], **settings: Any) -> None:
    """One run per score, whose episodes all return that score."""
    for environment, agents in scores.items():
        for agent, values in agents.items():
            for seed, value in enumerate(values):
                write_run(out, environment, agent, seed, returns=[value] * 120, rollout=False, critic=False, **settings)


@pytest.fixture
def run_set(tmp_path):
    """Write these scores, if any, and load all runs that are there."""

    def load(scores: dict[str, dict[str, list[float]]] | None = None, **arguments: Any) -> RunSet:
        write_scores(tmp_path, scores or {})
        return RunSet(load_runs(tmp_path), **arguments)

    return load


SCORES = {"Breakout-MinAtar": {"ppo": [1.0, 2.0, 3.0], "ppo-delta": [2.0, 4.0, 6.0]}}


def test_steps_that_nobody_planned_are_those_that_were_done(run_set, tmp_path):
    """RLlib trains until it is stopped."""
    for seed, steps in enumerate((3_000, 5_000)):
        config = write_run(tmp_path, seed=seed, steps=steps, settings={"steps": None}) / "config.json"
        content = json.loads(config.read_text())
        config.write_text(json.dumps({name: entry for name, entry in content.items() if name != "steps"}))
    assert "for 3,000 to 5,000 environment steps per seed" in headline(run_set()).lead


class TestComparisons:
    def test_the_numbers_are_those_of_the_seeds(self, run_set):
        (comparison,) = run_set(SCORES).comparisons()
        assert (comparison.agent, comparison.baseline) == ("ppo-delta", "ppo")
        assert comparison.welch.p_value == pytest.approx(0.2209, abs=5e-5)
        assert comparison.corrected == comparison.welch.p_value
        assert verdict(comparison.welch.difference, comparison.corrected) == "no clear difference"

    def test_holm_counts_every_comparison(self, run_set):
        scores = [1.0, 1.1, 1.2]
        agents = {"ppo": scores, "ppo+": [1.0, 1.2, 1.1], "ppo-multi": [0.8, 1.0, 1.2], "ppo-delta": [3.0, 3.1, 3.2]}
        comparisons = run_set({"Breakout-MinAtar": agents, "Asterix-MinAtar": agents}).comparisons()
        assert [c.baseline for c in comparisons] == ["ppo", "ppo+", "ppo-multi"] * 2
        smallest = min(c.welch.p_value for c in comparisons)
        assert min(c.corrected for c in comparisons) == pytest.approx(6 * smallest)
        assert {verdict(c.welch.difference, c.corrected) for c in comparisons} == {"better"}

    def test_only_baselines_are_compared_among_themselves(self, run_set):
        runs = run_set({"A": {"ppo": [1.0, 2.0], "ppo+": [1.0, 3.0], "ppo-multi": [1.0, 2.0]}})
        pairs = [(c.agent, c.baseline) for c in runs.comparisons()]
        assert pairs == [("ppo+", "ppo"), ("ppo-multi", "ppo"), ("ppo-multi", "ppo+")]

    def test_chosen_baselines(self, run_set):
        (comparison,) = run_set(SCORES, baselines=["ppo-delta"]).comparisons()
        assert comparison.welch.difference == -2
        with pytest.raises(ConfigError, match=r"baseline 'ppo-dleta' is not among .*: did you mean ppo-delta"):
            run_set(baselines=["ppo-dleta"])

    def test_no_baseline(self, run_set):
        runs = run_set({"A": {"mine": [1.0, 2.0]}})
        assert runs.comparisons() == []
        assert "nothing is compared" in headline(runs).verdict[0]

    def test_one_seed(self, run_set):
        (comparison,) = run_set({"A": {"ppo": [1.0], "ppo-delta": [2.0]}}).comparisons()
        assert (comparison.welch.p_value, comparison.interval.low) == (None, None)
        assert comparison.note == "one seed: no test"
        assert any("one seed only has no standard error" in caution for caution in headline(run_set()).cautions)

    def test_different_training_lengths_are_named(self, tmp_path, run_set):
        write_scores(tmp_path, {"A": {"ppo": [1.0, 2.0]}}, steps=1000)
        write_scores(tmp_path, {"A": {"ppo-delta": [1.0, 3.0]}}, steps=2000)
        (comparison,) = run_set().comparisons()
        assert comparison.note == "trained for 2,000 and 1,000 steps"


class TestUnfinished:
    def test_seeds_that_did_not_finish_do_not_count(self, tmp_path, run_set):
        write_scores(tmp_path, SCORES)
        write_run(tmp_path, agent="ppo-delta", seed=3, returns=[0.0] * 9, state="failed", message="NaN in the loss")
        runs = run_set()
        assert runs.groups["Breakout-MinAtar", "ppo-delta"].summary("asymptotic").mean == 4
        table = score_table(runs)
        assert table.rows[1][-1] == "3 of 4 ‡"
        assert any("flatters" in note for note in table.notes)
        assert any("1 run failed: Breakout-MinAtar, ppo-delta, seed 3" in text for text in headline(runs).cautions)
        table = run_table(runs)
        marked = [(row[3], marks[3]) for row, marks in zip(table.rows, table.marks, strict=True)]
        assert ("failed: NaN in the loss", "worse") in marked and ("finished", "") in marked

    def test_where_none_finished_nothing_is_tested(self, tmp_path, run_set):
        write_scores(tmp_path, SCORES, state="interrupted")
        runs = run_set()
        (comparison,) = runs.comparisons()
        assert (comparison.welch.p_value, comparison.note) == (None, "not finished")
        assert score_table(runs).rows[0][-1] == "3 †"
        assert "could not be tested" in headline(runs).verdict[0]

    def test_the_speed_of_a_run_without_an_end_is_that_of_its_blocks(self, tmp_path, run_set):
        path = write_run(tmp_path, state="interrupted")
        start = (path / "timing.jsonl").read_text().splitlines()[0]
        # the steps of a block count from the start of training
        blocks = [{"steps": 1000, "seconds": 1.0, "steps_per_second": 1000.0}]
        blocks += [{"steps": 4000, "seconds": 0.5, "steps_per_second": 6000.0}]
        rows = [start, *(json.dumps({"event": "block", **block}) for block in blocks)]
        (path / "timing.jsonl").write_text("\n".join(rows) + "\n")
        assert run_set().seeds[0].speed == pytest.approx(4000 / 1.5)

    def test_a_run_that_was_cut_off_is_told_from_one_in_progress(self, tmp_path, run_set):
        fcntl = pytest.importorskip("fcntl")
        write_scores(tmp_path, SCORES)
        paths = [write_run(tmp_path, "A", "ppo", seed, state="running", returns=[1.0]) for seed in (0, 1)]
        with (paths[0] / "timing.jsonl").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            runs = run_set()
        cautions = headline(runs).cautions
        assert "1 run is still running: A, ppo, seed 0." in cautions
        assert "1 run was cut off: A, ppo, seed 1." in cautions
        assert [row[3] for row in run_table(runs).rows if row[0] == "A"] == ["running", "cut off"]

    def test_a_missing_agent_is_named(self, run_set):
        runs = run_set(SCORES | {"Asterix-MinAtar": {"ppo": [1.0, 2.0]}})
        assert "No run of ppo-delta on Asterix-MinAtar." in headline(runs).cautions

    def test_a_damaged_run_is_left_out_and_named(self, tmp_path, run_set):
        write_scores(tmp_path, SCORES)
        (tmp_path / "Breakout-MinAtar/ppo/seed-1/episodes.npz").write_bytes(b"PK not a zip")
        runs = run_set()
        assert len(runs.groups["Breakout-MinAtar", "ppo"].seeds) == 2
        assert "Breakout-MinAtar, ppo, seed 1 was left out" in runs.problems[0]

    def test_metrics_that_are_cut_short_or_missing_are_told(self, tmp_path, run_set):
        write_scores(tmp_path, SCORES)
        path = tmp_path / "Breakout-MinAtar/ppo/seed-1"
        status = json.loads((path / "status.json").read_text()) | {"updates": 2}
        (path / "status.json").write_text(json.dumps(status))
        assert "metrics.jsonl lacks rows: 0 of 2 are there" in run_set().problems[0]
        (path / "metrics.jsonl").write_text('{"update": 1}\n{"update": 2}\n')
        assert run_set().problems == []
        (path / "metrics.jsonl").write_text('{"update": 1}\n{"update\n')
        assert "metrics.jsonl is damaged in line 2" in run_set().problems[0]
        (path / "metrics.jsonl").unlink()
        assert "lacks rows: 0 of 2" in run_set().problems[0]

    def test_nothing_readable(self, tmp_path, run_set):
        path = write_run(tmp_path)
        (path / "status.json").write_text("{}")
        with pytest.raises(ConfigError, match="none of 1 runs can be read"):
            run_set()
        with pytest.raises(ConfigError, match="runs must not be empty"):
            RunSet([])


class TestNames:
    def test_one_variant_goes_by_its_name_whatever_its_hash(self, tmp_path, run_set):
        write_run(tmp_path, "A", "ppo", label="ppo-0123abcd", settings={"learning_rate": 0.1})
        write_run(tmp_path, "B", "ppo", label="ppo-4567cdef", settings={"learning_rate": 0.1})
        assert run_set().agents == ("ppo",)

    def test_variants_are_told_apart_by_what_differs(self, tmp_path, run_set):
        for environment, hashes in (("A", ("00000001", "00000002")), ("B", ("00000003", "00000004"))):
            for rate, digest in zip((0.1, 0.01), hashes, strict=True):
                label = f"ppo-{digest}"
                write_run(tmp_path, environment, "ppo", label=label, settings={"learning_rate": rate})
        runs = run_set()
        assert runs.agents == ("ppo (learning_rate=0.01)", "ppo (learning_rate=0.1)")
        assert runs.compared_with == runs.agents  # both are called ppo
        assert len(runs.groups) == 4

    def test_baselines_come_first(self, run_set):
        runs = run_set({"A": {name: [1.0] for name in ("mine", "ppo-delta", "ppo-multi", "ppo", "ppo+")}})
        assert runs.agents == ("ppo", "ppo+", "ppo-multi", "ppo-delta", "mine")


class TestAggregates:
    def test_normalised_by_the_table(self, run_set):
        agents = {"ppo": [1.0, 2.0], "ppo-delta": [2.0, 4.0]}
        runs = run_set(dict.fromkeys(("Breakout-MinAtar", "Asterix-MinAtar", "CartPole-v1"), agents))
        (suite,), reasons = runs.suites
        assert suite.environments == ("Asterix-MinAtar", "Breakout-MinAtar")
        assert suite.scores["ppo-delta"][1] == pytest.approx([(s - 0.4153) / (21.5 - 0.4153) for s in (2, 4)])
        assert reasons == ["CartPole-v1 has no entry in the tables of reference scores"]

    def test_left_out_and_why(self, run_set):
        suites, reasons = run_set(SCORES).suites
        assert (suites, reasons) == ([], ["Breakout-MinAtar is the only environment of the table MinAtar"])

    def test_every_agent_must_have_a_score(self, run_set):
        both = {"ppo": [1.0, 2.0], "ppo-delta": [2.0, 4.0]}
        scores = {"Breakout-MinAtar": both, "Asterix-MinAtar": both, "Freeway-MinAtar": {"ppo": [1.0]}}
        (suite,), reasons = run_set(scores).suites
        assert "Freeway-MinAtar" not in suite.environments
        assert reasons == ["Freeway-MinAtar lacks a finished run with a score for every agent"]

    def test_own_references(self, run_set):
        agents = {"ppo": [1.0, 2.0], "ppo-delta": [2.0, 4.0]}
        (suite,), _ = run_set({"A": agents, "B": agents}, references={"A": (0.0, 10.0), "B": (0.0, 5.0)}).suites
        assert [array.tolist() for array in suite.scores["ppo"]] == [[0.1, 0.2], [0.2, 0.4]]


class TestTables:
    def test_the_terminal_shows_the_same_numbers(self, tmp_path):
        write_scores(tmp_path, SCORES)
        loaded = load_runs(tmp_path)
        ppo, delta = summary_table(loaded)
        assert ppo["Last 100 episodes"] == "2.00 ± 0.58" == score_table(RunSet(loaded)).rows[0][3]
        difference = difference_table(RunSet(loaded)).rows[0]
        assert [delta[c] for c in ("Difference from ppo", "95 % interval", "p", "p (Holm)")] == list(difference[3:7])
        assert (delta["p"], ppo["p"]) == ("0.221", "")
        assert list(ppo) == list(delta)

    def test_no_column_of_differences_without_a_baseline(self, tmp_path):
        write_scores(tmp_path, {"A": {"mine": [1.0, 2.0]}})
        (row,) = summary_table(load_runs(tmp_path))
        assert list(row) == ["Environment", "Agent", "Seeds", "Last 100 episodes", "All episodes"]

    def test_csv_has_full_precision(self, run_set):
        lines = difference_table(run_set(SCORES)).to_csv().splitlines()
        values = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
        assert float(values["p"]) == pytest.approx(0.2209, abs=5e-5)
        assert float(values["difference"]) == 2

    def test_latex_is_escaped(self, run_set):
        latex = score_table(run_set({"A_b": {"ppo": [1.0, 2.0], "50%_&": [2.0, 4.0]}})).to_latex()
        assert r"A\_b & 50\%\_\& & 3.0 $\pm$ 1.0" in latex
        assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 1

    def test_ladder(self, run_set):
        table = ladder_table(run_set({"A": {"ppo": [1.0], "ppo+": [1.0], "ppo-delta": [1.0]}}))
        assert table.rows[0] == ("ppo, ppo+", "0", "100", "0.990", "0.9500", "0.9405", "0.832")
        assert table.rows[1] == ("ppo-delta", "0", "3.125", "0.680", "1.0000", "0.6800", "0.000")
        assert len(table.rows) == 7

    def test_settings(self, tmp_path, run_set):
        write_run(tmp_path, "A", "ppo", settings={"learning_rate": 0.1})
        write_run(tmp_path, "A", "ppo-delta")
        write_run(tmp_path, "B", "ppo", settings={"epochs": 3})
        write_run(tmp_path, "B", "ppo-delta", settings={"epochs": 3})
        differing, common = settings_tables(run_set())
        rows = {row[0]: row[1:] for row in differing.rows}
        assert rows["learning_rate"] == ("A: 0.1; B: 0.001", "0.001")
        assert rows["agent.heads"] == ("one", "ladder")
        assert "epochs" not in rows
        assert ("epochs", "A: –; B: 3") in common.rows
        assert ("environment_parameters.max_steps_in_episode", "1,000") in common.rows

    def test_critic(self, tmp_path, run_set):
        for seed in range(3):
            write_run(tmp_path, "A", "ppo", seed, quality=0.5, returns=[1.0, 2.0])
            write_run(tmp_path, "A", "ppo-delta", seed, quality=0.9, returns=[1.0, 2.0])
        runs = run_set()
        (record,) = [r for r in critic_table(runs, every=False).records if r["agent"] == "ppo"]
        arrays = [run.critic for run in load_runs(tmp_path) if run.agent == "ppo"]
        errors = []
        for array in arrays:
            predicted, realised = (array[name][:, -1].astype(np.float64) for name in ("predicted", "realised"))
            errors.append(np.sqrt(np.nanmean((realised - predicted) ** 2)))
        assert record["rmse"] == pytest.approx(np.mean(errors))
        assert record["rmse_standard_error"] == pytest.approx(np.std(errors, ddof=1) / np.sqrt(3))
        assert len(critic_table(runs).rows) == 7
        assert critic_sentences(runs)[0].startswith("A: explained variance of V at γ = 0.990 on held-out states: ppo-")

    def test_evaluations(self, tmp_path, run_set):
        for seed, value in enumerate((4.0, 6.0)):
            path = write_run(tmp_path, "A", "ppo", seed)
            rows = [("sampled", 1.0), ("sampled", value), ("greedy", None)]
            lines = [json.dumps({"steps": 1, "mode": mode, "return_mean": mean}) for mode, mean in rows]
            (path / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
        assert evaluation_table(run_set()).rows == [("A", "ppo", "sampled", "5.0 ± 1.0", "2")]

    def test_a_damaged_critic_is_named(self, tmp_path, run_set):
        path = write_run(tmp_path, "A", "ppo")
        np.savez(path / "critic.npz", predicted=np.zeros((3, 2)), realised=np.zeros((3, 2)))
        runs = run_set()
        assert critic_table(runs).rows == []
        assert "critic.npz has 2 scales instead of 1" in runs.problems[0]
