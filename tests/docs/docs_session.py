"""Runs the blocks of a page in a folder of their own, as a reader would."""

from __future__ import annotations

import contextlib
import doctest
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docs_pages
import pytest
from docs_pages import Block

CORE = "narrowpass"
FIRST_PARTY = (
    "analysis",
    "auto",
    "constant-folding",
    "demo",
    "fp16",
    "generate",
    "gguf",
    "huggingface",
    "int4",
    "int8-sym",
    "ray",
    "reference",
    "report",
    "serve",
    "signing",
    "xnn-cpu",
)
"""The plugins that the pages may use; all others are left out, whatever is installed."""

_INSTALL = re.compile(r"(?:python -m )?pip install (?:-q )?-e (?P<folder>\S+)")


class Session:
    """One reader at work: a folder, installed plugins, variables of Python.

    Attributes:
        stale: None where output that differs from the page's fails the test; a list where it is
            collected instead, with the command that printed it.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "work"
        self.stale: list[tuple[docs_pages.Command, str]] | None = None
        self._site = folder / "site"
        self._patch = monkeypatch
        self._names: dict[str, Any] = {"__name__": "__page__"}
        before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        self._paths: list[str] = [str(self._site), *filter(None, before)]
        self.folder.mkdir()
        self._site.mkdir()
        monkeypatch.chdir(self.folder)
        monkeypatch.syspath_prepend(str(self._site))
        points = importlib.metadata.entry_points(group=CORE)
        self._disabled = {point.name for point in points} - set(FIRST_PARTY)
        environment = {
            "COLUMNS": "100",
            "HOME": str(folder),
            "NO_COLOR": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "TERM": "dumb",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        self._export()

    def _export(self) -> None:
        self._patch.setenv("NARROWPASS_DISABLE_PLUGINS", ",".join(sorted(self._disabled)))
        self._patch.setenv("PYTHONPATH", os.pathsep.join(self._paths))

    def run(self, block: Block) -> None:
        """Run one block; fail the test where it does not do what the page shows."""
        if "not run" in block.marks:
            return
        runners = {
            "console": self._console,
            "file": self._file,
            "pycon": self._pycon,
            "python": self._python,
        }
        if block.kind in runners:
            runners[block.kind](block)

    def _file(self, block: Block) -> None:
        path = self.folder / block.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, "utf-8")

    def _python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.text  # tracebacks have the page's lines
        exec(compile(source, str(block.page), "exec"), self._names)

    def _pycon(self, block: Block) -> None:
        parsed = doctest.DocTestParser().get_doctest(
            block.text, self._names, block.page.name, str(block.page), block.line - 1
        )
        runner = doctest.DocTestRunner(_Checker(), optionflags=doctest.ELLIPSIS)
        report = io.StringIO()
        runner.run(parsed, out=report.write, clear_globs=False)
        self._names.update(parsed.globs)
        assert not report.getvalue(), report.getvalue()

    def _console(self, block: Block) -> None:
        shown = docs_pages.commands(block)
        for number, command in enumerate(shown, start=1):
            if install := _INSTALL.fullmatch(command.text):
                self._install(self.folder / install["folder"])
                continue
            done = subprocess.run(
                command.text,
                shell=True,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                timeout=300,
                check=False,
            )
            place = f"{block.page.name}:{block.line}: $ {command.text}"
            code = int(block.marks.get("exit", "0")) if number == len(shown) else 0
            assert done.returncode == code, f"{place}\nended with {done.returncode}:\n{done.stdout}"
            if docs_pages.same_output(command.expected, done.stdout):
                continue
            assert self.stale is not None, (
                f"{place}\nprints:\n{done.stdout}\nand the page shows:\n{command.expected}"
            )
            self.stale.append((command, done.stdout))

    def _install(self, folder: Path) -> None:
        """Do what ``pip install -e`` does for importlib.metadata, without an index."""
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        stem = project["name"].replace("-", "_")
        info = self._site / f"{stem}-{project['version']}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {text}\n" for text in project["dependencies"])
        name = f"Name: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{name}{needs}")
        points: Mapping[str, str] = project["entry-points"][CORE]
        lines = [f"{name} = {module}\n" for name, module in points.items()]
        (info / "entry_points.txt").write_text(f"[{CORE}]\n" + "".join(lines))
        self._disabled -= set(points)
        self._paths.append(str(folder / "src"))
        self._patch.syspath_prepend(str(folder / "src"))
        self._export()

    def close(self) -> None:
        """Forget the modules that the page wrote, so that the next page finds its own."""
        for name, module in list(sys.modules.items()):
            origin = getattr(module, "__file__", None) or ""
            if origin.startswith(str(self.folder)):
                del sys.modules[name]
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)


class _Checker(doctest.OutputChecker):
    """Compares as `docs_pages.same_output` does."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(want, got, optionflags) or docs_pages.same_output(want, got)
