"""What was built and what each pass decided, as one web page that needs nothing else.

`page` puts it together of the bars of `summary`, the graph that `graph` describes, `layout` places
and ``assets/*.js`` draw, and the tables of `tables`, with the histograms
of `quantized` and the plots of `exhibits`. `plain` writes the same as text and as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass import ReportWriter

__all__ = ["narrowpass_reports"]


@hookimpl
def narrowpass_reports() -> list[ReportWriter]:
    """Register the writers ``html``, ``json`` and ``txt``."""
    from narrowpass_report.page import WebPage
    from narrowpass_report.plain import JsonReport, TextReport

    return [WebPage(), JsonReport(), TextReport()]
