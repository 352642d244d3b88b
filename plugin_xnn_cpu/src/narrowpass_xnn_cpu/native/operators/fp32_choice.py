"""Convolutions and matmuls of float32 by the kernel table."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.problems import Convolution, Epilogue, Image, Matmul, Movement
from narrowpass_xnn_cpu.native.table import (
    AnyConvolution,
    AnyMatmul,
    create_convolution,
    create_matmul,
)
from narrowpass_xnn_cpu.native.table.convolution import depthwise_passed_over
from narrowpass_xnn_cpu.native.table.winograd import tile_for
from narrowpass_xnn_cpu.native.weights_cache import Session


def convolutions_are_ours() -> bool:
    """Return whether our kernels compute convolutions on this processor."""
    return target.current().fp32_lanes > 0


def matmuls_are_ours() -> bool:
    """Return whether our GEMM computes matmuls with a constant matrix on this processor."""
    return target.current().fp32_lanes > 0


def is_product(window: tuple[int, int], movement: Movement) -> bool:
    """Return whether a convolution is better a matmul of its pixels."""
    moved = any(movement.pads) or max(movement.strides) > 1
    return window == (1, 1) and movement.groups == 1 and not moved and convolutions_are_ours()


def ends(movement: Movement, outputs: int, *, depthwise: bool) -> bool:
    """Return whether a convolution can end with any epilogue: a kernel of ours computes it."""
    return convolutions_are_ours() and (not depthwise or outputs == movement.groups)


def winograd_tile(kernel: Sequence[int], movement: Movement, image: Image | None) -> int:
    """Return the tile of Winograd's algorithm for a convolution; 0 for a direct one."""
    found = target.current()
    return tile_for(kernel, movement, image, found.fp32_packing) if found.fp32_lanes else 0


def depthwise_is_ours(
    kernel: Sequence[int], movement: Movement, epilogue: Epilogue, image: Image | None = None
) -> bool:
    """Return whether our depthwise kernel computes a convolution with this epilogue."""
    return not depthwise_passed_over(kernel, movement, epilogue, image, target.current())


def convolution(
    kernel: Weight,
    bias: Weight | None,
    movement: Movement,
    epilogue: Epilogue,
    *,
    image: Image | None = None,
    depthwise: bool = False,
    winograd: bool = True,
    session: Session | None = None,
) -> AnyConvolution:
    """Create the operator of a convolution; see `Convolution`."""
    problem = Convolution(
        kernel, bias, movement, epilogue, depthwise=depthwise, image=image, winograd=winograd
    )
    return create_convolution(problem, session)


def fully_connected(
    kernel: Weight,
    bias: Weight | None,
    epilogue: Epilogue,
    *,
    transposed: bool = False,
    session: Session | None = None,
) -> AnyMatmul:
    """Create the operator of a matmul with a constant matrix of float32; see `Matmul`."""
    return create_matmul(Matmul(kernel, bias, epilogue, transposed), session)
