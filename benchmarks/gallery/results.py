"""The table and the plot of what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

_HEAD = (
    "| model | numpy / evaluator | ms | onnxruntime | ratio | OpenVINO | error | its own | right |",
    "|---|---|---|---|---|---|---|---|---|",
)


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table; ratios are a peer's time over ours."""
    yield from _HEAD
    for row in rows:
        yield f"| {row['model']} | " + " | ".join(_cells(row)) + " |"


def _cells(row: dict[str, Any]) -> list[str]:
    if "unbuilt" in row:
        return [f"not built: {row['unbuilt']}", *[""] * 7]
    counts, ours, peer = row["fallbacks"], row["narrowpass"], row.get("onnxruntime", {})
    nodes = counts if isinstance(counts, str) else f"{counts['numpy']} / {counts['evaluator']}"
    if "failure" in ours:
        return [nodes, ours["failure"], *[""] * 6]
    openvino = ratio(row, "openvino")
    return [
        nodes,
        f"{ours['seconds'] * 1e3:.3f}",
        f"{peer['seconds'] * 1e3:.3f}" if "seconds" in peer else peer.get("failure", ""),
        _two(ratio(row)),
        _two(openvino),
        f"{ours['error']:.1e}",
        f"{peer['error']:.1e}" if "error" in peer else "",
        "yes" if row["right"] else "**no**",
    ]


def _two(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def ratio(row: dict[str, Any], peer: str = "onnxruntime") -> float | None:
    """Return the time of a peer over ours; None where one has none."""
    ours, theirs = row.get("narrowpass", {}), row.get(peer, {})
    if "seconds" not in ours or "seconds" not in theirs:
        return None
    return float(theirs["seconds"] / ours["seconds"])


def figure(rows: Sequence[dict[str, Any]]) -> str:
    """Draw ratios as bars from 1, on a logarithmic axis; those below 1 in another color."""
    known = sorted(
        ((found, row["model"]) for row in rows if (found := ratio(row)) is not None), reverse=True
    )
    height, left, width = 18, 280, 520
    most = max((abs(math.log2(found)) for found, _ in known), default=1.0) or 1.0
    scale, middle = width / 2 / most, left + width / 2
    size = f'width="{left + width + 60}" height="{height * (len(known) + 2)}"'
    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f'<text x="{middle}" y="14" text-anchor="middle">onnxruntime over narrowpass</text>',
    ]
    for index, (found, name) in enumerate(known):
        y = height * (index + 1)
        length = math.log2(found) * scale
        color = "#2a7" if found >= 1 else "#c44"
        start = middle if length >= 0 else middle + length
        place = f'x="{start:.1f}" y="{y + 3}" width="{abs(length):.1f}" height="{height - 6}"'
        parts += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect {place} fill="{color}"/>',
            f'<text x="{middle + max(length, 0) + 6:.1f}" y="{y + 13}">{found:.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
