"""Depthwise convolutions of int8 by our own kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import Shape, checked_shape
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.int8 import Requantized
from narrowpass_xnn_cpu.native.operators.tiled_windows import TiledWindowsS8, reaches, sizes_of
from narrowpass_xnn_cpu.native.operators.zero_points import zero_points
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session, pointer
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight

_BLOCK_BYTES = 1 << 15
"""What a thread widens of 16 channels at a time; it stays in the first cache for the most part."""
_QUAD_PIXEL = 256
"""Bytes of 64 channels of four pixels: NP_INT8_VNNI_PIXEL."""


class TiledDepthwiseS8(TiledWindowsS8):
    """A depthwise 2-D convolution over [N, H, W, C] of int8; see `ConvolutionS8`.

    Args:
        kernel: int8 [KH, KW, C], scales of axis 2.
        bias: int32 [C], or None.
        movement: of the window, with C groups; its limits are not used.
        requantized: of input and output.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

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
        height, width, channels = checked_shape(kernel.integers.shape, 3)
        if movement.groups != channels:
            raise BackendError(f"{channels} channels are not {movement.groups} groups of one")
        self.channels = self.outputs = channels
        self._window = height, width
        self._zeros = zeros = zero_points(kernel, channels)
        # Pairs are of int16, which have room for weights without their zero point.
        self._quads = self.can_be_raised = tiled.layout() is tiled.QUADS and zeros is None
        lib = self._lib
        packed_size = lib.np_int8_depthwise_packed_size
        pack = lib.np_int8_pack_depthwise
        self.call = "NP_INT8_DEPTHWISE"
        if self._quads:
            packed_size = lib.np_int8_vnni_depthwise_packed_size
            pack = lib.np_int8_vnni_pack_depthwise
            self.call = "NP_INT8_DEPTHWISE_VNNI"
        sizes = channels, height, width
        if not self._quads:
            taken = self._ffi.NULL if zeros is None else pointer(self._ffi, zeros)
            pack = functools.partial(_pack_pairs, pack, taken)
        self._pack_windows(
            session,
            sizes if zeros is None else (*sizes, zeros.tobytes().hex()),
            kernel,
            bias,
            height * width,
            2,
            packed_size(*sizes),
            lambda block, k, b, s: pack(*sizes, k, b, s, block),
        )

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        image, out = self._image(shape, self._window)
        movement = self._movement
        reach = reaches(self._window, movement)
        wide_width = (out[1] - 1) * movement.strides[1] + reach[1]
        given = {
            **sizes_of(image, out),
            "window": self._window,
            "strides": tuple(movement.strides),
            "dilations": tuple(movement.dilations),
            "pads": tuple(movement.pads[:2]),
            "wide_width": wide_width,
            **self._requantization(),
        }
        if self._quads:
            self._size_quads(given, image, out, wide_width, pool)
        else:
            self._size_pairs(given, out, wide_width, reach, pool)
        return out

    def _size_pairs(
        self,
        given: dict[str, Any],
        out: tuple[int, int],
        wide_width: int,
        reach: tuple[int, int],
        pool: ThreadPool,
    ) -> None:
        strides, dilations = self._movement.strides, self._movement.dilations
        pair_bytes = 4 * wide_width * tiled.COLUMNS
        most = (2 * (_BLOCK_BYTES // pair_bytes) - reach[0]) // strides[0] + 1
        band, bands = tiled.even_bands(out[0], most)
        rows = (band - 1) * strides[0] + reach[0]
        pairs = -(-rows // (2 * dilations[0]))
        size = tiled.checked_elements(dilations[0] * pairs * wide_width * 2 * tiled.COLUMNS)
        weights = tiled.line(2 * size)
        taps = (self._window[0] + 2) // 2 * self._window[1]
        scratch = weights + tiled.line(4 * (taps + self._window[1]) * tiled.COLUMNS)
        self.workspace = pool.threads * scratch
        sizes = {"row_tile": band, "row_tiles": bands, "pairs": pairs, "weights_offset": weights}
        found = {**given, **sizes, "thread_scratch": scratch}
        self.params = self._ffi.new("struct np_int8_depthwise_params *", found)

    def _size_quads(
        self,
        given: dict[str, Any],
        image: Shape,
        out: tuple[int, int],
        wide_width: int,
        pool: ThreadPool,
    ) -> None:
        blocks = -(-self.channels // 64)
        # All channels of a few rows stay in the second cache while their blocks are computed.
        row_bytes = image[2] * image[3] * self._movement.strides[0]
        most = tiled.BAND_BYTES // row_bytes
        if pool.threads > 1:
            most = min(most, -(-image[0] * out[0] * blocks // (4 * pool.threads)))
        band, bands = tiled.even_bands(out[0], most)
        quads = -(-self._window[0] // 4)
        scratch = tiled.checked_elements(quads * wide_width * _QUAD_PIXEL)
        self.workspace = pool.threads * scratch
        raised = {"in_u8": self.in_raised, "out_u8": self.out_raised}
        found = {**given, **raised, "row_tile": band, "row_tiles": bands, "thread_scratch": scratch}
        self.params = self._ffi.new("struct np_int8_depthwise_vnni_params *", found)


def _pack_pairs(pack: Callable[..., None], zeros: Any, *given: Any) -> None:
    """Pack weights of pairs, less their zero points."""
    pack(*given[:-1], zeros, given[-1])
