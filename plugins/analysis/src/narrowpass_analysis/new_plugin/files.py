"""The templates, and what is filled in."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

_SUFFIX = ".in"
"""Of templates: no tool takes them for what they become."""

_SUMMARIES = {
    "pass": "A pass of narrowpass that removes what cancels.",
    "backend": "A backend of narrowpass with kernels of numpy.",
    "importer": "An importer of narrowpass for linear layers in archives of numpy.",
}
_DEPENDENCIES = {
    "pass": ("narrowpass", "onnx-ir"),
    "backend": ("narrowpass", "narrowpass-planning", "numpy", "onnx-ir"),
    "importer": ("narrowpass", "numpy", "onnx-ir"),
}
_LOWER_BOUNDS = {"numpy": ">=2.0", "onnx-ir": ">=1.1"}


def plugin_files(name: str, kind: str) -> dict[str, str]:
    """Return the files of a new plugin: their text by path, relative to the plugin's folder.

    Args:
        name: as `check_name` allows.
        kind: ``pass``, ``backend`` or ``importer``.
    """
    package = name.replace("-", "_")
    versions = compatible_versions()
    lines = [f'    "{each}{_LOWER_BOUNDS.get(each, versions)}",' for each in _DEPENDENCIES[kind]]
    values = {
        "name": name,
        "package": package,
        "class_name": "".join(part.capitalize() for part in name.split("-")),
        "summary": _SUMMARIES[kind],
        "versions": versions,
        "dependencies": "\n".join(lines),
    }
    found = {f"src/{package}/py.typed": ""}
    for folder in ("common", kind):
        for path, template in _templates(files(__package__) / "templates" / folder):
            target = path.removesuffix(_SUFFIX).replace("__package__", package)
            found[target] = Template(template).substitute(values)
    return dict(sorted(found.items()))


def compatible_versions() -> str:
    """Return the versions of narrowpass that a plugin of today works with: ``>=0.1,<0.2``."""
    major, minor = importlib.metadata.version("narrowpass").split(".")[:2]
    upper = f"0.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f">={major}.{minor},<{upper}"


def _templates(folder: Traversable, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the paths of templates below a folder, with their text."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, f"{before}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield f"{before}{entry.name}", entry.read_text("utf-8")
