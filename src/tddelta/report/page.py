"""One self-contained HTML file that shows a set of runs, with its figures and tables as files beside it."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tddelta._matplotlib import own_style
from tddelta.errors import ConfigError, StorageError, own_checks
from tddelta.report import diagnostics, plots, tables
from tddelta.report.atari import atari_tables, hold_out_table
from tddelta.report.diagnostics import diagnostics_table
from tddelta.report.figures import drawings, to_bytes, to_svg
from tddelta.report.study import Measure, Study
from tddelta.report.tables import critic_sentences, headline
from tddelta.report.words import Table, text_of
from tddelta.runs import find_runs, readable_runs
from tddelta.runs.files import replace

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A run directory, a folder above some, or several of these."""

_NUMERIC = re.compile(r"(?:[+−<]?[\d∞]|n/a|–$|$)")
_BESIDE = re.compile(r"figures/[\w-]+\.(?:png|pdf)|tables/[\w-]+\.(?:csv|tex)")


@own_checks
@own_style()
def write_report(
    paths: Paths,
    out: str | os.PathLike[str] | None = None,
    *,
    baselines: Sequence[str] | None = None,
    references: Mapping[str, tuple[float, float]] | None = None,
) -> Path:
    """Draw the report of some runs: one HTML file that needs no network, `figures/` and `tables/` beside it.

    The same runs give the same bytes. Runs that are missing, failed, interrupted or unreadable are named in it.
    Figures and tables of an earlier call that this one does not make are removed; other files stay as they are.

    Args:
        paths: A run directory, a folder above some, or several of these.
        out: The file to write, ending in `.html`, or a folder for `report.html`. None means the folder that all runs
            share.
        baselines: Agents that the others are compared with. None means `ppo`, `ppo+` and `ppo-multi`, where present.
        references: (random, reference) scores by environment for normalisation, before the tables that are shipped.

    Returns:
        The path of the HTML file.

    Raises:
        ConfigError: There is no run at or below a path, a baseline is not among the agents, or nothing can be written
            at `out`.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    if not given:
        raise ConfigError("paths must not be empty; got none: name a folder that holds some runs")
    study = Study(readable_runs(*given), baselines, references)
    target = _target(given, out)
    _make_folder(target.parent)
    made = list(drawings(study))
    parts = _tables(study)
    files = {f"figures/{drawing.name}.{kind}": to_bytes(drawing, kind) for drawing in made for kind in ("png", "pdf")}
    for table in parts.values():
        for one in table if isinstance(table, list) else [table]:
            if one.rows:
                files[f"tables/{one.name}.csv"] = one.to_csv().encode(errors="replace")
                files[f"tables/{one.name}.tex"] = one.to_latex().encode(errors="replace")
    figures: dict[str, list[dict[str, Any]]] = {}
    for drawing in made:
        shown = {"drawing": drawing, "svg": Markup(to_svg(drawing))}  # matplotlib escapes text in SVG
        figures.setdefault(drawing.section, []).append(shown)
    page = _template().render(
        headline=headline(study),
        judgement=critic_sentences(study),
        study=study,
        styles=plots.agent_styles(study.agents),
        palette=plots.PALETTE,
        figures=figures,
        reaches=diagnostics.ladders(study),
        reasons=study.suites[1],
        provenance=_provenance(study),
        numeric=_numeric_columns,
        **parts,
    )
    for name, content in files.items():
        _write(target.parent / name, content)
    _write(target, page.encode(errors="backslashreplace"))
    _remove_outdated(target, files)
    return target


def _tables(study: Study) -> dict[str, Any]:
    differing, common = tables.settings_tables(study)
    suites = study.suites[0]
    hold_out = hold_out_table(study)
    measures: list[Measure] = [*tables.MEASURES]
    if hold_out.rows:
        measures.append("hold_out")
    return {
        "scores": tables.score_table(study),
        "hold_out": hold_out,
        "differences": [tables.difference_table(study, measure) for measure in measures if study.pairs],
        "aggregates": [tables.aggregate_table(suite) for suite in suites],
        "improvements": [tables.improvement_table(study, suite) for suite in suites if study.pairs],
        "evaluations": tables.evaluation_table(study),
        "atari": atari_tables(study),
        "ladder": tables.ladder_table(study),
        "critic": tables.critic_table(study, every=False),
        "diagnostics": diagnostics_table(study),
        "critic_every": tables.critic_table(study),
        "differing": differing,
        "common": common,
        "runs": tables.run_table(study),
    }


def _provenance(study: Study) -> dict[str, list[str] | dict[str, str]]:
    """Commands, versions and machines of all runs, each once."""
    starts = [event for seed in study.seeds for event in seed.run.timing[:1] if event.get("event") == "start"]
    commands = dict.fromkeys(shlex.join(map(str, start["command"])) for start in starts if start.get("command"))
    versions: dict[str, dict[str, None]] = {}
    for start in starts:
        for name, version in (start.get("versions") or {}).items():
            versions.setdefault(str(name), {})[str(version)] = None
    machines = dict.fromkeys(text_of(start["machine"]) for start in starts if start.get("machine"))
    return {
        "commands": list(commands),
        "versions": {name: " and ".join(found) for name, found in versions.items()},
        "machines": list(machines),
    }


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("tddelta.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _numeric_columns(table: Table) -> list[bool]:
    """Tell which columns hold numbers, to align them."""
    return [all(_NUMERIC.match(row[i]) for row in table.rows) and i > 0 for i in range(len(table.columns))]


def _target(given: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return Path(out) if Path(out).suffix == ".html" else Path(out) / "report.html"
    folders = [Path(path) if Path(path).is_dir() else find_runs(path)[0] for path in given]
    return Path(os.path.commonpath([folder.absolute() for folder in folders])) / "report.html"


def _remove_outdated(target: Path, files: Mapping[str, bytes]) -> None:
    """Remove what an earlier call wrote beside this page and this one did not, and list what it did write.

    A file goes only if the list of the earlier call names it, its content is still the one that was written, and no
    other page in the folder lists it.
    """
    suffix = ".files.json"
    record = target.with_name(f".{target.name}{suffix}")
    others = {name for path in target.parent.glob(f".*{suffix}") if path != record for name in _listed(path)}
    for name, digest in _listed(record).items():
        path = target.parent / name
        outdated = name not in files and name not in others and _BESIDE.fullmatch(name) and path.is_file()
        if outdated and sha256(path.read_bytes()).hexdigest() == digest:
            path.unlink()
    digests = {name: sha256(content).hexdigest() for name, content in sorted(files.items())}
    _write(record, (json.dumps(digests, indent=1) + "\n").encode())


def _listed(record: Path) -> dict[str, Any]:
    try:
        listed = json.loads(record.read_bytes())
    except (OSError, ValueError):  # none yet, or damaged: then nothing is ours for sure
        return {}
    return listed if isinstance(listed, dict) else {}


def _write(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename: a reader never sees half a file."""
    _make_folder(path.parent)
    try:
        replace(path, content, durable=False)
    except StorageError as error:
        raise _cannot_write(path, error.__cause__) from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _cannot_write(path: Path, error: BaseException | None) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"the report cannot be written at {path} ({reason}): name another place with out")
