"""The runs of a report: the seeds of every agent on every environment, their scores, and how agents compare.

Tables, figures and the page are all made from one `RunSet`, so their numbers agree. Reference scores, which put the
returns of different environments on one scale, are data (`references/*.json`) with the source of every number.
"""

import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tddelta._plain import closest
from tddelta.decomposition import decompose
from tddelta.errors import ConfigError, ContractionWarning, DataError, TDDeltaError
from tddelta.report import statistics
from tddelta.report.statistics import CriticQuality, Curve, FloatArray, Interval, Summary, Welch
from tddelta.runs import Run, config_hash, is_being_written
from tddelta.timescales import TimeScales

_TABLES = ("minatar", "atari")

# what names of Atari games carry besides the game: "gym:ALE/Alien-v5", "AlienNoFrameskip-v4"
_ATARI_NAME = re.compile(r"(?:gym:)?(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?")


@dataclass(frozen=True)
class Reference:
    """Two scores of one environment that fix its scale.

    Attributes:
        suite: Name of the table; aggregates never mix two tables.
        unit: What 0 and 1 mean.
        random: Return of uniformly random play.
        reference: Return that counts as 1.
        source: Where both numbers come from.
    """

    suite: str
    unit: str
    random: float
    reference: float
    source: str

    def normalise(self, scores: npt.ArrayLike) -> FloatArray:
        """Return (score − random) / (reference − random)."""
        return np.asarray((np.asarray(scores, np.float64) - self.random) / (self.reference - self.random), np.float64)


def find_reference(
    environment: str,
    given: Mapping[str, tuple[float, float]] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Reference | None:
    """Look an environment up in the tables.

    Args:
        environment: Its name, such as "Breakout-MinAtar", "Alien" or "gym:ALE/Alien-v5".
        given: The user's own (random, reference) scores by environment; they come before the tables.
        parameters: Parameters of the environment that the runs changed: such a variant has no entry in the tables.

    Returns:
        The reference, or None without an entry.

    Raises:
        ConfigError: A user's own pair has two equal scores.
    """
    if given and environment in given:
        random, reference = (float(score) for score in given[environment])
        if random == reference:
            raise ConfigError(
                f"references[{environment!r}] must be two different scores (random, reference); got {random} twice"
            )
        unit = "score between the two that were given: 0 the first, 1 the second"
        return Reference("given", unit, random, reference, "given")
    game = _ATARI_NAME.fullmatch(environment)
    for name in _TABLES if not parameters else ():
        table = _table(name)
        row = table["environments"].get(game[1] if game and name == "atari" else environment)
        if row is not None:
            sources = dict.fromkeys(table["sources"][row[key]] for key in ("random_source", "reference_source"))
            return Reference(table["name"], table["unit"], row["random"], row["reference"], " ".join(sources))
    return None


@cache
def _table(name: str) -> dict[str, Any]:
    text = resources.files("tddelta.report").joinpath("references", f"{name}.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


Measure = Literal["asymptotic", "average", "hold_out"]
"""Score of a run: the return of its last 100 training episodes, of all, or of hold-out episodes."""

SHOWN_SEED = 1153780
"""The seed whose recorded episode is shown where it is among the seeds: the paper shows that one."""


@dataclass(frozen=True)
class Seed:
    """One run, as far as a report needs it.

    Attributes:
        agent: Name under which the report shows the agent.
        state: "finished", "interrupted", "failed", "running", or "cut off": its process ended without a word.
        message: Why it failed, or "".
        end_steps: Environment steps at the end of each training episode, shape (N,).
        returns: Returns of the training episodes, shape (N,).
        vectorized: Whether it was trained together with other seeds, as one program.
    """

    run: Run
    environment: str
    agent: str
    number: int
    state: str
    message: str
    steps: int
    end_steps: FloatArray
    returns: FloatArray
    speed: float | None
    vectorized: bool

    @classmethod
    def read(cls, run: Run, agent: str) -> "Seed":
        """Read a run that the report shows under the name `agent`; DataError if its episodes do not fit together."""
        status, episodes, timing = run.status, run.episodes, run.timing
        state = str(status["state"])
        ends, returns = (np.asarray(episodes[name], np.float64) for name in ("steps", "returns"))
        if len(ends) != len(returns):
            raise DataError(f"{run.path / 'episodes.npz'} has arrays of different lengths")
        return cls(
            run=run,
            environment=run.environment,
            agent=agent,
            number=run.seed,
            state="cut off" if state == "running" and is_being_written(run.path) is False else state,
            message=str(status.get("message") or ""),
            steps=int(status["steps"]),
            end_steps=ends,
            returns=returns,
            speed=_speed(timing),
            vectorized=any(event.get("event") == "vectorized" for event in timing),
        )

    def score(self, measure: Measure) -> float:
        """Score of the run; NaN where no such episode ended."""
        if measure == "hold_out":
            return self.evaluated("sampled", "no-ops")
        score = statistics.asymptotic_score if measure == "asymptotic" else statistics.average_score
        return score(self.returns)

    def evaluated(self, mode: str, starts: str | None = None) -> float:
        """Mean return of the last evaluation with "sampled" or "greedy" actions, NaN without one.

        Its episodes begin as usual, or with `starts="no-ops"`: those are the hold-out episodes.
        """
        rows = [row for row in self.run.evaluations if (row.get("mode"), row.get("starts")) == (mode, starts)]
        mean = rows[-1].get("return_mean") if rows else None
        return math.nan if mean is None else float(mean)

    @cached_property
    def reward_density(self) -> Mapping[str, float] | None:
        """Rewards other than 0 per 100 steps, "trained" and "random"; None where nobody counted them."""
        found = self.run.reward_density
        return None if found is None else {name: float(found[name]) for name in ("trained", "random")}

    @property
    def title(self) -> str:
        """Environment, agent and seed, for a sentence."""
        return f"{self.environment}, {self.agent}, seed {self.number}"

    @property
    def finished(self) -> bool:
        """True if all training steps were done."""
        return self.state == "finished"


def _speed(timing: Sequence[Mapping[str, Any]]) -> float | None:
    """Training steps per second: of the whole run, or of the blocks so far."""
    ends = [event for event in timing if event.get("event") == "end" and event.get("steps_per_second")]
    return float(ends[-1]["steps_per_second"]) if ends else block_speed(timing)


def block_speed(timing: Sequence[Mapping[str, Any]]) -> float | None:
    """Training steps per second of the blocks among these events; None without any."""
    blocks = [event for event in timing if event.get("event") == "block"]
    seconds = sum(float(block["seconds"]) for block in blocks)
    steps = sum(float(block["steps_per_second"]) * float(block["seconds"]) for block in blocks)
    return steps / seconds if seconds > 0 else None


@dataclass(frozen=True)
class Group:
    """The seeds of one agent on one environment."""

    environment: str
    agent: str
    seeds: tuple[Seed, ...]
    problems: list[str] = field(default_factory=list, compare=False)
    """Sentences about files that cannot be read."""

    @property
    def complete(self) -> bool:
        """True if any seed finished: else the scores are those of unfinished runs, and nothing is tested."""
        return any(seed.finished for seed in self.seeds)

    @property
    def scored(self) -> tuple[Seed, ...]:
        """The seeds that count for the scores: those that finished, or all where none did."""
        return tuple(seed for seed in self.seeds if seed.finished) or self.seeds

    @property
    def config(self) -> dict[str, Any]:
        """Config of the first seed."""
        return self.seeds[0].run.config

    @property
    def planned_steps(self) -> int | None:
        """Training steps that were asked for; None where a library does not know them beforehand."""
        steps = self.config.get("steps")
        return None if steps is None else int(steps)

    @property
    def scales(self) -> TimeScales:
        """The time scales that the critic is trained on."""
        return self.seeds[0].run.scales

    def scores(self, measure: Measure) -> FloatArray:
        """Score of each seed that counts, shape (n,); of those that have hold-out episodes for that measure."""
        values = np.array([seed.score(measure) for seed in self.scored], np.float64)
        return values[np.isfinite(values)] if measure == "hold_out" else values

    def summary(self, measure: Measure) -> Summary:
        """Mean ± standard error of the score over seeds."""
        return statistics.summarise(self.scores(measure))

    def evaluated(self, mode: str) -> list[float]:
        """Mean return of the last evaluation in a mode, "sampled" or "greedy", of each seed that has one."""
        return [mean for seed in self.scored if math.isfinite(mean := seed.evaluated(mode))]

    @cached_property
    def _held_out(self) -> list[tuple[FloatArray, FloatArray, CriticQuality]]:
        """Predicted values and realised returns of each seed that has them, (N, Z) each, and how they compare."""
        found = []
        for seed in self.scored:
            try:
                arrays = seed.run.critic
                if arrays is None:
                    continue
                predicted, realised = (np.asarray(arrays[name], np.float64) for name in ("predicted", "realised"))
                quality = statistics.critic_quality(predicted, realised)
                if len(quality.rmse) != len(self.scales):
                    raise DataError(f"critic.npz has {len(quality.rmse)} scales instead of {len(self.scales)}")
                found.append((predicted, realised, quality))
            except (TDDeltaError, KeyError) as error:
                self.problems.append(f"Held-out states of {seed.title} were left out: {error}")
        return found

    @property
    def critic(self) -> list[CriticQuality]:
        """Quality of the critic on held-out states, one per seed that has them."""
        return [quality for _, _, quality in self._held_out]

    @property
    def explained_variance(self) -> list[Summary]:
        """Explained variance at every discount, over the seeds where it is known."""
        columns = np.transpose([quality.explained_variance for quality in self.critic])
        return [statistics.summarise(column[np.isfinite(column)]) for column in columns]

    @property
    def held_out(self) -> tuple[FloatArray, FloatArray] | None:
        """Predicted values and realised returns on the held-out states of all seeds, (N, Z) each."""
        if not self._held_out:
            return None
        predicted, realised, _ = zip(*self._held_out, strict=True)
        return np.concatenate(predicted), np.concatenate(realised)

    @property
    def shares(self) -> tuple[FloatArray, FloatArray] | None:
        """Division of the mean value into its components while an agent learns, averaged over seeds.

        Environment steps (N,) and |mean W_z| over the sum of these (N, Z); None where it was not logged for several
        scales.
        """
        names = [f"value_mean/gamma={label}" for label in self.scales.labels]
        found, steps = [], []
        for seed in self.scored if len(names) > 1 else ():
            try:
                metrics = seed.run.metrics
            except TDDeltaError:
                continue
            if any(name not in metrics for name in ("steps", *names)):
                continue
            means = np.stack([metrics[name] for name in names], axis=-1)
            # A scale that the ladder has yet to grow has no share.
            parts = decompose(means) if seed.run.config["agent"].get("basis") == "values" else means
            size = np.nan_to_num(np.abs(parts))
            total = size.sum(axis=1, keepdims=True)
            found.append(np.divide(size, total, out=np.full(size.shape, np.nan), where=total > 0))
            steps.append(np.asarray(metrics["steps"], np.float64))
        count = min(map(len, found), default=0)
        shares = np.stack([part[:count] for part in found]) if count else np.zeros((1, 0, 0))
        known = np.isfinite(shares).all(axis=(0, 2))
        return (steps[0][:count][known], shares.mean(axis=0)[known]) if known.any() else None

    @cached_property
    def recorded(self) -> tuple[Seed, Mapping[str, Any]] | None:
        """The first seed that recorded an episode, with the recording."""
        for seed in sorted(self.scored, key=lambda seed: seed.number != SHOWN_SEED):
            try:
                arrays = seed.run.rollout
                if arrays is not None and len(arrays["rewards"]) > 1:
                    if arrays["deltas"].shape != (len(arrays["rewards"]), len(self.scales)):
                        raise DataError(f"deltas in rollout.npz have shape {arrays['deltas'].shape}")
                    return seed, arrays
            except (TDDeltaError, KeyError) as error:
                self.problems.append(f"The recorded episode of {seed.title} was left out: {error}")
        return None


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
        note: What a reader should know about it, else "".
        corrected: p after Holm's correction over all comparisons of this measure, or None.
    """

    environment: str
    agent: str
    baseline: str
    welch: Welch
    interval: Interval
    note: str
    corrected: float | None = None


def compare_groups(ours: Group, theirs: Group, measure: Measure) -> Comparison:
    """Compare two agents on one environment; p is not corrected yet."""
    rules = other_rules([ours, theirs])
    note = f"played under other rules ({', '.join(rules)})" if rules else ""
    if not rules and not (ours.complete and theirs.complete):
        note = "not finished"
    welch, interval = Welch(math.nan, note=note), Interval(None, None, note)
    if not note:
        scores = ours.scores(measure), theirs.scores(measure)
        welch = statistics.welch_test(*scores)
        interval = statistics.bootstrap_difference(*scores, n_bootstrap=N_BOOTSTRAP)
        notes = [welch.note or interval.note]
        planned = ours.planned_steps, theirs.planned_steps
        if None not in planned and planned[0] != planned[1]:
            notes.append("trained for {:,} and {:,} steps".format(*planned))
        note = "; ".join(filter(None, notes))
    return Comparison(ours.environment, ours.agent, theirs.agent, welch, interval, note)


def other_rules(groups: Sequence[Group]) -> list[str]:
    """Parameters of the environment in which groups on it differ: then their scores are of different games."""
    parameters = [group.config.get("environment_parameters") or {} for group in groups]
    names = dict.fromkeys(name for one in parameters for name in one)
    return [name for name in names if any(one.get(name) != parameters[0].get(name) for one in parameters)]


def verdict(difference: float, p: float | None, better: str = "better", worse: str = "worse") -> str:
    """Say what a corrected p says of a difference at .05; "" without a test."""
    if p is None:
        return ""
    return "no clear difference" if p >= 0.05 else better if difference > 0 else worse


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


class RunSet:
    """A set of runs, grouped and scored.

    Args:
        runs: The runs.
        baselines: Agents that the others are compared with; None means those of `BASELINES` that are present.
        references: (random, reference) scores by environment, before the tables that are shipped.

    Attributes:
        problems: Sentences about what could not be read.
        seeds: The runs that could be read, by environment and seed.
        environments: Their environments, by name.
        agents: Their agents, the baselines first.
        groups: The seeds by environment and agent.
        compared_with: The baselines that are present.

    Raises:
        ConfigError: There is no readable run, or a baseline is not among the agents.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        baselines: Sequence[str] | None = None,
        references: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        if not len(runs):
            raise ConfigError("runs must not be empty; got no run: name a folder that holds some")
        self.problems: list[str] = list(getattr(runs, "left_out", ()))
        found = [self._read(run, name) for run, name in zip(runs, agent_names(runs), strict=True)]
        seeds = [seed for seed in found if seed is not None]
        if not seeds:
            raise ConfigError(f"none of {len(runs)} runs can be read: {self.problems[0]}")
        self.seeds = tuple(sorted(seeds, key=lambda seed: (seed.environment, seed.number)))
        self.environments = tuple(dict.fromkeys(seed.environment for seed in self.seeds))
        self.agents = tuple(sorted({seed.agent for seed in self.seeds}, key=_rank))
        self.groups: dict[tuple[str, str], Group] = {}
        for environment in self.environments:
            for agent in self.agents:
                if mine := tuple(s for s in self.seeds if (s.environment, s.agent) == (environment, agent)):
                    self.groups[environment, agent] = Group(environment, agent, mine, self.problems)
        self.compared_with = self._resolve(baselines)
        self._references = references
        self._comparisons: dict[str, list[Comparison]] = {}

    def _read(self, run: Run, name: str) -> Seed | None:
        try:
            seed = Seed.read(run, name)
            with warnings.catch_warnings():  # whoever trained it was warned; the ladder table shows the factors
                warnings.simplefilter("ignore", ContractionWarning)
                _ = run.scales  # read once here: an unreadable ladder must not stop the report
        except (TDDeltaError, KeyError, TypeError, ValueError) as error:
            self.problems.append(f"{run.environment}, {run.agent}, seed {run.seed} was left out: {error}")
            return None
        try:
            there, updates = len(run.metrics["update"]), int(run.status["updates"])
        except (TDDeltaError, KeyError, TypeError, ValueError) as error:
            self.problems.append(f"The metrics of {seed.title} were left out: {error}")
        else:
            if seed.finished and there < updates:
                self.problems.append(f"{run.path / 'metrics.jsonl'} lacks rows: {there:,} of {updates:,} are there")
        return seed

    def _resolve(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        """The agents that these names of baselines mean."""
        found: dict[str, None] = {}
        for name in BASELINES if wanted is None else wanted:
            matches = [agent for agent in self.agents if name in (agent, _base_name(agent))]
            if not matches and wanted is not None:
                raise ConfigError(
                    f"baseline {name!r} is not among the agents of these runs: {closest(name, self.agents)}"
                )
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
        return next((agent for agent in candidates if _base_name(agent) == "ppo-delta"), candidates[-1])

    @property
    def baseline(self) -> str | None:
        """The agent that the one in focus is compared with first; None where nothing is compared."""
        return self.compared_with[0] if self.compared_with and self.challengers else None

    @property
    def ladders(self) -> dict[TimeScales, list[Group]]:
        """Groups by the time scales of their critics; a monitor log does not know its critic."""
        shared: dict[TimeScales, list[Group]] = {}
        for group in self.groups.values():
            if group.config.get("scales_known", True):
                shared.setdefault(group.scales, []).append(group)
        return shared

    def groups_on(self, environment: str) -> list[Group]:
        """The agents on one environment."""
        return [group for group in self.groups.values() if group.environment == environment]

    def first_config(self, environment: str) -> dict[str, Any]:
        """Config of the first run on an environment."""
        return next(seed.run.config for seed in self.seeds if seed.environment == environment)

    def comparisons(self, measure: Measure = "asymptotic") -> list[Comparison]:
        """Every challenger against every baseline on every environment.

        Holm's correction counts all comparisons of the measure as one family.
        """
        if measure not in self._comparisons:
            couples = [((e, agent), (e, baseline)) for e in self.environments for agent, baseline in self.pairs]
            there = [pair for pair in couples if all(key in self.groups for key in pair)]
            rows = [compare_groups(self.groups[ours], self.groups[theirs], measure) for ours, theirs in there]
            corrected = statistics.holm([row.welch.p_value for row in rows])
            self._comparisons[measure] = [replace(r, corrected=p) for r, p in zip(rows, corrected, strict=True)]
        return self._comparisons[measure]

    def curves(self, environment: str) -> dict[str, Curve]:
        """Learning curves of every agent on one environment, on one grid; empty where no episode ended."""
        groups = self.groups_on(environment)
        ends = {group.agent: [seed.end_steps for seed in group.seeds] for group in groups}
        grid = statistics.learning_grid([steps for seeds in ends.values() for steps in seeds])
        return {
            group.agent: statistics.learning_curve(ends[group.agent], [s.returns for s in group.seeds], grid)
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
            reference = find_reference(environment, self._references, kwargs)
            groups = self.groups_on(environment)
            if reference is None:
                changed = " with changed parameters" if kwargs else ""
                reasons.append(f"{environment}{changed} has no entry in the tables of reference scores")
            elif len(groups) < len(self.agents) or not all(
                group.complete and np.isfinite(group.scores("asymptotic")).all() for group in groups
            ):
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


# ---------------------------------------------------------------- names of agents

BASELINES = ("ppo", "ppo+", "ppo-multi", "PPO", "A2C", "DQN", "SAC")
"""Agents that the others are compared with by default, where they are present; capitals: Stable-Baselines3."""

_ORDER = (*BASELINES, "ppo-delta-matched", "ppo-delta-bootstrap", "ppo-delta")


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was set for a run, as one flat mapping: "learning_rate", "agent.targets", "environment_kwargs.x".

    The seed, the names of environment and agent, and what follows from other settings (the ladder) are left out.
    """
    left_out = ("format", "seed", "environment", "scales")
    flat = {key: v for key, v in config.items() if key not in left_out and not isinstance(v, Mapping)}
    for key in ("agent", "environment_kwargs", "environment_parameters"):
        value = config.get(key)
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": item for name, item in value.items() if (key, name) != ("agent", "name")}
    named = {key.split(".")[0] for key in flat} | {"seed", "environment", "agent", "environment_kwargs"}
    return flat | {key: value for key, value in config.get("settings", {}).items() if key not in named}


def agent_names(runs: Sequence[Run]) -> list[str]:
    """Name each run's agent for a reader.

    An agent that was run with one set of settings per environment goes by its own name. Otherwise the settings in
    which its variants differ are added, as in "ppo (learning_rate=0.001)": a hash would say nothing, and would differ
    between environments.
    """
    keys = [(run.environment, str(run.config["agent"]["name"])) for run in runs]
    hashes = [config_hash(run.config) for run in runs]
    variants: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for run, key, digest in zip(runs, keys, hashes, strict=True):
        variants.setdefault(key, {})[digest] = flat_settings(run.config)
    differing: dict[str, dict[str, None]] = {}
    for (_, name), settings in variants.items():
        for setting in dict.fromkeys(setting for one in settings.values() for setting in one):
            if len({repr(one.get(setting)) for one in settings.values()}) > 1:
                differing.setdefault(name, {})[setting] = None

    def full_name(name: str, settings: Mapping[str, Any]) -> str:
        chosen = ", ".join(f"{setting}={settings.get(setting)}" for setting in differing.get(name, ()))
        return f"{name} ({chosen})" if chosen else name

    names = []
    for key, digest in zip(keys, hashes, strict=True):
        full = {other: full_name(key[1], settings) for other, settings in variants[key].items()}
        alone = list(full.values()).count(full[digest]) == 1
        names.append(full[digest] if alone else f"{key[1]} ({digest})")
    return names


def _base_name(agent: str) -> str:
    """The agent's own name, without the settings of its variant."""
    return agent.split(" (", 1)[0]


def _rank(agent: str) -> tuple[int, str]:
    """Sort key: the baselines first, then this library's agents, then others by name."""
    base = _base_name(agent)
    return (_ORDER.index(base) if base in _ORDER else len(_ORDER), agent)
