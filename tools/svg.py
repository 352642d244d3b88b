"""Boxes, arrows and text as SVG, in colours that suit light and dark pages.

`tools/pipeline_picture.py` and `tools/rooms.py` draw with it. The text of a picture depends on its
contents alone, so that a test can compare the file with what would be drawn now.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

STYLE = """
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.note { font-size: 11.5px; fill: #59636e }
.box { fill: #f6f8fa; stroke: #818b98 }
.strong { fill: #ddf4ff; stroke: #0969da }
.line { fill: none; stroke: #59636e; stroke-width: 1.4 }
.head { fill: #59636e }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .note { fill: #9198a1 }
  .box { fill: #151b23; stroke: #656c76 }
  .strong { fill: #0c2d6b; stroke: #4493f8 }
  .line { stroke: #9198a1 }
  .head { fill: #9198a1 }
}
"""
LINE_HEIGHT = 18


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines below it.

    Attributes:
        left, top, width, height: in pixels.
        title: the first line, in bold.
        notes: further lines.
        strong: whether it has the accent's colour.
        centred: whether its lines are centred.
    """

    left: float
    top: float
    width: float
    height: float
    title: str
    notes: tuple[str, ...] = ()
    strong: bool = False
    centred: bool = True

    @property
    def middle(self) -> float:
        """The x of its vertical axis."""
        return self.left + self.width / 2

    @property
    def bottom(self) -> float:
        """The y of its lower edge."""
        return self.top + self.height


def draw_box(box: Box) -> str:
    """Return a box with its lines of text, centred vertically where they are centred."""
    kind = "strong" if box.strong else "box"
    lines = [("title", box.title), *(("note", note) for note in box.notes)]
    x, anchor = (box.middle, "middle") if box.centred else (box.left + 10, "start")
    first = box.top + 20
    if box.centred:
        first = box.top + box.height / 2 - (len(lines) - 1) * LINE_HEIGHT / 2 + 4.5
    texts = (
        f'<text class="{style}" x="{x:g}" y="{first + index * LINE_HEIGHT:g}" '
        f'text-anchor="{anchor}">{escape(line)}</text>'
        for index, (style, line) in enumerate(lines)
    )
    frame = (
        f'<rect class="{kind}" x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" '
        f'height="{box.height:g}" rx="6"/>'
    )
    return "\n".join((frame, *texts))


def draw_arrow(*points: tuple[float, float]) -> str:
    """Return an arrow along points; the head is at the last one."""
    path = " L ".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="line" d="M {path}" marker-end="url(#head)"/>'


def draw_text(x: float, y: float, text: str, style: str = "note", anchor: str = "middle") -> str:
    """Return one line of text."""
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def picture(width: float, height: float, label: str, parts: list[str]) -> str:
    """Return a whole SVG file; `label` is its description for readers that do not see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{escape(label)}">'
    )
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto" markerUnits="userSpaceOnUse">'
        '<path class="head" d="M 0 0.5 L 8 4 L 0 7.5 z"/></marker></defs>'
    )
    return "\n".join([head, f"<style>{STYLE}</style>", marker, *parts, "</svg>\n"])
