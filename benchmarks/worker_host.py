"""Trains an agent of tddelta on an Atari game when told to, or only steps the game; run by `host_speed.py`."""

from typing import Any

import jax
import numpy as np
from worker import Settings, serve

from tddelta.deep import environments, ppo
from tddelta.deep.host import Vector, spawned_seeds
from tddelta.deep.training import HostTraining

STEPS = 1000


def make(settings: Settings) -> tuple[Any, Any, int]:
    """Return what trains one rollout, its first state and its steps; or, for the agents "ale" and "vector", plays."""
    if settings.agent in ("ale", "vector"):
        return _stepping(settings)
    config = ppo.preset(settings.environment, settings.agent, **settings.shared, steps=10**9)
    config = jax.tree.map(float, config)
    player = HostTraining(config, settings.seed)

    def block(state: Any) -> Any:
        return player.update(config, state)[0]

    return block, player.programs.init(config, jax.random.key(settings.seed)), config.batch


def _stepping(settings: Settings) -> tuple[Any, Any, int]:
    """Steps of random actions: of ale-py's environment itself, or as the learner makes them."""
    environment = environments.resolve(settings.environment)
    seeds = spawned_seeds(settings.seed, "train", settings.environments)
    choices = np.random.default_rng(0).integers(0, environment.action_space.n, (STEPS, settings.environments))
    choices = choices.astype(np.int32)
    if settings.agent == "vector":
        vector = Vector(environment, seeds)
        vector.reset()

        def block(state: None) -> None:
            for actions in choices:
                vector.begin(actions)
                vector.finish()
    else:
        made = environment.make(settings.environments)
        made.reset(seed=np.array(seeds))

        def block(state: None) -> None:
            for actions in choices:
                made.step(actions)

    return block, None, STEPS * settings.environments


if __name__ == "__main__":
    serve(make, wait=jax.block_until_ready)
