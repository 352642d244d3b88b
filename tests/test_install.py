"""`install.py` says in one sentence what is missing, and leaves nothing half done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load() -> types.ModuleType:
    loader = SourceFileLoader("install", str(ROOT / "install.py"))
    module = types.ModuleType(loader.name)
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


def run(place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "install.py", "--into", place],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )


def test_an_older_python(monkeypatch) -> None:
    install = load()
    monkeypatch.setattr(install.sys, "version_info", (3, 10, 13))
    with pytest.raises(install.MissingError, match=r"3\.11 or later, and this is 3\.10"):
        install.check_requirements()


@pytest.mark.skipif(shutil.which("python3.10") is None, reason="no Python 3.10")
def test_python_3_10_itself(tmp_path) -> None:
    python = shutil.which("python3.10")
    probe = subprocess.run([str(python), "-c", ""], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip("python3.10 is a launcher of a version that is not activated")
    command = [str(python), ROOT / "install.py", "--into", tmp_path / "env"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("install.py: narrowpass needs Python 3.11 or later, and this is 3.10")
    assert not (tmp_path / "env").exists()


def test_no_compiler(tmp_path) -> None:
    done = run(tmp_path / "env", CC="no-such-compiler")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("install.py: there is no C compiler 'no-such-compiler'")
    assert not (tmp_path / "env").exists()


def test_no_index(tmp_path) -> None:
    closed = "http://127.0.0.1:9/simple"
    done = run(tmp_path / "env", PIP_INDEX_URL=closed, PIP_RETRIES="0", PIP_NO_CACHE_DIR="1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "install.py: uv cannot be installed: is there a network, or an index in PIP_INDEX_URL?"
    )
    assert not (tmp_path / "env").exists()


def test_a_place_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = run(tmp_path / "file" / "env")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("install.py: no environment can be made in ")
    assert (tmp_path / "file").is_file()


def test_what_was_there_stays(tmp_path) -> None:
    place = tmp_path / "env"
    place.mkdir()
    (place / "mine.txt").write_text("mine", encoding="utf-8")
    assert run(place, CC="no-such-compiler").returncode == 1
    assert (place / "mine.txt").read_text(encoding="utf-8") == "mine"
