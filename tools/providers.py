"""Write which distribution of this repository has what, and the extras that have it.

``core/src/narrowpass/data/providers.json`` holds what this prints, and the core reads it where
something is asked for that is not installed. After a change of what a plugin registers, or of the
extras: ``python tools/providers.py``. The hooks of plugins that are not installed are called from
their sources.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from wheels import ROOT, projects

from narrowpass import load_plugins
from narrowpass.framework.missing import FOLDER
from narrowpass.framework.plugins import Registry
from narrowpass.framework.plugins.registry import KINDS

FILE = ROOT / "core" / "src" / "narrowpass" / "data" / "providers.json"
CORE = "narrowpass"


def plugins_of(folder: Path) -> list[EntryPoint]:
    """Return the entry points of a distribution, which is importable from then on."""
    declared: dict[str, str] = _project(folder).get("entry-points", {}).get(CORE, {})
    if any(find_spec(module) is None for module in declared.values()):
        # Its hooks only register: they need none of what it requires.
        sys.path.append(str(folder / "src"))
    return [EntryPoint(name, module, CORE) for name, module in declared.items()]


def names_of(registry: Registry) -> Mapping[str, list[str]]:
    """Return the names of what a registry has, by kind, as the core looks them up."""
    if registry.failed:
        info = next(iter(registry.failed.values()))
        sys.exit(f"plugin {info.name} cannot be used: {info.error}")
    names = {kind: list(getattr(registry, kind)) for kind in KINDS if kind != "importers"}
    suffixes = [importer.suffixes or (FOLDER,) for importer in registry.importers.values()]
    served = {name for cls in registry.passes.values() for name in cls.serves}
    return {
        **names,
        "importers": [suffix for each in suffixes for suffix in each],
        "options": [name for name in served if name.startswith("--")],
        "types": [name for name in served if not name.startswith("--")],
    }


def extras() -> Mapping[str, list[str]]:
    """Return the extras of the core that name each distribution, the smallest first."""
    optional = _project(projects()[CORE])["optional-dependencies"]
    named = {extra: _named(extra, optional) for extra in optional}
    order = sorted(named, key=lambda extra: (len(named[extra]), extra))
    return {name: [extra for extra in order if name in named[extra]] for name in projects()}


def _named(extra: str, optional: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the distributions that an extra names, by itself or by other extras of the core."""
    found: set[str] = set()
    for requirement in map(Requirement, optional[extra]):
        if requirement.name != CORE:
            found.add(requirement.name)
        for other in requirement.extras if requirement.name == CORE else ():
            found |= _named(other, optional)
    return found


def _project(folder: Path) -> dict[str, Any]:
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def document() -> str:
    """Return the content of the file."""
    own = names_of(load_plugins(entry_points=[]).registry)
    found: dict[str, dict[str, str]] = {}
    for distribution, folder in projects().items():
        points = plugins_of(folder)
        for kind, names in names_of(load_plugins(entry_points=points).registry).items():
            for name in set(names) - set(own[kind]):
                found.setdefault(kind, {})[name] = distribution
    plugins = {name for names in found.values() for name in names.values()}
    having = {name: which for name, which in extras().items() if which and name in plugins}
    return json.dumps({**found, "extras": having}, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
