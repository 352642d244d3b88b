"""The classes of defects on the page of guarantees name tests that exist, and that search."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "guarantees.md"


def rows() -> list[tuple[str, list[str]]]:
    """Return each class with the files that search for its members."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Classes of defects\n")[2]
    lines = text.partition("\n## ")[0].splitlines()
    cells = [line.strip("|").split("|") for line in lines if line.startswith("| ")][1:]
    return [(name.strip(), re.findall(r"`([\w/]+\.py)`", files)) for name, files in cells]


def test_each_class_has_files_that_exist() -> None:
    found = rows()
    assert len(found) >= 20
    for name, files in found:
        assert files, f"nothing searches for {name}"
        assert [file for file in files if not (ROOT / file).is_file()] == []


def test_a_search_has_many_cases() -> None:
    """By parameters, by examples that are drawn, or in a loop over seeds or cases."""
    many = re.compile(r"parametrize|@given|\bfor \w+(?:, \w+)* in ")
    for name, files in rows():
        tests = [file for file in files if "/test_" in file]
        assert tests, f"{name} has no test file"
        assert [file for file in tests if not many.search((ROOT / file).read_text("utf-8"))] == []


def test_no_test_file_is_named_under_two_names() -> None:
    names = [name for name, _ in rows()]
    assert len(names) == len(set(names))
