"""Normalizations of rows, whose statistics are float32 for narrow types, as ``stash_type`` says.

onnx's evaluator computes them in the type of the data: with bfloat16, results are off by a tenth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


class LayerNormalization(OpRun):
    """Mean and inverse of the deviation are float32 where the data is narrower."""

    def _run(
        self,
        data: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[Any, ...]:
        wide = _stashed(data, stash_type)
        axes = tuple(range(axis % data.ndim, data.ndim))
        mean = wide.mean(axis=axes, keepdims=True)
        centred = wide - mean
        inverse = _inverse_root(np.square(centred).mean(axis=axes, keepdims=True), epsilon)
        result = (centred * inverse).astype(data.dtype) * scale
        if bias is not None:
            result = result + bias
        return (result.astype(data.dtype), mean, inverse)


class RMSNormalization(OpRun):
    """The mean of squares is float32 where the data is narrower; results have the scale's type."""

    def _run(
        self,
        data: Array,
        scale: Array,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[Any, ...]:
        wide = _stashed(data, stash_type)
        axes = tuple(range(axis % data.ndim, data.ndim))
        inverse = _inverse_root(np.square(wide).mean(axis=axes, keepdims=True), epsilon)
        normalized = (wide * inverse).astype(data.dtype)
        return (normalized.astype(scale.dtype) * scale,)


def _stashed(data: Array, stash_type: int) -> Array:
    """Return the data in the type of statistics: float32, or that of wider data."""
    if stash_type != 1:
        raise NotImplementedError(f"stash_type={stash_type}: statistics are float32 alone")
    return data if data.dtype == np.float64 else data.astype(np.float32)


def _inverse_root(square: Array, epsilon: float) -> Array:
    found: Array = np.reciprocal(np.sqrt(square + square.dtype.type(epsilon)))
    return found
