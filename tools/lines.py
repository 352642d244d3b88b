"""Count the lines of code of each distribution's package: `python tools/lines.py`.

A line of code has a token that is neither a comment nor a docstring: blank lines, comments and
docstrings are not counted. A string over several lines counts in full. Physical lines are all.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from wheels import projects

LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
"""Kinds of tokens that have no code."""

SOURCE_SUFFIXES = frozenset({".c", ".css", ".def", ".h", ".html", ".inc", ".js", ".py"})
"""Suffixes of the files that `files_per_folder` counts."""

SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules"})
"""Folders of generated files; hidden folders are skipped, too."""


@dataclass(frozen=True)
class Lines:
    """The size of Python source.

    Attributes:
        files: number of modules.
        code: lines with code.
        physical: all lines.
    """

    files: int
    code: int
    physical: int


def docstring_lines(source: str) -> set[int]:
    """Return the numbers of the lines that docstrings cover, those of attributes included."""
    covered: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                end = statement.end_lineno or statement.lineno
                covered.update(range(statement.lineno, end + 1))
    return covered


def count_code(source: str) -> int:
    """Return the number of lines of code of a Python module."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(source))


def count_lines(folder: Path) -> Lines:
    """Count the Python modules below a folder."""
    sources = [file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py"))]
    return Lines(
        len(sources),
        sum(map(count_code, sources)),
        sum(len(source.splitlines()) for source in sources),
    )


def source_files(root: Path) -> Iterator[Path]:
    """Yield the source files below a folder, without generated and hidden folders."""
    for entry in sorted(root.iterdir()):
        if entry.is_dir():
            hidden = entry.name.startswith(".") or entry.name.endswith(".egg-info")
            if not hidden and entry.name not in SKIPPED_FOLDERS:
                yield from source_files(entry)
        elif entry.suffix in SOURCE_SUFFIXES:
            yield entry


def files_per_folder(root: Path) -> Counter[PurePosixPath]:
    """Return the number of source files that lie directly in each folder, by relative path."""
    return Counter(PurePosixPath(file.relative_to(root).parent) for file in source_files(root))


def main() -> None:
    """Print a table of all distributions, and their sum."""
    counts = {name: count_lines(folder / "src") for name, folder in projects().items()}
    total = Lines(
        sum(lines.files for lines in counts.values()),
        sum(lines.code for lines in counts.values()),
        sum(lines.physical for lines in counts.values()),
    )
    width = max(map(len, counts))
    sys.stdout.write(f"{'distribution':{width}}  files    code  physical\n")
    for name, lines in {**counts, "all": total}.items():
        sys.stdout.write(f"{name:{width}}  {lines.files:5}  {lines.code:6,}  {lines.physical:8,}\n")


if __name__ == "__main__":
    main()
