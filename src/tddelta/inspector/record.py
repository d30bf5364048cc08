"""Playing one game with a saved agent, and asking a second critic about the same game."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from tddelta._plain import whole
from tddelta.deep import evaluation, ppo
from tddelta.deep.checkpointing import from_arrays
from tddelta.deep.policy import Policy, config_of, load
from tddelta.deep.tasks import HostEnvironment
from tddelta.errors import ConfigError, own_checks
from tddelta.inspector import host
from tddelta.inspector.frames import from_observations
from tddelta.inspector.recordings import Critic, Recording
from tddelta.runs import Run, one_run
from tddelta.runs.checkpoints import read
from tddelta.runs.scores import Mode

_NO_PICTURE = np.array("what the agent sees is no picture, and nothing here draws this environment")


@own_checks
def record(
    policy: Policy, *, name: str = "critic", seed: int = 0, mode: Mode = "sampled", steps: int = evaluation.RECORDED
) -> Recording:
    """Play one game, and keep what the agent saw, did and believed.

    Args:
        policy: The trained agent.
        name: What to call its critic.
        seed: Of the game; the same seed gives the same game.
        mode: "sampled" follows the policy, "greedy" its most probable action.
        steps: Longest recording, up to 10,000,000.

    Returns:
        The first episode, or as much of it as fits.

    Raises:
        ConfigError: `steps`, `seed` or `mode` is out of range.
    """
    steps, seed = whole("steps", steps, most=evaluation.MOST), whole("seed", seed, 0, most=2**32 - 1)
    if mode not in ("sampled", "greedy"):
        raise ConfigError(f"mode must be sampled or greedy; got {mode!r}")
    import jax

    config = policy.config
    environment = config.environment_object()
    if isinstance(environment, HostEnvironment):
        arrays = host.game(policy, seed, steps, greedy=mode == "greedy")
    else:
        rows, last = evaluation.play(config, policy.learned, jax.random.key(seed), mode == "greedy", steps=steps)
        arrays = evaluation.recording(config, rows, np.asarray(last), longest=steps)
        arrays |= {} if from_observations(arrays["observations"]) is not None else {"no_frames": _NO_PICTURE}
    if config.reward_clipping == "sign":
        arrays |= {"learner_rewards": np.sign(arrays["rewards"])}
    named = {"name": np.array(name), "environment": np.array(environment.name)}
    return Recording.read({**arrays, "gammas": np.array(policy.scales.gammas), **named})


@own_checks
def opinion(policy: Policy, recording: Recording, name: str) -> Critic:
    """What the critic of another agent believes along a recorded game.

    Args:
        policy: The other agent.
        recording: The game, with the observations.
        name: What to call the critic.

    Raises:
        ConfigError: The recording has no observations.
        ShapeError: They are of another shape than the agent's environment has.
    """
    if recording.observations is None:
        raise ConfigError("the recording has no observations, which a second critic needs: record them too")
    return Critic(name, np.array(policy.scales.gammas), policy.components(recording.observations))


@own_checks
def agent_at(path: str | os.PathLike[str], *, environment: Any = None, network: Any = None) -> tuple[Policy, str]:
    """The agent of a run directory, of a folder with one run in it, or of one checkpoint.

    Args:
        path: The directory, or `RUN/checkpoints/NNNNNNNNNN`.
        environment: In place of the stored name; needed for environments of your own.
        network: In place of the stored name; needed for networks of your own.

    Returns:
        The agent, and what to call it.

    Raises:
        ConfigError: There is not exactly one run, or the environment or network has to be passed.
        CheckpointError: Nothing is saved there yet, or it is damaged.
    """
    place = Path(path)
    if (place / "checkpoint.json").exists():
        run = Run(place.absolute().parents[1])
        return _from_checkpoint(run, place, environment, network), f"{_named(run)}, update {int(place.name):,}"
    run = one_run(place)
    return load(run, environment=environment, network=network), _named(run)


def _named(run: Run) -> str:
    return f"{run.agent}, seed {run.seed}"


def _from_checkpoint(run: Run, place: Path, environment: Any, network: Any) -> Policy:
    import jax

    config = config_of(run.config, environment=environment, network=network)
    stored, prefix = read(place).arrays, "learned."
    learned = {name.removeprefix(prefix): array for name, array in stored.items() if name.startswith(prefix)}
    shapes = jax.eval_shape(functools.partial(ppo.initial, config), jax.random.key(0))
    return Policy(config, from_arrays(learned, shapes, str(place)))
