"""Scales and zero points of blocks from the weights alone: rounding, and least squared error."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_int4.grid import Grid

Array = np.ndarray[Any, Any]

SHRINKS = np.linspace(1.0, 0.6, 9)
"""Shares of a block's range that `least_squares` tries."""

SIGNED = np.linspace(8 / 7, 0.65, 12)
"""The same for symmetric blocks, of magnitude / 8; the first is magnitude / 7."""

REFINEMENTS = 3
"""How often scales are fitted to the integers that they lead to."""


def round_to_nearest(blocks: Array, grid: Grid) -> tuple[Array, Array]:
    """Return scales and zero points that represent the largest and the least element: RTN.

    Args:
        blocks: float32 [..., block].
        grid: the integers.

    Returns:
        Scales and zero points, float32 [...].
    """
    low, high = blocks.min(axis=-1), blocks.max(axis=-1)
    if grid.float_zeros:
        scale = grid.rounded_scale((high - low) / np.float32(grid.high))
        return scale, (-low / scale).astype(grid.weight_dtype).astype(np.float32)
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if grid.symmetric:
        if grid.bits == 8:
            scale = np.maximum(high, -low) / np.float32(127)
        else:
            scale = np.where(high > -low, high, low) / np.float32(-8)
        scale = grid.rounded_scale(scale)
        return scale, np.zeros_like(scale)
    return affine(low, high, grid)


def affine(low: Array, high: Array, grid: Grid) -> tuple[Array, Array]:
    """Return scales and integer zero points of ranges from `low` ≤ 0 to `high` ≥ 0."""
    scale = grid.rounded_scale((high - low) / np.float32(grid.high))
    zero = np.clip(np.rint(-low / scale), grid.low, grid.high)
    return scale, zero.astype(np.float32)


def squared_error(
    blocks: Array, grid: Grid, scale: Array, zero: Array, importance: Array | None
) -> Array:
    """Return the squared error of blocks, each column times its importance; float32 [...]."""
    error = grid.round_trip(blocks, scale, zero)
    error -= blocks
    np.multiply(error, error, out=error)
    if importance is not None:
        error *= importance
    found: Array = error.sum(axis=-1)
    return found


def least_squares(
    blocks: Array, grid: Grid, importance: Array | None = None
) -> tuple[Array, Array]:
    """Return scales and zero points with the least squared error among those that are tried: MSE.

    Ranges shrink in steps, since clipping one outlier may leave finer steps to all others; then the
    best scale is fitted to its integers by linear least squares, several times. What `RTN` chooses
    is among them, so that the error is at most that.

    Args:
        blocks: float32 [..., block].
        grid: the integers.
        importance: float32, broadcast against `blocks`: what the square of each error is
            multiplied by, such as the mean square of what the column is multiplied with.

    Returns:
        Scales and zero points, float32 [...].
    """
    scale, zero = round_to_nearest(blocks, grid)
    best = squared_error(blocks, grid, scale, zero, importance)

    def try_(new_scale: Array, new_zero: Array) -> None:
        error = squared_error(blocks, grid, new_scale, new_zero, importance)
        better = error < best
        np.copyto(scale, new_scale, where=better)
        np.copyto(zero, new_zero, where=better)
        np.copyto(best, error, where=better)

    low = np.minimum(blocks.min(axis=-1), 0.0)
    high = np.maximum(blocks.max(axis=-1), 0.0)
    if grid.symmetric:
        unit = np.maximum(high, -low) / np.float32(-grid.low)
        for share in SIGNED if grid.bits == 4 else SHRINKS:
            for sign in (1, -1) if grid.bits == 4 else (1,):
                try_(grid.rounded_scale(unit * np.float32(sign * share)), zero)
    else:
        for share in SHRINKS[1:]:
            shrunk, zeros = affine(low * np.float32(share), high * np.float32(share), grid)
            try_(shrunk, zeros)
    for _ in range(REFINEMENTS):
        try_(*_fitted(blocks, grid, scale, zero, importance))
    return scale, zero


def _fitted(
    blocks: Array, grid: Grid, scale: Array, zero: Array, importance: Array | None
) -> tuple[Array, Array]:
    """Return the scale and the zero point that fit the integers of the present ones best."""
    integers = grid.quantize(blocks, scale, zero)
    share = np.float32(1.0) if importance is None else importance
    if not grid.symmetric:
        # w = scale · q + offset, by the normal equations of two unknowns.
        total = np.broadcast_to(share, blocks.shape).sum(axis=-1)
        mean_q = (share * integers).sum(axis=-1) / np.maximum(total, 1e-30)
        mean_w = (share * blocks).sum(axis=-1) / np.maximum(total, 1e-30)
        centred = integers - mean_q[..., None]
        power = (share * centred * centred).sum(axis=-1)
        slope = (share * centred * blocks).sum(axis=-1) / np.where(power > 0, power, 1.0)
        usable = (power > 0) & (slope > 0)
        zero = np.where(usable, np.rint(mean_q - mean_w / np.where(usable, slope, 1.0)), zero)
        zero = np.clip(zero, grid.low, grid.high).astype(np.float32)
        integers = integers - zero[..., None]
    power = (share * integers * integers).sum(axis=-1)
    fitted = (share * integers * blocks).sum(axis=-1) / np.where(power > 0, power, 1.0)
    usable = (power > 0) & (fitted != 0) & (grid.symmetric | (fitted > 0))
    return grid.rounded_scale(np.where(usable, fitted, scale).astype(np.float32)), zero
