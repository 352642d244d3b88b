"""Convolutions of int8 by our own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import (
    check_window,
    checked_pixels,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.int8 import Requantized
from narrowpass_xnn_cpu.native.operators.quantized import checked_integers, checked_scales
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight

_PIXELS = 4 * tiled.ROWS
"""Windows for which a panel of weights is read, at least."""


class TiledConvolutionS8(tiled.Tiled):
    """A 2-D convolution over [N, H, W, C] of int8; see `ConvolutionS8`.

    Args:
        kernel: int8 [O, KH, KW, C / groups], scales of axis 0.
        bias: int32 [O], or None.
        movement: of the window; its limits are not used.
        requantized: of input and output.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

    call = "NP_INT8_CONVOLUTION"

    def __init__(
        self,
        kernel: Quantized,
        bias: Weight | None,
        movement: Movement,
        requantized: Requantized,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        outputs, height, width, per_group = checked_shape(kernel.integers.shape, 4)
        groups = movement.groups
        if groups < 1 or outputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        check_movement(movement)
        requantized.check()
        tiled.checked_sums(height * width * per_group, "weights")
        integers, scales = checked_integers(kernel.integers), checked_scales(kernel, outputs, 0)
        checked_weights(integers, bias, outputs, "int8", "int32")
        self.channels, self.outputs = per_group * groups, outputs
        self._window, self._movement, self._requantized = (height, width), movement, requantized
        # A row of the window lies dense where its pixels are whole, and side by side.
        if groups == 1 and (movement.dilations[1] == 1 or width == 1):
            self._runs = height, width * per_group
        else:
            self._runs = height * width, per_group
        layout = groups, outputs // groups, *self._runs
        lib = self._lib
        self._pack_own(
            session,
            layout,
            integers,
            bias,
            tiled.requantizing(scales, requantized),
            lib.np_int8_packed_size(*layout),
            lambda block, k, b, s: lib.np_int8_pack(*layout, k, b, s, block),
        )

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        sizes = batch, height, width, channels
        out = output_size(sizes, self._window, self._movement)
        checked_shape((batch, *out, self.outputs))
        movement = self._movement
        steps, picks = tuple(movement.strides), (1, 1)
        out_height, out_width = out
        if self._window == (1, 1):
            # Only pixels that are needed are widened; all of them are one row after the other.
            steps, picks = (1, 1), steps
            if picks == (1, 1) and not any(movement.pads):
                height = out_height = batch * height * width
                batch = width = out_width = 1
        dilations = tuple(movement.dilations)
        reach = [(k - 1) * d + 1 for k, d in zip(self._window, dilations, strict=True)]
        wide_width = (out_width - 1) * steps[1] + reach[1]
        most = (tiled.BAND_BYTES // (2 * wide_width * channels) - reach[0]) // steps[0] + 1
        most = max(most, -(-_PIXELS // out_width))
        if out_width == 1 and most > tiled.ROWS:
            most = most // tiled.ROWS * tiled.ROWS
        band, bands = tiled.even_bands(out_height, most)
        if out_width == 1 and bands > 1:
            band = -(-band // tiled.ROWS) * tiled.ROWS
            bands = -(-out_height // band)
        groups = movement.groups
        columns, parts = tiled.column_parts(self.outputs // groups, batch * bands, pool.threads)
        rows = (band - 1) * steps[0] + reach[0]
        # The last run may be read to one element beyond.
        pixels = tiled.line(2 * tiled.checked_elements(rows * wide_width * channels + 1))
        runs = pixels + tiled.line(4 * band * out_width)
        scratch = runs + tiled.line(4 * self._runs[0])
        self.workspace = pool.threads * scratch
        given = {
            "batch": batch,
            "height": height,
            "width": width,
            "channels": channels,
            "out_height": out_height,
            "out_width": out_width,
            "outputs": self.outputs,
            "groups": groups,
            "window": self._window,
            "steps": steps,
            "picks": picks,
            "dilations": dilations,
            "pads": tuple(movement.pads[:2]),
            "wide_width": wide_width,
            "runs": self._runs[0],
            "run_length": self._runs[1],
            "band": band,
            "bands": bands,
            "parts": parts,
            "part_columns": columns,
            "pixels_offset": pixels,
            "runs_offset": runs,
            "thread_scratch": scratch,
            **requantization(self._requantized),
            "packed": self._packed_weights,
        }
        self.params = self._ffi.new("struct np_int8_convolution_params *", given)
        return out


class TiledDepthwiseS8(tiled.Tiled):
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

    call = "NP_INT8_DEPTHWISE"

    def __init__(
        self,
        kernel: Quantized,
        bias: Weight | None,
        movement: Movement,
        requantized: Requantized,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        height, width, channels = checked_shape(kernel.integers.shape, 3)
        if movement.groups != channels:
            raise BackendError(f"{channels} channels are not {movement.groups} groups of one")
        check_movement(movement)
        requantized.check()
        tiled.checked_sums(height * width, "weights")
        integers, scales = checked_integers(kernel.integers), checked_scales(kernel, channels, 2)
        checked_weights(integers, bias, channels, "int8", "int32")
        self.channels = channels
        self._window, self._movement, self._requantized = (height, width), movement, requantized
        layout = channels, height, width
        lib = self._lib
        self._pack_own(
            session,
            layout,
            integers,
            bias,
            tiled.requantizing(scales, requantized),
            lib.np_int8_depthwise_packed_size(*layout),
            lambda block, k, b, s: lib.np_int8_pack_depthwise(*layout, k, b, s, block),
        )

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        movement = self._movement
        out = output_size((batch, height, width, channels), self._window, movement)
        checked_shape((batch, *out, channels))
        strides, dilations = tuple(movement.strides), tuple(movement.dilations)
        reach = [(k - 1) * d + 1 for k, d in zip(self._window, dilations, strict=True)]
        wide_width = (out[1] - 1) * strides[1] + reach[1]
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
        given = {
            "batch": batch,
            "height": height,
            "width": width,
            "channels": channels,
            "out_height": out[0],
            "out_width": out[1],
            "window": self._window,
            "strides": strides,
            "dilations": dilations,
            "pads": tuple(movement.pads[:2]),
            "wide_width": wide_width,
            "band": band,
            "bands": bands,
            "pairs": pairs,
            "weights_offset": weights,
            "thread_scratch": scratch,
            **requantization(self._requantized),
            "packed": self._packed_weights,
        }
        self.params = self._ffi.new("struct np_int8_depthwise_params *", given)
        return out


_BLOCK_BYTES = 1 << 15
"""What a thread widens of 16 channels at a time; it stays in the first cache for the most part."""


def check_movement(movement: Movement) -> None:
    """Check what moves a window."""
    checked_pixels(movement.pads, 0, "padding")
    checked_pixels((*movement.strides, *movement.dilations), 1, "stride or dilation")


def output_size(
    shape: Sequence[int], window: tuple[int, int], movement: Movement
) -> tuple[int, int]:
    """Give the height and width of what comes of an input of [N, H, W, C]."""
    check_window(tuple(shape), window, movement.pads, movement.dilations)
    found = []
    for axis in (0, 1):
        reach = (window[axis] - 1) * movement.dilations[axis] + 1
        padded = shape[1 + axis] + movement.pads[axis] + movement.pads[2 + axis]
        found.append((padded - reach) // movement.strides[axis] + 1)
    return found[0], found[1]


def requantization(requantized: Requantized) -> dict[str, Any]:
    """Give the parameters of a kernel that say how its sums become int8."""
    low, high = requantized.limits
    return {
        "in_zero": requantized.given.zero_point,
        "out_zero": requantized.made.zero_point,
        "low": low,
        "high": high,
        "target": tiled.target(),
    }
