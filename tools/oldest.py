"""Print the oldest versions that the distributions of this repository allow, as constraints.

``tools/oldest.txt`` holds what this prints; ``tox run -e oldest`` tests with it. After a change
of a lower bound: ``python tools/oldest.py > tools/oldest.txt``.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = tuple(f"{folder}/pyproject.toml" for folder in ("core", "plugins/*", "plugin_*"))
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?\s*>=\s*(?P<version>[0-9.]+)")


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> tuple[int, ...]:
    """Return a version as numbers, to compare."""
    return tuple(int(part) for part in version.split("."))


def main() -> None:
    """Collect the lower bounds, the highest of each; exit where a requirement has none."""
    files = [file for pattern in PATTERNS for file in sorted(ROOT.glob(pattern))]
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    ours = {normal(project["name"]) for project in projects}
    bounds: dict[str, str] = {}
    for project in projects:
        extras = project.get("optional-dependencies", {}).values()
        for text in [
            *project.get("dependencies", ()),
            *(text for extra in extras for text in extra),
        ]:
            if normal(re.split(r"[^A-Za-z0-9._-]", text)[0]) in ours:
                continue
            match = REQUIREMENT.match(text)
            if match is None:
                sys.exit(f"{project['name']} requires {text!r}: add a lower bound (>=)")
            name, version = normal(match["name"]), match["version"]
            bounds[name] = max(bounds.get(name, version), version, key=release)
    for name in sorted(bounds):
        sys.stdout.write(f"{name}=={bounds[name]}\n")


if __name__ == "__main__":
    main()
