"""Trains an agent of tddelta when told to; run by the other scripts with this project's Python."""

import functools
from typing import Any

import jax
from worker import Settings, serve

from tddelta.deep import ppo

UPDATES_PER_BLOCK = 8


def config_of(settings: Settings) -> ppo.Config:
    """Our names for the settings of a comparison."""
    return ppo.preset(
        settings.environment,
        settings.agent,
        environments=settings.environments,
        rollout_length=settings.rollout_length,
        epochs=settings.epochs,
        minibatches=settings.minibatches,
        learning_rate=settings.learning_rate,
        max_gradient_norm=settings.max_gradient_norm,
        value_coefficient=settings.value_coefficient,
        activation=settings.activation,
        network="mlp",
        hidden_sizes=(64, 64),
        # The clock decides how long the worker trains: with annealing it would learn at a rate of 0 in the end.
        anneal_learning_rate=False,
    )


def make(settings: Settings) -> tuple[Any, Any, int]:
    """Compile a block of updates; return it, its first state and the environment steps of a block."""
    config = config_of(settings)

    @functools.partial(jax.jit, donate_argnums=0)
    def block(state: ppo.State) -> tuple[ppo.State, ppo.Metrics]:
        # The metrics are computed as in a real run: they are the result of the block as well.
        return jax.lax.scan(lambda state, _: ppo.update(config, state), state, length=UPDATES_PER_BLOCK)

    state = jax.jit(ppo.init)(config, jax.random.key(settings.seed))
    compiled = block.lower(state).compile()

    def train(state: ppo.State) -> ppo.State:
        state, metrics = compiled(state)
        jax.block_until_ready(metrics)
        return state

    return train, state, UPDATES_PER_BLOCK * config.batch


if __name__ == "__main__":
    serve(make, wait=jax.block_until_ready)
