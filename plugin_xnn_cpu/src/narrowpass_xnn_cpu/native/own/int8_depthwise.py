"""Depthwise convolution of int8: pairs of int16 for AVX2, four taps of bytes for VNNI."""

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
    RunSizes,
)
from narrowpass_xnn_cpu.native.own.tiling import (
    NR,
    align_to_line,
    checked_elements,
    even_row_tiles,
    kernel_fields,
)
from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.quantization import zero_points
from narrowpass_xnn_cpu.native.weights_cache import Session, pointer

_BLOCK_BYTES = 1 << 15
"""Bytes of image rows that a thread converts to int16 at a time, of 16 channels: mostly L1."""
_VNNI_PIXEL = 256
"""Bytes of 64 channels of 4-way interleaved pixels: NP_INT8_VNNI_PIXEL."""


def _pack(problem: Convolution, form: int8.Layout) -> Packing:
    """Pack weights; as int16 of pairs, their zero points are subtracted."""
    kernel, _ = int8.checked_int8(problem)
    height, width, channels = checked_depthwise(problem)
    zeros = zero_points(kernel, channels) if form is int8.PAIRS else None
    ffi, lib = extension().ffi, extension().lib
    sizes = channels, height, width

    def write(block: Any, k: Any, b: Any, s: Any) -> None:
        z = ffi.NULL if zeros is None else pointer(ffi, zeros)
        lib.np_int8_pack_depthwise(form.group, *sizes, k, b, s, z, block)

    return int8.packing(
        problem,
        sizes if zeros is None else (*sizes, zeros.tobytes().hex()),
        height * width,
        lib.np_int8_depthwise_packed_size(form.group, *sizes),
        write,
        form,
        zeros,
    )


def _common(problem: Convolution, run: RunSizes) -> tuple[Fields, int]:
    """Return the fields that both kernels have, and the pixels of a row of the padded copy."""
    geometry, strides = problem.geometry, tuple(problem.attributes.strides)
    wide_width = (run.out[1] - 1) * strides[1] + geometry.extent[1]
    fields = {
        **run.fields,
        **kernel_fields(geometry),
        "strides": strides,
        "wide_width": wide_width,
        **int8.requantization(problem),
    }
    return fields, wide_width


def _plan_pairs(problem: Convolution, packing: Packing, run: RunSizes) -> Fields:
    """Block rows so that 16 channels of a row tile stay in L1."""
    common, wide_width = _common(problem, run)
    geometry, strides, dilations = (
        problem.geometry,
        problem.attributes.strides,
        problem.attributes.dilations,
    )
    pair_bytes = 4 * wide_width * NR
    most = (2 * (_BLOCK_BYTES // pair_bytes) - geometry.extent[0]) // strides[0] + 1
    row_tile, row_tiles = even_row_tiles(run.out[0], most)
    rows = (row_tile - 1) * strides[0] + geometry.extent[0]
    pairs = -(-rows // (2 * dilations[0]))
    weights = align_to_line(2 * checked_elements(dilations[0] * pairs * wide_width * 2 * NR))
    height, width = geometry.kernel_size
    taps = (height + 2) // 2 * width
    return {
        **common,
        "row_tile": row_tile,
        "row_tiles": row_tiles,
        "pairs": pairs,
        "weights_offset": weights,
        "thread_scratch": weights + align_to_line(4 * (taps + width) * NR),
    }


def _plan_vnni(problem: Convolution, packing: Packing, run: RunSizes) -> Fields:
    """Block rows so that all channels of a row tile stay in L2."""
    common, wide_width = _common(problem, run)
    geometry = problem.geometry
    batch, _, width, channels = run.image
    most = int8.ROW_TILE_BYTES // (width * channels * problem.attributes.strides[0])
    if run.threads > 1:
        blocks = -(-geometry.channels // 64)
        most = min(most, -(-batch * run.out[0] * blocks // (4 * run.threads)))
    row_tile, row_tiles = even_row_tiles(run.out[0], most)
    groups = -(-geometry.kernel_size[0] // 4)  # K-groups of 4 taps in a column of the kernel
    return {
        **common,
        "vnni": True,
        "in_u8": problem.offsets.input,
        "out_u8": problem.offsets.output,
        "row_tile": row_tile,
        "row_tiles": row_tiles,
        "thread_scratch": checked_elements(groups * wide_width * _VNNI_PIXEL),
    }


PAIRS = ConvolutionKernel(
    "depthwise convolution int8",
    "NP_INT8_DEPTHWISE",
    "int8 depthwise",
    "NP_INT8_LAYOUT",
    lambda problem: _pack(problem, int8.PAIRS),
    _plan_pairs,
)
VNNI = ConvolutionKernel(
    "depthwise convolution int8",
    "NP_INT8_DEPTHWISE",
    "int8 vnni depthwise",
    "NP_INT8_LAYOUT",
    lambda problem: _pack(problem, int8.VNNI),
    _plan_vnni,
    offsets=True,
)


def select_kernel(problem: Convolution) -> ConvolutionKernel:
    """Return the kernel of a problem; weights with zero points need the headroom of int16 pairs."""
    kernel, _ = int8.checked_int8(problem)
    symmetric = zero_points(kernel, problem.shape[-1]) is None
    return VNNI if int8.layout().is_vnni and symmetric else PAIRS


def create(problem: Convolution, session: Session | None = None) -> PackedConvolution:
    """Return the operator by the kernel for this processor."""
    return select_kernel(problem).create(problem, session)
