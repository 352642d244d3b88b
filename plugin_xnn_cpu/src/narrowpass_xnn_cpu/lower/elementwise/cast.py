"""Cast and CastLike."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_planning.graph.facts import NARROW, Facts
from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.typed import (
    ANY,
    Cast,
    emit_typed,
    layout_of,
    round_to,
    typed_operand,
)
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Perm

_CASTS = {*ANY, *NARROW}


def _check_cast(op: Op, facts: Facts) -> str | None:
    source, target = facts.dtype(op.input(0)), facts.dtype(op.output)
    if op.kind == "Cast":
        target = ir.DataType(op.get("to", 0))
    for dtype, side in ((target, "to"), (source, "from")):
        if dtype not in _CASTS:
            name = "an unknown type" if dtype is None else dtype.name.lower()
            return f"conversion {side} {name} has no kernel"
    if facts.rank(op.input(0)) is None:
        return "the rank of its input is not known"
    return None


def _cast(op: Op, builder: Builder) -> None:
    """Lower a Cast; values of narrow floats are held in float32 and rounded here.

    Results of other operators with a narrow dtype are rounded only when they leave the partition,
    or when a Cast reads them.
    """
    given, facts = op.required(0), builder.facts
    source, target = facts.dtype(given), facts.dtype(op.output)
    if source is None or target is None:
        raise ValueError("a type is not known")
    if source == target:
        perm = builder.layout(given)
        builder.alias(op.output, builder.slot_of(given, perm), perm)
        return
    perm = layout_of(builder, [given])
    slot = typed_operand(builder, given, perm, rounded=True)
    if facts.is_float(op.output):
        _to_float(op, builder, slot, perm)
        return
    emit_typed(builder, Cast(), [slot], op.output, perm)


def _to_float(op: Op, builder: Builder, slot: Slot, perm: Perm) -> None:
    output, target = op.output, builder.facts.dtype(op.output)
    if not builder.facts.is_float(op.required(0)):
        slot = builder.intermediate(Cast(), [slot], output)
    # A value without readers in the partition is rounded when it leaves it.
    if target in NARROW and output.uses():
        slot = round_to(builder, slot, target, output)
    builder.alias(output, slot, perm)


RULES: tuple[Rule, ...] = (*rules("Cast", "CastLike", lower=_cast, check=_check_cast),)
