"""Attention whose keys and values are caches with new rows behind: one pass over each cache.

A Concat writes its pieces one after the other. Where attention is the first to read what two of
them form, the copy of the past ones waits for it: each block of a cache is copied, and computed
with while it is near.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.attention.computation import Attention
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.movement.concat import ConcatPiece
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedOp, Perm
from narrowpass_xnn_cpu.native import attention_params


@dataclass(frozen=True)
class CachedAttention(Computation):
    """Attention that also copies the first piece of its keys, and that of its values.

    Operands are those of attention, then the pieces. Keys and values have their new rows already.

    Attributes:
        attention: of operands [.., rows, depth].
    """

    mnemonic = "cached_attention"
    kernel = "attention and caches"
    attention: Attention

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return self.attention.shape_values()

    def reuse_key(self) -> Hashable:
        """See `Computation.reuse_key`."""
        return self.attention.reuse_key()

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        first, wholes = len(shapes) - 2, shapes[1:3]
        run = self.attention.size_of(shapes[:first], sizing)
        pieces = [
            piece if waits((piece, _rest(piece, whole))) else None
            for piece, whole in zip(shapes[first:], wholes, strict=True)
        ]
        if pieces == [None, None]:
            return run
        params = attention_params.cached_attention(run.params, first, wholes, pieces)
        return Run(run.shape, "NP_CACHED_ATTENTION", params=params, workspace=run.workspace)


def waits(pieces: Sequence[Shape]) -> bool:
    """Tell whether the copy of the first piece is left to attention: there must be others."""
    return all(map(elements, pieces))


def _rest(piece: Shape, whole: Shape) -> Shape:
    """Give the shape of what lies behind a piece."""
    return (*whole[:-2], whole[-2] - piece[-2], whole[-1])


def emit_attention(
    attention: Attention, operands: Sequence[Slot], builder: Builder, value: ir.Value, perm: Perm
) -> None:
    """Emit attention; it copies the KV caches that its keys and values begin with.

    Nothing is copied where they are not concatenated so, or something has read them before.
    """
    keys, values = operands[1:3]
    firsts = [] if keys is values else [_first(builder.writers(slot)) for slot in (keys, values)]
    pieces = [first for first in firsts if first is not None]
    if len(pieces) < 2:
        builder.compute(attention, operands, value, perm)
        return
    for op, piece in pieces:
        builder.substitute(op, dataclasses.replace(op, computation=piece))
    copied = [op.operands[0] for op, _ in pieces]
    builder.compute(CachedAttention(attention), [*operands, *copied], value, perm)


def _first(writers: Sequence[LoweredOp]) -> tuple[LoweredOp, ConcatPiece] | None:
    """Return the first of two float pieces that are concatenated along the last axis but one.

    With it comes what it is to compute where the copy is deferred.
    """
    pieces = [(op, op.computation) for op in writers if isinstance(op.computation, ConcatPiece)]
    if len(writers) != 2 or len(pieces) != 2:
        return None
    first, piece = pieces[0]
    rows = all(p.axis == p.rank - 2 for _, p in pieces) and first.output.dtype == np.float32
    return (first, dataclasses.replace(piece, deferred=True)) if rows else None
