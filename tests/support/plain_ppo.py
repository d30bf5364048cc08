"""PPO with one value function, written plainly to compare with: no import of tddelta.

NumPy loops over environments and steps; JAX only for gradients and for stepping gymnax's CartPole. Randomness comes
from outside: the Gumbel noise of the actions, the keys of the environments, the order of the minibatches.
"""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np


def network(layers, x):
    """Dense layers, tanh after each but the last."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def log_probabilities(parameters, observations, actions):
    logits = network(parameters["policy"], observations)
    logs = logits - jax.scipy.special.logsumexp(logits, axis=1, keepdims=True)
    return logs[np.arange(len(actions)), actions], logs


def loss(parameters, rows, clip, entropy_coefficient, value_coefficient):
    """PPO's loss, and what to report of it."""
    observations, actions, old, advantages, returns = rows
    new, logs = log_probabilities(parameters, observations, actions)
    ratio = jnp.exp(new - old)
    surrogate = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages)
    policy_loss = -surrogate.mean()
    value_loss = 0.5 * ((network(parameters["critic"], observations)[:, 0] - returns) ** 2).mean()
    entropy = -(jnp.exp(logs) * logs).sum(1).mean()
    kl = (ratio - 1 - (new - old)).mean()
    clipped = (jnp.abs(ratio - 1) > clip).mean()
    total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    return total, (policy_loss, value_loss, entropy, kl, clipped)


class PlainPPO:
    """Everything a run of plain PPO on CartPole is.

    `parameters` holds the layers of "policy" and "critic", pairs of weights and biases.
    """

    def __init__(self, parameters, states, observations, time_limit, **settings):
        self.environment, default = gymnax.make("CartPole-v1")
        self.limits = default.replace(max_steps_in_episode=time_limit)
        self.step_all = jax.jit(jax.vmap(self.environment.step, (0, 0, 0, None)))
        self.parameters, self.states, self.observations = parameters, states, observations
        self.settings = settings
        self.first = jax.tree.map(np.zeros_like, parameters)
        self.second = jax.tree.map(np.zeros_like, parameters)
        self.adam_steps = 0
        self.gradient = jax.jit(jax.grad(loss, has_aux=True))
        self.terminations = self.truncations = 0

    def value(self, observations):
        return np.asarray(network(self.parameters["critic"], jnp.asarray(observations)))[:, 0].astype(np.float64)

    def rollout(self, noise, keys):
        """Steps of all environments; `following` is the value of the true successor of each step."""
        names = ("observations", "actions", "logs", "values", "following", "rewards", "terminated", "ended")
        steps = {name: [] for name in names}
        for drawn, step_keys in zip(noise, keys, strict=True):
            seen = np.asarray(self.observations)
            actions = np.argmax(np.asarray(network(self.parameters["policy"], seen)) + np.asarray(drawn), axis=1)
            logs, _ = log_probabilities(self.parameters, seen, actions)
            self.observations, self.states, rewards, terminated, truncated, info = self.step_all(
                step_keys, self.states, actions, self.limits
            )
            terminated, truncated = np.asarray(terminated), np.asarray(truncated)
            self.terminations += terminated.sum()
            self.truncations += (truncated & ~terminated).sum()
            following = np.where(terminated, 0.0, self.value(info["final_observation"]))
            row = (seen, actions, logs, self.value(seen), following, rewards, terminated, terminated | truncated)
            for name, array in zip(names, row, strict=True):
                steps[name].append(np.asarray(array))
        return {name: np.stack(arrays) for name, arrays in steps.items()}

    def advantages(self, steps, gamma, lam):
        """Generalised advantage estimation, one environment after the other."""
        found = np.zeros(steps["values"].shape)
        for lane in range(found.shape[1]):
            later = 0.0
            for t in reversed(range(len(found))):
                error = steps["rewards"][t, lane] + gamma * steps["following"][t, lane] - steps["values"][t, lane]
                later = error + (0.0 if steps["ended"][t, lane] else gamma * lam * later)
                found[t, lane] = later
        return found

    def adam(self, gradients, rate):
        """One step of Adam on gradients of limited norm; returns the norm before."""
        leaves = jax.tree.leaves(gradients)
        norm = np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in leaves))
        scale = min(1.0, self.settings["max_gradient_norm"] / norm)
        self.adam_steps += 1
        self.first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * scale * g, self.first, gradients)
        self.second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * (scale * g) ** 2, self.second, gradients)
        grown = [1 - decay**self.adam_steps for decay in (0.9, 0.999)]
        self.parameters = jax.tree.map(
            lambda p, m, v: p - rate * (m / grown[0]) / (np.sqrt(v / grown[1]) + 1e-5),
            self.parameters,
            self.first,
            self.second,
        )
        return norm

    def update(self, noise, keys, minibatches, rate):
        """One rollout and one step per minibatch (an array of places in time × environments); means of reports."""
        steps = self.rollout(noise, keys)
        advantages = self.advantages(steps, self.settings["gamma"], self.settings["lam"])
        returns = advantages + steps["values"]
        advantages = (advantages - advantages.mean()) / advantages.std()
        rows = [steps["observations"], steps["actions"], steps["logs"], advantages, returns]
        rows = [array.reshape(-1, *array.shape[2:]) for array in rows]
        reports = []
        for chosen in minibatches:
            batch = [jnp.asarray(array[chosen]) for array in rows]
            weights = (self.settings[name] for name in ("clip", "entropy_coefficient", "value_coefficient"))
            gradients, report = self.gradient(self.parameters, batch, *weights)
            norm = self.adam(jax.tree.map(np.asarray, gradients), rate)
            reports.append([*map(float, report), norm])
        return np.mean(reports, 0)
