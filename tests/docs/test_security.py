"""The table of vulnerabilities in `SECURITY.md`, compared with the tests that it names."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_names_the_tests():
    attacks = runpy.run_path(str(ROOT / "core/tests/models/io/test_known_attacks.py"))["ATTACKS"]
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (CVE-[\d-]+) \|.*\| `(\w+)` \|$", text, re.MULTILINE)
    assert rows
    assert dict(rows) == {name: attack.__name__ for name, attack in attacks.items()}
    assert len(rows) == len(attacks)


def test_nothing_unpacks_archives():
    """What the row of CVE-2024-5187 says."""
    sources = [path for path in ROOT.glob("**/src/**/*.py") if ".tox" not in path.parts]
    assert len(sources) > 100
    text = re.compile(r"\b(tarfile|extractall|unpack_archive)\b")
    assert [path for path in sources if text.search(path.read_text(encoding="utf-8"))] == []
