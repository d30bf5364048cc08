"""Callback that writes a run directory, for our algorithms and for SB3's own."""

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from inspect import signature
from itertools import count
from pathlib import Path
from traceback import walk_tb
from typing import Any

import gymnasium
import numpy as np
import torch as th
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule, check_for_correct_spaces
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from tddelta._plain import whole
from tddelta.adapters import lent
from tddelta.adapters.sb3.answers import environment_name, watch
from tddelta.adapters.sb3.model import DeltaModel, asked
from tddelta.adapters.sb3.off_policy import DeltaDQN, DeltaSAC
from tddelta.adapters.sb3.on_policy import DeltaOnPolicy
from tddelta.errors import ConfigError, StorageError
from tddelta.runs import Arrays, RunWriter, run_path
from tddelta.runs.files import name_of, origin, plain, replace, to_json
from tddelta.runs.recorder import RECORDED, STOPS, STREAM_LENGTH, Recorder, critic_check, library_config, summary
from tddelta.timescales import TimeScales

# Not settings, recorded elsewhere, or without influence on what is learned.
_LEFT_OUT = {
    *("self", "env", "seed", "policy", "device", "verbose", "tensorboard_log", "stats_window_size"),
    *("monitor_wrapper", "supported_action_spaces", "_init_setup_model", "scales", "args", "kwargs"),
    *("rollout_buffer_class", "replay_buffer_class"),
}


def settings_of(model: Any) -> dict[str, Any]:
    """The constructor's arguments as the model keeps them, and its policy class, for strict JSON."""
    names = dict.fromkeys(
        name
        for kind in reversed(type(model).__mro__)
        if "__init__" in vars(kind)
        for name in signature(vars(kind)["__init__"]).parameters
    )
    found = {name: getattr(model, name) for name in names if name not in _LEFT_OUT and hasattr(model, name)}
    return {"policy": model.policy_class.__name__, **plain(found, _described)}


def _described(value: Any) -> Any:
    """A schedule by what it does, everything else by its name."""
    if isinstance(value, FloatSchedule):
        return _described(value.value_schedule)
    if isinstance(value, ConstantSchedule):
        return float(value.val)
    if isinstance(value, LinearSchedule):
        return f"linear from {value.start} to {value.end} at {value.end_fraction}"
    return name_of(value)


_LIBRARY = "stable-baselines3"
_PACKAGES = ("tddelta", _LIBRARY, "torch", "gymnasium", "numpy")


def scales_of(model: Any) -> TimeScales:
    """The discounts that a critic has values for, with their traces."""
    ours = isinstance(model, DeltaModel)
    return model.scales if ours else TimeScales.single(model.gamma, lam=getattr(model, "gae_lambda", None))


class Record(Recorder):
    """Record of one training that says how it ended, although SB3 does not tell.

    Attributes:
        learned_steps: Environment steps at the last update.
        numbers: The last of every metric.
    """

    def __init__(self, writer: RunWriter, steps: int) -> None:
        super().__init__(writer, steps=steps)
        self.learned_steps, self.numbers = steps, dict[str, float]()

    def begin(self, steps: int, total: int | None = None, seconds: float = 0.0) -> None:
        """Begin to measure time, and remember what went wrong before."""
        super().begin(steps, total, seconds)
        self._before = _last_exception()

    def leave(self) -> None:
        """The callback is gone and training is not over: nobody said why, but the interpreter may know."""
        error = _last_exception()
        known = error is not self._before and _in_learn(error)
        self.broke_off(error if known else None, "`learn` did not come to its end")


def _last_exception() -> BaseException | None:
    """The exception that the interpreter met last and nobody caught."""
    found: BaseException | None = getattr(sys, "last_value", None)
    return found


def _in_learn(error: BaseException | None) -> bool:
    """True for an exception that came out of SB3's `learn`."""
    codes = (frame.f_code for frame, _ in walk_tb(error.__traceback__)) if error is not None else ()
    return any(code.co_name == "learn" and "stable_baselines3" in code.co_filename for code in codes)


class Player:
    """Model that plays in environments of its own: no step, random number or statistic of them reaches the training.

    Args:
        model: The model.
        given: An environment, a vector of some, or the name of one; as the training's, but other objects.
        number: Number of the run, from which the seeds follow.

    Raises:
        ConfigError: The environments are those of the training, or of other spaces, or are normalised otherwise.
    """

    def __init__(self, model: BaseAlgorithm, given: Any, number: int) -> None:
        self.model = model
        self._made = isinstance(given, str)
        training = model.get_env()
        wrapped = model._wrap_env(make_vec_env(given) if isinstance(given, str) else given, 0)
        if training is not None and _objects(training) & _objects(wrapped):
            raise ConfigError(
                "eval_env is the environment of the training, whose episodes an evaluation would cut: make another one"
            )
        try:
            check_for_correct_spaces(wrapped, model.observation_space, model.action_space)
        except ValueError as error:
            raise ConfigError(
                f"eval_env must have the spaces that the model trains on ({error}): wrap it as the training's"
            ) from error
        self.env, self._monitored = wrapped, wrapped.env_is_wrapped(Monitor)[0]
        ours, theirs = unwrap_vec_normalize(wrapped), model.get_vec_normalize_env()
        if (ours is not None and ours.norm_obs) != (theirs is not None and theirs.norm_obs):
            raise ConfigError(
                "eval_env must normalise observations if the training does, and not else: wrap both in VecNormalize, "
                "or none"
            )
        watch(wrapped)
        self._score_seed, self._stream_seed = (
            int(seed) >> 1 for seed in np.random.SeedSequence(number).generate_state(2)
        )

    def close(self) -> None:
        """Close the environments if they were made here."""
        if self._made:
            self.env.close()

    def scores(self, episodes: int) -> dict[str, Any]:
        """A row of `evaluations.jsonl` without `steps`: so many episodes with the best actions, alike each time."""
        with self._playing(self._score_seed):
            found: Any = evaluate_policy(self.model, self.env, episodes, return_episode_rewards=True)
        scores, sizes = np.asarray(found[0], np.float64), np.asarray(found[1], np.int64)
        return summary(scores, sizes, mode="greedy", seed=self._score_seed, unfinished=0)

    def hold_out(self) -> tuple[Arrays, Arrays] | None:
        """Play as the critic expects it: drawn actions for PPO, A2C and SAC, the best ones for DQN and TD3.

        Returns:
            What `critic.npz` and `rollout.npz` hold, in units of the environment's reward; None for algorithms whose
            critic is not known here.
        """
        if not knows_critic(self.model):
            return None
        rows: dict[str, list[Any]] = {name: [] for name in ("rewards", "deltas", "terminated", "truncated")}
        seen: list[Any] = []
        acted: list[np.ndarray] = []
        last: np.ndarray | None = None  # once the first episode of the first environment is over
        with self._playing(self._stream_seed):
            observations = self.env.reset()
            for step in range(STREAM_LENGTH):
                actions = self._act(observations)
                rows["deltas"].append(self._beliefs(observations, actions))
                if last is None:
                    # Copied, since wrappers write into their arrays again.
                    seen.append(_mapped(lambda part: np.array(part[0]), observations))
                    acted.append(np.array(actions[0]))
                observations, rewards, dones, infos = self.env.step(actions)
                cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & dones
                for name, value in (("rewards", rewards), ("terminated", dones & ~cut), ("truncated", cut)):
                    rows[name].append(np.array(value))
                # A game goes on after a life, as the Monitor below knows.
                over = dones[0] and ("episode" in infos[0] or not self._monitored)
                if last is None and (over or len(acted) == RECORDED or step == STREAM_LENGTH - 1):
                    alone = _mapped(lambda part: part[:1], observations)
                    if dones[0]:
                        alone = _mapped(lambda part: np.asarray(part)[None], infos[0]["terminal_observation"])
                    last = self._beliefs(alone, self._act(alone))[0]
        arrays = {name: np.array(row) for name, row in rows.items()}
        gammas = np.asarray(scales_of(self.model).gammas)
        episode: Arrays = {name: array[: len(acted), 0] for name, array in arrays.items()}
        episode |= {"actions": np.array(acted), "last_deltas": np.asarray(last), "gammas": gammas}
        if not isinstance(seen[0], dict):  # an archive holds arrays
            episode["observations"] = np.array(seen)
        return critic_check(gammas=gammas, **arrays), episode

    @contextmanager
    def _playing(self, seed: int) -> Iterator[None]:
        """Play with the training's statistics and random numbers of one's own."""
        ours, theirs = unwrap_vec_normalize(self.env), self.model.get_vec_normalize_env()
        if ours is not None and theirs is not None and theirs.norm_obs:
            ours.obs_rms = deepcopy(theirs.obs_rms)
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        still = nullcontext() if ours is None else lent(ours, training=False, norm_reward=False)
        with still, th.random.fork_rng(devices):
            th.manual_seed(seed)
            self.env.seed(seed)
            yield

    def _act(self, observations: Any) -> np.ndarray:
        drawn = isinstance(self.model, OnPolicyAlgorithm | SAC)
        return self.model.predict(observations, deterministic=not drawn)[0]

    def _beliefs(self, observations: Any, actions: np.ndarray) -> np.ndarray:
        normaliser = self.model.get_vec_normalize_env()
        found = beliefs(self.model, observations, actions)
        if normaliser is not None and normaliser.norm_reward:  # the critic's unit is not the environment's
            found = found * np.float32(np.sqrt(normaliser.ret_rms.var + normaliser.epsilon))
        return found


def knows_critic(model: BaseAlgorithm) -> bool:
    """True where `beliefs` can ask the critic of this model."""
    if not isinstance(model, OnPolicyAlgorithm):
        return isinstance(model, DQN | SAC | TD3)
    policy: Any = model.policy  # a recurrent one wants its state, too
    return isinstance(policy, ActorCriticPolicy) and "lstm_states" not in signature(policy.predict_values).parameters


def beliefs(model: Any, observations: Any, actions: np.ndarray) -> np.ndarray:
    """Components of the critic of a model that `knows_critic`: of V for PPO and A2C, of Q at actions for others.

    Args:
        model: The model.
        observations: Of B environments, as `predict` takes them.
        actions: What `predict` chose there, (B, …).

    Returns:
        (B, Z), smallest discount first; Z = 1 for SB3's own algorithms. Of several critics the smallest sum.
    """
    if isinstance(model, DeltaOnPolicy):
        return model.predict_components(observations)
    if isinstance(model, DeltaSAC):
        return model.predict_components(observations, actions)
    every, chosen = np.arange(len(actions)), actions.reshape(len(actions), -1)
    if isinstance(model, DeltaDQN):
        return np.asarray(model.predict_components(observations)[every, chosen[:, 0]])

    def ask(tensors: Any, several: bool) -> Any:
        if isinstance(model, OnPolicyAlgorithm):
            return model.policy.predict_values(tensors)
        if isinstance(model, DQN):
            return model.q_net(tensors)[every, chosen[:, 0], None]
        scaled = model.policy.scale_action(actions.astype(np.float32)).reshape(len(actions), -1)
        twins = model.critic(tensors, th.as_tensor(scaled, device=model.device))
        return th.cat(twins, dim=1).min(dim=1, keepdim=True).values

    return asked(model, observations, ask)


def _mapped(change: Callable[[Any], Any], observation: Any) -> Any:
    """An observation changed, each part of one that is a dictionary."""
    if isinstance(observation, dict):
        return {key: change(part) for key, part in observation.items()}
    return change(observation)


def _objects(env: VecEnv) -> set[int]:
    """Environments below all wrappers, by identity."""
    base = env.unwrapped
    return {id(base), *(id(one.unwrapped) for one in getattr(base, "envs", ()))}


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
        self.seed = _optional("seed", seed, 0, "leave it out for the seed of the model")
        self.every = _optional("every", every, 1, "leave it out for the default")
        self.eval_every = _optional("eval_every", eval_every, 1, "leave it out for one at the end")
        advice = f"leave it out for {EVALUATION_EPISODES}, or leave eval_env out for none"
        self.eval_episodes = whole("eval_episodes", eval_episodes, advice=advice)
        self.path: Path | None = None
        self._record: Record | None = None
        self._player: Player | None = None

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
            record.broke_off(error)

    def _on_training_start(self) -> None:
        model = self.model
        if self._record is not None and model.num_timesteps < self._record.steps:
            self._record = None  # trained from the start again: another run
        if self._record is None:
            name, agent = self.environment or environment_name(self.training_env), self.agent or type(model).__name__
            number = self.seed if self.seed is not None else model.seed
            if number is None:
                number = next(one for one in count() if not run_path(self.out, name, agent, one).exists())
            self._named = name, agent, number
        watch(self.training_env)  # of SB3's own algorithms; ours have done it
        # Before anything is written: what does not fit is told now, not after the training.
        self._player = None if self.eval_env is None else Player(model, self.eval_env, self._named[-1])
        more: dict[str, Any] = {"steps": model._total_timesteps, "settings": settings_of(model)}
        more["environment_parameters"] = {"n_envs": model.n_envs}
        config = library_config(_LIBRARY, model, self._named, scales_of(model), **more)
        if self._record is None:
            self._record = self._begun(config)
        else:
            writer = self._record.writer
            writer.reopen()
            replace(writer.path / "config.json", to_json(config))
            writer.status("running")
        self._record.begin(model.num_timesteps, model._total_timesteps)
        self._returns, self._lengths = np.zeros(model.n_envs), np.zeros(model.n_envs, np.int64)
        self._learned = model._n_updates

    def _begun(self, config: dict[str, Any]) -> Record:
        path = run_path(self.out, *self._named)
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
        provenance = origin((), _PACKAGES, f"PyTorch: {self.model.device}")
        if self.eval_env is not None:
            provenance["options"] = {"eval_every": self.eval_every, "eval_episodes": self.eval_episodes}
        record = Record(RunWriter(path, config, provenance), self.model.num_timesteps)
        self.path = path
        weakref.finalize(self, record.leave)
        return record

    def _on_step(self) -> bool:
        record = self._record_of()
        record.steps = self.num_timesteps
        normaliser = self.model.get_vec_normalize_env()
        self._returns += self.locals["rewards"] if normaliser is None else normaliser.get_original_reward()
        self._lengths += 1
        ended = np.flatnonzero(self.locals["dones"])
        for place in ended:
            # Monitor counts below wrappers that change rewards or episodes.
            seen = self.locals["infos"][place].get("episode", {})
            returned, length = seen.get("r", self._returns[place]), seen.get("l", self._lengths[place])
            record.add_episodes([record.steps], [float(returned)], [int(length)])
            self._returns[place], self._lengths[place] = 0.0, 0
        if len(ended):
            record.save_episodes()
        if self._player and self.eval_every is not None and self.num_timesteps < self.model._total_timesteps:
            before = self.num_timesteps - self.model.n_envs
            if self.num_timesteps // self.eval_every > before // self.eval_every:
                with record.apart():
                    record.evaluation(self._player.scores(self.eval_episodes))
        return True

    def _on_rollout_start(self) -> None:
        self._see_update()

    def _on_rollout_end(self) -> None:
        if isinstance(self.model, OnPolicyAlgorithm):  # before the buffer is emptied
            self._record_of().numbers["value_mean"] = float(self.model.rollout_buffer.values.mean())

    def _on_training_end(self) -> None:
        record = self._record_of()
        self._see_update(now=True)
        self._save_parameters(record)
        record.end()
        if self._player is not None:
            record.evaluation(self._player.scores(self.eval_episodes))
            found = self._player.hold_out()
            if found is not None:
                record.held_out(*found)
            self._player.close()
        total = self.model._total_timesteps
        stopped = record.steps < total
        message = f"stopped by a callback after {record.steps} of {total} steps" if stopped else None
        record.close("interrupted" if stopped else "finished", message)

    def _save_parameters(self, record: Record) -> None:
        tensors = {name: tensor.detach().cpu().numpy() for name, tensor in self.model.policy.state_dict().items()}
        record.save_parameters(tensors, self._named[0])

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
            record.block(record.numbers, record.learned_steps)

    def _record_of(self) -> Record:
        if self._record is None:
            raise ConfigError("RunDirectory was told of training before its start: pass it as learn(callback=…)")
        return self._record


def _optional(name: str, value: Any, least: int, advice: str) -> int | None:
    return None if value is None else whole(name, value, least, advice=advice)


def _numbers(logged: Any) -> dict[str, float]:
    """Numbers of the last update in SB3's logger, under the names of `metrics.jsonl`."""
    found = {}
    for key, value in logged.items():
        if not isinstance(value, int | float | np.number):
            continue
        group, _, rest = key.partition("/")
        if group == "train":
            name, factor = _NAMES.get(rest, (rest, 1.0))
            found[name] = factor * float(value)
        elif rest.startswith("gamma="):
            found[key] = (0.5 if group == "value_loss" else 1.0) * float(value)
    return found
