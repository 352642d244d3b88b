"""Pictures of edges, flat areas and few bright spots, as photographs have, and noise has not.

Discs of random places, sizes and colors lie on each other like dead leaves; with areas that fall
with the third power of the radius such pictures have the statistics of natural ones (Lee, Mumford
and Huang, *Occlusion models for natural images*, 2001).
"""

from __future__ import annotations

import math

import numpy as np
from gallery.model import Array

_LEAVES = 150
_SMALLEST = 0.02
"""The least radius, as a share of the longer side."""


def is_picture(value: Array) -> bool:
    """Return whether an input is a batch of float pictures, channels first or last."""
    return value.ndim == 4 and value.dtype == np.float32 and _channels(value.shape) is not None


def _channels(shape: tuple[int, ...]) -> int | None:
    for axis, sides in ((1, shape[2:]), (3, shape[1:3])):
        if shape[axis] in (1, 3) and min(sides) >= 16:
            return axis
    return None


def picture(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return a batch of pictures whose mean is 0 and whose standard deviation is 1.

    Args:
        shape: of the batch; `is_picture` takes it.
        rng: draws it.
    """
    axis = _channels(shape)
    height, width = (shape[2], shape[3]) if axis == 1 else (shape[1], shape[2])
    channels = shape[axis or 1]
    drawn = np.stack([_leaves(height, width, channels, rng) for _ in range(shape[0])])
    drawn = (drawn - drawn.mean()) / drawn.std()
    ordered = drawn if axis == 3 else drawn.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(ordered, np.float32)


def _leaves(height: int, width: int, channels: int, rng: np.random.Generator) -> Array:
    drawn = np.full((height, width, channels), rng.uniform(size=channels))
    # The radius to the power of -2 is uniform where its density falls with the third power.
    radii = max(height, width) * rng.uniform(1.0, _SMALLEST**-2, _LEAVES) ** -0.5
    for radius in radii:
        down, right = rng.uniform(size=2) * (height, width)
        top, left = (max(math.floor(middle - radius), 0) for middle in (down, right))
        box = drawn[top : math.ceil(down + radius) + 1, left : math.ceil(right + radius) + 1]
        rows, columns = np.ogrid[top : top + box.shape[0], left : left + box.shape[1]]
        inside = (rows - down) ** 2 + (columns - right) ** 2 < radius**2
        box[inside] = rng.uniform(size=channels) + rng.normal(0, 0.02, (inside.sum(), channels))
    return drawn
