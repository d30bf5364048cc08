"""DeltaPPO in RLlib: its PPO with one scale, the target functions with several, and right at every kind of end."""

import importlib
import json
import sys
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="needs RLlib and torch")

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.connectors import learner as connectors
from ray.rllib.core.rl_module import RLModule, RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets

from rllib_agents import Countdown, Two, config, learner_of, plain, weights
from tddelta import ConfigError, ShapeError, TimeScales, targets
from tddelta.adapters import rllib
from tddelta.adapters.rllib import (
    ComponentsAPI,
    DeltaAdvantageEstimation,
    DeltaPPO,
    DeltaPPOConfig,
    DeltaPPOTorchRLModule,
)

GAMMAS = [0.5, 0.9, 0.99]


@pytest.fixture
def built(request: Any) -> Any:
    """Builds algorithms, and stops them afterwards."""
    made: list[Any] = []

    def build(settings: Any) -> Any:
        made.append(settings.build_algo())
        return made[-1]

    yield build
    for one in made:
        one.stop()


def batch_of(algorithm: Any, episodes: list[Any], module_id: str = "default_policy") -> tuple[Any, dict[str, Any]]:
    learner = learner_of(algorithm)
    batch = learner._learner_connector(rl_module=learner.module, batch={}, episodes=episodes, shared_data={})
    return learner.module[module_id], batch[module_id]


def sampled(algorithm: Any, steps: int = 40) -> list[Any]:
    return [episode.to_numpy() for episode in algorithm.env_runner.sample(num_timesteps=steps, explore=True)]


MODELS: dict[str, dict[str, Any]] = {
    "separate": {},
    "shared": {"vf_share_layers": True},
    "recurrent": {"use_lstm": True, "max_seq_len": 8, "lstm_cell_size": 8},
}


def assert_equal_learning(built: Any, ours: Any, theirs: Any, *modules: str) -> None:
    """Losses of three iterations and the parameters after them."""
    learned = []
    for settings in (ours, theirs):  # one after the other: they seed the random numbers that both use
        algorithm = built(settings)
        results = [algorithm.train()["learners"] for _ in range(3)]
        learned.append((results, {module: weights(algorithm, module) for module in modules}))
    (found, parameters), (expected, wanted) = learned
    for module in modules:
        for name in ("policy_loss", "vf_loss", "vf_loss_unclipped", "entropy", "mean_kl_loss", "total_loss"):
            both = [[float(one[module][name]) for one in results] for results in (found, expected)]
            np.testing.assert_allclose(*both, rtol=1e-6, atol=1e-6, err_msg=name)
        for name, array in wanted[module].items():
            np.testing.assert_allclose(parameters[module][name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("environment", ["CartPole-v1", Countdown])
@pytest.mark.parametrize("model", MODELS)
def test_one_scale_is_ppo_of_rllib(built: Any, model: str, environment: Any) -> None:
    ours, theirs = (make(environment=environment, **MODELS[model]) for make in (config, plain))
    assert_equal_learning(built, ours.scales("single"), theirs, "default_policy")


@pytest.mark.parametrize("modules", [["both"], ["fast", "slow"]])
def test_one_scale_is_ppo_of_rllib_for_two_agents(built: Any, modules: list[str]) -> None:
    ours, theirs = (make(environment=Two) for make in (config, plain))
    for settings in (ours.scales("single"), theirs):
        settings.multi_agent(
            policies=set(modules), policy_mapping_fn=lambda agent, *_, **__: agent if agent in modules else "both"
        )
    assert_equal_learning(built, ours, theirs, *modules)


@pytest.mark.parametrize("form", ["difference", "bootstrap"])
@pytest.mark.parametrize("model", MODELS)
def test_targets_are_those_of_every_episode_by_itself(built: Any, model: str, form: Any) -> None:
    settings = config(environment=Countdown, **MODELS[model]).scales(GAMMAS, form=form)
    algorithm = built(settings)
    episodes = sampled(algorithm, 33)
    kinds = {(bool(one.is_terminated), bool(one.is_truncated)) for one in episodes}
    assert kinds == {(True, False), (False, True), (False, False)}
    given = [
        (np.asarray(one.get_rewards(), float), bool(one.is_terminated), np.asarray(one.get_observations()))
        for one in episodes
    ]
    module, batch = batch_of(algorithm, episodes)
    mask, found = batch["loss_mask"].numpy(), batch["component_targets"].numpy()
    assert found.shape == (*mask.shape, 3)
    with torch.no_grad():
        components = module.compute_components(batch).numpy().astype(float)
    row, start = 0, 0
    for rewards, terminated, observations in given:
        length = len(rewards)
        if mask.ndim == 2:  # rows of one episode, the last padded
            rows = -(-(length + 1) // mask.shape[1])
            deltas, got, obs = (
                a[row : row + rows].reshape(-1, a.shape[-1])[: length + 1]
                for a in (components, found, batch["obs"].numpy())
            )
            assert mask[row : row + rows].sum() == length
            row += rows
        else:
            deltas, got, obs = (a[start : start + length + 1] for a in (components, found, batch["obs"].numpy()))
            assert mask[start : start + length].all() and not mask[start + length]
            start += length + 1
        np.testing.assert_allclose(obs, observations)  # the last is the true successor of the last step
        last = np.arange(length) == length - 1
        flags: Any = {"terminated": last & terminated, "truncated": last & (not terminated)}
        scales = settings.ladder
        wanted = targets.lambda_targets(rewards, deltas[:-1], deltas[1:], **flags, scales=scales, form=form)
        np.testing.assert_allclose(got[:length], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch["value_targets"], found.sum(-1), rtol=1e-5, atol=1e-5)


def test_the_policy_sees_the_advantages_of_rllib(built: Any) -> None:
    algorithm = built(config(environment=Countdown).scales(GAMMAS))
    module, batch = batch_of(algorithm, sampled(algorithm))
    with torch.no_grad():
        values = module.compute_values(batch).numpy()
    columns = [batch[name].numpy() for name in ("rewards", "terminateds", "truncateds")]
    expected = compute_value_targets(values, *columns, gamma=0.99, lambda_=0.95) - values
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("model", ["separate", "recurrent"])
def test_the_value_loss_is_the_sum_over_components_of_steps_that_count(built: Any, model: str, clip: Any) -> None:
    settings = config(environment=Countdown, **MODELS[model]).training(vf_clip_param=clip, vf_loss_coeff=0.7)
    algorithm = built(settings.scales(GAMMAS))
    learner = learner_of(algorithm)
    module, batch = batch_of(algorithm, sampled(algorithm))

    def loss(own: Any) -> float:
        found = learner.compute_loss_for_module(
            module_id="default_policy", config=own, batch=batch, fwd_out=module.forward_train(batch)
        )
        return float(found.detach())

    policy = loss(learner.config.copy(copy_frozen=False).training(use_critic=False))
    together = loss(learner.config)
    deltas, wanted = module.compute_components(batch).detach().numpy(), batch["component_targets"].numpy()
    total, count = 0.0, 0
    for place in np.ndindex(batch["loss_mask"].shape):
        if batch["loss_mask"][place]:
            count += 1
            for z in range(3):
                error = float(deltas[place][z] - wanted[place][z]) ** 2
                total += error if clip is None else min(error, clip)
    assert together - policy == pytest.approx(0.7 * total / count, rel=1e-4)
    for name in ("component_targets", "advantages"):  # padding and extra steps count nowhere
        batch[name][~batch["loss_mask"]] = torch.nan
    assert loss(learner.config) == pytest.approx(together, rel=1e-6)


class Logged:
    """In the place of RLlib's logger of metrics."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def log_dict(self, values: dict[str, Any], **_: Any) -> None:
        self.values |= values


@pytest.mark.parametrize("model", ["separate", "recurrent"])
def test_padding_and_extra_steps_are_in_no_metric(built: Any, model: str) -> None:
    algorithm = built(config(environment=Countdown, **MODELS[model]).scales(GAMMAS))
    learner, episodes = learner_of(algorithm), sampled(algorithm)
    module, batch = batch_of(algorithm, episodes)
    mask, logged = batch["loss_mask"].numpy(), Logged()
    (connector,) = [one for one in learner._learner_connector.connectors if isinstance(one, DeltaAdvantageEstimation)]
    connector(rl_module=learner.module, episodes=episodes, batch={"default_policy": batch}, metrics=logged)
    with torch.no_grad():
        deltas = module.compute_components(batch).numpy()[mask]
    wanted = batch["component_targets"].numpy()[mask]
    assert 40 <= len(deltas) < mask.size

    def explained(targets: Any, values: Any) -> Any:
        return 1 - (targets - values).var(0) / targets.var(0)

    for name, expected in (("value_mean", deltas.mean(0)), ("explained_variance", explained(wanted, deltas))):
        assert list(logged.values[name].values()) == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-6)
    learner.compute_loss_for_module(
        module_id="default_policy", config=learner.config, batch=batch, fwd_out=module.forward_train(batch)
    )
    learner.after_gradient_based_update(timesteps={})
    losses = ((deltas - wanted) ** 2).mean(0)
    shown = {("vf_explained_var",): explained(wanted.sum(-1), deltas.sum(-1)), ("vf_loss",): losses.sum()}
    shown |= {("value_loss", f"gamma={gamma:.3f}"): loss for gamma, loss in zip(GAMMAS, losses, strict=True)}
    for key, number in shown.items():
        assert float(learner.metrics.peek(("default_policy", *key))) == pytest.approx(float(number), rel=1e-4, abs=1e-6)


def test_the_connector_takes_its_place_in_a_pipeline_of_ones_own(built: Any) -> None:
    def by_hand(*_: Any) -> list[Any]:
        learning: Any = {"as_learner_connector": True}
        return [
            connectors.AddOneTsToEpisodesAndTruncate(),
            connectors.AddObservationsFromEpisodesToBatch(**learning),
            connectors.AddColumnsFromEpisodesToTrainBatch(),
            connectors.AddTimeDimToBatchAndZeroPad(**learning),
            connectors.AddStatesFromEpisodesToBatch(**learning),
            connectors.BatchIndividualItems(),
            connectors.NumpyToTensor(**learning),
            connectors.GeneralAdvantageEstimation(gamma=0.99, lambda_=0.95),
        ]

    settings = config(environment=Countdown).scales(GAMMAS)
    algorithm = built(settings.copy())
    episodes = sampled(algorithm)
    _, expected = batch_of(algorithm, deepcopy(episodes))
    own = settings.learners(add_default_connectors_to_learner_pipeline=False, learner_connector=by_hand)
    _, batch = batch_of(built(own), episodes)
    assert set(batch) == set(expected) >= {"component_targets", "advantages", "value_targets"}
    for name, column in expected.items():
        np.testing.assert_array_equal(batch[name], column, err_msg=name)


def test_the_clip_of_rllib_is_for_one_scale_unless_it_is_set() -> None:
    assert DeltaPPOConfig().component_clip(1) == PPOConfig().vf_clip_param
    assert DeltaPPOConfig().component_clip(6) is None
    assert DeltaPPOConfig().training(vf_clip_param=4.0).component_clip(6) == 4.0


def test_metrics_of_every_component_are_in_the_results(built: Any) -> None:
    result = built(config().scales(GAMMAS)).train()["learners"]["default_policy"]
    labels = {"gamma=0.500", "gamma=0.900", "gamma=0.990"}
    for name in ("value_loss", "explained_variance", "value_mean"):
        assert set(result[name]) == labels
        assert np.isfinite(list(map(float, result[name].values()))).all()
    assert float(result["vf_loss"]) == pytest.approx(sum(map(float, result["value_loss"].values())), rel=1e-5)


def test_several_modules_have_a_ladder_each_which_a_checkpoint_keeps(built: Any, tmp_path: Any) -> None:
    settings = config(environment=Two).scales("halving components=4")
    settings.multi_agent(
        policies={"fast", "slow"},
        policy_mapping_fn=lambda agent, *_, **__: agent,
        algorithm_config_overrides_per_module={"fast": DeltaPPOConfig.overrides(time_scales=[0.3, 0.6], gamma=0.6)},
    )
    algorithm = built(settings)
    learner = learner_of(algorithm)
    assert learner.module["fast"].scales.gammas == (0.3, 0.6)
    assert learner.module["slow"].scales == settings.ladder and len(settings.ladder) == 4
    episodes = [one.to_numpy() for one in algorithm.env_runner.sample(num_timesteps=40, explore=True)]
    batch = learner._learner_connector(rl_module=learner.module, batch={}, episodes=episodes, shared_data={})
    for name, length, number in (("fast", 3, 2), ("slow", 7, 4)):
        module, part = learner.module[name], batch[name]
        assert tuple(part["component_targets"].shape) == (*part["loss_mask"].shape, number)
        with torch.no_grad():
            deltas = module.compute_components(part).numpy().astype(float)[: length + 1]
        end = np.arange(length) == length - 1
        terminated = end & part["terminateds"].numpy()[:length]
        flags: Any = {"terminated": terminated, "truncated": end & ~terminated, "scales": module.scales}
        wanted = targets.lambda_targets(
            part["rewards"].numpy()[:length].astype(float), deltas[:-1], deltas[1:], **flags
        )
        np.testing.assert_allclose(part["component_targets"][:length], wanted, rtol=1e-5, atol=1e-5)
    result = algorithm.train()["learners"]
    assert set(result["fast"]["value_loss"]) == {"gamma=0.300", "gamma=0.600"}
    assert len(result["slow"]["value_loss"]) == 4
    algorithm.save_to_path(str(tmp_path / "all"))
    again = DeltaPPO.from_checkpoint(str(tmp_path / "all"))
    try:
        for name, number in (("fast", 2), ("slow", 4)):
            assert learner_of(again).module[name].scales == learner.module[name].scales
            assert len(again.config.get_config_for_module(name).ladder) == number
        result = again.train()["learners"]
        assert [len(result[name]["value_loss"]) for name in ("fast", "slow")] == [2, 4]
    finally:
        again.stop()


def test_a_checkpoint_goes_on_and_its_module_knows_the_ladder(built: Any, tmp_path: Any) -> None:
    algorithm = built(config().scales(GAMMAS, form="bootstrap"))
    algorithm.train()
    algorithm.save_to_path(str(tmp_path / "all"))
    again = DeltaPPO.from_checkpoint(str(tmp_path / "all"))
    try:
        assert again.config.ladder == algorithm.config.ladder and again.config.form == "bootstrap"
        for name, array in weights(algorithm).items():
            np.testing.assert_array_equal(weights(again)[name], array)
        states = [learner_of(one).get_state("optimizer")["optimizer"] for one in (algorithm, again)]
        assert str(states[0]) == str(states[1])
        assert again.train()["training_iteration"] == 2
    finally:
        again.stop()
    module: Any = RLModule.from_checkpoint(str(tmp_path / "all/learner_group/learner/rl_module/default_policy"))
    observations = {"obs": torch.randn(7, 4)}
    with torch.no_grad():
        deltas = module.compute_components(observations)
        assert torch.equal(deltas, learner_of(algorithm).module["default_policy"].compute_components(observations))
        assert torch.equal(module.compute_values(observations), deltas.sum(-1))
    assert module.scales.gammas == (0.5, 0.9, 0.99)


class Own(ComponentsAPI, TorchRLModule):
    """As the documentation says how to write one."""

    def setup(self) -> None:
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        self.policy = torch.nn.Linear(8, 2)
        self.values = torch.nn.Linear(8, len(self.scales) + self.model_config.get("too_many", 0))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        features = self.body(batch["obs"])
        return {"action_dist_inputs": self.policy(features), "embeddings": features}

    def compute_components(self, batch: Any, embeddings: Any = None) -> Any:
        return self.values(self.body(batch["obs"]) if embeddings is None else embeddings)


def test_a_module_of_ones_own_learns(built: Any) -> None:
    algorithm = built(config().rl_module(rl_module_spec=RLModuleSpec(module_class=Own)).scales(GAMMAS))
    before = weights(algorithm)
    algorithm.train()
    for name in ("body.0.weight", "policy.weight", "values.weight"):
        assert np.isfinite(weights(algorithm)[name]).all() and (weights(algorithm)[name] != before[name]).any()


def test_a_module_with_other_outputs_is_refused(built: Any) -> None:
    settings = config(too_many=2).rl_module(rl_module_spec=RLModuleSpec(module_class=Own)).scales(GAMMAS)
    with pytest.raises(
        ShapeError,
        match=r"of the module 'default_policy' must return the shape \(\d+, 3\).*got \(\d+, 5\): give its",
    ):
        built(settings).train()


def test_a_module_of_one_value_is_refused() -> None:
    settings = config().rl_module(rl_module_spec=RLModuleSpec(module_class=DefaultPPOTorchRLModule)).scales(GAMMAS)
    with pytest.raises(
        ConfigError, match=r"'default_policy' must have a critic of several components; got DefaultPPO.*derive it from"
    ):
        settings.build_algo()


def test_a_module_without_scales_says_who_puts_them_there() -> None:
    space: Any = Countdown()
    with pytest.raises(ConfigError, match=r"time scales under 'scales'; got .*build the module from a DeltaPPOConfig"):
        DeltaPPOTorchRLModule(
            observation_space=space.observation_space,
            action_space=space.action_space,
            model_config={
                "fcnet_hiddens": [8],
                "vf_share_layers": False,
                "head_fcnet_hiddens": [],
                "head_fcnet_activation": "relu",
            },
        )


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ([0.5, 0.9], "gamma must be the largest discount of scales, 0.9.*got gamma=0.99"),
        (object(), "object"),
    ],
)
def test_wrong_scales_are_refused(scales: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config().scales(scales).validate()


def test_wrong_scales_of_one_module_are_refused() -> None:
    settings = config(environment=Two).multi_agent(
        policies={"fast", "slow"}, algorithm_config_overrides_per_module={"fast": DeltaPPOConfig.overrides(gamma=2.0)}
    )
    with pytest.raises(ConfigError, match=r"gamma must be .*got 2.0"):
        settings.validate()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"form must be .*'backward'"):
        DeltaPPOConfig().scales(form="backward")
    old = config().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    with pytest.raises(ConfigError, match=r"needs RLlib's new API stack; got .*=False.*leave api_stack"):
        old.validate()


def test_settings_are_plain_data_and_follow_the_discount() -> None:
    settings = DeltaPPOConfig().scales("halving components=3").training(gamma=0.98, lambda_=0.9)
    assert json.loads(json.dumps(settings.time_scales)) == settings.time_scales
    assert settings.ladder == TimeScales.halving(0.98, lam=0.9, components=3)
    changed = settings.copy().update_from_dict({"gamma": 0.99, "time_scales": "single"})
    assert changed.ladder == TimeScales.single(0.99, lam=0.9)
    given = settings.scales("single", form="bootstrap").to_dict()  # as Ray Tune passes them on
    tuned = DeltaPPO.get_default_config().update_from_dict(given)
    assert tuned.form == "bootstrap" and tuned.ladder == TimeScales.single(0.98, lam=0.9)


def test_another_version_of_ray_gets_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.99.1")
    with pytest.warns(UserWarning, match=r"was tried with Ray 2.60; this is 2.99.1: compare .*install ray==2.60.\*"):
        importlib.reload(rllib)


def test_the_warning_comes_before_what_another_version_may_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.99.1")
    monkeypatch.setitem(sys.modules, "tddelta.adapters.rllib.ppo", None)
    with pytest.warns(UserWarning, match="was tried with Ray 2.60; this is 2.99.1"), pytest.raises(ImportError):
        importlib.reload(rllib)
