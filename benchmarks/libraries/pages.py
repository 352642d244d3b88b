"""Compare the tables of a report's page with templates of Jinja2.

``python benchmarks/libraries/pages.py [--rows N]``, with ``pip install jinja2``. Prints the median
time of 15 renderings of a table of N decisions, by `narrowpass_report.exhibits` and by a template
that escapes all; the texts must be equal.
"""

from __future__ import annotations

import argparse

import jinja2
from timing import median

from narrowpass_report.exhibits import table

COLUMNS = ("node", "operator", "decision", "by", "reason", "measured")
NUMBERS = {"measured"}

TEMPLATE = """\
<div class="scroll" tabindex="0"><table>
<thead><tr>{% for c in columns %}<th{{ right[loop.index0] }}>{{ c }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}<tr>{% for v in row %}<td{{ right[loop.index0] }}>{{ v | text }}</td>\
{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
"""


def text(value: object) -> str:
    """Return what a cell shows, as `narrowpass_report.exhibits` does."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def template() -> jinja2.Template:
    """Return the template, compiled."""
    environment = jinja2.Environment(
        autoescape=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["text"] = text
    return environment.from_string(TEMPLATE)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=5000)
    rows = [
        (f"/layers.{n}/<b>", "MatMul", "bf16", "auto", f"{n} of 697 µs & noise", n / 7)
        for n in range(parser.parse_args().rows)
    ]
    compiled = template()
    mark = jinja2.utils.markupsafe.Markup(' class="number"')
    right = [mark if column in NUMBERS else "" for column in COLUMNS]

    def by_jinja2() -> str:
        return compiled.render(columns=COLUMNS, rows=rows, right=right)

    def by_narrowpass() -> str:
        return table(COLUMNS, rows, NUMBERS)

    equal = by_jinja2().replace("&#34;", "&quot;").replace("&#39;", "&#x27;") == by_narrowpass()
    print(f"{len(rows)} rows, {len(by_narrowpass()) / 1e6:.2f} MB, equal: {equal}")
    print(f"narrowpass: {median(by_narrowpass):.1f} ms")
    print(f"Jinja2 {jinja2.__version__}: {median(by_jinja2):.1f} ms")
    print(f"compiling the template: {median(template):.1f} ms")


if __name__ == "__main__":
    main()
