"""The base of all algorithms: time scales among the settings, in save files, in networks and in conversions."""

import json
import math
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import wraps
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.save_util import open_path
from torch import nn

from tddelta.adapters import Ladder, lent
from tddelta.adapters.sb3.answers import LIBRARIES, StepChecker, watch
from tddelta.decomposition import explained_variance
from tddelta.errors import CheckpointError, ConfigError
from tddelta.timescales import TimeScales


class Learning:
    """One call of `train`: weighs the components' errors by `weights` (Z,), and watches losses and gradients."""

    def __init__(self, scales: TimeScales, weights: th.Tensor | None) -> None:
        self.scales = scales
        self.awaits_gradients = False
        # The error is what is squared, so its two sides carry the root of the weight.
        self._roots = None if weights is None else weights.sqrt()
        self._targets: th.Tensor | None = None
        self._losses: list[th.Tensor] = []
        self._norms: list[th.Tensor] = []

    def samples(self, targets: th.Tensor, old: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Targets and old components of a minibatch, (B, Z), as the loss takes them, (B·Z,)."""
        self._targets = targets
        return self._weighed(targets).flatten(), self._weighed(old).flatten()

    def minibatch(self, components: th.Tensor) -> th.Tensor:
        """The components of that minibatch, (B, Z), as the loss takes them."""
        if self._targets is not None:
            errors = components.detach() - self._targets
            self._losses.append(errors.square().mean(0))
            self._targets, self.awaits_gradients = None, True
        return self._weighed(components)

    def gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Take the norm of the gradients, before they are clipped."""
        self.awaits_gradients = False
        found = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._norms.append(th.nn.utils.get_total_norm(found))

    def log(self, logger: Any, components: np.ndarray, returns: np.ndarray) -> None:
        """Record what was seen, and how the components (N, Z) of the rollout fit their returns (N, Z)."""
        if self._roots is not None and (self._targets is not None or not self._losses):
            raise ConfigError(
                "component_weights weigh what evaluate_actions of DeltaActorCriticPolicy and get of DeltaRolloutBuffer "
                "hand out, and one of the two was replaced: call super() there, or leave component_weights out"
            )
        if self._norms:
            logger.record("train/gradient_norm", float(th.stack(self._norms).mean()))
        losses = th.stack(self._losses).mean(0).tolist() if self._losses else []
        log_components(logger, self.scales, losses, components.mean(0).tolist(), components, returns)

    def _weighed(self, components: th.Tensor) -> th.Tensor:
        return components if self._roots is None else components * self._roots


def asked(model: Any, observation: Any, ask: Callable[[Any, bool], th.Tensor]) -> np.ndarray:
    """Components that a function of tensors gives of observations, or of one, then without the batch axis."""
    model.policy.set_training_mode(False)
    tensors, several = model.policy.obs_to_tensor(observation)
    with th.no_grad():
        array: np.ndarray = whole(ask(tensors, several)).cpu().numpy()
    return array if several else array[0]


def whole(components: th.Tensor) -> th.Tensor:
    """Components in single precision at least: sums in half precision are no sums."""
    return components.to(th.promote_types(components.dtype, th.float32))


def log_components(
    logger: Any,
    scales: TimeScales,
    losses: Sequence[float],
    means: Sequence[float],
    components: np.ndarray,
    targets: np.ndarray,
) -> None:
    """Record error, explained variance of targets by components, both (N, Z), and mean by discount.

    Not on the console: SB3's table would grow by three lines per component.
    """
    explained = explained_variance(components, targets).tolist()
    for name, values in (("value_loss", losses), ("explained_variance", explained), ("value_mean", means)):
        for label, value in zip(scales.labels, values, strict=False):
            logger.record(f"{name}/gamma={label}", value, exclude="stdout")


_Model = TypeVar("_Model", bound="DeltaModel")
_Plain = TypeVar("_Plain", bound=BaseAlgorithm)

# SB3's files do not name their algorithm: the first whose setting is there.
_TELLING = {"PPO": "clip_range", "A2C": "gae_lambda", "DQN": "exploration_rate", "SAC": "target_entropy"}


class OfTheClass:
    """A class method that warns when it is called on an instance, which it leaves as it is."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = self._method.__get__(instance, owner)
        if instance is None:
            return bound

        @wraps(bound)
        def warned(*args: Any, **kwargs: Any) -> Any:
            instead = next(name for name in ("set_parameters", "load_state_dict") if hasattr(instance, name))
            warnings.warn(
                f"load makes a new {owner.__name__} and leaves the one that it is called on as it is: keep what "
                f"{owner.__name__}.load(…) returns, or use {instead}(…) to load networks into this one",
                UserWarning,
                stacklevel=2,
            )
            return bound(*args, **kwargs)

        return warned


class OfComponents(BaseModel):
    """Mixed into a network of SB3: a saved one knows how many components it has."""

    n_components: int
    load: Any = OfTheClass(vars(BaseModel)["load"])

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "n_components": self.n_components}


class DeltaModel(BaseAlgorithm):
    """Mixed into an algorithm of SB3, before its class.

    Args:
        policy: As in SB3, like `env`, `*args` and `**kwargs`.
        scales: The time scales, see `tddelta.TimeScales.of`: None is the halving ladder of `gamma`.
        component_weights: Weight ≥ 0 of every component in the loss of the critic; None weighs all by 1.

    Raises:
        ConfigError: Scales or weights are no such thing or do not fit, `gamma` is not the largest discount, or
            another setting cannot be used with components.
    """

    plain: ClassVar[type[Any]]
    """The algorithm of SB3."""

    own_callbacks: ClassVar[tuple[type[BaseCallback], ...]] = (StepChecker,)
    """Called after those of the user."""

    gamma: float

    def __init__(
        self,
        policy: Any,
        env: Any,
        *args: Any,
        scales: Any = None,
        component_weights: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        # Before SB3's constructor, which makes the networks.
        self._ladder = Ladder(scales)
        # What a save file holds: names and numbers, whatever becomes of our classes.
        self._scales = self._ladder.given
        self.component_weights = component_weights
        super().__init__(policy, env, *args, **kwargs)

    def _settle(self) -> None:
        """Check what was given; again after loading, where settings may have been replaced."""
        if _starts(self.action_space):
            raise ConfigError(
                f"the actions must count from 0; got {self.action_space}: Stable-Baselines3 chooses 0, 1, … whatever "
                "the start; put gymnasium.wrappers.TransformAction around the environment, which adds the start"
            )
        if _starts(self.observation_space):
            raise ConfigError(
                f"whole-numbered observations must count from 0; got {self.observation_space}: Stable-Baselines3 "
                "encodes them as 0, 1, …; put gymnasium.wrappers.TransformObservation around the environment, which "
                "takes the start off"
            )
        # Where `load(…, scales=…)` puts it.
        given = self.__dict__.pop("scales", None)
        self._ladder = Ladder(self._scales if given is None else given)
        self._scales = self._ladder.given
        self.component_weights = _weights(self.component_weights, self.scales)
        self.policy_class = self._delta_policy(self.policy_class)

    def _setup_model(self) -> None:
        self._settle()
        algorithm: Any = super()  # mixed in before one, whose networks these are
        # Only while the policy is made: what the user gave is what `load` compares and the save file shows.
        with lent(self, policy_kwargs={**self.policy_kwargs, "n_components": len(self.scales)}):
            algorithm._setup_model()

    @property
    def scales(self) -> TimeScales:
        """The time scales, for `gamma` and λ as they are now."""
        return self._ladder.at(self.gamma, self._lam())

    def _lam(self) -> float | None:
        return None

    @classmethod
    def _policies(cls) -> dict[type[Any], type[Any]]:
        """SB3's policy classes by ours, which have the same names in both algorithms."""
        plain = cls.plain.policy_aliases
        return {ours: plain[name] for name, ours in cls.policy_aliases.items() if name in plain}

    def _delta_policy(self, policy: Any) -> Any:
        ours = self._policies()
        used = next((mine for mine, plain in ours.items() if policy is plain), policy)
        if isinstance(used, type) and issubclass(used, tuple(ours)):
            return used
        raise ConfigError(
            f"policy must have a critic of several components; got {policy!r}: derive it from one of "
            f"{', '.join(mine.__name__ for mine in ours)} instead of SB3's class"
        )

    @OfTheClass
    @classmethod
    def load(cls, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a model of what `save` wrote, as in SB3; `scales` and `form` are settings like others.

        Raises:
            ConfigError: `path` is no path or open file, or the file holds a model of another class.
            CheckpointError: Its critic does not fit the scales and settings that were given.
        """
        _check_file(cls, path)
        objects = kwargs.get("custom_objects") or {}
        if "scales" in objects:  # which have another name in the file
            kwargs.setdefault("scales", objects["scales"])
        return super().load(path, *args, **kwargs)

    def set_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Load networks and optimisers, as in SB3.

        Raises:
            CheckpointError: They are of a critic with other shapes.
        """
        try:
            super().set_parameters(*args, **kwargs)
        except RuntimeError as error:
            if not re.search(r"size mismatch for (value_net|q_net|critic)", str(error)):
                raise
            raise CheckpointError(
                f"the parameters must fit the networks of this model, whose critic has {len(self.scales)} components "
                f"({', '.join(self.scales.labels)}); got others ({' '.join(str(error).split())}): load them with the "
                "scales, gamma and policy_kwargs of the model that they are from, or convert a plain model by "
                "from_ppo, from_a2c, from_dqn or from_sac"
            ) from error

    def learn(self: _Model, *args: Any, **kwargs: Any) -> _Model:
        """Train as in SB3; the folder of TensorBoard goes by the name of this class, not of SB3's.

        An exception, which SB3's callbacks do not see, is told to those with a method `on_training_error`.
        """
        if len(args) < 4:  # tb_log_name is the fourth
            kwargs.setdefault("tb_log_name", type(self).__name__)
        algorithm: Any = super()
        try:
            algorithm.learn(*args, **kwargs)
        except BaseException as error:
            _tell(kwargs.get("callback", args[1] if len(args) > 1 else None), error)
            raise
        return self

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        if self.env is not None:  # SB3 says it
            watch(self.env)
        normaliser = self._vec_normalize_env
        if normaliser is not None and normaliser.norm_reward and not math.isclose(normaliser.gamma, self.gamma):
            warnings.warn(
                f"VecNormalize divides rewards by the deviation of returns with gamma={normaliser.gamma}, and the "
                f"largest discount is {self.gamma}: pass gamma={self.gamma} to VecNormalize",
                UserWarning,
                stacklevel=3,
            )
        return super()._setup_learn(*args, **kwargs)

    def _init_callback(self, callback: Any, progress_bar: bool = False) -> BaseCallback:
        own = [kind() for kind in self.own_callbacks]
        for one in own:
            one.init_callback(self)
        callbacks = CallbackList([super()._init_callback(callback, progress_bar), *own])
        callbacks.model = self
        return callbacks

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_ladder"]

    @property
    def weights(self) -> th.Tensor | None:
        """The weights of the components, (Z,), as they are now."""
        weights = _weights(self.component_weights, self.scales)
        return None if weights is None else th.tensor(weights, dtype=th.float32, device=self.device)

    @classmethod
    def _from_plain(cls: type[_Model], model: Any, **own: Any) -> _Model:
        """A model with policy and V of one of SB3's, and settings of its own."""
        name = cls.plain.__name__
        if isinstance(model, DeltaModel):
            raise ConfigError(
                f"model must be a plain {name}; got a {type(model).__name__}, which has components already: to change "
                f"its scales, convert it by to_{name.lower()}() first"
            )
        if not isinstance(model, cls.plain):
            raise ConfigError(f"model must be of the class {name}; got {model!r:.80}: a file is read by {name}.load(…)")
        made: _Model = _copied(cls, model, {plain: ours for ours, plain in cls._policies().items()}, own)
        shares = th.tensor(_shares(made.scales), dtype=th.float32, device=made.device)
        _take_over(made, model, lambda head: (shares.reshape(-1, *[1] * head.ndim) * head).flatten(0, 1))
        return made

    def _to_plain(self, kind: type[_Plain]) -> _Plain:
        """One of SB3's models with the same policy and V."""
        made: _Plain = _copied(kind, self, self._policies(), {})
        _take_over(made, self, lambda head: head.reshape(len(self.scales), -1, *head.shape[1:]).sum(0))
        return made


def _shares(scales: TimeScales) -> np.ndarray:
    """The share of V that each component has where rewards are constant: (h_z − h_{z−1}) / h_Z, (Z,)."""
    horizons = np.array(scales.horizons)
    if np.isinf(horizons[-1]):
        return np.asarray(np.eye(len(horizons))[-1])
    return np.asarray(np.diff(horizons, prepend=0) / horizons[-1])


# What belongs to one of the two kinds, or is made anew; all other attributes are settings and counters.
_OWN = ("policy", "rollout_buffer", "rollout_buffer_class", "_ladder", "_scales", "component_weights", "form")


def _copied(kind: type[Any], model: Any, policies: Mapping[type[Any], type[Any]], own: dict[str, Any]) -> Any:
    """A model of the kind with the settings, counters and environment of another."""
    if model.policy_class not in policies:
        raise ConfigError(
            f"only the policies {', '.join(known.__name__ for known in policies)} can be converted; got "
            f"{model.policy_class.__name__}: for a class of your own copy the state_dict, where only the last "
            "layer of the critic differs"
        )
    buffer = getattr(model, "rollout_buffer_class", None)
    if buffer is not None and not buffer.__module__.startswith(LIBRARIES):
        raise ConfigError(
            f"a rollout buffer of your own is not converted; got {buffer.__name__}: set model.rollout_buffer_class = "
            f"None and model.rollout_buffer_kwargs = {{}} to leave it out, and pass {kind.__name__}.load(…, "
            "rollout_buffer_class=…) one of the other kind"
        )
    policy_class = policies[model.policy_class]
    made = kind(policy_class, None, device=model.device, _init_setup_model=False)
    kept = {name: value for name, value in model.__dict__.items() if name not in _OWN}
    for name in ("ep_info_buffer", "ep_success_buffer"):  # the one thing that both would change
        kept[name] = copy(kept[name])
    made.__dict__.update({**kept, "policy_class": policy_class, **own})
    # The random numbers of whoever trains meanwhile stay as they were: no seed is set, and none is drawn.
    with lent(made, seed=None), th.random.fork_rng(devices=[]):
        made._setup_model()
    return made


def _take_over(made: Any, model: Any, change: Callable[[th.Tensor], th.Tensor]) -> None:
    """Take over the networks, whose layers of another shape are changed, and SAC's entropy coefficient."""
    shapes = {key: tensor.shape for key, tensor in made.policy.state_dict().items()}
    state = model.policy.state_dict().items()
    made.policy.load_state_dict({key: kept if kept.shape == shapes[key] else change(kept) for key, kept in state})
    for name in ("log_ent_coef", "ent_coef_tensor"):
        if getattr(model, name, None) is not None:
            getattr(made, name).data.copy_(getattr(model, name).data)


def _starts(space: Any) -> bool:
    """Tell whether a space, or one within, counts from another number than 0."""
    if isinstance(space, spaces.Dict):
        return any(map(_starts, space.values()))
    return bool(np.any(getattr(space, "start", 0)))


def _check_file(kind: type[Any], path: Any) -> None:
    """ConfigError unless a file holds a model of this kind, as far as can be told."""
    try:
        file: Any = open_path(path, "r", suffix="zip")
    except TypeError:
        raise ConfigError(
            f"path must name a file that save wrote, or be one, open; got {path!r}: pass its name"
        ) from None
    start = file.tell()
    try:
        with zipfile.ZipFile(file) as archive:
            held = json.loads(archive.read("data"))
    except (zipfile.BadZipFile, KeyError, ValueError):  # SB3 says what is wrong
        return
    finally:
        if file is path:
            file.seek(start)
        else:
            file.close()
    name = next((name for name, setting in _TELLING.items() if setting in held), None)
    ours = "_scales" in held
    if name is None or (ours and any(base.__name__ == f"Delta{name}" for base in kind.__mro__)):
        return
    advice = f"Delta{name}.load(…)" if ours else f"Delta{name}.from_{name.lower()}({name}.load(…))"
    raise ConfigError(
        f"{kind.__name__}.load reads models of its own class; this file holds a {'Delta' if ours else 'plain '}{name}: "
        f"use {advice}"
    )


def _tell(callback: Any, error: BaseException) -> None:
    """Tell a callback, those in a list of several, and those within one, of an exception."""
    if hasattr(callback, "on_training_error"):
        callback.on_training_error(error)
    within = (getattr(callback, name, None) for name in ("callbacks", "callback", "callback_on_new_best"))
    for one in callback if isinstance(callback, list) else within:
        if one is not None:
            _tell(one, error)


def _weights(given: Any, scales: TimeScales) -> list[float] | None:
    if given is None:
        return None
    try:
        weights = [float(weight) for weight in given]
    except (TypeError, ValueError):
        weights = []
    if len(weights) != len(scales) or any(not math.isfinite(weight) or weight < 0 for weight in weights):
        raise ConfigError(
            f"component_weights must be {len(scales)} finite numbers >= 0, one per discount {scales.labels}; "
            f"got {given!r}: pass one for each, or None"
        )
    return weights
