"""Saved agents, loaded again."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tddelta as tdd
from deep_environments import SCRIPTED, TINY, tiny
from deep_runs import finished
from tddelta import CheckpointError, CheckpointWarning, ConfigError, ShapeError
from tddelta.deep import policy, ppo, training
from tddelta.deep.agents import AGENTS, Agent
from tddelta.deep.networks import ActorCritic
from tddelta.deep.rollout import Moments
from tddelta.runs import Run, RunWriter

RANDOM = np.random.default_rng(0)


def saved(path, config, learned):
    """A run directory that holds what is learned."""
    with RunWriter(path, training.run_config(config, 0), {}) as writer:
        writer.parameters(policy.to_arrays(learned), {})
    return Run(path)


def edited(run, path, **settings):
    """A copy of a run whose config.json says something else."""
    shutil.copytree(run.path, path)
    config = json.loads((path / "config.json").read_text())
    config["settings"].update(settings)
    (path / "config.json").write_text(json.dumps(config))
    return Run(path)


@pytest.fixture(scope="module")
def run():
    return finished()


@pytest.fixture(scope="module")
def loaded(run):
    return tdd.load(run)


@pytest.mark.slow
def test_what_is_loaded(run, loaded):
    assert repr(loaded) == "Policy(ppo-delta on CartPole-v1)"
    assert loaded.scales == run.scales and loaded.config.hidden_sizes == TINY["hidden_sizes"]
    assert loaded.config.environment_object().time_limit == 30
    again = policy.load(str(run.path))
    for one, other in zip(jax.tree.leaves(loaded.learned), jax.tree.leaves(again.learned), strict=True):
        np.testing.assert_array_equal(one, other)
    config = json.loads(json.dumps(training.run_config(loaded.config, 0)))
    assert config["settings"] == run.config["settings"] and config["scales"] == run.config["scales"]


def test_components_are_those_of_the_recorded_episode(run, loaded):
    recorded = run.rollout
    np.testing.assert_allclose(loaded.components(recorded["observations"]), recorded["deltas"], rtol=1e-5, atol=1e-5)
    one = loaded.components(recorded["observations"][0])
    assert one.shape == (6,)
    np.testing.assert_allclose(one, recorded["deltas"][0], rtol=1e-5, atol=1e-5)
    grid = loaded.components(np.zeros((2, 3, 4)))
    assert grid.shape == (2, 3, 6) and isinstance(grid, np.ndarray)


def test_actions(loaded):
    observations = RANDOM.normal(size=(200, 4)).astype(np.float32)
    greedy = loaded.act(observations)
    assert greedy.shape == (200,) and set(np.unique(greedy)) <= {0, 1}
    np.testing.assert_array_equal(greedy, loaded.act(observations))
    np.testing.assert_array_equal(greedy[7], loaded.act(observations[7]))
    assert loaded.act(observations[0]).shape == ()
    assert loaded.act(observations.reshape(10, 20, 4)).shape == (10, 20)
    sampled = loaded.act(observations, jax.random.key(1))
    np.testing.assert_array_equal(sampled, loaded.act(observations, jax.random.key(1)))
    assert not np.array_equal(sampled, loaded.act(observations, jax.random.key(2)))
    acting = ppo.network(loaded.config, loaded.learned.parameters)
    logits, _ = jax.vmap(acting)(jnp.asarray(observations))
    np.testing.assert_array_equal(greedy, np.argmax(logits, 1))


@pytest.mark.parametrize("shape", [(), (3,), (5,), (4, 3), (2, 4, 1)])
def test_an_observation_of_another_shape(loaded, shape):
    for method in (loaded.act, loaded.components):
        with pytest.raises(ShapeError, match=re.escape(f"observation must be (*batch, 4); got {shape}")):
            method(np.zeros(shape))


def moments(*shape):
    """As if 10 samples had been seen: a mean and a variance for every entry."""
    mean, variance = RANDOM.normal(size=shape), RANDOM.uniform(0.1, 4, size=shape)
    return Moments(*(jnp.asarray(array, jnp.float32) for array in (10.0, mean, 10 * variance)))


HORIZONS = np.array([3.125, 6.25, 12.5, 25, 50, 100])
VARIANTS = {
    "ppo": {"agent": "ppo"},
    "ppo+": {"agent": "ppo+"},
    "ppo-multi": {"agent": "ppo-multi"},
    "horizon": {"component_scale": "horizon"},
    "multi, horizon": {"agent": "ppo-multi", "component_scale": "horizon"},
    "running": {"component_scale": "running"},
    "multi, running": {"agent": "ppo-multi", "component_scale": "running"},
    "normalised": {"normalize_observations": True, "normalize_rewards": True},
    "all at once": {
        "agent": "ppo-multi",
        "component_scale": "running",
        "normalize_observations": True,
        "normalize_rewards": True,
        "shared_trunk": True,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_components_are_in_units_of_reward(variant, tmp_path):
    settings = VARIANTS[variant]
    config = tiny("CartPole-v1", **settings)
    learned = ppo.initial(config, jax.random.key(3))
    learned = learned._replace(
        observation_moments=learned.observation_moments and moments(4),
        reward_moments=learned.reward_moments and moments(),
        target_moments=learned.target_moments and moments(6),
    )
    loaded = policy.load(saved(tmp_path / "run", config, learned))
    assert (jax.tree.structure(loaded.learned), loaded.config.agent.name) == (
        jax.tree.structure(learned),
        config.agent.name,
    )
    for one, other in zip(jax.tree.leaves(loaded.learned), jax.tree.leaves(learned), strict=True):
        np.testing.assert_array_equal(one, other)

    observations = RANDOM.normal(size=(7, 4)).astype(np.float32) * 3
    x = observations
    if "normalize_observations" in settings:
        seen = learned.observation_moments
        x = np.clip((x - np.asarray(seen.mean)) / np.sqrt(np.asarray(seen.squares) / 10), -10, 10)
    network = learned.parameters
    trunk = network.policy_trunk if "shared_trunk" in settings else network.critic_trunk
    for layer in trunk.layers:
        x = np.tanh(x @ np.asarray(layer.weight).T + np.asarray(layer.bias))
    expected = x @ np.asarray(network.critic.weight).T + np.asarray(network.critic.bias)
    agent = settings.get("agent", "ppo-delta")
    if settings.get("component_scale") == "horizon":
        expected = expected * (HORIZONS if agent == "ppo-multi" else np.diff(HORIZONS, prepend=0))
    if settings.get("component_scale") == "running":
        expected = expected * np.sqrt(np.asarray(learned.target_moments.squares) / 10)
    if agent == "ppo+":
        expected = expected.sum(-1, keepdims=True)
    if "normalize_rewards" in settings:
        expected = expected * np.sqrt(learned.reward_moments.squares / 10)
    if agent == "ppo-multi":
        expected = np.diff(expected, axis=-1, prepend=0)
    found = loaded.components(observations)
    assert found.shape == (7, len(loaded.scales))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_actions_of_a_gaussian_policy_stay_in_the_box(tmp_path):
    config = tiny("Pendulum-v1")
    loaded = policy.load(saved(tmp_path / "run", config, ppo.initial(config, jax.random.key(0))))
    observations = RANDOM.normal(size=(100, 3)).astype(np.float32)
    greedy, sampled = loaded.act(observations), loaded.act(30 * observations, jax.random.key(0))
    assert greedy.shape == sampled.shape == (100, 1) and loaded.act(observations[0]).shape == (1,)
    assert np.abs(sampled).max() <= 2 and sampled.std() > 0.5 and np.abs(greedy).max() < 0.5


def linear(key, observation_space, action_space, heads):
    return ActorCritic(key, observation_space, action_space, heads, sizes=())


def test_an_agent_of_the_library_is_that_agent(tmp_path):
    config = tiny("CartPole-v1", "ppo-delta-bootstrap")
    run = saved(tmp_path / "run", config, ppo.initial(config, jax.random.key(0)))
    assert policy.load(run).config.agent == AGENTS["ppo-delta-bootstrap"]
    described = run.config["agent"] | {"targets": "canary:targets"}
    foreign = policy.config_of(run.config | {"agent": described}).agent
    assert foreign == Agent("ppo-delta-bootstrap", rule="capped"), "what a run directory names is not imported"


def test_an_environment_of_somebody_must_be_passed_again(tmp_path):
    config = tiny(SCRIPTED)
    run = saved(tmp_path / "run", config, ppo.initial(config, jax.random.key(0)))
    assert run.config["settings"]["environment"] == "deep_environments:Scripted"
    with pytest.raises(ConfigError, match="environment 'deep_environments:Scripted' is not part of tddelta: pass env"):
        policy.load(run)
    assert policy.load(run, environment=SCRIPTED).components(np.zeros(4)).shape == (6,)


def test_a_network_of_somebody_must_be_passed_again(tmp_path):
    config = tiny("CartPole-v1", network=linear)
    run = saved(tmp_path / "run", config, ppo.initial(config, jax.random.key(0)))
    with pytest.raises(ConfigError, match=f"network '{__name__}:linear' is not part of tddelta: pass network="):
        policy.load(run)
    weights = policy.load(run, network=linear).learned.parameters.critic.weight
    assert weights.shape == (6, 4)
    with pytest.raises(CheckpointError, match="must have shape"):
        policy.load(run, network="mlp")


def test_a_probe_is_part_of_the_library(tmp_path):
    config = tiny("tddelta.deep.probes:DelayedReward", environment_kwargs={"length": 3})
    run = saved(tmp_path / "run", config, ppo.initial(config, jax.random.key(0)))
    assert policy.load(run).components(np.eye(3)).shape == (3, 6)


@pytest.mark.parametrize(
    "name",
    [
        "canary:make",
        "tddelta.deep.probes:jax._src.config.os.mkdir",
        "tddelta.deep.agents:importlib.import_module",
        "tddelta.deep.probes:jax:os",
    ],
)
@pytest.mark.parametrize("what", ["environment", "network"])
def test_what_a_run_names_is_not_executed(run, what, name, tmp_path, monkeypatch):
    # Field case B52.
    canary = tmp_path / "canary"
    (tmp_path / "canary.py").write_text(f"import os\nos.mkdir({str(canary)!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    options = {"path": str(canary)} if "mkdir" in name else {"name": "canary"}
    malicious = edited(run, tmp_path / "run", **{what: name}, environment_kwargs=options)
    with pytest.raises(ConfigError, match="is not part of tddelta"):
        policy.load(malicious)
    assert not canary.exists()


def test_parameters_of_other_settings(run, tmp_path):
    other = edited(run, tmp_path / "run", hidden_sizes=[9])
    with pytest.raises(CheckpointError, match=r"must have shape \(9, 4\); got \(8, 4\): the parameters belong"):
        policy.load(other)
    deeper = edited(run, tmp_path / "deeper", hidden_sizes=[8, 8])
    with pytest.raises(CheckpointError, match="got nothing"):
        policy.load(deeper)


def test_an_agent_that_acts_in_another_precision(run, tmp_path):
    copy = edited(run, tmp_path / "run")
    (copy.path / "config.json").write_text(json.dumps({**copy.config, "precision": "float64"}), encoding="utf-8")
    with pytest.warns(CheckpointWarning, match="trained in float64, and acts in float32 here.*set JAX_ENABLE_X64=1"):
        policy.load(copy.path)


def test_a_run_without_parameters(run, tmp_path):
    copy = edited(run, tmp_path / "run")
    (copy.path / "parameters.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no parameters: its run is finished; finish it first"):
        policy.load(copy)


def test_a_damaged_file_of_parameters(run, tmp_path):
    copy = edited(run, tmp_path / "run")
    path = copy.path / "parameters.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"parameters\.safetensors"):
        policy.load(copy)
