"""GPTQ: columns that are not yet rounded compensate the errors of those that are."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_int4.grid import Grid
from narrowpass_int4.layers import Choose, choice, output_powers, to_blocks
from narrowpass_int4.methods.descent import descend

Array = np.ndarray[Any, Any]

DAMPING = 0.01
"""The share of the mean of the Hessian's diagonal that is added to it."""

COLUMNS = 128
"""Columns whose updates reach the columns behind them at once."""


def gptq(hessian: Array, grid: Grid, block: int) -> Choose:
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
        hessian: float [K, K], ``X · Xᵀ``.
        grid: the integers.
        block: elements that share a scale.
    """
    size = len(hessian)
    diagonal = np.diag(hessian).copy()
    factor, order = _inverse_factor(hessian, diagonal)
    # Without damping, descent would fit chance correlations with a channel of large activations.
    damped = np.asarray(hessian + DAMPING * diagonal.mean() * np.eye(size), np.float32)
    importance = diagonal.astype(np.float32) / np.float32(max(diagonal.mean(), 1e-30))
    by_error = choice("mse", grid, block, np.maximum(importance, np.float32(1e-6)))
    nearest = choice("rtn", grid, block)

    def choose(rows: Array, start: int) -> tuple[Array, Array, Array]:
        if start or rows.shape[1] != size:
            raise ValueError("GPTQ needs all elements of a row")
        found = [by_error(rows, 0), nearest(rows, 0)]
        _, scale, zero = found[0]
        integers = _compensated(rows, scale, zero, grid, block, factor, order)
        integers, scale = descend(rows, integers, scale, grid, block, zero, damped)
        found.insert(0, (integers, scale, zero))
        return _best(rows, found, grid, block, damped)

    return choose


def _inverse_factor(hessian: Array, diagonal: Array) -> tuple[Array, Array]:
    """Return the upper Cholesky factor of the inverse of the damped Hessian, and its order."""
    damped = hessian.copy()
    dead = diagonal == 0
    mean = float(diagonal.mean()) or 1.0
    place = np.arange(len(damped))
    damped[place, place] += np.where(dead, mean, 0.0) + DAMPING * mean
    order = np.argsort(-diagonal, kind="stable")
    damped = damped[np.ix_(order, order)]
    for _ in range(8):
        try:
            # With rows and columns reversed, a lower factor becomes an upper one.
            lower = np.linalg.cholesky(damped[::-1, ::-1])
        except np.linalg.LinAlgError:
            damped[place, place] += 10 * DAMPING * mean
            continue
        upper = lower[::-1, ::-1]
        inverse = np.linalg.inv(upper)
        return np.triu(inverse).astype(np.float32), order
    raise ValueError("the Hessian cannot be factored")


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
    size = len(weights)
    for first in range(0, size, COLUMNS):
        last = min(first + COLUMNS, size)
        errors = np.empty((last - first, weights.shape[1]), np.float32)
        for column in range(first, last):
            now = weights[column]
            s, z = scale[:, groups[column]], zero[:, groups[column]]
            found = grid.quantize(now[:, None], s, z)[:, 0]
            integers[column] = found
            rounded = grid.dequantize(found[:, None], s, z)[:, 0]
            error = (now - rounded) / factor[column, column]
            errors[column - first] = error
            if column + 1 < last:
                weights[column + 1 : last] -= factor[column, column + 1 : last, None] * error
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
