"""Files of the repository that must agree with each other."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = sorted(
    file
    for pattern in ("core", "plugins/*", "plugin_*")
    for file in ROOT.glob(f"{pattern}/pyproject.toml")
)

FINDINGS = sorted((ROOT / "findings").glob("*.sh"))

LIBRARIES = {
    "narrowpass-decoders",
    "narrowpass-expansion",
    "narrowpass-planning",
}
"""Distributions that other plugins import, and that register nothing."""

projects = pytest.mark.parametrize("file", PROJECTS, ids=lambda file: file.parent.name)


def blocks() -> list[tuple[str, str]]:
    """Return each sh block of the README with the heading that it stands under."""
    found, heading, block = [], "", None
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        if block is None and line.startswith("#"):
            heading = line.lstrip("# ")
        if block is not None and line.startswith("```"):
            found.append((heading, "\n".join(block)))
            block = None
        elif block is not None:
            block.append(line)
        elif line == "```sh":
            block = []
    return found


def project(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))["project"]


def test_readme_has_two_one_line_commands() -> None:
    assert [heading for heading, _ in blocks()] == ["Quick start", "Tests"]
    for _, block in blocks():
        assert len(block.splitlines()) == 1
        assert not block.endswith("\\")


def test_quick_start_installs_from_the_checkout_and_runs_the_demo() -> None:
    _, command = blocks()[0]
    assert command == "python3 install.py && .venv/bin/narrowpass demo"
    assert (ROOT / "install.py").is_file()


def test_the_workspace_has_all_distributions() -> None:
    """`install.py` installs ours from the checkout: none is asked of an index."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    members = {
        file
        for pattern in settings["tool"]["uv"]["workspace"]["members"]
        for file in ROOT.glob(f"{pattern}/pyproject.toml")
    }
    alias = ROOT / "core" / "alias" / "pyproject.toml"
    assert members == {*PROJECTS, alias}
    sources = settings["tool"]["uv"]["sources"]
    assert set(sources) == {project(file)["name"] for file in members}
    assert all(source == {"workspace": True, "editable": False} for source in sources.values())


def test_extras_have_every_plugin() -> None:
    """`all` has what registers something, but clusters, signatures and the tutorial's plugin."""
    extras = project(ROOT / "core" / "pyproject.toml")["optional-dependencies"]

    def named(extra: str) -> set[str]:
        found = set()
        for text in extras[extra]:
            inner = re.fullmatch(r"narrowpass\[([\w,]+)\]", text)
            if inner:
                found |= set().union(*(named(each) for each in inner[1].split(",")))
            else:
                found.add(re.split(r"[^\w-]", text)[0])
        return found

    plugins = {project(file)["name"] for file in PROJECTS if "entry-points" in project(file)}
    apart = {"narrowpass-hello", "narrowpass-ray", "narrowpass-signing"}
    assert named("all") - LIBRARIES == plugins - apart - {"narrowpass"}
    assert named("ray") | named("signing") == apart - {"narrowpass-hello"}
    assert set(extras) == {"cpu", "llm", "serve", "onnxruntime", "ray", "signing", "all"}


def test_ci_takes_the_command_from_the_readme() -> None:
    """`.ci/run --print` prints what it would run."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    done = subprocess.run(
        ["bash", script, "--print"], check=True, capture_output=True, text=True, cwd="/"
    )
    assert done.stdout.strip() == blocks()[1][1]


def test_default_environments() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "tox.ini", encoding="utf-8")
    names = parser["tox"]["env_list"].split()
    # .ci/run relies on these being in the list and runs none of them by itself.
    assert {"lint", "types", "docs", "full", "native", "alone", "oldest"} <= set(names)
    (versions,) = (name for name in names if name.startswith("py"))
    about = project(ROOT / "core" / "pyproject.toml")
    classified = [
        text.removeprefix("Programming Language :: Python :: 3.")
        for text in about["classifiers"]
        if "Python :: 3." in text
    ]
    assert {f"3{minor}" for minor in classified} <= set(re.findall(r"\d+", versions))
    assert "long" not in names


def test_what_tox_names_is_there() -> None:
    """A path that is not there ends pytest; this says so before wheels are built."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini", encoding="utf-8")
    common = parser["testenv"]
    paths = [word for key in ("tests", "smoke") for word in common[key].split() if "/" in word]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_oldest_constraints_are_the_lower_bounds() -> None:
    command = [sys.executable, ROOT / "tools" / "oldest.py"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (ROOT / "tools" / "oldest.txt").read_text(encoding="utf-8") == done.stdout


@projects
def test_distribution(file: Path) -> None:
    """Each has a src layout, py.typed, our license, and the Pythons that tox tests."""
    about = project(file)
    package = about["name"].replace("-", "_")
    assert (file.parent / "src" / package / "py.typed").is_file()
    assert about["requires-python"] == ">=3.11"
    # A wheel that brings others' code names their licenses too.
    assert about["license"].split(" AND ")[0] == "Apache-2.0"
    assert (file.parent / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (file.parent / about["readme"]).is_file()


def test_what_must_be_covered_is_there() -> None:
    """A pattern that matches no file asks for nothing."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    run = settings["tool"]["coverage"]["run"]
    for pattern in (*run["include"], *run["omit"]):
        assert any(ROOT.glob(f"*/src{pattern[1:]}")) or any(
            ROOT.glob(f"plugins/*/src{pattern[1:]}")
        ), pattern


@projects
def test_plugin_declares_its_narrowpass(file: Path) -> None:
    """A plugin says which versions of the core it works with, and registers what it has."""
    about = project(file)
    if about["name"] == "narrowpass":
        return
    assert any(re.fullmatch(r"narrowpass>=[\d.]+,<[\d.]+", text) for text in about["dependencies"])
    # A library registers nothing.
    registers = "narrowpass" in about.get("entry-points", {})
    assert registers == (about["name"] not in LIBRARIES)


@projects
def test_distribution_requires_those_that_it_imports(file: Path) -> None:
    """An import of another distribution of this repository is a requirement of its own."""
    about = project(file)
    required = {re.split(r"[^\w-]", text)[0] for text in about["dependencies"]}
    imported = set()
    for source in (file.parent / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    imported = {"narrowpass" if name == "narrowpass_ir" else name for name in imported}
    ours = {name.replace("_", "-") for name in imported if name.startswith("narrowpass")}
    assert ours - {about["name"]} <= required


def fixtures(conftest: Path) -> set[str]:
    """Return the names of the fixtures that a conftest.py defines."""
    return {
        node.name
        for node in ast.parse(conftest.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def test_fixtures_of_a_folder_do_not_replace_those_above() -> None:
    """A second fixture of a name changes what the tests beside it get, without a word."""
    tests = [file for file in ROOT.glob("*/**/tests/**/conftest.py") if ".tox" not in file.parts]
    found = {file: fixtures(file) for file in tests}
    assert sum(map(len, found.values())) > 20
    replaced = {
        f"{inner.relative_to(ROOT)}: {name}"
        for outer, names in found.items()
        for inner, own in found.items()
        if outer.parent in inner.parent.parents
        for name in names & own
    }
    assert replaced == set()


def test_processors_are_counted_in_one_place() -> None:
    """Everywhere else a container's CPU quota would not count."""
    counting = {
        str(file.relative_to(ROOT))
        for pattern in ("core/src", "plugins/*/src", "plugin_*/src")
        for folder in ROOT.glob(pattern)
        for file in folder.rglob("*.py")
        if re.search(r"sched_getaffinity|cpu_count", file.read_text(encoding="utf-8"))
    }
    assert counting == {
        "core/src/narrowpass/runtime/processors.py",
        # The library for models imports nothing of the core; it has four threads at most.
        "core/src/narrowpass_ir/tensors/streaming.py",
    }


@pytest.mark.parametrize("file", FINDINGS, ids=lambda file: file.stem)
def test_a_finding_stands_alone(file: Path) -> None:
    """It installs exact versions into a folder of its own, runs none of our code, and can fail."""
    text = file.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert os.access(file, os.X_OK)
    for part in (
        r"^# One would guess ",
        r"^# Seen with ",
        r"^set -eu$",
        r"mktemp -d",
        r"^ *assert ",
    ):
        assert re.search(part, text, re.MULTILINE), part
    assert "narrowpass" not in text
    lines = text.replace("\\\n", "").splitlines()
    commands = [line for line in lines if line.startswith("venv/bin/pip ")]
    assert commands
    for command in commands:
        values = r" --(?:dest|platform|python-version) \S+"
        _, _, *words = re.sub(values, "", command).split()
        packages = [word for word in words if not word.startswith("-")]
        assert packages
        assert [name for name in packages if not re.fullmatch(r"[\w.-]+==[\w.]+", name)] == []
    (program,) = re.findall(r"<<'PYTHON'\n(.*)\nPYTHON\n$", text, re.DOTALL)
    ast.parse(program)
