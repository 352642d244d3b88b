"""Attention fused with the Concat of its KV cache: one pass over the cached keys and values.

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

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_planning.state.errors import AppendError
from narrowpass_xnn_cpu.lower.attention.appended import appended_attention
from narrowpass_xnn_cpu.lower.attention.computation import Attention
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.movement.concat import ConcatPiece
from narrowpass_xnn_cpu.lower.steps import Dim, Reshape
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import attention_params


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
            piece if defers_copy((piece, _appended_shape(piece, whole))) else None
            for piece, whole in zip(shapes[first:], wholes, strict=True)
        ]
        if pieces == [None, None]:
            return run
        params = attention_params.cached_attention(run.params, first, wholes, pieces)
        return Run(run.shape, "NP_CACHED_ATTENTION", params=params, workspace=run.workspace)


def defers_copy(pieces: Sequence[Shape]) -> bool:
    """Return whether the copy of the past is deferred to attention: no piece may be empty."""
    return all(map(elements, pieces))


def _appended_shape(piece: Shape, whole: Shape) -> Shape:
    """Return the shape of the rows that are appended to a piece."""
    return (*whole[:-2], whole[-2] - piece[-2], whole[-1])


def emit_attention(
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
