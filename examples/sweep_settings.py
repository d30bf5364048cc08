"""Learning rates × seeds in one compiled program: continuous settings may be traced, so they can be vmapped.

python examples/sweep_settings.py
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from tddelta.deep import ppo


def main() -> None:
    """Train 3 × 2 agents at once."""
    config = ppo.preset("Catch-bsuite", "ppo-delta", steps=16_384, environments=16, rollout_length=64)
    learning_rates = jnp.array([3e-4, 1e-3, 3e-3])
    keys = jax.random.split(jax.random.key(0), 2)

    def train(learning_rate, key):
        _, metrics = ppo.train(replace(config, learning_rate=learning_rate), key)
        return metrics["return_mean"]

    over_seeds = jax.vmap(train, in_axes=(None, 0))
    over_both = jax.vmap(over_seeds, in_axes=(0, None))
    returns = jax.jit(over_both)(learning_rates, keys)  # (learning rate, seed, update)
    for learning_rate, last in zip(learning_rates, jnp.nanmean(returns[..., -4:], axis=(1, 2)), strict=True):
        print(f"learning rate {learning_rate:.0e}: mean return of the last updates {last:.2f}")


if __name__ == "__main__":
    main()
