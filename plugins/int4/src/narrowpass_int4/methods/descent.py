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

NEAR = 16
"""Columns whose changes reach the gradient of the others of `COLUMNS` at once."""

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
    reached = rows @ matrix
    best = integers, scale
    least = output_powers(_values(*best, zero, grid, block) - rows, matrix)
    for _ in range(ROUNDS):
        fitted = _fit_scales(reached, *best, zero, grid, block, matrix)
        visited, lost = _visit_columns(rows, best[0], fitted, zero, grid, block, matrix)
        better = (lost < least)[:, None]
        best = np.where(better, visited, best[0]), np.where(better, fitted, best[1])
        if not better.any():
            break
        least = np.minimum(lost, least)
    return best


def _values(integers: Array, scale: Array, zero: Array, grid: Grid, block: int) -> Array:
    found = grid.dequantize(to_blocks(integers, block), scale, zero)
    return found.reshape(len(integers), -1)[:, : integers.shape[1]]


def _visit_columns(
    rows: Array, integers: Array, scale: Array, zero: Array, grid: Grid, block: int, matrix: Array
) -> tuple[Array, Array]:
    """Return the integers after each was chosen anew, column by column, and what rows then lose."""
    size = rows.shape[1]
    values = np.ascontiguousarray(_values(integers, scale, zero, grid, block).T)
    found = np.ascontiguousarray(integers.T)
    # Half the negative gradient of the error by each value: H · (w - v).
    missing = np.ascontiguousarray(rows.T) - values
    slope = matrix @ missing
    lost: Array = np.einsum("kn,kn->n", missing, slope, dtype=np.float64)
    curvature = np.maximum(np.diag(matrix), np.float32(1e-30))
    scales, zeros = np.ascontiguousarray(scale.T), np.ascontiguousarray(zero.T)
    for first in range(0, size, COLUMNS):
        last = min(first + COLUMNS, size)
        changes = np.empty((last - first, len(rows)), np.float32)
        for near in range(first, last, NEAR):
            end = min(near + NEAR, last)
            for column in range(near, end):
                value, gradient = values[column], slope[column]
                s, z = scales[column // block], zeros[column // block]
                chosen = grid.quantize((value + gradient / curvature[column])[:, None], s, z)
                found[column] = chosen[:, 0]
                change = changes[column - first]
                np.subtract(grid.dequantize(chosen, s, z)[:, 0], value, out=change)
                # The error is quadratic: (w - v - c)ᵀ · H · (w - v - c).
                lost += change * (curvature[column] * change - 2 * gradient)
                slope[column + 1 : end] -= matrix[column + 1 : end, column, None] * change
            slope[end:last] -= matrix[end:last, near:end] @ changes[near - first : end - first]
        slope[last:] -= matrix[last:, first:last] @ changes
    return np.ascontiguousarray(found.T), np.maximum(lost, 0.0)


def _fit_scales(
    reached: Array,
    integers: Array,
    scale: Array,
    zero: Array,
    grid: Grid,
    block: int,
    matrix: Array,
) -> Array:
    """Return the scales of each row that fit its integers best, rounded to their dtype.

    Args:
        reached: float32 [n, K], the weights times `matrix`.
        integers: float32 [n, K].
        scale: float32 [n, blocks], where integers of 0 leave it open.
        zero: float32 [n, blocks].
        grid: the integers' kind.
        block: elements that share a scale.
        matrix: float32 [K, K], the Hessian.
    """
    count = scale.shape[1]
    size, padded = reached.shape[1], count * block
    # The value of a block is a multiple of its integers less the zero point.
    units = grid.dequantize(to_blocks(integers, block), np.ones_like(scale), zero)
    if size != padded:
        units[:, -1, size - padded :] = 0
        matrix = np.pad(matrix, (0, padded - size))
        reached = np.pad(reached, [(0, 0), (0, padded - size)])
    right = np.einsum("nbk,nbk->nb", units, to_blocks(reached, block))
    fitted = scale.copy()
    step = max(1, MATRICES // (count * max(count, block)))
    for first in range(0, len(units), step):
        part = units[first : first + step]
        normal = np.empty((len(part), count, count), np.float32)
        for place in range(count):
            begin = place * block
            # The equations are symmetric: what is left of the diagonal is known.
            own = part[:, place] @ matrix[begin : begin + block, begin:]
            found = np.einsum("nbk,nbk->nb", to_blocks(own, block), part[:, place:])
            normal[:, place, place:] = normal[:, place:, place] = found
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
