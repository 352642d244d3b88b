"""Blocks of integers of GGUF as forms of ONNX that hold the same numbers.

| type | form | loss |
|---|---|---|
| Q4_0 | int4, float16 scales, blocks of 32 | none |
| Q8_0, Q5_0 | int8, float16 scales, blocks of 32 | none |
| Q6_K | int8, float32 scales, blocks of 16 | none |
| Q4_1 | 4 bits, float16 scales, float32 zero points, blocks of 32 | rounding of a zero point |
| Q5_1 | 8 bits, the same | the same |
| Q4_K, Q5_K | 4 and 8 bits, float32 scales and zero points, blocks of 32 | the same |

Where a block has a minimum m, an element is d · q + m there, and d · (q - zero) here: zero = -m / d
is rounded to float32, which is 2⁻²⁴ of it. A block whose d is 0 has its minimum as scale, integers
0 and the zero point -1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as Kind

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
    """How a type lies in a file.

    Attributes:
        elements: of a block of the file.
        size: bytes of such a block.
        block: elements that share a scale.
        bits: of the integers in our form.
        offset: whether blocks have zero points.
        scale: dtype of the scales in our form.
        split: returns integers, scales and zero points (or None) of blocks, uint8 [count, size]:
            [count, elements], and [count, elements / block] each.
    """

    elements: int
    size: int
    block: int
    bits: int
    offset: bool
    scale: type[np.generic]
    split: Callable[[Array], tuple[Array, Array, Array | None]]


def _halves(raw: Array) -> Array:
    return np.ascontiguousarray(raw).view("<f2")


def _nibbles(raw: Array) -> Array:
    """Return low nibbles of all bytes, then the high ones: uint8 [count, 2 · bytes]."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _fifth_bits(raw: Array) -> Array:
    """Return the 32 bits of four bytes, each as 16: uint8 [count, 32]."""
    return np.unpackbits(raw, axis=1, bitorder="little") << 4


def _q4_0(raw: Array) -> tuple[Array, Array, None]:
    return _nibbles(raw[:, 2:]).astype(np.int8) - 8, _halves(raw[:, :2]), None


def _q5_0(raw: Array) -> tuple[Array, Array, None]:
    whole = _nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])
    return whole.astype(np.int8) - 16, _halves(raw[:, :2]), None


def _q8_0(raw: Array) -> tuple[Array, Array, None]:
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8), _halves(raw[:, :2]), None


def _q6_k(raw: Array) -> tuple[Array, Array, None]:
    count = len(raw)
    pairs = raw[:, :128].reshape(count, 2, 64)
    high = raw[:, 128:192].reshape(count, 2, 1, 32)
    low = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(count, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    whole = low | ((high >> shifts & 3) << 4)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return (
        whole.reshape(count, 256).astype(np.int8) - 32,
        scales * _halves(raw[:, 208:210]).astype(np.float32),
        None,
    )


def _q4_1(raw: Array) -> tuple[Array, Array, Array]:
    return _moved(_nibbles(raw[:, 4:]), _halves(raw[:, :2]), _halves(raw[:, 2:4]))


def _q5_1(raw: Array) -> tuple[Array, Array, Array]:
    whole = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
    return _moved(whole, _halves(raw[:, :2]), _halves(raw[:, 2:4]))


def _scales_k(raw: Array) -> tuple[Array, Array]:
    """Return eight scales and eight minima of 6 bits from twelve bytes: float32 [count, 8]."""
    first, second, third = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _numbers_k(raw: Array) -> tuple[Array, Array]:
    """Return the scales and the minima of the eight blocks of 32: float32 [count, 8]."""
    scales, minima = _scales_k(raw[:, 4:16])
    factors = _halves(raw[:, :4]).astype(np.float32)
    return scales * factors[:, :1], -minima * factors[:, 1:]


def _pairs_k(raw: Array) -> Array:
    """Return nibbles in the order of elements: uint8 [count, 8, 32]."""
    four = raw.reshape(len(raw), 4, 1, 32)
    return np.concatenate([four & 15, four >> 4], axis=2).reshape(len(raw), 8, 32)


def _q4_k(raw: Array) -> tuple[Array, Array, Array]:
    return _moved(_pairs_k(raw[:, 16:]).reshape(-1, 256), *_numbers_k(raw))


def _q5_k(raw: Array) -> tuple[Array, Array, Array]:
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = (raw[:, 16:48].reshape(-1, 1, 32) >> shifts & 1) << 4
    whole = _pairs_k(raw[:, 48:]) | fifth
    return _moved(whole.reshape(-1, 256), *_numbers_k(raw))


def _moved(integers: Array, scales: Array, minima: Array) -> tuple[Array, Array, Array]:
    """Return integers, scales and zero points of d · q + m."""
    flat = scales == 0
    if flat.any():
        each = integers.shape[1] // scales.shape[1]
        integers = np.where(np.repeat(flat, each, axis=1), 0, integers).astype(np.uint8)
        scales = np.where(flat, minima.astype(scales.dtype), scales)
    wide = np.where(scales == 0, 1, scales).astype(np.float64)
    zeros = np.where(flat, -1.0, -minima.astype(np.float64) / wide)
    return integers, scales, zeros.astype(np.float32)


LAYOUTS: dict[Kind, Layout] = {
    Kind.Q4_0: Layout(32, 18, 32, 4, False, np.float16, _q4_0),
    Kind.Q4_1: Layout(32, 20, 32, 4, True, np.float16, _q4_1),
    Kind.Q5_0: Layout(32, 22, 32, 8, False, np.float16, _q5_0),
    Kind.Q5_1: Layout(32, 24, 32, 8, True, np.float16, _q5_1),
    Kind.Q8_0: Layout(32, 34, 32, 8, False, np.float16, _q8_0),
    Kind.Q4_K: Layout(256, 144, 32, 4, True, np.float32, _q4_k),
    Kind.Q5_K: Layout(256, 176, 32, 8, True, np.float32, _q5_k),
    Kind.Q6_K: Layout(256, 210, 16, 8, False, np.float32, _q6_k),
}
"""The types whose integers are kept."""


def integers_of(raw: Array, layout: Layout) -> Array:
    """Return the integers of rows: uint8 [N, row bytes] to [N, K].

    Returns:
        int4 or int8 without zero points, uint8 with them.
    """
    integers, _, _ = layout.split(raw.reshape(-1, layout.size))
    integers = integers.reshape(len(raw), -1)
    if layout.bits == 4 and not layout.offset:
        return integers.astype(ml_dtypes.int4)
    return integers


def packed_of(raw: Array, layout: Layout) -> Array:
    """Return the integers of rows with zero points, packed: uint8 [N, K / block, bytes]."""
    integers = integers_of(raw, layout).reshape(len(raw), -1, layout.block)
    if layout.bits == 8:
        return integers
    packed: Array = integers[:, :, ::2] | integers[:, :, 1::2] << 4
    return packed


def scales_of(raw: Array, layout: Layout) -> Array:
    """Return the scales of rows, [N, K / block]."""
    _, scales, _ = layout.split(raw.reshape(-1, layout.size))
    return np.ascontiguousarray(scales.reshape(len(raw), -1).astype(layout.scale))


def zeros_of(raw: Array, layout: Layout) -> Array:
    """Return the zero points of rows, float32 [N, K / block]."""
    _, _, zeros = layout.split(raw.reshape(-1, layout.size))
    if zeros is None:
        raise ValueError("this type has no zero points")
    return np.ascontiguousarray(zeros.reshape(len(raw), -1))
