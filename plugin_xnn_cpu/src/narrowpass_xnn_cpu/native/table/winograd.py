"""Cost model: whether a 3 x 3 convolution is faster by Winograd's algorithm, and with which tiles.

F(2 x 2, 3 x 3) needs 2.25 times and F(4 x 4, 3 x 3) 4 times fewer multiplications, except in tiles
that cross the border; transformed weights have 1.8 and 4 times the bytes. That pays where many
tiles share the weights, and not where weights are read from memory for a few tiles. So the estimate
of each algorithm is a lower bound of its time: the maximum of arithmetic and of reading the
weights, which are prefetched, plus the transforms.

A height or width that is known at run time only is taken as that of such a layer in a common
network: the more channels, the smaller the image. Results are correct for any size.
"""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_xnn_cpu.native.problems.convolution import (
    MAX_INT8_CHANNELS,
    ConvAttributes,
    Convolution,
    Image,
    fits_winograd,
)

TILES = 2, 4
"""m of F(m x m, 3 x 3)."""

_RATE = {8: 64e9, 16: 135e9}
"""Multiplications and additions a second of one core for a large K, by SIMD lanes."""
_START = 12
"""The cost of initializing and storing an accumulator, in steps of K."""
_READ = 11e9
"""Bytes of weights a second, from memory."""
_TRANSFORMED = 8e9
"""Elements of input and output tiles that are transformed in a second."""
_GAIN = 1.15
"""The speedup that is required: Winograd rounds more, and needs more memory."""
_COMMON = 2560
"""Pixels along an image times channels, where a size is not known: 40 of 64 channels, 10 of 256, as
a detector has them for 320 x 320."""
_LEAST, _MOST = 8, 80
"""Limits of the height and width of an image whose size is not known."""

_LARGEST_INT8 = 1 << 17
"""Weights of a tap (C x O) up to which it pays for int8: transformed weights have 3.6 times the
bytes,
and reading larger ones takes longer than the arithmetic."""
_LEAST_INT8 = 32
"""Input channels from which it pays for int8."""
_INT8_COLUMNS = 16
"""NR of int8 pairs, of which channels must be multiples."""


def tile_for(
    kernel: Sequence[int], attributes: ConvAttributes, image: Image | None, lanes: int
) -> int:
    """Return m of the fastest F(m x m, 3 x 3); 0 where the implicit GEMM is faster.

    Args:
        kernel: the kernel's shape, [O, KH, KW, C].
        attributes: pads, strides, dilations and groups.
        image: sizes of the input; None where they are not known, which returns 0.
        lanes: SIMD lanes of float32.
    """
    if image is None or not fits_winograd(kernel, attributes):
        return 0
    outputs, _, _, inputs = kernel
    common = max(_LEAST, min(_MOST, _COMMON // max(inputs, outputs)))
    batch, height, width = (common if size is None else size for size in image)
    top, left, bottom, right = attributes.pads
    size = height + top + bottom - 2, width + left + right - 2
    if min(size) < 1:
        return 0
    pixels = batch * size[0] * size[1]
    best, chosen = _gemm_seconds(pixels, 9 * inputs, 1, outputs, lanes) / _GAIN, 0
    for tile in TILES:
        count = batch * -(-size[0] // tile) * -(-size[1] // tile)
        elements = (tile + 2) ** 2
        seconds = _gemm_seconds(count, inputs, elements, outputs, lanes)
        seconds += count * elements * (inputs + outputs) / _TRANSFORMED
        if seconds < best:
            best, chosen = seconds, tile
    return chosen


def _gemm_seconds(rows: int, inputs: int, matrices: int, outputs: int, lanes: int) -> float:
    """Return the seconds of `matrices` GEMMs of [rows, inputs] and [inputs, outputs]."""
    work = 2.0 * rows * matrices * outputs * (inputs + _START)
    return max(work / _RATE[lanes], 4.0 * matrices * inputs * outputs / _READ)


def pays_for_int8(problem: Convolution) -> bool:
    """Return whether an int8 convolution without VNNI is faster by F(2 x 2, 3 x 3)."""
    if not fits_winograd(problem.shape, problem.attributes):
        return False
    outputs, _, _, inputs = problem.shape
    whole = inputs % _INT8_COLUMNS == 0 and outputs % _INT8_COLUMNS == 0
    fits = _LEAST_INT8 <= inputs <= MAX_INT8_CHANNELS
    return whole and fits and inputs * outputs <= _LARGEST_INT8
