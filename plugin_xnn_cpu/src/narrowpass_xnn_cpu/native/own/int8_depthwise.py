"""Depthwise convolutions of int8 by our own kernels."""

from __future__ import annotations

from typing import Any

from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.fp32_depthwise import checked_depthwise
from narrowpass_xnn_cpu.native.own.packed import (
    ConvolutionKernel,
    PackedConvolution,
    Packing,
    Run,
)
from narrowpass_xnn_cpu.native.own.tiling import (
    COLUMNS,
    checked_elements,
    even_bands,
    line,
    window_fields,
)
from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.quantization import zero_points
from narrowpass_xnn_cpu.native.weights_cache import Session, pointer

_BLOCK_BYTES = 1 << 15
"""What a thread widens of 16 channels at a time; it stays in L1 for the most part."""
_QUAD_PIXEL = 256
"""Bytes of 64 channels of four pixels: NP_INT8_VNNI_PIXEL."""


def _pack_pairs(problem: Convolution) -> Packing:
    """Pack weights of int16, less their zero points."""
    kernel, _ = int8.checked_int8(problem)
    height, width, channels = checked_depthwise(problem)
    zeros = zero_points(kernel, channels)
    ffi, lib = extension().ffi, extension().lib
    sizes = channels, height, width

    def write(block: Any, k: Any, b: Any, s: Any) -> None:
        taken = ffi.NULL if zeros is None else pointer(ffi, zeros)
        lib.np_int8_pack_depthwise(2, *sizes, k, b, s, taken, block)

    return int8.packing(
        problem,
        sizes if zeros is None else (*sizes, zeros.tobytes().hex()),
        height * width,
        lib.np_int8_depthwise_packed_size(2, *sizes),
        write,
        int8.PAIRS,
        zeros,
    )


def _pack_quads(problem: Convolution) -> Packing:
    int8.checked_int8(problem)
    height, width, channels = checked_depthwise(problem)
    ffi, lib, sizes = extension().ffi, extension().lib, (channels, height, width)
    return int8.packing(
        problem,
        sizes,
        height * width,
        lib.np_int8_depthwise_packed_size(4, *sizes),
        lambda block, k, b, s: lib.np_int8_pack_depthwise(4, *sizes, k, b, s, ffi.NULL, block),
        int8.QUADS,
    )


def _common(problem: Convolution, run: Run) -> tuple[Fields, int]:
    """Return the fields of both kernels, and the width of the copy of an image."""
    windows, strides = problem.windows, tuple(problem.movement.strides)
    wide_width = (run.out[1] - 1) * strides[1] + windows.reach[1]
    fields = {
        **run.fields,
        **window_fields(windows),
        "strides": strides,
        "wide_width": wide_width,
        **int8.requantization(problem),
    }
    return fields, wide_width


def _plan_pairs(problem: Convolution, packing: Packing, run: Run) -> Fields:
    """Divide rows so that 16 channels of them stay in L1."""
    common, wide_width = _common(problem, run)
    windows, strides, dilations = (
        problem.windows,
        problem.movement.strides,
        problem.movement.dilations,
    )
    pair_bytes = 4 * wide_width * COLUMNS
    most = (2 * (_BLOCK_BYTES // pair_bytes) - windows.reach[0]) // strides[0] + 1
    band, bands = even_bands(run.out[0], most)
    rows = (band - 1) * strides[0] + windows.reach[0]
    pairs = -(-rows // (2 * dilations[0]))
    weights = line(2 * checked_elements(dilations[0] * pairs * wide_width * 2 * COLUMNS))
    height, width = windows.size
    taps = (height + 2) // 2 * width
    return {
        **common,
        "row_tile": band,
        "row_tiles": bands,
        "pairs": pairs,
        "weights_offset": weights,
        "thread_scratch": weights + line(4 * (taps + width) * COLUMNS),
    }


def _plan_quads(problem: Convolution, packing: Packing, run: Run) -> Fields:
    """Divide rows so that all channels of them stay in L2 while their blocks are computed."""
    common, wide_width = _common(problem, run)
    windows = problem.windows
    batch, _, width, channels = run.image
    most = int8.BAND_BYTES // (width * channels * problem.movement.strides[0])
    if run.threads > 1:
        blocks = -(-windows.channels // 64)
        most = min(most, -(-batch * run.out[0] * blocks // (4 * run.threads)))
    band, bands = even_bands(run.out[0], most)
    quads = -(-windows.size[0] // 4)
    return {
        **common,
        "vnni": True,
        "in_u8": problem.offsets.input,
        "out_u8": problem.offsets.output,
        "row_tile": band,
        "row_tiles": bands,
        "thread_scratch": checked_elements(quads * wide_width * _QUAD_PIXEL),
    }


PAIRS = ConvolutionKernel(
    "depthwise convolution int8",
    "NP_INT8_DEPTHWISE",
    "int8 depthwise",
    "NP_INT8_LAYOUT",
    "np_int8_depthwise_params",
    _pack_pairs,
    _plan_pairs,
)
QUADS = ConvolutionKernel(
    "depthwise convolution int8",
    "NP_INT8_DEPTHWISE",
    "int8 quad depthwise",
    "NP_INT8_LAYOUT",
    "np_int8_depthwise_params",
    _pack_quads,
    _plan_quads,
    offsets=True,
)


def fitting(problem: Convolution) -> ConvolutionKernel:
    """Return the kernel of a problem: pairs of int16 have headroom for weights less zero points."""
    kernel, _ = int8.checked_int8(problem)
    quads = int8.layout() is int8.QUADS and zero_points(kernel, problem.shape[-1]) is None
    return QUADS if quads else PAIRS


def create(problem: Convolution, session: Session | None = None) -> PackedConvolution:
    """Return the operator of the fitting kernel."""
    return fitting(problem).create(problem, session)
