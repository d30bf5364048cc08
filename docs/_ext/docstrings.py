"""Lets docstrings read well in a terminal: code in single backticks or fences, |x| and *batch as they are.

Also lists the settings of a config with their help, which stands in the fields, and leaves out what named tuples say
of their fields ("Alias for field number 0").
"""

import collections
import dataclasses
import re
import types
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(`+[^`]+`+(?:_+)?)")


def escape(line: str) -> str:
    """Keep reStructuredText from reading bars and single asterisks as markup, outside of code."""
    pieces = CODE.split(line)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"(?<!\\)\|", r"\\|", pieces[i])
        pieces[i] = re.sub(r"(?<![\\*])\*(?![\s*])", r"\\*", pieces[i])
    return "".join(pieces)


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite one docstring in place, after napoleon."""
    result: list[str] = []
    fence: str | None = None  # the indentation of the open fence
    example = False
    for line in lines:
        stripped = line.lstrip()
        indentation = line[: len(line) - len(stripped)]
        if stripped.startswith("```"):
            if fence is None:
                fence = indentation
                language = stripped[3:].strip() or "text"
                result += ["", f"{indentation}.. code-block:: {language}", ""]
            else:
                fence = None
                result.append("")
            continue
        if fence is not None:
            result.append(f"   {line}" if stripped else "")
            continue
        example = bool(stripped) and (example or stripped.startswith(">>>"))
        result.append(line if example else escape(line))
    lines[:] = result


def list_settings(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Append one item per field that carries its help."""
    if not (isinstance(obj, type) and dataclasses.is_dataclass(obj)):
        return
    settings = [field for field in dataclasses.fields(obj) if "help" in field.metadata]
    for field in settings:
        default = getattr(field.default, "name", field.default)
        lines += ["", f"``{field.name}`` = ``{default!r}``", f"   {escape(field.metadata['help'])}"]
    if settings:
        lines.append("")


def skip(app: Sphinx, what: str, name: str, obj: Any, left_out: bool, options: Any) -> bool | None:
    """Leave out fields, which their class describes: those of named tuples, and those with a function as default."""
    is_field = isinstance(obj, type(collections.namedtuple("_", "field").field))
    is_default = what == "class" and isinstance(obj, types.FunctionType) and "." not in obj.__qualname__
    return True if is_field or is_default else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process, priority=600)
    app.connect("autodoc-process-docstring", list_settings, priority=700)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
