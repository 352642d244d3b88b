"""The reading path through the code names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "reading-path.md"


def named_files() -> list[str]:
    return re.findall(r"`([\w.]+(?:/[\w.]+)+\.\w+)`", PAGE.read_text(encoding="utf-8"))


def test_files_exist() -> None:
    names = named_files()
    assert len(names) >= 30
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_each_file_is_read_once() -> None:
    names = named_files()
    assert len(names) == len(set(names))
