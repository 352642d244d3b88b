"""The reading path, and the tables of the architecture, name files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "reading-path.md"
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"


def named_files() -> list[str]:
    return re.findall(r"`([\w.]+(?:/[\w.]+)+\.\w+)`", PAGE.read_text(encoding="utf-8"))


def test_files_exist() -> None:
    names = named_files()
    assert len(names) >= 30
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_each_file_is_read_once() -> None:
    names = named_files()
    assert len(names) == len(set(names))


def defines(file: Path, function: str) -> bool:
    """Return whether a file defines a function; ``Class.method`` in Python."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".c":
        return re.search(rf"^[\w *]*\b{function}\([^;]*?\) \{{", text, re.MULTILINE) is not None
    body = ast.parse(text).body
    *classes, name = function.split(".")
    for each in classes:
        found = [node for node in body if isinstance(node, ast.ClassDef) and node.name == each]
        body = [inner for node in found for inner in node.body]
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in body)


def test_tables_of_calls_name_files_and_functions() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    section = text.split("## From a node to a kernel, from a file to packed bytes")[1]
    rows = re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", section, re.MULTILINE)
    assert len(rows) >= 10
    missing = [
        (name, function)
        for name, function in rows
        if not (ROOT / name).is_file() or not defines(ROOT / name, function)
    ]
    assert missing == []
