"""Fused attention: softmax(q·kᵀ · scale + mask)·v in one kernel, which never stores the scores.

The kernel reads q, k and v by strides, so that projections need no transpose of heads: operands and
result keep the layout [batch, rows, heads, depth].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.lower.views import View
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import attention_params, target


@record
class Attention(Computation):
    """Fused attention of operands in any layout whose last axis is dense.

    Operands are q, k and v, and a mask where there is one: floats, or booleans.

    Attributes:
        perms: layout of each operand; that of k for [.., keys, depth].
        perm: layout of the result.
        scale: factor of the scores, applied before the mask.
        mask: ``added``: the float mask is added to the scores; ``kept``: scores are kept where the
            boolean mask is true; ``filled``: scores are replaced where it is true; ``none``.
        fill: value of scores that are masked by a boolean.
        safe: whether a row of scores whose softmax is NaN yields zeros.
        grouped: whether k and v have one head for each group of heads of q: [batch, groups, ..]
            beside [batch, groups · heads of a group, ..] (Ainslie et al., GQA, 2023).
        targets: names of the shapes [batch, groups, heads of a group, rows, depth] that k and v
            are expanded to; other axes may be broadcast too.
        softcap: c, where scores become c · tanh(scores / c) before the mask; 0 for nothing.
        visible: whether `causal` and `window_size` count: a query's position, its row behind those
            that caches had before, decides which keys it sees.
        causal: whether keys behind it are not seen.
        window_size: the number of keys up to it that are seen; 0 for all.
        rounded: whether the model accepts operands and weights of values that are rounded to
            bfloat16, as tiles of AMX multiply them.
        deterministic: see `Numerics`.
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
    softcap: float = 0.0
    visible: bool = False
    causal: bool = False
    window_size: int = 0
    rounded: bool = False
    deterministic: bool = False

    def precision(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.precision`."""
        if not self.is_rounded:
            return ""
        return f"bfloat16 from {attention_params.MOST_UNROUNDED_ROWS + 1} rows on"

    @property
    def is_rounded(self) -> bool:
        """Whether many rows are computed in bfloat16: the processor has tiles for it, too."""
        return self.rounded and target.current().has_amx

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return self.targets

    def reuse_key(self) -> Hashable:
        """See `Computation.reuse_key`."""
        return dataclasses.replace(self, targets=("",) * len(self.targets))

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        return self.size_of(shapes, sizing)

    def size_of(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """Return the kernel call for operands of these shapes; see `Computation.size`."""
        views = [View(shape, perm) for shape, perm in zip(shapes, self.perms, strict=True)]
        for view, name in zip(views[1:], self.targets, strict=False):
            view.expand([int(size) for size in sizing.value(name).reshape(-1)])
        q, k, v, *masks = views
        if q.shape[-1] != k.shape[-1]:
            raise BackendError(f"queries of {q.shape[-1]} and keys of {k.shape[-1]} do not fit")
        heads, groups = q.shape[-3:-2], k.shape[-3:-2]
        each = _heads_per_group(heads, groups, v.shape[-3:-2]) if self.grouped else 1
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
            strides = [_group_strides(view.shape, steps, groups[0], each) for view, steps in whole]
            out_strides = _group_strides(out.shape, out_strides, groups[0], each)
        rows, moves = scores[-2], True
        if rows == 1 and not strides[1][2] and not strides[2][2]:
            # Decode: the heads of a group become rows, so that their keys are read once.
            rows, many[2], moves = many[2], 1, False
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
            softcap=self.softcap,
            causal=self.causal,
            window_size=self.window_size,
            moves=moves,
            rounded=self.is_rounded,
            deterministic=self.deterministic,
        )
        return Run(lies, "NP_ATTENTION", params=params, workspace=workspace)


def _heads_per_group(heads: Shape, groups: Shape, others: Shape) -> int:
    """Return the number of query heads for each key head."""
    if groups != others or not groups or not groups[0] or heads[0] % groups[0]:
        raise BackendError(
            f"{heads} heads of queries, {groups} of keys and {others} of values are no groups"
        )
    return heads[0] // groups[0]


def _group_strides(shape: Shape, strides: Sequence[int], groups: int, each: int) -> list[int]:
    """Split the stride of the heads axis in two: [batch, group, head, ..]."""
    _, batch, head, *rest = strides
    if len(shape) > 2 and shape[-3] == groups * each:
        return [batch, head * each, head, *rest]
    return [batch, head, 0, *rest]
