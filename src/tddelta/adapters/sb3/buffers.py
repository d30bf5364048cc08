"""Rollout buffers that keep the rewards of the environment, and hand out targets of all components."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor

from tddelta.adapters import Ladder
from tddelta.adapters.sb3.model import Learning, whole
from tddelta.errors import ConfigError, ShapeError
from tddelta.targets import Form, advantages, lambda_targets, successors
from tddelta.timescales import TimeScales


class DeltaRolloutBuffer(RolloutBuffer):
    """`RolloutBuffer` for a critic of several components.

    SB3 adds γ·V(final) of a truncated episode to its reward before the buffer sees it: right for one discount, wrong
    for all others. `StepRecorder` notes how much that is, and it is taken off again where components learn. Whatever
    else was done to a reward on its way into `rewards` counts, as in SB3.

    Args:
        *args: As in SB3.
        scales: The time scales, see `tddelta.TimeScales.of`; they follow `gamma` and `gae_lambda`.
        form: Of the λ-return, see `tddelta.lambda_targets`.
        **kwargs: As in SB3.

    Attributes:
        components: W(s_t), (T, N, Z), of N environments.
        component_returns: The λ-returns of the components, (T, N, Z).
        rewards: As in SB3, with γ·V(final) of truncated episodes, (T, N); `environment_rewards` are without.
        terminated: Whether s_{t+1} is terminal, (T, N).
        truncated: Whether the episode is cut after step t, (T, N).

    Raises:
        ConfigError: There are no scales, `values` or `returns` were written to and there are several components, or
            the steps were not noted.
        ShapeError: The policy hands out another number of components.
    """

    def __init__(self, *args: Any, scales: Any = None, form: Form = "difference", **kwargs: Any) -> None:
        if scales is None:
            raise ConfigError(
                "scales must name the time scales of a DeltaRolloutBuffer, and a plain PPO or A2C has none: use "
                "DeltaPPO or DeltaA2C; a file of theirs is read by DeltaPPO.load(…), and to_ppo() makes a plain PPO"
            )
        self._ladder, self.form = Ladder(scales), form
        self.learning: Learning | None = None
        super().__init__(*args, **kwargs)

    @property
    def scales(self) -> TimeScales:
        """The time scales, for `gamma` and `gae_lambda` as they are now."""
        return self._ladder.at(self.gamma, self.gae_lambda)

    @property
    def environment_rewards(self) -> np.ndarray:
        """The rewards without what SB3 adds where an episode was truncated, (T, N)."""
        # Not the difference of two sums: what nobody changed stays as it was, to the last bit.
        changed = self._noted_rewards + (self.rewards - self._expected)
        return np.asarray(np.where(self.truncated, changed, self.rewards))

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        shape = self.buffer_size, self.n_envs
        self.components, self._finals = (np.zeros((*shape, len(self.scales)), np.float32) for _ in range(2))
        self.component_returns: Any = None
        self._noted_rewards, self._expected = (np.zeros(shape, np.float32) for _ in range(2))
        self.terminated, self.truncated = (np.zeros(shape, bool) for _ in range(2))
        self._last: np.ndarray | None = None
        self._noted = -1
        self._computed: dict[str, np.ndarray] = {}
        self._flat: list[np.ndarray] | None = None

    def note(self, rewards: np.ndarray, finals: dict[int, th.Tensor]) -> None:
        """Note rewards (N,) before SB3 changes them, and W(final observation), (Z,), of episodes that are cut here."""
        self._noted = step = self.pos
        self._noted_rewards[step] = rewards
        self.truncated[step] = False
        expected = np.array(rewards)
        for place, deltas in finals.items():
            self.truncated[step, place] = True
            self._finals[step, place] = deltas.cpu().numpy()
            # As SB3 does it, for the same bits.
            expected[place] += self.gamma * deltas.sum(-1, keepdim=True)
        self._expected[step] = expected

    def note_last(self, deltas: th.Tensor) -> None:
        """Note W of the observations after the last step, (N, Z)."""
        self._last = whole(deltas).cpu().numpy()

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, value: th.Tensor, log_prob: Any) -> None:
        """Add a step, as in SB3, but with W, (N, Z), in place of values."""
        if len(self.scales) == 1:
            value = value.reshape(-1, 1)
        elif self._noted != self.pos:
            raise ConfigError(
                f"the rewards of step {self.pos} were not noted before SB3 changed them: collect with learn(), whose "
                "callbacks note them, and leave `_init_callback` as it is"
            )
        if value.shape != self.components.shape[1:]:  # one value per state would be spread over all components
            raise ShapeError(
                f"the policy must hand out components {self.components.shape[1:]}, one per environment and "
                f"discount; got {tuple(value.shape)}: a value network of your own has n_components outputs"
            )
        value = whole(value)
        self.components[self.pos] = value.cpu().numpy()
        super().add(obs, action, reward, episode_start, value.sum(-1), log_prob)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        """Compute the λ-returns of all components, and the ordinary advantages of V; arguments as in SB3."""
        ends = np.concatenate([self.episode_starts[1:], np.asarray(dones)[None]]).astype(bool)
        # A `collect_rollouts` of one's own that adds nothing to the reward has every end for a terminal one.
        self.truncated &= ends & ((self.rewards != self._noted_rewards) | (self._expected == self._noted_rewards))
        self.terminated = ends & ~self.truncated
        scales, decay = self.scales, self.gamma * self.gae_lambda
        if len(scales) == 1:
            self.components = self.values[..., None].copy()
        if len(scales) == 1 and scales.trace_decays == (decay,):
            super().compute_returns_and_advantage(last_values, dones)
            self.component_returns = self.returns[..., None].copy()
        else:
            self._compute(last_values, scales, decay)
        self._computed, self._flat = {name: getattr(self, name).copy() for name in ("values", "returns")}, None

    def _compute(self, last_values: th.Tensor, scales: TimeScales, decay: float) -> None:
        if self._last is None:
            raise ConfigError("the observations after the last step were not noted: collect with learn()")
        last = np.where(self.terminated[-1] | self.truncated[-1], self._last.sum(-1), last_values.cpu().numpy().ravel())
        for name, sums, components in ("values", self.values, self.components), ("last_values", last, self._last):
            rounding = 1e-5 * np.abs(components).sum(-1)
            if not np.allclose(components.sum(-1), sums, rtol=0, atol=rounding, equal_nan=True):
                raise ConfigError(
                    f"{name} must be the sum of the components, and were changed; of {len(scales)} components nobody "
                    "knows which: change those that the policy hands out, or pass scales='single'"
                )
        flags: Any = {"terminated": self.terminated, "truncated": self.truncated}
        final = self._finals if self.truncated.any() else None
        following = successors(self.components, self._last, final_deltas=final, **flags)
        steps = self.environment_rewards, self.components, following
        self.component_returns = lambda_targets(*steps, scales=scales, form=self.form, **flags)
        self.advantages = advantages(*steps, scales=scales, trace_decay=decay, **flags)
        self.returns = self.advantages + self.values

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        samples = super()._get_samples(batch_inds, env)
        if self._flat is None:
            self._flat = [self._flattened("component_returns", "returns"), self._flattened("components", "values")]
        targets, old = (self.to_torch(array[batch_inds]) for array in self._flat)
        if self.learning is None:
            return samples._replace(returns=targets.flatten(), old_values=old.flatten())
        targets, old = self.learning.samples(targets, old)
        return samples._replace(returns=targets, old_values=old)

    def _flattened(self, components: str, sums: str) -> np.ndarray:
        """The components, (N·T, Z), with what was written into the array of SB3 since they were computed."""
        known, now = self._computed.get(sums), getattr(self, sums)
        written = known is None or not np.array_equal(self.swap_and_flatten(known), now, equal_nan=True)
        if written and len(self.scales) == 1:
            setattr(self, components, now.reshape(self.n_envs, self.buffer_size, 1).swapaxes(0, 1))
        elif getattr(self, components) is None or (written and known is not None):
            raise ConfigError(
                f"rollout_buffer.{sums} were changed, and the critic learns from rollout_buffer.{components}, "
                f"{self.components.shape}: change those, or pass scales='single'"
            )
        return np.asarray(self.swap_and_flatten(getattr(self, components)))


class DeltaDictRolloutBuffer(DeltaRolloutBuffer, DictRolloutBuffer):
    """`DictRolloutBuffer`, for dictionary observations, for a critic of several components."""


class StepRecorder(BaseCallback):
    """Notes every step in the buffer: SB3 calls callbacks before it changes rewards.

    The last of the callbacks, so that a reward which another one changes is seen as SB3 sees it.
    """

    @th.no_grad()
    def _on_step(self) -> bool:
        buffer, model = (self.locals["rollout_buffer"], self.model)  # type: Any, Any
        if not isinstance(buffer, DeltaRolloutBuffer):
            raise ConfigError(
                f"rollout_buffer must keep components; got a {type(buffer).__name__}: derive it from DeltaRolloutBuffer"
            )
        finals, ask = {}, model.policy.predict_components
        for place in np.flatnonzero(self.locals["dones"]):
            info = self.locals["infos"][place]
            # As SB3 tells truncation, and one by one as SB3 evaluates them, for the same bits.
            if info.get("TimeLimit.truncated", False) and info.get("terminal_observation") is not None:
                observation = model.policy.obs_to_tensor(info["terminal_observation"])[0]
                finals[int(place)] = ask(observation)[0]
        buffer.note(self.locals["rewards"], finals)
        if buffer.pos == buffer.buffer_size - 1:
            buffer.note_last(ask(obs_as_tensor(self.locals["new_obs"], model.device)))
            if len(buffer.scales) > 1:
                _check_agreement(model, buffer)
        return True


def _check_agreement(model: Any, buffer: DeltaRolloutBuffer) -> None:
    """ConfigError if one of the two was changed, or the buffer replaced, and the other was not."""
    for name in ("gamma", "form"):
        ours, theirs = getattr(model, name), getattr(buffer, name)
        if ours != theirs:
            raise ConfigError(
                f"{name} must be the same in model and model.rollout_buffer; got {ours!r} and {theirs!r}: set both"
            )
    wanted = model._ladder.at(buffer.gamma, buffer.gae_lambda)  # λ is that of the buffer alone, as in SB3
    if buffer.scales != wanted:
        raise ConfigError(
            f"model.rollout_buffer must have the scales of the model, {wanted}; got {buffer.scales}: make it with "
            "scales=model.scales"
        )
