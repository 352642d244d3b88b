"""Convolutions of float32 by our own kernels."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import (
    checked_range,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.tiled_windows import check_movement, output_size
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Weight

_BAND_BYTES = 3 << 16
"""Of an image that a thread reads for all columns; beside a panel of weights it stays in the second
cache."""
_PIXELS = 4 * tiled.ROWS
"""Windows for which a panel of weights is read, at least."""


class TiledConvolution(tiled.Tiled):
    """A 2-D convolution over [N, H, W, C]; see `Convolution`.

    Args:
        kernel: float32 [O, KH, KW, C / groups].
        bias: float32 [O], or None.
        movement: of the window.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        BackendError: what is not valid.
    """

    call = "NP_FP32_CONVOLUTION"
    layout = "NP_FP32_LAYOUT"

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        movement: Movement,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        outputs, height, width, per_group = checked_shape(kernel.shape, 4)
        groups = movement.groups
        if groups < 1 or outputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        check_movement(movement)
        checked_weights(kernel, bias, outputs, "float32", "float32")
        self.channels, self.outputs = per_group * groups, outputs
        self._window, self._movement = (height, width), movement
        self._limits = checked_range(movement.limits)
        # A row of the window lies dense where its pixels are whole, and side by side.
        if groups == 1 and (movement.dilations[1] == 1 or width == 1):
            self._runs = height, width * per_group
        else:
            self._runs = height * width, per_group
        layout = groups, outputs // groups, height * width * per_group
        lib = self._lib
        self._pack_own(
            session,
            layout,
            kernel,
            bias,
            None,
            lib.np_fp32_packed_size(*layout),
            lambda block, k, b, _: lib.np_fp32_pack(*layout, k, b, block),
        )

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        movement = self._movement
        out = output_size((batch, height, width, channels), self._window, movement)
        checked_shape((batch, *out, self.outputs))
        out_height, out_width = out
        steps, dilations = tuple(movement.strides), tuple(movement.dilations)
        reach = [(k - 1) * d + 1 for k, d in zip(self._window, dilations, strict=True)]
        copies = any(movement.pads)
        wide_width = (out_width - 1) * steps[1] + reach[1] if copies else width
        most = (_BAND_BYTES // (4 * wide_width * channels) - reach[0]) // steps[0] + 1
        band, bands = tiled.even_bands(out_height, max(most, -(-_PIXELS // out_width)))
        columns, parts = tiled.column_parts(
            self.outputs // movement.groups, batch * bands, pool.threads
        )
        rows = (band - 1) * steps[0] + reach[0]
        elements = tiled.checked_elements(rows * wide_width * channels)
        pixels = tiled.line(4 * elements) if copies else 0
        runs = pixels + tiled.line(4 * band * out_width)
        scratch = runs + tiled.line(4 * self._runs[0])
        self.workspace = pool.threads * scratch
        low, high = self._limits
        given = {
            "batch": batch,
            "height": height,
            "width": width,
            "channels": channels,
            "out_height": out_height,
            "out_width": out_width,
            "outputs": self.outputs,
            "groups": movement.groups,
            "window": self._window,
            "steps": steps,
            "dilations": dilations,
            "pads": tuple(movement.pads[:2]),
            "copies": copies,
            "wide_width": wide_width,
            "runs": self._runs[0],
            "run_length": self._runs[1],
            "band": band,
            "bands": bands,
            "parts": parts,
            "part_columns": columns,
            "low": tiled.float32(low),
            "high": tiled.float32(high),
            "target": tiled.target(),
            "pixels_offset": pixels,
            "runs_offset": runs,
            "thread_scratch": scratch,
            "packed": self._packed_weights,
        }
        self.params = self._ffi.new("struct np_fp32_convolution_params *", given)
        return out
