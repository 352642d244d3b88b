"""What a weight is multiplied with on data: the sum of outer products of the columns of X."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from narrowpass.errors import DataError
from narrowpass_int4.matrices import Matrix
from narrowpass_int4.methods.compensation import compensation
from narrowpass_int4.methods.curvature import Curvature
from narrowpass_int4.threads import workers
from narrowpass_ir.tensors.threads import ThreadPool
from narrowpass_reference import blas_threads

Array = np.ndarray[Any, Any]

_DOUBLE = 2048
"""K up to which elements are added in float64: above it memory counts."""

AT_ONCE = 1 << 22
"""Elements of X that one matmul takes: samples are collected, since adding K² numbers is slow."""


class Hessian:
    """``X · Xᵀ`` of a value over samples: half the second derivative of a layer's squared error.

    Args:
        inner: K, the elements of each column of X.
        what: the value, for messages.
        compared: whether `add` also gets what the float model computes.
        whole: whether all of the matrix is computed; else its diagonal alone, which takes K² less.

    Attributes:
        count: columns of X.
        whole: as given.
    """

    def __init__(
        self, inner: int, what: str, *, compared: bool = False, whole: bool = True
    ) -> None:
        kind = np.float64 if inner <= _DOUBLE else np.float32
        self.whole = whole
        self._inner = inner
        self._matrix: Array = np.zeros((inner, inner) if whole else 0, kind)
        self._squares: Array = np.zeros(0 if whole else inner, np.float64)
        self._cross: Array | None = np.zeros((inner, inner), kind) if compared else None
        self._waiting: list[tuple[Array, Array | None]] = []
        self._elements = 0
        self._magnitude: Array = np.zeros(inner, np.float64)
        self.count = 0
        self._what = what

    @property
    def matrix(self) -> Array:
        """X · Xᵀ, float [K, K], of all columns so far; only where it is computed `whole`."""
        self._collect()
        return self._matrix

    @property
    def diagonal(self) -> Array:
        """The diagonal of X · Xᵀ, float64 [K]."""
        self._collect()
        return np.diag(self._matrix).astype(np.float64) if self.whole else self._squares

    @property
    def cross(self) -> Array | None:
        """X · Fᵀ, float [K, K], where F is what the float model computes; None without it."""
        self._collect()
        return self._cross

    @property
    def magnitude(self) -> Array:
        """The magnitudes of each channel, added up: float64 [K]."""
        self._collect()
        return self._magnitude

    @functools.cached_property
    def turn(self) -> Array | None:
        """What turns weights to those that compensate earlier layers; None without `cross`.

        It is computed once, for all weights of a group, after the last `add`.
        """
        return None if self.cross is None else compensation(self.matrix, self.cross)

    @functools.cached_property
    def curvature(self) -> Curvature:
        """What GPTQ needs, computed once for all weights of a group, after the last `add`."""
        return Curvature(self.matrix)

    def add(self, columns: Array, where: str, floats: Array | None = None) -> None:
        """Add columns of X, [count, K], as a sample has them, and those of F.

        They must not change until all are added.

        Raises:
            DataError: they have another length than K.
        """
        if columns.ndim != 2 or columns.shape[1] != self._inner:
            raise DataError(
                f"value {self._what!r} on {where} has rows of {columns.shape[-1]} elements, and "
                f"not of {self._inner}"
            )
        self._waiting.append((columns, None if self._cross is None else floats))
        self._elements += columns.size
        self.count += len(columns)
        if self._elements >= AT_ONCE:
            self._collect()

    def _collect(self) -> None:
        """Add what waits to the matrices."""
        if not self._waiting:
            return
        narrow = _joined([columns for columns, _ in self._waiting])
        self._magnitude += np.abs(narrow).sum(axis=0)
        if not self.whole:
            self._squares += np.einsum("nk,nk->k", narrow, narrow, dtype=np.float64)
            self._waiting.clear()
            self._elements = 0
            return
        compared = [floats for _, floats in self._waiting if floats is not None]
        wide = _joined(compared) if self._cross is not None and compared else None
        for own, cross in _multiplied(narrow, wide):
            self._matrix += own
            if self._cross is not None and cross is not None:
                self._cross += cross
        self._waiting.clear()
        self._elements = 0


def _multiplied(narrow: Array, wide: Array | None) -> list[tuple[Array, Array | None]]:
    """Return matrices that add up to ``X · Xᵀ`` and to ``X · Fᵀ``, float32 [K, K].

    Each thread multiplies columns of its own, by a BLAS with one thread: that of OpenBLAS divides
    a matmul with K of 576 so finely that two threads take longer than one.

    Args:
        narrow: float32 [count, K], the columns of X.
        wide: float32 [count, K], those of F; None without.
    """

    def multiply(part: slice) -> tuple[Array, Array | None]:
        columns = narrow[part]
        # A matrix times its own transpose is one call of SYRK: half the operations.
        return columns.T @ columns, None if wide is None else columns.T @ wide[part]

    count = len(narrow)
    share = -(-count // workers())
    if narrow.shape[1] > _DOUBLE or share == count:
        return [multiply(slice(None))]
    parts = [slice(first, first + share) for first in range(0, count, share)]
    with blas_threads(1), ThreadPool(len(parts)) as pool:
        return list(pool.map(multiply, parts))


def _joined(parts: list[Array]) -> Array:
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts), np.float32)


def columns_of(matrix: Matrix, array: Array) -> Array:
    """Return what a node multiplies its weight with, [count, K], from its first operand."""
    node = matrix.node
    if node.op_type == "Conv":
        strides = node.attributes.get_ints("strides", ()) or [1] * (array.ndim - 2)
        array = array[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
        return np.moveaxis(array, 1, -1).reshape(-1, matrix.inner)
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1:
        array = array.T
    return array.reshape(-1, array.shape[-1])
