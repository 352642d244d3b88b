"""Orders of axes in which operands of elementwise operators are taken."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.steps import Transpose, lead
from narrowpass_xnn_cpu.lowered.op import Perm


def common_layout(builder: Builder, values: Sequence[ir.Value], rank: int) -> Perm:
    """Choose the order of axes for operands of an elementwise operator.

    The one that fewest operands must be moved to; with equal numbers, one that is not ONNX's,
    since that is what convolutions ask for next.
    """
    full = [v for v in values if builder.rank(v) == rank and not builder.facts.is_constant(v)]
    candidates = dict.fromkeys([*(builder.layout(v) for v in full), identity(rank)])

    def cost(perm: Perm) -> tuple[int, bool]:
        return sum(not builder.has(v, perm) for v in full), perm == identity(rank)

    return min(candidates, key=cost)


def operand(builder: Builder, value: ir.Value, perm: Perm) -> Slot:
    """Give an operand for broadcasting against others of order `perm`."""
    rank, full = builder.rank(value), len(perm)
    if builder.facts.is_constant(value):
        whole = identity(full) == perm or rank == 0
        return builder.at(value) if whole else builder.at(value, perm, rank=full)
    if rank == full:
        return builder.at(value, perm)
    if rank == 0 or perm == identity(full):
        return builder.at(value)
    # In ONNX's order the leading axes may be missing; in another one they need a place.
    full_rank = builder.part(lead(rank, full), [builder.at(value)], value)
    return builder.part(Transpose(perm), [full_rank], value)
