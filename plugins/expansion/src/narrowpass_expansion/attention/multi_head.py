"""com.microsoft's MultiHeadAttention and Attention.

Of the first, queries, keys and values are projected; of the second, one matmul projects them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.attention.scores import (
    Heads,
    attend,
    head_size,
    join_heads,
    split_heads,
    visible_keys,
)
from narrowpass_expansion.emitter import Emitter, Unsupported

_LOWEST = -3.4028234663852886e38


def attention(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit attention of 3-D queries, and of 3-D keys and values or 4-D ones split into heads."""
    if e.is_used(3):
        raise Unsupported("its output qk is used")
    e.reject_inputs(past_sequence_length=8, cache_indirection=9)
    heads = int(e.get("num_heads", 0))
    if heads <= 0:
        raise Unsupported("num_heads is not given")
    q = e.required(0, "query")
    if e.rank(q, "query", 3, 5) == 5:
        raise Unsupported("its query has keys and values packed in")
    dtype, depth, rows = e.dtype(q), head_size(e, q, heads), e.dim(q, 1)
    k, v, bias = e.required(1, "key"), e.required(2, "value"), e.input(3)
    key_rank = e.rank(k, "key", 3, 4, 5)
    keys = e.dim(k, 1 if key_rank == 3 else 2)
    if key_rank == 5:
        raise Unsupported("its key has values packed in")
    if bias is not None:
        q, k, v = _with_bias(e, q, k, v, bias, to_keys=key_rank == 3)
    q = split_heads(e, q, heads)
    if key_rank == 3:
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
    added = mask_bias(e, rows, keys, offset, e.input(4), e.input(5), dtype)
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
    e: Emitter, q: ir.Value, k: ir.Value, v: ir.Value, bias: ir.Value, *, to_keys: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Emit the bias of queries, keys and values; 4-D keys and values have theirs added."""
    width = e.dims(q)[-1]
    if not isinstance(width, int):
        raise Unsupported("the width of its query is not known")
    ends = [(0, width), (width, 2 * width), (2 * width, 1 << 40)]
    parts = [e.op("Slice", bias, e.const([a]), e.const([b]), e.const([0])) for a, b in ends]
    q = e.op("Add", q, parts[0])
    if not to_keys:
        return q, k, v
    return q, e.op("Add", k, parts[1]), e.op("Add", v, parts[2])


def mask_bias(
    e: Emitter,
    rows: ir.Value,
    keys: ir.Value,
    past: ir.Value | None,
    mask: ir.Value | None,
    bias: ir.Value | None,
    dtype: ir.DataType,
) -> ir.Value | None:
    """Emit the bias of scores for `rows` and `keys`, of rank 4: padding, causal mask, bias.

    A padded key gets `mask_filter_value`, -10000 by default: a row of padded keys alone still
    weighs them by their scores. A key after the row gets the lowest finite number.
    """
    added = None if mask is None else _padding(e, mask, keys, dtype)
    if e.get("unidirectional", 0):
        visible = visible_keys(e, rows, keys, past, right=0)
        lowest = e.const(np.float64(max(_LOWEST, _least(dtype))), dtype)
        before = e.const(0.0, dtype) if added is None else added
        added = e.op("Where", visible, before, lowest)
        if mask is None:
            added = e.unsqueeze(added, 0, 1)
    if bias is not None:
        e.rank(bias, "attention_bias", 4)
        added = bias if added is None else e.op("Add", added, bias)
    return added


def _least(dtype: ir.DataType) -> float:
    return -65504.0 if dtype == ir.DataType.FLOAT16 else _LOWEST


def _padding(e: Emitter, mask: ir.Value, keys: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Emit `mask_filter_value` for padded keys, of rank 4."""
    rank = e.rank(mask, "mask", 1, 2, 3)
    filler = e.const(np.float64(e.get("mask_filter_value", -10000.0)), dtype)
    if rank == 1:
        valid = _key_ranges(e, mask, keys)
    else:
        axes = (1, 2) if rank == 2 else (1,)
        valid = e.unsqueeze(e.op("Greater", mask, e.const(0, e.dtype(mask))), *axes)
    return e.op("Where", valid, e.const(0.0, dtype), filler)


def _key_ranges(e: Emitter, mask: ir.Value, keys: ir.Value) -> ir.Value:
    """Emit which keys lie before each batch's end, and not before its start where it has one."""
    batch, count = e.dims(e.required(0, "query"))[0], e.dims(mask)[0]
    positions = e.op("Range", e.const(0), e.op("Squeeze", keys, e.const([0])), e.const(1))
    wide = e.cast(mask, ir.DataType.INT64)
    if batch is not None and count == batch:
        return e.op("Less", positions, e.unsqueeze(wide, 1, 2, 3))
    if isinstance(batch, int) and count == 2 * batch:
        ends, starts = e.ops("Split", wide, outputs=2, axis=0, num_outputs=2)
        before = e.op("Less", positions, e.unsqueeze(ends, 1, 2, 3))
        behind = e.op("GreaterOrEqual", positions, e.unsqueeze(starts, 1, 2, 3))
        return e.op("And", before, behind)
    raise Unsupported(f"its mask of {count} numbers is not one or two for each of {batch} batches")


def packed_attention(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit the matmul with the packed weights, the split of its result, and attention."""
    e.reject_inputs(past_sequence_length=6)
    x, weights = e.required(0, "input"), e.required(1, "weights")
    packed = e.op("MatMul", x, weights)
    bias = e.input(2)
    if bias is not None:
        packed = e.op("Add", packed, bias)
    return _attend_packed(e, packed, e.dtype(x), e.input(3), e.input(4), e.input(5))


def quantized_attention(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit QAttention: the int8 matmul, dequantized, the split of its result, and attention."""
    x, weights = e.required(0, "input"), e.required(1, "weight")
    output = e.op("MatMulInteger", x, weights, e.input(6), e.input(7))
    scale = e.op("Mul", e.required(3, "input_scale"), e.required(4, "weight_scale"))
    packed = e.op("Mul", e.cast(output, ir.DataType.FLOAT), scale)
    packed = e.op("Add", packed, e.required(2, "bias"))
    return _attend_packed(e, packed, ir.DataType.FLOAT, e.input(5), e.input(8), None)


def _attend_packed(
    e: Emitter,
    packed: ir.Value,
    dtype: ir.DataType,
    mask: ir.Value | None,
    past: ir.Value | None,
    bias: ir.Value | None,
) -> Sequence[ir.Value | None]:
    """Emit attention of queries, keys and values concatenated in one tensor."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if e.get(name, 0):
            raise Unsupported(f"{name} is set")
    heads = int(e.get("num_heads", 0))
    if heads <= 0:
        raise Unsupported("num_heads is not given")
    x, weights = e.required(0, "input"), e.required(1, "weights")
    e.rank(x, "input", 3)
    sizes = _sizes(e, weights)
    parts = e.ops("Split", packed, e.const(sizes), outputs=3, axis=-1)
    q, k, v = (split_heads(e, part, heads) for part in parts)
    offset = None
    rows = keys = e.dim(x, 1)
    if past is not None:
        e.rank(past, "past", 5)
        offset = e.dim(past, 3)
        keys = e.op("Add", offset, rows)
        before = [
            e.op("Squeeze", part, e.const([0]))
            for part in e.ops("Split", past, outputs=2, axis=0, num_outputs=2)
        ]
        k, v = (e.op("Concat", a, b, axis=2) for a, b in zip(before, (k, v), strict=True))
    added = mask_bias(e, rows, keys, offset, mask, bias, dtype)
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
            depth=sizes[0] // heads,
            scale=scale or None,
            bias=added,
        ),
    )
    present = None
    if e.is_used(1):
        if sizes[1] != sizes[2]:
            raise Unsupported("keys and values of different sizes cannot be one output")
        present = e.op("Concat", e.unsqueeze(k, 0), e.unsqueeze(v, 0), axis=0)
    return [join_heads(e, result), present]


def _sizes(e: Emitter, weights: ir.Value) -> list[int]:
    given = e.get("qkv_hidden_sizes", None)
    if given:
        sizes = [int(size) for size in given]
        if len(sizes) != 3 or min(sizes) <= 0:
            raise Unsupported(f"qkv_hidden_sizes is {sizes}")
        return sizes
    width = e.dims(weights)[-1]
    if not isinstance(width, int) or width % 3:
        raise Unsupported("the width of its weights is not known, or not three times that of q")
    return [width // 3] * 3
