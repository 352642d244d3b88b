"""GPTQ: columns that are not yet rounded compensate the errors of those that are."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_int4.grid import Grid
from narrowpass_int4.layers import Choose, choice, output_powers, to_blocks
from narrowpass_int4.methods.curvature import Curvature
from narrowpass_int4.methods.descent import descend
from narrowpass_int4.threads import threads_for

Array = np.ndarray[Any, Any]

COLUMNS = 128
"""Columns whose updates reach the columns behind them at once."""

NEAR = 16
"""Columns whose updates reach the others of `COLUMNS` at once: a matmul of 16 reads each element
once where single columns would 16 times."""


def gptq(curvature: Curvature, grid: Grid, block: int) -> Choose:
    """Return what quantizes rows so that their outputs on data lose little: GPTQ.

    E. Frantar, S. Ashkboos, T. Hoefler and D. Alistarh, "GPTQ: Accurate Post-Training Quantization
    for Generative Pre-trained Transformers", ICLR 2023, arXiv:2210.17323: columns are rounded one
    after the other, and what each loses is subtracted from those that follow, by the Cholesky
    factor of the inverse Hessian, in blocks of `COLUMNS`. Columns with the largest diagonal come
    first (activation order). Scales and zero points are chosen before, for blocks of neighbouring
    columns (by `least_squares`, each column as important as its diagonal), so that the result is
    stored in the usual order, and no index of groups is needed. Integers and scales are then
    improved by `descend`. A row for which plain rounding with the same scales, or by RTN, loses
    less on the data is rounded so.

    Args:
        curvature: of what the rows are multiplied with.
        grid: the integers.
        block: elements that share a scale.
    """
    by_error = choice("mse", grid, block, curvature.importance)
    nearest = choice("rtn", grid, block)

    def choose(rows: Array, start: int) -> tuple[Array, Array, Array]:
        if start or rows.shape[1] != curvature.size:
            raise ValueError("GPTQ needs all elements of a row")
        found = [by_error(rows, 0), nearest(rows, 0)]
        _, scale, zero = found[0]
        factor, order = curvature.factor, curvature.order
        with threads_for(len(rows)):
            integers = _compensated(rows, scale, zero, grid, block, factor, order)
            integers, scale = descend(rows, integers, scale, grid, block, zero, curvature.damped)
        found.insert(0, (integers, scale, zero))
        return _best(rows, found, grid, block, curvature.damped)

    return choose


def _compensated(
    rows: Array,
    scale: Array,
    zero: Array,
    grid: Grid,
    block: int,
    factor: Array,
    order: Array,
) -> Array:
    """Return integers [n, K] whose errors compensate each other."""
    weights = np.ascontiguousarray(rows[:, order].T)
    integers = np.empty_like(weights)
    groups = order // block
    scales, zeros = np.ascontiguousarray(scale.T), np.ascontiguousarray(zero.T)
    size = len(weights)
    for first in range(0, size, COLUMNS):
        last = min(first + COLUMNS, size)
        errors = np.empty((last - first, weights.shape[1]), np.float32)
        for near in range(first, last, NEAR):
            end = min(near + NEAR, last)
            for column in range(near, end):
                now, group = weights[column], groups[column]
                found = grid.quantize(now[:, None], scales[group], zeros[group])
                integers[column] = found[:, 0]
                rounded = grid.dequantize(found, scales[group], zeros[group])[:, 0]
                error = np.subtract(now, rounded, out=errors[column - first])
                error /= factor[column, column]
                weights[column + 1 : end] -= factor[column, column + 1 : end, None] * error
            found = errors[near - first : end - first]
            weights[end:last] -= factor[near:end, end:last].T @ found
        if last < size:
            weights[last:] -= factor[first:last, last:].T @ errors
    result = np.empty_like(rows)
    result[:, order] = integers.T
    return result


def _best(
    rows: Array,
    found: list[tuple[Array, Array, Array]],
    grid: Grid,
    block: int,
    hessian: Array,
) -> tuple[Array, Array, Array]:
    """Return for each row the candidate whose outputs lose least."""
    k = rows.shape[1]
    integers, scale, zero = (part.copy() for part in found[0])
    least: Array | None = None
    for candidate in found:
        values = grid.dequantize(to_blocks(candidate[0], block), *candidate[1:])
        lost = output_powers(values.reshape(len(rows), -1)[:, :k] - rows, hessian)
        if least is None:
            least = lost
            continue
        better = lost < least
        for part, other in zip((integers, scale, zero), candidate, strict=True):
            part[better] = other[better]
        least = np.minimum(lost, least)
    return integers, scale, zero
