"""Rollouts of host environments: the policy is compiled, the environments are stepped, and the same code learns.

What the learner needs stays on its device: every observation goes there once, as it is stored, and only the actions
come back. On a GPU the environments are two halves; while one half steps, the other half's actions are computed.
"""

import threading
import time
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tddelta.deep import actions, ppo
from tddelta.deep.config import Config
from tddelta.deep.host import Moved, Vector, spawned_seeds
from tddelta.deep.rollout import Rollout, inputs, learned_rewards
from tddelta.deep.tasks import HostEnvironment


class Acted(NamedTuple):
    """What acting leaves behind for the learner; see `Rollout`."""

    observations: jax.Array
    actions: jax.Array
    log_probabilities: jax.Array
    heads: jax.Array


class HostPrograms(NamedTuple):
    """The compiled programs of a configuration on the host.

    Attributes:
        init: (config, key) → state.
        noise: key of the state → (key, noise of all actions (rows, B, …), key of the shuffling).
        act: (learned, acted, noise, row, observations) → (acted, actions for the environment).
        value: (learned, observations (B, …)) → heads (B, …).
        learn: (config, state, rollout, last observations, key) → (state, metrics).
        join: `Acted` of every part → `Acted`.
        pick: (acted, places in row · B + environment) → `Acted` of one lane.
        move: (acted, row) → the same with this row as the first.
        empty: () → `Acted` for a rollout.
        rows: How many rows `Acted` has.
        seconds: What compiling took.
        shapes: Of the state.
    """

    init: Any
    noise: Any
    act: Any
    value: Any
    learn: Any
    join: Any
    pick: Any
    move: Any
    empty: Any
    rows: int
    seconds: float
    shapes: Any


_programs: dict[Hashable, HostPrograms] = {}
_guard = threading.Lock()
_KEPT = 16


def programs(config: Config, *, waits: bool = False, parts: int = 1) -> HostPrograms:
    """Compile the programs of a configuration once per process, whatever thread asks.

    Args:
        config: Settings.
        waits: Whether the environments reset themselves in a step of its own, so that a rollout takes up to twice as
            many steps, and one row more (see `Player`).
        parts: Equal groups of environments that act in turn.
    """
    key = (jax.tree.structure(config), waits, parts)
    with _guard:
        if key not in _programs:
            if len(_programs) >= _KEPT:
                _programs.clear()
            _programs[key] = _compiled(config, waits, parts)
        return _programs[key]


def _compiled(config: Config, waits: bool, parts: int) -> HostPrograms:
    began = time.perf_counter()
    environment = config.environment_object()
    rows = 2 * config.rollout_length + 1 if waits else config.rollout_length
    count = config.environments // parts

    def noise(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, rollout_key, shuffle_key = jax.random.split(key, 3)
        drawn = actions.noise(environment, rollout_key, (rows, parts, count))
        return key, jnp.moveaxis(drawn, 1, 0), shuffle_key

    def evaluated(learned: ppo.Learned, observations: jax.Array) -> Any:
        acting = ppo.network(config, learned.parameters)
        return jax.vmap(lambda one: acting(inputs(one, learned.observation_moments)))(observations)

    def step(learned: ppo.Learned, drawn: jax.Array, observations: jax.Array) -> Acted:
        policy, heads = evaluated(learned, observations)
        action = actions.sample(environment, policy, drawn)
        return Acted(observations, action, actions.log_probability(environment, policy, action), heads)

    def act(
        learned: ppo.Learned, acted: Acted, drawn: jax.Array, row: jax.Array, observations: jax.Array
    ) -> tuple[Acted, jax.Array]:
        new = step(learned, drawn[row], observations)
        moves = actions.to_environment(environment, new.actions)
        acted = jax.tree.map(lambda all_rows, one: all_rows.at[row].set(one), acted, new)
        return acted, moves

    def value(learned: ppo.Learned, observations: jax.Array) -> jax.Array:
        heads: jax.Array = evaluated(learned, observations)[1]
        return heads

    def empty() -> Acted:
        made: Acted = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), one_step)
        return made

    def pick(acted: Acted, places: jax.Array) -> Acted:
        lane: Acted = jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:])[places][:, None], acted)
        return lane

    key, row = jax.random.key(0), jax.ShapeDtypeStruct((), jnp.int32)
    state = jax.eval_shape(ppo.init, config, key)
    seen = jax.ShapeDtypeStruct((count, *environment.observation_shape), environment.storage)
    drawn = jax.eval_shape(noise, key)[1]
    part = jax.ShapeDtypeStruct(drawn.shape[1:], drawn.dtype)
    one_step = jax.eval_shape(lambda learned, drawn, seen: step(learned, drawn[0, 0], seen), state.learned, drawn, seen)
    acted = jax.eval_shape(empty)
    lanes = (config.batch, 1) if waits else (config.rollout_length, config.environments)
    rollout, last = _shapes(config, lanes, one_step)
    return HostPrograms(
        init=jax.jit(ppo.init).lower(config, key).compile(),
        noise=jax.jit(noise).lower(key).compile(),
        act=jax.jit(act, donate_argnums=1).lower(state.learned, acted, part, row, seen).compile(),
        value=jax.jit(value).lower(state.learned, seen).compile(),
        learn=jax.jit(ppo.learn).lower(config, state, rollout, last, key).compile(),
        join=jax.jit(lambda all_parts: jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), *all_parts)),
        pick=jax.jit(pick),
        move=jax.jit(lambda acted, row: jax.tree.map(lambda rows: rows.at[0].set(rows[row]), acted), donate_argnums=0),
        empty=jax.jit(empty).lower().compile(),
        rows=rows,
        seconds=time.perf_counter() - began,
        shapes=state,
    )


def _shapes(config: Config, lanes: tuple[int, int], one: Acted) -> tuple[Rollout, Any]:
    """Shapes of a rollout in so many rows and lanes, and of its last observations; `one` is of a row."""

    def every(dtype: Any, *shape: int, lanes: tuple[int, ...] = lanes) -> Any:
        return jax.ShapeDtypeStruct((*lanes, *shape), dtype)

    finished = {"lanes": (config.rollout_length, config.environments)}
    rollout = Rollout(
        **{name: every(leaf.dtype, *leaf.shape[1:]) for name, leaf in one._asdict().items()},
        final_heads=every(one.heads.dtype, config.heads),
        final_finite=every(bool),
        last_heads=every(one.heads.dtype, config.heads, lanes=lanes[1:]),
        rewards=every(jnp.float32),
        reward_returns=every(jnp.float32),
        terminated=every(bool),
        truncated=every(bool),
        finished_returns=every(jnp.float32, **finished),
        finished_lengths=every(jnp.int32, **finished),
    )
    seen = one.observations
    return rollout, every(seen.dtype, *seen.shape[1:], lanes=lanes[1:])


class Rows(NamedTuple):
    """What the environments did at every step, (rows, B) each; see `Rollout` and `Moved`."""

    rewards: np.ndarray
    reward_returns: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    played: np.ndarray
    finite: np.ndarray


class Player:
    """The environments of one run, its policy's steps in them, and updates from these.

    Where environments reset themselves in a step of its own, such steps are left out: a rollout is then made of the
    first `config.batch` steps that the environments played, as one lane, environment after environment, with a
    bootstrapped cut between them. Steps beyond that number come first in the next rollout.

    Args:
        config: Settings.
        seed: Of the run.
        part: 0 for a new run; else updates done before the environments are made anew.

    Attributes:
        seeds: Those of the environments.
        programs: The compiled programs.
    """

    def __init__(self, config: Config, seed: int, part: int = 0) -> None:
        environment = config.environment_object()
        assert isinstance(environment, HostEnvironment)
        self._config, self._environment = config, environment
        self.seeds = spawned_seeds(seed, "train", config.environments, part)
        parts = _parts(config, environment)
        self._width = config.environments // parts
        self._vectors: list[Vector] = []
        try:
            for start in range(0, config.environments, self._width):
                self._vectors.append(Vector(environment, self.seeds[start : start + self._width]))
            self._waits = self._vectors[0].waits
            self.programs = programs(config, waits=self._waits, parts=parts)
            self._seen = [vector.reset() for vector in self._vectors]
        except BaseException:
            self.close()
            raise
        self._acted = [self.programs.empty() for _ in self._vectors]
        self._dtype = self._acted[0].heads.dtype  # float64 where JAX computes with 64 bits
        count = config.environments
        self._rows = Rows(*(np.zeros((self.programs.rows, count), kind) for kind in (np.float32,) * 2 + (bool,) * 4))
        self._finals: dict[tuple[int, int], np.ndarray] = {}
        self._finished: list[tuple[int, float, int]] = []
        self._returns, self._reward_returns = np.zeros(count), np.zeros(count)
        self._lengths: np.ndarray = np.zeros(count, np.int32)
        self._steps = np.full(count, part * config.rollout_length)
        self._played = 0

    def close(self) -> None:
        """Close the environments."""
        for vector in self._vectors:
            vector.close()

    def block(self, config: Config, state: ppo.State, count: Any) -> tuple[ppo.State, ppo.Metrics, np.ndarray]:
        """So many updates, fewer if one meets a fault, as `training.programs` has it for device environments."""
        found: list[ppo.Metrics] = []
        while len(found) < int(count) and not (found and found[-1].fault):
            state, metrics = self.update(config, state)
            found.append(metrics)
        stacked: ppo.Metrics = jax.tree.map(lambda *rows: np.stack(rows), *found)
        return state, stacked, np.array(len(found))

    def update(self, config: Config, state: ppo.State) -> tuple[ppo.State, ppo.Metrics]:
        """A rollout, and what is learned from it."""
        key, drawn, shuffle_key = self.programs.noise(state.key)
        self._finished = []
        if self._waits:
            rollout, last, places = self._in_one_lane(state.learned, drawn[0])
        else:
            places = None
            rollout, last = self._in_lanes(state.learned, list(drawn))
        before = int(state.updates)
        state, metrics = self.programs.learn(config, state._replace(key=key), rollout, last, shuffle_key)
        metrics = jax.device_get(metrics)
        if places is not None:
            environments = places % config.environments
            if metrics.fault in (1, 2):  # of a reward or an observation: which step of which environment that was
                found = int(metrics.fault_step) - before * len(places)
                environment = environments[found]
                step = self._steps[environment] + np.sum(environments[:found] == environment)
                metrics = metrics._replace(fault_step=np.int32(step), fault_environment=np.int32(environment))
            self._steps += np.bincount(environments, minlength=config.environments)
        return state, metrics

    def _in_lanes(self, learned: ppo.Learned, drawn: list[jax.Array]) -> tuple[Rollout, np.ndarray]:
        """The rollout where every row of every environment is a step: a lane is an environment."""
        self._finals, self._played = {}, 0
        for row in range(self.programs.rows):
            for part, vector in enumerate(self._vectors):
                if row:
                    self._note(part, row - 1, vector.finish())
                self._act(part, row, learned, drawn[part])
        for part, vector in enumerate(self._vectors):
            self._note(part, self.programs.rows - 1, vector.finish())
        acted = self._acted[0] if len(self._acted) == 1 else self.programs.join(self._acted)
        rows = self._rows
        final_heads: np.ndarray = np.zeros((*rows.rewards.shape, self._config.heads), self._dtype)
        for place, heads in zip(self._finals, self._values(learned, list(self._finals.values())), strict=True):
            final_heads[place] = heads
        last = np.concatenate(self._seen)
        return self._rollout(acted, rows, final_heads, self._values(learned, list(last))), last

    def _in_one_lane(self, learned: ppo.Learned, drawn: jax.Array) -> tuple[Rollout, np.ndarray, np.ndarray]:
        """The rollout without rows that are resets, and the place of each of its steps in row · B + environment."""
        rows, needed, width = self._rows, self._config.batch, self._config.environments
        self._played, row = int(rows.played[0].sum()), 0
        while self._played < needed:
            row += 1
            self._act(0, row, learned, drawn)
            self._note(0, row, self._vectors[0].finish())
        taken = rows.played[: row + 1].copy()
        left = np.flatnonzero(taken[row])[int(taken[row].sum()) - (self._played - needed) :]
        taken[row, left] = False
        environments, steps = np.nonzero(taken.T)
        places = steps * width + environments
        picked = Rows(*(array.reshape(-1)[places][:, None] for array in rows))
        final_heads: np.ndarray = np.zeros((needed, 1, self._config.heads), self._dtype)
        # The step before a cut of ours, or before an end that was truncated, is followed by what is known of there.
        following = {place: seen for place, seen in self._finals.items() if taken[place]}
        for last in np.flatnonzero(np.append(np.diff(environments) > 0, True)):
            place = (int(steps[last]), int(environments[last]))
            if not (rows.terminated[place] or rows.truncated[place]):
                seen = self._acted[0].observations[row] if place[1] in left else self._seen[0]
                following[place] = np.asarray(seen[place[1]])
        order = {int(place): index for index, place in enumerate(places)}
        for (step, environment), heads in zip(following, self._values(learned, list(following.values())), strict=True):
            index = order[step * width + environment]
            final_heads[index], picked.truncated[index] = heads, True
        acted = self.programs.pick(self._acted[0], places)
        last_seen = self._seen[0][-1:]
        rollout = self._rollout(acted, picked, final_heads, np.zeros((1, self._config.heads), self._dtype))
        self._keep(row, left)
        return rollout, last_seen, places

    def _keep(self, row: int, left: np.ndarray) -> None:
        """Let the steps of these environments in a row be the first of the next rollout."""
        self._acted[0] = self.programs.move(self._acted[0], np.int32(row))
        for array in self._rows:
            array[0] = array[row]
        self._rows.played[0] = np.isin(np.arange(self._config.environments), left)
        self._finals = {(0, one): seen for (step, one), seen in self._finals.items() if step == row and one in left}

    def _rollout(self, acted: Acted, rows: Rows, final_heads: np.ndarray, last_heads: np.ndarray) -> Rollout:
        shape = self._config.rollout_length, self._config.environments
        returns, lengths = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        for number, score, length in self._finished:
            place = np.unravel_index(min(number, self._config.batch - 1), shape)
            returns[place], lengths[place] = score, length
        return Rollout(
            *acted,
            # Copies: the arrays of the host are written to again while the learner may still read.
            **{
                name: jnp.array(getattr(rows, name))
                for name in ("rewards", "reward_returns", "terminated", "truncated")
            },
            final_finite=jnp.array(rows.finite),
            final_heads=jnp.asarray(final_heads),
            last_heads=jnp.asarray(last_heads),
            finished_returns=jnp.asarray(returns),
            finished_lengths=jnp.asarray(lengths),
        )

    def _act(self, part: int, row: int, learned: ppo.Learned, drawn: jax.Array) -> None:
        act, seen = self.programs.act, self._seen[part]
        self._acted[part], chosen = act(learned, self._acted[part], drawn, np.int32(row), seen)
        self._vectors[part].begin(np.asarray(chosen))

    def _note(self, part: int, row: int, moved: Moved) -> None:
        """What a step of one part of the environments did."""
        config = self._config
        here = slice(part * self._width, (part + 1) * self._width)
        terminated, truncated = moved.terminated, moved.truncated
        if config.time_limit == "terminate":
            terminated, truncated = terminated | truncated, np.zeros_like(truncated)
        finite: np.ndarray = np.ones(self._width, bool)
        if config.time_limit == "truncate":
            for place, seen in moved.finals.items():
                self._finals[row, part * self._width + place] = seen
                finite[place] = bool(np.all(np.isfinite(seen)))
        learned = np.asarray(learned_rewards(config, moved.rewards), np.float64)
        self._reward_returns[here] = learned + config.return_discount * self._reward_returns[here]
        new = (moved.rewards, self._reward_returns[here], terminated, truncated, moved.played, finite)
        for array, values in zip(self._rows, new, strict=True):
            array[row, here] = values
        self._reward_returns[here][terminated | truncated | ~moved.played] = 0.0
        self._returns[here] += np.where(moved.played, moved.rewards, 0.0)
        self._lengths[here] += moved.played
        # Numbered as they were played: steps of one row stand beside one another.
        numbers = (
            self._played + np.cumsum(moved.played) - 1
            if self._waits
            else row * config.environments + np.arange(here.start, here.stop)
        )
        for one in np.flatnonzero(moved.over).tolist():
            place = part * self._width + one
            self._finished.append((int(numbers[one]), self._returns[place], int(self._lengths[place])))
        self._returns[here][moved.over] = 0.0
        self._lengths[here][moved.over] = 0
        self._played += int(moved.played.sum())
        self._seen[part] = moved.observations

    def _values(self, learned: ppo.Learned, observations: list[np.ndarray]) -> np.ndarray:
        """The critic's outputs for so many observations, (N, heads); the program takes one part's number at a time."""
        found = [np.zeros((0, self._config.heads), self._dtype)]
        for start in range(0, len(observations), self._width):
            some = observations[start : start + self._width]
            filled = some + [some[0]] * (self._width - len(some))
            found.append(np.asarray(self.programs.value(learned, np.stack(filled)))[: len(some)])
        return np.concatenate(found)


def _parts(config: Config, environment: HostEnvironment) -> int:
    """Two halves that act in turn where acting does not need the processors that step; one otherwise."""
    alternate = environment.overlaps and jax.default_backend() != "cpu"
    return 2 if alternate and config.environments % 2 == 0 and config.environments >= 16 else 1
