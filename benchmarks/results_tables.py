"""The tables and figures of `docs/results.md`, from the rows in `docs/data` alone.

python benchmarks/results_tables.py           # writes docs/tables/results-*.md and docs/_static/results-*.png
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from results import DATA, KEYS, STUDIES, groups, read_rows

from tddelta._matplotlib import own_style
from tddelta.report.figures import INK, agent_styles, learning_curves, panels, to_bytes
from tddelta.report.run_set import BASELINES, verdict
from tddelta.report.statistics import Curve, bootstrap_difference, holm, learning_curve, summarise, welch_test
from tddelta.report.tables import markdown
from tddelta.report.words import MISSING, counted, interval_text, listed, p_phrase, p_text, signed, summary_text

MEASURES = {
    "return_last": "last 100 episodes",
    "return_average": "all episodes",
    "reward_per_step": "reward per step",
    "at_limit": "share at the limit",
    "explained_variance": "explained variance",
}
"""Columns of the data that a table shows, and their heads; the first one is tested."""


@dataclass(frozen=True)
class Group:
    """The seeds of one method on one problem.

    Attributes:
        problem: Environment, with the reward noise where the study varies it.
        agent: Name of the agent.
        setting: λ of the critic, as ", λ = 1", where the study varies it.
        planned: Number of seeds of the study.
        rows: Rows of the data, one for each seed that is there.
    """

    problem: str
    agent: str
    setting: str
    planned: int
    rows: list[dict[str, str]]

    @property
    def complete(self) -> bool:
        """True if all seeds of the study are there: only then is anything tested."""
        return len(self.rows) == self.planned

    @property
    def name(self) -> str:
        """Agent and setting, in Markdown."""
        return f"`{self.agent}`{self.setting}"

    def values(self, measure: str) -> list[float]:
        """A column, one number for each seed."""
        return [float(row[measure]) for row in self.rows]

    def curve(self) -> Curve:
        """Mean learning curve with its 95 % t interval."""
        columns = [name for name in self.rows[0] if name.startswith("return@")]
        grid = np.array([float(name.removeprefix("return@")) for name in columns])
        curves = np.array([[float(row[name]) for name in columns] for row in self.rows])
        known = np.isfinite(curves)
        return learning_curve([grid[k] for k in known], [c[k] for c, k in zip(curves, known, strict=True)], grid)


def read(study: str, folder: Path) -> list[Group]:
    """All groups that a study plans, with their rows as far as they are there."""
    rows = read_rows(folder / f"{study}.csv")
    plan = [(case, agent, key) for case in STUDIES[study] for _, agent, key in groups(case)]
    several = {name for name in KEYS[:-1] if len({key[name] for *_, key in plan}) > 1}
    found = []
    for case, agent, key in plan:
        own = [row for row in rows if key.items() <= row.items() and int(row["seed"]) in case.seeds]
        noise = f", σ = {key['reward_noise']}" if "reward_noise" in several else ""
        setting = f", λ = {key['lam']}" if "lam" in several else ""
        found.append(Group(f"{key['environment']}{noise}", agent, setting, len(case.seeds), own))
    return found


def progress(found: Sequence[Group]) -> str:
    """Sentence about what is there, of what is planned."""
    complete = sum(group.complete for group in found)
    there, planned = sum(len(group.rows) for group in found), sum(group.planned for group in found)
    text = f"{complete} of {counted(len(found), 'group')} complete, {there} of {planned} runs."
    rows = [row for group in found for row in group.rows]
    dates, versions, machines = (sorted({row[name] for row in rows}) for name in ("date", "version", "machine"))
    when = dict.fromkeys(dates[:1] + dates[-1:])
    return f"{text} Trained {' to '.join(when)}, version {listed(versions)}, on {listed(machines)}." if rows else text


def scores(found: Sequence[Group]) -> str:
    """Means ± standard errors of every group: a table for each problem of which something is there."""
    parts, missing = [], []
    for problem in dict.fromkeys(group.problem for group in found):
        rows = []
        here = [group for group in found if group.problem == problem]
        for group in here:
            texts = [summary_text(summarise(group.values(name))) if group.rows else MISSING for name in MEASURES]
            rows.append([group.name, f"{len(group.rows)} of {group.planned}", *texts])
        if any(group.rows for group in here):
            parts.append(f"**{problem}**\n\n{markdown(['agent', 'seeds', *MEASURES.values()], rows)}")
        else:
            missing.append(problem)
    return "\n".join([*parts, *([f"To come: {listed(missing)}.\n"] if missing else [])])


def tests(found: Sequence[Group]) -> str:
    """Every agent with components against every baseline on the same problem, and what is clear after correction."""
    measure, title = next(iter(MEASURES.items()))
    pairs = [(a, b) for a in found for b in found if a.problem == b.problem]
    pairs = [(a, b) for a, b in pairs if a.agent not in BASELINES and b.agent in BASELINES]
    ready = [a.complete and b.complete for a, b in pairs]
    results = [welch_test(a.values(measure), b.values(measure)) for a, b in pairs]
    # A comparison still to come counts with p = 1, so that what is clear now will stay so.
    values = [result.p_value if made else 1.0 for result, made in zip(results, ready, strict=True)]
    corrected = holm([1.0 if value is None else value for value in values])
    rows, clear = [], []
    for (a, b), made, result, p in zip(pairs, ready, results, corrected, strict=True):
        if not made:
            continue
        interval = bootstrap_difference(a.values(measure), b.values(measure))
        texts = [signed(result.difference), interval_text(interval.low, interval.high)]
        rows.append([a.problem, f"{a.name} − {b.name}", *texts, p_text(result.p_value), p_text(p)])
        side = verdict(result.difference, p, "above", "below")
        if side in ("above", "below"):
            clear.append(f"{a.name} {side} {b.name} on {a.problem} ({p_phrase(p)})")
    head = ["environment", "difference of", title, "95 % interval", "p (Welch)", "p (Holm)"]
    text = f"{len(rows)} of {counted(len(pairs), 'comparison')} can be made; Holm's correction counts all {len(pairs)}."
    found = f"{markdown(head, rows)}\n{text} Clear after it (p < .05): {'; '.join(clear) or 'none'}.\n"
    return found if rows else f"{text}\n"


@own_style()
def draw(found: Sequence[Group]) -> Figure:
    """Learning curves: a panel for each problem of which something is there."""
    there = [group for group in found if group.rows]
    problems = list(dict.fromkeys(group.problem for group in there))
    styles = agent_styles(list(dict.fromkeys(f"{group.agent}{group.setting}" for group in found)))
    figure, axes = panels(len(problems), columns=2, width=4.6, height=3.0)
    lines: dict[str, Any] = {}
    for each, problem in zip(axes, problems, strict=True):
        curves = {f"{g.agent}{g.setting}": g.curve() for g in there if g.problem == problem}
        learning_curves(each, curves, styles)
        each.get_legend().remove()
        each.set_title(problem, color=INK, fontsize=10)
        handles, names = each.get_legend_handles_labels()
        lines |= dict(zip(names, handles, strict=True))
    figure.legend(
        lines.values(), lines.keys(), loc="outside lower center", ncols=3, fontsize=9, frameon=False, labelcolor=INK
    )
    return figure


def main() -> None:
    """Write a file for each study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the rows")
    parser.add_argument("--out", type=Path, default=DATA.parent, help="folder whose tables and _static are written")
    given = parser.parse_args()
    for folder in ("tables", "_static"):
        (given.out / folder).mkdir(parents=True, exist_ok=True)
    for study in STUDIES:
        found = read(study, given.data)
        parts = [f"{progress(found)}\n"]
        if any(group.rows for group in found):
            figure = f"_static/results-{study}.png"
            (given.out / figure).write_bytes(to_bytes(draw(found)))
            parts += [scores(found), f"![Mean learning curves, 95 % t intervals](../{figure})\n"]
        parts.append(tests(found))
        path, text = given.out / "tables" / f"results-{study}.md", "\n".join(parts)
        path.write_text(text, encoding="utf-8")
        print(f"{path}\n{text}")


if __name__ == "__main__":
    main()
