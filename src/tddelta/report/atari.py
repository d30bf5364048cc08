"""Runs on Atari games beside the numbers that the paper published, and how often rewards come.

The published numbers are data (`references/atari-published.json`): means and standard errors over seeds, which is all
that Welch's test needs.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from scipy import stats

from tddelta.report import statistics
from tddelta.report.statistics import Welch
from tddelta.report.study import Group, Study, atari_game, compare_groups
from tddelta.report.tables import TITLES
from tddelta.report.words import MISSING, Table, interval_text, number, p_text, signed, summary_text

BASELINES = ("ppo", "ppo+")
"""The better of these two is what the paper compares its agents with."""

CHALLENGERS = ("ppo-delta-matched", "ppo-delta")
"""The paper's agents."""

COPIES = ("-released", "-published")
"""Ends of the names of agents that repeat what was done for the paper; see `tddelta.paper.atari`."""


class Moments(NamedTuple):
    """What a publication says of the scores of an agent.

    Attributes:
        mean: Mean over seeds.
        standard_error: Its standard error.
        n: Number of seeds, at least 2.
    """

    mean: float
    standard_error: float
    n: int


def welch_of_moments(first: Moments, second: Moments) -> Welch:
    """Welch's two-sided t-test from means and standard errors, where the scores of the seeds are not known.

    Args:
        first: Of one agent.
        second: Of the other.

    Returns:
        The test; `p_value` is None where neither has any variance.
    """
    both, difference = (first, second), first.mean - second.mean
    if first.standard_error == second.standard_error == 0:
        return Welch(difference, None, None, None, degenerate=difference != 0, note="no variance within either agent")
    spreads = [moments.standard_error * math.sqrt(moments.n) for moments in both]
    result = stats.ttest_ind_from_stats(
        first.mean, spreads[0], first.n, second.mean, spreads[1], second.n, equal_var=False
    )
    squares = [moments.standard_error**2 for moments in both]
    freedom = sum(squares) ** 2 / sum(s**2 / (m.n - 1) for s, m in zip(squares, both, strict=True))
    return Welch(difference, float(result.statistic), freedom, float(result.pvalue))


@dataclass(frozen=True)
class Published:
    """What the paper says of one game.

    Attributes:
        game: Its name.
        scores: Per agent the mean return of the last 100 training episodes, its standard error, and how many seeds.
        tuned: Mean and standard deviation of a well-tuned PPO elsewhere.
        density: Rewards per 100 agent steps under the trained PPO policy.
    """

    game: str
    scores: Mapping[str, Moments]
    tuned: tuple[float, float]
    density: float

    @property
    def baseline(self) -> str:
        """The better baseline."""
        return max(BASELINES, key=lambda name: self.scores[name].mean)

    def gain(self, agent: str) -> Welch:
        """The agent against the better baseline."""
        return welch_of_moments(self.scores[agent], self.scores[self.baseline])


@cache
def published() -> dict[str, Published]:
    """What the paper says, by game."""
    data = _data()
    return {
        game: Published(
            game,
            {agent: Moments(float(row[agent][0]), float(row[agent][1]), data["seeds"]) for agent in data["agents"]},
            (float(row["tuned"][0]), float(row["tuned"][1])),
            float(row["density"]),
        )
        for game, row in data["games"].items()
    }


@cache
def published_gains() -> dict[tuple[str, str], tuple[Welch, float]]:
    """The paper's 18 comparisons with the better baseline, by game and agent: the test, and p after Holm's correction.

    They are made again from the published means and standard errors.
    """
    tests = {(game, agent): paper.gain(agent) for game, paper in published().items() for agent in CHALLENGERS}
    corrected = statistics.holm([test.p_value for test in tests.values()])
    return {key: (test, float(p or 0.0)) for (key, test), p in zip(tests.items(), corrected, strict=True)}


@cache
def _data() -> dict[str, Any]:
    place = resources.files("tddelta.report").joinpath("references", "atari-published.json")
    data: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return data


def published_agent(agent: str) -> str | None:
    """The agent of the paper that an agent of ours is to be compared with: its own name, or the one it repeats."""
    for end in COPIES:
        agent = agent.removesuffix(end)
    return agent if agent in _data()["agents"] else None


def atari_tables(study: Study) -> list[Table]:
    """Tables beside the published numbers, and of reward densities; none where no run is of a game of the paper."""
    games = published_games(study)
    tables = [score_table(study, games), gain_table(study, games), density_table(study, games)]
    return [table for table in tables if table.rows]


def published_games(study: Study) -> dict[str, Published]:
    """What the paper says, by those environments that are its games under its protocol."""
    games = {environment: atari_game(study.first_config(environment)) for environment in study.environments}
    return {environment: published()[game] for environment, game in games.items() if game in published()}


def score_table(study: Study, games: Mapping[str, Published]) -> Table:
    """Our scores, and those of the paper.

    Args:
        study: The runs.
        games: Environments that are games of the paper, under its protocol.
    """
    names = _data()["agents"]
    rows: list[tuple[str, ...]] = []
    data: list[dict[str, Any]] = []
    tests: list[Welch] = []
    for group in study.groups.values():
        agent = published_agent(group.agent)
        if group.environment not in games or agent is None:
            continue
        paper = games[group.environment]
        ours, theirs = group.summary("asymptotic"), paper.scores[agent]
        tests.append(_against(group, theirs))
        rows.append((group.environment, group.agent, str(len(group.scored)), f"{_steps(group):,}", summary_text(ours),
                     names[agent], _moments_text(theirs)))  # fmt: skip
        data.append(
            {
                "environment": group.environment,
                "agent": group.agent,
                "seeds": len(group.scored),
                "steps": _steps(group),
                "score": ours.mean,
                "standard_error": ours.standard_error,
                "published_agent": agent,
                "published": theirs.mean,
                "published_standard_error": theirs.standard_error,
                "tuned": paper.tuned[0],
                "tuned_standard_deviation": paper.tuned[1],
                "difference": tests[-1].difference,
                "p": tests[-1].p_value,
            }
        )
    corrected = statistics.holm([test.p_value for test in tests])
    findings = [_finding(test, p) for test, p in zip(tests, corrected, strict=True)]
    for index, (test, p) in enumerate(zip(tests, corrected, strict=True)):
        rows[index] += (signed(test.difference), p_text(test.p_value), p_text(p), findings[index])
        data[index]["p_holm"] = p
    heads = ("Environment", "Agent", "Seeds", "Steps", "Here", "In the paper", "Published", "Difference", "p",
             "p (Holm)", "Finding")  # fmt: skip
    notes = [
        f"Published: {_data()['source']}",
        "Mean return of the last 100 training episodes ± standard error over seeds; difference of the means, and "
        "Welch's two-sided t-test, without and with Holm's correction over the rows of this table.",
        *_short(data),
        f"For scale: {'; '.join(f'{p.game} {p.tuned[0]:,.0f} ± {p.tuned[1]:,.0f}' for p in games.values())}. "
        f"{_data()['tuned_source']}",
    ]
    marks = tuple({"higher": "better", "lower": "worse"}.get(finding, "") for finding in findings)
    return Table("atari-published", "Beside the published scores", heads, rows, data, tuple(notes), marks, "Finding")


def gain_table(study: Study, games: Mapping[str, Published]) -> Table:
    """The paper's agents against the better baseline, here and in the paper; see `score_table`."""
    rows: list[tuple[str, ...]] = []
    data: list[dict[str, Any]] = []
    for environment, paper in games.items():
        baselines = [g for g in (study.group(environment, name) for name in BASELINES) if g is not None and g.complete]
        best = max(baselines, key=lambda group: group.summary("asymptotic").mean, default=None)
        for agent in study.agents:
            group, name = study.group(environment, agent), published_agent(agent)
            if best is None or group is None or name not in CHALLENGERS:
                continue
            ours, (theirs, corrected) = compare_groups(group, best, "asymptotic"), published_gains()[paper.game, name]
            data.append(
                {
                    "environment": environment,
                    "agent": agent,
                    "baseline": best.agent,
                    "difference": ours.welch.difference,
                    "low": ours.interval.low,
                    "high": ours.interval.high,
                    "p": ours.welch.p_value,
                    "published_baseline": paper.baseline,
                    "published_difference": theirs.difference,
                    "published_p": theirs.p_value,
                    "published_p_holm": corrected,
                    "note": ours.note,
                }
            )
            rows.append((environment, agent, best.agent, signed(ours.welch.difference), interval_text(ours.interval),
                         p_text(ours.welch.p_value)))  # fmt: skip
    for index, p in enumerate(statistics.holm([record["p"] for record in data])):
        record = data[index]
        rows[index] += (
            p_text(p),
            f"{signed(record['published_difference'])} over {record['published_baseline']}",
            p_text(record["published_p"]),
            p_text(record["published_p_holm"]),
        )
        record["p_holm"] = p
    heads = ("Environment", "Agent", "Against", "Difference", "95 % interval", "p", "p (Holm)", "In the paper",
             "p there", "p there (Holm)")  # fmt: skip
    notes = (
        "Against the one of ppo and ppo+ that has the higher mean, here by our runs and there by the published means: "
        "such a choice makes gains look smaller.",
        "Holm's correction: here over the rows of this table, there over all 18 comparisons of the paper, of nine "
        "games and two agents.",
    )
    return Table("atari-gains", "Gains over the better baseline, here and in the paper", heads, rows, data, notes)


def hold_out_table(study: Study) -> Table:
    """Return of the final policy in episodes that begin with 0, 1, 2, … further no-ops."""
    rows, data = [], []
    for group in study.groups.values():
        summary = group.summary("hold_out")
        if summary.n:
            rows.append((group.environment, group.agent, summary_text(summary), str(summary.n)))
            record = {"environment": group.environment, "agent": group.agent, "seeds": summary.n}
            data.append(record | {"return_mean": summary.mean, "standard_error": summary.standard_error})
    notes = (
        "Mean raw score of one episode each after 0, 1, 2, … no-ops beyond the usual start, actions drawn from the "
        "final policy, ± standard error over seeds.",
    )
    return Table("hold-out", TITLES["hold_out"], ("Environment", "Agent", "Return", "Seeds"), rows, data, notes)


def density_table(study: Study, games: Mapping[str, Published]) -> Table:
    """How often rewards come under the trained policies and under a random one; see `score_table`."""
    rows, data = [], []
    for group in study.groups.values():
        found = [density for seed in group.scored if (density := seed.reward_density) is not None]
        if not found:
            continue
        trained, random = (statistics.summarise([one[name] for one in found]) for name in ("trained", "random"))
        paper = games.get(group.environment)
        there = paper.density if paper is not None and group.agent == "ppo" else None
        rows.append((group.environment, group.agent, summary_text(trained), summary_text(random),
                     MISSING if there is None else number(there), str(trained.n)))  # fmt: skip
        data.append(
            {
                "environment": group.environment,
                "agent": group.agent,
                "seeds": trained.n,
                "trained": trained.mean,
                "trained_standard_error": trained.standard_error,
                "random": random.mean,
                "random_standard_error": random.standard_error,
                "published": there,
            }
        )
    heads = ("Environment", "Agent", "Trained", "Random", "Published", "Seeds")
    notes = (
        "Rewards other than 0 per 100 steps, over 10,000 steps of the final policy and of uniformly random actions, ± "
        "standard error over seeds.",
        *([f"Published: {_data()['density_source']}"] if any(record["published"] for record in data) else []),
    )
    return Table("reward-density", "How often rewards come", heads, rows, data, notes)


def densities(study: Study) -> dict[str, dict[str, float]]:
    """Rewards per 100 steps by environment, and by policy: that of ppo or else the first agent, random, the paper's."""
    found: dict[str, dict[str, float]] = {}
    for record in sorted(density_table(study, published_games(study)).data, key=lambda row: row["agent"] != "ppo"):
        row = {"trained": record["trained"], "random": record["random"], "paper": record["published"]}
        found.setdefault(record["environment"], {name: value for name, value in row.items() if value is not None})
    return found


def _against(group: Group, theirs: Moments) -> Welch:
    """Our seeds against published moments; nothing is tested before a seed has finished."""
    ours = group.summary("asymptotic")
    if not group.complete or ours.standard_error is None:
        reason = ours.note if group.complete else "not finished"
        return Welch(ours.mean - theirs.mean, None, None, None, note=reason)
    return welch_of_moments(Moments(ours.mean, ours.standard_error, ours.n), theirs)


def _finding(test: Welch, corrected: float | None) -> str:
    if corrected is None:
        return test.note
    if corrected >= 0.05:
        return "no clear difference"
    return "higher" if test.difference > 0 else "lower"


def _steps(group: Group) -> int:
    """Steps of the shortest run that counts for the scores."""
    return min(seed.steps for seed in group.scored)


def _short(data: list[dict[str, Any]]) -> list[str]:
    planned = int(_data()["steps"])
    if all(record["steps"] >= planned for record in data):
        return []
    return [f"The published runs had {planned:,} steps: one that had fewer has had less time to learn."]


def _moments_text(moments: Moments) -> str:
    return f"{moments.mean:,.0f} ± {moments.standard_error:,.0f}"  # the paper gives whole numbers
