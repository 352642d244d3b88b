"""Rotary position embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported


def onnx_rotary(e: Emitter) -> Sequence[ir.Value]:
    """Write ONNX's RotaryEmbedding: pairs of numbers turned by an angle for each position."""
    x, cos, sin = (e.required(i, name) for i, name in enumerate(("X", "cos_cache", "sin_cache")))
    places = e.input(3)
    heads = int(e.get("num_heads", 0))
    rank = e.rank(x, "X", 3, 4)
    if rank == 3:
        if heads <= 0:
            raise Unsupported("num_heads is not given, and its input has 3 dimensions")
        x = e.reshape(x, 0, 0, heads, -1)
    else:
        x = e.transpose(x, 0, 2, 1, 3)
    if places is not None:
        cos, sin = (e.op("Gather", cache, places, axis=0) for cache in (cos, sin))
    cos, sin = e.unsqueeze(cos, 2), e.unsqueeze(sin, 2)
    size = int(e.get("rotary_embedding_dim", 0))
    turned = rotate(e, x, cos, sin, size, interleaved=bool(e.get("interleaved", 0)))
    return [e.reshape(turned, 0, 0, -1) if rank == 3 else e.transpose(turned, 0, 2, 1, 3)]


def contrib_rotary(e: Emitter) -> Sequence[ir.Value]:
    """Write com.microsoft's, whose positions may be an offset, and stand second."""
    if e.get("is_packed_batching", 0):
        raise Unsupported("is_packed_batching is set")
    if e.get("scale", 1.0) != 1.0:
        raise Unsupported("scale is not 1")
    x, places = e.required(0, "input"), e.required(1, "position_ids")
    cos, sin = e.required(2, "cos_cache"), e.required(3, "sin_cache")
    rank = e.rank(x, "input", 3, 4)
    heads, size = int(e.get("num_heads", 0)), int(e.get("rotary_embedding_dim", 0))
    if e.rank(places, "position_ids", 1, 2) == 1:
        length = e.dim(x, -2 if rank == 4 else 1) if rank == 3 else e.dim(x, 2)
        last = e.op("Squeeze", length, e.const([0]))
        steps = e.op("Range", e.const(0), last, e.const(1))
        together = e.op("Add", e.cast(places, ir.DataType.INT64), steps)
        places = e.op(
            "Expand",
            e.unsqueeze(together, 0),
            e.op("Concat", e.dim(x, 0), length, axis=0),
        )
    if rank == 3 and heads == 0:
        # The caches then are as wide as half a head.
        half = e.dims(cos)[-1]
        hidden = e.dims(x)[-1]
        if not isinstance(half, int) or not isinstance(hidden, int) or hidden % (2 * half):
            raise Unsupported("num_heads is not given, nor do the caches tell the size of a head")
        heads = hidden // (2 * half)
    return [
        e.op(
            "RotaryEmbedding",
            x,
            cos,
            sin,
            e.cast(places, ir.DataType.INT64),
            interleaved=e.get("interleaved", 0),
            num_heads=heads,
            rotary_embedding_dim=size,
        )
    ]


def rotate(
    e: Emitter, x: ir.Value, cos: ir.Value, sin: ir.Value, size: int, *, interleaved: bool
) -> ir.Value:
    """Write the rotation of the last axis, as exporters do: x · cos + turned(x) · sin.

    Args:
        e: writes.
        x: of rank 4.
        cos: one number for each pair of numbers; broadcastable to the pairs of x.
        sin: the same.
        size: of the last axis that is turned; 0 for all of it.
        interleaved: whether pairs lie side by side, and not half of the axis apart.
    """
    rest = None
    if size:
        head = _slice(e, x, 0, size)
        rest = _slice(e, x, size, _END)
        x = head
    cos, sin = (_doubled(e, each, interleaved=interleaved) for each in (cos, sin))
    if interleaved:
        a, b = _slice(e, x, 0, _END, 2), _slice(e, x, 1, _END, 2)
        pairs = e.op("Concat", e.unsqueeze(e.op("Neg", b), -1), e.unsqueeze(a, -1), axis=-1)
        other = e.reshape(pairs, 0, 0, 0, -1)
    else:
        a, b = e.ops("Split", x, outputs=2, axis=-1, num_outputs=2)
        other = e.op("Concat", e.op("Neg", b), a, axis=-1)
    turned = e.op("Add", e.op("Mul", x, cos), e.op("Mul", other, sin))
    return turned if rest is None else e.op("Concat", turned, rest, axis=-1)


_END = 1 << 40


def _slice(e: Emitter, x: ir.Value, start: int, end: int, step: int = 1) -> ir.Value:
    return e.op("Slice", x, e.const([start]), e.const([end]), e.const([-1]), e.const([step]))


def _doubled(e: Emitter, x: ir.Value, *, interleaved: bool) -> ir.Value:
    """Write a number for each of a pair; layers have these in common."""
    if not interleaved:
        return e.op("Concat", x, x, axis=-1)
    wide = e.unsqueeze(x, -1)
    return e.reshape(e.op("Concat", wide, wide, axis=-1), 0, 0, 0, -1)
