"""Convolutions of int8 by 3 x 3 with fewer multiplications; see ``csrc/winograd/int8.c``."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import checked_shape
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.int8 import Requantized
from narrowpass_xnn_cpu.native.operators.tiled_windows import TiledWindowsS8, sizes_of
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight

_ELEMENTS = 16
"""Of a transformed tile: NP_INT8_TILE."""
_MOST_CHANNELS = (1 << 29) // (9 * 255 * 128)
"""Four times the sums, which come before them, fit 32 bits: 1842 channels."""
_BLOCK_BYTES = 100_000
"""Of transformed tiles; beside a panel of weights they stay in the second cache."""
_LARGEST = 1 << 17
"""Products of inputs and outputs up to which it pays: weights take 3.6 times the memory, and larger
ones are read from it longer than it takes to multiply."""
_LEAST = 32
"""Inputs from which it pays to transform tiles."""


def fits_winograd(kernel: Quantized, movement: Movement) -> bool:
    """Tell whether `WinogradConvolutionS8` takes a convolution, and is the faster one."""
    outputs, height, width, inputs = kernel.integers.shape
    steps = (*movement.strides, *movement.dilations, movement.groups)
    if (height, width) != (3, 3) or any(step != 1 for step in steps):
        return False
    whole = inputs % tiled.COLUMNS == 0 and outputs % tiled.COLUMNS == 0
    return whole and _LEAST <= inputs <= _MOST_CHANNELS and inputs * outputs <= _LARGEST


class WinogradConvolutionS8(TiledWindowsS8):
    """A convolution by 3 x 3, of stride 1, over [N, H, W, C] of int8; see `ConvolutionS8`.

    Args:
        kernel: int8 [O, 3, 3, C], of multiples of 16 channels and outputs; scales of axis 0.
        bias: int32 [O], or None.
        movement: of the window; its limits are not used.
        requantized: of input and output.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

    call = "NP_INT8_WINOGRAD"

    def __init__(
        self,
        kernel: Quantized,
        bias: Weight | None,
        movement: Movement,
        requantized: Requantized,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__(movement, requantized)
        outputs, height, width, inputs = checked_shape(kernel.integers.shape, 4)
        steps = (*movement.strides, *movement.dilations, movement.groups)
        odd = inputs % tiled.COLUMNS or outputs % tiled.COLUMNS or inputs > _MOST_CHANNELS
        if (height, width) != (3, 3) or any(step != 1 for step in steps) or odd:
            raise BackendError(f"a kernel of {list(kernel.integers.shape)} has no fast algorithm")
        self.channels, self.outputs = inputs, outputs
        lib = self._lib
        self._pack_windows(
            session,
            (),
            kernel,
            bias,
            9 * inputs,
            0,
            lib.np_int8_winograd_packed_size(outputs, inputs),
            lambda block, k, b, s: lib.np_int8_pack_winograd(outputs, inputs, k, b, s, block),
        )

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        image, out = self._image(shape, (3, 3))
        batch, _, _, channels = image
        tiles = -(-out[0] // 2), -(-out[1] // 2)
        # As many tiles as fit are multiplied at a time, and a band of rows makes a few such blocks.
        block = max(1, _BLOCK_BYTES // (2 * _ELEMENTS * channels))
        block = max(tiled.ROWS, block // tiled.ROWS * tiled.ROWS)
        wide_width = 2 * tiles[1] + 2
        row_bytes = 2 * wide_width * channels
        most = max((tiled.BAND_BYTES // row_bytes - 2) // 2, -(-block // tiles[1]))
        if pool.threads > 1:
            most = min(most, -(-tiles[0] * batch // pool.threads))
        band, bands = tiled.even_bands(tiles[0], most)
        count = band * tiles[1]
        block = min(block, -(-count // tiled.ROWS) * tiled.ROWS)
        columns, parts = tiled.column_parts(self.outputs, batch * bands, pool.threads)
        wide = tiled.checked_elements((2 * band + 2) * wide_width * channels)
        tiles_offset = tiled.line(2 * wide)
        sums = tiles_offset + tiled.line(2 * tiled.checked_elements(_ELEMENTS * block * channels))
        pixels = sums + 4 * _ELEMENTS * block * tiled.COLUMNS
        scratch = pixels + tiled.line(4 * block)
        self.workspace = pool.threads * scratch
        given = {
            **sizes_of(image, out),
            "outputs": self.outputs,
            "pads": tuple(self._movement.pads[:2]),
            "tiles": tiles,
            "row_tile": band,
            "row_tiles": bands,
            "block": block,
            "parts": parts,
            "part_columns": columns,
            "tiles_offset": tiles_offset,
            "sums_offset": sums,
            "pixels_offset": pixels,
            "thread_scratch": scratch,
            **self._requantization(),
        }
        self.params = self._ffi.new("struct np_int8_winograd_params *", given)
        return out
