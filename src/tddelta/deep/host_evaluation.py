"""Playing with a trained agent in host environments: what `evaluation` does with device environments."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta._answers import check_finite
from tddelta.deep import actions, ppo
from tddelta.deep.config import Config
from tddelta.deep.rollout import inputs
from tddelta.deep.stepping import Moved, Vector, spawned_seeds
from tddelta.deep.tasks import HostEnvironment

HOST_STREAMS, HOST_STREAM_LENGTH = 4, 2048
"""Held-out data: fewer streams than of device environments, which are hundreds of times faster."""


class Chosen(NamedTuple):
    """What an agent does and believes in B environments.

    Attributes:
        actions: As sampled or the most probable, (B, …).
        moves: The same as the environment takes them, (B, …).
        deltas: W_z in units of the learner's reward, (B, Z).
    """

    actions: jax.Array
    moves: jax.Array
    deltas: jax.Array


@jax.jit
def choose(config: Config, learned: ppo.Learned, observations: jax.Array, key: jax.Array, greedy: Any) -> Chosen:
    """Actions for B observations, (B, *observation), drawn from the policy or its most probable ones."""
    environment = config.environment_object()
    acting = ppo.network(config, learned.parameters)
    policy, heads = jax.vmap(lambda one: acting(inputs(one, learned.observation_moments)))(observations)
    drawn = actions.noise(environment, key, observations.shape[:1])
    action = jnp.where(greedy, actions.mode(environment, policy), actions.sample(environment, policy, drawn))
    return Chosen(action, actions.to_environment(environment, action), ppo.components(config, learned, heads))


class Play:
    """An agent playing in so many fresh environments, step by step; to be closed in the end.

    Args:
        config: Settings.
        learned: The agent.
        count: Number of environments.
        seed: Of the environments and the actions.
        purpose: See `stepping.spawned_seeds`.
        greedy: Whether actions are the most probable ones instead of drawn from the policy.
        draws: Whether `picture` is asked for; the environment must be able to.
    """

    def __init__(
        self,
        config: Config,
        learned: ppo.Learned,
        count: int,
        seed: int,
        purpose: str,
        *,
        greedy: bool = False,
        draws: bool = False,
    ) -> None:
        environment = config.environment_object()
        assert isinstance(environment, HostEnvironment)
        if draws:
            assert environment.draws is not None
            environment = dataclasses.replace(environment, make=environment.draws, overlaps=False)
        self._config, self._learned, self._greedy = config, learned, greedy
        self._key, self._time = jax.random.key(seed), 0
        self._vector = Vector(environment, spawned_seeds(seed, purpose, count))
        try:
            self.observations = self._vector.reset()
        except BaseException:
            self._vector.close()
            raise

    def __enter__(self) -> "Play":
        return self

    def __exit__(self, *raised: object) -> None:
        self._vector.close()

    def chosen(self) -> Chosen:
        """What the agent does and believes now."""
        key = jax.random.fold_in(self._key, self._time)
        found: Chosen = choose(self._config, self._learned, self.observations, key, self._greedy)
        return found

    def picture(self) -> np.ndarray:
        """What the first environment shows now, (H, W, 3) bytes."""
        return self._vector.picture()

    def step(self, moves: np.ndarray) -> Moved:
        """Let the environments make these moves."""
        self._vector.begin(moves)
        moved = self._vector.finish()
        name = self._config.environment_object().name
        check_finite(name, f"step {self._time}", observation=moved.observations, reward=moved.rewards)
        self.observations, self._time = moved.observations, self._time + 1
        return moved


def quota(
    config: Config,
    learned: ppo.Learned,
    quotas: np.ndarray,
    *,
    greedy: bool,
    seed: int,
    limit: int,
    no_ops: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play a fixed quota of episodes in every environment.

    Args:
        config: Settings.
        learned: The agent.
        quotas: Episodes of each environment, (B,).
        greedy: Whether actions are the most probable ones.
        seed: Of the evaluation.
        limit: Steps after which an environment gives up.
        no_ops: For every environment the number of steps at the start of each episode in which it gets action 0
            instead of the agent's: in Atari the game's no-op.

    Returns:
        Returns (B, longest quota), lengths likewise, and episodes finished (B,).
    """
    count, longest = len(quotas), int(quotas.max())
    returns, lengths = np.zeros((count, longest)), np.zeros((count, longest), int)
    done, score, length = np.zeros(count, int), np.zeros(count), np.zeros(count, int)
    waiting = np.zeros(count, int) if no_ops is None else np.asarray(no_ops)
    nothing = config.environment_object().first_action
    with Play(config, learned, count, seed, "evaluate", greedy=greedy) as play:
        for _ in range(limit):
            moves = np.asarray(play.chosen().moves)
            if no_ops is not None:
                moves = np.where(length < waiting, nothing, moves)
            moved = play.step(moves)
            score += np.where(moved.played, moved.rewards, 0.0)
            length += moved.played
            for one in np.flatnonzero(moved.over & (done < quotas)):
                returns[one, done[one]], lengths[one, done[one]] = score[one], length[one]
                done[one] += 1
            score[moved.over], length[moved.over] = 0.0, 0
            if np.all(done >= quotas):
                break
    return returns, lengths, done


class Streams(NamedTuple):
    """What an agent did in long streams of steps, (time, streams, …); see `evaluation.Step`.

    Attributes:
        deltas: W before every step, (time, streams, Z).
        rewards: As the environment gave them, (time, streams).
        terminated: Also where a life was lost, (time, streams).
        truncated: (time, streams).
        over: Whether the episode whose score counts was over, (time, streams).
        observations: Of the first stream, (time, *observation).
        actions: Of the first stream, (time, …).
        final_deltas: W of the true successor where the first stream was truncated, else 0, (time, Z).
        last_deltas: W after the last step of the first stream, (Z,).
    """

    deltas: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    over: np.ndarray
    observations: np.ndarray
    actions: np.ndarray
    final_deltas: np.ndarray
    last_deltas: np.ndarray


def host_streams(
    config: Config,
    learned: ppo.Learned,
    seed: int,
    *,
    count: int,
    length: int,
    greedy: bool = False,
) -> Streams:
    """Play for a while.

    Args:
        config: Settings.
        learned: The agent.
        seed: Of environments and actions.
        count: Number of streams.
        length: Steps of each.
        greedy: Whether actions are the most probable ones instead of drawn from the policy.
    """
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
    first: list[tuple[Any, ...]] = []
    believe = functools.partial(choose, config, learned, key=jax.random.key(0), greedy=True)
    with Play(config, learned, count, seed, "held-out", greedy=greedy) as play:
        while min(map(len, rows)) < length:
            seen, chosen = play.observations, jax.device_get(play.chosen())
            moved = play.step(np.asarray(chosen.moves))
            flags = (moved.terminated, moved.truncated, moved.over)
            for one in np.flatnonzero(moved.played):
                rows[one].append((chosen.deltas[one], moved.rewards[one], *(flag[one] for flag in flags)))
            if moved.played[0]:
                final = np.zeros_like(chosen.deltas[0])
                if 0 in moved.finals:
                    final = np.asarray(believe(np.stack([moved.finals[0]] * count)).deltas)[0]
                first.append((seen[0], chosen.actions[0], final))
        # A stream without resets of its own is ahead of others: it knows what came after its last step.
        ahead = len(rows[0]) > length
        after = rows[0][length][0] if ahead else np.asarray(believe(play.observations).deltas)[0]
    columns = [
        np.stack([np.stack([row[field] for row in stream[:length]]) for stream in rows], 1) for field in range(5)
    ]
    alone = [np.stack([row[field] for row in first[:length]]) for field in range(3)]
    return Streams._make([*columns, *alone, after])
