"""Environments by name: gymnax's, and others with its interface; for those of Gymnasium and Atari see `host`."""

import dataclasses
import functools
import inspect
from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tddelta._answers import AnswerError, check_number, check_shape, check_values
from tddelta._plain import Pairs, as_whole, blamed, closest, frozen, imported, plain, tidy
from tddelta.deep import atari, host
from tddelta.deep.host import AnyEnvironment, HostEnvironment, gymnax
from tddelta.errors import ConfigError, setting

SHORT_NAMES = {
    "Catch": "Catch-bsuite",
    "DiscountingChain": "DiscountingChain-bsuite",
    "DelayedReward": "tddelta.deep.probes:LongDelay",
}
"""Short names, and what they stand for."""

NAMES: tuple[str, ...] = (*gymnax.registered_envs, *SHORT_NAMES, *atari.GAMES)
"""Every name that needs no module: gymnax's ids, the short names, and Atari games."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Environment(AnyEnvironment):
    """A device environment: it is part of the compiled program.

    Attributes:
        instance: The object with `reset(key, parameters)` and `step(key, state, action, parameters)`.
        parameters: Its parameters, a pytree.
    """

    instance: Any
    parameters: Any

    def reset(self, key: jax.Array) -> tuple[jax.Array, Any]:
        """First observation and state of one environment."""
        observation, state = self.instance.reset(key, self.parameters)
        return observation, state

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, ...]:
        """One transition of one environment; an episode's end resets it.

        Returns:
            observation (after a reset: the first of the next episode), state, reward, terminated, truncated,
            and the final observation: the true successor of this step.
        """
        observation, state, reward, terminated, truncated, info = self.instance.step(
            key, state, action, self.parameters
        )
        reward = jnp.asarray(reward, jnp.float32)
        return observation, state, reward, terminated, truncated, info["final_observation"]

    def to_dict(self) -> dict[str, Any]:
        """Parameters that are plain numbers, for the run's record."""
        fields = getattr(self.parameters, "__dict__", {})
        found = {name: np.asarray(value).tolist() for name, value in fields.items() if np.ndim(value) <= 1}
        return {name: value for name, value in found.items() if np.all(np.isfinite(np.asarray(value, float)))}


def resolve(environment: Any, options: Mapping[str, Any] | None = None) -> Environment | HostEnvironment:
    """The environment of a name, of "package.module:factory", or of an object.

    Args:
        environment: A gymnax id; a short name (Catch, DiscountingChain, DelayedReward); an Atari game (Qbert,
            QbertNoFrameskip-v4, ALE/Qbert-v5); "gym:ID" or "gym:package.module:ID" for Gymnasium;
            "package.module:factory" for a callable that returns a device environment or (environment, parameters), or
            one that `host.from_factory` takes; or a device environment itself, or what `host.from_factory` returned.
        options: Keyword arguments. Those that name a field of the environment's parameters
            (max_steps_in_episode, …) replace it; the others go to the constructor. For Atari see `atari.Protocol`, for
            Gymnasium `host.from_id`.

    Raises:
        ConfigError: If there is no such environment, or it does not have the interface that it must have.
        MissingExtra: If packages of Atari or of Gymnasium are not installed.
    """
    if isinstance(environment, AnyEnvironment):
        return environment  # type: ignore[return-value]
    environment = tidy(environment)
    given = keywords(environment, options or {})
    try:
        return _resolve_once(environment, Pairs(sorted(frozen(given).items())))
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _build(environment, given)


def keywords(environment: Any, given: Any) -> dict[str, Any]:
    """Keyword arguments of an environment as plain values by name; those that are known to be whole numbers as ints."""
    try:
        found = {tidy(name): value for name, value in plain(dict(given)).items()}
    except (TypeError, ValueError):
        found = {"": given}
    if not all(isinstance(name, str) and name for name in found):
        raise ConfigError(f"{setting('environment_kwargs')} must be a dict of names and values; got {given!r:.80}")
    wholes: Container[str] = ()
    if isinstance(environment, str):
        wholes = atari.WHOLE if atari.means(environment) else host.WHOLE if environment.startswith(host.PREFIX) else ()
    return {name: as_whole(value) if name in wholes else value for name, value in found.items()}


@functools.lru_cache(maxsize=64)
def _resolve_once(environment: Any, options: Pairs) -> Environment | HostEnvironment:
    # One object per name, so that programs compiled for it are found again.
    return _build(environment, dict(options))


def _build(environment: Any, options: dict[str, Any]) -> Environment | HostEnvironment:
    name, shown = type(environment).__name__, ""
    if isinstance(environment, str):
        name = environment
        if atari.means(name):
            return atari.from_name(name, options)
        if name.startswith(host.PREFIX):
            return host.from_id(name, options)
        own, factory = ":" in name, _factory(name)
        if own and host.makes_vectors(factory):
            return _of_gymnasium(name, factory, options)
        environment = _made(name, factory, options)
        if own and host.is_of_gymnasium(environment):
            environment.close()
            return _of_gymnasium(name, factory, options)
        shown = f" (its function made {environment!r:.100})" if own else ""
        options = {option: value for option, value in options.items() if option in _parts(environment)[2]}
    instance, parameters, fields = _parts(environment)
    if left := [option for option in options if option not in fields]:
        raise ConfigError(
            f"environment {name} takes no option {', '.join(map(repr, left))}: drop it, or pass a factory that does"
        )
    if options:
        parameters = dataclasses.replace(parameters, **options)
    host.refuse_object(name, instance)
    for method in ("reset", "step", "observation_space", "action_space"):
        if not callable(getattr(instance, method, None)):
            raise ConfigError(
                f"environment {name} has no method {method}{shown}: it must have gymnax 1.0's interface, or be an "
                "environment of Gymnasium that a function makes"
            )
    return _described(name, instance, parameters)


def _described(name: str, instance: Any, parameters: Any) -> Environment:
    """The description of an environment with gymnax's methods, whose answers are checked."""
    _check_step(name, instance, parameters)
    with blamed(f"environment {name} cannot tell its spaces,"):
        observation_space, action_space = instance.observation_space(parameters), instance.action_space(parameters)
    observation = jax.eval_shape(lambda key: instance.reset(key, parameters)[0], jax.random.key(0))
    if not hasattr(observation, "shape"):
        raise ConfigError(f"environment {name} must return one array as observation; got {type(observation).__name__}")
    discrete = hasattr(action_space, "n")
    if not discrete and not (hasattr(action_space, "low") and hasattr(action_space, "high")):
        raise ConfigError(f"environment {name}: actions must be Discrete or Box; got {action_space!r}")
    limit = getattr(parameters, "max_steps_in_episode", None)
    return Environment(
        name=name,
        instance=instance,
        parameters=parameters,
        observation_space=observation_space,
        action_space=action_space,
        observation_shape=tuple(observation.shape),
        storage=_storage(name, observation_space, observation.dtype),
        discrete=discrete,
        time_limit=None if limit is None else int(limit),
    )


def _factory(name: str) -> Any:
    full = SHORT_NAMES.get(name, name)
    if ":" in full:
        return imported(full, "environment")
    if full not in gymnax.registered_envs:
        raise ConfigError(
            f"unknown environment {name!r}: {closest(name, NAMES)} "
            '(python -c "from tddelta.deep.environments import NAMES; print(*NAMES)" lists all; '
            "package.module:factory names one of your own, gym:ID one of Gymnasium)"
        )
    return functools.partial(gymnax.make, full)


def _of_gymnasium(name: str, factory: Any, options: dict[str, Any]) -> HostEnvironment:
    """The environment of somebody's "package.module:factory" that makes those of Gymnasium."""
    _check_call(name, factory, {**({"num_envs": 1} if host.makes_vectors(factory) else {}), **options})
    return host.from_factory(functools.partial(factory, **options), name=name)


def _check_call(name: str, factory: Any, options: dict[str, Any]) -> None:
    if not callable(factory):
        raise ConfigError(
            f"environment {name} must be a function or a class that makes one; got an object, {type(factory).__name__}"
        )
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"environment {name} cannot be made ({error}): {setting('environment_kwargs')} are what its function takes"
        ) from error
    except ValueError:  # some classes written in C have no signature
        return


def _parts(made: Any) -> tuple[Any, Any, set[str]]:
    """Instance, parameters, and the names of the fields of these."""
    instance, parameters = made if isinstance(made, tuple) else (made, getattr(made, "default_params", None))
    described: Any = parameters
    fields = dataclasses.fields(described) if dataclasses.is_dataclass(parameters) else ()
    return instance, parameters, {field.name for field in fields}


def _made(name: str, factory: Any, options: dict[str, Any]) -> Any:
    """Call a factory with the options that are no fields of the parameters of what it makes by default."""
    blame = functools.partial(blamed, f"environment {name} cannot be made,")
    alone, fields = False, set[str]()
    if options:
        with suppress(TypeError), blame(passing=(TypeError,)):  # it may need some of them
            default = factory()
            alone, fields = True, _parts(default)[2]
            if host.is_of_gymnasium(default):
                default.close()
    constructor = {option: value for option, value in options.items() if option not in fields}
    if not alone:
        _check_call(name, factory, constructor)
    try:
        with blame(passing=(TypeError,) if alone else ()):
            return factory(**constructor)
    except TypeError as error:
        known = fields.copy()
        with suppress(TypeError, ValueError):  # some classes written in C have no signature
            arguments = inspect.signature(factory).parameters.values()
            known |= {one.name for one in arguments if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
        raise ConfigError(
            f"environment option not understood: one of {', '.join(map(repr, constructor))} ({error}); "
            f"its parameters are {', '.join(sorted(known)) or 'none'}"
        ) from error


def _check_step(name: str, instance: Any, parameters: Any) -> None:
    # Traced, not run: compiling five steps would take half a second, and what they give is checked while training.
    def one_step(key: jax.Array) -> Any:
        found = instance.reset(key, parameters)
        check_values("reset", found, "(observation, state)", "return both")
        seen, state = found
        return seen, instance.step(key, state, instance.action_space(parameters).sample(key), parameters)

    try:
        with blamed(
            f"environment {name} cannot make a step,",
            advice=": check its options and parameters",
            passing=(AnswerError,),
        ):
            seen, outcome = jax.eval_shape(one_step, jax.random.key(0))
        _check_outcome(seen, outcome)
    except AnswerError as error:
        raise ConfigError(f"environment {name}: {error}") from error


def _check_outcome(first: Any, outcome: Any) -> None:
    """AnswerError unless a step's shapes and types are those of gymnax 1.0; `first` is what `reset` shows."""
    final = 'info["final_observation"]'
    advice = f"return them, with the observation before the reset in {final}"
    if isinstance(outcome, tuple | list) and len(outcome) == 5:
        advice += ", or subclass gymnax 1.0's Environment and write step_env only"
    check_values("step", outcome, "(observation, state, reward, terminated, truncated, info)", advice)
    seen, _, reward, terminated, truncated, info = outcome
    if not isinstance(info, Mapping) or "final_observation" not in info:
        raise AnswerError(f"step must return {final}, the observation before the reset; got {info!r:.60}: add it")
    check_number("reward", reward, "biufV", "reward.sum()")  # V: bfloat16
    check_number("terminated", terminated, "b", "terminated > 0")
    check_number("truncated", truncated, "b", "truncated > 0")
    if hasattr(first, "shape"):
        check_shape("step", first.shape, seen)
        check_shape("step", first.shape, info["final_observation"], "a final_observation")


def _storage(name: str, space: Any, dtype: Any) -> Any:
    # gymnax declares MinAtar's planes and Catch's board as other types than they are: 0 and 1 only.
    if name.endswith("-MinAtar") or jnp.issubdtype(dtype, jnp.bool_) or dtype == jnp.uint8:
        return jnp.uint8
    declared = getattr(space, "dtype", jnp.float32)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    whole = jnp.issubdtype(declared, jnp.integer) or jnp.issubdtype(declared, jnp.bool_)
    if whole and low is not None and high is not None and np.min(low) >= 0 and np.max(high) <= 255:
        return jnp.uint8
    return jnp.float32
