"""What of a page of the documentation can be run, and how what it shows is compared.

A page is one session, from its first block to its last, in one folder of its own:

- a ``console`` block: a line after ``$`` is a command (one after ``>`` goes on with it), the
  lines up to the next command are what it prints, errors included;
- a ``sh`` block holds commands alone, one a line, whose output is not shown;
- a ``python`` block is run; a ``pycon`` block holds statements with what they print;
- a ``{code-block}`` or ``{literalinclude}`` with a caption is the file of that name.

``% not run: REASON`` above a block leaves it out. ``% exit: N`` says what the next block's last
command ends with, where that is not 0, and ``% output: not shown`` that the next block's commands
may print anything. README, which is shown where ``%`` begins no comment, has
``<!-- not run: REASON -->``. ``text`` blocks are for reading only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"(?P<fence>`{3,})(?P<info>.*)")
_COMMENT = re.compile(r"(?:%|<!--) (?P<key>not run|exit|output): (?P<text>.+?)(?: -->)?")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
_WORD = re.compile(r"\w+|[^\w\s]")
_TIME = re.compile(r"\s*(?:s|ms|us|µs|ns|seconds|x)\b")
"""What follows a number that no two runs share. Units too: one run's 1.2 ms is another's 980 µs."""


@dataclass
class Block:
    """A fenced block of a page.

    Attributes:
        page: the page's file.
        line: the number of its first line, from 1.
        kind: ``console``, ``sh``, ``python``, ``pycon``, ``file`` or another language's name.
        text: what is between the fences.
        path: the file's name, for kind ``file``.
        marks: the ``%`` comments above it.
    """

    page: Path
    line: int
    kind: str
    text: str
    path: str = ""
    marks: dict[str, str] = field(default_factory=dict)


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    lines = page.read_text("utf-8").splitlines()
    marks: dict[str, str] = {}
    index = 0
    while index < len(lines):
        comment, fence = _COMMENT.fullmatch(lines[index]), _FENCE.fullmatch(lines[index])
        index += 1
        if comment:
            marks[comment["key"]] = comment["text"]
        if not fence:
            continue
        stop = lines.index(fence["fence"], index)
        yield _block(page, index + 1, fence["info"].strip(), lines[index:stop], marks)
        marks, index = {}, stop + 1


def _block(page: Path, line: int, info: str, body: list[str], marks: dict[str, str]) -> Block:
    directive = re.fullmatch(r"\{([a-z-]+)\}\s*(.*)", info)
    if directive is None:
        return Block(page, line, info, "\n".join(body) + "\n", marks=marks)
    options = {}
    while body and (option := re.fullmatch(r":([a-z-]+):\s*(.*)", body[0])):
        options[option[1]] = option[2]
        body = body[1:]
    if "caption" not in options or directive[1] not in ("code-block", "literalinclude"):
        return Block(page, line, directive[0], "\n".join(body), marks=marks)
    text = "\n".join(body[1:] if body and not body[0] else body) + "\n"
    if directive[1] == "literalinclude":
        text = (page.parent / directive[2]).read_text("utf-8")
    return Block(page, line, "file", text, options["caption"].strip("`"), marks)


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the lines that it is shown to print."""

    text: str
    expected: str


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block, or of a block of ``sh``, which may print anything."""
    if block.kind == "sh":
        return [Command(line, "...") for line in block.text.splitlines()]
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            found[-1][1].append(line)
    shown = "output" not in block.marks
    return [Command(text, "\n".join(lines) if shown else "...") for text, lines in found]


def same_output(expected: str, got: str) -> bool:
    """Return whether a command prints what the page shows.

    Runs of white space count as one space. ``...`` stands for anything within a line, and alone
    on a line for any lines. Whole numbers below 10000 are equal, larger ones within 2 %, and
    numbers with a fraction within 2 %, or both below 1e-4. Numbers before a unit of time, and
    factors (``1.5x``), are any numbers.
    """
    return _same_lines(
        [_tokens(line) for line in expected.splitlines() if line.strip()],
        [_tokens(line) for line in got.splitlines() if line.strip()],
    )


def _same_lines(expected: list[list[str]], got: list[list[str]]) -> bool:
    if not expected:
        return not got
    if expected[0] == ["..."]:
        return any(_same_lines(expected[1:], got[start:]) for start in range(len(got) + 1))
    return bool(got) and _same_line(expected[0], got[0]) and _same_lines(expected[1:], got[1:])


def _same_line(expected: list[str], got: list[str]) -> bool:
    if not expected:
        return not got
    if expected[0] == "...":
        return any(_same_line(expected[1:], got[start:]) for start in range(len(got) + 1))
    if not got or not _same_token(expected[0], got[0]):
        return False
    return _same_line(expected[1:], got[1:])


def _tokens(line: str) -> list[str]:
    """Cut a line into numbers, dots that stand for anything, words and other characters."""
    # Lines of tables are as long as their widest cell.
    line = re.sub(r"[-─━═]{3,}", "---", line.strip())
    tokens: list[str] = []
    position = 0
    for match in re.finditer(rf"\.\.\.|(?<![\w.]){_NUMBER.pattern}", line, re.IGNORECASE):
        tokens += _WORD.findall(line[position : match.start()])
        text = match.group()
        position = match.end()
        if text != "..." and (unit := _TIME.match(line, position)):
            text = "#ratio" if unit.group().strip() == "x" else "#time"
            position = unit.end()
        tokens.append(text)
    return tokens + _WORD.findall(line[position:])


def _same_token(expected: str, got: str) -> bool:
    if expected == got:
        return True
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(got)):
        return False
    first, second = (float(text.replace(",", "")) for text in (expected, got))
    if all("." not in text and "e" not in text.lower() for text in (expected, got)):
        return abs(first) >= 10_000 and abs(first - second) <= 0.02 * abs(first)
    if abs(first) < 1e-4:
        return abs(second) < 1e-4
    return abs(first - second) <= 0.02 * abs(first)
