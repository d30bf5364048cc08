"""PPO of rsl_rl with a TD(λ, Δ) critic. Its loops, losses and networks stay as they are."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any, Literal

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict

from tddelta._arrays import check_form
from tddelta._plain import is_number, plain
from tddelta.adapters import Ladder, lent
from tddelta.decomposition import explained_variance
from tddelta.errors import CheckpointError, ConfigError, DataError, ShapeError
from tddelta.targets import Form, advantages, lambda_targets
from tddelta.timescales import TimeScales

TimeOuts = Literal["bootstrap", "fold"]
"""Effect of a time-out, see `DeltaPPO`."""

FINAL = ("final_obs", "final_observation")
"""Names in `extras` under which environments hand out the observation before a reset, as in Gymnasium."""

_IN_NUMPY = ("cpu",)
"""Kinds of devices whose returns come from NumPy: there a loop over time costs half as much, in the same memory."""


class DeltaPPO(PPO):
    """PPO with a TD(λ, Δ) critic: `rsl_rl.algorithms.PPO` with some arguments more.

    In a configuration: `algorithm.class_name = "tddelta.adapters.rsl_rl:DeltaPPO"`, where the critic gets its outputs,
    one per time scale, by itself. The policy learns from the ordinary advantages of V = Σ W with `gamma` and `lam`. The
    value loss is `value_loss_coef` · Σ_z mean((W_z − G^z)²); rsl_rl's has no ½, and this has none.

    rsl_rl adds γ V(s_t) to the reward of a time-out: right for one discount, wrong for all others. Here rewards stay as
    they came, and each component is bootstrapped where an episode was cut: from W at the final observation, if the
    environment hands it out as `extras["final_obs"]`, else from W(s_t), the observation before the step, as rsl_rl
    does with V, since simulators reset before anybody sees s_{t+1}.

    With one scale and `time_outs="fold"` parameters are those of `PPO`, bit by bit.

    Args:
        actor: As in rsl_rl, like `*args` and `**settings`.
        critic: As in rsl_rl, with one output per time scale.
        storage: As in rsl_rl; its `values` and `returns` become those of components, (T, N, Z).
        scales: The time scales, see `tddelta.TimeScales.of`: None is the halving ladder of `gamma`.
        form: Of the critic's λ-return, see `tddelta.lambda_targets`. "difference" makes the targets add up to rsl_rl's
            return whatever the trace decays; "bootstrap" is the paper's.
        time_outs: "bootstrap", as above; or "fold", rsl_rl's own rule, for one scale only.
        value_clip: How far a component may move from its old value in the value loss, in deviations of its targets over
            the rollout, > 0; None does not clip. Several scales ignore `use_clipped_value_loss`, whose one range,
            `clip_param` in units of the reward, holds components of long horizons back and does nothing to short ones.

    Attributes:
        scales: The time scales, for `gamma` and `lam` as they are now.

    Raises:
        ConfigError: Scales or a setting are no such thing, or `gamma` is not the largest discount.

    Reference:
        Romoff et al. 2019, section "TD(λ, Δ) with GAE".
    """

    def __init__(
        self,
        actor: Any,
        critic: Any,
        storage: Any,
        *args: Any,
        scales: Any = None,
        form: Form = "difference",
        time_outs: TimeOuts = "bootstrap",
        value_clip: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(actor, critic, storage, *args, **settings)
        self._ladder, self.form, self.time_outs, self.value_clip = Ladder(scales), form, time_outs, value_clip
        check_form(form)
        if time_outs not in ("bootstrap", "fold"):
            raise ConfigError(f"time_outs must be 'bootstrap' or 'fold'; got {time_outs!r}: pass one of the two")
        if time_outs == "fold" and len(self.scales) > 1:
            raise ConfigError(
                f"time_outs='fold' adds γV to the reward, which is right for one discount; got {len(self.scales)} "
                "scales: leave it out, or pass scales='single'"
            )
        clip = plain(value_clip)
        if not (clip is None or (is_number(clip) and 0 < clip < math.inf)):
            raise ConfigError(
                f"value_clip must be a finite number above 0, or None; got {value_clip!r}: 0.2 lets a component move "
                "by a fifth of the deviation of its targets"
            )
        values: torch.Tensor = storage.values
        shape = (*values.shape[:-1], len(self.scales))
        storage.values, storage.returns, self._finals = (values.new_zeros(shape) for _ in range(3))
        self._truncated = torch.zeros(shape[:-1], dtype=torch.bool, device=values.device)
        self._batch: Any = None

    @property
    def scales(self) -> TimeScales:
        """The time scales, for `gamma` and `lam` as they are now."""
        return self._ladder.at(self.gamma, self.lam)

    @staticmethod
    def construct_algorithm(obs: Any, env: Any, cfg: dict[str, Any], device: str) -> "DeltaPPO":
        """Make the algorithm and its networks from a configuration, as in rsl_rl; the critic gets one output per scale.

        Raises:
            ConfigError: The configuration is that of an older rsl_rl, or as of the constructor.
        """
        _check_config(cfg)
        given, defaults = cfg["algorithm"], signature(PPO).parameters
        gamma, lam = (given.get(name, defaults[name].default) for name in ("gamma", "lam"))
        outputs = len(Ladder(given.get("scales")).at(gamma, lam))
        kind = resolve_callable(cfg["critic"]["class_name"])
        changed = {**cfg, "critic": {**cfg["critic"], "class_name": partial(_with_outputs, kind, outputs)}}
        made: DeltaPPO = PPO.construct_algorithm(obs, env, changed, device)
        cfg["obs_groups"] = changed["obs_groups"]  # resolved, which the runner's copy shows
        return made

    def act(self, obs: Any) -> torch.Tensor:
        """Sample actions, and keep W(s_t), (N, Z), where rsl_rl keeps V.

        Raises:
            ConfigError: The critic has another number of outputs than there are scales.
        """
        actions: torch.Tensor = super().act(obs)
        got, wanted = tuple(self.transition.values.shape), tuple(self.storage.values.shape[1:])
        if got != wanted:  # of one value rsl_rl would make several
            raise ConfigError(
                f"the critic must have one output for each of the {wanted[-1]} scales, {wanted}; got values of shape "
                f"{got}: pass output_dim={wanted[-1]} to it, or other scales"
            )
        return actions

    def process_env_step(self, obs: Any, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]) -> None:
        """Record a step, as in rsl_rl, but for time-outs.

        Raises:
            ShapeError: `time_outs` of the environment are not one flag per environment.
            DataError: The final observations are not those of all environments, or not those of the critic.
        """
        if self.time_outs == "bootstrap":
            step, final = self.storage.step, next((extras[name] for name in FINAL if name in extras), None)
            cut = self._truncated[step].copy_(truncated(dones, extras))
            self._finals[step].copy_(self.transition.values)
            if final is not None and bool(cut.any()):
                self._finals[step][cut] = self._final_components(final, cut)
            extras = {name: extra for name, extra in extras.items() if name != "time_outs"}
        super().process_env_step(obs, rewards, dones, extras)

    def compute_returns(self, obs: Any) -> None:
        """Compute the λ-returns of all components, (T, N, Z), and the advantages of V, (T, N, 1)."""
        store, scales, decay = self.storage, self.scales, self.gamma * self.lam
        if self.time_outs == "fold" and scales.trace_decays == (decay,):
            super().compute_returns(obs)
            return
        following = torch.cat([store.values[1:], self.predict_components(obs)[None]])
        following = torch.where(self._truncated[..., None], self._finals, following)
        arrays = [store.rewards[..., 0], store.values, following, store.dones[..., 0] != 0, self._truncated]
        if store.values.device.type in _IN_NUMPY:
            arrays = [array.numpy() for array in arrays]
        *steps, ended, cut = arrays
        flags: dict[str, Any] = {"terminated": ended & ~cut, "truncated": cut, "scales": scales}
        store.returns.copy_(torch.as_tensor(lambda_targets(*steps, **flags, form=self.form)))
        found = torch.as_tensor(advantages(*steps, **flags, trace_decay=decay)).unsqueeze(-1)
        if not self.normalize_advantage_per_mini_batch:  # as rsl_rl does it
            found = (found - found.mean()) / (found.std() + 1e-8)
        store.advantages = found

    def update(self) -> dict[str, float]:
        """Learn from the rollout by rsl_rl's own `update`.

        Returns:
            Its numbers, where `value` is the sum over components, and for every discount `value_loss/gamma=…`, the mean
            of (W_z − G^z)² over minibatches; `explained_variance/gamma=…`, over the rollout; `value_mean/gamma=…`.
        """
        scales, store, losses = self.scales, self.storage, list[torch.Tensor]()
        count, plain_clip = len(scales), len(scales) == 1 and self.value_clip is None
        ranges = None if self.value_clip is None else self.value_clip * store.returns.flatten(0, 1).std(0, correction=0)
        generators = ("mini_batch_generator", "recurrent_mini_batch_generator")
        hook = self.critic.register_forward_hook(partial(self._seen, losses, ranges))
        try:
            with (
                # rsl_rl takes the mean over minibatch and components, and the sum over components is asked for.
                lent(self, value_loss_coef=count * self.value_loss_coef),
                lent(self, use_clipped_value_loss=plain_clip and self.use_clipped_value_loss),
                lent(store, **{name: partial(self._batches, getattr(store, name)) for name in generators}),
            ):
                found: dict[str, float] = super().update()
        finally:
            hook.remove()
            self._batch = None
        found["value"] *= count
        numbers = {
            "value_loss": torch.stack(losses).mean(0),
            "explained_variance": explained_variance(store.values.flatten(0, 1), store.returns.flatten(0, 1)),
            "value_mean": store.values.mean((0, 1)),
        }
        for name, several in numbers.items():
            found |= {f"{name}/gamma={label}": one for label, one in zip(scales.labels, several.tolist(), strict=True)}
        return found

    def save(self) -> dict[str, Any]:
        """The state that rsl_rl saves, and the time scales."""
        return {**super().save(), "scales": self.scales.to_dict()}

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, Any] | None, strict: bool) -> bool:
        """Load what was saved, as in rsl_rl.

        Raises:
            CheckpointError: The critic in the file has other discounts, or is that of a PPO without components.
        """
        if load_cfg is None or load_cfg.get("critic"):
            stored = loaded_dict.get("scales")
            known = None if stored is None else tuple(stored["gammas"])
            if known != self.scales.gammas and (known is not None or len(self.scales) > 1):
                raise CheckpointError(
                    f"the file's critic must have the discounts {self.scales.gammas}; got "
                    f"{'one of a PPO without components' if known is None else known}: pass "
                    f"{'scales=' + repr(known) + ', or ' if known else ''}load_cfg={{'actor': True}}, which loads the "
                    "policy alone"
                )
        return bool(super().load(loaded_dict, load_cfg, strict))

    def predict_components(self, obs: Any) -> torch.Tensor:
        """W(s), (N, Z), smallest discount first; the memory of a recurrent critic counts, and stays as it is."""
        memory = self.critic.get_hidden_state()
        with torch.no_grad():
            components: torch.Tensor = self.critic(obs)
        self.critic.reset(hidden_state=memory)
        return components

    def _final_components(self, final: Any, cut: torch.Tensor) -> torch.Tensor:
        """W at the final observations of the environments that were cut, (n, Z)."""
        if isinstance(final, Mapping) and not hasattr(final, "batch_size"):  # as Isaac Lab hands it out
            final = TensorDict(dict(final)).auto_batch_size_(1)
        if not hasattr(final, "batch_size") or tuple(final.batch_size) != tuple(cut.shape):
            got = tuple(final.batch_size) if hasattr(final, "batch_size") else type(final).__name__
            raise DataError(
                f"extras['{FINAL[0]}'] must be a TensorDict or dict like the observations, of batch size "
                f"{tuple(cut.shape)}; got {got}: hand out one row per environment, where only those that were cut "
                "count, or drop the key, and W(s_t) stands in"
            )
        names = ("obs_groups", "obs_groups_2d")  # the second one has pictures
        wanted = [group for name in names for group in getattr(self._raw_critic, name, ())]
        if not set(wanted) <= set(final.keys()):
            raise DataError(
                f"extras['{FINAL[0]}'] must have the groups of the critic, {', '.join(wanted)}; got "
                f"{', '.join(map(str, final.keys()))}: name them as the observations do, or drop the key, and W(s_t) "
                "stands in"
            )
        for name in wanted:
            both = (observations[name] for observations in (self.transition.observations, final))
            like, got = (f"{one.dtype} of shape {tuple(one.shape)}" for one in both)
            if got != like:
                raise DataError(
                    f"extras['{FINAL[0]}']['{name}'] must be {like}, as the observations are; got {got}: hand it out "
                    "like them, or drop the key, and W(s_t) stands in"
                )
        final = final.to(self.device)
        # A recurrent critic has a memory per environment, so that all are asked.
        return self.predict_components(final)[cut] if self.critic.is_recurrent else self.predict_components(final[cut])

    def _batches(self, generate: Callable[..., Iterator[Any]], *given: Any) -> Iterator[Any]:
        """The minibatches of the storage, the one that is learned from kept in sight."""
        for self._batch in generate(*given):
            yield self._batch

    def _seen(self, losses: list[torch.Tensor], ranges: Any, critic: Any, given: Any, components: torch.Tensor) -> Any:
        """Note the losses of the components of a minibatch, (…, Z), and clip their change if `ranges` (Z,) says so.

        The loss of rsl_rl squares what is handed out: where the clipped value has the larger error, that is it.
        """
        targets, old = self._batch.returns, self._batch.values
        losses.append((components.detach() - targets).square().flatten(0, -2).mean(0))
        if ranges is None:
            return None
        clipped = old + (components - old).clamp(-ranges, ranges)
        return torch.where((clipped - targets).square() > (components - targets).square(), clipped, components)


def truncated(dones: torch.Tensor, extras: Mapping[str, Any]) -> torch.Tensor:
    """Flags, (N,), of environments cut by a time-out: `time_outs` of the extras, where `dones` says so as well."""
    flags = extras.get("time_outs")
    if flags is None:
        return torch.zeros_like(dones, dtype=torch.bool)
    if not isinstance(flags, torch.Tensor) or flags.shape != dones.shape:
        got = tuple(flags.shape) if isinstance(flags, torch.Tensor) else type(flags).__name__
        raise ShapeError(
            f"extras['time_outs'] must be a tensor of shape {tuple(dones.shape)}, one flag per environment; got {got}: "
            "nothing is broadcast"
        )
    return (flags.to(dones.device) != 0) & (dones != 0)


def _with_outputs(kind: Callable[..., Any], outputs: int, *given: Any, **settings: Any) -> Any:
    """A critic of so many outputs in place of one: the last of the arguments that rsl_rl passes without a name."""
    return kind(*given[:-1], outputs, **settings)


def _check_config(cfg: Mapping[str, Any]) -> None:
    """ConfigError unless a configuration names what this version of rsl_rl reads."""
    wanted = ("algorithm", "actor", "critic", "obs_groups", "num_steps_per_env")
    missing = [name for name in wanted if name not in cfg]
    if missing:
        advice = f" among {', '.join(map(str, cfg))}: add them, see rsl_rl's guide to its configuration"
        if "policy" in cfg:
            advice = ": 'policy' is how rsl_rl before version 4 named actor and critic, split it in two"
        raise ConfigError(f"the configuration must have {', '.join(wanted)}; got none of {', '.join(missing)}{advice}")
