"""Packing of lowered operations to steps, which hold packed weights and XNNPACK operators."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from narrowpass_planning.plan.step import Run, Shape, Sizing, Step
from narrowpass_xnn_cpu.lowered.op import LoweredOp, PackedOp
from narrowpass_xnn_cpu.native.weights_cache import Session


class PackedStep(Step, PackedOp):
    """A lowered operation with the state of its kernel between runs.

    Args:
        op: the operation.
        session: of the weights cache; None to pack without the cache.

    Raises:
        UnfitError: the kernel does not compute exactly with these constants.
        BackendError: attributes that are not valid.
    """

    def __init__(self, op: LoweredOp, session: Session | None) -> None:
        super().__init__(op.operands, op.output)
        computation = op.computation
        self.op = op
        self.packed = computation.pack(op, session)
        self.nodes = op.nodes
        self.kernel = computation.kernel_name(op, self.packed)
        self.precision = computation.precision(op, self.packed)
        if op.note and op.note not in self.precision:
            self.precision = f"{self.precision or 'float32'}: {op.note}"
        self.in_place = [n for n in computation.in_place() if n < len(op.operands)]
        self.values = computation.shape_values()
        self.elastic, self.appended = computation.elastic(), computation.appended()
        self.row_axes = computation.row_axes(op)

    @property
    def alike(self) -> Hashable:
        """See `Step.alike`."""
        key = self.op.computation.reuse_key()
        return None if key is None else (type(self.op.computation), key)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        return self.op.computation.size(self, shapes, sizing)
