"""Operators that take int8 and give int8, or float32.

A byte q of a tensor stands for ``scale · (q - zero_point)``. Sums are exact: int32 in steps of
the input's scale times the weight's, to which a bias of the same steps is added. What comes of
them is at most one step off the rounded real number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from narrowpass_planning.weights.weight import Array, Quantized, Weight
from narrowpass_xnn_cpu.native.operators.quantized import (
    SMALLEST_SCALE,
    UnfitError,
    checked_integers,
    checked_scales,
)

LOW, HIGH = -128, 127

PRODUCT_RATIO = (2.0**-32, 2.0**8)
"""What the input's scale times the weight's over the output's must be in."""
SUM_RATIO = (2.0**-10, 2.0**8)
"""The same of each operand's scale over that of a sum or difference."""
MULTIPLY_RATIO = (2.0**-16, 2.0**8)
"""The same of the scales of two factors over that of their product."""


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
    """From what a product or convolution comes, and to what.

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


def check_ratio(what: str, ratio: float, limits: tuple[float, float]) -> None:
    """Raise `UnfitError` where a ratio of scales is not within limits; the upper one excluded."""
    low, high = limits
    if not low <= ratio < high:
        raise UnfitError(f"{what} is {ratio:.4g}, and not in [{low:.4g}, {high:.4g})")


def checked_constants(kernel: Quantized, outputs: int, axis: int) -> tuple[Weight, Weight]:
    """Give integers and a scale for each output; looked at when they are made."""
    return checked_integers(kernel.integers), checked_scales(kernel, outputs, axis)


def fitting(scales: Weight, requantized: Requantized) -> Weight:
    """Give scales of weights that are looked at against those of input and output.

    Making them raises `UnfitError` where a ratio is not one that XNNPACK takes: what fits is the
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
