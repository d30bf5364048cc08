"""What a report knows about a set of runs: the seeds of every agent on every environment, and their scores.

Tables, figures and the page are all made from one `Study`, so their numbers agree.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np

from tddelta.errors import ConfigError, ContractionWarning, TDDeltaError
from tddelta.report import statistics
from tddelta.report.curves import Curve, learning_curve, learning_grid
from tddelta.report.groups import Group, Measure, Seed
from tddelta.report.naming import BASELINES, agent_names, base_name, rank
from tddelta.report.references import Reference, find_reference
from tddelta.report.statistics import FloatArray, Interval, Welch
from tddelta.runs import Run

N_BOOTSTRAP = 10_000
"""Resamples behind an interval of a difference."""


@dataclass(frozen=True)
class Comparison:
    """One agent against one baseline on one environment.

    Attributes:
        environment: Name of the environment.
        agent: The agent.
        baseline: The agent it is compared with.
        welch: Welch's t-test of the scores over seeds.
        interval: Bootstrap interval of the difference of means, at 95 %.
        corrected: p after Holm's correction over all comparisons of this measure, or None.
        note: What a reader should know about it, else "".
    """

    environment: str
    agent: str
    baseline: str
    welch: Welch
    interval: Interval
    corrected: float | None
    note: str

    @property
    def verdict(self) -> str:
        """What p after correction says at .05: "better", "worse", "no clear difference"; "" without a test."""
        if self.corrected is None:
            return ""
        if self.corrected >= 0.05:
            return "no clear difference"
        return "better" if self.welch.difference > 0 else "worse"


@dataclass(frozen=True)
class Suite:
    """Environments that can be aggregated, since one table of reference scores covers them.

    Attributes:
        name: Name of the table.
        unit: What a normalised score of 0 and of 1 mean.
        source: Where the reference scores come from.
        environments: The environments.
        scores: Per agent, one array of normalised scores per environment.
    """

    name: str
    unit: str
    source: str
    environments: tuple[str, ...]
    scores: dict[str, list[FloatArray]]


@dataclass
class Study:
    """A set of runs, grouped and scored.

    Args:
        runs: The runs.
        baselines: Agents that the others are compared with; None means those of `BASELINES` that are present.
        references: (random, reference) scores by environment, before the tables that are shipped.

    Raises:
        ConfigError: There is no readable run, or a baseline is not among the agents.
    """

    runs: Sequence[Run]
    baselines: Sequence[str] | None = None
    references: Mapping[str, tuple[float, float]] | None = None
    problems: list[str] = field(default_factory=list)
    """What could not be read, one sentence each."""

    def __post_init__(self) -> None:
        if not len(self.runs):
            raise ConfigError("runs must not be empty; got no run: name a folder that holds some")
        self.problems += getattr(self.runs, "left_out", ())
        names = agent_names(self.runs)
        seeds = [
            seed for run, name in zip(self.runs, names, strict=True) if (seed := self._read(run, name)) is not None
        ]
        if not seeds:
            raise ConfigError(f"none of {len(self.runs)} runs can be read: {self.problems[0]}")
        self.seeds: tuple[Seed, ...] = tuple(sorted(seeds, key=lambda seed: (seed.environment, seed.number)))
        self.environments: tuple[str, ...] = tuple(dict.fromkeys(seed.environment for seed in self.seeds))
        self.agents: tuple[str, ...] = tuple(sorted({seed.agent for seed in self.seeds}, key=rank))
        self.groups: dict[tuple[str, str], Group] = {}
        for environment in self.environments:
            for agent in self.agents:
                mine = [s for s in self.seeds if (s.environment, s.agent) == (environment, agent)]
                if mine:
                    self.groups[environment, agent] = Group(environment, agent, tuple(mine), self.problems)
        self.compared_with: tuple[str, ...] = self._resolve(self.baselines)
        self._comparisons: dict[str, list[Comparison]] = {}

    def _read(self, run: Run, name: str) -> Seed | None:
        try:
            seed = Seed.read(run, name)
            with warnings.catch_warnings():  # whoever trained it was warned; the ladder table shows the factors
                warnings.simplefilter("ignore", ContractionWarning)
                _ = run.scales  # read once here: an unreadable ladder must not stop the report
            self._check_metrics(seed)
        except (TDDeltaError, KeyError, TypeError, ValueError) as error:
            self.problems.append(f"{run.environment}, {run.agent}, seed {run.seed} was left out: {error}")
            return None
        return seed

    def _check_metrics(self, seed: Seed) -> None:
        """Tell of a finished run whose metrics were cut short, or cannot be read."""
        try:
            there, updates = len(seed.run.metrics["update"]), int(seed.run.status["updates"])
        except (TDDeltaError, KeyError, TypeError, ValueError) as error:
            self.problems.append(f"The metrics of {seed.title} were left out: {error}")
            return
        if seed.finished and there < updates:
            self.problems.append(f"{seed.run.path / 'metrics.jsonl'} lacks rows: {there:,} of {updates:,} are there")

    def _resolve(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in BASELINES if wanted is None else wanted:
            matches = [agent for agent in self.agents if name in (agent, base_name(agent))]
            if not matches and wanted is not None:
                close = get_close_matches(name, self.agents, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(self.agents)}"
                raise ConfigError(f"baseline {name!r} is not among the agents of these runs: {hint}")
            found.update(dict.fromkeys(matches))
        return tuple(found)

    @property
    def challengers(self) -> tuple[str, ...]:
        """Agents that are compared with the baselines; the later baselines, where there is nothing else."""
        others = tuple(agent for agent in self.agents if agent not in self.compared_with)
        return others or self.compared_with[1:]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every (challenger, baseline) that is compared, each pair once."""
        return [
            (agent, baseline)
            for agent in self.challengers
            for place, baseline in enumerate(self.compared_with)
            if agent not in self.compared_with[: place + 1]
        ]

    @property
    def focus(self) -> str:
        """The agent that the report is about: the library's default agent, else the last challenger."""
        candidates = self.challengers or self.agents
        return next((agent for agent in candidates if base_name(agent) == "ppo-delta"), candidates[-1])

    def group(self, environment: str, agent: str) -> Group | None:
        """The seeds of one agent on one environment, or None."""
        return self.groups.get((environment, agent))

    def comparisons(self, measure: Measure = "asymptotic") -> list[Comparison]:
        """Every challenger against every baseline on every environment.

        Holm's correction counts all comparisons of the measure as one family.
        """
        if measure not in self._comparisons:
            rows = []
            for environment in self.environments:
                for agent, baseline in self.pairs:
                    ours, theirs = self.group(environment, agent), self.group(environment, baseline)
                    if ours is not None and theirs is not None:
                        rows.append(compare_groups(ours, theirs, measure))
            corrected = statistics.holm([row.welch.p_value for row in rows])
            self._comparisons[measure] = [
                Comparison(r.environment, r.agent, r.baseline, r.welch, r.interval, p, r.note)
                for r, p in zip(rows, corrected, strict=True)
            ]
        return self._comparisons[measure]

    def curves(self, environment: str) -> dict[str, Curve]:
        """Learning curves of every agent on one environment, on one grid."""
        groups = [group for group in self.groups.values() if group.environment == environment]
        grid = learning_grid([seed.end_steps for group in groups for seed in group.seeds])
        return {
            group.agent: learning_curve([s.end_steps for s in group.seeds], [s.returns for s in group.seeds], grid)
            for group in groups
            if len(grid)
        }

    @cached_property
    def suites(self) -> tuple[list[Suite], list[str]]:
        """Sets of environments to aggregate over, and a sentence for everything that is left out."""
        covered: dict[str, dict[str, Reference]] = {}
        reasons = []
        for environment in self.environments:
            kwargs = self.first_config(environment).get("environment_kwargs") or None
            reference = find_reference(environment, self.references, kwargs)
            if reference is None:
                changed = " with changed parameters" if kwargs else ""
                reasons.append(f"{environment}{changed} has no entry in the tables of reference scores")
            elif not all(self._usable(environment, agent) for agent in self.agents):
                reasons.append(f"{environment} lacks a finished run with a score for every agent")
            else:
                covered.setdefault(reference.suite, {})[environment] = reference
        suites = []
        for name, references in covered.items():
            if len(references) < 2:
                reasons.append(f"{next(iter(references))} is the only environment of the table {name}")
                continue
            scores = {
                agent: [r.normalise(self.groups[e, agent].scores("asymptotic")) for e, r in references.items()]
                for agent in self.agents
            }
            first = next(iter(references.values()))
            source = " ".join(dict.fromkeys(reference.source for reference in references.values()))
            suites.append(Suite(name, first.unit, source, tuple(references), scores))
        return suites, reasons

    def _usable(self, environment: str, agent: str) -> bool:
        group = self.group(environment, agent)
        return group is not None and group.complete and bool(np.isfinite(group.scores("asymptotic")).all())

    def first_config(self, environment: str) -> dict[str, Any]:
        """Config of the first run on an environment."""
        return next(seed.run.config for seed in self.seeds if seed.environment == environment)


def other_rules(groups: Sequence[Group]) -> list[str]:
    """Parameters of the environment in which groups on it differ: then their scores are of different games."""
    parameters = [group.seeds[0].run.config.get("environment_parameters") or {} for group in groups]
    names = dict.fromkeys(name for one in parameters for name in one)
    return [name for name in names if any(one.get(name) != parameters[0].get(name) for one in parameters)]


def compare_groups(ours: Group, theirs: Group, measure: Measure) -> Comparison:
    """Compare two agents on one environment; p is not corrected yet."""
    notes = []
    rules = other_rules([ours, theirs])
    if rules:
        note = f"played under other rules ({', '.join(rules)})"
        welch, interval = Welch(math.nan, None, None, None, note=note), Interval(None, None, note)
        notes.append(note)
    elif ours.complete and theirs.complete:
        scores = ours.scores(measure), theirs.scores(measure)
        welch = statistics.welch_test(*scores)
        interval = statistics.bootstrap_difference(*scores, n_bootstrap=N_BOOTSTRAP)
        notes.append(welch.note or interval.note)
        if ours.planned_steps != theirs.planned_steps:
            notes.append(f"trained for {ours.planned_steps:,} and {theirs.planned_steps:,} steps")
    else:
        welch = Welch(math.nan, None, None, None, note="not finished")
        interval = Interval(None, None, "not finished")
        notes.append("not finished")
    note = "; ".join(filter(None, notes))
    return Comparison(ours.environment, ours.agent, theirs.agent, welch, interval, None, note)
