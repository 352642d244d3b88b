"""com.microsoft's MultiHeadAttention: queries, keys and values are projected already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported
from narrowpass_expansion.scores import Heads, attend, depth_of, frontier, join_heads, split_heads

_LOWEST = -3.4028234663852886e38


def attention(e: Emitter) -> Sequence[ir.Value | None]:
    """Write attention of 3-D queries, with keys and values of 3 dimensions, or 4 as they are."""
    if e.wants(3):
        raise Unsupported("its output qk is used")
    e.refuse(past_sequence_length=8, cache_indirection=9)
    heads = int(e.get("num_heads", 0))
    if heads <= 0:
        raise Unsupported("num_heads is not given")
    q = e.required(0, "query")
    if e.rank(q, "query", 3, 5) == 5:
        raise Unsupported("its query has keys and values packed in")
    dtype, depth, rows = e.dtype(q), depth_of(e, q, heads), e.dim(q, 1)
    k, v, bias = e.required(1, "key"), e.required(2, "value"), e.input(3)
    whole = e.rank(k, "key", 3, 4, 5)
    keys = e.dim(k, 1 if whole == 3 else 2)
    if whole == 5:
        raise Unsupported("its key has values packed in")
    if bias is not None:
        q, k, v = _with_bias(e, q, k, v, bias, moved=whole == 3)
    q = split_heads(e, q, heads)
    if whole == 3:
        k, v = split_heads(e, k, heads), split_heads(e, v, heads)
    past_key, past_value = e.input(6), e.input(7)
    offset = None
    if past_key is not None and past_value is not None:
        offset = e.dim(past_key, 2)
        keys = e.op("Add", offset, keys)
        k = e.op("Concat", past_key, k, axis=2)
        v = e.op("Concat", past_value, v, axis=2)
    elif past_key is not None or past_value is not None:
        raise Unsupported("one of past_key and past_value is given without the other")
    added = masks(e, rows, keys, offset, e.input(4), e.input(5), dtype)
    scale = float(e.get("scale", 0.0))
    result, _ = attend(
        e,
        Heads(
            q,
            k,
            v,
            heads=heads,
            groups=heads,
            dtype=dtype,
            depth=depth,
            scale=scale or None,
            bias=added,
        ),
    )
    return [join_heads(e, result), k, v, None]


def _with_bias(
    e: Emitter, q: ir.Value, k: ir.Value, v: ir.Value, bias: ir.Value, *, moved: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Write the addition of the three parts of a bias; keys that are heads already have theirs."""
    width = e.dims(q)[-1]
    if not isinstance(width, int):
        raise Unsupported("the width of its query is not known")
    ends = [(0, width), (width, 2 * width), (2 * width, 1 << 40)]
    parts = [e.op("Slice", bias, e.const([a]), e.const([b]), e.const([0])) for a, b in ends]
    q = e.op("Add", q, parts[0])
    if not moved:
        return q, k, v
    return q, e.op("Add", k, parts[1]), e.op("Add", v, parts[2])


def masks(
    e: Emitter,
    rows: ir.Value,
    keys: ir.Value,
    past: ir.Value | None,
    mask: ir.Value | None,
    bias: ir.Value | None,
    dtype: ir.DataType,
) -> ir.Value | None:
    """Write what is added to scores of `rows` and `keys`, of rank 4: padding, causality, a bias.

    A key that is padding gets `mask_filter_value`, -10000 where nothing is said: a row that has no
    others weighs them by their scores. One after the row gets the lowest number.
    """
    added = None if mask is None else _padding(e, mask, keys, dtype)
    if e.get("unidirectional", 0):
        seen = frontier(e, rows, keys, past, right=0)
        lowest = e.const(np.float64(max(_LOWEST, _least(dtype))), dtype)
        before = e.const(0.0, dtype) if added is None else added
        added = e.op("Where", seen, before, lowest)
        if mask is None:
            added = e.unsqueeze(added, 0, 1)
    if bias is not None:
        e.rank(bias, "attention_bias", 4)
        added = bias if added is None else e.op("Add", added, bias)
    return added


def _least(dtype: ir.DataType) -> float:
    return -65504.0 if dtype == ir.DataType.FLOAT16 else _LOWEST


def _padding(e: Emitter, mask: ir.Value, keys: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Write `mask_filter_value` for keys that are padding, of rank 4."""
    rank = e.rank(mask, "mask", 1, 2, 3)
    filler = e.const(np.float64(e.get("mask_filter_value", -10000.0)), dtype)
    if rank == 1:
        there = _between(e, mask, keys)
    else:
        axes = (1, 2) if rank == 2 else (1,)
        there = e.unsqueeze(e.op("Greater", mask, e.const(0, e.dtype(mask))), *axes)
    return e.op("Where", there, e.const(0.0, dtype), filler)


def _between(e: Emitter, mask: ir.Value, keys: ir.Value) -> ir.Value:
    """Write which keys lie before an end for each batch, and from a start on where there is one."""
    batch, count = e.dims(e.required(0, "query"))[0], e.dims(mask)[0]
    places = e.op("Range", e.const(0), e.op("Squeeze", keys, e.const([0])), e.const(1))
    wide = e.cast(mask, ir.DataType.INT64)
    if batch is not None and count == batch:
        return e.op("Less", places, e.unsqueeze(wide, 1, 2, 3))
    if isinstance(batch, int) and count == 2 * batch:
        ends, starts = e.ops("Split", wide, outputs=2, axis=0, num_outputs=2)
        before = e.op("Less", places, e.unsqueeze(ends, 1, 2, 3))
        behind = e.op("GreaterOrEqual", places, e.unsqueeze(starts, 1, 2, 3))
        return e.op("And", before, behind)
    raise Unsupported(f"its mask of {count} numbers is not one or two for each of {batch} batches")
