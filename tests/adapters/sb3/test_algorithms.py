"""What SB3 promises of every algorithm, for all four: policies, wrappers, saving, callbacks, loggers."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

from sb3_environments import equal
from sb3_suite import OURS, algorithms, environments, make
from tddelta import ConfigError


@pytest.mark.parametrize("task", [None, "dictionary", "image"])
@algorithms
def test_every_algorithm_learns_several_components_with_every_policy(plain: Any, task: str | None) -> None:
    model = make(OURS[plain], task)
    observations = model.env.reset()
    before = model.predict_components(observations)
    model.learn(48)
    after = model.predict_components(observations)
    assert after.shape == before.shape == ((2, 2, 3) if plain is DQN else (2, 3))
    assert np.isfinite(after).all() and (np.abs(after - before).max((0, 1) if plain is DQN else 0) > 0).all()
    logged = model.logger.name_to_value
    for name in ("value_loss", "explained_variance", "value_mean"):
        assert {f"{name}/gamma={label}" for label in model.scales.labels} <= logged.keys()
    assert logged["train/gradient_norm"] > 0


@algorithms
def test_a_model_is_saved_loaded_and_goes_on_alike(plain: Any, tmp_path: Path) -> None:
    kind = OURS[plain]
    model = make(kind).learn(32)
    model.save(tmp_path / "model")
    again = kind.load(tmp_path / "model", env=environments(plain), device="cpu")
    assert equal(model, again) and again.scales == model.scales and again.num_timesteps == 32
    if plain in (DQN, SAC):
        model.save_replay_buffer(tmp_path / "buffer")
        again.load_replay_buffer(tmp_path / "buffer")
    for one in (model, again):
        one.set_env(environments(plain))
        one.set_random_seed(5)
        one.learn(32, reset_num_timesteps=False)
    assert equal(model, again) and model.num_timesteps == 64


@algorithms
def test_callbacks_and_evaluation_work(plain: Any, tmp_path: Path) -> None:
    evaluate = EvalCallback(
        environments(plain, count=1),
        callback_on_new_best=StopTrainingOnRewardThreshold(reward_threshold=-1e9),
        eval_freq=20,
        n_eval_episodes=2,
        best_model_save_path=str(tmp_path / "best"),
        verbose=0,
    )
    keep = CheckpointCallback(
        save_freq=10,
        save_path=str(tmp_path / "kept"),
        save_replay_buffer=plain in (DQN, SAC),
        save_vecnormalize=True,
    )
    model = make(OURS[plain]).learn(640, callback=[keep, evaluate])
    assert model.num_timesteps == 40, "stopped at the first evaluation"
    best = OURS[plain].load(tmp_path / "best" / "best_model", device="cpu")
    assert best.scales == model.scales
    returns, lengths = evaluate_policy(best, environments(plain, count=1), 3, return_episode_rewards=True)
    assert np.isfinite(returns).all() and lengths == [9, 9, 9]
    assert len(list((tmp_path / "kept").glob("rl_model_*_steps.zip"))) == 2


@pytest.mark.filterwarnings("ignore:rich is experimental")
@algorithms
def test_loggers_and_the_progress_bar_work(plain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(OURS[plain])
    model.set_logger(configure(str(tmp_path), ["csv", "json"]))
    model.learn(64, log_interval=1, progress_bar=True)
    assert "64/64" in capsys.readouterr().out
    model.logger.dump(64)
    model.logger.close()
    with (tmp_path / "progress.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    for name in ("value_loss", "explained_variance", "value_mean"):
        assert all(last[f"{name}/gamma={label}"] for label in model.scales.labels)
    assert float(last["train/gradient_norm"]) > 0


@algorithms
def test_a_file_of_another_class_names_how_it_is_read(plain: Any, tmp_path: Path) -> None:
    for number, (other, ours) in enumerate(OURS.items()):
        file = str(tmp_path / f"model{number}")
        make(other).save(file)
        words = f"this file holds a plain {other.__name__}: use {ours.__name__}.from_{other.__name__.lower()}"
        with pytest.raises(ConfigError, match=words):
            OURS[plain].load(file, device="cpu")
        make(ours, scales="single").save(file)
        if other is plain:
            assert OURS[plain].load(file, device="cpu").scales.labels == ("0.990",)
            continue
        with pytest.raises(ConfigError, match=rf"this file holds a {ours.__name__}: use {ours.__name__}.load"):
            OURS[plain].load(file, device="cpu")


@algorithms
def test_a_plain_class_says_how_our_file_is_read(plain: Any, tmp_path: Path) -> None:
    make(OURS[plain]).save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"a plain .* (has none|does not): .* read by Delta.*\.load"):
        plain.load(tmp_path / "model", device="cpu")
