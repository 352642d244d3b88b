"""Coordinate descent on the outputs' error: integers, then scales, in turns."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_int4.grid import Grid
from narrowpass_int4.layers import output_powers, to_blocks

Array = np.ndarray[Any, Any]

ROUNDS = 3
"""How often scales are fitted and all integers visited; later rounds gain less than 1 %."""

COLUMNS = 128
"""Columns whose changes reach the gradient of the others at once."""

MATRICES = 1 << 22
"""Elements of the normal equations that are in memory at a time."""


def descend(
    rows: Array, integers: Array, scale: Array, grid: Grid, block: int, zero: Array, hessian: Array
) -> tuple[Array, Array]:
    """Return integers and scales whose outputs on data lose less, or the same ones.

    Each integer in turn becomes the one with the least error, all others fixed: K. Behdin et al.,
    "QuantEase: Optimization-based Quantization for Language Models", arXiv:2309.01885. Between two
    such passes the scales of a row are fitted to its integers by linear least squares. A step that
    does not lower the error of a row is not taken.

    Args:
        rows: float32 [n, K], the weights.
        integers: float32 [n, K], where to begin.
        scale: float32 [n, blocks].
        grid: the integers' kind.
        block: elements that share a scale.
        zero: float32 [n, blocks], which stays as it is.
        hessian: float [K, K], ``X · Xᵀ``, positive semidefinite.
    """
    matrix = np.asarray(hessian, np.float32)
    best = integers, scale
    least = _lost(rows, *best, zero, grid, block, hessian)
    for _ in range(ROUNDS):
        fitted = _fit_scales(rows, best[0], best[1], zero, grid, block, matrix)
        visited = _visit_columns(rows, best[0], fitted, zero, grid, block, matrix)
        lost = _lost(rows, visited, fitted, zero, grid, block, hessian)
        better = (lost < least)[:, None]
        best = np.where(better, visited, best[0]), np.where(better, fitted, best[1])
        if not better.any():
            break
        least = np.minimum(lost, least)
    return best


def _lost(
    rows: Array,
    integers: Array,
    scale: Array,
    zero: Array,
    grid: Grid,
    block: int,
    hessian: Array,
) -> Array:
    return output_powers(_values(integers, scale, zero, grid, block) - rows, hessian)


def _values(integers: Array, scale: Array, zero: Array, grid: Grid, block: int) -> Array:
    found = grid.dequantize(to_blocks(integers, block), scale, zero)
    return found.reshape(len(integers), -1)[:, : integers.shape[1]]


def _visit_columns(
    rows: Array, integers: Array, scale: Array, zero: Array, grid: Grid, block: int, matrix: Array
) -> Array:
    """Return the integers after each was chosen anew, column by column."""
    size = rows.shape[1]
    values = np.ascontiguousarray(_values(integers, scale, zero, grid, block).T)
    found = np.ascontiguousarray(integers.T)
    # Half the negative gradient of the error by each value: H · (w - v).
    slope = matrix @ (np.ascontiguousarray(rows.T) - values)
    curvature = np.maximum(np.diag(matrix), np.float32(1e-30))
    scales, zeros = np.ascontiguousarray(scale.T), np.ascontiguousarray(zero.T)
    for first in range(0, size, COLUMNS):
        last = min(first + COLUMNS, size)
        changes = np.zeros((last - first, len(rows)), np.float32)
        for column in range(first, last):
            wanted = values[column] + slope[column] / curvature[column]
            s, z = scales[column // block], zeros[column // block]
            found[column] = grid.quantize(wanted[:, None], s, z)[:, 0]
            value = grid.dequantize(found[column][:, None], s, z)[:, 0]
            change = value - values[column]
            changes[column - first], values[column] = change, value
            slope[column + 1 : last] -= matrix[column + 1 : last, column, None] * change
        slope[last:] -= matrix[last:, first:last] @ changes
    return np.ascontiguousarray(found.T)


def _fit_scales(
    rows: Array, integers: Array, scale: Array, zero: Array, grid: Grid, block: int, matrix: Array
) -> Array:
    """Return the scales of each row that fit its integers best, rounded to their dtype."""
    count = scale.shape[1]
    size, padded = rows.shape[1], count * block
    # The value of a block is a multiple of its integers less the zero point.
    units = _values(integers, np.ones_like(scale), zero, grid, block)
    units = to_blocks(units, block).reshape(len(rows), padded)
    whole = np.zeros((padded, padded), np.float32)
    whole[:size, :size] = matrix
    targets = units[:, :size] * (rows @ matrix)
    right = to_blocks(targets, block).sum(axis=-1)
    fitted = scale.copy()
    step = max(1, MATRICES // (count * max(count, block)))
    for first in range(0, len(rows), step):
        part = units[first : first + step]
        normal = np.empty((len(part), count, count), np.float32)
        for place in range(count):
            own = slice(place * block, (place + 1) * block)
            reached = part[:, own] @ whole[own]
            normal[:, place] = (reached * part).reshape(len(part), count, block).sum(axis=-1)
        diagonal = np.einsum("nbb->nb", normal)
        # Blocks of zeros have no equation of their own.
        diagonal += 1e-6 * diagonal.mean(axis=1, keepdims=True) + np.float32(1e-30)
        wanted = np.linalg.solve(normal, right[first : first + step, :, None])[..., 0]
        usable = np.isfinite(wanted) & (wanted != 0)
        if not grid.symmetric:
            usable &= wanted > 0
        before = scale[first : first + step]
        fitted[first : first + step] = np.where(usable, wanted, before)
    return grid.rounded_scale(fitted.astype(np.float32))
