"""Fails the docs build when a module has no API page or a public name no docstring."""

import ast
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import tddelta

LOGGER = logging.getLogger(__name__)


def public_modules() -> Iterator[tuple[str, Path]]:
    """Every module without a leading underscore in its path, and its file."""
    for found in pkgutil.walk_packages(tddelta.__path__, "tddelta."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            spec = found.module_finder.find_spec(found.name, None)  # type: ignore[call-arg]
            if spec is not None and spec.origin is not None:
                yield found.name, Path(spec.origin)


def public_names(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Public functions, classes and methods of a parsed module, and whether each has a docstring."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
        if not decorators & {"overload", "setter", "override"}:
            yield prefix + node.name, ast.get_docstring(node) is not None
        if isinstance(node, ast.ClassDef):
            yield from public_names(node, f"{prefix}{node.name}.")


def public_constants(source: str) -> Iterator[tuple[str, bool]]:
    """Public names assigned at the top of a module, and whether a docstring below or a `#:` comment describes them."""
    lines, statements = source.splitlines(), ast.parse(source).body
    for node, following in zip(statements, [*statements[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        below = isinstance(following, ast.Expr) and isinstance(getattr(following.value, "value", None), str)
        beside = "#: " in lines[node.lineno - 1] or lines[node.lineno - 2].startswith("#: ")
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and not name.id.startswith("_"):
                    yield name.id, below or beside


def check(app: Sphinx, environment: BuildEnvironment) -> None:
    """Compares what the package defines with what the pages hold; a warning, hence an error, for each gap."""
    documented = environment.get_domain("py").objects  # type: ignore[attr-defined]
    for module, file in public_modules():
        if module not in documented:
            LOGGER.warning("%s: no API page; add an automodule directive under docs/api", module)
            continue
        source = file.read_text(encoding="utf-8")
        for name, has_docstring in [*public_names(ast.parse(source)), *public_constants(source)]:
            if not has_docstring:
                LOGGER.warning("%s.%s: no docstring; write one, or begin its name with an underscore", module, name)
            elif f"{module}.{name}" not in documented:
                LOGGER.warning("%s.%s: not on the API page of its module", module, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
