"""The recipes: pairs of programs before and after TD(Δ), and the page that shows what differs."""

import difflib
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tddelta as tdd

ROOT = Path(__file__).parents[1]
RECIPES = ["cleanrl_style", "rlax_style"]
MARK = "  # tddelta"
CLOCK = "Clock-v0"


def source(name: str) -> list[str]:
    return (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()


def difference(recipe: str) -> list[str]:
    """The lines that differ, with - and + before them, "@@" between places."""
    lines = difflib.unified_diff(source(f"{recipe}_before"), source(recipe), n=0, lineterm="")
    return ["@@" if line.startswith("@@") else line for line in list(lines)[2:]]


def program(name: str) -> ModuleType:
    """An example as a module of its own."""
    if name.startswith("cleanrl"):
        pytest.importorskip("torch", reason="needs torch")
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("recipe", RECIPES)
def test_ten_lines_change_and_each_of_them_is_marked(recipe: str) -> None:
    new = [line[1:] for line in difference(recipe) if line.startswith("+") and line != "+"]
    assert 5 < len(new) <= 10
    assert new == [line for line in source(recipe) if line.endswith(MARK)]
    assert not any(MARK in line for line in source(f"{recipe}_before"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_page_shows_what_differs(recipe: str) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == len(RECIPES)
    assert shown[RECIPES.index(recipe)].splitlines() == [line.removesuffix(MARK) for line in difference(recipe)]


def clock() -> str:
    """Registers an environment with both ends; its observation says when and which.

    It is (steps so far, 1 if the episode terminates after step 3); the time limit is 5.
    """
    import gymnasium

    class Clock(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        short = False

        def observed(self) -> np.ndarray:
            return np.array([self.time, self.short], np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            super().reset(seed=seed)
            self.time, self.short = 0, bool(self.np_random.integers(2))
            return self.observed(), {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            self.time += 1
            return self.observed(), float(action), self.short and self.time == 3, False, {}

    if CLOCK not in gymnasium.registry:
        gymnasium.register(CLOCK, lambda **options: Clock(**options), max_episode_steps=5)
    return CLOCK


@pytest.mark.parametrize("name", ["cleanrl_style_before", "cleanrl_style"])
def test_the_pytorch_file_learns_from_steps_only_and_looks_at_where_they_led(name: str) -> None:
    module = program(name)
    import torch

    acted, batches, targeted = Counter[tuple[float, float]](), Counter[tuple[float, float]](), []

    def record(network: Any, arguments: Any, outputs: Any) -> None:
        if not isinstance(network, torch.nn.Sequential):
            return
        rows = arguments[0].reshape(-1, 2).tolist()
        if torch.is_grad_enabled():
            batches.update(map(tuple, rows))
        elif arguments[0].ndim == 2:
            acted.update(map(tuple, rows))
        else:
            targeted.append(arguments[0].clone())

    hook = torch.nn.modules.module.register_module_forward_hook(record)
    try:
        _, episodes = module.train(module.Args(environment=clock(), steps=256, environments=4, rollout_length=32))
    finally:
        hook.remove()

    finals = {(5.0, 0.0), (3.0, 1.0)}
    assert finals < set(acted), "in the step after an end the actor is asked in vain"
    assert set(batches) == set(acted) - finals
    # Each step is in one minibatch of each of 4 epochs, for the actor and for the critic.
    assert batches == Counter({seen: 8 * times for seen, times in acted.items() if seen not in finals})
    for before, after in zip(targeted[::2], targeted[1::2], strict=True):
        step = (after - before)[~np.isin(before[..., 0] + 9 * before[..., 1], [5, 12])]
        assert torch.equal(step, torch.tensor([1.0, 0.0]).expand_as(step))
    assert len(targeted) == 4 and len(episodes) > 20


@pytest.mark.parametrize("environment", ["CartPole-v1", CLOCK])
def test_the_pytorch_file_with_one_component_is_the_one_before_to_the_last_bit(environment: str) -> None:
    plain, ours = program("cleanrl_style_before"), program("cleanrl_style")
    import torch

    clock()
    settings = {"environment": environment, "steps": 3 * 256, "environments": 4, "rollout_length": 64, "seed": 3}
    agent, episodes = plain.train(plain.Args(**settings))
    same, again = ours.train(ours.Args(**settings, components=1))
    assert episodes == again and len(episodes) > 10
    torch.testing.assert_close(agent.state_dict(), same.state_dict(), rtol=0, atol=0)


@pytest.mark.slow
def test_the_jax_file_with_one_scale_is_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    plain, ours = program("rlax_style_before"), program("rlax_style")
    monkeypatch.setattr(ours, "SCALES", tdd.TimeScales.single(ours.GAMMA, lam=ours.LAMBDA))
    for module in (plain, ours):
        monkeypatch.setattr(module, "PARAMETERS", module.PARAMETERS.replace(max_steps_in_episode=15))
        monkeypatch.setattr(module, "ENVIRONMENTS", 8)
    with jax.enable_x64(True):  # where rounding is out of the way
        (parameters, episodes), (same, again) = plain.train(3 * 8 * plain.T), ours.train(3 * 8 * ours.T)
    assert episodes == again and 15.0 in episodes and min(episodes) < 15
    assert not np.array_equal(parameters["actor"][0][0], plain.train(0)[0]["actor"][0][0]), "it has learned"
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-10), parameters, same)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        (f"{recipe}{which}", at)
        for recipe, at in zip(RECIPES, (25_000, 65_000), strict=True)
        for which in ("", "_before")
    ],
)
def test_returns_rise_while_an_example_trains(name: str, steps: int) -> None:
    module = program(name)
    _, episodes = module.train(module.Args(steps=steps)) if name.startswith("cleanrl") else module.train(steps)
    assert np.mean(episodes[:20]) < 40
    assert np.mean(episodes[-20:]) > 120
