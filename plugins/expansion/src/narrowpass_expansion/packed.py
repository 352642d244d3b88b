"""com.microsoft's Attention: one product makes queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported
from narrowpass_expansion.multi_head import masks
from narrowpass_expansion.scores import Heads, attend, join_heads, split_heads


def attention(e: Emitter) -> Sequence[ir.Value | None]:
    """Write the product with all three matrices, its parts, and attention of them."""
    e.refuse(past_sequence_length=6)
    x, weights = e.required(0, "input"), e.required(1, "weights")
    together = e.op("MatMul", x, weights)
    bias = e.input(2)
    if bias is not None:
        together = e.op("Add", together, bias)
    return _attended(e, together, e.dtype(x), e.input(3), e.input(4), e.input(5))


def quantized_attention(e: Emitter) -> Sequence[ir.Value | None]:
    """Write QAttention: the product of bytes, scaled to floats, and attention of its parts."""
    x, weights = e.required(0, "input"), e.required(1, "weight")
    made = e.op("MatMulInteger", x, weights, e.input(6), e.input(7))
    scale = e.op("Mul", e.required(3, "input_scale"), e.required(4, "weight_scale"))
    together = e.op("Mul", e.cast(made, ir.DataType.FLOAT), scale)
    together = e.op("Add", together, e.required(2, "bias"))
    return _attended(e, together, ir.DataType.FLOAT, e.input(5), e.input(8), None)


def _attended(
    e: Emitter,
    together: ir.Value,
    dtype: ir.DataType,
    mask: ir.Value | None,
    past: ir.Value | None,
    bias: ir.Value | None,
) -> Sequence[ir.Value | None]:
    """Write attention of queries, keys and values that lie side by side."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if e.get(name, 0):
            raise Unsupported(f"{name} is set")
    heads = int(e.get("num_heads", 0))
    if heads <= 0:
        raise Unsupported("num_heads is not given")
    x, weights = e.required(0, "input"), e.required(1, "weights")
    e.rank(x, "input", 3)
    sizes = _sizes(e, weights)
    parts = e.ops("Split", together, e.const(sizes), outputs=3, axis=-1)
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
    added = masks(e, rows, keys, offset, mask, bias, dtype)
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
    if e.wants(1):
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
