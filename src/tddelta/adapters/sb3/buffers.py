"""Rollout buffers that keep what happened in the environment, and hand out targets of all components."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor

from tddelta.adapters.sb3.learning import Learning
from tddelta.errors import ConfigError, ShapeError
from tddelta.targets import Form, advantages, lambda_targets, successors
from tddelta.timescales import TimeScales


class DeltaRolloutBuffer(RolloutBuffer):
    """`RolloutBuffer` for a critic of several components.

    SB3 adds γ·V(final) of a truncated episode to its reward before the buffer sees it: right for one discount, wrong
    for all others. `StepRecorder` notes the reward of the environment before that, and the buffer keeps that one.

    Args:
        *args: As in SB3.
        scales: The time scales, with trace decays.
        form: Of the λ-return, see `tddelta.lambda_targets`.
        **kwargs: As in SB3.

    Attributes:
        components: W(s_t), (T, N, Z), of N environments.
        component_returns: The λ-returns of the components, (T, N, Z).
        rewards: As the environment gave them, (T, N).
        terminated: Whether s_{t+1} is terminal, (T, N).
        truncated: Whether the episode is cut after step t, (T, N).
    """

    def __init__(self, *args: Any, scales: TimeScales, form: Form = "difference", **kwargs: Any) -> None:
        self.scales, self.form = scales, form
        self.learning: Learning | None = None
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        shape = self.buffer_size, self.n_envs
        self.components, self._finals = (np.zeros((*shape, len(self.scales)), np.float32) for _ in range(2))
        self._raw = np.zeros(shape, np.float32)
        self.terminated, self.truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        self._last: np.ndarray | None = None
        self._noted = -1

    def note(self, rewards: np.ndarray, dones: np.ndarray, finals: dict[int, np.ndarray]) -> None:
        """Note a step before SB3 changes its rewards.

        Args:
            rewards: Of the environment, (N,).
            dones: Whether the episode is over, (N,).
            finals: W(final observation), (Z,), by environment, of the episodes that were cut.
        """
        self._noted = step = self.pos
        self._raw[step] = rewards
        self.terminated[step] = dones
        for place, deltas in finals.items():
            self.truncated[step, place], self.terminated[step, place] = True, False
            self._finals[step, place] = deltas

    def note_last(self, deltas: np.ndarray) -> None:
        """Note W of the observations after the last step, (N, Z)."""
        self._last = deltas

    def add(
        self,
        obs: Any,
        action: np.ndarray,
        reward: Any,
        episode_start: np.ndarray,
        value: th.Tensor,
        log_prob: th.Tensor,
    ) -> None:
        """Add a step, as in SB3, but with W, (N, Z), in place of values; the reward that counts was noted."""
        if self._noted != self.pos:
            raise ConfigError(
                f"the rewards of step {self.pos} were not noted before SB3 changed them: collect with learn(), whose "
                "callbacks note them, and leave `_init_callback` as it is"
            )
        if value.shape != self.components.shape[1:]:  # one value per state would be spread over all components
            raise ShapeError(
                f"the policy must hand out components {tuple(self.components.shape[1:])}, one per environment and "
                f"discount; got {tuple(value.shape)}: a value network of your own has n_components outputs"
            )
        self.components[self.pos] = value.cpu().numpy()
        super().add(obs, action, self._raw[self.pos], episode_start, value.sum(-1), log_prob)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        """Compute the λ-returns of all components, and the ordinary advantages of V.

        Args:
            last_values: V after the last step; W was noted.
            dones: Whether the last step ended an episode; was noted.
        """
        if self._last is None:
            raise ConfigError("the observations after the last step were not noted: collect with learn()")
        flags: Any = {"terminated": self.terminated, "truncated": self.truncated}
        final = self._finals if self.truncated.any() else None
        following = successors(self.components, self._last, final_deltas=final, **flags)
        steps = self.rewards, self.components, following
        self.component_returns = lambda_targets(*steps, scales=self.scales, form=self.form, **flags)
        # In this order, as SB3 multiplies: the same float.
        decay = self.gamma * self.gae_lambda
        self.advantages = advantages(*steps, scales=self.scales, trace_decay=decay, **flags)
        self.returns = self.advantages + self.values
        self._flat = [self.swap_and_flatten(array) for array in (self.component_returns, self.components)]

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        samples = super()._get_samples(batch_inds, env)
        targets, old = (self.to_torch(array[batch_inds]) for array in self._flat)
        if self.learning is None:
            return samples._replace(returns=targets.flatten(), old_values=old.flatten())
        targets, old = self.learning.samples(targets, old)
        return samples._replace(returns=targets, old_values=old)


class DeltaDictRolloutBuffer(DeltaRolloutBuffer, DictRolloutBuffer):
    """`DictRolloutBuffer`, for dictionary observations, for a critic of several components."""


class StepRecorder(BaseCallback):
    """Notes every step in the buffer: SB3 calls callbacks before it changes rewards.

    The last of the callbacks, so that a reward which another one changes is seen as SB3 sees it.
    """

    def _on_step(self) -> bool:
        buffer, dones = self.locals["rollout_buffer"], self.locals["dones"]
        finals = {}
        for place in np.flatnonzero(dones):
            info = self.locals["infos"][place]
            # As SB3 tells truncation, and one by one as SB3 evaluates them, for the same bits.
            if info.get("TimeLimit.truncated", False) and info.get("terminal_observation") is not None:
                policy: Any = self.model.policy
                observation = policy.obs_to_tensor(info["terminal_observation"])[0]
                finals[int(place)] = self._components(observation)[0]
        buffer.note(self.locals["rewards"], dones, finals)
        if buffer.pos == buffer.buffer_size - 1:
            buffer.note_last(self._components(obs_as_tensor(self.locals["new_obs"], self.model.device)))
        return True

    def _components(self, observation: Any) -> np.ndarray:
        policy: Any = self.model.policy
        with th.no_grad():
            deltas: np.ndarray = policy.predict_components(observation).cpu().numpy()
        return deltas
