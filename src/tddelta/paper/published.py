"""The paper's published Atari results, and a section of the report that sets runs beside them.

Means and standard errors over seeds are all that was published, and all that Welch's test needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from matplotlib.axes import Axes

from tddelta.report.figures import LINE, Drawing, colour, label, legend_below, new_figure
from tddelta.report.page import Section
from tddelta.report.run_set import RunSet, compare_groups, verdict
from tddelta.report.statistics import Moments, Welch, holm, summarise, welch_of_moments
from tddelta.report.tables import (
    AGENT,
    DIFFERENCE,
    ENVIRONMENT,
    INTERVAL,
    MARKS,
    P_VALUES,
    SEEDS,
    Column,
    Record,
    Table,
    mean_column,
    of_group,
    of_summary,
    shown,
)
from tddelta.report.words import number, p_text, signed

_SOURCE = (
    "Romoff et al. 2019, Separating value functions across time-scales: mean return of the last 100 training episodes "
    "after 10 million agent steps, mean and standard error over 10 seeds. They were made by the released code, whose "
    "last step of a rollout and whose time limits differ from the text."
)
_DENSITY_SOURCE = (
    "Romoff et al. 2019: rewards other than 0 per 100 agent steps, over 10,000 steps of the trained PPO policy."
)
_TUNED_SOURCE = "A well-tuned PPO at the same budget, public benchmark: mean and standard deviation over 3 seeds."

_SEEDS_OF_PAPER, _STEPS_OF_PAPER = 10, 10_000_000

AGENTS = {"ppo-delta-matched": "PPO-TD(λ,Δ)", "ppo-delta-bootstrap": "PPO-TD(λ̂,Δ)", "ppo+": "PPO+", "ppo": "PPO"}
"""The paper's names of our agents."""

BASELINES = ("ppo", "ppo+")
"""The better of these two is what the paper compares its agents with."""

CHALLENGERS = ("ppo-delta-matched", "ppo-delta-bootstrap")
"""The paper's agents."""

COPIES = ("-released", "-published")
"""Ends of the names of agents that repeat what was done for the paper; see `tddelta.paper.atari`."""

# Mean and standard error of the agents in the order of AGENTS, mean and standard deviation of the tuned PPO, density.
_GAMES: dict[str, tuple[tuple[tuple[float, float], ...], tuple[float, float], float]] = {
    "Alien": (((1606, 112), (1663, 113), (1374, 85), (1315, 70)), (1755, 343), 11.33),
    "Amidar": (((731, 30), (672, 45), (611, 34), (575, 54)), (843, 32), 4.63),
    "BankHeist": (((1183, 13), (1166, 5), (1199, 5), (1190, 3)), (1167, 37), 6.3),
    "Frostbite": (((292, 7), (304, 21), (299, 2), (294, 5)), (296, 17), 5.04),
    "Hero": (((29074, 512), (29014, 764), (23511, 843), (21038, 972)), (29907, 2776), 13.46),
    "MsPacman": (((2273, 67), (2241, 78), (1876, 89), (1888, 111)), (2574, 590), 13.27),
    "Qbert": (((13428, 333), (13092, 430), (10594, 335), (11735, 387)), (17319, 386), 12.26),
    "WizardOfWor": (((2118, 138), (2440, 89), (2870, 218), (3408, 193)), (6392, 549), 1.07),
    "Zaxxon": (((396, 210), (3291, 812), (7006, 211), (7366, 223)), (4768, 3371), 1.15),
}


@dataclass(frozen=True)
class Published:
    """Published numbers of one game.

    Attributes:
        game: Its name.
        scores: Per agent the mean return of the last 100 training episodes, its standard error, and number of seeds.
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


PUBLISHED: dict[str, Published] = {
    game: Published(
        game,
        {
            agent: Moments(float(mean), float(error), _SEEDS_OF_PAPER)
            for agent, (mean, error) in zip(AGENTS, scores, strict=True)
        },
        (float(tuned[0]), float(tuned[1])),
        density,
    )
    for game, (scores, tuned, density) in _GAMES.items()
}
"""The published numbers by game."""


@cache
def published_gains() -> dict[tuple[str, str], tuple[Welch, float]]:
    """The paper's 18 comparisons with the better baseline, by game and agent: the test, and p after Holm's correction.

    They are made again from the published means and standard errors.
    """
    tests = {
        (game, agent): welch_of_moments(paper.scores[agent], paper.scores[paper.baseline])
        for game, paper in PUBLISHED.items()
        for agent in CHALLENGERS
    }
    corrected = holm([test.p_value for test in tests.values()])
    return {key: (test, float(p or 0.0)) for (key, test), p in zip(tests.items(), corrected, strict=True)}


def published_agent(agent: str) -> str | None:
    """The agent of the paper that an agent of ours is to be compared with: its own name, or the one it repeats."""
    for end in COPIES:
        agent = agent.removesuffix(end)
    return agent if agent in AGENTS else None


def published_games(runs: RunSet) -> dict[str, Published]:
    """Published numbers by those environments that are the paper's games under its protocol, the classic one."""
    found = {}
    for environment in runs.environments:
        config = runs.first_config(environment)
        meant = config.get("environment_parameters", {})
        changed = set(config.get("environment_kwargs", {})) - {"protocol", "threads"}
        if meant.get("game") in PUBLISHED and meant.get("protocol") == "classic" and not changed:
            found[environment] = PUBLISHED[meant["game"]]
    return found


def sections(runs: RunSet) -> list[Section]:
    """The report's section beside the published numbers; none where no run is of a game of the paper.

    Pass it on as in `Report(runs, sections=sections)`.
    """
    games = published_games(runs)
    density = density_table(runs, games)
    tables = [table for table in (score_table(runs, games), gain_table(runs, games), density) if table.rows]
    figures = [density_figure(density)] if density.rows else []
    title = "Beside the published results"
    return [Section("published", title, "Published results", figures, tables)] if tables else []


def score_table(runs: RunSet, games: Mapping[str, Published]) -> Table:
    """Our scores, and those of the paper, on `games`: environments that are games of the paper, under its protocol."""
    records: list[Record] = []
    for group in runs.groups.values():
        agent = published_agent(group.agent)
        if group.environment not in games or agent is None:
            continue
        paper = games[group.environment]
        ours, theirs = group.summary("asymptotic"), paper.scores[agent]
        if group.complete and ours.standard_error is not None:
            test = welch_of_moments(Moments(ours.mean, ours.standard_error, ours.n), theirs)
        else:
            test = Welch(ours.mean - theirs.mean, note=ours.note if group.complete else "not finished")
        records.append(
            of_group(
                group,
                seeds=len(group.scored),
                steps=min(seed.steps for seed in group.scored),
                **of_summary("score", ours, "standard_error"),
                published_agent=agent,
                published=theirs.mean,
                published_standard_error=theirs.standard_error,
                tuned=paper.tuned[0],
                tuned_standard_deviation=paper.tuned[1],
                difference=test.difference,
                p=test.p_value,
                p_holm=None,
                note=test.note,
            )
        )
    _correct(records)
    notes = [
        f"Published: {_SOURCE}",
        "Mean return of the last 100 training episodes ± standard error over seeds; difference of the means, and "
        "Welch's two-sided t-test, without and with Holm's correction over the rows of this table.",
    ]
    if any(record["steps"] < _STEPS_OF_PAPER for record in records):
        notes.append(f"The published runs had {_STEPS_OF_PAPER:,} steps: one that had fewer had less time to learn.")
    tuned = "; ".join(f"{p.game} {_whole(*p.tuned)}" for p in games.values())
    notes.append(f"For scale: {tuned}. {_TUNED_SOURCE}")
    columns = (
        ENVIRONMENT,
        AGENT,
        SEEDS,
        Column("Steps", "steps", "{:,}".format),
        mean_column("Here", "score", "standard_error"),
        Column("In the paper", "published_agent", AGENTS.__getitem__),
        Column("Published", ("published", "published_standard_error"), _whole),
        DIFFERENCE,
        *P_VALUES,
        Column(
            "Finding",
            ("difference", "p_holm", "note"),
            lambda difference, p, note: verdict(difference, p, "higher", "lower") or note,
            lambda text: MARKS.get(text, ""),
        ),
    )
    return Table("atari-published", "Beside the published scores", columns, records, notes)


def gain_table(runs: RunSet, games: Mapping[str, Published]) -> Table:
    """The paper's agents against the better baseline, here and in the paper; see `score_table`."""
    records: list[Record] = []
    for environment, paper in games.items():
        groups = runs.groups_on(environment)
        baselines = [group for group in groups if group.agent in BASELINES and group.complete]
        best = max(baselines, key=lambda group: group.summary("asymptotic").mean, default=None)
        for group in groups:
            name = published_agent(group.agent)
            if best is None or name not in CHALLENGERS:
                continue
            ours, (theirs, corrected) = compare_groups(group, best, "asymptotic"), published_gains()[paper.game, name]
            records.append(
                of_group(
                    group,
                    baseline=best.agent,
                    difference=ours.welch.difference,
                    low=ours.interval.low,
                    high=ours.interval.high,
                    p=ours.welch.p_value,
                    published_baseline=paper.baseline,
                    published_difference=theirs.difference,
                    published_p=theirs.p_value,
                    published_p_holm=corrected,
                    note=ours.note,
                    p_holm=None,
                )
            )
    _correct(records)
    columns = (
        ENVIRONMENT,
        AGENT,
        Column("Against", "baseline"),
        DIFFERENCE,
        INTERVAL,
        *P_VALUES,
        Column(
            "In the paper",
            ("published_difference", "published_baseline"),
            lambda difference, baseline: f"{signed(difference)} over {baseline}",
        ),
        Column("p there", "published_p", p_text),
        Column("p there (Holm)", "published_p_holm", p_text),
    )
    notes = (
        "Against the one of ppo and ppo+ that has the higher mean, here by our runs and there by the published means: "
        "such a choice makes gains look smaller.",
        "Holm's correction: here over the rows of this table, there over all 18 comparisons of the paper, of nine "
        "games and two agents.",
    )
    return Table("atari-gains", "Gains over the better baseline, here and in the paper", columns, records, notes)


def density_table(runs: RunSet, games: Mapping[str, Published]) -> Table:
    """Rewards per 100 steps under the trained policies and under a random one; see `score_table`."""
    records: list[Record] = []
    for group in runs.groups.values():
        found = [density for seed in group.scored if (density := seed.reward_density) is not None]
        if not found:
            continue
        trained, random = (summarise([one[name] for one in found]) for name in ("trained", "random"))
        paper = games.get(group.environment) if group.agent == "ppo" else None
        means = of_summary("trained", trained) | of_summary("random", random)
        records.append(of_group(group, seeds=trained.n, **means, published=paper.density if paper else None))
    columns = (
        ENVIRONMENT,
        AGENT,
        mean_column("Trained", "trained"),
        mean_column("Random", "random"),
        Column("Published", "published", shown(number)),
        SEEDS,
    )
    notes = (
        "Rewards other than 0 per 100 steps, over 10,000 steps of the final policy and of uniformly random actions, ± "
        "standard error over seeds.",
        *([f"Published: {_DENSITY_SOURCE}"] if any(record["published"] for record in records) else []),
    )
    return Table("reward-density", "How often rewards come", columns, records, notes)


def densities(table: Table) -> dict[str, dict[str, float]]:
    """Rewards per 100 steps by environment, and by policy: that of ppo or else the first agent, random, the paper's."""
    found: dict[str, dict[str, float]] = {}
    for record in sorted(table.records, key=lambda row: row["agent"] != "ppo"):
        row = {"trained": record["trained"], "random": record["random"], "paper": record["published"]}
        found.setdefault(record["environment"], {name: value for name, value in row.items() if value is not None})
    return found


def density_figure(table: Table) -> Drawing:
    """The numbers of `density_table` as a figure."""
    found = densities(table)
    figure, (axes,) = new_figure()
    _draw_densities(axes, found)
    figure.set_size_inches(figure.get_figwidth(), 1.1 + 0.3 * len(found) + 0.17 * legend_below(axes, None))
    words = "; ".join(
        f"{name}: {', '.join(f'{kind} {number(value)}' for kind, value in row.items())}" for name, row in found.items()
    )
    return Drawing(
        "reward-density",
        "published",
        "How often rewards come",
        "Rewards other than 0 per 100 steps: under the final policies of ppo (where it was not trained, of the first "
        "agent), under uniformly random actions, and under the trained PPO policy of the paper.",
        f"Rewards per 100 steps. {words}.",
        figure,
        reading=rewards(found),
    )


def _draw_densities(axes: Axes, found: Mapping[str, Mapping[str, float]]) -> None:
    """One row per environment, one mark per policy."""
    names = list(found)
    for place, kind in enumerate(dict.fromkeys(kind for row in found.values() for kind in row)):
        rows = [(len(names) - 1 - i, found[name][kind]) for i, name in enumerate(names) if kind in found[name]]
        heights, values = zip(*rows, strict=True)
        axes.plot(values, heights, linestyle="", marker="osD"[place], markersize=6, color=colour(place), label=kind)
    axes.set_yticks(range(len(names)), reversed(names))
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.set_xlim(left=0)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    label(axes, "Rewards per 100 steps", "")


def rewards(found: Mapping[str, Mapping[str, float]]) -> str:
    """Say where rewards come most and least often under the trained agent."""
    trained = {environment: row["trained"] for environment, row in found.items()}
    most, fewest = max(trained, key=lambda name: trained[name]), min(trained, key=lambda name: trained[name])
    text = f"The trained agent gets {number(trained[most])} rewards per 100 steps on {most}"
    return f"{text}." if most == fewest else f"{text}, and {number(trained[fewest])} on {fewest}."


def _correct(records: list[Record]) -> None:
    """Fill in p after Holm's correction over all rows."""
    for record, p in zip(records, holm([record["p"] for record in records]), strict=True):
        record["p_holm"] = p


def _whole(mean: float, deviation: float) -> str:
    return f"{mean:,.0f} ± {deviation:,.0f}"  # the paper gives whole numbers
