"""Every block of the documentation that can be run does what the page shows."""

import itertools
import re
from pathlib import Path

import pytest
from docs_pages import Block, blocks, commands, same_output
from docs_session import DOCS, TUTORIAL, Session, installation, installs, wheels

README = DOCS.parent / "README.md"
RUNNABLE = ("console", "file", "pycon", "python", "sh")
PAGES = [
    README,
    *sorted(
        page
        for page in DOCS.rglob("*.md")
        if "_build" not in page.parts and any(block.kind in RUNNABLE for block in blocks(page))
    ),
]
OWN = {
    README: "onnx_model.py",
    DOCS / "howto" / "language-models.md": "language_model.py",
    DOCS / "howto" / "onnxruntime.md": "onnx_model.py",
}
"""What makes the models that a page takes for the reader's own, in the folder ``own``."""


def name_of(page):
    return str(page.relative_to(DOCS.parent)).removeprefix("docs/")


pages = pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=name_of(page), marks=() if page in (README, TUTORIAL) else pytest.mark.long
        )
        for page in PAGES
    ],
)


@pages
def test_page(page, tmp_path):
    """Each page works with what it installs, from its first command to its last."""
    own = OWN.get(page)
    with Session(page, tmp_path, wheels()) as session:
        for block in blocks(page):
            session.run(block)
            if own and block.kind in ("console", "sh") and "not run" not in block.marks:
                # It is installed now.
                session.run(Block(page, block.line, "python", own_models(own)))
                own = None


def own_models(file):
    path = Path(__file__).parent / "own" / file
    return f"import runpy; globals().update(runpy.run_path({str(path)!r}))"


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
    names = {name_of(page) for page in PAGES}
    assert {
        "README.md",
        "tutorial.md",
        "howto/pass.md",
        "howto/backend.md",
        "howto/plugin.md",
    } <= names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
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


def test_commands_of_a_block_of_sh_may_print_anything():
    block = Block(Path("p.md"), 1, "sh", "one\ntwo\n")
    assert [command.text for command in commands(block)] == ["one", "two"]
    assert all(same_output(command.expected, "1\n2\n") for command in commands(block))


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("pip install 'narrowpass[cpu]'", ["narrowpass[cpu]"]),
        ("python -m pip install -e one two", ["-e", "one", "two"]),
        ("python3 install.py", ["narrowpass[all]"]),
        ("narrowpass plugins", None),
    ],
)
def test_what_a_command_installs(command, arguments):
    assert installation(command) == arguments


def test_the_tutorial_installs_what_pages_without_a_command_have():
    assert installs(TUTORIAL) == [["narrowpass[cpu]"]]
