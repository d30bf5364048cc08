"""How numbers, tables and the names of agents look on the page, in the terminal, in CSV and in LaTeX."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tddelta.report.statistics import Interval, Summary
from tddelta.runs import Run, config_hash

MISSING = "–"
"""Where there is no value to show."""


@dataclass(frozen=True)
class Table:
    """A table as a reader sees it, and the numbers behind it.

    Attributes:
        name: File name without suffix.
        caption: What it shows.
        columns: Column heads.
        rows: One text per column.
        data: The same rows as full-precision numbers, by column, for CSV.
        notes: Remarks below the table.
        marks: Per row "better", "worse" or "", shown in the column `marked`.
        marked: That column.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    data: Sequence[dict[str, Any]]
    notes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    marked: str = ""

    def to_csv(self) -> str:
        """The numbers, in full precision; an empty field is a missing number."""
        file = io.StringIO()
        writer = csv.DictWriter(file, list(self.data[0]) if self.data else list(self.columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _csv_field(value) for key, value in row.items()} for row in self.data)
        return file.getvalue()

    def to_latex(self) -> str:
        """A booktabs table; the document needs the package booktabs."""
        lines = [
            r"\begin{table}",
            rf"  \caption{{{latex_escape(self.caption)}}}",
            rf"  \begin{{tabular}}{{{'l' * len(self.columns)}}}",
            r"    \toprule",
            "    " + " & ".join(map(latex_escape, self.columns)) + r" \\",
            r"    \midrule",
            *("    " + " & ".join(map(latex_escape, row)) + r" \\" for row in self.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            *(rf"  \par\footnotesize {latex_escape(note)}" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    """A number for reading: about three significant digits, and no exponent where possible."""
    if value is None or math.isnan(value):
        return "n/a"
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}".replace("-", "−")
    decimals = min(_decimals(value, 4), 2) if abs(value) >= 1 else _decimals(value, 3)
    return f"{value:,.{decimals}f}".replace("-", "−")


def _decimals(value: float, digits: int) -> int:
    """Decimals that show this many significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else digits - 1


def signed(value: float) -> str:
    """A difference with its sign."""
    return f"+{number(value)}" if value > 0 else number(value)


def summary_text(summary: Summary) -> str:
    """Mean ± standard error, with one or two digits of the error."""
    if summary.standard_error is None or not math.isfinite(summary.mean):
        return number(summary.mean)
    error = summary.standard_error
    if error == 0:
        return f"{number(summary.mean)} ± 0"
    decimals = max(min(_decimals(error, 2), 2 if abs(summary.mean) >= 1 else 3), _decimals(error, 1))
    return f"{summary.mean:,.{decimals}f} ± {error:,.{decimals}f}".replace("-", "−")


def interval_text(interval: Interval) -> str:
    """An interval, or "n/a"."""
    if interval.low is None or interval.high is None:
        return "n/a"
    return f"{number(interval.low)} to {number(interval.high)}"


def p_text(p: float | None) -> str:
    """A p value."""
    if p is None:
        return "n/a"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def text_of(value: Any) -> str:
    """A setting for a reader."""
    if value is None:
        return MISSING
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(text_of, value)) + ")"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text_of(item)}" for key, item in value.items()) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def slug(name: str) -> str:
    """A name that is safe in file names and HTML ids."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "∞": r"$\infty$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "½": r"$\frac12$",
    "<": r"$<$",
    ">": r"$>$",
}


def latex_escape(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _csv_field(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


BASELINES = ("ppo", "ppo+", "ppo-multi", "PPO", "A2C", "DQN", "SAC")
"""Agents that the others are compared with by default, where they are present; capitals: Stable-Baselines3."""

_ORDER = (*BASELINES, "ppo-delta-difference", "ppo-delta-matched", "ppo-delta")


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was set for a run, as one flat mapping: "learning_rate", "agent.targets", "environment_kwargs.x".

    The seed, the names of environment and agent, and what follows from other settings (the ladder) are left out.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if key in ("format", "seed", "environment", "scales"):
            continue
        if not isinstance(value, Mapping):
            flat[key] = value
    for key in ("agent", "environment_kwargs", "environment_parameters"):
        value = config.get(key)
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": item for name, item in value.items() if (key, name) != ("agent", "name")})
    named = {key.split(".")[0] for key in flat} | {"seed", "environment", "agent", "environment_kwargs"}
    flat.update({key: value for key, value in config.get("settings", {}).items() if key not in named})
    return flat


def agent_names(runs: Sequence[Run]) -> list[str]:
    """Name each run's agent for a reader.

    An agent that was run with one set of settings per environment goes by its own name. Otherwise the settings in
    which its variants differ are added, as in "ppo (learning_rate=0.001)": a hash would say nothing, and would differ
    between environments.
    """
    variants: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    hashes = [config_hash(run.config) for run in runs]
    plain = [str(run.config["agent"]["name"]) for run in runs]
    for run, name, digest in zip(runs, plain, hashes, strict=True):
        variants.setdefault((run.environment, name), {})[digest] = flat_settings(run.config)
    differing: dict[str, dict[str, None]] = {}
    for (_, name), settings in variants.items():
        keys = dict.fromkeys(key for one in settings.values() for key in one)
        found = [key for key in keys if len({repr(one.get(key)) for one in settings.values()}) > 1]
        differing.setdefault(name, {}).update(dict.fromkeys(found))
    names = []
    for run, name, digest in zip(runs, plain, hashes, strict=True):
        rivals = variants[run.environment, name]
        full = _variant(name, rivals[digest], differing[name])
        if [_variant(name, one, differing[name]) for one in rivals.values()].count(full) > 1:
            full = f"{name} ({digest})"
        names.append(full)
    return names


def _variant(name: str, settings: Mapping[str, Any], keys: Mapping[str, None]) -> str:
    chosen = ", ".join(f"{key}={settings.get(key)}" for key in keys)
    return f"{name} ({chosen})" if chosen else name


def base_name(agent: str) -> str:
    """The agent's own name, without the settings of its variant."""
    return agent.split(" (", 1)[0]


def rank(agent: str) -> tuple[int, str]:
    """Sort key: the baselines first, then this library's agents, then others by name."""
    base = base_name(agent)
    return (_ORDER.index(base) if base in _ORDER else len(_ORDER), agent)
