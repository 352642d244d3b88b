"""Attention as one operation: softmax(q·kᵀ · scale + mask)·v, its scores never in memory.

The kernel reads q, k and v by strides, so that heads stay where a projection has put them, as
[batch, rows, heads, depth], and its result lies the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.lower.views import View
from narrowpass_xnn_cpu.lowered.op import Computation, PackedOp, Perm
from narrowpass_xnn_cpu.native import attention_params


@dataclass(frozen=True)
class Attention(Computation):
    """Attention of heads that lie anywhere, their last axis dense.

    Operands are q, k and v, and a mask where there is one: floats, or booleans.

    Attributes:
        perms: for each operand the order that its axes lie in; for k as [.., keys, depth].
        perm: the order that the axes of the result are to lie in.
        scale: what scores are multiplied by before the mask.
        mask: what the mask does to scores: ``added``, or of booleans, ``kept`` where it is true,
            or ``filled`` there; ``none`` without a mask.
        fill: what scores become that are not kept.
        safe: whether a row of scores that come to NaN gives zeros.
        grouped: whether k and v have one head for each group of heads of q that lie side by side,
            as [batch, groups, ..] beside [batch, groups · heads of a group, ..] (Ainslie et al.,
            GQA, 2023).
        targets: names of shapes [batch, groups, heads of a group, rows, depth] that k and v are
            expanded to, where they may be repeated along other axes too.
    """

    mnemonic = "attention"
    perms: tuple[Perm, ...]
    perm: Perm
    scale: float
    mask: str = "added"
    fill: float = 0.0
    safe: bool = False
    grouped: bool = False
    targets: tuple[str, ...] = ()

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return self.targets

    def reuse_key(self) -> Hashable:
        """See `Computation.reuse_key`."""
        return dataclasses.replace(self, targets=("",) * len(self.targets))

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        return self.size_of(shapes, sizing)

    def size_of(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return how it runs on operands of these shapes."""
        views = [View(shape, perm) for shape, perm in zip(shapes, self.perms, strict=True)]
        for view, name in zip(views[1:], self.targets, strict=False):
            view.expand([int(size) for size in sizing.value(name).reshape(-1)])
        q, k, v, *masks = views
        if q.shape[-1] != k.shape[-1]:
            raise BackendError(f"queries of {q.shape[-1]} and keys of {k.shape[-1]} do not fit")
        heads, groups = q.shape[-3:-2], k.shape[-3:-2]
        each = _each(heads, groups, v.shape[-3:-2]) if self.grouped else 1
        leading_k, leading_v = k.shape[:-2], v.shape[:-2]
        if each > 1:
            leading_k, leading_v = (*leading_k[:-1], *heads), (*leading_v[:-1], *heads)
        scores = broadcast((*q.shape[:-1], 1), (*leading_k, 1, k.shape[-2]))
        scores = broadcast(scores, *(mask.shape for mask in masks))
        if scores[-1] != v.shape[-2]:
            raise BackendError(f"{scores[-1]} scores and {v.shape[-2]} values do not fit")
        leading = broadcast(scores[:-2], leading_v)
        result = (*leading, scores[-2], v.shape[-1])
        lies = tuple(result[axis] for axis in self.perm)
        if not elements(result):
            return Run(lies)
        if not scores[-1]:
            return Run(lies, constant=np.zeros(lies, np.float32))
        many = [1] * (3 - len(leading)) + list(leading)
        out = View(lies, self.perm)
        strides = [view.strides() for view in (q, k, v, *masks)]
        out_strides = out.strides()
        if each > 1:
            many = [*many[1:2], many[2] // each, each]
            whole = zip((q, k, v, *masks), strides, strict=True)
            strides = [_split(view.shape, steps, groups[0], each) for view, steps in whole]
            out_strides = _split(out.shape, out_strides, groups[0], each)
        rows = scores[-2]
        if rows == 1 and not strides[1][2] and not strides[2][2]:
            # One token: its heads that share keys are rows, so that these are read once.
            rows, many[2] = many[2], 1
            for steps in (*strides[:1], *strides[3:], out_strides):
                steps[2], steps[3] = 0, steps[2]
        params, workspace = attention_params.attention(
            heads=many,
            rows=rows,
            keys=scores[-1],
            depth=q.shape[-1],
            values=v.shape[-1],
            strides=strides,
            out_strides=out_strides,
            scale=self.scale,
            threads=sizing.pool.threads,
            mask=self.mask if masks else "none",
            fill=self.fill,
            safe=self.safe,
        )
        return Run(lies, "NP_ATTENTION", params=params, workspace=workspace)


def _each(heads: Shape, groups: Shape, others: Shape) -> int:
    """Give the heads of each group."""
    if groups != others or not groups or not groups[0] or heads[0] % groups[0]:
        raise BackendError(
            f"{heads} heads of queries, {groups} of keys and {others} of values are no groups"
        )
    return heads[0] // groups[0]


def _split(shape: Shape, strides: Sequence[int], groups: int, each: int) -> list[int]:
    """Cut the axis of heads, the last but two, into groups and heads: [batch, group, head, ..]."""
    _, batch, head, *rest = strides
    if len(shape) > 2 and shape[-3] == groups * each:
        return [batch, head * each, head, *rest]
    return [batch, head, 0, *rest]
