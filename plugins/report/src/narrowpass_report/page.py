"""The page: bars and a graph for each method, and a table for each pass."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from narrowpass import ReportWriter
from narrowpass.cli.output import format_bytes
from narrowpass_ir.sizes import count_bytes, count_nodes
from narrowpass_report.graph import draw
from narrowpass_report.sections import section
from narrowpass_report.summary import summary
from narrowpass_report.tables import table

if TYPE_CHECKING:
    import onnx_ir as ir

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
