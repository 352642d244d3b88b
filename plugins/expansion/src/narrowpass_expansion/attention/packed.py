"""com.microsoft's Attention: one matmul projects queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.attention.multi_head import mask_bias
from narrowpass_expansion.attention.scores import Heads, attend, join_heads, split_heads
from narrowpass_expansion.emitter import Emitter, Unsupported


def attention(e: Emitter) -> Sequence[ir.Value | None]:
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
