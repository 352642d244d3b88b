"""Attention whose keys and values are caches with new rows behind: one pass over each cache.

A Concat writes its pieces one after the other. Where attention is the first to read what two of
them form, the copy of the past ones waits for it: each block of a cache is copied, and computed
with while it is near.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.join import Joined
from narrowpass_xnn_cpu.native import attention_params
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements

if TYPE_CHECKING:
    from narrowpass_xnn_cpu.lower.attention import Attention


class CachedAttention(Step):
    """Attention that also copies the first piece of its keys, and that of its values.

    Its inputs are those of attention, then what is copied. Keys and values have their new rows
    already.

    Args:
        attention: what it computes, of slots [.., rows, depth].
        pieces: the slots of what is copied.
    """

    kernel = "attention and caches"

    def __init__(self, attention: Attention, pieces: Sequence[Slot]) -> None:
        super().__init__([*attention.inputs, *pieces], attention.output)
        self.values = attention.values
        self._attention = attention

    @property
    def alike(self) -> Hashable:
        """See `Step.alike`."""
        return self._attention.alike

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        first, wholes = len(shapes) - 2, shapes[1:3]
        run = self._attention.size(shapes[:first], sizing)
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


def with_caches(attention: Attention, builder: Builder) -> Step:
    """Let attention copy the caches that its keys and values begin with.

    Gives `attention` itself where they are not formed so, or somebody has read them before.
    """
    keys, values = attention.inputs[1:3]
    if keys is values:
        return attention
    firsts = [_first(builder.writers(slot)) for slot in (keys, values)]
    joins = [first for first in firsts if first is not None]
    if len(joins) != len(firsts):
        return attention
    for join in joins:
        join.leave()
    return CachedAttention(attention, [join.inputs[0] for join in joins])


def _first(writers: Sequence[Step]) -> Joined | None:
    """Give the first of two pieces that are joined along the last axis but one."""
    joins = [step for step in writers if isinstance(step, Joined) and step.joins_rows()]
    return joins[0] if len(writers) == len(joins) == 2 else None
