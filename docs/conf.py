"""Sphinx settings. Warnings are errors: see `make docs`."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "tddelta"
author = "The tddelta authors"
project_copyright = author
release = importlib.metadata.version("tddelta")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "coverage_check",
    "docstrings",
    "mathml",
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
# The tables are included by the page of results.
exclude_patterns = ["_build", "tables"]

# RLlib needs another Gymnasium than the rest: its adapter is documented without it.
autodoc_mock_imports = ["ray.rllib"]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "ignore-module-all": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # else the fields of a named tuple are described twice

# References within the package must resolve; those to other projects need their inventories, hence a network.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!tddelta\.).*"), ("py:.*", r"tddelta\..*\._\w+")]

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"tddelta {release}"
html_static_path = ["_static"]
html_show_sphinx = False
