"""Small environments with a known value at every discount, to test learners with, and a long one to study.

Each has gymnax 1.0's interface and is named "tddelta.deep.probes:ConstantReward" on the command line.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from tddelta.deep.host import environment, spaces


@struct.dataclass
class Clock(environment.EnvState):
    """Time within the episode, and what the first action chose (−1 before it)."""

    choice: jax.Array


@struct.dataclass
class Parameters(environment.EnvParams):
    """Time limit in steps."""

    max_steps_in_episode: int = 1_000_000_000


class Probe(environment.Environment[Clock, Parameters]):
    """Base of the probes: a clock, and no hidden randomness but `noise`."""

    size: int
    actions: int = 2

    def __init__(self, **options: Any):
        super().__init__()
        for name, value in options.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no option {name!r}")
            setattr(self, name, value)

    @property
    def default_params(self) -> Parameters:
        """The time limit, gymnax's parameters."""
        return Parameters()

    def reset_env(self, key: jax.Array, params: Parameters) -> tuple[jax.Array, Clock]:
        """The episode starts at time 0."""
        state = Clock(time=jnp.int32(0), choice=jnp.int32(-1))
        return self.observe(key, state, None, params), state

    def step_env(self, key: jax.Array, state: Clock, action: Any, params: Parameters) -> Any:
        """One step of the clock."""
        choice = jnp.where(state.time == 0, action, state.choice).astype(jnp.int32)
        following = Clock(time=state.time + 1, choice=choice)
        reward, ended = self.outcome(key, following, jnp.asarray(action))
        return self.observe(key, following, action, params), following, reward, ended, {}

    def outcome(self, key: jax.Array, state: Clock, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Reward of the step into `state`, and whether it ends the episode."""
        raise NotImplementedError

    def observe(self, key: jax.Array, state: Clock, action: Any, params: Parameters) -> jax.Array:
        """A constant 1, where a probe does not say otherwise."""
        return jnp.ones(self.size)

    @property
    def num_actions(self) -> int:
        """Number of actions."""
        return self.actions

    def action_space(self, params: Any = None) -> spaces.Discrete:
        """Integers below the number of actions."""
        return spaces.Discrete(self.actions)

    def observation_space(self, params: Any) -> spaces.Box:
        """A vector of `size` numbers."""
        return spaces.Box(-1.0, 1.0, (self.size,))


class ConstantReward(Probe):
    """One state, reward 1 for ever: V_γ = 1/(1 − γ).

    With the option max_steps_in_episode the time limit cuts it; a learner that bootstraps there finds the same value.
    """

    size = 1

    def outcome(self, key: jax.Array, state: Clock, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Reward 1, never an end."""
        return jnp.float32(1), jnp.array(False)


class DelayedReward(Probe):
    """A chain of `length` states, reward 1 at its end: V_γ(s_i) = γ^(length − 1 − i)."""

    length = 4
    size = 4

    def __init__(self, length: int = 4):
        super().__init__(length=length)
        self.size = length

    def outcome(self, key: jax.Array, state: Clock, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Reward 1 and the end at the last step."""
        ended = state.time >= self.length
        return ended.astype(jnp.float32), ended

    def observe(self, key: jax.Array, state: Clock, action: Any, params: Parameters) -> jax.Array:
        """State of the chain, one-hot."""
        place: jax.Array = jnp.arange(self.size) == state.time
        return place.astype(jnp.float32)


class ActionReward(Probe):
    """Reward 1 for action 1, else 0, for ever: the best policy has V_γ = 1/(1 − γ)."""

    size = 1

    def outcome(self, key: jax.Array, state: Clock, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Reward 1 for action 1."""
        return (action == 1).astype(jnp.float32), jnp.array(False)


class LongDelay(Probe):
    """The first action chooses between a small reward soon and a large one late; nothing else matters.

    Action 0: reward `small` after `soon` steps. Any other: reward 1 after `length` steps. The episode ends after
    `length` steps in both cases. A discount γ prefers to wait iff γ^(length − soon) > small: with the defaults .99
    does not (2·10⁻⁹ < .3), .999 does not (.14), .9999 does (.82). The best return is 1.
    """

    length = 2000
    soon = 10
    small = 0.3
    size = 9

    def outcome(self, key: jax.Array, state: Clock, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The two rewards, and the end after `length` steps."""
        early = (state.choice == 0) & (state.time == self.soon)
        late = (state.choice > 0) & (state.time == self.length)
        reward = jnp.where(early, self.small, jnp.where(late, 1.0, 0.0))
        return reward.astype(jnp.float32), state.time >= self.length

    def observe(self, key: jax.Array, state: Clock, action: Any, params: Parameters) -> jax.Array:
        """The choice, one-hot with "nothing yet"; and the time, on three scales of smooth features."""
        chosen = jnp.arange(-1, 2) == jnp.minimum(state.choice, 1)
        share = state.time / self.length
        waves = [f(jnp.pi * k * share) for k in (1, 4) for f in (jnp.sin, jnp.cos)]
        near = jnp.exp(-state.time / self.soon)
        return jnp.concatenate([chosen.astype(jnp.float32), jnp.stack([2 * share - 1, *waves, near])])
