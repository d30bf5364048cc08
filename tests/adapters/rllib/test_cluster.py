"""Env runners and learners in processes of their own, one of them killed, and learning."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="needs RLlib and torch")

from rllib_agents import Countdown, config, weights
from tddelta.adapters.rllib import RunDirectory
from tddelta.runs import load_runs

# Ray's learners use parts of Ray of which it warns.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def pids(algorithm: Any) -> list[int]:
    """Those of the env runners that live."""
    found: Any = algorithm.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)
    return list(found)


def test_learning_goes_on_when_an_env_runner_is_killed(tmp_path: Path) -> None:
    settings = config(environment=Countdown).scales([0.5, 0.9, 0.99])
    settings.env_runners(num_env_runners=2, num_envs_per_env_runner=1).learners(num_learners=2)
    settings.fault_tolerance(restart_failed_env_runners=True)
    settings.callbacks(partial(RunDirectory, tmp_path, eval_episodes=2))
    algorithm = settings.build_algo()
    algorithm.train()
    killed, other = pids(algorithm)
    os.kill(killed, signal.SIGKILL)
    results = [algorithm.train()]
    while algorithm.env_runner_group.num_healthy_remote_workers() < 2 and len(results) < 200:
        results.append(algorithm.train())
    both = pids(algorithm)
    assert len(both) == 2 and other in both and killed not in both
    for result in results:
        assert set(result["learners"]["default_policy"]["value_loss"]) == {"gamma=0.500", "gamma=0.900", "gamma=0.990"}
        assert result["env_runners"]["num_env_steps_sampled"] >= 256
    states = algorithm.learner_group.foreach_learner(lambda learner: learner.get_state("rl_module"))
    parts = [one.get()["rl_module"]["default_policy"] for one in states]
    assert len(parts) == 2
    for name, array in parts[0].items():
        np.testing.assert_array_equal(array, parts[1][name])
        assert np.isfinite(array).all()
    algorithm.stop()
    (run,) = load_runs(tmp_path)
    assert run.status["state"] == "finished" and run.critic is not None
    assert run.status["updates"] == 1 + len(results) == len(run.metrics["steps"])
    assert (np.diff(run.metrics["steps"]) >= 256).all()
    # What the killed one had begun is told by nobody, instead of as a shorter episode.
    assert len(run.episodes["lengths"]) > 40 and (run.episodes["lengths"] == 5).all()
    assert run.episodes["returns"].min() >= 5 and run.episodes["returns"].max() <= 7.5


def test_cartpole_is_learned_within_the_budget_of_rllib() -> None:
    """Settings, 300,000 steps and return are those of RLlib's own tuned example (`cartpole_ppo.py`)."""
    settings = config().scales("halving").env_runners(num_envs_per_env_runner=8)
    settings.training(lr=3e-4, train_batch_size_per_learner=4_000, minibatch_size=128, num_epochs=6, vf_loss_coeff=0.01)
    settings.training(lambda_=1.0)
    settings.rl_module(model_config={"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True})
    algorithm = settings.build_algo()
    best, steps = 0.0, 0
    while best < 450 and steps < 300_000:
        result = algorithm.train()
        steps, best = result["num_env_steps_sampled_lifetime"], max(best, result["env_runners"]["episode_return_mean"])
    assert best >= 450, f"{best} after {steps} steps"
    assert weights(algorithm)["vf.net.mlp.0.weight"].shape[0] == 6
    algorithm.stop()
