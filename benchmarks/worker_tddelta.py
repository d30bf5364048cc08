"""Trains an agent of tddelta when told to; run by the other scripts with this project's Python."""

from typing import Any

import jax
from worker import Settings, serve

from tddelta.deep import ppo, training

UPDATES_PER_BLOCK = 8


def config_of(settings: Settings) -> ppo.Config:
    """Our names for the settings of a comparison."""
    return ppo.preset(
        settings.environment,
        settings.agent,
        **settings.shared,
        activation=settings.activation,
        network="mlp",
        hidden_sizes=(64, 64),
        steps=10**9,  # the clock ends the run: the learning rate must not be annealed to 0 before
    )


def make(settings: Settings) -> tuple[Any, Any, int]:
    """Compile the programs that `tddelta train` runs; return a block, its first state and its environment steps."""
    config = config_of(settings)
    compiled = training.programs(config)
    count = jax.numpy.int32(UPDATES_PER_BLOCK)

    def block(state: Any) -> Any:
        state, metrics, _ = compiled.block(config, state, count)
        jax.block_until_ready(metrics)
        return state

    return block, compiled.init(config, jax.random.key(settings.seed)), UPDATES_PER_BLOCK * config.batch


if __name__ == "__main__":
    serve(make, wait=jax.block_until_ready)
