"""DeltaPPO and DeltaA2C: telescoping with several scales, and right in the field's traps."""

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize

import sb3_suite
from sb3_environments import TASKS, equal, vectorised
from sb3_suite import Patient, derived, put
from tddelta import ConfigError, ShapeError, TimeScales
from tddelta.adapters import Ladder
from tddelta.adapters.sb3 import DeltaActorCriticPolicy, DeltaPPO, DeltaRolloutBuffer
from tddelta.adapters.sb3.buffers import DeltaDictRolloutBuffer
from tddelta.targets import lambda_targets, successors

make = partial(sb3_suite.make, n_steps=32)
# Equal decays that contract for every discount.
EQUAL = TimeScales((0.9, 0.96, 0.98), (0.85, 0.85, 0.85))
LAM = 0.85 / 0.98
CAPPED = TimeScales.from_gammas([0.5, 0.9, 0.98], lam=LAM)
PLACE = spaces.Box(-1, 1, (1,))


class Kept(DeltaRolloutBuffer):
    """Keeps the rewards as SB3 hands them over, with V(final) in them."""

    def reset(self) -> None:
        super().reset()
        self.folded = np.zeros((self.buffer_size, self.n_envs), np.float32)

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.folded[self.pos] = args[2]
        super().add(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        # Observations play no part.
        theirs = RolloutBuffer(self.buffer_size, PLACE, PLACE, "cpu", self.gae_lambda, self.gamma, self.n_envs)
        theirs.rewards, theirs.values, theirs.episode_starts = self.folded, self.values, self.episode_starts
        theirs.compute_returns_and_advantage(last_values, dones)
        super().compute_returns_and_advantage(last_values, dones)
        self.theirs = theirs


class KeptDictionaries(Kept, DeltaDictRolloutBuffer):
    """For observations of several parts."""


@pytest.mark.parametrize(
    ("task", "scales", "form"),
    [
        *((task, EQUAL, "bootstrap") for task in TASKS),
        ("cartpole", EQUAL, "difference"),
        ("pendulum", CAPPED, "difference"),
        ("cartpole", CAPPED, "bootstrap"),
    ],
)
def test_components_add_up_to_what_sb3_computes_with_truncations(task: str, scales: TimeScales, form: Any) -> None:
    kept = KeptDictionaries if task == "dictionary" else Kept
    settings = {"scales": scales, "gamma": 0.98, "gae_lambda": LAM, "form": form}
    model = make(DeltaPPO, task, rollout_buffer_class=kept, **settings).learn(64)
    buffer = model.rollout_buffer
    theirs, scale = buffer.theirs, np.abs(buffer.theirs.returns).max()
    assert buffer.truncated.any(), "the identity is about truncations, too"
    assert (buffer.folded != buffer.environment_rewards)[buffer.truncated].all(), "SB3 changes rewards"
    assert (buffer.environment_rewards == buffer._noted_rewards).all(), "as they were, to the last bit"
    np.testing.assert_allclose(buffer.advantages.ravel(), _flat(theirs.advantages), rtol=1e-5, atol=1e-5 * scale)
    np.testing.assert_array_equal(buffer.component_returns, wanted_of(buffer, scales, form))
    # The bootstrap form adds up with equal decays only, the difference form with any.
    adds_up = scales is EQUAL or form == "difference"
    assert np.allclose(buffer.component_returns.sum(-1), theirs.returns, rtol=1e-5, atol=1e-5 * scale) == adds_up


def wanted_of(buffer: DeltaRolloutBuffer, scales: TimeScales, form: Any) -> np.ndarray:
    flags: Any = {"terminated": buffer.terminated, "truncated": buffer.truncated}
    following = successors(buffer.components, buffer._last, final_deltas=buffer._finals, **flags)
    given = buffer.environment_rewards, buffer.components, following
    return lambda_targets(*given, scales=scales, form=form, **flags)


def _flat(array: np.ndarray) -> np.ndarray:
    # training has flattened ours already: environments first
    return array.swapaxes(0, 1).ravel()


def filled(scales: TimeScales, rewards: Any, values: Any, **changes: Any) -> DeltaRolloutBuffer:
    """A buffer of one environment after the steps that are given."""
    steps = len(rewards)
    buffer = DeltaRolloutBuffer(steps, PLACE, PLACE, "cpu", 0.95, scales.gammas[-1], 1, scales=scales)
    finals, dones = changes.get("finals", {}), changes.get("dones", [False] * steps)
    for step in range(steps):
        here = {0: th.tensor(finals[step], dtype=th.float32)} if step in finals else {}
        reward, value = np.array([rewards[step]], np.float32), th.tensor([values[step]], dtype=th.float32)
        buffer.note(reward, here)
        if step in finals and changes.get("bootstrapped", True):  # as SB3 does it
            reward[0] += buffer.gamma * here[0].sum(-1, keepdim=True)
        start = np.array([step > 0 and dones[step - 1]])
        buffer.add(np.zeros((1, 1)), np.zeros((1, 1)), reward, start, value, th.zeros(1))
    buffer.note_last(th.tensor([changes["last"]], dtype=th.float32))
    buffer.compute_returns_and_advantage(th.tensor([sum(changes["last"])]), np.array([dones[-1]]))
    return buffer


TWO = TimeScales.from_gammas([0.5, 0.9], lam=0.5)


def test_the_value_of_a_final_observation_stays_out_of_the_reward_of_every_component() -> None:
    buffer = filled(TWO, [1], [[0, 0]], dones=[True], finals={0: [2, 8]}, last=[0, 0])
    np.testing.assert_allclose(buffer.component_returns.ravel(), [2, 8], rtol=1e-5, atol=1e-5)
    terminal = filled(TWO, [1], [[0, 0]], dones=[True], last=[7, 7])
    np.testing.assert_allclose(terminal.component_returns.ravel(), [1, 0], rtol=1e-5, atol=1e-5)


def test_an_end_to_whose_reward_nothing_was_added_is_a_terminal_one() -> None:
    # As of a `collect_rollouts` of a user's, or of SB3 before it bootstrapped at time limits.
    buffer = filled(TWO, [1], [[0, 0]], dones=[True], finals={0: [2, 8]}, last=[0, 0], bootstrapped=False)
    assert buffer.terminated.all() and not buffer.truncated.any()
    np.testing.assert_allclose(buffer.component_returns.ravel(), [1, 0], rtol=1e-5, atol=1e-5)


def test_a_step_that_is_noted_again_is_cut_only_if_it_is_then() -> None:
    buffer = DeltaRolloutBuffer(1, PLACE, PLACE, "cpu", 0.95, 0.9, 1, scales=TWO)
    for finals in ({0: th.ones(2)}, {}):
        buffer.note(np.ones(1, np.float32), finals)
    assert not buffer.truncated.any()


def test_a_buffer_that_was_filled_without_the_recorder_says_so() -> None:
    model = make(DeltaPPO)
    model._init_callback = lambda callback, progress_bar=False: PPO._init_callback(model, callback, progress_bar)
    with pytest.raises(ConfigError, match="were not noted before SB3 changed them"):
        model.learn(64)


def test_a_reward_that_a_callback_changes_is_seen_as_sb3_sees_it() -> None:
    class Halve(BaseCallback):
        def _on_step(self) -> bool:
            self.locals["rewards"] *= 0.5
            return True

    for scales in ("single", None):
        model = make(DeltaPPO, scales=scales).learn(64, callback=Halve())
        assert set(model.rollout_buffer.environment_rewards.ravel()) == {0.5}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"scales": [0.5, 0.9]}, "gamma must be the largest discount"),
        ({"scales": None, "gamma": 1.0}, "pass scales='halving longest_horizon=1000'"),
        ({"scales": 3.0}, "must name time scales"),
        *(
            ({"component_weights": weights}, "component_weights must be 3 finite numbers")
            for weights in ([1.0], [1.0, 1.0, -1.0], [1.0, 1.0, float("nan")], 3.0)
        ),
        *(({"gae_lambda": decay}, r"gae_lambda must be in \[0, 1\]; got") for decay in (1.5, -0.1)),  # as SB3 names it
        ({"rollout_buffer_class": RolloutBuffer}, "rollout_buffer_class must keep components"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make(DeltaPPO, **settings)


@pytest.mark.parametrize(
    ("scales", "labels"),
    [
        (None, ("0.680", "0.840", "0.920", "0.960", "0.980", "0.990")),
        ([0.9, 0.99], ("0.900", "0.990")),
        ({"ladder": "halving", "components": 2}, ("0.980", "0.990")),
    ],
)
def test_scales_come_from_plain_data(scales: Any, labels: tuple[str, ...]) -> None:
    model = make(DeltaPPO, scales=scales)
    assert model.scales.labels == labels
    assert model.scales.trace_decays[-1] == pytest.approx(0.95 * 0.99)


class ByHand(DeltaActorCriticPolicy):
    """A policy that evaluates actions without asking its base class."""

    def evaluate_actions(self, obs: Any, actions: th.Tensor) -> Any:
        latent, latent_value = self.mlp_extractor(self.extract_features(obs))
        chosen = self._get_action_dist_from_latent(latent)
        return self.value_net(latent_value), chosen.log_prob(actions), chosen.entropy()


class ByHandBuffer(DeltaRolloutBuffer):
    """A buffer that hands out samples without asking its base class."""

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        return RolloutBuffer._get_samples(self, batch_inds, env)


def test_weights_of_which_one_side_of_the_errors_knows_nothing_are_refused() -> None:
    # With one scale the shapes fit, and without weights nothing is missing.
    for settings in ({"rollout_buffer_class": ByHandBuffer}, {"policy": ByHand}):
        make(DeltaPPO, scales="single", **settings).learn(64)
        with pytest.raises(ConfigError, match=r"hand out, and one of the two was replaced: call super\(\) there"):
            make(DeltaPPO, scales="single", **settings, component_weights=[4.0]).learn(64)


def test_the_value_loss_is_the_sum_over_components_and_weights_weigh_it() -> None:
    # As many environments as components: swapped axes would show.
    logged = []
    for weights in (None, [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]):
        model = make(DeltaPPO, env=vectorised("cartpole", 3), component_weights=weights, n_epochs=1)
        model.learn(96)
        logged.append(dict(model.logger.name_to_value))
        parts = [logged[-1][f"value_loss/gamma={label}"] for label in model.scales.labels]
        factor = 1 if weights is None else weights[0]
        assert logged[-1]["train/value_loss"] == pytest.approx(factor * sum(parts), rel=1e-4)
    assert logged[0]["train/value_loss"] == pytest.approx(logged[1]["train/value_loss"], rel=1e-6)
    assert "train/gradient_norm" in logged[0]


def test_the_coefficient_is_that_of_the_sum_over_components() -> None:
    # One minibatch, in which nothing is clipped: the loss is what the logs say, put together.
    settings = {"n_epochs": 1, "batch_size": 64, "ent_coef": 0.0, "vf_coef": 0.25}
    model = make(DeltaPPO, **settings).learn(64)
    logged = model.logger.name_to_value
    parts = sum(logged[f"value_loss/gamma={label}"] for label in model.scales.labels)
    assert logged["train/loss"] == pytest.approx(logged["train/policy_gradient_loss"] + 0.25 * parts, rel=1e-5)


def test_every_sample_has_the_targets_of_its_own_step_and_environment() -> None:
    # As many environments as components and steps enough to tell: swapped axes would show.
    model = make(DeltaPPO, env=vectorised("cartpole", 3)).learn(96)
    buffer = model.rollout_buffer
    samples = buffer._get_samples(np.arange(96))
    rows = samples.returns.numpy().reshape(96, 3), samples.old_values.numpy().reshape(96, 3)
    for place in range(3):
        here = slice(32 * place, 32 * (place + 1))
        np.testing.assert_array_equal(rows[0][here], buffer.component_returns[:, place])
        np.testing.assert_array_equal(rows[1][here], buffer.components[:, place])


class OneValue(DeltaActorCriticPolicy):
    """A policy of a user that overrides the critic, and forgets the components."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.value_net = th.nn.Linear(self.mlp_extractor.latent_dim_vf, 1)


def test_one_value_is_not_spread_over_several_components() -> None:
    model = make(DeltaPPO, policy=OneValue, scales=[0.9, 0.99])
    with pytest.raises(ShapeError, match=r"components \(2, 2\), one per environment and discount; got \(2, 1\)"):
        model.learn(64)


def test_a_component_without_weight_learns_nothing_by_itself() -> None:
    model = make(DeltaPPO, scales=[0.9, 0.99], component_weights=[0.0, 1.0])
    before = model.policy.value_net.weight.clone()
    model.learn(64)
    after = model.policy.value_net.weight
    assert th.equal(before[0], after[0]) and not th.equal(before[1], after[1])


def test_the_logged_gradient_norm_is_that_before_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = []
    clip = th.nn.utils.clip_grad_norm_

    def watched(*args: Any, **kwargs: Any) -> Any:
        norms.append(clip(*args, **kwargs))
        return norms[-1]

    monkeypatch.setattr(th.nn.utils, "clip_grad_norm_", watched)
    model = make(DeltaPPO, max_grad_norm=1e-3).learn(64)
    assert model.logger.name_to_value["train/gradient_norm"] == pytest.approx(float(th.stack(norms).mean()), rel=1e-5)


def test_clipping_that_never_clips_changes_neither_loss_nor_parameters() -> None:
    first, second = (make(DeltaPPO, clip_range_vf=clip).learn(64) for clip in (None, 1e9))
    th.testing.assert_close(first.policy.state_dict(), second.policy.state_dict(), rtol=1e-3, atol=1e-5)
    losses = [model.logger.name_to_value["train/value_loss"] for model in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_clipping_of_values_is_by_component() -> None:
    model = make(DeltaPPO, scales=[0.9, 0.99], clip_range_vf=1e-9, ent_coef=0.0, n_epochs=1, batch_size=64)
    before = model.policy.value_net.weight.clone()
    model.learn(64)
    # The first minibatch is at the old values, where clipping has its full gradient: one step of Adam each.
    assert (model.policy.value_net.weight - before).abs().amax(1).min() > 0


def test_the_first_rollout_is_that_of_ppo_with_the_same_seed() -> None:
    first, second = make(PPO).learn(64), make(DeltaPPO, scales=None).learn(64)
    np.testing.assert_array_equal(first.rollout_buffer.actions, second.rollout_buffer.actions)
    assert second.policy.value_net.out_features == 6


def test_components_are_predicted_for_one_observation_and_for_several() -> None:
    model = make(DeltaPPO)
    observations = model.env.reset()
    several = model.predict_components(observations)
    assert several.shape == (2, 3)
    np.testing.assert_allclose(model.predict_components(observations[0]), several[0], rtol=1e-4)
    with th.no_grad():
        values = model.policy.predict_values(th.as_tensor(observations))
    assert values.shape == (2, 1)
    np.testing.assert_allclose(several.sum(-1, keepdims=True), values.numpy(), rtol=1e-5)


def test_normalisation_with_another_discount_warns() -> None:
    model = make(DeltaPPO, env=VecNormalize(vectorised("cartpole"), gamma=0.9))
    with pytest.warns(UserWarning, match=r"VecNormalize .* gamma=0\.9, and the largest discount is 0\.99"):
        model.learn(64)


def test_policy_classes_of_sb3_and_of_users_are_taken_if_they_have_components() -> None:
    for given, used in ((ActorCriticPolicy, DeltaActorCriticPolicy), (ByHand, ByHand)):
        assert type(make(DeltaPPO, policy=given).policy) is used
    with pytest.raises(ConfigError, match="policy must have a critic of several components"):
        make(DeltaPPO, policy=derived(ActorCriticPolicy, Curious))


class Tenfold(Kept):
    """Multiplies rewards on their way in."""

    def add(self, obs: Any, action: Any, reward: Any, *rest: Any) -> None:
        super().add(obs, action, reward * 10, *rest)


@pytest.mark.parametrize(
    ("where", "array"),
    [("add", "values"), ("before", "values"), ("after", "values"), ("after", "returns"), ("last", "last_values")],
)
def test_with_several_scales_sums_that_were_written_to_are_refused(where: str, array: str) -> None:
    class Written(DeltaRolloutBuffer):
        def halve(self, here: str) -> None:
            if where == here:
                setattr(self, array, 0.5 * getattr(self, array))

        def add(self, *args: Any) -> None:
            super().add(*args)
            self.halve("add")

        def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
            self.halve("before")
            super().compute_returns_and_advantage(last_values + (where == "last"), dones)
            self.halve("after")

    with pytest.raises(ConfigError, match=rf"{array} (must be the sum of the|were changed, and the critic learns)"):
        make(DeltaPPO, "pendulum", rollout_buffer_class=Written).learn(64)


def test_component_returns_that_a_callback_changes_count() -> None:
    class Change(Patient):
        def _on_rollout_end(self) -> None:
            buffer: Any = self.locals["rollout_buffer"]
            buffer.component_returns = buffer.component_returns + 1

    for scales in ("single", [0.9, 0.99]):
        first, second = (make(DeltaPPO, scales=scales).learn(64, callback=callback) for callback in (None, Change()))
        assert not equal(first, second)


def test_a_reward_changed_on_its_way_into_the_buffer_counts() -> None:
    buffer = make(DeltaPPO, rollout_buffer_class=Tenfold).learn(64).rollout_buffer
    assert buffer.truncated.any()
    scale = 1e-5 * np.abs(buffer.theirs.returns).max()
    np.testing.assert_allclose(buffer.component_returns.sum(-1), buffer.theirs.returns, rtol=1e-5, atol=scale)
    np.testing.assert_array_equal(buffer.rewards, buffer.folded)


class Curious:
    """An algorithm of a user whose rewards are raised after the callbacks have seen them."""

    def _update_info_buffer(self, infos: Any, dones: Any = None) -> None:
        super()._update_info_buffer(infos, dones)
        self.given["rewards"] += 100  # the array that `collect_rollouts` is about to add to the buffer

    def _init_callback(self, *args: Any, **kwargs: Any) -> Any:
        callback: Any = super()._init_callback(*args, **kwargs)
        update = callback.update_locals

        def kept(given: dict[str, Any]) -> None:
            self.given = given
            update(given)

        callback.update_locals = kept
        return callback


def test_an_intrinsic_reward_added_after_the_callbacks_counts() -> None:
    first, second, third = (
        make(derived(kind, Curious), scales=scales).learn(64)
        for kind, scales in ((PPO, None), (DeltaPPO, "single"), (DeltaPPO, sb3_suite.SCALES))
    )
    assert equal(first, second) and first.rollout_buffer.rewards.min() > 100
    several = third.rollout_buffer
    assert several.truncated.any()
    np.testing.assert_allclose(several.environment_rewards, 101, rtol=1e-5)


class Moves(Patient):
    """Changes settings of model and buffer between rollouts, as schedules of a user do."""

    def __init__(self, buffer: dict[str, Any], **model: Any) -> None:
        super().__init__()
        self.change = put(rollout_buffer=buffer, **model)

    def _on_rollout_start(self) -> None:
        if self.model.num_timesteps >= 64:
            self.change(self.model)


def test_with_one_scale_rollouts_may_become_shorter() -> None:
    first, second = (
        make(kind, "pendulum", scales="single").learn(128, callback=Moves({"buffer_size": 16}, n_steps=16))
        for kind in (PPO, DeltaPPO)
    )
    assert equal(first, second)


def test_a_ladder_follows_discount_and_decay() -> None:
    scales = {"ladder": "halving", "components": 3}
    both = {"gamma": 0.9, "gae_lambda": 0.5}
    moved = make(DeltaPPO, "pendulum", scales=scales).learn(128, callback=Moves(both, **both))
    wanted = TimeScales.halving(0.9, components=3, lam=0.5)
    buffer = moved.rollout_buffer
    assert moved.scales == buffer.scales == wanted
    np.testing.assert_array_equal(buffer.component_returns, wanted_of(buffer, wanted, "difference"))


@pytest.mark.parametrize(
    ("scales", "model", "buffer", "match"),
    [
        (None, {"gamma": 0.9}, {"gamma": 0.9}, r"keep the 6 components.*'ladder': 'halving', 'components': 6"),
        ([0.9, 0.99], {"gamma": 0.9}, {"gamma": 0.9}, "gamma must be the largest discount of scales, 0.99"),
        ("doubling", {"gamma": 0.98}, {}, r"gamma must be the same in model and .*; got 0.98 and 0.99: set both"),
        (None, {"form": "bootstrap"}, {}, "form must be the same in model and model.rollout_buffer"),
        ([0.9, 0.99], {"component_weights": [2.0]}, {}, r"component_weights must be 2 finite numbers .*got \[2.0\]"),
        ([0.9, 0.99], {}, {"_ladder": Ladder([0.5, 0.99])}, r"must have the scales of the model, .*0\.9, .*got .*0\.5"),
    ],
)
def test_a_ladder_that_cannot_follow_says_so(scales: Any, model: Any, buffer: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make(DeltaPPO, scales=scales).learn(128, callback=Moves(buffer, **model))


def test_traces_of_ones_own_stay_with_one_scale_too() -> None:
    own = make(DeltaPPO, "pendulum", scales=TimeScales.single(0.99, lam=0.5)).learn(64)
    buffer = own.rollout_buffer
    assert not np.allclose(buffer.component_returns.sum(-1).T.ravel(), buffer.returns.ravel(), rtol=1e-3)


def test_a_buffer_without_components_is_refused_while_learning() -> None:
    model = make(DeltaPPO)
    model.rollout_buffer = make(PPO).rollout_buffer
    with pytest.raises(ConfigError, match="rollout_buffer must keep components; got a RolloutBuffer"):
        model.learn(64)


def test_a_train_of_ones_own_gets_all_components_of_every_sample_in_one_row() -> None:
    found = []

    class Own(DeltaPPO):
        def train(self) -> None:
            whole = next(self.rollout_buffer.get())
            components, _, _ = self.policy.evaluate_actions(whole.observations, whole.actions.long().flatten())
            assert whole.returns.shape == whole.old_values.shape == (64 * 3,) and components.shape == (64, 3)
            th.testing.assert_close(whole.old_values, components.flatten(), rtol=1e-4, atol=1e-5)
            mean = th.nn.functional.mse_loss(components.flatten(), whole.returns)
            found.append(len(self.scales) * mean.item())
            super().train()

    # One minibatch: SB3's `train` finds the same loss, before its only step.
    model = make(Own, batch_size=64, n_epochs=1).learn(64)
    assert found[0] == pytest.approx(model.logger.name_to_value["train/value_loss"], rel=1e-4)
