"""What was run for the paper, where it differs from what is right: agents with target functions of their own.

Two things are known of the released code, from its description. At the last step of every rollout the targets of all
components above the first take V_{z−1} of the current state where that of the next state belongs; and a time limit is
treated as a termination. The paper's text has the first one right and does not tell time limits from terminations.

| agents | last step of a rollout | time limit |
|---|---|---|
| `ppo-delta-matched`, `ppo-delta` | next state | truncation |
| `…-published` | next state | termination |
| `…-released` | current state | termination |

Neighbours in this table differ in one thing, so that its effect can be told.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tddelta import targets
from tddelta.decomposition import compose
from tddelta.deep import agents
from tddelta.deep.agents import Agent
from tddelta.timescales import TimeScales


def published_targets(
    rewards: Any, deltas: Any, next_deltas: Any, *, terminated: Any, truncated: Any, scales: TimeScales
) -> Any:
    """λ-returns of the components as `lambda_targets` makes them, with time limits as terminations.

    Args:
        rewards: (T, *batch).
        deltas: W(s_t), (T, *batch, Z).
        next_deltas: W of the true successors, (T, *batch, Z).
        terminated: (T, *batch), boolean.
        truncated: (T, *batch), boolean.
        scales: with trace decays.

    Returns:
        Targets of W, (T, *batch, Z).
    """
    ends = _without_limits(terminated, truncated)
    return targets.lambda_targets(rewards, deltas, next_deltas, scales=scales, **ends)


def released_targets(rewards: Any, deltas: Any, next_deltas: Any, *, scales: TimeScales, **ends: Any) -> Any:
    """λ-returns of the components with the fault of the released code, and time limits as terminations.

    At the last step T−1 the TD errors of the components z ≥ 1 are

        δ^z = (1−d) [(γ_z − γ_{z−1}) V_{z−1}(s_{T−1}) + γ_z W_z(s')] − W_z(s_{T−1})

    with V_{z−1}(s_{T−1}) in place of V_{z−1}(s'). For the arguments see `published_targets`.
    """
    last = mistaken(deltas[-1], next_deltas[-1], scales)
    next_deltas = jnp.concatenate([next_deltas[:-1], last[None]])
    return published_targets(rewards, deltas, next_deltas, scales=scales, **ends)


def mistaken(deltas: jax.Array, next_deltas: jax.Array, scales: TimeScales) -> jax.Array:
    """The W(s') with which the right TD errors become those of the released code: see `released_targets`.

    U_0 = W_0(s'), and U_z = W_z(s') + (1 − γ_{z−1}/γ_z) (V_{z−1}(s) − Σ_{i<z} U_i) for z ≥ 1.

    Args:
        deltas: W(s), (*batch, Z).
        next_deltas: W(s'), (*batch, Z).
        scales: The time scales.

    Returns:
        U, (*batch, Z).
    """
    values = compose(deltas)
    found = [next_deltas[..., 0]]
    for z in range(1, len(scales)):
        share = 1 - scales.gammas[z - 1] / scales.gammas[z]
        found.append(next_deltas[..., z] + share * (values[..., z - 1] - sum(found)))
    return jnp.stack(found, axis=-1)


def published_advantages(
    rewards: Any, deltas: Any, next_deltas: Any, *, terminated: Any, truncated: Any, **options: Any
) -> Any:
    """Generalised advantages with time limits as terminations; for the arguments see `tddelta.advantages`."""
    return targets.advantages(rewards, deltas, next_deltas, **_without_limits(terminated, truncated), **options)


def _without_limits(terminated: Any, truncated: Any) -> dict[str, Any]:
    """The flags where a time limit is a termination."""
    return {"terminated": terminated | truncated, "truncated": jnp.zeros_like(truncated)}


def _variant(name: str, end: str, function: Any) -> Agent:
    return agents.AGENTS[name].replace(name=f"{name}-{end}", targets=function, advantages=published_advantages)


MATCHED_PUBLISHED = _variant("ppo-delta-matched", "published", published_targets)
"""`ppo-delta-matched` as the paper's text has it."""
MATCHED_RELEASED = _variant("ppo-delta-matched", "released", released_targets)
"""`ppo-delta-matched` as the released code had it."""
CAPPED_PUBLISHED = _variant("ppo-delta", "published", published_targets)
"""`ppo-delta` as the paper's text has it."""
CAPPED_RELEASED = _variant("ppo-delta", "released", released_targets)
"""`ppo-delta` as the released code had it."""

VARIANTS: dict[str, str] = {
    agent.name: f"{__name__}:{place}"
    for place, agent in (
        ("MATCHED_PUBLISHED", MATCHED_PUBLISHED),
        ("MATCHED_RELEASED", MATCHED_RELEASED),
        ("CAPPED_PUBLISHED", CAPPED_PUBLISHED),
        ("CAPPED_RELEASED", CAPPED_RELEASED),
    )
}
"""Where these agents are, by name: what `--agents` takes of somebody's own agents."""
