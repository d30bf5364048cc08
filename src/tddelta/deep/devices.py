"""Training on many devices: seeds and settings, environments, or components spread over a mesh.

    state, metrics = devices.train_seeds(config, jax.random.split(jax.random.key(0), 16))
    state, metrics = devices.train_environments(ppo.preset("Breakout-MinAtar", shards=8), jax.random.key(0))
    state, metrics = devices.train_components(ppo.preset("Breakout-MinAtar", component_trunks=True), jax.random.key(0))

All three run `ppo.train`; only where its arrays lie differs, so that the numbers are those of one device, to rounding.
Without a mesh they use every device of the process. With `jax.distributed` a mesh may hold the devices of many
processes; then each of them makes the same call, and `gathered` brings the results to the host.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spread

from tddelta.deep import ppo, shards
from tddelta.deep.config import Config
from tddelta.deep.networks import is_components
from tddelta.errors import ConfigError

DEVICES = "devices"
"""Name of the axis of a mesh."""

EVERYWHERE: Any = Spread()
"""A whole copy on every device."""

BY_FIRST_AXIS: Any = Spread(DEVICES)
"""Divided along the first axis."""

STATE: Any = ppo.State(EVERYWHERE, EVERYWHERE, playing=BY_FIRST_AXIS, key=EVERYWHERE, updates=EVERYWHERE)
"""Places of a state whose environments are spread: every device knows the agent, and plays some environments."""

_BY_THIRD_AXIS: Any = Spread(None, None, DEVICES)
METRICS: Any = ppo.Metrics(*[EVERYWHERE] * len(ppo.Metrics._fields))._replace(
    finished_returns=_BY_THIRD_AXIS, finished_lengths=_BY_THIRD_AXIS
)
"""The same for the metrics of several updates."""


def train_seeds(
    config: Config | Sequence[Config], keys: jax.Array, *, mesh: Mesh | None = None
) -> tuple[ppo.State, ppo.Metrics]:
    """Train many seeds, or many settings, in parallel: one run per device at a time, without communication.

    Args:
        config: Settings, or several that differ in continuous settings only (see `Config`).
        keys: A key per seed, (S,). `training.run_key(seed, "train")` is that of a run directory.
        mesh: Devices; None takes those of this process. The number of runs need not be a multiple of theirs.

    Returns:
        What `ppo.train` returns, with leading axes (S, …), or (configurations, S, …) if there are several.

    Raises:
        ConfigError: If there are no runs, or settings differ that need a program of their own.
    """
    several = None if isinstance(config, Config) else len(config)
    configs = [config] if isinstance(config, Config) else list(config)
    if keys.ndim != 1 or not len(keys) or not configs:
        raise ConfigError(
            f"there must be at least one configuration and a row of keys; got {len(configs)} and keys of shape "
            f"{keys.shape}: make keys with jax.random.split"
        )
    _check_alike(configs)
    count = len(configs) * len(keys)
    row = _row(mesh, at_most=count)
    runs = np.arange(-(-count // row.size) * row.size).clip(max=count - 1)  # the last one fills what would be idle
    settings = [np.asarray(jax.tree.leaves(one), np.float32) for one in configs]
    data = np.asarray(jax.random.key_data(keys))
    leading = (len(keys),) if several is None else (several, len(keys))
    train = _seeds_program(row, leading, jax.tree.structure(configs[0]), jax.random.key_impl(keys))
    return train(np.stack(settings)[runs // len(keys)], data[runs % len(keys)])  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=16)
def _seeds_program(row: Mesh, leading: tuple[int, ...], structure: Any, kind: Any) -> Any:
    def begun(run: tuple[jax.Array, jax.Array]) -> ppo.State:
        settings, data = run
        return ppo.init(jax.tree.unflatten(structure, list(settings)), jax.random.wrap_key_data(data, impl=kind))

    def trained(settings: jax.Array, state: ppo.State) -> tuple[ppo.State, ppo.Metrics]:
        return ppo.all_updates(jax.tree.unflatten(structure, list(settings)), state)

    def there(settings: jax.Array, data: jax.Array) -> Any:
        # One after another: see `networks.one_by_one`.
        return jax.vmap(trained)(settings, jax.lax.map(begun, (settings, data)))

    def train(settings: jax.Array, data: jax.Array) -> Any:
        found = _over(row, there, (BY_FIRST_AXIS, BY_FIRST_AXIS), BY_FIRST_AXIS)(settings, data)
        count = int(np.prod(leading))
        return jax.tree.map(lambda leaf: leaf[:count].reshape(*leading, *leaf.shape[1:]), found)

    return jax.jit(train, in_shardings=NamedSharding(row, EVERYWHERE))


def train_environments(config: Config, key: jax.Array, *, mesh: Mesh | None = None) -> tuple[ppo.State, ppo.Metrics]:
    """`ppo.train` with its environments spread over devices, and gradients averaged over them at every step.

    The environments are `config.shards` groups. A group shuffles its own steps into minibatches, and a gradient step
    follows the mean over the groups' minibatches; advantages, normalisers and reports are those of all environments.
    The numbers depend on the number of shards, and not on the number of devices: `ppo.train` gives them on one.

    Args:
        config: Settings, with `shards` of at least 2.
        key: Seed of the run.
        mesh: Devices, whose number divides `shards`; None takes as many of this process as do.

    Returns:
        What `ppo.train` returns; the environments of the state stay on their devices.

    Raises:
        ConfigError: If the shards cannot be spread over the mesh.
    """
    if config.shards < 2:
        raise ConfigError(
            f"environments are spread by shards; got shards {config.shards}: set it to a multiple of the number of "
            "devices, as in shards=8"
        )
    row = _row(mesh, dividing=config.shards, what="shards")
    return _train(row, _environments_placed, config, key)


def train_components(config: Config, key: jax.Array, *, mesh: Mesh | None = None) -> tuple[ppo.State, ppo.Metrics]:
    """`ppo.train` with the critic's components, trunk and all, spread over devices.

    A device keeps its components' parameters and optimizer, and computes their values and gradients. The values of all
    are exchanged where targets and advantages need them, a number per step and component, and so is the norm of the
    gradient. Environments and policy are computed by every device.

    Args:
        config: Settings with `component_trunks`, or with a network of your own that has a `networks.Components`.
        key: Seed of the run.
        mesh: Devices, whose number divides the number of components, 1 where the ladder grows; None takes as
            many of this process as do.

    Returns:
        What `ppo.train` returns; the components of the state stay on their devices.

    Raises:
        ConfigError: If components share a trunk, or cannot be spread over the mesh.

    Reference:
        Romoff et al. 2019, discussion: components that are learned in parallel.
    """
    if not _has_components(config):
        raise ConfigError(
            f"components are spread by their trunks, which they share in network {config.network!r}: "
            "set component_trunks=True"
        )
    # What grows by one has no other divisor.
    count, what = (1, " of every ladder") if config.grow else (config.heads, "")
    row = _row(mesh, dividing=count, what=f"the number of components{what}")
    return _train(row, _components_placed, config, key)


def _train(row: Mesh, placed: Callable[..., Any], config: Config, key: jax.Array) -> tuple[ppo.State, ppo.Metrics]:
    config = jax.tree.map(float, config)
    init, rest = _whole(row, placed, jax.tree.structure(config), jax.random.key_impl(key))
    # A key as numbers: only those can be given to the devices of other processes.
    found: tuple[ppo.State, ppo.Metrics] = rest(config, init(config, np.asarray(jax.random.key_data(key))))
    return found


@functools.lru_cache(maxsize=16)
def _whole(row: Mesh, placed: Callable[..., Any], structure: Any, kind: Any) -> Any:
    """All of `ppo.train` in two programs, for the devices of a row."""
    config = jax.tree.unflatten(structure, [0.5] * structure.num_leaves)

    def init(config: Config, data: jax.Array) -> ppo.State:
        return ppo.init(config, jax.random.wrap_key_data(data, impl=kind))

    return placed(row, config, init, ppo.all_updates, 0)


def gathered(tree: Any) -> Any:
    """Arrays of any devices as NumPy arrays, of random keys their data; every process of a mesh calls it."""

    def host(leaf: Any) -> np.ndarray:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    return jax.tree.map(host, tree)


def placed(config: Config, seeds: int | None, init: Callable[..., Any], block: Callable[..., Any]) -> tuple[Any, Any]:
    """The programs of a run, or of several, for all devices of this process.

    Several seeds are spread as `train_seeds` does it. A single run is spread by its shards, or else by the trunks of
    its components, if it has them; else it stays on one device.

    Args:
        config: Settings.
        seeds: None for one run; else how many there are, along a leading axis of keys, states and results.
        init: f(config, key) → state.
        block: f(config, state, count, axis=()) → (state, metrics of several updates, number of updates).

    Returns:
        Both, to be lowered or called; `block` uses its state up.
    """
    row = _row(None)
    if seeds is not None:
        block = jax.vmap(block, (None, 0, None))
        if row.size > 1:
            each = -(-seeds // row.size)
            return _seeds_placed(_row(None, at_most=-(-seeds // each)), seeds, init, block)
        init = jax.vmap(init, (None, 0))
    elif row.size > 1 and config.shards > 1:
        return _environments_placed(_row(None, dividing=config.shards), config, init, block, 1)
    elif row.size > 1 and _has_components(config):
        return _components_placed(_row(None, dividing=config.heads), config, init, block, 1)
    return jax.jit(init), jax.jit(block, donate_argnums=1)


def _environments_placed(
    row: Mesh, config: Config, init: Callable[..., Any], go: Callable[..., Any], others: int
) -> tuple[Any, Any]:
    """Spread the environments: `go` takes and gives so many `others` after its state, and metrics."""

    def there(config: Config, state: ppo.State, *rest: Any) -> Any:
        return go(shards.part(config, row.size), state, *rest, axis=(DEVICES,))

    more = [EVERYWHERE] * others
    spread = _over(row, there, (EVERYWHERE, STATE, *more), (STATE, METRICS, *more))
    where = type(STATE)._make(NamedSharding(row, place) for place in STATE)
    return _jitted(row, config, where, init, spread, others)


def _components_placed(
    row: Mesh, config: Config, init: Callable[..., Any], go: Callable[..., Any], others: int
) -> tuple[Any, Any]:
    """Spread the components in the same way: JAX inserts what they exchange."""

    def where(node: Any) -> Any:
        place = NamedSharding(row, BY_FIRST_AXIS if is_components(node) else EVERYWHERE)
        return jax.tree.map(lambda _: place, node)

    state = jax.eval_shape(functools.partial(ppo.init, config), jax.random.key(0))
    return _jitted(row, config, jax.tree.map(where, state, is_leaf=is_components), init, go, others)


def _jitted(
    row: Mesh, config: Config, where: Any, init: Callable[..., Any], go: Callable[..., Any], others: int
) -> tuple[Any, Any]:
    everywhere = NamedSharding(row, EVERYWHERE)
    given = (everywhere, where, *[everywhere] * others)
    used_up = () if config.grow and not others else 1  # a whole run ends with larger arrays than it began with
    return jax.jit(init, in_shardings=everywhere, out_shardings=where), jax.jit(
        go, donate_argnums=used_up, in_shardings=given, out_shardings=(where, None, *[None] * others)
    )


def _seeds_placed(row: Mesh, seeds: int, init: Callable[..., Any], block: Callable[..., Any]) -> tuple[Any, Any]:
    runs = np.arange(-(-seeds // row.size) * row.size).clip(max=seeds - 1)
    # What does not come out even lies everywhere between two blocks, and is spread inside.
    even = len(runs) == seeds
    where, everywhere = NamedSharding(row, BY_FIRST_AXIS if even else EVERYWHERE), NamedSharding(row, EVERYWHERE)

    def filled(function: Callable[..., Any], others: int) -> Callable[..., Any]:
        spread = _over(row, function, (EVERYWHERE, BY_FIRST_AXIS, *[EVERYWHERE] * others), BY_FIRST_AXIS)
        if even:
            return spread

        def program(config: Config, each: Any, *rest: Any) -> Any:
            found = spread(config, jax.tree.map(lambda leaf: leaf[runs], each), *rest)
            return jax.tree.map(lambda leaf: leaf[:seeds], found)

        return program

    def begun(config: Config, keys: jax.Array) -> Any:
        # One after another: see `networks.one_by_one`.
        return jax.lax.map(functools.partial(init, config), keys)

    made = jax.jit(filled(begun, 0), in_shardings=(everywhere, where), out_shardings=where)
    arguments = (everywhere, where, everywhere)
    return made, jax.jit(filled(block, 1), donate_argnums=1, in_shardings=arguments, out_shardings=where)


def _row(mesh: Mesh | None, *, at_most: int | None = None, dividing: int | None = None, what: str = "") -> Mesh:
    """Put the devices of a mesh, or of this process, in one row: at most so many of these, or dividing a number."""
    devices = list(jax.local_devices() if mesh is None else mesh.devices.flat)
    here = all(device.process_index == jax.process_index() for device in devices)
    if at_most is not None and here:
        devices = devices[:at_most]
    if dividing is not None and mesh is None:
        count = max(count for count in range(1, len(devices) + 1) if dividing % count == 0)
        devices = devices[:count]
    if dividing is not None and dividing % len(devices):
        raise ConfigError(
            f"the devices of a mesh must divide {what} = {dividing}; got {len(devices)} devices: use "
            f"{max(count for count in range(1, len(devices)) if dividing % count == 0)} of them"
        )
    return Mesh(np.array(devices), (DEVICES,))


def _over(row: Mesh, function: Callable[..., Any], arguments: Any, results: Any) -> Callable[..., Any]:
    """Run a function on every device, on the part of the arguments that lies there."""
    # Nothing is checked or inserted by JAX: `update` itself says what is averaged.
    return jax.shard_map(function, mesh=row, in_specs=arguments, out_specs=results, check_vma=False)


def _has_components(config: Config) -> bool:
    learned = jax.eval_shape(functools.partial(ppo.initial, config), jax.random.key(0))
    return any(map(is_components, jax.tree.leaves(learned, is_components)))


def _check_alike(configs: Sequence[Config]) -> None:
    for other in configs:
        for name, field in Config.__dataclass_fields__.items():
            one, two = (getattr(config, name) for config in (configs[0], other))
            if (one is None) != (two is None) or (field.metadata["static"] and one != two):
                raise ConfigError(
                    f"configurations that train together must differ in continuous settings only; got {name} "
                    f"{one!r} and {two!r}: train them apart"
                )
