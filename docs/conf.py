"""Settings of the documentation site. Nothing here or in the extensions uses the network."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "narrowpass"
author = "The narrowpass developers"
project_copyright = author
release = importlib.metadata.version("narrowpass")
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "generated_reference",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# Docstrings write a name that may be a link in single backticks.
default_role = "py:obj"
add_module_names = False
toc_object_entries_show_parents = "hide"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"narrowpass {version}"
html_static_path = ["_static"]
html_js_files = ["versions.js"]
templates_path = ["_templates"]
# Furo's own parts, and below them the list of versions.
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
        "versions.html",
    ]
}
html_copy_source = False
html_show_sphinx = False
