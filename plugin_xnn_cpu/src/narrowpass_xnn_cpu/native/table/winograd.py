"""When Winograd's algorithm pays for a convolution of float32, and with which tiles.

It takes 2.25 times fewer multiplications with tiles of 2 x 2 and 4 times fewer with those of 4 x 4,
as far as tiles do not reach over the border; weights take 1.8 and 4 times the memory. Four times
that is worth it where many tiles share the weights, and not where each of them is read from memory
for a few: so the choice is made from sizes, by the time that each way takes at least. That is the
time to multiply or to read the weights, whichever is longer, since they are prefetched; and that
to transform tiles and results.

A height or width that is known at run time only counts as that of such a layer in a common network:
the more channels, the smaller the image. Any size is computed rightly by either way.
"""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_xnn_cpu.native.problems.convolution import Convolution, Image, Movement
from narrowpass_xnn_cpu.native.problems.winograd import MOST_INT8_CHANNELS, fits_winograd

TILES = 2, 4
"""Outputs of a tile, down and along."""

_RATE = {8: 64e9, 16: 135e9}
"""Multiplications and additions a second, on one core, of long accumulators, by lanes."""
_START = 12
"""What each accumulator takes beside its inputs, in these: it is started and written."""
_READ = 11e9
"""Bytes of weights a second, from memory."""
_TRANSFORMED = 8e9
"""Elements of tiles, or of their results, that are transformed a second."""
_GAIN = 1.15
"""How many times faster it must be: it rounds more, and takes more memory."""
_COMMON = 2560
"""Pixels along an image times channels, where a size is not known: 40 of 64 channels, 10 of 256, as
a detector has them for 320 x 320."""
_LEAST, _MOST = 8, 80
"""Of pixels along an image whose size is not known."""

_LARGEST_INT8 = 1 << 17
"""Inputs times outputs up to which it pays for int8: weights take 3.6 times the memory, and larger
ones are read from it longer than it takes to multiply."""
_LEAST_INT8 = 32
"""Inputs from which it pays to transform tiles of int8."""
_INT8_COLUMNS = 16
"""Of a panel of pairs of int8."""


def tile_for(kernel: Sequence[int], movement: Movement, image: Image | None, lanes: int) -> int:
    """Return the tile that a convolution is computed by fastest; 0 for none at all.

    Args:
        kernel: its shape, [O, KH, KW, C].
        movement: of its kernel window.
        image: of its input; None where nothing is known of it. It is computed without tiles then.
        lanes: of float32.
    """
    if image is None or not fits_winograd(kernel, movement):
        return 0
    outputs, _, _, inputs = kernel
    common = max(_LEAST, min(_MOST, _COMMON // max(inputs, outputs)))
    batch, height, width = (common if size is None else size for size in image)
    top, left, bottom, right = movement.pads
    size = height + top + bottom - 2, width + left + right - 2
    if min(size) < 1:
        return 0
    pixels = batch * size[0] * size[1]
    best, chosen = _multiplying(pixels, 9 * inputs, 1, outputs, lanes) / _GAIN, 0
    for tile in TILES:
        count = batch * -(-size[0] // tile) * -(-size[1] // tile)
        elements = (tile + 2) ** 2
        seconds = _multiplying(count, inputs, elements, outputs, lanes)
        seconds += count * elements * (inputs + outputs) / _TRANSFORMED
        if seconds < best:
            best, chosen = seconds, tile
    return chosen


def _multiplying(rows: int, inputs: int, matrices: int, outputs: int, lanes: int) -> float:
    """Return the seconds of GEMMs of as many rows with each of some matrices."""
    work = 2.0 * rows * matrices * outputs * (inputs + _START)
    return max(work / _RATE[lanes], 4.0 * matrices * inputs * outputs / _READ)


def pays_for_int8(problem: Convolution) -> bool:
    """Return whether a convolution of int8 by pairs is faster with transformed tiles of 2 x 2."""
    if not fits_winograd(problem.shape, problem.movement):
        return False
    outputs, _, _, inputs = problem.shape
    whole = inputs % _INT8_COLUMNS == 0 and outputs % _INT8_COLUMNS == 0
    fits = _LEAST_INT8 <= inputs <= MOST_INT8_CHANNELS
    return whole and fits and inputs * outputs <= _LARGEST_INT8
