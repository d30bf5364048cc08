"""DeltaGAE in TorchRL's losses and with its collector."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl", reason="needs torchrl and torch")

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, KLPENPPOLoss, PPOLoss, ReinforceLoss

from targets_literal import make_scales
from tddelta import ConfigError, TimeScales
from tddelta.adapters.torchrl import DeltaGAE, loss_settings, predict_values

SCALES = make_scales((0.5, 0.9, 0.98), (0.4, 0.5, 0.8))
LOSSES = [ClipPPOLoss, KLPENPPOLoss, PPOLoss, A2CLoss]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def agents(scales: TimeScales = SCALES) -> tuple[ProbabilisticActor, ValueOperator]:
    body = nn.Sequential(MLP(in_features=3, out_features=2, num_cells=[8]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    return actor, ValueOperator(MLP(in_features=3, out_features=len(scales), num_cells=[8]), in_keys=["observation"])


def losses(kind: Any, **settings: Any) -> tuple[Any, ProbabilisticActor, ValueOperator]:
    """A loss whose targets are made by `DeltaGAE`, its actor and its critic."""
    actor, critic = agents()
    loss = kind(actor, critic, **settings)
    loss.make_value_estimator(DeltaGAE, value_network=critic, scales=SCALES)
    return loss, actor, critic


def experience(actor: ProbabilisticActor) -> TensorDict:
    done = torch.rand(4, 8, 1) < 0.2
    step = {"observation": torch.randn(4, 8, 3), "reward": torch.randn(4, 8, 1)}
    step |= {"done": done, "terminated": done & (torch.rand(4, 8, 1) < 0.5)}
    data = TensorDict({"observation": torch.randn(4, 8, 3), "next": step}, [4, 8])
    with torch.no_grad():
        return actor(data)


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in module.parameters()]


@pytest.mark.parametrize("coefficient", [1.0, 0.5])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_of_the_critic_is_half_the_sum_of_squares(kind: Any, coefficient: float) -> None:
    loss, actor, critic = losses(kind, **loss_settings(SCALES, coefficient))
    data = experience(actor)
    loss.value_estimator(data)
    minibatch = data.reshape(-1)[:20]
    assert minibatch["value_target"].shape == (20, 3) and minibatch["advantage"].shape == (20, 1)

    found = loss(minibatch)["loss_critic"]
    found.backward()
    theirs = gradients(critic)
    critic.zero_grad()
    errors = critic.module(minibatch["observation"]) - minibatch["value_target"]
    wanted = coefficient * 0.5 * errors.square().sum(-1).mean()
    wanted.backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(theirs, gradients(critic))
    assert max(gradient.abs().max() for gradient in theirs) > 1e-3


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_fills_in_its_targets_and_trains_both_networks(kind: Any) -> None:
    loss, actor, critic = losses(kind, **loss_settings(SCALES))
    data = experience(actor)
    result = loss(data)
    sum(value for name, value in result.items() if name.startswith("loss_")).backward()
    for network in (actor, critic):
        assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients(network))
    # What a loss computes on its own is what the estimator gives beforehand.
    again = loss(DeltaGAE(value_network=critic, scales=SCALES)(data.clone()))
    torch.testing.assert_close(result["loss_critic"], again["loss_critic"])
    torch.testing.assert_close(result["loss_objective"], again["loss_objective"])


def test_reinforce_takes_components_and_leaves_the_coefficient_to_the_caller() -> None:
    settings = loss_settings(SCALES)
    loss, actor, critic = losses(ReinforceLoss, loss_critic_type=settings["loss_critic_type"])
    data = experience(actor)
    result = loss(data)
    (result["loss_actor"] + settings["critic_coeff"] * result["loss_value"]).backward()
    errors = critic.module(data["observation"]) - data["value_target"]
    torch.testing.assert_close(settings["critic_coeff"] * result["loss_value"], 0.5 * errors.square().sum(-1).mean())
    assert all(gradient.abs().max() > 0 for network in (actor, critic) for gradient in gradients(network))


def test_ppo_logs_explained_variance_and_clips_values_by_component() -> None:
    loss, actor, _ = losses(ClipPPOLoss, clip_value=0.1, normalize_advantage=True, **loss_settings(SCALES))
    estimator = loss.value_estimator
    data = experience(actor)
    estimator(data)
    flat = data.reshape(-1)
    result = loss(flat)
    metrics = estimator.component_metrics(data)
    for z, label in enumerate(SCALES.labels):
        wanted = metrics[f"explained_variance/gamma={label}"]
        assert float(result["explained_variance"][z]) == pytest.approx(wanted, abs=1e-4)
    # Old values that are 1 off in one component: it is that component whose change is clipped.
    flat["state_value"][:, 1] += 1
    assert float(loss(flat)["value_clip_fraction"]) == pytest.approx(1 / 3, rel=1e-5)


def test_keys_of_the_loss_reach_the_estimator() -> None:
    loss, actor, _ = losses(ClipPPOLoss, **loss_settings(SCALES))
    loss.set_keys(value_target="component_returns", reward="pay")
    data = experience(actor)
    data["next"].rename_key_("reward", "pay")
    loss.value_estimator(data)
    assert data["component_returns"].shape == (4, 8, 3)
    assert loss(data)["loss_critic"].isfinite()


def test_settings_of_the_loss_are_checked() -> None:
    assert loss_settings(TimeScales.single(0.9)) == {"critic_coeff": 0.5, "loss_critic_type": "l2"}
    with pytest.raises(ConfigError, match="at least 0; got -1"):
        loss_settings(SCALES, -1)
    wrong: Any
    for wrong in ("x", None, True, float("nan"), float("inf"), torch.ones(2)):
        with pytest.raises(ConfigError, match="coefficient must be a finite number of at least 0; got "):
            loss_settings(SCALES, wrong)
    assert loss_settings(SCALES, 0) == {"critic_coeff": 0.0, "loss_critic_type": "l2"}


@pytest.mark.parametrize(
    ("scales", "gamma", "gammas"),
    [
        (None, 0.75, (0.5, 0.75)),
        ([0.5, 0.9], None, (0.5, 0.9)),
        (np.array([0.5, 0.9]), 0.9, (0.5, 0.9)),
        ({"ladder": "halving", "components": 2}, 0.75, (0.5, 0.75)),
        (TimeScales((0.5, 0.9)), None, (0.5, 0.9)),
    ],
    ids=str,
)
def test_scales_are_named_as_for_the_other_adapters(scales: Any, gamma: Any, gammas: tuple[float, ...]) -> None:
    assert loss_settings(scales, gamma=gamma)["critic_coeff"] == len(gammas) / 2
    made = DeltaGAE(scales=scales, gamma=gamma, value_network=None)
    assert made.scales == TimeScales.from_gammas(gammas, lam=0.95) and made.lmbda is None
    other = DeltaGAE(scales=scales, gamma=gamma, lmbda=0.5, value_network=None)
    assert other.scales.trace_decays == TimeScales.from_gammas(gammas, lam=0.5).trace_decays


@pytest.mark.parametrize(
    ("scales", "gamma", "message"),
    [
        (3, None, "scales must name time scales; got 3"),
        ("halving", None, "gamma is needed where scales names no discounts; got scales='halving'"),
        ([0.5, 0.9], 0.98, "gamma must be the largest discount"),
        ([0.5, 0.9], "x", "gamma must be a plain number"),
        (None, 1.0, "pass scales='halving longest_horizon=1000'"),
    ],
)
def test_the_settings_refuse_the_scales_that_the_estimator_refuses(scales: Any, gamma: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loss_settings(scales, gamma=gamma)
    with pytest.raises(ConfigError, match=message):
        DeltaGAE(scales=scales, gamma=gamma, value_network=None)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_that_is_not_told_its_critic_again_says_so(kind: Any) -> None:
    loss = kind(*agents(), **loss_settings(SCALES))
    with pytest.raises(ConfigError, match=r"value_network is needed.*pass value_network=critic, or None"):
        loss.make_value_estimator(DeltaGAE, scales=SCALES)


# TorchRL warns of its own classes when its collectors are imported.
@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")
def test_what_a_collector_of_several_environments_returns_is_taken_as_it_is() -> None:
    from torchrl.collectors import Collector
    from torchrl.envs import Compose, GymEnv, InitTracker, SerialEnv, StepCounter, TransformedEnv

    def cartpole() -> Any:
        return GymEnv("CartPole-v1", categorical_action_encoding=True)

    environment = TransformedEnv(SerialEnv(3, cartpole), Compose(InitTracker(), StepCounter(15)))
    environment.set_seed(0)
    logits = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    settings = {"distribution_class": Categorical, "return_log_prob": True}
    actor = ProbabilisticActor(logits, in_keys=["logits"], **settings)
    critic = ValueOperator(nn.Linear(4, 3), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic, **loss_settings(SCALES))
    loss.make_value_estimator(DeltaGAE, value_network=critic, scales=SCALES)
    collector = Collector(environment, actor, frames_per_batch=96, total_frames=192)
    ends = np.zeros(2, dtype=int)
    for data in collector:
        loss.value_estimator(data)
        done, terminated = (data["next", name][..., 0] for name in ("done", "terminated"))
        ends += [int(terminated.sum()), int((done & ~terminated).sum())]
        # An independent way to the last step of each episode: r + γV(s'), and r alone where it terminated.
        following = predict_values(critic, data["next"])[..., 0]
        reached = data["next", "reward"][..., 0] + 0.98 * following * ~terminated
        value = predict_values(critic, data)[..., 0]
        torch.testing.assert_close(data["advantage"][..., 0][done], (reached - value)[done])
        torch.testing.assert_close(data["value_target"].sum(-1)[done], reached[done])
        assert loss(data.reshape(-1))["loss_critic"].isfinite()
    collector.shutdown()
    assert (ends > 0).all()
