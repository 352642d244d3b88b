"""Rules of fused attention, and its fusion with the Concat of its KV cache.

A Concat copies the past keys or values, then the new rows. Where attention is the first reader of
the result, the copy of the past is deferred to it: each block is copied and used while it is in the
cache of the processor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_planning.state.errors import AppendError
from narrowpass_xnn_cpu.lower.attention.appended import appended_attention
from narrowpass_xnn_cpu.lower.attention.computation import Attention
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.movement.concat import ConcatPiece
from narrowpass_xnn_cpu.lower.op import Op, check_dtype, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Binary, Dim, Reshape
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import attention_params


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
    _emit_attention(attention, slots, builder, output, perm, next(iter(wide or masks), None))


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


@record
class CachedAttention(Computation):
    """Attention that also copies the past keys and values to the concatenated ones.

    Operands are those of attention, then past keys and past values. The new rows are copied before.

    Attributes:
        attention: the attention, with operands [.., rows, depth].
    """

    mnemonic = "cached_attention"
    kernel = "attention and caches"
    attention: Attention

    def precision(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.precision`."""
        return self.attention.precision(op, packed)

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return self.attention.shape_values()

    def reuse_key(self) -> Hashable:
        """See `Computation.reuse_key`."""
        return self.attention.reuse_key()

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        first = len(shapes) - 2
        run = self.attention.size_of(shapes[:first], sizing)
        # In the shapes that the pieces were concatenated in.
        wholes = [
            (*piece[:-2], *whole[-2:])
            for whole, piece in zip(shapes[1:3], shapes[first:], strict=True)
        ]
        pieces = [
            piece if _defers_copy((piece, _appended_shape(piece, whole))) else None
            for piece, whole in zip(shapes[first:], wholes, strict=True)
        ]
        if pieces == [None, None]:
            return run
        params = attention_params.cached_attention(run.params, first, wholes, pieces)
        return Run(run.shape, "NP_CACHED_ATTENTION", params=params, workspace=run.workspace)


def _defers_copy(pieces: Sequence[Shape]) -> bool:
    """Return whether the copy of the past is deferred to attention: no piece may be empty."""
    return all(map(elements, pieces))


def _appended_shape(piece: Shape, whole: Shape) -> Shape:
    """Return the shape of the rows that are appended to a piece."""
    return (*whole[:-2], whole[-2] - piece[-2], whole[-1])


def _emit_attention(
    attention: Attention,
    operands: Sequence[Slot],
    builder: Builder,
    value: ir.Value,
    perm: Perm,
    mask: ir.Value | None = None,
) -> None:
    """Emit attention, over appended caches or with the copies of past keys and values deferred.

    Copies are not deferred if keys and values are no such Concat, or if an operation has read them.
    `mask` is the value that operand 3 holds.
    """
    keys, values = operands[1:3]
    sources = [] if keys is values else [_source(slot, builder) for slot in (keys, values)]
    writers = [op for source in sources for op in source]
    appended = appended_attention(attention, operands, writers, builder, mask)
    if appended is not None:
        builder.compute(*appended, value, perm)
        return
    if attention.visible:
        raise AppendError(
            f"attention {value.name!r} has a causal mask of caches, and reads others than these"
        )
    pasts = [_past_piece(source) for source in sources]
    pieces = [past for past in pasts if past is not None]
    if len(pieces) < 2:
        builder.compute(attention, operands, value, perm)
        return
    for op, piece in pieces:
        builder.substitute(op, dataclasses.replace(op, computation=piece))
    copied = [op.operands[0] for op, _ in pieces]
    builder.compute(CachedAttention(attention), [*operands, *copied], value, perm)


def _source(slot: Slot, builder: Builder) -> list[LoweredOp]:
    """Return the operations that write keys or values; those before views of other leading axes.

    A decoder whose query heads share keys and values adds an axis for them.
    """
    writers = builder.writers(slot)
    while len(writers) == 1 and _keeps_rows(writers[0].computation):
        (view,) = writers
        writers = builder.writers(view.operands[0], view)
    return writers


def _keeps_rows(computation: Computation) -> bool:
    """Return whether a computation is a view whose last two axes are those of its operand."""
    if not isinstance(computation, Reshape) or len(computation.dims) < 2:
        return False
    rank = 1 + max((axis for dim in computation.dims for axis in dim.axes), default=0)
    return computation.dims[-2:] == (Dim((rank - 2,)), Dim((rank - 1,)))


def _past_piece(writers: Sequence[LoweredOp]) -> tuple[LoweredOp, ConcatPiece] | None:
    """Return the copy of the past, the first of two float pieces concatenated along the rows.

    The second item is its computation with the copy deferred.
    """
    pieces = [(op, op.computation) for op in writers if isinstance(op.computation, ConcatPiece)]
    if len(writers) != 2 or len(pieces) != 2:
        return None
    first, piece = pieces[0]
    rows = all(p.axis == p.rank - 2 for _, p in pieces) and first.output.dtype == np.float32
    return (first, dataclasses.replace(piece, deferred=True)) if rows else None


RULES: tuple[Rule, ...] = (*rules("attention", lower=_attention, check=_check),)
