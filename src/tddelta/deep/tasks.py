"""What a learner knows of an environment, wherever that runs."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """What a learner needs to know of an environment.

    Attributes:
        name: What the user called it.
        observation_space: gymnax space.
        action_space: gymnax space.
        observation_shape: Shape of one observation.
        storage: Data type in which a rollout keeps observations: uint8 for images and binary planes
            (a quarter of the memory of float32, and exact), else float32.
        discrete: Whether actions are integers 0…n−1; else they are real vectors in a box.
        time_limit: Steps after which the environment truncates, or None if it names none.
        first_action: What the environment calls the learner's action 0.
    """

    name: str
    observation_space: Any
    action_space: Any
    observation_shape: tuple[int, ...]
    storage: Any
    discrete: bool
    time_limit: int | None
    first_action: int = 0

    def to_dict(self) -> dict[str, Any]:
        """What of it the run's record says."""
        raise NotImplementedError
