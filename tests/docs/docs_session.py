"""Runs the blocks of a page as a reader would: in a folder and an environment of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from types import TracebackType

import docs_pages
import pytest
from docs_pages import Block

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = DOCS / "tutorial.md"

_PIP = re.compile(r"(?:python -m )?pip install (?P<arguments>.+)")
_CHECKOUT = re.compile(r"python3? install\.py")
"""Installs all plugins from a checkout; here, from the wheels that were built of it."""

_PROGRESS = re.compile(r"^narrowpass: .* \(\d+ s\)\n", re.MULTILINE)
"""What a command that takes ten seconds or more, as on a loaded machine, says of its progress."""

_TIMEOUT = 300


def wheels() -> Path:
    """Return the folder of the wheels that the pages install; skip the test where there is none."""
    folder = os.environ.get("NARROWPASS_TEST_WHEELS")
    if folder is None:
        pytest.skip("NARROWPASS_TEST_WHEELS names no folder of wheels, which the pages install")
    return Path(folder)


def installation(command: str) -> list[str] | None:
    """Return what a command installs, as arguments of pip; None for another command."""
    if match := _PIP.fullmatch(command):
        return shlex.split(match["arguments"])
    return ["narrowpass[all]"] if _CHECKOUT.fullmatch(command) else None


def installs(page: Path) -> list[list[str]]:
    """Return what a page installs of what it did not write itself, a list for each command."""
    found = []
    for block in docs_pages.blocks(page):
        if block.kind not in ("console", "sh") or "not run" in block.marks:
            continue
        for command in docs_pages.commands(block):
            arguments = installation(command.text.partition(" && ")[0])
            if arguments and "-e" not in arguments:
                found.append(arguments)
    return found


class Session:
    """One reader at work: a folder, an environment in it, variables of Python.

    The environment has what the page installs; the tutorial's plugins where it installs nothing.

    Attributes:
        stale: None where output that differs from the page's fails the test; a list where it is
            collected instead, with the command that printed it.
    """

    def __init__(self, page: Path, folder: Path, wheels: Path) -> None:
        self.folder = folder / "work"
        self.stale: list[tuple[docs_pages.Command, str]] | None = None
        self._wheels = wheels
        self._python: subprocess.Popen[str] | None = None
        self.folder.mkdir()
        venv = self.folder / ".venv"
        self._bin = venv / "bin"
        self._uv("venv", "--python", sys.executable, str(venv))
        mine = Path(sysconfig.get_path("scripts"))
        path = [part for part in os.environ["PATH"].split(os.pathsep) if Path(part) != mine]
        self._environment = {
            **os.environ,
            "COLUMNS": "100",
            "HOME": str(folder),
            "NO_COLOR": "1",
            "PATH": os.pathsep.join([str(self._bin), *path]),
            "TERM": "dumb",
            "VIRTUAL_ENV": str(venv),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self._environment.pop("PYTHONPATH", None)
        if not installs(page):
            for arguments in installs(TUTORIAL):
                self._install(arguments)

    def __enter__(self) -> Session:
        """Return the session, which is closed when the block ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the Python that runs blocks, and remove the folder."""
        if self._python is not None:
            self._python.kill()
            self._python.communicate()
        shutil.rmtree(self.folder)

    def run(self, block: Block) -> None:
        """Run one block; fail the test where it does not do what the page shows."""
        if "not run" in block.marks:
            return
        runners = {
            "console": self._console,
            "file": self._file,
            "pycon": self._block,
            "python": self._block,
            "sh": self._console,
        }
        if block.kind in runners:
            runners[block.kind](block)

    def _file(self, block: Block) -> None:
        path = self.folder / block.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, "utf-8")

    def _block(self, block: Block) -> None:
        """Run a block of Python, in the process that ran those before it."""
        if self._python is None:
            self._python = subprocess.Popen(
                [self._bin / "python", Path(__file__).with_name("docs_python.py")],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
        asked = {"kind": block.kind, "text": block.text, "page": str(block.page)}
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps({**asked, "line": block.line}) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        assert answer, f"{block.page.name}:{block.line}: the block ended Python"
        wrong = json.loads(answer)
        assert not wrong, wrong

    def _console(self, block: Block) -> None:
        shown = docs_pages.commands(block)
        for number, command in enumerate(shown, start=1):
            first, _, rest = command.text.partition(" && ")
            arguments = installation(first)
            if arguments:
                self._install(arguments)
                if not rest:
                    continue
            done = subprocess.run(
                rest if arguments else command.text,
                shell=True,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                timeout=_TIMEOUT,
                check=False,
            )
            printed = _PROGRESS.sub("", done.stdout)
            place = f"{block.page.name}:{block.line}: $ {command.text}"
            code = int(block.marks.get("exit", "0")) if number == len(shown) else 0
            assert done.returncode == code, f"{place}\nended with {done.returncode}:\n{done.stdout}"
            if docs_pages.same_output(command.expected, printed):
                continue
            assert self.stale is not None, (
                f"{place}\nprints:\n{printed}\nand the page shows:\n{command.expected}"
            )
            self.stale.append((command, printed))

    def _install(self, arguments: list[str]) -> None:
        """Install what a page asks for; distributions of this repository from their wheels."""
        own = [self.folder / path / "pyproject.toml" for path in arguments]
        written = {
            tomllib.loads(file.read_text("utf-8"))["project"]["name"]
            for file in own
            if file.is_file()
        }
        # The page may write a distribution that this repository has too.
        pins = self._wheels.joinpath("constraints.txt").read_text("utf-8").splitlines()
        kept = [pin for pin in pins if pin.partition(" ")[0] not in written]
        file = self.folder.with_name("constraints.txt")
        file.write_text("\n".join(kept), "utf-8")
        python = "--python", str(self._bin / "python")
        self._uv("pip", "install", *python, "--constraint", str(file), *arguments)

    def _uv(self, *arguments: str) -> None:
        from uv import find_uv_bin  # not there where pages are only read

        done = subprocess.run(
            [find_uv_bin(), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, f"uv {' '.join(arguments)}\n{done.stderr}"
