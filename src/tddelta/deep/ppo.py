"""PPO with a critic split across time scales, as pure functions: Config → init → update → train.

    config = ppo.preset("Breakout-MinAtar", "ppo-delta")
    state, metrics = jax.jit(ppo.train)(config, jax.random.key(0))

This is Algorithm 2, PPO-TD(λ,Δ), of Romoff et al. 2019: `update` and `learn` are one turn of its outer loop, rollout →
targets → epochs → metrics, and their parts follow in that order. Every agent runs through these lines. Agents differ in
the number and the basis of the critic's heads, in the trace rule and in the functions that make targets and advantages:
see `agents`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tddelta._plain import blamed, reference
from tddelta.decomposition import compose, explained_variance
from tddelta.deep import shards
from tddelta.deep.config import PRESETS, Config, check, preset
from tddelta.deep.host import HostEnvironment
from tddelta.deep.networks import padded
from tddelta.deep.rollout import (
    FAULTS,
    Basis,
    Learned,
    Playing,
    Rollout,
    collect,
    component_unit,
    components,
    counted,
    entropy,
    evaluator,
    first_fault,
    grown,
    in_reward_units,
    initial,
    learned_rewards,
    log_probability,
    network,
    start,
)
from tddelta.errors import ConfigError, ShapeError
from tddelta.targets import successors, td_errors

__all__ = [
    "FAULTS",
    "PRESETS",
    "Config",
    "Learned",
    "Metrics",
    "State",
    "all_updates",
    "check",
    "components",
    "grow",
    "init",
    "initial",
    "learn",
    "network",
    "preset",
    "train",
    "update",
]


class State(NamedTuple):
    """Everything that training continues from: agent, state of Adam, environments, next key, updates done so far."""

    learned: Learned
    optimizer: Any
    playing: Playing
    key: jax.Array
    updates: jax.Array


class Metrics(NamedTuple):
    """Metrics of one update, () each where nothing else is said. Losses are means over its minibatches, in their units.

    Attributes:
        value_loss: ½ Σ_z weight_z (error_z)².
        component_losses: ½ (error_z)² of each head, (Z,).
        explained_variance: Of V_Z: old values against their targets; `component_explained_variance` per head, (Z,).
        value_mean: Mean of V_Z over the rollout; `component_means` of each head, (Z,).
        entropy: Of the policy in nats.
        approximate_kl: mean(ρ − 1 − log ρ).
        clip_fraction: Share of probability ratios outside the clip range.
        gradient_norm: Global norm before clipping.
        finished_returns: (T, B); see `Rollout`, as of `finished_lengths`.
        fault: Index into `FAULTS`; not 0 if a number was not finite. Then what is learned and the optimizer
            are those before the update.
        fault_step: Step of the environment, counted from the start of training, at which it happened.
        fault_environment: Which environment.
    """

    policy_loss: jax.Array
    value_loss: jax.Array
    component_losses: jax.Array
    explained_variance: jax.Array
    component_explained_variance: jax.Array
    value_mean: jax.Array
    component_means: jax.Array
    entropy: jax.Array
    approximate_kl: jax.Array
    clip_fraction: jax.Array
    gradient_norm: jax.Array
    learning_rate: jax.Array
    finished_returns: jax.Array
    finished_lengths: jax.Array
    fault: jax.Array
    fault_step: jax.Array
    fault_environment: jax.Array


def init(config: Config, key: jax.Array) -> State:
    """Fresh network, optimizer and environments; those of the host are not part of the state.

    Settings are checked here too, for those who do not use `preset`; the key is the only randomness of the whole run.

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
        optimizer=_adam(config).init(learned.parameters),
        playing=playing,
        key=key,
        updates=jnp.zeros((), jnp.int32),
    )


def update(config: Config, state: State, axis: shards.Axis = ()) -> tuple[State, Metrics]:
    """One turn of the outer loop of Algorithm 2: a rollout, and the epochs of minibatch steps on it.

    Args:
        config: Settings; after a ladder has grown, those of the stage, `Config.at`.
        state: From `init`, the update before, or `grow`.
        axis: Inside a mapped function: the axes over whose shards everything is averaged. Settings and environments
            are then those of this shard; the rest of the state is the same in all. `devices` makes use of it.

    Returns:
        The next state, and the metrics of this update.

    Raises:
        ConfigError: If the environment runs on the host.
    """
    if config.shards > 1:
        return shards.together(update, Metrics, config, state, axis)
    environment = config.environment_object()
    if isinstance(environment, HostEnvironment):
        raise ConfigError(
            f"{environment.name} runs on the host, and cannot be part of a compiled program: train it by tdd.train or "
            "training.train_run"
        )
    # Rollout.
    key, *keys = jax.random.split(state.key, 3)
    rollout_key, shuffle_key = (shards.own(one, axis) for one in keys)
    playing, rollout = collect(config, state.learned, state.playing, rollout_key, axis)
    return learn(config, state._replace(playing=playing, key=key), rollout, playing.observation, shuffle_key, axis)


def learn(
    config: Config, state: State, rollout: Rollout, last: jax.Array, key: jax.Array, axis: shards.Axis = ()
) -> tuple[State, Metrics]:
    """Targets, epochs and metrics of a rollout, wherever it was played; see `update`.

    Args:
        config: Settings.
        state: The state; its environments and key are those after the rollout.
        rollout: `config.batch` steps.
        last: Observations after the last step, (B, *observation).
        key: For the order of the steps.
        axis: See `update`.
    """
    # Targets: from the values before the update, once for all epochs.
    old = state.learned
    rollout, shift = anchored(config, state, rollout, axis)
    values, targets, advantages = (filled(each, rollout.weights) for each in learning_signals(config, old, rollout))
    moments = more_moments(old, rollout, targets, axis)
    unit = component_unit(config, moments.target_moments)
    batch = Batch(
        rollout.observations,
        rollout.actions,
        rollout.log_probabilities,
        standardized(advantages, axis, rollout.weights) if config.normalize_advantages else advantages,
        targets if unit is None else targets / unit,
        rollout.weights,
    )
    # Epochs; what they learned is dropped if a number was not finite.
    begun = state._replace(learned=shifted(config, old, shift, unit))
    (parameters, optimizer), reports = fit(config, begun, batch, key, axis)
    reports = shards.mean(reports, axis)
    fault, step, environment = first_fault(rollout, last, reports, axis)
    learned, optimizer = jax.tree.map(
        lambda new, old: jnp.where(fault == 0, new, old),
        (moments._replace(parameters=parameters), optimizer),
        (old, state.optimizer),
    )
    # Metrics.
    return State(learned, optimizer, state.playing, state.key, state.updates + 1), Metrics(
        **measured(config, values, targets, reports, axis),
        finished_returns=rollout.finished_returns,
        finished_lengths=rollout.finished_lengths,
        fault=fault,
        fault_step=state.updates * rollout.rewards.shape[0] + step,
        fault_environment=environment,
    )


# ---------------------------------------------------------------- targets


def learning_signals(config: Config, learned: Learned, rollout: Rollout) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Targets of the critic, and advantages of the actor.

    Returns:
        Heads and targets in the basis of the agent and units of (normalised) reward, (T, B, Z) both, and advantages
        (T, B).
    """
    rewards, heads, next_heads, ends = seen(config, learned, rollout)
    scales = config.critic_scales
    with blamed(f"the target function {reference(config.agent.targets)} raised"):
        targets = config.agent.targets(rewards, heads, next_heads, scales=scales, **ends)
    basis = Basis(config.agent.basis)
    deltas, next_deltas = basis.deltas(heads), basis.deltas(next_heads)
    lam = config.lam if config.actor_lam is None else config.actor_lam
    with blamed(f"the advantage function {reference(config.agent.advantages)} raised"):
        advantages = config.agent.advantages(
            rewards, deltas, next_deltas, scales=scales, trace_decay=lam * scales.gammas[-1], **ends
        )
    return heads, targets, advantages


def seen(config: Config, learned: Learned, rollout: Rollout) -> tuple[jax.Array, jax.Array, jax.Array, dict[str, Any]]:
    """Rewards, heads and heads of true successors, in units of (normalised) reward, and ends: what targets need."""
    rewards = learned_rewards(config, rollout.rewards, rollout.reward_noise)
    if learned.reward_moments is not None:
        rewards = jnp.clip(rewards / learned.reward_moments.deviation, -10, 10)
    heads = in_reward_units(config, learned, rollout.heads)
    ends = {"terminated": rollout.terminated, "truncated": rollout.truncated}
    next_heads = successors(
        heads,
        in_reward_units(config, learned, rollout.last_heads),
        final_deltas=in_reward_units(config, learned, rollout.final_heads),
        **ends,
    )
    return rewards, heads, next_heads, ends


def filled(array: jax.Array, weights: jax.Array | None) -> jax.Array:
    """Steps (T, B, …) with the mean of the others in place of those that do not count."""
    if weights is None:
        return array
    mean = jnp.mean(counted(array, weights), (0, 1))
    return jnp.where(weights.reshape(*weights.shape, *[1] * (array.ndim - 2)) > 0, array, mean)


def more_moments(learned: Learned, rollout: Rollout, targets: jax.Array, axis: shards.Axis) -> Learned:
    """Everything learned, with the moments of one more rollout and its targets."""
    observations, returns, of_targets = learned[1:]
    if observations is not None:
        seen = rollout.observations.astype(jnp.float32)
        observations = observations.updated(seen, (0, 1), axis, rollout.weights)
    if returns is not None:
        returns = returns.updated(rollout.reward_returns, (0, 1), axis, rollout.weights)
    if of_targets is not None:
        of_targets = of_targets.updated(targets, (0, 1), axis, rollout.weights)
    return Learned(learned.parameters, observations, returns, of_targets)


def standardized(advantages: jax.Array, axis: shards.Axis = (), weights: jax.Array | None = None) -> jax.Array:
    """Mean 0 and population standard deviation 1, over all shards; all zeros for one sample or equal samples."""
    centred = advantages - shards.mean(jnp.mean(advantages), axis)
    deviation = jnp.sqrt(shards.mean(jnp.mean(counted(centred**2, weights)), axis))
    highest, lowest = shards.largest(jnp.max(advantages), axis), shards.least(jnp.min(advantages), axis)
    size = shards.largest(jnp.max(jnp.abs(advantages)), axis)
    # Equal samples have a deviation of rounding errors.
    varied = (highest > lowest) & (deviation > 1e-6 * size)
    return jnp.where(varied, centred / jnp.where(varied, deviation, 1.0), 0.0)


# ---------------------------------------------------------------- epochs


class Batch(NamedTuple):
    """Arrays that the losses read, one row per environment step; `weights` as in `Rollout`."""

    observations: jax.Array
    actions: jax.Array
    log_probabilities: jax.Array
    advantages: jax.Array
    targets: jax.Array
    weights: jax.Array | None = None


def fit(
    config: Config, state: State, batch: Batch, key: jax.Array, axis: shards.Axis = ()
) -> tuple[tuple[Any, Any], tuple[jax.Array, ...]]:
    """The epochs of minibatch steps: parameters and state of the optimizer, and a report per minibatch."""
    environment, optimizer = config.environment_object(), _adam(config)
    rate = jnp.asarray(config.learning_rate, jnp.float32)
    if config.anneal_learning_rate:
        rate = rate * (1 - state.updates / config.updates)
    size = config.batch // config.minibatches
    flat: Batch = jax.tree.map(lambda array: array.reshape(config.batch, *array.shape[2:]), batch)

    def loss(parameters: Any, rows: Batch) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        policy, heads = evaluator(config, state.learned._replace(parameters=parameters))(rows.observations)
        policy_loss, kl, clipped = clipped_surrogate(
            log_probability(environment, policy, rows.actions),
            rows.log_probabilities,
            rows.advantages,
            config.clip,
            rows.weights,
        )
        value_loss, component_losses = squared_error(
            Basis(config.agent.basis).learned(heads), rows.targets, _component_weights(config), rows.weights
        )
        bonus = jnp.mean(counted(entropy(environment, policy), rows.weights))
        total = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * bonus
        return total, (policy_loss, component_losses, bonus, kl, clipped)

    def step(learner: tuple[Any, Any], chosen: jax.Array) -> tuple[tuple[Any, Any], tuple[jax.Array, ...]]:
        parameters, memory = learner
        # The order is a permutation, which spares the check of every index.
        rows = jax.tree.map(lambda array: array.at[chosen].get(unique_indices=True, mode="promise_in_bounds"), flat)
        gradients, report = shards.gradient(loss, parameters, rows, size, config.part_of_minibatch)
        gradients = shards.mean(gradients, axis)
        changes, memory = optimizer.update(gradients, memory)
        parameters = jax.tree.map(lambda old, change: old - rate * change, parameters, changes)
        return (parameters, memory), (*report, optax.tree.norm(gradients), rate)

    orders = jax.vmap(lambda one: shuffled(one, *batch.advantages.shape))(jax.random.split(key, config.epochs))
    return jax.lax.scan(step, (state.learned.parameters, state.optimizer), orders.reshape(-1, size))


def _adam(config: Config) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm), optax.scale_by_adam(eps=config.adam_epsilon)
    )


def _component_weights(config: Config) -> jax.Array:
    weights, count = config.component_weights, len(config.critic_scales)
    return jnp.ones(count) if weights is None else jnp.asarray(weights[:count])


def shuffled(key: jax.Array, length: int, environments: int) -> jax.Array:
    """A random order of the steps of a rollout, (length·environments,), without sorting.

    Sorting random keys takes a CPU longer than a Feistel network on the grid of T steps and B environments: columns of
    every row are turned by a random amount, then rows of every column, four times. Each round is a bijection, so the
    result is a permutation. Grids too narrow for it are sorted.
    """
    if min(length, environments) < 16:
        return jax.random.permutation(key, length * environments)
    # One draw for all rounds. Its remainder is uniform to within environments / 2³².
    drawn = jax.random.bits(key, (4, length + environments))
    row, column = jnp.divmod(jnp.arange(length * environments), environments)
    for turn in drawn:
        column = (column + (turn[:length] % environments).astype(jnp.int32)[row]) % environments
        row = (row + (turn[length:] % length).astype(jnp.int32)[column]) % length
    return row * environments + column


def _same_shape(**arrays: jax.Array) -> None:
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ShapeError(f"shapes must be equal; got {listed}: a broadcast here would average over the batch")


def clipped_surrogate(
    log_probabilities: jax.Array,
    old_log_probabilities: jax.Array,
    advantages: jax.Array,
    clip: jax.Array | float,
    weights: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """PPO's clipped surrogate −mean min(ρA, clip(ρ, 1 ± ε)A), ρ = π(a|s)/π_old(a|s).

    Args:
        log_probabilities: log π(a|s), (N,).
        old_log_probabilities: log π_old(a|s), (N,).
        advantages: A, (N,).
        clip: ε > 0.
        weights: Of the steps in all means, (N,), themselves of mean 1; default 1 each.

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
    loss = -jnp.mean(counted(jnp.minimum(ratio * advantages, clipped * advantages), weights))
    outside = jnp.mean(counted(jnp.abs(ratio - 1) > clip, weights))
    return loss, jnp.mean(counted(ratio - 1 - log_ratio, weights)), outside


def squared_error(
    heads: jax.Array,
    targets: jax.Array,
    component_weights: jax.Array | None = None,
    weights: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """½ Σ_z mean (W_z − G^z)²: summed over components, averaged over the batch.

    Args:
        heads: (N, Z).
        targets: (N, Z), constants.
        component_weights: (Z,), default 1 each.
        weights: Of the steps in the mean, (N,), themselves of mean 1; default 1 each.

    Returns:
        The loss, and the unweighted part of each component (Z,).

    Raises:
        ShapeError: If the shapes differ.
    """
    _same_shape(heads=heads, targets=targets)
    components = 0.5 * jnp.mean(counted((heads - targets) ** 2, weights), axis=0)
    weighted = components if component_weights is None else components * component_weights
    return jnp.sum(weighted), components


# ---------------------------------------------------------------- metrics


def measured(
    config: Config, values: jax.Array, targets: jax.Array, reports: tuple[jax.Array, ...], axis: shards.Axis = ()
) -> dict[str, jax.Array]:
    """Metrics of heads and their targets, (T, B, Z), and means of the reports of all minibatches."""
    policy_loss, losses, entropy, kl, clipped, norm, rate = jax.tree.map(lambda report: jnp.mean(report, 0), reports)
    mean = partial(shards.mean_of_rows, axis=axis)
    values, targets = (array.reshape(-1, array.shape[-1]) for array in (values, targets))
    total, total_target = (Basis(config.agent.basis).total(array) for array in (values, targets))
    return {
        "policy_loss": policy_loss,
        "value_loss": jnp.sum(losses * _component_weights(config)),
        "component_losses": losses,
        "explained_variance": explained_variance(total, total_target, mean),
        "component_explained_variance": explained_variance(values, targets, mean),
        "value_mean": mean(total),
        "component_means": mean(values),
        "entropy": entropy,
        "approximate_kl": kl,
        "clip_fraction": clipped,
        "gradient_norm": norm,
        "learning_rate": rate,
    }


# ---------------------------------------------------------------- the anchor


def anchored(
    config: Config, state: State, rollout: Rollout, axis: shards.Axis = ()
) -> tuple[Rollout, jax.Array | None]:
    """The rollout with V_z shifted by what they lack, see `Config.anchor`, and that shift; None without an anchor."""
    if not config.anchor:
        return rollout, None
    shift = jnp.where(state.updates < config.anchor, constant_error(config, state.learned, rollout, axis), 0)
    outputs = output_shift(config, shift, component_unit(config, state.learned.target_moments))
    heads = {name: getattr(rollout, name) + outputs for name in ("heads", "final_heads", "last_heads")}
    return rollout._replace(**heads), shift


def constant_error(config: Config, learned: Learned, rollout: Rollout, axis: shards.Axis = ()) -> jax.Array:
    """Constants that the values V_z lack, in units of (normalised) reward, (Z,).

    Least-squares TD with a constant as the only feature: mean δ_z / mean(1 − (1−d) γ_z), δ_z the TD error of V_z.
    With V_z raised by it, the TD errors of the rollout have mean 0.

    Reference:
        Bradtke and Barto, Linear least-squares algorithms for temporal difference learning, 1996.
    """
    rewards, heads, next_heads, ends = seen(config, learned, rollout)
    basis, scales, terminated = Basis(config.agent.basis), config.critic_scales, ends["terminated"]
    deltas, next_deltas = basis.deltas(heads), basis.deltas(next_heads)
    errors = compose(td_errors(rewards, deltas, next_deltas, terminated=terminated, scales=scales))
    # 1 − γ in double precision: near γ = 1 it has few digits in single.
    slopes = jnp.where(terminated[..., None], 1, 1 - np.asarray(scales.gammas))
    error, slope = (shards.mean(jnp.mean(counted(each, rollout.weights), (0, 1)), axis) for each in (errors, slopes))
    # At γ = 1 nothing tells where no episode ended.
    return jnp.where(slope > 0, error / jnp.where(slope > 0, slope, 1), 0)


def output_shift(config: Config, shift: jax.Array, unit: jax.Array | None) -> jax.Array:
    """Shift of the critic's outputs, (heads,), that shifts the values V_z in units of reward, (Z,)."""
    outputs = Basis(config.agent.basis).outputs(shift, config.heads)
    return outputs if unit is None else outputs / unit


def shifted(config: Config, learned: Learned, shift: jax.Array | None, unit: jax.Array | None) -> Learned:
    """The same with shifted values V_z, in the unit of what is learned now, which a rollout's targets may change."""
    if shift is None:
        return learned
    return learned._replace(parameters=learned.parameters.shifted(output_shift(config, shift, unit)))


# ---------------------------------------------------------------- all updates, and a ladder that grows


def train(config: Config, key: jax.Array) -> tuple[State, Metrics]:
    """`init` and all updates: a pure function to jit, and to vmap over keys and continuous settings.

    Returns:
        The final state, and the metrics of every update, each with a leading axis of length `config.updates`: those of
        a component that is not on the ladder yet are NaN.
    """
    return all_updates(config, init(config, key))


def all_updates(config: Config, state: State, axis: shards.Axis = ()) -> tuple[State, Metrics]:
    """All updates from the first state on, with those of `grow` between them; see `train`, and `update` for `axis`."""
    done, found = 0, list[Metrics]()
    for stage in (*config.past_stages(config.updates), config.at(config.updates)):

        def step(state: State, _: None, stage: Config = stage) -> tuple[State, Metrics]:
            return update(stage, state, axis)

        state, metrics = jax.lax.scan(step, state, length=stage.end - done)
        found.append(metrics)
        if stage.grow:
            done, state = stage.end, grow(stage, state)
    if len(found) == 1:
        return state, found[0]

    def together(*parts: jax.Array) -> jax.Array:
        shape = parts[-1].shape[1:]
        return jnp.concatenate([padded(part, (len(part), *shape), constant_values=jnp.nan) for part in parts])

    return state, jax.tree.map(together, *found)


def grow(config: Config, state: State) -> State:
    """The state for `config.grown`: see `rollout.grown`. The optimizer knows nothing yet of what is new."""
    learned = grown(config, state.learned)
    fresh = _adam(config).init(learned.parameters)
    leaves = [padded(old, new.shape) for old, new in zip(*map(jax.tree.leaves, (state.optimizer, fresh)), strict=True)]
    return state._replace(learned=learned, optimizer=jax.tree.unflatten(jax.tree.structure(fresh), leaves))
