"""What is under test is the wheels that were built, with the plugins that were asked for.

Run by tox, which says in the environment what it installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import narrowpass

WHEELS = os.environ.get("NARROWPASS_TEST_WHEELS")

pytestmark = pytest.mark.skipif(WHEELS is None, reason="only tox reports what it installed")


def installed() -> list[importlib.metadata.Distribution]:
    """Return the distributions of this repository that this Python has."""
    found = importlib.metadata.distributions()
    return [item for item in found if item.name.partition("-")[0] == "narrowpass"]


def test_import_is_from_site_packages() -> None:
    site = Path(sysconfig.get_path("purelib")).resolve()
    assert Path(narrowpass.__file__).resolve().is_relative_to(site)


def test_distributions_are_the_built_wheels() -> None:
    assert installed()
    for distribution in installed():
        text = distribution.read_text("direct_url.json")
        assert text is not None, f"{distribution.name} was installed from an index"
        url = json.loads(text)["url"]
        assert Path(url.removeprefix("file://")).parent == Path(WHEELS or ""), url


def test_visible_plugins_are_those_that_are_installed() -> None:
    command = [sys.executable, "-m", "narrowpass", "plugins", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    plugins = json.loads(done.stdout)["plugins"]
    registered = {point.name for point in importlib.metadata.entry_points(group="narrowpass")}
    assert len(registered) > 10
    assert {plugin["name"] for plugin in plugins} == registered
    assert all(plugin["status"] == "loaded" for plugin in plugins)


@pytest.mark.skipif("NARROWPASS_TEST_PEERS" not in os.environ, reason="no peers are named")
def test_named_peers_import() -> None:
    """Tests that compare with a peer are skipped where it is missing: here it must not be."""
    for name in os.environ["NARROWPASS_TEST_PEERS"].split():
        importlib.import_module(name)


def test_wheel_is_typed_and_has_its_license() -> None:
    files = {str(file) for file in importlib.metadata.files("narrowpass") or ()}
    assert "narrowpass/py.typed" in files
    assert any(name.endswith("licenses/LICENSE") for name in files)
