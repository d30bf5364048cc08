"""Common parts of the deep learner's tests: environments with a script, and programs that are compiled once."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from tddelta.deep import ppo
from tddelta.deep.config import Config
from tddelta.deep.rollout import Playing, Rollout, collect


class TwoActions:
    """The spaces of an environment."""

    seen: spaces.Box

    def observation_space(self, params=None):
        return self.seen

    def action_space(self, params=None):
        return spaces.Discrete(2)


class Script(NamedTuple):
    """State of one `Scripted` environment: what will happen at each step, and where it is.

    Nothing of it is part of the program, so that one compiled rollout plays every script.
    """

    lane: jax.Array
    clock: jax.Array
    began: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    truncated: jax.Array


def features(lane: Any, began: Any, clock: Any) -> Any:
    """The observation at a step of an episode; the first of the next episode differs from the last of this one."""
    xp = jnp if any(isinstance(value, jax.Array) for value in (lane, began, clock)) else np
    return xp.stack([xp.sin(lane + 1.0), xp.cos(1.7 * clock), 0.1 * began - 0.5, 0.1 * (clock - began)])


class Scripted(TwoActions):
    """Follows the script in its state; `play` puts one there. Without a script: reward 0 for ever."""

    length, seen = 64, spaces.Box(-5.0, 5.0, (4,))

    def reset(self, key, params=None):
        nothing = jnp.zeros(self.length)
        never = jnp.zeros(self.length, bool)
        state = Script(jnp.int32(0), jnp.int32(0), jnp.int32(0), nothing, never, never)
        return features(state.lane, state.began, state.clock), state

    def step(self, key, state, action, params=None):
        now, clock = state.clock, state.clock + 1
        terminated, truncated = state.terminated[now], state.truncated[now]
        final = features(state.lane, state.began, clock)
        state = state._replace(clock=clock, began=jnp.where(terminated | truncated, clock, state.began))
        observation = features(state.lane, state.began, clock)
        return observation, state, state.rewards[now], terminated, truncated, {"final_observation": final}


SCRIPTED = Scripted()


def play(playing: Any, rewards: Any, terminated: Any, truncated: Any) -> Any:
    """`Playing` of `Scripted` environments at the start of a script, all arrays (time, environments)."""

    def padded(array: Any, kind: Any) -> jax.Array:
        array = np.asarray(array, kind)
        return jnp.asarray(np.pad(array, ((0, Scripted.length - len(array)), (0, 0))).T)

    count = np.shape(rewards)[1]
    lanes, zeros = jnp.arange(count, dtype=jnp.int32), jnp.zeros(count, jnp.int32)
    script = Script(lanes, zeros, zeros, padded(rewards, np.float32), padded(terminated, bool), padded(truncated, bool))
    return playing._replace(environment=script, observation=jax.vmap(features)(lanes, zeros, zeros))


class Typed(NamedTuple):
    """State of `TwoLengths`."""

    long: jax.Array
    time: jax.Array


class TwoLengths(TwoActions):
    """Half of the environments have episodes of 1 step and return 1, the others of 11 steps and return 10.

    And a thousandth more for every action 1.
    """

    seen = spaces.Box(0.0, 2.0, (2,))

    def reset(self, key, params=None):
        state = Typed(jax.random.bernoulli(key), jnp.int32(0))
        return self.observe(state), state

    def observe(self, state):
        return jnp.stack([state.long.astype(jnp.float32), 0.1 * state.time])

    def step(self, key, state, action, params=None):
        last = jnp.where(state.long, 11, 1)
        time = state.time + 1
        ended = time >= last
        reward = jnp.where(ended, jnp.where(state.long, 10.0, 1.0), 0.0) + 0.001 * action
        final = self.observe(state._replace(time=time))
        state = Typed(state.long, jnp.where(ended, 0, time))
        return self.observe(state), state, reward, ended, jnp.array(False), {"final_observation": final}


class Named(NamedTuple):
    """State of `Faulty`: a number that tells the environments apart, and the time since the start of training."""

    identity: jax.Array
    time: jax.Array


class Faulty(TwoActions):
    """At one step of the environments whose identity is listed something is not a number, or is too large.

    Which environments: `faults`, pairs of an identity and a kind. Identities come from the keys of the first
    reset, and stay.
    """

    step_of_fault, seen = 7, spaces.Box(-1.0, 1.0, (3,))

    def __init__(self, faults=()):
        self.faults = faults

    def reset(self, key, params=None):
        state = Named(jax.random.randint(key, (), 0, 2**31 - 1), jnp.int32(0))
        return self.observe(state), state

    def observe(self, state):
        share = (state.identity % 1000) / 1000
        return jnp.stack([share, jnp.sin(0.3 * state.time), jnp.cos(0.3 * state.time + share)])

    def step(self, key, state, action, params=None):
        now = state.time == self.step_of_fault
        reward = jnp.sin(0.1 * state.time) + action
        following = state._replace(time=state.time + 1)
        observation = self.observe(following)
        for identity, kind in self.faults:
            here = now & (state.identity == identity)
            if kind == "observation":
                observation = jnp.where(here, jnp.nan, observation)
            else:
                reward = jnp.where(here, {"reward": jnp.nan, "infinite": jnp.inf, "huge": 1e30}[kind], reward)
        terminated = following.time % 5 == 4
        final = {"final_observation": observation}
        return observation, following, reward, terminated, jnp.array(False), final


TINY = {
    "environments": 3,
    "rollout_length": 8,
    "epochs": 1,
    "minibatches": 1,
    "hidden_sizes": (8,),
    "steps": 96,
    "learning_rate": 1e-2,
}


def tiny(environment: Any = SCRIPTED, agent: Any = "ppo-delta", **settings: Any) -> Config:
    """A configuration whose programs compile as fast as they can."""
    own = callable(settings.get("network"))
    return ppo.preset(
        environment, agent, **{name: TINY[name] for name in TINY if not (own and name == "hidden_sizes")} | settings
    )


# Compiling is most of what these tests do, and their programs are small. What users run is compiled as users do it in
# the tests of whole runs, of equal bytes and of the examples.
QUICKLY = {"xla_backend_optimization_level": 0}

# Compiled once per process and configuration, whichever test asks first.
init = jax.jit(ppo.init, compiler_options=QUICKLY)
update = jax.jit(ppo.update, compiler_options=QUICKLY)


@functools.partial(jax.jit, compiler_options=QUICKLY)
def roll(config: Config, learned: ppo.Learned, playing: Playing, key: jax.Array) -> tuple[Playing, Rollout]:
    """A rollout of what is learned, as `ppo.update` plays it with the same key."""
    return collect(config, learned, playing, key)


@functools.cache
def state_of(config: Config) -> ppo.State:
    """The first state of seed 0."""
    return init(config, jax.random.key(0))
