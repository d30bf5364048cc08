"""Callback of RLlib that writes a run directory, with scores, the critic and an episode played apart from training."""

import os
import random
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from tddelta._plain import whole
from tddelta.adapters.rllib.ppo import DeltaPPO, Steps
from tddelta.errors import ConfigError
from tddelta.runs import RunWriter, run_path
from tddelta.runs.files import name_of, origin, plain
from tddelta.runs.recorder import HELD_OUT_STATES, RECORDED, Recorder, critic_check, library_config, summary

_PACKAGES = ("tddelta", "ray", "torch", "gymnasium", "numpy")

# Where RLlib's name is not that of `metrics.jsonl`; the number is a factor. RLlib squares errors without a half.
_NAMES = {
    "policy_loss": ("policy_loss", 1.0),
    "entropy": ("entropy", 1.0),
    "mean_kl_loss": ("approximate_kl", 1.0),
    "vf_loss": ("value_loss", 0.5),
    "value_loss": ("value_loss", 0.5),
    "explained_variance": ("explained_variance", 1.0),
    "vf_explained_var": ("explained_variance", 1.0),
    "value_mean": ("value_mean", 1.0),
    "default_optimizer_learning_rate": ("learning_rate", 1.0),
}


def components(learner: Any, episodes: list[Any]) -> list[np.ndarray]:
    """W along episodes, (T + 1, Z) each, the last at the observation after the last step.

    Args:
        learner: Of a `DeltaPPO`, as in `algorithm.learner_group.foreach_learner(partial(components, episodes=…))`.
        episodes: Single-agent episodes, such as an env runner samples; they stay as they are.
    """
    copies = deepcopy(episodes)  # the pipeline adds a step to them
    batch = learner._learner_connector(rl_module=learner.module, batch={}, episodes=copies, shared_data={})
    module = learner.module[DEFAULT_MODULE_ID].unwrapped()
    steps = Steps(module, DEFAULT_MODULE_ID, batch[DEFAULT_MODULE_ID], copies)
    return np.split(steps.deltas, np.cumsum([len(episode) for episode in copies])[:-1])


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Give the training its random numbers back: RLlib draws from those of the process, and seeds them."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def play(algorithm: Any, seed: int, **amount: Any) -> list[Any]:
    """Sample episodes one after the other, in an environment apart, with the training's networks and connectors.

    In one environment only: of several side by side those that end first would be the short episodes.

    Args:
        algorithm: A single-agent algorithm.
        seed: Of environments and actions.
        **amount: As of RLlib's `EnvRunner.sample`.

    Raises:
        ConfigError: There is no env runner in this process, and none of the others lives.
    """
    config = algorithm.config.copy(copy_frozen=False).callbacks(RLlibCallback).debugging(seed=seed)
    config = config.env_runners(num_env_runners=0, num_envs_per_env_runner=1)
    state = _state_of_connectors(algorithm)
    with _own_random_numbers():
        runner = SingleAgentEnvRunner(config=config, worker_index=0)
        try:
            weights = {COMPONENT_RL_MODULE: algorithm.learner_group.get_weights()[DEFAULT_MODULE_ID]}
            runner.set_state({**state, **weights})
            return [episode.to_numpy() for episode in runner.sample(**amount)]
        finally:
            runner.stop()


def _state_of_connectors(algorithm: Any) -> dict[str, Any]:
    """State of an env runner besides weights: of the one in this process, else of the first that lives."""
    asked = {"not_components": COMPONENT_RL_MODULE}
    if algorithm.env_runner is not None:
        return dict(algorithm.env_runner.get_state(**asked))
    states = algorithm.env_runner_group.foreach_env_runner("get_state", kwargs=asked, local_env_runner=False)
    if not states:
        raise ConfigError(
            "an env runner must live that has the state of the connectors; got none of "
            f"{algorithm.config.num_env_runners}: leave create_local_env_runner=False out"
        )
    return dict(states[0])


class RunDirectory(RLlibCallback):
    """Writes `OUT/ENVIRONMENT/AGENT/seed-N/`, which `tddelta report` and `tddelta inspect` read.

        config = DeltaPPOConfig().callbacks(partial(RunDirectory, "runs"))

    It begins with the first iteration. `algorithm.stop()` ends it: then the agent plays, with scores of the best
    actions for `evaluations.jsonl`, and with drawn ones for an episode in `rollout.npz` and the critic against what
    came in `critic.npz`. A run that is not stopped is "interrupted", one that raised is "failed". An algorithm from a
    checkpoint begins the directory anew, and an unfinished one there is renamed. One agent only.

    Args:
        out: The folder above.
        environment: Name of the environment; None is that of the config.
        agent: Name of the agent; None is the class of the algorithm.
        seed: N; None is the seed of the config, else the first N that is free.
        eval_every: Iterations between two evaluations; None is one at the end.
        eval_episodes: Episodes of each.

    Raises:
        ConfigError: `out` is no path or a number is out of range; with the first iteration: there are several agents,
            another algorithm than `DeltaPPO`, or a finished or other run there.
        StorageError: A file cannot be written.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        environment: str | None = None,
        agent: str | None = None,
        seed: int | None = None,
        eval_every: int | None = None,
        eval_episodes: int = 20,
    ) -> None:
        super().__init__()
        if not isinstance(out, str | os.PathLike):
            raise ConfigError(
                f'out must be a path; got {out!r:.80}: name a folder, as in partial(RunDirectory, "runs")'
            )
        self.out, self.environment, self.agent = Path(out), environment, agent
        self.seed = None if seed is None else whole("seed", seed, 0, advice="leave it out for that of the config")
        self.eval_every = eval_every and whole("eval_every", eval_every, advice="leave it out for one at the end")
        self.eval_episodes = whole("eval_episodes", eval_episodes, advice="leave it out for 20")
        self._record: Recorder | None = None

    def on_episode_end(
        self, *, episode: Any, metrics_logger: Any, prev_episode_chunks: Any = None, **kwargs: Any
    ) -> None:
        """In an env runner: tell return and length of an episode, which may have begun in an earlier iteration."""
        returned = float(sum(part.get_return() for part in [*(prev_episode_chunks or ()), episode]))
        metrics_logger.log_value(("every_episode", "returns"), returned, reduce="item_series")
        # Not the sum of their lengths: a learner in this process has made earlier parts longer by its extra step.
        metrics_logger.log_value(("every_episode", "lengths"), getattr(episode, "t", 0), reduce="item_series")

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Write a line of metrics, and what ended since the last one."""
        sampled = result.get("env_runners", {})
        if not sampled.get("num_env_steps_sampled", 0) > 0:  # NaN, too: all env runners are lost, nothing was learned
            return
        steps = int(result["num_env_steps_sampled_lifetime"])
        if self._record is None:
            self._begin(algorithm, steps - int(sampled["num_env_steps_sampled"]), result["time_this_iter_s"])
        record = self._record
        assert record is not None
        record.steps, record.updates = steps, record.updates + 1
        ended = sampled.get("every_episode", {})
        # RLlib makes a number of a list of one.
        returns, lengths = (np.atleast_1d(ended.get(name, [])) for name in ("returns", "lengths"))
        record.add_episodes([steps] * len(returns), returns, lengths)
        record.save_episodes()
        numbers = _numbers(result["learners"].get(DEFAULT_MODULE_ID, {}))
        record.block(numbers, seconds=result["time_this_iter_s"])
        if self.eval_every and result["training_iteration"] % self.eval_every == 0:
            with record.apart():
                self._evaluate(algorithm, record)

    def on_training_end(self, algorithm: Any) -> None:
        """Play, and write down what was learned; from `DeltaPPO.stop`."""
        record, self._record = self._record, None
        if record is None:
            return
        try:
            weights = algorithm.learner_group.get_weights()[DEFAULT_MODULE_ID]
            tensors = {name: np.asarray(tensor) for name, tensor in weights.items()}
            record.save_parameters(tensors, self._named[0])
            record.end()
            self._evaluate(algorithm, record)
            self._hold_out(algorithm, record)
            record.close("finished")
        except BaseException as error:
            record.broke_off(error)
            raise

    def on_training_error(self, error: BaseException) -> None:
        """Write down that training ended with this exception; from `DeltaPPO.train`."""
        record, self._record = self._record, None
        if record is not None:
            record.broke_off(error)

    def _begin(self, algorithm: Any, first: int, seconds: float) -> None:
        config = algorithm.config
        if config.is_multi_agent or not isinstance(algorithm, DeltaPPO):
            what = "several agents" if config.is_multi_agent else f"a {type(algorithm).__name__}"
            raise ConfigError(
                f"RunDirectory records one agent of a DeltaPPO; got {what}: leave it out, or use DeltaPPOConfig with "
                'scales("single"), which learns as RLlib\'s PPO'
            )
        environment = self.environment or (config.env if isinstance(config.env, str) else config.env.__name__)
        agent = self.agent or type(algorithm).__name__
        number = config.seed if self.seed is None else self.seed
        if number is None:
            number = next(one for one in count() if not run_path(self.out, environment, agent, one).exists())
        self._named = environment, agent, int(number)
        more = {"environment_kwargs": plain(config.env_config, name_of), "settings": settings_of(config)}
        scales = config.get_config_for_module(DEFAULT_MODULE_ID).ladder
        content = library_config("rllib", algorithm, self._named, scales, **more)
        path = run_path(self.out, *self._named)
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = RunWriter(path, content, origin((), _PACKAGES, "PyTorch"), resume=path.exists())
        self._record = record = Recorder(writer)
        record.begin(first, seconds=seconds)
        # Whoever is not stopped says so once the callback is gone, at the latest when the process ends.
        weakref.finalize(self, record.broke_off, None, "`stop` was not called")

    def _seeds(self) -> tuple[int, int]:
        first, second = np.random.SeedSequence(self._named[-1]).generate_state(2) >> 2
        return int(first), int(second)

    def _evaluate(self, algorithm: Any, record: Recorder) -> None:
        seed = self._seeds()[0]
        episodes = play(algorithm, seed, num_episodes=self.eval_episodes, explore=False)
        scores = np.array([episode.get_return() for episode in episodes], np.float64)
        lengths = np.array([len(episode) for episode in episodes], np.int64)
        record.evaluation(summary(scores, lengths, mode="greedy", seed=seed, unfinished=0))

    def _hold_out(self, algorithm: Any, record: Recorder) -> None:
        """Play with drawn actions, which the critic expects, and compare what it said with what came."""
        number = HELD_OUT_STATES
        episodes = play(algorithm, self._seeds()[1], num_timesteps=number, explore=True)
        asked = partial(components, episodes=episodes)
        found = next(iter(algorithm.learner_group.foreach_learner(asked))).get()
        parts = []
        for episode, deltas in zip(episodes, found, strict=True):
            last = np.arange(len(episode)) == len(episode) - 1
            ended = last & bool(episode.is_terminated)
            rewards = np.asarray(episode.get_rewards(), np.float64)
            parts.append({"rewards": rewards, "deltas": deltas[:-1], "terminated": ended, "truncated": last & ~ended})
        gammas = np.asarray(algorithm.config.get_config_for_module(DEFAULT_MODULE_ID).ladder.gammas)
        stream = {name: np.concatenate([part[name] for part in parts])[:, None] for name in parts[0]}
        shown = {name: column[:RECORDED] for name, column in parts[0].items()}
        length = len(shown["rewards"])
        shown |= {"actions": np.asarray(episodes[0].get_actions())[:length], "gammas": gammas}
        shown["last_deltas"] = found[0][length]
        observations = episodes[0].get_observations()
        if isinstance(observations, np.ndarray):  # an archive holds arrays
            shown["observations"] = observations[:length]
        record.held_out(critic_check(gammas=gammas, **stream), shown)


def settings_of(config: Any) -> dict[str, Any]:
    """The settings that are not those of a fresh `AlgorithmConfig`, for strict JSON."""
    apart = {"callbacks", "env", "env_config", "seed", "time_scales", "model"}
    fresh, given = AlgorithmConfig().to_dict(), config.to_dict()
    given["model_config"] = {name: value for name, value in config.model_config.items() if name != "scales"}
    kept = {name: value for name, value in given.items() if name not in apart and not name.startswith("_")}
    found, usual = plain(kept, name_of), plain(fresh, name_of)
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of RLlib's results under the names of `metrics.jsonl`."""
    numbers: dict[str, float] = {}
    for key, (name, factor) in _NAMES.items():
        value = found.get(key)
        if isinstance(value, Mapping):
            numbers |= {f"{name}/{label}": factor * float(each) for label, each in sorted(value.items())}
        elif value is not None:
            numbers[name] = factor * float(value)
    return numbers
