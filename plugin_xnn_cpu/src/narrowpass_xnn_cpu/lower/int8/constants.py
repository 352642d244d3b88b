"""Biases in steps of sums of bytes."""

from __future__ import annotations

import math

import numpy as np

from narrowpass_planning.weights.weight import Array, Quantized, Weight, digest
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, UnfitError

_LARGEST = 2**31 - 1
_MOST_OFF = 1 / 64
"""Steps of the output by which rounding a bias may move it; sums are rounded to whole ones."""


def bias_in_steps(
    bias: Weight | None, kernel: Quantized, given: Quantization, made: Quantization, terms: int
) -> Weight | None:
    """Give a bias as int32, in steps of the input's scale times the weight's.

    Args:
        bias: float32 [O], or None.
        kernel: of O outputs.
        given: of the input.
        made: of the output.
        terms: of each sum.

    Returns:
        int32 [O]; None for no bias. Its elements are looked at when they are made.

    Raises:
        UnfitError: sums of so many terms may not fit 32 bits. Making the elements raises it where
            that is so with the bias, or where these steps are too coarse for it.
    """
    most = terms * 255 * (128 if kernel.zero is None or not kernel.zero.array().any() else 255)
    if most > _LARGEST:
        raise UnfitError(f"sums over {terms} terms may not fit 32 bits")
    if bias is None:
        return None
    scale = kernel.scale

    def make() -> Array:
        steps = scale.array().reshape(-1).astype(np.float64) * given.scale
        numbers = bias.array().astype(np.float64)
        with np.errstate(all="ignore"):
            whole = np.rint(numbers / steps)
        if not (np.abs(whole) <= _LARGEST - most).all():
            raise UnfitError("sums with its bias may not fit 32 bits")
        off = np.abs(whole * steps - numbers).max(initial=0.0) / made.scale
        if off > _MOST_OFF:
            raise UnfitError(f"its bias is rounded by {off:.2g} steps of the output")
        return whole.astype(np.int32)

    parts = bias.identity, scale.identity
    sizes = given.scale.hex(), made.scale.hex(), terms
    identity = digest("bias in steps", *sizes, *parts) if all(parts) else ""
    return Weight(bias.shape, np.dtype(np.int32), identity, make, bias.drop)


def byte_limits(limits: tuple[float, float], made: Quantization) -> tuple[int, int]:
    """Give the bytes that an output is clamped to, where its numbers are to be in `limits`."""
    low, high = limits
    return _byte(low, made, -128), _byte(high, made, 127)


def _byte(bound: float, made: Quantization, unbounded: int) -> int:
    if math.isinf(bound):
        return unbounded
    with np.errstate(over="ignore"):
        steps = float(np.rint(np.float32(bound) / np.float32(made.scale)))
    return int(min(127.0, max(-128.0, steps + made.zero_point)))
