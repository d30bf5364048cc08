"""Playing with a trained agent: fixed quotas of episodes for scores, long streams for the critic, one for recording.

Everywhere `config` are the settings of the run, and `learned` is the agent; `greedy` says whether actions are the most
probable ones instead of drawn from the policy.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta._answers import check_finite
from tddelta._plain import whole
from tddelta.deep import rollout
from tddelta.deep.config import Config
from tddelta.deep.host import HostEnvironment, Moved, Vector, spawned_seeds
from tddelta.deep.policy import Chosen, Policy, choose
from tddelta.deep.rollout import Learned, Playing, Transition, advance, learned_rewards, start
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
    """Steps of streams, (time, streams, …), or of one of them, (time, …); see `Rollout`.

    Attributes:
        observations: Before the step.
        actions: As drawn.
        rewards: As the environment gave them.
        deltas: W before the step, (…, Z), in units of the learner's reward.
        final_deltas: W of the true successor; of host environments where the step was truncated, else 0.
        terminated: Also where a life was lost.
        truncated: False where terminated.
        finished_lengths: Steps of the episode whose score counts, where it ended; else 0.
    """

    observations: Any
    actions: Any
    rewards: Any
    deltas: Any
    final_deltas: Any
    terminated: Any
    truncated: Any
    finished_lengths: Any


def _advance(
    config: Config, learned: Learned, greedy: Any, playing: Playing, key: jax.Array
) -> tuple[Playing, Chosen, Transition]:
    environment: Any = config.environment_object()
    noise_key, step_key = jax.random.split(key)
    chosen = choose(config, learned, playing.observation, noise_key, greedy)
    keys = jax.random.split(step_key, playing.episode_return.shape[0])
    following, moved = advance(config, environment, playing, chosen.actions, keys)
    return following, chosen, moved


def _deltas(config: Config, learned: Learned, observations: jax.Array) -> jax.Array:
    return rollout.components(config, learned, rollout.evaluator(config, learned)(observations)[1])


class HostPlayer(Vector):
    """Fresh host environments in which an agent plays, step by step; to be closed in the end.

    The seed is that of environments and actions, for a purpose of `host.spawned_seeds`; `draws` says whether `picture`
    is asked for, which the environment must be able to do.
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
        self._config, self._learned, self._greedy, self._key = config, learned, greedy, jax.random.key(seed)
        super().__init__(environment, spawned_seeds(seed, purpose, count))
        try:
            self.reset()
        except BaseException:
            self.close()
            raise

    def chosen(self) -> Chosen:
        """Actions and components of the agent now."""
        key = jax.random.fold_in(self._key, self._steps)
        found: Chosen = choose(self._config, self._learned, self.observations, key, self._greedy)
        return found

    def step(self, moves: Any) -> Moved:
        """Let the environments make these moves.

        Raises:
            DataError: An observation or a reward is not finite.
        """
        when = f"step {self._steps}"
        self.begin(np.asarray(moves))
        moved = self.finish()
        check_finite(self._environment.name, when, observation=moved.observations, reward=moved.rewards)
        return moved

    def deltas(self, observation: np.ndarray) -> np.ndarray:
        """W of one observation, (Z,)."""
        rows = np.stack([observation] * len(self.observations))
        found: Chosen = choose(self._config, self._learned, rows, jax.random.key(0), True)
        deltas: np.ndarray = np.asarray(found.deltas)[0]
        return deltas


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
        following, _, moved = _advance(config, learned, greedy, playing, jax.random.fold_in(key, time))
        return following, (moved.finished_returns, moved.finished_lengths)

    return jax.lax.scan(step, playing, time + jnp.arange(_AT_ONCE))


def _device_scores(config: Config, learned: Learned, count: int, seed: int, greedy: bool) -> Iterator[tuple[Any, Any]]:
    start_key, key = jax.random.split(jax.random.key(seed))
    playing = _started(config, start_key, count=count)
    for time in itertools.count(0, _AT_ONCE):
        playing, found = _scores(config, learned, playing, key, time, greedy)
        yield found


Moves = Callable[[Chosen, np.ndarray], np.ndarray]
"""f(what the agent chose, steps of the running episodes (B,)) → moves in place of the agent's."""


def _host_scores(
    config: Config, learned: Learned, count: int, seed: int, greedy: bool, moves: Moves | None
) -> Iterator[tuple[Any, Any]]:
    with HostPlayer(config, learned, count, seed, "evaluate", greedy=greedy) as player:
        while True:
            chosen = player.chosen()
            moved = player.step(chosen.moves if moves is None else moves(chosen, player.lengths))
            yield moved.finished_returns[None], moved.finished_lengths[None]


def quota(
    config: Config,
    learned: Learned,
    quotas: np.ndarray,
    *,
    greedy: bool,
    seed: int,
    limit: int,
    moves: Moves | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play a fixed quota of episodes in every environment, (B,), of which each gives up after `limit` steps.

    Host environments take `moves` in place of the agent's. Gives returns, lengths, and which of the episodes were
    finished, (B, longest quota) each.
    """
    count, longest = len(quotas), int(quotas.max())
    if isinstance(config.environment_object(), HostEnvironment):
        found: Any = _host_scores(config, learned, count, seed, greedy, moves)
    else:
        found = _device_scores(config, learned, count, seed, greedy)
    returns, lengths = np.zeros((count, longest)), np.zeros((count, longest), int)
    done, time = np.zeros(count, int), 0
    with closing(found):
        while time < limit and np.any(done < quotas):
            scores, sizes = map(np.asarray, next(found))
            for row, one in np.argwhere(sizes[: limit - time] > 0):
                if done[one] < quotas[one]:
                    returns[one, done[one]], lengths[one, done[one]] = scores[row, one], sizes[row, one]
                    done[one] += 1
            time += len(sizes)
    return returns, lengths, np.arange(longest) < done[:, None]


def checked(name: str, number: Any, mode: Any, seed: Any, most: int = MOST) -> tuple[int, int]:
    """A number of episodes or steps, by its name, and a seed; ConfigError where one of them or the mode is wrong."""
    number, seed = whole(name, number, most=most), whole("seed", seed, 0, most=2**32 - 1)
    if mode not in ("sampled", "greedy"):
        raise ConfigError(f"{setting('mode')} must be sampled or greedy; got {mode!r}")
    return number, seed


def evaluate(
    config: Config, learned: Learned, *, episodes: int = 128, mode: Mode = "sampled", seed: int = 0
) -> dict[str, Any]:
    """Scores of a fixed quota of episodes per environment, so that short episodes do not crowd out long ones.

    Args:
        config: Settings.
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
    episodes, seed = checked("episodes", episodes, mode, seed)
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
    episodes, seed = checked("episodes", episodes, mode, seed, 1000)
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
    """Play `count` streams of `length` steps in device environments.

    Gives all streams without observations and actions, (time, streams, …); the first stream whole, (time, …); and W of
    its observation after the last step, (Z,).
    """
    environment: Any = config.environment_object()
    start_key, key = jax.random.split(key)

    def step(playing: Playing, key: jax.Array) -> tuple[Playing, tuple[Step, Step]]:
        following, chosen, moved = _advance(config, learned, greedy, playing, key)
        row = Step(
            observations=playing.observation,
            actions=chosen.actions,
            rewards=moved.rewards,
            deltas=chosen.deltas,
            final_deltas=_deltas(config, learned, moved.final),
            terminated=moved.terminated,
            truncated=moved.truncated,
            finished_lengths=moved.finished_lengths,
        )
        light = row._replace(observations=jnp.zeros(()), actions=jnp.zeros(()))
        return following, (light, jax.tree.map(lambda leaf: leaf[0], row))

    playing, (rows, first) = jax.lax.scan(step, start(environment, start_key, count), jax.random.split(key, length))
    return rows, first, _deltas(config, learned, playing.observation)[0]


def host_streams(
    config: Config, learned: Learned, seed: int, *, count: int, length: int
) -> tuple[Step, Step, np.ndarray]:
    """Play in host environments, actions drawn from the policy; see `device_streams`.

    The streams are without the steps in which an environment only reset itself.
    """
    rows: list[Step] = []
    played: list[np.ndarray] = []
    counts = np.zeros(count, int)
    with HostPlayer(config, learned, count, seed, "held-out") as player:
        while counts.min() < length:
            seen, chosen = player.observations[0], jax.device_get(player.chosen())
            moved = player.step(chosen.moves)
            final = player.deltas(moved.finals[0]) if 0 in moved.finals else np.zeros_like(chosen.deltas[0])
            ends = moved.terminated, moved.truncated, moved.finished_lengths
            rows.append(Step(seen, chosen.actions[0], moved.rewards, chosen.deltas, final, *ends))
            played.append(moved.played)
            counts += moved.played
        found = Step(*map(np.stack, zip(*rows, strict=True)))
        places = [np.flatnonzero(column) for column in np.stack(played, axis=1)]
        # A stream without resets of its own is ahead of others: it knows what came after its last step.
        ahead = len(places[0]) > length
        last = found.deltas[places[0][length], 0] if ahead else player.deltas(player.observations[0])
    taken = np.stack([place[:length] for place in places], 1)
    of_first = {name: getattr(found, name)[taken[:, 0]] for name in ("observations", "actions", "final_deltas")}
    light = found._replace(**dict.fromkeys(of_first))
    first: Step = jax.tree.map(lambda array: array[taken[:, 0], 0], light)
    return jax.tree.map(lambda array: array[taken, np.arange(count)], light), first._replace(**of_first), last


def recording(config: Config, first: Step, last: Any, *, longest: int = RECORDED) -> dict[str, np.ndarray]:
    """The first episode of a stream, for `rollout.npz`: whole games, whatever ends for the learner in between.

    At most `longest` steps of it; `last` is W of the observation after the stream's last step, (Z,).
    """
    arrays = jax.tree.map(np.asarray, first)
    ends = np.flatnonzero(arrays.finished_lengths > 0)
    length = min(int(ends[0]) + 1 if len(ends) else len(arrays.rewards), longest)
    ended = bool(arrays.terminated[length - 1] | arrays.truncated[length - 1])
    following = [*arrays.deltas[1:], np.asarray(last)]
    return {
        "observations": arrays.observations[:length].astype(config.environment_object().storage),
        **{name: getattr(arrays, name)[:length] for name in ("actions", "rewards", "deltas")},
        "last_deltas": np.asarray(arrays.final_deltas[length - 1] if ended else following[length - 1]),
        **{name: getattr(arrays, name)[:length] for name in ("terminated", "truncated")},
        "gammas": np.asarray(config.critic_scales.gammas),
    }


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
    found: dict[str, Any] = {"steps": length * count, "seed": seed}
    for name in ("trained", "random"):
        rewarded, played = 0, np.zeros(count, int)
        with HostPlayer(policy.config, policy.learned, count, seed, "held-out") as player:
            while played.min() < length:
                drawn = None if name == "trained" else rng.integers(environment.action_space.n, size=count)
                moved = player.step(player.chosen().moves if drawn is None else environment.first_action + drawn)
                counts = moved.played & (played < length)  # a step that only resets is none
                rewarded += int(np.count_nonzero(moved.rewards[counts]))
                played += counts
        found[name] = 100 * rewarded / (length * count)
    return found
