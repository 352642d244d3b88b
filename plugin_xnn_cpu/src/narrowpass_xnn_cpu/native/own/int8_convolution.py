"""Implicit-GEMM convolution of int8, and requantized matmuls as 1 x 1 convolutions."""

from __future__ import annotations

import math

from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.packed import (
    ConvolutionKernel,
    MatmulKernel,
    Packing,
    RunSizes,
)
from narrowpass_xnn_cpu.native.own.tiling import (
    balance_tasks,
    checked_elements,
    image_fields,
    indirect_convolution,
    scratch_offsets,
)
from narrowpass_xnn_cpu.native.problems.convolution import Convolution, DynamicScales
from narrowpass_xnn_cpu.native.problems.quantization import zero_points


def _pack(problem: Convolution) -> Packing:
    kernel, _ = int8.checked_int8(problem)
    geometry, groups = problem.geometry, problem.attributes.groups
    form, zeros = int8.layout(), zero_points(kernel, geometry.outputs)
    runs, run_length = geometry.runs
    sizes = groups, geometry.outputs // groups, runs, run_length
    packed_size, pack = int8.packers(form)
    return int8.packing(
        problem,
        (form.name, *sizes),
        runs * run_length,
        packed_size(*sizes),
        lambda block, k, b, s: pack(*sizes, k, b, s, block),
        form,
        zeros,
        None if zeros is None else int8.in_panel_order(zeros, groups, form),
    )


def _plan(problem: Convolution, packing: Packing, run: RunSizes) -> Fields:
    """Block rows so that copied image rows stay in L2, and divide panels among threads."""
    geometry, attributes, layout = problem.geometry, problem.attributes, packing.form
    (batch, height, width, channels), (out_height, out_width) = run.image, run.out
    steps, picks, outputs = tuple(attributes.strides), (1, 1), geometry.outputs
    # An image that is stored with the offset of +128 is read without a copy, in whole K-groups.
    in_place = problem.offsets.input and not any(attributes.pads)
    in_place = in_place and geometry.runs[1] % layout.group == 0
    if geometry.kernel_size == (1, 1):
        if steps == (1, 1) and not any(attributes.pads):
            # A GEMM: each pixel of the batch is a row.
            height = out_height = batch * height * width
            batch = width = out_width = 1
        elif not in_place:
            steps, picks = (1, 1), steps  # pixels that strides skip are not copied
    extent = geometry.extent
    wide_width = width if in_place else (out_width - 1) * steps[1] + extent[1]
    # The results of a row tile stay in L2 too, since each panel writes some of its columns.
    row_bytes = layout.element * wide_width * channels + out_width * outputs // steps[0]
    most = (layout.row_tile_bytes // row_bytes - extent[0]) // steps[0] + 1
    # A panel of weights is read for four micro-kernel tiles at least.
    most = max(most, -(-4 * layout.mr // out_width))
    multiple = layout.mr if out_width == 1 else 1
    panels = -(-(outputs // attributes.groups) // layout.nr)
    row_tile, row_tiles, part, parts = balance_tasks(
        out_height, most, multiple, batch, panels, run.threads
    )
    rows = (row_tile - 1) * steps[0] + extent[0]
    # The last contiguous run may be read to the end of its last K-group.
    elements = checked_elements(rows * wide_width * channels + layout.group - 1)
    image = image_fields((batch, height, width, channels), (out_height, out_width))
    copied = 0 if in_place else layout.element * elements
    tiling = {"row_tile": row_tile, "row_tiles": row_tiles, "parts": parts}
    copies = {"steps": steps, "picks": picks, "wide_width": wide_width}
    fields = indirect_convolution(
        geometry, image, copied, part_columns=part * layout.nr, **copies, **tiling
    )
    if packing.zeros is not None or isinstance(problem.result, DynamicScales):
        size = 4 * row_tile * out_width
        fields |= scratch_offsets(fields["thread_scratch"], acc=size, scales=size, zeros=size)
    fields |= {
        "vnni": layout.is_vnni,
        "in_u8": problem.offsets.input,
        "out_u8": problem.offsets.output,
        "other_u8": problem.offsets.added,
        "in_place": in_place,
        **int8.requantization(problem),
        **_result(problem),
    }
    if packing.zeros is not None:
        fields["zeros_stride"] = packing.zeros.shape[1]
    return fields


def _result(problem: Convolution) -> Fields:
    """Return the fields of the output's type: int8, with or without residual, float32 or int32."""
    lib, added = extension().lib, problem.added
    if isinstance(problem.result, DynamicScales):
        raw = problem.result.raw
        to = lib.NP_INT8_OUT_INT32 if raw else lib.NP_INT8_OUT_FLOAT
        return {"to": int(to), "float_low": -math.inf, "float_high": math.inf}
    if added is None:
        return {"to": 0}
    residual = added.own, added.other, added.bias, added.shift, added.zero, *added.limits
    return {"to": 0, "has_residual": 1, "residual": residual}


_DIRECT = "NP_INT8_CONVOLUTION", "int8 convolution", "NP_INT8_LAYOUT"
CONVOLUTION = ConvolutionKernel("convolution int8", *_DIRECT, _pack, _plan, offsets=True, adds=True)
MATMUL = MatmulKernel(
    "fully connected int8",
    *_DIRECT,
    lambda problem: _pack(problem.convolution),
    lambda problem, packing, run: _plan(problem.convolution, packing, run),
)
