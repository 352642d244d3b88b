"""Numpy kernels of images: Col2Im and GridSample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]


def col2im(op: Op) -> Kernel:
    """Accumulate the columns of an im2col matrix into an image; see ONNX's Col2Im."""
    strides, dilations, pads = (op.get(name, None) for name in ("strides", "dilations", "pads"))

    def run(x: Array, image: Array, block: Array) -> Array:
        sizes, kernel = image.tolist(), block.tolist()
        rank = len(sizes)
        steps, spread = strides or [1] * rank, dilations or [1] * rank
        around = pads or [0] * (2 * rank)
        whole = [size + around[i] + around[i + rank] for i, size in enumerate(sizes)]
        counts = [(whole[i] - spread[i] * (kernel[i] - 1) - 1) // steps[i] + 1 for i in range(rank)]
        output = np.zeros((x.shape[0], x.shape[1] // int(np.prod(kernel)), *whole), x.dtype)
        columns = x.reshape(*output.shape[:2], *kernel, *counts)
        for at in np.ndindex(*kernel):
            places = tuple(
                slice(first := at[i] * spread[i], first + counts[i] * steps[i], steps[i])
                for i in range(rank)
            )
            output[(slice(None), slice(None), *places)] += columns[(slice(None), slice(None), *at)]
        inner = tuple(slice(around[i], around[i] + sizes[i]) for i in range(rank))
        return np.ascontiguousarray(output[(slice(None), slice(None), *inner)])

    return run


_FAR = 1 << 20
"""Pixels beyond the border that all points are taken for that are further away, or infinite."""

_PADDING = ("zeros", "border", "reflection")


def grid_sample(op: Op) -> Kernel:
    """Sample images at the points of a grid, by the nearest pixel or bilinearly; see GridSample.

    Raises:
        KeyError: another mode, or what are no images, or not known to be.
    """
    shape = op.required(0).shape
    if shape is None or len(shape) != 4:
        raise KeyError("GridSample of other than images")
    mode, padding = op.get("mode", "linear"), op.get("padding_mode", "zeros")
    nearest = mode == "nearest"
    if mode not in ("linear", "bilinear", "nearest") or padding not in _PADDING:
        raise KeyError(mode)
    aligned = bool(op.get("align_corners", 0))

    def run(x: Array, grid: Array) -> Array:
        if x.ndim != 4 or grid.ndim != 4 or grid.shape[-1] != 2 or len(grid) != len(x):
            raise ValueError(f"a grid {list(grid.shape)} does not fit images {list(x.shape)}")
        height, width = x.shape[2:]
        across = _place(grid[..., 0], width, padding, aligned=aligned)
        down = _place(grid[..., 1], height, padding, aligned=aligned)

        def pixels(down: Array, across: Array) -> Array:
            if padding == "reflection":
                down = _reflected(down, height, aligned=aligned)
                across = _reflected(across, width, aligned=aligned)
            if padding != "zeros":
                down, across = np.clip(down, 0, height - 1), np.clip(across, 0, width - 1)
            return _read(x, down, across)

        if nearest:
            return pixels(np.rint(down), np.rint(across))
        top, left = np.floor(down), np.floor(across)
        below, right = (down - top)[:, None], (across - left)[:, None]
        upper = pixels(top, left) * (1 - right) + pixels(top, left + 1) * right
        lower = pixels(top + 1, left) * (1 - right) + pixels(top + 1, left + 1) * right
        return np.asarray(upper * (1 - below) + lower * below, x.dtype)

    return run


def _place(grid: Array, size: int, padding: str, *, aligned: bool) -> Array:
    """Return pixel coordinates of coordinates normalized to -1 to 1."""
    found: Array = (grid + 1) / 2 * (size - 1) if aligned else ((grid + 1) * size - 1) / 2
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if padding == "border":
        # Both neighbours are the pixel at the edge there, and count by halves.
        found = np.clip(found, -0.5 - _FAR, size + 0.5 + _FAR)
    elif padding == "reflection":
        length = high - low
        away = np.abs(found - low) % (2 * length) if length else np.zeros_like(found)
        found = low + np.minimum(away, 2 * length - away)
    return found.astype(grid.dtype, copy=False)


def _reflected(index: Array, size: int, *, aligned: bool) -> Array:
    """Return the pixel that one beside the image is a reflection of.

    It may be the same as its neighbour: then no other one counts, which may be infinite.
    """
    found = np.where(index < 0, -1 - index, index)
    mirrored = 2 * size - (2 if aligned else 1) - found
    return np.asarray(np.where(found > size - 1, mirrored, found))


def _read(x: Array, down: Array, across: Array) -> Array:
    """Return pixels of all channels, zero outside: [images, channels, rows, columns]."""
    height, width = x.shape[2:]
    inside = (down >= 0) & (down < height) & (across >= 0) & (across < width)
    row = np.where(inside, down, 0).astype(np.int64)
    column = np.where(inside, across, 0).astype(np.int64)
    if not x.size:
        return np.zeros((*x.shape[:2], *down.shape[1:]), x.dtype)
    image = np.arange(x.shape[0])[:, None, None]
    pixels = np.moveaxis(x[image, :, row, column], -1, 1)
    output: Array = np.where(inside[:, None], pixels, np.zeros((), x.dtype))
    return output
