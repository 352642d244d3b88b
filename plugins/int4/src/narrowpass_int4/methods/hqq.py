"""HQQ: scales and zero points by half-quadratic splitting, without data."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_int4.grid import Grid
from narrowpass_int4.methods.search import round_to_nearest

Array = np.ndarray[Any, Any]

NORM = 0.7
"""p of the norm whose p-th power is minimized. Below 1, outliers count little."""

ITERATIONS = 20
FIRST_BETA = 10.0
GROWTH = 1.01


def half_quadratic(blocks: Array, grid: Grid, mask: Array | None = None) -> tuple[Array, Array]:
    """Return scales and zero points with a small error in the norm l_p, p = 0.7: HQQ.

    H. Badri and A. Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", Mobius
    Labs, 2023. The error ``w - scale · (q - zero)`` is split into a sparse part and a quadratic
    one; each step shrinks the first by generalized soft-thresholding, and solves the second for the
    zero point. Of a symmetric grid, which has none, it solves for the scale. What is best in the
    norm of all steps is returned, `RTN` among them, so that the error is at most that.

    Args:
        blocks: float32 [..., block].
        grid: the integers. Zero points stay fractions if it has `Grid.float_zeros`.
        mask: float32, broadcast against `blocks`: 0 for elements that only fill up a block.

    Returns:
        Scales and zero points, float32 [...].
    """
    scale, zero = round_to_nearest(blocks, grid)
    best = norm_error(blocks, grid, scale, zero, mask)
    now_scale, now_zero = scale.copy(), zero.copy()
    # Relative to the steps: the paper's constants are for weights of a common magnitude.
    unit = np.abs(scale)
    beta = np.float32(FIRST_BETA)
    share = np.float32(1.0) if mask is None else mask
    count = np.maximum(np.broadcast_to(share, blocks.shape).sum(axis=-1), 1.0)
    for _ in range(ITERATIONS):
        integers = grid.quantize(blocks, now_scale, now_zero)
        error = (blocks - grid.dequantize(integers, now_scale, now_zero)) / unit[..., None]
        target = blocks - _shrunk(error, beta) * unit[..., None]
        if grid.symmetric:
            power = (share * integers * integers).sum(axis=-1)
            fitted = (share * integers * target).sum(axis=-1) / np.where(power > 0, power, 1.0)
            usable = (power > 0) & (fitted != 0)
            now_scale = grid.rounded_scale(np.where(usable, fitted, now_scale).astype(np.float32))
        else:
            zeros = (share * (integers - target / now_scale[..., None])).sum(axis=-1) / count
            if grid.float_zeros:
                now_zero = zeros.astype(grid.weight_dtype).astype(np.float32)
            else:
                now_zero = np.clip(np.rint(zeros), grid.low, grid.high).astype(np.float32)
        beta *= np.float32(GROWTH)
        found = norm_error(blocks, grid, now_scale, now_zero, mask)
        better = found < best
        np.copyto(scale, now_scale, where=better)
        np.copyto(zero, now_zero, where=better)
        np.copyto(best, found, where=better)
    return scale, zero


def norm_error(
    blocks: Array, grid: Grid, scale: Array, zero: Array, mask: Array | None = None
) -> Array:
    """Return the p-th power of the norm l_p of each block's error, float32 [...]."""
    error = np.abs(blocks - grid.round_trip(blocks, scale, zero)) ** np.float32(NORM)
    found: Array = (error if mask is None else error * mask).sum(axis=-1)
    return found


def _shrunk(error: Array, beta: np.float32) -> Array:
    """Return the proximal point of ``|x|^p / beta``: generalized soft-thresholding."""
    size = np.abs(error)
    with np.errstate(divide="ignore"):
        threshold = size ** np.float32(NORM - 1) / beta
    found: Array = np.sign(error) * np.maximum(size - threshold, 0)
    return found
