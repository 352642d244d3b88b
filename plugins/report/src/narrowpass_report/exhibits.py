"""Plots and tables of the page, most of them those that passes show beside their decisions.

An exhibit (`narrowpass.Context.exhibits`) is a JSON object with a ``title`` and one of

- ``plot``: ``x`` and ``y``, the labels of the axes; ``log``, the axes (``x``, ``y``) whose scale
  is logarithmic; ``limit``, a number on the y axis at which a line is drawn, or null; and
  ``points``, each with ``x``, ``y``, ``label`` and ``kind``: ``chosen``, ``front`` or empty. Points
  that have a kind are joined by a line;
- ``table``: ``columns``, their headings; ``rows``, lists of text and numbers; and ``numbers``, the
  headings of columns of numbers.

What is neither is shown as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


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


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 44
_TICKS = 5


def exhibit(given: Mapping[str, Any]) -> str:
    """Return an exhibit as HTML; what it says is shown as text."""
    title = escape(str(given.get("title", "")))
    try:
        if "plot" in given:
            shown = _plot(given["plot"])
        elif "table" in given:
            parts = given["table"]
            shown = table(parts["columns"], parts["rows"], parts.get("numbers", ()))
        else:
            raise KeyError("plot")
    except (AttributeError, KeyError, TypeError, ValueError):
        shown = f"<pre>{escape(json.dumps(given, indent=1, default=str))}</pre>\n"
    return f"<h3>{title}</h3>\n{shown}"


class _Axis:
    """Maps numbers of one axis to places, and chooses its ticks."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool) -> None:
        usable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        self._log = log and bool(usable)
        scaled = [self._scale(value) for value in usable] or [0.0, 1.0]
        low, high = min(scaled), max(scaled)
        if not self._log:
            low = min(low, 0.0)
        margin = 0.06 * (high - low) or 0.5
        self._low, self._high = low - (margin if self._log else 0.0), high + margin
        self._start, self._end = start, end

    def _scale(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def place(self, value: float) -> float:
        """Return where a number lies; what the scale does not have lies at its lower end."""
        if self._log and value <= 0.0:
            return self._start
        share = (self._scale(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Return round numbers within the range."""
        if self._log:
            first, last = math.ceil(self._low), math.floor(self._high)
            apart = max(1, (last - first) // _TICKS + 1)
            powers = [10.0**power for power in range(first, last + 1, apart)]
            return powers or [10.0**self._low, 10.0**self._high]
        raw = (self._high - self._low) / _TICKS
        size = 10.0 ** math.floor(math.log10(raw))
        step: float = next(f * size for f in (1, 2, 5, 10) if f * size >= raw)
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        return [step * number for number in range(first, last + 1)]


@dataclass(frozen=True)
class _Point:
    x: float
    y: float
    label: str
    kind: str


def _plot(plot: Mapping[str, Any]) -> str:
    given = [
        _Point(float(p["x"]), float(p["y"]), str(p["label"]), str(p.get("kind", "")))
        for p in plot["points"]
    ]
    points = [point for point in given if math.isfinite(point.x) and math.isfinite(point.y)]
    limits = [] if plot.get("limit") is None else [float(plot["limit"])]
    log = plot.get("log", ())
    widths, heights = [point.x for point in points], [point.y for point in points]
    across = _Axis(widths, _LEFT, _WIDTH - _RIGHT, log="x" in log)
    upward = _Axis(heights + limits, _HEIGHT - _BOTTOM, _TOP, log="y" in log)
    labels = escape(str(plot["x"])), escape(str(plot["y"]))
    head = f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    return "".join(
        (
            f'{head} aria-label="{labels[1]} over {labels[0]}">',
            *_axes(across, upward, *labels),
            *(_line("limit", upward.place(limit)) for limit in limits),
            *_marks(points, across, upward),
            "</svg>\n",
        )
    )


def _line(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _axes(across: _Axis, upward: _Axis, x_label: str, y_label: str) -> Iterator[str]:
    """Yield the grid with its numbers, and the labels of the axes."""
    bottom = _HEIGHT - _BOTTOM
    for tick in across.ticks():
        x = across.place(tick)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:.4g}</text>'
    for tick in upward.ticks():
        y = upward.place(tick)
        yield _line("grid", y)
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>'
    middle = (_LEFT + _WIDTH) / 2, _HEIGHT / 2
    yield f'<text x="{middle[0]:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">{x_label}</text>'
    yield (
        f'<text transform="translate(14 {middle[1]:.0f}) rotate(-90)" text-anchor="middle">'
        f"{y_label}</text>"
    )


def _marks(points: Sequence[_Point], across: _Axis, upward: _Axis) -> Iterator[str]:
    """Yield the points, with the line through those of the front."""
    front = sorted((across.place(p.x), upward.place(p.y)) for p in points if p.kind)
    if len(front) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in front)
        yield f'<polyline class="front" points="{path}"/>'
    for point in sorted(points, key=lambda point: point.kind == "chosen"):
        x, y = across.place(point.x), upward.place(point.y)
        chosen = point.kind == "chosen"
        kind = " chosen" if chosen else " front" if point.kind else ""
        tip = escape(f"{point.label}: {point.x:.4g}, {point.y:.4g}")
        yield (
            f'<circle class="point{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{7 if chosen else 4.5}">'
            f"<title>{tip}</title></circle>"
        )
        if chosen:
            label = escape(point.label)
            yield f'<text class="label" x="{x + 11:.1f}" y="{y + 4:.1f}">{label}</text>'
