"""What was built and what each pass decided, as one web page that needs nothing else.

`page` puts it together of the bars of `summary`, the graph that `graph` describes, `layout` places
and ``assets/*.js`` draw, and the tables of `tables`, with the histograms
of `quantized`.
"""

from narrowpass.cli.report.page import render

__all__ = ["render"]
