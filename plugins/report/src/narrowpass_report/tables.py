"""What each pass counted and decided, as tables: for screen readers, and to search in as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from narrowpass_report.exhibits import exhibit
from narrowpass_report.quantized import quantized

if TYPE_CHECKING:
    from narrowpass.bundle import Report

_MOST_ROWS = 5000
"""Decisions that one table shows: browsers are slow to lay out more."""

_FIELDS = ("node", "op_type", "decision", "by", "reason", "measured", "limit", "error", "sqnr")
_NUMBERS = {"measured", "limit", "error", "sqnr"}


def section(number: int, report: Report) -> str:
    """Return the part of the page about one pass.

    Args:
        number: of the pass in the pipeline; links lead to ``#pass-NUMBER``.
        report: what it decided.
    """
    parts = [f'<section id="pass-{number}">\n<h2><code>{escape(report.text)}</code></h2>\n']
    for method, part in report.methods.items():
        if len(report.methods) > 1:
            parts.append(f"<h3>method {escape(method)}</h3>\n")
        if part.counters:
            parts.append(table(("counted", "times"), part.counters.items(), {"times"}))
        parts += map(exhibit, part.exhibits)
        parts.append(quantized(method, part.decisions))
        if part.decisions:
            parts.append(_decisions(method, part.decisions))
        if not part.counters and not part.decisions:
            parts.append('<p class="note">It found nothing to do.</p>\n')
    return "".join([*parts, "</section>\n"])


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


def _decisions(method: str, decisions: Sequence[Mapping[str, Any]]) -> str:
    fields = [field for field in _FIELDS if any(field in decision for decision in decisions)]
    rows = ([decision.get(field, "") for field in fields] for decision in decisions[:_MOST_ROWS])
    columns = [field.replace("op_type", "operator") for field in fields]
    shown = table(columns, rows, _NUMBERS, method=method)
    more = len(decisions) - _MOST_ROWS
    if more <= 0:
        return f"<h3>Decisions: {len(decisions)}</h3>\n{shown}"
    note = f'<p class="note">and {more} more, in the reports folder of the bundle</p>\n'
    return f"<h3>Decisions: {len(decisions)}</h3>\n{shown}{note}"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
