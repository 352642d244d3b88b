"""The page: bars and a graph for each method, and tables for each pass."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from narrowpass import ReportWriter
from narrowpass.cli.output import format_bytes
from narrowpass_ir.sizes import count_bytes, count_nodes
from narrowpass_report.exhibits import exhibit, table
from narrowpass_report.graph import Drawing, draw
from narrowpass_report.quantized import quantized
from narrowpass_report.texts import PRECISIONS, dtype_name, precision

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle, Report


_SCRIPTS = (
    "geometry.js",
    "colors.js",
    "paint.js",
    "details.js",
    "events.js",
    "viewer.js",
    "report.js",
)
"""They are one script; the last starts it."""

_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class WebPage(ReportWriter):
    """Writes a page of HTML that loads nothing."""

    name = "html"

    def render(self, bundle: Bundle, title: str) -> str:
        """Return the page; see `render`."""
        return render(bundle, title)


def render(bundle: Bundle, title: str) -> str:
    """Return the page.

    Args:
        bundle: with the reports of its passes.
        title: what was built; shown as text.
    """
    links = [
        f'<a href="#pass-{number}">{escape(report.text)}</a>'
        for number, report in enumerate(bundle.reports)
    ]
    sections = [section(number, report) for number, report in enumerate(bundle.reports)]
    several = len(bundle.methods) > 1
    body = "".join(
        (
            f"<header>\n<h1>{escape(title)}</h1>\n",
            _about(bundle, several=several),
            "</header>\n",
            *(
                _method(name, model, bundle.reports, several=several)
                for name, model in bundle.methods.items()
            ),
            f"<nav>Passes: {''.join(links)}</nav>\n" if links else "",
            *(sections or ['<p class="note">No pass ran.</p>\n']),
        )
    )
    script = _script()
    policy = _content_security_policy(script)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: what the passes decided</title>\n"
        f"<style>\n{_asset('report.css')}</style>\n</head>\n<body>\n{body}"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _about(bundle: Bundle, *, several: bool) -> str:
    pipeline = f"<code>{escape(bundle.pipeline)}</code>" if bundle.pipeline else "none"
    plugins = ", ".join(f"{name} {version}" for name, version in bundle.plugins.items())
    by = f" ({escape(plugins)})" if plugins else ""
    about = f"<p>Pipeline: {pipeline}{by}</p>\n"
    if not several:
        return about
    rows = [
        (name, count_nodes(model), format_bytes(count_bytes(model)))
        for name, model in bundle.methods.items()
    ]
    return about + table(("method", "nodes", "weights"), rows, {"nodes", "weights"})


def _method(name: str, model: ir.Model, reports: Sequence[Report], *, several: bool) -> str:
    drawing = draw(model, name, reports)
    heading = f"<h2>method {escape(name)}</h2>\n" if several else ""
    return (
        f'<section class="method">\n{heading}{summary(model, drawing)}'
        f'<div class="viewer"><noscript>The graph needs JavaScript.</noscript>'
        f'<script type="application/json">{_json(drawing.data)}</script></div>\n</section>\n'
    )


def _json(data: Any) -> str:
    """Return JSON that an HTML parser finds no tag in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_UNSAFE)


def _script() -> str:
    parts = "".join(_asset(name) for name in _SCRIPTS)
    return f'\n(() => {{\n"use strict";\n{parts}}})();\n'


def _content_security_policy(script: str) -> str:
    """Return a policy that runs this inline script only, even if HTML is injected by a name."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    folder = importlib.resources.files("narrowpass_report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


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


_ORDER = list(PRECISIONS)


def summary(model: ir.Model, drawing: Drawing) -> str:
    """Return the bars of a method."""
    by_type = _bytes_by_type(model)
    sized = {dtype_name(dtype): size for dtype, size in by_type.items()}
    classes = {dtype_name(dtype): precision(dtype) for dtype in by_type}
    kinds = {PRECISIONS[key]: drawing.precisions.get(key, 0) for key in _ORDER}
    names = {text: key for key, text in PRECISIONS.items()}
    colors = {key: drawing.colors[key] for key in ("green", "gray", "red")}
    bars = [
        _bar("Weight bytes by type", sized, classes, sizes=True),
        _bar("Nodes by precision they compute in", kinds, names),
        _bar("Nodes by colour decided", colors, {key: f"decided-{key}" for key in colors}),
    ]
    facts = (
        (f"{count_nodes(model):,}", "nodes"),
        (f"{drawing.casts:,}", "casts"),
        (format_bytes(sum(sized.values())), "weights"),
    )
    shown = "".join(f"<div><b>{escape(value)}</b> {name}</div>" for value, name in facts)
    return f'<div class="facts">{shown}</div>\n<div class="bars">\n{"".join(bars)}</div>\n'


def _bytes_by_type(model: ir.Model) -> Counter[ir.DataType]:
    """Return the bytes of initializers; one tensor used by several counts once."""
    tensors = {
        id(value.const_value): value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    }
    found: Counter[ir.DataType] = Counter()
    for tensor in tensors.values():
        found[tensor.dtype] += tensor.nbytes
    return found


def _bar(
    title: str, parts: Mapping[str, int], classes: Mapping[str, str], *, sizes: bool = False
) -> str:
    total = sum(parts.values())
    if not total:
        return ""
    largest = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    pieces, words = [], []
    for name, count in largest:
        if count:
            kind, share = classes[name], count / total
            label = f"{name} {format_bytes(count) if sizes else f'{count:,}'}"
            text = escape(f"{label} ({share:.1%})")
            pieces.append(f'<i class="{kind}" style="flex-grow:{share:.6f}" title="{text}"></i>')
            words.append(f'<li class="{kind}">{text}</li>')
    return (
        f'<div><h4>{title}</h4><div class="bar" aria-hidden="true">{"".join(pieces)}</div>'
        f"<ul>{''.join(words)}</ul></div>\n"
    )
