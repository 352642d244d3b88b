"""A weight in pieces: rows of K elements, or parts of them, whatever its layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import DataError
from narrowpass_ir.io import MappedTensor, elements

Array = np.ndarray[Any, Any]

PIECE = 1 << 20
"""Elements that are in memory at a time, about."""


@dataclass(frozen=True)
class Layout:
    """How the matrices of a weight lie in memory.

    Attributes:
        count: how many matrices lie one after the other: 1, or that of experts.
        outputs: N, the outputs of each.
        inner: K, what each output adds up.
        rows: whether the K elements of an output lie beside each other, [N, K]; else [K, N].
    """

    count: int
    outputs: int
    inner: int
    rows: bool

    @classmethod
    def of(cls, dims: tuple[int, ...], axis: int) -> Layout:
        """Return the layout of a weight whose K lies along `axis`."""
        after = math.prod(dims[axis + 1 :])
        before = math.prod(dims[:axis])
        if after == 1:
            return cls(1, before, dims[axis], rows=True)
        return cls(before, after, dims[axis], rows=False)


@dataclass(frozen=True)
class Piece:
    """A part of a matrix.

    Attributes:
        matrix: the number of the matrix.
        first: the first output.
        start: the first of the K elements.
        weights: float32 [outputs, elements].
    """

    matrix: int
    first: int
    start: int
    weights: Array


def pieces(
    tensor: ir.TensorProtocol, layout: Layout, block: int, *, whole: bool
) -> Iterator[Piece]:
    """Yield a weight in pieces that hold whole blocks.

    Args:
        tensor: float32, float16 or bfloat16.
        layout: of it.
        block: elements of a block along K.
        whole: whether pieces must have all K elements of their outputs.
    """
    n, k = layout.outputs, layout.inner
    if layout.rows:
        step = max(1, PIECE // k)
        for first in range(0, n, step):
            last = min(first + step, n)
            flat = _floats(tensor, first * k, last * k)
            yield Piece(0, first, 0, flat.reshape(last - first, k))
            _evict(tensor)
        return
    for matrix in range(layout.count):
        base = matrix * k * n
        if whole or block >= k:
            step = max(1, PIECE // k)
            for first in range(0, n, step):
                last = min(first + step, n)
                yield Piece(matrix, first, 0, _columns(tensor, base, layout, first, last))
            _evict(tensor)
            continue
        step = max(1, PIECE // n // block) * block
        for start in range(0, k, step):
            end = min(start + step, k)
            flat = _floats(tensor, base + start * n, base + end * n)
            yield Piece(matrix, 0, start, np.ascontiguousarray(flat.reshape(end - start, n).T))
            _evict(tensor)


def _columns(tensor: ir.TensorProtocol, base: int, layout: Layout, first: int, last: int) -> Array:
    """Return some columns of a matrix [K, N], transposed."""
    n, k = layout.outputs, layout.inner
    if first == 0 and last == n:
        return np.ascontiguousarray(_floats(tensor, base, base + k * n).reshape(k, n).T)
    found = np.empty((last - first, k), np.float32)
    for row in range(k):
        place = base + row * n
        found[:, row] = _floats(tensor, place + first, place + last)
    return found


def _evict(tensor: ir.TensorProtocol) -> None:
    """Take the pages of a mapped weight out of this process's memory."""
    if isinstance(tensor, MappedTensor):
        tensor.drop()


def _floats(tensor: ir.TensorProtocol, first: int, last: int) -> Array:
    return np.asarray(elements(tensor, first, last)).astype(np.float32)


@dataclass(frozen=True)
class Survey:
    """What the elements of a weight are.

    Attributes:
        low: the least.
        high: the largest.
        zeros: how many are zero.
    """

    low: float
    high: float
    zeros: int


def survey(tensor: ir.TensorProtocol) -> Survey:
    """Read a weight once, in pieces.

    Raises:
        DataError: an element is infinite or NaN.
    """
    low, high, zeros = math.inf, -math.inf, 0
    for start in range(0, tensor.size, PIECE):
        piece = _floats(tensor, start, min(start + PIECE, tensor.size))
        least, largest = float(piece.min()), float(piece.max())
        if not math.isfinite(least) or not math.isfinite(largest):
            raise DataError(f"weight {tensor.name!r} has an element that is infinite or NaN")
        low, high = min(low, least), max(high, largest)
        zeros += int(piece.size - np.count_nonzero(piece))
        _evict(tensor)
    return Survey(low, high, zeros)
