"""Depthwise convolutions of float32 by our own kernels."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.packed import ConvolutionKernel, Packing, Run
from narrowpass_xnn_cpu.native.own.tiling import (
    checked_elements,
    column_parts,
    even_bands,
    line,
    window_fields,
)
from narrowpass_xnn_cpu.native.problems.bounds import Shape, checked_shape, checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution

_BLOCK = 16
"""Channels whose weights lie together: NP_FP32_DEPTHWISE_BLOCK."""
_TASKS = 4
"""For each thread, where there are several: one that is late leaves some of them to others."""
_FEW_ROWS = 16
"""Of the output, for each thread: with fewer of them channels are divided instead."""


def checked_depthwise(problem: Convolution) -> Shape:
    """Check that a kernel [KH, KW, C] has one output for each channel; return its shape."""
    height, width, channels = checked_shape(problem.shape, 3)
    if problem.movement.groups != channels:
        raise BackendError(f"{channels} channels are not {problem.movement.groups} groups of one")
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


def _plan(problem: Convolution, packing: Packing, run: Run) -> Fields:
    """Divide rows among threads, or channels where there are few rows."""
    windows, strides, threads = problem.windows, tuple(problem.movement.strides), run.threads
    (batch, _, _, channels), height = run.image, run.out[0]
    band, bands, part, parts = height, 1, channels, 1
    if threads > 1:
        wanted = -(-_TASKS * threads // batch)
        if batch * height >= _FEW_ROWS * threads:
            band, bands = even_bands(height, -(-height // wanted), 2)
        else:
            part, parts = column_parts(channels, 1, wanted, _BLOCK)
    rows = checked_elements((band - 1) * strides[0] + windows.reach[0])
    return {
        **run.fields,
        **window_fields(windows),
        "strides": strides,
        "row_tile": band,
        "row_tiles": bands,
        "part": part,
        "parts": parts,
        "thread_scratch": line(8 * rows),
    }


DEPTHWISE = ConvolutionKernel(
    "depthwise convolution",
    "NP_FP32_DEPTHWISE",
    "fp32 depthwise",
    "NP_FP32_DEPTHWISE_LAYOUT",
    "np_fp32_depthwise_params",
    _pack,
    _plan,
    fuses_epilogue=True,
)
