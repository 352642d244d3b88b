"""Rotary position embeddings (Su et al., RoFormer, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported


def onnx_rotary(e: Emitter) -> Sequence[ir.Value]:
    """Emit ONNX's RotaryEmbedding: pairs of elements rotated by an angle for each position."""
    x, cos, sin = (e.required(i, name) for i, name in enumerate(("X", "cos_cache", "sin_cache")))
    positions = e.input(3)
    heads = int(e.get("num_heads", 0))
    rank = e.rank(x, "X", 3, 4)
    if rank == 3:
        if heads <= 0:
            raise Unsupported("num_heads is not given, and its input has 3 dimensions")
        x = e.reshape(x, 0, 0, heads, -1)
    else:
        x = e.transpose(x, 0, 2, 1, 3)
    if positions is not None:
        cos, sin = (e.op("Gather", cache, positions, axis=0) for cache in (cos, sin))
    cos, sin = e.unsqueeze(cos, 2), e.unsqueeze(sin, 2)
    size = int(e.get("rotary_embedding_dim", 0))
    rotated = rotate(e, x, cos, sin, size, interleaved=bool(e.get("interleaved", 0)))
    return [e.reshape(rotated, 0, 0, -1) if rank == 3 else e.transpose(rotated, 0, 2, 1, 3)]


def contrib_rotary(e: Emitter) -> Sequence[ir.Value]:
    """Emit com.microsoft's RotaryEmbedding; its second input is positions or one offset."""
    if e.get("is_packed_batching", 0):
        raise Unsupported("is_packed_batching is set")
    if e.get("scale", 1.0) != 1.0:
        raise Unsupported("scale is not 1")
    x, positions = e.required(0, "input"), e.required(1, "position_ids")
    cos, sin = e.required(2, "cos_cache"), e.required(3, "sin_cache")
    rank = e.rank(x, "input", 3, 4)
    heads, size = int(e.get("num_heads", 0)), int(e.get("rotary_embedding_dim", 0))
    if e.rank(positions, "position_ids", 1, 2) == 1:
        length = e.dim(x, -2 if rank == 4 else 1) if rank == 3 else e.dim(x, 2)
        last = e.op("Squeeze", length, e.const([0]))
        steps = e.op("Range", e.const(0), last, e.const(1))
        together = e.op("Add", e.cast(positions, ir.DataType.INT64), steps)
        positions = e.op(
            "Expand",
            e.unsqueeze(together, 0),
            e.op("Concat", e.dim(x, 0), length, axis=0),
        )
    if rank == 3 and heads == 0:
        # The caches are half a head wide then.
        half = e.dims(cos)[-1]
        hidden = e.dims(x)[-1]
        if not isinstance(half, int) or not isinstance(hidden, int) or hidden % (2 * half):
            raise Unsupported(
                "num_heads is not given, and the caches do not determine the head size"
            )
        heads = hidden // (2 * half)
    return [
        e.op(
            "RotaryEmbedding",
            x,
            cos,
            sin,
            e.cast(positions, ir.DataType.INT64),
            interleaved=e.get("interleaved", 0),
            num_heads=heads,
            rotary_embedding_dim=size,
        )
    ]


def rotate(
    e: Emitter, x: ir.Value, cos: ir.Value, sin: ir.Value, size: int, *, interleaved: bool
) -> ir.Value:
    """Emit the rotation of the last axis as exporters do: x · cos + rotate_half(x) · sin.

    Args:
        e: emits the nodes.
        x: of rank 4.
        cos: one number for each pair of numbers; broadcastable to the pairs of x.
        sin: of the same shape.
        size: how many elements of the last axis are rotated; 0 for all.
        interleaved: whether the elements of a pair are adjacent, and not half of the axis apart.
    """
    rest = None
    if size:
        head = _slice(e, x, 0, size)
        rest = _slice(e, x, size, _END)
        x = head
    cos, sin = (_repeat_pairs(e, each, interleaved=interleaved) for each in (cos, sin))
    if interleaved:
        a, b = _slice(e, x, 0, _END, 2), _slice(e, x, 1, _END, 2)
        pairs = e.op("Concat", e.unsqueeze(e.op("Neg", b), -1), e.unsqueeze(a, -1), axis=-1)
        other = e.reshape(pairs, 0, 0, 0, -1)
    else:
        a, b = e.ops("Split", x, outputs=2, axis=-1, num_outputs=2)
        other = e.op("Concat", e.op("Neg", b), a, axis=-1)
    rotated = e.op("Add", e.op("Mul", x, cos), e.op("Mul", other, sin))
    return rotated if rest is None else e.op("Concat", rotated, rest, axis=-1)


_END = 1 << 40


def _slice(e: Emitter, x: ir.Value, start: int, end: int, step: int = 1) -> ir.Value:
    return e.op("Slice", x, e.const([start]), e.const([end]), e.const([-1]), e.const([step]))


def _repeat_pairs(e: Emitter, x: ir.Value, *, interleaved: bool) -> ir.Value:
    """Emit cos or sin for both elements of each pair; layers share these nodes."""
    if not interleaved:
        return e.op("Concat", x, x, axis=-1)
    wide = e.unsqueeze(x, -1)
    return e.reshape(e.op("Concat", wide, wide, axis=-1), 0, 0, 0, -1)
