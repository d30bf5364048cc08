"""One self-contained HTML file that shows a set of runs, with its figures and tables as files beside it."""

import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tddelta._matplotlib import own_style
from tddelta._plain import counted
from tddelta.errors import ConfigError, StorageError
from tddelta.report import tables, words
from tddelta.report.figures import PALETTE, Drawing, agent_styles, drawings, laid_out, to_bytes, to_svg
from tddelta.report.run_set import RunSet
from tddelta.report.tables import Table
from tddelta.runs import Run, find_runs, readable_runs
from tddelta.runs.files import replace

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A run directory, a folder above some, or several of these."""

_NUMERIC = re.compile(r"(?:[+−<]?[\d∞]|n/a|–$|$)")

_TEMPLATES = Environment(
    loader=PackageLoader("tddelta.report", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Section:
    """A section of the page that not every report has.

    Attributes:
        name: Its anchor on the page.
        title: Its heading.
        link: Its name among the contents.
        figures: Its figures.
        tables: Its tables, below the figures.
    """

    name: str
    title: str
    link: str
    figures: Sequence[Drawing]
    tables: Sequence[Table]


class Report:
    """The report of some runs.

    Args:
        runs: The runs, as `load_runs` returns them.
        baselines: Agents that the others are compared with. None means `ppo`, `ppo+` and `ppo-multi`, where present.
        references: (random, reference) scores by environment for normalisation, before the tables that are shipped.
        sections: Makes further sections of the page, below the scores.

    Attributes:
        runs: The runs, grouped and scored.

    Raises:
        ConfigError: There is no readable run, or a baseline is not among the agents.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        baselines: Sequence[str] | None = None,
        references: Mapping[str, tuple[float, float]] | None = None,
        sections: Callable[[RunSet], Sequence[Section]] = lambda _: (),
    ) -> None:
        self.runs = RunSet(runs, baselines, references)
        self._sections = sections
        self._moved: list[str] = []

    @property
    def problems(self) -> list[str]:
        """Sentences about what could not be read, and about files that were moved."""
        return [*self.runs.problems, *self._moved]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes to the summary."""
        differences = tables.difference_table(self.runs).notes if self.runs.comparisons() else ()
        return (*tables.score_table(self.runs).notes, *differences)

    def summary(self) -> list[dict[str, str]]:
        """The scores as rows for a terminal, the same numbers as on the page.

        Returns:
            One mapping from column head to text per environment and agent, all with the same heads; differences are
            those from the first baseline that is present.
        """
        return tables.summary_rows(self.runs)

    @own_style()
    def write(self, out: str | os.PathLike[str]) -> Path:
        """Write one HTML file that needs no network, and the folders `figures` and `tables` beside it.

        The same runs give the same bytes. Runs that are missing, failed, interrupted or unreadable are named in it.
        The two folders belong to the page: whatever else is in them moves to their subfolder `earlier`. Those of a
        page NAME.html other than report.html are `NAME-figures` and `NAME-tables`.

        Args:
            out: The file to write, ending in `.html`, or a folder for `report.html`.

        Returns:
            The path of the HTML file.

        Raises:
            ConfigError: Nothing can be written at `out`, one of the folders is a file, or there is no page yet and
                one of them holds files.
        """
        sections, parts = self._sections(self.runs), _tables(self.runs)
        figures = [*drawings(self.runs), *(each for section in sections for each in section.figures)]
        shown = [table for part in parts.values() for table in (part if isinstance(part, list) else [part])]
        shown += [table for section in sections for table in section.tables]
        content = _content(self.runs) | parts | {"sections": sections}
        target, moved = write_page(out, figures, shown, "report.html.j2", content)
        self._moved += moved
        return target


def write_page(
    out: str | os.PathLike[str],
    figures: Iterable[Drawing],
    tables: Iterable[Table],
    template: str,
    content: Mapping[str, Any],
) -> tuple[Path, list[str]]:
    """Write a page and the folders of its figures and tables beside it; see `Report.write`.

    Args:
        out: The file to write, or a folder for `report.html`.
        figures: Its figures.
        tables: Its tables; those without rows are left out.
        template: File among the templates of this package. It knows the tables, the drawn `figures` by section and the
            names of the two `folders`.
        content: What else it knows, by name.

    Returns:
        The path of the page, and sentences about files that were moved.
    """
    target = Path(out) if Path(out).suffix == ".html" else Path(out) / "report.html"
    beside = "" if target.name == "report.html" else f"{target.stem}-"
    folders = [target.parent / f"{beside}{kind}" for kind in ("figures", "tables")]
    _check_place(target, folders)
    tables = [table for table in tables if table.rows]
    drawn = [laid_out(each) for each in figures]
    images = {f"{each.name}.{kind}": to_bytes(each.figure, kind) for each in drawn for kind in ("png", "pdf")}
    texts = {f"{table.name}.csv": table.to_csv() for table in tables}
    texts |= {f"{table.name}.tex": table.to_latex() for table in tables}
    by_section: dict[str, list[dict[str, Any]]] = {}
    for drawing in drawn:
        item = {"drawing": drawing, "svg": Markup(to_svg(drawing))}  # matplotlib escapes text in SVG
        by_section.setdefault(drawing.section, []).append(item)
    known = {"tables": tables, "figures": by_section, "folders": [each.name for each in folders], **content}
    html = _TEMPLATES.get_template(template).render(known, palette=PALETTE, numeric=_numeric_columns)
    _write(target, html.encode(errors="backslashreplace"))
    files, notes = (images, {name: text.encode(errors="replace") for name, text in texts.items()}), []
    for folder, contents in zip(folders, files, strict=True):
        if moved := _fill(folder, contents):
            notes.append(
                f"{folder} held {counted(moved, 'file')} that this report does not make: moved to {folder / 'earlier'}"
            )
    return target, notes


def write_report(
    paths: Paths,
    out: str | os.PathLike[str] | None = None,
    *,
    baselines: Sequence[str] | None = None,
    references: Mapping[str, tuple[float, float]] | None = None,
) -> Path:
    """Draw the report of the runs at some paths; see `Report.write`.

    Args:
        paths: Where the runs are.
        out: The file to write, ending in `.html`, or a folder for `report.html`. None means the folder that all runs
            share.
        baselines: As of `Report`.
        references: As of `Report`.

    Returns:
        The path of the HTML file.

    Raises:
        ConfigError: There is no run at or below a path, a baseline is not among the agents, or nothing can be written
            at `out`.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    if not given:
        raise ConfigError("paths must not be empty; got none: name a folder that holds some runs")
    report = Report(readable_runs(*given), baselines=baselines, references=references)
    return report.write(shared_folder(given) if out is None else out)


def summary_table(runs: Sequence[Run], *, baselines: Sequence[str] | None = None) -> list[dict[str, str]]:
    """Summarise runs as rows for a terminal; see `Report.summary`."""
    return Report(runs, baselines=baselines).summary()


def shared_folder(paths: Sequence[str | os.PathLike[str]]) -> Path:
    """Return the folder that the runs at some paths share."""
    folders = [Path(path) if Path(path).is_dir() else find_runs(path)[0] for path in paths]
    return Path(os.path.commonpath([folder.absolute() for folder in folders]))


def _content(runs: RunSet) -> dict[str, Any]:
    """Data of the template of a report besides figures and tables."""
    headline = words.headline(runs)
    return {
        **vars(headline),
        "cautions": [*headline.cautions, *runs.problems],
        "judgement": words.critic_sentences(runs),
        "styles": agent_styles(runs.agents),
        "reaches": words.ladders(runs),
        "reasons": runs.suites[1],
        "provenance": provenance_of(event for seed in runs.seeds for event in seed.run.timing[:1]),
    }


def _tables(runs: RunSet) -> dict[str, Table | list[Table]]:
    """The tables by the names that the template gives them."""
    differing, common = tables.settings_tables(runs)
    hold_out, suites = tables.hold_out_table(runs), runs.suites[0]
    measures = tables.TITLES if hold_out.rows else tables.MEASURES
    return {
        "scores": tables.score_table(runs),
        "hold_out": hold_out,
        "differences": [tables.difference_table(runs, measure) for measure in measures if runs.pairs],
        "aggregates": [tables.aggregate_table(suite) for suite in suites],
        "improvements": [tables.improvement_table(runs, suite) for suite in suites if runs.pairs],
        "evaluations": tables.evaluation_table(runs),
        "ladder": tables.ladder_table(runs),
        "critic": tables.critic_table(runs, every=False),
        "diagnostics": tables.diagnostics_table(runs),
        "critic_every": tables.critic_table(runs),
        "differing": differing,
        "common": common,
        "runs": tables.run_table(runs),
    }


def provenance_of(events: Iterable[Mapping[str, Any]]) -> dict[str, list[str] | dict[str, str]]:
    """Commands, versions and machines that the events of `timing.jsonl` name, each once."""
    starts = [event for event in events if event.get("event") == "start"]
    commands = dict.fromkeys(shlex.join(map(str, start["command"])) for start in starts if start.get("command"))
    versions: dict[str, dict[str, None]] = {}
    for start in starts:
        for name, version in (start.get("versions") or {}).items():
            versions.setdefault(str(name), {})[str(version)] = None
    machines = dict.fromkeys(words.text_of(start["machine"]) for start in starts if start.get("machine"))
    return {
        "commands": list(commands),
        "versions": {name: " and ".join(found) for name, found in versions.items()},
        "machines": list(machines),
    }


def _numeric_columns(table: Table) -> list[bool]:
    """Tell which columns hold numbers, to align them."""
    return [all(_NUMERIC.match(row[i]) for row in table.rows) and i > 0 for i in range(len(table.columns))]


# ---------------------------------------------------------------- files


def _check_place(target: Path, folders: Iterable[Path]) -> None:
    """Refuse files in the place of folders, and folders with files where there is no page yet: they are not ours."""
    with _naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        for place in (inner for folder in folders for inner in (folder, folder / "earlier")):
            if place.exists() and not place.is_dir():
                raise ConfigError(
                    f"the report cannot be written at {target}: {place} is no folder: name another place with out, or "
                    "move that file"
                )
        for folder in folders:
            # in this order: another report may be writing its page, then its folders, at this moment
            if folder.exists() and any(folder.iterdir()) and not target.exists():
                raise ConfigError(
                    f"the report cannot be written at {target}: {folder} holds files, and the report would move "
                    f"them to {folder / 'earlier'}: name another place with out, or move the files"
                )


def _write(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename: a reader never sees half a file."""
    with _naming(path):
        replace(path, content, durable=False, alone=False)


def _fill(folder: Path, files: Mapping[str, bytes]) -> int:
    """Write these files into a folder, and move what else it holds to its subfolder `earlier`.

    A file at a time, so that nothing is lost where this is cut short, and two may do it at once.

    Returns:
        Number of files and folders that were moved.
    """
    with _naming(folder):
        folder = folder.resolve()  # a link goes on leading to where it led
        if not files and not folder.exists():
            return 0
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            _write(folder / name, content)
        moved = 0
        for path in sorted(folder.iterdir()):
            being_written = path.name.startswith(".") and path.suffix == ".tmp"
            if path.name in files or path.name == "earlier" or being_written:
                continue
            (folder / "earlier").mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # another redraw has moved it
                path.rename(_free(folder / "earlier" / path.name))
                moved += 1
        return moved


def _free(path: Path) -> Path:
    """The path, with a number where it is taken."""
    numbered = (path.with_name(f"{path.stem}-{count}{path.suffix}") for count in itertools.count(2))
    return next(place for place in itertools.chain([path], numbered) if not place.exists())


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """ConfigError that names the place of the report, in place of what the system says."""
    try:
        yield
    except (OSError, StorageError) as error:
        cause = error.__cause__ or error
        reason = getattr(cause, "strerror", None) or cause
        raise ConfigError(f"the report cannot be written at {path} ({reason}): name another place with out") from error
