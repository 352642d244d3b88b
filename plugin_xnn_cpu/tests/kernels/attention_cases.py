"""Attention, its caches and rotary embedding; oracle: numpy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from edge_kit import EDGES, SOME, UNIT, Cases, edges
from tolerances import ACCUMULATED

from narrowpass_xnn_cpu.native import attention_params, kernels

CASES = Cases()
ROWS = (*edges(12, least=1), 8, 9)
"""MR of the micro-kernels, and the rows that are attended at once."""
KEYS = (*SOME, 64, 511, 512, 513)
"""Up to and beyond a chunk of a cache."""
MASKS = ("none", "added", "kept", "causal")
GROUPS = ((1, 1, 1), (2, 1, 1), (1, 2, 3), (1, 1, 5))
SIZES = {
    "depth": (*SOME, 64),
    "values": (*SOME, 64),
    "heads": GROUPS,
    "mask": MASKS,
}


def strides_of(x):
    """Return strides in elements; 0 along axes of one element, which are broadcast."""
    sizes = zip(x.strides, x.shape, strict=True)
    found = [step // x.itemsize if size > 1 else 0 for step, size in sizes]
    # Rows are never broadcast, nor is what lies in them.
    return [*found[:3], x.shape[4], 1]


def operands(kernel, heads, rows, keys, depth, values):
    """Return q, k and v; query heads of a group share keys."""
    q = kernel.floats(*heads, rows, depth)
    k, v = (kernel.floats(*heads[:2], 1, keys, size) for size in (depth, values))
    return q, k, v


def mask_of(kernel, mask, rows, keys):
    """Return the mask as an operand, if it is one, and what is added to the scores."""
    if mask == "added":
        given = kernel.floats(1, 1, 1, rows, keys)
        return [given], given
    if mask == "kept":
        given = kernel.rng.integers(0, 4, (1, 1, 1, rows, keys)).astype(bool)
        given[..., 0] = True  # a row that sees nothing is a matter of its own
        return [given], np.where(given, 0, -np.inf)
    return [], 0.0


def attended(q, k, v, added, first=None):
    """Compute attention; keys behind `first` and the row's number are hidden."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(3, 4) * 0.3 + added
    if first is not None:
        places = first + np.arange(q.shape[3])[:, None]
        scores = np.where(np.arange(k.shape[3]) <= places, scores, -np.inf)
    powers = np.exp(scores - scores.max(4, keepdims=True))
    return (powers / powers.sum(4, keepdims=True) @ v).astype(np.float32)


def params_of(kernel, q, k, v, masks, mask, strides=None):
    """Return the parameters of attention, and its workspace."""
    heads, rows, values = q.shape[:3], q.shape[3], v.shape[4]
    out = kernels.dense_strides((*heads, rows, values))
    return attention_params.attention(
        heads=heads,
        rows=rows,
        keys=k.shape[3],
        depth=q.shape[4],
        values=values,
        strides=[strides_of(x) for x in (q, k, v, *masks)] if strides is None else strides,
        out_strides=out,
        scale=0.3,
        threads=kernel.threads,
        mask=mask if masks else "none",
        fill=-np.inf,
        causal=mask == "causal",
    )


def tolerance_of(expected):
    """A mean of rows of V errs by elements of V, which are about 1, also where they cancel."""
    return ACCUMULATED.relative * max(1.0, 1.0 / max(float(np.abs(expected).max()), 1e-3))


@CASES.of("NP_ATTENTION", keys=KEYS, rows=ROWS, **SIZES)
def attention(kernel, keys, rows, depth, values, heads, mask):
    q, k, v = operands(kernel, heads, rows, keys, depth, values)
    masks, added = mask_of(kernel, mask, rows, keys)
    params, workspace = params_of(kernel, q, k, v, masks, mask)
    expected = attended(q, k, v, added, 0 if mask == "causal" else None)
    tolerance = tolerance_of(expected)
    kernel.expect(params, [q, k, v, *masks], expected, tolerance, workspace=workspace)


@CASES.of("NP_CACHED_ATTENTION", keys=KEYS[1:], new=ROWS, rows=(1, 2, 8, 9), **SIZES)
def cached_attention(kernel, keys, new, rows, depth, values, heads, mask):
    """The new rows lie in place; the kernel copies the past in front of them."""
    past = max(1, keys - new)
    q, k, v = operands(kernel, heads, rows, keys, depth, values)
    masks, added = mask_of(kernel, mask, rows, keys)
    expected = attended(q, k, v, added, 0 if mask == "causal" else None)
    params, workspace = params_of(kernel, q, k, v, masks, mask)
    pasts = [x[..., :past, :].copy() for x in (k, v)]
    k[..., :past, :], v[..., :past, :] = np.nan, np.nan
    given = [q, k, v, *masks, *pasts]
    shapes = [[x.shape for x in pair] for pair in ((k, v), pasts)]
    params = attention_params.cached_attention(params, 3 + len(masks), *shapes)
    kernel.expect(params, given, expected, tolerance_of(expected), workspace=workspace)


def appended(kernel, keys, rows, room, depth, values, heads, mask):
    """Return operands over caches with room behind `keys` rows, parameters, and the result."""
    q, k, v = operands(kernel, heads, rows, keys, depth, values)
    masks, added = mask_of(kernel, mask, rows, keys)
    expected = attended(q, k, v, added, keys - rows if mask == "causal" else None)
    capacity = -(-(keys + room) // 4) * 4  # as of session's buffers, which have a power of 2
    behind = ((0, 0),) * 3 + ((0, capacity - keys), (0, 0))
    k, v = (np.pad(x, behind, constant_values=np.nan) for x in (k, v))
    strides = [strides_of(x) for x in (q, k, v)]
    if masks:
        strides.append([0, 0, 0, capacity, 1])
    found = params_of(kernel, q, k, v, masks, mask, strides)
    length = np.array([keys - rows])
    params, workspace = attention_params.appended_attention(
        found[0], 3 + len(masks), rows, capacity, kernel.threads, columns=bool(masks)
    )
    return [q, k, v, *masks, length], params, max(workspace, found[1]), expected


@CASES.of("NP_APPENDED_ATTENTION", keys=KEYS, rows=ROWS, room=(0, 1, 17, 600), **SIZES)
def appended_attention(kernel, keys, rows, room, depth, values, heads, mask):
    if rows > keys:
        return
    given, params, workspace, expected = appended(
        kernel, keys, rows, room, depth, values, heads, mask
    )
    kernel.expect(params, given, expected, tolerance_of(expected), workspace=workspace)


NARROW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def narrowed(x, stored):
    """Return rows as a cache stores them: 16 bits, or int8 with scales behind; and their values."""
    if stored != "int8":
        found = x.astype(NARROW[stored])
        return found.view(np.uint16), found.astype(np.float32)
    largest = np.maximum(np.abs(x).max(-1, keepdims=True), np.float32(1e-9))
    integers = np.rint(x * (np.float32(127) / largest)).astype(np.int8)
    scales = largest / np.float32(127)
    stored = np.concatenate([part.reshape(-1).view(np.uint8) for part in (integers, scales)])
    return stored.view(np.uint32), integers * scales


@CASES.of(
    "NP_NARROW_ATTENTION",
    keys=KEYS,
    rows=ROWS,
    room=(0, 1, 17, 600),
    stored=(*NARROW, "int8"),
    **SIZES,
)
def narrow_attention(kernel, keys, rows, room, stored, depth, values, heads, mask):
    """Oracle: attention of the values that caches have."""
    if rows > keys:
        return
    given, params, _, _ = appended(kernel, keys, rows, room, depth, values, heads, mask)
    q, k, v, *rest = given
    whole = [narrowed(np.nan_to_num(x), stored) for x in (k, v)]
    masks = rest[:-1]
    added = 0.0
    if masks:
        added = masks[0] if mask == "added" else np.where(masks[0], 0, -np.inf)
    seen = [part[1][..., :keys, :] for part in whole]
    expected = attended(q, *seen, added, keys - rows if mask == "causal" else None)
    params, workspace = attention_params.narrow_attention(
        params, (k.size, v.size), stored, kernel.threads
    )
    inputs = [q, whole[0][0], whole[1][0], *rest]
    kernel.expect(params, inputs, expected, tolerance_of(expected), workspace=workspace)


@CASES.of(
    "NP_NARROW_APPEND",
    depth=EDGES[1:],
    new=EDGES[1:],
    past=(0, 1, 7, 16),
    room=(0, 1, 9),
    heads=(1, 2, 3),
    stored=(*NARROW, "int8"),
    turned=(False, True),
)
def narrow_append(kernel, depth, new, past, room, heads, stored, turned):
    """Behind the past, in the type of the cache, from heads that lie side by side or not."""
    capacity = -(-(past + new + room) // 4) * 4
    whole = kernel.floats(heads, capacity, depth)
    shape = (new, heads, depth) if turned else (heads, new, depth)
    rows = kernel.floats(*shape)
    view = rows.swapaxes(0, 1) if turned else rows
    before, _ = narrowed(whole, stored)
    whole[:, past : past + new] = view
    expected, _ = narrowed(whole, stored)
    steps = [step // 4 for step in view.strides]
    params = attention_params.narrow_append(view.shape, steps, whole.shape, 1, stored)
    given = [before[:0], rows, np.array([past])]
    if stored != "int8":
        kernel.expect(params, given, expected, before=before)
        return
    # Halves: a scaled element is rounded before it becomes an integer, or with that (FMA).
    got = kernel.run(params, given, expected.shape, np.uint32, before=before).view(np.uint8)
    elements, wanted = whole.size, expected.view(np.uint8)
    off = got[:elements].view(np.int8).astype(int) - wanted[:elements].view(np.int8)
    assert np.abs(off).max() <= 1
    np.testing.assert_array_equal(got[elements:], wanted[elements:])


@CASES.of(
    "NP_ROTARY",
    half=edges(16, 32, 64, least=1),
    rest=(0, 1, 16, 17),
    positions=(1, 2, 3, 15, 16, 17),
    heads=(1, 2, 3),
    interleaved=(False, True),
    halved=(False, True),
)
def rotary(kernel, half, rest, positions, heads, interleaved, halved):
    rotated = 2 * half
    x = kernel.floats(2, heads, positions, rotated + rest)
    width = half if halved else rotated
    cosines, sines = kernel.floats(positions, width), kernel.floats(positions, width)
    wide = x.astype(np.float64)
    at = np.arange(half)
    first = 2 * at if interleaved else at
    second = first + 1 if interleaved else first + half
    a, b = wide[..., first], wide[..., second]
    of = (at, at) if halved else (first, second)
    expected = wide.copy()
    expected[..., first] = a * cosines[:, of[0]] - b * sines[:, of[0]]
    expected[..., second] = b * cosines[:, of[1]] + a * sines[:, of[1]]
    steps = kernels.dense_strides(x.shape)[:3]
    params = attention_params.rotary(
        sizes=x.shape[:3],
        depth=rotated + rest,
        rotated=rotated,
        strides=[steps, [0, 0, width], [0, 0, width], steps],
        interleaved=interleaved,
        halved=halved,
    )
    kernel.expect(params, [x, cosines, sines], expected.astype(np.float32), 8 * UNIT)
