"""Functions along one axis: Softmax, LogSoftmax, Hardmax and LpNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels


@record
class RowFunction(Computation):
    """A function of the last axes, flattened.

    Attributes:
        axes: number of the last axes that form a row.
        function: one of ``NP_ROWS_*``.
    """

    mnemonic = "rows"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    axes: int
    function: str

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return self.function

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return self.axes

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        columns = elements(shape[len(shape) - self.axes :])
        params = kernels.row_function(elements(shape) // columns, columns, self.function)
        return Run(shape, "NP_ROWS", params=params)


@record
class SoftmaxRows(Computation):
    """Softmax over the last axes, flattened.

    Attributes:
        axes: number of the last axes that form a row.
    """

    mnemonic = "softmax"
    kernel = "softmax"
    axes: int

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        channels = elements(shape[len(shape) - self.axes :])
        if channels == 2:
            params = kernels.softmax_pairs(elements(shape) // 2)
            return Run(shape, "NP_SOFTMAX_PAIRS", params=params)
        params = kernels.row_function(elements(shape) // channels, channels, "softmax")
        return Run(shape, "NP_ROWS", params=params)


_NAMES = {"LogSoftmax": "log softmax", "Hardmax": "hardmax"}


def _axis(op: Op) -> int:
    if op.kind == "LpNormalization":
        return int(op.get("axis", -1))
    return int(op.get("axis", -1 if op.version >= 13 else 1))


def _check(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts)
    if reason:
        return reason
    rank = facts.rank(op.input(0)) or 0
    if not -rank <= _axis(op) < rank:
        return f"axis {_axis(op)} is not one of an input of rank {rank}"
    if op.kind == "LpNormalization" and op.get("p", 2) not in (1, 2):
        return f"there is no norm of order {op.get('p', 2)}"
    return None


def _along_axis(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    axis, axes = _axis(op) % rank, 1
    name = _NAMES.get(op.kind) or f"l{op.get('p', 2)} normalization"
    if op.kind != "LpNormalization" and op.version < 13:
        # Before operator set 13 all axes from `axis` on are flattened.
        axes, perm = rank - axis, identity(rank)
    else:
        perm = builder.layout(given)
        if perm[-1] != axis:
            perm = (*(a for a in perm if a != axis), axis)
    function = SoftmaxRows(axes) if op.kind == "Softmax" else RowFunction(axes, name)
    builder.compute(function, [builder.slot_of(given, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", lower=_along_axis, check=_check),
)
