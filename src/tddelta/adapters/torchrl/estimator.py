"""TorchRL's `GAE` for a critic with one output per time scale, such critics, and the settings of their loss."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar, cast

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from tensordict.nn import dispatch, set_skip_existing
from torchrl.modules import ValueOperator
from torchrl.objectives.utils import hold_out_net
from torchrl.objectives.value import GAE, ValueEstimatorBase

from tddelta import timescales
from tddelta._arrays import check_form, check_scales, widened
from tddelta._plain import is_number, plain
from tddelta.adapters import Ladder
from tddelta.decomposition import explained_variance
from tddelta.errors import ConfigError, DataError, ShapeError
from tddelta.targets import Form, advantages, lambda_targets
from tddelta.timescales import TimeScales

DEFAULT_LMBDA = 0.95
"""λ of TorchRL's losses."""

# A critic that was forgotten is not one left out on purpose.
_NOTHING: Final[Any] = object()


def _check_data(data: Any) -> None:
    """DataError unless this is a tensordict."""
    if not is_tensor_collection(data) or isinstance(data, type):
        raise DataError(
            f"the data must be a TensorDict; got {type(data).__name__}: pass what a collector or a rollout returns, "
            "or make one with TensorDict(entries, batch_size)"
        )


def _entry(data: TensorDictBase, key: Any, advice: str = "add it, or name another one with set_keys") -> torch.Tensor:
    """The tensor under a key, nested or not; DataError if there is none."""
    found: torch.Tensor | None = data.get(key, None)
    if found is None:
        raise DataError(
            f"the data has no entry {key!r}; got {sorted(map(str, data.keys(include_nested=True, leaves_only=True)))}: "
            f"{advice}"
        )
    return found


def _of_the_step(data: TensorDictBase, key: Any, deltas: torch.Tensor, *, flag: bool = False) -> torch.Tensor:
    """A reward or a flag from under "next", (*batch,), beside components (*batch, Z)."""
    found = _entry(data, ("next", key))
    wanted, got = (*deltas.shape[:-1], 1), tuple(found.shape)
    if got != wanted:
        advice = "use unsqueeze(-1)" if got == wanted[:-1] else "expand or reduce it, nothing is broadcast"
        raise ShapeError(
            f"('next', {key!r}) must have the shape {wanted} beside components of shape {tuple(deltas.shape)}; "
            f"got {got}: {advice}"
        )
    if flag and found.dtype != torch.bool:
        raise ShapeError(f"('next', {key!r}) must be boolean; got dtype {found.dtype}: cast it, say what it means")
    return found.squeeze(-1)


def _ladder(scales: Any, gamma: Any) -> tuple[Ladder, float]:
    """The ladder that a user named, and its largest discount, which is `gamma` unless `scales` names it."""
    named = Ladder(scales)
    largest = TimeScales.of(named.given).gammas[-1] if gamma is None else timescales.unit_number("gamma", gamma)
    return named, largest


def _check_critic(name: str, critic: Any) -> None:
    """ConfigError unless a critic reads and writes entries of a tensordict."""
    keyed = all(hasattr(critic, attribute) for attribute in ("in_keys", "out_keys"))
    if isinstance(critic, type) or not callable(critic) or not keyed:
        raise ConfigError(
            f"{name} must be a module with in_keys and out_keys; got {critic!r}: "
            'wrap it in ValueOperator(module, in_keys=["observation"])'
        )


def _check_time_dim(time_dim: Any) -> None:
    """ConfigError unless this names an axis, or is None."""
    if time_dim is not None and (isinstance(time_dim, bool) or not hasattr(time_dim, "__index__")):
        raise ConfigError(
            f"time_dim must be the number of a batch axis, or None; got {time_dim!r}: pass, say, -1 for the last one"
        )


_Method = TypeVar("_Method", bound=Callable[..., Any])

# `torch.compile` would unroll the loop over time.
_not_compiled: Callable[[_Method], _Method] = torch.compiler.disable


def _takes_entries(method: _Method) -> _Method:
    """`dispatch`, but with the signature of the method, which documentation tools need, and a check of the data."""
    dispatched: Any = dispatch(method)

    @wraps(method)
    def checked(self: Any, *given: Any, **settings: Any) -> Any:
        first = given[0] if given else settings.get("tensordict", _NOTHING)
        if first is not _NOTHING and not isinstance(first, torch.Tensor):  # which is the first of several entries
            _check_data(first)
        return dispatched(self, *given, **settings)

    return cast(_Method, checked)


class _Steps(NamedTuple):
    """Arguments of the target functions, time first; `given` are rewards, W(s_t) and W(s'_t)."""

    given: tuple[Any, Any, Any]
    flags: dict[str, Any]
    axis: int
    valid: Any


class DeltaGAE(ValueEstimatorBase):
    """TorchRL's `GAE` for a critic with one output per time scale.

    Reads W(s_t) and W(s'_t), or computes them with `value_network`, and writes

        advantage     A_t, the ordinary GAE(γ_Z, λ) of V = ΣW                   [*B, T, 1]
        value_target  G^z_t, the λ-returns of all components                    [*B, T, Z]
        state_value   W(s_t), also under "next", if there is a value network    [*B, T, Z]

    Where an episode terminated nothing is bootstrapped; where it is `done` otherwise, the components at the next
    observation are, and the trace is cut. With one scale both outputs are those of `GAE`.

    Args:
        scales: The time scales: a `TimeScales`, a list of discounts or horizons, a name of a ladder or a dict, see
            `tddelta.TimeScales.of`; None is the halving ladder of `gamma`.
        value_network: The critic, a tensordict module such as `ValueOperator`, with one output per scale under the
            key "state_value". None: the components are in the data already, also under "next".
        gamma: γ_Z, in [0, 1]. Needed where `scales` names no discounts; else it must be the largest of them.
        lmbda: λ of the policy's advantage, in [0, 1], and of the critic where `scales` has no trace decays. None
            means that of the scales, or 0.95 if they have none.
        form: Of the λ-return, see `tddelta.lambda_targets`. "bootstrap" is the paper's; with "difference" the targets
            add up to the λ-return of V whatever the trace decays, and errors of the fit grow no more than those
            of a single critic.
        average_gae: Whether to standardise the advantage over the batch.
        time_dim: The time axis among the batch axes. None means the one named "time", else the last.
        auto_reset_env: The observation after a truncation is already that of the next episode, so that W(s_t) stands
            in for W(s'_t) there.
        **settings: `differentiable`, `skip_existing`, `shifted`, `shifted_budget`, `deactivate_vmap`,
            `value_chunk_size`, `num_chunks`, `value_chunk_dim`, `group_key` and `device`, as of `GAE`.

    Attributes:
        scales: The time scales, for `gamma` and `lmbda` as they are now.
        gamma: γ_Z; another one counts from the next call on, or is a ConfigError if the scales cannot follow.
        lmbda: As given; another one counts from the next call on.

    Raises:
        ConfigError: A setting is out of range, `value_network` is missing or no tensordict module, or `gamma` is
            missing or not the largest discount.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.modules import ValueOperator
        >>> critic = ValueOperator(torch.nn.Linear(3, 6), in_keys=["observation"])
        >>> next_step = {"observation": torch.ones(2, 5, 3), "reward": torch.ones(2, 5, 1)}
        >>> next_step |= {name: torch.zeros(2, 5, 1, dtype=torch.bool) for name in ("done", "terminated")}
        >>> data = TensorDict({"observation": torch.ones(2, 5, 3), "next": next_step}, [2, 5])
        >>> tuple(DeltaGAE(gamma=0.99, value_network=critic)(data)["value_target"].shape)
        (2, 5, 6)

    Reference:
        Romoff et al. 2019, section "TD(λ, Δ) with GAE".
    """

    # TorchRL's hook, so that `average_gae` and `group_key` do what they do there.
    _normalize_advantage = GAE._normalize_advantage

    def __init__(
        self,
        *,
        scales: Any = None,
        value_network: Any = _NOTHING,
        gamma: float | None = None,
        lmbda: float | None = None,
        form: Form = "difference",
        average_gae: bool = False,
        time_dim: int | None = None,
        auto_reset_env: bool = False,
        **settings: Any,
    ) -> None:
        if "vectorized" in settings:
            raise ConfigError(
                "vectorized chooses between two routines of GAE, here there is one; "
                f"got vectorized={settings['vectorized']!r}: drop it"
            )
        if value_network is _NOTHING:
            raise ConfigError(
                "value_network is needed, since make_value_estimator passes the loss's critic on to TorchRL's own "
                "estimators only; got none: pass value_network=critic, or None if the data holds the components"
            )
        if value_network is not None:
            _check_critic("value_network", value_network)
        _check_time_dim(time_dim)
        super().__init__(value_network=value_network, **settings)
        check_form(form)
        self.lmbda = None if lmbda is None else timescales.unit_number("lmbda", lmbda)
        self._ladder, self.gamma = _ladder(scales, gamma)
        self._ladder.at(self.gamma, self._lam())
        self.form = form
        self.average_gae = average_gae
        self.time_dim = time_dim
        self.auto_reset_env = auto_reset_env

    @property
    def scales(self) -> TimeScales:
        """The time scales, for `gamma` and `lmbda` as they are now."""
        return self._ladder.at(self.gamma, self._lam())

    def _lam(self) -> float:
        return DEFAULT_LMBDA if self.lmbda is None else self.lmbda

    @_not_compiled
    @_takes_entries
    def forward(
        self,
        tensordict: TensorDictBase,
        *,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
        time_dim: int | None = None,
    ) -> TensorDictBase:
        """Write advantages and targets into the data.

        Args:
            tensordict: The data, of batch size [*B, T], with "reward", "done" and "terminated" of shape [*B, T, 1]
                under "next" and what the value network reads at both places.
            params: Parameters of the value network, for a functional one.
            target_params: Parameters for W(s'_t); None means `params`.
            time_dim: The time axis of this call.

        Returns:
            The same tensordict. Called with entries as keywords: the advantage and the target.

        Raises:
            DataError: The data is no tensordict, an entry is missing, or rewards are already summed over several steps.
            ConfigError: `time_dim` is no number of an axis.
            ShapeError: An entry has the wrong shape or dtype.
        """
        with self._modes():
            steps = self._steps(tensordict, params, target_params, time_dim)
            # As the scales say, unless λ was given for the policy apart from the critic's traces.
            decay = None if self.lmbda is None else self.lmbda * self.scales.gammas[-1]
            advantage = advantages(*steps.given, **steps.flags, scales=self.scales, trace_decay=decay)
            advantage = _batch_first(advantage, steps.axis).unsqueeze(-1)
            if self.average_gae:
                advantage = self._normalize_advantage(advantage, steps.valid, groups=self._group_ids(tensordict))
            tensordict.set(self.tensor_keys.advantage, advantage)
            tensordict.set(self.tensor_keys.value_target, self._targets(steps))
            self._mask_shifted_output(tensordict, steps.valid)
        return tensordict

    @_not_compiled
    def value_estimate(
        self,
        tensordict: TensorDictBase,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
        time_dim: int | None = None,
    ) -> torch.Tensor:
        """Targets G^z_t of all components, [*B, T, Z], without an advantage; arguments and errors as of `forward`."""
        with self._modes():
            return self._targets(self._steps(tensordict, params, target_params, time_dim))

    def component_metrics(self, tensordict: TensorDictBase) -> dict[str, float]:
        """Numbers per component for a logger, under the names that the other adapters use.

        Args:
            tensordict: Data that this estimator has filled.

        Returns:
            For every discount: `value_loss/gamma=…`, the mean of (W_z − G^z)²; `explained_variance/gamma=…`,
            1 − Var(G^z − W_z) / Var(G^z), not a number where G^z does not vary; `value_mean/gamma=…`, the mean of W_z.

        Raises:
            DataError: The data is no tensordict, or has no components or no targets.
        """
        _check_data(tensordict)
        keys = self.tensor_keys
        deltas, targets = (widened(_entry(tensordict, key).detach()) for key in (keys.value, keys.value_target))
        valid = tensordict.get("shifted_valid", None)
        if valid is not None:
            deltas, targets = deltas[valid], targets[valid]
        deltas, targets = (array.reshape(-1, array.shape[-1]) for array in (deltas, targets))
        numbers = {
            "value_loss": (targets.double() - deltas).square().mean(0),
            "explained_variance": explained_variance(deltas, targets),
            "value_mean": deltas.double().mean(0),
        }
        return {
            f"{name}/gamma={label}": value
            for name, values in numbers.items()
            for label, value in zip(self.scales.labels, values.tolist(), strict=True)
        }

    @contextmanager
    def _modes(self) -> Iterator[None]:
        existing = nullcontext() if self.skip_existing is None else set_skip_existing(self.skip_existing)
        with existing, torch.set_grad_enabled(self.differentiable):
            yield

    def _steps(self, data: Any, params: Any, target_params: Any, time_dim: Any) -> _Steps:
        """The data as arguments of the target functions, checked."""
        _check_data(data)
        keys = self.tensor_keys
        axis = self._time_axis(data, time_dim)
        lengths = data.get(keys.steps_to_next_obs, None)
        if lengths is not None and bool((lengths != 1).any()):  # how many rewards a multi-step transform has summed
            raise DataError(
                f"rewards must be those of single steps; got {keys.steps_to_next_obs!r} up to {int(lengths.max())}: "
                "drop the multi-step transform, which sums rewards with one discount and so spoils them for all others"
            )
        for key in (keys.reward, keys.done):
            _entry(data, ("next", key))
        if self.value_network is not None:
            deltas, following, valid = self._computed(data, params, target_params)
            if valid is not None:
                data.set("shifted_valid", valid)
        else:
            deltas, following = _entry(data, keys.value), _entry(data, ("next", keys.value))
        # Also of an earlier call: steps that did not fit stay out.
        valid = data.get("shifted_valid", None)
        data = self._prepare_shifted_tensordict(data, valid, axis)

        number = len(self.scales)
        for key, array in ((keys.value, deltas), (("next", keys.value), following)):
            if array.ndim <= data.ndim or array.shape[-1] != number:
                raise ShapeError(
                    f"{key!r} must have the shape of the batch, {tuple(data.shape)}, and one entry for each of the "
                    f"{number} scales; got {tuple(array.shape)}: give the critic's last layer out_features={number}, "
                    "or pass other scales"
                )
        rewards = _of_the_step(data, keys.reward, deltas)
        done = _of_the_step(data, keys.done, deltas, flag=True)
        absent = data.get(("next", keys.terminated), None) is None
        terminated = done if absent else _of_the_step(data, keys.terminated, deltas, flag=True)
        if self.auto_reset_env:
            following = torch.where((done & ~terminated).unsqueeze(-1), deltas, following)
        arrays = [array.movedim(axis, 0) for array in (rewards, deltas, following, terminated, done)]
        halves = (torch.bfloat16, torch.half)
        if not self.differentiable and all(each.device.type == "cpu" and each.dtype not in halves for each in arrays):
            # In NumPy a loop over time costs half as much, in the same memory.
            arrays = [array.detach().numpy() for array in arrays]
        rewards, deltas, following, terminated, done = arrays
        # A step that ends an episode without its termination was cut.
        flags = {"terminated": terminated, "truncated": done & ~terminated}
        return _Steps((rewards, deltas, following), flags, axis, valid)

    def _computed(self, data: TensorDictBase, params: Any, target_params: Any) -> tuple[Any, Any, Any]:
        """W(s_t), W(s'_t) and, if `shifted`, which steps have them; the components also go into the data."""
        for key in () if self.shifted else self.value_network.in_keys:
            # At both places, or already known and so skipped; `shifted` fills in what is missing.
            here, there = (data.get(place, None) is not None for place in (key, ("next", key)))
            if here != there:
                _entry(data, ("next", key) if here else key)
        if self.tensor_keys.value not in self.value_network.out_keys:
            raise ConfigError(
                f"the value network must write {self.tensor_keys.value!r}; got {self.value_network.out_keys}: "
                "name its key with set_keys(value=…)"
            )
        held = nullcontext()
        if params is not None:
            params = params.detach()
            target_params = params if target_params is None else target_params
        elif target_params is None and self.differentiable:
            held = hold_out_net(self.value_network)
        with held:
            computed: tuple[Any, Any, Any] = self._call_value_nets(
                data=data,
                params=params,
                next_params=target_params,
                single_call=self.shifted,
                value_key=self.tensor_keys.value,
                detach_next=True,
                vmap_randomness=self.vmap_randomness,
            )
        return computed

    def _time_axis(self, data: TensorDictBase, time_dim: Any) -> int:
        _check_time_dim(time_dim)
        axis: int = self._get_time_dim(time_dim, data)
        if not 0 <= axis < data.ndim:
            raise ShapeError(
                f"the data needs a time axis among its batch axes; got batch size {tuple(data.shape)} and "
                f"time_dim={time_dim if time_dim is not None else self.time_dim}: it should be (*batch, time)"
            )
        marked = data.names.index("time") if "time" in data.names else data.ndim - 1
        if self.shifted and axis != marked:
            raise ConfigError(
                f"shifted=True goes along axis {marked}, the one named 'time' or the last; got time_dim={axis}: "
                "name that axis, or drop shifted"
            )
        return axis

    def _targets(self, steps: _Steps) -> torch.Tensor:
        targets = lambda_targets(*steps.given, **steps.flags, scales=self.scales, form=self.form)
        return _batch_first(targets, steps.axis)


def _batch_first(array: Any, axis: int) -> torch.Tensor:
    """A result as a tensor of the layout of the data."""
    return torch.as_tensor(array).movedim(0, axis).contiguous()


def loss_settings(scales: Any, coefficient: float = 1.0, *, gamma: float | None = None) -> dict[str, Any]:
    """Settings of a TorchRL loss, with which it takes coefficient · ½ Σ_z (W_z − G^z)², averaged over the batch.

    TorchRL averages over batch and components, and its squared error has no ½: hence half their number. Its own
    default, "smooth_l1", has gradients of at most 1, too little for the components of long horizons.

    Args:
        scales: The time scales, as of `DeltaGAE`.
        coefficient: Weight of the critic's loss beside the policy's, ≥ 0.
        gamma: γ_Z, in [0, 1]. Needed where `scales` names no discounts; else it must be the largest of them.

    Returns:
        `critic_coeff` and `loss_critic_type`, keywords of `ClipPPOLoss`, `KLPENPPOLoss`, `PPOLoss` and `A2CLoss`.
        `ReinforceLoss` has no coefficient: multiply its "loss_value" by this one.

    Raises:
        ConfigError: `scales` names no time scales, `gamma` is missing or not the largest discount, or the coefficient
            is no finite number ≥ 0.

    Example:
        >>> loss_settings("halving", gamma=0.99)
        {'critic_coeff': 3.0, 'loss_critic_type': 'l2'}
    """
    named, gamma = _ladder(scales, gamma)
    number, half = plain(coefficient), len(named.at(gamma, DEFAULT_LMBDA)) / 2
    if not (is_number(number) and 0 <= number < math.inf):
        raise ConfigError(
            f"coefficient must be a finite number of at least 0; got {coefficient!r}: "
            "1 is the sum of half the squared errors"
        )
    return {"critic_coeff": float(number) * half, "loss_critic_type": "l2"}


def delta_critic(
    body: torch.nn.Module, features: int, scales: TimeScales, in_keys: Sequence[Any] = ("observation",)
) -> ValueOperator:
    """A critic of one linear output per time scale, which writes W, (*batch, Z), under "state_value".

    Args:
        body: Module that turns the observations under `in_keys` into features, (*batch, features).
        features: Number of features that the body puts out.
        scales: The time scales; a ConfigError if they are no `TimeScales`.
        in_keys: Keys of the observations.
    """
    check_scales(scales)
    return ValueOperator(torch.nn.Sequential(body, torch.nn.Linear(features, len(scales))), in_keys=list(in_keys))


def predict_components(
    critic: Any, tensordict: TensorDictBase | torch.Tensor, key: Any = "state_value"
) -> torch.Tensor:
    """W(s), what each time scale adds to the value, (*batch, Z); no gradients, and the data stays as it is.

    Args:
        critic: The critic, a tensordict module.
        tensordict: Observations, under the keys that the critic reads; for a critic that reads one key also the plain
            tensor, (*batch, features).
        key: Where the critic writes.

    Raises:
        ConfigError: The critic is no tensordict module.
        DataError: An observation is missing, the data is neither a tensordict nor such a tensor, or the critic writes
            nothing there.
    """
    _check_critic("critic", critic)
    with torch.no_grad(), set_skip_existing(False):
        return _entry(critic(_observations(tensordict, list(critic.in_keys))), key)


def _observations(data: Any, keys: list[Any]) -> Any:
    """The entries that the critic reads, and no others."""
    if isinstance(data, torch.Tensor):
        if len(keys) != 1 or data.ndim == 0:
            raise DataError(
                "a plain tensor must be (*batch, features), for a critic that reads one key; "
                f"got shape {tuple(data.shape)}, and the keys {keys}: pass a TensorDict with these keys"
            )
        return TensorDict({}, data.shape[:-1]).set(keys[0], data)
    if not is_tensor_collection(data) or isinstance(data, type):
        raise DataError(
            f"the observations must be a TensorDict or a tensor; got {type(data).__name__}: "
            f"pass a TensorDict with the keys {keys}, or a tensor (*batch, features) if there is one key"
        )
    for key in keys:
        _entry(data, key, "add it, the critic reads it")
    return data.select(*keys)


def predict_values(critic: Any, tensordict: TensorDictBase | torch.Tensor, key: Any = "state_value") -> torch.Tensor:
    """V(s) = Σ_z W_z(s), (*batch, 1), the value at the largest discount; arguments as of `predict_components`."""
    return predict_components(critic, tensordict, key).sum(-1, keepdim=True)
