"""Many devices: the numbers of one, wherever seeds, environments and components lie."""

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import devices_program as program
from deep_environments import QUICKLY, SCRIPTED, Faulty, state_of, tiny, update
from tddelta import ConfigError
from tddelta.decomposition import explained_variance
from tddelta.deep import devices, ppo, shards
from tddelta.deep.networks import Components
from tddelta.deep.rollout import no_moments
from tddelta.runs import Run

AXIS = ("shards",)
train = jax.jit(ppo.train, compiler_options=QUICKLY)


def start(folder: Path, count: int, name: str, before: str = "") -> subprocess.Popen[str]:
    """The program in a process with so many devices; its output goes to a file."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(program.__file__).parent),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0",
    }
    source = f"{before}\nimport devices_program\ndevices_program.save({str(folder)!r}, {name!r})"
    with Path(folder, f"{name}.log").open("w") as output:
        return subprocess.Popen([sys.executable, "-c", source], env=environment, stdout=output, stderr=output)


def finish(folder: Path, started: dict[str, subprocess.Popen[str]]) -> list[dict[str, np.ndarray]]:
    """The numbers that the processes saved; none of them is left behind."""
    try:
        for name, process in started.items():
            assert process.wait(timeout=240) == 0, Path(folder, f"{name}.log").read_text()
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    return [dict(np.load(folder / f"{name}.npz")) for name in started]


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """Every number of eight devices of one process, and the folder with its run directory."""
    folder = tmp_path_factory.mktemp("eight")
    return finish(folder, {"eight": start(folder, 8, "eight")})[0], folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Every number of two processes with two devices each."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # Before the other imports, since gymnax computes when it is imported.
    join = "import jax; jax.distributed.initialize({!r}, num_processes=2, process_id={})".format
    return finish(folder, {str(number): start(folder, 2, str(number), join(address, number)) for number in range(2)})


@functools.cache
def alone(kind):
    """The same on the one device of this process."""
    key = program.seeds(1)[0]
    if kind == "seeds":
        return program.named(devices.train_seeds(program.settings(), program.seeds(9)))
    if kind == "components":
        return program.named(devices.train_components(program.in_components(), key))
    return program.named(train(program.in_shards(), key))


def check(found, name, expected):
    assert sum(key.startswith(f"{name}/") for key in found) == len(expected) > 40
    for key, array in expected.items():
        np.testing.assert_allclose(found[f"{name}/{key}"], array, rtol=1e-5, atol=1e-5, err_msg=key)


def without_first_update(expected, axis=0):
    return {key: np.delete(array, 0, axis) if key.startswith("1/") else array for key, array in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["environments", "components", "seeds"])
def test_devices_give_the_numbers_of_one(eight, kind):
    expected, found = alone(kind), eight[0]
    if kind == "environments":
        assert np.sum(expected["1/finished_lengths"] > 0) > 30
        found = {key: array for key, array in found.items() if not key.endswith("0/2")}
    if kind == "seeds":
        expected = {key: array[0] for key, array in expected.items()}
    check(found, kind, without_first_update(expected, axis=int(kind == "seeds")))


@pytest.mark.slow
def test_settings_and_seeds_on_devices_give_the_numbers_of_one(eight):
    check(eight[0], "all", {key: array[:, :5] for key, array in alone("seeds").items()})
    for config, rates in zip(program.settings(), alone("seeds")["1/learning_rate"], strict=True):
        np.testing.assert_allclose(rates[:, 0], config.learning_rate, rtol=1e-5)


@pytest.mark.slow
def test_arrays_lie_where_they_should(eight):
    places = {name.removeprefix("places/"): int(eight[0][name]) for name in eight[0] if name.startswith("places/")}
    assert places == {"environments": 8, "agent": 1, "components": 4, "optimizer": 4, "policy": 1}


@pytest.mark.slow
def test_a_run_directory_of_eight_devices_holds_the_numbers_of_one(eight):
    run, expected = Run(eight[1] / "run"), alone("environments")
    assert run.config["settings"]["shards"] == 8 and run.status["state"] == "finished"
    assert [row["steps"] for row in run.timing if row["event"] == "block"] == [128, 256, 384]
    assert [row["event"] for row in run.timing if row["event"] in ("start", "resume")] == ["start", "resume"]
    for name in ("policy_loss", "value_loss", "entropy", "gradient_norm", "explained_variance"):
        np.testing.assert_allclose(run.metrics[name], expected[f"1/{name}"], rtol=1e-5, atol=1e-5, err_msg=name)
    lengths = expected["1/finished_lengths"]
    np.testing.assert_array_equal(run.episodes["lengths"], lengths[lengths > 0])


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(two):
    for found in two:
        check(found, "environments", alone("environments"))


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICKLY)
def whole_and_in_shards(function, *arrays):
    """The function of arrays, and of every shard of them, split along axis 1 into two."""
    parts = [jnp.stack(jnp.split(array, 2, axis=1)) for array in arrays]
    return function(*arrays, ()), jax.vmap(lambda *part: function(*part, AXIS), axis_name=AXIS[0])(*parts)


def explained(values, targets, axis):
    mean = functools.partial(shards.mean_of_rows, axis=axis)
    return explained_variance(values.reshape(-1, 3), targets.reshape(-1, 3), mean)


def moments(more, axis):
    return no_moments((3,)).updated(jnp.ones((2, 2, 3)), (0, 1)).updated(more, (0, 1), axis)


def test_statistics_are_those_of_all_shards():
    random = np.random.default_rng(0)
    values, targets = random.normal(size=(2, 6, 4, 3)).astype(np.float32)
    targets[..., 2] = 1.5
    for advantages in (targets[..., 0] + np.float32([0, 0, 9, 9]), np.full((6, 4), 0.1, np.float32)):
        expected, parts = whole_and_in_shards(ppo.standardized, advantages)
        np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-5, atol=1e-5)
        assert np.any(expected != 0) == (advantages[0, 0] != advantages[0, 2])
    for function, arrays in ((explained, (values, targets)), (moments, (values,))):
        expected, parts = whole_and_in_shards(function, *arrays)
        for whole, each in zip(*map(jax.tree.leaves, (expected, parts)), strict=True):
            np.testing.assert_allclose(each, np.stack([whole, whole]), rtol=1e-5)
    assert np.all(np.isnan(whole_and_in_shards(explained, values, targets)[0]) == [False, False, True])


@pytest.mark.slow
def test_a_gradient_step_of_shards_is_that_of_all_their_steps():
    config = tiny(SCRIPTED, environments=4, shards=2, scales=(2.0, 8.0))
    state = state_of(config)
    random = np.random.default_rng(0)
    batch = ppo.Batch(
        observations=random.normal(size=(8, 4, 4)).astype(np.float32),
        actions=random.integers(2, size=(8, 4)),
        log_probabilities=np.full((8, 4), -0.7, np.float32),
        advantages=random.normal(size=(8, 4)).astype(np.float32),
        targets=random.normal(size=(8, 4, 2)).astype(np.float32),
    )

    def fitted(config, part, axis):
        (parameters, _), reports = ppo.fit(config, state, part, jax.random.key(0), axis)
        return parameters, reports[-2]

    parts = jax.tree.map(lambda array: np.stack(np.split(array, 2, axis=1)), batch)
    one = shards.part(config, 2)
    assert (one.environments, one.updates, one.shards) == (2, config.updates, 1)

    @functools.partial(jax.jit, compiler_options=QUICKLY)
    def both(parts, batch):
        return jax.vmap(lambda part: fitted(one, part, AXIS), axis_name=AXIS[0])(parts), fitted(config, batch, ())

    (shared, norms), (expected, norm) = both(parts, batch)
    np.testing.assert_allclose(norms[0], norm, rtol=1e-5)
    for found, leaf, old in zip(*map(jax.tree.leaves, (shared, expected, state.learned.parameters)), strict=True):
        np.testing.assert_allclose(found[0], leaf, rtol=1e-4, atol=1e-5)
        assert np.max(np.abs(leaf - old)) > 1e-3


@pytest.mark.slow
def test_a_fault_in_a_shard_is_named_by_its_place_in_the_whole():
    plain = tiny(Faulty(), environments=6, shards=3)
    identities = np.asarray(state_of(plain).playing.environment.identity)
    faults = tuple(
        (int(identities[place]), kind) for place, kind in ((3, "observation"), (5, "observation"), (4, "reward"))
    )
    before = state_of(plain)
    after, metrics = update(tiny(Faulty(faults), environments=6, shards=3), before)
    # The first of them, wherever it is: an environment that comes earlier, not a shard.
    assert ppo.FAULTS[int(metrics.fault)] == "observation"
    assert (int(metrics.fault_step), int(metrics.fault_environment)) == (Faulty.step_of_fault, 3)
    for old, new in zip(*(jax.tree.leaves(state.learned) for state in (before, after)), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
def test_every_component_has_a_trunk_of_its_own():
    config = tiny(SCRIPTED, scales=(2.0, 4.0, 8.0), component_trunks=True, hidden_sizes=(8, 5))
    parameters, observation = state_of(config).learned.parameters, jnp.asarray([0.3, -0.2, 0.1, 0.7])

    @functools.partial(jax.jit, compiler_options=QUICKLY)
    def head_and_gradient(parameters):
        gradient = jax.grad(lambda parameters: ppo.network(config, parameters)(observation)[1][1])(parameters)
        return ppo.network(config, parameters)(observation)[1], gradient

    heads, gradient = head_and_gradient(parameters)
    critic = parameters.critic
    assert isinstance(critic, Components) and parameters.critic_trunk is None
    assert [layer.weight.shape for layer in critic.trunk.layers] == [(3, 8, 4), (3, 5, 8)]
    for number in range(3):
        features = np.asarray(observation)
        for layer in critic.trunk.layers:
            features = np.tanh(np.asarray(layer.weight[number]) @ features + np.asarray(layer.bias[number]))
        expected = np.asarray(critic.output.weight[number]) @ features + np.asarray(critic.output.bias[number])
        np.testing.assert_allclose(heads[number], expected[0], rtol=1e-4)
    assert len(set(heads.tolist())) == 3
    for leaf in map(np.asarray, jax.tree.leaves(gradient.critic)):
        assert np.any(leaf[1] != 0) and not np.any(leaf[[0, 2]])
    assert not any(np.any(leaf) for leaf in map(np.asarray, jax.tree.leaves((gradient.policy_trunk, gradient.policy))))


def test_calls_that_cannot_be_spread_say_what_to_do():
    key = jax.random.key(0)
    with pytest.raises(ConfigError, match="got shards 1: set it to a multiple of the number of devices"):
        devices.train_environments(tiny(), key)
    with pytest.raises(ConfigError, match="which they share in network 'mlp': set component_trunks=True"):
        devices.train_components(tiny(), key)
    with pytest.raises(ConfigError, match=r"got environments 3 and 6: train them apart"):
        devices.train_seeds([tiny(), tiny(environments=6)], jax.random.split(key, 2))
    with pytest.raises(ConfigError, match=r"got actor_lam None and 0.5: train them apart"):
        devices.train_seeds([tiny(), tiny(actor_lam=0.5)], jax.random.split(key, 2))
    with pytest.raises(ConfigError, match=r"got 1 and keys of shape \(\): make keys with jax.random.split"):
        devices.train_seeds(tiny(), key)
    three = Mesh(np.array(jax.devices() * 3), ("any",))
    with pytest.raises(ConfigError, match="a mesh must divide shards = 8; got 3 devices: use 2 of them"):
        devices.train_environments(tiny(environments=8, shards=8), key, mesh=three)
