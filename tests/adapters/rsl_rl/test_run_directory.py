"""Run directories written while rsl_rl trains, and what the inspector and the report read of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rsl_rl", reason="needs rsl-rl-lib and torch")

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from rsl_rl_environments import Pole, config
from tddelta import ConfigError
from tddelta.adapters.rsl_rl import DeltaPPO, learn, run_directory
from tddelta.cli import main
from tddelta.inspector import Recording
from tddelta.report import write_report
from tddelta.runs import Run, load_runs
from tddelta.runs.recorder import realised_returns


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "STREAM_LENGTH", 40)


def make(kind: Any = DeltaPPO, **settings: Any) -> Any:
    torch.manual_seed(0)
    return OnPolicyRunner(Pole(16, 9), config(kind, **settings))


def recorded(tmp_path: Path, runner: Any, iterations: int = 2, **options: Any) -> Run:
    torch.manual_seed(1)
    return Run(learn(runner, iterations, out=tmp_path, environment="pole", **options))


def test_a_run_directory_holds_what_was_trained(tmp_path: Path) -> None:
    runner = make(scales=[0.9, 0.99])
    run = recorded(tmp_path, runner, 3)
    assert run.path == tmp_path / "pole" / "DeltaPPO" / "seed-3" and run.scales == runner.alg.scales
    assert run.status == {"state": "finished", "steps": 768, "updates": 3, "episodes": 80, "message": None}
    assert run.config["steps"] == 768 and run.config["settings"]["algorithm"]["num_learning_epochs"] == 2
    np.testing.assert_array_equal(run.metrics["steps"], [256, 512, 768])
    np.testing.assert_array_equal(run.episodes["lengths"], [9] * 80)
    assert (run.episodes["returns"] < 9).all() and (np.diff(run.episodes["steps"]) >= 0).all()
    losses = sum(run.metrics[f"value_loss/gamma={label}"] for label in run.scales.labels)
    np.testing.assert_allclose(run.metrics["value_loss"], losses, rtol=1e-4)
    for name in ("explained_variance", "value_mean", "entropy", "policy_loss", "learning_rate"):
        assert np.isfinite(run.metrics[name]).all(), name


@pytest.mark.parametrize("recurrent", ["", "gru"])
def test_the_recorded_episode_is_one_and_the_critic_is_that_of_its_states(recurrent: str, tmp_path: Path) -> None:
    runner = make(recurrent=recurrent, scales=[0.3, 0.99])
    run = recorded(tmp_path, runner)
    game, critic = run.rollout, run.critic
    assert game is not None and critic is not None
    assert game["deltas"].shape == (9, 2) and game["observations"].shape == (9, 4) and game["actions"].shape == (9, 1)
    np.testing.assert_array_equal(game["truncated"], np.arange(9) == 8)
    assert not game["terminated"].any() and (game["rewards"] > 0.8).all()
    assert (abs(game["observations"][0]) < 0.3).all()  # it begins at a start
    runner.alg.critic.reset()  # the episode begins with an empty memory
    with torch.inference_mode():
        seen = torch.as_tensor(game["observations"]).split(1)
        found = torch.cat([runner.alg.critic(TensorDict({"critic": one}, batch_size=[1])) for one in seen])
    np.testing.assert_allclose(game["deltas"], found.numpy(), rtol=1e-5, atol=1e-6)
    assert critic["predicted"].shape == (640, 2)
    flags = {"terminated": game["terminated"], "truncated": game["truncated"]}
    wanted = realised_returns(game["rewards"], game["gammas"], **flags)
    assert np.isfinite(wanted[:5, 0]).all() and np.isnan(wanted[:, 1]).all()  # cut, so that the long horizon is unknown
    # Training ended 5 steps into an episode of 9; states are (time, environment).
    np.testing.assert_allclose(critic["realised"][::16][4:13], wanted, rtol=1e-5)
    np.testing.assert_allclose(critic["predicted"][::16][4:13], game["deltas"].cumsum(1), rtol=1e-5)
    assert Recording.of_run(run).critics[0].deltas.shape == (9, 2)


def test_what_is_recorded_leaves_training_as_it_is(tmp_path: Path) -> None:
    plain, ours = make(), make()
    recorded(tmp_path, ours)
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    plain.learn(2)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(map(torch.equal, plain.alg.critic.parameters(), ours.alg.critic.parameters()))
    assert ours.alg.actor.training and ours.logger.log.__qualname__ == "Logger.log"


@pytest.mark.slow
def test_the_inspector_and_the_report_read_it(tmp_path: Path) -> None:
    run = recorded(tmp_path / "runs", make())
    recorded(tmp_path / "runs", make(PPO))
    ppo, delta = sorted(load_runs(tmp_path / "runs"), key=lambda one: len(one.scales))
    assert ppo.agent == "PPO" and ppo.scales.gammas == (0.99,) and delta.agent == "DeltaPPO"
    assert ppo.critic is not None and ppo.critic["predicted"].shape == (640, 1)
    assert Recording.of_run(delta).critics[0].deltas.shape == (9, 6)
    assert main(["inspect", str(run.path)]) == 0
    assert "DeltaPPO" in (run.path / "inspect.html").read_text(encoding="utf-8")
    page = write_report(tmp_path / "runs", tmp_path / "report")
    assert "DeltaPPO" in Path(page).read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:The observation configuration dictionary 'obs_groups'")
def test_the_critic_is_held_against_the_rewards_that_it_learned_from(tmp_path: Path) -> None:
    runner = make(rnd_cfg={"weight": 50.0, "predictor_hidden_dims": [8], "target_hidden_dims": [8], "num_outputs": 4})
    run = recorded(tmp_path, runner)
    game = run.rollout
    assert game is not None and (game["learner_rewards"] > game["rewards"]).all()
    assert runner.alg.rnd.update_counter == 32  # steps of training
    assert Recording.of_run(run).learner_rewards is not None


@pytest.mark.parametrize(
    ("error", "state"), [(RuntimeError("the robot broke"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_training_that_breaks_off_says_how(error: BaseException, state: str, tmp_path: Path) -> None:
    runner = make()
    step, calls = runner.env.step, []

    def breaks(actions: Any) -> Any:
        calls.append(1)
        if len(calls) == 20:
            raise error
        return step(actions)

    runner.env.step = breaks
    with pytest.raises(type(error)):
        recorded(tmp_path, runner)
    (run,) = load_runs(tmp_path)
    assert run.status["state"] == state and run.status["updates"] == 1 and run.status["steps"] == 19 * 16
    assert ("the robot broke" if state == "failed" else "stopped after 304 steps") in run.status["message"]
    end = run.timing[-1]
    assert end["event"] == "end" and end["steps"] == 304 and end["steps_per_second"] > 0


def test_settings_out_of_range_are_refused_and_no_run_is_overwritten(tmp_path: Path) -> None:
    runner, options = make(), {"seed": -1, "streams": 0, "iterations": 0}
    for name, value in options.items():
        with pytest.raises(ConfigError, match=rf"{name} must be a whole number of at least \d; got {value}"):
            recorded(tmp_path, runner, **{name: value})
    assert recorded(tmp_path, runner, seed=5, agent="mine").path == tmp_path / "pole" / "mine" / "seed-5"
    with pytest.raises(ConfigError, match="exists already, and a run is never overwritten"):
        recorded(tmp_path, runner, seed=5, agent="mine")
