"""Versions of narrowpass, older and newer ones, that use one cache folder in turns and at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("narrowpass_xnn_cpu")
pytest.importorskip("narrowpass_onnxruntime")
pytest.importorskip("narrowpass_auto")
NOTHING = {"packs": 0, "planned": 0, "built": 0, "measured": False}


@pytest.fixture
def folder(tmp_path):
    from faults.models import model

    from narrowpass import Bundle, save_model

    Bundle({"main": model(0)}).save(tmp_path / "m.narrow")
    save_model(model(0), tmp_path / "m.onnx")
    return tmp_path


def start(folder: Path, number: int, rounds: int) -> subprocess.Popen[str]:
    """Start a process of a version."""
    here = str(Path(__file__).parent)
    paths = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "faults.versions", f"{number}", f"{rounds}", folder],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    """Return what each round did anew; there must be no warning."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of the cache but notes of what was used when."""
    files = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    kept = [path for path in files if path.suffix not in (".lock", ".checked")]
    return {str(path): path.read_bytes() for path in kept if "-journal" not in path.name}


@pytest.mark.parametrize("other", [1, -1])
def test_in_turns(folder, other):
    """Each does everything once, finds all of it again, and changes nothing of the other's."""
    before: dict[str, bytes] = {}
    for number in (0, other):
        (first,) = finish(start(folder, number, 1))
        assert all(first.values()), first
        assert {name: contents(folder)[name] for name in before} == before
        before = contents(folder)
    for number in (0, other):
        (again,) = finish(start(folder, number, 1))
        assert again == NOTHING
        assert contents(folder) == before


@pytest.mark.long
@pytest.mark.parametrize("attempt", range(5))
def test_at_once(folder, attempt):
    """Three versions begin with an empty cache; each of them ends with all that it needs there."""
    running = [start(folder, number, 12) for number in (0, 1, 2)]
    for process in running:
        rounds = finish(process)
        assert len(rounds) == 12
        assert rounds[1:] == [NOTHING] * 11
    before = contents(folder)
    for number in (0, 1, 2):
        assert finish(start(folder, number, 1)) == [NOTHING]
    assert contents(folder) == before
