"""What a weight is multiplied with on data: the sum of outer products of the columns of X."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass.errors import DataError
from narrowpass_int4.matrices import Matrix

Array = np.ndarray[Any, Any]

_DOUBLE = 2048
"""K up to which elements are added in float64: above it memory counts."""


class Hessian:
    """``X · Xᵀ`` of a value over samples: half the second derivative of a layer's squared error.

    Args:
        inner: K, the elements of each column of X.
        what: the value, for messages.
    """

    def __init__(self, inner: int, what: str) -> None:
        kind = np.float64 if inner <= _DOUBLE else np.float32
        self.matrix: Array = np.zeros((inner, inner), kind)
        self.count = 0
        self.magnitude: Array = np.zeros(inner, np.float64)
        self._what = what

    def add(self, columns: Array, where: str) -> None:
        """Add columns of X, [count, K], as a sample has them.

        Raises:
            DataError: they have another length than K.
        """
        if columns.ndim != 2 or columns.shape[1] != len(self.matrix):
            raise DataError(
                f"value {self._what!r} on {where} has rows of {columns.shape[-1]} elements, and "
                f"not of {len(self.matrix)}"
            )
        floats = np.ascontiguousarray(columns, np.float32)
        self.matrix += floats.T @ floats
        self.magnitude += np.abs(floats).sum(axis=0, dtype=np.float64)
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
