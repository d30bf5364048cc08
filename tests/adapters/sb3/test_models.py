"""Common uses of models of Stable-Baselines3: save, load, convert, export, call back, log."""

import inspect
import json
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer

import sb3_suite as suite
from event_files import read_events
from sb3_environments import equal, vectorised
from sb3_suite import OURS, SCALES
from tddelta import CheckpointError, ConfigError, TimeScales
from tddelta.adapters.sb3 import DeltaA2C, DeltaActorCriticPolicy, DeltaDQN, DeltaPPO, DeltaSAC
from tddelta.adapters.sb3.run_directory import settings_of

make = partial(suite.make, DeltaPPO)


@pytest.mark.parametrize("ours", [DeltaPPO, DeltaA2C, DeltaDQN, DeltaSAC])
def test_a_constructor_shows_what_it_needs(ours: Any) -> None:
    assert list(inspect.signature(ours).parameters)[:2] == ["policy", "env"]


def test_a_save_file_holds_the_scales_as_numbers(tmp_path: Path) -> None:
    make(policy_kwargs={"net_arch": [8]}, component_weights=[1, 2, 3]).save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        data = json.loads(archive.read("data"))
    assert data["_scales"] == list(SCALES)
    assert data["component_weights"] == [1, 2, 3] and "scales" not in data
    assert data["policy_kwargs"] == {"net_arch": [8]}, "what the user gave, and nothing of ours"
    again = DeltaPPO.load(tmp_path / "model", device="cpu", policy_kwargs={"net_arch": [8]})
    assert again.policy.value_net.out_features == 3


def test_the_form_of_the_return_is_a_setting_like_others(tmp_path: Path) -> None:
    assert make().form == make().rollout_buffer.form == "difference"
    model = make(form="bootstrap")
    model.save(tmp_path / "model")
    assert DeltaPPO.load(tmp_path / "model", device="cpu").rollout_buffer.form == "bootstrap"
    assert DeltaPPO.load(tmp_path / "model", device="cpu", form="difference").rollout_buffer.form == "difference"
    assert settings_of(model)["form"] == "bootstrap"
    plain = model.to_ppo()
    assert not hasattr(plain, "form") and DeltaPPO.from_ppo(plain, SCALES).form == "difference"
    assert DeltaPPO.from_ppo(plain, SCALES, form="bootstrap").rollout_buffer.form == "bootstrap"
    simple = suite.make(DeltaA2C, form="bootstrap")
    again = DeltaA2C.from_a2c(simple.to_a2c(), SCALES, form="bootstrap")
    assert simple.rollout_buffer.form == again.form == "bootstrap"
    for make_one in (make, partial(DeltaPPO.load, tmp_path / "model", device="cpu")):
        with pytest.raises(ConfigError, match="form must be 'bootstrap' or 'difference'; got 'sum'"):
            make_one(form="sum")


def test_a_loaded_ladder_follows_discount_and_decay(tmp_path: Path) -> None:
    make(scales={"ladder": "halving", "components": 3}).save(tmp_path / "model")
    again = DeltaPPO.load(tmp_path / "model", device="cpu", gamma=0.9, gae_lambda=0.5)
    assert again.scales == again.rollout_buffer.scales == TimeScales.halving(0.9, components=3, lam=0.5)
    make(scales=None).save(tmp_path / "model")
    words = r"whose critic has 3 components \(0.600, 0.800, 0.900\).* load them with the scales, gamma"
    with pytest.raises(CheckpointError, match=words):
        DeltaPPO.load(tmp_path / "model", device="cpu", gamma=0.9)


def test_custom_objects_replace_the_scales_of_a_file(tmp_path: Path) -> None:
    make().save(tmp_path / "model")
    made = DeltaPPO.load(tmp_path / "model", device="cpu", custom_objects={"scales": [0.6, 0.9, 0.99]})
    assert made.scales.gammas == made.rollout_buffer.scales.gammas == (0.6, 0.9, 0.99)


def test_load_on_an_instance_warns_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    make(seed=5).save(tmp_path / "model")
    model = make()
    before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    with pytest.warns(UserWarning, match=r"leaves the one .* keep what DeltaPPO.load.* returns, or use set_parameters"):
        made = model.load(tmp_path / "model", device="cpu")
    assert not equal(made, model)
    made.policy.save(tmp_path / "policy")
    with pytest.warns(UserWarning, match=r"keep what DeltaActorCriticPolicy.load.* returns, or use load_state_dict"):
        model.policy.load(tmp_path / "policy", device="cpu")
    assert all(th.equal(before[name], tensor) for name, tensor in model.policy.state_dict().items())


@pytest.mark.parametrize("given", [None, 5, ["model.zip"]])
def test_load_names_what_is_no_file(given: Any) -> None:
    with pytest.raises(ConfigError, match="path must name a file that save wrote"):
        DeltaPPO.load(given)


@pytest.mark.parametrize("task", ["cartpole", "image"])
def test_to_ppo_keeps_policy_and_values_in_a_plain_file(task: str, tmp_path: Path) -> None:
    model = make(task).learn(64)
    model.to_ppo().save(tmp_path / "controller")
    assert b"tddelta" not in zipfile.ZipFile(tmp_path / "controller.zip").read("data")
    loaded = PPO.load(tmp_path / "controller", device="cpu")
    observations = model.env.reset()
    tensors = model.policy.obs_to_tensor(observations)[0]
    with th.no_grad():
        ours, theirs = (one.policy.predict_values(tensors) for one in (model, loaded))
    th.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    actions = (one.predict(observations, deterministic=True)[0] for one in (model, loaded))
    np.testing.assert_allclose(*actions, rtol=1e-5, atol=1e-5)
    PPO.load(tmp_path / "controller", env=vectorised(task), device="cpu").learn(64)


@pytest.mark.slow
def test_a_converted_file_loads_without_this_library(tmp_path: Path) -> None:
    make().to_ppo().save(tmp_path / "controller")
    program = (
        "import sys; sys.modules['tddelta'] = None\n"
        "from stable_baselines3 import PPO\n"
        f"print(type(PPO.load({str(tmp_path / 'controller')!r}, device='cpu').policy).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "ActorCriticPolicy\n", done.stderr


def critics(model: Any, observations: Any, actions: Any) -> list[np.ndarray]:
    """The values that the critics of a model give, or their components."""
    tensors, acted = model.policy.obs_to_tensor(observations)[0], th.as_tensor(actions)
    with th.no_grad():
        if isinstance(model, DQN):
            networks = model.q_net, model.q_net_target
            found = [net.components(tensors) if isinstance(model, DeltaDQN) else net(tensors) for net in networks]
        elif isinstance(model, SAC):
            ask = model.critic.each if isinstance(model, DeltaSAC) else model.critic
            found = list(ask(tensors, acted))
        else:
            ours = hasattr(model, "scales")
            found = [model.policy.predict_components(tensors) if ours else model.policy.predict_values(tensors)]
    return [one.numpy() for one in found]


CONVERTED: list[Any] = [
    *((plain, None, scales, {}) for plain in OURS for scales in (None, SCALES, "single")),
    *((plain, None, SCALES, {"policy_kwargs": {"net_arch": []}}) for plain in (DQN, SAC)),
    (PPO, "pendulum", SCALES, {"use_sde": True}),
    (PPO, "image", SCALES, {"policy_kwargs": {"share_features_extractor": False}}),
    (PPO, "dictionary", SCALES, {"policy_kwargs": {"net_arch": [8], "activation_fn": th.nn.ReLU}}),
]


@pytest.mark.parametrize(("plain", "task", "scales", "settings"), CONVERTED)
def test_models_are_converted_back_and_forth(
    plain: Any, task: str | None, scales: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    name = plain.__name__.lower()
    start = suite.make(plain, task, **settings).learn(48)
    before, numbers = {name: tensor.clone() for name, tensor in start.policy.state_dict().items()}, th.get_rng_state()
    steps = start.num_timesteps
    model = getattr(OURS[plain], f"from_{name}")(start, scales)
    back = getattr(model, f"to_{name}")()
    assert th.equal(numbers, th.get_rng_state()), "converting draws no random numbers"
    assert type(back) is plain and back.num_timesteps == model.num_timesteps == steps
    th.testing.assert_close(before, dict(back.policy.state_dict()), rtol=1e-5, atol=1e-5)
    assert scales != "single" or equal(start, back)
    observations = start.env.reset()
    acted, _ = start.predict(observations, deterministic=True)
    np.testing.assert_array_equal(acted, model.predict(observations, deterministic=True)[0])
    shares = np.diff(np.array(model.scales.horizons), prepend=0) / model.scales.horizons[-1]
    for values, ours in zip(*(critics(one, observations, acted) for one in (start, model)), strict=True):
        values = values[..., None] if plain is DQN else values
        np.testing.assert_allclose(ours, values * shares, rtol=1e-4, atol=1e-5)
    if plain is SAC:
        assert th.equal(start.log_ent_coef, back.log_ent_coef) and start.log_ent_coef.item() != 0
        assert model.log_ent_coef is not start.log_ent_coef
    back.save(tmp_path / "plain")
    assert plain.load(tmp_path / "plain", device="cpu").num_timesteps == steps
    model.learn(24, reset_num_timesteps=False)
    back.learn(24)
    assert model.num_timesteps > steps
    assert all(th.equal(tensor, before[key]) for key, tensor in start.policy.state_dict().items())


@suite.algorithms
def test_what_cannot_be_converted_is_said(plain: Any) -> None:
    name = plain.__name__
    convert = getattr(OURS[plain], f"from_{name.lower()}")
    for given, got in (("model.zip", "'model"), (None, "None"), (suite.make(DQN if plain is SAC else SAC), "<stable")):
        words = f"must be of the class {name}; got {got}.*: a file is read by {name}.load"
        with pytest.raises(ConfigError, match=words):
            convert(given)
    words = rf"a plain {name}; got a Delta{name}, which has components already: .* by to_{name.lower()}\(\) first"
    with pytest.raises(ConfigError, match=words):
        convert(suite.make(OURS[plain]))


class Own(DeltaActorCriticPolicy):
    """A policy of a user."""


def test_a_policy_of_ones_own_is_not_converted() -> None:
    model = make(policy=Own)
    with pytest.raises(ConfigError, match="got Own"):
        model.to_ppo()


class OwnBuffer(RolloutBuffer):
    """A buffer of a user, with an argument of its own."""

    def __init__(self, *args: Any, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


def test_a_rollout_buffer_of_ones_own_is_left_out_only_on_demand() -> None:
    model = suite.make(PPO, rollout_buffer_class=OwnBuffer, rollout_buffer_kwargs={"factor": 2.0})
    with pytest.raises(ConfigError, match=r"of your own is not converted; got OwnBuffer: set model.rollout_buffer_cl"):
        DeltaPPO.from_ppo(model)
    model.rollout_buffer_class, model.rollout_buffer_kwargs = None, {}
    assert DeltaPPO.from_ppo(model).learn(64).rollout_buffer.full


@suite.on_policy
def test_networks_in_half_precision_train_as_in_sb3(plain: Any) -> None:
    trained = []
    for kind, scales in ((plain, None), (OURS[plain], "single"), (OURS[plain], SCALES)):
        model = suite.make(kind, scales=scales)
        with th.autocast("cpu", dtype=th.float16):
            trained.append(model.learn(64))
    assert equal(trained[0], trained[1])
    buffer = trained[2].rollout_buffer
    assert buffer.component_returns.dtype == np.float32 and np.isfinite(buffer.component_returns).all()


class Values(th.nn.Module):
    """A policy's answers to observations: actions, and its critic's numbers."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Any) -> Any:
        acted = self.policy(observation, deterministic=True)
        if hasattr(self.policy, "q_net"):
            return acted, self.policy.q_net(observation), self.policy.q_net.components(observation)
        if hasattr(self.policy, "critic"):
            critic = self.policy.critic
            return acted, *critic(observation, acted), critic.components(observation, acted)
        # Not the probability: onnx's evaluator cannot index as PyTorch's distributions do, of plain SB3 as well.
        return *acted[:2], self.policy.predict_values(observation), self.policy.predict_components(observation)


@pytest.fixture
def _distributions_do_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch cannot follow the checks of its own distributions, in plain SB3 as well.
    monkeypatch.setattr(th.distributions.Distribution, "_validate_args", False)


def exportable(kind: Any, task: str) -> tuple[Values, Any]:
    """The exported part of a new model, and five observations."""
    policy = suite.make(kind, task, env=suite.environments(kind, task, 5)).policy
    policy.set_training_mode(False)
    return Values(policy).eval(), policy.obs_to_tensor(suite.environments(kind, task, 5).reset())[0]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.*:DeprecationWarning")
@pytest.mark.usefixtures("_distributions_do_not_check")
@pytest.mark.parametrize("task", ["cartpole", "image"])
@suite.kinds(*OURS.values(), name="kind")
def test_a_network_traced_with_one_observation_works_for_several(kind: Any, task: str) -> None:
    module, observations = exportable(kind, task if task == "image" or kind is not DeltaSAC else "pendulum")
    for before in (1, 5):
        traced = th.jit.trace(module, (observations[:before],), check_trace=False)
        for size in (1, 2, 5):
            with th.no_grad():
                for ours, theirs in zip(module(observations[:size]), traced(observations[:size]), strict=True):
                    assert theirs.shape[0] == size
                    th.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning", "ignore:`isinstance:DeprecationWarning")
@pytest.mark.usefixtures("_distributions_do_not_check")
@suite.kinds(*OURS.values(), name="kind")
def test_an_exported_network_takes_any_number_of_observations(kind: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and torch")
    import onnx.reference

    module, observations = exportable(kind, "pendulum" if kind is DeltaSAC else "cartpole")
    place = str(tmp_path / "network.onnx")
    sizes = {"dynamic_shapes": ({0: th.export.Dim("batch")},), "input_names": ["input"]}
    th.onnx.export(module, (observations[:2],), place, opset_version=18, verbose=False, **sizes)
    for size in (1, 2, 5):
        given = observations[:size]
        found = onnx.reference.ReferenceEvaluator(place).run(None, {"input": given.numpy()})
        with th.no_grad():
            for ours, theirs in zip(module(given), found, strict=True):
                np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-5)


def test_tensorboard_shows_the_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SB3 takes the writer of the package tensorboard; this one has the same methods, and is there for our own runs.
    writer = pytest.importorskip("tensorboardX").SummaryWriter
    for module in ("logger", "utils"):
        monkeypatch.setattr(f"stable_baselines3.common.{module}.SummaryWriter", writer)
    model = make(tensorboard_log=str(tmp_path)).learn(128)
    model.logger.close()
    assert [folder.name for folder in tmp_path.iterdir()] == ["DeltaPPO_1"]
    files = sorted(tmp_path.rglob("events.*"))
    tags = {value.tag for file in files for event in read_events(file) for value in event.summary.value}
    # This writer replaces the sign of equality; SB3's own does not.
    assert {"train/value_loss", "value_loss/gamma_0.500", "explained_variance/gamma_0.990"} <= tags


def test_the_console_shows_what_sb3_shows(capsys: pytest.CaptureFixture[str]) -> None:
    make(verbose=1).learn(128)
    table = capsys.readouterr().out
    assert "explained_variance" in table and "gamma=" not in table
