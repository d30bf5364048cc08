"""DeltaGAE: TorchRL's GAE with one scale, telescoping with several, and right in the field's traps."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl", reason="needs torchrl and torch")

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import ValueOperator
from torchrl.objectives.value import GAE

from targets_literal import make_scales
from tddelta import ConfigError, DataError, ShapeError, TimeScales, targets
from tddelta.adapters.torchrl import DeltaGAE, delta_critic, predict_components, predict_values

GAMMAS = (0.5, 0.9, 0.98)
SCALES = make_scales(GAMMAS, (0.4, 0.5, 0.8))
# Equal decays, with which the components telescope.
EQUAL = make_scales(GAMMAS, (0.85, 0.85, 0.85))
LAM = 0.85 / 0.98


def rollout(*batch: int, width: int = 1, axis: int = -1, double: bool = False) -> TensorDict:
    """Steps of several streams, with both kinds of ends, as a collector stores them; also the components."""
    generator = torch.Generator().manual_seed(0)
    observation, final = (torch.randn(*batch, 3, generator=generator) for _ in range(2))
    deltas, next_deltas = (torch.randn(*batch, width, generator=generator) for _ in range(2))
    done, terminated = (torch.rand(*batch, 1, generator=generator) < share for share in (0.3, 0.5))
    done.view(-1)[[2, 4]] = True  # one end of each kind for sure
    terminated.view(-1)[[2, 4]] = torch.tensor([True, False])
    axis = axis % len(batch)
    following = torch.where(done, final, observation.roll(-1, axis))
    following.select(axis, -1).copy_(final.select(axis, -1))
    step = {
        "observation": following,
        "reward": torch.randn(*batch, 1, generator=generator),
        "done": done,
        "terminated": done & terminated,
        "truncated": done & ~terminated,
        "state_value": next_deltas,
    }
    data = TensorDict({"observation": observation, "state_value": deltas, "next": step}, list(batch))
    return data.apply(lambda entry: entry.double() if double and entry.is_floating_point() else entry)


def linear(width: int) -> ValueOperator:
    torch.manual_seed(1)
    return ValueOperator(nn.Linear(3, width), in_keys=["observation"])


def expected(data: TensorDict, scales: TimeScales, axis: int = -1, decay: Any = None, form: Any = "difference") -> Any:
    """Target and advantage by the target functions in NumPy, each stream by itself."""
    names = ("reward", "done", "terminated")
    reward, done, terminated = (np.moveaxis(data["next", name][..., 0].numpy(), axis % data.ndim, -1) for name in names)
    deltas, following = (
        np.moveaxis(array.numpy(), axis % data.ndim, -2) for array in (data["state_value"], data["next", "state_value"])
    )
    found = np.empty_like(deltas), np.empty_like(reward)
    for stream in np.ndindex(reward.shape[:-1]):
        flags: Any = {"terminated": terminated[stream], "truncated": (done & ~terminated)[stream], "scales": scales}
        given = reward[stream], deltas[stream], following[stream]
        found[0][stream] = targets.lambda_targets(*given, **flags, form=form)
        found[1][stream] = targets.advantages(*given, **flags, trace_decay=decay)
    return np.moveaxis(found[0], -2, axis % data.ndim), np.moveaxis(found[1], -1, axis % data.ndim)[..., None]


def close(found: Any, wanted: Any) -> None:
    """Equal up to the rounding of the data: of the critic, of other shapes, of PyTorch's operations and NumPy's."""
    found = found.detach()
    assert found.shape == tuple(wanted.shape)
    tolerance = 1e-12 if found.dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=tolerance, atol=tolerance)


def close_both(result: TensorDict, wanted: tuple[Any, Any]) -> None:
    """The same of targets and advantages."""
    close(result["value_target"], wanted[0])
    close(result["advantage"], wanted[1])


@pytest.mark.parametrize(
    ("batch", "settings"),
    [
        ((9,), {}),
        ((3, 8), {}),
        ((2, 3, 7), {"average_gae": True}),
        ((2, 3, 7), {"differentiable": True}),
        ((2, 3, 7), {"deactivate_vmap": True}),
        ((2, 3, 7), {"num_chunks": 2}),
        ((2, 3, 7), {"shifted": True}),
        ((2, 3, 7), {"shifted": True, "shifted_budget": 3, "average_gae": True}),
        ((2, 3, 7), {"auto_reset_env": True}),
        ((2, 3, 7), {"skip_existing": True}),
        ((2, 3, 7), {"average_gae": True, "group_key": "task"}),
    ],
    ids=str,
)
def test_with_one_scale_it_is_gae_in_every_shape_with_every_setting(
    batch: tuple[int, ...], settings: dict[str, Any]
) -> None:
    data, critic = rollout(*batch), linear(1)
    data["task"] = torch.arange(data.numel()).reshape(batch) % 2
    if settings.get("shifted"):  # it asks for data without gaps
        data.names = [*(None for _ in batch[1:]), "time"]
    theirs = GAE(gamma=0.98, lmbda=0.9, value_network=critic, **settings)(data.clone())
    ours = DeltaGAE(scales="single", gamma=0.98, lmbda=0.9, value_network=critic, **settings)(data.clone())
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        close(ours[key], theirs[key].detach())


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_time_axis_may_be_any_of_the_batch_named_or_numbered(axis: int) -> None:
    data = rollout(7, 8, axis=axis, width=3, double=True)
    wanted = expected(data, SCALES, axis)
    named = data.clone()
    named.names = ["time" if place == axis % 2 else None for place in range(2)]
    estimator = DeltaGAE(scales=SCALES, value_network=None)
    results = [
        DeltaGAE(scales=SCALES, value_network=None, time_dim=axis)(data.clone()),
        estimator(data.clone(), time_dim=axis),
        estimator(named),
    ]
    for result in results:
        close_both(result, wanted)


@pytest.mark.parametrize("batch", [(9,), (3, 8), (2, 3, 7)])
@pytest.mark.parametrize("form", ["bootstrap", "difference"])
def test_results_are_those_of_the_target_functions_on_each_stream(batch: tuple[int, ...], form: Any) -> None:
    data = rollout(*batch, width=3, double=True)
    wanted = expected(data, SCALES, form=form)
    for differentiable in (False, True):  # through PyTorch's own operations, as on a GPU
        estimator = DeltaGAE(scales=SCALES, value_network=None, form=form, differentiable=differentiable)
        close_both(estimator(data.clone()), wanted)
        close(estimator.value_estimate(data.clone()), wanted[0])


def test_with_equal_decays_the_components_sum_to_gae() -> None:
    data, critic = rollout(4, 60, width=3), linear(3)
    ours = DeltaGAE(scales=EQUAL, value_network=critic)(data.clone())
    summed = data.clone()
    summed["state_value"] = ours["state_value"].sum(-1, keepdim=True)
    summed["next", "state_value"] = ours["next", "state_value"].sum(-1, keepdim=True)
    theirs = GAE(gamma=0.98, lmbda=LAM, value_network=None)(summed)
    close(ours["value_target"].sum(-1, keepdim=True), theirs["value_target"])
    close(ours["advantage"], theirs["advantage"])
    assert ours["value_target"].std((0, 1)).min() > 0.01  # no component is empty


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_discount(dtype: torch.dtype) -> None:
    rewards = torch.zeros(3000, 1)
    rewards[-1] = 100
    no = torch.zeros(3000, 1, dtype=torch.bool)
    critic = torch.zeros(3000, 1, dtype=dtype)
    following = {"state_value": critic, "reward": rewards, "done": no, "terminated": no}
    data = TensorDict({"state_value": critic, "next": following}, [3000])
    with torch.autocast("cpu", torch.bfloat16):
        found = DeltaGAE(gamma=0.999, lmbda=1.0, scales="single", value_network=None)(data)
    for key in ("advantage", "value_target"):
        assert found[key].dtype == dtype
        assert float(found[key][0]) == pytest.approx(4.976, rel=0.01)


def test_lambda_of_the_policy_stands_apart_from_the_traces_of_the_critic() -> None:
    data = rollout(3, 8, width=3, double=True)
    own, other = (DeltaGAE(scales=SCALES, value_network=None, lmbda=lmbda)(data.clone()) for lmbda in (None, 0.25))
    close(own["advantage"], expected(data, SCALES, decay=0.8)[1])
    close(other["advantage"], expected(data, SCALES, decay=0.25 * 0.98)[1])
    close(own["value_target"], other["value_target"])


def test_a_ladder_follows_discount_and_decay_of_the_estimator() -> None:
    named = {"ladder": "halving", "components": 3}
    made, data = DeltaGAE(scales=named, gamma=0.99, value_network=None), rollout(2, 8, width=3)
    made(data.clone())
    made.gamma, made.lmbda = 0.9, 0.5
    wanted = TimeScales.halving(0.9, components=3, lam=0.5)
    assert made.scales == wanted
    fresh = DeltaGAE(scales=wanted, value_network=None)
    found, other = made(data.clone()), fresh(data.clone())
    for key in ("advantage", "value_target"):
        assert torch.equal(found[key], other[key])
    fixed = DeltaGAE(scales=[0.5, 0.9], value_network=None)
    fixed.gamma = 0.8
    with pytest.raises(ConfigError, match=r"gamma must be the largest discount of scales, 0\.9.*got gamma=0\.8"):
        fixed(rollout(2, 8, width=2))


def one_step(terminated: bool) -> TensorDict:
    step = {"reward": torch.ones(1, 1), "done": torch.tensor([[True]]), "terminated": torch.tensor([[terminated]])}
    step["state_value"] = torch.tensor([[2.0, 8.0]])
    return TensorDict({"state_value": torch.zeros(1, 2), "next": step}, [1])


def test_a_truncation_bootstraps_every_component_and_a_termination_none() -> None:
    estimator = DeltaGAE(scales=[0.5, 0.9], value_network=None)
    close_both(estimator(one_step(terminated=False)), (np.array([[2.0, 8.0]]), np.array([[10.0]])))
    close(estimator(one_step(terminated=True))["value_target"], np.array([[1.0, 0.0]]))
    without = one_step(terminated=True)
    del without["next", "terminated"]  # then every end is one, as for GAE
    close(estimator(without)["value_target"], np.array([[1.0, 0.0]]))


@pytest.mark.parametrize("differentiable", [False, True])
def test_nothing_leaks_over_an_end_in_the_middle_of_a_batch(differentiable: bool) -> None:
    data = rollout(2, 12, width=3)
    for name in ("done", "terminated"):
        data["next", name].fill_(False)
    data["next", "done"][0, 5], data["next", "done"][1, 7] = True, True
    data["next", "terminated"][1, 7] = True
    estimator = DeltaGAE(scales=SCALES, value_network=None, differentiable=differentiable)
    whole, first, second = (estimator(part.clone()) for part in (data, data[:1, :6], data[1:, :8]))
    poisoned = data.clone()
    poisoned["next", "state_value"][1, 7] = torch.nan  # nobody knows what a critic says there
    poisoned["next", "reward"][0, 6:], poisoned["next", "reward"][1, 8:] = torch.inf, torch.nan
    with np.errstate(invalid="ignore"):  # ∞ − ∞ in the spoiled steps themselves
        results = estimator(poisoned)
    for key in ("advantage", "value_target"):
        close(whole[key][:1, :6], first[key].detach())
        close(whole[key][1:, :8], second[key].detach())
        assert torch.equal(results[key][0, :6], whole[key][0, :6])
        assert torch.equal(results[key][1, :8], whole[key][1, :8])


def test_shifted_data_gives_what_two_calls_of_the_critic_give() -> None:
    data, critic = rollout(2, 10, width=3), linear(3)
    for stream in range(2):  # the budget is one truncation
        data["next", "done"][stream], data["next", "terminated"][stream] = False, False
        data["next", "done"][stream, 3 + stream] = True
        data["next", "observation"][stream, :9] = data["observation"][stream, 1:]
        data["next", "observation"][stream, 3 + stream] = 7.0
    shifted, plain = (
        DeltaGAE(scales=SCALES, value_network=critic, shifted=how, **budget)(data.clone())
        for how, budget in ((True, {"shifted_budget": 2}), (False, {}))
    )
    assert shifted["shifted_valid"].all()
    for key in ("advantage", "value_target", "state_value"):
        close(shifted[key], plain[key])


def test_an_axis_of_agents_stays_beside_the_components() -> None:
    one = rollout(3, 8, width=3, double=True)
    several = one.clone()
    for key in ("state_value", ("next", "state_value"), ("next", "reward"), ("next", "done"), ("next", "terminated")):
        several[key] = torch.stack([one[key], one[key].flip(0)], dim=2)
    result, plain = (DeltaGAE(scales=SCALES, value_network=None)(data) for data in (several, one))
    for key in ("advantage", "value_target"):
        close(result[key], torch.stack([plain[key], plain[key].flip(0)], 2))


def test_called_with_entries_it_returns_advantage_and_target() -> None:
    data = rollout(3, 8)
    estimator = DeltaGAE(scales=SCALES, value_network=linear(3))
    names = ("reward", "done", "terminated", "observation")
    given = {f"next_{name}": data["next", name] for name in names}
    advantage, target = estimator(observation=data["observation"], **given)
    result = estimator(data)
    assert torch.equal(advantage, result["advantage"]) and torch.equal(target, result["value_target"])


def test_gradients_flow_where_asked_for_and_never_into_the_critic() -> None:
    critic = linear(3)
    frozen = nn.Linear(3, 3).requires_grad_(False)
    critic.module = nn.Sequential(critic.module, frozen)
    data = rollout(2, 8)
    data["next", "reward"].requires_grad_()
    plain = DeltaGAE(scales=SCALES, value_network=critic)(data.clone(False))
    assert not plain["advantage"].requires_grad and not plain["value_target"].requires_grad
    assert not any(parameter.requires_grad for parameter in frozen.parameters())

    data = rollout(2, 8)
    data["next", "reward"].requires_grad_()
    with torch.no_grad():  # the setting decides, as in TorchRL
        result = DeltaGAE(scales=SCALES, value_network=linear(3), differentiable=True)(data)
    result["value_target"][:, -1, 0].sum().backward()
    assert torch.equal(data["next", "reward"].grad[:, -1], torch.ones(2, 1))
    assert all(parameter.grad is None for parameter in critic.parameters())


def test_a_functional_critic_takes_its_parameters_from_the_call() -> None:
    critic, data = linear(3), rollout(2, 8)
    other = TensorDict.from_module(linear(3)).detach().clone()
    other["module", "bias"] += 1
    estimator = DeltaGAE(scales=SCALES, value_network=critic)
    moved = estimator(data.clone(), params=other)
    target = estimator(data.clone(), params=TensorDict.from_module(critic), target_params=other)
    plain = estimator(data.clone())
    close(moved["state_value"], plain["state_value"] + 1)
    close(target["state_value"], plain["state_value"])
    close(target["next", "state_value"], moved["next", "state_value"])


def test_keys_can_be_named_otherwise() -> None:
    data = rollout(3, 8, width=3)
    wanted = DeltaGAE(scales=SCALES, value_network=None)(data.clone())
    renamed = data.rename_key_("state_value", ("critic", "components"))
    renamed["next"].rename_key_("state_value", ("critic", "components"))
    for name in ("reward", "done", "terminated"):
        renamed["next"].rename_key_(name, ("group", name))
    estimator = DeltaGAE(scales=SCALES, value_network=None)
    names = {name: ("group", name) for name in ("reward", "done", "terminated")}
    estimator.set_keys(value=("critic", "components"), advantage="a", value_target=("critic", "target"), **names)
    result = estimator(renamed)
    assert torch.equal(result["a"], wanted["advantage"])
    assert torch.equal(result["critic", "target"], wanted["value_target"])
    assert estimator.out_keys == ["a", ("critic", "target")]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_copies_and_pickles_do_the_same(duplicate: Any) -> None:
    estimator = DeltaGAE(scales=SCALES, value_network=linear(3), lmbda=0.5)
    data = rollout(2, 8)
    first, second = estimator(data.clone()), duplicate(estimator)(data.clone())
    assert torch.equal(first["value_target"], second["value_target"])


def test_torch_compile_leaves_it_as_it_is() -> None:
    estimator, data = DeltaGAE(scales=SCALES, value_network=linear(3)), rollout(2, 8)
    compiled: Any = torch.compile(estimator, backend="eager")
    close(compiled(data.clone())["value_target"], estimator(data)["value_target"])


def test_metrics_tell_of_every_component() -> None:
    data = rollout(3, 8)
    estimator = DeltaGAE(scales=SCALES, value_network=linear(3))
    metrics = estimator.component_metrics(estimator(data))
    deltas, wanted = (data[key].reshape(-1, 3).double().numpy() for key in ("state_value", "value_target"))
    errors = wanted - deltas
    numbers = {"value_loss": (errors**2).mean(0), "value_mean": deltas.mean(0)}
    numbers["explained_variance"] = 1 - errors.var(0) / wanted.var(0)
    shown = {f"{name}/gamma={label}": numbers[name][z] for name in numbers for z, label in enumerate(SCALES.labels)}
    assert metrics == pytest.approx(shown, rel=1e-5)
    data["value_target"][:] = 1.0
    assert np.isnan(estimator.component_metrics(data)["explained_variance/gamma=0.500"])
    data["shifted_valid"] = torch.zeros(3, 8, dtype=torch.bool)
    data["shifted_valid"][1] = True
    whole = estimator.component_metrics(data)
    del data["shifted_valid"]
    assert whole == pytest.approx(estimator.component_metrics(data[1]), rel=1e-5, nan_ok=True)


def test_critics_hand_out_components_and_their_sum() -> None:
    scales = TimeScales.halving(0.99)
    critic = delta_critic(nn.Linear(3, 5), 5, scales)
    data = rollout(4, 8, width=6)
    before = data.clone()
    components = predict_components(critic, data)
    assert components.shape == (4, 8, 6) and not components.requires_grad
    assert torch.equal(components, critic.module(data["observation"]))
    close(predict_values(critic, data), components.sum(-1, keepdim=True))
    assert (data == before).all()
    own = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=[("critic", "w")])
    assert predict_values(own, data, key=("critic", "w")).shape == (4, 8, 1)


def test_a_plain_tensor_does_for_a_critic_of_one_key() -> None:
    critic, data = linear(3), rollout(4, 8)
    assert torch.equal(predict_components(critic, data["observation"]), predict_components(critic, data))
    assert predict_values(critic, data["observation"][0, 0]).shape == (1,)
    nested = TensorDictModule(nn.Linear(3, 3), in_keys=[("agent", "seen")], out_keys=["state_value"])
    assert predict_components(nested, data["observation"]).shape == (4, 8, 3)


class Pair(nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second


def test_observations_that_a_critic_cannot_read_are_refused() -> None:
    data = rollout(4, 8)
    pair = ValueOperator(Pair(), in_keys=["left", "right"])
    for predict in (predict_components, predict_values):
        with pytest.raises(DataError, match=r"one key; got shape \(4, 8, 3\).*'left', 'right'"):
            predict(pair, data["observation"])
        with pytest.raises(DataError, match=r"features\).*got shape \(\)"):
            predict(linear(3), torch.tensor(1.0))
        wrong: Any
        for wrong in ([0.1, 0.2, 0.3], None, {"observation": data["observation"]}, np.ones(3)):
            with pytest.raises(DataError, match=f"TensorDict or a tensor; got {type(wrong).__name__}: pass"):
                predict(linear(3), wrong)
        with pytest.raises(DataError, match=r"no entry 'observation'; got.*the critic reads it"):
            predict(linear(3), data.exclude("observation"))
        with pytest.raises(ConfigError, match=r"critic must be a module with in_keys.*ValueOperator"):
            predict(nn.Linear(3, 3), data)


def without(key: Any) -> Any:
    return lambda data: data.exclude(key)


def changed(key: Any, change: Any) -> Any:
    return lambda data: data.set(key, change(data[key]))


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (without("state_value"), DataError, "no entry 'state_value'; got.*set_keys"),
        (without(("next", "state_value")), DataError, r"no entry \('next', 'state_value'\)"),
        (without(("next", "reward")), DataError, r"no entry \('next', 'reward'\)"),
        (without(("next", "done")), DataError, r"no entry \('next', 'done'\)"),
        (without("next"), DataError, r"no entry \('next', 'reward'\)"),
        (changed("state_value", lambda deltas: deltas[..., :1]), ShapeError, r"3 scales; got \(3, 8, 1\).*features=3"),
        (changed(("next", "state_value"), lambda deltas: deltas[..., :2]), ShapeError, r"'next', 'state_value'"),
        (changed("state_value", lambda deltas: deltas.double()), ShapeError, "dtype"),
        (changed("state_value", lambda deltas: deltas.int()), ShapeError, "floating point"),
        (changed(("next", "reward"), lambda reward: reward[..., 0]), ShapeError, "unsqueeze"),
        (changed(("next", "reward"), lambda reward: reward.expand(3, 8, 3)), ShapeError, "nothing is broadcast"),
        (changed(("next", "done"), lambda done: done.expand(3, 8, 3)), ShapeError, "'done'.*nothing is broadcast"),
        (changed(("next", "terminated"), lambda flag: flag[..., 0]), ShapeError, "'terminated'.*unsqueeze"),
        (changed(("next", "terminated"), lambda flag: flag.int()), ShapeError, "boolean; got dtype torch.int32"),
        (lambda data: data.set("steps_to_next_obs", torch.full((3, 8, 1), 3)), DataError, "up to 3.*one discount"),
    ],
)
def test_data_that_does_not_fit_is_refused_with_its_key(spoil: Any, error: type[Exception], message: str) -> None:
    data = spoil(rollout(3, 8, width=3))
    with pytest.raises(error, match=message):
        DeltaGAE(scales=SCALES, value_network=None)(data)


def test_single_steps_may_be_counted() -> None:
    data = rollout(3, 8, width=3)
    counted = data.clone().set("steps_to_next_obs", torch.ones(3, 8, 1, dtype=torch.int64))
    plain, other = (DeltaGAE(scales=SCALES, value_network=None)(one) for one in (data, counted))
    assert torch.equal(plain["value_target"], other["value_target"])


def test_what_the_critic_cannot_do_is_refused() -> None:
    with pytest.raises(ShapeError, match="out_features=3"):
        DeltaGAE(scales=SCALES, value_network=linear(1))(rollout(3, 8))
    with pytest.raises(DataError, match=r"no entry \('next', 'observation'\)"):
        DeltaGAE(scales=SCALES, value_network=linear(3))(rollout(3, 8).exclude(("next", "observation")))
    elsewhere = TensorDictModule(nn.Linear(3, 3), in_keys=["observation"], out_keys=["w"])
    with pytest.raises(ConfigError, match=r"must write 'state_value'; got \['w'\]"):
        DeltaGAE(scales=SCALES, value_network=elsewhere)(rollout(3, 8))
    with pytest.raises(ShapeError, match="time axis"):
        DeltaGAE(scales=SCALES, value_network=linear(3), time_dim=2)(rollout(3, 8))
    with pytest.raises(ShapeError, match="time axis"):
        DeltaGAE(scales=SCALES, value_network=linear(3))(rollout(3, 8)[0, 0])
    with pytest.raises(ConfigError, match="shifted=True goes along axis 1"):
        DeltaGAE(scales=SCALES, value_network=linear(3), time_dim=0, shifted=True)(rollout(3, 8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.5}, "gamma must be in"),
        ({"gamma": 0.9, "lmbda": 1.5}, "lmbda must be in"),
        ({"gamma": 0.9, "form": "sum"}, "'bootstrap' or 'difference'"),
        ({"gamma": 0.9, "vectorized": True}, "got vectorized=True: drop it"),
        ({"scales": torch.tensor(0.9)}, "scales must name time scales"),
        ({"gamma": 0.9, "time_dim": "x"}, "time_dim must be the number of a batch axis.*got 'x'"),
        ({"gamma": 0.9, "time_dim": 1.5}, "time_dim must be.*got 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeltaGAE(value_network=None, **settings)


@pytest.mark.parametrize("critic", [3, nn.Linear(3, 3), lambda seen: seen, ValueOperator])
def test_a_critic_without_keys_is_refused_at_once(critic: Any) -> None:
    with pytest.raises(ConfigError, match=r"value_network must be a module with in_keys.*wrap it in ValueOperator"):
        DeltaGAE(scales=SCALES, value_network=critic)


@pytest.mark.parametrize("data", [{"reward": torch.ones(3)}, None, [1.0]])
def test_data_that_is_no_tensordict_is_refused(data: Any) -> None:
    estimator = DeltaGAE(scales=SCALES, value_network=linear(3))
    for method in (estimator, estimator.value_estimate, estimator.component_metrics):
        with pytest.raises(DataError, match=f"must be a TensorDict; got {type(data).__name__}: pass what a collector"):
            method(data)


def test_a_time_axis_of_one_call_that_is_no_number_is_refused() -> None:
    estimator: Any = DeltaGAE(scales=SCALES, value_network=linear(3))
    for method in (estimator, estimator.value_estimate):
        with pytest.raises(ConfigError, match=r"time_dim must be the number of a batch axis.*got 'x'"):
            method(rollout(3, 8), time_dim="x")


def test_a_critic_that_writes_elsewhere_and_a_head_without_scales_are_refused() -> None:
    with pytest.raises(DataError, match="no entry 'value'"):
        predict_values(linear(3), rollout(3, 8), key="value")
    with pytest.raises(ConfigError, match="must be a TimeScales"):
        delta_critic(nn.Linear(3, 5), 5, [0.5, 0.9])  # type: ignore[arg-type]
