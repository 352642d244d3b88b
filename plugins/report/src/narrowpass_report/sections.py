"""The part of the page about one pass: what it shows, counted and decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from narrowpass_report.exhibits import exhibit
from narrowpass_report.quantized import quantized
from narrowpass_report.tables import table

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
