"""Limits of size: physical lines of the core, files in each folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

MOST_CORE_LINES = 10_000
MOST_FILES = 20


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import ``tools/lines.py``."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("lines", ROOT / "tools" / "lines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lines", module)
    spec.loader.exec_module(module)
    return module


def test_core_is_small(lines):
    assert 0 < lines.count_lines(ROOT / "core" / "src").physical <= MOST_CORE_LINES


def test_folders_have_few_files(lines):
    counts = lines.files_per_folder(ROOT)
    assert counts[PurePosixPath("core/src/narrowpass/bundle")] > 1  # the folders were found
    wider = {str(folder): count for folder, count in counts.items() if count > MOST_FILES}
    assert wider == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("", 0),
        ("x = 1  # a comment\n\n# another\n", 1),
        ('"""Of a module.\n\nText.\n"""\nx = 1\n"""Of an attribute."""\n', 1),
        ('def f():\n    """Of a function."""\n    return """one\n    two"""\n', 3),
        ("call(\n    1,\n\n    2,\n)\n", 4),
    ],
)
def test_lines_of_code(lines, source, count):
    assert lines.count_code(source) == count
