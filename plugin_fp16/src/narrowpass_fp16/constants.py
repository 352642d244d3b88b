"""Whether a constant can be held in a narrow type."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import onnx_ir as ir

from narrowpass.io import rounding

_THREADS = min(4, os.cpu_count() or 1)


class Constants:
    """Judges constants, each once.

    Args:
        dtype: the narrow type.
        margin: a number counts as too large from the largest of the type divided by this.
        tolerance: the error of a constant relative to it, as root mean squares, up to which it is
            rounded.
    """

    def __init__(self, dtype: ir.DataType, margin: float, tolerance: float) -> None:
        self._dtype = dtype
        limits = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]  # it has no types
        self._largest = float(limits.max) / margin
        self._smallest = float(limits.tiny)
        self._tolerance = tolerance
        self._known: dict[int, tuple[str, float | None, float | None]] = {}

    def judge(self, tensors: Iterable[ir.TensorProtocol]) -> None:
        """Read constants, several at once, so that `against` need not."""
        unknown = {id(tensor): tensor for tensor in tensors if id(tensor) not in self._known}
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(self._judge, unknown.values())
            self._known.update(zip(unknown, found, strict=True))

    def against(self, tensor: ir.TensorProtocol) -> tuple[str, float | None, float | None]:
        """Give why a constant must stay wide (empty if it need not), a value and its limit."""
        key = id(tensor)
        if key not in self._known:
            self._known[key] = self._judge(tensor)
        return self._known[key]

    def _judge(self, tensor: ir.TensorProtocol) -> tuple[str, float | None, float | None]:
        found = rounding(tensor, self._dtype)
        if found.largest > self._largest:
            return "an element is too large", found.largest, self._largest
        if 0 < found.largest < self._smallest:
            return "all elements are too small", found.largest, self._smallest
        if found.error > self._tolerance:
            return "it loses too much in rounding", found.error, self._tolerance
        return "", None, None
