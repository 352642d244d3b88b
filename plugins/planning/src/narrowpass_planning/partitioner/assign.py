"""Where each operation runs, and why not natively."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import GUARD, OUR_DOMAIN, Op
from narrowpass_planning.graph.repeatable import repeatable
from narrowpass_planning.host import kernels
from narrowpass_planning.partitioner.assigned import Assigned, OpT, Where
from narrowpass_planning.partitioner.uses import find_awaited, find_users

_TINY = 16
"""Elements that numpy computes with as fast as it starts."""


def assign(
    ops: Sequence[OpT], facts: Facts, reason_of: Callable[[OpT, Facts], str | None]
) -> list[Assigned[OpT]]:
    """Decide for each operation where it runs; `facts.fixed` grows on the way.

    Args:
        ops: in order.
        facts: of the graph.
        reason_of: returns why a backend cannot run an operation; None where it can.
    """
    assigned = []
    for op in ops:
        if facts.is_constant(op.output):
            assigned.append(Assigned(op, Where.WEIGHTS))
            continue
        if _follows_from_shapes(op, facts):
            facts.fixed.update(value.name or "" for value in op.outputs if value.name)
            assigned.append(Assigned(op, Where.SHAPES))
            continue
        reason = reason_of(op, facts)
        where = Where.NATIVE if reason is None else Where.HOST
        assigned.append(Assigned(op, where, reason or ""))
    _leave_to_numpy(assigned, facts)
    return assigned


def _leave_to_numpy(assigned: Sequence[Assigned[OpT]], facts: Facts) -> None:
    """Let numpy compute what is tiny, and what host operations alone wait for.

    Such as whether an input says 16 kHz: a partition costs more than three nodes in numpy.
    """
    users = find_users(assigned)[1]
    awaited = find_awaited(assigned, users)
    native = {v for e in assigned if e.where is Where.NATIVE for v in e.op.outputs}
    for index, entry in enumerate(assigned):
        op = entry.op
        if entry.where is not Where.NATIVE or not awaited[index] or len(op.nodes) != 1:
            continue
        given = [value for value in op.inputs if value is not None]
        computed = [value for value in given if not facts.is_fixed(value)]
        tiny = all(_is_tiny(value, facts) for value in (*given, *op.outputs))
        if not tiny or not native.isdisjoint(computed) or op.kind != op.nodes[0].op_type:
            continue
        if kernels.make(op, facts) is not None:
            entry.where = Where.HOST
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
