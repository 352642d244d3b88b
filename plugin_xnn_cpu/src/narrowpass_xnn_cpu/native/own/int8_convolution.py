"""Convolutions of int8, computed directly; and matmuls of int8 as convolutions of 1 x 1."""

from __future__ import annotations

import math

from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.packed import (
    ConvolutionKernel,
    MatmulKernel,
    Packing,
    Run,
)
from narrowpass_xnn_cpu.native.own.tiling import (
    checked_elements,
    divide,
    image_fields,
    offsets,
    run_fields,
    run_scratch,
)
from narrowpass_xnn_cpu.native.problems.convolution import Convolution, Dynamic
from narrowpass_xnn_cpu.native.problems.quantization import zero_points


def _pack(problem: Convolution) -> Packing:
    kernel, _ = int8.checked_int8(problem)
    windows, groups = problem.windows, problem.movement.groups
    form, zeros = int8.layout(), zero_points(kernel, windows.outputs)
    runs, run_length = windows.runs
    sizes = groups, windows.outputs // groups, runs, run_length
    packed_size, pack = int8.packers(form)
    return int8.packing(
        problem,
        (form.name, *sizes),
        runs * run_length,
        packed_size(*sizes),
        lambda block, k, b, s: pack(*sizes, k, b, s, block),
        form,
        zeros,
        None if zeros is None else int8.in_panels(zeros, groups, form),
    )


def _plan(problem: Convolution, packing: Packing, run: Run) -> Fields:
    """Divide rows so that the copy of an image stays in L2, and panels among threads."""
    windows, movement, layout = problem.windows, problem.movement, packing.form
    (batch, height, width, channels), (out_height, out_width) = run.image, run.out
    steps, picks, outputs = tuple(movement.strides), (1, 1), windows.outputs
    # An image that is stored with the offset is read where it lies, in whole groups.
    in_place = problem.offsets.input and not any(movement.pads)
    in_place = in_place and windows.runs[1] % layout.group == 0
    if windows.size == (1, 1):
        if steps == (1, 1) and not any(movement.pads):
            # All pixels are one row after the other.
            height = out_height = batch * height * width
            batch = width = out_width = 1
        elif not in_place:
            steps, picks = (1, 1), steps  # only pixels that are needed are widened
    reach = windows.reach
    wide_width = width if in_place else (out_width - 1) * steps[1] + reach[1]
    # The results of a band stay in the cache too, since panels write it by pieces.
    row_bytes = layout.element * wide_width * channels + out_width * outputs // steps[0]
    most = (layout.band_bytes // row_bytes - reach[0]) // steps[0] + 1
    # A panel of weights is read for a few tiles at least.
    most = max(most, -(-4 * layout.rows // out_width))
    whole = layout.rows if out_width == 1 else 1
    panels = -(-(outputs // movement.groups) // layout.columns)
    band, bands, part, parts = divide(out_height, most, whole, batch, panels, run.threads)
    rows = (band - 1) * steps[0] + reach[0]
    # The last run may be read to its last group's end.
    elements = checked_elements(rows * wide_width * channels + layout.group - 1)
    count = band * out_width
    scratch = run_scratch(windows, 0 if in_place else layout.element * elements, count)
    dynamic = isinstance(problem.result, Dynamic)
    if packing.zeros is not None or dynamic:
        size = 4 * count
        scratch |= offsets(scratch["thread_scratch"], acc=size, scales=size, zeros=size)
    fields = {
        **image_fields((batch, height, width, channels), (out_height, out_width)),
        **run_fields(windows),
        **scratch,
        "steps": steps,
        "picks": picks,
        "wide_width": wide_width,
        "row_tile": band,
        "row_tiles": bands,
        "parts": parts,
        "part_columns": part * layout.columns,
        "vnni": layout is int8.QUADS,
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
    """Return the fields of what accumulators become, beside those of int8."""
    lib, added = extension().lib, problem.added
    if isinstance(problem.result, Dynamic):
        raw = problem.result.raw
        to = lib.NP_INT8_OUT_INT32 if raw else lib.NP_INT8_OUT_FLOAT
        return {"to": int(to), "float_low": -math.inf, "float_high": math.inf}
    if added is None:
        return {"to": 0}
    residual = added.own, added.other, added.bias, added.shift, added.zero, *added.limits
    return {"to": 0, "has_residual": 1, "residual": residual}


_DIRECT = (
    "NP_INT8_CONVOLUTION",
    "int8 convolution",
    "NP_INT8_LAYOUT",
    "np_int8_convolution_params",
)
CONVOLUTION = ConvolutionKernel("convolution int8", *_DIRECT, _pack, _plan, offsets=True, adds=True)
MATMUL = MatmulKernel(
    "fully connected int8",
    *_DIRECT,
    lambda problem: _pack(problem.convolution),
    lambda problem, packing, run: _plan(problem.convolution, packing, run),
)
