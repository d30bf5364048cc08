"""A single-file actor-critic in the style of PureJaxRL, with TD(Δ) targets: your own networks, loop and optimiser.

What TD(Δ) adds is marked (1) to (3); the rest is an ordinary advantage actor-critic on CartPole.

    python examples/own_loop_jax.py
"""

from typing import NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax

import tddelta as tdd

ENVIRONMENTS, T, UPDATES = 32, 32, 300
SCALES = tdd.TimeScales.halving(gamma=0.99, lam=0.95)  # (1) a ladder of discounts
ENVIRONMENT, PARAMETERS = gymnax.make("CartPole-v1")
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-3))


class Step(NamedTuple):
    """One step of every environment."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_observation: jax.Array


def network(key: jax.Array, sizes: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    """Weights of a small MLP."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def apply(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """The MLP's output."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def rollout(parameters, carry, key):
    """T steps of all environments."""

    def step(carry, key):
        observation, state = carry
        act_key, step_key = jax.random.split(key)
        action = jax.random.categorical(act_key, apply(parameters["actor"], observation))
        step_keys = jax.random.split(step_key, ENVIRONMENTS)
        next_observation, state, reward, terminated, truncated, info = jax.vmap(
            ENVIRONMENT.step, in_axes=(0, 0, 0, None)
        )(step_keys, state, action, PARAMETERS)
        taken = Step(observation, action, reward, terminated, truncated, info["final_observation"])
        return (next_observation, state), taken

    return jax.lax.scan(step, carry, jax.random.split(key, T))


def loss(parameters, steps: Step, targets, advantages):
    """Policy gradient, critic regression, entropy bonus."""
    log_policy = jax.nn.log_softmax(apply(parameters["actor"], steps.observation))
    log_probability = jnp.take_along_axis(log_policy, steps.action[..., None], axis=-1)[..., 0]
    entropy = -(jnp.exp(log_policy) * log_policy).sum(-1).mean()
    deltas = apply(parameters["critic"], steps.observation)
    critic_loss = 0.5 * ((deltas - targets) ** 2).sum(-1).mean()  # a sum over scales
    return -(log_probability * advantages).mean() + 0.5 * critic_loss - 0.01 * entropy


@jax.jit
def update(parameters, optimizer_state, carry, key):
    """One rollout and one gradient step."""
    carry, steps = rollout(parameters, carry, key)
    ends = {"terminated": steps.terminated, "truncated": steps.truncated}
    deltas = apply(parameters["critic"], steps.observation)
    next_deltas = tdd.successors(  # (3) W at the true successors: the critic's view of an episode's last observation
        deltas,
        apply(parameters["critic"], carry[0]),
        **ends,
        final_deltas=apply(parameters["critic"], steps.final_observation),
    )
    targets = tdd.lambda_targets(steps.reward, deltas, next_deltas, **ends, scales=SCALES)
    advantages = tdd.advantages(steps.reward, deltas, next_deltas, **ends, scales=SCALES)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gradients = jax.grad(loss)(parameters, steps, targets, advantages)
    changes, optimizer_state = OPTIMIZER.update(gradients, optimizer_state)
    return optax.apply_updates(parameters, changes), optimizer_state, carry, (steps.terminated | steps.truncated).mean()


def main() -> None:
    """Train and print how long episodes last."""
    actor_key, critic_key, reset_key, key = jax.random.split(jax.random.key(0), 4)
    parameters = {
        "actor": network(actor_key, (4, 64, 2)),
        "critic": network(critic_key, (4, 64, len(SCALES))),  # (2) one output per scale
    }
    optimizer_state = OPTIMIZER.init(parameters)
    reset_keys = jax.random.split(reset_key, ENVIRONMENTS)
    carry = jax.vmap(ENVIRONMENT.reset, in_axes=(0, None))(reset_keys, PARAMETERS)
    for number, update_key in enumerate(jax.random.split(key, UPDATES), start=1):
        parameters, optimizer_state, carry, ends = update(parameters, optimizer_state, carry, update_key)
        if number % 100 == 0:
            print(f"update {number}: about {1 / max(float(ends), 1e-3):.0f} steps per episode")


if __name__ == "__main__":
    main()
