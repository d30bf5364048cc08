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

    def mean_return(learning_rate, key):
        """Mean return of the episodes that ended in the last quarter of training."""
        _, metrics = ppo.train(replace(config, learning_rate=learning_rate), key)
        last = slice(-(config.updates // 4), None)
        returns, lengths = metrics.finished_returns[last], metrics.finished_lengths[last]
        ended = lengths > 0
        return jnp.where(ended, returns, 0).sum() / ended.sum()

    over_seeds = jax.vmap(mean_return, in_axes=(None, 0))
    over_both = jax.vmap(over_seeds, in_axes=(0, None))
    scores = jax.jit(over_both)(learning_rates, keys)
    for learning_rate, of_seeds in zip(learning_rates, scores, strict=True):
        print(f"learning rate {learning_rate:.0e}: " + "  ".join(f"{score:6.2f}" for score in of_seeds))


if __name__ == "__main__":
    main()
