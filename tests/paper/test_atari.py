"""`reproduce atari`: its plan, how long it takes, several machines, and what is measured; training only pretends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tddelta.cli import main
from tddelta.deep import evaluation, policy
from tddelta.errors import CheckpointError, ConfigError
from tddelta.experiments.display import duration
from tddelta.experiments.plan import divide
from tddelta.paper import atari as atari
from tddelta.report import page
from tddelta.runs import Run, RunWriter
from tddelta.runs.files import lock

pytestmark = pytest.mark.filterwarnings("ignore::tddelta.errors.ContractionWarning")  # of the matched rule


@pytest.fixture
def pretended(pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace playing by numbers, too; draw no figures."""
    monkeypatch.setattr(page, "drawings", lambda study: ())
    monkeypatch.setattr(policy, "load", lambda run, **_: run)
    row = {"mode": "sampled", "starts": "no-ops", "return_mean": 7.0, "episodes": 30}
    monkeypatch.setattr(evaluation, "hold_out", lambda run, *, episodes: row)
    found = {"trained": 12.0, "random": 3.0, "steps": 10_000, "seed": 0}
    monkeypatch.setattr(evaluation, "reward_density", lambda run, *, steps: found)


@pytest.mark.slow
def test_the_plan_is_that_of_the_paper() -> None:
    plans = atari.plan_atari(out=Path("runs"))
    assert len(plans) == 9 * 4 * 10
    assert {plan.environment for plan in plans} == set(atari.GAMES)
    assert {plan.agent for plan in plans} == {"ppo", "ppo+", "ppo-delta-matched", "ppo-delta-bootstrap"}
    assert {plan.config.steps for plan in plans} == {10_000_000}
    assert [plan.seed for plan in plans[:36]] == [125125] * 36  # seed by seed
    config = plans[0].config
    assert (config.environments, config.rollout_length, config.epochs, config.minibatches) == (8, 128, 4, 4)
    assert (config.clip, config.learning_rate, config.anneal_learning_rate) == (0.1, 2.5e-4, False)
    assert (config.lam, config.gamma, config.network, config.shared_trunk) == (0.95, 0.99, "nature-conv", True)
    assert (config.reward_clipping, config.time_limit, len(config.ladder)) == ("sign", "truncate", 6)


def test_variants_differ_in_what_is_learned_from_alone() -> None:
    plans = atari.plan_atari(atari.VARIANT_GAMES, atari.VARIANT_AGENTS, seeds=1, out=Path("runs"))
    assert [plan.path.parts[1:3] for plan in plans] == [
        (game, agent) for game in ("Zaxxon", "Qbert") for agent in atari.VARIANT_AGENTS
    ]
    contents = [dict(plan.content, agent=None, settings={**plan.content["settings"], "agent": None}) for plan in plans]
    assert contents[0] == contents[1] == contents[2]
    targets = [plan.content["agent"]["targets"].rpartition(":")[2] for plan in plans[:3]]
    assert targets == ["released_targets", "published_targets", "bootstrap_targets"]


def test_seeds_are_the_papers_or_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert [plan.seed for plan in atari.plan_atari(["Qbert"], ["ppo"], seeds=3, out=Path("r"))] == [125125, 513, 90135]
    assert [plan.seed for plan in atari.plan_atari(["Qbert"], ["ppo"], seeds=(5, 4), out=Path("r"))] == [5, 4]
    with pytest.raises(ConfigError, match=r"the paper's seeds; got 11: name others, as in seeds=\[11, 12\]"):
        atari.plan_atari(["Qbert"], ["ppo"], seeds=11)
    assert main(["reproduce", "atari", "--seeds", "11", "--list"]) == 2
    said = "--seeds must be a number from 1 to 10, of the paper's seeds; got 11: name others, as in --seed-list 11 12"
    assert capsys.readouterr().err == f"tddelta: {said}\n"


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_missing_runs_are_started_measured_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["reproduce", "atari", "--agents", "ppo", "ppo-delta-bootstrap", "--seeds", "2", "--steps", "2_000"]
    out = ["--out", str(tmp_path / "atari")]
    assert main([*given, *out, "--games", "Qbert"]) == 0
    first = capsys.readouterr()
    assert "Qbert, ppo, seed 125125: finished" in first.out
    run = Run(tmp_path / "atari/Qbert/ppo/seed-513")
    assert [row["starts"] for row in run.evaluations] == ["no-ops"]
    assert run.evaluations[0]["steps"] == 2_000 and run.reward_density["trained"] == 12.0
    timing = run.path.joinpath("timing.jsonl").read_bytes()
    assert main([*given, *out, "--games", "Qbert", "Hero"]) == 0
    second = capsys.readouterr()
    assert "Qbert, ppo, seed 513: finished before" in second.out
    assert "Hero, ppo-delta-bootstrap, seed 513: finished, 2,000 steps" in second.out
    assert run.path.joinpath("timing.jsonl").read_bytes() == timing
    assert len(Run(run.path).evaluations) == 1
    assert "Hold-out episodes" in (tmp_path / "atari/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_the_correct_algorithm_is_what_its_variants_are_compared_with(tmp_path: Path) -> None:
    assert main(["reproduce", "atari-variants", "--seeds", "1", "--steps", "2_000", "--out", str(tmp_path)]) == 0
    rows = (tmp_path / "tables/differences-asymptotic.csv").read_text().splitlines()[1:]
    assert {tuple(row.split(",")[:3]) for row in rows} == {
        (game, f"ppo-delta-matched-{end}", "ppo-delta-matched")
        for game in ("Qbert", "Zaxxon") for end in ("released", "published")
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_what_is_being_written_elsewhere_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = atari.plan_atari(["Qbert"], ["ppo"], seeds=2, steps=2_000, out=tmp_path)
    script = (
        "import json, sys, time; from tddelta.runs import RunWriter\n"
        "with RunWriter(sys.argv[1], json.loads(sys.argv[2]), {}) as writer:\n"
        "    print('begun', flush=True); sys.stdin.read(); writer.status('finished', steps=2000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(plans[0].path), json.dumps(plans[0].content)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        todo, finished = divide(plans, resume=True, shared=True)
        assert (todo, finished) == (plans, [])
        with pytest.raises(ConfigError, match="is being written by another process"):
            divide(plans, resume=True)
        other.stdin.close()
        assert other.wait() == 0
    code = main(["reproduce", "atari", "--games", "Qbert", "--agents", "ppo", "--seeds", "2", "--steps", "2_000",
                 "--out", str(tmp_path)])  # fmt: skip
    assert code == 0
    said = capsys.readouterr().out
    assert "Qbert, ppo, seed 125125: finished before" in said and "Qbert, ppo, seed 513: finished, 2,000" in said


@pytest.mark.usefixtures("pretended")
def test_the_list_shows_how_far_the_plan_is_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atari, "_probe", lambda plans, seconds: [100.0] * len(plans))
    plans = atari.plan_atari(["Qbert"], ["ppo", "ppo+"], seeds=2, steps=360_000, out=tmp_path)
    with RunWriter(plans[0].path, plans[0].content, {}) as writer:
        writer.status("finished", steps=360_448)
    given = ["reproduce", "atari", "--games", "Qbert", "--agents", "ppo", "ppo+", "--seeds", "2"]
    assert main([*given, "--steps", "360_000", "--out", str(tmp_path), "--list"]) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if line.startswith("Qbert")]
    assert [row[:6] for row in rows] == [
        ["Qbert", "ppo", "2", "360,448", "1", "0"],
        ["Qbert", "ppo+", "2", "360,448", "0", "0"],
    ]
    assert "1 of 4 runs finished, 3 waiting" in said
    together = atari._together(plans)
    assert f"{100 * together} steps per second, measured just now with {together} at a time" in said
    assert [path.name for path in tmp_path.iterdir()] == ["Qbert"] and not plans[1].path.exists()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(47.6, "48 s"), (185.0, "3:05 min"), (7385.0, "2:03:05 h"), (898_341.0, "10 d 9 h"), (32_340_141.0, "374 d 7 h")],
)
def test_times_are_said_in_units_that_can_be_grasped(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.usefixtures("pretended")
def test_the_probe_measures_several_runs_together_and_leaves_nothing(tmp_path: Path) -> None:
    plans = atari.plan_atari(["Qbert"], ["ppo"], seeds=2, steps=900_000, out=tmp_path / "out")
    assert atari._probe(plans, 30.0) == [1000.0, 1000.0]  # what pretended training says of itself
    assert list(tmp_path.iterdir()) == []


def test_speeds_of_this_machine_spare_the_probe(tmp_path: Path) -> None:
    plans = atari.plan_atari(["Qbert"], ["ppo"], seeds=2, steps=900_000, out=tmp_path)
    machine = atari.describe_origin(())["machine"]
    with RunWriter(plans[0].path, plans[0].content, {"machine": machine}) as writer:
        writer.timing({"event": "block", "steps": 1, "seconds": 3.0, "steps_per_second": 100.0})
        writer.timing({"event": "block", "steps": 2, "seconds": 1.0, "steps_per_second": 300.0})
    with RunWriter(plans[1].path, plans[1].content, {"machine": {"processor": "another"}}) as writer:
        writer.timing({"event": "block", "steps": 1, "seconds": 3.0, "steps_per_second": 9999.0})
    found = atari.estimate(plans)
    assert found.steps_per_second == pytest.approx(150.0 * found.together)
    assert found.seconds(atari.look(plans)) == pytest.approx(2 * 900_096 / found.steps_per_second)


@pytest.mark.usefixtures("pretended")
def test_a_run_that_cannot_be_measured_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(run: Run, **_: object) -> Run:
        if run.seed == 513:
            raise CheckpointError("parameters.safetensors is missing")
        return run

    monkeypatch.setattr(policy, "load", load)
    code = main(["reproduce", "atari", "--games", "Qbert", "--agents", "ppo", "--seeds", "3", "--steps", "2_000",
                 "--out", str(tmp_path)])  # fmt: skip
    assert code == 1
    assert "Qbert, ppo, seed 513 could not be measured: parameters.safetensors is missing" in capsys.readouterr().err
    assert Run(tmp_path / "Qbert/ppo/seed-90135").reward_density is not None


@pytest.mark.usefixtures("pretended")
def test_what_another_machine_measures_is_not_measured_twice(tmp_path: Path) -> None:
    plans = atari.plan_atari(["Qbert"], ["ppo"], seeds=2, steps=2_000, out=tmp_path)
    for plan in plans:
        with RunWriter(plan.path, plan.content, {}) as writer:
            writer.status("finished", steps=2_000)
    said: list[str] = []
    held = lock(plans[0].path)
    assert held is not None
    with held:
        assert atari.measure(plans, said.append) == []
    assert said == ["Qbert, ppo, seed 513: hold-out episodes and rewards"]
    assert atari.measure(plans, said.append) == []
    assert len(said) == 2 and [len(Run(plan.path).evaluations) for plan in plans] == [1, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["ring", "--games", "Qbert"], "--games is for atari and atari-variants; got it for ring: drop it"),
        (["theory", "--list"], "--list is for atari and atari-variants; got it for theory: drop it"),
        (["atari", "--quick"], "--quick is for ring and theory"),
        (["atari", "--redraw", "x"], "--redraw goes with ring alone"),
        (["atari", "--seeds", "1", "--seed-list", "3"], "--seeds and --seed-list both name the seeds: drop one"),
        (["atari", "--games", "Qbret", "--list"], "Qbert"),
    ],
)
def test_options_of_other_experiments_are_refused(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *given]) == 2
    assert words in capsys.readouterr().err
