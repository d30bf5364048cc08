"""Many devices: the numbers of one, wherever seeds, environments and components lie."""

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import devices_program as program
from deep_environments import QUICKLY, SCRIPTED, Faulty, init, state_of, tiny, update
from tddelta import ConfigError
from tddelta.deep import devices, losses, ppo, training
from tddelta.deep.networks import Components, Trunk
from tddelta.deep.rollout import no_moments
from tddelta.runs import Run, config_hash

AXIS = ("shards",)
train = jax.jit(ppo.train, compiler_options=QUICKLY)


def start(folder: Path, count: int, *process: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0",
    }
    command = [sys.executable, program.__file__, str(folder), *process]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*started: subprocess.Popen[str]) -> None:
    try:
        for one in started:
            output, _ = one.communicate(timeout=240)
            assert one.returncode == 0, output
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
                one.wait()


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """Every number of eight devices of one process, and the folder with its run directory."""
    folder = tmp_path_factory.mktemp("eight")
    finish(start(folder, 8))
    return np.load(folder / "eight.npz"), folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Every number of two processes with two devices each."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    finish(*(start(folder, 2, address, str(number)) for number in range(2)))
    return [np.load(folder / f"{number}.npz") for number in range(2)]


@functools.cache
def alone(kind):
    """The same on the one device of this process."""
    key = program.seeds(1)[0]
    if kind == "seeds":
        runs = [[train(config, key) for key in program.seeds(5)] for config in program.settings()]
        each = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *row) for row in runs]
        return program.named(jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))
    configs = {
        "components": program.in_components,
        "8": lambda: program.in_shards(8),
        "4": lambda: program.in_shards(4),
    }
    return program.named(train(configs[kind](), key))


def check(found, name, expected):
    assert sum(key.startswith(f"{name}/") for key in found) == len(expected) > 40
    for key, array in expected.items():
        np.testing.assert_allclose(found[f"{name}/{key}"], array, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["environments on 8", "environments on 2"])
def test_environments_on_devices_give_the_numbers_of_one(eight, name):
    assert np.sum(alone("8")["1/finished_lengths"] > 0) > 30
    check(eight[0], name, alone("8"))


@pytest.mark.slow
def test_components_on_devices_give_the_numbers_of_one(eight):
    check(eight[0], "components", alone("components"))


@pytest.mark.slow
def test_settings_and_seeds_on_devices_give_the_numbers_of_one(eight):
    check(eight[0], "seeds", alone("seeds"))


@pytest.mark.slow
def test_arrays_lie_where_they_should(eight):
    places = {name.removeprefix("places/"): int(eight[0][name]) for name in eight[0] if name.startswith("places/")}
    assert places == {
        "environments": 8,
        "blocks of environments": 8,
        "components": 4,
        "optimizer": 4,
        "blocks of components": 4,
        "policy": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("environments", "8"), ("components", "components"), ("seeds", "seeds")])
def test_run_directories_use_all_devices_with_the_numbers_of_one(eight, name, kind):
    expected = alone(kind)
    if name == "seeds":
        expected = {key: array[0] for key, array in expected.items()}
    time = 1 if name == "seeds" else 0
    later = {key: np.delete(array, 0, axis=time) for key, array in expected.items() if key.startswith("1/")}
    check(eight[0], f"blocks of {name}", expected | later)


@pytest.mark.slow
def test_a_run_directory_of_shards_is_that_of_one_device(eight, tmp_path):
    from deep_runs import trained

    there, here = Run(eight[1] / "run"), trained(tmp_path / "run", config=program.in_shards(8))
    assert there.config == here.config and there.config["settings"]["shards"] == 8
    assert there.status["episodes"] == here.status["episodes"] > 30
    for name, column in here.metrics.items():
        np.testing.assert_allclose(there.metrics[name], column, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(there.episodes["lengths"], here.episodes["lengths"])


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(two):
    first, second = two
    for key in first:
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)
    check(first, "environments", alone("4"))
    check(first, "components", alone("components"))
    check(first, "seeds", {key: array[:, :2] for key, array in alone("seeds").items()})


def in_shards(function, *arrays):
    """The function of every shard, of arrays split along axis 1 into two."""
    parts = [jnp.stack(jnp.split(jnp.asarray(array), 2, axis=1)) for array in arrays]
    return jax.vmap(lambda *part: function(*part, AXIS), axis_name=AXIS[0])(*parts)


def test_statistics_are_those_of_all_shards():
    random = np.random.default_rng(0)
    values, targets = random.normal(size=(2, 6, 4, 3)).astype(np.float32)
    targets[..., 2] = 1.5
    advantages = targets[..., 0] + np.float32([0, 0, 9, 9])
    expected = jnp.stack(jnp.split(losses.standardized(jnp.asarray(advantages)), 2, axis=1))
    np.testing.assert_allclose(in_shards(losses.standardized, advantages), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(in_shards(losses.standardized, np.full((6, 4), 0.1, np.float32)), np.zeros((2, 6, 2)))

    def explained(values, targets, axis=()):
        return losses.explained_variance(values.reshape(-1, 3), targets.reshape(-1, 3), axis)

    whole = explained(jnp.asarray(values), jnp.asarray(targets))
    assert np.isnan(whole[2]) and np.all(np.isfinite(whole[:2]))
    for shard in in_shards(explained, values, targets):
        np.testing.assert_allclose(shard, whole, rtol=1e-5)

    def updated(more, axis=()):
        return no_moments((3,)).updated(jnp.ones((2, 2, 3)), (0, 1)).updated(more, (0, 1), axis)

    for shard in zip(*in_shards(updated, values), strict=True):
        for found, expected in zip(shard, updated(jnp.asarray(values)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_gradient_step_of_shards_is_that_of_all_their_steps():
    config = tiny(SCRIPTED, environments=4, shards=2, horizons=(2.0, 8.0))
    state, environment = state_of(config), config.environment_object()
    random = np.random.default_rng(0)
    batch = ppo.Batch(
        observations=random.normal(size=(8, 4, 4)).astype(np.float32),
        actions=random.integers(2, size=(8, 4)),
        log_probabilities=np.full((8, 4), -0.7, np.float32),
        advantages=random.normal(size=(8, 4)).astype(np.float32),
        targets=random.normal(size=(8, 4, 2)).astype(np.float32),
    )

    def fitted(config, part, axis):
        (parameters, _), reports = ppo._fit(config, environment, state, part, jax.random.key(0), axis)
        return parameters, reports[-2]

    parts = jax.tree.map(lambda array: np.stack(np.split(array, 2, axis=1)), batch)
    one = program.ppo.shards.part(config, 2)
    assert (one.environments, one.updates, one.shards) == (2, config.updates, 1)
    shared, norms = jax.vmap(lambda part: fitted(one, part, AXIS), axis_name=AXIS[0])(parts)
    expected, norm = fitted(config, jax.tree.map(jnp.asarray, batch), ())
    np.testing.assert_allclose(norms[0], norm, rtol=1e-5)
    for found, leaf, old in zip(*map(jax.tree.leaves, (shared, expected, state.learned.parameters)), strict=True):
        np.testing.assert_allclose(found[0], leaf, rtol=1e-4, atol=1e-6)
        assert np.max(np.abs(leaf - old)) > 1e-3


@pytest.mark.parametrize("kind", ["reward", "observation"])
def test_a_fault_in_a_shard_is_named_by_its_place_in_the_whole(kind):
    plain = tiny(Faulty(), environments=6, shards=3)
    identities = np.asarray(state_of(plain).playing.environment.identity)
    config = tiny(Faulty(((int(identities[3]), kind), (int(identities[5]), kind))), environments=6, shards=3)
    before = init(config, jax.random.key(0))
    after, metrics = update(config, before)
    assert ppo.FAULTS[int(metrics.fault)] == kind
    assert (int(metrics.fault_step), int(metrics.fault_environment)) == (Faulty.step_of_fault, 3)
    for old, new in zip(*(jax.tree.leaves(state.learned) for state in (before, after)), strict=True):
        np.testing.assert_array_equal(old, new)


def test_every_component_has_a_trunk_of_its_own():
    config = tiny(SCRIPTED, horizons=(2.0, 4.0, 8.0), component_trunks=True, hidden_sizes=(8, 5))
    parameters = state_of(config).learned.parameters
    acting, observation = ppo.network(config, parameters), jnp.asarray([0.3, -0.2, 0.1, 0.7])
    critic = acting.critic
    assert isinstance(critic, Components) and acting.critic_trunk is None
    assert [layer.weight.shape for layer in critic.trunk.layers] == [(3, 8, 4), (3, 5, 8)]
    _, heads = acting(observation)
    for number in range(3):
        trunk, output = jax.tree.map(lambda leaf, z=number: leaf[z], (critic.trunk, critic.output))
        assert isinstance(trunk, Trunk)
        np.testing.assert_allclose(heads[number], output(trunk(observation))[0], rtol=1e-5)
    assert len(set(heads.tolist())) == 3
    gradient = eqx.filter_grad(lambda network: network(observation)[1][1])(acting)
    for leaf in jax.tree.leaves(gradient.critic):
        assert np.any(leaf[1] != 0) and not np.any(leaf[np.array([0, 2])])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((gradient.policy_trunk, gradient.policy)))


def test_new_settings_leave_the_record_of_other_runs_as_it_was():
    plain = training.run_config(tiny(), 0)
    assert not {"shards", "component_trunks"} & set(plain["settings"])
    changed = [training.run_config(tiny(**one), 0) for one in ({"shards": 3}, {"component_trunks": True})]
    assert (changed[0]["settings"]["shards"], changed[1]["settings"]["component_trunks"]) == (3, True)
    assert len({config_hash(content) for content in (plain, *changed)}) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"environments": 6, "shards": 4}, "shards must divide environments = 6; got 4: use 2"),
        ({"shards": 0}, "shards must be a whole number of at least 1; got 0"),
        (
            {"environments": 6, "shards": 6, "minibatches": 3},
            r"shards × rollout_length = 8; got 3: use 1, or fewer shards",
        ),
        ({"component_trunks": True, "shared_trunk": True}, "got shared_trunk too: drop one"),
    ],
)
def test_what_cannot_be_split_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**settings)


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
