"""Write README's table of ratios from the figures of the page that compares runtimes.

``python tools/readme_table.py`` replaces the table between the markers in README.md. The figures
are those of ``docs/explanation/fast-path/compared.md``, which names the command that measures them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "fast-path" / "compared.md"
README = ROOT / "README.md"
START, END = "<!-- ratios: tools/readme_table.py -->\n", "<!-- end of ratios -->\n"
THREADS = "2"
_HEAD = ("model", "threads", "narrowpass", "best peer", "times")


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a page: rows of cells, the head first, the rule left out."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def comparisons(text: str) -> list[dict[str, tuple[str, str, str]]]:
    """Return the page's tables of models: milliseconds, best peer and ratio with two threads.

    Of a model with several rows the first counts. "the same" stands for the model of the row above.
    """
    found = []
    for head, *rows in tables(text):
        if tuple(head[:5]) != _HEAD:
            continue
        results: dict[str, tuple[str, str, str]] = {}
        model = ""
        for name, threads, ours, peer, times, *_ in rows:
            if name.startswith("the same"):
                model = model.partition(",")[0] + name.removeprefix("the same")
            else:
                model = name or model
            if threads == THREADS and model not in results:
                peer_name = peer.partition("(")[2].removesuffix(")")
                results[model] = ours.split()[0], peer_name, times.split()[0]
        found.append(results)
    return found


def table(text: str) -> str:
    """Return README's table; raise `ValueError` where the page has other tables than expected."""
    wide, narrow = comparisons(text)
    if wide.keys() != narrow.keys():
        raise ValueError(f"{PAGE}: the tables of float32 and int8 have different models")
    lines = [
        "| model, 2 threads | float32, ms | best peer / ours | int8, ms | best peer / ours |",
        "|---|---|---|---|---|",
    ]
    for model, (milliseconds, peer, times) in wide.items():
        other_milliseconds, other_peer, other_times = narrow[model]
        lines.append(
            f"| {model} | {milliseconds} | {times} ({peer}) "
            f"| {other_milliseconds} | {other_times} ({other_peer}) |"
        )
    return "\n".join(lines) + "\n"


def with_table(readme: str, new: str) -> str:
    """Return README's text with the table between its markers replaced."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{new}\n{END}{after}"


if __name__ == "__main__":
    figures = PAGE.read_text(encoding="utf-8")
    README.write_text(with_table(README.read_text(encoding="utf-8"), table(figures)), "utf-8")
