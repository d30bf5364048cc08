"""What the paper measures beside training scores: hold-out episodes on Atari, and how often rewards come."""

from typing import Any

import numpy as np

from tddelta._plain import whole
from tddelta.deep import host_evaluation
from tddelta.deep.policy import Policy
from tddelta.deep.tasks import HostEnvironment
from tddelta.errors import ConfigError, own_checks
from tddelta.runs.scores import Mode, summary

LONGEST_START = 30
"""No-ops beyond the usual start: 0 to one fewer than this."""

_LIMIT = 100_000  # steps; a game of Atari ends after 27,000, however it is played
_DENSITY_ENVIRONMENTS = 8


@own_checks
def hold_out(policy: Policy, *, episodes: int = LONGEST_START, mode: Mode = "sampled", seed: int = 0) -> dict[str, Any]:
    """Whole games of Atari, the i-th after i no-ops on top of the usual start.

    The no-ops are steps of the agent, of as many frames as any other; what they score counts.

    Args:
        policy: The agent.
        episodes: Number of games from 1 to 1000, each in an environment of its own; from the 31st on they begin with
            0, 1, … no-ops again.
        mode: "sampled" follows the policy, "greedy" its most probable action.
        seed: Of the evaluation.

    Returns:
        A row for `evaluations.jsonl`, without `steps`: as that of `evaluation.evaluate`, with `starts`, "no-ops", and
        `no_ops`, how many each game began with. Scores are raw.

    Raises:
        ConfigError: If `episodes`, `mode` or `seed` is out of range, or the environment is no Atari game.
    """
    environment = policy.config.environment_object()
    if not isinstance(environment, HostEnvironment) or environment.rom is None:
        raise ConfigError(
            f"no-op starts are for Atari games, where an action does nothing; got {environment.name}: evaluate it "
            "without them"
        )
    episodes, seed = whole("episodes", episodes, most=1000), whole("seed", seed, 0, most=2**32 - 1)
    if mode not in ("sampled", "greedy"):
        raise ConfigError(f"mode must be sampled or greedy; got {mode!r}")
    no_ops = np.arange(episodes) % LONGEST_START
    returns, lengths, done = host_evaluation.quota(
        policy.config,
        policy.learned,
        np.ones(episodes, int),
        greedy=mode == "greedy",
        seed=seed,
        limit=_LIMIT,
        no_ops=no_ops.tolist(),
    )
    ended = done > 0
    row = summary(returns[ended, 0], lengths[ended, 0], mode=mode, seed=seed, unfinished=int((~ended).sum()))
    return {**row, "starts": "no-ops", "no_ops": no_ops[ended].tolist()}


@own_checks
def reward_density(policy: Policy, *, steps: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """Rewards other than 0 per 100 agent steps, under the sampled policy and under uniformly random actions.

    Args:
        policy: The agent.
        steps: Steps of each of the two, over eight environments together ≥ 1; rounded up to a whole number each.
        seed: Of environments and actions.

    Returns:
        `trained` and `random`, the two densities; `steps`, as rounded, and `seed`.

    Raises:
        ConfigError: If `steps` or `seed` is out of range, or the environment is not on the host or its actions are not
            discrete.
    """
    environment = policy.config.environment_object()
    if not isinstance(environment, HostEnvironment) or not environment.discrete:
        raise ConfigError(
            f"rewards are counted in environments of the host with discrete actions; got {environment.name}: count "
            "them in its rollout.npz"
        )
    steps, seed = whole("steps", steps, most=10**9), whole("seed", seed, 0, most=2**32 - 1)
    count = min(_DENSITY_ENVIRONMENTS, steps)
    length = -(-steps // count)
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name in ("trained", "random"):
        paid, played = 0, np.zeros(count, int)
        with host_evaluation.Play(policy.config, policy.learned, count, seed, "held-out") as play:
            while played.min() < length:
                if name == "trained":
                    moves = np.asarray(play.chosen().moves)
                else:
                    moves = environment.first_action + rng.integers(environment.action_space.n, size=count)
                moved = play.step(moves)
                counts = moved.played & (played < length)  # a step that only resets is none
                paid += int(np.count_nonzero(moved.rewards[counts]))
                played += counts
        found[name] = 100 * paid / (length * count)
    return {**found, "steps": length * count, "seed": seed}
