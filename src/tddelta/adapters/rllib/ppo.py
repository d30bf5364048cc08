"""PPO of RLlib with TD(λ, Δ) critics: config, module, learner connector and learner. Its loops stay as they are."""

import math
from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY, LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import VF_LOSS_KEY
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.postprocessing.zero_padding import unpad_data_if_necessary
from ray.rllib.utils.torch_utils import explained_variance

from tddelta import decomposition
from tddelta._arrays import check_form
from tddelta.adapters import Ladder
from tddelta.errors import ConfigError, ShapeError
from tddelta.targets import Form, advantages, lambda_targets
from tddelta.timescales import TimeScales

COMPONENT_TARGETS = "component_targets"
"""Column of a training batch: the λ-returns of all components, (B, Z) or (B, T, Z)."""


class ComponentsAPI(ValueFunctionAPI):
    """Interface that `DeltaPPO` asks of an RLModule: mixed into one of your own, before `TorchRLModule`.

    The module has one linear output per scale, `len(self.scales)`, which `compute_components` returns; see the page
    "RLlib" of the documentation for an example.
    """

    model_config: Any

    @cached_property
    def scales(self) -> TimeScales:
        """The time scales, which `DeltaPPOConfig` puts into `model_config`, and which a checkpoint keeps there.

        Raises:
            ConfigError: They are not there.
        """
        settings = self.model_config
        if not isinstance(settings, dict) or "scales" not in settings:
            raise ConfigError(
                f"model_config must have the time scales under 'scales'; got {settings!r:.80}: build the module from a "
                "DeltaPPOConfig, or pass model_config={'scales': TimeScales.of(…).to_dict()}"
            )
        return TimeScales.from_dict(settings["scales"])

    @abstractmethod
    def compute_components(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """W of the observations of a batch, (B, Z) or (B, T, Z), smallest discount first.

        Args:
            batch: As for RLlib's `compute_values`.
            embeddings: What `forward_train` put under "embeddings" for this batch; None computes them.
        """

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """V = ΣW, (B,) or (B, T), as RLlib asks for it."""
        return self.compute_components(batch, embeddings).sum(-1)


class DeltaPPOTorchRLModule(ComponentsAPI, DefaultPPOTorchRLModule):
    """RLlib's default module for PPO, whose value head has one output per time scale; any `PPOCatalog` will do."""

    def setup(self) -> None:
        """Build the networks."""
        self.catalog.vf_head_config.output_layer_dim = len(self.scales)
        super().setup()

    def compute_components(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """As of `ComponentsAPI`."""
        components: torch.Tensor = DefaultPPOTorchRLModule.compute_values(self, batch, embeddings)
        return components.unsqueeze(-1) if len(self.scales) == 1 else components  # RLlib squeezes one


class Steps:
    """The steps of a module's batch in a row, each episode followed by the extra one that RLlib adds, without padding.

    Args:
        module: The module.
        module_id: Its name.
        batch: Its batch, complete.
        episodes: All episodes, single-agent.

    Attributes:
        deltas: W, (N, Z).
        ends: Where the extra steps are, one per episode.

    Raises:
        ShapeError: The module returns another number of components.
    """

    def __init__(self, module: Any, module_id: str, batch: dict[str, Any], episodes: list[Any]) -> None:
        with torch.no_grad():
            components = module.compute_components(batch)
        self._batch, self._shape, self._device = batch, tuple(batch[Columns.REWARDS].shape), components.device
        wanted = (*self._shape, len(module.scales))
        if tuple(components.shape) != wanted:
            raise ShapeError(
                f"compute_components of the module {module_id!r} must return the shape {wanted}, one output per time "
                f"scale; got {tuple(components.shape)}: give its value head len(self.scales) outputs"
            )
        self._lengths = [len(episode) for episode in episodes if episode.module_id in (None, module_id)]
        self.ends = np.cumsum(self._lengths) - 1
        places = np.arange(math.prod(self._shape)).reshape(self._shape)
        self._places = unpad_data_if_necessary(self._lengths, places)
        # In double precision: errors are small differences of large numbers where horizons are long.
        self.deltas = self.column(components).astype(np.float64)

    def column(self, values: torch.Tensor) -> np.ndarray:
        """A column of the batch, (N, …)."""
        array = values.detach().cpu().numpy()
        return np.asarray(array.reshape(-1, *array.shape[len(self._shape) :])[self._places])

    def estimated(self, scales: TimeScales, form: Form, decay: float) -> tuple[np.ndarray, np.ndarray]:
        """Targets of all components, (N, Z), and advantages of V, (N,); at extra steps those of RLlib's recursion."""
        # Episodes side by side, several short ones above each other: a loop over time costs by its length.
        longest, column, row, starts = max(self._lengths), 0, 0, []
        for length in self._lengths:
            if row + length > longest:
                column, row = column + 1, 0
            starts.append((row, column))
            row += length
        within = np.arange(len(self.deltas)) - np.repeat(self.ends + 1 - self._lengths, self._lengths)
        rows, columns = np.repeat(np.array(starts), self._lengths, axis=0).T
        where = rows + within, columns

        def laid(values: np.ndarray) -> np.ndarray:
            filled = np.zeros((longest, column + 1, *values.shape[1:]), values.dtype)
            filled[where] = values
            return filled

        following = np.concatenate([self.deltas[1:], np.zeros_like(self.deltas[:1])])
        names = {"terminated": Columns.TERMINATEDS, "truncated": Columns.TRUNCATEDS}
        flags = {name: laid(self.column(self._batch[given]).astype(bool)) for name, given in names.items()}
        steps = laid(self.column(self._batch[Columns.REWARDS])).astype(np.float64), laid(self.deltas), laid(following)
        targets = lambda_targets(*steps, **flags, scales=scales, form=form)[where]
        policy = advantages(*steps, **flags, scales=scales, trace_decay=decay)[where]
        # RLlib's recursion goes on from an extra step into the next episode.
        values = self.deltas.sum(-1)
        policy[self.ends] = -values[self.ends]
        last = self.ends[:-1]
        policy[last] += scales.gammas[-1] * values[last + 1] + decay * policy[last + 1]
        return targets, policy

    def padded(self, values: np.ndarray) -> torch.Tensor:
        """Numbers (N, …) in the layout of the batch, zero where it is padded."""
        whole = np.zeros((math.prod(self._shape), *values.shape[1:]), np.float32)
        whole[self._places] = values
        return torch.as_tensor(whole.reshape(*self._shape, *values.shape[1:]), device=self._device)


class DeltaAdvantageEstimation(GeneralAdvantageEstimation):
    """Learner connector in the place of `GeneralAdvantageEstimation`: advantages of V, and targets of all components.

    The last step of an episode, terminated or cut anywhere, is followed by RLlib's extra step with the final
    observation, from which every component bootstraps unless the episode terminated. The policy's advantages are
    those of RLlib for V = ΣW with `gamma` and `lambda_`, standardised as RLlib does it.

    Args:
        config: The settings, of which each module may have its own.
    """

    def __init__(self, config: "DeltaPPOConfig") -> None:
        super().__init__(gamma=config.gamma, lambda_=config.lambda_)
        self.config = config

    def __call__(self, *, rl_module: Any, episodes: Any, batch: Any, metrics: Any = None, **kwargs: Any) -> Any:
        """Add "advantages", "value_targets" and "component_targets" to the batch of every module with a critic."""
        single = list(self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False))
        for module_id in [one for one in rl_module.keys() if one in batch]:  # noqa: SIM118  (no mapping)
            module = rl_module[module_id].unwrapped()
            if isinstance(module, ComponentsAPI):
                config = self.config.get_config_for_module(module_id)
                steps = Steps(module, module_id, batch[module_id], single)
                targets, policy = steps.estimated(module.scales, config.form, config.gamma * config.lambda_)
                # As RLlib does it, over extra steps, too: what the policy sees is the same for any scales.
                policy = (policy - policy.mean()) / max(1e-4, policy.std())
                columns = {"advantages": policy, "value_targets": targets.sum(-1), COMPONENT_TARGETS: targets}
                batch[module_id].update({name: steps.padded(column) for name, column in columns.items()})
                if metrics:
                    real = (np.delete(array, steps.ends, axis=0) for array in (steps.deltas, targets))
                    _log_fit(metrics, module_id, module.scales, *real)
        return batch


def _log_fit(metrics: Any, module_id: str, scales: TimeScales, deltas: np.ndarray, targets: np.ndarray) -> None:
    """Log how the components (N, Z) fit their targets before the update, and what they are."""
    explained = decomposition.explained_variance(deltas, targets)
    for name, values in (("explained_variance", explained), ("value_mean", deltas.mean(0))):
        metrics.log_dict(_by_discount(name, scales, values), key=module_id, window=1)


def _by_discount(name: str, scales: TimeScales, values: Any) -> dict[str, Any]:
    return {name: {f"gamma={label}": float(value) for label, value in zip(scales.labels, values, strict=True)}}


class _WithoutCritic:
    """A config without the value loss, which RLlib computes for one value only."""

    use_critic = False

    def __init__(self, config: PPOConfig) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class DeltaPPOTorchLearner(PPOTorchLearner):
    """RLlib's learner of PPO; its value loss is the sum over components, Σ_z mean(min((W_z − G^z)², `vf_clip_param`)).

    Raises:
        ConfigError: A module has a critic of one value.
    """

    def build(self) -> None:
        """Build the learner, with the connector for components."""
        super().build()
        for module_id, module in self.module.foreach_module(lambda name, module: (name, module)):
            if isinstance(module, ValueFunctionAPI) and not isinstance(module, ComponentsAPI):
                raise ConfigError(
                    f"module {module_id!r} must have a critic of several components; got {type(module).__name__}: "
                    "derive it from DeltaPPOTorchRLModule, or mix in ComponentsAPI and write compute_components"
                )
        self._last: dict[str, tuple[torch.Tensor, torch.Tensor, float | None]] = {}
        pipeline = self._learner_connector
        if pipeline is not None and any(type(one) is GeneralAdvantageEstimation for one in pipeline.connectors):
            pipeline.insert_before(GeneralAdvantageEstimation, DeltaAdvantageEstimation(self.config))
            pipeline.remove(GeneralAdvantageEstimation)

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: Any) -> Any:
        """RLlib's loss of the policy, and that of all components; steps that are masked count in neither."""
        settings: Any = _WithoutCritic(config)
        loss = super().compute_loss_for_module(module_id=module_id, config=settings, batch=batch, fwd_out=fwd_out)
        if not config.use_critic:
            return loss
        module = self.module[module_id].unwrapped()
        deltas = module.compute_components(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
        targets = batch[COMPONENT_TARGETS]
        if Columns.LOSS_MASK in batch:
            deltas, targets = deltas[batch[Columns.LOSS_MASK]], targets[batch[Columns.LOSS_MASK]]
        clip = config.component_clip(len(module.scales))
        self._last[module_id] = deltas.detach(), targets, clip
        return loss + config.vf_loss_coeff * _squared_errors(deltas, targets, clip).sum()

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Log the value loss of the last minibatch, as RLlib logs its own, and that of every component."""
        super().after_gradient_based_update(timesteps=timesteps)
        for module_id, (deltas, targets, clip) in self._last.items():
            losses = _squared_errors(deltas, targets, clip)
            shown = {
                VF_LOSS_KEY: losses.sum(),
                LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: _squared_errors(deltas, targets, None).sum(),
                LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY: explained_variance(targets.sum(-1), deltas.sum(-1)),
                **_by_discount("value_loss", self.module[module_id].unwrapped().scales, losses.tolist()),
            }
            self.metrics.log_dict(shown, key=module_id, window=1)
        self._last = {}


def _squared_errors(deltas: torch.Tensor, targets: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Mean squared error of every component, (Z,), of (…, Z)."""
    errors = (deltas - targets).square()
    return (errors if clip is None else errors.clamp(max=clip)).flatten(0, -2).mean(0)


class DeltaPPO(PPO):
    """RLlib's PPO with the settings of a `DeltaPPOConfig`."""

    @classmethod
    def get_default_config(cls) -> "DeltaPPOConfig":
        """The settings before a user's."""
        return DeltaPPOConfig()

    def train(self) -> Any:
        """Train for an iteration; an exception is told to callbacks with a method `on_training_error`."""
        try:
            return super().train()
        except BaseException as error:
            self._tell("on_training_error", error)
            raise

    def cleanup(self) -> None:
        """Stop; callbacks with a method `on_training_end` are told before."""
        try:
            self._tell("on_training_end", self)
        finally:
            super().cleanup()

    def _tell(self, method: str, content: Any) -> None:
        for callback in getattr(self, "callbacks", []):
            getattr(callback, method, lambda _: None)(content)


class DeltaPPOConfig(PPOConfig):
    """RLlib's `PPOConfig` with time scales; everything else is set as there.

    `vf_clip_param` is None unless set: RLlib's 10 for one scale, no clipping for several. Where a squared error exceeds
    it RLlib gives no gradient; components of long horizons start with errors above it and would never learn.

    Attributes:
        time_scales: As given to `scales`, as plain data; `overrides(time_scales=…)` gives a module its own.
        form: Of the critic's λ-return, see `tddelta.lambda_targets`.

    Example:
        >>> config = DeltaPPOConfig().training(gamma=0.99, lambda_=0.95).scales("halving components=4")
        >>> config.ladder.labels
        ('0.920', '0.960', '0.980', '0.990')
    """

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class=algo_class or DeltaPPO)
        self.time_scales: Any = None
        self.form: Form = "difference"
        self.vf_clip_param: float | None = None

    def scales(self, scales: Any = None, *, form: Any = NotProvided) -> "DeltaPPOConfig":
        """Set the time scales of the critic.

        Args:
            scales: As of `tddelta.TimeScales.of`, for `gamma` and `lambda_` of `training`; None is the halving ladder.
            form: Of the λ-return. With "difference", the default, targets add up to the λ-return of V whatever the
                trace decays; "bootstrap" is the paper's form.

        Returns:
            This config.

        Raises:
            ConfigError: `scales` is of another kind, or `form` is unknown.
        """
        self.time_scales = Ladder(scales).given
        if form is not NotProvided:
            check_form(form)
            self.form = form
        return self

    @property
    def ladder(self) -> TimeScales:
        """The time scales, for `gamma` and `lambda_` as they are now.

        Raises:
            ConfigError: They do not fit, see `tddelta.TimeScales.of`.
        """
        return TimeScales.of(self.time_scales, gamma=self.gamma, lam=self.lambda_)

    def component_clip(self, number: int) -> float | None:
        """Largest squared error of a component that counts, for so many of them; None where all do."""
        standard = 10.0 if number == 1 else None  # RLlib's own, and none
        return standard if self.vf_clip_param is None else self.vf_clip_param

    def validate(self) -> None:
        """Check all settings, as RLlib does before it builds.

        Raises:
            ConfigError: The time scales of a module do not fit, `form` is unknown, or the old API stack is asked for.
        """
        if not (self.enable_rl_module_and_learner and self.enable_env_runner_and_connector_v2):
            raise ConfigError(
                "DeltaPPO needs RLlib's new API stack; got enable_rl_module_and_learner="
                f"{self.enable_rl_module_and_learner}, enable_env_runner_and_connector_v2="
                f"{self.enable_env_runner_and_connector_v2}: leave api_stack(…) out"
            )
        super().validate()
        for one in [self, *map(self.get_config_for_module, self.algorithm_config_overrides_per_module)]:
            check_form(one.form)
            _ = one.ladder

    def get_default_learner_class(self) -> Any:
        """The learner of components."""
        return DeltaPPOTorchLearner

    def get_default_rl_module_spec(self) -> Any:
        """The default module, with a value head of several outputs."""
        return RLModuleSpec(module_class=DeltaPPOTorchRLModule)

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return {**super()._model_config_auto_includes, "scales": self.ladder.to_dict()}

    def get_multi_rl_module_spec(self, **kwargs: Any) -> Any:
        """Specification that all modules are built from; each gets the time scales of its own settings."""
        spec = super().get_multi_rl_module_spec(**kwargs)
        for module_id in self.algorithm_config_overrides_per_module:
            if module_id in spec.rl_module_specs:
                scales = self.get_config_for_module(module_id).ladder.to_dict()
                spec.rl_module_specs[module_id].model_config["scales"] = scales
        return spec
