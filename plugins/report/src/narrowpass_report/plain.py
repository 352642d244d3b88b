"""Reports without a browser: as text, and as JSON."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from narrowpass import ReportWriter
from narrowpass.cli.output import format_bytes
from narrowpass_ir.sizes import count_bytes, count_nodes

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle, MethodReport

JSON_VERSION = 1
"""The field ``version`` of the JSON report. It grows when a field changes its meaning or goes."""

_DECISION = ("node", "op_type", "decision", "by", "reason")
_WIDEST = 60


class TextReport(ReportWriter):
    """Writes tables of text: what a method has, and what each pass counted, shows and decided."""

    name = "txt"

    def render(self, bundle: Bundle, title: str) -> str:
        """Return the text."""
        return "\n".join(_lines(bundle, title)) + "\n"


class JsonReport(ReportWriter):
    """Writes one JSON document.

    Its keys are version, title, pipeline, plugins, methods (by name: nodes, weight_bytes) and
    passes (text, and methods by name: counters, exhibits, decisions). Numbers that are not finite
    are null.
    """

    name = "json"

    def render(self, bundle: Bundle, title: str) -> str:
        """Return the document."""
        document = {
            "version": JSON_VERSION,
            "title": title,
            "pipeline": bundle.pipeline,
            "plugins": dict(bundle.plugins),
            "methods": {
                name: {"nodes": count_nodes(model), "weight_bytes": count_bytes(model)}
                for name, model in bundle.methods.items()
            },
            "passes": [
                {
                    "text": report.text,
                    "methods": {name: _part(part) for name, part in report.methods.items()},
                }
                for report in bundle.reports
            ],
        }
        return json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _part(part: MethodReport) -> Mapping[str, Any]:
    return {
        "counters": dict(part.counters),
        "exhibits": list(part.exhibits),
        "decisions": list(part.decisions),
    }


def _lines(bundle: Bundle, title: str) -> Iterator[str]:
    yield _plain(title)
    yield f"pipeline: {_plain(bundle.pipeline) or 'none'}"
    for name, model in bundle.methods.items():
        size = format_bytes(count_bytes(model))
        yield f"method {_plain(name)}: {count_nodes(model)} nodes, {size} of weights"
    for report in bundle.reports:
        for method, part in report.methods.items():
            where = f" ({_plain(method)})" if len(report.methods) > 1 else ""
            yield from ("", f"== {_plain(report.text)}{where}")
            yield from (f"{_plain(name)}: {count}" for name, count in part.counters.items())
            for exhibit in part.exhibits:
                if isinstance(exhibit.get("table"), Mapping):
                    parts = exhibit["table"]
                    yield from ("", _plain(str(exhibit.get("title", ""))))
                    yield from _table(parts.get("columns", ()), parts.get("rows", ()))
            if part.decisions:
                yield ""
                rows = [[item.get(key, "") for key in _DECISION] for item in part.decisions]
                yield from _table([key.replace("op_type", "operator") for key in _DECISION], rows)


def _table(columns: Sequence[object], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table; cells that are too wide are at the end of their lines."""
    texts = [[_plain(_text(cell)) for cell in row] for row in (columns, *rows)]
    count = max(map(len, texts), default=0)
    widths = [
        min(_WIDEST, max((len(row[index]) for row in texts if index < len(row)), default=0))
        for index in range(count)
    ]
    for row in texts:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield f"  {'  '.join(cells).rstrip()}"


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    """Return text whose control characters, which a terminal would obey, are spaces."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf") else c for c in text)
