"""Playing with a trained agent: fixed quotas of episodes for scores, long streams for the critic, one for recording."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta._answers import check_finite
from tddelta._plain import whole
from tddelta.deep import rollout
from tddelta.deep.config import Config
from tddelta.deep.host import Moved, Vector, spawned_seeds
from tddelta.deep.policy import Chosen, Policy, choose
from tddelta.deep.rollout import Learned, Playing, advance, learned_rewards, start
from tddelta.deep.tasks import HostEnvironment
from tddelta.errors import ConfigError, setting
from tddelta.runs.reader import Mode
from tddelta.runs.recorder import RECORDED, STREAM_LENGTH, critic_check, summary

STREAMS, HOST_STREAMS = 16, 4
"""Streams of held-out data, enough to tell critics apart; host environments are hundreds of times slower."""

MOST = 10_000_000
"""Episodes of one evaluation, or recorded steps, that memory has room for."""

LONGEST_START = 30
"""No-ops beyond the usual start: 0 to one fewer than this."""

_LIMIT = 100_000  # steps; a game of Atari ends after 27,000, however it is played
_DENSITY_ENVIRONMENTS = 8
_AT_ONCE = 256  # steps of device environments between two looks at the quotas


# ---------------------------------------------------------------- steps


class Step(NamedTuple):
    """Steps of B environments, (time, B, …); see `Rollout`.

    Attributes:
        observations: Before the step; of host environments those of the first alone.
        actions: Likewise.
        rewards: As the environment gave them.
        deltas: W before the step, (time, B, Z), in units of the learner's reward.
        final_deltas: W of the true successor; of host environments where the first was truncated, else 0.
        terminated: Also where a life was lost.
        truncated: False where terminated.
        finished_returns: Undiscounted return of the episode whose score counts, where it ended.
        finished_lengths: Its length in steps; 0 where none ended.
        played: False where a host environment only reset itself.
    """

    observations: Any
    actions: Any
    rewards: Any
    deltas: Any
    final_deltas: Any
    terminated: Any
    truncated: Any
    finished_returns: Any
    finished_lengths: Any
    played: Any


def _advance(config: Config, learned: Learned, greedy: Any, playing: Playing, key: jax.Array) -> tuple[Playing, Step]:
    """One step of device environments."""
    environment: Any = config.environment_object()
    count = playing.episode_return.shape[0]
    noise_key, step_key = jax.random.split(key)
    chosen = choose(config, learned, playing.observation, noise_key, greedy)
    following, moved = advance(config, environment, playing, chosen.actions, jax.random.split(step_key, count))
    return following, Step(
        observations=playing.observation,
        actions=chosen.actions,
        rewards=moved.rewards,
        deltas=chosen.deltas,
        final_deltas=_deltas(config, learned, moved.final),
        terminated=moved.terminated,
        truncated=moved.truncated,
        finished_returns=moved.finished_returns,
        finished_lengths=moved.finished_lengths,
        played=jnp.ones(count, bool),
    )


def _deltas(config: Config, learned: Learned, observations: jax.Array) -> jax.Array:
    return rollout.components(config, learned, rollout.evaluator(config, learned)(observations)[1])


class Play:
    """An agent playing in fresh host environments, step by step; to be closed in the end.

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
        learned: Learned,
        count: int,
        seed: int,
        purpose: str,
        *,
        greedy: bool = False,
        draws: bool = False,
    ) -> None:
        environment: Any = config.environment_object()
        if draws:
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
        """Actions and components of the agent now."""
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

    def deltas(self, observation: np.ndarray) -> np.ndarray:
        """W of one observation, (Z,)."""
        rows = np.stack([observation] * len(self.observations))
        found: Chosen = choose(self._config, self._learned, rows, jax.random.key(0), True)
        deltas: np.ndarray = np.asarray(found.deltas)[0]
        return deltas

    def steps(self, moves: Callable[[Chosen, np.ndarray], np.ndarray] | None = None) -> Iterator[Step]:
        """Steps without end, (1, B, …) each.

        Args:
            moves: f(what the agent chose, steps of the running episodes (B,)) → moves in place of the agent's.
        """
        count = len(self.observations)
        score, length = np.zeros(count), np.zeros(count, int)
        while True:
            seen, chosen = self.observations, jax.device_get(self.chosen())
            moved = self.step(np.asarray(chosen.moves if moves is None else moves(chosen, length)))
            score += np.where(moved.played, moved.rewards, 0.0)
            length += moved.played
            final = self.deltas(moved.finals[0]) if 0 in moved.finals else np.zeros_like(chosen.deltas[0])
            row = Step(
                observations=seen[:1].copy(),
                actions=np.asarray(chosen.actions)[:1],
                rewards=moved.rewards,
                deltas=np.asarray(chosen.deltas),
                final_deltas=final[None],
                terminated=moved.terminated,
                truncated=moved.truncated,
                finished_returns=np.where(moved.over, score, 0.0),
                finished_lengths=np.where(moved.over, length, 0),
                played=moved.played,
            )
            yield Step(*(array[None] for array in row))
            score[moved.over], length[moved.over] = 0.0, 0


# ---------------------------------------------------------------- scores


@functools.partial(jax.jit, static_argnames="count")
def _started(config: Config, key: jax.Array, *, count: int) -> Playing:
    environment: Any = config.environment_object()
    return start(environment, key, count)


@jax.jit
def _scores(
    config: Config, learned: Learned, playing: Playing, key: jax.Array, time: Any, greedy: Any
) -> tuple[Playing, tuple[jax.Array, jax.Array]]:
    """Some steps of device environments: returns and lengths of the episodes that ended."""

    def step(playing: Playing, time: jax.Array) -> Any:
        following, row = _advance(config, learned, greedy, playing, jax.random.fold_in(key, time))
        return following, (row.finished_returns, row.finished_lengths)

    return jax.lax.scan(step, playing, time + jnp.arange(_AT_ONCE))


def _device_scores(
    config: Config, learned: Learned, count: int, seed: int, greedy: bool
) -> Iterator[tuple[jax.Array, jax.Array]]:
    start_key, key = jax.random.split(jax.random.key(seed))
    playing = _started(config, start_key, count=count)
    for time in itertools.count(0, _AT_ONCE):
        playing, found = _scores(config, learned, playing, key, time, greedy)
        yield found


def quota(
    config: Config,
    learned: Learned,
    quotas: np.ndarray,
    *,
    greedy: bool,
    seed: int,
    limit: int,
    moves: Callable[[Chosen, np.ndarray], np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play a fixed quota of episodes in every environment.

    Args:
        config: Settings.
        learned: The agent.
        quotas: Episodes of each environment, (B,).
        greedy: Whether actions are the most probable ones.
        seed: Of the evaluation.
        limit: Steps after which an environment gives up.
        moves: See `Play.steps`; for host environments.

    Returns:
        Returns (B, longest quota), lengths likewise, and which of them were finished, likewise.
    """
    count, longest = len(quotas), int(quotas.max())
    if isinstance(config.environment_object(), HostEnvironment):
        with Play(config, learned, count, seed, "evaluate", greedy=greedy) as play:
            rows = ((row.finished_returns, row.finished_lengths) for row in play.steps(moves))
            return _filled(rows, quotas, longest, limit)
    return _filled(_device_scores(config, learned, count, seed, greedy), quotas, longest, limit)


def _filled(
    found: Iterator[tuple[Any, Any]], quotas: np.ndarray, longest: int, limit: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    returns, lengths = np.zeros((len(quotas), longest)), np.zeros((len(quotas), longest), int)
    done, time = np.zeros(len(quotas), int), 0
    while time < limit and np.any(done < quotas):
        scores, sizes = map(np.asarray, next(found))
        for row, one in np.argwhere(sizes[: limit - time] > 0):
            if done[one] < quotas[one]:
                returns[one, done[one]], lengths[one, done[one]] = scores[row, one], sizes[row, one]
                done[one] += 1
        time += len(sizes)
    return returns, lengths, np.arange(longest) < done[:, None]


def _checked(episodes: Any, mode: Any, seed: Any, most: int) -> tuple[int, int]:
    episodes, seed = whole("episodes", episodes, most=most), whole("seed", seed, 0, most=2**32 - 1)
    if mode not in ("sampled", "greedy"):
        raise ConfigError(f"{setting('mode')} must be sampled or greedy; got {mode!r}")
    return episodes, seed


def evaluate(
    config: Config, learned: Learned, *, episodes: int = 128, mode: Mode = "sampled", seed: int = 0
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
    episodes, seed = _checked(episodes, mode, seed, MOST)
    count = min(episodes, 32)
    quotas = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    limit = min(max(_LIMIT, int(quotas.max()) * (config.environment_object().time_limit or 0)), 1_000_000)
    returns, lengths, done = quota(config, learned, quotas, greedy=mode == "greedy", seed=seed, limit=limit)
    return summary(returns[done], lengths[done], mode=mode, seed=seed, unfinished=int(episodes - done.sum()))


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
        A row for `evaluations.jsonl`, without `steps`: as that of `evaluate`, with `starts`, "no-ops", and `no_ops`,
        how many each game began with. Scores are raw.

    Raises:
        ConfigError: If `episodes`, `mode` or `seed` is out of range, or the environment is no Atari game.
    """
    environment = policy.config.environment_object()
    if not isinstance(environment, HostEnvironment) or environment.rom is None:
        raise ConfigError(
            f"no-op starts are for Atari games, where an action does nothing; got {environment.name}: evaluate it "
            "without them"
        )
    episodes, seed = _checked(episodes, mode, seed, 1000)
    no_ops, nothing = np.arange(episodes) % LONGEST_START, environment.first_action
    returns, lengths, done = quota(
        policy.config,
        policy.learned,
        np.ones(episodes, int),
        greedy=mode == "greedy",
        seed=seed,
        limit=_LIMIT,
        moves=lambda chosen, length: np.where(length < no_ops, nothing, np.asarray(chosen.moves)),
    )
    row = summary(returns[done], lengths[done], mode=mode, seed=seed, unfinished=int((~done).sum()))
    return {**row, "starts": "no-ops", "no_ops": no_ops[done[:, 0]].tolist()}


# ---------------------------------------------------------------- streams


def play_held_out(config: Config, learned: Learned, key: jax.Array) -> tuple[dict[str, Any], dict[str, Any]]:
    """Play the sampled policy for a while: contents of `critic.npz` and `rollout.npz`."""
    if isinstance(config.environment_object(), HostEnvironment):
        seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
        found = host_streams(config, learned, seed, count=HOST_STREAMS, length=STREAM_LENGTH)
    else:
        found = device_streams(config, learned, key, False, count=STREAMS, length=STREAM_LENGTH)
    rows, first, last = found
    flags = {"terminated": np.asarray(rows.terminated), "truncated": np.asarray(rows.truncated)}
    rewards = learned_rewards(config, np.asarray(rows.rewards))
    critic = critic_check(rewards, np.asarray(rows.deltas), np.asarray(config.critic_scales.gammas), **flags)
    return critic, recording(config, first, last)


@functools.partial(jax.jit, static_argnames=("count", "length"))
def device_streams(
    config: Config, learned: Learned, key: jax.Array, greedy: Any, *, count: int, length: int
) -> tuple[Step, Step, Any]:
    """Play in device environments for a while.

    Args:
        config: Settings.
        learned: The agent.
        key: Of environments and actions.
        greedy: Whether actions are the most probable ones instead of drawn from the policy.
        count: Number of streams.
        length: Steps of each.

    Returns:
        All streams without observations and actions, (time, streams, …); the first stream whole, (time, …); and W of
        its observation after the last step, (Z,).
    """
    environment: Any = config.environment_object()
    start_key, key = jax.random.split(key)

    def step(playing: Playing, key: jax.Array) -> tuple[Playing, tuple[Step, Step]]:
        following, row = _advance(config, learned, greedy, playing, key)
        light = row._replace(observations=jnp.zeros(()), actions=jnp.zeros(()))
        return following, (light, jax.tree.map(lambda leaf: leaf[0], row))

    playing, (rows, first) = jax.lax.scan(step, start(environment, start_key, count), jax.random.split(key, length))
    return rows, first, _deltas(config, learned, playing.observation)[0]


def host_streams(
    config: Config, learned: Learned, seed: int, *, count: int, length: int
) -> tuple[Step, Step, np.ndarray]:
    """Play in host environments for a while, actions drawn from the policy; see `device_streams` and `Play.steps`.

    The streams are without the steps in which an environment only reset itself.
    """
    rows: list[Step] = []
    played = np.zeros(count, int)
    with Play(config, learned, count, seed, "held-out") as play:
        steps = play.steps()
        while played.min() < length:
            rows.append(next(steps))
            played += rows[-1].played[0]
        found = Step(*map(np.concatenate, zip(*rows, strict=True)))
        places = [np.flatnonzero(found.played[:, one]) for one in range(count)]
        # A stream without resets of its own is ahead of others: it knows what came after its last step.
        ahead = len(places[0]) > length
        last = found.deltas[places[0][length], 0] if ahead else play.deltas(play.observations[0])
    taken = np.stack([place[:length] for place in places], 1)
    nothing = np.zeros((*found.played.shape, 1))
    light = found._replace(observations=nothing, actions=nothing, final_deltas=nothing)
    first: Step = jax.tree.map(lambda array: array[taken[:, 0], 0], found)
    return jax.tree.map(lambda array: array[taken, np.arange(count)], light), first, last


def recording(config: Config, first: Step, last: Any, *, longest: int = RECORDED) -> dict[str, np.ndarray]:
    """The first episode of a stream, for `rollout.npz`: whole games, whatever ends for the learner in between.

    Args:
        config: Settings.
        first: The steps of one stream.
        last: W of the observation after the stream's last step, (Z,).
        longest: At most so many steps of it.
    """
    arrays = jax.tree.map(np.asarray, first)
    ends = np.flatnonzero(arrays.finished_lengths > 0)
    length = min(int(ends[0]) + 1 if len(ends) else len(arrays.rewards), longest)
    ended = bool(arrays.terminated[length - 1] | arrays.truncated[length - 1])
    beyond = (
        arrays.final_deltas[length - 1] if ended else arrays.deltas[length] if length < len(arrays.rewards) else last
    )
    kept = {name: getattr(arrays, name)[:length] for name in ("actions", "rewards", "deltas")}
    flags = {name: getattr(arrays, name)[:length] for name in ("terminated", "truncated")}
    seen = arrays.observations[:length].astype(config.environment_object().storage)
    gammas = np.asarray(config.critic_scales.gammas)
    return {"observations": seen, **kept, "last_deltas": np.asarray(beyond), **flags, "gammas": gammas}


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
        rewarded, played = 0, np.zeros(count, int)
        with Play(policy.config, policy.learned, count, seed, "held-out") as play:
            while played.min() < length:
                if name == "trained":
                    moves = np.asarray(play.chosen().moves)
                else:
                    moves = environment.first_action + rng.integers(environment.action_space.n, size=count)
                moved = play.step(moves)
                counts = moved.played & (played < length)  # a step that only resets is none
                rewarded += int(np.count_nonzero(moved.rewards[counts]))
                played += counts
        found[name] = 100 * rewarded / (length * count)
    return {**found, "steps": length * count, "seed": seed}
