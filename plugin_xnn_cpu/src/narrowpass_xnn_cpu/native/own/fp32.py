"""GEMM and implicit-GEMM convolution of float32: MR x NR micro-kernels over packed panels."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.gemv import reads_panel_width
from narrowpass_xnn_cpu.native.own.packed import (
    ConvolutionKernel,
    MatmulKernel,
    Packing,
    RunSizes,
)
from narrowpass_xnn_cpu.native.own.panels import PanelLayout
from narrowpass_xnn_cpu.native.own.tiling import (
    checked_elements,
    even_row_tiles,
    indirect_convolution,
)
from narrowpass_xnn_cpu.native.problems.bounds import checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import ConvGeometry, Convolution
from narrowpass_xnn_cpu.native.problems.matmul import Matmul

_ROW_TILE_BYTES = {8: 3 << 16, 16: 1 << 19}
"""Bytes of image rows of a row tile, by SIMD lanes: they stay in L2 beside weights and results.
Processors with AVX-512 have an L2 of a megabyte or more."""
_PIXELS = 24
"""Output pixels of a row tile, at least: a panel of weights is read once for two MR x NR tiles."""
_DEPTH = 768
"""KC: the block of K, for which the weights of a panel stay in L2."""
_FEW = 6
"""Output pixels that fit into MR of every micro-kernel."""
_PART_WORK = 1 << 29
"""Multiply-accumulates of a task, at most, unless one panel has more: some hundredths of a second,
after which a run can be interrupted."""


def _pack(
    geometry: ConvGeometry, kernel: Weight, bias: Weight | None, *, inputs_first: bool = False
) -> Packing:
    checked_weights(kernel, bias, geometry.outputs, "float32", "float32")
    lib, lanes, groups = extension().lib, target.current().fp32_packing, geometry.attributes.groups
    runs, run_length = geometry.runs
    layout = lanes, groups, geometry.outputs // groups, runs * run_length
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
    return _pack(problem.geometry, problem.kernel, problem.bias)


def pack_matmul(problem: Matmul) -> Packing:
    """Pack a matrix [O, C] or [C, O]."""
    if not isinstance(problem.matrix, Weight):
        raise BackendError(f"a kernel must be float32, not {problem.dtypes}")
    transposed = problem.transposed
    return _pack(problem.geometry, problem.matrix, problem.bias, inputs_first=transposed)


def panels(lanes: int, outputs: int) -> int:
    """Return the number of panels that so many outputs are packed into."""
    return int(extension().lib.np_fp32_panels(lanes, outputs))


def _panels_of(problem: Matmul, packing: Packing) -> PanelLayout | None:
    """Return the layout of the panels; None where the GEMV kernel does not read that width.

    Narrower last panels have 48 columns or 8: of 32, behind panels of 48, there are too few to
    read in streams.
    """
    outputs, lanes = problem.sizes[1], packing.form
    vectors, count = -(-outputs // lanes), panels(lanes, outputs)
    most = -(-vectors // count)
    narrow, width = most * count - vectors, most * lanes
    if narrow >= count or not reads_panel_width(width) or (narrow and width == 48):
        return None
    return PanelLayout("NP_PANELS_F32", width, 4, 4, narrow, width - lanes)


def plan(geometry: ConvGeometry, packing: Packing, run: RunSizes) -> Fields:
    """Block output rows, K and panels for L2, and divide them among threads."""
    attributes, kernel, (runs, run_length) = (
        geometry.attributes,
        geometry.kernel_size,
        geometry.runs,
    )
    batch, _, width, channels = run.image
    out_height, out_width = run.out
    lanes, threads = packing.form, run.threads
    count = panels(lanes, geometry.outputs // attributes.groups)
    strides, extent = tuple(attributes.strides), geometry.extent
    copies = any(attributes.pads)
    wide_width = (out_width - 1) * strides[1] + extent[1] if copies else width
    # A matmul with a long K goes over all panels for one block of K, then for the next.
    few = batch * out_height * out_width <= _FEW  # each weight is read once: no blocks of K
    depth = runs * run_length if few else _DEPTH
    within = kernel == (1, 1) and run_length > depth
    row = min(wide_width, out_width * kernel[1]) * (depth if within else channels)
    room = _ROW_TILE_BYTES[lanes] // (4 * row)  # rows of the image that are read
    most = (room - kernel[0]) // min(strides[0], kernel[0]) + 1
    most = max(most, -(-_PIXELS // out_width))
    row_tile, row_tiles = even_row_tiles(out_height, most)
    parts = _parts(count, batch * row_tiles, threads)
    if batch * row_tiles * parts < threads:
        # Few columns: rows are divided further, down to one micro-kernel tile for a task.
        wanted = -(-threads // (batch * parts))
        least = -(-_PIXELS // 2 // out_width)
        row_tile, row_tiles = even_row_tiles(out_height, max(least, -(-out_height // wanted)))
    # A run can be interrupted between two tasks only, so that none may take long.
    work = row_tile * out_width * geometry.outputs * runs * run_length
    parts = max(parts, min(count, -(-work // _PART_WORK)))
    if run.rows:
        row_tile, row_tiles, parts = run.rows, 1, 1
    needed = (row_tile - 1) * strides[0] + extent[0]
    elements = checked_elements(needed * wide_width * channels)
    tiling = {"row_tile": row_tile, "row_tiles": row_tiles, "parts": parts}
    copied = 4 * elements if copies else 0
    return {
        **indirect_convolution(
            geometry, run.fields, copied, steps=strides, wide_width=wide_width, **tiling
        ),
        "lanes": lanes,
        "copies": copies,
        "depth": depth,
        "panels_within": within,
    }


def _parts(panel_count: int, tasks: int, threads: int) -> int:
    """Return the parts that panels are divided into, where there are few tasks for the threads."""
    if threads == 1 or tasks >= 4 * threads:
        return 1
    return min(panel_count, -(-4 * threads // tasks))


_GEMM = "NP_FP32_CONVOLUTION", "fp32 convolution", "NP_FP32_LAYOUT"
CONVOLUTION = ConvolutionKernel(
    "convolution",
    *_GEMM,
    pack_convolution,
    lambda problem, packing, run: plan(problem.geometry, packing, run),
    fuses_epilogue=True,
)
MATMUL = MatmulKernel(
    "fully connected",
    *_GEMM,
    pack_matmul,
    lambda problem, packing, run: plan(problem.geometry, packing, run),
    fuses_epilogue=True,
    panels=_panels_of,
)
