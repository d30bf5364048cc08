"""PPO on CartPole in JAX, in the style of rlax: functions of one sequence, mapped over a batch.

`rlax_style_before.py` is plain PPO, `rlax_style.py` the same with TD(Δ): a mark ends each line that differs, and
docs/recipes.md says what it does.

    python examples/rlax_style.py --steps 150000
"""

from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import tddelta as tdd  # tddelta

ENVIRONMENTS, T, EPOCHS, MINIBATCHES = 32, 32, 4, 4
GAMMA, LAMBDA = 0.99, 0.95
SCALES = tdd.TimeScales.halving(GAMMA, lam=LAMBDA)  # tddelta
ENVIRONMENT, PARAMETERS = gymnax.make("CartPole-v1")
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-3))


class Step(NamedTuple):
    """One transition; the first three fields are of time t−1, the others of time t."""

    observation: jax.Array
    action: jax.Array
    log_probability: jax.Array
    reward: jax.Array
    successor: jax.Array  # what the step led to: at an episode's end not the observation after the reset
    terminated: jax.Array
    truncated: jax.Array
    episode: jax.Array  # return so far


def network(key: jax.Array, sizes: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and biases of a small MLP."""
    keys = jax.random.split(key, len(sizes) - 1)
    ends = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n)) for k, m, n in ends]


def apply(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """The MLP's output."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def log_policy(parameters: Any, observation: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logarithm of an action's probability, and the policy's entropy."""
    logs = jax.nn.log_softmax(apply(parameters["actor"], observation))
    return jnp.take_along_axis(logs, action[..., None], axis=-1)[..., 0], -(jnp.exp(logs) * logs).sum(-1)


def rollout(parameters: Any, carry: Any, key: jax.Array) -> tuple[Any, Step]:
    """T steps of all environments, time first."""

    def step(carry: Any, key: jax.Array) -> tuple[Any, Step]:
        observation, state, episode = carry
        act_key, step_key = jax.random.split(key)
        action = jax.random.categorical(act_key, apply(parameters["actor"], observation))
        log_probability = log_policy(parameters, observation, action)[0]
        following, state, reward, *flags, info = jax.vmap(ENVIRONMENT.step, (0, 0, 0, None))(
            jax.random.split(step_key, ENVIRONMENTS), state, action, PARAMETERS
        )
        episode = episode + reward
        taken = Step(observation, action, log_probability, reward, info["final_observation"], *flags, episode)
        return (following, state, jnp.where(flags[0] | flags[1], 0, episode)), taken

    return jax.lax.scan(step, carry, jax.random.split(key, T))


def evaluate(parameters: Any, steps: Step) -> tuple[jax.Array, jax.Array]:
    """Targets of the critic and advantages of the actor, for the sequence of one environment."""
    w_tm1 = apply(parameters["critic"], steps.observation)  # tddelta
    w_t = apply(parameters["critic"], steps.successor)  # tddelta
    flags = {"terminated": steps.terminated, "truncated": steps.truncated}  # tddelta
    targets = tdd.lambda_targets(steps.reward, w_tm1, w_t, **flags, scales=SCALES, form="difference")  # tddelta
    advantages = tdd.advantages(steps.reward, w_tm1, w_t, **flags, scales=SCALES)  # tddelta
    return targets, advantages


def loss(parameters: Any, steps: Step, targets: jax.Array, advantages: jax.Array) -> jax.Array:
    """PPO's loss for the sequence of one environment."""
    log_probability, entropy = log_policy(parameters, steps.observation, steps.action)
    ratio = jnp.exp(log_probability - steps.log_probability)
    policy_loss = -jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages).mean()
    value_loss = 0.5 * jnp.square(apply(parameters["critic"], steps.observation) - targets).sum(-1).mean()  # tddelta
    return policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()


@jax.jit
def update(parameters: Any, optimizer_state: Any, carry: Any, key: jax.Array) -> tuple[Any, Any, Any, Step]:
    """One rollout and some epochs of gradient descent; a minibatch is the sequences of some environments."""
    rollout_key, key = jax.random.split(key)
    carry, steps = rollout(parameters, carry, rollout_key)
    targets, advantages = jax.vmap(evaluate, (None, 1), 1)(parameters, steps)
    batch = steps, targets, (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    def descend(learned: tuple[Any, Any], chosen: jax.Array) -> tuple[tuple[Any, Any], None]:
        parameters, optimizer_state = learned
        rows = jax.tree.map(lambda x: x[:, chosen], batch)
        gradients = jax.grad(lambda p: jax.vmap(loss, (None, 1, 1, 1))(p, *rows).mean())(parameters)
        changes, optimizer_state = OPTIMIZER.update(gradients, optimizer_state)
        return (optax.apply_updates(parameters, changes), optimizer_state), None

    orders = jnp.argsort(jax.random.uniform(key, (EPOCHS, ENVIRONMENTS)))  # each a permutation of the environments
    minibatches = orders.reshape(EPOCHS * MINIBATCHES, -1)
    (parameters, optimizer_state), _ = jax.lax.scan(descend, (parameters, optimizer_state), minibatches)
    return parameters, optimizer_state, carry, steps


def train(steps: int = 150_000, seed: int = 0) -> tuple[Any, list[float]]:
    """The trained networks, and the return of every episode on the way.

    Args:
        steps: Steps of all environments together.
        seed: Of everything.
    """
    actor_key, critic_key, reset_key, key = jax.random.split(jax.random.key(seed), 4)
    parameters = {"actor": network(actor_key, (4, 64, 2))}
    parameters["critic"] = network(critic_key, (4, 64, len(SCALES)))  # tddelta
    optimizer_state = OPTIMIZER.init(parameters)
    observation, state = jax.vmap(ENVIRONMENT.reset, (0, None))(jax.random.split(reset_key, ENVIRONMENTS), PARAMETERS)
    carry, episodes = (observation, state, jnp.zeros(ENVIRONMENTS)), []
    for number, update_key in enumerate(jax.random.split(key, steps // (ENVIRONMENTS * T)), start=1):
        parameters, optimizer_state, carry, taken = update(parameters, optimizer_state, carry, update_key)
        episodes += taken.episode[taken.terminated | taken.truncated].tolist()
        if number % 25 == 0:
            print(f"{number * ENVIRONMENTS * T:7d} steps, return {np.mean(episodes[-20:]):5.1f}")
    return parameters, episodes


if __name__ == "__main__":
    _, episodes = tyro.cli(train)
    print(f"mean return: first 20 episodes {np.mean(episodes[:20]):.0f}, last 20 {np.mean(episodes[-20:]):.0f}")
