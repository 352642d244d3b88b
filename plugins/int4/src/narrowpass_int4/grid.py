"""The integers that blocks of weights are rounded to, and how they are packed into bytes.

A weight ``w`` of a block is stored as the integer ``q`` with ``w = scale · (q - zero)``.

==================  =========  ==========  =================================================
kind                integers   zero point  scale
==================  =========  ==========  =================================================
symmetric, 4 bits   -8 to 7    0           signed: the element of largest magnitude is -8
asymmetric, 4 bits  0 to 15    0 to 15     positive
symmetric, 8 bits   -127..127  0           positive
==================  =========  ==========  =================================================

The scale of a symmetric block may be negative: so all 16 integers are used, where magnitude / 7
would leave one of them unused. ``DequantizeLinear`` and ``MatMulNBits`` multiply by the scale,
whatever its sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Grid:
    """The integers of one kind of weights.

    Attributes:
        bits: 4 or 8; 8 is symmetric.
        symmetric: whether the zero point is 0.
        dtype: of the scales, which are rounded to it before anything is divided by them.
        weight_dtype: of the weights, and of zero points that are fractions.
        float_zeros: whether zero points are floating-point numbers, which MatMulNBits allows.
    """

    bits: int
    symmetric: bool
    dtype: np.dtype[Any]
    weight_dtype: np.dtype[Any]
    float_zeros: bool = False

    @property
    def low(self) -> int:
        """The least integer."""
        if self.bits == 8:
            return -127
        return -8 if self.symmetric else 0

    @property
    def high(self) -> int:
        """The largest integer."""
        if self.bits == 8:
            return 127
        return 7 if self.symmetric else 15

    @property
    def offset(self) -> int:
        """What is added to an integer where only unsigned ones can be stored."""
        return 1 << (self.bits - 1) if self.symmetric else 0

    def rounded_scale(self, scale: Array) -> Array:
        """Return scales as they will be stored, float32: finite in their type, and never 0."""
        least, most = _limits(self.dtype)
        stored = np.clip(scale, -np.float32(most), np.float32(most))
        stored = stored.astype(self.dtype).astype(np.float32)
        small = np.abs(stored) < least
        # A block of zeros, or of numbers below what the type can divide by, becomes zeros.
        return np.where(small, np.where(scale == 0, 1.0, np.copysign(least, scale)), stored).astype(
            np.float32
        )

    def quantize(self, weights: Array, scale: Array, zero: Array) -> Array:
        """Return the integers of blocks: float32 of the same shape.

        Args:
            weights: float32 [..., block].
            scale: float32 [...]; as `rounded_scale` returns them.
            zero: float32 [...].
        """
        found = weights / scale[..., None]
        if self.float_zeros:
            found += zero[..., None]
            np.rint(found, out=found)
        else:
            np.rint(found, out=found)
            if not self.symmetric:
                found += zero[..., None]
        # Single columns come here: `np.clip` checks its arguments for longer than it computes.
        np.maximum(found, self.low, out=found)
        return np.minimum(found, self.high, out=found)

    def dequantize(self, integers: Array, scale: Array, zero: Array) -> Array:
        """Return the weights that integers stand for, float32."""
        if self.symmetric:
            return integers * scale[..., None]
        found: Array = (integers - zero[..., None]) * scale[..., None]
        return found

    def round_trip(self, weights: Array, scale: Array, zero: Array) -> Array:
        """Return weights as they are after quantization, float32."""
        return self.dequantize(self.quantize(weights, scale, zero), scale, zero)


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the least and the largest scale: of float16 also subnormal, normal in float32."""
    import ml_dtypes

    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # it has no types
    least = info.smallest_subnormal if dtype == np.float16 else info.tiny
    return float(least), float(info.max)


def pack_nibbles(integers: Array) -> Array:
    """Pack integers from 0 to 15 into bytes along the last axis, the first in the low bits.

    Args:
        integers: uint8 [..., K]; where K is odd, a 0 follows the last.

    Returns:
        uint8 [..., ceil(K / 2)].
    """
    if integers.shape[-1] % 2:
        pad = [(0, 0)] * (integers.ndim - 1) + [(0, 1)]
        integers = np.pad(integers, pad)
    packed: Array = integers[..., 0::2] | (integers[..., 1::2] << 4)
    return packed
