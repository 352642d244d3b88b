"""GEMM with constant int8 weights whose result is float32, or the raw int32 accumulators."""

from __future__ import annotations

from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.gemv import divide_panels
from narrowpass_xnn_cpu.native.own.packed import MatmulKernel, Packing, RunSizes
from narrowpass_xnn_cpu.native.own.tiling import (
    align_to_line,
    checked_elements,
    column_parts,
    even_row_tiles,
    scratch_offsets,
)
from narrowpass_xnn_cpu.native.problems.bounds import (
    UNBOUNDED,
    checked_range,
    checked_shape,
    checked_weights,
    float32,
)
from narrowpass_xnn_cpu.native.problems.convolution import DynamicScales
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, outputs_first
from narrowpass_xnn_cpu.native.problems.quantization import (
    Quantization,
    check_accumulator_headroom,
    checked_integers,
    checked_scales,
    zero_points,
)


def _pack(problem: Matmul) -> Packing:
    if not isinstance(problem.matrix, Quantized):
        raise BackendError(f"a matmul of {problem.dtypes} is not one of int8")
    static = _static_quantization(problem)
    if static is not None:
        static.check()
    matrix, (inputs, outputs) = outputs_first(problem.matrix, problem.transposed), problem.sizes
    zeros = zero_points(matrix, outputs)
    check_accumulator_headroom(inputs, "channels", zeros)
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
        None if zeros is None else int8.in_panel_order(zeros, 1, form),
    )


def _static_quantization(problem: Matmul) -> Quantization | None:
    """Return the static quantization of rows; None where `rows_to_int8` quantizes them."""
    if isinstance(problem.result, DynamicScales):
        return problem.result.input
    return problem.operand if isinstance(problem.operand, Quantization) else None


def _limits(problem: Matmul) -> tuple[float, float]:
    return problem.result.limits if isinstance(problem.result, Epilogue) else UNBOUNDED


def _plan(problem: Matmul, packing: Packing, run: RunSizes) -> Fields:
    """Block rows so that their bytes stay in L2, and divide columns among threads."""
    layout, (channels, outputs) = packing.form, problem.sizes
    lib, static, rows = extension().lib, _static_quantization(problem), run.image[1]
    dynamic = isinstance(problem.result, DynamicScales)
    wide = layout.groups(channels) * layout.group
    in_bytes = row_bytes(channels, layout)
    most = max(4 * layout.mr, layout.row_tile_bytes // (layout.element * wide))
    row_tile, row_tiles = even_row_tiles(rows, most, layout.mr)
    columns, parts = column_parts(outputs, row_tiles, run.threads, layout.nr)
    if rows == 1:
        each, parts = divide_panels(-(-outputs // layout.nr), run.threads)
        columns = each * layout.nr
    checked_elements(row_tile * in_bytes)
    copied, size = 0 if static is None else row_tile * wide, 4 * row_tile
    source = lib.NP_INT8_ROWS_QUANTIZED if static is None else lib.NP_INT8_ROWS_INT8
    low, high = map(float32, _limits(problem))
    return {
        **scratch_offsets(
            align_to_line(layout.element * copied), pixels=size, scales=size, zeros=size, acc=size
        ),
        "rows": rows,
        "channels": channels,
        "outputs": outputs,
        "row_tile": row_tile,
        "parts": parts,
        "part_columns": columns,
        "row_bytes": in_bytes,
        "from": int(lib.NP_INT8_ROWS_AT_RUN if dynamic else source),
        "in_zero": 0 if static is None else static.zero_point,
        "in_scale": 1.0 if static is None else static.scale,
        "low": low,
        "high": high,
        "vnni": layout.is_vnni,
        "raw": isinstance(problem.result, DynamicScales) and problem.result.raw,
    }


def row_bytes(channels: int, layout: int8.Layout) -> int:
    """Return the bytes of a quantized row, including its scale and zero point.

    Rows of bytes are whole cache lines: 64 bytes of a row of a tile then lie in one line, not two.
    """
    size = layout.groups(channels) * layout.group * layout.element + 8
    return align_to_line(size) if layout.is_vnni else size


def rows_to_int8(rows: int, channels: int) -> Any:
    """Return the parameters of ``NP_INT8_ROWS``: dynamic per-token quantization for `PER_TOKEN`.

    It converts float32 [rows, channels] to bytes [rows, row_bytes(channels, layout())].
    """
    checked_shape((rows, channels))
    form = int8.layout()
    fields = rows, channels, row_bytes(channels, form), kernels.code(), form.is_vnni
    return extension().ffi.new("struct np_int8_rows_params *", fields)


_GEMM = "NP_INT8_GEMM", "int8 matmul", "NP_INT8_LAYOUT", _pack, _plan
MATMUL = MatmulKernel("fully connected int8", *_GEMM)
PER_TOKEN = MatmulKernel("fully connected", *_GEMM)
