"""Matmuls and convolutions of float32: GEMM micro-kernels over packed panels of weights."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.few_rows import reads_floats
from narrowpass_xnn_cpu.native.own.packed import (
    ConvolutionKernel,
    MatmulKernel,
    Packing,
    Run,
)
from narrowpass_xnn_cpu.native.own.panels import Layout
from narrowpass_xnn_cpu.native.own.tiling import (
    checked_elements,
    even_bands,
    run_fields,
    run_scratch,
)
from narrowpass_xnn_cpu.native.problems.bounds import checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution, Windows
from narrowpass_xnn_cpu.native.problems.matmul import Matmul

_BAND_BYTES = {8: 3 << 16, 16: 1 << 19}
"""Of an image that a thread reads for all columns, by lanes: what stays in L2 beside weights and
results; that of processors with AVX-512 has a megabyte or more."""
_PIXELS = 24
"""Output pixels for which a panel of weights is read, at least: two tiles of the highest ones."""
_DEPTH = 768
"""Inputs that are multiplied at a time: a panel's weights for these stay in L2."""
_FEW = 6
"""Output pixels that are one tile of any panel."""
_PART_WORK = 1 << 29
"""Multiply-accumulates of a part, at most, where a panel has no more: some hundredths of a
second."""


def _pack(
    windows: Windows, kernel: Weight, bias: Weight | None, *, inputs_first: bool = False
) -> Packing:
    checked_weights(kernel, bias, windows.outputs, "float32", "float32")
    lib, lanes, groups = extension().lib, target.current().fp32_packing, windows.movement.groups
    runs, run_length = windows.runs
    layout = lanes, groups, windows.outputs // groups, runs * run_length
    return Packing(
        (*layout, inputs_first),
        kernel,
        bias,
        None,
        lib.np_fp32_packed_size(*layout),
        lambda block, k, b, _: lib.np_fp32_pack(*layout, inputs_first, k, b, block),
        lanes,
    )


def pack_convolution(problem: Convolution) -> Packing:
    """Pack a kernel [O, KH, KW, C / groups]."""
    if not isinstance(problem.kernel, Weight):
        raise BackendError(f"a kernel must be float32, not {problem.dtypes}")
    return _pack(problem.windows, problem.kernel, problem.bias)


def pack_matmul(problem: Matmul) -> Packing:
    """Pack a matrix either way round."""
    if not isinstance(problem.matrix, Weight):
        raise BackendError(f"a kernel must be float32, not {problem.dtypes}")
    transposed = problem.transposed
    return _pack(problem.windows, problem.matrix, problem.bias, inputs_first=transposed)


def panels(lanes: int, outputs: int) -> int:
    """Return how many panels so many outputs are packed in."""
    return int(extension().lib.np_fp32_panels(lanes, outputs))


def _panels_of(problem: Matmul, packing: Packing) -> Layout | None:
    """Return how a matrix lies where all panels are of one width that few rows are read with."""
    outputs, lanes = problem.sizes[1], packing.form
    vectors, count = -(-outputs // lanes), panels(lanes, outputs)
    width = vectors // count * lanes
    if vectors % count or not reads_floats(width):
        return None
    return Layout("NP_PANELS_F32", width, 4, 4)


def plan(windows: Windows, packing: Packing, run: Run) -> Fields:
    """Divide output rows and panels so that what is read again stays in L2."""
    movement, window, (runs, run_length) = windows.movement, windows.size, windows.runs
    batch, _, width, channels = run.image
    out_height, out_width = run.out
    lanes, threads = packing.form, run.threads
    count = panels(lanes, windows.outputs // movement.groups)
    strides, reach = tuple(movement.strides), windows.reach
    copies = any(movement.pads)
    wide_width = (out_width - 1) * strides[1] + reach[1] if copies else width
    # A matmul goes over all panels with some of the inputs before it goes on to others.
    few = batch * out_height * out_width <= _FEW  # each weight is needed once: as it lies
    depth = runs * run_length if few else _DEPTH
    within = window == (1, 1) and run_length > depth
    row = min(wide_width, out_width * window[1]) * (depth if within else channels)
    room = _BAND_BYTES[lanes] // (4 * row)  # rows of the image that are read
    most = (room - window[0]) // min(strides[0], window[0]) + 1
    most = max(most, -(-_PIXELS // out_width))
    band, bands = even_bands(out_height, most)
    parts = _parts(count, batch * bands, threads)
    if batch * bands * parts < threads:
        # Few columns: rows are divided further, down to a tile each.
        wanted = -(-threads // (batch * parts))
        least = -(-_PIXELS // 2 // out_width)
        band, bands = even_bands(out_height, max(least, -(-out_height // wanted)))
    # Between two parts a run can be stopped: none is to take long.
    work = band * out_width * windows.outputs * runs * run_length
    parts = max(parts, min(count, -(-work // _PART_WORK)))
    if run.rows:
        band, bands, parts = run.rows, 1, 1
    needed = (band - 1) * strides[0] + reach[0]
    elements = checked_elements(needed * wide_width * channels)
    return {
        **run.fields,
        **run_fields(windows),
        **run_scratch(windows, 4 * elements if copies else 0, band * out_width),
        "lanes": lanes,
        "steps": strides,
        "copies": copies,
        "wide_width": wide_width,
        "depth": depth,
        "panels_within": within,
        "row_tile": band,
        "row_tiles": bands,
        "parts": parts,
    }


def _parts(panel_count: int, tasks: int, threads: int) -> int:
    """Divide panels so that threads have enough to do beside the tasks that there are."""
    if threads == 1 or tasks >= 4 * threads:
        return 1
    return min(panel_count, -(-4 * threads // tasks))


_GEMM = (
    "NP_FP32_CONVOLUTION",
    "fp32 convolution",
    "NP_FP32_LAYOUT",
    "np_fp32_convolution_params",
)
CONVOLUTION = ConvolutionKernel(
    "convolution",
    *_GEMM,
    pack_convolution,
    lambda problem, packing, run: plan(problem.windows, packing, run),
    fuses_epilogue=True,
)
MATMUL = MatmulKernel(
    "fully connected",
    *_GEMM,
    pack_matmul,
    lambda problem, packing, run: plan(problem.windows, packing, run),
    fuses_epilogue=True,
    panels=_panels_of,
)
