"""What a weight is multiplied with on data: the sum of outer products of the columns of X."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from narrowpass.errors import DataError
from narrowpass_int4.matrices import Matrix
from narrowpass_int4.methods.compensation import compensation

Array = np.ndarray[Any, Any]

_DOUBLE = 2048
"""K up to which elements are added in float64: above it memory counts."""


class Hessian:
    """``X · Xᵀ`` of a value over samples: half the second derivative of a layer's squared error.

    Args:
        inner: K, the elements of each column of X.
        what: the value, for messages.
        compared: whether `add` also gets what the float model computes.

    Attributes:
        matrix: float [K, K], X · Xᵀ.
        cross: float [K, K], X · Fᵀ, where F is what the float model computes; None without it.
        count: columns of X.
        magnitude: float64 [K], the magnitudes of each channel, added up.
    """

    def __init__(self, inner: int, what: str, *, compared: bool = False) -> None:
        kind = np.float64 if inner <= _DOUBLE else np.float32
        self.matrix: Array = np.zeros((inner, inner), kind)
        self.cross: Array | None = np.zeros((inner, inner), kind) if compared else None
        self.count = 0
        self.magnitude: Array = np.zeros(inner, np.float64)
        self._what = what

    @functools.cached_property
    def turn(self) -> Array | None:
        """What turns weights to those that compensate earlier layers; None without `cross`.

        It is computed once, for all weights of a group, after the last `add`.
        """
        return None if self.cross is None else compensation(self.matrix, self.cross)

    def add(self, columns: Array, where: str, floats: Array | None = None) -> None:
        """Add columns of X, [count, K], as a sample has them, and those of F.

        Raises:
            DataError: they have another length than K.
        """
        if columns.ndim != 2 or columns.shape[1] != len(self.matrix):
            raise DataError(
                f"value {self._what!r} on {where} has rows of {columns.shape[-1]} elements, and "
                f"not of {len(self.matrix)}"
            )
        narrow = np.ascontiguousarray(columns, np.float32)
        self.matrix += narrow.T @ narrow
        if self.cross is not None and floats is not None:
            self.cross += narrow.T @ np.ascontiguousarray(floats, np.float32)
        self.magnitude += np.abs(narrow).sum(axis=0, dtype=np.float64)
        self.count += len(columns)


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
