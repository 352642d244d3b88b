"""The target of each operation: the backend, numpy, or shape propagation; with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import GUARD, OUR_DOMAIN, Op
from narrowpass_planning.graph.repeatable import repeatable
from narrowpass_planning.host import kernels
from narrowpass_planning.partitioner.assignment import Assignment, OpT, Target
from narrowpass_planning.partitioner.uses import find_host_producers, find_users

_TINY = 16
"""Elements that numpy computes with as fast as it starts."""


def assign(
    ops: Sequence[OpT], facts: Facts, reason_of: Callable[[OpT, Facts], str | None]
) -> list[Assignment[OpT]]:
    """Choose a target for each operation; `facts.fixed` gets the values that follow from shapes.

    Args:
        ops: in order.
        facts: of the graph.
        reason_of: returns why a backend cannot run an operation; None where it can.
    """
    assigned = []
    for op in ops:
        if facts.is_constant(op.output):
            assigned.append(Assignment(op, Target.WEIGHTS))
            continue
        if _follows_from_shapes(op, facts):
            facts.fixed.update(value.name or "" for value in op.outputs if value.name)
            assigned.append(Assignment(op, Target.SHAPES))
            continue
        reason = reason_of(op, facts)
        target = Target.NATIVE if reason is None else Target.HOST
        assigned.append(Assignment(op, target, reason or ""))
    _leave_to_numpy(assigned, facts)
    return assigned


def _leave_to_numpy(assigned: Sequence[Assignment[OpT]], facts: Facts) -> None:
    """Let numpy compute operations of tiny tensors that only host operations depend on.

    An example is the comparison of a sampling rate: a partition costs more than three numpy nodes.
    """
    users = find_users(assigned)[1]
    feeds_host = find_host_producers(assigned, users)
    native = {v for e in assigned if e.target is Target.NATIVE for v in e.op.outputs}
    for index, entry in enumerate(assigned):
        op = entry.op
        if entry.target is not Target.NATIVE or not feeds_host[index] or len(op.nodes) != 1:
            continue
        given = [value for value in op.inputs if value is not None]
        computed = [value for value in given if not facts.is_fixed(value)]
        tiny = all(_is_tiny(value, facts) for value in (*given, *op.outputs))
        if not tiny or not native.isdisjoint(computed) or op.kind != op.nodes[0].op_type:
            continue
        if kernels.kernel_for(op, facts) is not None:
            entry.target = Target.HOST
            native.difference_update(op.outputs)


def _is_tiny(value: ir.Value, facts: Facts) -> bool:
    sizes = facts.dims(value)
    if sizes is None or value.name in facts.observed:
        return False
    dims = [dim for dim in sizes if isinstance(dim, int)]
    return len(dims) == len(sizes) and math.prod(dims) <= _TINY


def _follows_from_shapes(op: Op, facts: Facts) -> bool:
    if op.nodes[0].domain == OUR_DOMAIN and op.kind == GUARD:
        return facts.is_fixed(op.input(0))
    if not repeatable(op, facts):
        return False
    if op.kind in ("Shape", "Size"):
        return True
    return all(value is None or facts.is_fixed(value) for value in op.inputs)
