"""Measures the return of a uniformly random policy on gymnax environments.

The numbers in `src/tddelta/report/references/minatar.json` come from

    python benchmarks/random_scores.py --episodes 4096 --seed 0

Every environment plays exactly one episode from its reset to its end, so long episodes count as
much as short ones.
"""

import argparse
import functools
import json
import math
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

MINATAR = (
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
)


def random_returns(name: str, episodes: int, seed: int) -> np.ndarray[Any, Any]:
    """Undiscounted return of one episode per copy of the environment, shape (episodes,)."""
    environment, parameters = gymnax.make(name)
    actions = environment.action_space(parameters)
    limit = int(parameters.max_steps_in_episode)

    @functools.partial(jax.jit, static_argnums=1)
    def play(key: jax.Array, length: int) -> tuple[jax.Array, jax.Array]:
        first_key, key = jax.random.split(key)
        _, state = jax.vmap(environment.reset, in_axes=(0, None))(jax.random.split(first_key, episodes), parameters)

        def step(carry: Any, step_key: jax.Array) -> tuple[Any, None]:
            state, total, running = carry
            act_key, move_key = jax.random.split(step_key)
            action = jax.vmap(actions.sample)(jax.random.split(act_key, episodes))
            _, state, reward, terminated, truncated, _ = jax.vmap(environment.step, in_axes=(0, 0, 0, None))(
                jax.random.split(move_key, episodes), state, action, parameters
            )
            total = total + jnp.where(running, reward, 0.0)
            return (state, total, running & ~(terminated | truncated)), None

        start = (state, jnp.zeros(episodes), jnp.ones(episodes, bool))
        (_, total, running), _ = jax.lax.scan(step, start, jax.random.split(key, length))
        return total, running

    returns, running = play(jax.random.key(seed), limit + 1)
    if bool(running.any()):
        raise RuntimeError(f"{name}: {int(running.sum())} episodes did not end in {limit} steps")
    return np.asarray(returns, np.float64)


def main() -> None:
    """Prints one JSON object per environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", nargs="+", default=MINATAR)
    parser.add_argument("--episodes", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.environments:
        returns = random_returns(name, arguments.episodes, arguments.seed)
        error = returns.std(ddof=1) / math.sqrt(len(returns))
        row = {
            "environment": name,
            "mean": round(float(returns.mean()), 4),
            "standard_error": round(float(error), 4),
            "episodes": len(returns),
            "seed": arguments.seed,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
