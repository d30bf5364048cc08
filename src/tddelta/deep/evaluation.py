"""Playing with a trained agent: fixed quotas of episodes for scores, long streams for the critic, one for recording."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta._answers import check_finite
from tddelta._plain import whole
from tddelta.decomposition import compose
from tddelta.deep import actions, ppo
from tddelta.deep.config import Config
from tddelta.deep.environments import Environment
from tddelta.deep.host import Moved, Vector, spawned_seeds
from tddelta.deep.policy import Policy
from tddelta.deep.rollout import Playing, advance, inputs, learned_rewards, start
from tddelta.deep.tasks import HostEnvironment
from tddelta.errors import ConfigError, own_checks
from tddelta.runs.reader import Mode
from tddelta.runs.recorder import realised_returns, summary

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
        purpose: See `host.spawned_seeds`.
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


STREAMS, STREAM_LENGTH, HELD_OUT_STATES = 16, 2048, 4096
"""Held-out data: enough states to tell critics apart, in a second on two cores."""

MOST = 10_000_000
"""Episodes of one evaluation, or recorded steps, that memory has room for."""

RECORDED = 2000
"""Longest recorded episode, in steps."""


class Step(NamedTuple):
    """One step of B environments; see `Rollout`."""

    observations: jax.Array
    actions: jax.Array
    rewards: jax.Array
    deltas: jax.Array
    final_deltas: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    finished_returns: jax.Array
    finished_lengths: jax.Array


def _advance(
    config: Config, environment: Environment, learned: ppo.Learned, greedy: Any, playing: Playing, key: jax.Array
) -> tuple[Playing, Step]:
    count = playing.episode_return.shape[0]
    noise_key, step_key = jax.random.split(key)
    policy, heads = ppo.outputs(config, learned, playing.observation)
    drawn = actions.noise(environment, noise_key, (count,))
    action = jnp.where(greedy, actions.mode(environment, policy), actions.sample(environment, policy, drawn))
    following, moved = advance(config, environment, playing, action, jax.random.split(step_key, count))
    return following, Step(
        observations=playing.observation,
        actions=action,
        rewards=moved.rewards,
        deltas=ppo.components(config, learned, heads),
        final_deltas=ppo.components(config, learned, ppo.outputs(config, learned, moved.final)[1]),
        terminated=moved.terminated,
        truncated=moved.truncated,
        finished_returns=moved.finished_returns,
        finished_lengths=moved.finished_lengths,
    )


@functools.partial(jax.jit, static_argnames=("count", "longest", "limit"))
def _quota(
    config: Config, learned: ppo.Learned, key: jax.Array, greedy: Any, quotas: jax.Array, *, count: int, longest: int,
    limit: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Returns (B, longest), lengths (B, longest), and episodes finished per environment (B,)."""
    environment = _on_device(config)
    start_key, key = jax.random.split(key)

    def unfinished(carry: Any) -> jax.Array:
        time, _, done, _, _ = carry
        going: jax.Array = jnp.any(done < quotas) & (time < limit)
        return going

    def step(carry: Any) -> Any:
        time, playing, done, returns, lengths = carry
        following, row = _advance(config, environment, learned, greedy, playing, jax.random.fold_in(key, time))
        counts = (row.finished_lengths > 0) & (done < quotas)
        here = counts[:, None] & (jnp.arange(longest) == done[:, None])
        returns = jnp.where(here, row.finished_returns[:, None], returns)
        lengths = jnp.where(here, row.finished_lengths[:, None], lengths)
        return time + 1, following, done + counts, returns, lengths

    zeros = jnp.zeros((count, longest))
    first = (0, start(environment, start_key, count), jnp.zeros(count, jnp.int32), zeros, zeros.astype(jnp.int32))
    _, _, done, returns, lengths = jax.lax.while_loop(unfinished, step, first)
    return returns, lengths, done


@own_checks
def evaluate(
    config: Config, learned: ppo.Learned, *, episodes: int = 128, mode: Mode = "sampled", seed: int = 0
) -> dict[str, Any]:
    """Scores of a fixed quota of episodes per environment, so that short episodes do not crowd out long ones.

    Args:
        config: Settings of the run.
        learned: The agent.
        episodes: Number of episodes from 1 to 10,000,000, spread evenly over up to 32 environments.
        mode: "sampled" follows the policy, "greedy" its most probable action.
        seed: Of the evaluation; it has nothing to do with the training's.

    Returns:
        A row for `evaluations.jsonl`, without `steps`. `unfinished` counts episodes that were given up since an
        environment did not get to their end within 100,000 steps, or as many as its episodes may take together, but
        never more than a million.

    Raises:
        ConfigError: If `episodes`, `mode` or `seed` is out of range.
    """
    episodes, seed = whole("episodes", episodes, most=MOST), whole("seed", seed, 0, most=2**32 - 1)
    if mode not in ("sampled", "greedy"):
        raise ConfigError(f"mode must be sampled or greedy; got {mode!r}")
    count = min(episodes, 32)
    quotas = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    longest = int(quotas.max())
    limit = min(max(100_000, longest * (config.environment_object().time_limit or 0)), 1_000_000)
    returns: Any
    if isinstance(config.environment_object(), HostEnvironment):
        greedy = mode == "greedy"
        returns, lengths, done = quota(config, learned, quotas, greedy=greedy, seed=seed, limit=limit)
    else:
        returns, lengths, done = _quota(
            config,
            learned,
            jax.random.key(seed),
            mode == "greedy",
            jnp.asarray(quotas),
            count=count,
            longest=longest,
            limit=limit,
        )
    played = np.arange(longest) < np.asarray(done)[:, None]
    scores, sizes = np.asarray(returns, float)[played], np.asarray(lengths)[played]
    return summary(scores, sizes, mode=mode, seed=seed, unfinished=int(episodes - len(scores)))


def _on_device(config: Config) -> Environment:
    found = config.environment_object()
    assert isinstance(found, Environment)
    return found


def _step(**arrays: Any) -> Step:
    # Of the host: NumPy arrays stand where JAX's do.
    return Step(**arrays)


def play_held_out(config: Config, learned: ppo.Learned, key: jax.Array) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plays the sampled policy for a while: what `critic.npz` and `rollout.npz` hold."""
    if not isinstance(config.environment_object(), HostEnvironment):
        rows, first, last = streams(config, learned, key)
        return held_out(config, rows), recording(config, first, np.asarray(last)[0])
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    count, length = HOST_STREAMS, HOST_STREAM_LENGTH
    found = host_streams(config, learned, seed, count=count, length=length)
    nothing = np.zeros(())
    host = _step(
        observations=nothing,
        actions=nothing,
        rewards=found.rewards,
        deltas=found.deltas,
        final_deltas=nothing,
        terminated=found.terminated,
        truncated=found.truncated,
        finished_returns=nothing,
        finished_lengths=nothing,
    )
    alone = _step(
        observations=found.observations,
        actions=found.actions,
        rewards=found.rewards[:, 0],
        deltas=found.deltas[:, 0],
        final_deltas=found.final_deltas,
        terminated=found.terminated[:, 0],
        truncated=found.truncated[:, 0],
        finished_returns=nothing,
        finished_lengths=nothing,
    )
    return held_out(config, host), recording(config, alone, found.last_deltas, over=found.over[:, 0])


@jax.jit
def streams(config: Config, learned: ppo.Learned, key: jax.Array) -> tuple[Step, Step, jax.Array]:
    """Plays the sampled policy for a while.

    Returns:
        All streams without observations and actions, (time, streams, …); the first stream whole; and W of the
        observations after the last step, (streams, Z).
    """
    environment = _on_device(config)
    start_key, key = jax.random.split(key)

    def step(playing: Playing, key: jax.Array) -> tuple[Playing, tuple[Step, Step]]:
        following, row = _advance(config, environment, learned, False, playing, key)
        light = row._replace(observations=jnp.zeros(()), actions=jnp.zeros(()))
        return following, (light, jax.tree.map(lambda leaf: leaf[0], row))

    playing, (rows, first) = jax.lax.scan(
        step, start(environment, start_key, STREAMS), jax.random.split(key, STREAM_LENGTH)
    )
    _, last = ppo.outputs(config, learned, playing.observation)
    return rows, first, ppo.components(config, learned, last)


@functools.partial(jax.jit, static_argnames="steps")
def play(
    config: Config, learned: ppo.Learned, key: jax.Array, greedy: Any, *, steps: int = RECORDED
) -> tuple[Step, jax.Array]:
    """Plays one environment for a while; `recording` cuts its first episode out.

    Returns:
        The stream, observations and actions with it, (time, …); and W of the observation after the last step, (Z,).
    """
    environment = _on_device(config)
    start_key, key = jax.random.split(key)

    def step(playing: Playing, key: jax.Array) -> tuple[Playing, Step]:
        following, row = _advance(config, environment, learned, greedy, playing, key)
        return following, jax.tree.map(lambda leaf: leaf[0], row)

    playing, rows = jax.lax.scan(step, start(environment, start_key, 1), jax.random.split(key, steps))
    _, heads = ppo.network(config, learned.parameters)(inputs(playing.observation[0], learned.observation_moments))
    return rows, ppo.components(config, learned, heads[None])[0]


def held_out(config: Config, rows: Step) -> dict[str, np.ndarray]:
    """Predicted and realised discounted returns at every discount of the critic, for `critic.npz`.

    The return of a state is known if its episode terminated in the data, or if what lies beyond the cut weighs
    less than a hundredth; otherwise it is NaN.

    Returns:
        predicted (N, Z), realised (N, Z), gammas (Z,), N at most 4,096 states evenly spread over the data.
    """
    gammas = np.asarray(config.critic_scales.gammas)
    rewards = np.asarray(learned_rewards(config, rows.rewards), np.float64)
    flags = {"terminated": np.asarray(rows.terminated), "truncated": np.asarray(rows.truncated)}
    predicted = np.asarray(compose(np.asarray(rows.deltas)), np.float32)
    realised = realised_returns(rewards, gammas, **flags)
    flat = realised.shape[0] * realised.shape[1]
    chosen = np.linspace(0, flat - 1, min(flat, HELD_OUT_STATES)).astype(int)
    pick = [array.reshape(flat, -1)[chosen].astype(np.float32) for array in (predicted, realised)]
    return {"predicted": pick[0], "realised": pick[1], "gammas": gammas}


def recording(
    config: Config, first: Step, last: np.ndarray, over: np.ndarray | None = None, *, longest: int = RECORDED
) -> dict[str, np.ndarray]:
    """The first episode of a stream, for `rollout.npz`.

    Args:
        config: Settings.
        first: The steps of one stream.
        last: W of the observation after the stream's last step, (Z,).
        over: Where episodes end, if not where the learner's do: a game goes on after a life, (time,).
        longest: At most so many steps of it.
    """
    arrays = jax.tree.map(np.asarray, first)
    ends = np.flatnonzero(arrays.terminated | arrays.truncated if over is None else over)
    length = min(int(ends[0]) + 1 if len(ends) else len(arrays.rewards), longest)
    ended = bool(arrays.terminated[length - 1] | arrays.truncated[length - 1])
    beyond = (
        arrays.final_deltas[length - 1] if ended else arrays.deltas[length] if length < len(arrays.rewards) else last
    )
    storage = config.environment_object().storage
    return {
        "observations": arrays.observations[:length].astype(storage),
        "actions": arrays.actions[:length],
        "rewards": arrays.rewards[:length],
        "deltas": arrays.deltas[:length],
        "last_deltas": np.asarray(beyond),
        "terminated": arrays.terminated[:length],
        "truncated": arrays.truncated[:length],
        "gammas": np.asarray(config.critic_scales.gammas),
    }


LONGEST_START = 30
"""No-ops beyond the usual start: 0 to one fewer than this."""

_LIMIT = 100_000  # steps; a game of Atari ends after 27,000, however it is played
_DENSITY_ENVIRONMENTS = 8


@own_checks
def hold_out(policy: Policy, *, episodes: int = LONGEST_START, mode: Mode = "sampled", seed: int = 0) -> dict[str, Any]:
    """Whole games of Atari, the i-th after i no-ops on top of the usual start.

    The no-ops are steps of the agent, of as many frames as any other; what they score counts.

    Args:
        policy: The agent.
        episodes: Number of games from 1 to 1000, each in an environment of its own; from the 31st on they begin with
            0, 1, … no-ops again.
        mode: "sampled" follows the policy, "greedy" its most probable action.
        seed: Of the evaluation.

    Returns:
        A row for `evaluations.jsonl`, without `steps`: as that of `evaluation.evaluate`, with `starts`, "no-ops", and
        `no_ops`, how many each game began with. Scores are raw.

    Raises:
        ConfigError: If `episodes`, `mode` or `seed` is out of range, or the environment is no Atari game.
    """
    environment = policy.config.environment_object()
    if not isinstance(environment, HostEnvironment) or environment.rom is None:
        raise ConfigError(
            f"no-op starts are for Atari games, where an action does nothing; got {environment.name}: evaluate it "
            "without them"
        )
    episodes, seed = whole("episodes", episodes, most=1000), whole("seed", seed, 0, most=2**32 - 1)
    if mode not in ("sampled", "greedy"):
        raise ConfigError(f"mode must be sampled or greedy; got {mode!r}")
    no_ops = np.arange(episodes) % LONGEST_START
    returns, lengths, done = quota(
        policy.config,
        policy.learned,
        np.ones(episodes, int),
        greedy=mode == "greedy",
        seed=seed,
        limit=_LIMIT,
        no_ops=no_ops.tolist(),
    )
    ended = done > 0
    row = summary(returns[ended, 0], lengths[ended, 0], mode=mode, seed=seed, unfinished=int((~ended).sum()))
    return {**row, "starts": "no-ops", "no_ops": no_ops[ended].tolist()}


@own_checks
def reward_density(policy: Policy, *, steps: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """Rewards other than 0 per 100 agent steps, under the sampled policy and under uniformly random actions.

    Args:
        policy: The agent.
        steps: Steps of each of the two, over eight environments together ≥ 1; rounded up to a whole number each.
        seed: Of environments and actions.

    Returns:
        `trained` and `random`, the two densities; `steps`, as rounded, and `seed`.

    Raises:
        ConfigError: If `steps` or `seed` is out of range, or the environment is not on the host or its actions are not
            discrete.
    """
    environment = policy.config.environment_object()
    if not isinstance(environment, HostEnvironment) or not environment.discrete:
        raise ConfigError(
            f"rewards are counted in environments of the host with discrete actions; got {environment.name}: count "
            "them in its rollout.npz"
        )
    steps, seed = whole("steps", steps, most=10**9), whole("seed", seed, 0, most=2**32 - 1)
    count = min(_DENSITY_ENVIRONMENTS, steps)
    length = -(-steps // count)
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name in ("trained", "random"):
        paid, played = 0, np.zeros(count, int)
        with Play(policy.config, policy.learned, count, seed, "held-out") as play:
            while played.min() < length:
                if name == "trained":
                    moves = np.asarray(play.chosen().moves)
                else:
                    moves = environment.first_action + rng.integers(environment.action_space.n, size=count)
                moved = play.step(moves)
                counts = moved.played & (played < length)  # a step that only resets is none
                paid += int(np.count_nonzero(moved.rewards[counts]))
                played += counts
        found[name] = 100 * paid / (length * count)
    return {**found, "steps": length * count, "seed": seed}
