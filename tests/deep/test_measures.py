"""Hold-out episodes and reward densities, in an environment with a script and in a short game of Atari."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from host_environments import Counting
from tddelta.cli import main
from tddelta.deep import evaluation, host, ppo, training
from tddelta.deep.policy import Policy, to_arrays
from tddelta.errors import ConfigError
from tddelta.runs import Run, RunWriter


class Game(Counting):
    """Lasts five steps; pays one point more than its action at every step, or only for action 2 at even ones."""

    action_space = gymnasium.spaces.Discrete(3)
    sparse = False

    def __init__(self) -> None:
        super().__init__(length=5)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        seen, _, *rest = super().step(action)
        reward = float(action == 2 and self.clock % 2 == 0) if self.sparse else 1.0 + int(action)
        return seen, reward, *rest


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Policy:
    monkeypatch.setattr(Game, "made", [])
    monkeypatch.setattr(Game, "sparse", False)
    game = dataclasses.replace(host.from_factory(Game), rom="game")
    config = ppo.preset(game, "ppo", network="mlp", hidden_sizes=(4,))
    Game.made.clear()
    plain = evaluation.choose
    always_two = jnp.full(1, 2)

    def choose(config: Any, learned: Any, observations: Any, key: Any, greedy: Any) -> Any:
        return plain(config, learned, observations, key, greedy)._replace(
            moves=jnp.repeat(always_two, len(observations))
        )

    monkeypatch.setattr(evaluation, "choose", choose)
    return Policy(config, ppo.initial(config, jax.random.key(0)))


def test_the_ith_episode_begins_with_i_no_ops(player: Policy) -> None:
    row = evaluation.hold_out(player, episodes=32)
    assert row["no_ops"] == [*range(30), 0, 1]
    assert [game.actions[:5] for game in Game.made[:6]] == [[0] * i + [2] * (5 - i) for i in range(6)]
    # A game may be over within its no-ops.
    assert row["returns"][:7] == [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 5.0] and row["lengths"] == [5] * 32
    assert row["return_mean"] == pytest.approx(np.mean(row["returns"]))
    assert (row["episodes"], row["starts"], row["mode"]) == (32, "no-ops", "sampled")
    assert evaluation.hold_out(player, episodes=1)["return_standard_deviation"] is None


def test_rewards_are_counted_for_the_policy_and_for_random_actions(
    player: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Game, "sparse", True)
    found = evaluation.reward_density(player, steps=4_000)
    assert found["trained"] == pytest.approx(40.0)  # steps 2 and 4 of every 5
    assert found["random"] == pytest.approx(40.0 / 3, abs=2.0)
    assert (found["steps"], found["seed"]) == (4_000, 0)


def test_steps_are_shared_out_evenly(player: Policy) -> None:
    assert evaluation.reward_density(player, steps=9)["steps"] == 16
    assert evaluation.reward_density(player, steps=3)["steps"] == 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"episodes": 0}, "episodes must be a whole number of at least 1; got 0"),
        ({"mode": "best"}, "mode must be sampled or greedy"),
    ],
)
def test_settings_out_of_range_are_refused(player: Policy, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        evaluation.hold_out(player, **wrong)


@pytest.mark.slow
def test_no_op_starts_are_for_atari_alone(player: Policy) -> None:
    config = ppo.preset("CartPole-v1", "ppo")
    policy = Policy(config, ppo.initial(config, jax.random.key(0)))
    with pytest.raises(ConfigError, match="no-op starts are for Atari games"):
        evaluation.hold_out(policy)
    with pytest.raises(ConfigError, match="environments of the host with discrete actions; got CartPole-v1"):
        evaluation.reward_density(policy)
    with pytest.raises(ConfigError, match="steps must be a whole number of at least 1"):
        evaluation.reward_density(player, steps=0)


def beginner() -> Policy:
    """An agent that has learned nothing, in games of 240 frames."""
    rules = {"max_frames": 240, "threads": 1}
    config = ppo.preset("Qbert", "ppo", network="mlp", hidden_sizes=(4,), environment_kwargs=rules)
    return Policy(config, ppo.initial(config, jax.random.key(0)))


@pytest.mark.slow
def test_a_hold_out_of_an_atari_game_is_that_of_its_seed() -> None:
    policy = beginner()
    first, again, other = (evaluation.hold_out(policy, episodes=3, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["lengths"] != [] and max(first["lengths"]) <= 60  # 240 frames, starts among them
    assert (first["lengths"], first["returns"]) != (other["lengths"], other["returns"])


@pytest.mark.slow
def test_the_command_adds_hold_out_episodes_to_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    player = beginner()
    with RunWriter(tmp_path / "run", training.run_config(player.config, 0), {}) as writer:
        writer.parameters(to_arrays(player.learned), {})
        writer.status("finished", steps=32)
    run = Run(tmp_path / "run")
    assert main(["evaluate", str(run.path), "--episodes", "2", "--no-op-starts", "--greedy", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (row,) = run.evaluations
    assert {key: said[key] for key in row} == row
    assert (row["mode"], row["starts"], row["no_ops"], row["steps"]) == ("greedy", "no-ops", [0, 1], 32)
    assert main(["evaluate", str(run.path), "--episodes", "2", "--no-op-starts"]) == 0
    assert "sampled, 2 episodes after no-ops: mean return" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--greedy", "--mode", "sampled"], "--greedy is --mode greedy; got --mode sampled: drop one"),
        (["--reward-density", "--episodes", "3"], "--reward-density plays no episodes"),
    ],
)
def test_options_of_the_command_that_contradict_each_other_are_refused(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "somewhere", *given]) == 2
    assert words in capsys.readouterr().err
