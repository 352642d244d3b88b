"""Fusion of an Add into the normalization that reads it; the sum may be a second result."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower import sizes
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rules import BY_KIND

_NORMS = {
    "LayerNormalization": "layer-norm",
    "RMSNormalization": "rms-norm",
    "layer-norm": "layer-norm",
    "rms-norm": "rms-norm",
}


def fuse_add_norm(ops: Sequence[Op], facts: Facts) -> list[Op]:
    """Fuse each Add with the first normalization that reads it.

    The fused operation is scheduled at the Add, since other operations may read the sum before the
    normalization.
    """
    adds = {op.output: op for op in ops if op.kind == "Add" and len(op.inputs) == 2}
    fused: dict[int, Op] = {}
    gone: set[int] = set()
    for op in ops:
        add = adds.get(op.inputs[0]) if op.kind in _NORMS and op.inputs[0] is not None else None
        if add is None or id(add) in fused or not _fit(add, op, facts):
            continue
        fused[id(add)] = _fuse(add, op, facts)
        gone.add(id(op))
    return [fused.get(id(op), op) for op in ops if id(op) not in gone]


def _fit(add: Op, norm: Op, facts: Facts) -> bool:
    rank = facts.rank(add.output)
    if rank is None or not 1 <= rank <= 4 or norm.get("axis", -1) not in (-1, rank - 1):
        return False
    if add.clamped or norm.clamped:
        return False
    if any(BY_KIND[op.kind].check(op, facts) for op in (add, norm)):
        return False
    # The scale and bias must be available where the Add is scheduled.
    if not all(value is None or facts.is_constant(value) for value in norm.inputs[1:3]):
        return False
    first, second = _operands(add, facts)
    if facts.is_constant(first) or facts.rank(first) != rank:
        return False
    if facts.rank(second) != rank and not facts.is_constant(second):
        return False
    widths = [(sizes.dimensions(value, facts) or [""])[-1] for value in (first, second)]
    return isinstance(widths[0], int) and widths[0] == widths[1]


def _operands(add: Op, facts: Facts) -> list[ir.Value]:
    """Return both operands, a constant last."""
    return sorted((add.required(0), add.required(1)), key=facts.is_constant)


def _fuse(add: Op, norm: Op, facts: Facts) -> Op:
    total = add.output
    own = set(norm.nodes)
    wanted = total.name in facts.needed or any(use.node not in own for use in total.uses())
    first, second = _operands(add, facts)
    attributes = {"epsilon": norm.get("epsilon", 1e-5)} | ({"sum": total} if wanted else {})
    return Op(
        _NORMS[norm.kind],
        [first, norm.input(1), norm.input(2), second],
        [norm.output, *([total] if wanted else [])],
        attributes,
        norm.version,
        [*add.nodes, *norm.nodes],
        superseded=[*add.superseded, *norm.superseded],
    )
