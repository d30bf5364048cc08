"""The tables and figures of `docs/results-atari.md`, from the run directories of `tddelta reproduce atari`.

python benchmarks/atari_tables.py [runs/atari]    # writes docs/tables/atari-*.md and docs/_static/atari-*.png
"""

import sys
from pathlib import Path

from results_tables import markdown, write

import tddelta as tdd
from tddelta.paper.published import density_figure, density_table, gain_table, published_games, score_table
from tddelta.report.figures import drawings, to_bytes
from tddelta.report.study import Study, find_reference
from tddelta.report.words import MISSING, number, summary_text

FIGURES = Path(__file__).parent.parent / "docs" / "_static"


def scores(study: Study) -> None:
    """Scores in training and after it, beside random play."""
    rows = []
    for group in study.groups.values():
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


def beside(study: Study) -> None:
    """Beside the published numbers; gains over the better baseline; how often rewards come."""
    games = published_games(study)
    for name, table in (
        ("atari-published", score_table(study, games)),
        ("atari-gains", gain_table(study, games)),
        ("atari-density", density_table(study, games)),
    ):
        if table.rows:
            write(name, table.to_markdown())


def figures(study: Study) -> None:
    """Learning curves, and what the critics said during one game."""
    density = density_table(study, published_games(study))
    for drawing in [*drawings(study), *([density_figure(density)] if density.rows else [])]:
        if drawing.section in ("learning", "episode", "published"):
            (FIGURES / f"atari-{drawing.name}.png").write_bytes(to_bytes(drawing, "png"))
            print(f"_static/atari-{drawing.name}.png: {drawing.caption}")


if __name__ == "__main__":
    found = Study(tdd.load_runs(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/atari")))
    scores(found)
    beside(found)
    figures(found)
