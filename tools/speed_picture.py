"""Draw the landing page's picture of run times from the figures of the page that compares runtimes.

``python tools/speed_picture.py`` writes ``docs/images/speed.svg``: for each model the time of a run
in float32 and in int8, beside that of the fastest other runtime.
"""

from __future__ import annotations

from pathlib import Path

from readme_table import PAGE, comparisons
from svg import Box, draw_box, draw_text, picture

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "images" / "speed.svg"
WIDTH, LABELS, TOP = 960, 246, 44
BAR, GROUP = 15, 76
LONGEST = 520
"""Pixels of the time that is the longest of a model."""


def bars(text: str) -> list[tuple[str, list[tuple[str, float, bool]]]]:
    """Return models with their bars: label, milliseconds, and whether it is narrowpass's.

    Args:
        text: of the page that compares runtimes.
    """
    wide, narrow = comparisons(text)
    found = []
    for model in wide:
        rows: list[tuple[str, float, bool]] = []
        for dtype, (ours, peer, times) in (("float32", wide[model]), ("int8", narrow[model])):
            rows.append(
                (
                    f"{peer.replace('OpenVINO NNCF', 'OpenVINO')}, {dtype}",
                    float(ours) * float(times),
                    False,
                )
            )
            rows.append((f"narrowpass, {dtype}", float(ours), True))
        found.append((model, rows))
    return found


def draw(text: str) -> str:
    """Return the picture for the text of the page."""
    parts = [
        draw_text(8, 20, "Time of a run on two threads, in milliseconds", "title", anchor="start"),
    ]
    models = bars(text)
    for number, (model, rows) in enumerate(models):
        top = TOP + number * GROUP
        parts.append(draw_text(8, top + 2 * BAR + 5, model, "title", anchor="start"))
        longest = max(milliseconds for _, milliseconds, _ in rows)
        for place, (label, milliseconds, strong) in enumerate(rows):
            length = LONGEST * milliseconds / longest
            at = top + place * BAR
            parts.append(draw_box(Box(LABELS, at, length, BAR - 2, "", strong=strong)))
            shown = f"{milliseconds:.1f}  {label}"
            parts.append(draw_text(LABELS + length + 6, at + 10, shown, anchor="start"))
    title = "Time of a run with narrowpass and with the fastest other runtime"
    return picture(WIDTH, TOP + len(models) * GROUP, title, parts)


if __name__ == "__main__":
    FILE.write_text(draw(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
