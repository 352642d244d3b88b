"""Convolutions and matmuls of int8 by the kernel table."""

from __future__ import annotations

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.packed import ConvolutionKernel
from narrowpass_xnn_cpu.native.problems import (
    UNBOUNDED,
    Convolution,
    Epilogue,
    Matmul,
    Movement,
    PerToken,
    Quantization,
    Range,
    Requantized,
)
from narrowpass_xnn_cpu.native.problems.quantization import zero_points
from narrowpass_xnn_cpu.native.table import (
    AnyConvolution,
    AnyMatmul,
    create_convolution,
    create_matmul,
    select,
)
from narrowpass_xnn_cpu.native.weights_cache import Session


def ours() -> bool:
    """Return whether our kernels of int8 are the faster ones on this processor."""
    return target.current().int8_is_own


def _convolution_kernel(kernel: Quantized, movement: Movement, *, depthwise: bool) -> object:
    same = Requantized(Quantization(1.0, 0), Quantization(1.0, 0))
    problem = Convolution(kernel, None, movement, same, depthwise=depthwise)
    return select(problem, target.current()).kernel


def takes_offset(kernel: Quantized, movement: Movement, *, depthwise: bool) -> bool:
    """Return whether a convolution can read and write bytes with an offset of +128."""
    found = _convolution_kernel(kernel, movement, depthwise=depthwise)
    return isinstance(found, ConvolutionKernel) and found.offsets and int8.layout() is int8.QUADS


def adds_tensor(kernel: Quantized, movement: Movement, *, depthwise: bool) -> bool:
    """Return whether a convolution can add a second tensor to its result."""
    found = _convolution_kernel(kernel, movement, depthwise=depthwise)
    return isinstance(found, ConvolutionKernel) and found.adds and int8.layout() is int8.QUADS


def quantizes_rows_before(matrix: Quantized, outputs: int) -> bool:
    """Return whether our kernel computes `fully_connected_int8_rows`: its rows come quantized."""
    return ours() or zero_points(matrix, outputs) is not None


def convolution_s8(
    kernel: Quantized,
    bias: Weight | None,
    movement: Movement,
    requantized: Requantized,
    *,
    depthwise: bool = False,
    session: Session | None = None,
) -> AnyConvolution:
    """Create the operator of a convolution of int8; see `Convolution`."""
    problem = Convolution(kernel, bias, movement, requantized, depthwise=depthwise)
    return create_convolution(problem, session)


def fully_connected_s8(
    matrix: Quantized,
    bias: Weight | None,
    requantized: Requantized,
    *,
    transposed: bool = False,
    session: Session | None = None,
) -> AnyMatmul:
    """Create the operator of a matmul of int8 whose result is int8; see `Matmul`."""
    problem = Matmul(matrix, bias, requantized, transposed, requantized.given)
    return create_matmul(problem, session)


def fully_connected_s8_f32(
    matrix: Quantized,
    bias: Weight | None,
    given: Quantization,
    limits: Range = UNBOUNDED,
    *,
    transposed: bool = False,
    session: Session | None = None,
) -> AnyMatmul:
    """Create the operator of a matmul of int8 whose result is float32; see `Matmul`."""
    return create_matmul(Matmul(matrix, bias, Epilogue(limits=limits), transposed, given), session)


def fully_connected_int8_rows(
    matrix: Quantized,
    bias: Weight | None,
    limits: Range = UNBOUNDED,
    *,
    transposed: bool = False,
    session: Session | None = None,
) -> AnyMatmul:
    """Create the operator of a matmul of rows that are quantized dynamically; see `PerToken`."""
    problem = Matmul(matrix, bias, Epilogue(limits=limits), transposed, PerToken())
    return create_matmul(problem, session)
