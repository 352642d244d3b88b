"""Depthwise convolutions that are computed in one pass with what is around them.

The image between a product that makes many channels of few and a depthwise convolution is the
largest of networks for small devices. Where it does not fit the second cache, most of both steps'
time goes into writing and reading it; see `Separable`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv.conv2d import Conv2d, Window, sized
from narrowpass_xnn_cpu.lower.matmul.constant import ConstantMatMul
from narrowpass_xnn_cpu.lower.matmul.epilogue import WithEpilogue
from narrowpass_xnn_cpu.lower.matmul.packed import PackedConstantMatMul
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lowered.op import LoweredOp, PackedOp, Perm
from narrowpass_xnn_cpu.native.own.separable import Separable
from narrowpass_xnn_cpu.native.weights_cache import Session

LEAST_BYTES = 1 << 19
"""Of an inner image, so that it pays not to write it: half of what a core's second cache has."""


def take_depthwise(
    op: Op, project: ConstantMatMul, rows: Slot, builder: Builder, perm: Perm
) -> bool:
    """Fuse a matmul with the depthwise convolution before it, where that pays.

    Args:
        op: the matmul.
        project: what it computes, which is not emitted yet.
        rows: its operand.
        builder: has the operations before it.
        perm: the order of the result's axes.
    """
    middle = builder.maker(rows)
    if middle is None or not project.is_gemm or not op.residual_fits:
        return False
    depthwise = middle.computation
    if not isinstance(depthwise, Conv2d) or not depthwise.is_depthwise_kernel:
        return False
    if depthwise.epilogue.residual:
        return False
    first = _expanding(middle, depthwise, builder)
    expand: ConstantMatMul | Conv2d | None = None
    replaced = [middle]
    if first is not None and _bytes(middle.operands[0], builder) >= LEAST_BYTES:
        expand, replaced = first[1], [first[0], middle]
    elif _bytes(rows, builder) < LEAST_BYTES:
        return False
    operands = [replaced[0].operands[0]]
    if op.residual is not None:
        operands.append(builder.at(op.residual, perm))
    fused = SeparableConvolution(
        project.epilogue, expand=expand, depthwise=depthwise, project=project
    )
    builder.replace(replaced, fused, operands, op.output, perm)
    return True


@dataclass(frozen=True, kw_only=True)
class SeparableConvolution(WithEpilogue):
    """A depthwise convolution and the convolutions around it, fused depth-first.

    Operands are the images and the residual of the last one.

    Attributes:
        expand: the first convolution, or a matmul of each pixel; None for none.
        depthwise: the convolution in the middle.
        project: the matmul of each pixel of that.
    """

    mnemonic = "separable_convolution"
    expand: ConstantMatMul | Conv2d | None
    depthwise: Conv2d
    project: ConstantMatMul

    @property
    def _window(self) -> Window:
        first = self.expand
        return first.window if isinstance(first, Conv2d) else self.depthwise.window

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        if self.expand is None:
            return "depthwise convolution and product"
        return "convolutions in bands"

    def pack(self, op: LoweredOp, session: Session | None) -> Separable:
        """See `Computation.pack`."""
        expand = None if self.expand is None else self.expand.pack(op, session)
        if isinstance(expand, PackedConstantMatMul):
            expand = expand.gemm
        depthwise = self.depthwise.pack(op, session)
        return Separable(expand, depthwise, self.project.pack(op, session).gemm)

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        operator = step.packed
        outputs = self.project.weight.shape[1]
        result, call = sized(operator, self._window, outputs, shapes[0], sizing)
        self.fitting(shapes, result)
        return Run(result, call, operator, operator.params)


def _expanding(
    middle: LoweredOp, depthwise: Conv2d, builder: Builder
) -> tuple[LoweredOp, ConstantMatMul | Conv2d] | None:
    """Return what computes the images that a depthwise convolution alone reads."""
    op = builder.maker(middle.operands[0], middle)
    if op is None:
        return None
    first = op.computation
    if isinstance(first, ConstantMatMul):
        return (op, first) if first.is_gemm and not first.epilogue.residual else None
    if not isinstance(first, Conv2d) or first.epilogue.residual:
        return None
    # The size that pads are for is known of the images in the middle only.
    fits = first.is_direct_kernel and not depthwise.window.only_for
    return (op, first) if fits else None


def _bytes(slot: Slot, builder: Builder) -> int:
    """Give the bytes of an image in a slot; 0 where its dimensions are not known."""
    dims = (builder.facts.dims(builder.value_of(slot)) or ())[1:]
    sizes = [dim for dim in dims if isinstance(dim, int)]
    return 4 * math.prod(sizes) if len(sizes) == len(dims) == 3 else 0
