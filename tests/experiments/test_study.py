"""Studies in TOML files: what they stand for, and that a mistake is found by name before anything starts."""

from pathlib import Path

import pytest

from tddelta.errors import ConfigError
from tddelta.experiments.plan import plan_study, read_study

CATCH, POLE = "Catch-bsuite", "CartPole-v1"
pytestmark = pytest.mark.usefixtures("elsewhere")


def study(text, name="study.toml"):
    Path(name).write_text(text, encoding="utf-8")
    return read_study(Path(name))


def paths(text, added=0):
    return [plan.path.as_posix() for plan in plan_study(study(text), added)]


def test_runs_are_those_of_compare():
    from tddelta.experiments import plan_runs

    found = plan_study(study(f'environments = ["{CATCH}", "{POLE}"]\nseeds = 2\nsteps = 1000\n[settings]\ngamma = 0.9'))
    expected = plan_runs([CATCH, POLE], ["ppo", "ppo-delta"], seeds=2, steps=1000, out="study", gamma=0.9)
    assert [(plan.path, plan.content) for plan in found] == [(plan.path, plan.content) for plan in expected]


def test_a_grid_is_every_combination_and_a_list_one_after_the_other():
    plans = plan_study(
        study(f"""
            environments = "{CATCH}"
            agents = ["ppo-delta"]
            seeds = [7]
            [settings]
            learning_rate = 1e-3
            [grid]
            gamma = [0.9, 0.99]
            hidden_sizes = [[8], [8, 8]]
            [[list]]
            rule = "capped"
            [[list]]
            learning_rate = 3e-4
        """)
    )
    chosen = {(p.config.gamma, p.config.hidden_sizes, p.config.rule, p.config.learning_rate) for p in plans}
    assert len(plans) == len(chosen) == 8
    assert {rate for *_, rule, rate in chosen if rule is None} == {3e-4}
    assert {rate for *_, rule, rate in chosen if rule == "capped"} == {1e-3}


def test_an_extension_inherits_what_it_does_not_name():
    plans = plan_study(
        study(f"""
            environments = ["{CATCH}"]
            agents = ["ppo"]
            seeds = 2
            steps = 1000
            [settings]
            gamma = 0.9
            lam = 0.8
            [grid]
            epochs = [1, 2]
            [[extend]]
            agents = ["ppo-delta"]
            seeds = [5]
            [extend.settings]
            gamma = 0.95
            [[extend]]
            environments = ["{POLE}"]
            environment_kwargs = {{ max_steps_in_episode = 30 }}
            [[extend.list]]
            steps = 2000
            environment_kwargs = {{ max_steps_in_episode = 40 }}
        """)
    )
    first, second, third = plans[:4], plans[4], plans[5:]
    assert {(p.environment, p.seed, p.config.epochs, p.config.gamma) for p in first} == {
        (CATCH, seed, epochs, 0.9) for seed in (0, 1) for epochs in (1, 2)
    }
    found = second.seed, second.config.agent.name, second.config.gamma, second.config.lam
    assert found == (5, "ppo-delta", 0.95, 0.8)
    assert [(p.seed, p.config.steps, dict(p.config.environment_kwargs)) for p in third] == [
        (seed, 2000, {"max_steps_in_episode": 40}) for seed in (0, 1)
    ]


def test_a_run_that_two_parts_name_is_one_run_and_contradictions_are_refused():
    same = f'environments = "{CATCH}"\nagents = "ppo"\nseeds = 2\nsteps = 1000\n[[extend]]\nseeds = 3\n'
    assert len(paths(same)) == 3
    with pytest.raises(ConfigError, match=r"ppo, seed 0 is planned with 1,000 and 2,000 steps, and both would be"):
        paths(same + "steps = 2000\n")


def test_added_seeds_come_after_all_others_so_that_every_run_keeps_its_place():
    text = f'environments = "{CATCH}"\nagents = ["ppo", "ppo+"]\nseeds = 1\nsteps = 1000\n[[extend]]\nseeds = [8]\n'
    before, one, two = paths(text), paths(text, 1), paths(text, 2)
    assert two[:8] == one and one[:4] == before
    assert [path.removeprefix(f"study/{CATCH}/") for path in two[4:]] == [
        *("ppo/seed-1", "ppo+/seed-1", "ppo/seed-9", "ppo+/seed-9"),
        *("ppo/seed-2", "ppo+/seed-2", "ppo/seed-10", "ppo+/seed-10"),
    ]


def test_what_concerns_the_whole_study():
    found = study(
        f'environments = "{CATCH}"\nout = "my runs"\neval_every = 500\ncheckpoint_every = 60\nretries = 5\n'
        'track = "tensorboard"\n[resources]\ncpus = 2\ngpus = 0.5\n[slurm]\ntime = "1:00:00"\nmem = "4G"\nnice = 10\n'
    )
    assert (found.out, found.eval_every, found.checkpoint_every, found.retries) == (Path("my runs"), 500, 60.0, 5)
    assert (found.track, found.cpus, found.gpus) == (("tensorboard",), 2.0, 0.5)
    assert found.slurm == {"time": "1:00:00", "mem": "4G", "nice": "10"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("environments = [", r"study\.toml is no readable TOML \(.*\): see docs/sweeps\.md"),
        ("enviroments = 'Catch'", r"unknown key 'enviroments': did you mean environments\?"),
        ("seeds = 3", "environments is missing: name one or several"),
        ("environments = []", "environments must be a name or a list of names"),
        ("ONE\nagents = ['ppo', 3]", "agents must be a name or a list of names"),
        ("environments = ['Catch', 'Catch']", "environments must differ"),
        ("ONE\nseeds = 'three'", "seeds must be at least one whole number; got 'three'"),
        ("ONE\nretries = -1", "retries must be a whole number of at least 0; got -1"),
        ("ONE\neval_every = 0", "eval_every must be a whole number above 0; got 0"),
        ("ONE\ncheckpoint_every = nan", "checkpoint_every must be a number of at least 0; got nan"),
        ("ONE\nsettings = 3", r"settings must be a table, as in \[settings\]; got 3"),
        ("ONE\n[settings]\nagent = 'ppo'", r"\[settings\] agent is no setting: name it under agents"),
        ("ONE\n[grid]\ngamma = 0.9", r"\[grid\] gamma must be a list of the values to try; got 0\.9"),
        ("ONE\n[grid]\nagent = ['ppo']", r"\[grid\] agent is no setting"),
        ("ONE\n[list]\ngamma = 0.9", r"list must be one table or several, each as in \[\[list\]\]"),
        ("ONE\n[[extend]]\nout = 'x'", r"\[\[extend\]\] 1: unknown key 'out'"),
        ("ONE\n[[extend]]\nseeds = 0", r"\[\[extend\]\] 1: seeds must be"),
        ("ONE\n[resources]\ncpu = 1", r"\[resources\] unknown key 'cpu': did you mean cpus\?"),
        ("ONE\n[slurm]\narray = '0-3'", r"\[slurm\] 'array' is no option of sbatch that a study can"),
        ("ONE\n[slurm]\noutput = '../x'", r"\[slurm\] 'output' is no option of sbatch that a study"),
        ("ONE\n[slurm]\n'mem\\n' = 1", r"\[slurm\] .* is no option of sbatch"),
        ('ONE\n[slurm]\ntime = "1\\ntouch /tmp/x"', r"\[slurm\] time must be text on one line"),
        ("ONE\nout = ''", "out must be the name of a file or folder, as in out = \"runs\"; got ''"),
        ("environments = 'CartPol-v1'", r"study\.toml: unknown environment 'CartPol-v1': did you mean CartPole-v1\?"),
        ("ONE\n[grid]\nlearning_rte = [1]", r"unknown setting 'learning_rte': did you mean learning_"),
        ("ONE\n[settings]\nsteps = 1.5", "steps must be a whole number of at least 1"),
        ("ONE\n[settings]\ngamma = '__import__(\"os\").abort()'", "gamma must be a number; got '__im"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(ConfigError, match=message):
        plan_study(study(text.replace("ONE", f'environments = "{CATCH}"')))
    assert [path.name for path in Path().iterdir()] == ["study.toml"]


def test_a_study_that_is_not_there():
    with pytest.raises(ConfigError, match=r"nowhere\.toml does not exist"):
        read_study(Path("nowhere.toml"))


@pytest.mark.parametrize("out", ["..", "../other", "/tmp/other", "runs/../..", "link", "link/below"])
def test_runs_cannot_leave_the_folder_of_the_study(out, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").mkdir()
    (inside / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="out leads out of the study's folder"):
        study(f'environments = "{CATCH}"\nout = "{out}"', "inside/study.toml")


def test_nor_through_a_link_in_the_place_of_a_folder_of_runs(tmp_path):
    inside = tmp_path / "inside"
    (tmp_path / "outside").mkdir()
    text = f'environments = "{CATCH}"\nagents = "ppo"\nseeds = 1\nout = "runs"'
    for link in (inside / "runs" / CATCH, inside / "runs" / CATCH / "ppo" / "seed-0"):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tmp_path / "outside")
        with pytest.raises(ConfigError, match="out of the study's folder"):
            plan_study(study(text, "inside/study.toml"))
        link.unlink()


def test_a_byte_order_mark_is_no_part_of_a_file():
    text = f'environments = ["{CATCH}"]\nagents = ["ppo"]\nseeds = 1\nsteps = 1e3\npresets = "mine.toml"\n'
    preset = f'\ufeffformat = 1\nenvironment = "{CATCH}"\nagent = "ppo"\n[settings]\nepochs = 3\n'
    Path("mine.toml").write_text(preset, encoding="utf-8")
    (plan,) = plan_study(study("\ufeff" + text))
    assert plan.config.epochs == 3 and plan.config.steps == 1000
