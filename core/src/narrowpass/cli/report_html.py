"""What each pass decided, as one web page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from narrowpass.cli._output import format_bytes
from narrowpass.instruments.statistics import count_bytes, count_nodes

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle, Report

_MOST_ROWS = 5000
"""Decisions that one table shows: browsers are slow to lay out more."""

_FIELDS = ("node", "op_type", "decision", "by", "reason", "measured", "limit")
_NUMBERS = {"measured", "limit"}

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #2563eb; }
@media (prefers-color-scheme: dark) { :root { --accent: #7dabff; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
  padding: 0 1.5rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; border-top: 1px solid var(--line);
  padding-top: 1.2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
code { font: .92em ui-monospace, monospace; overflow-wrap: anywhere; }
nav a, a { color: var(--accent); text-decoration: none; margin-right: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.2rem .3rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 600; white-space: nowrap; position: sticky; top: 0; background: Canvas; }
tbody tr:hover { background: var(--soft); }
.number { text-align: right; white-space: nowrap; }
.note { opacity: .7; }
"""


def render(bundle: Bundle, title: str) -> str:
    """Give the page.

    Args:
        bundle: with the reports of its passes.
        title: what was built; shown as text.
    """
    sections = [_section(number, report) for number, report in enumerate(bundle.reports)]
    links = [
        f'<a href="#pass-{number}">{escape(report.text)}</a>'
        for number, report in enumerate(bundle.reports)
    ]
    body = "".join(
        (
            f"<h1>{escape(title)}</h1>\n",
            _summary(bundle),
            f"<nav>{''.join(links)}</nav>\n" if links else "",
            *(sections or ['<p class="note">No pass ran.</p>\n']),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: what the passes decided</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _summary(bundle: Bundle) -> str:
    pipeline = f"<code>{escape(bundle.pipeline)}</code>" if bundle.pipeline else "none"
    plugins = ", ".join(f"{name} {version}" for name, version in bundle.plugins.items())
    rows = [
        (name, count_nodes(model), format_bytes(count_bytes(model)))
        for name, model in bundle.methods.items()
    ]
    by = f" ({escape(plugins)})" if plugins else ""
    return f"<p>Pipeline: {pipeline}{by}</p>\n" + _table(
        ("method", "nodes", "weights"), rows, numbers={"nodes", "weights"}
    )


def _section(number: int, report: Report) -> str:
    parts = [f'<section id="pass-{number}">\n<h2><code>{escape(report.text)}</code></h2>\n']
    for method, part in report.methods.items():
        if len(report.methods) > 1:
            parts.append(f"<h3>method {escape(method)}</h3>\n")
        if part.counters:
            parts.append(_table(("counted", "times"), part.counters.items(), numbers={"times"}))
        if part.decisions:
            parts.append(_decisions(part.decisions))
        if not part.counters and not part.decisions:
            parts.append('<p class="note">It found nothing to do.</p>\n')
    return "".join([*parts, "</section>\n"])


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> str:
    fields = [field for field in _FIELDS if any(field in decision for decision in decisions)]
    rows = ([decision.get(field, "") for field in fields] for decision in decisions[:_MOST_ROWS])
    table = _table([field.replace("op_type", "operator") for field in fields], rows, _NUMBERS)
    more = len(decisions) - _MOST_ROWS
    if more <= 0:
        return f"<h3>Decisions: {len(decisions)}</h3>\n{table}"
    note = f'<p class="note">and {more} more, in the reports folder of the bundle</p>\n'
    return f"<h3>Decisions: {len(decisions)}</h3>\n{table}{note}"


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[str] = ()
) -> str:
    right = [' class="number"' if column in set(numbers) else "" for column in columns]
    head = "".join(f"<th{c}>{escape(t)}</th>" for c, t in zip(right, columns, strict=True))
    lines = (
        "<tr>"
        + "".join(f"<td{c}>{escape(_text(v))}</td>" for c, v in zip(right, row, strict=True))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody>\n</table></div>\n"
    )


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
