"""The tables and figures of `docs/results-atari.md`, from the run directories of `tddelta reproduce atari`.

python benchmarks/atari_tables.py [runs/atari]    # writes docs/tables/atari-*.md and docs/_static/atari-*.png
"""

import sys
from pathlib import Path

import tddelta as tdd
from tddelta.paper.published import density_figure, density_table, gain_table, published_games, score_table
from tddelta.report.figures import drawings, to_bytes
from tddelta.report.run_set import RunSet, find_reference
from tddelta.report.tables import markdown
from tddelta.report.words import MISSING, number, summary_text

DOCS = Path(__file__).parent.parent / "docs"


def write(name: str, text: str) -> None:
    """Write one table."""
    (DOCS / "tables" / f"{name}.md").write_text(text, encoding="utf-8")
    print(f"tables/{name}.md\n{text}")


def scores(runs: RunSet) -> None:
    """Scores in training and after it, beside random play."""
    rows = []
    for group in runs.groups.values():
        reference = find_reference(group.environment)
        steps = sorted({seed.steps for seed in group.scored})
        rows.append(
            [
                group.environment,
                f"`{group.agent}`",
                " to ".join(f"{count:,}" for count in (steps if len(steps) < 3 else [steps[0], steps[-1]])),
                str(len(group.scored)),
                MISSING if reference is None else number(reference.random),
                summary_text(group.summary("asymptotic")),
                summary_text(group.summary("average")),
                summary_text(group.summary("hold_out")) if group.summary("hold_out").n else MISSING,
            ]
        )
    head = ["game", "agent", "steps", "seeds", "random play", "last 100 episodes", "all episodes", "hold-out"]
    write("atari-scores", markdown(head, rows))


def beside(runs: RunSet) -> None:
    """Beside the published numbers; gains over the better baseline; how often rewards come."""
    games = published_games(runs)
    for name, table in (
        ("atari-published", score_table(runs, games)),
        ("atari-gains", gain_table(runs, games)),
        ("atari-density", density_table(runs, games)),
    ):
        if table.rows:
            write(name, table.to_markdown())


def figures(runs: RunSet) -> None:
    """Learning curves, and what the critics said during one game."""
    density = density_table(runs, published_games(runs))
    for drawing in [*drawings(runs), *([density_figure(density)] if density.rows else [])]:
        if drawing.section in ("learning", "episode", "published"):
            (DOCS / "_static" / f"atari-{drawing.name}.png").write_bytes(to_bytes(drawing.figure))
            print(f"_static/atari-{drawing.name}.png: {drawing.caption}")


if __name__ == "__main__":
    found = RunSet(tdd.load_runs(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/atari")))
    scores(found)
    beside(found)
    figures(found)
