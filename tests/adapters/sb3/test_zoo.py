"""The RL Zoo trains and searches DeltaPPO from a YAML file.

Not collected where the Zoo is missing, see `conftest.py`: `make zoo` runs them in an environment of its own. What it
passes to a model is passed by hand in the other tests of the adapter.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rl_zoo3", reason="needs rl_zoo3 and torch")

import rl_zoo3.train
import torch as th
import yaml
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER, convert_onpolicy_params

from tddelta.adapters.sb3 import DeltaPPO

SETTINGS = {
    "n_timesteps": 128,
    "n_envs": 2,
    "policy": "MlpPolicy",
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 1,
    "gamma": 0.98,
    "learning_rate": "lin_0.001",
    "scales": {"ladder": "halving", "components": 3},
}


def sample(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """As a user adds settings to the Zoo's own search."""
    sampled: dict[str, Any] = {
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.001, 0.03, log=True),
        "one_minus_gae_lambda": trial.suggest_float("one_minus_gae_lambda", 0.01, 0.2, log=True),
        "net_arch": "tiny",
        "activation_fn": "tanh",
        "scales": {"ladder": "halving", "components": trial.suggest_int("components", 1, 4)},
    }
    return convert_onpolicy_params(sampled)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    th.set_num_threads(1)
    for place in (rl_zoo3.ALGOS, rl_zoo3.train.ALGOS):
        monkeypatch.setitem(place, "ppo-delta", DeltaPPO)
    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "ppo-delta", sample)
    monkeypatch.setitem(HYPERPARAMS_CONVERTER, "ppo-delta", convert_onpolicy_params)


def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    settings = tmp_path / "ppo-delta.yml"
    settings.write_text(yaml.safe_dump({"CartPole-v1": SETTINGS}), encoding="utf-8")
    command = ["train", "--algo", "ppo-delta", "--env", "CartPole-v1", "-conf", str(settings), "-f", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--eval-freq", "-1", "--device", "cpu", "--seed", "1", *arguments])
    rl_zoo3.train.train()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_yaml_file_trains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo(tmp_path, monkeypatch)
    (saved,) = tmp_path.rglob("CartPole-v1.zip")
    model = DeltaPPO.load(saved, device="cpu")
    assert len(model.scales) == 3 and model.scales.gammas[-1] == 0.98 and model.num_timesteps == 128


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_search_tries_ladders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo(
        tmp_path, monkeypatch, "-optimize", "--n-trials", "2", "--n-startup-trials", "1", "--n-evaluations", "1",
        "--n-jobs", "1", "--sampler", "random", "--pruner", "none", "--no-optim-plots",
    )  # fmt: skip
    assert list((tmp_path / "ppo-delta").glob("report_*.csv"))
