"""Convolutions of float32 by 3 x 3 with fewer multiplications; see ``csrc/winograd/fp32.c``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import checked_weights
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.quantized import UnfitError
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import Fp32, lanes
from narrowpass_xnn_cpu.native.operators.tiled_windows import Windows, sizes_of
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Array, Weight

TILES = 2, 4
"""Outputs of a tile, down and along."""
LARGEST_WEIGHT = 2.0**48
"""Above this, products with inputs that are no larger might overflow before they are transformed
back."""

_BLOCK_BYTES = {8: 3 << 17, 16: 1 << 20}
"""Of transformed tiles and their products with a panel, by lanes: about the second cache."""
_ROWS = 24
"""Tiles that are multiplied with each weight that is read, at least, where there are as many."""
_LINE = 16
"""Floats of a cache line, and of the longest register."""


def fits_winograd(kernel: Sequence[int], movement: Movement) -> bool:
    """Tell whether `WinogradConvolution` takes a kernel of [O, KH, KW, C]."""
    steps = (*movement.strides, *movement.dilations, movement.groups)
    return tuple(kernel[1:3]) == (3, 3) and all(step == 1 for step in steps)


class WinogradConvolution(Fp32):
    """A convolution by 3 x 3, of stride 1, over [N, H, W, C]; see `TiledConvolution`.

    Args:
        kernel: float32 [O, 3, 3, C].
        bias: float32 [O], or None.
        movement: of the window; without strides, dilations and groups.
        tile: outputs that are computed together, down and along; one of `TILES`.
        epilogue: what becomes of sums; None to clamp them to the limits of `movement`.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: weights that are not finite, or above `LARGEST_WEIGHT`.
        BackendError: what is not valid otherwise.
    """

    call = "NP_FP32_WINOGRAD"
    layout = "NP_FP32_WINOGRAD_LAYOUT"

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        movement: Movement,
        tile: int,
        epilogue: Epilogue | None = None,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        windows = Windows.of(kernel.shape, movement)
        if tile not in TILES or not fits_winograd(kernel.shape, movement):
            raise BackendError(f"a kernel of {list(kernel.shape)} has no tiles of {tile} x {tile}")
        inputs, outputs = windows.channels, windows.outputs
        checked_weights(kernel, bias, outputs, "float32", "float32")
        self._windows = windows
        self.channels, self.outputs = inputs, outputs
        self.name = f"winograd {tile}x{tile} convolution"
        self._tile = tile
        self.epilogue = Epilogue(limits=movement.limits) if epilogue is None else epilogue
        self._lanes = lanes()
        lib = self._lib
        self._panels = int(lib.np_fp32_panels(self._lanes, outputs))
        sizes = self._lanes, tile, outputs, inputs
        self._pack_own(
            session,
            sizes,
            _checked(kernel),
            bias,
            None,
            lib.np_fp32_winograd_packed_size(*sizes),
            lambda block, k, b, _: lib.np_fp32_winograd_pack(*sizes, k, b, block),
        )

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        image, out = self._windows.over(shape)
        batch, _, _, channels = image
        tiles = -(-out[0] // self._tile), -(-out[1] // self._tile)
        count = batch * tiles[0] * tiles[1]
        elements = (self._tile + 2) ** 2
        row = -(-channels // _LINE) * _LINE
        vectors = -(-self.outputs // self._lanes)
        columns = -(-vectors // self._panels) * self._lanes  # of the widest panel
        room = _BLOCK_BYTES[self._lanes] // (4 * elements * (row + columns))
        blocks = -(-count // max(_ROWS, room))
        parts = 1
        if blocks < pool.threads:
            # Panels are divided first: each weight is then still read by one thread alone.
            parts = min(self._panels, -(-pool.threads // blocks))
            blocks = max(blocks, min(-(-count // (_ROWS // 2)), -(-pool.threads // parts)))
        elif blocks < 4 * pool.threads:
            blocks = min(count, -(-blocks // pool.threads) * pool.threads)
        block = -(-count // blocks)
        # An odd number of lines from one element to the next: they do not fall onto each other in
        # the first cache.
        stride, sums = _odd_lines(block * row), _odd_lines(block * columns)
        tiled.checked_elements(stride)
        sums_offset = 4 * elements * stride
        zeros = sums_offset + 4 * elements * sums
        rows = zeros + tiled.line(4 * row)
        scratch = rows + tiled.line(4 * block)
        self.workspace = pool.threads * scratch
        given = {
            "packed": self._packed_weights,
            "lanes": self._lanes,
            "tile": self._tile,
            **sizes_of(image, out),
            "outputs": self.outputs,
            "pads": tuple(self._windows.movement.pads[:2]),
            "tiles": tiles,
            "blocks": blocks,
            "parts": parts,
            "row_stride": row,
            "element_stride": stride,
            "sums_stride": sums,
            "epilogue": self.epilogue.params(),
            "target": tiled.target(),
            "sums_offset": sums_offset,
            "zeros_offset": zeros,
            "rows_offset": rows,
            "thread_scratch": scratch,
        }
        self.params = self._ffi.new("struct np_fp32_winograd_params *", given)
        return out


def _odd_lines(floats: int) -> int:
    """Round up to whole cache lines, an odd number of them."""
    return (-(-floats // _LINE) | 1) * _LINE


def _checked(kernel: Weight) -> Weight:
    """Give weights that are looked at when they are made; of the same name."""

    def make() -> Array:
        array = np.ascontiguousarray(kernel.make())
        if not np.abs(array).max(initial=0) <= LARGEST_WEIGHT:  # NaN is not either
            raise UnfitError(f"a weight is not finite, or above {LARGEST_WEIGHT}")
        return array

    return dataclasses.replace(kernel, make=make)
