"""What people do with models of Stable-Baselines3: save, load, convert, export, call back, log."""

import csv
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 and torch")

import torch as th
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

from event_files import read_events
from sb3_environments import TASKS, equal, steered, vectorised
from tddelta import CheckpointError, ConfigError, TimeScales
from tddelta.adapters.sb3 import DeltaA2C, DeltaActorCriticPolicy, DeltaDQN, DeltaPPO, DeltaSAC
from tddelta.adapters.sb3.run_directory import settings_of

QUICK: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "device": "cpu", "seed": 3}
SCALES = [0.5, 0.9, 0.99]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    th.set_num_threads(1)


def make(task: str = "cartpole", **settings: Any) -> Any:
    return DeltaPPO(TASKS[task][1], vectorised(task), **{**QUICK, "scales": SCALES, **settings})


def test_a_loaded_model_is_the_saved_one_and_trains_like_it() -> None:
    model, file = make().learn(64), io.BytesIO()
    model.save(file)
    file.seek(0)
    again = DeltaPPO.load(file, env=vectorised("cartpole"), device="cpu")
    assert equal(model, again) and again.scales == model.scales and again.num_timesteps == 64
    model.set_env(vectorised("cartpole"))
    for one in (model, again):
        one.set_random_seed(5)
        one.learn(64, reset_num_timesteps=False)
    assert equal(model, again)


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
    simple = DeltaA2C("MlpPolicy", vectorised("cartpole"), scales=SCALES, form="bootstrap", device="cpu")
    assert (
        simple.rollout_buffer.form == DeltaA2C.from_a2c(simple.to_a2c(), SCALES, form="bootstrap").form == "bootstrap"
    )
    with pytest.raises(ConfigError, match="form must be 'bootstrap' or 'difference'; got 'sum'"):
        make(form="sum")
    with pytest.raises(ConfigError, match="form must be 'bootstrap' or 'difference'; got 'sum'"):
        DeltaPPO.load(tmp_path / "model", device="cpu", form="sum")


def test_loading_with_a_discount_that_is_not_the_largest_scale_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"gamma must be the largest discount of scales, 0\.99"):
        DeltaPPO.load(tmp_path / "model", gamma=0.9, device="cpu")


def test_a_loaded_ladder_follows_discount_and_decay(tmp_path: Path) -> None:
    make(scales={"ladder": "halving", "components": 3}).save(tmp_path / "model")
    again = DeltaPPO.load(tmp_path / "model", device="cpu", gamma=0.9, gae_lambda=0.5)
    assert again.scales == again.rollout_buffer.scales == TimeScales.halving(0.9, components=3, lam=0.5)
    make(scales=None).save(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"whose critic has 3 components .* load them with the scales, gamma"):
        DeltaPPO.load(tmp_path / "model", device="cpu", gamma=0.9)


def test_custom_objects_replace_the_scales_of_a_file(tmp_path: Path) -> None:
    make().save(tmp_path / "model")
    made = DeltaPPO.load(tmp_path / "model", device="cpu", custom_objects={"scales": [0.6, 0.9, 0.99]})
    assert made.scales.gammas == made.rollout_buffer.scales.gammas == (0.6, 0.9, 0.99)


def test_parameters_of_another_ladder_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"critic has 2 components \(0.900, 0.990\)"):
        make(scales=[0.9, 0.99]).set_parameters(make().get_parameters())
    model, other = make(), make(seed=5)
    model.set_parameters(other.get_parameters())
    assert equal(model, other)


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


@pytest.mark.parametrize("given", ["model.zip", None])
def test_a_conversion_takes_a_model(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"model must be of the class PPO; got .*: a file is read by PPO.load"):
        DeltaPPO.from_ppo(given)
    with pytest.raises(ConfigError, match="must be of the class A2C; got <stable"):
        DeltaA2C.from_a2c(PPO("MlpPolicy", vectorised("cartpole"), **QUICK))


def test_a_policy_is_saved_alone(tmp_path: Path) -> None:
    model = make()
    model.policy.save(tmp_path / "policy")
    again = DeltaActorCriticPolicy.load(tmp_path / "policy", device="cpu")
    assert again.n_components == 3
    assert all(th.equal(again.state_dict()[name], tensor) for name, tensor in model.policy.state_dict().items())


@pytest.mark.parametrize("task", TASKS)
def test_to_ppo_keeps_policy_and_values_in_a_plain_file(task: str, tmp_path: Path) -> None:
    model = make(task).learn(64)
    numbers = th.get_rng_state()
    plain = model.to_ppo()
    assert th.equal(numbers, th.get_rng_state()), "converting draws no random numbers"
    assert type(plain) is PPO and plain.num_timesteps == 64
    plain.save(tmp_path / "controller")
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


@pytest.mark.parametrize("scales", [None, SCALES, "single"])
def test_from_ppo_keeps_policy_and_values(scales: Any) -> None:
    plain = PPO("MlpPolicy", vectorised("cartpole"), **QUICK).learn(64)
    model = DeltaPPO.from_ppo(plain, scales)
    observations = plain.env.reset()
    with th.no_grad():
        ours, theirs = (one.policy.predict_values(th.as_tensor(observations)) for one in (model, plain))
    th.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    components = model.predict_components(observations)
    horizons = np.array(model.scales.horizons)
    shares = np.diff(horizons, prepend=0) / horizons[-1]
    np.testing.assert_allclose(components, theirs.numpy() * shares, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(
        model.predict(observations, deterministic=True)[0], plain.predict(observations, deterministic=True)[0]
    )
    model.learn(64, reset_num_timesteps=False)
    assert model.num_timesteps == 128
    assert equal(plain, DeltaPPO.from_ppo(plain, scales).to_ppo()) or scales != "single"


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("pendulum", {"use_sde": True}),
        ("image", {"policy_kwargs": {"share_features_extractor": False}}),
        ("dictionary", {"policy_kwargs": {"net_arch": [8], "activation_fn": th.nn.ReLU}}),
    ],
)
def test_models_of_every_setting_are_converted_back_and_forth(task: str, settings: dict[str, Any]) -> None:
    plain = PPO(TASKS[task][1], vectorised(task), **QUICK, **settings).learn(64)
    back = DeltaPPO.from_ppo(plain, SCALES).to_ppo()
    for name, tensor in plain.policy.state_dict().items():
        th.testing.assert_close(tensor, back.policy.state_dict()[name], rtol=1e-5, atol=1e-5)
    back.learn(64)


def test_a2c_is_converted_too() -> None:
    plain = A2C("MlpPolicy", vectorised("cartpole"), seed=3, device="cpu").learn(20)
    model = DeltaA2C.from_a2c(plain, SCALES)
    back = model.to_a2c()
    for name, tensor in plain.policy.state_dict().items():
        th.testing.assert_close(tensor, back.policy.state_dict()[name], rtol=1e-5, atol=1e-5)


class Own(DeltaActorCriticPolicy):
    """A policy of a user."""


def test_a_policy_of_ones_own_is_not_converted() -> None:
    model = DeltaPPO(Own, vectorised("cartpole"), **QUICK)
    with pytest.raises(ConfigError, match="got Own"):
        model.to_ppo()


class OwnBuffer(RolloutBuffer):
    """A buffer of a user, with an argument of its own."""

    def __init__(self, *args: Any, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


def test_a_rollout_buffer_of_ones_own_is_left_out_only_on_demand() -> None:
    model: Any = PPO(
        "MlpPolicy",
        vectorised("cartpole"),
        **QUICK,
        rollout_buffer_class=OwnBuffer,
        rollout_buffer_kwargs={"factor": 2.0},
    )
    with pytest.raises(ConfigError, match=r"of your own is not converted; got OwnBuffer: set model.rollout_buffer_cl"):
        DeltaPPO.from_ppo(model)
    model.rollout_buffer_class, model.rollout_buffer_kwargs = None, {}
    assert DeltaPPO.from_ppo(model).learn(64).rollout_buffer.full


def test_a_model_with_components_is_no_plain_one() -> None:
    with pytest.raises(ConfigError, match=r"must be a plain PPO; got a DeltaPPO, .* convert it by to_ppo\(\) first"):
        DeltaPPO.from_ppo(make())
    assert DeltaPPO.from_ppo(make().to_ppo(), [0.9, 0.99]).scales.gammas == (0.9, 0.99)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning", "ignore:`isinstance:DeprecationWarning")
def test_the_onnx_export_of_sb3s_documentation_works_on_the_converted_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and torch")
    import onnx.reference

    class Exported(th.nn.Module):
        def __init__(self, policy: Any) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, observation: th.Tensor) -> Any:
            action, value, _ = self.policy(observation, deterministic=True)
            return action, value

    model = make().learn(64)
    observations = th.as_tensor(model.env.reset()[:1])
    place = str(tmp_path / "controller.onnx")
    # PyTorch's exporter cannot follow the checks of its own distributions, in plain SB3 as well.
    monkeypatch.setattr(th.distributions.Distribution, "_validate_args", False)
    exported = Exported(model.to_ppo().policy).eval()
    th.onnx.export(exported, (observations,), place, opset_version=18, input_names=["input"], verbose=False)
    action, value = onnx.reference.ReferenceEvaluator(place).run(None, {"input": observations.numpy()})
    assert action == model.predict(observations.numpy(), deterministic=True)[0]
    np.testing.assert_allclose(value, model.predict_components(observations.numpy()).sum(-1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize(("kind", "plain"), [(DeltaPPO, PPO), (DeltaA2C, A2C)])
def test_networks_in_half_precision_train_as_in_sb3(kind: Any, plain: Any) -> None:
    settings: dict[str, Any] = {"n_steps": 16, "seed": 3, "device": "cpu"}
    trained = []
    for of, scales in ((plain, {}), (kind, {"scales": "single"}), (kind, {"scales": SCALES})):
        batch = {"batch_size": 16} if plain is PPO else {}
        model = of("MlpPolicy", vectorised("cartpole"), **settings, **batch, **scales)
        with th.autocast("cpu", dtype=th.float16):
            trained.append(model.learn(64))
    assert equal(trained[0], trained[1])
    buffer = trained[2].rollout_buffer
    assert buffer.component_returns.dtype == np.float32 and np.isfinite(buffer.component_returns).all()


class Values(th.nn.Module):
    """What a policy says of observations: actions, and its critic's numbers."""

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


def exportable(kind: Any, task: str = "cartpole") -> tuple[Values, Any]:
    """What is exported of a new model, and five observations."""
    env = steered(task, 5) if kind is DeltaSAC else vectorised(task, 5)
    small = {"buffer_size": 50} if kind in (DeltaDQN, DeltaSAC) else {}
    policy = kind(TASKS[task][1], env, scales=SCALES, seed=3, device="cpu", **small).policy
    policy.set_training_mode(False)
    return Values(policy).eval(), policy.obs_to_tensor(env.reset())[0]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.*:DeprecationWarning")
@pytest.mark.usefixtures("_distributions_do_not_check")
@pytest.mark.parametrize("task", ["cartpole", "image"])
@pytest.mark.parametrize("kind", [DeltaPPO, DeltaA2C, DeltaDQN, DeltaSAC])
def test_a_network_traced_with_one_observation_works_for_several(kind: Any, task: str) -> None:
    module, observations = exportable(kind, task if task == "image" or kind is not DeltaSAC else "pendulum")
    for before in (1, 5):
        traced = th.jit.trace(module, (observations[:before],), check_trace=False)
        for size in (1, 2, 5):
            with th.no_grad():
                for ours, theirs in zip(module(observations[:size]), traced(observations[:size]), strict=True):
                    assert theirs.shape[0] == size
                    th.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning", "ignore:`isinstance:DeprecationWarning")
@pytest.mark.usefixtures("_distributions_do_not_check")
@pytest.mark.parametrize("kind", [DeltaPPO, DeltaA2C, DeltaDQN, DeltaSAC])
def test_an_exported_network_takes_any_number_of_observations(kind: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and torch")
    import onnx.reference

    module, observations = exportable(kind, "pendulum" if kind is DeltaSAC else "cartpole")
    place = str(tmp_path / "network.onnx")
    th.onnx.export(
        module,
        (observations[:2],),
        place,
        opset_version=18,
        input_names=["input"],
        dynamic_shapes=({0: th.export.Dim("batch")},),
        verbose=False,
    )
    for size in (1, 2, 5):
        given = observations[:size]
        found = onnx.reference.ReferenceEvaluator(place).run(None, {"input": given.numpy()})
        with th.no_grad():
            for ours, theirs in zip(module(given), found, strict=True):
                np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-5)


def test_callbacks_work(tmp_path: Path) -> None:
    stop = StopTrainingOnRewardThreshold(reward_threshold=1.0)
    evaluate = EvalCallback(
        vectorised("cartpole", 1),
        callback_on_new_best=stop,
        eval_freq=20,
        n_eval_episodes=2,
        best_model_save_path=str(tmp_path / "best"),
        log_path=str(tmp_path),
        verbose=0,
    )
    keep = CheckpointCallback(save_freq=10, save_path=str(tmp_path / "kept"))
    model = make().learn(640, callback=[keep, evaluate])
    assert model.num_timesteps == 40, "stopped at the first evaluation"
    best = DeltaPPO.load(tmp_path / "best" / "best_model", device="cpu")
    mean, _ = evaluate_policy(best, vectorised("cartpole", 1), n_eval_episodes=3)
    assert mean == 9
    assert len(list((tmp_path / "kept").glob("*.zip"))) == 2


def test_loggers_write_the_components(tmp_path: Path) -> None:
    model = make()
    model.set_logger(configure(str(tmp_path), ["csv", "json", "log"]))
    model.learn(128)
    model.logger.close()
    with (tmp_path / "progress.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    for label in model.scales.labels:
        for name in ("value_loss", "explained_variance", "value_mean"):
            assert last[f"{name}/gamma={label}"]
    assert float(last["train/gradient_norm"]) > 0


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


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_the_progress_bar_works(capsys: pytest.CaptureFixture[str]) -> None:
    make().learn(64, progress_bar=True)
    assert "64/64" in capsys.readouterr().out
