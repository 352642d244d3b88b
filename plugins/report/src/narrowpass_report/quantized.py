"""What a pass that quantizes found: histograms of values, noise of layers, and what stayed wide."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from narrowpass.calibration.histogram import Histogram

_MOST = 500
"""Histograms and layers that a page shows: browsers are slow to lay out more."""
_MOST_NAMES = 20
"""Names that are shown of the nodes that stayed wide for one reason."""

_WIDE = {"float", "wide"}
"""Words of decisions that say that a node stayed wide, such as ``red, wide``."""

_WIDTH, _HEIGHT = 256, 64
_BEST = 60.0
"""Noise in dB at which a bar is full: each bit of a type is worth some 6."""

DecisionFields = Mapping[str, Any]


def quantized(method: str, decisions: Sequence[DecisionFields]) -> str:
    """Return the part of a pass's section about ranges and noise; nothing where it has none.

    Args:
        method: whose graph has the nodes.
        decisions: as the report has them.
    """
    values = [decision for decision in decisions if decision.get("histogram") is not None]
    layers = [decision for decision in decisions if _is_number(decision.get("sqnr"))]
    if not values and not layers:
        return ""
    return _values(values) + _layers(method, layers) + _stayed_wide(decisions)


def _values(values: Sequence[DecisionFields]) -> str:
    if not values:
        return ""
    figures = "".join(map(_figure, values[:_MOST]))
    return (
        f"<h3>Values and their clipping ranges: {len(values)}</h3>\n"
        '<p class="note">Elements by size, the heights logarithmic, without zeros. What is '
        "outside of the clipping range is clipped.</p>\n"
        f'<div class="histograms" tabindex="0">{figures}</div>\n{_more(values)}'
    )


def _figure(decision: DecisionFields) -> str:
    name = escape(str(decision.get("node", "")))
    try:
        histogram = Histogram.from_json(decision["histogram"])
    except ValueError:
        return f"<figure><figcaption>{name}: its histogram cannot be read</figcaption></figure>\n"
    total = sum(histogram.counts) + histogram.zeros
    facts = [f"{_short(histogram.low)} to {_short(histogram.high)}"]
    if histogram.clipping is not None:
        low, high = map(_short, histogram.clipping)
        facts = [f"clipping range {low} to {high}", f"clipped {histogram.clipped:.2%}"]
    if histogram.zeros:
        facts.append(f"zeros {histogram.zeros / total:.0%}")
    if _is_number(decision.get("sqnr")):
        facts.append(f"{decision['sqnr']:.1f} dB")
    return (
        f"<figure>{_drawing(histogram)}<figcaption><b>{name}</b> "
        f'<span class="soft">{escape(", ".join(facts))}</span></figcaption></figure>\n'
    )


def _drawing(histogram: Histogram) -> str:
    """Return the bars, the clipping range behind them, and a line at zero."""
    low, high = histogram.low, histogram.high
    clipping = histogram.clipping or (low, high)
    # A clipping range that holds zero may be wider than what the bins cover.
    left, right = min(low, clipping[0]), max(high, clipping[1])

    def across(number: float) -> float:
        return round((number - left) / (right - left) * _WIDTH, 1)

    width = (high - low) / len(histogram.counts)
    largest = max(*histogram.counts, 1)
    bars: dict[str, list[str]] = {"inside": [], "outside": []}
    for index, count in enumerate(histogram.counts):
        if not count:
            continue
        start = low + index * width
        x, wide = across(start), across(start + width) - across(start)
        height = round(math.log1p(count) / math.log1p(largest) * _HEIGHT, 1)
        middle = start + width / 2
        kind = "inside" if clipping[0] <= middle <= clipping[1] else "outside"
        bars[kind].append(f"M{x:g} {_HEIGHT}v-{height:g}h{max(wide, 0.5):.1f}v{height:g}z")
    paths = "".join(
        f'<path class="{kind}" d="{"".join(drawn)}"/>' for kind, drawn in bars.items() if drawn
    )
    first, last = across(clipping[0]), across(clipping[1])
    zero = across(0.0)
    line = f'<path class="zero" d="M{zero:g} 0v{_HEIGHT}"/>' if left <= 0 <= right else ""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="{first:g}" y="0" width="{last - first:.1f}" height="{_HEIGHT}"/>'
        f"{paths}{line}</svg>"
    )


def _layers(method: str, layers: Sequence[DecisionFields]) -> str:
    if not layers:
        return ""
    rows = "".join(
        f"<tr><td>{escape(str(decision.get('node', '')))}</td>"
        f"<td>{escape(str(decision.get('op_type', '')))}</td>"
        f'<td class="number">{decision["sqnr"]:.1f}</td>'
        f'<td><div class="gauge"><i style="width:{_share(decision["sqnr"]):.0%}"></i></div></td>'
        "</tr>\n"
        for decision in layers[:_MOST]
    )
    return (
        f"<h3>Signal to quantization noise: {len(layers)}</h3>\n"
        f'<div class="scroll" tabindex="0"><table class="noise" data-method="{escape(method)}">\n'
        '<thead><tr><th>node</th><th>operator</th><th class="number">dB</th><th></th></tr></thead>'
        f"\n<tbody>\n{rows}</tbody>\n</table></div>\n{_more(layers)}"
    )


def _stayed_wide(decisions: Sequence[DecisionFields]) -> str:
    """Return the nodes that stayed wide, by the reason."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for decision in decisions:
        if _WIDE.intersection(str(decision.get("decision", "")).split(", ")):
            decided = str(decision.get("by", "")), str(decision.get("reason", ""))
            found[decided].append(str(decision.get("node", "")))
    if not found:
        return "<h3>Stayed wide: nothing</h3>\n"
    rows = []
    for (by, reason), names in sorted(found.items(), key=lambda item: -len(item[1])):
        more = "" if len(names) <= _MOST_NAMES else f" and {len(names) - _MOST_NAMES} more"
        shown = escape(", ".join(names[:_MOST_NAMES]) + more)
        why = escape(": ".join(filter(None, (by, reason))))
        count = f'<td class="number">{len(names)}</td>'
        rows.append(f"<tr><td>{why}</td>{count}<td>{shown}</td></tr>\n")
    return (
        f"<h3>Stayed wide: {sum(map(len, found.values()))}</h3>\n"
        '<div class="scroll" tabindex="0"><table>\n<thead><tr><th>why</th>'
        '<th class="number">nodes</th><th>which</th></tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody>\n</table></div>\n"
    )


def _more(items: Sequence[DecisionFields]) -> str:
    more = len(items) - _MOST
    note = f'<p class="note">and {more} more, in the reports folder of the bundle</p>\n'
    return note if more > 0 else ""


def _share(decibels: float) -> float:
    return min(max(decibels / _BEST, 0.0), 1.0)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _short(number: float) -> str:
    return f"{number:.4g}"
