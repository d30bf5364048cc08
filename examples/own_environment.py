"""An environment of your own: one sweet now, or three after a long wait.

The first action decides: 0 gives reward 1 at once, 1 gives reward 3 at the end of the episode. Waiting is right exactly
if 3 γ^delay > 1, so the delay says how long a horizon an agent needs: 2,000 steps ask for γ above 0.99945.

    python examples/own_environment.py
    tddelta compare examples.own_environment:Marshmallow --env-kwargs '{"delay": 2000}' --gamma 0.9999
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

import tddelta as tdd


@struct.dataclass
class EnvState(environment.EnvState):
    """Steps taken, and whether the first action was to wait."""

    time: jax.Array
    waits: jax.Array


@struct.dataclass
class EnvParams(environment.EnvParams):
    """Nothing but the time limit, which no episode reaches: the wait ends it."""

    max_steps_in_episode: int = 1_000_000


class Marshmallow(environment.Environment[EnvState, EnvParams]):
    """A choice between 1 now and 3 later."""

    def __init__(self, delay: int = 20) -> None:
        super().__init__()
        self.delay = delay

    @property
    def default_params(self) -> EnvParams:
        """The parameters that `reset` and `step` use unless told otherwise."""
        return EnvParams()

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[jax.Array, EnvState]:
        """Start an episode."""
        state = EnvState(time=jnp.array(0), waits=jnp.array(False))
        return self.get_obs(state), state

    def step_env(
        self, key: jax.Array, state: EnvState, action: int | float | jax.Array, params: EnvParams
    ) -> tuple[jax.Array, EnvState, jax.Array, jax.Array, dict[Any, Any]]:
        """Take a step; the six values of `step` are made from these five by gymnax."""
        first = state.time == 0
        state = EnvState(time=state.time + 1, waits=jnp.where(first, jnp.asarray(action) == 1, state.waits))
        over = self.is_terminated(state, params)
        reward = jnp.where(first & ~state.waits, 1.0, 0.0) + jnp.where(over & state.waits, 3.0, 0.0)
        return self.get_obs(state), state, reward, over, {}

    def get_obs(self, state: EnvState, params: EnvParams | None = None, key: jax.Array | None = None) -> jax.Array:
        """Flags of the choice and of an agent that waits, and the share of the wait that is over."""
        return jnp.stack([state.time == 0, state.waits, state.time / self.delay]).astype(jnp.float32)

    def is_terminated(self, state: EnvState, params: EnvParams) -> jax.Array:
        """The episode ends when the wait is over, whatever was chosen."""
        return state.time >= self.delay

    @property
    def num_actions(self) -> int:
        """Take or wait."""
        return 2

    def action_space(self, params: EnvParams | None = None) -> spaces.Discrete:
        """0 takes the sweet, 1 waits."""
        return spaces.Discrete(2)

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Three numbers between 0 and 1."""
        return spaces.Box(0.0, 1.0, (3,), dtype=jnp.float32)


def main() -> None:
    """Train an agent whose horizon is long enough, and one whose horizon is not."""
    for gamma in (0.5, 0.99):
        run = tdd.train(Marshmallow(delay=20), "ppo-delta", steps=60_000, gamma=gamma)
        returns = run.episodes["returns"][-100:]
        print(f"γ = {gamma}: mean return of the last 100 episodes {returns.mean():.2f} (1 takes, 3 waits)")


if __name__ == "__main__":
    main()
