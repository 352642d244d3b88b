"""GEMM and implicit-GEMM convolution with bfloat16 weights; inputs and results are float32."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.packed import (
    ConvolutionKernel,
    MatmulKernel,
    Packing,
    RunSizes,
)
from narrowpass_xnn_cpu.native.own.tiling import (
    checked_elements,
    column_parts,
    even_row_tiles,
    indirect_convolution,
)
from narrowpass_xnn_cpu.native.problems.bounds import checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution

NR = 32
"""NR: NP_BF16_COLUMNS."""
_ROW_TILE_BYTES = 3 << 17
"""Bytes of rounded image rows of a row tile: with a panel of weights they stay in L2, or are read
from L3 as fast as they are needed."""
_NEAR_BYTES = 1 << 19
"""Bytes of packed weights that stay in L2: then a few tiles are multiplied with all panels, and
whole
rows of the result are written at a time."""
_PIXELS = 48
"""Output pixels of a row tile, at least, for which a panel of weights is read."""


def _pack(problem: Convolution) -> Packing:
    geometry, kernel, bias = problem.geometry, problem.kernel, problem.bias
    if not isinstance(kernel, Weight):
        raise BackendError(f"a kernel must be bfloat16, not {problem.dtypes}")
    checked_weights(kernel, bias, geometry.outputs, "bfloat16", "float32")
    lib, groups = extension().lib, geometry.attributes.groups
    layout = groups, geometry.outputs // groups, *geometry.runs
    return Packing(
        layout,
        kernel,
        bias,
        None,
        lib.np_bf16_packed_size(*layout),
        lambda block, k, b, _: lib.np_bf16_pack(*layout, k, b, block),
    )


def _plan(problem: Convolution, packing: Packing, run: RunSizes) -> Fields:
    """Block rows so that rounded inputs stay in L2, and divide columns among threads."""
    geometry, attributes = problem.geometry, problem.attributes
    (batch, _, _, channels), (out_height, out_width) = run.image, run.out
    steps, picks = tuple(attributes.strides), (1, 1)
    if geometry.kernel_size == (1, 1) and not any(attributes.pads):
        steps, picks = picks, steps  # pixels that strides skip are not copied
    extent = geometry.extent
    wide_width = (out_width - 1) * steps[1] + extent[1]
    size = extension().lib.np_bf16_element_size(kernels.code())
    most = (_ROW_TILE_BYTES // (size * wide_width * channels) - extent[0]) // steps[0] + 1
    row_tile, row_tiles = even_row_tiles(out_height, max(most, -(-_PIXELS // out_width)))
    columns, parts = column_parts(
        geometry.outputs // attributes.groups, batch * row_tiles, run.threads, NR
    )
    rows = (row_tile - 1) * steps[0] + extent[0]
    elements = checked_elements(rows * wide_width * channels)
    tiling = {"row_tile": row_tile, "row_tiles": row_tiles, "parts": parts, "part_columns": columns}
    copies = {"steps": steps, "picks": picks, "wide_width": wide_width}
    return {
        **indirect_convolution(geometry, run.fields, size * elements, **copies, **tiling),
        "chunk": _PIXELS if packing.size <= _NEAR_BYTES else row_tile * out_width,
    }


_BF16 = "NP_BF16_CONVOLUTION", "bf16 convolution", "NP_BF16_LAYOUT"
CONVOLUTION = ConvolutionKernel("convolution", *_BF16, _pack, _plan, fuses_epilogue=True)
MATMUL = MatmulKernel(
    "fully connected",
    *_BF16,
    lambda problem: _pack(problem.convolution),
    lambda problem, packing, run: _plan(problem.convolution, packing, run),
    fuses_epilogue=True,
)
