"""Which convolutions Winograd's algorithm computes at all."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_xnn_cpu.native.problems.convolution import Movement

MOST_INT8_CHANNELS = (1 << 29) // (9 * 255 * 128)
"""Four times the accumulators of int8, which come before them, fit 32 bits: 1842 channels."""


def fits_winograd(kernel: Sequence[int], movement: Movement) -> bool:
    """Return whether a kernel [O, KH, KW, C] is 3 x 3, of stride 1, in one group."""
    return len(kernel) == 4 and tuple(kernel[1:3]) == (3, 3) and movement.is_plain
