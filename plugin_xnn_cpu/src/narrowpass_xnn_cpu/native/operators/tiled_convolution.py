"""Convolutions of int8 by our own kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.int8 import Quantization, Requantized
from narrowpass_xnn_cpu.native.operators.int8_tensors import SumS8
from narrowpass_xnn_cpu.native.operators.tiled_windows import TiledWindowsS8, Windows, reaches
from narrowpass_xnn_cpu.native.operators.zero_points import in_panels, zero_points
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session, pointer
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight


class TiledConvolutionS8(TiledWindowsS8):
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
    _to = 0
    """What comes of it: NP_INT8_OUT_*."""

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
        self._windows = windows = Windows.of(kernel.integers.shape, movement)
        self.channels, self.outputs = windows.channels, windows.outputs
        self._layout = tiled.layout()
        self._zeros = zeros = zero_points(kernel, windows.outputs)
        self._panel_zeros = (
            None if zeros is None else in_panels(zeros, movement.groups, self._layout)
        )
        self._sum: SumS8 | None = None
        self.can_be_raised = self._layout is tiled.QUADS
        runs, run_length = windows.runs
        sizes = movement.groups, windows.outputs // movement.groups, runs, run_length
        packed_size, pack = tiled.packers(self._layout)
        self._pack_windows(
            session,
            (self._layout.name, *sizes),
            kernel,
            bias,
            runs * run_length,
            0,
            packed_size(*sizes),
            lambda block, k, b, s: pack(*sizes, k, b, s, block),
        )

    @property
    def takes_sum(self) -> bool:
        """Tell whether `take_sum` can be called."""
        return self._layout is tiled.QUADS and self._sum is None

    def take_sum(self, added: SumS8) -> None:
        """Add a second input, of the output's shape, to the output."""
        self._sum = added

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        windows, movement, layout = self._windows, self._movement, self._layout
        (batch, height, width, channels), out = windows.over(shape)
        steps, picks = tuple(movement.strides), (1, 1)
        out_height, out_width = out
        # Windows that lie in an image that is raised already are read there, in whole groups.
        in_place = self.in_raised and not any(movement.pads)
        in_place = in_place and windows.runs[1] % layout.group == 0
        if windows.size == (1, 1):
            if steps == (1, 1) and not any(movement.pads):
                # All pixels are one row after the other.
                height = out_height = batch * height * width
                batch = width = out_width = 1
            elif not in_place:
                steps, picks = (1, 1), steps  # only pixels that are needed are widened
        reach = reaches(windows.size, movement)
        wide_width = width if in_place else (out_width - 1) * steps[1] + reach[1]
        # What comes of a band stays in the cache too, since panels write it by pieces.
        row_bytes = layout.element * wide_width * channels + out_width * self.outputs // steps[0]
        most = (layout.band_bytes // row_bytes - reach[0]) // steps[0] + 1
        # A panel of weights is read for a few tiles at least.
        most = max(most, -(-4 * layout.rows // out_width))
        whole = layout.rows if out_width == 1 else 1
        panels = -(-(self.outputs // movement.groups) // layout.columns)
        band, bands, part, parts = tiled.divide(
            out_height, most, whole, batch, panels, pool.threads
        )
        columns = part * layout.columns
        rows = (band - 1) * steps[0] + reach[0]
        # The last run may be read to its last group's end.
        elements = tiled.checked_elements(rows * wide_width * channels + layout.group - 1)
        copied = 0 if in_place else layout.element * elements
        scratch = windows.scratch(copied, band * out_width)
        if self._panel_zeros is not None or self._to:
            scratch |= self._rows_scratch(scratch["thread_scratch"], band * out_width)
        self.workspace = pool.threads * scratch["thread_scratch"]
        given = {
            **windows.params((batch, height, width, channels), (out_height, out_width)),
            **scratch,
            "steps": steps,
            "picks": picks,
            "wide_width": wide_width,
            "row_tile": band,
            "row_tiles": bands,
            "parts": parts,
            "part_columns": columns,
            "vnni": layout is tiled.QUADS,
            "in_u8": self.in_raised,
            "out_u8": self.out_raised,
            "other_u8": self.other_raised,
            "in_place": in_place,
            **self._requantization(),
            **self._output(),
        }
        if self._panel_zeros is not None:
            given["weight_zeros"] = pointer(self._ffi, self._panel_zeros)
            given["zeros_stride"] = self._panel_zeros.shape[1]
        if self._sum is not None:
            s = self._sum
            scales = s.own, s.other, s.bias, s.shift, s.zero
            given |= {"has_residual": 1, "residual": (*scales, *s.limits)}
        self.params = self._ffi.new("struct np_int8_convolution_params *", given)
        return out

    def _output(self) -> dict[str, Any]:
        """Give the parameters that say what comes of accumulators, beside those of int8."""
        return {"to": self._to}

    @staticmethod
    def _rows_scratch(start: int, count: int) -> dict[str, int]:
        """Give where the sums, scales and zeros of `count` windows lie in scratch memory."""
        size = tiled.line(4 * count)
        names = "sums_offset", "scales_offset", "zeros_offset", "thread_scratch"
        return {name: start + index * size for index, name in enumerate(names)}


class TiledConvolutionAtRun(TiledConvolutionS8):
    """A convolution of int8 that gives float32, or the int32 accumulators.

    Scale and zero point of the image are the second and third input of the step, one number each; 1
    and `zero_point` where they are left out.

    Args:
        kernel: int8 [O, KH, KW, C / groups]; scales and zero points of axis 0.
        bias: float32 [O], or None.
        movement: of the window; its limits are not used.
        raw: whether the accumulators are given, which no scale has part in.
        zero_point: of the image, as int8, where the step has no third input.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

    _bias_dtype = "float32"

    def __init__(
        self,
        kernel: Quantized,
        bias: Weight | None,
        movement: Movement,
        *,
        raw: bool = False,
        zero_point: int = 0,
        session: Session | None = None,
    ) -> None:
        lib = extension().lib
        self._to = int(lib.NP_INT8_OUT_INT32 if raw else lib.NP_INT8_OUT_FLOAT)
        nothing = Requantized(Quantization(1.0, zero_point), Quantization(1.0, 0))
        super().__init__(kernel, bias, movement, nothing, session=session)
        self.can_be_raised = False

    @property
    def takes_sum(self) -> bool:
        """No sum is taken: the output is not int8."""
        return False

    def _factors(self, scales: Weight) -> Weight:
        return scales

    def _output(self) -> dict[str, Any]:
        return {"to": self._to, "float_low": -math.inf, "float_high": math.inf}
