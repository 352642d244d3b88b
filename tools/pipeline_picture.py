"""Draw README's picture, from a model to its outputs: `python tools/pipeline_picture.py`."""

from __future__ import annotations

from pathlib import Path

from svg import Box, draw_arrow, draw_box, draw_text, picture

FILE = Path(__file__).resolve().parent.parent / "docs" / "images" / "pipeline.svg"
TOP, HEIGHT = 40, 112
STAGES = (
    Box(8, TOP, 116, HEIGHT, "model.onnx", ("weights are", "mapped, not", "read")),
    Box(168, TOP, 236, HEIGHT, "passes", (
        "fold · fp16 · bf16 · int8 · your own", "verified after each change",
        "a reason for each node",
    ), strong=True),
    Box(448, TOP, 164, HEIGHT, "model.narrow", (
        "ONNX + safetensors", "hashes, decisions", "written atomically",
    )),
    Box(656, TOP, 236, HEIGHT, "backend xnn-cpu", (
        "lower → select kernels → pack → run", "AVX2 · AVX-512 · VNNI · BF16",
        "XNNPACK and own micro-kernels",
    ), strong=True),
)  # fmt: skip
VERBS = ("load", "save", "load")
COMMANDS = ((286, "narrowpass build"), (530, "inspect · compare"), (774, "run · bench · explain"))


def draw() -> str:
    """Return the picture: one row of stages, their commands below them."""
    middle = TOP + HEIGHT / 2
    parts = [draw_box(stage) for stage in STAGES]
    for verb, one, other in zip(VERBS, STAGES, STAGES[1:], strict=False):
        start, end = one.left + one.width, other.left
        parts.append(draw_arrow((start + 4, middle), (end - 4, middle)))
        parts.append(draw_text((start + end) / 2, middle - 8, verb))
    last = STAGES[-1].left + STAGES[-1].width
    parts.append(draw_arrow((last + 4, middle), (last + 56, middle)))
    parts.append(draw_text(last + 30, middle - 8, "outputs"))
    parts += [draw_text(x, TOP + HEIGHT + 24, command) for x, command in COMMANDS]
    parts.append(draw_text(470, 22, "every pass and backend is a plugin", "title"))
    label = "A model is loaded, narrowed by passes, saved as a bundle and run by a backend."
    return picture(960, 184, label, parts)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(draw(), encoding="utf-8")
