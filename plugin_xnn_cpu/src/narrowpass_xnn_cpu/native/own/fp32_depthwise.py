"""Depthwise convolution of float32: blocks of 16 channels, row tiles for threads."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.packed import ConvolutionKernel, Packing, RunSizes
from narrowpass_xnn_cpu.native.own.tiling import (
    align_to_line,
    checked_elements,
    column_parts,
    even_row_tiles,
    kernel_fields,
)
from narrowpass_xnn_cpu.native.problems.bounds import Shape, checked_shape, checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution

_TASKS = 4
"""Tasks for each thread, where there are several: others take over those of a slow one."""
_FEW_ROWS = 16
"""Output rows for each thread; with fewer, channels are divided instead."""


def checked_depthwise(problem: Convolution) -> Shape:
    """Check that a kernel [KH, KW, C] has one output for each channel; return its shape."""
    height, width, channels = checked_shape(problem.shape, 3)
    if problem.attributes.groups != channels:
        raise BackendError(f"{channels} channels are not {problem.attributes.groups} groups of one")
    return height, width, channels


def _pack(problem: Convolution) -> Packing:
    height, width, channels = checked_depthwise(problem)
    if not isinstance(problem.kernel, Weight):
        raise BackendError(f"a kernel must be float32, not {problem.dtypes}")
    checked_weights(problem.kernel, problem.bias, channels, "float32", "float32")
    lib, sizes = extension().lib, (channels, height, width)
    return Packing(
        sizes,
        problem.kernel,
        problem.bias,
        None,
        lib.np_fp32_depthwise_packed_size(*sizes),
        lambda block, k, b, _: lib.np_fp32_depthwise_pack(*sizes, k, b, block),
    )


def _plan(problem: Convolution, packing: Packing, run: RunSizes) -> Fields:
    """Divide rows among threads, or channels where there are few rows."""
    geometry, strides, threads = problem.geometry, tuple(problem.attributes.strides), run.threads
    (batch, _, _, channels), height = run.image, run.out[0]
    row_tile, row_tiles, part, parts = height, 1, channels, 1
    if threads > 1:
        wanted = -(-_TASKS * threads // batch)
        if batch * height >= _FEW_ROWS * threads:
            row_tile, row_tiles = even_row_tiles(height, -(-height // wanted), 2)
        else:
            block = extension().lib.NP_FP32_DEPTHWISE_BLOCK
            part, parts = column_parts(channels, 1, wanted, block)
    rows = checked_elements((row_tile - 1) * strides[0] + geometry.extent[0])
    return {
        **run.fields,
        **kernel_fields(geometry),
        "strides": strides,
        "row_tile": row_tile,
        "row_tiles": row_tiles,
        "part": part,
        "parts": parts,
        "thread_scratch": align_to_line(8 * rows),
    }


DEPTHWISE = ConvolutionKernel(
    "depthwise convolution",
    "NP_FP32_DEPTHWISE",
    "fp32 depthwise",
    "NP_FP32_DEPTHWISE_LAYOUT",
    _pack,
    _plan,
    fuses_epilogue=True,
)
