"""Named pipelines of a project: ``[tool.narrowpass.pipelines]`` in its ``pyproject.toml``."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from narrowpass.errors import UsageError
from narrowpass.framework.pipeline_text import is_name
from narrowpass.framework.plugins import Plugins, Registry


def project_file(folder: Path) -> Path | None:
    """Return the nearest ``pyproject.toml`` in `folder` or above it."""
    for place in (folder, *folder.parents):
        candidate = place / "pyproject.toml"
        if os.path.isfile(candidate):  # noqa: PTH113  # pathlib's raises where it may not look
            return candidate
    return None


def project_pipelines(path: Path) -> Mapping[str, str]:
    """Return the named pipelines that a ``pyproject.toml`` defines.

    Raises:
        UsageError: the file is not TOML, or the table holds something that is not text, or a name
            that pipeline text cannot have.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    table: object = content
    for key in ("tool", "narrowpass", "pipelines"):
        if not isinstance(table, dict):
            return {}
        table = table.get(key, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [tool.narrowpass.pipelines] is not a table of pipeline text")
    for name, text in table.items():
        if not isinstance(text, str):
            raise UsageError(f'{path}: pipeline {name!r} is not text, such as "ONE,OTHER"')
        if not is_name(name):
            raise UsageError(
                f"{path}: the name of pipeline {name!r} cannot stand in pipeline text: leave out "
                'white space, control characters, and , [ ] { } = "'
            )
    return table


def registry_for(plugins: Plugins, folder: Path | None = None) -> Registry:
    """Return what is installed, with the named pipelines of the project around `folder`.

    Args:
        plugins: the loaded plugins.
        folder: where to look from; None for the current folder.

    Raises:
        PluginError: two things of one name.
        UsageError: a project file that cannot be read.
    """
    path = project_file(folder or _here())
    if path is None:
        return plugins.registry
    return plugins.registry.with_pipelines(project_pipelines(path), str(path))


def _here() -> Path:
    """Return the current folder; the root where somebody has deleted it."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")
