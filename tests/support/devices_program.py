"""Runs in processes of their own, with more devices than a test has: trains on them, and saves every number."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from deep_environments import TwoLengths, tiny
from tddelta.deep import devices, ppo, training
from tddelta.runs import RunWriter

# Deterministic episodes end every 1 or 11 steps; every statistic that shards share is in use.
ENVIRONMENTS = TwoLengths()


def in_shards() -> ppo.Config:
    return tiny(
        ENVIRONMENTS,
        environments=16,
        shards=8,
        minibatches=2,
        steps=3 * 16 * 8,
        scales=(2.0, 8.0),
        normalize_observations=True,
        normalize_rewards=True,
        component_scale="running",
    )


def in_components() -> ppo.Config:
    return tiny(ENVIRONMENTS, environments=4, steps=3 * 4 * 8, scales=(2.0, 4.0, 8.0, 16.0), component_trunks=True)


def settings() -> list[ppo.Config]:
    return [tiny(ENVIRONMENTS, environments=4, steps=2 * 4 * 8, learning_rate=rate) for rate in (1e-2, 3e-3)]


def seeds(count: int) -> jax.Array:
    return jnp.stack([training.run_key(seed, "train") for seed in range(count)])


def blocks(config: ppo.Config, several: int | None) -> Any:
    """The last state, and the metrics of the second of the two blocks that led there, as run directories are made."""
    compiled = training.programs(config, several)
    state = compiled.init(config, seeds(1)[0] if several is None else seeds(several))
    state, _, _ = compiled.block(config, state, jnp.int32(1))
    rest = config.updates - 1
    state, metrics, done = compiled.block(config, state, jnp.int32(rest))
    assert np.all(np.asarray(done) == rest)
    filled = slice(rest) if several is None else (slice(None), slice(rest))
    return state, jax.tree.map(lambda leaf: leaf[filled], metrics)


def directory(path: Path) -> None:
    """A run directory of a run in shards, interrupted after its first update and resumed."""
    config, stop = in_shards(), threading.Event()

    def news(progress: training.Progress) -> None:
        if progress.steps:
            stop.set()

    for options in ({"progress": news, "stop": stop}, {}):
        with RunWriter(path, training.run_config(config, 0), {"command": ["test"]}, resume=not options) as writer:
            training.train_run(config, 0, writer, **options)


def where(state: ppo.State, pick: Callable[[ppo.State], Any]) -> int:
    """Number of devices that hold a part of an array that no other device holds."""
    leaf = jax.tree.leaves(pick(state))[0]
    return len({str(shard.index) for shard in leaf.addressable_shards})


def eight(folder: Path) -> dict[str, Any]:
    """Eight devices of one process."""
    assert jax.device_count() == 8
    found = {
        "all": devices.train_seeds(settings(), seeds(5)),
        "seeds": blocks(settings()[0], 9),
        "environments": blocks(in_shards(), None),
        "components": blocks(in_components(), None),
    }
    last = {name: state for name, (state, _) in found.items()}
    places = {
        "environments": where(last["environments"], lambda state: state.playing.observation),
        "agent": where(last["environments"], lambda state: state.learned),
        "components": where(last["components"], lambda state: state.learned.parameters.critic),
        "optimizer": where(last["components"], lambda state: state.optimizer[1].mu.critic),
        "policy": where(last["components"], lambda state: state.learned.parameters.policy_trunk),
    }
    directory(folder / "run")
    return {**found, "places": {name: np.array(count) for name, count in places.items()}}


def four() -> dict[str, Any]:
    """Four devices of two processes."""
    assert jax.device_count() == 4 and jax.local_device_count() == 2
    mesh = Mesh(np.array(jax.devices()), ("any",))
    return {"environments": devices.train_environments(in_shards(), seeds(1)[0], mesh=mesh)}


def named(tree: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(devices.gathered(tree))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def save(folder: str, name: str) -> None:
    """Train as `name` says, and save the numbers."""
    found = eight(Path(folder)) if name == "eight" else four()
    np.savez(Path(folder, f"{name}.npz"), **named(found))
