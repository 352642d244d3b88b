"""Scales and zero points of int8, accumulator headroom, and checks of what kernels support.

A byte q of a tensor represents ``scale · (q - zero_point)``. Accumulators and bias are int32 with
the input's scale times the weight's; after requantization they are at most one step off the rounded
real number. Shapes are checked at once, elements when they are loaded to be packed: weights that
are found packed in the cache are not read.
"""

from __future__ import annotations

import dataclasses
import math
import platform
from dataclasses import dataclass

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array, Quantized, Weight, digest

LOW, HIGH = -128, 127

LEAST_WEIGHT = -128 if platform.machine().lower() in ("x86_64", "amd64") else -127
"""The least weight that kernels multiply exactly.

XNNPACK's kernels for x86, and ours, accumulate each multiplication of bytes in 32 bits. Some of
those for ARM add two of them in 16 bits, where 2 · 128 · 128 is one too large."""

SMALLEST_SCALE = 2.0**-126
"""The smallest normal float32: XNNPACK refuses smaller scales."""

MATMUL_RATIO = (2.0**-32, 2.0**8)
"""XNNPACK's range of input scale * weight scale / output scale, for matmuls and convolutions."""
ADD_RATIO = (2.0**-10, 2.0**8)
"""XNNPACK's range of input scale / output scale, for Add, Sub and means."""
MULTIPLY_RATIO = (2.0**-16, 2.0**8)
"""XNNPACK's range of first scale * second scale / output scale, for Mul."""

MAX_TERMS = (2**31 - 1) // (255 * 128)
"""Accumulator headroom: the largest K whose sum of u8 · s8 surely stays below 2³¹, 65,793."""

MAX_TERMS_WITH_ZERO_POINTS = (2**31 - 1) // (255 * 255)
"""The same where weights have zero points and need 9 bits: 33,025."""


class UnfitError(BackendError):
    """Constants that a kernel does not compute correctly; XNNPACK does not report most of them."""


@dataclass(frozen=True)
class Quantization:
    """Per-tensor scale and zero point of an int8 tensor.

    Attributes:
        scale: positive, finite and normal; a float32 number.
        zero_point: the byte that represents 0, in [-128, 127].
    """

    scale: float
    zero_point: int

    def check(self) -> None:
        """Raise `UnfitError` for values that XNNPACK does not support."""
        if not (math.isfinite(self.scale) and self.scale >= SMALLEST_SCALE):
            raise UnfitError(f"scale {self.scale} is not a positive, finite, normal number")
        if not LOW <= self.zero_point <= HIGH:
            raise UnfitError(f"zero point {self.zero_point} is not in [{LOW}, {HIGH}]")


@dataclass(frozen=True)
class Requantized:
    """Requantization: the quantizations of a matmul's or convolution's input and output.

    Attributes:
        input: quantization of the input.
        output: quantization of the output.
        limits: clipping range of the output, as bytes.
    """

    input: Quantization
    output: Quantization
    limits: tuple[int, int] = (LOW, HIGH)

    def check(self) -> None:
        """Raise `UnfitError` for values that XNNPACK does not support."""
        self.input.check()
        self.output.check()
        low, high = self.limits
        # XNNPACK refuses a range of a single byte.
        if not LOW <= low < high <= HIGH:
            raise UnfitError(f"the output is clamped to [{low}, {high}]")


@dataclass(frozen=True)
class AddS8:
    """Quantized Add of two int8 tensors, in the integer arithmetic of XNNPACK's ``vadd``.

    ``out = clamp((a · own + b · other + bias >> shift) + zero, *limits)``

    Attributes:
        own: multiplier of the first operand.
        other: multiplier of the second operand.
        bias: the zero points' part, plus one half for rounding.
        shift: bits of the right shift.
        zero: zero point of the result.
        limits: clipping range of the result, as bytes.
    """

    own: int
    other: int
    bias: int
    shift: int
    zero: int
    limits: tuple[int, int]

    @classmethod
    def of(
        cls,
        first: Quantization,
        second: Quantization,
        output: Quantization,
        limits: tuple[int, int],
    ) -> AddS8:
        """Return the multipliers for these quantizations; the larger one has 21 bits."""
        ratios = [np.float32(x.scale) / np.float32(output.scale) for x in (first, second)]
        shift = 21 - math.frexp(max(ratios))[1]
        own, other = (round(math.ldexp(float(ratio), shift)) for ratio in ratios)
        bias = (1 << shift - 1) - own * first.zero_point - other * second.zero_point
        return cls(own, other, bias, shift, output.zero_point, limits)

    def swapped(self) -> AddS8:
        """Return the same Add with its operands swapped."""
        return dataclasses.replace(self, own=self.other, other=self.own)


def check_ratio(what: str, ratio: float, limits: tuple[float, float]) -> None:
    """Raise `UnfitError` where a ratio of scales is not in [low, high)."""
    low, high = limits
    if not low <= ratio < high:
        raise UnfitError(f"{what} is {ratio:.4g}, and not in [{low:.4g}, {high:.4g})")


def check_accumulator_headroom(terms: int, what: str, zeros: Array | None = None) -> None:
    """Raise `UnfitError` where int32 accumulators of K = `terms` may overflow.

    Args:
        terms: K.
        what: what K counts, for the message.
        zeros: zero points of the weights; None where all are 0.
    """
    if zeros is None and terms > MAX_TERMS:
        raise UnfitError(f"accumulators of {terms} {what} may not fit 32 bits")
    if zeros is not None and terms > MAX_TERMS_WITH_ZERO_POINTS:
        raise UnfitError(f"accumulators of {terms} {what} with zero points may not fit 32 bits")


def zero_points(matrix: Quantized, outputs: int) -> Array | None:
    """Return the zero point of each output channel as int32; None where all are 0.

    Raises:
        UnfitError: their number is neither 1 nor that of the output channels.
    """
    zero = matrix.zero
    if zero is None:
        return None
    if zero.size not in (1, outputs):
        raise UnfitError(f"it has {zero.size} zero points for {outputs} outputs")
    array = zero.array().reshape(-1).astype(np.int32)
    if not array.any():
        return None
    return array if array.size == outputs else np.repeat(array, outputs)


def checked_integers(weight: Weight) -> Weight:
    """Return the same weights; `UnfitError` is raised when they are loaded, if one is out of range.

    It is -128 that kernels of some processors do not multiply exactly; see `LEAST_WEIGHT`.
    """

    def check(array: Array) -> None:
        if array.size and array.min() < LEAST_WEIGHT:
            raise UnfitError("a weight is -128")

    return weight.checked(check)


def checked_scales(matrix: Quantized, outputs: int, axis: int, *, zeros: bool = False) -> Weight:
    """Return a scale for each output channel; elements are checked when they are loaded.

    Args:
        matrix: the weights.
        outputs: the number of output channels.
        axis: the axis of output channels.
        zeros: whether the kernel corrects for zero points of weights; else they must be 0.

    Raises:
        UnfitError: scales of another type or number, or along another axis.
    """
    scale, zero = matrix.scale, matrix.zero
    if scale.dtype != np.float32:
        raise UnfitError(f"its scales are {scale.dtype.name}")
    counts = {scale.size} if zero is None else {scale.size, zero.size}
    if not counts <= {1, outputs}:
        raise UnfitError(f"it has {max(counts)} scales or zero points for {outputs} outputs")
    if counts != {1} and matrix.axis != axis:
        raise UnfitError("its scales are of its input channels")

    def load() -> Array:
        if not zeros and zero is not None and zero.array().any():
            raise UnfitError("a zero point is not 0")
        array = scale.array().reshape(-1)
        if not (np.isfinite(array) & (array >= SMALLEST_SCALE)).all():
            raise UnfitError("a scale is not a positive, finite, normal number")
        return np.repeat(array, outputs) if array.size != outputs else array

    parts = [part.identity for part in (scale, zero) if part is not None]
    identity = digest("scales", outputs, *parts) if all(parts) else ""
    return Weight((outputs,), scale.dtype, identity, load, scale.drop)


def checked_requantization(scales: Weight, requantized: Requantized) -> Weight:
    """Return the same scales; loading them raises `UnfitError` for a ratio outside `MATMUL_RATIO`.

    Our own kernels have no such limit, but which models run must not depend on the processor.
    """
    step = requantized.input.scale / requantized.output.scale

    def check(array: Array) -> None:
        for extreme in (array.min(), array.max()):
            check_ratio(
                "input scale * weight scale / output scale", float(extreme) * step, MATMUL_RATIO
            )

    return scales.checked(check)


def requantization_factors(scales: Weight, requantized: Requantized) -> Weight:
    """Return input scale * weight scale / output scale of each output channel."""
    scales = checked_requantization(scales, requantized)
    in_scale, out_scale = (
        np.float32(each.scale) for each in (requantized.input, requantized.output)
    )

    def load() -> Array:
        array: Array = in_scale * scales.array() / out_scale
        return array

    known = scales.identity
    identity = digest("requantizing", known, in_scale, out_scale) if known else ""
    return Weight(scales.shape, scales.dtype, identity, load, scales.drop)


def bias_over_scales(bias: Weight, scales: Weight) -> Weight:
    """Return bias / scale, for kernels that multiply accumulator + bias by the scale."""

    def load() -> Array:
        array, divisors = bias.array(), scales.array()
        with np.errstate(over="ignore"):
            result: Array = array / divisors
        if not np.isfinite(result[np.isfinite(array)]).all():
            raise UnfitError("a bias is too large for its scale")
        return result

    parts = bias.identity, scales.identity
    identity = digest("divided", *parts) if all(parts) else ""
    return Weight(bias.shape, bias.dtype, identity, load, bias.drop)
