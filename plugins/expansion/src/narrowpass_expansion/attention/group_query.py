"""com.microsoft's GroupQueryAttention (Ainslie et al., arXiv:2305.13245), with a KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.attention.rotary import rotate
from narrowpass_expansion.attention.scores import (
    Heads,
    attend,
    join_heads,
    mask_to_bias,
    visible_keys,
)
from narrowpass_expansion.emitter import Emitter, Unsupported
from narrowpass_ir.state import APPENDED

_REQUIRED_DEFAULTS = {
    "smooth_softmax": 0,
    "qk_output": 0,
    "sliding_window_cache": 0,
    "kv_cache_bit_width": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}


def attention(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit the rotary embedding, the KV cache with appended keys and values, and attention.

    `seqlens_k` determines where the new keys of each batch go and which keys each query sees. In
    prefill, where there are as many queries as tokens in total, they start at 0. In a node that is
    marked as appended, all batches have the rows of the past.
    """
    for name, usual in _REQUIRED_DEFAULTS.items():
        if e.get(name, usual) != usual:
            raise Unsupported(f"{name} is {e.get(name, usual)}")
    if not e.get("causal", 1):
        raise Unsupported("causal is 0")
    if e.is_used(3):
        raise Unsupported("its output output_qk is used")
    e.reject_inputs(head_sink=11, k_scale=12, v_scale=13, q_norm_weight=14, k_norm_weight=15)
    heads, groups = int(e.get("num_heads", 0)), int(e.get("kv_num_heads", 0))
    if heads <= 0 or groups <= 0 or heads % groups:
        raise Unsupported(f"{heads} heads cannot share {groups} heads of keys")
    dtype = e.dtype(e.required(0, "query"))
    q, k, v = _operands(e, heads, groups)
    rows = e.dim(e.required(0, "query"), 1)
    lengths = e.op("Add", e.cast(e.required(5, "seqlens_k"), ir.DataType.INT64), e.const(1))
    lengths = e.reshape(lengths, -1)
    total = e.cast(e.required(6, "total_sequence_length"), ir.DataType.INT64)
    total = e.reshape(total, 1)
    appended = APPENDED in e.node.metadata_props
    starts = (
        e.dim(e.required(3, "past_key"), 2)
        if appended
        else e.op(
            "Where",
            e.op("Equal", rows, total),
            e.const([0]),
            e.op("Sub", lengths, rows),
        )
    )
    q, k = _apply_rotary(e, q, k, starts, rows)
    q, k, v = (e.transpose(part, 0, 2, 1, 3) for part in (q, k, v))
    if appended:
        k = e.op("Concat", e.required(3, "past_key"), k, axis=2)
        v = e.op("Concat", e.required(4, "past_value"), v, axis=2)
    else:
        k, v = _append_to_cache(e, k, v, starts, total)
    local_size = int(e.get("local_window_size", -1))
    offset = starts if appended else e.unsqueeze(starts, 1, 2, 3)
    seen = visible_keys(
        e, rows, e.dim(k, 2), offset, left=local_size - 1 if local_size > 0 else -1, right=0
    )
    if seen is None:
        raise ValueError("a causal mask has an end")
    if appended:
        seen = e.unsqueeze(seen, 0, 1)
    bias = mask_to_bias(e, seen, dtype)
    more = e.input(10)
    if more is not None:
        e.rank(more, "attention_bias", 4)
        bias = e.op("Add", bias, more)
    scale = float(e.get("scale", 0.0))
    result, _ = attend(
        e,
        Heads(
            q,
            k,
            v,
            heads=heads,
            groups=groups,
            dtype=dtype,
            depth=_depth(e, heads, groups),
            scale=scale or None,
            softcap=float(e.get("softcap", 0.0)),
            bias=bias,
        ),
    )
    return [join_heads(e, result), k, v, None]


def _depth(e: Emitter, heads: int, groups: int) -> int | None:
    width = e.dims(e.required(0, "query"))[-1]
    count = heads if e.input(1) is not None else heads + 2 * groups
    return width // count if isinstance(width, int) and width % count == 0 else None


def _operands(e: Emitter, heads: int, groups: int) -> list[ir.Value]:
    """Emit queries, keys and values as [batch, rows, heads, depth]."""
    q, k, v = e.required(0, "query"), e.input(1), e.input(2)
    e.rank(q, "query", 3)
    if k is None or v is None:
        if k is not None or v is not None:
            raise Unsupported("one of key and value is given without the other")
        width = e.dims(q)[-1]
        if not isinstance(width, int) or width % (heads + 2 * groups):
            raise Unsupported("the width of its packed query is not known, or no multiple of heads")
        depth = width // (heads + 2 * groups)
        sizes = e.const([heads * depth, groups * depth, groups * depth])
        q, k, v = e.ops("Split", q, sizes, outputs=3, axis=-1)
    return [
        e.reshape(part, 0, 0, count, -1) for part, count in ((q, heads), (k, groups), (v, groups))
    ]


def _apply_rotary(
    e: Emitter, q: ir.Value, k: ir.Value, starts: ir.Value, rows: ir.Value
) -> tuple[ir.Value, ir.Value]:
    if not e.get("do_rotary", 0):
        return q, k
    cos, sin = e.required(7, "cos_cache"), e.required(8, "sin_cache")
    half = e.dims(cos)[-1]
    if not isinstance(half, int):
        raise Unsupported("the width of cos_cache is not known")
    positions = e.input(9)
    if positions is None:
        count = e.op("Range", e.const(0), e.op("Squeeze", rows, e.const([0])), e.const(1))
        first = e.unsqueeze(starts, 0 if APPENDED in e.node.metadata_props else 1)
        positions = e.op("Add", first, e.unsqueeze(count, 0))
    cos, sin = (e.unsqueeze(e.op("Gather", part, positions, axis=0), 2) for part in (cos, sin))
    paired = bool(e.get("rotary_interleaved", 0))
    depth = _depth(e, int(e.get("num_heads", 0)), int(e.get("kv_num_heads", 0)))
    size = 0 if depth == 2 * half else 2 * half
    return (
        rotate(e, q, cos, sin, size, interleaved=paired),
        rotate(e, k, cos, sin, size, interleaved=paired),
    )


def _append_to_cache(
    e: Emitter, k: ir.Value, v: ir.Value, starts: ir.Value, total: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Emit the present KV cache: the past one, padded, with new keys and values scattered in."""
    past_key, past_value = e.input(3), e.input(4)
    if past_key is None and past_value is None:
        return k, v
    if past_key is None or past_value is None:
        raise Unsupported("one of past_key and past_value is given without the other")
    e.rank(past_key, "past_key", 4)
    missing = e.op("Max", e.op("Sub", total, e.dim(past_key, 2)), e.const([0]))
    pads = e.op("Concat", e.const([0]), missing, axis=0)
    dtype = e.dtype(past_key)
    present = []
    for past, new in ((past_key, k), (past_value, v)):
        padded = e.op("Pad", past, pads, e.const(0.0, dtype), e.const([2]))
        present.append(e.op("TensorScatter", padded, new, starts))
    return present[0], present[1]
