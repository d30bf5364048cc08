"""Work of rsl_rl's runner around the algorithm: logs, exports, compilation, several processes, learning."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rsl_rl", reason="needs rsl-rl-lib and torch")

import torch
from rsl_rl.runners import OnPolicyRunner

from event_files import read_events
from rsl_rl_environments import Hopper, Pole, Robots, config
from tddelta.adapters.rsl_rl import DeltaPPO

ROOT = Path(__file__).parents[3]


def make(env: Robots, log: Any = None, kind: Any = DeltaPPO, *, compiled: str | None = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    given = config(kind, **settings)
    given["torch_compile_mode"] = compiled
    return OnPolicyRunner(env, given, log_dir=log and str(log))


def test_tensorboard_shows_every_component(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = make(Pole(16, 9), tmp_path, scales=[0.9, 0.99])
    runner.learn(2)
    runner.logger.writer.close()
    (file,) = tmp_path.glob("events.*")
    tags = {value.tag for event in read_events(file) for value in event.summary.value}
    for name in ("value_loss", "explained_variance", "value_mean"):
        assert {f"Loss/{name}/gamma=0.900", f"Loss/{name}/gamma=0.990"} <= tags
    assert {"Loss/value", "Loss/surrogate", "Train/mean_reward"} <= tags
    assert "Mean value_loss/gamma=0.990 loss:" in capsys.readouterr().out
    assert (tmp_path / "model_1.pt").exists()


def trained_policy(recurrent: str, normalised: bool) -> tuple[Any, list[torch.Tensor], list[torch.Tensor]]:
    """A runner after an update, three observations, and the actor's actions there from an empty memory."""
    runner = make(Pole(16, 9), recurrent=recurrent, normalised=normalised)
    runner.learn(1)
    policy, obs = runner.alg.actor, runner.env.get_observations()
    assert runner.get_inference_policy() is policy
    assert not normalised or policy.obs_normalizer.count == 16 * 16
    policy.reset()
    with torch.inference_mode():
        wanted = [policy(obs[step : step + 1]) for step in range(3)]
    return runner, list(obs["policy"][:3].split(1)), wanted


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("recurrent", "normalised"), [("", False), ("lstm", True)])
def test_the_exported_policy_acts_as_the_runners(recurrent: str, normalised: bool, tmp_path: Path) -> None:
    runner, observations, wanted = trained_policy(recurrent, normalised)
    runner.export_policy_to_jit(str(tmp_path))
    policy = torch.jit.load(tmp_path / "policy.pt")
    with torch.inference_mode():
        torch.testing.assert_close(list(map(policy, observations)), wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("recurrent", "normalised"), [("", False), ("lstm", True)])
def test_the_policy_is_exported_to_onnx(recurrent: str, normalised: bool, tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    runner, observations, wanted = trained_policy(recurrent, normalised)
    runner.export_policy_to_onnx(str(tmp_path))
    program = ReferenceEvaluator(str(tmp_path / "policy.onnx"))
    memory = [np.zeros((1, 1, 16), np.float32)] * 2 if recurrent else []
    for one, action in zip(observations, wanted, strict=True):
        given = dict(zip(("h_in", "c_in"), memory, strict=False))
        found, *memory = program.run(None, {"obs": one.numpy(), **given})
        np.testing.assert_allclose(found, action.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_networks_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # All of a compilation but the C++ programs at its end, which take half a minute.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    plain, compiled = (make(Pole(16, 9), compiled=mode, value_clip=0.5) for mode in (None, "default"))
    optimised = torch._dynamo.OptimizedModule
    for network in ("actor", "critic"):
        assert isinstance(getattr(compiled.alg, network), optimised)
        assert not isinstance(getattr(plain.alg, network), optimised)
    for runner in (plain, compiled):
        torch.manual_seed(1)
        runner.learn(2)
    for one, other in zip(plain.alg._raw_critic.parameters(), compiled.alg._raw_critic.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_three_lines_of_the_example_differ_from_a_program_with_rsl_rls_ppo(tmp_path: Path) -> None:
    lines = (ROOT / "examples" / "rsl_rl_hopper.py").read_text(encoding="utf-8").splitlines()
    marked = [line for line in lines if "  # was " in line or line.endswith("  # new")]
    assert len(marked) == 3
    before = {marked[0]: "", marked[1]: '        "class_name": "PPO",', marked[2]: "    runner.learn(iterations)"}
    program = "\n".join(before.get(line, line) for line in lines)
    # The thread that writes the log outlives the test, and would not find the folder from another one.
    program = program.replace('"logs"', repr(str(tmp_path / "logs")))
    names: dict[str, Any] = {"__name__": "before"}
    exec(compile(program.split("    print(f")[0], "before", "exec"), names)
    names["main"](1, 8, 0)
    assert (tmp_path / "logs" / "model_0.pt").exists()


PROCESS = """
import sys
import torch
from rsl_rl_environments import Pole, config
from rsl_rl.runners import OnPolicyRunner
from tddelta import ConfigError
from tddelta.adapters.rsl_rl import learn

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/both", rank=rank, world_size=2)
# The runner wants NVIDIA's library for it; what it does with it is the same here.
OnPolicyRunner._configure_multi_gpu = lambda self: None
OnPolicyRunner.gpu_world_size, OnPolicyRunner.gpu_global_rank, OnPolicyRunner.is_distributed = 2, rank, True
for kind in ("PPO", "one", "six"):
    torch.manual_seed(rank)
    settings = {"scales": "single", "time_outs": "fold"} if kind == "one" else {}
    given = config("PPO" if kind == "PPO" else "tddelta.adapters.rsl_rl:DeltaPPO", **settings)
    given["multi_gpu"] = {"global_rank": rank, "local_rank": rank, "world_size": 2}
    runner = OnPolicyRunner(Pole(16, 9, seed=rank), given)
    torch.manual_seed(10 + rank)
    learn(runner, 2, out=f"{folder}/runs", environment="pole", agent=kind)
    learned = [one for net in (runner.alg.actor, runner.alg.critic) for one in net.parameters()]
    torch.save(learned, f"{folder}/{kind}-{rank}.pt")
try:  # the first process refuses, and the others do not wait for it
    learn(runner, 2, out=f"{folder}/runs", environment="pole", agent=kind)
except ConfigError as error:
    assert "exists already" in str(error)
else:
    sys.exit("the run directory was not refused")
"""


@pytest.mark.slow
def test_two_processes_learn_the_same_parameters_and_one_scale_those_of_ppo(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "support")])
    environment = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command, quiet = [sys.executable, "-c", PROCESS], {"env": environment, "stdout": subprocess.DEVNULL}
    both = [subprocess.Popen([*command, str(rank), str(tmp_path)], **quiet) for rank in range(2)]
    assert [one.wait(timeout=240) for one in both] == [0, 0]
    found: dict[str, Any] = {}
    for kind in ("PPO", "one", "six"):
        found[kind] = [torch.load(tmp_path / f"{kind}-{rank}.pt") for rank in range(2)]
        assert all(map(torch.equal, *found[kind]))
        assert (tmp_path / "runs" / "pole" / kind / "seed-3" / "rollout.npz").exists()
    assert all(map(torch.equal, found["PPO"][0], found["one"][0]))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "goal"), [(Pole, 180.0), (Hopper, 140.0)])
def test_six_components_learn_to_balance_and_to_hop_in_1024_environments(
    kind: Any, goal: float, tmp_path: Path
) -> None:
    runner = make(kind(1024, 200), tmp_path, entropy_coef=0.0, num_mini_batches=4)
    runner.learn(40, init_at_random_ep_len=True)
    assert np.mean(runner.logger.rewbuffer) > goal
