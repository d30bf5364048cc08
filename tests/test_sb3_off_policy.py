"""DeltaDQN and DeltaSAC: equal to SB3's with one scale, and one choice for all components with several."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_environments import TASKS, equal, vectorised
from tddelta import ConfigError
from tddelta.adapters.sb3 import DeltaDQN, DeltaSAC

QUICK: dict[str, Any] = {"learning_starts": 16, "batch_size": 8, "buffer_size": 200, "device": "cpu", "seed": 3}
SCALES = [0.5, 0.9, 0.99]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    th.set_num_threads(1)


def make(kind: Any, task: str | None = None, **settings: Any) -> Any:
    task = task or ("pendulum" if issubclass(kind, SAC) else "cartpole")
    more: dict[str, Any] = {"target_update_interval": 10} if issubclass(kind, DQN) else {}
    return kind(TASKS[task][1], vectorised(task), **{**QUICK, **more, **settings})


@pytest.mark.parametrize("task", ["cartpole", "dictionary", "image"])
def test_dqn_with_one_scale_is_that_of_sb3_to_the_bit(task: str) -> None:
    first, second = make(DQN, task).learn(64), make(DeltaDQN, task, scales="single").learn(64)
    assert equal(first, second)


@pytest.mark.parametrize(
    "settings",
    [{}, {"ent_coef": 0.1}, {"use_sde": True}, {"policy_kwargs": {"share_features_extractor": True, "n_critics": 3}}],
    ids=["automatic", "fixed", "sde", "three"],
)
def test_sac_with_one_scale_is_that_of_sb3_to_the_bit(settings: dict[str, Any]) -> None:
    first, second = make(SAC, **settings).learn(48), make(DeltaSAC, scales="single", **settings).learn(48)
    assert equal(first, second)


def test_training_takes_the_greedy_action_of_the_sum() -> None:
    model = make(DeltaDQN, scales=SCALES, gamma=0.99).learn(20)
    # Weights at random, where the components disagree about the best action.
    with th.no_grad():
        for parameter in model.q_net_target.parameters():
            parameter.normal_()
    seen: list[Any] = []
    targets = model._targets
    model._targets = lambda samples, following: seen.append((samples, following)) or targets(samples, following)
    model.train(1, 64)
    ((samples, following),) = seen
    with th.no_grad():
        each = model.q_net_target.components(samples.next_observations)
    greedy = each.sum(-1).argmax(1)
    assert (each.argmax(1) != greedy[:, None]).any(), "a maximum per component would be another"
    np.testing.assert_array_equal(following, each[th.arange(64), greedy])


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]])
@pytest.mark.parametrize("kind", [DeltaDQN, DeltaSAC])
def test_the_loss_of_a_critic_is_the_sum_over_components(kind: Any, weights: list[float] | None) -> None:
    model = make(kind, scales=SCALES, component_weights=weights).learn(40)
    rows = th.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
    summed = model._loss(th.nn.functional.mse_loss, rows, th.zeros(2, 3))
    assert float(summed) == pytest.approx(
        sum(w * half for w, half in zip(weights or [1, 1, 1], (0.5, 2, 8), strict=True))
    )
    taken: list[th.Tensor] = []
    loss = model._loss
    model._loss = lambda *given: taken.append(loss(*given)) or taken[-1]
    model.train(1, 16)
    logged = model.logger.name_to_value
    # SB3 halves the sum over SAC's twins.
    trained = logged["train/loss"] if kind is DeltaDQN else logged["train/critic_loss"] * 2
    assert trained == pytest.approx(sum(loss.item() for loss in taken), rel=1e-5)


def test_one_greedy_action_is_shared_by_all_components() -> None:
    model = make(DeltaDQN, scales=SCALES, gamma=0.99)
    model.learn(20)
    samples = model.replay_buffer.sample(32)
    with th.no_grad():
        following = model.q_net_target.components(samples.next_observations)
        total = following.sum(-1)
        greedy = total.argmax(1)
        chosen = following[th.arange(32), greedy]
        targets = model._targets(samples, chosen)
    alive = 1 - samples.dones
    np.testing.assert_allclose(
        targets.sum(-1), (samples.rewards + alive * 0.99 * total.max(1, keepdim=True).values).squeeze(), rtol=1e-5
    )
    # Every prefix is the target of its own discount, at the action that the whole chooses.
    prefix = (samples.rewards + alive * 0.9 * chosen[:, :2].sum(-1, keepdim=True)).squeeze()
    np.testing.assert_allclose(targets[:, :2].sum(-1), prefix, rtol=1e-5)
    assert samples.dones.sum() < model.replay_buffer.timeouts.sum(), "cut episodes bootstrap"


def test_the_q_network_gives_sums_and_components() -> None:
    model = make(DeltaDQN, scales=SCALES)
    observations = th.as_tensor(model.env.reset())
    components = model.q_net.components(observations)
    assert components.shape == (2, 2, 3)
    th.testing.assert_close(components.sum(-1), model.q_net(observations))
    np.testing.assert_allclose(model.predict_components(observations.numpy()), components.detach().numpy(), rtol=1e-5)
    assert model.predict_components(observations[0].numpy()).shape == (2, 3)
    action, _ = model.predict(observations.numpy(), deterministic=True)
    np.testing.assert_array_equal(action, components.sum(-1).argmax(1).numpy())


def test_the_smaller_twin_is_chosen_by_its_sum_and_the_entropy_goes_into_component_0() -> None:
    model = make(DeltaSAC, scales=SCALES, ent_coef=0.5)
    model.learn(20)
    seen: dict[str, Any] = {}
    targets = model._targets

    def watched(samples: ReplayBufferSamples, following: th.Tensor) -> Any:
        seen.update(samples=samples, following=following.clone())
        seen["targets"] = targets(samples, following)
        return seen["targets"]

    twins = model.critic_target.components
    log_prob = model.actor.action_log_prob
    model.critic_target.components = lambda *given: seen.setdefault("twins", twins(*given))

    def remembered(observations: Any) -> Any:
        seen["log_prob"] = log_prob(observations)
        return seen["log_prob"]

    model.actor.action_log_prob, model._targets = remembered, watched
    model.train(1, 16)
    both, (_, entropy) = seen["twins"], seen["log_prob"]
    smaller = both.sum(-1).argmin(1)
    chosen = both[th.arange(16), smaller]
    np.testing.assert_allclose(seen["following"][:, 1:], chosen[:, 1:], rtol=1e-5)
    np.testing.assert_allclose(
        seen["following"][:, 0], (chosen[:, 0] - 0.5 * entropy.detach().reshape(-1)), rtol=1e-5, atol=1e-5
    )
    # Soft values of every discount: prefixes telescope.
    samples = seen["samples"]
    alive, soft = (1 - samples.dones).squeeze(), -0.5 * entropy.detach().reshape(-1)
    for z, gamma in enumerate(SCALES):
        expected = samples.rewards.squeeze() + alive * gamma * (chosen[:, : z + 1].sum(-1) + soft)
        np.testing.assert_allclose(seen["targets"][:, : z + 1].sum(-1), expected, rtol=1e-5, atol=1e-5)


def test_components_of_sac_are_predicted_at_actions_of_the_environment() -> None:
    model = make(DeltaSAC, scales=SCALES)
    observations = model.env.reset()
    own = model.predict_components(observations)
    assert own.shape == (2, 3)
    action, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(model.predict_components(observations, action), own, rtol=1e-4, atol=1e-5)
    assert model.predict_components(observations[0], action[0]).shape == (3,)
    with pytest.raises(ConfigError, match=r"one action per observation, shape \(2, 1\); got shape \(1,\)"):
        model.predict_components(observations, action[0])


@pytest.mark.parametrize("kind", [DeltaDQN, DeltaSAC])
def test_several_steps_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="n_steps must be 1 with components; got 3"):
        make(kind, n_steps=3)


@pytest.mark.parametrize("kind", [DeltaDQN, DeltaSAC])
def test_errors_and_means_are_logged_by_discount(kind: Any) -> None:
    model = make(kind, scales=SCALES, component_weights=[1.0, 0.5, 2.0]).learn(40)
    logged = model.logger.name_to_value
    for name in ("value_loss", "explained_variance", "value_mean"):
        assert all(np.isfinite(logged[f"{name}/gamma={label}"]) for label in model.scales.labels)
    assert logged["train/gradient_norm"] > 0


def test_weights_of_one_are_no_weights() -> None:
    first, second = (make(DeltaDQN, scales=SCALES, component_weights=w).learn(40) for w in (None, [1.0] * 3))
    for name, tensor in first.policy.state_dict().items():
        th.testing.assert_close(tensor, second.policy.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [DeltaDQN, DeltaSAC])
def test_a_saved_model_is_loaded_and_goes_on(kind: Any, tmp_path: Any) -> None:
    model = make(kind, scales=SCALES).learn(40)
    model.save(tmp_path / "model")
    again = kind.load(tmp_path / "model", env=model.get_env(), device="cpu")
    assert equal(model, again) and again.scales == model.scales
    again.learn(20, reset_num_timesteps=False)
    assert not equal(model, again)
