"""PPO with a critic split across time scales, as pure functions: Config → init → update → train.

    config = ppo.preset("Breakout-MinAtar", "ppo-delta")
    state, metrics = jax.jit(ppo.train)(config, jax.random.key(0))

Every agent runs through these lines. Agents differ in the number and the basis of the critic's heads, in the trace
rule and in the functions that make targets and advantages: see `agents`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from tddelta._arrays import widened
from tddelta._naming import blamed, reference
from tddelta.decomposition import decompose
from tddelta.deep import actions, shards
from tddelta.deep.config import Config
from tddelta.deep.presets import PRESETS, check, preset
from tddelta.deep.rollout import (
    Batch,
    Learned,
    Metrics,
    Moments,
    Rollout,
    State,
    collect,
    finite,
    inputs,
    learned_rewards,
    no_moments,
    shuffled,
    start,
)
from tddelta.deep.tasks import HostEnvironment, Task
from tddelta.errors import ConfigError, ShapeError
from tddelta.targets import successors


def _same_shape(**arrays: jax.Array) -> None:
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ShapeError(f"shapes must be equal; got {listed}: a broadcast here would average over the batch")


def clipped_surrogate(
    log_probabilities: jax.Array, old_log_probabilities: jax.Array, advantages: jax.Array, clip: jax.Array | float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """PPO's clipped surrogate −mean min(ρA, clip(ρ, 1 ± ε)A), ρ = π(a|s)/π_old(a|s).

    Args:
        log_probabilities: log π(a|s), (N,).
        old_log_probabilities: log π_old(a|s), (N,).
        advantages: A, (N,).
        clip: ε > 0.

    Returns:
        The loss, the approximate KL divergence mean(ρ − 1 − log ρ) ≥ 0, and the share of clipped ratios.

    Raises:
        ShapeError: If the shapes differ.

    Reference:
        Schulman et al., Proximal policy optimization algorithms, 2017, equation 7.
    """
    _same_shape(log_probabilities=log_probabilities, old_log_probabilities=old_log_probabilities, advantages=advantages)
    log_ratio = log_probabilities - old_log_probabilities
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
    return loss, jnp.mean(ratio - 1 - log_ratio), jnp.mean(jnp.abs(ratio - 1) > clip)


def squared_error(
    heads: jax.Array, targets: jax.Array, weights: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """½ Σ_z mean (W_z − G^z)²: summed over components, averaged over the batch.

    Args:
        heads: (N, Z).
        targets: (N, Z), constants.
        weights: (Z,), default 1 each.

    Returns:
        The loss, and the unweighted part of each component (Z,).

    Raises:
        ShapeError: If the shapes differ.
    """
    _same_shape(heads=heads, targets=targets)
    components = 0.5 * jnp.mean((heads - targets) ** 2, axis=0)
    weighted = components if weights is None else components * weights
    return jnp.sum(weighted), components


def standardized(advantages: jax.Array, axis: shards.Axis = ()) -> jax.Array:
    """Mean 0 and population standard deviation 1, over all shards; all zeros for one sample or equal samples."""
    centred = advantages - shards.mean(jnp.mean(advantages), axis)
    deviation = jnp.sqrt(shards.mean(jnp.mean(centred**2), axis))
    highest, lowest = shards.largest(jnp.max(advantages), axis), shards.least(jnp.min(advantages), axis)
    size = shards.largest(jnp.max(jnp.abs(advantages)), axis)
    # Equal samples have a deviation of rounding errors.
    varied = (highest > lowest) & (deviation > 1e-6 * size)
    return jnp.where(varied, centred / jnp.where(varied, deviation, 1.0), 0.0)


def explained_variance(values: jax.Array, targets: jax.Array, axis: shards.Axis = ()) -> jax.Array:
    """1 − Var(targets − values) / Var(targets) over the first axis and shards; NaN where the targets do not vary."""
    spread = shards.variance(targets, axis)
    highest, lowest = shards.largest(jnp.max(targets, axis=0), axis), shards.least(jnp.min(targets, axis=0), axis)
    varied = (highest > lowest) & (spread > 0)
    return jnp.where(varied, 1 - shards.variance(targets - values, axis) / jnp.where(varied, spread, 1.0), jnp.nan)


__all__ = ["PRESETS", "Config", "Learned", "Metrics", "State", "check", "init", "network", "preset", "train", "update"]

FAULTS = ("none", "reward", "observation", "loss")
"""What was not finite in an update, by number: see `Metrics.fault`."""


def init(config: Config, key: jax.Array) -> State:
    """Fresh network, optimizer and environments; those of the host are not part of the state.

    Args:
        config: Settings; checked here too, for those who do not use `preset`.
        key: The only source of randomness of the whole run.

    Raises:
        ConfigError: If a setting cannot work.
    """
    check(config)
    environment = config.environment_object()
    network_key, playing_key, key = jax.random.split(key, 3)
    learned = initial(config, network_key)
    playing: Any = None
    if not isinstance(environment, HostEnvironment):
        playing = start(environment, playing_key, config.environments)
    return State(
        learned=learned,
        optimizer=_optimizer(config).init(learned.parameters),
        playing=playing,
        key=key,
        updates=jnp.zeros((), jnp.int32),
    )


def initial(config: Config, key: jax.Array) -> Learned:
    """An agent that has learned nothing yet."""
    environment = config.environment_object()
    return Learned(
        parameters=eqx.filter(_made_network(config, environment, key), eqx.is_array),
        observation_moments=no_moments(environment.observation_shape) if config.normalize_observations else None,
        reward_moments=no_moments(()) if config.normalize_rewards else None,
        target_moments=no_moments((len(config.critic_scales),)) if config.component_scale == "running" else None,
    )


def update(config: Config, state: State, axis: shards.Axis = ()) -> tuple[State, Metrics]:
    """One rollout and the epochs of minibatch steps on it.

    Args:
        config: Settings.
        state: From `init` or the update before.
        axis: Inside a mapped function: the axes over whose shards everything is averaged. Settings and environments
            are then those of this shard; the rest of the state is the same in all. `devices` makes use of it.

    Returns:
        The next state, and what happened.
    """
    if config.shards > 1:
        return _together(config, state, axis)
    environment = config.environment_object()
    if isinstance(environment, HostEnvironment):
        raise ConfigError(
            f"{environment.name} runs on the host, and cannot be part of a compiled program: train it by tdd.train or "
            "training.train_run"
        )
    learned = state.learned
    key, *keys = jax.random.split(state.key, 3)
    rollout_key, shuffle_key = (shards.own(one, axis) for one in keys)
    acting = network(config, learned.parameters)
    moments = learned.observation_moments
    playing, rollout = collect(config, environment, acting, moments, state.playing, rollout_key, axis)
    return learn(config, state._replace(playing=playing, key=key), rollout, playing.observation, shuffle_key, axis)


def learn(
    config: Config, state: State, rollout: Rollout, last: jax.Array, key: jax.Array, axis: shards.Axis = ()
) -> tuple[State, Metrics]:
    """The epochs of minibatch steps on a rollout, wherever it was played.

    Args:
        config: Settings.
        state: The state; its environments and key are those after the rollout.
        rollout: `config.batch` steps.
        last: Observations after the last step, (B, *observation).
        key: For the order of the steps.
        axis: See `update`.

    Returns:
        The next state, and what happened.
    """
    environment, learned = config.environment_object(), state.learned
    heads, targets, advantages = learning_signals(config, learned, rollout)
    moments = learned.target_moments
    moments = moments if moments is None else moments.updated(targets, (0, 1), axis)
    unit = component_unit(config, moments)
    batch = Batch(
        rollout.observations,
        rollout.actions,
        rollout.log_probabilities,
        standardized(advantages, axis) if config.normalize_advantages else advantages,
        targets if unit is None else targets / unit,
    )
    (parameters, optimizer), reports = _fit(config, environment, state, batch, key, axis)
    reports = shards.mean(reports, axis)
    policy_loss, component_losses, entropy, kl, clipped, norm, rate = jax.tree.map(lambda x: jnp.mean(x, 0), reports)
    fault, fault_step, fault_environment = _fault(state, rollout, last, reports, axis)
    better = Learned(parameters, *_more_moments(learned, rollout, axis), moments)
    learned, optimizer = jax.tree.map(
        lambda new, old: jnp.where(fault == 0, new, old), (better, optimizer), (learned, state.optimizer)
    )
    following = State(learned, optimizer, state.playing, state.key, state.updates + 1)
    flat_heads, flat_targets = (array.reshape(-1, array.shape[-1]) for array in (heads, targets))
    total, total_target = (_total(config, array) for array in (flat_heads, flat_targets))
    return following, Metrics(
        policy_loss=policy_loss,
        value_loss=jnp.sum(component_losses * _weights(config)),
        component_losses=component_losses,
        explained_variance=explained_variance(total, total_target, axis),
        component_explained_variance=explained_variance(flat_heads, flat_targets, axis),
        value_mean=shards.mean(jnp.mean(total), axis),
        component_means=shards.mean(jnp.mean(flat_heads, 0), axis),
        entropy=entropy,
        approximate_kl=kl,
        clip_fraction=clipped,
        gradient_norm=norm,
        learning_rate=rate,
        finished_returns=rollout.finished_returns,
        finished_lengths=rollout.finished_lengths,
        fault=fault,
        fault_step=fault_step,
        fault_environment=fault_environment,
    )


def train(config: Config, key: jax.Array) -> tuple[State, Metrics]:
    """`init` and all updates: a pure function to jit, and to vmap over keys and continuous settings.

    Args:
        config: Settings.
        key: Seed of the run.

    Returns:
        The final state, and the metrics of every update, each with a leading axis of length `config.updates`.
    """
    return jax.lax.scan(lambda state, _: update(config, state), init(config, key), length=config.updates)


def network(config: Config, parameters: Any) -> Any:
    """The network with these parameters: takes one observation as it sees it, returns (policy, heads)."""
    environment = config.environment_object()
    skeleton = eqx.filter_eval_shape(_made_network, config, environment, jax.random.key(0))
    _, static = eqx.partition(skeleton, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    return eqx.combine(parameters, static)


def outputs(config: Config, learned: Learned, observations: jax.Array) -> tuple[Any, jax.Array]:
    """The policy's parameters, and the critic's heads (B, heads), for B observations as the environment gives them."""
    acting = network(config, learned.parameters)
    found: tuple[Any, jax.Array] = jax.vmap(lambda one: acting(inputs(one, learned.observation_moments)))(observations)
    return found


def critic(config: Config, heads: jax.Array) -> jax.Array:
    """From the network's outputs (…, heads) to what is learned (…, Z): a critic that is a sum has one scale.

    In single precision at least, also where a network of the user's computes in half.
    """
    heads = widened(heads)
    return jnp.sum(heads, axis=-1, keepdims=True) if config.agent.basis == "sum" else heads


def component_unit(config: Config, target_moments: Moments | None) -> jax.Array | None:
    """Size of one unit of each output in units of reward, (Z,), or None for 1: see `component_scale`."""
    if config.component_scale == "horizon":
        horizons = config.critic_scales.horizons
        if config.agent.basis == "values":
            return jnp.asarray(horizons)
        return jnp.asarray([long - short for long, short in zip(horizons, (0.0, *horizons[:-1]), strict=True)])
    return None if target_moments is None else target_moments.deviation


def components(config: Config, learned: Learned, heads: jax.Array) -> jax.Array:
    """W_z in units of reward, (…, Z), from the network's outputs."""
    deltas = _as_deltas(config, _in_reward_units(config, learned, heads))
    return deltas if learned.reward_moments is None else deltas * learned.reward_moments.deviation


def learning_signals(config: Config, learned: Learned, rollout: Rollout) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The critic's heads during a rollout, their targets, and the advantages.

    Returns:
        Heads and targets in the basis of the agent and units of (normalised) reward, (T, B, Z) both, and advantages
        (T, B).
    """
    rewards = learned_rewards(config, rollout.rewards)
    if learned.reward_moments is not None:
        rewards = jnp.clip(rewards / learned.reward_moments.deviation, -10, 10)
    heads = _in_reward_units(config, learned, rollout.heads)
    ends = {"terminated": rollout.terminated, "truncated": rollout.truncated}
    next_heads = successors(
        heads,
        _in_reward_units(config, learned, rollout.last_heads),
        final_deltas=_in_reward_units(config, learned, rollout.final_heads),
        **ends,
    )
    scales = config.critic_scales
    with blamed(f"the target function {reference(config.agent.targets)} raised"):
        targets = config.agent.targets(rewards, heads, next_heads, scales=scales, **ends)
    deltas, next_deltas = _as_deltas(config, heads), _as_deltas(config, next_heads)
    lam = config.lam if config.actor_lam is None else config.actor_lam
    with blamed(f"the advantage function {reference(config.agent.advantages)} raised"):
        advantages = config.agent.advantages(
            rewards, deltas, next_deltas, scales=scales, trace_decay=lam * scales.gammas[-1], **ends
        )
    return heads, targets, advantages


def _as_deltas(config: Config, heads: jax.Array) -> jax.Array:
    """W from the heads, whatever their basis."""
    return decompose(heads) if config.agent.basis == "values" else heads


def _in_reward_units(config: Config, learned: Learned, heads: jax.Array) -> jax.Array:
    unit = component_unit(config, learned.target_moments)
    values = critic(config, heads)
    return values if unit is None else values * unit


def _together(config: Config, state: State, axis: shards.Axis) -> tuple[State, Metrics]:
    """An update of all shards of these settings, on this device, with what they average shared by them."""
    count = config.shards
    one = shards.part(config, count)
    # Only environments and episodes are a shard's own: the axes where they stand, in the state and in the metrics.
    same: Any = None
    first: Any = 0
    second: Any = 1
    places = State(same, same, playing=first, key=same, updates=same)
    episodes = Metrics(*[same] * len(Metrics._fields))._replace(finished_returns=second, finished_lengths=second)
    updated: Callable[[State], tuple[State, Metrics]] = jax.vmap(
        lambda part: update(one, part, (*axis, shards.SHARDS)), (places,), (places, episodes), axis_name=shards.SHARDS
    )
    split = jax.tree.map(lambda leaf: leaf.reshape(count, one.environments, *leaf.shape[1:]), state.playing)
    following, metrics = updated(state._replace(playing=split))
    playing = jax.tree.map(lambda leaf: leaf.reshape(config.environments, *leaf.shape[2:]), following.playing)
    returns, lengths = (
        leaf.reshape(config.rollout_length, config.environments)
        for leaf in (metrics.finished_returns, metrics.finished_lengths)
    )
    return following._replace(playing=playing), metrics._replace(finished_returns=returns, finished_lengths=lengths)


def _more_moments(learned: Learned, rollout: Rollout, axis: shards.Axis) -> tuple[Moments | None, Moments | None]:
    """Moments of observations and of reward returns, with a rollout more."""
    observations, returns = learned.observation_moments, learned.reward_moments
    if observations is not None:
        observations = observations.updated(rollout.observations.astype(jnp.float32), (0, 1), axis)
    if returns is not None:
        returns = returns.updated(rollout.reward_returns, (0, 1), axis)
    return observations, returns


def _total(config: Config, values: jax.Array) -> jax.Array:
    """V_Z of values or targets in the agent's basis."""
    return values[..., -1] if config.agent.basis == "values" else jnp.sum(values, -1)


def _weights(config: Config) -> jax.Array:
    weights = config.component_weights
    return jnp.ones(len(config.critic_scales)) if weights is None else jnp.asarray(weights)


def _optimizer(config: Config) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm), optax.scale_by_adam(eps=config.adam_epsilon)
    )


def _made_network(config: Config, environment: Task, key: jax.Array) -> Any:
    return config.network_factory()(key, environment.observation_space, environment.action_space, config.heads)


def _fit(
    config: Config, environment: Task, state: State, batch: Batch, key: jax.Array, axis: shards.Axis
) -> tuple[tuple[Any, Any], tuple[jax.Array, ...]]:
    """The epochs of minibatch steps: learned parameters and optimizer, and a report per minibatch."""
    optimizer = _optimizer(config)
    rate = jnp.asarray(config.learning_rate, jnp.float32)
    if config.anneal_learning_rate:
        rate = rate * (1 - state.updates / config.updates)
    flat: Batch = jax.tree.map(lambda array: array.reshape(config.batch, *array.shape[2:]), batch)

    def loss(parameters: Any, rows: Batch) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        acting = network(config, parameters)
        policy, heads = jax.vmap(acting)(inputs(rows.observations, state.learned.observation_moments))
        policy_loss, kl, clipped = clipped_surrogate(
            actions.log_probability(environment, policy, rows.actions),
            rows.log_probabilities,
            rows.advantages,
            config.clip,
        )
        value_loss, component_losses = squared_error(critic(config, heads), rows.targets, _weights(config))
        entropy = jnp.mean(actions.entropy(environment, policy))
        total = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
        return total, (policy_loss, component_losses, entropy, kl, clipped)

    def step(learner: tuple[Any, Any], chosen: jax.Array) -> tuple[tuple[Any, Any], tuple[jax.Array, ...]]:
        parameters, memory = learner
        # The order is a permutation, which spares the check of every index.
        rows = jax.tree.map(lambda array: array.at[chosen].get(unique_indices=True, mode="promise_in_bounds"), flat)
        gradients, report = _gradients(config, loss, parameters, rows)
        gradients = shards.mean(gradients, axis)
        changes, memory = optimizer.update(gradients, memory)
        parameters = jax.tree.map(lambda old, change: old - rate * change, parameters, changes)
        return (parameters, memory), (*report, optax.tree.norm(gradients), rate)

    orders = jax.vmap(lambda one: shuffled(one, *batch.advantages.shape))(jax.random.split(key, config.epochs))
    return jax.lax.scan(
        step, (state.learned.parameters, state.optimizer), orders.reshape(-1, config.batch // config.minibatches)
    )


def _gradients(config: Config, loss: Any, parameters: Any, rows: Batch) -> tuple[Any, tuple[jax.Array, ...]]:
    """Gradient and report of a minibatch, part by part where that is faster: means of equal parts are their mean."""
    part, count = config.part_of_minibatch, config.batch // config.minibatches
    gradient = jax.grad(loss, has_aux=True)
    if part is None or part >= count:
        return gradient(parameters, rows)  # type: ignore[no-any-return]
    parts = jax.tree.map(lambda array: array.reshape(count // part, part, *array.shape[1:]), rows)

    def more(total: Any, rows: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradient(parameters, rows)), None

    shapes = jax.eval_shape(gradient, parameters, jax.tree.map(lambda array: array[0], parts))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(more, nothing, parts)
    return jax.tree.map(lambda leaf: leaf * (part / count), total)  # type: ignore[no-any-return]


def _fault(
    state: State, rollout: Rollout, last: jax.Array, reports: tuple[jax.Array, ...], axis: shards.Axis
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What was not finite first, at which step of which environment."""
    length, environments = rollout.rewards.shape
    last = last[None].astype(rollout.observations.dtype)
    # An observation belongs to the step that led to it; the very first, before step 0, is counted with it.
    seen = jax.vmap(finite)(jnp.concatenate([rollout.observations, last]))
    good = jnp.stack([jnp.isfinite(rollout.rewards), (seen[1:] & rollout.final_finite).at[0].min(seen[0])])
    first = jnp.argmin(good.reshape(2, -1), axis=1)
    bad = ~jnp.all(good, axis=(1, 2))
    place = jnp.where(bad, first, length * environments)
    if axis:
        # The same place in the environments of all shards.
        step, environment = jnp.divmod(place, environments)
        mine = jax.lax.axis_index(axis) * environments + environment
        environments = environments * shards.count(axis)
        place = shards.least(jnp.where(bad, step * environments + mine, length * environments), axis)
        bad = place < length * environments
    kind = jnp.argmin(place)
    bad_loss = ~jnp.all(jnp.stack([jnp.all(jnp.isfinite(report)) for report in reports]))
    fault = jnp.where(jnp.any(bad), 1 + kind, jnp.where(bad_loss, FAULTS.index("loss"), 0))
    step, environment = jnp.divmod(place[kind], environments)
    return fault, state.updates * length + step, environment
