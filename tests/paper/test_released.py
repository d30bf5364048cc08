"""The released code's treatment of a rollout's last step and of time limits, as target functions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tddelta import advantages
from tddelta.deep.agents import AGENTS, bootstrap_targets, resolve
from tddelta.paper import atari
from tddelta.timescales import TimeScales

SCALES = TimeScales.halving(gamma=0.99, lam=0.95, rule="capped")


def rollout(length: int = 7, environments: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (length, environments)
    data = {"rewards": rng.normal(size=shape)}
    data |= {name: rng.normal(size=(*shape, len(SCALES))) for name in ("deltas", "next_deltas")}
    data |= {name: np.zeros(shape, bool) for name in ("terminated", "truncated")}
    data["terminated"][2, 0] = data["truncated"][4, 1] = True
    return data


def spelled_out(data: dict[str, np.ndarray]) -> np.ndarray:
    """TD errors step by step, from the words of the description, and the traces over them."""
    length, environments, count = data["deltas"].shape
    found = np.zeros((length, environments, count))
    for b, z in itertools.product(range(environments), range(count)):
        advantage = 0.0
        for t in reversed(range(length)):
            ended = data["terminated"][t, b] or data["truncated"][t, b]
            own, following = data["deltas"][t, b], data["next_deltas"][t, b]
            gamma = SCALES.gammas[z]
            if z == 0:
                error = data["rewards"][t, b] + (not ended) * gamma * following[0] - own[0]
            else:
                source = own if t == length - 1 else following  # the fault
                coupled = (gamma - SCALES.gammas[z - 1]) * source[:z].sum()
                error = (not ended) * (coupled + gamma * following[z]) - own[z]
            advantage = error + (not ended) * SCALES.trace_decays[z] * advantage
            found[t, b, z] = own[z] + advantage
    return found


def arguments(data: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array, bool if array.dtype == bool else jnp.float32) for name, array in data.items()}


def test_the_released_targets_are_those_of_their_description() -> None:
    data = rollout()
    data["terminated"][-1, 2] = True
    found = atari.released_targets(**arguments(data), scales=SCALES)
    np.testing.assert_allclose(found, spelled_out(data), rtol=2e-5, atol=2e-5)


def test_a_time_limit_is_a_termination_in_targets_and_advantages() -> None:
    data = rollout()
    ended = data | {"terminated": data["terminated"] | data["truncated"], "truncated": np.zeros((7, 3), bool)}
    found = atari.published_targets(**arguments(data), scales=SCALES)
    wanted = bootstrap_targets(**arguments(ended), scales=SCALES)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    actor = atari.published_advantages(**arguments(data), scales=SCALES, trace_decay=0.9)
    wanted = advantages(**arguments(ended), scales=SCALES, trace_decay=0.9)
    np.testing.assert_allclose(actor, wanted, rtol=1e-5, atol=1e-5)
    assert np.abs(found - bootstrap_targets(**arguments(data), scales=SCALES)).max() > 0.1


@pytest.mark.parametrize("name", atari.VARIANTS)
def test_the_variants_are_agents_that_differ_in_their_functions_alone(name: str) -> None:
    agent = resolve(atari.VARIANTS[name])
    plain = AGENTS[name.rsplit("-", 1)[0]]
    assert agent.name == name
    assert (agent.heads, agent.basis, agent.rule) == (plain.heads, plain.basis, plain.rule)
    assert agent.targets.__name__ == f"{name.rsplit('-', 1)[1]}_targets"
