"""Which kernels compute convolutions of float32 here.

XNNPACK computes all of them, windows of 1 x 1 too, with a tile of 5 x 16. In the build that is
bundled, the one for AVX2 keeps one of its ten sums in memory: each step waits for a store and a
load, and a core of a Zen 3 at 3.2 GHz does 32 to 35 billion operations a second. The tile of its
products of matrices has all sums in registers, and does 70 to 96 of the 103 that there are. What
runs on AVX-512 or Neon are other tiles.
"""

from __future__ import annotations

import functools

from narrowpass_xnn_cpu.native import cpu
from narrowpass_xnn_cpu.native.operators.convolution import Movement


@functools.cache
def windows_are_slow() -> bool:
    """Tell whether XNNPACK's convolutions are much slower than its products here."""
    flags = cpu.flags()
    return {"avx2", "fma"} <= flags and "avx512f" not in flags


def is_product(window: tuple[int, int], movement: Movement) -> bool:
    """Tell whether a convolution is better a product of its pixels with a matrix."""
    moved = any(movement.pads) or max(movement.strides) > 1
    return window == (1, 1) and movement.groups == 1 and not moved and windows_are_slow()
