"""The blocks of the page on this plugin do what it shows."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ray_kit import QUIET

from narrowpass.cli import app

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "ray.md"
BLOCK = re.compile(
    r"^(?P<mark>% not run: [^\n]*\n)?```(?P<kind>\{?[\w-]+\}?)[^\n]*\n"
    r"(?::caption: (?P<file>\S+)\n)?(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
OURS = "a test of that plugin runs it"

pytestmark = [pytest.mark.long, *QUIET]


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_core: Any) -> None:
    pytest.importorskip("narrowpass_int8_sym")
    pytest.importorskip("narrowpass_report")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    ran = []
    for block in BLOCK.finditer(PAGE.read_text("utf-8")):
        kind, text = block["kind"], block["text"]
        if block["file"]:
            Path(block["file"]).write_text(text.lstrip("\n"), encoding="utf-8")
        elif OURS in (block["mark"] or ""):
            ran.append(kind)
            run(kind, text, names)
    assert (ran.count("console"), ran.count("pycon"), ran.count("python")) == (6, 2, 3)
    assert "Time and error of the pipelines" in Path("sweep.html").read_text("utf-8")


def run(kind: str, text: str, names: dict[str, Any]) -> None:
    if kind == "python":
        exec(compile(text, str(PAGE), "exec"), names)  # the page's own code
    elif kind == "pycon":
        test = doctest.DocTestParser().get_doctest(text, names, "page", str(PAGE), 0)
        assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
        names.update(test.globs)
    else:
        command, _, wanted = text.partition("\n")
        found = CliRunner().invoke(app, shlex.split(command.removeprefix("$ "))[1:])
        errors = [line for line in found.stderr.splitlines() if ": error: " in line]
        printed = "\n".join([found.stdout.strip(), *errors]).strip()
        pattern = re.escape(wanted.strip()).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, printed, re.DOTALL), (command, found.output)
