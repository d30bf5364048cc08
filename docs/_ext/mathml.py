"""Turns formulas into MathML when the docs are built: browsers draw it themselves, without a script or a network."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula in a line of text."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on lines of its own, which may be wider than a phone."""
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div style="overflow: auto hidden; margin: 1em 0">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
    return {"parallel_read_safe": True}
