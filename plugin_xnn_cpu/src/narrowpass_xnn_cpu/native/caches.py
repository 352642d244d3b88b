"""Parameters of attention that copies the caches which its keys and values begin with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from narrowpass_xnn_cpu.native import calls, kernels
from narrowpass_xnn_cpu.native.library import extension

STREAMED_BYTES = 1 << 18
"""Bytes of caches from which on copies are written past the caches of the processor.

What one step of a decoder copies is read again in the next run, after all weights: if there are
many steps, it is not in the processor's caches by then. Copies of a small model are.
"""

_ELEMENT = 4


def cached_attention(
    attention: Any,
    first: int,
    wholes: Sequence[Sequence[int]],
    pieces: Sequence[Sequence[int] | None],
) -> Any:
    """Give the parameters of ``NP_CACHED_ATTENTION``.

    Args:
        attention: those of ``NP_ATTENTION`` over all keys and values; None where its result has no
            elements.
        first: which input the first cache is: those of attention come before.
        wholes: the shapes of keys and of values, [.., rows, depth], float32 and dense.
        pieces: of each the shape of the cache that it begins with, which differs in rows and has
            fewer; None for one that is there already.
    """
    lib = extension().lib
    params = calls.parameters("NP_CACHED_ATTENTION")
    for index, (whole, piece) in enumerate(zip(wholes, pieces, strict=True)):
        size = [0] if piece is None else piece
        strides = [0] if piece is None else kernels.dense_strides(whole)
        copied = kernels.copy(size, kernels.dense_strides(size), strides, _ELEMENT)
        params.copies[index] = copied[0]
    params.first_cache = first
    if attention is None:
        return params
    params.attention = attention[0]
    rows = {0 if piece is None else piece[-2] for piece in pieces}
    (past, *others) = rows
    if others or not _at_once(params.attention, lib.NP_ATTENTION_CACHE_ROWS):
        return params
    params.at_once, params.past = True, past
    params.streamed = sum(map(math.prod, filter(None, pieces))) * _ELEMENT >= STREAMED_BYTES
    keys = params.attention.keys
    for axis in range(3):
        params.k_strides[axis] = params.attention.k_strides[axis] // keys * past
        params.v_strides[axis] = params.attention.v_strides[axis] // keys * past
    return params


def _at_once(attention: Any, most_rows: int) -> bool:
    """Tell whether each head is computed whole, and alone reads keys and values that are dense."""
    if attention.rows > most_rows or attention.parts != 1:
        return False
    if attention.k_strides[3] != attention.depth or attention.v_strides[3] != attention.values:
        return False
    many = [axis for axis in range(3) if attention.heads[axis] > 1]
    return all(attention.k_strides[axis] and attention.v_strides[axis] for axis in many)
