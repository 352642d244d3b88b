"""Every block of the documentation that can be run does what the page shows."""

import importlib.metadata
import itertools
import re
from pathlib import Path

import pytest
from docs_pages import Block, blocks, commands, same_output
from docs_session import FIRST_PARTY, Session

DOCS = Path(__file__).parents[2] / "docs"
RUNNABLE = ("console", "file", "pycon", "python")
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if "_build" not in page.parts and any(block.kind in RUNNABLE for block in blocks(page))
)


def installed():
    return {point.name for point in importlib.metadata.entry_points(group="narrowpass")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_page(page, tmp_path, monkeypatch):
    missing = set(FIRST_PARTY) - installed()
    if missing:
        pytest.skip(f"the pages use plugins that are not installed: {', '.join(missing)}")
    session = Session(tmp_path, monkeypatch)
    try:
        for block in blocks(page):
            session.run(block)
    finally:
        session.close()


def test_nothing_is_left_to_be_written():
    """A line of capitals alone stands for text that is missing, unless it is a glossary's term."""
    found = []
    for page in DOCS.rglob("*.md"):
        lines = [*page.read_text().splitlines(), ""]
        for number, (line, after) in enumerate(itertools.pairwise(lines), 1):
            if re.fullmatch("[A-Z]{4,}", line) and not after.startswith(": "):
                found.append(f"{page.relative_to(DOCS)}:{number}: {line}")
    assert not found


def test_there_are_pages():
    names = {str(page.relative_to(DOCS)) for page in PAGES}
    assert {"tutorial.md", "howto/pass.md", "howto/backend.md", "howto/plugin.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_unchecked_blocks_have_a_reason(page):
    for block in blocks(page):
        assert len(block.marks.get("not run", "a long reason")) > 10, block.line


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("nodes 14 -> 9", "nodes 14 -> 9", True),
        ("nodes 14 -> 9", "nodes 14 -> 8", False),
        ("56254 bytes", "56300 bytes", True),
        ("56254 bytes", "59300 bytes", False),
        ("accuracy 98.44 %", "accuracy 98.40 %", True),
        ("accuracy 98.44 %", "accuracy 91.00 %", False),
        ("max abs 1.2e-07", "max abs 4.8e-06", True),
        ("max abs 1.2e-07", "max abs 4.8e-02", False),
        ("took 3.1 ms", "took 310.5 ms", True),
        ("took 3.1 ms", "lasted 3.1 ms", False),
        ("a ... z", "a b c z", True),
        ("a ... z", "a b c", False),
        ("first\n...\nlast", "first\nsecond\nthird\nlast", True),
        ("first\n...\nlast", "first\nsecond", False),
        ("wrote x (...); done", "wrote x (63 B); done", True),
        ("'...name...'", "pass 'a-name-b'", False),
        ("", "something", False),
        ("something", "", False),
        ("opset 18", "opset 21", False),
    ],
)
def test_comparison(expected, got, same):
    assert same_output(expected, got) is same


def test_commands_of_a_block():
    block = Block(Path("p.md"), 1, "console", "$ one \\\n> two\nout\nput\n$ three\n")
    assert [(c.text, c.expected) for c in commands(block)] == [
        ("one \\\ntwo", "out\nput"),
        ("three", ""),
    ]
