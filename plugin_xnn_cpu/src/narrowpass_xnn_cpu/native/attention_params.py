"""Parameters of attention, of attention with a KV cache, and of rotary embedding, for C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import calls, kernels
from narrowpass_xnn_cpu.native.library import extension

_TILE = 12
"""MR of the largest micro-kernel in attention/attention.c."""
_BLOCK_FLOATS = 1 << 15
"""Scores of a block of rows: they stay in cache beside packed keys and values."""
_LINE = 16
"""Floats of a cache line, and of a vector in attention/attention.c."""
STREAMED_BYTES = 1 << 18
"""Bytes of a KV cache from which its copy is written with non-temporal stores.

A decoder reads the copy in its next run, after all weights, by which time the processor's caches
have evicted it; they have not if the model is small.
"""

_FEW_ROWS, _MANY_KEYS = 4, 64
"""Fewer query rows of so many keys and more are multiplied with keys and values as they are:
packing would take longer. Fewer keys are packed for any number of query rows, whose bits then do
not depend on the padding of a short sequence."""

_FLOAT = 4
_PACKED_BYTES = 1 << 23
"""Bytes of keys and values that are packed as bfloat16 at a time, of one head at least."""
MOST_UNROUNDED_ROWS = 32
"""Query rows of a head up to which attention is never rounded to bfloat16.

Reading keys and values takes the time of so few, and they are read once, as they are stored.
"""


def attention(
    *,
    heads: Sequence[int],
    rows: int,
    keys: int,
    depth: int,
    values: int,
    strides: Sequence[Sequence[int]],
    out_strides: Sequence[int],
    scale: float,
    threads: int,
    mask: str = "none",
    fill: float = 0.0,
    safe: bool = False,
    softcap: float = 0.0,
    causal: bool = False,
    window_size: int = 0,
    moves: bool = True,
    rounded: bool = False,
    deterministic: bool = False,
) -> tuple[Any, int]:
    """Return the parameters of ``NP_ATTENTION``, and the bytes of workspace that it needs.

    Args:
        heads: batch size, KV heads, and query heads for each KV head.
        rows: query positions.
        keys: key positions.
        depth: head size of queries and keys.
        values: head size of values.
        strides: five strides of each of q, k and v, and of the mask if there is one, in elements.
        out_strides: five strides of the result.
        scale: factor of the scores.
        threads: threads that may compute at once.
        mask: kind of mask, one of ``NP_MASK_*``.
        fill: the score of masked positions, for a boolean mask.
        safe: whether rows whose softmax is NaN become zeros.
        softcap: of the scores; 0 for none.
        causal: whether keys behind a row's position are not seen.
        window_size: keys up to its position that are seen; 0 for all.
        moves: whether each row is at the next position; all are at one otherwise.
        rounded: whether operands and weights of values are rounded to bfloat16 and multiplied by
            tiles, where there are more rows than `MOST_UNROUNDED_ROWS`.
        deterministic: whether the bits of a row may not depend on the number of rows.
    """
    if any(step not in (0, 1) for step in [s[4] for s in (*strides, out_strides)]):
        raise BackendError("the last axis of an operand of attention is not dense")
    if (mask == "none") != (len(strides) == 3):
        raise BackendError(f"{len(strides)} operands of attention, and a mask that is {mask}")
    # Rows of scores and of values are padded to whole SIMD vectors.
    wide_keys, wide_values = (-(-size // _LINE) * _LINE for size in (keys, values))
    most = extension().lib.NP_ATTENTION_MAX_ROWS
    block = max(_TILE, min(most, _BLOCK_FLOATS // wide_keys // _TILE * _TILE))
    count = heads[0] * heads[1] * heads[2]
    parts = 1 if threads == 1 else min(-(-2 * threads // count), -(-rows // block))
    part_rows = -(-rows // parts // block) * block if parts > 1 else rows
    parts = -(-rows // part_rows)
    scratch = wide_keys * depth + keys * wide_values + block * (wide_keys + wide_values)
    if count * parts >= 1 << 48 or scratch >= 1 << 48:
        raise BackendError(f"attention over {rows} and {keys} rows cannot be computed with")
    params = calls.parameters("NP_ATTENTION")
    kernels.set_dims(params.heads, heads)
    params.rows, params.keys, params.depth, params.values = rows, keys, depth, values
    targets = params.q_strides, params.k_strides, params.v_strides
    for target, given in zip(targets, strides, strict=False):
        kernels.set_dims(target, given[:4])
    kernels.set_dims(params.out_strides, out_strides[:4])
    kernels.set_dims(params.mask_strides, strides[3] if len(strides) > 3 else [0] * 5)
    params.mask, params.fill = calls.constant("NP_MASK", mask), fill
    params.scale, params.safe, params.softcap = scale, safe, softcap
    params.visible.causal, params.visible.window_size, params.visible.moves = (
        causal,
        window_size,
        moves,
    )
    params.block, params.parts, params.part_rows = block, parts, part_rows
    params.unpacked = rows < _FEW_ROWS and keys >= _MANY_KEYS and not deterministic
    params.target = kernels.code()
    params.thread_scratch = -(-scratch // _LINE) * _LINE
    if rounded and rows > MOST_UNROUNDED_ROWS:
        lib = extension().lib
        params.packed_heads = lib.np_attention_bf16_heads(params, _PACKED_BYTES)
        return params, int(lib.np_attention_bf16_bytes(params, threads))
    return params, threads * params.thread_scratch * 4


def rotary(
    *,
    sizes: Sequence[int],
    depth: int,
    rotated: int,
    strides: Sequence[Sequence[int]],
    interleaved: bool,
    halved: bool,
) -> Any:
    """Return the parameters of ``NP_ROTARY``.

    Args:
        sizes: sizes of the three axes before rows.
        depth: head size.
        rotated: ``rotary_embedding_dim``: the first elements are rotated, the others copied.
        strides: three strides of each of x, cosines, sines and the result; rows are dense.
        interleaved: whether pairs are adjacent elements, else half of `rotated` apart.
        halved: whether there is one cosine and sine for each pair.
    """
    if rotated % 2 or not 0 <= rotated <= depth:
        raise BackendError(f"{rotated} of {depth} elements cannot be rotated in pairs")
    params = calls.parameters("NP_ROTARY")
    kernels.set_dims(params.sizes, sizes)
    params.depth, params.rotated = depth, rotated
    targets = params.x_strides, params.cos_strides, params.sin_strides, params.out_strides
    for target, given in zip(targets, strides, strict=True):
        kernels.set_dims(target, given)
    params.interleaved, params.halved = interleaved, halved
    return params


def cached_attention(
    attention: Any,
    first: int,
    wholes: Sequence[Sequence[int]],
    pieces: Sequence[Sequence[int] | None],
) -> Any:
    """Return the parameters of ``NP_CACHED_ATTENTION``.

    Args:
        attention: parameters of ``NP_ATTENTION`` over all keys and values; None where its result
            is empty.
        first: index of the first past tensor among the inputs, after those of attention.
        wholes: shapes of present keys and values, [.., rows, depth], float32 and dense.
        pieces: shapes of past keys and values, with fewer rows; None for one that is not copied.
    """
    lib = extension().lib
    params = calls.parameters("NP_CACHED_ATTENTION")
    for index, (whole, piece) in enumerate(zip(wholes, pieces, strict=True)):
        size = [0] if piece is None else piece
        strides = [0] if piece is None else kernels.dense_strides(whole)
        copied = kernels.copy(size, kernels.dense_strides(size), strides, _FLOAT)
        params.copies[index] = copied[0]
    params.cache_input = first
    if attention is None:
        return params
    params.attention = attention[0]
    rows = {0 if piece is None else piece[-2] for piece in pieces}
    (past, *others) = rows
    if others or not _at_once(params.attention, lib.NP_ATTENTION_CACHE_ROWS):
        return params
    params.at_once, params.past = True, past
    params.streamed = sum(map(math.prod, filter(None, pieces))) * _FLOAT >= STREAMED_BYTES
    keys = params.attention.keys
    for axis in range(3):
        params.k_strides[axis] = params.attention.k_strides[axis] // keys * past
        params.v_strides[axis] = params.attention.v_strides[axis] // keys * past
    return params


def appended_attention(
    attention: Any,
    length_input: int,
    new_rows: int,
    capacity: int,
    threads: int,
    *,
    columns: bool,
) -> tuple[Any, int]:
    """Return the parameters of ``NP_APPENDED_ATTENTION``, and the bytes of workspace of chunks.

    Args:
        attention: parameters of ``NP_ATTENTION`` over the whole caches.
        length_input: index of the number of rows before the run among the inputs.
        new_rows: rows that the run appends.
        capacity: rows of the caches.
        threads: threads that may compute at once.
        columns: whether the mask has a column for each row.
    """
    lib = extension().lib
    params = calls.parameters("NP_APPENDED_ATTENTION")
    params.attention = attention[0]
    params.length_input, params.new_rows = length_input, new_rows
    params.at_once = _few_rows(attention, lib.NP_ATTENTION_CACHE_ROWS)
    params.chunked = attention.rows <= lib.NP_CACHE_MAX_ROWS
    params.mask_rows = columns
    if columns:
        strides = params.attention.mask_strides
        for axis in range(4):
            strides[axis] //= capacity
        # Also where the buffer has one row.
        strides[4] = 1
    if not params.chunked:
        return params, 0
    return params, _FLOAT * int(
        lib.np_chunked_floats(extension().ffi.addressof(params, "attention"), threads)
    )


def narrow_attention(
    appended: Any, cache_elements: Sequence[int], stored: str, threads: int
) -> tuple[Any, int]:
    """Return the parameters of ``NP_NARROW_ATTENTION``, and the bytes of workspace that it needs.

    Args:
        appended: parameters of ``NP_APPENDED_ATTENTION``.
        cache_elements: of the buffers of keys and of values.
        stored: type of their elements, one of ``NP_CACHE_*``.
        threads: threads that may compute at once.
    """
    params = calls.parameters("NP_NARROW_ATTENTION")
    params.appended = appended[0]
    params.type = calls.constant("NP_CACHE", stored)
    kernels.set_dims(params.cache_elements, cache_elements)
    inner = params.appended.attention
    if inner.rows <= extension().lib.NP_CACHE_MAX_ROWS:
        params.appended.at_once = True
        floats = extension().lib.np_chunked_floats(extension().ffi.addressof(inner), threads)
        return params, _FLOAT * int(floats)
    params.appended.at_once = False
    if inner.packed_heads:
        lib, ffi = extension().lib, extension().ffi
        return params, int(lib.np_attention_bf16_bytes(ffi.addressof(inner), threads))
    upcast = inner.keys * (inner.depth + inner.values)
    inner.thread_scratch += -(-upcast // _LINE) * _LINE
    return params, _FLOAT * threads * inner.thread_scratch


def narrow_append(
    sizes: Sequence[int], strides: Sequence[int], cache: Sequence[int], axis: int, stored: str
) -> Any:
    """Return the parameters of ``NP_NARROW_APPEND``.

    Args:
        sizes: shape of the new rows.
        strides: of the new rows, in elements.
        cache: shape of the buffer, dense.
        axis: of rows, not the last one.
        stored: type of the cache's elements, one of ``NP_CACHE_*``.
    """
    dense = kernels.dense_strides(cache)
    leading, (given, written) = kernels.collapse_axes(sizes[:-1], (strides[:-1], dense[:-1]))
    params = calls.parameters("NP_NARROW_APPEND")
    kernels.set_dims(params.sizes, leading)
    kernels.set_dims(params.in_strides, given)
    kernels.set_dims(params.out_strides, written)
    params.rank = len(leading)
    params.depth, params.depth_stride = sizes[-1], strides[-1] if sizes[-1] > 1 else 1
    params.new_rows, params.capacity = sizes[axis], cache[axis]
    params.row_elements, params.cache_elements = dense[axis], math.prod(cache)
    params.type = calls.constant("NP_CACHE", stored)
    return params


def _few_rows(attention: Any, most_rows: int) -> bool:
    """Return whether all rows of a head can be attended at once: one part, dense K and V."""
    if attention.rows > most_rows or attention.parts != 1:
        return False
    dense = attention.depth, attention.values
    return (attention.k_strides[3], attention.v_strides[3]) == dense


def _at_once(attention: Any, most_rows: int) -> bool:
    """Return whether a thread can copy and attend a whole head: own K and V, too."""
    if not _few_rows(attention, most_rows):
        return False
    many = [axis for axis in range(3) if attention.heads[axis] > 1]
    return all(attention.k_strides[axis] and attention.v_strides[axis] for axis in many)
