"""ONNX's own Attention, and TensorScatter, which updates its KV cache.

Scaled dot product attention: Vaswani et al., arXiv:1706.03762.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.attention.scores import (
    LOGITS,
    WEIGHTS,
    Heads,
    attend,
    head_size,
    join_heads,
    mask_to_bias,
    split_heads,
    visible_keys,
)
from narrowpass_expansion.emitter import Emitter, Unsupported


def onnx_attention(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit Attention, opset 23 or later: all inputs, outputs and attributes."""
    q, k, v = (e.required(index, name) for index, name in enumerate("QKV"))
    dtype = e.dtype(q)
    rank = e.rank(q, "Q", 3, 4)
    rows, keys = e.dim(q, rank - 2), e.dim(k, rank - 2)
    if rank == 3:
        heads, groups = int(e.get("q_num_heads", 0)), int(e.get("kv_num_heads", 0))
        if heads <= 0 or groups <= 0:
            raise Unsupported("its inputs have 3 dimensions, and a number of heads is not given")
        depth = head_size(e, q, heads)
        q, k, v = split_heads(e, q, heads), split_heads(e, k, groups), split_heads(e, v, groups)
    else:
        heads, groups = _heads(e, q, "Q"), _heads(e, k, "K")
        last = e.dims(q)[3]
        depth = last if isinstance(last, int) else None
    if heads % groups:
        raise Unsupported(f"{heads} heads cannot share {groups} heads of keys")
    past_key, past_value, filled = e.input(4), e.input(5), e.input(6)
    if (past_key is None) != (past_value is None):
        raise Unsupported("one of past_key and past_value is given without the other")
    offset = None
    if past_key is not None and past_value is not None:
        offset = e.dim(past_key, 2)
        keys = e.op("Add", offset, keys)
        k = e.op("Concat", past_key, k, axis=2)
        v = e.op("Concat", past_value, v, axis=2)
    bias, empty = _bias(e, rows, keys, filled, offset, dtype)
    precision = e.get("softmax_precision", None)
    scale = e.get("scale", None)
    result, scores = attend(
        e,
        Heads(
            q,
            k,
            v,
            heads=heads,
            groups=groups,
            dtype=dtype,
            depth=depth,
            scale=None if scale is None else float(scale),
            softcap=float(e.get("softcap", 0.0)),
            bias=bias,
            empty=empty,
            softmax=None if precision is None else ir.DataType(precision),
        ),
        _score_stage(e),
    )
    return [join_heads(e, result) if rank == 3 else result, k, v, scores]


def _heads(e: Emitter, value: ir.Value, name: str) -> int:
    found = e.dims(value)[1]
    if not isinstance(found, int) or found <= 0:
        raise Unsupported(f"the number of heads of {name} is not known")
    return found


def _score_stage(e: Emitter) -> int | None:
    if not e.is_used(3):
        return None
    mode = int(e.get("qk_matmul_output_mode", LOGITS))
    if not LOGITS <= mode <= WEIGHTS:
        raise Unsupported(f"qk_matmul_output_mode is {mode}")
    return mode


def _bias(
    e: Emitter,
    rows: ir.Value,
    keys: ir.Value,
    filled: ir.Value | None,
    past: ir.Value | None,
    dtype: ir.DataType,
) -> tuple[ir.Value | None, bool]:
    """Emit the bias of the scores, rank 4; also return whether a row may have no visible key."""
    left = int(e.get("left_window_size", -1))
    right = int(e.get("right_window_size", -1))
    if e.get("is_causal", 0):
        right = 0
    offset = past
    if past is None and filled is not None:
        offset = e.unsqueeze(e.op("Sub", filled, rows), 1, 2, 3)
    allowed = visible_keys(e, rows, keys, offset, left=left, right=right)
    # Without a local window, and with queries after all past keys, each query sees a key.
    empty = left >= 0 or (filled is not None)
    if filled is not None:
        positions = e.op("Range", e.const(0), e.op("Squeeze", keys, e.const([0])), e.const(1))
        there = e.op("Less", positions, e.unsqueeze(filled, 1, 2, 3))
        allowed = there if allowed is None else e.op("And", allowed, there)
    mask = e.input(3)
    bias = None
    if mask is not None:
        empty = True
        mask = _pad_mask(e, mask, keys)
        if e.dtype(e.required(3, "attn_mask")) == ir.DataType.BOOL:
            allowed = mask if allowed is None else e.op("And", allowed, mask)
        else:
            # Queries in float32 may have a mask in float16.
            given = e.dtype(e.required(3, "attn_mask"))
            bias = mask if given == dtype else e.cast(mask, dtype)
    if allowed is not None:
        added = mask_to_bias(e, allowed, dtype)
        bias = added if bias is None else e.op("Add", bias, added)
    if bias is None:
        return None, False
    return _reshape_to_rank_4(e, bias, mask, filled, allowed), empty


def _reshape_to_rank_4(
    e: Emitter,
    bias: ir.Value,
    mask: ir.Value | None,
    filled: ir.Value | None,
    allowed: ir.Value | None,
) -> ir.Value:
    rank = 0
    if mask is not None:
        rank = len(e.dims(e.required(3, "attn_mask")))
        if rank > 4:
            raise Unsupported(f"its attn_mask has {rank} dimensions")
    if filled is not None:
        rank = 4
    elif allowed is not None and allowed is not mask:
        rank = max(rank, 2)
    if rank == 0:
        raise Unsupported("its attn_mask has no dimensions")
    return bias if rank == 4 else e.unsqueeze(bias, *range(4 - rank))


def _pad_mask(e: Emitter, mask: ir.Value, keys: ir.Value) -> ir.Value:
    """Emit the mask padded to the number of keys; padded columns are masked.

    One column is padded, too, not broadcast: so does the function that defines the operator.
    """
    kind = e.dtype(mask)
    own = e.dims(mask)
    k, past = e.required(1, "K"), e.input(4)
    if past is None and own and own[-1] is not None and own[-1] == e.dims(k)[-2]:
        return mask
    known = [own[-1] if own else None, e.dims(k)[-2]]
    if past is not None:
        known.append(e.dims(past)[2])
    sizes = [size for size in known if isinstance(size, int)]
    if len(sizes) == len(known) and sizes[0] == sum(sizes[1:]):
        return mask
    missing = e.op("Max", e.op("Sub", keys, e.dim(mask, -1)), e.const([0]))
    rest = False if kind == ir.DataType.BOOL else -np.inf
    pads = e.op("Concat", e.const([0]), missing, axis=0)
    return e.op("Pad", mask, pads, e.const(rest, kind), e.const([-1]))


def tensor_scatter(e: Emitter) -> Sequence[ir.Value]:
    """Emit TensorScatter: positions of a cache overwritten from a start index for each batch."""
    past, update, starts = e.required(0, "past_cache"), e.required(1, "update"), e.input(2)
    rank = len(e.dims(past))
    axis = int(e.get("axis", -2)) % rank
    if axis == 0:
        raise Unsupported("its axis is that of batches")
    length = e.op("Squeeze", e.dim(update, axis), e.const([0]))
    positions = e.unsqueeze(e.op("Range", e.const(0), length, e.const(1)), 0)
    if starts is not None:
        positions = e.op("Add", e.unsqueeze(starts, 1), positions)
    if str(e.get("mode", "linear")) == "circular":
        positions = e.op("Mod", positions, e.dim(past, axis))
    others = [i for i in range(1, rank) if i != axis]
    positions = e.unsqueeze(positions, *others) if others else positions
    indices = e.op("Expand", positions, e.op("Shape", update))
    return [e.op("ScatterElements", past, indices, update, axis=axis)]
