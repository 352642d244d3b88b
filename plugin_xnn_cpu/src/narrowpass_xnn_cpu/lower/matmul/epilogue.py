"""Emission of matmuls and convolutions with a fused epilogue: residual, activation, clipping.

A residual that is known to have the shape of the result is fused. One whose sizes are known only at
run time may have to be broadcast, which kernels do not support: then the kernel skips it, and
`IfBroadcast` operations after it apply it. These are views of the result if shapes are equal. A
backend that is deterministic fuses none of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import Function
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import Binary, Unary
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session

PLAIN = Epilogue()
"""The empty epilogue: accumulators are stored unchanged."""


@record
class WithEpilogue(Computation):
    """A computation whose accumulators pass through an epilogue before they are stored.

    The residual of the epilogue, if it has one, is the last operand.

    Attributes:
        epilogue: applied to accumulators.
        fits: whether the residual is known to have the shape of the result.
    """

    epilogue: Epilogue = PLAIN
    fits: bool = True

    def in_place(self) -> Sequence[int]:
        """See `Computation.in_place`.

        A residual that is added before the function is read tile by tile, before a tile is stored.
        """
        return (1,) if self.epilogue.residual == "before" else ()

    def fitting(self, shapes: Sequence[Shape], result: Shape) -> Epilogue:
        """Return the epilogue for these operand shapes; without the residual if it is broadcast.

        Raises:
            BackendError: the residual has not the shape of the result, although `fits`.
        """
        if len(shapes) < 2 or shapes[1] == result:
            return self.epilogue
        if self.fits:
            raise BackendError(f"{list(shapes[1])} and {list(result)} were declared to be equal")
        return self.epilogue.without_residual()


@record
class IfBroadcast(Computation):
    """A computation that is skipped if two slots have the same shape.

    Operands are those of the computation, then the two slots. If skipped, the result is a view of
    the first operand.

    Attributes:
        computation: computed if the shapes differ.
    """

    mnemonic = "if_broadcast"
    computation: Computation

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"{self.computation.kernel_name(op, packed)} if broadcast"

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return self.computation.select(op, target)

    def pack(self, op: LoweredOp, session: Session | None) -> Any:
        """See `Computation.pack`."""
        return self.computation.pack(op, session)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        *given, one, other = shapes
        return Run(given[0], view=0) if one == other else self.computation.size(step, given, sizing)


def emit(
    op: Op, builder: Builder, computation: WithEpilogue, operands: Sequence[Slot], perm: Perm
) -> None:
    """Emit a computation with the epilogue of `op`, and operations that broadcast a residual.

    Args:
        op: the operation; its residual becomes the last operand.
        builder: of the partition.
        computation: its result is the output of `op`.
        operands: all but the residual.
        perm: layout of the result.
    """
    if not op.residual_fits and builder.numerics.deterministic:
        # With equal shapes it would be added to accumulators, with others to what was rounded.
        plain = dataclasses.replace(computation, epilogue=PLAIN, fits=True)
        emit_separately(op, builder, plain, operands, perm)
        return
    slot = builder.new(op.output)
    other = None if op.residual is None else builder.slot_of(op.residual, perm)
    inputs = operands if other is None else [*operands, other]
    if other is None or op.residual_fits:
        builder.emit(computation, inputs, slot, op.output, perm)
        return
    builder.emit(computation, inputs, slot)
    total = builder.intermediate(IfBroadcast(Binary("add")), [slot, other, slot, other], op.output)
    if op.epilogue.residual == "before" and (op.function != "clamp" or op.clamped):
        total = builder.intermediate(IfBroadcast(_function(op)), [total, slot, other], op.output)
    builder.alias(op.output, total, perm)


def emit_separately(
    op: Op, builder: Builder, computation: WithEpilogue, operands: Sequence[Slot], perm: Perm
) -> None:
    """Emit a computation without epilogue, and that of `op` as operations after it; see `emit`."""
    slot = builder.intermediate(computation, operands, op.output)
    other = None if op.residual is None else builder.slot_of(op.residual, perm)
    if other is not None and not op.residual_last:
        slot = builder.intermediate(Binary("add"), [slot, other], op.output)
    if op.function != "clamp" or op.clamped:
        slot = builder.intermediate(_function(op), [slot], op.output)
    if other is not None and op.residual_last:
        slot = builder.intermediate(Binary("add"), [slot, other], op.output)
    builder.alias(op.output, slot, perm)


def _function(op: Op) -> Computation:
    if op.function == "clamp":
        return Unary("clamp", op.limits)
    return Function(op.function.replace("-", " "))
