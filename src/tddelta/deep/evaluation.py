"""Playing with a trained agent: fixed quotas of episodes for scores, long streams for the critic, one for recording."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta._plain import whole
from tddelta.decomposition import compose
from tddelta.deep import actions, host_evaluation, ppo
from tddelta.deep.config import Config
from tddelta.deep.environments import Environment
from tddelta.deep.rollout import Playing, advance, inputs, learned_rewards, start
from tddelta.deep.tasks import HostEnvironment
from tddelta.errors import ConfigError, own_checks
from tddelta.runs.scores import Mode, realised_returns, summary

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
        returns, lengths, done = host_evaluation.quota(config, learned, quotas, greedy=greedy, seed=seed, limit=limit)
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
    count, length = host_evaluation.HOST_STREAMS, host_evaluation.HOST_STREAM_LENGTH
    found = host_evaluation.host_streams(config, learned, seed, count=count, length=length)
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
    gammas = np.asarray(config.scales.gammas)
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
        "gammas": np.asarray(config.scales.gammas),
    }
