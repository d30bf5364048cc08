"""Run directories of RLlib: what is in them, that the training does not notice, and how a training that breaks ends."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="needs RLlib and torch")

import ray
import torch
import tree
from ray.rllib.algorithms.ppo import ppo
from ray.rllib.connectors.env_to_module import MeanStdFilter
from safetensors.numpy import load_file

from rllib_agents import Countdown, Two, config, learner_of, plain, weights
from tddelta import ConfigError, compose
from tddelta.adapters.rllib import DeltaPPO, DeltaPPOConfig, RunDirectory, components, play, run_directory
from tddelta.cli import main
from tddelta.report import write_report
from tddelta.runs import Run, load_runs

GAMMAS = [0.5, 0.9, 0.99]
RECURRENT = {"use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 8}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "HELD_OUT_STATES", 60)


def recorded(out: Path, environment: Any = Countdown, **options: Any) -> Any:
    options = {"eval_episodes": 4, **options}
    return config(environment=environment).scales(GAMMAS).callbacks(partial(RunDirectory, out, **options))


def trained(settings: Any, iterations: int = 2) -> dict[str, np.ndarray]:
    algorithm = settings.build_algo()
    for _ in range(iterations):
        algorithm.train()
    found = weights(algorithm)
    algorithm.stop()
    return found


def test_a_run_has_metrics_episodes_scores_and_the_critic(tmp_path: Path) -> None:
    learned = trained(recorded(tmp_path))
    (run,) = load_runs(tmp_path)
    assert run.path == tmp_path / "Countdown/DeltaPPO/seed-0" and run.status["state"] == "finished"
    assert list(run.metrics["update"]) == [1, 2] and run.metrics["steps"][-1] == run.status["steps"] >= 256
    for name in ("value_loss", "explained_variance", "value_mean"):
        for label in ("0.500", "0.900", "0.990"):
            assert np.isfinite(run.metrics[f"{name}/gamma={label}"]).all()
    total = sum(run.metrics[f"value_loss/gamma={label}"] for label in ("0.500", "0.900", "0.990"))
    np.testing.assert_allclose(run.metrics["value_loss"], total, rtol=1e-5)
    assert (run.episodes["lengths"] == 5).all() and len(run.episodes["lengths"]) == run.status["episodes"] > 40
    assert run.episodes["returns"].min() >= 5 and run.episodes["returns"].max() <= 7.5
    assert run.config["scales"]["gammas"] == GAMMAS and run.config["settings"]["clip_param"] == 0.3
    (row,) = run.evaluations
    assert row["episodes"] == 4 and row["mode"] == "greedy" and row["lengths"] == [5] * 4
    critic = run.critic
    assert critic is not None and critic["predicted"].shape == critic["realised"].shape == (len(critic["predicted"]), 3)
    known = np.isfinite(critic["realised"][:, 0])
    assert known.sum() >= 30 and (critic["realised"][known, 0] <= 3.0).all()
    kept = load_file(run.path / "parameters.safetensors")
    np.testing.assert_array_equal(kept["vf.net.mlp.0.weight"], learned["vf.net.mlp.0.weight"])


def test_episodes_longer_than_an_iteration_are_told_in_the_one_where_they_end(tmp_path: Path) -> None:
    settings = recorded(tmp_path, eval_episodes=1).environment(env_config={"length": 200})
    settings.env_runners(num_envs_per_env_runner=1)
    trained(settings, 3)  # of 128 steps each: none ends in the first and third, exactly one in the second
    (run,) = load_runs(tmp_path)
    assert run.status["state"] == "finished"
    assert run.episodes["lengths"].tolist() == [200] and 200 <= run.episodes["returns"][0] <= 300
    assert run.episodes["steps"].tolist() == [run.metrics["steps"][1]] == [256]


def test_iterations_without_any_env_runner_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample, lost = ppo.synchronous_parallel_sample, iter([True, False, True, False])
    monkeypatch.setattr(ppo, "synchronous_parallel_sample", lambda **given: ([], []) if next(lost) else sample(**given))
    algorithm = recorded(tmp_path, eval_episodes=1).build_algo()
    results = [algorithm.train() for _ in range(4)]
    algorithm.stop()
    (run,) = load_runs(tmp_path)
    assert run.status["state"] == "finished" and run.status["updates"] == 2
    steps = [result["num_env_steps_sampled_lifetime"] for result in results[1::2]]
    assert run.metrics["steps"].tolist() == steps and np.isfinite(run.metrics["value_loss"]).all()


def test_the_inspector_and_the_report_show_it(tmp_path: Path, capsys: Any) -> None:
    trained(recorded(tmp_path / "runs"))
    (run,) = load_runs(tmp_path / "runs")
    assert main(["inspect", str(run.path)]) == 0
    assert (run.path / "inspect.html").stat().st_size > 10_000
    assert "inspect.html" in capsys.readouterr().out
    rollout = run.rollout
    assert rollout is not None and len(rollout["rewards"]) == 5
    np.testing.assert_array_equal(rollout["observations"][:, 0], range(5))
    assert rollout["terminated"].tolist() == [False] * 4 + [True]  # the first episode of this environment
    assert "DeltaPPO" in write_report(tmp_path / "runs").read_text(encoding="utf-8")


@pytest.mark.parametrize("model", [{}, RECURRENT], ids=["separate", "recurrent"])
def test_the_components_are_those_of_the_module(model: dict[str, Any]) -> None:
    settings = config(environment=Countdown, **model).scales(GAMMAS).environment(env_config={"length": 8})
    algorithm = settings.build_algo()
    episodes = play(algorithm, 1, num_timesteps=30, explore=True)
    lengths = [len(one) for one in episodes]
    found = components(learner_of(algorithm), episodes)
    assert [len(one) for one in found] == [length + 1 for length in lengths]
    assert [len(one) for one in episodes] == lengths  # left as they were
    module = learner_of(algorithm).module["default_policy"]
    for episode, deltas in zip(episodes, found, strict=True):
        batch: dict[str, Any] = {"obs": torch.as_tensor(np.asarray(episode.get_observations()))}
        if model:  # in one go from the first step on, where a learner has rows of four steps
            state = tree.map_structure(lambda one: torch.as_tensor(one)[None], module.get_initial_state())
            batch = {"obs": batch["obs"][None], "state_in": state}
        with torch.no_grad():
            wanted = module.compute_components(batch).reshape(deltas.shape)
        np.testing.assert_allclose(deltas, wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(compose(deltas)[:, -1], wanted.sum(-1), rtol=1e-5, atol=1e-6)
    algorithm.stop()


def test_a_recurrent_agent_is_recorded_and_shown(tmp_path: Path) -> None:
    trained(recorded(tmp_path, eval_episodes=1).rl_module(model_config={"fcnet_hiddens": [8], **RECURRENT}), 1)
    (run,) = load_runs(tmp_path)
    assert run.status["state"] == "finished" and run.critic is not None and run.rollout is not None
    assert run.rollout["deltas"].shape == (5, 3) and np.isfinite(run.rollout["deltas"]).all()
    assert main(["inspect", str(run.path)]) == 0 and (run.path / "inspect.html").stat().st_size > 10_000


class Uneven(Countdown):
    """Episodes of 1 and of 30 steps in turn."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.length = 1 if self.episode % 2 else 30
        return super().reset(seed=seed, options=options)


def test_long_episodes_count_as_much_as_short_ones(tmp_path: Path) -> None:
    settings = recorded(tmp_path, Uneven, eval_episodes=6).env_runners(num_envs_per_env_runner=4)
    trained(settings, 1)
    (run,) = load_runs(tmp_path)
    assert run.evaluations[0]["lengths"] == [30, 1] * 3
    assert run.rollout is not None and len(run.rollout["rewards"]) == 30  # the first, not the first to end


def test_the_ladder_is_that_of_the_module(tmp_path: Path) -> None:
    own = {"default_policy": DeltaPPOConfig.overrides(time_scales=[0.3, 0.6], gamma=0.6)}
    trained(recorded(tmp_path).multi_agent(algorithm_config_overrides_per_module=own), 1)
    (run,) = load_runs(tmp_path)
    assert run.config["scales"]["gammas"] == [0.3, 0.6]
    assert run.rollout is not None and run.rollout["gammas"].tolist() == [0.3, 0.6]
    critic = run.critic
    assert critic is not None and critic["predicted"].shape == critic["realised"].shape == (len(critic["predicted"]), 2)
    known = np.isfinite(critic["realised"][:, 1])
    assert known.any() and (critic["realised"][known, 1] <= 1.5 / 0.4).all()  # at most 3.75 with a discount of 0.6


def test_connectors_are_those_of_a_remote_env_runner_without_a_local_one(tmp_path: Path) -> None:
    settings = recorded(tmp_path).env_runners(num_env_runners=1, create_local_env_runner=False)
    settings.env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
    algorithm = settings.build_algo()
    algorithm.train()
    (episode,) = play(algorithm, 0, num_episodes=1, explore=False)
    assert episode.get_observations()[0, 0] < -1  # 0 in a filter that has seen nothing
    algorithm.stop()
    (run,) = load_runs(tmp_path)
    assert run.status["state"] == "finished" and run.evaluations[0]["lengths"] == [5] * 4
    with pytest.raises(ConfigError, match=r"an env runner must live .*got none of 1: leave create_local_env_runner"):
        play(algorithm, 0, num_episodes=1)


def test_workers_are_stopped_when_the_end_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = recorded(tmp_path).env_runners(num_env_runners=1).build_algo()
    algorithm.train()
    (worker,) = algorithm.env_runner_group._worker_manager.actors().values()
    monkeypatch.setattr(run_directory, "play", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        algorithm.stop()
    (run,) = load_runs(tmp_path)
    assert run.status["state"] == "failed"
    with pytest.raises(ray.exceptions.RayActorError):
        for _ in range(60):  # it is killed in its own time
            ray.get(worker.ping.remote(), timeout=60)
            time.sleep(0.5)


def test_the_training_does_not_notice(tmp_path: Path) -> None:
    alone = trained(config().scales(GAMMAS))
    watched = trained(recorded(tmp_path, "CartPole-v1", eval_every=1))
    for name, array in alone.items():
        np.testing.assert_array_equal(watched[name], array)
    (run,) = load_runs(tmp_path)
    assert [row["steps"] for row in run.evaluations] == [*run.metrics["steps"], run.metrics["steps"][-1]]
    assert run.evaluations[-1]["returns"] == run.evaluations[-2]["returns"]  # seeded


def test_an_exception_makes_it_failed_and_a_lost_algorithm_interrupted(tmp_path: Path) -> None:
    algorithm = recorded(tmp_path, seed=1).build_algo()
    algorithm.train()
    algorithm.env_runner.sample = lambda **_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        algorithm.train()
    algorithm.stop()
    assert Run(tmp_path / "Countdown/DeltaPPO/seed-1").status["state"] == "failed"
    algorithm = recorded(tmp_path, seed=2).build_algo()
    algorithm.train()
    algorithm.callbacks.clear()
    lost = Run(tmp_path / "Countdown/DeltaPPO/seed-2").status
    assert lost["state"] == "interrupted" and "`stop` was not called" in lost["message"]
    algorithm.stop()


def test_a_checkpoint_begins_anew_and_writes_nothing_unless_it_trains(tmp_path: Path) -> None:
    algorithm = recorded(tmp_path / "runs").build_algo()
    algorithm.train()
    algorithm.save_to_path(str(tmp_path / "checkpoint"))
    algorithm.callbacks.clear()  # as if the process had been killed
    algorithm.stop()
    DeltaPPO.from_checkpoint(str(tmp_path / "checkpoint")).stop()
    assert [path.name for path in (tmp_path / "runs/Countdown/DeltaPPO").iterdir()] == ["seed-0"]
    again = DeltaPPO.from_checkpoint(str(tmp_path / "checkpoint"))
    again.train()
    again.stop()
    folder = tmp_path / "runs/Countdown/DeltaPPO"
    assert {path.name for path in folder.iterdir()} == {"seed-0", "seed-0.unfinished-1"}
    run = Run(folder / "seed-0")
    assert run.status["state"] == "finished" and run.metrics["steps"][0] >= 256


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    for settings in (
        plain().callbacks(partial(RunDirectory, tmp_path)),
        config(environment=Two)
        .multi_agent(policies={"fast", "slow"}, policy_mapping_fn=lambda agent, *_, **__: agent)
        .callbacks(partial(RunDirectory, tmp_path)),
    ):
        algorithm = settings.build_algo()
        with pytest.raises(ConfigError, match=r"records one agent of a DeltaPPO; got (a PPO|several agents): leave it"):
            algorithm.train()
        algorithm.stop()
    with pytest.raises(ConfigError, match="out must be a path; got 3: name a folder, as in partial"):
        RunDirectory(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"eval_episodes .*got 0"):
        RunDirectory(tmp_path, eval_episodes=0)
