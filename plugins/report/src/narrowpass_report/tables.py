"""Tables of the page: for screen readers, and to search in as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    numbers: Iterable[str] = (),
    *,
    method: str | None = None,
) -> str:
    """Return a table, whose cells are shown as text.

    Args:
        columns: the headings.
        rows: the cells.
        numbers: headings of the columns that are aligned to the right.
        method: where the first cells are names of nodes: the method whose graph has them.
    """
    right = [' class="number"' if column in set(numbers) else "" for column in columns]
    head = "".join(f"<th{c}>{escape(t)}</th>" for c, t in zip(right, columns, strict=True))
    lines = (
        "<tr>"
        + "".join(f"<td{c}>{escape(_text(v))}</td>" for c, v in zip(right, row, strict=True))
        + "</tr>\n"
        for row in rows
    )
    nodes = "" if method is None else f' data-method="{escape(method)}"'
    return (
        f'<div class="scroll" tabindex="0"><table{nodes}>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody>\n</table></div>\n"
    )


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
