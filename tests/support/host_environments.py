"""Environments of Gymnasium with a script, for the tests of the host's path."""

import functools
import os
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tddelta.deep import ppo, probes


class Counting(gymnasium.Env):
    """Episodes of `length` steps with reward 1; the observation is the step, and a number of this episode's own.

    The first two episodes of the i-th environment made are i steps longer where `uneven` is set.
    """

    observation_space = gymnasium.spaces.Box(-10.0, 100.0, (2,), np.float64)
    action_space: gymnasium.Space = gymnasium.spaces.Discrete(2)
    made: ClassVar[list["Counting"]] = []

    def __init__(self, length: int = 3, truncates: bool = False, uneven: bool = False) -> None:
        self.length, self.truncates, self.episodes, self.closed = length, truncates, 0, False
        self.longer = len(self.made) if uneven else 0
        self.actions: list[Any] = []
        self.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock, self.own = 0, float(self.np_random.random())
        self.episodes += 1
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.clock, self.own])

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.actions.append(action)
        self.clock += 1
        ends = self.clock == self.length + (self.longer if self.episodes <= 2 else 0)
        return self.seen(), 1.0, ends and not self.truncates, ends and self.truncates, {}

    def close(self) -> None:
        self.closed = True


class Shifted(Counting):
    """Actions are -1, 0 and 1."""

    action_space = gymnasium.spaces.Discrete(3, start=-1)


class Pushed(Counting):
    """The action is two forces in small boxes."""

    action_space = gymnasium.spaces.Box(np.float32([-0.1, 0.0]), np.float32([0.1, 0.2]))


class Rooms(Counting):
    """The observation is a dictionary."""

    observation_space = gymnasium.spaces.Dict(
        {"place": gymnasium.spaces.Discrete(3), "speed": gymnasium.spaces.Box(0, 1, (2,))}
    )

    def seen(self) -> Any:
        return {"place": 1, "speed": np.float32([0.25, 0.5])}


class StuckError(Exception):
    """An exception that is lost on its way from one process to another: it cannot be made from one argument."""

    def __init__(self, valve: str, state: str) -> None:
        super().__init__(f"the {valve} is {state}")


class Broken(Counting):
    """Raises in its tenth step."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if len(self.actions) == 9:
            raise StuckError("valve", "stuck")
        return super().step(action)


class Killed(Counting):
    """Its process ends in its tenth step, as when memory runs out."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if len(self.actions) == 9:
            os._exit(9)
        return super().step(action)


class Lives(SyncVectorEnv):
    """Tells how long the game has been going on, as ale-py does: the loss of a life ends, and the game goes on."""

    rewards = (0, 7, -4, 0, 2, 100)

    def __init__(self, num_envs: int) -> None:
        super().__init__([lambda: Counting(length=6)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self.clock = np.zeros(num_envs, int)

    def reset(self, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observations, information = super().reset(**given)
        return observations, {**information, "episode_frame_number": 4 * self.clock}

    def step(self, actions: Any) -> tuple[Any, ...]:
        observations, _, over, truncated, information = super().step(actions)
        rewards = np.array(self.rewards)[self.clock]
        self.clock = np.where(over, 0, self.clock + 1)
        lost = over | (self.clock % 2 == 0)  # three lives of two steps
        return observations, rewards, lost, truncated, {**information, "episode_frame_number": 4 * self.clock}


class Poisoned(Counting):
    """The reward of the second environment made is no number in its ninth step."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        seen, reward, *rest = super().step(action)
        second = self.made.index(self) % 3 == 2  # the first shows the spaces only
        return seen, np.nan if second and len(self.actions) == 9 else reward, *rest


class Reusing(Counting):
    """Gives one array again and again, whichever of its kind is asked, and information that cannot be merged."""

    array: ClassVar[np.ndarray] = np.zeros(2)

    def seen(self) -> np.ndarray:
        self.array[:] = super().seen()
        return self.array

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        *rest, _ = super().step(action)
        first = self.clock % 2
        unlike = np.zeros(self.clock), "text" if first else 3, {"deep": {} if first else np.zeros((2, 2))}
        return *rest, dict(zip("abc", unlike, strict=True)) | {"episode_frame_number": "none"}


class OfProbe(gymnasium.Env):
    """An environment of `tddelta.deep.probes` on the host."""

    def __init__(self, name: str, limit: int | None = None) -> None:
        probe, self.limit = getattr(probes, name)(), limit
        shape = probe.observation_space(probe.default_params).shape
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(probe.actions)
        self._step = functools.partial(_probe_step, name)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.choice = 0, -1
        return self._step(-1, -1, 0)[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.choice = int(action) if self.time == 0 else self.choice
        seen, reward, ended = self._step(min(self.time, 50), self.choice, int(action))
        self.time += 1
        return seen, reward, ended, not ended and self.time == self.limit, {}


@functools.cache
def _probe_step(name: str, time: int, choice: int, action: int) -> Any:
    """(observation, reward, ended) of a step after so much time; time −1 is the reset."""
    probe, key, move = getattr(probes, name)(), jax.random.key(0), jnp.int32(action)
    state = probes.Clock(time=jnp.int32(time + 1), choice=jnp.int32(choice))
    reward, ended = probe.outcome(key, state, move)
    seen = np.asarray(probe.observe(key, state, move, probe.default_params), np.float32)
    return seen, float(reward), bool(ended)


def vectors(mode: AutoresetMode, kind: Any = Counting, **options: Any) -> Any:
    """A factory of vector environments with this automatic reset."""

    def make(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: kind(**options)] * num_envs, autoreset_mode=mode)

    return make


def vectors_of_counting(num_envs: int, length: int = 3) -> SyncVectorEnv:
    """Vector environments under a name of their own, which reset themselves in the next step."""
    made: SyncVectorEnv = vectors(AutoresetMode.NEXT_STEP, length=length)(num_envs)
    return made


TINY: dict[str, Any] = {
    "environments": 2,
    "rollout_length": 6,
    "epochs": 1,
    "minibatches": 1,
    "hidden_sizes": (8,),
    "steps": 48,
    "scales": (2.0, 5.0, 20.0),
}


def tiny(environment: Any, agent: str = "ppo-delta", **settings: Any) -> ppo.Config:
    """A configuration whose programs compile fast, with settings as the programs take them."""
    config: ppo.Config = jax.tree.map(float, ppo.preset(environment, agent, **{**TINY, **settings}))
    return config


gymnasium.register("HostCounting-v0", entry_point="host_environments:Counting", max_episode_steps=50)
gymnasium.register("HostBroken-v0", entry_point="host_environments:Broken")
gymnasium.register("HostKilled-v0", entry_point="host_environments:Killed")
gymnasium.register("HostVectors-v0", vector_entry_point="host_environments:vectors_of_counting")
gymnasium.register("HostRooms-v0", entry_point="host_environments:Rooms")
