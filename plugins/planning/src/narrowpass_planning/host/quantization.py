"""Numpy kernels: QuantizeLinear, DequantizeLinear and MatMulInteger.

As the specification says: x / scale is rounded to nearest even, the zero point added, the sum
saturated, where NaN becomes the least integer; and (x - zero point) · scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]


def kernel_for(op: Op) -> Callable[..., Array]:
    """Return the kernel of an operation.

    Raises:
        KeyError: quantizing by blocks, which is not covered.
    """
    block = op.get("block_size", 0)
    axis = op.get("axis", 1)
    if op.kind == "DequantizeLinear":
        return lambda x, scale, zero=None: dequantized(x, scale, zero, axis, block)
    if block:
        raise KeyError("block_size")
    dtype = op.output.dtype
    if dtype is None:
        raise KeyError("the type of the output")
    return lambda x, scale, zero=None: quantized(x, scale, zero, axis, dtype.numpy())


def quantized(x: Array, scale: Array, zero: Array | None, axis: int, dtype: np.dtype[Any]) -> Array:
    """Quantize an array to integers of `dtype`."""
    limits = np.iinfo(dtype)
    rounded = np.rint(x / _along(scale, x, axis))
    if zero is not None:
        rounded = rounded + _along(zero, x, axis).astype(np.float32)
    kept = np.clip(rounded, limits.min, limits.max)
    return np.where(np.isnan(kept), limits.min, kept).astype(dtype)


def dequantized(x: Array, scale: Array, zero: Array | None, axis: int, block: int = 0) -> Array:
    """Dequantize integers to the type of `scale`.

    Args:
        x: integers.
        scale: one number, one for each channel of `axis`, or one for each block along it.
        zero: zero points, as scales; None for 0.
        axis: see `scale`.
        block: how many numbers share a scale; 0 where there are no blocks.
    """
    if block:
        size = x.shape[axis]
        if scale.shape[axis] != -(-size // block):  # the last block may be shorter
            raise ValueError(f"blocks of {block} do not fit {list(x.shape)}, {list(scale.shape)}")
        places = np.arange(size) // block
        scale = np.take(scale, places, axis)
        zero = None if zero is None else np.take(zero, places, axis)
    else:
        scale = _along(scale, x, axis)
        zero = None if zero is None else _along(zero, x, axis)
    # Differences of integers of 16 bits and less fit into 32.
    wide: type[np.generic] = np.int32 if x.dtype.itemsize < 4 else np.int64
    if x.dtype.name.startswith("float8"):
        wide = np.float32
    given = x.astype(wide)
    if zero is not None:
        given = given - zero.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):  # 0 times an infinite scale is NaN
        result: Array = given.astype(scale.dtype) * scale
    return result


def integer_matmul(
    a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    """Return MatMulInteger, int32; int8 dot products are exact in float64.

    A zero point of several numbers has one for each row of `a`, or column of `b`.
    """

    def numbers(x: Array, zero: Array | None, axis: int) -> Array:
        wide = x.astype(np.float64)
        if zero is None:
            return wide
        if zero.ndim == 1 and zero.size > 1 and x.ndim > 1:
            zero = np.expand_dims(zero, axis)
        shifted: Array = wide - zero.astype(np.float64)
        return shifted

    exact: Array = np.matmul(numbers(a, a_zero, -1), numbers(b, b_zero, 0))
    wrapped: Array = exact.astype(np.int64).astype(np.int32)
    return wrapped


def _along(parameter: Array, x: Array, axis: int) -> Array:
    """Return a parameter so that it broadcasts: one number, or one for each channel."""
    if parameter.size == 1:
        return parameter.reshape(())
    # Some tools write one for each channel with axes of size 1 behind.
    if parameter.size != max(parameter.shape) or parameter.size != x.shape[axis]:
        raise ValueError(f"{parameter.size} parameters do not fit axis {axis} of {list(x.shape)}")
    dims = [1] * x.ndim
    dims[axis] = parameter.size
    return parameter.reshape(dims)
