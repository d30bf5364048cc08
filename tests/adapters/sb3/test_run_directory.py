"""Run directories written from Stable-Baselines3, with what was played apart from training, and its monitor logs."""

import gc
import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import gymnasium as gym
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

import sb3_suite
from sb3_environments import LIMIT, TASKS, Dictionary, Scripted, equal, vectorised
from sb3_suite import SCALES
from tddelta import CheckpointError, ConfigError
from tddelta.adapters.sb3 import DeltaA2C, DeltaDQN, DeltaPPO, DeltaSAC, RunDirectory, run_directory
from tddelta.adapters.sb3.run_directory import settings_of
from tddelta.cli import main
from tddelta.deep.policy import config_of
from tddelta.inspector import Recording
from tddelta.report import write_report
from tddelta.report.run_set import Seed
from tddelta.runs import Run, is_being_written, load_runs
from tddelta.runs.files import name_of, plain


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "STREAM_LENGTH", 40)


def make(kind: Any = DeltaPPO, task: str | None = None, **settings: Any) -> Any:
    return sb3_suite.make(kind, task, **({"n_steps": 32} if issubclass(kind, PPO) else {}), **settings)


def run_of(callback: RunDirectory) -> Run:
    assert callback.path is not None
    return Run(callback.path)


def recorded(tmp_path: Path, model: Any, steps: int = 64, **options: Any) -> Run:
    """The run of a model that is trained for so many steps."""
    callback = RunDirectory(tmp_path, **options)
    model.learn(steps, callback=callback)
    return run_of(callback)


def played(tmp_path: Path, model: Any, steps: int = 64, **options: Any) -> tuple[Run, Any, Any]:
    """The same with its rollout and critic."""
    run = recorded(tmp_path, model, steps, **options)
    return run, run.rollout, run.critic


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
    run = run_of(callback)
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
        ({"seed": -1}, "seed must be a whole number of at least 0; got -1: leave it out"),
        ({"every": 0}, "every must be a whole number of at least 1; got 0"),
        ({"eval_every": 0}, "eval_every must be a whole number of at least 1; got 0"),
        ({"eval_episodes": None}, "eval_episodes must be a whole number of at least 1; got None"),
        ({"eval_env": None, "eval_every": 100}, "eval_every goes with eval_env; got 100 without it: pass"),
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
    words = r"seed-3 cannot be made \(.*\): choose another folder for RunDirectory"
    with pytest.raises(ConfigError, match=words) as found:
        make().learn(64, callback=RunDirectory(tmp_path / "file"))
    assert ".tmp" not in str(found.value) and "--out" not in str(found.value)


def test_a_run_that_a_callback_stops_is_interrupted(tmp_path: Path) -> None:
    callback = RunDirectory(tmp_path)
    make().learn(640, callback=CallbackList([callback, StopTrainingOnMaxEpisodes(3)]))
    status = run_of(callback).status
    assert status["state"] == "interrupted" and "stopped by a callback after 54 of 640 steps" in status["message"]


def test_sb3s_own_algorithms_and_off_policy_ones_are_recorded(tmp_path: Path) -> None:
    make(DQN).learn(64, callback=RunDirectory(tmp_path, every=16))
    make(DeltaSAC).learn(32, callback=RunDirectory(tmp_path))
    dqn, sac = load_runs(tmp_path)
    assert len(dqn.metrics["steps"]) >= 3 and (np.diff(dqn.metrics["steps"]) >= 16)[:-1].all()
    assert dqn.scales.gammas == (0.99,)
    assert np.isfinite(sac.metrics["critic_loss"]).all() and len(sac.metrics["steps"]) == 1


def test_returns_are_those_of_the_environment_below_normalisation(tmp_path: Path) -> None:
    # without a Monitor, nobody else counts
    env = VecNormalize(DummyVecEnv([TASKS["cartpole"][0]]), gamma=0.99)
    np.testing.assert_array_equal(recorded(tmp_path, make(env=env)).episodes["returns"], [9] * 7)


def test_an_environment_without_a_name_goes_by_its_class(tmp_path: Path) -> None:
    model = make(task="dictionary", env=make_vec_env(Dictionary), seed=0)
    assert recorded(tmp_path, model, 32).path == tmp_path / "Dictionary" / "DeltaPPO" / "seed-0"


def test_settings_are_plain_data() -> None:
    model = make(learning_rate=lambda progress: 1e-3 * progress, policy_kwargs={"activation_fn": th.nn.ReLU})
    text = json.dumps(settings_of(model), allow_nan=False)
    assert '"ReLU"' in text and '"test_settings_are_plain_data.<locals>.<lambda>"' in text and "0x" not in text
    assert plain((np.float32(0.5), partial(print), SAC, object()), name_of) == [0.5, "print", "SAC", "object"]


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


@pytest.mark.parametrize(
    "kind", [PPO, DeltaPPO, DeltaA2C, DQN, DeltaDQN, SAC, DeltaSAC, TD3], ids=lambda kind: kind.__name__
)
def test_a_run_records_scores_an_episode_and_its_critic(kind: Any, tmp_path: Path) -> None:
    model = make(kind)
    apart = vectorised("pendulum" if issubclass(kind, SAC | TD3) else "cartpole")
    run, rollout, critic = played(tmp_path, model, eval_env=apart, eval_every=32, eval_episodes=3)
    assert [row["steps"] for row in run.evaluations] == [32, 64]
    assert all(max(row["lengths"]) <= LIMIT and row["mode"] == "greedy" for row in run.evaluations)
    assert all(len(row["returns"]) == 3 for row in run.evaluations)
    size = 1 if kind in sb3_suite.QUICK else 3
    length = len(rollout["rewards"])
    assert rollout["deltas"].shape == (length, size) and rollout["last_deltas"].shape == (size,)
    assert (rollout["truncated"] | rollout["terminated"]).tolist() == [False] * (length - 1) + [True]
    assert not (rollout["truncated"] & rollout["terminated"]).any()
    assert critic["predicted"].shape == critic["realised"].shape == (80, size)
    np.testing.assert_array_equal(critic["gammas"], SCALES if size == 3 else [0.99])
    # The recorded beliefs are those of the model that was trained.
    given = {"action": rollout["actions"]} if kind is DeltaSAC else {}
    if kind in (DeltaPPO, DeltaA2C, DeltaSAC):
        again = model.predict_components(rollout["observations"], **given)
        np.testing.assert_allclose(rollout["deltas"], again, rtol=1e-4, atol=1e-5)
    if kind is DQN:
        with th.no_grad():
            best = model.q_net(th.as_tensor(rollout["observations"])).max(1).values
        np.testing.assert_allclose(rollout["deltas"][:, 0], best, rtol=1e-4)
    game = Recording.of_run(run)
    assert len(game) == length and game.critics[0].name == f"{kind.__name__}, seed 3"


def counts(lives: int = 1) -> Scripted:
    """Three steps with reward 1, 2, 3, and the end; or as many for each life."""
    space = spaces.Box(0, 3, (1,))
    return Scripted(space, spaces.Discrete(2), lambda time, _: (np.full(1, time, np.float32), time, time >= 3 * lives))


class Lives(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode after every third step, as Atari's wrapper does at the loss of a life."""

    def reset(self, **settings: Any) -> Any:
        inner: Any = self.unwrapped
        if inner.time in (0, 6):
            return super().reset(**settings)
        return np.full(1, inner.time, np.float32), {}

    def step(self, action: Any) -> Any:
        observation, reward, ended, cut, info = super().step(action)
        inner: Any = self.unwrapped
        return observation, reward, ended or inner.time % 3 == 0, cut, info


def test_realised_values_are_the_discounted_returns_that_came(tmp_path: Path) -> None:
    _, rollout, critic = played(tmp_path, make(env=make_vec_env(counts)), 32, eval_env=counts())
    for z, gamma in enumerate(SCALES):
        whole = [1 + gamma * (2 + gamma * 3), 2 + gamma * 3, 3.0]
        np.testing.assert_allclose(critic["realised"][:39, z], whole * 13, rtol=1e-5)
    assert rollout["rewards"].tolist() == [1, 2, 3] and rollout["terminated"].tolist() == [False, False, True]


def test_a_game_goes_on_after_a_life(tmp_path: Path) -> None:
    apart = Lives(Monitor(counts(lives=2)))
    run, rollout, _ = played(tmp_path, make(env=make_vec_env(counts)), 32, eval_env=apart, eval_episodes=2)
    assert rollout["rewards"].tolist() == [1, 2, 3, 4, 5, 6]
    assert rollout["terminated"].tolist() == [False, False, True] * 2
    assert run.evaluations[0]["returns"] == [21, 21]


@pytest.mark.parametrize("task", ["dictionary", "image"])
def test_observations_are_kept_where_an_archive_can_hold_them(task: str, tmp_path: Path) -> None:
    def stacked() -> Any:
        return vectorised(task) if task == "dictionary" else VecFrameStack(vectorised(task), 2)

    _, rollout, _ = played(tmp_path, make(task=task, env=stacked()), eval_env=stacked(), eval_episodes=2)
    if task == "dictionary":
        assert "observations" not in rollout
    else:
        assert rollout["observations"].shape == (len(rollout["rewards"]), 2, 36, 36)
        assert rollout["observations"].dtype == np.uint8
        assert len(np.unique(rollout["observations"].reshape(len(rollout["rewards"]), -1), axis=0)) > 1


@pytest.mark.parametrize("kind", [PPO, DeltaSAC, DeltaDQN], ids=lambda kind: kind.__name__)
def test_training_is_the_same_whether_the_model_plays_beside_it_or_not(kind: Any, tmp_path: Path) -> None:
    task, settings = ("pendulum", {"use_sde": True}) if kind is DeltaSAC else ("cartpole", {})

    def trained(folder: str, **options: Any) -> Any:
        env = VecNormalize(vectorised(task))
        if options:
            options["eval_env"] = VecNormalize(vectorised(task))
        callback = RunDirectory(tmp_path / folder, **options)
        model = make(kind, env=env, **settings).learn(64, callback=callback)
        return model.learn(64, callback=callback, reset_num_timesteps=False), env, run_of(callback)

    alone, beside = trained("a"), trained("b", eval_every=20, eval_episodes=2)
    assert equal(alone[0], beside[0])
    np.testing.assert_array_equal(alone[1].obs_rms.mean, beside[1].obs_rms.mean)
    assert [row["steps"] for row in beside[2].evaluations] == [20, 40, 60, 64, 80, 100, 120, 128]
    for name in ("episodes.npz", "metrics.jsonl", "parameters.safetensors"):
        assert (alone[2].path / name).read_bytes() == (beside[2].path / name).read_bytes(), name


def test_two_runs_of_a_seed_are_equal_with_everything_that_was_played(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        played(tmp_path / folder, make(), eval_env="CartPole-v1", eval_every=32, eval_episodes=2)
    first, second = (sorted(path for path in (tmp_path / name).rglob("*.*")) for name in ("a", "b"))
    names = {path.name for path in first}
    assert {"evaluations.jsonl", "rollout.npz", "critic.npz"} <= names
    for ours, theirs in zip(first, second, strict=True):
        assert ours.name == "timing.jsonl" or ours.read_bytes() == theirs.read_bytes(), ours.name


def test_normalised_environments_are_played_with_the_statistics_of_the_training_in_its_rewards(tmp_path: Path) -> None:
    env, apart = (VecNormalize(vectorised("pendulum"), gamma=0.99) for _ in range(2))  # type: Any, Any
    model = make(env=env, task="pendulum")
    run, rollout, _ = played(tmp_path, model, 128, eval_env=apart, eval_episodes=2)
    np.testing.assert_array_equal(apart.obs_rms.mean, env.obs_rms.mean)
    assert apart.training and apart.norm_reward, "as it was given"
    assert rollout["rewards"].min() < -2 and run.evaluations[0]["return_mean"] < -20
    unit = np.sqrt(env.ret_rms.var + env.epsilon)
    np.testing.assert_allclose(rollout["deltas"], unit * model.predict_components(rollout["observations"]), rtol=1e-4)


def test_environments_that_do_not_fit_are_refused_before_the_training(tmp_path: Path) -> None:
    env = vectorised("cartpole")
    cases: list[tuple[Any, Any, str]] = [
        (env, env, "eval_env is the environment of the training"),
        (env, env.envs[0], "eval_env is the environment of the training"),
        (env, vectorised("pendulum"), "eval_env must have the spaces that the model trains on"),
        (VecNormalize(vectorised("cartpole")), vectorised("cartpole"), "must normalise observations"),
        (vectorised("cartpole"), VecNormalize(vectorised("cartpole")), "must normalise observations"),
    ]
    for training, given, words in cases:
        with pytest.raises(ConfigError, match=words):
            make(env=training).learn(64, callback=RunDirectory(tmp_path, eval_env=given))
    assert not list(tmp_path.iterdir())


class Break(BaseCallback):
    """Raises in the middle of a training."""

    def __init__(self, error: BaseException, after: int = 100) -> None:
        super().__init__()
        self.error, self.after = error, after

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.after:
            raise self.error
        return True


class EveryStep(EventCallback):
    """Passes every step on."""

    def _on_step(self) -> bool:
        return self._on_event()


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (ValueError("no more"), "failed", "ValueError: no more"),
        (KeyboardInterrupt(), "interrupted", "stopped after 100 of 640 steps"),
    ],
    ids=["error", "keyboard"],
)
@pytest.mark.parametrize("how", ["list", "nested", "context"])
def test_a_training_that_breaks_off_says_so(
    how: str, error: BaseException, state: str, message: str, tmp_path: Path
) -> None:
    callback = RunDirectory(tmp_path)
    several: Any = [callback, Break(error)]
    with pytest.raises(type(error)):
        if how == "list":
            make().learn(640, callback=several)
        elif how == "nested":
            make().learn(640, callback=EveryStep(CallbackList(several)))
        else:
            with callback as record:
                make(PPO).learn(640, callback=[record, several[1]])
    run = run_of(callback)
    updates = 0 if how == "nested" else 1  # an EventCallback does not tell of rollouts
    assert run.status == {"state": state, "message": message, "steps": 100, "updates": updates, "episodes": 10}
    assert len(run.episodes["steps"]) == 10 and run.timing[-1]["event"] == "end"
    assert not is_being_written(run.path)
    assert (run.path / "parameters.safetensors").exists() == (state == "interrupted")


def test_a_plain_training_that_breaks_off_says_so_once_its_callback_is_gone(tmp_path: Path) -> None:
    def train() -> None:
        make(PPO).learn(640, callback=[RunDirectory(tmp_path), Break(ValueError("no more"))])

    with pytest.raises(ValueError, match="no more"):
        train()
    path = tmp_path / "CartPole-v1" / "PPO" / "seed-3"
    gc.collect()
    status = Run(path).status
    assert status["state"] == "interrupted" and "`learn` did not come to its end" in status["message"]


def test_a_run_that_broke_off_can_go_on(tmp_path: Path) -> None:
    callback, model = RunDirectory(tmp_path), make()
    with pytest.raises(ValueError, match="no more"):
        model.learn(640, callback=[callback, Break(ValueError("no more"))])
    model.learn(64, callback=callback, reset_num_timesteps=False)
    status = run_of(callback).status
    assert status["state"] == "finished" and status["message"] is None and status["steps"] > 100


PROGRAM = """
import os, signal, sys
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from tddelta.adapters.sb3 import RunDirectory

class End(BaseCallback):
    def _on_step(self):
        if self.num_timesteps >= 100:
            how = sys.argv[2]
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt if how == "keyboard" else RuntimeError("no more")
        return True

torch.set_num_threads(1)
PPO("MlpPolicy", "CartPole-v1", seed=0, n_steps=32, batch_size=32, device="cpu").learn(
    640, callback=[RunDirectory(sys.argv[1]), End()]
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "state", "message"),
    [
        ("error", "failed", "RuntimeError: no more"),
        ("keyboard", "interrupted", "stopped after 100 of 640 steps"),
        ("kill", "cut off", ""),
    ],
)
def test_a_plain_training_whose_process_ends_says_so(how: str, state: str, message: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), how], capture_output=True, text=True)
    assert done.returncode != 0
    seed = Seed.read(Run(tmp_path / "CartPole-v1" / "PPO" / "seed-0"), "PPO")
    assert (seed.state, seed.message) == (state, message), done.stderr


@pytest.mark.slow
def test_report_and_inspector_show_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        for kind in (PPO, DeltaPPO):
            played(tmp_path, make(kind, seed=seed), eval_env=vectorised("cartpole"))

    def called(*arguments: Any) -> int:
        monkeypatch.setattr(sys, "argv", ["tddelta", *map(str, arguments)])
        return main()

    assert called("report", tmp_path) == 0
    tables = tmp_path / "tables"
    assert "DeltaPPO,PPO" in (tables / "differences-asymptotic.csv").read_text(encoding="utf-8")
    assert "CartPole-v1,DeltaPPO,greedy,2," in (tables / "evaluations.csv").read_text(encoding="utf-8")
    assert "CartPole-v1,DeltaPPO,0.5,2," in (tables / "critic-every-discount.csv").read_text(encoding="utf-8")
    assert (tmp_path / "figures" / "episode-cartpole-v1-deltappo.png").exists()
    run = tmp_path / "CartPole-v1" / "DeltaPPO" / "seed-0"
    assert called("inspect", run, "--state", "2") == 0
    assert "DeltaPPO, seed 0, step 2" in capsys.readouterr().out and (run / "inspect.html").exists()
    assert called("inspect", run, "--seed", "2") == 2
    assert "--seed goes with a run of tddelta; got one of stable-baselines3" in capsys.readouterr().err
    (run / "rollout.npz").unlink()
    assert called("inspect", run) == 2
    assert "has no recorded episode" in capsys.readouterr().err


def test_a_directory_holds_nothing_that_is_unpickled(tmp_path: Path) -> None:
    run, *_ = played(tmp_path, make(), eval_env=vectorised("cartpole"))
    for path in run.path.glob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype.kind in "biuf" for name in arrays.files)
    assert {path.suffix for path in run.path.iterdir()} == {".json", ".jsonl", ".npz", ".safetensors"}


def test_an_environment_of_its_own_may_have_another_number_of_copies(tmp_path: Path) -> None:
    apart = DummyVecEnv([TASKS["cartpole"][0]] * 3)
    with pytest.warns(UserWarning, match="not wrapped with a ``Monitor``"):
        run, _, critic = played(tmp_path, make(), eval_env=apart, eval_episodes=4)
    assert run.evaluations[0]["episodes"] == 4 and len(critic["predicted"]) == 120
