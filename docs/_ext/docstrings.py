"""Lets docstrings read well in a terminal: code in single backticks or fences, |x| and *batch as they are."""

import re
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


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process, priority=600)
    return {"parallel_read_safe": True}
