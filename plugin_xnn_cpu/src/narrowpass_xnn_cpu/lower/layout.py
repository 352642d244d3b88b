"""Layout assignment for the operands of elementwise operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.steps import Transpose, add_leading_axes
from narrowpass_xnn_cpu.lowered.op import Perm


def common_layout(builder: Builder, values: Sequence[ir.Value], rank: int) -> Perm:
    """Choose the layout for operands of an elementwise operator.

    It is the one that fewest operands must be transposed to. Among equals, channels-last comes
    before that of ONNX, since convolutions need it.
    """
    full = [v for v in values if builder.rank(v) == rank and not builder.facts.is_constant(v)]
    candidates = dict.fromkeys([*(builder.layout(v) for v in full), identity(rank)])

    def cost(perm: Perm) -> tuple[int, bool]:
        return sum(not builder.has_layout(v, perm) for v in full), perm == identity(rank)

    return min(candidates, key=cost)


def operand(builder: Builder, value: ir.Value, perm: Perm) -> Slot:
    """Return the slot of an operand that broadcasts against others of layout `perm`."""
    rank, full = builder.rank(value), len(perm)
    if builder.facts.is_constant(value):
        whole = identity(full) == perm or rank == 0
        return builder.slot_of(value) if whole else builder.slot_of(value, perm, rank=full)
    if rank == full:
        return builder.slot_of(value, perm)
    if rank == 0 or perm == identity(full):
        return builder.slot_of(value)
    # In the layout of ONNX leading axes may be missing; other layouts need all axes.
    full_rank = builder.intermediate(add_leading_axes(rank, full), [builder.slot_of(value)], value)
    return builder.intermediate(Transpose(perm), [full_rank], value)
