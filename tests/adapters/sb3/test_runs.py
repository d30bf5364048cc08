"""Run directories written from Stable-Baselines3, and its monitor logs, up to the report."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import CallbackList, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_environments import TASKS, Dictionary, vectorised
from tddelta import CheckpointError, ConfigError
from tddelta.adapters.sb3 import DeltaPPO, DeltaSAC, RunDirectory
from tddelta.adapters.sb3.run_directory import plain, settings_of
from tddelta.deep.policy import config_of
from tddelta.report import write_report
from tddelta.runs import Run, load_runs

QUICK: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "device": "cpu"}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    th.set_num_threads(1)


def make(kind: Any = DeltaPPO, seed: int | None = 3, env: Any = None, **settings: Any) -> Any:
    return kind("MlpPolicy", vectorised("cartpole") if env is None else env, seed=seed, **{**QUICK, **settings})


def recorded(tmp_path: Path, model: Any, steps: int = 64, **options: Any) -> Run:
    """The run of a model that is trained for so many steps."""
    callback = RunDirectory(tmp_path, **options)
    model.learn(steps, callback=callback)
    assert callback.path is not None
    return Run(callback.path)


def test_a_run_directory_holds_what_was_trained(tmp_path: Path) -> None:
    model = make()
    run = recorded(tmp_path, model, 192)
    assert run.path == tmp_path / "CartPole-v1" / "DeltaPPO" / "seed-3"
    assert run.scales == model.scales and run.agent == "DeltaPPO"
    assert run.status == {"state": "finished", "steps": 192, "updates": 3, "episodes": 20, "message": None}
    np.testing.assert_array_equal(run.metrics["steps"], [64, 128, 192])
    assert np.isfinite(run.metrics["value_mean"]).all() and np.isfinite(run.metrics["gradient_norm"]).all()
    losses = sum(run.metrics[f"value_loss/gamma={label}"] for label in run.scales.labels)
    np.testing.assert_allclose(run.metrics["value_loss"], losses, rtol=1e-4)
    assert (run.metrics["entropy"] > 0).all()
    np.testing.assert_array_equal(run.metrics["return_mean"], [9] * 3)
    np.testing.assert_array_equal(run.episodes["lengths"], [9] * 20)
    np.testing.assert_array_equal(run.episodes["steps"][:4], [18, 18, 36, 36])
    assert run.config["settings"]["n_steps"] == 32 and run.config["steps"] == 192
    with pytest.raises(ConfigError, match="DeltaPPO was trained by stable-baselines3"):
        config_of(run.config)


def test_learning_on_goes_on_in_the_same_directory(tmp_path: Path) -> None:
    callback, model = RunDirectory(tmp_path), make()
    model.learn(64, callback=callback)
    model.learn(64, callback=callback, reset_num_timesteps=False)
    assert callback.path is not None
    run = Run(callback.path)
    np.testing.assert_array_equal(run.metrics["steps"], [64, 128])
    assert run.status["steps"] == run.config["steps"] == 128 and run.status["state"] == "finished"


def test_a_run_is_never_overwritten_and_models_without_a_seed_take_the_next_number(tmp_path: Path) -> None:
    recorded(tmp_path, make())
    with pytest.raises(ConfigError, match=r"exists already.*RunDirectory to learn\(…, reset_num_timesteps=False\)"):
        recorded(tmp_path, make())
    for number in range(2):
        run = recorded(tmp_path, make(seed=None), agent="mine", environment="pole")
        assert run.path == tmp_path / "pole" / "mine" / f"seed-{number}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"out": 3}, "out must be a path; got 3: name a folder"),
        ({"out": None}, "out must be a path; got None"),
        ({"seed": -1}, "seed must be a whole number of at least 0; got -1: leave it out"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0; got 1.5"),
        ({"seed": "../x"}, "seed must be a whole number of at least 0; got '../x'"),
        ({"every": 0}, "every must be a whole number of at least 1; got 0"),
        ({"eval_every": 0}, "eval_every must be a whole number of at least 1; got 0"),
        ({"eval_every": "5"}, "eval_every must be a whole number of at least 1; got '5'"),
        ({"eval_episodes": None}, "eval_episodes must be a whole number of at least 1; got None"),
        ({"eval_episodes": True}, "eval_episodes must be a whole number of at least 1; got True"),
        ({"eval_env": 3}, "eval_env must be the name of an environment, an environment of Gymnasium or a VecEnv"),
        ({"eval_env": TASKS["cartpole"][0]}, "eval_env must be the name of an environment.*got .*: pass one"),
    ],
)
def test_settings_out_of_range_are_refused_at_once(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        RunDirectory(**{"out": tmp_path, "eval_env": "CartPole-v1", **settings})
    assert RunDirectory(tmp_path, seed=np.int64(2)).seed == 2  # type: ignore[arg-type]


def test_a_file_in_place_of_the_folder_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=r"seed-3 cannot be made \(.*\): choose another folder for RunDirectory"
    ) as found:
        make().learn(64, callback=RunDirectory(tmp_path / "file"))
    assert ".tmp" not in str(found.value) and "--out" not in str(found.value)


def test_a_run_that_a_callback_stops_is_interrupted(tmp_path: Path) -> None:
    callback = RunDirectory(tmp_path)
    make().learn(640, callback=CallbackList([callback, StopTrainingOnMaxEpisodes(3)]))
    assert callback.path is not None
    status = Run(callback.path).status
    assert status["state"] == "interrupted" and "stopped by a callback after 54 of 640 steps" in status["message"]


def test_sb3s_own_algorithms_and_off_policy_ones_are_recorded(tmp_path: Path) -> None:
    quick = {"learning_starts": 16, "batch_size": 8, "buffer_size": 200, "device": "cpu", "seed": 3}
    DQN("MlpPolicy", vectorised("cartpole"), **quick).learn(64, callback=RunDirectory(tmp_path, every=16))
    DeltaSAC("MlpPolicy", vectorised("pendulum"), **quick).learn(32, callback=RunDirectory(tmp_path))
    dqn, sac = load_runs(tmp_path)
    assert len(dqn.metrics["steps"]) >= 3 and (np.diff(dqn.metrics["steps"]) >= 16)[:-1].all()
    assert dqn.scales.gammas == (0.99,)
    assert np.isfinite(sac.metrics["critic_loss"]).all() and len(sac.metrics["steps"]) == 1


def test_returns_are_those_of_the_environment_below_normalisation(tmp_path: Path) -> None:
    # without a Monitor, nobody else counts
    env = VecNormalize(DummyVecEnv([TASKS["cartpole"][0]]), gamma=0.99)
    np.testing.assert_array_equal(recorded(tmp_path, make(env=env)).episodes["returns"], [9] * 7)


def test_an_environment_without_a_name_goes_by_its_class(tmp_path: Path) -> None:
    model = DeltaPPO("MultiInputPolicy", make_vec_env(Dictionary), seed=0, **QUICK)
    assert recorded(tmp_path, model, 32).path == tmp_path / "Dictionary" / "DeltaPPO" / "seed-0"


def test_settings_are_plain_data() -> None:
    model = make(learning_rate=lambda progress: 1e-3 * progress, policy_kwargs={"activation_fn": th.nn.ReLU})
    text = json.dumps(settings_of(model), allow_nan=False)
    assert '"ReLU"' in text and "<lambda>" in text and "0x" not in text
    assert plain(np.float32(0.5)) == 0.5


LOG = '#{{"t_start": {}, "env_id": "CartPole-v1"}}\nr,l,t\n{}'


@pytest.mark.slow
def test_a_report_reads_monitor_logs_as_the_rl_zoo_lays_them_out(tmp_path: Path) -> None:
    for algorithm in ("ppo", "other"):
        for number in (1, 2):
            folder = tmp_path / algorithm / f"CartPole-v1_{number}"
            folder.mkdir(parents=True)
            for one in range(2):
                (folder / f"{one}.monitor.csv").write_text(LOG.format(10, f"{number},9,1.0\n3,9,{one + 2}.0\n"))
    runs = load_runs(tmp_path)
    assert [(run.environment, run.agent, run.seed) for run in runs] == [
        ("CartPole-v1", agent, number) for agent in ("other", "ppo") for number in (1, 2)
    ]
    assert "other" in write_report(tmp_path).read_text(encoding="utf-8")


def test_a_monitor_log_that_a_second_process_went_on_with_keeps_its_order(tmp_path: Path) -> None:
    rows = "1,10,0.1\n2,10,0.2\n3,10,0.3\n4,10,0.15\n5,10,0.25\n"
    (tmp_path / "0.monitor.csv").write_text(LOG.format(1000, rows), encoding="utf-8")
    np.testing.assert_array_equal(Run(tmp_path).episodes["returns"], [1, 2, 3, 4, 5])
    (tmp_path / "1.monitor.csv").write_text(LOG.format(1000, rows.replace(",10", "0,10")), encoding="utf-8")
    np.testing.assert_array_equal(Run(tmp_path).episodes["returns"], [1, 10, 2, 20, 3, 30, 4, 40, 5, 50])


def test_monitor_logs_of_several_environments_are_one_run(tmp_path: Path) -> None:
    (tmp_path / "0.monitor.csv").write_text(LOG.format(10, "1.5,3,1.0\n2.5,4,5.0\n9.9,9,"), encoding="utf-8")
    (tmp_path / "1.monitor.csv").write_text(LOG.format(10, "7.0,2,2.0\n"), encoding="utf-8")
    (run,) = load_runs(tmp_path)
    assert run.environment == "CartPole-v1" and run.status["steps"] == 9
    np.testing.assert_array_equal(run.episodes["returns"], [1.5, 7.0, 2.5])
    np.testing.assert_array_equal(run.episodes["steps"], [3, 5, 9])
    (tmp_path / "1.monitor.csv").write_text("no log", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"1\.monitor\.csv is not a monitor log"):
        load_runs(tmp_path)


def test_logs_of_the_environments_of_a_recorded_run_do_not_count_twice(tmp_path: Path) -> None:
    env = make_vec_env(TASKS["cartpole"][0], n_envs=2, seed=0, monitor_dir=str(tmp_path))
    run = recorded(tmp_path, make(env=env))
    env.close()
    (found,) = load_runs(tmp_path)
    assert found.agent == "DeltaPPO" and len(found.episodes["lengths"]) == 6
    shutil.rmtree(run.path.parents[1])  # and without it, they are a run
    np.testing.assert_array_equal(Run(tmp_path).episodes["lengths"], found.episodes["lengths"])
