"""What the paper measures beside training scores: hold-out episodes on Atari, and how often rewards come."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tddelta.deep.evaluation import Mode
from tddelta.deep.host import HostEnvironment
from tddelta.deep.policy import Policy
from tddelta.deep.stepping import Vector, spawned_seeds
from tddelta.errors import ConfigError, own_checks

LONGEST_START = 30
"""No-ops beyond the usual start: 0 to one fewer than this."""

NO_OP = 0
"""Action of every Atari game that does nothing."""

_DENSITY_ENVIRONMENTS = 8


@own_checks
def hold_out(policy: Policy, *, episodes: int = LONGEST_START, mode: Mode = "sampled", seed: int = 0) -> dict[str, Any]:
    """Whole games of an Atari game, the i-th after i no-ops on top of the usual start.

    The no-ops are steps of the agent, of as many frames as any other; what they score counts. A game that is over
    before them starts anew.

    Args:
        policy: The agent.
        episodes: Number of games ≥ 1, each in an environment of its own; from the 31st on they begin with 0, 1, …
            no-ops again.
        mode: "sampled" follows the policy, "greedy" its most probable action.
        seed: Of the evaluation.

    Returns:
        A row for `evaluations.jsonl`, without `steps`: as that of `evaluation.evaluate`, with `starts`, "no-ops", and
        `no_ops`, how many each game began with. Scores are raw.

    Raises:
        ConfigError: If `episodes` or `mode` is out of range, or the environment is no Atari game.
    """
    environment = policy.config.environment_object()
    if not isinstance(environment, HostEnvironment) or environment.rom is None:
        raise ConfigError(
            f"no-op starts are for Atari games, where action {NO_OP} does nothing; got {environment.name}: evaluate it "
            "without them"
        )
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1; got {episodes}")
    if mode not in ("sampled", "greedy"):
        raise ConfigError(f"mode must be sampled or greedy; got {mode!r}")
    no_ops = np.arange(episodes) % LONGEST_START
    scores, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    done = np.zeros(episodes, bool)
    choose = _chooser(policy, mode, seed)
    with Vector(environment, spawned_seeds(seed, "evaluate", episodes, part=1)) as vector:
        observations, time = vector.reset(), 0
        while not done.all():
            waiting = time < no_ops
            vector.begin(np.where(waiting, NO_OP, choose(observations, time)))
            moved = vector.finish()
            scores += np.where(done, 0.0, moved.rewards)
            lengths += ~done & moved.played
            early = moved.over & waiting
            scores[early], lengths[early] = 0.0, 0
            done |= moved.over & ~early
            observations, time = moved.observations, time + 1
    return {
        "mode": mode,
        "starts": "no-ops",
        "seed": seed,
        "episodes": episodes,
        "unfinished": 0,
        "return_mean": float(scores.mean()),
        "return_standard_deviation": float(scores.std(ddof=1)) if episodes > 1 else None,
        "length_mean": float(lengths.mean()),
        "returns": scores.tolist(),
        "lengths": lengths.tolist(),
        "no_ops": no_ops.tolist(),
    }


@own_checks
def reward_density(policy: Policy, *, steps: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """Rewards other than 0 per 100 agent steps, under the sampled policy and under uniformly random actions.

    Args:
        policy: The agent.
        steps: Steps of each of the two, over several environments together ≥ 1; rounded up to a whole number each.
        seed: Of environments and actions.

    Returns:
        `trained` and `random`, the two densities; `steps`, as rounded, and `seed`.

    Raises:
        ConfigError: If `steps` is out of range, or the environment is not on the host or its actions are not discrete.
    """
    environment = policy.config.environment_object()
    if not isinstance(environment, HostEnvironment) or not environment.discrete:
        raise ConfigError(
            f"rewards are counted in environments of the host with discrete actions; got {environment.name}: count "
            "them in its rollout.npz"
        )
    if steps < 1:
        raise ConfigError(f"steps must be at least 1; got {steps}")
    count = min(_DENSITY_ENVIRONMENTS, steps)
    length = -(-steps // count)
    rng = np.random.default_rng(seed)

    def random(observations: np.ndarray, time: int) -> np.ndarray:
        return rng.integers(environment.action_space.n, size=len(observations))

    found: dict[str, Any] = {}
    for part, (name, choose) in enumerate((("trained", _chooser(policy, "sampled", seed)), ("random", random))):
        paid = played = 0
        with Vector(environment, spawned_seeds(seed, "held-out", count, part=1 + part)) as vector:
            observations = vector.reset()
            for time in range(length):
                vector.begin(choose(observations, time))
                moved = vector.finish()
                observations = moved.observations
                paid += int(np.count_nonzero(moved.rewards * moved.played))
                played += int(moved.played.sum())
        found[name] = 100 * paid / played
    return {**found, "steps": length * count, "seed": seed}


def _chooser(policy: Policy, mode: Mode, seed: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return f(observations, time) → actions."""
    key = jax.random.key(seed)

    def choose(observations: np.ndarray, time: int) -> np.ndarray:
        return policy.act(observations, None if mode == "greedy" else jax.random.fold_in(key, time))

    return choose
