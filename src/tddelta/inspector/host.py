"""One game in a host environment: what the agent saw and believed, and the screen of an Atari game in colour."""

import dataclasses
import functools
from typing import Any

import numpy as np

from tddelta.deep.atari import Protocol
from tddelta.deep.host import HostEnvironment
from tddelta.deep.host_evaluation import Play
from tddelta.deep.policy import Policy
from tddelta.deep.stepping import spawned_seeds
from tddelta.errors import DataError

_SCREEN: dict[str, Any] = {"height": 210, "width": 160, "grey": False, "stack": 1}


def game(policy: Policy, seed: int, steps: int, *, greedy: bool) -> dict[str, np.ndarray]:
    """Play one game, to its end or for so many steps.

    Args:
        policy: The trained agent.
        seed: Of the environment and the actions.
        steps: At most so many.
        greedy: Whether actions are the most probable ones.

    Returns:
        Arrays of a recording. Where the loss of a life is terminal for the learner, it is in `terminated`, too.

    Raises:
        DataError: The colour screen does not follow the game.
    """
    environment = policy.config.environment_object()
    assert isinstance(environment, HostEnvironment)
    rows: dict[str, list[Any]] = {}
    screen = None if environment.rom is None else _Screen(environment, spawned_seeds(seed, "held-out", 1))
    try:
        with Play(policy.config, policy.learned, 1, seed, "held-out", greedy=greedy) as play:
            for _ in range(steps):
                chosen = play.chosen()
                row = {"observations": play.observations[0], "deltas": np.asarray(chosen.deltas)[0]}
                if screen is not None:
                    row |= {"frames": screen.picture, "lives": screen.lives}
                moves = np.asarray(chosen.moves)
                moved = play.step(moves)
                if screen is not None and screen.step(moves) != (moved.rewards[0], moved.over[0] | moved.truncated[0]):
                    raise DataError(f"{environment.name}: the screen in colour does not follow the game; tell us")
                row |= {"actions": np.asarray(chosen.actions)[0], "rewards": moved.rewards[0]}
                row |= {"terminated": moved.terminated[0], "truncated": moved.truncated[0]}
                for name, value in row.items():
                    rows.setdefault(name, []).append(value)
                if moved.over[0]:
                    break
    finally:
        if screen is not None:
            screen.close()
    return {name: np.asarray(values) for name, values in rows.items()}


class _Screen:
    """The same game once more, in colour: an emulator that gets the same seed and the same actions."""

    def __init__(self, environment: HostEnvironment, seeds: list[int]) -> None:
        make: Any = environment.make
        assert isinstance(make, functools.partial)
        rom, protocol, threads = make.args
        assert isinstance(protocol, Protocol)
        self._made = make.func(rom, dataclasses.replace(protocol, **_SCREEN), threads, 1)
        observation, information = self._made.reset(seed=np.array(seeds))
        self._keep(observation, information)

    def _keep(self, observation: Any, information: Any) -> None:
        self.picture = np.array(observation).reshape(210, 160, 3)
        self.lives = int(information["lives"][0])
        self._frames = int(information["episode_frame_number"][0])

    def step(self, moves: np.ndarray) -> tuple[np.float32, bool]:
        """The reward, and whether the game is over."""
        observation, rewards, terminated, truncated, information = self._made.step(
            moves.astype(self._made.single_action_space.dtype)
        )
        before = self._frames
        self._keep(observation, information)
        over = bool(truncated[0]) or (bool(terminated[0]) and self._frames <= before)
        return np.float32(rewards[0]), over

    def close(self) -> None:
        made, self._made = self._made, None  # emulators end with the last reference
        made.close()
