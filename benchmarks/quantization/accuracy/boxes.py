"""The faces that a detector finds on photographs, and how far boxes overlap.

The detector takes [1, 3, 240, 320], (pixel - 127) / 128, and returns scores [1, N, 2] and boxes
[1, N, 4] as corners from 0 to 1, as ultraface does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_LEAST_SCORE = 0.5
_SAME_FACE = 0.3
"""Of boxes that overlap by more, the best is kept."""


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
