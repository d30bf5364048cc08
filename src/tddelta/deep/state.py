"""What training continues from and what it reports, as NamedTuples."""

from typing import Any, NamedTuple

import jax

from tddelta.deep.rollout import Moments, Playing


class Learned(NamedTuple):
    """What a trained agent is: all that acting and reading the critic need.

    Attributes:
        parameters: The network's arrays.
        observation_moments: If observations are standardised, else None.
        reward_moments: Of the running discounted returns, if rewards are normalised, else None.
        target_moments: Of the targets, (Z,), if component_scale is "running", else None.
    """

    parameters: Any
    observation_moments: Moments | None
    reward_moments: Moments | None
    target_moments: Moments | None


class State(NamedTuple):
    """Everything that training continues from.

    Attributes:
        learned: The agent.
        optimizer: State of Adam.
        playing: The environments.
        key: For the next update.
        updates: Updates done so far, ().
    """

    learned: Learned
    optimizer: Any
    playing: Playing
    key: jax.Array
    updates: jax.Array


class Metrics(NamedTuple):
    """What one update reports. Losses are means over its minibatches, in the units of the loss.

    Attributes:
        policy_loss: ().
        value_loss: ½ Σ_z weight_z (error_z)², ().
        component_losses: ½ (error_z)² of each head, (Z,).
        explained_variance: Of V_Z: old values against their targets, ().
        component_explained_variance: The same per head, (Z,).
        value_mean: Mean of V_Z over the rollout, ().
        component_means: Mean of each head, (Z,).
        entropy: Of the policy in nats, ().
        approximate_kl: mean(ρ − 1 − log ρ), ().
        clip_fraction: Share of probability ratios outside the clip range, ().
        gradient_norm: Global norm before clipping, ().
        learning_rate: ().
        finished_returns: (T, B); see `Rollout`.
        finished_lengths: (T, B); 0 where no episode ended.
        fault: Index into `FAULTS`; not 0 if a number was not finite. Then what is learned and the optimizer
            are those before the update.
        fault_step: Step of the environment, counted from the start of training, at which it happened, ().
        fault_environment: Which environment, ().
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


class Batch(NamedTuple):
    """What the losses read, one row per environment step."""

    observations: jax.Array
    actions: jax.Array
    log_probabilities: jax.Array
    advantages: jax.Array
    targets: jax.Array
