"""A new plugin can be installed, passes its own tests, and is typed and clean."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

NAMES = {"pass": "zz", "backend": "a-name-of-28-characters-here", "importer": "linear-layers"}
"""A short name and the longest: the templates' lines are formatted whatever is filled in."""


def run(*command, cwd, code=0, **environment):
    env = {**os.environ, **environment}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def narrowpass(*arguments, cwd, **options):
    return run(sys.executable, "-m", "narrowpass", *arguments, cwd=cwd, **options)


@pytest.fixture(scope="module", params=NAMES)
def plugin(request, tmp_path_factory):
    """A new plugin: its kind and folder, and the environment of a process that has it."""
    kind, name = request.param, NAMES[request.param]
    if kind == "backend":
        pytest.importorskip("narrowpass_planning")
    place = tmp_path_factory.mktemp(kind)
    narrowpass("new-plugin", name, "--kind", kind, cwd=place)
    # What pip does with a wheel, without an environment for each.
    pip = sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"
    pytest.importorskip("hatchling")
    pytest.importorskip("pip")
    run(*pip, "--wheel-dir", place / "dist", place / name, cwd=place)
    (wheel,) = (place / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "site")
    paths = [str(place / "site"), os.environ.get("PYTHONPATH", "")]
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NARROWPASS_CACHE_DIR": str(place / "cache"),
    }
    return kind, place / name, environment


def test_it_is_listed(plugin):
    kind, folder, environment = plugin
    plugins = json.loads(narrowpass("plugins", "--json", cwd=folder, **environment))["plugins"]
    (row,) = [row for row in plugins if row["name"] == folder.name]
    assert (row["status"], row["distribution"]) == ("loaded", f"{folder.name} 0.1.0")
    hooks = {"pass": "passes", "backend": "backends", "importer": "importers"}
    assert row["hooks"] == [f"narrowpass_{hooks[kind]}"]


def test_its_own_tests_pass(plugin):
    _, folder, environment = plugin
    printed = run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"),
        cwd=folder,
        **environment,
    )
    assert " passed" in printed
    assert "skipped" not in printed


def test_its_tests_can_fail(plugin):
    """Change what the plugin computes, and its tests see it."""
    kind, folder, environment = plugin
    package = folder.name.replace("-", "_")
    file, text, other = {
        "pass": ("__init__.py", "removed += 1", "removed += 0"),
        "backend": ("lowering.py", "np.multiply", "np.add"),
        "importer": ("importer.py", '"transB": 1', '"transB": 1, "beta": 2.0'),
    }[kind]
    path = Path(environment["PYTHONPATH"].split(os.pathsep)[0], package, file)
    before = path.read_text("utf-8")
    assert text in before
    path.write_text(before.replace(text, other), "utf-8")
    try:
        command = sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"
        run(*command, cwd=folder, code=1, PYTHONDONTWRITEBYTECODE="1", **environment)
    finally:
        path.write_text(before, "utf-8")


def test_it_is_typed_and_clean(plugin):
    _, folder, _ = plugin
    pytest.importorskip("mypy")
    pytest.importorskip("ruff")
    mypy = sys.executable, "-m", "mypy", "--strict", "--config-file=pyproject.toml"
    run(*mypy, "src", "tests", cwd=folder, MYPYPATH="src")
    run(sys.executable, "-m", "ruff", "check", "--no-cache", cwd=folder)
    run(sys.executable, "-m", "ruff", "format", "--check", "--no-cache", cwd=folder)


def test_the_versions_that_it_works_with():
    from packaging.specifiers import SpecifierSet

    from narrowpass_analysis.new_plugin.files import compatible_versions

    assert SpecifierSet(compatible_versions()).contains(importlib.metadata.version("narrowpass"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Upper"], "lower-case letters"),
        (["a--b"], "single hyphens"),
        (["a" * 29], "28 at most"),
        (["../up"], "lower-case letters"),
        (["numpy"], "the package numpy is installed already"),
        (["json"], "Python has 'json' itself"),
        (["reference", "--kind", "backend"], "has a backend of this name"),
        (["there"], "there: exists"),
    ],
)
def test_names_that_cannot_be_had(tmp_path, arguments, words):
    (tmp_path / "there").mkdir()
    assert words in narrowpass("new-plugin", *arguments, cwd=tmp_path, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
