"""Compares the faces that a detector finds on photographs, as it is and rewritten.

    python benchmarks/quantization/detections.py ULTRAFACE.onnx PHOTO_FOLDER
        [--pipelines "fold,fp16" ...]

The detector takes [1, 3, 240, 320], (pixel - 127) / 128, and returns scores [1, N, 2] and boxes
[1, N, 4] as corners from 0 to 1, as ultraface does. Boxes of a score of 0.5 and more are kept, of
those that overlap by more than 0.3 the best. For each pipeline are shown how many boxes there are
before and after, how many of the first have one of the second within an overlap (intersection over
union) of 0.9, the smallest overlap, and the largest difference of a score. Needs Pillow.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import narrowpass

Array = np.ndarray[Any, Any]
_LEAST_SCORE = 0.5
_SAME_FACE = 0.3
_SAME_BOX = 0.9


def photographs(folder: Path) -> Iterator[Array]:
    """Yield the images of a folder as the detector takes them."""
    from PIL import Image

    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").resize((320, 240)), np.float32)
        yield ((pixels - 127) / 128).transpose(2, 0, 1)[None]


def overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over the union of a box [4] with boxes [n, 4]."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    return np.asarray(shared / (np.prod(box[2:] - box[:2]) + areas - shared))


def faces(scores: Array, boxes: Array) -> Array:
    """Return the boxes that are left of all, the best first."""
    order = np.argsort(-scores, kind="stable")
    left = boxes[order[scores[order] >= _LEAST_SCORE]]
    found = []
    while len(left):
        found.append(left[0])
        left = left[1:][overlaps(left[0], left[1:]) <= _SAME_FACE]
    return np.array(found).reshape(-1, 4)


def main() -> None:
    """Print a row for each pipeline."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("photographs", type=Path)
    bfloat16 = "fold,upgrade-opset,fp16{dtype=bfloat16}"
    parser.add_argument("--pipelines", nargs="+", default=["fold,fp16", bfloat16])
    arguments = parser.parse_args()
    images = list(photographs(arguments.photographs))
    plain = [
        narrowpass.load(narrowpass.build(arguments.model, "fold")).run({"input": x}) for x in images
    ]
    before = [faces(out["scores"][0, :, 1], out["boxes"][0]) for out in plain]
    print(
        f"{'pipeline':40} {'before':>6} {'after':>6} {'same':>6} {'least overlap':>14} {'score':>9}"
    )
    for text in arguments.pipelines:
        program = narrowpass.load(narrowpass.build(arguments.model, text))
        results = [program.run({"input": x}) for x in images]
        after = [faces(out["scores"][0, :, 1], out["boxes"][0]) for out in results]
        best = [
            float(overlaps(box, others).max()) if len(others) else 0.0
            for boxes, others in zip(before, after, strict=True)
            for box in boxes
        ]
        pairs = zip(plain, results, strict=True)
        gap = max(float(np.abs(a["scores"] - b["scores"]).max()) for a, b in pairs)
        print(
            f"{text:40} {sum(map(len, before)):6} {sum(map(len, after)):6} "
            f"{sum(x >= _SAME_BOX for x in best):6} {min(best, default=1.0):14.4f} {gap:9.1e}"
        )


if __name__ == "__main__":
    main()
