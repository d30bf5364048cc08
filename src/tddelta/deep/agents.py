"""Agents as data: the heads of their critics, their basis, the trace rule, the targets, the advantages."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, get_args

from array_api_compat import array_namespace

from tddelta import targets as core
from tddelta._arrays import widened
from tddelta._plain import closest, imported, reference, tidy
from tddelta.decomposition import compose, decompose
from tddelta.errors import ConfigError
from tddelta.runs.files import upgraded_name
from tddelta.timescales import Rule, TimeScales

Heads = Literal["one", "ladder"]
"""One head for γ_Z, or one per scale of the ladder."""
Basis = Literal["deltas", "values", "sum"]
"""A head is W_z, V_{γ_z}, or a part of V_{γ_Z} without a meaning of its own."""
TargetFunction = Callable[..., Any]
"""A function with the arguments of `lambda_targets`."""


def multi_discount_targets(
    rewards: Any, values: Any, next_values: Any, *, terminated: Any, truncated: Any, scales: TimeScales
) -> Any:
    """λ-return of every V_{γ_z} on its own, (T, *batch, Z): the baseline without a decomposition.

    The same numbers as the difference form of the λ-return, written in the other basis: Σ_{i≤z} of it. Arguments are
    those of `lambda_targets`, with V_z(s_t) and V_z of the true successors, (T, *batch, Z), in place of components.
    """
    options: Any = {"terminated": terminated, "truncated": truncated, "scales": scales}
    deltas = core.lambda_targets(rewards, decompose(widened(values)), decompose(widened(next_values)), **options)
    return array_namespace(values).astype(compose(deltas), values.dtype, copy=False)


def bootstrap_targets(rewards: Any, deltas: Any, next_deltas: Any, **options: Any) -> Any:
    """λ-returns of the components in the paper's form: `lambda_targets(..., form="bootstrap")`."""
    return core.lambda_targets(rewards, deltas, next_deltas, form="bootstrap", **options)


@dataclasses.dataclass(frozen=True)
class Agent:
    """An actor and a critic with some number of heads; two agents differ in these fields and in nothing else.

    Attributes:
        name: Label of the agent in folders, tables and figures.
        heads: "ladder" gives the critic one head per scale of the ladder; "one" only γ_Z.
        basis: What a head is. "deltas": W_z. "values": V_{γ_z}. "sum": the heads have no meaning of
            their own, their sum is V_{γ_Z} (a critic of the same size without a decomposition).
        rule: Trace rule of the critic's ladder.
        targets: f(rewards, heads, next_heads, *, terminated, truncated, scales) → targets, in the basis
            of the heads: `deltas` for "deltas", `values` for "values", V as a single scale for "sum".
        advantages: f(rewards, deltas, next_deltas, *, terminated, truncated, scales, trace_decay)
            → (T, *batch). It always receives components W, whatever the basis.
    """

    name: str
    heads: Heads = "ladder"
    basis: Basis = "deltas"
    rule: Rule = "constant"
    targets: TargetFunction = core.lambda_targets
    advantages: TargetFunction = core.advantages

    def __post_init__(self) -> None:
        for field, choices in (("heads", get_args(Heads)), ("basis", get_args(Basis)), ("rule", get_args(Rule))):
            if getattr(self, field) not in choices:
                raise ConfigError(f"{field} must be one of {', '.join(choices)}; got {getattr(self, field)!r}")
        for field in ("targets", "advantages"):
            if not callable(getattr(self, field)):
                raise ConfigError(f"{field} must be a function; got {getattr(self, field)!r}")

    def replace(self, **changes: Any) -> "Agent":
        """The same agent with some fields changed; give it a `name` of its own."""
        known = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise ConfigError(f"an agent has no field {name!r}; it has {', '.join(sorted(known))}")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, str]:
        """The agent as JSON: functions by module and name."""
        fields = vars(self)
        return {name: reference(value) if callable(value) else value for name, value in fields.items()}


class _UnknownAgentError(ConfigError, KeyError):
    __str__ = Exception.__str__  # that of a KeyError would put the sentence in quotes


class _Agents(dict[str, Agent]):
    """Agents by name; one that is unknown is told with the closest name."""

    def __missing__(self, name: str) -> Agent:
        current = upgraded_name(str(name))
        advice = f"it is called {current} now" if current != name else closest(str(name), tuple(self))
        raise _UnknownAgentError(f"unknown agent {name!r}: {advice}")


AGENTS: dict[str, Agent] = _Agents(
    (agent.name, agent)
    for agent in (
        Agent("ppo", heads="one", rule="capped"),
        Agent("ppo+", basis="sum", rule="capped"),
        Agent("ppo-multi", basis="values", targets=multi_discount_targets),
        Agent("ppo-delta"),
        Agent("ppo-delta-bootstrap", rule="capped", targets=bootstrap_targets),
        Agent("ppo-delta-matched", rule="matched", targets=bootstrap_targets),
    )
)
"""The agents that ship with the library, by name."""


def resolve(agent: "str | Agent") -> Agent:
    """An agent from its name, from "package.module:agent", or itself.

    Raises:
        ConfigError: If there is no such agent.
    """
    if isinstance(agent, Agent):
        return agent
    if not isinstance(agent, str):
        raise ConfigError(f"an agent is a name, package.module:agent or an Agent; got {agent!r}")
    agent = str(tidy(agent))
    if ":" in agent:
        found = imported(agent, "agent")
        if not isinstance(found, Agent):
            raise ConfigError(f"{agent!r} must be a tddelta Agent; got {type(found).__name__}")
        return found
    return AGENTS[agent]
