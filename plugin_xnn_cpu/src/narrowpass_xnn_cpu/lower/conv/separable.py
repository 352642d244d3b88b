"""Depth-first fusion of a depthwise convolution with the convolutions around it.

The expanded image between a 1x1 convolution and a depthwise convolution is the largest of mobile
networks. Where it does not fit the L2 cache, most of the time of both goes into storing and loading
it; see `Separable`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv.conv2d import Conv2d, KernelWindow, output_shape
from narrowpass_xnn_cpu.lower.matmul.computations import ConstantMatMul, PackedConstantMatMul
from narrowpass_xnn_cpu.lower.matmul.epilogue import WithEpilogue
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lowered.op import LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import keyword_record
from narrowpass_xnn_cpu.native.own.separable import Separable
from narrowpass_xnn_cpu.native.weights_cache import Session

LEAST_BYTES = 1 << 19
"""Size of the inner image from which fusion pays: half of a core's L2 cache."""


def fuse_separable(
    op: Op, project: ConstantMatMul, rows: Slot, builder: Builder, perm: Perm
) -> bool:
    """Fuse a 1x1 convolution with the depthwise convolution before it, where that pays.

    Args:
        op: the 1x1 convolution.
        project: its matmul, which is not emitted yet.
        rows: the operand of the matmul.
        builder: has the operations before it.
        perm: the layout of the result.

    Returns:
        Whether it was fused and emitted.
    """
    middle = builder.sole_producer(rows)
    if middle is None or not project.is_gemm or not op.residual_fits:
        return False
    depthwise = middle.computation
    if not isinstance(depthwise, Conv2d) or not depthwise.is_depthwise_kernel:
        return False
    if depthwise.epilogue.residual:
        return False
    first = _expand_convolution(middle, depthwise, builder)
    expand: ConstantMatMul | Conv2d | None = None
    replaced = [middle]
    if first is not None and _bytes(middle.operands[0], builder) >= LEAST_BYTES:
        expand, replaced = first[1], [first[0], middle]
    elif _bytes(rows, builder) < LEAST_BYTES:
        return False
    operands = [replaced[0].operands[0]]
    if op.residual is not None:
        operands.append(builder.slot_of(op.residual, perm))
    fused = SeparableConvolution(
        project.epilogue, expand=expand, depthwise=depthwise, project=project
    )
    builder.replace(replaced, fused, operands, op.output, perm)
    return True


@keyword_record
class SeparableConvolution(WithEpilogue):
    """A depthwise convolution and the convolutions around it, fused depth-first.

    Operands are the images and the residual of the last one.

    Attributes:
        expand: the first convolution, or the matmul of a 1x1 one; None for none.
        depthwise: the depthwise convolution.
        project: the matmul of the 1x1 convolution after it.
    """

    mnemonic = "separable_convolution"
    expand: ConstantMatMul | Conv2d | None
    depthwise: Conv2d
    project: ConstantMatMul

    @property
    def _kernel_window(self) -> KernelWindow:
        first = self.expand
        return first.kernel_window if isinstance(first, Conv2d) else self.depthwise.kernel_window

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        if self.expand is None:
            return "depthwise and 1x1 convolution"
        return "depth-first convolutions"

    def pack(self, op: LoweredOp, session: Session | None) -> Separable:
        """See `Computation.pack`."""
        expand = None if self.expand is None else self.expand.pack(op, session)
        if isinstance(expand, PackedConstantMatMul):
            expand = expand.gemm
        depthwise = self.depthwise.pack(op, session)
        return Separable(expand, depthwise, self.project.pack(op, session).gemm)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        operator = step.packed
        outputs = self.project.weight.shape[1]
        result, call = output_shape(operator, self._kernel_window, outputs, shapes[0], sizing)
        self.fitting(shapes, result)
        return Run(result, call, operator, operator.params)


def _expand_convolution(
    middle: LoweredOp, depthwise: Conv2d, builder: Builder
) -> tuple[LoweredOp, ConstantMatMul | Conv2d] | None:
    """Return the operation and computation before a depthwise convolution that can be fused."""
    op = builder.sole_producer(middle.operands[0], middle)
    if op is None:
        return None
    first = op.computation
    if isinstance(first, ConstantMatMul):
        return (op, first) if first.is_gemm and not first.epilogue.residual else None
    if not isinstance(first, Conv2d) or first.epilogue.residual:
        return None
    # Only the kernel window of the first convolution is checked against the input size.
    fits = first.is_direct_kernel and not depthwise.kernel_window.only_for
    return (op, first) if fits else None


def _bytes(slot: Slot, builder: Builder) -> int:
    """Return the bytes of a float32 image in a slot; 0 if its dimensions are not known."""
    dims = (builder.facts.dims(builder.value_of(slot)) or ())[1:]
    sizes = [dim for dim in dims if isinstance(dim, int)]
    return 4 * math.prod(sizes) if len(sizes) == len(dims) == 3 else 0
