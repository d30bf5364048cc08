"""`reproduce`: experiments of the paper whose whole output is one folder of tables and figures."""

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from tddelta.errors import ConfigError

if TYPE_CHECKING:
    from tddelta.report.figures import Drawing

Experiment = Literal["ring", "theory"]
"""What can be reproduced."""


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Reproduce a tabular experiment of the paper: tables (CSV) and figures (PNG, PDF) in one folder.

    ring: n-step TD against n-step TD(Δ) on the ring, every discount, window and step size of the published grid.

    theory: Theorems 1 to 4 beside measurements, and the counterexample to the published bounds.

    Example: tddelta reproduce ring --quick
    """

    experiment: Annotated[Positional[Experiment], arg(metavar="EXPERIMENT")]
    """ring or theory."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: runs/YYYYMMDD-HHMMSS)")] = None
    """Folder to write; it must not exist yet."""
    quick: bool = False
    """A smaller experiment, in seconds: fewer processes, seeds and settings."""
    redraw: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: run the experiment)")] = None
    """Folder of a finished ring experiment whose figures and tables are made again from its averages."""

    def run(self, command: Sequence[str]) -> int:
        """Run the experiment and write the folder."""
        from tddelta.experiments.plan import default_out

        if self.redraw is not None:
            if self.experiment != "ring" or self.out is not None or self.quick:
                raise ConfigError("--redraw goes with ring alone: write tddelta reproduce ring --redraw DIR")
            _draw_ring(self.redraw)
            print(f"{self.experiment}: {self.redraw}")
            return 0
        out = default_out() if self.out is None else self.out
        if out.exists() or out.is_symlink():
            raise ConfigError(f"{out} exists already, and nothing is overwritten: name another folder with --out")
        write_folder(out, lambda folder: _EXPERIMENTS[self.experiment](folder, self.quick))
        print(f"{self.experiment}: {out}")
        return 0


def _theory(folder: Path, quick: bool) -> None:
    from tddelta.experiments import theory
    from tddelta.report import theory as report

    results = theory.study(quick=quick, say=lambda text: print(text, file=sys.stderr, flush=True))
    (folder / "tables").mkdir()
    for table in report.tables(results):
        (folder / "tables" / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
    drawings = list(report.drawings(results))
    write_figures(folder, drawings)
    lines = report.statements(results)
    write_settings(folder, {"experiment": "theory", "quick": quick})
    captions = [f"- `figures/{drawing.name}.png`: {drawing.caption}" for drawing in drawings]
    text = ["# Theory", "", *(f"- {line}" for line in lines), "", "## Figures", "", *captions]
    (folder / "theory.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _ring(folder: Path, quick: bool) -> None:
    from tddelta.experiments.ring import QUICK, run_ring

    run_ring(QUICK if quick else None, folder, live=sys.stderr.isatty())
    timing = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    print(
        f"{timing['component_updates']:,} component updates in {timing['seconds']:.1f} s "
        f"on {timing['threads']} threads; drawing",
        file=sys.stderr,
        flush=True,
    )
    _draw_ring(folder)


def _draw_ring(folder: Path) -> None:
    from rich.console import Console

    from tddelta.report.ring_figures import write_ring

    console = Console(stderr=True)
    with console.status("drawing") as status:
        lines = write_ring(folder, done=lambda name: status.update(f"drew {name}"))
    print("\n".join(lines))


_EXPERIMENTS: dict[str, Callable[[Path, bool], None]] = {"ring": _ring, "theory": _theory}
"""What fills the folder of each experiment."""


def write_folder(out: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under a temporary name beside `out`, then rename it: `out` is whole or does not exist."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
        temporary.mkdir()
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error}): name another folder with --out") from error
    try:
        fill(temporary)
        temporary.rename(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_figures(folder: Path, drawings: "Iterable[Drawing]") -> None:
    """Write every figure as PNG and PDF into figures/."""
    from tddelta.report.figures import to_bytes

    (folder / "figures").mkdir(exist_ok=True)
    for drawing in drawings:
        for kind in ("png", "pdf"):
            (folder / "figures" / f"{drawing.name}.{kind}").write_bytes(to_bytes(drawing, kind))


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write settings.json: what was run, and by which version."""
    import tddelta

    whole = dict(settings) | {"version": tddelta.__version__}
    (folder / "settings.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
