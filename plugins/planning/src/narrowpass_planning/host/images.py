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
        if nearest:
            return _read(x, np.rint(down), np.rint(across))
        top, left = np.floor(down), np.floor(across)
        below, right = (down - top)[:, None], (across - left)[:, None]
        upper = _read(x, top, left) * (1 - right) + _read(x, top, left + 1) * right
        lower = _read(x, top + 1, left) * (1 - right) + _read(x, top + 1, left + 1) * right
        return np.asarray(upper * (1 - below) + lower * below, x.dtype)

    return run


def _place(grid: Array, size: int, padding: str, *, aligned: bool) -> Array:
    """Return pixel coordinates of coordinates normalized to -1 to 1."""
    found: Array = (grid + 1) / 2 * (size - 1) if aligned else ((grid + 1) * size - 1) / 2
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if padding == "border":
        found = np.clip(found, 0, size - 1)
    elif padding == "reflection":
        length = high - low
        away = np.abs(found - low) % (2 * length) if length else np.zeros_like(found)
        found = np.clip(low + np.minimum(away, 2 * length - away), 0, size - 1)
    return found.astype(grid.dtype, copy=False)


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
