"""Matmuls and convolutions with weights of bfloat16; all else is float32."""

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
    Run,
)
from narrowpass_xnn_cpu.native.own.tiling import (
    checked_elements,
    column_parts,
    even_bands,
    run_fields,
    run_scratch,
)
from narrowpass_xnn_cpu.native.problems.bounds import checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution

COLUMNS = 32
"""Of a panel: NP_BF16_COLUMNS."""
_BAND_BYTES = 3 << 17
"""Of rounded inputs that a thread reads for all columns; with a panel of weights they stay in L2,
or are read from L3 as fast as they are needed."""
_NEAR_BYTES = 1 << 19
"""Of packed weights that stay in L2: a few tiles are multiplied with all of them, so that results
are written as they lie."""
_PIXELS = 48
"""Output pixels for which a panel of weights is read, at least."""


def _pack(problem: Convolution) -> Packing:
    windows, kernel, bias = problem.windows, problem.kernel, problem.bias
    if not isinstance(kernel, Weight):
        raise BackendError(f"a kernel must be bfloat16, not {problem.dtypes}")
    checked_weights(kernel, bias, windows.outputs, "bfloat16", "float32")
    lib, groups = extension().lib, windows.movement.groups
    layout = groups, windows.outputs // groups, *windows.runs
    return Packing(
        layout,
        kernel,
        bias,
        None,
        lib.np_bf16_packed_size(*layout),
        lambda block, k, b, _: lib.np_bf16_pack(*layout, k, b, block),
    )


def _plan(problem: Convolution, packing: Packing, run: Run) -> Fields:
    """Divide rows so that rounded inputs stay in L2, and columns among threads."""
    windows, movement = problem.windows, problem.movement
    (batch, _, _, channels), (out_height, out_width) = run.image, run.out
    steps, image_steps = tuple(movement.strides), (1, 1)
    if windows.size == (1, 1) and not any(movement.pads):
        steps, image_steps = image_steps, steps  # what is never read is not copied
    reach = windows.reach
    wide_width = (out_width - 1) * steps[1] + reach[1]
    size = extension().lib.np_bf16_element_size(kernels.code())
    most = (_BAND_BYTES // (size * wide_width * channels) - reach[0]) // steps[0] + 1
    band, bands = even_bands(out_height, max(most, -(-_PIXELS // out_width)))
    columns, parts = column_parts(
        windows.outputs // movement.groups, batch * bands, run.threads, COLUMNS
    )
    rows = (band - 1) * steps[0] + reach[0]
    elements = checked_elements(rows * wide_width * channels)
    return {
        **run.fields,
        **run_fields(windows),
        **run_scratch(windows, size * elements, band * out_width),
        "image_steps": image_steps,
        "steps": steps,
        "wide_width": wide_width,
        "row_tile": band,
        "row_tiles": bands,
        "chunk": _PIXELS if packing.size <= _NEAR_BYTES else band * out_width,
        "parts": parts,
        "part_columns": columns,
    }


_BF16 = (
    "NP_BF16_CONVOLUTION",
    "bf16 convolution",
    "NP_BF16_LAYOUT",
    "np_bf16_convolution_params",
)
CONVOLUTION = ConvolutionKernel("convolution", *_BF16, _pack, _plan, fuses_epilogue=True)
MATMUL = MatmulKernel(
    "fully connected",
    *_BF16,
    lambda problem: _pack(problem.convolution),
    lambda problem, packing, run: _plan(problem.convolution, packing, run),
    fuses_epilogue=True,
)
