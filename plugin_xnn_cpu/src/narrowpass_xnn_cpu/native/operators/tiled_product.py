"""Products with a matrix of int8 by our own kernels."""

from __future__ import annotations

from typing import Any

from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import (
    UNBOUNDED,
    Range,
    checked_range,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.few_rows import divided
from narrowpass_xnn_cpu.native.operators.int8 import Quantization, Requantized
from narrowpass_xnn_cpu.native.operators.quantized import checked_integers, checked_scales
from narrowpass_xnn_cpu.native.operators.tiled_convolution import TiledConvolutionS8
from narrowpass_xnn_cpu.native.operators.zero_points import (
    check_terms,
    in_panels,
    zero_points,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session, pointer
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight


class TiledFullyConnectedS8(TiledConvolutionS8):
    """Rows of int8 times a constant matrix of int8, as int8; see `FullyConnectedS8`.

    Args:
        matrix: [O, C], or [C, O] where `transposed`; scales of the outputs.
        bias: int32 [O], or None.
        requantized: of input and output.
        transposed: whether the matrix has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        requantized: Requantized,
        *,
        transposed: bool = False,
        session: Session | None = None,
    ) -> None:
        matrix = _upright(matrix, transposed)
        outputs, inputs = matrix.integers.shape
        kernel = Quantized(
            matrix.integers.reshape(outputs, 1, 1, inputs), matrix.scale, matrix.zero, matrix.axis
        )
        super().__init__(kernel, bias, Movement(), requantized, session=session)

    def reshape(self, rows: Any, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of the product."""
        super().reshape((1, rows, 1, self.channels), pool)
        return self.params


class _ToFloat(tiled.Tiled):
    """Rows times a constant matrix of int8, as float32."""

    call = "NP_INT8_GEMM"
    _at_run = False
    """Whether rows are of int8 whose scale and zero point are inputs of the step."""
    _raw = False
    """Whether accumulators are given as they are."""

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        limits: Range,
        transposed: bool,
        given: Quantization | None,
        session: Session | None,
    ) -> None:
        super().__init__()
        matrix = _upright(matrix, transposed)
        outputs, inputs = matrix.integers.shape
        self._zeros = zeros = zero_points(matrix, outputs)
        check_terms(inputs, "channels", zeros)
        self._limits = checked_range(limits)
        self._given = given
        integers = checked_integers(matrix.integers)
        scales = checked_scales(matrix, outputs, 0, zeros=zeros is not None)
        checked_weights(integers, bias, outputs, "int8", "float32")
        self.channels, self.outputs = inputs, outputs
        self._layout = tiled.layout()
        self._panel_zeros = None if zeros is None else in_panels(zeros, 1, self._layout)
        sizes = 1, outputs, 1, inputs
        packed_size, pack = tiled.packers(self._layout)
        self._pack_own(
            session,
            self._layout.name,
            integers,
            bias,
            scales,
            packed_size(*sizes),
            lambda block, k, b, s: pack(*sizes, k, b, s, block),
        )

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of the product."""
        checked_shape((rows, max(self.channels, self.outputs)))
        layout = self._layout
        wide = layout.groups(self.channels) * layout.group
        given_bytes = row_bytes(self.channels, layout)
        most = max(4 * layout.rows, layout.band_bytes // (layout.element * wide))
        band, bands = tiled.even_bands(rows, most, layout.rows)
        columns, parts = tiled.column_parts(self.outputs, bands, pool.threads, layout.columns)
        if rows == 1:
            each, parts = divided(-(-self.outputs // layout.columns), pool.threads)
            columns = each * layout.columns
        given = self._given
        copied = 0 if given is None and not self._at_run else band * wide
        tiled.checked_elements(band * given_bytes)
        pixels = tiled.line(layout.element * copied)
        scales = pixels + tiled.line(4 * band)
        zeros = scales + tiled.line(4 * band)
        sums = zeros + tiled.line(4 * band)
        scratch = sums + tiled.line(4 * band)
        self.workspace = pool.threads * scratch
        low, high = map(tiled.float32, self._limits)
        fields = {
            "packed": self._packed_weights,
            "rows": rows,
            "channels": self.channels,
            "outputs": self.outputs,
            "row_tile": band,
            "parts": parts,
            "part_columns": columns,
            "row_bytes": given_bytes,
            "from": self._source(),
            "in_zero": 0 if given is None else given.zero_point,
            "in_scale": 1.0 if given is None else given.scale,
            "low": low,
            "high": high,
            "target": tiled.target(),
            "vnni": layout is tiled.QUADS,
            "pixels_offset": pixels,
            "scales_offset": scales,
            "zeros_offset": zeros,
            "sums_offset": sums,
            "thread_scratch": scratch,
            "raw": self._raw,
        }
        if self._panel_zeros is not None:
            fields["weight_zeros"] = pointer(self._ffi, self._panel_zeros)
        self.params = self._ffi.new("struct np_int8_gemm_params *", fields)
        return self.params

    def _source(self) -> int:
        """Give what rows are, as ``NP_INT8_ROWS_*``."""
        lib = self._lib
        if self._at_run:
            return int(lib.NP_INT8_ROWS_AT_RUN)
        return int(lib.NP_INT8_ROWS_QUANTIZED if self._given is None else lib.NP_INT8_ROWS_INT8)


def row_bytes(channels: int, layout: tiled.Layout) -> int:
    """Give the bytes of a row that is quantized, with its scale and zero point."""
    return layout.groups(channels) * layout.group * layout.element + 8


def rows_to_int8(rows: int, channels: int) -> Any:
    """Give the parameters of ``NP_INT8_ROWS``, which quantizes rows for `TiledFullyConnectedInt8`.

    Of float32 [rows, channels] it makes bytes [rows, row_bytes(channels, layout())].
    """
    checked_shape((rows, channels))
    layout = tiled.layout()
    fields = rows, channels, row_bytes(channels, layout), tiled.target(), layout is tiled.QUADS
    return extension().ffi.new("struct np_int8_rows_params *", fields)


class TiledFullyConnectedS8F32(_ToFloat):
    """Rows of int8, all with one scale, times a constant matrix of int8, as float32.

    Args:
        matrix: [O, C], or [C, O] where `transposed`; scales of the outputs.
        bias: float32 [O], or None.
        given: of the rows.
        limits: what the output is clamped to.
        transposed: whether the matrix has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        given: Quantization,
        limits: Range = UNBOUNDED,
        *,
        transposed: bool = False,
        session: Session | None = None,
    ) -> None:
        given.check()
        super().__init__(matrix, bias, limits, transposed, given, session)


class TiledFullyConnectedInt8(_ToFloat):
    """Rows of float32, quantized each by its own range, times a constant matrix of int8.

    It takes them as `rows_to_int8` makes them, once for all products that read them. A row with an
    element that is NaN, infinite, or of 2¹²⁷ and more gives NaN. See `FullyConnectedInt8`.

    Args:
        matrix: [O, C], or [C, O] where `transposed`; scales of the outputs.
        bias: float32 [O], or None.
        limits: what the output is clamped to.
        transposed: whether the matrix has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        limits: Range = UNBOUNDED,
        *,
        transposed: bool = False,
        session: Session | None = None,
    ) -> None:
        super().__init__(matrix, bias, limits, transposed, None, session)


class TiledFullyConnectedAtRun(_ToFloat):
    """Rows of int8 times a constant matrix of int8, as float32 or the int32 accumulators.

    Scale and zero point of the rows are the second and third input of the step, one number each; 1
    and 0 where they are left out.

    Args:
        matrix: [O, C]; scales and zero points of the outputs.
        bias: float32 [O], or None.
        raw: whether the accumulators are given, which no scale has part in.
        zero_point: of the rows, as int8, where the step has no third input.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

    _at_run = True

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        *,
        raw: bool = False,
        zero_point: int = 0,
        session: Session | None = None,
    ) -> None:
        self._raw = raw
        super().__init__(matrix, bias, UNBOUNDED, False, Quantization(1.0, zero_point), session)


def _upright(matrix: Quantized, transposed: bool) -> Quantized:
    """Give a matrix with its outputs first."""
    checked_shape(matrix.integers.shape, 2)
    if not transposed:
        return matrix
    if matrix.scale.size == 1:
        # Of no axis: it may stand for either.
        moved = matrix.integers.transpose(1, 0)
        return Quantized(moved, matrix.scale, matrix.zero, 0)
    return matrix.transpose((1, 0))
