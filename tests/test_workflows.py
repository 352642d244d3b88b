"""What the workflows call exists here, and with these options; their actions are pinned."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="in the dependency group 'written'")

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
INSTALLED = {"echo", "pip", "pipx"}
"""Commands that runners of GitHub have, or an earlier step brings."""

workflows = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)


def jobs(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]


def steps(file: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(file).values():
        yield from job["steps"]


def environments() -> set[str]:
    """The environments of tox that have a section of their own."""
    text = (ROOT / "tox.ini").read_text(encoding="utf-8")
    return set(re.findall(r"^\[testenv:([\w-]+)\]", text, re.MULTILINE))


def check(command: str) -> None:
    """Fail where a command names what is not in the repository."""
    program, *words = shlex.split(command)
    if program == "python":
        script = ROOT / words[0]
        assert script.is_file(), command
        done = subprocess.run(
            [sys.executable, script, "--help"], check=True, capture_output=True, text=True
        )
        for option in (word for word in words[1:] if word.startswith("--")):
            assert re.search(rf"(?<!\S){option}\b", done.stdout), command
    elif program == "bash":
        assert (ROOT / words[0]).is_file(), command
    elif program == "tox":
        assert words[:2] == ["run", "-e"], command
        assert words[2] in environments(), command
    else:
        assert program in INSTALLED, command


@workflows
def test_commands_are_in_the_repository(file: Path) -> None:
    commands = [line for step in steps(file) for line in step.get("run", "").splitlines()]
    assert commands
    for command in commands:
        check(command)


@pytest.mark.parametrize(
    "command",
    ["python tools/none.py", "python tools/release.py --none", "bash ci/none", "tox run -e none"],
)
def test_a_command_that_is_not_there_is_found(command: str) -> None:
    with pytest.raises(AssertionError):
        check(command)


@workflows
def test_actions_are_commits(file: Path) -> None:
    """Tags can be moved; a comment names the version that the commit has."""
    text = file.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        if action.startswith("pypa/gh-action-pypi-publish@"):
            continue  # see .github/zizmor.yml
        assert re.search(r"@[0-9a-f]{40}$", action), action
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", comment), action


def test_every_compiled_distribution_is_built_by_cibuildwheel() -> None:
    """The job `pure` leaves out those, and only those, that the job `native` builds."""
    native = jobs(ROOT / ".github" / "workflows" / "release.yml")["native"]
    compiled = set()
    for pattern in ("core", "plugins/*", "plugin_*"):
        for project in ROOT.glob(f"{pattern}/pyproject.toml"):
            system = tomllib.loads(project.read_text(encoding="utf-8"))["build-system"]
            if system["build-backend"] == "setuptools.build_meta":
                compiled.add(project.parent.relative_to(ROOT).as_posix())
    assert set(native["strategy"]["matrix"]["package"]) == compiled
