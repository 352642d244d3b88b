"""Convolutions and matmuls of int8 by the kernel table."""

from __future__ import annotations

from narrowpass_xnn_cpu.native import target
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
from narrowpass_xnn_cpu.native.table import (
    AnyConvolution,
    AnyMatmul,
    create_convolution,
    create_matmul,
)
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight


def ours() -> bool:
    """Return whether our kernels of int8 are the faster ones on this processor."""
    return target.current().int8_is_own


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
