"""Each distribution works with what it requires and nothing else: installed alone, and asked.

Run by tox (environment `alone`): the wheels are those that it built.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

WHEELS = os.environ.get("NARROWPASS_TEST_WHEELS")
ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {
    project["name"]: project
    for pattern in ("core", "core/alias", "plugins/*", "plugin_*")
    for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))
    for project in [tomllib.loads(file.read_text(encoding="utf-8"))["project"]]
}

pytestmark = pytest.mark.skipif(WHEELS is None, reason="tox builds the wheels")

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    if not module.name.endswith("__main__") and module.name not in sys.argv[2:]:
        importlib.import_module(module.name)
"""
"""Imports every module of a package: one that imports what is not required fails."""

OPTIONAL = {
    # These import what an extra brings, or what somebody has who calls them.
    "narrowpass-demo": ("narrowpass_demo.train_digits",),
    "narrowpass-serve": (
        "narrowpass_serve.protocol.grpc_messages",
        "narrowpass_serve.protocol.grpc_service",
    ),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that installs a distribution into an environment of its own."""
    from uv import find_uv_bin

    uv = find_uv_bin()

    def install(name: str) -> Path:
        place = tmp_path_factory.mktemp(name)
        python = place / "bin" / "python"
        subprocess.run(
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, place], check=True
        )
        (wheel,) = Path(WHEELS or "").glob(f"{name.replace('-', '_')}-[0-9]*.whl")
        pins = Path(WHEELS or "") / "constraints.txt"
        command = [uv, "pip", "install", "--quiet", "--python", python, "--constraint", pins, wheel]
        subprocess.run(command, check=True)
        return python

    return install


@pytest.mark.parametrize("name", [name for name in PROJECTS if name != "narrowpass-ray"])
def test_alone(name, environment) -> None:
    python = environment(name)
    package = name.replace("-", "_")
    command = [python, "-W", "ignore", "-c", IMPORT_ALL, package, *OPTIONAL.get(name, ())]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [python, "-m", "narrowpass", "plugins", "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    plugins = {plugin["name"]: plugin for plugin in json.loads(done.stdout)["plugins"]}
    assert all(plugin["status"] == "loaded" for plugin in plugins.values())
    own = PROJECTS[name].get("entry-points", {}).get("narrowpass", {})
    assert set(own) <= set(plugins)
    done = subprocess.run(
        [python, "-m", "narrowpass", "--help"], check=True, capture_output=True, text=True
    )
    assert "build" in done.stdout
