"""Packed weights: a matrix with its bias and scales in one block of the weights cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_planning.weights import (
    ProcessCache,
    Session,
    UnusableError,
    Weight,
    array_cache,
)

Array = np.ndarray[Any, Any]

LAYOUT = 1
"""The version of how bytes lie in a block; another one is another block, and another file."""

CACHE = ProcessCache(array_cache)
"""The weights cache of this process, for this backend."""


class NumpyPacker:
    """What packs weights here, for files of packed weights."""

    suffix = ".numpy-weights"

    def build(self) -> str:
        """Return what names the code that packs."""
        return f"numpy-backend {LAYOUT}"

    def fingerprint(self, algorithm: int) -> int:
        """Raise: all blocks are of our own layout, which needs no fingerprint."""
        raise UnusableError(f"no packing algorithm {algorithm}")

    def packs_alike(self, algorithm: int, value: int) -> bool:
        """Return that no algorithm is known."""
        return False


@dataclass(frozen=True)
class Matrix:
    """A packed matrix: float32, or int8 with a scale for each row.

    Attributes:
        elements: [N, K].
        bias: float32 [N]; None for 0.
        scales: float32 [N] or [1]; None for 1.
    """

    elements: Array
    bias: Array | None
    scales: Array | None

    def multiply(self, rows: Array) -> Array:
        """Return [..., N] for float32 rows [..., K]."""
        result: Array = rows @ self.elements.astype(np.float32, copy=False).T
        if self.scales is not None:
            result *= self.scales
        if self.bias is not None:
            result += self.bias
        return result


def pack(session: Session | None, matrix: Weight, bias: Weight | None) -> Matrix:
    """Pack a matrix [N, K] with a bias [N]; as int8 where it is stored so.

    Args:
        session: of the weights cache; None to pack for one operator alone.
        matrix: float32; its `Weight.quantized` says what it is dequantized from.
        bias: float32.
    """
    if session is None:
        with array_cache().begin() as alone:
            return pack(alone, matrix, bias)
    scales = None
    stored = matrix.quantized
    if stored is not None and stored.axis == 0 and _is_symmetric(stored.zero):
        matrix, scales = stored.integers, stored.scale
    floats = [weight.size for weight in (bias, scales) if weight is not None]
    start = 4 * sum(floats)

    def write(block: Array, matrix: Array, bias: Array | None, scales: Array | None) -> None:
        heads = [array.reshape(-1) for array in (bias, scales) if array is not None]
        if heads:
            block[:start].view(np.float32)[...] = np.concatenate(heads)
        block[start:].view(matrix.dtype).reshape(matrix.shape)[...] = matrix

    size = start + matrix.nbytes
    block = session.pack_own("matrix", (), matrix, bias, scales, LAYOUT, size, write)
    heads = np.split(block[:start].view(np.float32), np.cumsum(floats)[:-1])
    elements = block[start:].view(matrix.dtype).reshape(matrix.shape)
    return Matrix(
        elements,
        None if bias is None else heads[0],
        None if scales is None else heads[-1],
    )


def _is_symmetric(zero: Weight | None) -> bool:
    return zero is None or not zero.array().any()
