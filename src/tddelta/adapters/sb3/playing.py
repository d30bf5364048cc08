"""Playing with a model beside its training: scores, one recorded episode, and the critic against what came."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from inspect import signature
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import check_for_correct_spaces
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from tddelta.adapters.sb3.answers import watch
from tddelta.adapters.sb3.dqn import DeltaDQN
from tddelta.adapters.sb3.on_policy import DeltaOnPolicy
from tddelta.adapters.sb3.sac import DeltaSAC
from tddelta.decomposition import compose
from tddelta.errors import ConfigError
from tddelta.runs import Arrays
from tddelta.runs.scores import realised_returns, summary

RECORDED = 2_000
"""Longest recorded episode, in steps."""

STREAM_LENGTH, HELD_OUT_STATES = 2_048, 4_096
"""Held-out data: steps in every environment, and states kept of them; as `tddelta.deep.evaluation` has it."""


class Player:
    """A model that plays in environments of its own: no step, random number or statistic of them reaches the training.

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
        """A row of `evaluations.jsonl` without `steps`: episodes with deterministic actions, the same seed each time.

        Args:
            episodes: How many, a fixed quota for each environment.
        """
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
        first: dict[str, list[Any]] = {"observations": [], "actions": []}
        last: np.ndarray | None = None
        with self._playing(self._stream_seed):
            observations = self.env.reset()
            for _ in range(STREAM_LENGTH):
                actions = self._act(observations)
                rows["deltas"].append(self._beliefs(observations, actions))
                if last is None:
                    first["observations"].append(_one(observations))
                    first["actions"].append(np.array(actions[0]))
                observations, rewards, dones, infos = self.env.step(actions)
                cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & dones
                for name, value in (("rewards", rewards), ("terminated", dones & ~cut), ("truncated", cut)):
                    rows[name].append(np.array(value))
                if last is None and (self._over(dones, infos) or len(first["actions"]) == RECORDED):
                    beyond = infos[0]["terminal_observation"] if dones[0] else _one(observations)
                    last = self._beliefs_of_one(beyond)
            if last is None:
                last = self._beliefs_of_one(_one(observations))
        arrays = {name: np.array(row) for name, row in rows.items()}
        gammas = np.asarray(gammas_of(self.model))
        episode: Arrays = {name: array[: len(first["actions"]), 0] for name, array in arrays.items()}
        episode |= {"actions": np.array(first["actions"]), "last_deltas": last, "gammas": gammas}
        if not isinstance(first["observations"][0], dict):  # an archive holds arrays
            episode["observations"] = np.array(first["observations"])
        return _held_out(arrays, gammas), episode

    @contextmanager
    def _playing(self, seed: int) -> Iterator[None]:
        """Play with the training's statistics and random numbers of one's own."""
        ours, theirs = unwrap_vec_normalize(self.env), self.model.get_vec_normalize_env()
        kept = None if ours is None else (ours.training, ours.norm_reward)
        if ours is not None:
            ours.training = ours.norm_reward = False
            if theirs is not None and theirs.norm_obs:
                ours.obs_rms = deepcopy(theirs.obs_rms)
        try:
            with th.random.fork_rng([self.model.device] if self.model.device.type == "cuda" else []):
                th.manual_seed(seed)
                self.env.seed(seed)
                yield
        finally:
            if ours is not None and kept is not None:
                ours.training, ours.norm_reward = kept

    def _act(self, observations: Any) -> np.ndarray:
        drawn = isinstance(self.model, OnPolicyAlgorithm | SAC)
        return self.model.predict(observations, deterministic=not drawn)[0]

    def _over(self, dones: np.ndarray, infos: Any) -> bool:
        """Whether the first environment's game is over; after a life it goes on, and the Monitor below knows that."""
        return bool(dones[0]) and ("episode" in infos[0] or not self._monitored)

    def _beliefs(self, observations: Any, actions: np.ndarray) -> np.ndarray:
        normaliser = self.model.get_vec_normalize_env()
        found = beliefs(self.model, observations, actions)
        if normaliser is not None and normaliser.norm_reward:  # the critic's unit is not the environment's
            found = found * np.float32(np.sqrt(normaliser.ret_rms.var + normaliser.epsilon))
        return found

    def _beliefs_of_one(self, observation: Any) -> np.ndarray:
        several: Any = np.asarray(observation)[None] if not isinstance(observation, dict) else None
        if several is None:
            several = {key: np.asarray(part)[None] for key, part in observation.items()}
        alone: np.ndarray = self._beliefs(several, self._act(several))[0]
        return alone


def gammas_of(model: Any) -> tuple[float, ...]:
    """The discounts that a critic has values for."""
    return tuple(model.scales.gammas) if hasattr(model, "scales") else (float(model.gamma),)


def knows_critic(model: BaseAlgorithm) -> bool:
    """Whether `beliefs` can ask the critic of this model."""
    if isinstance(model, OnPolicyAlgorithm):  # a recurrent one wants its state, too
        policy: Any = model.policy
        return (
            isinstance(policy, ActorCriticPolicy) and "lstm_states" not in signature(policy.predict_values).parameters
        )
    return isinstance(model, DQN | SAC | TD3)


def beliefs(model: Any, observations: Any, actions: np.ndarray) -> np.ndarray:
    """What a critic expects: components of V for PPO and A2C, of Q at these actions for others.

    Args:
        model: A model that `knows_critic`.
        observations: Of B environments, as `predict` takes them.
        actions: What `predict` chose there, (B, …).

    Returns:
        (B, Z), smallest discount first; Z = 1 for SB3's own algorithms. Of several critics the smallest sum.
    """
    if isinstance(model, DeltaOnPolicy):
        return model.predict_components(observations)
    if isinstance(model, DeltaSAC):
        return model.predict_components(observations, actions)
    if isinstance(model, DeltaDQN):
        return np.asarray(model.predict_components(observations)[np.arange(len(actions)), actions.reshape(-1)])
    model.policy.set_training_mode(False)
    tensors, _ = model.policy.obs_to_tensor(observations)
    with th.no_grad():
        if isinstance(model, DQN):
            chosen = th.as_tensor(actions.reshape(-1, 1), device=model.device).long()
            found = model.q_net(tensors).gather(1, chosen)
        elif isinstance(model, OnPolicyAlgorithm):
            found = model.policy.predict_values(tensors)
        else:
            scaled = model.policy.scale_action(actions.astype(np.float32)).reshape(len(actions), -1)
            twins = model.critic(tensors, th.as_tensor(scaled, device=model.device))
            found = th.cat(twins, dim=1).min(dim=1, keepdim=True).values
    array: np.ndarray = found.cpu().numpy()
    return array


def _held_out(arrays: Arrays, gammas: np.ndarray) -> Arrays:
    """Predicted and realised discounted returns, (N, Z), of states spread evenly over streams (T, B, …)."""
    flags = {"terminated": arrays["terminated"], "truncated": arrays["truncated"]}
    both = compose(arrays["deltas"]), realised_returns(arrays["rewards"], gammas, **flags)
    predicted, realised = (np.asarray(part, np.float32).reshape(-1, len(gammas)) for part in both)
    chosen = np.linspace(0, len(predicted) - 1, min(len(predicted), HELD_OUT_STATES)).astype(int)
    return {"predicted": predicted[chosen], "realised": realised[chosen], "gammas": gammas}


def _one(observations: Any) -> Any:
    """The first of several observations, copied, since wrappers write into their arrays again."""
    if isinstance(observations, dict):
        return {key: np.array(part[0]) for key, part in observations.items()}
    return np.array(observations[0])


def _objects(env: VecEnv) -> set[int]:
    """What is below all wrappers, by identity."""
    base = env.unwrapped
    return {id(base), *(id(one.unwrapped) for one in getattr(base, "envs", ()))}
