"""Matmuls with a constant matrix of int8 whose result is float32, or the int32 accumulators."""

from __future__ import annotations

from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.few_rows import divided
from narrowpass_xnn_cpu.native.own.packed import MatmulKernel, Packing, Run
from narrowpass_xnn_cpu.native.own.tiling import (
    checked_elements,
    column_parts,
    even_bands,
    line,
    offsets,
)
from narrowpass_xnn_cpu.native.problems.bounds import (
    UNBOUNDED,
    checked_range,
    checked_shape,
    checked_weights,
    float32,
)
from narrowpass_xnn_cpu.native.problems.convolution import Dynamic
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, upright
from narrowpass_xnn_cpu.native.problems.quantization import (
    Quantization,
    check_terms,
    checked_integers,
    checked_scales,
    zero_points,
)


def _pack(problem: Matmul) -> Packing:
    if not isinstance(problem.matrix, Quantized):
        raise BackendError(f"a matmul of {problem.dtypes} is not one of int8")
    given = _given(problem)
    if given is not None:
        given.check()
    matrix, (inputs, outputs) = upright(problem.matrix, problem.transposed), problem.sizes
    zeros = zero_points(matrix, outputs)
    check_terms(inputs, "channels", zeros)
    checked_range(_limits(problem))
    integers = checked_integers(matrix.integers)
    scales = checked_scales(matrix, outputs, 0, zeros=zeros is not None)
    checked_weights(integers, problem.bias, outputs, "int8", "float32")
    form, sizes = int8.layout(), (1, outputs, 1, inputs)
    packed_size, pack = int8.packers(form)
    return Packing(
        form.name,
        integers,
        problem.bias,
        scales,
        packed_size(*sizes),
        lambda block, k, b, s: pack(*sizes, k, b, s, block),
        form,
        None if zeros is None else int8.in_panels(zeros, 1, form),
    )


def _given(problem: Matmul) -> Quantization | None:
    """Return how rows are quantized; None for rows that `rows_to_int8` quantizes."""
    if isinstance(problem.result, Dynamic):
        return problem.result.given
    return problem.operand if isinstance(problem.operand, Quantization) else None


def _limits(problem: Matmul) -> tuple[float, float]:
    return problem.result.limits if isinstance(problem.result, Epilogue) else UNBOUNDED


def _plan(problem: Matmul, packing: Packing, run: Run) -> Fields:
    """Divide rows so that their bytes stay in L2, and columns among threads."""
    layout, (channels, outputs) = packing.form, problem.sizes
    lib, given, rows = extension().lib, _given(problem), run.image[1]
    dynamic = isinstance(problem.result, Dynamic)
    wide = layout.groups(channels) * layout.group
    given_bytes = row_bytes(channels, layout)
    most = max(4 * layout.rows, layout.band_bytes // (layout.element * wide))
    band, bands = even_bands(rows, most, layout.rows)
    columns, parts = column_parts(outputs, bands, run.threads, layout.columns)
    if rows == 1:
        each, parts = divided(-(-outputs // layout.columns), run.threads)
        columns = each * layout.columns
    checked_elements(band * given_bytes)
    copied, size = 0 if given is None else band * wide, 4 * band
    source = lib.NP_INT8_ROWS_QUANTIZED if given is None else lib.NP_INT8_ROWS_INT8
    low, high = map(float32, _limits(problem))
    return {
        **offsets(line(layout.element * copied), pixels=size, scales=size, zeros=size, acc=size),
        "rows": rows,
        "channels": channels,
        "outputs": outputs,
        "row_tile": band,
        "parts": parts,
        "part_columns": columns,
        "row_bytes": given_bytes,
        "from": int(lib.NP_INT8_ROWS_AT_RUN if dynamic else source),
        "in_zero": 0 if given is None else given.zero_point,
        "in_scale": 1.0 if given is None else given.scale,
        "low": low,
        "high": high,
        "vnni": layout is int8.QUADS,
        "raw": isinstance(problem.result, Dynamic) and problem.result.raw,
    }


def row_bytes(channels: int, layout: int8.Layout) -> int:
    """Return the bytes of a row that is quantized, with its scale and zero point."""
    return layout.groups(channels) * layout.group * layout.element + 8


def rows_to_int8(rows: int, channels: int) -> Any:
    """Return the parameters of ``NP_INT8_ROWS``, which quantizes rows for `PER_TOKEN`.

    Float32 [rows, channels] become bytes [rows, row_bytes(channels, layout())].
    """
    checked_shape((rows, channels))
    form = int8.layout()
    fields = rows, channels, row_bytes(channels, form), kernels.code(), form is int8.QUADS
    return extension().ffi.new("struct np_int8_rows_params *", fields)


_PRODUCT = (
    "NP_INT8_GEMM",
    "int8 product",
    "NP_INT8_LAYOUT",
    "np_int8_gemm_params",
    _pack,
    _plan,
)
MATMUL = MatmulKernel("fully connected int8", *_PRODUCT)
PER_TOKEN = MatmulKernel("fully connected", *_PRODUCT)
