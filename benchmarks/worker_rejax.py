"""Trains rejax's PPO when told to; run by `training_speed.py` with the Python of `.venv-rejax`."""

import jax
import rejax
from worker import Settings, serve

ITERATIONS_PER_BLOCK = 8


def make(settings: Settings) -> tuple[object, object, int]:
    """Compile a block of training iterations; return it, its first state and the environment steps of a block."""
    algorithm = rejax.PPO.create(
        env=settings.environment,
        num_envs=settings.environments,
        num_steps=settings.rollout_length,
        num_epochs=settings.epochs,
        num_minibatches=settings.minibatches,
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_gradient_norm,
        vf_coef=settings.value_coefficient,
        agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": settings.activation},
    )

    def block(state):
        return jax.lax.fori_loop(0, ITERATIONS_PER_BLOCK, lambda _, state: algorithm.train_iteration(state), state)

    state = jax.jit(algorithm.init_state)(jax.random.key(settings.seed))
    compiled = jax.jit(block, donate_argnums=0).lower(state).compile()
    return compiled, state, ITERATIONS_PER_BLOCK * settings.environments * settings.rollout_length


if __name__ == "__main__":
    serve(make, wait=jax.block_until_ready)
