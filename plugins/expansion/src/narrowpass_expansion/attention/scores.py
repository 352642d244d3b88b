"""Scaled dot product attention, in the form that backends fuse into one operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter


@dataclass
class Heads:
    """Operands of attention.

    Attributes:
        q: [batch, heads, rows, depth].
        k: [batch, groups, keys, depth].
        v: [batch, groups, keys, size].
        heads: of q; a multiple of `groups`.
        groups: of k and v.
        depth: of q, where it is known.
        scale: what scores are multiplied by; None for 1 / √depth.
        softcap: scores become softcap · tanh(scores / softcap); 0 for nothing.
        bias: added to scores, broadcastable to [batch, heads, rows, keys]; of rank 4.
        empty: whether all biases of a row may be -infinity; its result is 0.
        dtype: of the operands.
        softmax: the type that softmax is computed in.
    """

    q: ir.Value
    k: ir.Value
    v: ir.Value
    heads: int
    groups: int
    dtype: ir.DataType
    depth: int | None = None
    scale: float | None = None
    softcap: float = 0.0
    bias: ir.Value | None = None
    empty: bool = False
    softmax: ir.DataType | None = None


LOGITS, CAPPED, BIASED, WEIGHTS = range(4)
"""Values of qk_matmul_output_mode: scores scaled, capped, biased, after softmax."""


def split_heads(e: Emitter, x: ir.Value, heads: int) -> ir.Value:
    """Emit [batch, rows, heads · depth] as [batch, heads, rows, depth]."""
    return e.transpose(e.reshape(x, 0, 0, heads, -1), 0, 2, 1, 3)


def join_heads(e: Emitter, x: ir.Value) -> ir.Value:
    """Emit [batch, heads, rows, depth] as [batch, rows, heads · depth]."""
    return e.reshape(e.transpose(x, 0, 2, 1, 3), 0, 0, -1)


def attend(e: Emitter, given: Heads, stage: int | None = None) -> tuple[ir.Value, ir.Value | None]:
    """Emit softmax(q·kᵀ · scale + bias)·v.

    Heads of keys and values that several query heads share are repeated as exporters do it.

    Returns:
        The result, [batch, heads, rows, size]; and the scores at `stage`, [batch, heads,
        rows, keys], or None.
    """
    repeats = given.heads // given.groups
    k, v, bias = given.k, given.v, given.bias
    if repeats > 1:
        k, v = _repeat_heads(e, given, k), _repeat_heads(e, given, v)
    scores = e.op("MatMul", given.q, e.transpose(k, 0, 1, 3, 2))
    scale = given.scale
    if scale is None and given.depth:
        scale = given.depth**-0.5
    if scale is None:
        scores = e.op("Div", scores, _sqrt_head_size(e, given))
    elif scale != 1:
        scores = e.op("Mul", scores, e.const(np.float64(scale), given.dtype))
    stages = [scores]
    if given.softcap:
        cap = e.const(np.float64(given.softcap), given.dtype)
        scores = e.op("Mul", e.op("Tanh", e.op("Div", scores, cap)), cap)
    stages.append(scores)
    if bias is not None:
        scores = e.op("Add", scores, bias)
    stages.append(scores)
    kind = given.softmax or given.dtype
    wide = scores if kind == given.dtype else e.cast(scores, kind)
    weights = e.op("Softmax", wide, axis=-1)
    if kind != given.dtype:
        weights = e.cast(weights, given.dtype)
    result = e.op("MatMul", weights, v)
    if given.empty and bias is not None:
        lowest = e.op("ReduceMax", bias, e.const([-1]), keepdims=1)
        if given.dtype != ir.DataType.FLOAT:
            lowest = e.cast(lowest, ir.DataType.FLOAT)  # what most backends compare
        masked_rows = e.op("LessOrEqual", lowest, e.const(-np.inf, np.float32))
        zero = e.const(0.0, given.dtype)
        result = e.op("Where", masked_rows, zero, result)
        if stage == WEIGHTS:
            weights = e.op("Where", masked_rows, zero, weights)
    stages.append(weights)
    return result, None if stage is None else stages[stage]


def _repeat_heads(e: Emitter, given: Heads, x: ir.Value) -> ir.Value:
    """Emit [batch, groups, keys, size] with each group repeated for the heads that share it."""
    batch, keys, size = e.dim(x, 0), e.dim(x, 2), e.dim(x, 3)
    groups, each = e.const([given.groups]), e.const([given.heads // given.groups])
    wide = e.op("Concat", batch, groups, each, keys, size, axis=0)
    target = e.op("Concat", batch, e.const([given.heads]), keys, size, axis=0)
    return e.op("Reshape", e.op("Expand", e.unsqueeze(x, 2), wide), target)


def _sqrt_head_size(e: Emitter, given: Heads) -> ir.Value:
    depth = e.op("Squeeze", e.dim(given.q, 3), e.const([0]))
    root = e.op("Sqrt", e.cast(depth, ir.DataType.FLOAT))
    return root if given.dtype == ir.DataType.FLOAT else e.cast(root, given.dtype)


def head_size(e: Emitter, x: ir.Value, heads: int) -> int | None:
    """Return the head size of [batch, rows, heads · depth]; None where it is not known."""
    width = e.dims(x)[-1]
    return width // heads if isinstance(width, int) and width % heads == 0 else None


def mask_to_bias(e: Emitter, allowed: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Emit 0 where `allowed` is true, -infinity elsewhere."""
    return e.op("Where", allowed, e.const(0.0, dtype), e.const(-np.inf, dtype))


def visible_keys(
    e: Emitter,
    rows: ir.Value,
    keys: ir.Value,
    offset: ir.Value | None,
    *,
    left: int = -1,
    right: int = -1,
) -> ir.Value | None:
    """Emit which keys a row sees: from `left` positions before it to `right` after it.

    Args:
        e: emits the nodes.
        rows: their number, int64 [1].
        keys: their number, int64 [1].
        offset: the position of row 0 among the keys: [] or [1], or [batch, 1, 1, 1]; None for 0.
        left: number of positions; -1 for no limit.
        right: number of positions; -1 for no limit.

    Returns:
        Booleans of [rows, keys] or [batch, 1, rows, keys]; None where all are true.
    """
    if left < 0 and right < 0:
        return None
    here = e.unsqueeze(_iota(e, rows), 1)
    if offset is not None:
        here = e.op("Add", here, offset)
    there = e.unsqueeze(_iota(e, keys), 0)
    found = None
    if right >= 0:
        last = here if right == 0 else e.op("Add", here, e.const(right))
        found = e.op("LessOrEqual", there, last)
    if left >= 0:
        first = here if left == 0 else e.op("Sub", here, e.const(left))
        enough = e.op("GreaterOrEqual", there, first)
        found = enough if found is None else e.op("And", found, enough)
    return found


def _iota(e: Emitter, size: ir.Value) -> ir.Value:
    return e.op("Range", e.const(0), e.op("Squeeze", size, e.const([0])), e.const(1))
