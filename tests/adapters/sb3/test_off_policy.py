"""DeltaDQN and DeltaSAC: one choice for all components, and no returns of several steps."""

import runpy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.save_util import save_to_pkl

from sb3_environments import Scripted, equal
from sb3_suite import OURS, SCALES, derived, environments, halfway, kinds, make, off_policy, put
from tddelta import ConfigError, TimeScales
from tddelta.adapters.sb3 import (
    DeltaContinuousCritic,
    DeltaDQN,
    DeltaDQNPolicy,
    DeltaQNetwork,
    DeltaSAC,
    DeltaSACPolicy,
)


def watched(model: Any, batch: int) -> tuple[Any, th.Tensor, th.Tensor]:
    """An update: its samples, the components at the successors, and the targets."""
    seen: list[Any] = []
    targets = model._targets
    model._targets = lambda *given: seen.append((*given, targets(*given))) or seen[-1][-1]
    model.train(1, batch)
    (found,) = seen
    return found


def test_training_takes_the_greedy_action_of_the_sum_for_all_components() -> None:
    model = make(DeltaDQN, gamma=0.99).learn(20)
    # Weights at random, where the components disagree about the best action.
    with th.no_grad():
        for parameter in model.q_net_target.parameters():
            parameter.normal_()
    samples, following, found = watched(model, 64)
    with th.no_grad():
        each = model.q_net_target.components(samples.next_observations)
    greedy = each.sum(-1).argmax(1)
    assert (each.argmax(1) != greedy[:, None]).any(), "a maximum per component would be another"
    np.testing.assert_array_equal(following, each[th.arange(64), greedy])
    # Every prefix is the target of its own discount, at the action that the whole chooses.
    rewards, alive = samples.rewards.squeeze(-1), 1 - samples.dones.squeeze(-1)
    for z, gamma in enumerate(SCALES):
        wanted = rewards + alive * gamma * following[:, : z + 1].sum(-1)
        np.testing.assert_allclose(found[:, : z + 1].sum(-1), wanted, rtol=1e-5, atol=1e-5)
    assert samples.dones.sum() < model.replay_buffer.timeouts.sum(), "cut episodes bootstrap"


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]])
@off_policy
def test_the_loss_of_a_critic_is_the_sum_over_components(plain: Any, weights: list[float] | None) -> None:
    model = make(OURS[plain], component_weights=weights).learn(40)
    rows = th.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
    summed = model._loss(th.nn.functional.mse_loss, rows, th.zeros(2, 3))
    assert float(summed) == pytest.approx(np.dot(weights or [1, 1, 1], [0.5, 2, 8]))
    taken: list[th.Tensor] = []
    loss = model._loss
    model._loss = lambda *given: taken.append(loss(*given)) or taken[-1]
    model.train(1, 16)
    logged = model.logger.name_to_value
    # SB3 halves the sum over SAC's twins.
    trained = logged["train/loss"] if plain is DQN else logged["train/critic_loss"] * 2
    assert trained == pytest.approx(sum(loss.item() for loss in taken), rel=1e-5)


def test_the_q_network_gives_sums_and_components() -> None:
    model = make(DeltaDQN)
    observations = th.as_tensor(model.env.reset())
    components = model.q_net.components(observations)
    assert components.shape == (2, 2, 3)
    th.testing.assert_close(components.sum(-1), model.q_net(observations))
    np.testing.assert_allclose(model.predict_components(observations.numpy()), components.detach().numpy(), rtol=1e-5)
    assert model.predict_components(observations[0].numpy()).shape == (2, 3)
    action, _ = model.predict(observations.numpy(), deterministic=True)
    np.testing.assert_array_equal(action, components.sum(-1).argmax(1).numpy())


def test_the_smaller_twin_is_chosen_by_its_sum_and_the_entropy_goes_into_component_0() -> None:
    model = make(DeltaSAC, ent_coef=0.5).learn(20)
    twins, log_prob = model.critic_target.components, model.actor.action_log_prob
    asked: list[Any] = []
    model.critic_target.components = lambda *given: asked.append(twins(*given).clone()) or asked[-1]
    model.actor.action_log_prob = lambda seen: asked.append(log_prob(seen)) or asked[-1]
    samples, following, found = watched(model, 16)
    _, (_, entropy), both = asked  # of the actor's own actions first
    chosen, soft = both[th.arange(16), both.sum(-1).argmin(1)], -0.5 * entropy.detach().reshape(-1)
    np.testing.assert_allclose(following[:, 1:], chosen[:, 1:], rtol=1e-5)
    np.testing.assert_allclose(following[:, 0], chosen[:, 0] + soft, rtol=1e-5, atol=1e-5)
    # Soft values of every discount: prefixes telescope.
    rewards, alive = samples.rewards.squeeze(), (1 - samples.dones).squeeze()
    for z, gamma in enumerate(SCALES):
        expected = rewards + alive * gamma * (chosen[:, : z + 1].sum(-1) + soft)
        np.testing.assert_allclose(found[:, : z + 1].sum(-1), expected, rtol=1e-5, atol=1e-5)


def test_components_of_sac_are_predicted_at_actions_of_the_environment() -> None:
    model = make(DeltaSAC)
    observations = model.env.reset()
    own = model.predict_components(observations)
    assert own.shape == (2, 3)
    action, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(model.predict_components(observations, action), own, rtol=1e-4, atol=1e-5)
    assert model.predict_components(observations[0], action[0]).shape == (3,)
    with pytest.raises(ConfigError, match=r"one action per observation, shape \(2, 1\); got shape \(1,\)"):
        model.predict_components(observations, action[0])


class ThreeSteps(NStepReplayBuffer):
    """Three steps in one."""


class Wrapped(ReplayBuffer):
    """Several steps in one, drawn from another buffer."""

    def __init__(self, *args: Any, inner: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.inner = NStepReplayBuffer(*args, **kwargs, **inner)

    def add(self, *args: Any) -> None:
        super().add(*args)
        self.inner.add(*args)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        return self.inner.sample(batch_size, env)


class Fading(ReplayBuffer):
    """A buffer whose episodes end by halves."""

    def sample(self, batch_size: int, env: Any = None) -> Any:
        samples = super().sample(batch_size, env)
        return samples._replace(dones=th.full_like(samples.dones, 0.5))


SEVERAL = "n_steps must be 1 with components; got 3: SB3 adds up the rewards of n steps with one discount"
OTHERS = r"single transitions, whose discounts are gamma=0\.99; got 0\.\d+ to 0\.\d+ from Wrapped"


@pytest.mark.parametrize("scales", [SCALES, "single"])
@off_policy
def test_several_steps_are_refused(plain: Any, scales: Any, tmp_path: Path) -> None:
    kind = OURS[plain]
    given = {"replay_buffer_class": NStepReplayBuffer, "replay_buffer_kwargs": {"n_steps": 3}}
    default = {"replay_buffer_class": ThreeSteps}
    windows = {"scales": TimeScales((0.99,), n_steps=(3,))}
    for settings in ({"n_steps": 3}, given, default, windows):
        with pytest.raises(ConfigError, match=SEVERAL):
            make(kind, **{"scales": scales, **settings})
    with pytest.raises(ConfigError, match=SEVERAL):
        getattr(kind, f"from_{plain.__name__.lower()}")(make(plain, n_steps=3), scales)
    make(kind, scales=scales).save(tmp_path / "model")
    for settings in ({"n_steps": 3}, given):
        with pytest.raises(ConfigError, match=SEVERAL):
            kind.load(tmp_path / "model", device="cpu", env=environments(plain), **settings)
    wrapped = make(kind, scales=scales, replay_buffer_class=Wrapped, replay_buffer_kwargs={"inner": {"n_steps": 3}})
    with pytest.raises(ConfigError, match=OTHERS):
        wrapped.learn(40)
    fading = make(kind, scales=scales, replay_buffer_class=Fading)
    with pytest.raises(ConfigError, match=r"dones of 0 or 1; got 0\.5 to 0\.5 from Fading"):
        fading.learn(40)


@off_policy
def test_a_buffer_of_several_steps_is_refused_when_it_comes_later(plain: Any, tmp_path: Path) -> None:
    model = make(OURS[plain]).learn(20)
    old = model.replay_buffer
    space = model.observation_space, model.action_space
    several = NStepReplayBuffer(200, *space, device="cpu", n_envs=2)
    with pytest.raises(ConfigError, match=SEVERAL):
        model.learn(64, callback=halfway(put(replay_buffer=several)))
    model.replay_buffer = old
    save_to_pkl(tmp_path / "buffer.pkl", several)
    model.load_replay_buffer(tmp_path / "buffer.pkl")
    with pytest.raises(ConfigError, match=SEVERAL):
        model.learn(64)


@off_policy
def test_a_buffer_of_many_steps_works_with_one(plain: Any) -> None:
    settings = {"replay_buffer_class": NStepReplayBuffer, "replay_buffer_kwargs": {"n_steps": 1, "gamma": 0.99}}
    assert equal(make(plain, **settings).learn(48), make(OURS[plain], scales="single", **settings).learn(48))
    settings["replay_buffer_kwargs"] = {"n_steps": 1, "gamma": 0.9}
    with pytest.raises(ConfigError, match=r"discounts are gamma=0\.99; got 0\.9 to 0\.9 from NStepReplayBuffer"):
        make(OURS[plain], scales="single", **settings).learn(48)


@off_policy
def test_a_single_scale_follows_gamma_and_takes_parameters_of_a_plain_model(plain: Any) -> None:
    model = make(OURS[plain], scales="single", gamma=0.5)
    assert model.scales.gammas == (0.5,)
    model.learn(44, callback=halfway(put(gamma=0.9)))
    assert model.scales.gammas == (0.9,)
    other = make(plain, seed=5)
    model.set_parameters(other.get_parameters())
    assert equal(model, other)


@off_policy
def test_a_ladder_follows_gamma_or_says_that_it_cannot(plain: Any) -> None:
    kind = OURS[plain]
    model = make(kind)
    with pytest.raises(ConfigError, match=r"gamma must be the largest discount of scales, 0\.99, .* got gamma=0\.5"):
        model.learn(56, callback=halfway(put(gamma=0.5)))
    with pytest.raises(ConfigError, match=r"component_weights must be 3 finite numbers .*got \[2\.0\]"):
        make(kind).learn(56, callback=halfway(put(component_weights=[2.0])))
    named = make(kind, scales="halving")
    with pytest.raises(ConfigError, match=r"gamma must keep the 6 components .*; got 0\.5, whose ladder has 1"):
        named.learn(56, callback=halfway(put(gamma=0.5)))
    counted = make(kind, scales={"ladder": "halving", "components": 3}).learn(56, callback=halfway(put(gamma=0.9)))
    assert counted.scales.gammas == TimeScales.halving(0.9, components=3).gammas


class InHalf:
    """Updates in half precision, as a user's subclass has them."""

    def train(self, *args: Any, **kwargs: Any) -> None:
        with th.autocast("cpu", dtype=th.bfloat16):
            super().train(*args, **kwargs)


@off_policy
def test_targets_stay_whole_where_networks_are_halved(plain: Any) -> None:
    halved = derived(OURS[plain], InHalf)
    assert equal(make(derived(plain, InHalf)).learn(40), make(halved, scales="single").learn(40))
    model = make(halved, scales=[0.9, 0.999], gamma=0.999).learn(20)
    model.replay_buffer.rewards[:] = 1000.7
    samples, following, found = watched(model, 16)
    assert found.dtype == th.float32
    with th.autocast("cpu", dtype=th.bfloat16):
        acted = (model.action_space.sample(),) if plain is SAC else ()
        assert model.predict_components(model.env.reset()[0], *acted).dtype == np.float32
        given = th.randn(6, *model.observation_space.shape), *((th.zeros(6, 1),) if plain is SAC else ())
        network = model.critic if plain is SAC else model.q_net
        sums, parts = network(*given), network.components(*given)
        sums, parts = (th.cat(sums, dim=1), parts) if plain is SAC else (sums, parts)
        assert parts.dtype == th.bfloat16
        th.testing.assert_close(sums, parts.float().sum(-1), rtol=1e-6, atol=1e-6)
    alive = 1 - samples.dones.squeeze(-1)
    np.testing.assert_allclose(found.sum(-1), 1000.7 + alive * 0.999 * following.to(th.float32).sum(-1), rtol=1e-6)


class ForwardOnly(DeltaQNetwork):
    """Acts by other values than it learns."""

    def forward(self, obs: Any) -> th.Tensor:
        return super().forward(obs) + 1


class ForwardOnlyCritic(DeltaContinuousCritic):
    """Bootstraps from other values than it learns."""

    def components(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        return super().components(obs, actions) + 1


class PolicyOfForward(DeltaDQNPolicy):
    """With a network that acts by other values than it learns."""

    def make_q_net(self) -> DeltaQNetwork:
        settings = self._update_features_extractor(self.net_args, features_extractor=None)
        return ForwardOnly(**settings, n_components=self.n_components)


class PolicyOfPlain(DeltaDQNPolicy):
    """With a network of one value per action."""

    def make_q_net(self) -> Any:
        return super(DeltaDQNPolicy, self).make_q_net()


class PolicyOfCritic(DeltaSACPolicy):
    """With critics that bootstrap from other values than they learn."""

    def make_critic(self, features_extractor: Any = None) -> DeltaContinuousCritic:
        settings = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return ForwardOnlyCritic(**settings, n_components=self.n_components)


@pytest.mark.parametrize(
    ("kind", "policy", "sentence"),
    [
        (DeltaDQN, PolicyOfForward, r"ForwardOnly must .* DeltaQNetwork and override components\(\), .* forward"),
        (DeltaDQN, PolicyOfPlain, "QNetwork must derive from DeltaQNetwork"),
        (DeltaSAC, PolicyOfCritic, r"ForwardOnlyCritic must derive from DeltaContinuousCritic and override each\(\)"),
    ],
)
def test_a_network_that_would_not_learn_what_it_shows_is_refused(kind: Any, policy: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make(kind, policy=policy)


def test_a_dueling_network_of_ones_own_learns_all_components() -> None:
    policy = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "sb3_dueling.py"))["DuelingPolicy"]
    model = make(DeltaDQN, policy=policy)
    before = {name: tensor.clone() for name, tensor in model.q_net.state_dict().items()}
    model.learn(40)
    changed = {name for name, tensor in model.q_net.state_dict().items() if not th.equal(tensor, before[name])}
    assert changed == before.keys(), "both streams learn"
    observations = model.env.reset()
    network, tensors = model.q_net, th.as_tensor(observations)
    with th.no_grad():
        values = network.value(network.q_net(tensors))
    components = model.predict_components(observations)
    np.testing.assert_allclose(components.mean(1), values, rtol=1e-5, atol=1e-6)
    action, _ = model.predict(observations, deterministic=True)
    np.testing.assert_array_equal(action, components.sum(-1).argmax(1))


def counted(observations: Any, actions: Any, taken: Any = None) -> Any:
    """An environment that keeps the actions that it was given."""
    return Scripted(
        observations, actions, lambda _, action: (taken and taken(action)) or (observations.sample(), 1.0, False)
    )


@pytest.mark.parametrize("start", [-1, 2])
@kinds(DQN, PPO, A2C)
def test_observations_and_actions_count_from_0(plain: Any, start: int) -> None:
    kind, shifted, place = OURS[plain], gym.spaces.Discrete(3, start=start), gym.spaces.Box(-1, 1, (2,))
    words = r"observations must count from 0; got .*Discrete\(3, start=-?\d\).*TransformObservation"
    for space, policy in ((shifted, "MlpPolicy"), (gym.spaces.Dict({"place": shifted}), "MultiInputPolicy")):
        with pytest.raises(ConfigError, match=words):
            make(kind, env=counted(space, gym.spaces.Discrete(2)), policy=policy)
    seen = counted(shifted, gym.spaces.Discrete(2))
    moved: Any = gym.wrappers.TransformObservation(seen, lambda found: found - start, gym.spaces.Discrete(3))
    make(kind, env=moved, policy="MlpPolicy").learn(64)

    with pytest.raises(ConfigError, match=r"actions must count from 0; got Discrete\(3, start=-?\d\).*TransformAction"):
        make(kind, env=counted(place, shifted), policy="MlpPolicy")
    taken: set[Any] = set()
    acted = counted(place, shifted, taken.add)
    moved = gym.wrappers.TransformAction(acted, lambda action: action + start, gym.spaces.Discrete(3))
    make(kind, env=moved, policy="MlpPolicy").learn(64)
    assert taken == {None, start, start + 1, start + 2}, "None at the reset"
