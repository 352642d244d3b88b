"""Constants of int8: scales, zero points, accumulator headroom, and which of them are unfit.

A byte q of a tensor stands for ``scale · (q - zero_point)``. Accumulators are int32, in steps of
the input's scale times the weight's, to which a bias of the same steps is added; requantized, they
are at most one step off the rounded real number. Sizes are checked at once; elements are checked
when they are loaded to be packed, so that what is found packed is not read.
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

XNNPACK's kernels for x86, and ours, widen each multiplication to 32 bits. Some of those for ARM add
two of bytes in 16 bits, where 2 · 128 · 128 is one too many."""

SMALLEST_SCALE = 2.0**-126
"""The least normal float32: XNNPACK takes no smaller scale."""

PRODUCT_RATIO = (2.0**-32, 2.0**8)
"""The range of the input's scale times the weight's over the output's."""
SUM_RATIO = (2.0**-10, 2.0**8)
"""The same of each operand's scale over that of a sum or difference."""
MULTIPLY_RATIO = (2.0**-16, 2.0**8)
"""The same of the scales of two factors over that of their product."""

MOST_CHANNELS = (2**31 - 1) // (255 * 128)
"""The headroom: terms of an accumulator that surely stay below 2³¹, 65,793."""

MOST_TERMS = (2**31 - 1) // (255 * 255)
"""The same where weights have zero points: 33,025."""


class UnfitError(BackendError):
    """Constants that a kernel would compute wrongly with, and XNNPACK does not refuse."""


@dataclass(frozen=True)
class Quantization:
    """How a tensor of int8 is to be read.

    Attributes:
        scale: positive, finite and normal; a float32 number.
        zero_point: the byte that stands for 0, in [-128, 127].
    """

    scale: float
    zero_point: int

    def check(self) -> None:
        """Raise `UnfitError` for what XNNPACK does not compute rightly with."""
        if not (math.isfinite(self.scale) and self.scale >= SMALLEST_SCALE):
            raise UnfitError(f"scale {self.scale} is not a positive, finite, normal number")
        if not LOW <= self.zero_point <= HIGH:
            raise UnfitError(f"zero point {self.zero_point} is not in [{LOW}, {HIGH}]")


@dataclass(frozen=True)
class Requantized:
    """The quantizations of a matmul's or convolution's input and output.

    Attributes:
        given: of the input.
        made: of the output.
        limits: bytes that the output is clamped to.
    """

    given: Quantization
    made: Quantization
    limits: tuple[int, int] = (LOW, HIGH)

    def check(self) -> None:
        """Raise `UnfitError` for what XNNPACK does not compute rightly with."""
        self.given.check()
        self.made.check()
        low, high = self.limits
        # XNNPACK takes no empty range; the lowest and the highest byte alone are one each.
        if not LOW <= low < high <= HIGH:
            raise UnfitError(f"the output is clamped to [{low}, {high}]")


@dataclass(frozen=True)
class SumS8:
    """The sum of two tensors of int8, as XNNPACK computes it: with integers.

    ``out = clamp((a · own + b · other + bias >> shift) + zero, *limits)``

    Attributes:
        own: factor of the first operand.
        other: factor of the second one.
        bias: added to both, with what rounds.
        shift: bits that are dropped.
        zero: of the result.
        limits: bytes that it is clamped to.
    """

    own: int
    other: int
    bias: int
    shift: int
    zero: int
    limits: tuple[int, int]

    @classmethod
    def of(
        cls, first: Quantization, second: Quantization, made: Quantization, limits: tuple[int, int]
    ) -> SumS8:
        """Return the sum of tensors of these quantizations; the larger factor has 21 bits."""
        ratios = [np.float32(x.scale) / np.float32(made.scale) for x in (first, second)]
        shift = 21 - math.frexp(max(ratios))[1]
        own, other = (round(math.ldexp(float(ratio), shift)) for ratio in ratios)
        bias = (1 << shift - 1) - own * first.zero_point - other * second.zero_point
        return cls(own, other, bias, shift, made.zero_point, limits)

    def turned(self) -> SumS8:
        """Return the sum with its operands in the other order."""
        return dataclasses.replace(self, own=self.other, other=self.own)


def check_ratio(what: str, ratio: float, limits: tuple[float, float]) -> None:
    """Raise `UnfitError` where a ratio of scales is not within limits; the upper one excluded."""
    low, high = limits
    if not low <= ratio < high:
        raise UnfitError(f"{what} is {ratio:.4g}, and not in [{low:.4g}, {high:.4g})")


def check_terms(terms: int, what: str, zeros: Array | None = None) -> None:
    """Raise `UnfitError` where accumulators of so many terms may not fit 32 bits.

    `zeros` are the zero points of the weights, None where all are 0.
    """
    if zeros is None and terms > MOST_CHANNELS:
        raise UnfitError(f"sums over {terms} {what} may not fit 32 bits")
    if zeros is not None and terms > MOST_TERMS:
        raise UnfitError(f"sums over {terms} {what} with zero points may not fit 32 bits")


def zero_points(matrix: Quantized, outputs: int) -> Array | None:
    """Return the zero point of each output as int32; None where all are 0.

    Raises:
        UnfitError: there are as many as neither one nor the outputs.
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
    """Return integers that are checked when they are loaded; of the same name.

    Loading them raises `UnfitError` where one is -128 and kernels of this processor need -127.
    """

    def make() -> Array:
        array = np.ascontiguousarray(weight.compute())
        if array.size and array.min() < LEAST_WEIGHT:
            raise UnfitError("a weight is -128")
        return array

    return dataclasses.replace(weight, compute=make)


def checked_scales(matrix: Quantized, outputs: int, axis: int, *, zeros: bool = False) -> Weight:
    """Return a scale for each output; checked, with the zero points, when they are loaded.

    Args:
        matrix: of weights.
        outputs: how many there are.
        axis: of the weights, along which they are.
        zeros: whether zero points other than 0 are fit: for a kernel that corrects for them.

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

    def make() -> Array:
        if not zeros and zero is not None and zero.array().any():
            raise UnfitError("a zero point is not 0")
        array = scale.array().reshape(-1)
        if not (np.isfinite(array) & (array >= SMALLEST_SCALE)).all():
            raise UnfitError("a scale is not a positive, finite, normal number")
        return np.repeat(array, outputs) if array.size != outputs else array

    parts = [part.identity for part in (scale, zero) if part is not None]
    identity = digest("scales", outputs, *parts) if all(parts) else ""
    return Weight((outputs,), scale.dtype, identity, make, scale.drop)


def fitting(scales: Weight, requantized: Requantized) -> Weight:
    """Return scales of weights that are checked against those of input and output.

    Loading them raises `UnfitError` where a ratio is not one that XNNPACK takes: what fits is the
    same on all processors.
    """
    step = requantized.given.scale / requantized.made.scale

    def make() -> Array:
        array = scales.array()
        for extreme in (array.min(), array.max()):
            check_ratio(
                "input scale * weight scale / output scale", float(extreme) * step, PRODUCT_RATIO
            )
        return array

    return Weight(scales.shape, scales.dtype, scales.identity, make, scales.drop)


def requantizing(scales: Weight, requantized: Requantized) -> Weight:
    """Return the requantization factors of accumulators, from the scales of the weights."""
    scales = fitting(scales, requantized)
    given, made = np.float32(requantized.given.scale), np.float32(requantized.made.scale)

    def make() -> Array:
        array: Array = given * scales.array() / made
        return array

    known = scales.identity
    identity = digest("requantizing", known, given, made) if known else ""
    return Weight(scales.shape, scales.dtype, identity, make, scales.drop)


def divided(bias: Weight, scales: Weight) -> Weight:
    """Return a bias in steps of the scales: as it is added before accumulators are scaled."""

    def make() -> Array:
        array, divisors = bias.array(), scales.array()
        with np.errstate(over="ignore"):
            result: Array = array / divisors
        if not np.isfinite(result[np.isfinite(array)]).all():
            raise UnfitError("a bias is too large for its scale")
        return result

    parts = bias.identity, scales.identity
    identity = digest("divided", *parts) if all(parts) else ""
    return Weight(bias.shape, bias.dtype, identity, make, bias.drop)
