"""Trained agents outside of training: saved and loaded, acting, and telling the values of their critic."""

import functools
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

from tddelta._plain import number, whole
from tddelta.deep import rollout
from tddelta.deep.agents import AGENTS, Agent
from tddelta.deep.config import NETWORK_SETTINGS, Config, own_network, preset
from tddelta.deep.host import is_gymnasiums_own
from tddelta.deep.rollout import Learned, initial
from tddelta.errors import CheckpointError, CheckpointWarning, ConfigError, ShapeError, setting
from tddelta.runs import Arrays, Run, read_parameters
from tddelta.runs.checkpoints import Pauses
from tddelta.timescales import TimeScales

_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


def checked_pauses(eval_every: Any, checkpoint_every: Any) -> tuple[int | None, float]:
    """Steps between evaluations and seconds between checkpoints, as plain numbers.

    Raises:
        ConfigError: One is out of range.
    """
    steps = None if eval_every is None else whole("eval_every", eval_every, advice="leave it out for no evaluations")
    seconds = number("checkpoint_every", checkpoint_every)
    Pauses(seconds)
    return steps, seconds


def to_arrays(state: Any) -> Arrays:
    """Every leaf of a pytree by its path, as in "learned.parameters.policy.layers.0.weight", random keys among them.

    What safetensors has no type for is kept as bytes, in one more axis.
    """
    return {path_name(path): _plain(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def from_arrays(arrays: Mapping[str, np.ndarray], shapes: Any, place: str) -> Any:
    """The state that `to_arrays` made arrays of.

    Args:
        arrays: The arrays.
        shapes: A state of the same kind, of `jax.ShapeDtypeStruct`.
        place: Where the arrays are from, for the error.

    Raises:
        CheckpointError: An array is missing or has another shape or type: settings, environment or one of the
            packages are not those that the checkpoint was made with.
    """
    names = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}
    if unknown := sorted(set(arrays) - names):
        raise _misfit(place, f"has {unknown[0]}, which this version's state has not")
    restored = functools.partial(_restored, arrays, place)
    return jax.tree_util.tree_map_with_path(restored, shapes)


def path_name(path: Any) -> str:
    """The name of a leaf, as in "learned.parameters.policy.weight", from its path in a pytree."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return array if array.dtype.kind in "biuf" else np.ascontiguousarray(array[..., None]).view(np.uint8)


def _restored(arrays: Mapping[str, np.ndarray], place: str, path: Any, leaf: Any) -> Any:
    if (name := path_name(path)) not in arrays:
        raise _misfit(place, f"lacks {name}")
    array, plain = arrays[name], jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    dtype = np.dtype(plain.dtype)
    if dtype.kind not in "biuf" and array.dtype == np.uint8 and array.shape == (*plain.shape, dtype.itemsize):
        array = np.ascontiguousarray(array).view(dtype)[..., 0]
    if array.shape != plain.shape or array.dtype != dtype:
        raise _misfit(place, f"has {name} as {array.dtype}{array.shape}, where {dtype}{plain.shape} is needed")
    restored = jnp.array(array)  # a copy: the state is handed over to the next update
    if not _is_key(leaf):
        return restored
    generator = next(name for name in _GENERATORS if jax.random.key(0, impl=name).dtype == leaf.dtype)
    return jax.random.wrap_key_data(restored, impl=generator)


def _misfit(place: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{place} {what}: it was made with another environment, other settings or other versions (timing.jsonl names "
        f"them); go on with those, or choose another folder with {setting('out', '')} to start anew"
    )


class Chosen(NamedTuple):
    """Actions of an agent in B environments, (B, …), the same as the environment takes them, and W_z there, (B, Z)."""

    actions: jax.Array
    moves: jax.Array
    deltas: jax.Array


@jax.jit
def choose(config: Config, learned: Learned, observations: jax.Array, key: jax.Array, greedy: Any) -> Chosen:
    """Actions for B observations, (B, *observation), drawn from the policy or its most probable ones."""
    environment = config.environment_object()
    policy, heads = rollout.evaluator(config, learned)(observations)
    drawn = rollout.noise(environment, key, observations.shape[:1])
    action = jnp.where(greedy, rollout.mode(environment, policy), rollout.sample(environment, policy, drawn))
    moves = rollout.to_environment(environment, action)
    return Chosen(action, moves, rollout.components(config, learned, heads))


class Policy:
    """A trained agent with its critic: the settings it was trained with, and its parameters and normalisers."""

    def __init__(self, config: Config, learned: Learned):
        self.config = config
        self.learned = learned

    def __repr__(self) -> str:
        return f"Policy({self.config.agent.name} on {self.config.environment_object().name})"

    @property
    def scales(self) -> TimeScales:
        """The scales of the critic."""
        return self.config.critic_scales

    def act(self, observation: Any, key: jax.Array | None = None) -> np.ndarray:
        """Actions for one observation or a batch of them, (*batch, *action), within the action space.

        Args:
            observation: (*batch, *observation).
            key: Samples from the policy; without it, its most probable action.

        Raises:
            ShapeError: If the observation has another shape than the environment's.
        """
        return self._chosen("moves", observation, jax.random.key(0) if key is None else key, greedy=key is None)

    def components(self, observation: Any) -> np.ndarray:
        """W_z of one observation or a batch of them, (*batch, Z), in units of reward: `compose` makes V_{γ_z} of it.

        Args:
            observation: (*batch, *observation).

        Raises:
            ShapeError: If the observation has another shape than the environment's.
        """
        return self._chosen("deltas", observation, jax.random.key(0), greedy=True)

    def _chosen(self, what: str, observation: Any, key: jax.Array, *, greedy: bool) -> np.ndarray:
        array = np.asarray(observation)
        shape = self.config.environment_object().observation_shape
        split = array.ndim - len(shape)
        if split < 0 or array.shape[split:] != shape:
            raise ShapeError(f"observation must be (*batch, {', '.join(map(str, shape))}); got {array.shape}")
        found = getattr(choose(self.config, self.learned, jnp.asarray(array.reshape(-1, *shape)), key, greedy), what)
        return np.asarray(found).reshape((*array.shape[:split], *found.shape[1:]))


def load(run: "Run | str | os.PathLike[str]", *, environment: Any = None, network: Any = None) -> Policy:
    """The trained agent of a run directory.

    A run directory can come from anybody, and what it names is not executed: an environment or a network that is
    not part of this library must be passed again.

    Args:
        run: The run or its path.
        environment: In place of the stored name; needed for environments of your own.
        network: In place of the stored name; needed for networks of your own.

    Raises:
        ConfigError: If the environment or network has to be passed.
        CheckpointError: If there are no parameters yet, or they don't fit the settings.
    """
    run = run if isinstance(run, Run) else Run(run)
    config = config_of(run.config, environment=environment, network=network)
    path = run.path / "parameters.safetensors"
    if not path.exists():
        raise CheckpointError(f"{run.path} holds no parameters: its run is {run.status['state']}; finish it first")
    stored = read_parameters(path)
    recorded, here = run.config.get("precision", "float32"), str(jnp.result_type(float))
    if recorded != here:
        warnings.warn(
            f"{run.path} was trained in {recorded}, and acts in {here} here, with other numbers: set "
            f"JAX_ENABLE_X64={int(recorded == 'float64')}",
            CheckpointWarning,
            stacklevel=2,
        )

    def restored(place: Any, leaf: Any) -> jax.Array:
        array = stored.get(path_name(place))
        if leaf.shape == () and array is not None and array.size == 1:
            array = array.reshape(())  # the file keeps a number as an array of one
        if array is None or array.shape != leaf.shape:
            got = "nothing" if array is None else array.shape
            raise CheckpointError(
                f"{path}: {path_name(place)} must have shape {leaf.shape}; got {got}: the parameters belong to other "
                "settings"
            )
        return jnp.asarray(array, leaf.dtype)

    with safe_open(path, "numpy") as file:
        config, shapes = learned_at(config, int(file.metadata().get("steps", 0)) // config.batch)
    return Policy(config, jax.tree_util.tree_map_with_path(restored, shapes))


def learned_at(config: Config, updates: int) -> tuple[Config, Any]:
    """Settings after so many updates, by when a ladder may have grown, and shapes of what is learned by then."""

    def made(key: jax.Array) -> Learned:
        stages = config.past_stages(updates)
        return functools.reduce(lambda learned, stage: rollout.grown(stage, learned), stages, initial(config, key))

    return config.at(updates), jax.eval_shape(made, jax.random.key(0))


def config_of(record: dict[str, Any], *, environment: Any = None, network: Any = None) -> Config:
    """The settings in a `config.json`, without executing anything that it names.

    Raises:
        ConfigError: If the environment or network is somebody's own and was not passed, or the run is another
            library's.
    """
    settings = dict(record["settings"])
    if "environment" not in settings:
        library = record["agent"].get("library", "another library")
        raise ConfigError(
            f"{record['agent']['name']} was trained by {library}, whose networks are not rebuilt here: load the model "
            "that was saved there, and evaluate it there"
        )
    stored = settings.pop("environment")
    settings.pop("agent")
    # A dotted name would lead from our modules to those that they import.
    ours = re.fullmatch(r"tddelta\.deep\.probes:\w+", stored) or is_gymnasiums_own(stored)
    for what, given, name in (("environment", environment, stored), ("network", network, settings["network"])):
        if given is None and ":" in name and not (what == "environment" and ours):
            raise ConfigError(
                f"the run's {what} {name!r} is not part of tddelta: pass {setting(what, '')} to say what it is"
            )
    if network is not None:
        settings["network"] = network
    # The record is complete; `preset` refuses what has no effect.
    unused = NETWORK_SETTINGS if own_network(settings["network"]) else ()
    for name in (*unused, *([] if settings["normalize_rewards"] else ["reward_discount"])):
        settings.pop(name, None)
    described = record["agent"]
    agent = AGENTS.get(described["name"])
    if agent is None or agent.to_dict() != described:
        # One of the user's own: its targets and advantages, which only matter in training, are left out.
        agent = Agent(described["name"], heads=described["heads"], basis=described["basis"], rule=described["rule"])
    return preset(stored if environment is None else environment, agent, **settings)
