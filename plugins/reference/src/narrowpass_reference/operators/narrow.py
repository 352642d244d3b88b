"""Operators that accumulate: in float32 where the data has 16 bits, which lose terms.

onnx's evaluator adds up in the type of the data: a bfloat16 of 256 takes no term below 1 any more.
Statistics of normalizations are float32, as ``stash_type`` says; in bfloat16, results would be off
by a tenth.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

Array = np.ndarray[Any, Any]

_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))

ACCUMULATING = frozenset(
    (
        "CumProd",
        "CumSum",
        "GlobalAveragePool",
        "InstanceNormalization",
        "ReduceL1",
        "ReduceL2",
        "ReduceMean",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    )
)
"""Operators of the default domain that `accumulating` replaces.

Softmax is not among them: the node suite wants it rounded behind each step."""


class _Float32:
    """Computes what the class behind it does, in float32 where its first operand is narrower."""

    def _run(self, data: Array, *others: Any, **attributes: Any) -> tuple[Any, ...]:
        run: Any = super()._run  # type: ignore[misc]  # of the class behind
        wide = data.astype(np.float32) if data.dtype in _NARROW else data
        results: tuple[Any, ...] = run(wide, *others, **attributes)
        return tuple(np.asarray(each).astype(data.dtype, copy=False) for each in results)


@cache
def accumulating(op_type: str, version: int) -> type[OpRun]:
    """Return onnx's class of an operator that accumulates in float32."""
    theirs = load_op("", op_type, version)
    # By its name, which has the version, the base class looks up which attributes there are.
    found: type[OpRun] = type(theirs.__name__, (_Float32, theirs), {})
    return found


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
