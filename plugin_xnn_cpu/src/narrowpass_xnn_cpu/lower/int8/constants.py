"""Constants of int8 kernels: biases and clipping ranges, and what is done where they do not fit.

Biases are in the units of int32 accumulators, clipping ranges in those of int8 results.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from narrowpass_planning.weights.weight import Array, Quantized, Weight, digest
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, UnfitError

_LARGEST = 2**31 - 1
_MAX_BIAS_ERROR = 1 / 64
"""Error of the quantized bias that is allowed, in quantization steps of the output."""


def quantize_bias(
    bias: Weight | None,
    kernel: Quantized,
    source: Quantization,
    target: Quantization,
    terms: int,
) -> Weight | None:
    """Return a bias as int32 with the scale of the accumulators: input scale times weight scales.

    Args:
        bias: float32 [O], or None.
        kernel: the weights, of O output channels.
        source: quantization of the input.
        target: quantization of the output.
        terms: number of terms of each accumulator.

    Returns:
        int32 [O]; None for no bias. Its elements are computed and checked when they are packed.

    Raises:
        UnfitError: int32 accumulators of so many terms may overflow. Computing the elements raises
            it where they may overflow with the bias, or the scale is too coarse for the bias.
    """
    most = terms * 255 * (128 if kernel.zero is None or not kernel.zero.array().any() else 255)
    if most > _LARGEST:
        raise UnfitError(f"int32 accumulators of {terms} terms may overflow")
    if bias is None:
        return None
    scale = kernel.scale

    def quantize() -> Array:
        steps = scale.array().reshape(-1).astype(np.float64) * source.scale
        numbers = bias.array().astype(np.float64)
        with np.errstate(all="ignore"):
            whole = np.rint(numbers / steps)
        if not (np.abs(whole) <= _LARGEST - most).all():
            raise UnfitError("int32 accumulators may overflow with its bias")
        off = np.abs(whole * steps - numbers).max(initial=0.0) / target.scale
        if off > _MAX_BIAS_ERROR:
            raise UnfitError(f"its bias is rounded by {off:.2g} quantization steps of the output")
        return whole.astype(np.int32)

    parts = bias.identity, scale.identity
    sizes = source.scale.hex(), target.scale.hex(), terms
    identity = digest("bias in steps", *sizes, *parts) if all(parts) else ""
    return Weight(bias.shape, np.dtype(np.int32), identity, quantize, bias.drop)


def quantized_limits(limits: tuple[float, float], target: Quantization) -> tuple[int, int]:
    """Return the clipping range `limits` of an output as int8."""
    low, high = limits
    return _quantized_bound(low, target, -128), _quantized_bound(high, target, 127)


def _quantized_bound(bound: float, target: Quantization, unbounded: int) -> int:
    if math.isinf(bound):
        return unbounded
    with np.errstate(over="ignore"):
        steps = float(np.rint(np.float32(bound) / np.float32(target.scale)))
    return int(min(127.0, max(-128.0, steps + target.zero_point)))


Lower = Callable[[Op, Builder], None]


def with_float_fallback(lower: Lower) -> Lower:
    """Wrap a function that lowers an int8 operation: where it cannot, `Op.float_ops` are lowered.

    That is where the function raises `UnfitError`, which it does before it emits anything, and
    where packing has found that constants do not fit (`Builder.unfit`). `explain` reports the
    reason.
    """

    def lowered(op: Op, builder: Builder) -> None:
        reason = builder.unfit.get(op.output.name or "", "")
        if not reason:
            try:
                lower(op, builder)
            except UnfitError as error:
                reason = str(error)
        if not reason:
            return
        for other in op.float_ops:
            if builder.has_value(other.output):
                continue
            other.unfit = reason if other.kind == op.get("operator", "") else ""
            builder.lower(other)

    lowered.__module__ = lower.__module__
    return lowered
