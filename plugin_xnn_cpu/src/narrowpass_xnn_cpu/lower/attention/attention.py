"""Rules of fused attention: which attention nodes are lowered to the `Attention` computation."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lower.attention.cached import emit_attention
from narrowpass_xnn_cpu.lower.attention.computation import Attention
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.op import Op, check_dtype, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Binary
from narrowpass_xnn_cpu.lowered.op import Perm


def _check(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 3)
    masks = [mask for mask in op.inputs[3:5] if mask is not None]
    added = op.get("mask", "added") == "added"
    for mask in masks:
        reason = reason or check_dtype(
            mask, facts, ir.DataType.FLOAT if added else ir.DataType.BOOL
        )
    if reason:
        return reason
    ranks = [facts.rank(value) for value in op.inputs[:3]]
    if len(set(ranks)) != 1 or ranks[0] not in (3, 4, 5):
        return "its operands have no three, four or five dimensions"
    if any((facts.rank(mask) or 0) > (ranks[0] or 0) for mask in masks):
        return "its mask has more dimensions than its scores"
    if any(facts.is_constant(value) for value in op.inputs[:2]):
        return "its queries or keys are constant"
    return None


def _attention(op: Op, builder: Builder) -> None:
    rank = builder.rank(op.required(0))
    transposed = op.get("transposed_keys", False)
    slots, perms = [], []
    for index, dense in ((0, rank - 1), (1, rank - 1 if transposed else rank - 2), (2, rank - 1)):
        value = op.required(index)
        perm = builder.layout(value)
        if perm[-1] != dense:
            perm = (*(axis for axis in range(rank) if axis != dense), dense)
        slots.append(builder.slot_of(value, perm))
        if index == 1 and not transposed:
            # The operand is kᵀ, [.., depth, keys].
            swap = {rank - 1: rank - 2, rank - 2: rank - 1}
            perm = tuple(swap.get(axis, axis) for axis in perm)
        perms.append(perm)
    masks = [mask for mask in op.inputs[3:5] if mask is not None]
    if masks:
        slots.append(_mask_slot(builder, masks))
        perms.append(identity(max(builder.rank(mask) for mask in masks)))
    output = op.output
    perm = _result_layout(builder, output)
    attention = Attention(
        tuple(perms),
        perm,
        float(op.get("scale", 1.0)),
        mask=op.get("mask", "added"),
        fill=op.get("fill", 0.0),
        safe=op.get("safe", False),
        grouped=op.get("grouped", False),
        softcap=op.get("softcap", 0.0),
        visible=op.get("visible", False),
        causal=op.get("causal", False),
        window_size=op.get("window_size", 0),
        rounded=_is_rounded(op) and not builder.numerics.deterministic,
        deterministic=builder.numerics.deterministic,
        targets=tuple(value.name or "" for value in op.inputs[5:] if value is not None),
    )
    # A scalar has no columns either.
    wide = [mask for mask in masks if mask.shape is None or (mask.shape or (1,))[-1] != 1]
    emit_attention(attention, slots, builder, output, perm, next(iter(wide or masks), None))


def _is_rounded(op: Op) -> bool:
    """Return whether both matmuls accept rounded operands, or have operands of bfloat16 anyway."""
    matmuls = [node for node in op.nodes if node.op_type == "MatMul"]
    return bool(matmuls) and all(
        node.metadata_props.get(ACTIVATIONS) == "bfloat16"
        or all(value is not None and value.dtype == ir.DataType.BFLOAT16 for value in node.inputs)
        for node in matmuls
    )


def _mask_slot(builder: Builder, masks: Sequence[ir.Value]) -> Slot:
    """Return the slot of the mask; the sum of two masks is computed once for all layers."""
    slots = [builder.slot_of(mask) for mask in masks]
    if len(slots) == 1:
        return slots[0]

    def add() -> Slot:
        return builder.intermediate(Binary("add"), slots, masks[0])

    return builder.once(("masks", *slots), add)


def _result_layout(builder: Builder, output: ir.Value) -> Perm:
    """Return the layout [.., rows, heads, depth] if a Transpose follows, else that of ONNX."""
    rank = builder.rank(output)
    user = builder.facts.only_user(output)
    if user is not None and user.op_type == "Reshape" and rank == 5:
        # A Reshape merges groups and heads before the Transpose.
        target = user.outputs[0]
        user = builder.facts.only_user(target) if builder.facts.rank(target) == 4 else None
    if user is None or user.op_type != "Transpose" or rank < 4:
        return identity(rank)
    return (0, rank - 2, *range(1, rank - 2), rank - 1)


RULES: tuple[Rule, ...] = (*rules("attention", lower=_attention, check=_check),)
