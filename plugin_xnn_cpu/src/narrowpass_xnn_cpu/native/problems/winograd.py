"""Limits of Winograd convolution: kernel sizes, strides, accumulator headroom."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes

MAX_INT8_CHANNELS = (1 << 29) // (9 * 255 * 128)
"""Headroom: F(2 x 2, 3 x 3) scales int32 accumulators by 4, which fits up to 1842 channels."""


def fits_winograd(kernel: Sequence[int], attributes: ConvAttributes) -> bool:
    """Return whether a kernel [O, KH, KW, C] is 3 x 3, of stride 1, in one group."""
    return len(kernel) == 4 and tuple(kernel[1:3]) == (3, 3) and attributes.is_plain
