"""A callback that writes the run directory of this library, for our algorithms and for SB3's own."""

import os
import platform
import sys
import time
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from tddelta.adapters.sb3.model import DeltaModel
from tddelta.adapters.sb3.settings import settings_of
from tddelta.errors import ConfigError
from tddelta.runs import FORMAT, RunWriter, run_path
from tddelta.runs.checkpoints import Pauses
from tddelta.runs.files import replace, to_json
from tddelta.timescales import TimeScales

EPISODES_SECONDS = 10.0
"""`episodes.npz` is written again at most this often."""

OFF_POLICY_STEPS = 1_000
"""Environment steps between two lines of metrics where training is not in rollouts."""

_PACKAGES = ("tddelta", "stable-baselines3", "torch", "gymnasium", "numpy")

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

    Args:
        out: The folder above.
        environment: Name of the environment; None asks the environment.
        agent: Name of the agent; None is the name of the algorithm's class.
        seed: N; None is the seed of the model, and for a model without one the first N that is free.
        every: Environment steps between two lines of metrics; None is every update of PPO and its like, and 1,000
            steps for others.
        verbose: As in SB3.

    Attributes:
        path: The run directory; None before training.

    Raises:
        ConfigError: When training starts: the run directory exists already, or cannot be made.
        StorageError: A file cannot be written.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        environment: str | None = None,
        agent: str | None = None,
        seed: int | None = None,
        every: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if every is not None and every < 1:
            raise ConfigError(f"every must be at least 1 step; got {every}: leave it out for the default")
        self.out, self.environment, self.agent, self.seed, self.every = Path(out), environment, agent, seed, every
        self.path: Path | None = None
        self._writer: RunWriter | None = None
        self._began = self._row_time = 0.0

    def _on_training_start(self) -> None:
        model = self.model
        if self._writer is not None and model.num_timesteps < self._steps:
            self._writer = None  # trained from the start again: another run
        if self._writer is None:
            self._begin()
        else:
            self._writer.reopen()
            content = to_json(self._config(self._number))
            replace(self._writer.path / "config.json", lambda file: file.write(content))
            self._writer.status("running")
        self._returns, self._lengths = np.zeros(model.n_envs), np.zeros(model.n_envs, np.int64)
        self._began = self._row_time = time.perf_counter()
        self._first = model.num_timesteps
        self._learned = model._n_updates

    def _begin(self) -> None:
        model = self.model
        name = self.environment or _environment_name(self.training_env)
        agent = self.agent or type(model).__name__
        given = self.seed if self.seed is not None else model.seed
        self._name, self._agent = name, agent
        self._number = given if given is not None else _free(self.out, name, agent)
        path = run_path(self.out, name, agent, self._number)
        if path.exists():
            raise ConfigError(
                f"{path} exists already, and a run is never overwritten: choose another folder or seed, "
                "as in RunDirectory(out, seed=1)"
            )
        self._writer = RunWriter(path, self._config(self._number), _provenance(model))
        self.path = path
        self._updates, self._row_steps, self._steps, self._rows = 0, 0, model.num_timesteps, 0
        self._episodes: dict[str, list[float]] = {"steps": [], "returns": [], "lengths": []}
        self._numbers: dict[str, float] = {}
        self._pauses = Pauses(EPISODES_SECONDS, at_once=True)

    def _config(self, seed: int) -> dict[str, Any]:
        model: Any = self.model
        scales = model.scales if isinstance(model, DeltaModel) else TimeScales.single(model.gamma, lam=_lam(model))
        return {
            "format": FORMAT,
            "environment": self._name,
            "environment_kwargs": {},
            "environment_parameters": {"n_envs": model.n_envs},
            "agent": {"name": self._agent, "library": "stable-baselines3", "algorithm": type(model).__name__},
            "seed": seed,
            "steps": model._total_timesteps,
            "settings": settings_of(model),
            "scales": scales.to_dict(),
        }

    def _on_step(self) -> bool:
        normaliser = self.model.get_vec_normalize_env()
        rewards = self.locals["rewards"] if normaliser is None else normaliser.get_original_reward()
        self._returns += rewards
        self._lengths += 1
        dones = self.locals["dones"]
        if np.any(dones):
            for place in np.flatnonzero(dones):
                # Monitor counts below wrappers that change rewards or episodes.
                seen = self.locals["infos"][place].get("episode", {})
                self._episodes["steps"].append(self.num_timesteps)
                self._episodes["returns"].append(float(seen.get("r", self._returns[place])))
                self._episodes["lengths"].append(int(seen.get("l", self._lengths[place])))
                self._returns[place], self._lengths[place] = 0.0, 0
            if self._pauses.over:
                with self._pauses.ended():
                    self._save_episodes()
        return True

    def _on_rollout_start(self) -> None:
        self._see_update()

    def _on_rollout_end(self) -> None:
        if isinstance(self.model, OnPolicyAlgorithm):  # before the buffer is emptied
            self._numbers["value_mean"] = float(self.model.rollout_buffer.values.mean())

    def _on_training_end(self) -> None:
        writer = self._open()
        self._see_update(now=True)
        self._save_episodes()
        tensors = {name: tensor.detach().cpu().numpy() for name, tensor in self.model.policy.state_dict().items()}
        writer.parameters(tensors, {"environment": self._name, "steps": str(self.model.num_timesteps)})
        seconds, done = time.perf_counter() - self._began, self.model.num_timesteps - self._first
        writer.timing(
            {"event": "end", "seconds": seconds, "steps": done, "steps_per_second": done / max(seconds, 1e-9)}
        )
        total, steps = self.model._total_timesteps, self.model.num_timesteps
        stopped = steps < total
        message = f"stopped by a callback after {steps} of {total} steps" if stopped else None
        writer.status("interrupted" if stopped else "finished", message=message, **self._counts())
        writer.close()

    def _see_update(self, *, now: bool = False) -> None:
        """Write a line of metrics if the model learned since the last one: SB3 logs after `train`, and tells nobody."""
        model = self.model
        if model._n_updates != self._learned:
            self._learned = model._n_updates
            self._updates += 1
            self._steps = model.num_timesteps
            self._numbers |= _numbers(model.logger.name_to_value)
            pause = self.every or (1 if isinstance(model, OnPolicyAlgorithm) else OFF_POLICY_STEPS)
            now = now or self._steps - self._row_steps >= pause
        if now and self._updates and self._steps > self._row_steps:
            self._write_row()

    def _write_row(self) -> None:
        writer, recent = self._open(), slice(self._rows, None)
        returns, lengths = self._episodes["returns"][recent], self._episodes["lengths"][recent]
        row = {
            "update": self._updates,
            "steps": self._steps,
            "episodes": len(self._episodes["steps"]),
            "return_mean": float(np.mean(returns)) if returns else None,
            "length_mean": float(np.mean(lengths)) if lengths else None,
        }
        writer.metrics([{**row, **self._numbers}])
        clock = time.perf_counter()
        seconds, done = clock - self._row_time, self._steps - max(self._row_steps, self._first)
        speed = {"steps_per_second": done / max(seconds, 1e-9)}
        writer.timing({"event": "block", "steps": self._steps, "seconds": seconds, **speed})
        writer.status("running", **self._counts())
        self._rows, self._row_steps, self._row_time = len(self._episodes["steps"]), self._steps, clock

    def _save_episodes(self) -> None:
        self._open().episodes(**self._episodes)

    def _counts(self) -> dict[str, Any]:
        episodes = len(self._episodes["steps"])
        return {"steps": self.model.num_timesteps, "updates": self._updates, "episodes": episodes}

    def _open(self) -> RunWriter:
        if self._writer is None:
            raise ConfigError("RunDirectory was told of training before its start: pass it as learn(callback=…)")
        return self._writer


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


def _lam(model: Any) -> float | None:
    return getattr(model, "gae_lambda", None)


def _environment_name(vectorised: Any) -> str:
    try:
        spec = vectorised.get_attr("spec")[0]
    except Exception:  # an environment in another process may fail in any way, and a name is not worth a run
        spec = None
    if spec is not None and getattr(spec, "id", None):
        return str(spec.id)
    several = getattr(vectorised.unwrapped, "envs", None)
    return type(several[0].unwrapped).__name__ if several else "environment"


def _free(out: Path, environment: str, agent: str) -> int:
    """The first number whose run directory does not exist."""
    return next(number for number in count() if not run_path(out, environment, agent, number).exists())


def _provenance(model: Any) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # used from its source tree
            continue
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "device": f"PyTorch: {model.device}",
        "system": platform.platform(),
    }
    return {"command": ["python", *sys.argv], "versions": versions, "machine": machine}
