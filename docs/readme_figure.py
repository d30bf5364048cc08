"""Draws the learning curves of the README from the runs of `make demo`.

python docs/readme_figure.py runs/20260101-120000
"""

import argparse
from pathlib import Path

from matplotlib.figure import Figure

from tddelta.report import figures
from tddelta.report.run_set import RunSet
from tddelta.runs import load_runs

TARGET = Path(__file__).parent / "_static" / "learning-curves.png"


def main() -> None:
    """Draw one panel per environment, side by side, on white: the page that shows it may be dark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of run directories")
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    runs = RunSet(load_runs(*given.runs))
    styles = figures.agent_styles(runs.agents)
    figure = Figure(figsize=(5.0 * len(runs.environments), 4.0), layout="constrained", facecolor="white")
    panels = figure.subplots(1, len(runs.environments), squeeze=False)[0]
    for axes, environment in zip(panels, runs.environments, strict=True):
        figures.learning_curves(axes, runs.curves(environment), styles)
        axes.set_title(environment)
        axes.spines[["top", "right"]].set_visible(False)
    given.out.parent.mkdir(exist_ok=True)
    figure.savefig(given.out, dpi=130, metadata={"Software": None})
    print(given.out)


if __name__ == "__main__":
    main()
