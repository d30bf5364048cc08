"""Searches: what is proposed can be trained, breaks change nothing, the preset is judged on other seeds."""

import json
import math
import os
import signal
import sqlite3
import sys
import types

import optuna
import pytest
import sqlalchemy

import tddelta.deep
from tddelta.cli import main
from tddelta.deep import ppo
from tddelta.deep.config import read_preset, write_preset
from tddelta.errors import CheckpointError, ConfigError, DataError, MissingExtra, StorageError
from tddelta.experiments import plan_runs
from tddelta.experiments.plan import plan_study, read_study
from tddelta.experiments.tuning import SEARCHABLE, Stopped, make_space, score_at, spawn_seeds, tune
from tddelta.runs import Run, find_runs

POLE = "CartPole-v1"
# 10 updates of 100 steps
SMALL = {"environments": 10, "rollout_length": 10, "minibatches": 1, "hidden_sizes": (8,)}
SMALL["scales"] = "halving components=2"
OPTIONS = {"trials": 6, "steps": 1000, "search_seeds": 2, "evaluation_seeds": 3, "progress": False, **SMALL}
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def pretended(monkeypatch):
    """Replace training by one that takes no time: the return of an update says how good the settings are.

    The best learning rate is 0.003, a weight of the first component above 1.5 is a number that is not finite, and
    `kill_at` is called with every plan of a run.
    """
    real = pytest.importorskip("tddelta.deep.training")
    module = types.ModuleType("tddelta.deep.training")
    module.run_config, module.Progress, module.trained = real.run_config, real.Progress, []
    module.at_start = lambda config, seed: None

    def train_runs(config, seeds, writers, *, progress=None, stop=None, **_):
        for index, (seed, writer) in enumerate(zip(seeds, writers, strict=True)):
            module.at_start(config, seed)
            module.trained.append(seed)
            if (config.component_weights or (1.0,))[0] > 1.5:
                writer.status("failed", message="the loss is not finite")
                raise DataError("the loss is not finite")
            good = 2 - abs(math.log10(float(config.learning_rate) / 0.003)) + seed % 7 / 100
            rows = []
            for update in range(1, config.updates + 1):
                if stop is not None and stop.is_set():
                    break
                steps = update * config.batch
                rows.append({"update": update, "steps": steps, "episodes": update, "return_mean": update * good})
                writer.metrics(rows[-1:])
                if progress is not None:
                    progress(index, real.Progress(steps, config.steps, 1.0, 1.0, good, "training"))
            steps, returns = ([row[name] for row in rows] for name in ("steps", "return_mean"))
            writer.episodes(steps, returns, [100] * len(rows))
            state = "finished" if len(rows) == config.updates else "interrupted"
            writer.status(state, steps=steps[-1] if steps else 0, updates=len(rows), episodes=len(rows))

    module.train_runs = train_runs
    monkeypatch.setitem(sys.modules, "tddelta.deep.training", module)
    monkeypatch.setattr(tddelta.deep, "training", module)
    return module


def search(out, **options):
    return tune(POLE, out=out, command=[], **{"search": ["learning_rate", "component_weights"], **OPTIONS, **options})


def trials(out):
    """Contents of the storage for every trial that was not begun again."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{out}/tune.db")
    study = optuna.load_study(study_name="tune", storage=storage)
    begun_again = study.user_attrs.get("superseded", [])
    found = [
        (trial.state.name, trial.params, trial.value, trial.intermediate_values, trial.user_attrs["settings"])
        for trial in study.trials
        if trial.number not in begun_again
    ]
    storage.remove_session()
    storage.engine.dispose()
    return found


# ---------------------------------------------------------------- what is searched


@pytest.mark.parametrize(
    ("agent", "fixed"),
    [
        ("ppo-delta", {}),
        ("ppo-multi", {"gamma": 0.999}),
        ("ppo-delta", {"gamma": 1.0, "scales": "halving longest_horizon=200"}),
        ("ppo-delta", {"scales": "halving shortest_horizon=4"}),
        ("ppo-delta", {"scales": {"ladder": "halving", "components": 3}}),
        ("ppo-delta", {"component_weights": (1.0, 2.0, 1.0, 1.0, 1.0, 3.0)}),
        ("ppo+", {}),
        ("ppo", {}),
    ],
    ids=["delta", "multi", "gamma 1", "shortest", "components", "weights", "sum", "one"],
)
@pytest.mark.filterwarnings("ignore::tddelta.ContractionWarning")
def test_every_proposal_can_be_trained(agent, fixed):
    config = ppo.preset(POLE, agent, **fixed)
    space = make_space(config, fixed, None)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    longest = 200.0 if config.gamma == 1 else 1 / (1 - config.gamma)
    start = space.start()
    assert start is not None
    study.enqueue_trial(start)
    for number in range(12):
        trial = study.ask()
        made = ppo.preset(POLE, agent, **{**fixed, **space.suggest(trial)})
        finite = [horizon for horizon in made.ladder.horizons if horizon < math.inf]
        assert finite[-1] == pytest.approx(longest)
        if "shortest_horizon" in space.names:
            assert finite[0] == pytest.approx(trial.params["shortest_horizon"], rel=1e-5)
        if "components" in space.names:
            assert len(made.ladder) == trial.params["components"]
        if number == 0:  # the preset in other words
            assert made.ladder.gammas == pytest.approx(config.ladder.gammas)
            assert (made.learning_rate, made.lam) == (config.learning_rate, config.lam)
    assert set(space.names).isdisjoint(fixed)


def test_what_means_nothing_is_not_searched():
    names = {agent: make_space(ppo.preset(POLE, agent), {}, None).names for agent in ("ppo", "ppo+", "ppo-delta")}
    assert names["ppo"] == ("learning_rate", "lam")
    assert names["ppo+"] == ("learning_rate", "lam", "components")
    assert names["ppo-delta"] == SEARCHABLE
    short = make_space(ppo.preset(POLE, gamma=0.5), {"gamma": 0.5}, None)
    assert short.names == ("learning_rate", "lam", "rule", "component_weights")
    config = ppo.preset(POLE, learning_rate=1e-3)
    for asked, text in (
        (["gamma"], "'gamma' cannot be searched: choose among learning_rate"),
        (["learning_rate"], "learning_rate is to be searched and is fixed by another setting"),
        ([], "nothing is left to search"),
    ):
        with pytest.raises(ConfigError, match=text):
            make_space(config, {"learning_rate": 1e-3}, asked)
    with pytest.raises(ConfigError, match="rule means nothing to ppo: search learning_rate, lam"):
        make_space(ppo.preset(POLE, "ppo"), {}, ["rule"])
    with pytest.raises(ConfigError, match="components is to be searched and is fixed"):
        make_space(ppo.preset(POLE, scales=(5.0, 50.0)), {"scales": (5.0, 50.0)}, ["components"])


def test_search_and_evaluation_seeds_are_spawned_and_never_meet():
    search_seeds, evaluation_seeds = spawn_seeds(0, 40, 40)
    assert len({*search_seeds, *evaluation_seeds}) == 80 and max(*search_seeds, *evaluation_seeds) < 2**32
    assert spawn_seeds(0, 3, 2) == (search_seeds[:3], evaluation_seeds[:2])
    assert set(spawn_seeds(1, 40, 40)[0]).isdisjoint(search_seeds)


# ---------------------------------------------------------------- scores


def test_score_on_the_way_is_of_the_last_episodes_up_to_there(tmp_path):
    rows = [
        {"steps": 10, "episodes": 60, "return_mean": 1.0},
        {"steps": 20, "episodes": 60, "return_mean": None},
        {"steps": 30, "episodes": 140, "return_mean": 2.0},
        {"steps": 40, "episodes": 200, "return_mean": 3.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert math.isnan(score_at(tmp_path, 5.0)) and score_at(tmp_path, 25.0) == 1.0
    assert score_at(tmp_path, 35.0) == pytest.approx((80 * 2 + 60 * 1) / 140)
    assert score_at(tmp_path, 1e9) == pytest.approx((60 * 3 + 80 * 2) / 140)


# ---------------------------------------------------------------- searches


@pytest.mark.slow
def test_a_search_finds_what_is_better_and_judges_it_on_other_seeds(pretended, tmp_path):
    tuned = search(tmp_path / "out", trials=12)
    found = trials(tmp_path / "out")
    states = [trial[0] for trial in found]
    assert len(found) == 12 and states[0] == "COMPLETE" and found[0][4] == {}, "the first is the preset"
    assert {"PRUNED", "COMPLETE"} <= set(states)
    assert (tuned.trials, tuned.pruned, tuned.failed) == (12, states.count("PRUNED"), states.count("FAIL"))
    assert states.count("FAIL") == sum(trial[1]["weight_0"] > 1.5 for trial in found) > 0
    for state, _, value, intermediate, _ in found:
        if state == "PRUNED":
            assert 3 <= max(intermediate) < 10 and value == intermediate[max(intermediate)]
    best = max(trial[2] for trial in found if trial[0] == "COMPLETE")
    assert tuned.score == best and tuned.settings == next(trial[4] for trial in found if trial[2] == best)
    seeds = {name: {Run(path).seed for path in find_runs(tmp_path / "out" / name)} for name in ("trials", "evaluation")}
    assert seeds["trials"] == set(spawn_seeds(0, 2, 3)[0]) and seeds["evaluation"] == set(spawn_seeds(0, 2, 3)[1])
    assert tuned.difference > 0 and tuned.interval is not None and tuned.interval[0] > 0
    assert {run.agent for run in tuned.preset} != {run.agent for run in tuned.chosen}

    file = read_preset(tuned.file)
    config = ppo.preset(POLE, file=tuned.file)
    assert (file.environment, file.agent, config.steps) == (POLE, "ppo-delta", 1000)
    assert config == ppo.preset(POLE, **{**SMALL, "steps": 1000, **tuned.settings})
    (plan,) = plan_runs(POLE, "ppo-delta", seeds=1, presets=tuned.file)
    assert plan.path.parent.name == tuned.chosen[0].path.parent.name, "it trains what was evaluated"


@pytest.mark.slow
def test_breaks_change_nothing(pretended, tmp_path):
    search(tmp_path / "straight")
    counted = []

    def interrupt(config, seed):
        counted.append(seed)
        if len(counted) in (1, 8):
            os.kill(os.getpid(), signal.SIGINT if len(counted) == 8 else signal.SIGTERM)

    pretended.at_start = interrupt
    numbers = []
    for _ in range(3):
        try:
            search(tmp_path / "broken", resume=True)
        except Stopped as stopped:
            numbers.append(stopped.number)
    assert numbers == [signal.SIGTERM, signal.SIGINT]
    assert trials(tmp_path / "broken") == trials(tmp_path / "straight")
    files = [[*(tmp_path / name / "preset.toml").read_text().splitlines()] for name in ("broken", "straight")]
    assert [line for line in files[0] if "best_trial" not in line] == [x for x in files[1] if "best_trial" not in x]
    before = len(pretended.trained)
    assert search(tmp_path / "broken", resume=True).trials == 6
    assert len(pretended.trained) == before, "nothing is left to train"


@pytest.mark.slow
def test_a_search_grows_and_stays_about_one_thing(pretended, tmp_path):
    search(tmp_path / "out", trials=2, pruner="none", search=["learning_rate"])
    with pytest.raises(ConfigError, match=r"tune.db exists already: pass resume=True"):
        search(tmp_path / "out")
    other = r'something else, search .* there and .* now; pruner "none" there and "median"'
    with pytest.raises(ConfigError, match=other):
        search(tmp_path / "out", resume=True)
    with pytest.raises(ConfigError, match=r"settings|gamma 0.99 there and 0.9 now"):
        search(tmp_path / "out", resume=True, pruner="none", search=["learning_rate"], gamma=0.9)
    search(tmp_path / "out", trials=4, pruner="none", search=["learning_rate"], resume=True)
    found = trials(tmp_path / "out")
    assert len(found) == 4 and all(set(trial[1]) == {"learning_rate"} for trial in found)


@pytest.mark.slow
def test_successive_halving_gives_up_all_but_the_better_third(pretended, tmp_path):
    search(tmp_path / "out", trials=6, evaluation_seeds=1, pruner="halving", search=["learning_rate"])
    found = trials(tmp_path / "out")
    pruned = [trial for trial in found if trial[0] == "PRUNED"]
    assert pruned and all(max(trial[3]) in (1, 3, 9) for trial in pruned)


@pytest.mark.slow
def test_where_no_trial_beats_the_preset_it_is_kept(pretended, tmp_path, capsys):
    arguments = ["--environments", "10", "--rollout-length", "10", "--minibatches", "1", "--hidden-sizes", "8"]
    arguments += ["--steps", "1000", "--evaluation-seeds", "2", "--learning-rate", "3e-3", "--search", "lam"]
    assert main(["tune", POLE, "--trials", "1", "--out", "out", *arguments]) == 0
    text = capsys.readouterr().out
    assert "trial 0, preset: score" in text and "no trial was better than the preset: keep it" in text
    assert "preset: out/preset.toml" in text and (tmp_path / "out" / "report.html").exists()
    assert read_preset("out/preset.toml").settings["learning_rate"] == 0.003
    assert main(["train", POLE, "--preset", "out/preset.toml", "--out", "again", "--lam", "0.9"]) == 0
    (path,) = find_runs("again")
    assert Run(path).config["settings"]["lam"] == 0.9 and Run(path).config["steps"] == 1000


@pytest.mark.slow
def test_a_bug_stops_the_search_and_a_search_without_a_result_says_so(pretended, tmp_path):
    def bug(config, seed):
        raise RuntimeError("a bug")

    pretended.at_start = bug
    with pytest.raises(RuntimeError, match="a bug"):
        search(tmp_path / "bug")
    pretended.at_start = lambda config, seed: None
    assert search(tmp_path / "bug", resume=True, trials=1).trials == 1
    assert [trial[0] for trial in trials(tmp_path / "bug")] == ["COMPLETE"], "the trial was begun again"
    with pytest.raises(DataError, match=r"none of 2 trials came to its end \(the loss is not finite\)"):
        search(tmp_path / "nan", trials=2, component_weights=(3.0, 1.0), search=["learning_rate"])


# ---------------------------------------------------------------- what strangers may send


def test_a_strangers_storage_executes_nothing(pretended, tmp_path, monkeypatch):
    search(tmp_path / "out", trials=2)
    with sqlite3.connect(tmp_path / "out" / "tune.db") as opened:
        tables = [name for (name,) in opened.execute("select name from sqlite_master where type = 'table'")]
        cells = [cell for table in tables for row in opened.execute(f'select * from "{table}"') for cell in row]
        assert len(cells) > 100 and {type(cell) for cell in cells} <= {int, float, str, type(None)}, "no pickle"
        evil = json.dumps({"network": "stranger:function", "learning_rate": 1.0})
        opened.execute("update trial_user_attributes set value_json = ? where key = 'settings'", (evil,))
    opened.close()
    (tmp_path / "stranger.py").write_text("open('executed', 'w')\ndef function(*_): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "network" not in search(tmp_path / "out", trials=2, resume=True).settings
    assert not (tmp_path / "executed").exists()


def test_a_damaged_storage_is_named(pretended, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tune.db").write_bytes(b"no database" * 100)
    with pytest.raises(CheckpointError, match=r"tune\.db is damaged"):
        search(tmp_path / "out", resume=True)


@pytest.mark.parametrize("pages", [4, 30])  # without room for its tables; for a trial
def test_a_storage_that_cannot_be_written_is_named(pretended, tmp_path, pages):
    def confine(connection, _):
        connection.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(StorageError, match=r"tune\.db cannot be written \(database or disk is full\): free some space"):
        sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", confine)
        try:
            search(tmp_path / "out", trials=20)
        finally:
            sqlalchemy.event.remove(sqlalchemy.engine.Engine, "connect", confine)
    assert (tmp_path / "out" / "trials").exists() == (pages == 30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = 1\n[[", "cannot be read as a preset file"),
        ("a = 1", "unknown key 'a'"),
        ('environment = "E"', "must say format = 3; got None"),
        ("format = 4", "has format 4, and this tddelta reads up to 3"),
        ("HEAD", "must name an environment, an agent and a table"),
        ("HEAD\n[settings]\ngama = 1", "unknown setting 'gama': did you mean gamma"),
        ('HEAD\n[settings]\nagent = "x:y"', "unknown setting 'agent'"),
        ('HEAD\n[settings]\nnetwork = "os:system"', "network = 'os:system' names code, and a preset file holds values"),
    ],
)
def test_preset_files_with_mistakes_are_refused(tmp_path, text, message):
    (tmp_path / "a.toml").write_text(text.replace("HEAD", 'format = 1\nenvironment = "E"\nagent = "ppo"'))
    with pytest.raises(ConfigError, match=message) as raised:
        read_preset(tmp_path / "a.toml")
    assert "a.toml" in str(raised.value)


def test_a_preset_file_is_for_one_agent_in_one_environment(tmp_path):
    settings = {"learning_rate": 0.5, "scales": [5.0, 50.0], "rule": "proportional", "anneal_learning_rate": False}
    write_preset(tmp_path / "a.toml", "Catch", "ppo-delta", settings, scores=(1.0, 2.0), note='a "quoted"\nline')
    plans = plan_runs(["Catch-bsuite", POLE], ["ppo", "ppo-delta"], seeds=1, presets=[tmp_path / "a.toml"])
    assert [plan.config.learning_rate == 0.5 for plan in plans] == [False, True, False, False]
    assert plans[1].config.scales == (5.0, 50.0) and plans[1].config.gamma == pytest.approx(0.98)
    assert plans[1].recipe is not None and plans[1].recipe["rule"] == "proportional"
    assert ppo.preset("Catch", file=tmp_path / "a.toml", rule="capped").rule == "capped", "what is named wins"
    with pytest.raises(ConfigError, match=r"a\.toml holds settings for ppo-delta on Catch, which is not trained here"):
        ppo.preset("Catch", "ppo", file=tmp_path / "a.toml")
    with pytest.raises(ConfigError, match="are both for ppo-delta on Catch: pass one of them"):
        plan_runs("Catch", "ppo-delta", presets=[tmp_path / "a.toml"] * 2)
    with pytest.raises(ConfigError, match=r"b.toml cannot be read .*No such file"):
        read_preset(tmp_path / "b.toml")


def test_a_study_takes_preset_files_from_its_folder(tmp_path):
    write_preset(tmp_path / "a.toml", POLE, "ppo-delta", {"learning_rate": 0.5})
    study = 'environments = ["CartPole-v1"]\nagents = ["ppo", "ppo-delta"]\nseeds = 1\npresets = ["a.toml"]\n'
    (tmp_path / "study.toml").write_text(study)
    before = read_study(tmp_path / "study.toml")
    rates = {plan.content["agent"]["name"]: plan.config.learning_rate for plan in plan_study(before)}
    assert rates == {"ppo": 1e-3, "ppo-delta": 0.5}
    write_preset(tmp_path / "a.toml", POLE, "ppo-multi", {"learning_rate": 0.5})
    after = read_study(tmp_path / "study.toml")
    assert after.digest != before.digest, "what the study remembers of its runs is out of date"
    with pytest.raises(ConfigError, match=r"a\.toml holds settings for ppo-multi on CartPole-v1, which the study does"):
        plan_study(after)
    for name, text in (("../a.toml", "presets leads out of the study's folder"), ("b.toml", "presets names 'b.toml'")):
        (tmp_path / "study.toml").write_text(study.replace("a.toml", name))
        with pytest.raises(ConfigError, match=text):
            read_study(tmp_path / "study.toml")


def test_wrong_arguments_are_named(monkeypatch, tmp_path):
    for options, text in (
        ({"trials": 0}, "trials must be a whole number of at least 1; got 0"),
        ({"search_seeds": 0}, "search_seeds must be"),
        ({"seed": -1}, "seed must be a whole number of at least 0; got -1"),
        ({"pruner": "best"}, "pruner must be one of median, halving, none; got 'best'"),
    ):
        with pytest.raises(ConfigError, match=text):
            tune(POLE, out=tmp_path / "out", **options)
    monkeypatch.setattr("tddelta.experiments.tuning.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "tddelta\[tune\]"'):
        tune(POLE, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_search_from_start_to_end(tmp_path, capsys):
    small = ["--environments", "3", "--rollout-length", "8", "--epochs", "1", "--minibatches", "1"]
    call = ["tune", POLE, "--out", "out", "--steps", "1200", "--search", "learning_rate", "--search-seeds", "1"]
    call += ["--evaluation-seeds", "2", "--track", "tensorboard", "--json", *small, "--hidden-sizes", "8"]
    assert main([*call, "--trials", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["trials"] == 2 and result["preset"] == "out/preset.toml"
    runs = find_runs("out/evaluation")
    assert len(runs) == (4 if result["settings"] else 2)
    assert all((path / "tensorboard").is_dir() and Run(path).status["state"] == "finished" for path in runs)


def test_a_preset_file_of_format_1_is_read(tmp_path):
    text = 'format = 1\nenvironment = "Catch"\nagent = "ppo-delta"\n[settings]\ncomponents = 3\nladder_factor = 4.0\n'
    (tmp_path / "a.toml").write_text(text)
    agent, scales = "ppo-delta-bootstrap", "halving components=3 factor=4"
    assert ppo.preset("Catch", agent, file=tmp_path / "a.toml") == ppo.preset("Catch", agent, scales=scales)
    write_preset(tmp_path / "b.toml", "Catch", agent, read_preset(tmp_path / "a.toml").settings)
    assert 'scales = {ladder = "halving", components = 3, factor = 4.0}' in (tmp_path / "b.toml").read_text()
    assert read_preset(tmp_path / "b.toml").settings == read_preset(tmp_path / "a.toml").settings


@pytest.mark.parametrize(
    ("version", "named", "agent"),
    [
        (2, "ppo-delta", "ppo-delta-bootstrap"),
        (2, "ppo-delta-difference", "ppo-delta"),
        (2, "ppo-multi", "ppo-multi"),
        (3, "ppo-delta", "ppo-delta"),
    ],
)
def test_a_preset_file_is_for_the_agent_that_its_format_called_so(version, named, agent, tmp_path):
    text = f'format = {version}\nenvironment = "Catch"\nagent = "{named}"\n[settings]\nlearning_rate = 0.5\n'
    (tmp_path / "a.toml").write_text(text)
    assert read_preset(tmp_path / "a.toml").agent == agent
    assert ppo.preset("Catch", agent, file=tmp_path / "a.toml").learning_rate == 0.5
    write_preset(tmp_path / "b.toml", "Catch", agent, {})
    assert read_preset(tmp_path / "b.toml").agent == agent


def change_question(out, change):
    with sqlite3.connect(out / "tune.db") as opened:
        ((text,),) = opened.execute("select value_json from study_user_attributes where key = 'question'")
        changed = json.dumps(change(json.loads(text)))
        opened.execute("update study_user_attributes set value_json = ? where key = 'question'", (changed,))
    opened.close()


@pytest.mark.parametrize(
    ("named", "agent", "other"),
    [("ppo-delta", "ppo-delta-bootstrap", "ppo-delta"), ("ppo-delta-difference", "ppo-delta", "ppo-delta-bootstrap")],
)
def test_a_search_of_before_goes_on_with_the_agent_that_was_called_so(named, agent, other, pretended, tmp_path):
    def of_before(question):
        del question["format"]
        return {**question, "agent": named, "settings": {**question["settings"], "agent": named}}

    search(tmp_path / "out", trials=1, agent=agent)
    change_question(tmp_path / "out", of_before)
    with pytest.raises(ConfigError, match=rf'something else, .*agent "{agent}" there and "{other}" now'):
        search(tmp_path / "out", trials=2, agent=other, resume=True)
    assert search(tmp_path / "out", trials=2, agent=agent, resume=True).trials == 2


def test_a_search_of_a_newer_version_is_named(pretended, tmp_path):
    search(tmp_path / "out", trials=1)
    change_question(tmp_path / "out", lambda question: {**question, "format": 3})
    with pytest.raises(CheckpointError, match=r"tune\.db has format 3, and this tddelta reads up to 2: install"):
        search(tmp_path / "out", trials=2, resume=True)
    change_question(tmp_path / "out", lambda question: {"agent": "ppo"})
    with pytest.raises(CheckpointError, match=r"tune\.db is damaged"):
        search(tmp_path / "out", trials=2, resume=True)
