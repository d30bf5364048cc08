"""A callback that writes the run directory of this library, for our algorithms and for SB3's own."""

import os
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from tddelta._plain import whole
from tddelta.adapters.sb3 import describing
from tddelta.adapters.sb3.answers import environment_name, watch
from tddelta.adapters.sb3.playing import Player
from tddelta.adapters.sb3.record import STOPS, Record
from tddelta.errors import ConfigError, StorageError, own_checks
from tddelta.runs import RunWriter, run_path
from tddelta.runs.files import replace, to_json

OFF_POLICY_STEPS = 1_000
"""Environment steps between two lines of metrics where training is not in rollouts."""

EVALUATION_EPISODES = 20
"""Episodes of an evaluation."""

# Where SB3's name is not that of `metrics.jsonl`; the number is a factor. SB3 squares errors without a half.
_NAMES = {
    "policy_gradient_loss": ("policy_loss", 1.0),
    "approx_kl": ("approximate_kl", 1.0),
    "entropy_loss": ("entropy", -1.0),
    "value_loss": ("value_loss", 0.5),
}


class RunDirectory(BaseCallback):
    """Writes `OUT/ENVIRONMENT/AGENT/seed-N/`, which `tddelta report OUT` draws. Works with every algorithm of SB3.

    Metrics have the names and units of `docs/metrics.md` where they exist there, else SB3's without "train/". A second
    `learn` of the same model with the same object goes on in the same directory.

    With `eval_env` the model plays there, apart from training: scores of deterministic actions in `evaluations.jsonl`,
    and at the end one recorded episode in `rollout.npz` and the critic against what came in `critic.npz`. SB3 cannot
    copy the environments of the training, so there is none of it without.

    SB3 does not tell callbacks of an exception. Algorithms of this library do: the run says "failed", or "interrupted"
    after Ctrl-C. For SB3's own, use it as a context manager:

        with RunDirectory("runs/boiler") as record:
            model.learn(100_000, callback=record)

    Else a run that broke off says so once the callback is gone, at the latest when the process ends.

    Args:
        out: The folder above.
        environment: Name of the environment; None asks the environment.
        agent: Name of the agent; None is the name of the algorithm's class.
        seed: N; None is the seed of the model, and for a model without one the first N that is free.
        every: Environment steps between two lines of metrics; None is every update of PPO and its like, and 1,000
            steps for others.
        eval_env: Environment, or vector of some, to play in, wrapped as the training's (a `VecNormalize` gets the
            statistics of the training); or the name of one. Its episodes must end.
        eval_every: Environment steps between two evaluations; None is one at the end.
        eval_episodes: Episodes of each.
        verbose: As in SB3.

    Attributes:
        path: The run directory; None before training.

    Raises:
        ConfigError: `out` is no path, `eval_env` no environment, or `seed`, `every`, `eval_every` or `eval_episodes`
            is out of range; or when training starts: the run directory exists already, or cannot be made, or
            `eval_env` does not fit the training's.
        StorageError: A file cannot be written.
    """

    @own_checks
    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        environment: str | None = None,
        agent: str | None = None,
        seed: int | None = None,
        every: int | None = None,
        eval_env: Any = None,
        eval_every: int | None = None,
        eval_episodes: int = EVALUATION_EPISODES,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if not isinstance(out, str | os.PathLike):
            raise ConfigError(f'out must be a path; got {out!r:.80}: name a folder, as in RunDirectory("runs")')
        if not (eval_env is None or isinstance(eval_env, str | gymnasium.Env | VecEnv)):
            raise ConfigError(
                "eval_env must be the name of an environment, an environment of Gymnasium or a VecEnv of "
                f'Stable-Baselines3; got {eval_env!r:.80}: pass one, as in eval_env="CartPole-v1"'
            )
        if eval_every is not None and eval_env is None:
            raise ConfigError(
                f"eval_every goes with eval_env; got {eval_every!r} without it: pass an environment to play in, or "
                "leave eval_every out"
            )
        self.out, self.environment, self.agent, self.eval_env = Path(out), environment, agent, eval_env
        self.seed = None if seed is None else whole("seed", seed, 0, advice="leave it out for the seed of the model")
        self.every = None if every is None else whole("every", every, 1, advice="leave it out for the default")
        self.eval_every = (
            None if eval_every is None else whole("eval_every", eval_every, 1, advice="leave it out for one at the end")
        )
        self.eval_episodes = whole(
            "eval_episodes",
            eval_episodes,
            advice=f"leave it out for {EVALUATION_EPISODES}, or leave eval_env out for none",
        )
        self.path: Path | None = None
        self._record: Record | None = None
        self._player: Player | None = None

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.on_training_error(error)
        elif self._record is not None:
            self._record.leave()

    def on_training_error(self, error: BaseException) -> None:
        """Write down that `learn` ended with this exception; without effect where its end was recorded already."""
        record = self._record
        if record is not None and record.open:
            if isinstance(error, STOPS):
                with suppress(StorageError):
                    self._save_parameters(record)
            record.fail(error)

    def _on_training_start(self) -> None:
        model = self.model
        if self._record is not None and model.num_timesteps < self._record.steps:
            self._record = None  # trained from the start again: another run
        if self._record is None:
            self._name = self.environment or environment_name(self.training_env)
            self._agent = self.agent or type(model).__name__
            given = self.seed if self.seed is not None else model.seed
            self._number = describing.free_number(self.out, self._name, self._agent) if given is None else given
        watch(self.training_env)  # of SB3's own algorithms; ours have done it
        # Before anything is written: what does not fit is told now, not after the training.
        self._player = None if self.eval_env is None else Player(model, self.eval_env, self._number)
        config = describing.described_model(model, self._name, self._agent, self._number)
        if self._record is None:
            self._begin(config)
        else:
            writer = self._record.writer
            writer.reopen()
            content = to_json(config)
            replace(writer.path / "config.json", lambda file: file.write(content))
            writer.status("running")
        record = self._record_of()
        record.steps = model.num_timesteps
        record.begin(model._total_timesteps)
        self._returns, self._lengths = np.zeros(model.n_envs), np.zeros(model.n_envs, np.int64)
        self._learned = model._n_updates

    def _begin(self, config: dict[str, Any]) -> None:
        path = run_path(self.out, self._name, self._agent, self._number)
        if path.exists():
            raise ConfigError(
                f"{path} exists already, and a run is never overwritten: choose another folder or seed, "
                "as in RunDirectory(out, seed=1); to train the same model further, pass the same RunDirectory to "
                "learn(…, reset_num_timesteps=False)"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be made ({error.strerror or error}): choose another folder for RunDirectory(out)"
            ) from error
        provenance = describing.described_origin(self.model)
        if self.eval_env is not None:
            provenance["options"] = {"eval_every": self.eval_every, "eval_episodes": self.eval_episodes}
        self._record = Record(RunWriter(path, config, provenance), self.model.num_timesteps)
        self.path = path
        weakref.finalize(self, self._record.leave)

    def _on_step(self) -> bool:
        record = self._record_of()
        record.steps = self.num_timesteps
        normaliser = self.model.get_vec_normalize_env()
        rewards = self.locals["rewards"] if normaliser is None else normaliser.get_original_reward()
        self._returns += rewards
        self._lengths += 1
        dones = self.locals["dones"]
        if np.any(dones):
            for place in np.flatnonzero(dones):
                # Monitor counts below wrappers that change rewards or episodes.
                seen = self.locals["infos"][place].get("episode", {})
                record.episode(float(seen.get("r", self._returns[place])), int(seen.get("l", self._lengths[place])))
                self._returns[place], self._lengths[place] = 0.0, 0
            record.save_episodes()
        if self.eval_every is not None and self.num_timesteps < self.model._total_timesteps:
            before = self.num_timesteps - self.model.n_envs
            if self.num_timesteps // self.eval_every > before // self.eval_every:
                self._evaluate(record)
        return True

    def _on_rollout_start(self) -> None:
        self._see_update()

    def _on_rollout_end(self) -> None:
        if isinstance(self.model, OnPolicyAlgorithm):  # before the buffer is emptied
            self._record_of().numbers["value_mean"] = float(self.model.rollout_buffer.values.mean())

    def _on_training_end(self) -> None:
        record = self._record_of()
        self._see_update(now=True)
        record.save_episodes(now=True)
        self._save_parameters(record)
        record.end_of_training()
        if self._player is not None:
            self._evaluate(record)
            found = self._player.hold_out()
            if found is not None:
                for name, arrays in zip(("critic", "rollout"), found, strict=True):
                    record.writer.arrays(name, **arrays)
            self._player.close()
        total = self.model._total_timesteps
        stopped = record.steps < total
        message = f"stopped by a callback after {record.steps} of {total} steps" if stopped else None
        record.close("interrupted" if stopped else "finished", message)

    def _save_parameters(self, record: Record) -> None:
        tensors = {name: tensor.detach().cpu().numpy() for name, tensor in self.model.policy.state_dict().items()}
        record.writer.parameters(tensors, {"environment": self._name, "steps": str(record.steps)})

    def _evaluate(self, record: Record) -> None:
        if self._player is not None:
            began = time.perf_counter()
            row = self._player.scores(self.eval_episodes)
            record.evaluation(row, time.perf_counter() - began)

    def _see_update(self, *, now: bool = False) -> None:
        """Write a line of metrics if the model learned since the last one: SB3 logs after `train`, and tells nobody."""
        model, record = self.model, self._record_of()
        if model._n_updates != self._learned:
            self._learned = model._n_updates
            record.updates += 1
            record.learned_steps = model.num_timesteps
            record.numbers |= _numbers(model.logger.name_to_value)
            pause = self.every or (1 if isinstance(model, OnPolicyAlgorithm) else OFF_POLICY_STEPS)
            now = now or record.learned_steps - record.row_steps >= pause
        if now and record.updates and record.learned_steps > record.row_steps:
            record.row()

    def _record_of(self) -> Record:
        if self._record is None:
            raise ConfigError("RunDirectory was told of training before its start: pass it as learn(callback=…)")
        return self._record


def _numbers(logged: Any) -> dict[str, float]:
    """What SB3's logger holds of the last update, under the names of `metrics.jsonl`."""
    found = {}
    for key, value in logged.items():
        group, _, rest = key.partition("/")
        if not isinstance(value, int | float | np.number):
            continue
        if group == "train":
            name, factor = _NAMES.get(rest, (rest, 1.0))
            found[name] = factor * float(value)
        elif rest.startswith("gamma="):
            found[key] = (0.5 if group == "value_loss" else 1.0) * float(value)
    return found
