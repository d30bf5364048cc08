"""Losses of every component and advantages of the actor, computed again from the rollout by literal loops."""

import jax
import numpy as np
import pytest

from deep_environments import QUICKLY, play, roll, state_of, tiny, update
from tddelta.deep import ppo

TIME, LANES = 8, 3
RANDOM = np.random.default_rng(0)
REWARDS = RANDOM.normal(size=(TIME, LANES))
ENDS = {
    "no end": (np.zeros((TIME, LANES), bool), np.zeros((TIME, LANES), bool)),
    "ends": (RANDOM.random((TIME, LANES)) < 0.15, RANDOM.random((TIME, LANES)) < 0.25),
    "truncations": (np.zeros((TIME, LANES), bool), RANDOM.random((TIME, LANES)) < 0.6),
}


def played(config, case):
    """The rollout of an update, and the metrics of that update."""
    state = state_of(config)
    state = state._replace(playing=play(state.playing, REWARDS, *ENDS[case]))
    _, rollout_key, _ = jax.random.split(state.key, 3)
    _, rollout = roll(config, state.learned, state.playing, rollout_key)
    _, metrics = update(config, state)
    return jax.tree.map(lambda array: np.asarray(array, np.float64), (rollout, metrics))


def true_successors(rollout):
    """The critic's heads at s'_t; nothing where the episode terminated."""
    following = np.concatenate([rollout.heads[1:], rollout.last_heads[None]])
    cut, over = rollout.truncated[..., None] > 0, rollout.terminated[..., None] > 0
    return np.where(over, np.nan, np.where(cut, rollout.final_heads, following))


def single_target(rollout, value, following, decay, gamma):
    """λ-return of one value with one discount, (time, environments)."""
    targets, later = np.zeros((TIME, LANES)), np.zeros(LANES)
    over, ended = rollout.terminated > 0, (rollout.terminated > 0) | (rollout.truncated > 0)
    for t in reversed(range(TIME)):
        error = rollout.rewards[t] - value[t] + np.where(over[t], 0.0, gamma * following[t])
        later = error + np.where(ended[t], 0.0, decay * later)
        targets[t] = value[t] + later
    return targets


def delta_targets(rollout, gammas, decays, *, difference):
    """Targets of W as the difference of λ-returns of V_z and V_{z−1}: the definition, in both forms."""
    values, following = np.cumsum(rollout.heads, -1), np.cumsum(true_successors(rollout), -1)

    def target(z, decay):
        return single_target(rollout, values[..., z], following[..., z], decay, gammas[z])

    targets = [target(0, decays[0])]
    for z in range(1, len(gammas)):
        targets.append(target(z, decays[z]) - target(z - 1, decays[z - 1 if difference else z]))
    return np.stack(targets, -1)


def value_targets(rollout, gammas, decays):
    """λ-return of every V_z on its own."""
    each = np.moveaxis(rollout.heads, -1, 0), np.moveaxis(true_successors(rollout), -1, 0), decays, gammas
    return np.stack([single_target(rollout, *one) for one in zip(*each, strict=True)], -1)


signals = jax.jit(ppo.learning_signals, compiler_options=QUICKLY)


@pytest.mark.parametrize("lam", [None, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("agent", ["ppo-multi", "ppo+", "ppo-delta"])
def test_advantages_are_those_of_the_longest_value(agent, lam):
    """The actor sees the ordinary advantage of V_Z with a decay of its own, whatever the critic's heads are."""
    config = tiny(agent=agent, actor_lam=lam)
    state = state_of(config)
    _, played = roll(config, state.learned, play(state.playing, REWARDS, *ENDS["ends"]), jax.random.key(1))
    *_, advantages = signals(config, state.learned, played)
    rollout = jax.tree.map(lambda array: np.asarray(array, np.float64), played)
    values, following = (
        heads[..., -1] if agent == "ppo-multi" else heads.sum(-1) for heads in (rollout.heads, true_successors(rollout))
    )
    expected = single_target(rollout, values, following, (lam or 0.95) * 0.99, 0.99) - values
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)


def explained(values, targets):
    return 1 - np.var(targets - values) / np.var(targets)


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDS)
@pytest.mark.filterwarnings("ignore::tddelta.ContractionWarning")
@pytest.mark.parametrize("agent", ["ppo-delta", "ppo", "ppo+", "ppo-delta-matched", "ppo-delta-bootstrap", "ppo-multi"])
def test_logged_losses_are_those_of_the_rollout(agent, case):
    config = tiny(agent=agent)
    rollout, metrics = played(config, case)
    assert case != "truncations" or rollout.truncated.sum() > 3
    gammas = [0.68, 0.84, 0.92, 0.96, 0.98, 0.99]
    decay = 0.95 * 0.99
    values = rollout.heads
    if agent == "ppo-multi":
        targets = value_targets(rollout, gammas, [0.95 * gamma for gamma in gammas])
        total, total_target = values[..., -1], targets[..., -1]
    elif agent in ("ppo", "ppo+"):
        rollout = rollout._replace(
            heads=rollout.heads.sum(-1, keepdims=True),
            final_heads=rollout.final_heads.sum(-1, keepdims=True),
            last_heads=rollout.last_heads.sum(-1, keepdims=True),
        )
        values, targets = rollout.heads, value_targets(rollout, gammas[-1:], [decay])
        total, total_target = values[..., 0], targets[..., 0]
    else:
        decays = {
            "ppo-delta": [0.95 * gamma for gamma in gammas],
            "ppo-delta-matched": [decay] * 6,
            "ppo-delta-bootstrap": [min(decay, gamma) for gamma in gammas],
        }[agent]
        targets = delta_targets(rollout, gammas, decays, difference=agent == "ppo-delta")
        total, total_target = values.sum(-1), targets.sum(-1)
    losses = 0.5 * np.mean((values - targets) ** 2, (0, 1))
    np.testing.assert_allclose(metrics.component_losses, losses, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(metrics.value_loss, losses.sum(), rtol=2e-5)
    np.testing.assert_allclose(metrics.component_means, values.mean((0, 1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(metrics.value_mean, total.mean(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(metrics.explained_variance, explained(total, total_target), atol=1e-4)
    per_component = [explained(values[..., z], targets[..., z]) for z in range(values.shape[-1])]
    np.testing.assert_allclose(metrics.component_explained_variance, per_component, atol=1e-4)


@pytest.mark.parametrize("case", ENDS)
def test_the_other_metrics_of_one_whole_batch(case):
    config = tiny()
    rollout, metrics = played(config, case)
    # One step from the acting policy: the ratio is 1, the advantages have mean 0.
    np.testing.assert_allclose(metrics.policy_loss, 0, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(metrics.approximate_kl, 0, rtol=1e-5, atol=1e-5)
    assert metrics.clip_fraction == 0 and metrics.fault == 0
    np.testing.assert_allclose(metrics.learning_rate, 1e-2, rtol=1e-5)
    # Two actions, near-uniform policy.
    np.testing.assert_allclose(metrics.entropy, np.log(2), atol=1e-3)
    np.testing.assert_allclose(rollout.log_probabilities, -np.log(2), atol=0.05)
    np.testing.assert_allclose(metrics.finished_returns, rollout.finished_returns, rtol=1e-5, atol=1e-5)
    assert metrics.gradient_norm > 0
